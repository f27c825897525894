/* Rotation frequencies: see rope.h. */
#include "model/rope.h"

#include <math.h>

/* Dimension whose frequency makes `turns` turns over the original context. */
static double dimension_of(const di_config *c, double turns) {
    double length = c->yarn_original_max_position_embeddings;
    return c->qk_rope_head_dim * log(length / (turns * 2 * M_PI)) /
           (2 * log(c->compress_rope_theta));
}

void di_rope_frequencies(const di_config *c, bool compressed, float *freq) {
    int rd = c->qk_rope_head_dim;
    float theta = (float)(compressed ? c->compress_rope_theta : c->rope_theta);
    bool yarn = compressed && c->yarn;
    float low = 0, span = 1;
    if (yarn) {
        double first = fmax(floor(dimension_of(c, c->yarn_beta_fast)), 0);
        double last = fmin(ceil(dimension_of(c, c->yarn_beta_slow)), rd - 1);
        low = (float)first;
        span = (float)fmax(last - first, 1e-3);
    }
    for (int i = 0; i < rd / 2; i++) {
        /* powf's last bit differs between libraries; the double power rounded once does not. */
        float power = (float)pow(theta, (double)((float)(2 * i) / (float)rd));
        float f = 1.0f / power;
        if (yarn) {
            float ramp = fminf(fmaxf(((float)i - low) / span, 0.0f), 1.0f);
            float smooth = 1.0f - ramp;
            f = f / (float)c->yarn_factor * (1.0f - smooth) + f * smooth;
        }
        freq[i] = f;
    }
}
