/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011): four words of 32 random bits as a function of a counter of four words
 * and a key of two. Integers alone, so that all machines agree on every bit. Plain C that nvcc takes, too. */
#ifndef NUM_PHILOX_H
#define NUM_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define PHILOX_INLINE static __device__ inline
#else
#define PHILOX_INLINE static inline
#endif

enum { PHILOX_ROUNDS = 10 };
#define PHILOX_MULTIPLY_0 UINT32_C(0xd2511f53)
#define PHILOX_MULTIPLY_1 UINT32_C(0xcd9e8d57)
#define PHILOX_KEY_0 UINT32_C(0x9e3779b9)
#define PHILOX_KEY_1 UINT32_C(0xbb67ae85)

typedef struct philox_words { uint32_t word[4]; } philox_words;

PHILOX_INLINE philox_words philox(philox_words x, uint32_t key_0, uint32_t key_1) {
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const uint64_t a = (uint64_t)PHILOX_MULTIPLY_0 * x.word[0], b = (uint64_t)PHILOX_MULTIPLY_1 * x.word[2];
        const philox_words next = {{(uint32_t)(b >> 32) ^ x.word[1] ^ key_0, (uint32_t)b, (uint32_t)(a >> 32) ^ x.word[3] ^ key_1, (uint32_t)a}};
        x = next;
        key_0 += PHILOX_KEY_0;
        key_1 += PHILOX_KEY_1;
    }
    return x;
}

#endif
