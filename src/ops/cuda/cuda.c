/* Opens the CUDA part of the program, a shared object beside it, and passes calls on: see cuda.h.
 * Knows nothing of CUDA itself. */
#include "ops/cuda/cuda.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/version.h"
#include "ops/cuda/card/part.h"

#ifndef DI_CUDA_BUILT
#define DI_CUDA_BUILT 0
#endif

static const char name[] = "libdeepinfer-cuda.so";

/* The folder of the program or library that holds this code, with its last '/'; "" if unknown. */
static void own_folder(char *folder, size_t size) {
    Dl_info info;
    folder[0] = 0;
    if (dladdr((void *)own_folder, &info) && info.dli_fname) {
        char real[PATH_MAX];
        const char *path = realpath(info.dli_fname, real) ? real : info.dli_fname;
        const char *end = strrchr(path, '/');
        if (end && (size_t)(end - path) + 2 < size) {
            memcpy(folder, path, (size_t)(end - path) + 1);
            folder[end - path + 1] = 0;
        }
    }
}

/* Beside the program, where `make install` puts it, or where the system looks for libraries. The
 * handle is never closed: the CUDA runtime does not like to be unloaded. */
static void *open_part(char *why, size_t size) {
    const char *given = getenv("DI_CUDA_LIBRARY");
    char folder[PATH_MAX], path[PATH_MAX + 64];
    void *part = NULL;
    own_folder(folder, sizeof folder);
    for (int i = 0; i < 3 && !part; i++) {
        static const char *const places[] = {"", "../lib/"};
        if (given && *given) {
            snprintf(path, sizeof path, "%s", given);
            i = 2;
        } else if (i < 2) {
            snprintf(path, sizeof path, "%s%s%s", folder, places[i], name);
        } else {
            snprintf(path, sizeof path, "%s", name);
        }
        part = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    if (!part) {
        const char *text = dlerror();
        snprintf(why, size, "%s", text ? text : "cannot be opened");
    }
    return part;
}

static bool is_ours(const di_cuda_part *table) {
    return table && table->size == sizeof *table &&
           strcmp(table->version(), di_version_string()) == 0 &&
           strcmp(table->revision(), di_git_revision()) == 0;
}

/* The part's table of functions, or NULL with *err. */
static const di_cuda_part *find_part(di_error *err) {
    char why[512];
    const char *given = getenv("DI_CUDA_LIBRARY");
    if (!DI_CUDA_BUILT && !(given && *given)) {
        di_fail(err, DI_ERR_UNSUPPORTED,
                "this build has no CUDA (nvcc was not found, or it was built with CUDA=0)");
        return NULL;
    }
    void *part = open_part(why, sizeof why);
    if (!part) {
        di_fail(err, DI_ERR_UNSUPPORTED, "CUDA: %s", why);
        return NULL;
    }
    const di_cuda_part *table = dlsym(part, "di_cuda_part_table");
    if (!is_ours(table)) {
        di_fail(err, DI_ERR_UNSUPPORTED, "CUDA: %s belongs to another version of this program (%s)",
                name, di_git_revision());
        return NULL;
    }
    return table;
}

di_backend *di_cuda_create(int device, di_error *err) {
    const di_cuda_part *part = find_part(err);
    return part ? part->create(device, err) : NULL;
}

bool di_cuda_parse(const char *text, int *device) {
    *device = 0;
    if (strncmp(text, "cuda", 4) != 0) {
        return false;
    }
    if (text[4] == 0) {
        return true;
    }
    const char *digit = text + 5;
    if (text[4] != ':' || !*digit || strlen(digit) > 3) {
        return false;
    }
    for (; *digit >= '0' && *digit <= '9'; digit++) {
        *device = *device * 10 + (*digit - '0');
    }
    return *digit == 0;
}

void di_cuda_describe(char *text, size_t size) {
    di_error err;
    const di_cuda_part *part = find_part(&err);
    if (part) {
        part->describe(text, size);
    } else {
        snprintf(text, size, "%s", err.message);
    }
}

void di_cuda_free_order(di_backend *be, bool allowed) {
    di_error err;
    const di_cuda_part *part = find_part(&err);
    if (part) {
        part->free_order(be, allowed);
    }
}

void di_cuda_forget(di_backend *be) {
    di_error err;
    const di_cuda_part *part = find_part(&err);
    if (part) {
        part->forget(be);
    }
}

size_t di_cuda_bytes(const di_backend *be) {
    di_error err;
    const di_cuda_part *part = find_part(&err);
    return part ? part->bytes(be) : 0;
}

void di_cuda_read_all(di_backend *be, const void *buffer, size_t bytes) {
    di_error err;
    const di_cuda_part *part = find_part(&err);
    if (part) {
        part->read_all(be, buffer, bytes);
    }
}
