/* Images in a request: which addresses are taken, and how many tokens an image of a size costs.
 * Nothing is fetched or decoded here. */
#ifndef DI_TEXT_RECIPE_IMAGE_H
#define DI_TEXT_RECIPE_IMAGE_H

#include "text/recipe/conversation.h"

extern const char *const di_image_details[]; /* "low", "high", "original", "auto" */
enum { DI_NUM_DETAILS = 4, DI_DETAIL_HIGH = 1 };

/* An image by address: http(s), or a data URL with a PNG, JPEG, GIF or WebP in base64. `path` is
 * copied. */
const di_image *di_image_from_url(di_pool *pool, di_str url, int detail, const char *path,
                                  di_error *err);

/* An image whose base64 text stands beside its type. */
const di_image *di_image_from_base64(di_pool *pool, const char *subtype, di_str data,
                                     const char *path, di_error *err);

/* Size after preprocessing and what it costs. Sizes are those that a second preprocessing leaves
 * alone, so that gateway and engine count alike. */
typedef struct di_image_plan {
    int64_t width, height; /* multiples of 14 */
    int64_t tokens;        /* with the ends of rows, begin and end */
} di_image_plan;

/* Fails if the sizes do not settle. */
bool di_image_plan_make(int64_t width, int64_t height, di_image_plan *out, di_error *err);

/* The same for an image that is preprocessed with a detail: "low" is made small first; larger than
 * 8192 pixels is refused. */
bool di_image_plan_detail(int64_t width, int64_t height, int detail, di_image_plan *out,
                          di_error *err);

#endif
