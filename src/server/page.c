/* The page's files as the assembler takes them in; see page.h. The Makefile knows that this object
 * depends on them. */
#include "server/page.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <xxhash.h>

/* src/server/web/NAME as web_ID .. web_ID_end. Paths are from the repository's root, where make
 * runs. */
#define TAKE_IN(id, name)                                                                          \
    __asm__(".section .rodata\n"                                                                   \
            ".global web_" #id "\n.hidden web_" #id "\n"                                           \
            ".global web_" #id "_end\n.hidden web_" #id "_end\n"                                   \
            "web_" #id ":\n.incbin \"src/server/web/" name "\"\n"                                  \
            "web_" #id "_end:\n.byte 0\n.previous\n");                                             \
    extern const char web_##id[], web_##id##_end[]

TAKE_IN(index, "index.html");
TAKE_IN(css, "page.css");
TAKE_IN(theme, "theme.js");
TAKE_IN(app, "app.js");
TAKE_IN(api, "api.js");
TAKE_IN(store, "store.js");
TAKE_IN(view, "view.js");
TAKE_IN(settings, "settings.js");
TAKE_IN(markdown, "markdown.js");
TAKE_IN(icon, "icon.svg");

#define SCRIPT "text/javascript; charset=utf-8"

static struct {
    di_page_file file;
    const char *end;
} files[] = {
    {{"/", "text/html; charset=utf-8", web_index, 0, ""}, web_index_end},
    {{"/web/page.css", "text/css; charset=utf-8", web_css, 0, ""}, web_css_end},
    {{"/web/theme.js", SCRIPT, web_theme, 0, ""}, web_theme_end},
    {{"/web/app.js", SCRIPT, web_app, 0, ""}, web_app_end},
    {{"/web/api.js", SCRIPT, web_api, 0, ""}, web_api_end},
    {{"/web/store.js", SCRIPT, web_store, 0, ""}, web_store_end},
    {{"/web/view.js", SCRIPT, web_view, 0, ""}, web_view_end},
    {{"/web/settings.js", SCRIPT, web_settings, 0, ""}, web_settings_end},
    {{"/web/markdown.js", SCRIPT, web_markdown, 0, ""}, web_markdown_end},
    {{"/web/icon.svg", "image/svg+xml", web_icon, 0, ""}, web_icon_end},
};
enum { NUM_FILES = sizeof files / sizeof *files };

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void measure(void) {
    for (int i = 0; i < NUM_FILES; i++) {
        di_page_file *f = &files[i].file;
        f->size = (size_t)((uintptr_t)files[i].end - (uintptr_t)f->data);
        snprintf(f->etag, sizeof f->etag, "\"%016" PRIx64 "\"",
                 (uint64_t)XXH3_64bits(f->data, f->size));
    }
}

const di_page_file *di_page_at(size_t i) {
    pthread_once(&once, measure);
    return i < NUM_FILES ? &files[i].file : NULL;
}

const di_page_file *di_page_find(di_str path) {
    pthread_once(&once, measure);
    for (int i = 0; i < NUM_FILES; i++) {
        if (di_str_is(path, files[i].file.path)) {
            return &files[i].file;
        }
    }
    return NULL;
}
