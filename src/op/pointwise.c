/* Pointwise ops: the formulas of pointwise.def over doubles, 64-bit integers and bools; operands broadcast as in PyTorch. Integer arithmetic
 * wraps at the format's width, as PyTorch's does. Does not convert formats (cast does): operands of one op have the same one. */
#include "op/family.h"
#include "op/pointwise.h"

#include <math.h>

/* The formats an op takes. */
enum { FLOAT = 1, INTEGER = 2, BOOL = 4 };

/* NULL: the op takes no such numbers, or not so many. */
typedef struct pointwise_row {
    double (*real1)(double x);
    double (*real2)(double x, double y);
    int64_t (*int1)(int64_t x);
    int64_t (*int2)(int64_t x, int64_t y);
    int64_t (*truth1)(int64_t x);
    int64_t (*truth2)(int64_t x, int64_t y);
} pointwise_row;

#define REAL double
#define F(name) name
#define INFINITE INFINITY
OP_DEFINE_DIVISIONS(static, REAL, F)
OP_DEFINE_FUNCTIONS(static, REAL, F)
OP_DEFINE_SIGMOIDS(static, REAL, F)
OP_DEFINE_SLOPES(static, REAL, F)
OP_DEFINE_POWER(static)

#define OP_REAL1(name, formula) static double real_##name(double x) { return formula; }
#define OP_REAL2(name, formula) static double real_##name(double x, double y) { return formula; }
#define OP_INTEGER1(name, formula) static int64_t int_##name(int64_t x) { return formula; }
#define OP_INTEGER2(name, formula) static int64_t int_##name(int64_t x, int64_t y) { return formula; }
#define OP_TRUTH1(name, formula) static int64_t truth_##name(int64_t x) { return formula; }
#define OP_TRUTH2(name, formula) static int64_t truth_##name(int64_t x, int64_t y) { return formula; }
#include "op/pointwise.def"

/* cast and where compute nothing and have no row. */
static const pointwise_row rows[OP_COUNT] = {
#define OP_REAL1(name, formula) [OP_##name].real1 = real_##name,
#define OP_REAL2(name, formula) [OP_##name].real2 = real_##name,
#define OP_INTEGER1(name, formula) [OP_##name].int1 = int_##name,
#define OP_INTEGER2(name, formula) [OP_##name].int2 = int_##name,
#define OP_TRUTH1(name, formula) [OP_##name].truth1 = truth_##name,
#define OP_TRUTH2(name, formula) [OP_##name].truth2 = truth_##name,
#include "op/pointwise.def"
};

static unsigned formats_of(const pointwise_row *row) {
    const bool reals = row->real1 != NULL || row->real2 != NULL, integers = row->int1 != NULL || row->int2 != NULL, truths = row->truth1 != NULL || row->truth2 != NULL;
    return (reals ? FLOAT : 0) | (integers ? INTEGER : 0) | (truths ? BOOL : 0);
}

static const char *const operand_names[] = {"x", "y", "z"};

bool op_pointwise_value(op_id op, int count, const double *x, double *value) {
    const pointwise_row *row = &rows[op];
    if (count == 1 && row->real1 != NULL) *value = row->real1(x[0]);
    else if (count == 2 && row->real2 != NULL) *value = row->real2(x[0], x[1]);
    else return false;
    return true;
}

/* ---- inference ---- */

static dw_status infer_cast(op_infer *infer) {
    const op_type *x = infer->in[0];
    dw_format to = op_attr_format(infer->attrs, OP_ATTR_to);
    if (op_is_block(x->format))
        return base_fail(infer->context, DW_UNSUPPORTED, "cast: x is %s, a block format; use dequantize", dw_format_name(x->format));
    if (op_is_block(to)) return base_fail(infer->context, DW_INVALID, "cast: to is %s, a block format; use quantize", dw_format_name(to));
    *infer->out = *x;
    infer->out->format = to;
    return DW_OK;
}

static dw_status infer_where(op_infer *infer) {
    if (infer->in[0]->format != DW_FORMAT_bool)
        return base_fail(infer->context, DW_MISMATCH, "where: operand 0 is %s, it must be bool", dw_format_name(infer->in[0]->format));
    TRY(op_check_element(infer, "operand 1", infer->in[1]));
    TRY(op_check_same_format(infer, "operand 1", infer->in[1], "operand 2", infer->in[2]));
    *infer->out = *infer->in[1];
    TRY(op_check_broadcast(infer, infer->out, infer->in[2], infer->out));
    return op_check_broadcast(infer, infer->in[0], infer->out, infer->out);
}

static dw_status check_takes(op_infer *infer, unsigned takes, const op_type *x) {
    unsigned class = x->format == DW_FORMAT_bool ? BOOL : op_is_integer(x->format) ? INTEGER : FLOAT;
    if (takes & class) return DW_OK;
    return base_fail(infer->context, DW_MISMATCH, "%s: x is %s, it must be %s; cast it first", infer->op->name, dw_format_name(x->format),
                     takes == FLOAT               ? "a floating-point format"
                     : takes == (FLOAT | INTEGER) ? "a floating-point or integer format"
                                                  : "bool or an integer format");
}

dw_status pointwise_infer(op_infer *infer) {
    if (infer->op->id == OP_cast) return infer_cast(infer);
    if (infer->op->id == OP_where) return infer_where(infer);
    const op_type *x = infer->in[0];
    for (int i = 0; i < infer->n_in; i++) {
        TRY(op_check_number(infer, operand_names[i], infer->in[i]));
        TRY(op_check_same_format(infer, "x", x, operand_names[i], infer->in[i]));
    }
    TRY(check_takes(infer, formats_of(&rows[infer->op->id]), x));
    *infer->out = *x;
    if (infer->n_in == 2) TRY(op_check_broadcast(infer, x, infer->in[1], infer->out));
    if (infer->op->traits & OP_TRAIT_PREDICATE) infer->out->format = DW_FORMAT_bool;
    return DW_OK;
}

/* ---- reference ---- */

static dw_status cast_reference(const op_call *call) {
    const dw_tensor *x = call->in[0], *out = call->out[0];
    walk w;
    walk_start(&w, out->rank, out->dims);
    int at_out = walk_add(&w, out), at_x = walk_add(&w, x);
    bool by_bits = x->format == out->format, by_integers = op_is_integer(x->format);
    for (; w.left > 0; walk_next(&w)) {
        if (by_bits) op_copy_at(out, w.offset[at_out], x, w.offset[at_x]);
        else if (by_integers) op_store_int_at(out, w.offset[at_out], op_load_int_at(x, w.offset[at_x]));
        else op_store_at(out, w.offset[at_out], op_load_at(x, w.offset[at_x]));
    }
    return DW_OK;
}

static void where_reference(const op_call *call) {
    const dw_tensor *out = call->out[0];
    walk w;
    walk_start(&w, out->rank, out->dims);
    int at_out = walk_add(&w, out), at_condition = walk_add(&w, call->in[0]), at_true = walk_add(&w, call->in[1]);
    walk_add(&w, call->in[2]);
    for (; w.left > 0; walk_next(&w)) {
        int from = op_load_int_at(call->in[0], w.offset[at_condition]) != 0 ? 1 : 2;
        op_copy_at(out, w.offset[at_out], call->in[from], w.offset[at_true + from - 1]);
    }
}

static void real_reference(const op_call *call, const pointwise_row *row) {
    const dw_tensor *x = call->in[0], *y = call->n_in > 1 ? call->in[1] : x, *out = call->out[0];
    walk w;
    walk_start(&w, out->rank, out->dims);
    int at_out = walk_add(&w, out), at_x = walk_add(&w, x), at_y = walk_add(&w, y);
    for (; w.left > 0; walk_next(&w)) {
        double value = op_load_at(x, w.offset[at_x]);
        value = row->real1 != NULL ? row->real1(value) : row->real2(value, op_load_at(y, w.offset[at_y]));
        op_store_at(out, w.offset[at_out], value);
    }
}

static dw_status int_reference(const op_call *call, const pointwise_row *row) {
    const dw_tensor *x = call->in[0], *y = call->n_in > 1 ? call->in[1] : x, *out = call->out[0];
    bool divides = call->op->id == OP_floordiv || call->op->id == OP_remainder;
    bool is_truth = x->format == DW_FORMAT_bool;
    walk w;
    walk_start(&w, out->rank, out->dims);
    int at_out = walk_add(&w, out), at_x = walk_add(&w, x), at_y = walk_add(&w, y);
    for (; w.left > 0; walk_next(&w)) {
        int64_t value = op_load_int_at(x, w.offset[at_x]), other = op_load_int_at(y, w.offset[at_y]);
        if (divides && other == 0) return base_fail(call->context, DW_INVALID, "%s: %lld is divided by 0", call->op->name, (long long)value);
        if (is_truth) value = row->truth1 != NULL ? row->truth1(value) : row->truth2(value, other);
        else value = row->int1 != NULL ? row->int1(value) : row->int2(value, other);
        op_store_int_at(out, w.offset[at_out], value);
    }
    return DW_OK;
}

dw_status pointwise_reference(const op_call *call) {
    const pointwise_row *row = &rows[call->op->id];
    if (call->op->id == OP_cast) return cast_reference(call);
    if (call->op->id == OP_where) where_reference(call);
    else if (op_is_integer(call->in[0]->format)) return int_reference(call, row);
    else real_reference(call, row);
    return DW_OK;
}

/* An operation for each element, whatever it costs. */
void pointwise_work(const op_call *call, op_work *work) { op_work_each(call, 1, work); }
