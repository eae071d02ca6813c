/* What the files of src/op share: the three functions of each family, checks with one wording, the walk over elements, the cost of
 * touching tensors. Not for other layers.
 * A chain is an op whose steps are ops, so these call each other: op.c (the table of ops), chain.c (a chain by what its steps are), line.c and scan.c
 * (choose, whose values have steps). */
#ifndef OP_FAMILY_H
#define OP_FAMILY_H

#include "op/op.h"

#define OP(name, min_in, max_in, min_out, max_out, family, attributes, traits, meaning) \
    dw_status family##_infer(op_infer *infer);                                           \
    dw_status family##_reference(const op_call *call);                                   \
    void family##_work(const op_call *call, op_work *work);
#include "op/op.def"
#undef OP

/* ---- checks of types, for inference (check.c). name is what the operand is called in messages: "x", "a", "weight" ---- */

/* "<op>: <what_a> is <a>, <what_b> is <b>" unless the two are the same expression. */
dw_status op_check_same(op_infer *infer, const char *what_a, dim a, const char *what_b, dim b);
/* "<op>: axis 1 of <name_a> is 3, axis 1 of <name_b> is 4" unless the two are the same. */
dw_status op_check_same_axis(op_infer *infer, int axis, const char *name_a, const op_type *a, const char *name_b, const op_type *b);
/* An axis attribute within [0, rank). */
dw_status op_check_axis(op_infer *infer, int64_t axis, int rank);
dw_status op_check_rank(op_infer *infer, const char *name, const op_type *type, int min, int max);
/* A format with elements of its own, a byte or more each: what can be moved and indexed. */
dw_status op_check_element(op_infer *infer, const char *name, const op_type *type);
/* What a cache may hold: the above, or blocks within rows whose scales follow from those alone, in the plain layout. */
dw_status op_check_cache(op_infer *infer, const char *name, const op_type *type);
/* bool, an integer, f64, f32, f16 or bf16: what can be computed with. */
dw_status op_check_number(op_infer *infer, const char *name, const op_type *type);
/* Any floating-point element format: computed with after decoding. */
dw_status op_check_float(op_infer *infer, const char *name, const op_type *type);
dw_status op_check_integer(op_infer *infer, const char *name, const op_type *type);
dw_status op_check_same_format(op_infer *infer, const char *name_a, const op_type *a, const char *name_b, const op_type *b);
/* The format attribute is an element format that can be computed with. */
dw_status op_check_to(op_infer *infer, dw_format to);
/* MISMATCH when symbols or numbers say that a > b whatever the symbols are; what cannot be decided is left to the run. */
dw_status op_check_le(op_infer *infer, const char *what_a, dim a, const char *what_b, dim b);
dw_status op_check_le_axis(op_infer *infer, int axis, const char *name_a, const op_type *a, const char *name_b, const op_type *b);
/* dims of out = a and b broadcast against each other. */
dw_status op_check_broadcast(op_infer *infer, const op_type *a, const op_type *b, op_type *out);
/* type broadcasts to dims[0..rank) and adds nothing to it. prefix: the operand's name and a space, or "". */
dw_status op_check_broadcasts_to(op_infer *infer, const char *prefix, const op_type *type, int rank, const dim *dims);
/* Appends an axis to a type being made: LIMIT past DW_MAX_RANK. */
dw_status op_add_axis(op_infer *infer, op_type *type, dim d);
bool op_is_integer(dw_format format);    /* an integer or bool: computed with in int64 */
bool op_is_float(dw_format format);
bool op_is_block(dw_format format);

/* ---- elements by offset (tensor.c) ---- */

/* Strides in elements; of formats that lie packed, those of the row-major order. */
void op_strides(const dw_tensor *tensor, int64_t strides[DW_MAX_RANK]);
/* Values at an offset, which is the sum of index * stride. */
double op_load_at(const dw_tensor *tensor, int64_t offset);
void op_store_at(const dw_tensor *tensor, int64_t offset, double value);
int64_t op_load_int_at(const dw_tensor *tensor, int64_t offset);
void op_store_int_at(const dw_tensor *tensor, int64_t offset, int64_t value);
/* count values from offset on, stride apart: one decision about the format for all. */
void op_load_row(const dw_tensor *tensor, int64_t offset, int64_t stride, int64_t count, double *values);
/* The bytes of an element, bit for bit, between tensors of one element format. */
void op_copy_at(const dw_tensor *to, int64_t to_offset, const dw_tensor *from, int64_t from_offset);
/* The value nearest to what the reference may keep of an i64: exact below 2^53, else rounded to odd so that a second rounding is right. */
double op_real_of_int(int64_t value);
/* Toward zero, saturating, NaN is 0. */
int64_t op_int_of_real(double value);

/* ---- walks (walk.c) ---- */

enum { WALK_TENSORS = 12 };

/* Visits a row-major index space and keeps the offset of every tensor in it.
 *     walk w;
 *     walk_start(&w, rank, dims);
 *     int x = walk_add(&w, tensor);
 *     for (; w.left > 0; walk_next(&w)) .. op_load_at(tensor, w.offset[x]) .. w.index[axis] .. */
typedef struct walk {
    int rank, count;
    int64_t left;
    int64_t dims[DW_MAX_RANK], index[DW_MAX_RANK];
    int64_t offset[WALK_TENSORS], stride[WALK_TENSORS][DW_MAX_RANK];
} walk;

void walk_start(walk *walk, int rank, const int64_t *dims);
/* The tensor's axes are matched from the last one; axes of size 1 are repeated. */
int walk_add(walk *walk, const dw_tensor *tensor);
/* The same with the strides given, one per axis of the walk. */
int walk_add_strides(walk *walk, const int64_t *strides);
void walk_next(walk *walk);
/* The space without an axis: one visit per row along it. The strides of that axis stay in walk.stride. Before any walk_add. */
void walk_skip(walk *walk, int axis);

/* ---- costs (work.c) ---- */

/* Every operand read once and every result written once, and flops for each element of the first result. */
void op_work_each(const op_call *call, double flops, op_work *work);
/* Of operand i only so many bytes are read; no more than it has. */
void op_work_reads(const op_call *call, int operand, double bytes, op_work *work);

/* ---- steps (chain.c, line.c) ---- */

/* Every operand of a chain, or the values of a line, and every step but the last are read by a step. */
dw_status op_check_reads(const op_infer *infer, const op_chain *chain);
/* Steps on the values of a line, of that format: that each is one of real numbers. *format: what the last one makes; *one: it is a sum. */
dw_status op_line_infer(const op_infer *infer, dw_format values, dw_format *format, bool *one);

/* ---- results of block formats (quantize.c) ---- */

/* Element col of a row; rows of all matrices are counted through. Called in their order, but a row more than once. */
typedef float (*op_element)(void *argument, int64_t line, int64_t col);
/* The blocks of a result's format lie within rows, so that a row's result does not depend on other rows. */
dw_status op_check_row_blocks(op_infer *infer, dw_format to);
/* Attributes to and via of an op whose result may be in blocks: is it? */
dw_status op_check_via(op_infer *infer, bool *in_blocks);
/* What quantize makes of such elements, scales by the call's attributes. */
dw_status op_quantize_elements(const op_call *call, const dw_tensor *out, op_element element, void *argument);

/* ---- rotation (rotary.c) ---- */

/* Rows of cols elements, of which the first width are turned; steps from one element to the next. */
typedef struct op_turn {
    const dw_tensor *x, *cosine, *sine, *out;
    int64_t x_step, cosine_step, sine_step, out_step, cols, width;
    bool interleaved;
} op_turn;
/* One of them; at: where it begins in out, x, cosine and sine. */
void op_turn_row(const op_turn *turn, const int64_t at[4]);
/* Element i of it, rounded to the format of x; at[0] is not read. */
double op_turned_at(const op_turn *turn, const int64_t at[4], int64_t i);

/* ---- attention (attention_query.c) ---- */

/* One query, and where it, its mask and its bias begin. */
typedef struct op_attention_query {
    const op_call *call;
    double scale, softcap;
    const op_attention_view *view;
    int64_t row, group;                 /* of k and v, or of the table */
    int64_t q, mask, bias;
    int64_t mask_stride, bias_stride;   /* along keys; 0 when broadcast */
    op_attention_span seen;
    double sink;                        /* -inf: there is none */
} op_attention_query;
/* INVALID or MISMATCH as op_attention_check. */
dw_status op_attention_query_of(const op_call *call, const op_attention_view *view, int64_t batch, int64_t head, int64_t index, op_attention_query *at);
/* Where the key of a position begins in k or v. */
int64_t op_attention_begin(const op_attention_query *at, const dw_tensor *x, op_cache_slot place);
/* From one element of a row of k or v to the next. */
int64_t op_attention_step(const dw_tensor *x);
/* The score of a key before the softmax, -inf when the mask hides it or its page is not there. slope: NULL, or the derivative of the score by q . k. */
double op_attention_score(const op_attention_query *at, int64_t key, double *slope);

/* ---- contractions (contract.c) ---- */

/* Rows of k numbers inside a tensor: number i of row r lies at offset + r * row_stride + i * k_stride. */
typedef struct op_rows {
    dw_tensor tensor;        /* without its second-level scales */
    const float *second;     /* NULL, or the factor of row r (all rows: second_per_row false) */
    bool second_per_row;
    int64_t offset, row_stride, k_stride;
} op_rows;

/* The matrix of a tensor at the offset of its batch; k is its last axis, or the one before. */
op_rows op_rows_of(const dw_tensor *tensor, int64_t offset, bool k_is_last);

/* ---- post lists in references (post.c) ---- */

/* Checks the extra operands first_operand.. of a post list over a result [.., n] and gives the result's last dimension. groups: NULL, or what
 * a COLUMN operand may have as its first axis, one row for each group. */
dw_status op_post_infer(op_infer *infer, int first_operand, dim groups, op_type *result);

/* A post list at work. walk visits the matrices of the result. */
typedef struct op_post_run {
    const op_call *call;
    op_post_list list;
    int first_operand, first_slot;
    int64_t half;            /* columns left by a step that halves; 0: none does */
    const walk *walk;
} op_post_run;

/* n: columns before the list. Adds the operands to walk, which stays where it is. */
dw_status op_post_run_start(const op_call *call, int first_operand, int64_t n, walk *walk, op_post_run *run);
/* The result at (row, col) of the walk's matrix, from the sums y at col and u at col + half. */
double op_post_run_at(const op_post_run *run, int64_t row, int64_t group, int64_t col, double y, double u);
/* The formats of a and b go together in a product whose k is (or is not) the last axis of each. */
dw_status op_check_factors(op_infer *infer, const op_type *a, const op_type *b, bool k_last_in_a, bool k_last_in_b);
/* The result's format where it is in no blocks: to, or a's, or f32 for blocks. */
dw_status op_check_product_format(op_infer *infer, const op_type *a, dw_format *format);

/* Products of rows of a with rows of b, the post list on them, and where the results go. */
typedef struct op_product {
    op_rows a, b;
    int64_t k, group;
    const op_post_run *post;
    const dw_tensor *out;
    int64_t out_offset, out_row_stride, out_col_stride;
} op_product;
/* Columns [first_col, end_col) of rows [first_row, end_row) of the result. */
void op_product_rows(const op_product *product, int64_t first_row, int64_t end_row, int64_t first_col, int64_t end_col);

#endif
