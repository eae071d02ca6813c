/* Rules of discrete Fourier transforms: each axis is multiplied by the matrix of cosines and sines. A constant where the size is known,
 * else made of index arithmetic at each run. Products of matrices, so for the lengths of transformers; no fast transform. */
#include <math.h>
#include <string.h>

#include "capture/program.h"

enum { MATRIX_MAX = 1 << 22 };

static const double full_turn = 6.28318530717958647692;

/* Along one axis of n elements: rows of the matrix are inputs, columns outputs. */
typedef struct transform {
    int64_t inputs, outputs;    /* n, or n / 2 + 1 of a half spectrum; 0 when n is a symbol, and both are n */
    int64_t n;
    dim size;
    bool inverse;
    bool half;                  /* from a half spectrum to real numbers: what is left out counts twice */
    double scale;
} transform;

static double weight_of(const transform *t, int64_t input) {
    return t->half && input != 0 && 2 * input != t->n ? 2 * t->scale : t->scale;
}

/* cos or sin of 2 pi j k / n, times the weight of j; the product is reduced modulo n, so that the angle is exact. */
static dw_status constant_matrix(capture_call *call, const transform *t, bool sine, dw_format format, ir_value **matrix) {
    dw_tensor tensor;
    if (t->outputs > MATRIX_MAX / t->inputs) return capture_fail(call, DW_LIMIT, "a transform of %lld elements", (long long)t->n);
    TRY(ir_add_constant(call->graph, NULL, format, 2, (int64_t[]){t->inputs, t->outputs}, matrix, &tensor));
    for (int64_t j = 0; j < t->inputs; j++) {
        for (int64_t k = 0; k < t->outputs; k++) {
            const double angle = full_turn * (double)(j * k % t->n) / (double)t->n;
            op_tensor_store(&tensor, (int64_t[]){j, k}, weight_of(t, j) * (sine ? sin(angle) : cos(angle)));
        }
    }
    return DW_OK;
}

static dw_status computed_matrix(capture_call *call, const transform *t, bool sine, dw_format format, ir_value **matrix) {
    ir_value *j, *k, *n;
    TRY(capture_emit_index(call->graph, 2, 0, t->size, DW_FORMAT_i64, &j));
    TRY(capture_emit_index(call->graph, 2, 1, t->size, DW_FORMAT_i64, &k));
    TRY(ir_emit_size(call->graph, t->size, &n));
    TRY(ir_emit_2(call->graph, OP_mul, j, k, &j));
    TRY(ir_emit_2(call->graph, OP_remainder, j, n, &j));
    TRY(ir_emit_cast(call->graph, j, DW_FORMAT_f64, &j));
    TRY(ir_emit_cast(call->graph, n, DW_FORMAT_f64, &n));
    TRY(ir_emit_2(call->graph, OP_div, j, n, &j));
    TRY(capture_emit_number(call->graph, OP_mul, j, full_turn, &j));
    TRY(ir_emit_1(call->graph, sine ? OP_sin : OP_cos, j, &j));
    return ir_emit_cast(call->graph, j, format, matrix);
}

static dw_status emit_matrix(capture_call *call, const transform *t, bool sine, dw_format format, ir_value **matrix) {
    return t->n > 0 ? constant_matrix(call, t, sine, format, matrix) : computed_matrix(call, t, sine, format, matrix);
}

static dw_status join(capture_call *call, op_id op, ir_value *a, ir_value *b, ir_value **result) {
    if (a != NULL && b != NULL) return ir_emit_2(call->graph, op, a, b, result);
    *result = a != NULL ? a : b;
    return a == NULL && b != NULL && op == OP_sub ? ir_emit_1(call->graph, OP_neg, b, result) : DW_OK;
}

/* (re + i im) (cos -+ i sin), whose last axis is the one; an absent part is zero. */
static dw_status multiply(capture_call *call, const transform *t, ir_value *parts[2], bool real) {
    ir_value *matrix[2], *products[2][2] = {{NULL}};
    for (int m = 0; m < 2; m++) {
        TRY(emit_matrix(call, t, m == 1, parts[0]->type.format, &matrix[m]));
        for (int p = 0; p < 2; p++) {
            if (parts[p] == NULL || (real && m != p)) continue;
            TRY(ir_emit_2(call->graph, OP_matmul, parts[p], matrix[m], &products[p][m]));
        }
    }
    TRY(join(call, t->inverse ? OP_sub : OP_add, products[0][0], products[1][1], &parts[0]));
    if (real) return parts[1] = NULL, DW_OK;
    return join(call, t->inverse ? OP_add : OP_sub, products[1][0], products[0][1], &parts[1]);
}

/* A symbolic size is scaled at the end, by a division. */
static dw_status scale_by_size(capture_call *call, dim size, int power, ir_value *parts[2]) {
    ir_value *n;
    if (power == 0) return DW_OK;
    TRY(ir_emit_size(call->graph, size, &n));
    TRY(ir_emit_cast(call->graph, n, parts[0]->type.format, &n));
    if (power == 1) TRY(ir_emit_1(call->graph, OP_sqrt, n, &n));
    for (int p = 0; p < 2 && parts[p] != NULL; p++) TRY(ir_emit_2(call->graph, OP_div, parts[p], n, &parts[p]));
    return DW_OK;
}

typedef enum form { FORM_FULL, FORM_HALF, FORM_REAL } form;    /* complex; half a spectrum of real numbers; real numbers of half a spectrum */

/* One axis; power of the size that divides: 0, 1 (its root) or 2. length: of the output of FORM_REAL, else -1. */
static dw_status transform_axis(capture_call *call, ir_value *parts[2], int axis, form form, bool inverse, int power, int64_t length) {
    int last = parts[0]->type.rank - 1;
    transform t = {.size = parts[0]->type.dims[axis], .inverse = inverse, .half = form == FORM_REAL};
    if (dim_is_constant(t.size, &t.inputs)) {
        t.n = form == FORM_REAL ? length : t.inputs;
        t.outputs = form == FORM_HALF ? t.n / 2 + 1 : t.n;
        if (t.n < 1 || t.inputs < 1 || (form == FORM_REAL && t.inputs != t.n / 2 + 1)) return capture_fail(call, DW_UNSUPPORTED, "a transform of %lld elements to %lld", (long long)t.inputs, (long long)t.n);
        t.scale = power == 0 ? 1 : power == 1 ? 1 / sqrt((double)t.n) : 1 / (double)t.n;
    } else if (form != FORM_FULL) {
        return capture_fail(call, DW_UNSUPPORTED, "half a spectrum of an axis of dynamic size");
    }
    for (int p = 0; p < 2; p++) {
        if (parts[p] != NULL) TRY(capture_emit_swap(call->graph, parts[p], axis, last, &parts[p]));
    }
    TRY(multiply(call, &t, parts, form == FORM_REAL));
    if (t.n == 0) TRY(scale_by_size(call, t.size, power, parts));
    for (int p = 0; p < 2; p++) {
        if (parts[p] != NULL) TRY(capture_emit_swap(call->graph, parts[p], axis, last, &parts[p]));
    }
    return DW_OK;
}

/* All axes in order; only the last of them is the one of a half spectrum: first on the way there, last on the way back. */
static dw_status transform_axes(capture_call *call, ir_value *parts[2], int count, const int64_t *axes, form form, bool inverse, int power, int64_t length) {
    for (int i = 0; i < count; i++) {
        const int at = form == FORM_HALF ? count - 1 - i : i;
        const bool halved = form != FORM_FULL && at == count - 1;
        TRY(transform_axis(call, parts, (int)axes[at], halved ? form : FORM_FULL, inverse, power, length));
    }
    if (form == FORM_REAL) return capture_result(call, 0, parts[0]);
    return capture_pair_result(call, parts[0], parts[1]);
}

static dw_status read_parts(capture_call *call, ir_value *parts[2]) {
    TRY(capture_read_parts(call, "self", parts));
    for (int p = 0; p < 2 && parts[p] != NULL; p++) {
        if (!capture_is_float(parts[p]->type.format)) TRY(ir_emit_cast(call->graph, parts[p], DW_FORMAT_f32, &parts[p]));
    }
    return parts[0]->type.rank > 0 ? DW_OK : capture_fail(call, DW_CORRUPT, "the transform of a scalar");
}

/* aten._fft_c2c, _fft_r2c, _fft_c2r: normalization 0: none, 1: by the root of the size, 2: by the size */
dw_status capture_rule_fft_internal(capture_call *call) {
    ir_value *parts[2];
    int64_t given[DW_MAX_RANK], normalization, length = -1;
    int count;
    bool forward = true, half = false;
    const char *target = call->row->target;
    TRY(read_parts(call, parts));
    TRY(capture_ints_arg(call, "dim", &count, given));
    TRY(capture_int_arg(call, "normalization", &normalization));
    for (int i = 0; i < count; i++) {
        if (given[i] < 0) given[i] += parts[0]->type.rank;
        if (given[i] < 0 || given[i] >= parts[0]->type.rank) return capture_fail(call, DW_CORRUPT, "dim names no axis");
    }
    if (strstr(target, "c2c") != NULL) TRY(capture_bool_arg(call, "forward", &forward));
    if (strstr(target, "r2c") != NULL) TRY(capture_bool_arg(call, "onesided", &half));
    const bool real = strstr(target, "c2r") != NULL;
    if (real) TRY(capture_int_arg(call, "last_dim_size", &length));
    if (normalization < 0 || normalization > 2) return capture_fail(call, DW_CORRUPT, "normalization %lld", (long long)normalization);
    return transform_axes(call, parts, count, given, real ? FORM_REAL : half ? FORM_HALF : FORM_FULL, real || !forward, (int)normalization, length);
}

/* The axes: "dim", one or several; without it the last as many as sizes are given, or all. */
static dw_status read_axes(capture_call *call, int rank, const char *sizes, int *count, int64_t *axes) {
    *count = 0;
    if (capture_has(call, "dim")) TRY(capture_ints_arg(call, "dim", count, axes));
    if (*count == 0) {
        const capture_arg *s = capture_find_arg(call, sizes);
        *count = strstr(call->row->target, "fft2") != NULL ? 2 : strcmp(sizes, "n") == 0 ? 1 : s != NULL && s->kind == ARG_INTS ? s->count : rank;
        if (*count > rank) return capture_fail(call, DW_CORRUPT, "%d sizes for %d axes", *count, rank);
        for (int i = 0; i < *count; i++) axes[i] = rank - *count + i;
    }
    for (int i = 0; i < *count; i++) {
        if (axes[i] < 0) axes[i] += rank;
        if (axes[i] < 0 || axes[i] >= rank) return capture_fail(call, DW_CORRUPT, "dim names no axis");
    }
    return DW_OK;
}

/* Axes brought to the sizes asked for, by zeros behind or a cut. */
static dw_status fit_axes(capture_call *call, ir_value *parts[2], const char *sizes, int count, const int64_t *axes, form form, int64_t *length) {
    int64_t wanted[DW_MAX_RANK], size;
    int given = 0;
    *length = -1;
    if (capture_has(call, sizes)) TRY(capture_ints_arg(call, sizes, &given, wanted));
    if (given != 0 && given != count) return capture_fail(call, DW_CORRUPT, "%d sizes for %d axes", given, count);
    for (int i = 0; i < count; i++) {
        const bool last = form == FORM_REAL && i == count - 1;
        int64_t before[DW_MAX_RANK] = {0}, after[DW_MAX_RANK] = {0};
        const bool known = dim_is_constant(parts[0]->type.dims[axes[i]], &size);
        if (last) *length = given > 0 ? wanted[i] : known ? 2 * (size - 1) : -1;
        if (given == 0) continue;
        if (!known || wanted[i] < 1) return capture_fail(call, DW_UNSUPPORTED, "an axis of dynamic size with a size asked for");
        after[axes[i]] = (last ? wanted[i] / 2 + 1 : wanted[i]) - size;
        for (int p = 0; p < 2 && parts[p] != NULL; p++) TRY(capture_emit_pad(call->graph, parts[p], before, after, 0, &parts[p]));
    }
    return DW_OK;
}

/* aten.fft_*: norm "backward" (or none) divides the inverse by the size, "forward" the other, "ortho" both by its root */
dw_status capture_rule_fft(capture_call *call) {
    ir_value *parts[2];
    int64_t axes[DW_MAX_RANK], length;
    int count;
    const char *name = strstr(call->row->target, "fft_") + strlen("fft_"), *norm = "backward", *sizes = capture_find_arg(call, "n") != NULL ? "n" : "s";
    const bool inverse = name[0] == 'i', real = name[inverse] == 'r';
    const form form = !real ? FORM_FULL : inverse ? FORM_REAL : FORM_HALF;
    TRY(read_parts(call, parts));
    TRY(read_axes(call, parts[0]->type.rank, sizes, &count, axes));
    TRY(fit_axes(call, parts, sizes, count, axes, form, &length));
    if (capture_has(call, "norm")) TRY(capture_text_arg(call, "norm", &norm));
    const int power = strcmp(norm, "ortho") == 0 ? 1 : (strcmp(norm, "forward") == 0) != inverse ? 2 : 0;
    return transform_axes(call, parts, count, axes, form, inverse, power, length);
}
