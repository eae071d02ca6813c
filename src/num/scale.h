/* How the scales of blocks follow from their largest magnitudes, for block.c and quantize.c. */
#ifndef NUM_SCALE_H
#define NUM_SCALE_H

#include "num/view.h"

/* What a block's scale depends on besides its amax. encode, decode: NVFP4's S_enc and S_dec over it, else 1. */
typedef struct scale_rule {
    num_round round;
    float encode, decode;
} scale_rule;

/* NVFP4's second level from the largest magnitude under it (NaN left out), stored in *second unless it is calibrated; sets rule's encode and decode. */
void scale_second(float amax, bool has_second, float *second, scale_rule *rule);
/* Stores the scale of a block whose largest magnitude is amax (NaN if it holds one); returns what the block's elements are multiplied by. */
float scale_block(const num_view *v, size_t index, float amax, const scale_rule *rule);

#endif
