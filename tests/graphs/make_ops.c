/* Recipes that make nodes of one op or a few: the pointwise ones by their rows, products of shared weights in every spelling, attention with any bias. */
#include "tests/graphs/graphs.h"

#include <stdio.h>
#include <string.h>

#include "ir/internal.h"

/* ---- any op by its row ---- */

static op_id op_with(maker *m, unsigned trait) {
    for (int tries = 0; tries < 400; tries++) {
        const op_id op = (op_id)draw(m, OP_COUNT);
        if ((op_get(op)->traits & trait) == trait) return op;
    }
    return OP_neg;
}

static dw_status any_attr(maker *m, op_attr_id id, const ir_value *x, op_attr *attr) {
    static const int64_t numbers[] = {0, 1, 1, 2, 3, 4, 8, 16};
    static const double reals[] = {0, 1, 0.5, -1, 1e-5, 2.5};
    static const dw_format formats[] = {DW_FORMAT_f32, DW_FORMAT_bf16, DW_FORMAT_f16, DW_FORMAT_f64, DW_FORMAT_i64, DW_FORMAT_i32, DW_FORMAT_bool, DW_FORMAT_u8, DW_FORMAT_i8, DW_FORMAT_i16,
                                        DW_FORMAT_mxfp8, DW_FORMAT_fp8_1x128, DW_FORMAT_fp8_row, DW_FORMAT_nvfp4_row, DW_FORMAT_mxfp4};
    const int rank = x != NULL ? x->type.rank : draw(m, 4);
    int64_t *integers;
    dim *dims;
    TRY_NEW(integers, &m->arena, DW_MAX_RANK);
    TRY_NEW(dims, &m->arena, DW_MAX_RANK);
    int count = 0;
    for (int i = 0; i < rank; i++) {
        if (id == OP_ATTR_axes && !chance(m, 50)) continue;
        integers[count] = id == OP_ATTR_axes ? i : DRAW_OF(m, numbers);
        dims[count++] = id == OP_ATTR_shape && x != NULL && chance(m, 70) ? x->type.dims[i] : sized(m, DRAW_OF(m, numbers));
    }
    switch (op_attr_kind_of(id)) {
    case OP_KIND_INT: *attr = op_set_int(id, id == OP_ATTR_axis ? draw(m, rank) : DRAW_OF(m, numbers)); break;
    case OP_KIND_BOOL: *attr = op_set_bool(id, chance(m, 50)); break;
    case OP_KIND_REAL: *attr = op_set_real(id, DRAW_OF(m, reals)); break;
    case OP_KIND_TEXT: *attr = op_set_text(id, ""); break;
    case OP_KIND_FORMAT: *attr = op_set_format(id, DRAW_OF(m, formats)); break;
    case OP_KIND_DIM: *attr = op_set_dim(id, chance(m, 20) ? m->sizes[draw(m, MAKER_SIZES)] : sized(m, DRAW_OF(m, numbers))); break;
    case OP_KIND_INTS: *attr = op_set_ints(id, count, integers); break;
    case OP_KIND_DIMS: *attr = op_set_dims(id, count, dims); break;
    }
    return DW_OK;
}

dw_status make_any_of(maker *m, op_id op) {
    const op_def *def = op_get(op);
    ir_value *in[KERNEL_MAX_OPERANDS] = {0}, *result;
    op_attr attrs[OP_ATTR_COUNT];
    int n_in = def->min_in + draw(m, def->max_in - def->min_in + 1 < 4 ? def->max_in - def->min_in + 1 : 4), n_attrs = 0;
    char names[256];
    for (int i = 0; i < n_in; i++) {
        in[i] = any_value(m);
        ir_value *same = i > 0 ? value_of_format(m, in[0]->type.format) : NULL;
        if (same != NULL && chance(m, 60)) in[i] = same;
    }
    snprintf(names, sizeof names, "%s", def->attributes);
    char *rest = NULL;
    for (char *name = strtok_r(names, " ", &rest); name != NULL; name = strtok_r(NULL, " ", &rest)) {
        char *optional = strchr(name, '?');
        if (optional != NULL) *optional = '\0';
        if (optional == NULL || chance(m, 30)) TRY(any_attr(m, op_attr_find(name), in[0], &attrs[n_attrs++]));
    }
    return emit(m, op, n_in, in, n_attrs, attrs, &result);
}

dw_status make_any(maker *m) {
    for (int tries = 0; tries < 6; tries++) {
        const dw_status status = make_any_of(m, m->only != OP_COUNT && chance(m, 50) ? m->only : (op_id)draw(m, OP_COUNT));
        if (status == DW_OK || status == DW_NO_MEMORY) return status;
    }
    return DW_INVALID;
}

/* ---- pointwise ---- */

/* A shape that broadcasts to that of x: axes of 1, axes missing in front. */
static op_type broadcastable(maker *m, const op_type *x) {
    op_type type = *x;
    const int missing = chance(m, 50) ? draw(m, x->rank + 1) : 0;
    type.rank -= missing;
    for (int i = 0; i < type.rank; i++) type.dims[i] = chance(m, 25) ? sized(m, 1) : x->dims[i + missing];
    return type;
}

dw_status make_pointwise(maker *m) {
    const op_id op = op_with(m, OP_TRAIT_POINTWISE);
    const op_def *def = op_get(op);
    ir_value *x = any_value(m), *in[3] = {x, x, x}, *y;
    if (op == OP_cast) return make_cast(m);
    if (dw_format_is_block(x->type.format)) return DW_INVALID;
    for (int i = 1; i < def->min_in; i++) {
        const op_type type = broadcastable(m, &x->type);
        if (chance(m, 25)) {
            static const double numbers[] = {0, 1, -1, 0.5, 2, 3, 1e-5, -0.0, 0.1};
            TRY(ir_emit_scalar(m->graph, x->type.format, DRAW_OF(m, numbers), &in[i]));
        } else {
            TRY(source(m, "", &type, chance(m, 40), &in[i]));
        }
    }
    if (op == OP_where) {
        op_type type = broadcastable(m, &x->type);
        type.format = DW_FORMAT_bool;
        TRY(source(m, "", &type, chance(m, 20), &in[0]));
    }
    if (def->min_in == 2 && chance(m, 30)) {
        ir_value *first = in[0];
        in[0] = in[1];
        in[1] = first;
    }
    return emit(m, op, def->min_in, in, 0, NULL, &y);
}

dw_status make_cast(maker *m) {
    static const dw_format formats[] = {DW_FORMAT_f32, DW_FORMAT_f32, DW_FORMAT_bf16, DW_FORMAT_bf16, DW_FORMAT_f16, DW_FORMAT_f64, DW_FORMAT_i64, DW_FORMAT_i32, DW_FORMAT_bool, DW_FORMAT_u8, DW_FORMAT_i8, DW_FORMAT_i16, DW_FORMAT_e4m3, DW_FORMAT_e5m2};
    ir_value *x = any_value(m), *y;
    const op_attr to = op_set_format(OP_ATTR_to, formats[draw(m, chance(m, 75) ? 6 : (int)COUNT_OF(formats))]);
    return emit(m, OP_cast, 1, &x, 1, &to, &y);
}

/* ---- views ---- */

static dw_status make_reshape(maker *m, ir_value *x, ir_value **y) {
    dim dims[DW_MAX_RANK];
    int rank = x->type.rank, axis = draw(m, rank);
    int64_t size;
    if (rank == 0) return DW_INVALID;
    memcpy(dims, x->type.dims, sizeof dims);
    if (rank > 1 && chance(m, 50)) {        /* two axes become one */
        if (axis == rank - 1) axis--;
        TRY_DIM(m->context, dims[axis], dim_mul(m->graph->dims, dims[axis], dims[axis + 1]));
        for (int i = axis + 1; i < rank - 1; i++) dims[i] = dims[i + 1];
        return ir_emit_reshape(m->graph, x, rank - 1, dims, y);
    }
    static const int64_t parts[] = {1, 2, 3, 4, 8};
    const int64_t part = DRAW_OF(m, parts);
    if (rank == DW_MAX_RANK || !dim_is_constant(dims[axis], &size) || size % part != 0) return DW_INVALID;
    for (int i = rank; i > axis; i--) dims[i] = dims[i - 1];
    dims[axis] = sized(m, part);
    dims[axis + 1] = sized(m, size / part);
    return ir_emit_reshape(m->graph, x, rank + 1, dims, y);
}

static dw_status make_slice(maker *m, ir_value *x, ir_value **y) {
    const int rank = x->type.rank, axis = draw(m, rank);
    int64_t size;
    if (rank == 0 || !dim_is_constant(x->type.dims[axis], &size) || size == 0) return DW_INVALID;
    const bool half = chance(m, 50) && size % 2 == 0;
    const int64_t start = half ? (chance(m, 50) ? 0 : size / 2) : draw(m, (int)size), end = half ? start + size / 2 : start + 1 + draw(m, (int)(size - start));
    return ir_emit_slice(m->graph, x, axis, sized(m, start), sized(m, end), chance(m, 80) ? 1 : 1 + draw(m, 3), y);
}

dw_status make_view(maker *m) {
    ir_value *x = any_value(m), *y;
    dim dims[DW_MAX_RANK];
    int64_t order[DW_MAX_RANK];
    const int rank = x->type.rank;
    dw_status status;
    switch (draw(m, 5)) {
    case 0: status = make_reshape(m, x, &y); break;
    case 1:
        for (int i = 0; i < rank; i++) {
            const int at = draw(m, i + 1);
            order[i] = order[at];
            order[at] = i;
        }
        status = ir_emit_transpose(m->graph, x, order, &y);
        break;
    case 2: {
        const int more = rank < 4 ? draw(m, 2) : 0;
        for (int i = 0; i < rank; i++) dims[i + more] = dim_is_constant(x->type.dims[i], NULL) && x->type.dims[i] == sized(m, 1) ? sized(m, 1 + draw(m, 4)) : x->type.dims[i];
        if (more > 0) dims[0] = sized(m, 1 + draw(m, 3));
        status = ir_emit_broadcast(m->graph, x, rank + more, dims, &y);
        break;
    }
    default: status = make_slice(m, x, &y);
    }
    if (status == DW_OK) keep(m, y);
    return status;
}

dw_status make_reduction(maker *m) {
    const op_id op = op_with(m, OP_TRAIT_REDUCE);
    return make_any_of(m, op);
}

/* ---- products ---- */

static dim drawn_width(maker *m) {
    static const int64_t widths[] = {1, 2, 4, 4, 7, 8, 8, 16, 16, 16, 17, 31, 32, 32, 33, 48, 64, 97, 128, 130};
    return chance(m, 50) ? m->sizes[2 + draw(m, 2)] : sized(m, DRAW_OF(m, widths));
}

static dw_status emit_product(maker *m, ir_value *a, ir_value *b, bool at, bool bt, ir_value **y) {
    op_attr attrs[2];
    int count = 0;
    if (at) attrs[count++] = op_set_bool(OP_ATTR_at, true);
    if (bt || chance(m, 10)) attrs[count++] = op_set_bool(OP_ATTR_bt, bt);
    return emit(m, OP_matmul, 2, (ir_value *[]){a, b}, count, attrs, y);
}

dw_status make_product(maker *m) {
    ir_value *a = value_of_rank(m, 2), *b, *y;
    if (a == NULL) return DW_INVALID;
    const bool bt = chance(m, 50), at = chance(m, 5);
    const dim k = a->type.dims[a->type.rank - (at ? 2 : 1)], n = drawn_width(m), dims[] = {m->sizes[0], bt ? n : k, bt ? k : n};
    const bool batched = chance(m, 12);
    const op_type type = type_of(chance(m, 85) ? a->type.format : draw_float(m), batched ? 3 : 2, batched ? dims : dims + 1);
    TRY(source(m, "", &type, chance(m, 75), &b));
    return emit_product(m, a, b, at, bt, &y);
}

/* A param that is there, multiplied once more in another way: from its other side, as another's gate, by operands of another format, a part of it. */
dw_status make_product_again(maker *m) {
    ir_graph *graph = m->graph;
    ir_value *w = NULL, *a, *y;
    for (int tries = 0; tries < 10 && (w == NULL || w->type.rank != 2 || !is_number(w->type.format)); tries++) w = graph->param_count > 0 ? graph->params[draw(m, (int)graph->param_count)] : NULL;
    if (w == NULL || w->type.rank != 2 || !is_number(w->type.format)) return DW_INVALID;
    const bool blocks = dw_format_is_block(w->type.format);
    if (!blocks && chance(m, 15)) {
        TRY(make_slice(m, w, &w));
        keep(m, w);
    }
    const bool bt = blocks || chance(m, 50);
    if (!blocks && chance(m, 20)) {
        TRY(emit_transposed(m, w, &w));
    }
    const dim k = w->type.dims[bt ? 1 : 0], dims[] = {m->sizes[0], m->sizes[1], k};
    const bool flat = chance(m, 40);
    const op_type type = type_of(blocks ? draw_float(m) : chance(m, 80) ? w->type.format : draw_float(m), flat ? 2 : 3, flat ? dims + 1 : dims);
    TRY(source(m, "", &type, false, &a));
    if (blocks && chance(m, 70)) {
        static const dw_format formats[] = {DW_FORMAT_mxfp8, DW_FORMAT_fp8_1x128, DW_FORMAT_fp8_row, DW_FORMAT_nvfp4_row, DW_FORMAT_mxfp4, DW_FORMAT_mxfp8_e5m2, DW_FORMAT_mxfp6_e3m2};
        const op_attr to = op_set_format(OP_ATTR_to, DRAW_OF(m, formats));
        TRY(emit(m, OP_quantize, 1, &a, 1, &to, &a));
    }
    return emit_product(m, a, w, false, bt, &y);
}

/* A product with a weight and post steps, as the fusions make it: each step draws its operand. */
dw_status make_post(maker *m) {
    static const char *const steps[] = {
#define OP_POST(name, operand, halves, meaning) #name,
#include "op/post.def"
#undef OP_POST
    };
    ir_value *a = value_of_rank(m, 2), *in[2 + OP_MAX_POST], *y;
    if (a == NULL) return DW_INVALID;
    const bool bt = chance(m, 60);
    const dim k = a->type.dims[a->type.rank - 1];
    dim n = drawn_width(m);
    if (chance(m, 50)) n = sized(m, 32);
    const op_type weight = type_of(a->type.format, 2, (dim[]){bt ? n : k, bt ? k : n});
    in[0] = a;
    TRY(source(m, "", &weight, true, &in[1]));
    int n_in = 2;
    bool halved = false;
    char post[128] = "";
    for (int i = 0, count = 1 + draw(m, 3); i < count; i++) {
        const int step = draw(m, OP_POST_COUNT);
        int64_t size;
        if (op_post_halves((op_post)step)) {
            if (halved || !dim_is_constant(n, &size) || size % 2 != 0) continue;
            halved = true;
            n = sized(m, size / 2);
        }
        if (op_post_operand_of((op_post)step) != OP_POST_NONE) {
            op_type type = type_of(a->type.format, a->type.rank, a->type.dims);
            type.dims[type.rank - 1] = n;
            if (op_post_operand_of((op_post)step) == OP_POST_COLUMN) type = type_of(a->type.format, 1, &n);
            else if (chance(m, 30)) type = broadcastable(m, &type);
            TRY(source(m, "", &type, chance(m, 60), &in[n_in++]));
        }
        snprintf(post + strlen(post), sizeof post - strlen(post), "%s%s", post[0] != '\0' ? "," : "", steps[step]);
    }
    op_attr attrs[] = {op_set_bool(OP_ATTR_bt, bt), op_set_text(OP_ATTR_post, post)};
    return emit(m, OP_matmul, n_in, in, COUNT_OF(attrs), attrs, &y);
}

/* Gate and up: one weight whose product is halved, or two weights, or one weight in a plain and in a gated product. */
dw_status make_gated(maker *m) {
    static const op_id activations[] = {OP_silu, OP_gelu, OP_gelu_tanh, OP_quick_gelu, OP_relu};
    ir_value *a = value_of_rank(m, 2), *w, *gate, *up, *y;
    if (a == NULL) return DW_INVALID;
    const bool bt = chance(m, 60), one = chance(m, 50);
    const dim k = a->type.dims[a->type.rank - 1];
    const int64_t half = 8 * (1 + draw(m, 6));
    const dim n = sized(m, one ? 2 * half : half);
    const op_type type = type_of(a->type.format, 2, (dim[]){bt ? n : k, bt ? k : n});
    TRY(source(m, "", &type, true, &w));
    TRY(emit_product(m, a, w, false, bt, &gate));
    if (one) {
        const int axis = gate->type.rank - 1;
        up = gate;
        TRY(ir_emit_slice(m->graph, up, axis, sized(m, half), sized(m, 2 * half), 1, &up));
        TRY(ir_emit_slice(m->graph, gate, axis, sized(m, 0), sized(m, half), 1, &gate));
    } else {
        TRY(source(m, "", &type, true, &w));
        TRY(emit_product(m, a, w, false, bt, &up));
    }
    TRY(emit_1(m, DRAW_OF(m, activations), gate, &gate));
    return emit_2(m, OP_mul, gate, up, &y);
}

/* Operands in blocks: quantised activations by a weight in the same format, or in another one. */
dw_status make_quantised(maker *m) {
    static const struct { dw_format a, b; } pairs[] = {
        {DW_FORMAT_mxfp8, DW_FORMAT_mxfp8}, {DW_FORMAT_mxfp8, DW_FORMAT_mxfp4}, {DW_FORMAT_fp8_1x128, DW_FORMAT_fp8_128x128}, {DW_FORMAT_fp8_row, DW_FORMAT_fp8_row},
        {DW_FORMAT_fp8_row, DW_FORMAT_fp8_tensor}, {DW_FORMAT_nvfp4_row, DW_FORMAT_nvfp4}, {DW_FORMAT_mxfp4, DW_FORMAT_mxfp4}, {DW_FORMAT_mxfp8_e5m2, DW_FORMAT_mxfp8_e5m2},
        {DW_FORMAT_mxfp6_e3m2, DW_FORMAT_mxfp6_e2m3}, {DW_FORMAT_fp8_1x128, DW_FORMAT_mxfp8}, {DW_FORMAT_bf16, DW_FORMAT_mxfp8}, {DW_FORMAT_f32, DW_FORMAT_mxfp4}, {DW_FORMAT_bf16, DW_FORMAT_nvfp4},
        {DW_FORMAT_f32, DW_FORMAT_fp8_128x128}, {DW_FORMAT_f16, DW_FORMAT_fp8_row}};
    ir_value *x = value_of_rank(m, 2), *w, *y;
    if (x == NULL) return DW_INVALID;
    const int pair = draw(m, (int)COUNT_OF(pairs));
    const op_type type = type_of(pairs[pair].b, 2, (dim[]){drawn_width(m), x->type.dims[x->type.rank - 1]});
    TRY(source(m, "", &type, true, &w));
    if (dw_format_is_block(pairs[pair].a)) {
        op_attr attrs[3] = {op_set_format(OP_ATTR_to, pairs[pair].a)};
        int count = 1;
        if (chance(m, 15)) attrs[count++] = op_set_bool(chance(m, 50) ? OP_ATTR_floor : OP_ATTR_search, true);
        TRY(emit(m, OP_quantize, 1, &x, count, attrs, &x));
        if (chance(m, 10)) {
            const op_attr to = op_set_format(OP_ATTR_to, draw_float(m));
            return emit(m, OP_dequantize, 1, &x, 1, &to, &y);
        }
    } else if (x->type.format != pairs[pair].a) {
        TRY(ir_emit_cast(m->graph, x, pairs[pair].a, &x));
    }
    static const dw_format results[] = {DW_FORMAT_f32, DW_FORMAT_bf16, DW_FORMAT_f16};
    const op_attr attrs[] = {op_set_format(OP_ATTR_to, DRAW_OF(m, results)), op_set_bool(OP_ATTR_bt, true)};
    return emit(m, OP_matmul, 2, (ir_value *[]){x, w}, COUNT_OF(attrs), attrs, &y);
}

/* ---- attention ---- */

static dw_status heads_of(maker *m, dim b, dim s, dim heads, dim width, bool is_weight, ir_value **x) {
    const dw_format format = m->format;
    if (chance(m, 50)) {                      /* as projections leave them */
        const op_type type = type_of(format, 4, (dim[]){b, s, heads, width});
        TRY(source(m, "", &type, is_weight, x));
        TRY(ir_emit_transpose(m->graph, *x, (int64_t[]){0, 2, 1, 3}, x));
        return DW_OK;
    }
    const op_type type = type_of(format, 4, (dim[]){b, heads, s, width});
    return source(m, "", &type, is_weight, x);
}

/* Any shape that broadcasts to the scores'. */
static op_type odd_scores(maker *m, dw_format format, const dim scores[4]) {
    const op_type full = type_of(format, 4, scores);
    op_type type = broadcastable(m, &full);
    type.format = format;
    return type;
}

dw_status make_attention(maker *m) {
    static const int64_t heads[] = {1, 2, 4, 6}, widths[] = {2, 4, 8, 8, 16, 16, 20, 32, 64};
    static const double scales[] = {0.125, 0.25, 0.35, 1};
    const int64_t h = DRAW_OF(m, heads), g = chance(m, 50) ? h : h % 2 == 0 && chance(m, 50) ? h / 2 : 1, d = DRAW_OF(m, widths);
    const dim b = m->sizes[0], s = m->sizes[1], t = chance(m, 60) ? s : sized(m, 1 + draw(m, chance(m, 20) ? 80 : 16)), e = chance(m, 70) ? sized(m, d) : sized(m, DRAW_OF(m, widths));
    ir_value *in[6] = {0}, *y;
    op_attr attrs[8];
    int n_in = 3, count = 0;
    TRY(heads_of(m, b, s, sized(m, h), sized(m, d), false, &in[0]));
    TRY(heads_of(m, b, t, sized(m, g), sized(m, d), false, &in[1]));
    TRY(heads_of(m, b, t, sized(m, g), e, false, &in[2]));
    const dim scores[] = {b, sized(m, h), s, t};
    if (chance(m, 35)) {
        const op_type type = odd_scores(m, DW_FORMAT_bool, scores);
        TRY(source(m, "", &type, false, &in[ATTENTION_MASK]));
        n_in = ATTENTION_MASK + 1;
    }
    if (chance(m, 55)) {
        const op_type type = odd_scores(m, draw_float(m), scores);
        TRY(source(m, chance(m, 85) ? "bias" : "", &type, chance(m, 20), &in[ATTENTION_BIAS]));
        n_in = ATTENTION_BIAS + 1;
    }
    if (chance(m, 10)) {
        const op_type type = type_of(m->format, 1, &scores[1]);
        TRY(source(m, "", &type, true, &in[ATTENTION_SINK]));
        n_in = ATTENTION_SINK + 1;
    }
    attrs[count++] = op_set_real(OP_ATTR_scale, DRAW_OF(m, scales));
    if (chance(m, 40)) attrs[count++] = op_set_bool(OP_ATTR_causal, true);
    if (chance(m, 20)) attrs[count++] = op_set_int(OP_ATTR_window, 1 + draw(m, 12));
    if (chance(m, 10)) attrs[count++] = op_set_int(OP_ATTR_ahead, 1 + draw(m, 12));
    if (chance(m, 20)) attrs[count++] = op_set_dim(OP_ATTR_offset, sized(m, draw(m, 12) - 3));
    if (chance(m, 10)) attrs[count++] = op_set_real(OP_ATTR_softcap, 2);
    if (chance(m, 15)) attrs[count++] = op_set_format(OP_ATTR_to, draw_float(m));
    if (chance(m, 10)) attrs[count++] = op_set_bool(OP_ATTR_joined, true);
    return emit(m, OP_attention, n_in, in, count, attrs, &y);
}

/* ---- tokens into caches ---- */

/* Keys and values of a few tokens into caches, in pages or not, turned on the way or not, and attention that reads the caches; some tokens are of no text. */
dw_status make_cache_spelled(maker *m) {
    static const int64_t heads[] = {1, 2, 4}, widths[] = {4, 8, 16, 20, 32, 64};
    const int64_t g = DRAW_OF(m, heads), h = g * (1 + draw(m, 2)), d = DRAW_OF(m, widths), e = chance(m, 60) ? d : DRAW_OF(m, widths), rows = 1 + draw(m, 3), width = d - d % 4 - (chance(m, 30) ? 2 : 0);
    const dim one = sized(m, 1), s = m->sizes[1], t = sized(m, 1 + draw(m, 40));
    const bool turned = chance(m, 70), turns_queries = turned && chance(m, 75), other_angles = chance(m, 10), paged = chance(m, 40);
    const dim room = paged ? sized(m, 16) : t, held = sized(m, paged ? 4 : rows);
    const op_type of_keys = type_of(m->format, 4, (dim[]){held, sized(m, g), room, sized(m, d)}), of_values = type_of(m->format, 4, (dim[]){held, sized(m, g), room, sized(m, e)});
    const op_type table = type_of(DW_FORMAT_i32, 2, (dim[]){sized(m, rows), sized(m, 4)});
    const op_type places = type_of(DW_FORMAT_i64, 1, &s), angles = type_of(chance(m, 50) ? m->format : DW_FORMAT_f32, 2, (dim[]){s, sized(m, width)});
    ir_value *q, *k, *v, *cache[2], *in[ATTENTION_OPERANDS] = {0}, *angle[4];
    char role[32];
    TRY(heads_of(m, one, s, sized(m, h), sized(m, d), false, &q));
    TRY(heads_of(m, one, s, sized(m, g), sized(m, d), false, &k));
    TRY(heads_of(m, one, s, sized(m, g), sized(m, e), false, &v));
    snprintf(role, sizeof role, "from%sto%lld", chance(m, 20) ? "m1" : "0", (long long)rows - 1);
    TRY(new_source(m, role, &places, false, &in[ATTENTION_ROW]));
    TRY(new_source(m, "from0to60", &places, false, &in[ATTENTION_POSITION]));
    if (paged) TRY(new_source(m, "fromm1to3", &table, false, &in[ATTENTION_TABLE]));
    TRY(new_source(m, "", &of_keys, false, &cache[0]));
    TRY(new_source(m, "", &of_values, false, &cache[1]));
    for (int i = 0; i < 4; i++) {
        angle[i] = i >= 2 ? angle[i - 2] : NULL;
        if (turned && (i < 2 || other_angles)) TRY(source(m, "", &angles, false, &angle[i]));
    }
    const op_attr attrs[] = {op_set_int(OP_ATTR_width, width), op_set_bool(OP_ATTR_interleaved, true)};
    const int attr_count = 1 + chance(m, 30);
    if (turns_queries) TRY(emit(m, OP_rotary, 3, (ir_value *[]){q, angle[0], angle[1]}, attr_count, attrs, &q));
    if (turned) TRY(emit(m, OP_rotary, 3, (ir_value *[]){k, angle[2], angle[3]}, attr_count, attrs, &k));
    const int operands = paged ? CACHE_OPERANDS : CACHE_TABLE, attended = paged ? ATTENTION_OPERANDS : ATTENTION_TABLE;
    TRY(emit(m, OP_cache_write, operands, (ir_value *[]){cache[0], k, in[ATTENTION_ROW], in[ATTENTION_POSITION], in[ATTENTION_TABLE]}, 0, NULL, &in[ATTENTION_K]));
    TRY(emit(m, OP_cache_write, operands, (ir_value *[]){cache[1], v, in[ATTENTION_ROW], in[ATTENTION_POSITION], in[ATTENTION_TABLE]}, 0, NULL, &in[ATTENTION_V]));
    in[ATTENTION_Q] = q;
    const op_attr how[] = {op_set_real(OP_ATTR_scale, 0.25), op_set_bool(OP_ATTR_causal, true)};
    return emit(m, OP_attention, attended, in, COUNT_OF(how), how, &q);
}

/* ---- norms, lookups, padding ---- */

dw_status make_norm(maker *m) {
    ir_value *x = value_of_rank(m, 1), *in[4] = {x}, *y;
    if (x == NULL) return DW_INVALID;
    const bool layer = chance(m, 50);
    const op_type column = type_of(x->type.format, 1, &x->type.dims[x->type.rank - 1]);
    int n_in = 1;
    for (int i = 1; i < (layer ? 3 : 2); i++) {
        if (!chance(m, 70)) continue;
        TRY(source(m, "", &column, chance(m, 90), &in[i]));
        n_in = i + 1;
    }
    const int residual = layer ? 3 : 2;
    if (chance(m, 30)) {
        TRY(source(m, "", &x->type, false, &in[residual]));
        n_in = residual + 1;
    }
    const op_attr attrs[] = {op_set_real(OP_ATTR_eps, 1e-5), op_set_format(OP_ATTR_to, draw_float(m))};
    return emit(m, layer ? OP_layer_norm : OP_rms_norm, n_in, in, 1 + chance(m, 15), attrs, &y);
}

dw_status make_lookup(maker *m) {
    ir_value *x = value_of_rank(m, 1), *index, *y;
    char role[32];
    int64_t size;
    if (x == NULL) return DW_INVALID;
    const int axis = draw(m, x->type.rank);
    if (!dim_is_constant(x->type.dims[axis], &size) || size == 0) return DW_INVALID;
    snprintf(role, sizeof role, "from%sto%d", "0", (int)size - 1);
    const bool gathers = chance(m, 40);
    op_type type = gathers ? x->type : type_of(DW_FORMAT_i64, 1 + draw(m, 2), (dim[]){sized(m, 1 + draw(m, 5)), sized(m, 1 + draw(m, 3))});
    type.format = chance(m, 80) ? DW_FORMAT_i64 : DW_FORMAT_i32;
    if (gathers) type.dims[axis] = sized(m, 1 + draw(m, 4));
    TRY(source(m, role, &type, chance(m, 25), &index));
    const op_attr attr = op_set_int(OP_ATTR_axis, axis);
    return emit(m, gathers ? OP_gather : OP_take, 2, (ir_value *[]){x, index}, 1, &attr, &y);
}

dw_status make_padding(maker *m) {
    ir_value *x = any_value(m), *y;
    dim before[DW_MAX_RANK], after[DW_MAX_RANK];
    static const double values[] = {0, 0, 1, -1};
    if (x->type.rank == 0 || dw_format_is_block(x->type.format)) return DW_INVALID;
    if (chance(m, 50)) {
        const int axis = draw(m, x->type.rank);
        op_type type = x->type;
        ir_value *z;
        type.dims[axis] = chance(m, 50) ? type.dims[axis] : sized(m, draw(m, 5));
        TRY(source(m, "", &type, chance(m, 30), &z));
        const op_attr attr = op_set_int(OP_ATTR_axis, axis);
        return emit(m, OP_concat, 2, (ir_value *[]){x, z}, 1, &attr, &y);
    }
    for (int i = 0; i < x->type.rank; i++) {
        before[i] = sized(m, chance(m, 60) ? 0 : draw(m, 3));
        after[i] = sized(m, chance(m, 60) ? 0 : draw(m, 3));
    }
    const op_attr attrs[] = {op_set_dims(OP_ATTR_before, x->type.rank, before), op_set_dims(OP_ATTR_after, x->type.rank, after), op_set_real(OP_ATTR_value, DRAW_OF(m, values))};
    return emit(m, OP_pad, 1, &x, COUNT_OF(attrs), attrs, &y);
}
