/* Rules of products: linear layers, matrix products in all ranks, einsum, grouped products, attention. */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "capture/program.h"

/* Products are floating-point here: integers are multiplied in f64, which is exact below 2^53. */
static dw_format product_format(const capture_call *call, dw_format fallback) {
    dw_format format = capture_result_format(call, 0, fallback);
    return capture_is_float(format) ? format : DW_FORMAT_f64;
}

/* Two arguments in the format of the product. */
static dw_status read_factors(capture_call *call, const char *a, const char *b, ir_value **x, ir_value **y) {
    TRY(capture_value_arg(call, a, x));
    TRY(capture_value_arg(call, b, y));
    dw_format format = product_format(call, (*x)->type.format);
    TRY(ir_emit_cast(call->graph, *x, format, x));
    return ir_emit_cast(call->graph, *y, format, y);
}

/* torch.matmul: an operand of one axis is a row on the left, a column on the right, and its axis vanishes from the result. */
static dw_status matmul(ir_graph *graph, ir_value *a, ir_value *b, ir_value **result) {
    bool row = a->type.rank == 1, column = b->type.rank == 1;
    if (row) TRY(capture_emit_unsqueeze(graph, a, 0, &a));
    if (column) TRY(capture_emit_unsqueeze(graph, b, 1, &b));
    TRY(capture_emit_matmul(graph, a, b, NULL, result));
    if (column) TRY(capture_emit_squeeze(graph, *result, (*result)->type.rank - 1, result));
    if (row) TRY(capture_emit_squeeze(graph, *result, (*result)->type.rank - (column ? 1 : 2), result));
    return DW_OK;
}

dw_status capture_rule_matmul(capture_call *call) {
    ir_value *a, *b;
    TRY(read_factors(call, call->arg_names[0], call->arg_names[1], &a, &b));
    if (a->type.rank == 0 || b->type.rank == 0) return capture_fail(call, DW_CORRUPT, "a product of scalars");
    TRY(matmul(call->graph, a, b, &a));
    return capture_result(call, 0, a);
}

dw_status capture_rule_outer(capture_call *call) {
    ir_value *a, *b;
    TRY(read_factors(call, "self", "vec2", &a, &b));
    TRY(capture_emit_unsqueeze(call->graph, a, 1, &a));
    TRY(ir_emit_2(call->graph, OP_mul, a, b, &a));
    return capture_result(call, 0, a);
}

/* weight is stored [n,k]: the product transposes it */
dw_status capture_rule_linear(capture_call *call) {
    ir_value *x, *weight, *bias;
    TRY(read_factors(call, "input", "weight", &x, &weight));
    TRY(capture_optional_arg(call, "bias", &bias));
    if (weight->type.rank != 2) return capture_fail(call, DW_UNSUPPORTED, "a weight with %d axes; 2 are supported", weight->type.rank);
    if (bias != NULL) TRY(ir_emit_cast(call->graph, bias, x->type.format, &bias));
    bool row = x->type.rank == 1;
    if (row) TRY(capture_emit_unsqueeze(call->graph, x, 0, &x));
    op_attr attrs[] = {op_set_bool(OP_ATTR_bt, true), op_set_text(OP_ATTR_post, "bias")};
    TRY(ir_emit(call->graph, OP_matmul, bias != NULL ? 3 : 2, (ir_value *[]){x, weight, bias}, bias != NULL ? 2 : 1, attrs, &x));
    if (row) TRY(capture_emit_squeeze(call->graph, x, 0, &x));
    return capture_result(call, 0, x);
}

/* beta * self + alpha * (a b) */
dw_status capture_rule_addmm(capture_call *call) {
    ir_value *self, *a, *b;
    double alpha, beta;
    TRY(read_factors(call, call->arg_names[1], call->arg_names[2], &a, &b));
    TRY(capture_operand_arg(call, "self", a->type.format, &self));
    TRY(capture_real_arg(call, "alpha", &alpha));
    TRY(capture_real_arg(call, "beta", &beta));
    if (b->type.rank < 2 || a->type.rank < 2) return capture_fail(call, DW_UNSUPPORTED, "operands with fewer than 2 axes");
    bool is_column = self->type.rank == 1 && self->type.dims[0] == b->type.dims[b->type.rank - 1];
    if (is_column && alpha == 1 && beta == 1) {
        TRY(capture_emit_matmul(call->graph, a, b, self, &a));
        return capture_result(call, 0, a);
    }
    TRY(capture_emit_matmul(call->graph, a, b, NULL, &a));
    if (alpha != 1) TRY(capture_emit_number(call->graph, OP_mul, a, alpha, &a));
    if (beta != 0 && beta != 1) TRY(capture_emit_number(call->graph, OP_mul, self, beta, &self));
    if (beta != 0) TRY(ir_emit_2(call->graph, OP_add, self, a, &a));
    return capture_result(call, 0, a);
}

/* ---- einsum ---- */

enum { LETTERS = 16 };   /* of one operand or result; more than any rank */

/* A tensor whose axes have names. Axes of an ellipsis are '0', '1', .., counted from its right. */
typedef struct term { ir_value *value; int count; char letters[LETTERS + 1]; } term;

static int find_letter(const term *t, char letter) {
    for (int i = 0; i < t->count; i++) {
        if (t->letters[i] == letter) return i;
    }
    return -1;
}

/* One operand's letters from *at, which moves to the ',' or '-' or end behind them. rank -1: of the result, whose ellipsis has the given width. */
static dw_status read_letters(capture_call *call, const char **at, int rank, int *ellipsis, term *t) {
    int named = 0;
    for (const char *c = *at; *c != '\0' && *c != ',' && *c != '-'; c++) named += isalpha((unsigned char)*c) != 0;
    t->count = 0;
    while (**at != '\0' && **at != ',' && **at != '-') {
        char c = *(*at)++;
        if (c == ' ') continue;
        if (strncmp(*at - 1, "...", 3) == 0) {
            int width = rank >= 0 ? rank - named : *ellipsis;
            if (width > *ellipsis) *ellipsis = width;
            for (int i = width; i-- > 0 && t->count < LETTERS;) t->letters[t->count++] = (char)('0' + i);
            *at += 2;
        } else if (isalpha((unsigned char)c) && t->count < LETTERS && find_letter(t, c) < 0) {
            t->letters[t->count++] = c;
        } else {
            return capture_fail(call, DW_UNSUPPORTED, "the equation repeats a letter within one operand, or has another sign than letters");
        }
    }
    t->letters[t->count] = '\0';
    return rank < 0 || t->count == rank ? DW_OK : capture_fail(call, DW_CORRUPT, "an operand has %d axes, the equation names %d", rank, t->count);
}

/* t with its axes in the order of letters; each of them is in t. */
static dw_status arrange(ir_graph *graph, term *t, const char *letters) {
    int64_t order[DW_MAX_RANK];
    bool moves = false;
    int count = (int)strlen(letters);
    for (int i = 0; i < count; i++) {
        order[i] = find_letter(t, letters[i]);
        moves = moves || order[i] != i;
    }
    if (moves) TRY(ir_emit_transpose(graph, t->value, order, &t->value));
    memcpy(t->letters, letters, (size_t)count + 1);
    return DW_OK;
}

/* Axes that occur in no other place are summed away. */
static dw_status sum_unneeded(ir_graph *graph, term *t, const char *needed) {
    int64_t axes[DW_MAX_RANK];
    int count = 0, left = 0;
    char letters[LETTERS + 1];
    for (int i = 0; i < t->count; i++) {
        if (strchr(needed, t->letters[i]) == NULL) axes[count++] = i;
        else letters[left++] = t->letters[i];
    }
    if (count == 0) return DW_OK;
    TRY(capture_emit_reduce(graph, OP_sum, t->value, count, axes, false, &t->value));
    memcpy(t->letters, letters, (size_t)left);
    t->letters[t->count = left] = '\0';
    return DW_OK;
}

/* Axes first to last of value as one. */
static dw_status merge_axes(ir_graph *graph, ir_value *value, int first, int count, ir_value **result) {
    dim dims[DW_MAX_RANK + 1];
    int rank = 0;
    if (value->type.rank - count + 1 > DW_MAX_RANK) return base_fail(graph->context, DW_UNSUPPORTED, "a product with more than %d axes", DW_MAX_RANK);
    for (int i = 0; i < first; i++) dims[rank++] = value->type.dims[i];
    TRY_DIM(graph->context, dims[rank], dim_product(graph->dims, value->type.dims + first, count));
    rank++;
    for (int i = first + count; i < value->type.rank; i++) dims[rank++] = value->type.dims[i];
    return ir_emit_reshape(graph, value, rank, dims, result);
}

/* Letters of a pair by where they occur: in both and later (batch), in both only (summed), in one. */
typedef struct pair { char batch[LETTERS + 1], summed[LETTERS + 1], left[LETTERS + 1], right[LETTERS + 1]; } pair;

static void append(char *letters, char letter) {
    size_t length = strlen(letters);
    letters[length] = letter;
    letters[length + 1] = '\0';
}

static pair sort_letters(const term *a, const term *b, const char *needed) {
    pair p = {.batch = ""};
    for (int i = 0; i < a->count; i++) {
        bool both = find_letter(b, a->letters[i]) >= 0;
        append(!both ? p.left : strchr(needed, a->letters[i]) != NULL ? p.batch : p.summed, a->letters[i]);
    }
    for (int i = 0; i < b->count; i++) {
        if (find_letter(a, b->letters[i]) < 0) append(p.right, b->letters[i]);
    }
    return p;
}

/* a becomes the product [batch.., left.., right..] of a and b. */
static dw_status multiply(capture_call *call, term *a, term *b, const char *needed) {
    ir_graph *graph = call->graph;
    pair p = sort_letters(a, b, needed);
    char order_a[3 * LETTERS + 1], order_b[3 * LETTERS + 1], order[3 * LETTERS + 1];
    int batch = (int)strlen(p.batch), left = (int)strlen(p.left), right = (int)strlen(p.right), summed = (int)strlen(p.summed), rank = 0;
    dim dims[3 * LETTERS];
    if (batch + left + right > DW_MAX_RANK) return capture_fail(call, DW_UNSUPPORTED, "a product with more than %d axes", DW_MAX_RANK);
    strcat(strcat(strcpy(order_a, p.batch), p.left), p.summed);
    strcat(strcat(strcpy(order_b, p.batch), p.right), p.summed);
    strcat(strcat(strcpy(order, p.batch), p.left), p.right);
    TRY(arrange(graph, a, order_a));
    TRY(arrange(graph, b, order_b));
    for (int i = 0; i < batch + left; i++) dims[rank++] = a->value->type.dims[i];
    for (int i = 0; i < right; i++) dims[rank++] = b->value->type.dims[batch + i];
    for (int i = 0; i < batch; i++) {
        if (capture_dim_is(dims[i], 1)) dims[i] = b->value->type.dims[i];
    }
    TRY(merge_axes(graph, a->value, batch + left, summed, &a->value));
    TRY(merge_axes(graph, a->value, batch, left, &a->value));
    TRY(merge_axes(graph, b->value, batch + right, summed, &b->value));
    TRY(merge_axes(graph, b->value, batch, right, &b->value));
    op_attr attr = op_set_bool(OP_ATTR_bt, true);
    TRY(ir_emit(graph, OP_matmul, 2, (ir_value *[]){a->value, b->value}, 1, &attr, &a->value));
    TRY(ir_emit_reshape(graph, a->value, rank, dims, &a->value));
    a->count = rank;
    memcpy(a->letters, order, (size_t)rank + 1);
    return DW_OK;
}

/* Without "->": the letters that occur once, in alphabetic order, behind the ellipsis. */
static void implied_result(const term *terms, int count, int ellipsis, term *result) {
    result->count = 0;
    for (int i = ellipsis; i-- > 0;) result->letters[result->count++] = (char)('0' + i);
    for (int c = 'A'; c <= 'z' && result->count < LETTERS; c++) {
        int seen = 0;
        for (int i = 0; i < count; i++) seen += find_letter(&terms[i], (char)c) >= 0;
        if (seen == 1) result->letters[result->count++] = (char)c;
    }
    result->letters[result->count] = '\0';
}

enum { TERMS_MAX = 8 };

dw_status capture_rule_einsum(capture_call *call) {
    const char *at;
    capture_tensor *const *tensors;
    term terms[TERMS_MAX], result = {.count = 0};
    int count, ellipsis = 0;
    TRY(capture_text_arg(call, "equation", &at));
    TRY(capture_tensors_arg(call, "tensors", &count, &tensors));
    if (count < 1 || count > TERMS_MAX) return capture_fail(call, DW_UNSUPPORTED, "%d operands", count);
    dw_format format = product_format(call, tensors[0]->type.format);
    for (int i = 0; i < count; i++) {
        TRY(capture_read(call->capture, tensors[i], &terms[i].value));
        TRY(ir_emit_cast(call->graph, terms[i].value, format, &terms[i].value));
        TRY(read_letters(call, &at, terms[i].value->type.rank, &ellipsis, &terms[i]));
        if (i + 1 < count && *at++ != ',') return capture_fail(call, DW_CORRUPT, "the equation has fewer operands than are given");
    }
    if (strncmp(at, "->", 2) == 0) {
        at += 2;
        TRY(read_letters(call, &at, -1, &ellipsis, &result));
    } else {
        implied_result(terms, count, ellipsis, &result);
    }
    for (int i = 0; i < count; i++) {
        char needed[(TERMS_MAX + 1) * LETTERS + 1];
        strcpy(needed, result.letters);
        for (int k = i + 1; k < count; k++) strcat(needed, terms[k].letters);
        if (i > 0) TRY(multiply(call, &terms[0], &terms[i], needed));
        TRY(sum_unneeded(call->graph, &terms[0], needed));
        for (int k = i + 1; k < count; k++) {
            char others[(TERMS_MAX + 1) * LETTERS + 1];
            strcpy(others, result.letters);
            for (int m = 0; m < count; m++) {
                if (m != k && (m == 0 || m > i)) strcat(others, terms[m].letters);
            }
            TRY(sum_unneeded(call->graph, &terms[k], others));
        }
    }
    for (int i = 0; i < result.count; i++) {
        if (find_letter(&terms[0], result.letters[i]) < 0) return capture_fail(call, DW_CORRUPT, "the result has an axis that no operand has");
    }
    if (terms[0].count != result.count) return capture_fail(call, DW_CORRUPT, "the equation does not give its result");
    TRY(arrange(call->graph, &terms[0], result.letters));
    return capture_result(call, 0, terms[0].value);
}

/* ---- grouped products ---- */

/* a [t,k] in rows of groups, b [g,k,n], the ends of the groups */
dw_status capture_rule_grouped_matmul(capture_call *call) {
    ir_value *a, *b, *offsets, *bias = NULL;
    TRY(read_factors(call, call->arg_names[0], call->arg_names[1], &a, &b));
    TRY(capture_value_arg(call, "offs", &offsets));
    if (capture_has(call, "bias")) TRY(capture_value_arg(call, "bias", &bias));
    if (a->type.rank != 2 || b->type.rank != 3 || bias != NULL) return capture_fail(call, DW_UNSUPPORTED, "a grouped product other than [t,k] by [g,k,n] without bias");
    TRY(ir_emit_cast(call->graph, offsets, DW_FORMAT_i32, &offsets));
    ir_value *stored = capture_untransposed(b);
    op_attr attr = op_set_bool(OP_ATTR_bt, true);
    TRY(ir_emit(call->graph, OP_grouped_matmul, 3, (ir_value *[]){a, stored != NULL ? stored : b, offsets}, stored != NULL ? 1 : 0, &attr, &a));
    return capture_result(call, 0, a);
}

/* ---- attention ---- */

/* x [..,m,n] as [batch,heads,m,n]: fewer axes get ones in front, more are merged into the batch. */
static dw_status to_heads(ir_graph *graph, ir_value *x, ir_value **result) {
    dim one;
    TRY_DIM(graph->context, one, dim_constant(graph->dims, 1));
    if (x->type.rank > 4) return merge_axes(graph, x, 0, x->type.rank - 3, result);
    dim dims[4] = {one, one, one, one};
    for (int i = 0; i < x->type.rank; i++) dims[4 - x->type.rank + i] = x->type.dims[i];
    return ir_emit_reshape(graph, x, 4, dims, result);
}

/* x with q's leading axes, the heads (the last of them) left as they are. */
static dw_status match_batch(ir_graph *graph, const ir_value *q, ir_value *x, ir_value **result) {
    op_type type = x->type;
    bool same = true;
    *result = x;
    if (q->type.rank != x->type.rank) return DW_OK;
    for (int i = 0; i < q->type.rank - 3; i++) {
        same = same && type.dims[i] == q->type.dims[i];
        type.dims[i] = q->type.dims[i];
    }
    return same ? DW_OK : ir_emit_broadcast(graph, x, type.rank, type.dims, result);
}

/* A mask broadcastable to [..,s,t] as one broadcastable to [batch,heads,s,t]. */
static dw_status mask_to_heads(ir_graph *graph, const ir_value *q, ir_value *mask, ir_value **result) {
    int rank = q->type.rank;
    dim dims[DW_MAX_RANK], one;
    if (rank <= 4 || mask->type.rank <= 3) return *result = mask, DW_OK;
    TRY_DIM(graph->context, one, dim_constant(graph->dims, 1));
    int own = rank - mask->type.rank;
    for (int i = 0; i < rank; i++) {
        dim d = i < own ? one : mask->type.dims[i - own];
        dims[i] = i < rank - 3 ? q->type.dims[i] : d;
    }
    TRY(ir_emit_broadcast(graph, mask, rank, dims, &mask));
    return to_heads(graph, mask, result);
}

static dw_status read_scale(capture_call *call, const ir_value *q, double *scale) {
    int64_t width;
    if (capture_has(call, "scale")) return capture_real_arg(call, "scale", scale);
    if (!dim_is_constant(q->type.dims[q->type.rank - 1], &width) || width < 1) return capture_fail(call, DW_UNSUPPORTED, "a head width that is not a constant");
    *scale = 1 / sqrt((double)width);
    return DW_OK;
}

/* q [..,s,d], k [..,t,d], v [..,t,e] in the result's format. */
static dw_status read_heads(capture_call *call, ir_value *in[3], op_type *result) {
    static const char *const names[] = {"query", "key", "value"};
    for (int i = 0; i < 3; i++) {
        TRY(capture_value_arg(call, names[i], &in[i]));
        if (in[i]->type.rank < 2) return capture_fail(call, DW_CORRUPT, "'%s' has fewer than 2 axes", names[i]);
        TRY(ir_emit_cast(call->graph, in[i], product_format(call, in[0]->type.format), &in[i]));
        if (i > 0) TRY(match_batch(call->graph, in[0], in[i], &in[i]));
    }
    *result = in[0]->type;
    result->dims[result->rank - 1] = in[2]->type.dims[in[2]->type.rank - 1];
    return DW_OK;
}

/* k or v [b,g,t,d] as q has heads. */
static dw_status repeat_heads(ir_graph *graph, const ir_value *q, ir_value *x, ir_value **result) {
    dim dims[5] = {x->type.dims[0], x->type.dims[1], NULL, x->type.dims[2], x->type.dims[3]}, whole[4] = {x->type.dims[0], q->type.dims[1], x->type.dims[2], x->type.dims[3]};
    *result = x;
    if (q->type.dims[1] == x->type.dims[1]) return DW_OK;
    TRY_DIM(graph->context, dims[2], dim_constant(graph->dims, 1));
    TRY(ir_emit_reshape(graph, x, 5, dims, result));
    TRY_DIM(graph->context, dims[2], dim_floordiv(graph->dims, q->type.dims[1], x->type.dims[1]));
    TRY(ir_emit_broadcast(graph, *result, 5, dims, result));
    return ir_emit_reshape(graph, *result, 4, whole, result);
}

/* Scores that are not seen are -inf: a row that sees nothing gives zeros. */
static dw_status hide(ir_graph *graph, ir_value *mask, ir_value *scores, ir_value **result) {
    ir_value *none;
    TRY(ir_emit_scalar(graph, scores->type.format, -INFINITY, &none));
    return ir_emit(graph, OP_where, 3, (ir_value *[]){mask, scores, none}, 0, NULL, result);
}

/* In training weights are dropped, so attention is spelled out: in is q, k, v, mask, bias. */
static dw_status emit_dropping(capture_call *call, ir_value *const in[5], double scale, bool causal, double p, ir_value **result) {
    ir_graph *graph = call->graph;
    const dw_format format = in[0]->type.format, wide = dw_format_bits(format) < 32 ? DW_FORMAT_f32 : format;
    const op_attr product[] = {op_set_bool(OP_ATTR_bt, true), op_set_format(OP_ATTR_to, wide)}, last = op_set_int(OP_ATTR_axis, 3);
    ir_value *k, *v, *scores, *query, *key;
    TRY(repeat_heads(graph, in[0], in[1], &k));
    TRY(repeat_heads(graph, in[0], in[2], &v));
    TRY(ir_emit(graph, OP_matmul, 2, (ir_value *[]){in[0], k}, COUNT_OF(product), product, &scores));
    TRY(capture_emit_number(graph, OP_mul, scores, scale, &scores));
    if (in[4] != NULL) {
        TRY(ir_emit_cast(graph, in[4], wide, &key));
        TRY(ir_emit_2(graph, OP_add, scores, key, &scores));
    }
    if (in[3] != NULL) TRY(hide(graph, in[3], scores, &scores));
    if (causal) {
        TRY(capture_emit_index(graph, 4, 2, in[0]->type.dims[2], DW_FORMAT_i64, &query));
        TRY(capture_emit_index(graph, 4, 3, k->type.dims[2], DW_FORMAT_i64, &key));
        TRY(ir_emit_2(graph, OP_ge, query, key, &key));
        TRY(hide(graph, key, scores, &scores));
    }
    TRY(ir_emit(graph, OP_softmax, 1, (ir_value *[]){scores}, 1, &last, &scores));
    TRY(capture_emit_dropout(call, scores, p, &scores));
    TRY(ir_emit_cast(graph, scores, format, &scores));
    return ir_emit_2(graph, OP_matmul, scores, v, result);
}

dw_status capture_rule_attention(capture_call *call) {
    ir_value *in[5] = {NULL}, *mask, *out;
    op_type result;
    double dropout, scale;
    bool causal;
    TRY(read_heads(call, in, &result));
    TRY(capture_real_arg(call, "dropout_p", &dropout));
    TRY(capture_bool_arg(call, "is_causal", &causal));
    TRY(read_scale(call, in[0], &scale));
    if (capture_has(call, "dropout_mask")) return capture_fail(call, DW_UNSUPPORTED, "a mask of what attention drops; call .eval() before torch.export.export");
    TRY(capture_optional_arg(call, capture_find_arg(call, "attn_bias") != NULL ? "attn_bias" : "attn_mask", &mask));
    if (mask != NULL) TRY(mask_to_heads(call->graph, in[0], mask, &in[mask->type.format == DW_FORMAT_bool ? 3 : 4]));
    for (int i = 0; i < 3; i++) TRY(to_heads(call->graph, in[i], &in[i]));
    op_attr attrs[] = {op_set_real(OP_ATTR_scale, scale), op_set_bool(OP_ATTR_causal, true)};
    if (dropout != 0) TRY(emit_dropping(call, in, scale, causal, dropout, &out));
    else TRY(ir_emit(call->graph, OP_attention, in[4] != NULL ? 5 : in[3] != NULL ? 4 : 3, in, causal ? 2 : 1, attrs, &out));
    TRY(ir_emit_reshape(call->graph, out, result.rank, result.dims, &out));
    return capture_result(call, 0, out);
}
