/* The steps of a post list over arrays, compiled once by each instruction set's file: plain loops that the compiler vectorises.
 * Defines static functions post_steps and narrow_bf16. */
#include "kernels/common/cpu/math.h"
#include "op/op.h"

#define POST_LOOP(expression)                                       \
    for (int64_t i = 0; i < count; i++) y[i] = (expression);        \
    break

static void post_steps(op_post step, float *restrict y, const float *restrict x, int64_t count) {
    switch (step) {
    case OP_POST_bias:
    case OP_POST_add: POST_LOOP(y[i] + x[i]);
    case OP_POST_mul: POST_LOOP(y[i] * x[i]);
    case OP_POST_relu: POST_LOOP(cpu_relu(y[i]));
    case OP_POST_silu: POST_LOOP(cpu_silu(y[i]));
    case OP_POST_gelu: POST_LOOP(cpu_gelu(y[i]));
    case OP_POST_gelu_tanh: POST_LOOP(cpu_gelu_tanh(y[i]));
    case OP_POST_tanh: POST_LOOP(cpu_tanh(y[i]));
    case OP_POST_sigmoid: POST_LOOP(cpu_sigmoid(y[i]));
    case OP_POST_swiglu: POST_LOOP(cpu_silu(y[i]) * x[i]);
    case OP_POST_geglu: POST_LOOP(cpu_gelu(y[i]) * x[i]);
    case OP_POST_geglu_tanh: POST_LOOP(cpu_gelu_tanh(y[i]) * x[i]);
    case OP_POST_reglu: POST_LOOP(cpu_relu(y[i]) * x[i]);
    default: for (int64_t i = 0; i < count; i++) y[i] = op_post_apply(step, y[i], x != NULL ? x[i] : 0.0f);
    }
}
#undef POST_LOOP

/* Nearest even; a NaN keeps its sign out: 0x7fff as num says. */
static void narrow_bf16(const float *restrict x, uint16_t *restrict y, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)cpu_bits(x[i]);
        uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        uint32_t nan = -(uint32_t)((bits & 0x7fffffff) > 0x7f800000);
        y[i] = (uint16_t)((rounded & ~nan) | (0x7fff & nan));
    }
}
