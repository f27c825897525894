/* deepinfer version: what was built, from what, and what it found on this machine. */
#include <gnutls/gnutls.h>
#include <jansson.h>
#include <microhttpd.h>
#include <sodium.h>
#include <stdio.h>
#include <utf8proc.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/cpuinfo.h"
#include "base/version.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "ops/cuda/cuda.h"

static void print_pcre2(void) {
    char version[64] = "?";
    uint32_t jit = 0;
    pcre2_config(PCRE2_CONFIG_VERSION, version);
    pcre2_config(PCRE2_CONFIG_JIT, &jit);
    printf("  PCRE2     %s%s\n", version, jit ? " with JIT" : " without JIT");
}

int di_command_version(const di_options *o) {
    (void)o;
    printf("deepinfer %s (%s, %s build)\n", di_version_string(), di_git_revision(),
           di_build_mode());
#if defined(__clang__)
    printf("compiler    clang %s\n", __clang_version__);
#else
    printf("compiler    gcc %s\n", __VERSION__);
#endif
    printf("libraries\n  jansson   %s\n", jansson_version_str());
    print_pcre2();
    printf("  utf8proc  %s\n", utf8proc_version());
    printf("  libmicrohttpd  %s\n", MHD_get_version());
    printf("  GnuTLS    %s\n", gnutls_check_version(NULL));
    printf("  libsodium %s\n", sodium_version_string());
    char features[256];
    di_cpu_feature_list(features, sizeof features);
    printf("processor   %d usable cores; %s\n", di_cpu_count(),
           *features ? features : "no vector features that DeepInfer uses");
    char cards[512];
    di_cuda_describe(cards, sizeof cards);
    printf("CUDA        %s\n", cards);
    printf("batch invariance  always on a processor; on a card unless --no-batch-invariant\n");
    return DI_EXIT_WELL;
}
