/* One line of conformance: an op, its operands and attributes.
 *     matmul f32[7,96] f32[64,96] bt=true post=bias f32[64] pack=1 strided=0
 * Operands are types with numbers for dimensions, or '-'. What has the form key=value is an attribute of the op (lists with commas), or one of
 *     pack=I         operand I is constant, so rows that pack it get it packed
 *     strided=I,..   these operands lie with gaps between elements and rows, where the row allows it
 *     range=I:LO:HI  integers (and bools) of operand I from LO to HI; floats uniform in it
 *     ascending=I,.. the integers of these operands ascend
 *     special=I,..   these floating-point operands hold NaN, infinities and both zeros now and then
 *     bound=X        of the error beside the largest result, where 1e-5 is not it */
#ifndef CONFORM_CASE_H
#define CONFORM_CASE_H

#include "kernel/kernel.h"

enum { CASE_OPERANDS = 16, CASE_ATTRS = 16, CASE_RESULTS = 2 };

typedef struct conform_range { bool given; double low, high; } conform_range;

typedef struct conform_case {
    const char *line, *source;
    int number;                   /* of the line in source */
    const op_def *op;
    dim_table *dims;
    int n_in, n_out, n_attrs;
    op_type types[CASE_OPERANDS], results[CASE_RESULTS];
    const op_type *in[CASE_OPERANDS], *out[CASE_RESULTS];
    op_attr items[CASE_ATTRS];
    op_attrs attrs;
    op_post_list post;
    unsigned constant, ascending, strided, special;
    conform_range ranges[CASE_OPERANDS];
    double bound;
} conform_case;

/* Parses and infers; everything lives in arena and dims. */
dw_status case_parse(arena *arena, dim_table *dims, const char *source, int number, const char *line, conform_case *result);

#endif
