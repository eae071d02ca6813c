/* The formulas of op/pointwise.def in fp32: real_<op>(x, y), where ops of one operand ignore y. Loops over those that call no C library vectorise (math.h). log, sin, cos
 * and atan call it for each element; pow and what divides with remainder do so in double. */
#ifndef KERNELS_CPU_REAL_H
#define KERNELS_CPU_REAL_H

#include <math.h>

#include "kernels/cpu/math.h"
#include "op/pointwise.h"

#define DOUBLE_NAME(name) name
OP_DEFINE_DIVISIONS(static inline, double, DOUBLE_NAME)

static inline float soft_expf(float x) { return cpu_exp(x); }
static inline float soft_erff(float x) { return cpu_erf(x); }
static inline float soft_tanhf(float x) { return cpu_tanh(x); }
static inline float soft_sigmoidf(float x) { return cpu_sigmoid(x); }
static inline float soft_siluf(float x) { return cpu_silu(x); }
static inline float soft_geluf(float x) { return cpu_gelu(x); }
static inline float soft_gelu_tanhf(float x) { return cpu_gelu_tanh(x); }
static inline float soft_quick_geluf(float x) { return cpu_quick_gelu(x); }
static inline float soft_powf(float x, float y) { return (float)pow((double)x, (double)y); }
#define FLOAT_NAME(name) name##f
OP_DEFINE_SLOPES(static inline, float, FLOAT_NAME)
static inline float floor_dividef(float x, float y) { return (float)floor_divide((double)x, (double)y); }
static inline float floor_remainderf(float x, float y) { return (float)floor_remainder((double)x, (double)y); }

#define INFINITE INFINITY
#define REAL float
#define F(name) name##f
#define OP_REAL1(name, formula) static inline float real_##name(float x, float y) { (void)y; return (float)(formula); }
#define OP_REAL2(name, formula) static inline float real_##name(float x, float y) { return (float)(formula); }
#include "op/pointwise.def"
#undef REAL
#undef F

#endif
