/* Pointwise ops: one row of functions per op, over doubles and over 64-bit integers; operands broadcast as in PyTorch. Integer arithmetic
 * wraps at the format's width, as PyTorch's does. Does not convert formats (cast does): operands of one op have the same one. */
#include "op/family.h"

#include <math.h>

/* The formats an op takes. */
enum { FLOAT = 1, INTEGER = 2, BOOL = 4, ALL = FLOAT | INTEGER | BOOL };

typedef struct pointwise_row {
    unsigned takes;
    double (*real1)(double x);
    double (*real2)(double x, double y);
    int64_t (*int1)(int64_t x);
    int64_t (*int2)(int64_t x, int64_t y);
} pointwise_row;

/* ---- of doubles ---- */

static double real_neg(double x) { return -x; }
static double real_sign(double x) { return (x > 0) - (x < 0); }
static double real_rsqrt(double x) { return 1 / sqrt(x); }
static double real_reciprocal(double x) { return 1 / x; }
static double real_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double real_relu(double x) { return x < 0 ? 0 : x; }
static double real_silu(double x) { return x / (1 + exp(-x)); }
static double real_gelu(double x) { return x * (1 + erf(x * 0.70710678118654752440)) / 2; }
static double real_gelu_tanh(double x) { return x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))) / 2; }
static double real_softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }
static double real_isnan(double x) { return isnan(x) != 0; }
static double real_isinf(double x) { return isinf(x) != 0; }
static double real_add(double x, double y) { return x + y; }
static double real_sub(double x, double y) { return x - y; }
static double real_mul(double x, double y) { return x * y; }
static double real_div(double x, double y) { return x / y; }
static double real_remainder(double x, double y) {
    double rest = fmod(x, y);
    return rest != 0 && (y < 0) != (rest < 0) ? rest + y : rest;
}
/* From the exact remainder, so that rounding of x / y cannot cross an integer. */
static double real_floordiv(double x, double y) {
    if (y == 0) return x / y;
    double rest = fmod(x, y), quotient = (x - rest) / y;
    if (rest != 0 && (y < 0) != (rest < 0)) quotient -= 1;
    return quotient == 0 ? copysign(0.0, x / y) : rint(quotient);
}
static double real_minimum(double x, double y) { return isnan(x) || x < y ? x : y; }
static double real_maximum(double x, double y) { return isnan(x) || x > y ? x : y; }
static double real_eq(double x, double y) { return x == y; }
static double real_ne(double x, double y) { return x != y; }
static double real_lt(double x, double y) { return x < y; }
static double real_le(double x, double y) { return x <= y; }
static double real_gt(double x, double y) { return x > y; }
static double real_ge(double x, double y) { return x >= y; }

/* ---- of integers; unsigned inside, where overflow wraps ---- */

static int64_t int_neg(int64_t x) { return (int64_t)(0 - (uint64_t)x); }
static int64_t int_abs(int64_t x) { return x < 0 ? int_neg(x) : x; }
static int64_t int_sign(int64_t x) { return (x > 0) - (x < 0); }
static int64_t int_relu(int64_t x) { return x < 0 ? 0 : x; }
static int64_t int_same(int64_t x) { return x; }
static int64_t int_not(int64_t x) { return ~x; }
static int64_t int_false(int64_t x) { (void)x; return 0; }
static int64_t int_add(int64_t x, int64_t y) { return (int64_t)((uint64_t)x + (uint64_t)y); }
static int64_t int_sub(int64_t x, int64_t y) { return (int64_t)((uint64_t)x - (uint64_t)y); }
static int64_t int_mul(int64_t x, int64_t y) { return (int64_t)((uint64_t)x * (uint64_t)y); }
static int64_t int_remainder(int64_t x, int64_t y) {
    if (y == -1) return 0;   /* x % -1 traps for the smallest x */
    int64_t rest = x % y;
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}
static int64_t int_floordiv(int64_t x, int64_t y) {
    if (y == -1) return int_neg(x);
    return x / y - (x % y != 0 && (x % y < 0) != (y < 0));
}
/* Negative powers: 1 and -1 have them, other integers give 0, as in PyTorch. */
static int64_t int_pow(int64_t x, int64_t y) {
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y % 2 == 0 ? 1 : -1) : 0;
    int64_t power = 1;
    for (; y > 0; y /= 2) {
        if (y % 2 != 0) power = int_mul(power, x);
        x = int_mul(x, x);
    }
    return power;
}
static int64_t int_minimum(int64_t x, int64_t y) { return x < y ? x : y; }
static int64_t int_maximum(int64_t x, int64_t y) { return x > y ? x : y; }
static int64_t int_eq(int64_t x, int64_t y) { return x == y; }
static int64_t int_ne(int64_t x, int64_t y) { return x != y; }
static int64_t int_lt(int64_t x, int64_t y) { return x < y; }
static int64_t int_le(int64_t x, int64_t y) { return x <= y; }
static int64_t int_gt(int64_t x, int64_t y) { return x > y; }
static int64_t int_ge(int64_t x, int64_t y) { return x >= y; }
static int64_t int_and(int64_t x, int64_t y) { return x & y; }
static int64_t int_or(int64_t x, int64_t y) { return x | y; }
static int64_t int_xor(int64_t x, int64_t y) { return x ^ y; }

/* cast and where compute nothing and have no row. */
static const pointwise_row rows[OP_COUNT] = {
    [OP_neg] = {FLOAT | INTEGER, real_neg, NULL, int_neg, NULL},
    [OP_abs] = {FLOAT | INTEGER, fabs, NULL, int_abs, NULL},
    [OP_sign] = {FLOAT | INTEGER, real_sign, NULL, int_sign, NULL},
    [OP_exp] = {FLOAT, exp, NULL, NULL, NULL},
    [OP_log] = {FLOAT, log, NULL, NULL, NULL},
    [OP_sqrt] = {FLOAT, sqrt, NULL, NULL, NULL},
    [OP_rsqrt] = {FLOAT, real_rsqrt, NULL, NULL, NULL},
    [OP_reciprocal] = {FLOAT, real_reciprocal, NULL, NULL, NULL},
    [OP_sin] = {FLOAT, sin, NULL, NULL, NULL},
    [OP_cos] = {FLOAT, cos, NULL, NULL, NULL},
    [OP_atan] = {FLOAT, atan, NULL, NULL, NULL},
    [OP_tanh] = {FLOAT, tanh, NULL, NULL, NULL},
    [OP_sigmoid] = {FLOAT, real_sigmoid, NULL, NULL, NULL},
    [OP_erf] = {FLOAT, erf, NULL, NULL, NULL},
    [OP_relu] = {FLOAT | INTEGER, real_relu, NULL, int_relu, NULL},
    [OP_silu] = {FLOAT, real_silu, NULL, NULL, NULL},
    [OP_gelu] = {FLOAT, real_gelu, NULL, NULL, NULL},
    [OP_gelu_tanh] = {FLOAT, real_gelu_tanh, NULL, NULL, NULL},
    [OP_softplus] = {FLOAT, real_softplus, NULL, NULL, NULL},
    [OP_floor] = {FLOAT | INTEGER, floor, NULL, int_same, NULL},
    [OP_ceil] = {FLOAT | INTEGER, ceil, NULL, int_same, NULL},
    [OP_round] = {FLOAT | INTEGER, rint, NULL, int_same, NULL},
    [OP_not] = {INTEGER | BOOL, NULL, NULL, int_not, NULL},
    [OP_isnan] = {ALL, real_isnan, NULL, int_false, NULL},
    [OP_isinf] = {ALL, real_isinf, NULL, int_false, NULL},
    [OP_add] = {ALL, NULL, real_add, NULL, int_add},
    [OP_sub] = {FLOAT | INTEGER, NULL, real_sub, NULL, int_sub},
    [OP_mul] = {ALL, NULL, real_mul, NULL, int_mul},
    [OP_div] = {FLOAT, NULL, real_div, NULL, NULL},
    [OP_floordiv] = {FLOAT | INTEGER, NULL, real_floordiv, NULL, int_floordiv},
    [OP_remainder] = {FLOAT | INTEGER, NULL, real_remainder, NULL, int_remainder},
    [OP_pow] = {FLOAT | INTEGER, NULL, pow, NULL, int_pow},
    [OP_minimum] = {ALL, NULL, real_minimum, NULL, int_minimum},
    [OP_maximum] = {ALL, NULL, real_maximum, NULL, int_maximum},
    [OP_eq] = {ALL, NULL, real_eq, NULL, int_eq},
    [OP_ne] = {ALL, NULL, real_ne, NULL, int_ne},
    [OP_lt] = {ALL, NULL, real_lt, NULL, int_lt},
    [OP_le] = {ALL, NULL, real_le, NULL, int_le},
    [OP_gt] = {ALL, NULL, real_gt, NULL, int_gt},
    [OP_ge] = {ALL, NULL, real_ge, NULL, int_ge},
    [OP_and] = {INTEGER | BOOL, NULL, NULL, NULL, int_and},
    [OP_or] = {INTEGER | BOOL, NULL, NULL, NULL, int_or},
    [OP_xor] = {INTEGER | BOOL, NULL, NULL, NULL, int_xor},
};

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
    TRY(check_takes(infer, rows[infer->op->id].takes, x));
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
    bool inverts_bool = call->op->id == OP_not && x->format == DW_FORMAT_bool;
    walk w;
    walk_start(&w, out->rank, out->dims);
    int at_out = walk_add(&w, out), at_x = walk_add(&w, x), at_y = walk_add(&w, y);
    for (; w.left > 0; walk_next(&w)) {
        int64_t value = op_load_int_at(x, w.offset[at_x]), other = op_load_int_at(y, w.offset[at_y]);
        if (divides && other == 0) return base_fail(call->context, DW_INVALID, "%s: %lld is divided by 0", call->op->name, (long long)value);
        value = inverts_bool ? !value : row->int1 != NULL ? row->int1(value) : row->int2(value, other);
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
