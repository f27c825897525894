/* See synthetic.h. */
#include "support/synthetic.h"

#include <math.h>
#include <string.h>

#include "base/formats.h"

static const double PI = 3.14159265358979323846;
static const double DEVIATION_E4M3 = 98, DEVIATION_E2M1 = 2.7; /* of codes */

/* A sample of the normal distribution that values are taken from by 16 random bits each, and as
 * many bytes of values as are made before they repeat. */
enum { SAMPLE = 1 << 16, MADE = 64 << 20 };

static uint64_t state = 1;

uint64_t synthetic_random(void) { /* splitmix64 */
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static double unit(void) { /* (0, 1) */
    return ((double)(synthetic_random() >> 12) + 0.5) * 0x1p-52;
}

static const double *sample(void) {
    static double normal[SAMPLE];
    for (int i = 0; normal[SAMPLE - 1] == 0 && i < SAMPLE; i += 2) { /* Box and Muller's */
        double r = sqrt(-2 * log(unit())), angle = 2 * PI * unit();
        normal[i] = r * cos(angle);
        normal[i + 1] = r * sin(angle);
    }
    return normal;
}

/* A value's bits, where x is normal. */
static uint32_t bits_of(synthetic_kind kind, double x, double mean, double deviation) {
    float f = (float)(mean + deviation * x);
    uint32_t bits;
    switch (kind) {
    case SYNTHETIC_E4M3:
        return di_e4m3_from_f32((float)(DEVIATION_E4M3 * x)); /* up to 448 */
    case SYNTHETIC_E2M1:
        return di_e2m1_from_f32((float)(DEVIATION_E2M1 * x));
    case SYNTHETIC_Q8: /* about unit size */
        f = di_e4m3_to_f32((uint8_t)bits_of(SYNTHETIC_E4M3, x, 0, 0)) * 0x1p-7f;
        return di_bf16_from_f32(f);
    case SYNTHETIC_BF16:
        return di_bf16_from_f32(f);
    case SYNTHETIC_F32:
        break;
    }
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

void synthetic_fill(void *to, size_t n, synthetic_kind kind, double mean, double deviation) {
    static uint32_t table[SAMPLE];
    static const int bits[] = {[SYNTHETIC_E4M3] = 8,
                               [SYNTHETIC_E2M1] = 4,
                               [SYNTHETIC_BF16] = 16,
                               [SYNTHETIC_F32] = 32,
                               [SYNTHETIC_Q8] = 16};
    const double *normal = sample();
    for (int i = 0; i < SAMPLE; i++) {
        table[i] = bits_of(kind, normal[i], mean, deviation);
    }
    uint8_t *bytes = to;
    size_t made = n < MADE ? n : MADE;
    for (size_t at = 0; at < made; at += 8) {
        uint64_t word = 0;
        for (int shift = 0; shift < 64;) {
            uint64_t r = synthetic_random();
            for (int i = 0; i < 4 && shift < 64; i++, shift += bits[kind], r >>= 16) {
                word |= (uint64_t)table[r & (SAMPLE - 1)] << shift;
            }
        }
        memcpy(bytes + at, &word, made - at < 8 ? made - at : 8);
    }
    for (size_t at = made; at < n; at += made) {
        memcpy(bytes + at, bytes, n - at < made ? n - at : made);
    }
}

uint8_t synthetic_scale(synthetic_kind kind, double deviation) {
    double codes = kind == SYNTHETIC_E2M1 ? DEVIATION_E2M1 : DEVIATION_E4M3;
    return (uint8_t)(127 + lround(log2(deviation / codes)));
}
