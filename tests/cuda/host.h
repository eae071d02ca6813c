/* CUDA C in the words of host C: with this included first, the plain device halves (.cu) compile as C, and driver.c runs them, one block at a time and a
 * block's threads one after another between barriers. So results are tested without a GPU; races, timing and hardware are not. */
#ifndef TESTS_CUDA_HOST_H
#define TESTS_CUDA_HOST_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct host_index { unsigned x, y, z; } host_index;
extern host_index threadIdx, blockIdx, blockDim, gridDim;

void host_barrier(void);
#define __syncthreads host_barrier
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define DEVICE static __attribute__((unused))
#define INFINITE ((float)INFINITY)
#define NOT_A_NUMBER small_float(0x7fffffff)

/* An entry that takes its structure by address, and how large the structure is. */
#define KERNEL(name, type)                                                         \
    static void name##_thread(const type arguments);                               \
    const size_t name##_bytes = sizeof(type);                                      \
    void name(const void *given) { name##_thread(*(const type *)given); }          \
    static void name##_thread(const type arguments)

static inline unsigned atomicCAS(unsigned *at, unsigned expected, unsigned value) {
    unsigned old = *at;
    if (old == expected) *at = value;
    return old;
}
static inline unsigned add_word(unsigned *at, unsigned value) {
    unsigned old = *at;
    *at += value;
    return old;
}
static inline unsigned long long add_wide(unsigned long long *at, unsigned long long value) {
    unsigned long long old = *at;
    *at += value;
    return old;
}
#define atomicAdd(at, value) _Generic((at), unsigned *: add_word, unsigned long long *: add_wide)(at, value)
static inline unsigned atomicOr(unsigned *at, unsigned value) {
    unsigned old = *at;
    *at |= value;
    return old;
}

#endif
