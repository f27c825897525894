/* Rotation frequencies of the two kinds of layers. */
#ifndef DI_MODEL_ROPE_H
#define DI_MODEL_ROPE_H

#include "weights/config.h"

/* freq f32 [qk_rope_head_dim / 2]: theta^(-2i/rd) with rope_theta for window-only layers; with
 * compress_rope_theta, and YaRN if the config has it, for layers with compression. YaRN: between
 * dimension low (beta_fast turns over the original length) and high (beta_slow turns) frequencies
 * go linearly from f to f / factor; there is no magnitude factor. Float32 but for low and high. */
void di_rope_frequencies(const di_config *c, bool compressed, float *freq);

#endif
