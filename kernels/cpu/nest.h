/* Loops of element-wise kernels: an index space whose axes are merged as far as the strides of all tensors allow, cut into tasks in a fixed
 * way and run over threads. Strides and offsets count elements. Does not touch data. */
#ifndef KERNELS_CPU_NEST_H
#define KERNELS_CPU_NEST_H

#include "base/base.h"
#include "deepwell/format.h"

enum { NEST_TENSORS = 9 };   /* a result and the operands of a chain */

typedef struct cpu_nest {
    int rank, count;
    int64_t dims[DW_MAX_RANK];
    int64_t strides[NEST_TENSORS][DW_MAX_RANK];
} cpu_nest;

/* The innermost axis, or a part of it: count elements from offset[i] on in tensor i, strides[i][rank - 1] apart. */
typedef void (*cpu_line)(void *argument, const int64_t *offset, int64_t count);

void cpu_nest_start(cpu_nest *nest, int rank, const int64_t *dims);
/* The tensor's axes are matched from the last one, axes of size 1 repeated. Returns its number. */
int cpu_nest_add(cpu_nest *nest, const dw_tensor *tensor);
/* The same with strides given, one for each axis. */
int cpu_nest_add_strides(cpu_nest *nest, const int64_t *strides);
/* After all tensors were added: axes of size 1 go, the others are ordered by the strides of tensor 0, neighbours that lie like one become one.
 * At least one axis is left. */
void cpu_nest_merge(cpu_nest *nest);
/* Distance between the elements of a line. */
static inline int64_t cpu_nest_step(const cpu_nest *nest, int tensor) { return nest->strides[tensor][nest->rank - 1]; }
int64_t cpu_nest_size(const cpu_nest *nest);
/* Visits all lines, in tasks of about grain elements. */
void cpu_nest_run(const cpu_nest *nest, pool *pool, int64_t grain, cpu_line line, void *argument);

#endif
