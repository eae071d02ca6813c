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

/* A scale that a search compares: its code, what elements are multiplied by under it, and its value as num.h calls S. */
typedef struct scale_candidate { uint8_t code; float inverse, value; } scale_candidate;
enum { SCALE_CANDIDATES = 6 };
/* The candidates of the block with that stored scale, which is the first of them; *unit is num.h's U. Returns how many: 1 where there is nothing to search. */
int scale_near(const num_view *v, size_t index, float amax, const scale_rule *rule, scale_candidate found[SCALE_CANDIDATES], float *unit);

#endif
