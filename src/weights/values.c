/* Looking for values that no arithmetic survives: NaN codes, NaN scales, infinities. Called when a
 * checkpoint is opened (quickly) and by inspect (thoroughly). Declared in bind.h. */
#include <string.h>
#include <sys/mman.h>

#include "weights/bind.h"

enum { QUICK_TENSOR_BYTES = 64 << 10, CHUNK = 4096 };

/* In all these formats a value is no number exactly if certain bits are all set: NaN in E4M3 and
 * E8M0, NaN and infinity (the whole exponent) in BF16 and F32.
 *
 * The functions return where the first such element begins, `bytes` if there is none. Data may lie
 * at any address. The inner loop has no exit, so that it is vectorised (ten times the speed for
 * bytes); a chunk with something in it is then looked at again. */
#define DEFINE_FIND_SET(function, type)                                                            \
    static size_t function(const uint8_t *data, size_t bytes, type bits) {                         \
        for (size_t start = 0; start < bytes; start += CHUNK) {                                    \
            size_t end = bytes - start < CHUNK ? bytes : start + CHUNK;                            \
            type any = 0;                                                                          \
            for (size_t i = start; i < end; i += sizeof(type)) {                                   \
                type v;                                                                            \
                memcpy(&v, data + i, sizeof v);                                                    \
                any |= (type)((v & bits) == bits);                                                 \
            }                                                                                      \
            for (size_t i = start; any && i < end; i += sizeof(type)) {                            \
                type v;                                                                            \
                memcpy(&v, data + i, sizeof v);                                                    \
                if ((v & bits) == bits) {                                                          \
                    return i;                                                                      \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        return bytes;                                                                              \
    }

DEFINE_FIND_SET(find_set8, uint8_t)
DEFINE_FIND_SET(find_set16, uint16_t)
DEFINE_FIND_SET(find_set32, uint32_t)

static size_t first_bad(di_dtype dtype, const uint8_t *data, size_t bytes) {
    switch (dtype) {
    case DI_F8_E8M0:
        return find_set8(data, bytes, 0xff);
    case DI_F8_E4M3:
        return find_set8(data, bytes, 0x7f);
    case DI_BF16:
        return find_set16(data, bytes, 0x7f80);
    case DI_F32:
        return find_set32(data, bytes, 0x7f800000);
    default:
        return bytes; /* every code of the others has a value */
    }
}

static bool contains(const di_stored_tensor *t, const char *text) {
    return memmem(t->name, t->name_length, text, strlen(text)) != NULL;
}

static bool quick(const di_stored_tensor *t, size_t bytes) {
    if (t->tensor->dtype == DI_F8_E8M0) {
        return !contains(t, ".ffn.experts.") && !contains(t, ".engram.embed.");
    }
    return bytes <= QUICK_TENSOR_BYTES;
}

/* A quick check touches few pages here and there; reading ahead of them would be most of its time.
 */
static void advise(const di_checkpoint *c, int advice) {
    for (size_t i = 0; i < c->num_shards; i++) {
        const di_shard *s = &c->shards[i];
        if (s->map.data) {
            (void)madvise((void *)s->map.data, s->map.size, advice);
        }
    }
}

static bool check_tensors(const di_checkpoint *c, di_check_depth depth, di_faults *faults) {
    for (size_t i = 0; i < c->num_tensors; i++) {
        const di_stored_tensor *t = &c->tensors[i];
        size_t bytes = (size_t)(t->tensor->end - t->tensor->begin);
        if (depth == DI_CHECK_QUICK && !quick(t, bytes)) {
            continue;
        }
        const uint8_t *data = di_stored_data(c, t);
        size_t at = first_bad(t->tensor->dtype, data, bytes);
        if (at == bytes) {
            continue;
        }
        const di_shard *s = &c->shards[t->shard];
        if (!di_fault(faults, DI_ERR_FORMAT, "%s: %.*s: %s at file offset %llu", s->path,
                      (int)(t->name_length < 160 ? t->name_length : 160), t->name,
                      t->tensor->dtype == DI_F8_E8M0 ? "NaN scale (byte 255)" : "NaN or infinity",
                      (unsigned long long)di_shard_file_offset(s, t->tensor->begin + at))) {
            return false;
        }
    }
    return true;
}

bool di_check_values(const di_checkpoint *c, di_check_depth depth, di_faults *faults) {
    advise(c, depth == DI_CHECK_QUICK ? MADV_RANDOM : MADV_SEQUENTIAL);
    bool ok = check_tensors(c, depth, faults);
    advise(c, MADV_NORMAL);
    return ok;
}
