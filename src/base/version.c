/* The version strings; the build passes them to this file alone. */
#include "base/version.h"

const char *di_version_string(void) {
    return DI_VERSION;
}

const char *di_git_revision(void) {
    return DI_GIT_REV;
}

const char *di_build_mode(void) {
    return DI_BUILD_MODE;
}
