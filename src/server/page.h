/* The chat page and its files, which lie in the program itself (src/server/web). */
#ifndef DI_SERVER_PAGE_H
#define DI_SERVER_PAGE_H

#include <stddef.h>

#include "base/str.h"

typedef struct di_page_file {
    const char *path; /* of the URL: "/" is the page, "/web/app.js" ... its parts */
    const char *type; /* Content-Type */
    const char *data;
    size_t size;
    char etag[24]; /* a quoted hash of the data: ETag, to be compared with If-None-Match */
} di_page_file;

/* Headers to be sent with every one of them: nothing from elsewhere is loaded, no script runs that
 * is not one of these files, and text never becomes markup. */
#define DI_PAGE_CSP                                                                                \
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "        \
    "'self'; "                                                                                     \
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "                                \
    "require-trusted-types-for 'script'; trusted-types 'none'"
#define DI_PAGE_CACHE_CONTROL "no-cache" /* ask again each time; ETags make that cheap */

/* The file of a path (without the query); NULL: there is none. From any thread. */
const di_page_file *di_page_find(di_str path);

/* The i-th file, NULL behind the last. */
const di_page_file *di_page_at(size_t i);

#endif
