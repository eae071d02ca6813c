/* The functions that the rows of kernel.def name. Included by the registry and by every kernel's host half. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "kernel/kernel.h"

#define KERNEL_CHOICE(family)                                                  \
    const char *family##_reject(const kernel_problem *problem, text *why);     \
    double family##_cost(const kernel_problem *problem);                       \
    size_t family##_workspace(const kernel_run *run);
#define KERNEL_FUNCTIONS(family, function) KERNEL_CHOICE(family) dw_status function##_run(const kernel_run *run);
#define KERNEL(name, op, needs, strided_in, strided_out, in_place, family, function) KERNEL_FUNCTIONS(family, function)
#define PACKED(name, op, needs, strided_in, strided_out, in_place, packs, family, function)                          \
    KERNEL_FUNCTIONS(family, function)                                                                               \
    bool family##_packing(const kernel_problem *problem, const dw_tensor *weight, kernel_packing *packing);
#define CUDA(name, op, needs, strided_in, strided_out, in_place, family, function)                                   \
    KERNEL_CHOICE(family)                                                                                            \
    dw_status function##_shape(const kernel_run *run, kernel_launcher *launcher);
#define TUNED(name, op, needs, strided_in, strided_out, in_place, family, function)                                  \
    KERNEL_CHOICE(family)                                                                                            \
    const char *family##_variant(const kernel_problem *problem, int index);                                         \
    dw_status function##_shape(const kernel_run *run, kernel_launcher *launcher);
#define NAMED(...) CUDA(__VA_ARGS__)
#include "kernels/kernel.def"
#undef CUDA
#undef NAMED
#undef TUNED
#undef KERNEL
#undef PACKED

KERNEL_FUNCTIONS(reference, reference)

#endif
