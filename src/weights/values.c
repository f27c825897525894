/* Looking for values that no arithmetic survives: NaN codes, NaN scales, infinities. Called when a
 * checkpoint is opened (quickly) and by inspect (thoroughly). Declared in bind.h. */
#include <string.h>
#include <sys/mman.h>

#include "weights/bind.h"

enum { QUICK_TENSOR_BYTES = 64 << 10, CHUNK = 4096 };

/* A test of one element, given its bits. */
typedef bool (*bad_bits)(uint64_t bits);

static bool bad_scale(uint64_t v) {
    return v == 0xff;
}

static bool bad_e4m3(uint64_t v) {
    return (v & 0x7f) == 0x7f;
}

static bool bad_bf16(uint64_t v) {
    return (v & 0x7f80) == 0x7f80;
}

static bool bad_f32(uint64_t v) {
    return (v & 0x7f800000) == 0x7f800000;
}

/* Elements of `width` bytes, which may lie at any address. The inner loop has no exit, so that it
 * is vectorised; a chunk with a bad element in it is then looked at again. Returns `bytes` if none.
 */
static inline __attribute__((always_inline)) size_t find_bad(const uint8_t *data, size_t bytes,
                                                             size_t width, bad_bits bad) {
    for (size_t start = 0; start < bytes; start += CHUNK) {
        size_t end = bytes - start < CHUNK ? bytes : start + CHUNK;
        unsigned any = 0;
        for (size_t i = start; i < end; i += width) {
            uint64_t v = 0;
            memcpy(&v, data + i, width);
            any |= bad(v);
        }
        for (size_t i = start; any && i < end; i += width) {
            uint64_t v = 0;
            memcpy(&v, data + i, width);
            if (bad(v)) {
                return i;
            }
        }
    }
    return bytes;
}

static size_t first_bad(di_dtype dtype, const uint8_t *data, size_t bytes) {
    switch (dtype) {
    case DI_F8_E8M0:
        return find_bad(data, bytes, 1, bad_scale);
    case DI_F8_E4M3:
        return find_bad(data, bytes, 1, bad_e4m3);
    case DI_BF16:
        return find_bad(data, bytes, 2, bad_bf16);
    case DI_F32:
        return find_bad(data, bytes, 4, bad_f32);
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
