/* Bits of floats, and the rules that all families share: flushing, canonical NaN, saturation (PTX ISA 9.7.3). */
#ifndef SIM_MATH_REAL_H
#define SIM_MATH_REAL_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t f32_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float f32_from(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint64_t f64_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double f64_from(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#define F16_NAN 0x7fffu
#define F32_NAN 0x7fffffffu
static inline bool is_f32_nan(uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; }
#define F64_NAN 0xfff8000000000000ull

/* Subnormals become zeros of their sign. */
static inline uint32_t flush_bits(uint32_t bits) { return (bits & 0x7f800000) == 0 ? bits & 0x80000000 : bits; }
static inline float flush(float value) { return f32_from(flush_bits(f32_bits(value))); }
/* Single precision has one NaN. */
static inline float canonical(float value) { return f32_from((f32_bits(value) & 0x7fffffff) > 0x7f800000 ? F32_NAN : f32_bits(value)); }
/* To [0, 1]; NaN to 0. */
static inline float saturate(float value) { return value > 0.0f ? (value < 1.0f ? value : 1.0f) : 0.0f; }

#endif
