/* The functions of device code that ops are (functions.h). */
#include "kernels/pointwise/functions.h"

#include "kernels/pointwise/pointwise_cuda.h"

int pointwise_function_of(op_id id) {
    switch (id) {
#define OP_EACH_POINTWISE(name, kind) case OP_##name: return POINTWISE_##name;
#include "op/pointwise.def"
    default: return POINTWISE_COUNT;
    }
}

int pointwise_function_on_bools(op_id id) {
    switch (id) {
    case OP_add:
    case OP_or: return POINTWISE_maximum;
    case OP_and:
    case OP_mul: return POINTWISE_minimum;
    case OP_xor: return POINTWISE_ne;
    case OP_not: return POINTWISE_eq;
    default: return pointwise_function_of(id);
    }
}
