/* The inner loops of pointwise ops: tables of functions over elements side by side, one table for each instruction set, filled from
 * pointwise_loops.h. */
#ifndef POINTWISE_H
#define POINTWISE_H

#include "kernel/kernel.h"
#include "kernels/common/cpu/rows.h"

/* What a loop computes in. f32, bf16 and f16 are computed in float, integers in int64 and wrapped to their width, bool in bytes of 0 and 1. */
typedef enum pointwise_class { POINTWISE_REAL, POINTWISE_DOUBLE, POINTWISE_INTEGER, POINTWISE_BOOL, POINTWISE_CLASSES } pointwise_class;

/* out[i] from x[i] and y[i] (y NULL for ops of one operand). out overlaps neither. The result of a predicate is a byte, any other is of the class.
 * Returns false when an integer was divided by zero. */
typedef bool (*pointwise_loop)(const void *x, const void *y, void *out, int64_t count);

typedef struct pointwise_table { pointwise_loop loop[OP_COUNT][POINTWISE_CLASSES]; } pointwise_table;

extern const pointwise_table pointwise_portable;
#if defined(__x86_64__)
extern const pointwise_table pointwise_avx2, pointwise_avx512;
#endif

/* Of the format's elements: class and bytes of one element of the class. */
pointwise_class pointwise_class_of(dw_format format);
size_t pointwise_class_bytes(pointwise_class class);

/* The parts of pointwise_run with loops of their own (cast.c, where.c). */
dw_status pointwise_cast(const kernel_run *run);
dw_status pointwise_where(const kernel_run *run);

enum { POINTWISE_GRAIN = 16384 };   /* elements of a task */

#endif
