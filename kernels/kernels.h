/* The functions that the rows of kernel.def and of the ways.def of its families name. Included by the registry and by every kernel's host half. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "kernel/kernel.h"
#include "kernels/gemm/dequantise/dequantised.h"
#include "kernels/quantize/quantised.h"

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
#define WAYS(...)
#include "kernels/kernel.def"
#undef CUDA
#undef WAYS
#undef KERNEL
#undef PACKED

#define WAY(name, needs, flags, shared, rank, dequantised, most_rows, workspace, variants, functions)                \
    unsigned dequantised(const dw_format formats[2], const int64_t rows[2]);                                         \
    const char *functions##_refuses(const kernel_problem *problem, text *why);                                       \
    const char *functions##_takes(const kernel_run *run, text *why);                                                 \
    double functions##_seconds(const kernel_run *run);                                                               \
    dw_status functions##_shape(const kernel_run *run, kernel_launcher *launcher);                                   \
    int64_t most_rows(const kernel_run *run);                                                                        \
    size_t workspace(const kernel_run *run);                                                                         \
    const char *variants(const kernel_problem *problem, int index);
#include "kernels/attention/backward_ways.def"
#include "kernels/attention/ways.def"
#include "kernels/gemm/grouped_outer_ways.def"
#include "kernels/gemm/grouped_ways.def"
#include "kernels/gemm/ways.def"
#include "kernels/mqa_logits/ways.def"
#undef WAY
#define BOUND(way, function) bool function(const kernel_run *run, kernel_tiles_bound *bound);
#include "kernels/attention/bounded_ways.def"
#include "kernels/gemm/bounded_ways.def"
#undef BOUND

KERNEL_FUNCTIONS(reference, reference)

/* norm_rows.c: can the norm write its result in blocks beside the plain one (kernel_run.quantises_beside)? */
bool norm_rows_writes_both(const kernel_run *run);
/* pieces.c: kernel_carry. */
bool move_pieces_launch(const chip_caps *chip, int count, const kernel_piece *pieces, bool early, kernel_launch *launch);
/* cache_cuda.c: does it do the norms of keys and queries of the run (kernel_run.heads)? */
bool cache_cuda_normalises(const kernel_run *run);

#endif
