/* Recipes that spell an op out as exporters do, so that the fusions meet it, in sizes, orders and formats of their own choice. */
#include "tests/graphs/graphs.h"

#include <math.h>

/* ---- activations ---- */

static dw_status gelu_by_erf(maker *m, ir_value *x, ir_value **y) {
    ir_value *e;
    TRY(emit_with_number(m, OP_mul, x, 0.70710678118654752, &e));
    TRY(emit_1(m, OP_erf, e, &e));
    TRY(emit_with_number(m, OP_add, e, 1, &e));
    TRY(emit_with_number(m, OP_mul, chance(m, 50) ? e : x, 0.5, y));
    return (*y)->node->in[0].value == e || (*y)->node->in[1].value == e ? emit_2(m, OP_mul, x, *y, y) : emit_2(m, OP_mul, *y, e, y);
}

static dw_status gelu_by_tanh(maker *m, ir_value *x, ir_value **y) {
    ir_value *t;
    TRY(emit_2(m, OP_mul, x, x, &t));
    TRY(emit_2(m, OP_mul, t, x, &t));
    TRY(emit_with_number(m, OP_mul, t, 0.044715, &t));
    TRY(emit_2(m, OP_add, x, t, &t));
    TRY(emit_with_number(m, OP_mul, t, 0.7978845608028654, &t));
    TRY(emit_1(m, OP_tanh, t, &t));
    TRY(emit_with_number(m, OP_add, t, 1, &t));
    TRY(emit_2(m, OP_mul, x, t, &t));
    return emit_with_number(m, OP_mul, t, 0.5, y);
}

dw_status make_activation_spelled(maker *m) {
    ir_value *x = value_of_rank(m, 1), *y, *narrow = x;
    if (x == NULL) return DW_INVALID;
    const bool widens = x->type.format != DW_FORMAT_f32 && x->type.format != DW_FORMAT_f64 && chance(m, 60);
    if (widens) TRY(ir_emit_cast(m->graph, x, DW_FORMAT_f32, &x));
    switch (draw(m, 4)) {
    case 0: TRY(gelu_by_erf(m, x, &y)); break;
    case 1: TRY(gelu_by_tanh(m, x, &y)); break;
    case 2: {
        ir_value *s;
        TRY(emit_1(m, OP_sigmoid, x, &s));
        TRY(emit_2(m, OP_mul, x, s, &y));
        break;
    }
    default: TRY(emit_1(m, chance(m, 50) ? OP_silu : OP_gelu, x, &y));
    }
    return widens ? ir_emit_cast(m->graph, y, narrow->type.format, &y) : DW_OK;
}

/* ---- softmax ---- */

static dw_status softmax_of(maker *m, ir_value *x, ir_value **y) {
    ir_value *z, *sum;
    if (x->type.rank == 0) return DW_INVALID;
    if (chance(m, 40)) {
        const op_attr axis = op_set_int(OP_ATTR_axis, chance(m, 90) ? x->type.rank - 1 : draw(m, x->type.rank));
        return emit(m, OP_softmax, 1, &x, 1, &axis, y);
    }
    TRY(emit_reduction(m, OP_amax, x, &z));
    TRY(emit_2(m, OP_sub, x, z, &z));
    TRY(emit_1(m, OP_exp, z, &z));
    TRY(emit_reduction(m, OP_sum, z, &sum));
    return emit_2(m, OP_div, z, sum, y);
}

dw_status make_softmax_spelled(maker *m) {
    ir_value *x = value_of_rank(m, 1), *y;
    return x != NULL ? softmax_of(m, x, &y) : DW_INVALID;
}

/* ---- norms ---- */

dw_status make_norm_spelled(maker *m) {
    ir_value *x = value_of_rank(m, 1), *c, *v, *y;
    if (x == NULL) return DW_INVALID;
    const op_type column = type_of(x->type.format, 1, &x->type.dims[x->type.rank - 1]);
    const dw_format narrow = x->type.format;
    if (chance(m, 30)) {
        ir_value *r;
        TRY(source(m, "", &x->type, false, &r));
        TRY(emit_2(m, OP_add, x, r, &x));
    }
    if (narrow != DW_FORMAT_f32 && chance(m, 60)) TRY(ir_emit_cast(m->graph, x, DW_FORMAT_f32, &x));
    c = x;
    const bool centred = chance(m, 50);
    if (centred) {
        TRY(emit_reduction(m, OP_mean, x, &v));
        TRY(emit_2(m, OP_sub, x, v, &c));
    }
    if (chance(m, 50)) TRY(emit_2(m, OP_mul, c, c, &v));
    else TRY(emit_with_number(m, OP_pow, c, 2, &v));
    TRY(emit_reduction(m, OP_mean, v, &v));
    TRY(emit_with_number(m, OP_add, v, 1e-5, &v));
    if (chance(m, 60)) {
        TRY(emit_1(m, OP_rsqrt, v, &v));
        TRY(emit_2(m, OP_mul, c, v, &y));
    } else {
        TRY(emit_1(m, OP_sqrt, v, &v));
        TRY(emit_2(m, OP_div, c, v, &y));
    }
    if (y->type.format != narrow && chance(m, 60)) TRY(ir_emit_cast(m->graph, y, narrow, &y));
    for (int i = 0; i < 2 && chance(m, 75); i++) {
        ir_value *w;
        op_type type = column;
        type.format = y->type.format;
        TRY(source(m, "", &type, true, &w));
        if (i == 0 && chance(m, 15)) TRY(emit_with_number(m, OP_add, w, 1, &w));
        TRY(emit_2(m, i == 0 ? OP_mul : OP_add, y, w, &y));
    }
    if (y->type.format != narrow) TRY(ir_emit_cast(m->graph, y, narrow, &y));
    keep(m, y);
    return DW_OK;
}

/* ---- rotary ---- */

/* [-second half, first half], or neighbours the same way. */
static dw_status rotated(maker *m, ir_value *x, int64_t width, ir_value **y) {
    const int axis = x->type.rank - 1;
    ir_value *first, *second;
    const op_attr attr = op_set_int(OP_ATTR_axis, axis);
    TRY(ir_emit_slice(m->graph, x, axis, sized(m, 0), sized(m, width / 2), 1, &first));
    TRY(ir_emit_slice(m->graph, x, axis, sized(m, width / 2), sized(m, width), 1, &second));
    TRY(emit_1(m, OP_neg, second, &second));
    return emit(m, OP_concat, 2, (ir_value *[]){second, first}, 1, &attr, y);
}

dw_status make_rotary_spelled(maker *m) {
    static const int64_t heads[] = {1, 2, 3};
    const int64_t width = 4 * (1 + draw(m, 8)), rest = chance(m, 30) ? 1 + draw(m, 8) : 0;
    const op_type type = type_of(m->format, 4, (dim[]){m->sizes[0], sized(m, DRAW_OF(m, heads)), m->sizes[1], sized(m, width + rest)});
    const op_type table = type_of(m->format, 2, (dim[]){m->sizes[1], sized(m, width)});
    ir_value *x, *cos, *sin, *head, *turned, *y;
    TRY(source(m, "", &type, false, &x));
    TRY(source(m, "", &table, false, &cos));
    TRY(source(m, "", &table, false, &sin));
    head = x;
    if (rest > 0) TRY(ir_emit_slice(m->graph, x, 3, sized(m, 0), sized(m, width), 1, &head));
    TRY(rotated(m, head, width, &turned));
    TRY(emit_2(m, OP_mul, head, cos, &y));
    TRY(emit_2(m, OP_mul, turned, sin, &turned));
    TRY(emit_2(m, OP_add, y, turned, &y));
    if (rest == 0) return DW_OK;
    ir_value *tail;
    const op_attr attr = op_set_int(OP_ATTR_axis, 3);
    TRY(ir_emit_slice(m->graph, x, 3, sized(m, width), sized(m, width + rest), 1, &tail));
    return emit(m, OP_concat, 2, (ir_value *[]){y, tail}, 1, &attr, &y);
}

/* ---- linear layers ---- */

/* A product with a weight and what often follows it. */
dw_status make_linear(maker *m) {
    static const op_id activations[] = {OP_relu, OP_silu, OP_gelu, OP_gelu_tanh, OP_quick_gelu, OP_tanh, OP_sigmoid};
    ir_value *x = value_of_rank(m, 2), *w, *y;
    if (x == NULL) return DW_INVALID;
    const op_type whole = x->type;
    const bool flat = whole.rank > 2 && chance(m, 30), transposed = chance(m, 50);
    const dim k = whole.dims[whole.rank - 1], n = chance(m, 50) ? k : m->sizes[2 + draw(m, 2)];
    if (flat) {
        dim rows;
        TRY_DIM(m->context, rows, dim_product(m->graph->dims, whole.dims, whole.rank - 1));
        TRY(ir_emit_reshape(m->graph, x, 2, (dim[]){rows, k}, &x));
    }
    const op_type type = type_of(x->type.format, 2, (dim[]){transposed ? n : k, transposed ? k : n});
    TRY(source(m, "", &type, true, &w));
    const bool by_view = transposed && chance(m, 50);
    if (by_view) TRY(emit_transposed(m, w, &w));
    const op_attr bt = op_set_bool(OP_ATTR_bt, transposed && !by_view);
    TRY(emit(m, OP_matmul, 2, (ir_value *[]){x, w}, 1, &bt, &y));
    if (chance(m, 60)) {
        const op_type column = type_of(y->type.format, 1, &n);
        TRY(source(m, "", &column, true, &w));
        TRY(emit_2(m, OP_add, y, w, &y));
    }
    if (flat) {
        dim dims[DW_MAX_RANK];
        for (int i = 0; i < whole.rank; i++) dims[i] = i + 1 < whole.rank ? whole.dims[i] : n;
        TRY(ir_emit_reshape(m->graph, y, whole.rank, dims, &y));
        keep(m, y);
    }
    if (chance(m, 20)) TRY(ir_emit_cast(m->graph, y, draw_float(m), &y));
    if (chance(m, 40)) TRY(emit_1(m, DRAW_OF(m, activations), y, &y));
    if (chance(m, 35)) {
        ir_value *r;
        TRY(source(m, "", &y->type, false, &r));
        TRY(emit_2(m, OP_add, y, r, &y));
    }
    keep(m, y);
    return DW_OK;
}

/* ---- attention ---- */

/* Heads apart, or merged with the batch as baddbmm wants them. */
typedef struct spelled {
    bool merged;
    dim b, h, s, t;
    int64_t d;
} spelled;

static dw_status spelled_heads(maker *m, const spelled *a, dim length, int64_t groups, bool turned, ir_value **x) {
    const op_type type = type_of(m->format, 4, (dim[]){a->b, sized(m, groups), length, sized(m, a->d)});
    int64_t h;
    TRY(source(m, "", &type, false, x));
    if (dim_is_constant(a->h, &h) && groups != h) {       /* each group for several heads */
        const dim apart[] = {a->b, sized(m, groups), sized(m, 1), length, sized(m, a->d)}, wide[] = {a->b, sized(m, groups), sized(m, h / groups), length, sized(m, a->d)};
        const dim together[] = {a->b, a->h, length, sized(m, a->d)};
        TRY(ir_emit_reshape(m->graph, *x, 5, apart, x));
        TRY(ir_emit_broadcast(m->graph, *x, 5, wide, x));
        TRY(ir_emit_reshape(m->graph, *x, 4, together, x));
    }
    if (a->merged) {
        dim heads;
        TRY_DIM(m->context, heads, dim_mul(m->graph->dims, a->b, a->h));
        TRY(ir_emit_reshape(m->graph, *x, 3, (dim[]){heads, length, sized(m, a->d)}, x));
    }
    return turned ? emit_transposed(m, *x, x) : DW_OK;
}

/* What is added to the scores or hides them, of any shape that broadcasts to theirs. *lowers: some of it makes them low already; what comes then hides by -inf at most, as numbers that
 * differ tell keys apart that are hidden. */
static dw_status changed_scores(maker *m, ir_value *scores, bool *lowers, ir_value **y) {
    op_type type = scores->type;
    const int missing = chance(m, 50) ? draw(m, type.rank) : 0;
    ir_value *other, *low;
    type.rank -= missing;
    for (int i = 0; i < type.rank; i++) type.dims[i] = chance(m, 35) ? sized(m, 1) : scores->type.dims[i + missing];
    if (chance(m, 55)) {
        TRY(source(m, *lowers ? "" : "bias", &type, chance(m, 25), &other));
        *lowers = true;
        return emit_2(m, OP_add, scores, other, y);
    }
    static const double lows[] = {-INFINITY, -0x1.fep127, -10000, -1e9, -65504, -0x1.fffffep127};
    type.format = DW_FORMAT_bool;
    int64_t one = 0;
    const bool of_keys = type.rank < 2 || (dim_is_constant(type.dims[type.rank - 2], &one) && one == 1);
    TRY(source(m, of_keys || *lowers ? "open" : "", &type, chance(m, 20), &other));
    const double number = *lowers ? lows[0] : scores->type.format == DW_FORMAT_f16 ? lows[4] : lows[draw(m, scores->type.format == DW_FORMAT_bf16 ? 5 : 6)];
    *lowers = true;
    TRY(ir_emit_scalar(m->graph, scores->type.format, number, &low));
    return emit(m, OP_where, 3, (ir_value *[]){other, scores, low}, 0, NULL, y);
}

dw_status make_attention_spelled(maker *m) {
    static const int64_t heads[] = {1, 2, 3, 4}, widths[] = {4, 6, 8, 16, 32};
    const int64_t h = DRAW_OF(m, heads), g = chance(m, 70) ? h : 1;
    const spelled a = {.merged = chance(m, 40), .b = m->sizes[0], .h = sized(m, h), .s = m->sizes[1], .t = chance(m, 60) ? m->sizes[1] : sized(m, 1 + draw(m, 24)), .d = DRAW_OF(m, widths)};
    ir_value *q, *k, *v, *scores, *y;
    const bool bt = chance(m, 50);
    TRY(spelled_heads(m, &a, a.s, h, false, &q));
    TRY(spelled_heads(m, &a, a.t, g, !bt, &k));
    TRY(spelled_heads(m, &a, a.t, g, false, &v));
    if (chance(m, 40)) TRY(emit_with_number(m, OP_mul, q, 0.35, &q));
    const op_attr attr = op_set_bool(OP_ATTR_bt, bt);
    TRY(emit(m, OP_matmul, 2, (ir_value *[]){q, k}, 1, &attr, &scores));
    if (chance(m, 40)) TRY(emit_with_number(m, chance(m, 50) ? OP_mul : OP_div, scores, chance(m, 50) ? 0.25 : 2, &scores));
    const bool apart = a.merged && chance(m, 40);
    if (apart) TRY(ir_emit_reshape(m->graph, scores, 4, (dim[]){a.b, a.h, a.s, a.t}, &scores));
    bool lowers = false;
    for (int i = 0; i < 2 && chance(m, 60); i++) TRY(changed_scores(m, scores, &lowers, &scores));
    const dw_format format = scores->type.format;
    if (format != DW_FORMAT_f32 && chance(m, 50)) TRY(ir_emit_cast(m->graph, scores, DW_FORMAT_f32, &scores));
    TRY(softmax_of(m, scores, &scores));
    TRY(ir_emit_cast(m->graph, scores, format, &scores));
    if (apart) {
        dim all;
        TRY_DIM(m->context, all, dim_mul(m->graph->dims, a.b, a.h));
        TRY(ir_emit_reshape(m->graph, scores, 3, (dim[]){all, a.s, a.t}, &scores));
    }
    return emit(m, OP_matmul, 2, (ir_value *[]){scores, v}, 0, NULL, &y);
}
