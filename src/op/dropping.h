/* Which elements the op dropout keeps, where its reference and its kernels must agree on every bit. Element i takes word i mod 4 of Philox4x32-10 of the counter (i / 4, site, step), its key the
 * seed, so any element can be made by itself, on any machine, in any order. Plain C that nvcc takes, too. */
#ifndef OP_DROPPING_H
#define OP_DROPPING_H

#include "num/philox.h"

/* Elements of a group: those of one counter. */
enum { DROPPING_GROUP = 4 };

/* Words below it drop their element: 2^32 for a probability of 1. */
PHILOX_INLINE uint64_t dropping_threshold(double probability) { return (uint64_t)(probability * 4294967296.0 + 0.5); }
/* What an element that is kept is multiplied by; of f64 this double, of any other format the fp32 number next to it. Where none is kept 0. */
PHILOX_INLINE double dropping_factor(double probability) { return probability < 1 ? 1 / (1 - probability) : 0; }

/* The words of elements 4 * group to 4 * group + 3. Of step its lower 32 bits. */
PHILOX_INLINE philox_words dropping_words(uint64_t seed, uint64_t step, uint32_t site, uint64_t group) {
    const philox_words counter = {{(uint32_t)group, (uint32_t)(group >> 32), site, (uint32_t)step}};
    return philox(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
}

#endif
