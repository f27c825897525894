/* What was built: used by `deepinfer version`, log lines and bench records. */
#ifndef DI_BASE_VERSION_H
#define DI_BASE_VERSION_H

const char *di_version_string(void); /* "0.1.0" */
const char *di_git_revision(void);   /* `git describe --always --dirty` at build time */
const char *di_build_mode(void);     /* "release", "asan", "tsan", "fuzz" */

#endif
