/* What kernels do with rows of numbers: conversion to and from fp32, sums, and the inner loops of normalisation, softmax and rotation, compiled
 * once for each instruction set from rows_loops.h. Sums are kept in a fixed number of lanes, so they have the same bits at any number of threads. */
#ifndef KERNELS_CPU_ROWS_H
#define KERNELS_CPU_ROWS_H

#include "chip/chip.h"
#include "op/op.h"

enum { CPU_BLOCK = 1024 };    /* elements that are converted at a time */

typedef struct cpu_rows {
    void (*from_bf16)(const uint16_t *x, float *y, int64_t count);
    void (*to_bf16)(const float *x, uint16_t *y, int64_t count);
    void (*from_f16)(const uint16_t *x, float *y, int64_t count);
    void (*to_f16)(const float *x, uint16_t *y, int64_t count);
    void (*add)(const float *x, const float *y, float *z, int64_t count);
    void (*add_bf16)(const uint16_t *x, const uint16_t *y, uint16_t *z, int64_t count);   /* in fp32, rounded once; z overlaps neither */
    void (*add_f16)(const uint16_t *x, const uint16_t *y, uint16_t *z, int64_t count);
    double (*sum)(const float *x, int64_t count);
    double (*sum_squares)(const float *x, float mean, int64_t count);    /* of (x - mean)^2 */
    float (*max)(const float *x, int64_t count);                         /* NaN if any is; -inf of none */
    float (*min)(const float *x, int64_t count);                         /* NaN if any is; inf of none */
    /* y = (x - mean - low) * scale * weight + bias; low is what mean + low is nearer to the true mean by; weight and bias may be NULL */
    void (*normalise)(const float *x, float mean, float low, float scale, const float *weight, const float *bias, float *y, int64_t count);
    double (*exp_sum)(const float *x, float max, float *y, int64_t count);   /* y = e^(x - max), returns the sum of y; y may be x */
    void (*scale_shift)(const float *x, float scale, float shift, float *y, int64_t count);   /* y = x * scale + shift; y may be x */
    /* sum += weight * max(x * factor, 0), where a NaN is the larger; nothing overlaps */
    void (*add_positive)(const float *x, const float *factor, float weight, float *sum, int64_t count);
    /* The rotation of pairs (a, b): y = a cos_a - b sin_a, z = b cos_b + a sin_b. Nothing overlaps. */
    void (*rotate)(const float *a, const float *b, const float *cos_a, const float *sin_a, const float *cos_b, const float *sin_b, float *y, float *z,
                   int64_t count);
    /* The same for pairs side by side: x, c, s and y [2 * pairs] */
    void (*rotate_pairs)(const float *x, const float *c, const float *s, float *y, int64_t pairs);
} cpu_rows;

extern const cpu_rows cpu_rows_portable;
#if defined(__x86_64__)
extern const cpu_rows cpu_rows_avx2, cpu_rows_avx512;
#endif
/* The best that the chip has. */
const cpu_rows *cpu_rows_of(const chip_caps *chip);

/* ---- elements of tensors (rows.c) ---- */

/* Formats that lie unpacked, a byte or more an element. */
bool cpu_is_plain(dw_format format);
static inline size_t cpu_element_bytes(dw_format format) { return (size_t)dw_format_bits(format) / 8; }
static inline void *cpu_at(const dw_tensor *tensor, int64_t offset) {
    return (uint8_t *)tensor->data + offset * (int64_t)cpu_element_bytes(tensor->format);
}
/* count elements of 1, 2, 4 or 8 bytes, stride apart, side by side; and back. */
void cpu_gather(size_t bytes, const void *from, int64_t stride, int64_t count, void *to);
void cpu_scatter(size_t bytes, const void *from, void *to, int64_t stride, int64_t count);
/* Up to CPU_BLOCK elements of a floating-point format as fp32: where they are when they already lie so, else in buffer. */
const float *cpu_load(const cpu_rows *rows, const dw_tensor *tensor, int64_t offset, int64_t stride, int64_t count, float *buffer);
/* Where a result of up to CPU_BLOCK elements may be computed: the tensor's own memory, or buffer. cpu_store then brings it home. */
float *cpu_target(const dw_tensor *tensor, int64_t offset, int64_t stride, float *buffer);
void cpu_store(const cpu_rows *rows, const float *values, const dw_tensor *tensor, int64_t offset, int64_t stride, int64_t count);

#endif
