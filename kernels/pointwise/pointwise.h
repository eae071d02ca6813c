/* The inner loops of pointwise ops: tables of functions over elements side by side, one table for each instruction set, filled from
 * pointwise_loops.h. */
#ifndef POINTWISE_H
#define POINTWISE_H

#include "kernel/kernel.h"
#include "kernels/cpu/rows.h"
#include "num/num.h"

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
static inline pointwise_class pointwise_class_of(dw_format format) {
    if (format == DW_FORMAT_f64) return POINTWISE_DOUBLE;
    if (format == DW_FORMAT_bool) return POINTWISE_BOOL;
    return num_info(format)->class == NUM_FLOAT ? POINTWISE_REAL : POINTWISE_INTEGER;
}

static inline size_t pointwise_class_bytes(pointwise_class class) {
    return class == POINTWISE_REAL ? sizeof(float) : class == POINTWISE_DOUBLE ? sizeof(double) : class == POINTWISE_INTEGER ? sizeof(int64_t) : 1;
}

/* The loops for the chip; NULL: the op has no meaning for the class. */
pointwise_loop pointwise_loop_of(const chip_caps *chip, op_id op, pointwise_class class);

/* count elements, step apart, as a loop of the class reads them: where they are when they already lie so, else in buffer. At most CPU_BLOCK. */
const void *pointwise_load(const cpu_rows *rows, pointwise_class class, const dw_tensor *tensor, int64_t offset, int64_t step, int64_t count, void *buffer);
/* What a loop of the class made, in the tensor's format. */
void pointwise_store(const cpu_rows *rows, pointwise_class class, const void *values, const dw_tensor *tensor, int64_t offset, int64_t step, int64_t count);

/* The parts of pointwise_run with loops of their own (cast.c, where.c), and what they do with up to CPU_BLOCK elements. */
dw_status pointwise_cast(const kernel_run *run);
dw_status pointwise_where(const kernel_run *run);
void pointwise_cast_block(const cpu_rows *rows, const dw_tensor *x, int64_t at_x, int64_t x_step, const dw_tensor *out, int64_t at_out, int64_t out_step, int64_t count);
/* Elements of so many bytes side by side; out may be x or y. */
void pointwise_pick(size_t bytes, const uint8_t *condition, const void *x, const void *y, void *out, int64_t count);

enum { POINTWISE_GRAIN = 16384 };   /* elements of a task */

#endif
