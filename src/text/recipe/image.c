/* Images in requests: see image.h. */
#include "text/recipe/image.h"

#include <math.h>
#include <stdio.h>
#include <strings.h>

const char *const di_image_details[] = {"low", "high", "original", "auto"};

static bool has_prefix(di_str text, const char *prefix) {
    size_t size = strlen(prefix);
    return text.size >= size && strncasecmp(text.data, prefix, size) == 0;
}

static bool is_image_type(di_str type) {
    static const char *const types[] = {"image/png", "image/jpeg", "image/jpg", "image/gif",
                                        "image/webp"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (type.size == strlen(types[i]) && has_prefix(type, types[i])) {
            return true;
        }
    }
    return false;
}

static int base64_digit(char c) {
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

typedef struct base64 {
    size_t digits, padding;
    int last;       /* the last digit's value */
    bool ok, space; /* all else but white space was in place; there was white space */
} base64;

static base64 scan_base64(di_str data) {
    base64 b = {.ok = true};
    for (size_t i = 0; i < data.size; i++) {
        char c = data.data[i];
        if (c == ' ' || (c >= '\t' && c <= '\r')) {
            b.space = true;
        } else if (c == '=') {
            b.padding++;
        } else {
            int digit = base64_digit(c);
            b.ok &= digit >= 0 && b.padding == 0;
            b.digits++;
            b.last = digit;
        }
    }
    return b;
}

/* In a data URL: white space is skipped, padding may be missing. */
static bool is_loose_base64(di_str data) {
    base64 b = scan_base64(data);
    size_t rest = b.digits % 4;
    return b.ok && rest != 1 && (b.padding == 0 || (rest > 0 && b.padding == 4 - rest));
}

static const di_image *make_image(di_pool *pool, bool data_url, int detail, di_str url,
                                  const char *path, di_error *err) {
    di_image *image = di_pool_take(pool, 1, sizeof *image, err);
    if (!image) {
        return NULL;
    }
    *image = (di_image){.data_url = data_url, .detail = di_image_details[detail], .url = url};
    return di_pool_copy(pool, path, strlen(path), &image->path, err) ? image : NULL;
}

static const di_image *refuse(const char *path, const char *why, di_error *err) {
    di_fail(err, DI_ERR_ARGUMENT, "%s: %s", path, why);
    return NULL;
}

#define WRONG_KIND                                                                                 \
    "You have uploaded an unsupported image. Please make sure your image is valid and has one of " \
    "the following formats: webp, png, jpeg, and gif."

const di_image *di_image_from_url(di_pool *pool, di_str url, int detail, const char *path,
                                  di_error *err) {
    static const char mark[] = ";base64,";
    if (has_prefix(url, "http")) {
        return make_image(pool, false, detail, url, path, err);
    }
    const char *found =
        has_prefix(url, "data:") ? memmem(url.data, url.size, mark, sizeof mark - 1) : NULL;
    if (!found) {
        return refuse(path, "Unsupported image_url format", err);
    }
    const char *type = url.data + 5;
    const char *type_end = memchr(type, ';', (size_t)(url.data + url.size - type));
    if (!is_image_type((di_str){type, (size_t)(type_end - type)})) {
        return refuse(path, WRONG_KIND, err);
    }
    const char *data = found + sizeof mark - 1;
    if (!is_loose_base64((di_str){data, (size_t)(url.data + url.size - data)})) {
        return refuse(path, "Invalid base64 data", err);
    }
    return make_image(pool, true, detail, url, path, err);
}

const di_image *di_image_from_base64(di_pool *pool, const char *subtype, di_str data,
                                     const char *path, di_error *err) {
    base64 b = scan_base64(data);
    size_t rest = b.digits % 4, wanted = rest ? 4 - rest : 0;
    bool whole = rest == 0 || (b.last & (rest == 2 ? 15 : 3)) == 0; /* no bits are left over */
    bool padded = wanted ? b.padding >= 1 && b.padding <= wanted : b.padding == 0;
    if (!b.ok || b.space || rest == 1 || !whole || !padded) {
        return refuse(path, "base64 decode error", err);
    }
    const char *name = strcmp(subtype, "jpg") == 0 ? "jpeg" : subtype;
    char *url = di_pool_take(pool, data.size + 40, 1, err);
    if (!url) {
        return NULL;
    }
    int head = snprintf(url, 40, "data:image/%s;base64,", name);
    if (b.digits > 0) {
        memcpy(url + head, data.data, b.digits);
    }
    memset(url + (size_t)head + b.digits, '=', wanted);
    return make_image(pool, true, DI_DETAIL_HIGH, (di_str){url, (size_t)head + b.digits + wanted},
                      path, err);
}

/* ---- size and tokens ---- */

enum {
    PATCH = 14,
    CELL = 42,          /* 3 x 3 patches are one token */
    MOST_TOKENS = 1024, /* rows x (columns + 1) + 2 */
    FEWEST_PIXELS = 295936,
    MOST_ROUNDS = 10,
    LARGEST_SIDE = 8192,
    LOW_SIDE = 512, /* longest side of detail "low" */
};

static double round_up(double x) {
    return ceil(x / PATCH) * PATCH;
}

static int64_t cost(double width, double height) {
    double rows = ceil(height / CELL), columns = ceil(width / CELL);
    return (int64_t)(rows * (columns + 1)) + 2;
}

/* Shrinks to the largest grid of cells with the image's shape that MOST_TOKENS allows. */
static void shrink(double w, double h, double *width, double *height) {
    double r = h / w;
    double columns = sqrt((MOST_TOKENS - 2) / r + 0.25) - 0.5, rows = columns * r;
    if (columns < 1) {
        *width = CELL;
        *height = floor((MOST_TOKENS - 2) / 2.0) * CELL;
    } else if (rows < 1) {
        *width = (double)(MOST_TOKENS - 3) * CELL;
        *height = CELL;
    } else {
        double scale = fmin(floor(columns) * CELL / w, floor(rows) * CELL / h);
        *width = floor(w * scale / PATCH) * PATCH;
        *height = floor(h * scale / PATCH) * PATCH;
    }
}

static void plan_once(double *width, double *height) {
    double w = *width, h = *height, pixels = w * h;
    if (pixels > 0 && pixels < FEWEST_PIXELS) {
        double scale = sqrt(FEWEST_PIXELS / pixels);
        w = trunc(w * scale);
        h = trunc(h * scale);
    }
    *width = round_up(w);
    *height = round_up(h);
    if (cost(*width, *height) > MOST_TOKENS) {
        shrink(w, h, width, height);
    }
}

bool di_image_plan_make(int64_t width, int64_t height, di_image_plan *out, di_error *err) {
    double w = (double)width, h = (double)height;
    for (int i = 0; i < MOST_ROUNDS; i++) {
        double before_w = w, before_h = h;
        plan_once(&w, &h);
        if (w == before_w && h == before_h) {
            *out = (di_image_plan){(int64_t)w, (int64_t)h, cost(w, h)};
            return true;
        }
    }
    return di_fail(err, DI_ERR_ARGUMENT, "an image of %lld x %lld pixels has no settled size",
                   (long long)width, (long long)height);
}

bool di_image_plan_detail(int64_t width, int64_t height, int detail, di_image_plan *out,
                          di_error *err) {
    int64_t longest = width > height ? width : height;
    if (width < 1 || height < 1 || longest > LARGEST_SIDE) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "an image of %lld x %lld pixels, allowed are sides of 1 to %d",
                       (long long)width, (long long)height, LARGEST_SIDE);
    }
    if (strcmp(di_image_details[detail], "low") == 0 && longest > LOW_SIDE) {
        double scale = (double)LOW_SIDE / (double)longest;
        width = (int64_t)fmax(1, round((double)width * scale));
        height = (int64_t)fmax(1, round((double)height * scale));
    }
    return di_image_plan_make(width, height, out, err);
}
