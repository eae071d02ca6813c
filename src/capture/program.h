/* A capture under way: what its files share. program.c walks the exported nodes and calls one rule per node; the rules (aten_*.c) read their
 * arguments, emit graph ops and set results. functional.c keeps views and writes apart. Private to this layer. */
#ifndef CAPTURE_PROGRAM_H
#define CAPTURE_PROGRAM_H

#include <jansson.h>

#include "capture/capture.h"

typedef struct capture_tensor capture_tensor;
typedef struct capture_call capture_call;

/* How a view reads its parent; each can be written through but BROADCAST. */
typedef enum capture_view { VIEW_NONE, VIEW_ALIAS, VIEW_RESHAPE, VIEW_TRANSPOSE, VIEW_SLICE, VIEW_BROADCAST, VIEW_DETACH } capture_view;

/* Where the storage of a tensor comes from, which decides what a write to it means at the end. */
typedef enum capture_home { HOME_RESULT, HOME_INPUT, HOME_WEIGHT } capture_home;

/* A tensor of the exported program. Tensors that share storage form a tree of views under one root. */
struct capture_tensor {
    const char *name;           /* exported name; NULL of steps in between */
    ir_value *value;            /* its value when the storage had been written `seen` times; NULL before the first use of a weight */
    int64_t seen;
    capture_tensor *root;       /* itself of a root */
    capture_tensor *parent;     /* NULL of a root */
    capture_view view;
    op_type type;
    int64_t order[DW_MAX_RANK]; /* TRANSPOSE */
    int axis;                   /* SLICE: */
    dim start, end;
    int64_t step;
    const json_t *meta;         /* its TensorMeta, or NULL */
    capture_tensor *imaginary;  /* of a complex tensor: this one is its real part (complex.c) */
    bool poisoned;              /* comes from something unsupported */
    const char *unset;          /* of a poisoned one: the message that its rule computes no such result; reported at the first use */
    bool is_copy, is_copied;    /* of a root: it is a copy where PyTorch has a view; such a copy of it exists */
    capture_tensor *next;       /* all tensors of the capture, newest first */
    /* of a root: */
    int64_t writes;
    capture_home home;
    const char *home_name;      /* of the input, or of the weight among the weights */
};

typedef enum capture_arg_kind {
    ARG_NONE, ARG_TENSOR, ARG_TENSORS, ARG_INT, ARG_INTS, ARG_REAL, ARG_REALS, ARG_BOOL, ARG_BOOLS, ARG_TEXT, ARG_FORMAT, ARG_IGNORED, ARG_OPAQUE
} capture_arg_kind;

/* One argument of a node. */
typedef struct capture_arg {
    capture_arg_kind kind;
    int count;                          /* of the lists */
    capture_tensor *tensor;
    bool is_item;                       /* of TENSOR: in place of a number that was taken from it */
    capture_tensor **tensors;           /* absent ones are NULL */
    dim integer;
    const dim *integers;
    double real;
    const double *reals;
    bool truth;
    const char *text;                   /* TEXT; of OPAQUE what it is */
    dw_format format;                   /* FORMAT; DW_FORMAT_COUNT for a dtype that has no format here */
} capture_arg;

enum { CAPTURE_MAX_ARGS = 16 };

/* A row of aten.def. */
typedef struct capture_row {
    const char *target, *arguments, *becomes;
    dw_status (*rule)(capture_call *call);
    op_id op;                           /* for rules shared by several targets; OP_COUNT: none */
    bool in_place;
} capture_row;

/* What a graph of the program (the outermost or a nested one) knows by name. */
typedef struct capture_scope {
    const json_t *tensor_values, *sym_ints, *sym_floats;
    map tensors;                        /* name -> capture_tensor */
    map items;                          /* name of a number -> the capture_tensor that it was taken from */
    struct capture_scope *outer;
} capture_scope;

typedef struct capture {
    dw_context *context;
    arena arena;                        /* all that does not outlive the capture */
    const char *source;
    ir_graph *graph;
    ir_weights *weights;
    const json_t *program;
    map symbols;                        /* torch's symbol -> capture_symbol */
    map parsed;                         /* text of a symbolic expression -> dim */
    map roots;                          /* name among the weights -> capture_tensor */
    capture_tensor *tensors;            /* all of them, newest first */
    capture_tensor **written;           /* roots of inputs and weights that were written, in order of the first write */
    size_t written_count, written_capacity;
    text unsupported;                   /* one line per node that could not be captured */
    size_t unsupported_count;
    map missing;                        /* unknown target -> capture_missing */
    int depth;                          /* of nested graphs */
    ir_value *draw;                     /* the input random.draw; NULL before anything is drawn */
    int64_t draws;                      /* places that draw, so far */
} capture;

struct capture_call {
    capture *capture;
    ir_graph *graph;
    dim_table *dims;
    const capture_row *row;
    capture_scope *scope;
    const json_t *node;
    const char *target, *name;
    const char *const *arg_names;
    int arg_count;
    capture_arg args[CAPTURE_MAX_ARGS];
    int result_count;
    op_type *types;                     /* as recorded; format DW_FORMAT_COUNT: not recorded or no such format */
    const char **result_names;
    const json_t **result_metas;
    capture_tensor **results;           /* set by the rule */
};

/* ---- symbol.c: symbolic sizes ---- */

/* Names the symbols after the axes of the inputs and sets their ranges. */
dw_status capture_name_symbols(capture *capture);
/* By torch's names: a symbol is at most max; two symbols are one. */
void capture_bound_symbol(capture *capture, const char *original, int64_t max);
dw_status capture_unite_symbols(capture *capture, const char *a, const char *b);
/* Sizes of the program are equal: where they differ by one symbol in the place of another, the two are one. For use before any size of the graph is made. */
dw_status capture_unite_sizes(capture *capture, const json_t *a, const json_t *b);
/* Applies these to what the guards of the export say (guards.c), and to what operators need (needs.c). */
dw_status capture_read_guards(capture *capture);
dw_status capture_read_needs(capture *capture, const json_t *graph);
/* example.c: what the example had along symbolic axes of the graph's inputs becomes its note IR_NOTE_EXAMPLE; tensor_values are the program's. */
dw_status capture_note_example(capture *capture, const json_t *tensor_values);
/* Does the size have a symbol that occurs in no input's size, so that it is known from the data alone? */
bool capture_needs_data(const capture *capture, const json_t *size);
/* {"as_int": ..} or {"as_expr": ..}; also the text of an expression alone. */
dw_status capture_read_size(capture *capture, const json_t *size, dim *result);
/* A TensorMeta; an unknown dtype gives DW_FORMAT_COUNT. what names the tensor in messages. */
dw_status capture_read_type(capture *capture, const json_t *meta, const char *what, op_type *type);
/* torch's ScalarType; DW_FORMAT_COUNT where there is no format for it. */
dw_format capture_format_of(int64_t scalar_type);

/* ---- functional.c: tensors, views, writes ---- */

/* A tensor with storage of its own. */
dw_status capture_fresh(capture *capture, ir_value *value, capture_tensor **tensor);
/* The root of an input (value known) or a weight (value made at its first use). */
dw_status capture_root(capture *capture, capture_home home, const char *name, const op_type *type, ir_value *value, capture_tensor **tensor);
/* A tensor that stands for what could not be captured. */
dw_status capture_poison(capture *capture, capture_tensor **tensor);
/* What the tensor holds now, all writes to its storage seen. */
dw_status capture_read(capture *capture, capture_tensor *tensor, ir_value **value);
/* The tensor holds value (of the same type) from here on, and so does its storage. */
dw_status capture_write(capture *capture, capture_tensor *tensor, ir_value *value);
dw_status capture_view_alias(capture *capture, capture_tensor *of, capture_tensor **view);
/* The same, through which no gradient flows. */
dw_status capture_view_detach(capture *capture, capture_tensor *of, capture_tensor **view);
dw_status capture_view_reshape(capture *capture, capture_tensor *of, int rank, const dim *dims, capture_tensor **view);
dw_status capture_view_transpose(capture *capture, capture_tensor *of, const int64_t *order, capture_tensor **view);
dw_status capture_view_broadcast(capture *capture, capture_tensor *of, int rank, const dim *dims, capture_tensor **view);
dw_status capture_view_slice(capture *capture, capture_tensor *of, int axis, dim start, dim end, int64_t step, capture_tensor **view);
/* Written weights become states with a next value, written inputs extra outputs "<name>.next". */
dw_status capture_finish_writes(capture *capture);

/* ---- aten.c: the table; arguments.c: arguments and results; fail.c ---- */

/* NULL when the target is not supported; in_place: the target is the row's form with a trailing underscore. */
const capture_row *capture_find_row(const char *target, bool *in_place);
/* Reads the arguments of node into call, by name or position, defaults from the row. */
dw_status capture_read_args(capture_call *call);

/* Record "<what> (target, node, module)" in the context and return status. */
dw_status capture_fail(capture_call *call, dw_status status, const char *format, ...) BASE_PRINTF(3, 4);

/* NULL when this overload has no such argument; of kind ARG_NONE when it is None. */
const capture_arg *capture_find_arg(const capture_call *call, const char *name);
bool capture_has(const capture_call *call, const char *name);   /* is there, and is not None */
dw_status capture_tensor_arg(capture_call *call, const char *name, capture_tensor **tensor);
dw_status capture_value_arg(capture_call *call, const char *name, ir_value **value);
/* NULL for an absent one. */
dw_status capture_optional_arg(capture_call *call, const char *name, ir_value **value);
/* A tensor or a number as a value of that format (numbers are scalars). */
dw_status capture_operand_arg(capture_call *call, const char *name, dw_format format, ir_value **value);
dw_status capture_tensors_arg(capture_call *call, const char *name, int *count, capture_tensor *const **tensors);
dw_status capture_dim_arg(capture_call *call, const char *name, dim *value);
dw_status capture_dims_arg(capture_call *call, const char *name, int *count, const dim **values);
dw_status capture_int_arg(capture_call *call, const char *name, int64_t *value);
/* A list of at most DW_MAX_RANK known integers; a single one counts as a list. */
dw_status capture_ints_arg(capture_call *call, const char *name, int *count, int64_t *values);
/* An axis of a tensor of that rank, counted from 0; a rank of 0 counts as 1. */
dw_status capture_axis_arg(capture_call *call, const char *name, int rank, int *axis);
/* Axes in ascending order; None or an empty list means all. */
dw_status capture_axes_arg(capture_call *call, const char *name, int rank, int *count, int64_t *axes);
dw_status capture_real_arg(capture_call *call, const char *name, double *value);
dw_status capture_bool_arg(capture_call *call, const char *name, bool *value);
dw_status capture_text_arg(capture_call *call, const char *name, const char **value);
/* fallback when None or absent. */
dw_status capture_format_arg(capture_call *call, const char *name, dw_format fallback, dw_format *value);

/* Result index is value, cast to the recorded format; with storage of its own. */
dw_status capture_result(capture_call *call, int index, ir_value *value);
dw_status capture_result_tensor(capture_call *call, int index, capture_tensor *tensor);
/* The same where PyTorch gives a view of `of`, and value is a copy: writes to either are refused from here on. */
dw_status capture_result_copy(capture_call *call, int index, ir_value *value, capture_tensor *of);
/* The recorded format of a result, or fallback when there is none. */
dw_format capture_result_format(const capture_call *call, int index, dw_format fallback);

/* ---- rules that others call ---- */

/* Does the tensor lie in row-major order? Its recorded strides say so; a tensor without them counts as such. */
dw_status capture_is_contiguous(capture_call *call, const capture_tensor *x, bool *contiguous);
/* pad with mode reflect, replicate or circular. */
dw_status capture_pad_by_mode(capture_call *call, const char *mode);
dw_status capture_rule_alias(capture_call *call);
dw_status capture_rule_batch_norm(capture_call *call);
/* Elements of x dropped at random, at a site of their own. (aten_train.c) */
dw_status capture_emit_dropout(capture_call *call, ir_value *x, double p, ir_value **result);
/* Refuses: the size of the result depends on the data. */
dw_status capture_rule_data_size(capture_call *call);

/* ---- emit.c: what several rules need ---- */

bool capture_is_float(dw_format format);
/* The format in which PyTorch combines two operands (type promotion among tensors, zero-dimensional tensors and numbers). */
dw_format capture_promote(dw_format a, int rank_a, dw_format b, int rank_b);
dw_status capture_emit_attr(ir_graph *graph, op_id op, ir_value *x, op_attr attr, ir_value **result);
/* x op number, the number exact: half-precision operands are widened when the number is not exact in their format. */
dw_status capture_emit_number(ir_graph *graph, op_id op, ir_value *x, double number, ir_value **result);
/* Reductions; axes ascending. */
dw_status capture_emit_reduce(ir_graph *graph, op_id op, ir_value *x, int count, const int64_t *axes, bool keep, ir_value **result);
/* Reshape to insert or remove axes of size 1. */
dw_status capture_emit_unsqueeze(ir_graph *graph, ir_value *x, int axis, ir_value **result);
dw_status capture_emit_squeeze(ir_graph *graph, ir_value *x, int axis, ir_value **result);
/* x swapped in two axes. */
dw_status capture_emit_swap(ir_graph *graph, ir_value *x, int a, int b, ir_value **result);
/* The value whose last two axes a transpose has swapped to make this one; NULL when it is none. */
ir_value *capture_untransposed(const ir_value *value);
/* a [..,m,k] times b [..,k,n] of one format; a transpose of b's last axes is folded into the product. */
dw_status capture_emit_matmul(ir_graph *graph, ir_value *a, ir_value *b, ir_value *bias, ir_value **result);
dw_status capture_emit_fill(ir_graph *graph, int rank, const dim *dims, double value, dw_format format, ir_value **result);
/* A tensor of one element as a scalar of no axes. */
dw_status capture_emit_reshape_scalar(ir_graph *graph, ir_value *x, ir_value **result);
/* 0, 1, .. length - 1 along axis of a tensor of that rank, other axes of size 1. */
dw_status capture_emit_index(ir_graph *graph, int rank, int axis, dim length, dw_format format, ir_value **result);
/* x with elements of that value around it, as many along each axis as before and after say; negative ones cut. */
dw_status capture_emit_pad(ir_graph *graph, ir_value *x, const int64_t *before, const int64_t *after, double value, ir_value **result);
/* x backwards along axis. */
dw_status capture_emit_flip(ir_graph *graph, ir_value *x, int axis, ir_value **result);
/* Windows along the spatial axes, which are the last ones. */
typedef struct capture_windows { int axes; int64_t stride[DW_MAX_RANK], padding[DW_MAX_RANK], dilation[DW_MAX_RANK]; } capture_windows;
/* A list with one number for each spatial axis; a single number holds for all, fallback where there is none. (aten_conv.c) */
dw_status capture_spatial_arg(capture_call *call, const char *name, int axes, int64_t fallback, int64_t *values);
dw_status capture_emit_conv(ir_graph *graph, const capture_windows *w, int64_t groups, ir_value *x, ir_value *weight, ir_value *bias, ir_value **result);
/* The shape that a and b broadcast to; axes that are not known to agree take the one that is not 1. */
dw_status capture_broadcast_dims(capture_call *call, const op_type *a, const op_type *b, op_type *result);
bool capture_dim_is(dim d, int64_t value);

/* x, whose elements (rows, where mask has fewer axes) under a true mask are the rows of values [n, ..], one after another. (aten_data.c) */
dw_status capture_emit_masked_rows(capture_call *call, ir_value *x, ir_value *mask, ir_value *values, ir_value **result);

/* ---- complex.c, complex_parts.c ---- */

enum { CAPTURE_COMPLEX64 = 10 };            /* torch's ScalarType of pairs of fp32 */
extern const char *const capture_part_names[2];     /* behind the name of a complex weight, those of its two parts */

bool capture_has_complex(const capture_call *call);
/* The call's rule on complex arguments: part by part, or as a product. */
dw_status capture_run_complex(capture_call *call);
dw_status capture_rule_view_as_real(capture_call *call);
dw_status capture_rule_complex_part(capture_call *call);
dw_status capture_rule_conj(capture_call *call);
dw_status capture_rule_complex_abs(capture_call *call);
dw_status capture_rule_fft(capture_call *call);
dw_status capture_rule_fft_internal(capture_call *call);
/* A fresh complex tensor as the first result; no imaginary part makes it real. */
dw_status capture_pair_result(capture_call *call, ir_value *real, ir_value *imaginary);
/* The parts of a complex argument; the imaginary one of a real tensor is NULL. */
dw_status capture_read_parts(capture_call *call, const char *name, ir_value *parts[2]);

/* ---- role.c ---- */

/* The role that a node's module stack ("key,path,class;..", innermost last) implies: attention, mlp, embedding, norm, router, expert; or NULL. */
const char *capture_role_of(const char *stack);
/* The roles that follow from dataflow alone: the head that makes the logits, and products whose modules' names say nothing. */
void capture_find_roles(ir_graph *graph);

#endif
