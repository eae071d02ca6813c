/* The steps of a post list over arrays, compiled once by each instruction set's file: plain loops that the compiler vectorises.
 * Defines static functions post_steps, narrow_bf16 and widen_bf16. */
#include "kernels/cpu/real.h"
#include "op/op.h"

/* Steps are the functions of their ops; those that op/post_op.def names are these. */
#define OP_POST_AS(step, op) static inline float real_##step(float x, float y) { return real_##op(x, y); }
#include "op/post_op.def"
#undef OP_POST_AS

/* By operand and by whether the step halves. */
#define POST_NONE_0(step) real_##step(y[i], 0)
#define POST_NONE_1(step) real_##step(y[i], 0) * x[i]
#define POST_COLUMN_0(step) real_##step(y[i], x[i])
#define POST_FULL_0(step) real_##step(y[i], x[i])

static void post_steps(op_post step, float *restrict y, const float *restrict x, int64_t count) {
    switch (step) {
#define OP_POST(name, operand, halves, meaning)                                            \
    case OP_POST_##name:                                                                   \
        for (int64_t i = 0; i < count; i++) y[i] = POST_##operand##_##halves(name);        \
        break;
#include "op/post.def"
#undef OP_POST
    case OP_POST_COUNT: break;
    }
}
#undef POST_NONE_0
#undef POST_NONE_1
#undef POST_COLUMN_0
#undef POST_FULL_0

/* Nearest even; a NaN keeps its sign out: 0x7fff as num says. */
static void narrow_bf16(const float *restrict x, uint16_t *restrict y, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)cpu_bits(x[i]);
        uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        uint32_t nan = -(uint32_t)((bits & 0x7fffffff) > 0x7f800000);
        y[i] = (uint16_t)((rounded & ~nan) | (0x7fff & nan));
    }
}

static void widen_bf16(const uint16_t *restrict x, float *restrict y, int64_t count) {
    for (int64_t i = 0; i < count; i++) y[i] = cpu_float((int32_t)((uint32_t)x[i] << 16));
}
