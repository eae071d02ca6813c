/* attention: softmax(q k^T * scale + bias) v for grouped heads, with the masks of attr.def. Scores are never stored: each query makes two passes over
 * its keys, one for the largest score and the sum, one (for each part of the width of v) for the output.
 *
 * A score with a bias is a number of fp32, as it is where masks are added to scores that are stored: beside a large bias a product loses its last bits, and beside one of
 * -1e30 or less all of them. Then the bias is the score, whatever q and k hold, so a row whose keys all have the lowest number of a format is the mean of v, and
 * such keys weigh nothing beside any other. A key whose score is -inf, or that the mask hides, is a key not seen; a row that sees none is 0. A NaN or +inf among the scores of a row, or as
 * its sink, makes the row NaN.
 *
 * With row and position, k and v are caches of several texts, and q [1,h,s,d] has new tokens of any of them: query i reads row[i] of k, v, mask and
 * bias, and stands at position[i]. The key of position p lies at p mod t, so a cache may be a ring; mask and bias count positions. A query of row -1 sees nothing.
 *
 * With table, k and v are pages of t keys each: that of position p of row r lies in page table[r, p / t], slot p mod t. What a page of -1 would hold is not seen.
 *
 * With lse a second result says how much a row of keys weighs, so that results over parts of the keys can be joined.
 *
 * k and v may be in blocks within rows, as caches in few bits are: their numbers are elements times scales. So may q and k, with v beside them in blocks or not: then products of q and k are those of
 * few bits, and the result is in v's format. Beside a q in fp8_1x128 a k may be in fp8_128x128, of which 128 keys have one scale.
 *
 * A result in a block format is what quantize makes of the result in via; joined ones have their heads side by side, as a projection reads them. */
#include "op/family.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 256 };   /* of the width of v, and of q: what is on the stack */

/* ---- inference ---- */

static dw_status check_heads(op_infer *infer, dim heads, dim groups) {
    int64_t h, g;
    if (heads == groups || (dim_is_constant(groups, &g) && g == 1)) return DW_OK;
    if (dim_is_constant(heads, &h) && dim_is_constant(groups, &g) && g > 0 && h % g == 0) return DW_OK;
    if (dim_divide_exact(infer->dims, heads, groups) != NULL) return DW_OK;
    return op_check_same(infer, "the number of heads of q", heads, "that of k, which must divide it,", groups);
}

/* A number for each query. */
static dw_status check_tokens(op_infer *infer, const char *name, const op_type *type) {
    TRY(op_check_rank(infer, name, type, 1, 1));
    TRY(op_check_integer(infer, name, type));
    return op_check_same(infer, "s of q", infer->in[ATTENTION_Q]->dims[2], name, type->dims[0]);
}

static const op_type *type_of(const op_infer *infer, int operand) { return operand < infer->n_in ? infer->in[operand] : NULL; }

/* Rows are those of the table then, and keys what its pages hold. */
static dw_status check_table(op_infer *infer, dim scores[4]) {
    const op_type *table = type_of(infer, ATTENTION_TABLE), *k = infer->in[ATTENTION_K];
    if (table == NULL) return DW_OK;
    TRY(op_check_rank(infer, "table", table, 2, 2));
    TRY(op_check_integer(infer, "table", table));
    scores[0] = table->dims[0];
    TRY_DIM(infer->context, scores[3], dim_mul(infer->dims, table->dims[1], k->dims[2]));
    return DW_OK;
}

/* The batch of the keys and how many there are for mask and bias: with positions as many as those have. */
static dw_status check_places(op_infer *infer, dim scores[4]) {
    const op_type *q = infer->in[ATTENTION_Q], *row = type_of(infer, ATTENTION_ROW), *position = type_of(infer, ATTENTION_POSITION);
    int64_t rows;
    TRY(check_table(infer, scores));
    if (row != NULL) {
        TRY(check_tokens(infer, "row", row));
        if (!dim_is_constant(q->dims[0], &rows) || rows != 1)
            return base_fail(infer->context, DW_MISMATCH, "attention: with row, b of q must be 1: the tokens of all rows lie along s");
    } else {
        TRY(op_check_same(infer, "b of q", q->dims[0], type_of(infer, ATTENTION_TABLE) != NULL ? "rows of table" : "b of k", scores[0]));
    }
    if (position == NULL) return DW_OK;
    TRY(check_tokens(infer, "position", position));
    if (!op_attr_bool(infer->attrs, OP_ATTR_causal) || op_attrs_get(infer->attrs, OP_ATTR_offset) != NULL)
        return base_fail(infer->context, DW_INVALID, "attention: position goes with causal=true and without offset");
    for (int i = ATTENTION_MASK; i <= ATTENTION_BIAS; i++) {
        const op_type *type = infer->in[i];
        if (type != NULL && type->rank > 0) scores[3] = type->dims[type->rank - 1];
    }
    return DW_OK;
}

/* Of each row, [b,h,s]. */
static dw_status infer_lse(op_infer *infer, bool in_blocks) {
    if (!op_attr_bool(infer->attrs, OP_ATTR_lse)) return DW_OK;
    if (in_blocks) return base_fail(infer->context, DW_INVALID, "attention: lse goes with a result that is not in blocks; quantize the plain result");
    infer->out[1] = *infer->in[ATTENTION_Q];
    infer->out[1].format = DW_FORMAT_f32;
    infer->out[1].rank = 3;
    return DW_OK;
}

static dw_status infer_result(op_infer *infer) {
    const op_type *q = infer->in[ATTENTION_Q], *v = infer->in[ATTENTION_V];
    op_type *out = infer->out;
    const dw_format to = op_attr_format(infer->attrs, OP_ATTR_to);
    bool in_blocks;
    TRY(op_check_via(infer, &in_blocks));
    if (to != DW_FORMAT_COUNT && !in_blocks) TRY(op_check_to(infer, to));
    *out = *q;
    out->format = to != DW_FORMAT_COUNT ? to : op_is_block(q->format) ? v->format : q->format;
    out->scale_layout = DW_SCALE_plain;
    out->dims[3] = v->dims[3];
    if (op_attr_bool(infer->attrs, OP_ATTR_joined)) {
        out->rank = 3;
        out->dims[1] = q->dims[2];
        TRY_DIM(infer->context, out->dims[2], dim_mul(infer->dims, q->dims[1], v->dims[3]));
    }
    TRY(infer_lse(infer, in_blocks));
    if (in_blocks) return DW_OK;
    TRY(op_check_number(infer, "the result", out));
    return op_check_float(infer, "the result", out);
}

dw_status attention_infer(op_infer *infer) {
    static const char *const names[] = {"q", "k", "v", "mask", "bias", "sink"};
    const op_type *q = infer->in[ATTENTION_Q], *k = infer->in[ATTENTION_K], *v = infer->in[ATTENTION_V];
    for (int i = 0; i < 3; i++) {
        TRY(op_check_rank(infer, names[i], infer->in[i], 4, 4));
        if (i != ATTENTION_K || q->format != DW_FORMAT_fp8_1x128 || k->format != DW_FORMAT_fp8_128x128) TRY(op_check_cache(infer, names[i], infer->in[i]));
        if (!op_is_block(infer->in[i]->format)) TRY(op_check_float(infer, names[i], infer->in[i]));
    }
    const bool by_blocks = q->format == DW_FORMAT_fp8_1x128 && k->format == DW_FORMAT_fp8_128x128;
    if (op_is_block(q->format) && !by_blocks) TRY(op_check_same_format(infer, "q", q, "k", k));
    if (!op_is_block(q->format) || op_is_block(v->format)) TRY(op_check_same_format(infer, "k", k, "v", v));
    TRY(op_check_same(infer, "b of k", k->dims[0], "b of v", v->dims[0]));
    TRY(op_check_same(infer, "g of k", k->dims[1], "g of v", v->dims[1]));
    TRY(op_check_same(infer, "t of k", k->dims[2], "t of v", v->dims[2]));
    TRY(op_check_same(infer, "d of q", q->dims[3], "d of k", k->dims[3]));
    TRY(check_heads(infer, q->dims[1], k->dims[1]));
    dim scores[] = {k->dims[0], q->dims[1], q->dims[2], k->dims[2]};
    TRY(check_places(infer, scores));
    for (int i = ATTENTION_MASK; i < infer->n_in && i <= ATTENTION_SINK; i++) {
        const op_type *type = infer->in[i];
        if (type == NULL) continue;
        if (i == 3 && type->format != DW_FORMAT_bool)
            return base_fail(infer->context, DW_MISMATCH, "attention: mask is %s, it must be bool; a mask of numbers is a bias", dw_format_name(type->format));
        if (i > 3) TRY(op_check_number(infer, names[i], type));
        if (i > 3) TRY(op_check_float(infer, names[i], type));
        if (i < 5) TRY(op_check_broadcasts_to(infer, i == 3 ? "mask " : "bias ", type, 4, scores));
        if (i == 5) TRY(op_check_rank(infer, names[i], type, 1, 1));
        if (i == 5) TRY(op_check_same(infer, "the number of heads of q", q->dims[1], "the size of sink", type->dims[0]));
    }
    if (op_attr_int(infer->attrs, OP_ATTR_window) < 0 || op_attr_int(infer->attrs, OP_ATTR_ahead) < 0)
        return base_fail(infer->context, DW_INVALID, "attention: window and ahead must be 0 (no limit) or more");
    return infer_result(infer);
}

/* ---- reference ---- */

/* The largest score of the keys and the sink (NaN if any is NaN), and the sum of e^(score - largest), which is scaled down whenever a larger score comes. */
static void measure(const op_attention_query *at, op_attention_span seen, double sink, double *max, double *sum) {
    *max = sink;
    *sum = sink > -INFINITY ? 1 : 0;
    for (int64_t key = seen.begin; key < seen.end && !isnan(*max); key++) {
        double value = op_attention_score(at, key, NULL);
        if (value == -INFINITY) continue;
        if (value > *max || isnan(value)) {
            *sum = *sum * exp(*max - value) + 1;
            *max = value;
        } else {
            *sum += exp(value - *max);
        }
    }
}

/* Columns [first, end) of v, the first of them at out_offset. */
static void attend(const op_attention_query *at, int64_t first, int64_t end, const dw_tensor *out, int64_t out_offset, int64_t out_stride) {
    const dw_tensor *v = at->call->in[ATTENTION_V];
    const op_attention_span seen = at->seen;
    double max, sum, sums[CHUNK], values[CHUNK];
    measure(at, seen, at->sink, &max, &sum);
    for (int64_t begin = first; begin < end; begin += CHUNK) {
        int64_t count = end - begin < CHUNK ? end - begin : CHUNK;
        for (int64_t i = 0; i < count; i++) sums[i] = max < INFINITY ? 0 : NAN;
        for (int64_t key = seen.begin; key < seen.end && isfinite(max); key++) {
            double weight = exp(op_attention_score(at, key, NULL) - max) / sum;
            if (weight == 0) continue;
            op_load_row(v, op_attention_begin(at, v, op_attention_key(at->view, at->row, key)) + begin * op_attention_step(v), op_attention_step(v), count, values);
            for (int64_t i = 0; i < count; i++) sums[i] += weight * values[i];
        }
        for (int64_t i = 0; i < count; i++) op_store_at(out, out_offset + (begin - first + i) * out_stride, sums[i]);
    }
}

static double lse_of(const op_attention_query *at) {
    double max, sum;
    measure(at, at->seen, at->sink, &max, &sum);
    return max < INFINITY ? max + log(sum) : NAN;      /* of no key -inf + -inf */
}

/* Columns of a head for one query, in the format that is quantised. */
typedef struct row_part {
    const op_call *call;
    const op_attention_view *view;
    int64_t line, head, first;           /* first: column of the head; line: -1 before there is any */
    dw_tensor values;                    /* [CHUNK] */
    dw_status status;                    /* of the first query that could not be placed */
} row_part;

static float rounded_at(void *argument, int64_t line, int64_t col) {
    row_part *part = argument;
    const dw_tensor *q = part->call->in[ATTENTION_Q], *v = part->call->in[ATTENTION_V];
    const bool joined = op_attr_bool(part->call->attrs, OP_ATTR_joined);
    const int64_t heads = q->dims[1], queries = q->dims[2], width = v->dims[3], above = line / queries;
    const int64_t head = joined ? col / width : above % heads, column = joined ? col % width : col, first = column / CHUNK * CHUNK;
    if (part->status != DW_OK) return 0;
    if (line != part->line || head != part->head || first != part->first) {
        op_attention_query at;
        part->status = op_attention_query_of(part->call, part->view, joined ? above : above / heads, head, line % queries, &at);
        if (part->status != DW_OK) return 0;
        attend(&at, first, first + CHUNK < width ? first + CHUNK : width, &part->values, 0, 1);
        part->line = line;
        part->head = head;
        part->first = first;
    }
    return (float)op_load_at(&part->values, column - first);
}

static dw_status reference_in_blocks(const op_call *call, const op_attention_view *view) {
    float memory[CHUNK];
    const int64_t dims[] = {CHUNK};
    row_part part = {.call = call, .view = view, .line = -1, .status = DW_OK};
    op_tensor_init(&part.values, op_via(call->attrs), DW_SCALE_plain, 1, dims, memory);
    TRY(op_quantize_elements(call, call->out[0], rounded_at, &part));
    return part.status;
}

dw_status attention_reference(const op_call *call) {
    const dw_tensor *q = call->in[ATTENTION_Q], *v = call->in[ATTENTION_V];
    op_attention_view view;
    TRY(op_attention_view_of(call, &view));
    if (op_is_block(call->out[0]->format)) return reference_in_blocks(call, &view);
    dw_tensor out;
    op_attention_by_heads(call, &out);
    walk w;
    walk_start(&w, 3, q->dims);
    int at_out = walk_add_strides(&w, out.strides);
    for (; w.left > 0; walk_next(&w)) {
        op_attention_query at;
        TRY(op_attention_query_of(call, &view, w.index[0], w.index[1], w.index[2], &at));
        attend(&at, 0, v->dims[3], &out, w.offset[at_out], out.strides[3]);
        if (call->n_out > 1) op_tensor_store(call->out[1], w.index, lse_of(&at));
    }
    return DW_OK;
}

/* Pairs of a query and a key that it sees, of all heads, and the keys that any query sees, of all rows that are read. */
typedef struct sights { double pairs, keys; } sights;

static op_attention_span widen(op_attention_span a, op_attention_span b) {
    if (b.begin >= b.end) return a;
    if (a.begin >= a.end) return b;
    return (op_attention_span){a.begin < b.begin ? a.begin : b.begin, a.end > b.end ? a.end : b.end};
}

/* A mask whose elements are known, and what was counted of it last. */
typedef struct veil { const dw_tensor *mask; const int64_t *strides; bool by_head, by_query; op_attention_span counted; int64_t row, shown; } veil;

static int64_t axis_size(const dw_tensor *x, int from_last) { return from_last <= x->rank ? x->dims[x->rank - from_last] : 1; }

static veil veil_of(const op_call *call, const op_attention_view *view) {
    const dw_tensor *mask = (call->known_in >> ATTENTION_MASK & 1) != 0 ? view->mask : NULL;
    if (mask == NULL) return (veil){0};
    return (veil){mask, view->mask_strides, axis_size(mask, 3) > 1, axis_size(mask, 2) > 1, {0, 0}, -1, 0};
}

/* Keys of the span that the mask shows to the query. */
static int64_t count_shown(veil *v, int64_t row, int64_t head, int64_t query, op_attention_span seen) {
    if (v->mask == NULL) return seen.end - seen.begin;
    if (!v->by_head && !v->by_query && v->row == row && v->counted.begin == seen.begin && v->counted.end == seen.end) return v->shown;
    const int64_t stride = v->strides[3], offset = row * v->strides[0] + head * v->strides[1] + query * v->strides[2];
    v->counted = seen;
    v->row = row;
    v->shown = 0;
    for (int64_t key = seen.begin; key < seen.end; key++) v->shown += op_load_int_at(v->mask, offset + key * stride) != 0;
    return v->shown;
}

static double pairs_of(veil *v, int64_t heads, int64_t row, int64_t query, op_attention_span seen) {
    double pairs = 0;
    if (!v->by_head) return (double)heads * (double)count_shown(v, row, 0, query, seen);
    for (int64_t head = 0; head < heads; head++) pairs += (double)count_shown(v, row, head, query, seen);
    return pairs;
}

/* What hides a key from one query may show it to another: then all of the span are read. */
static double keys_of(veil *v, int64_t row, op_attention_span any) {
    return (double)(v->by_head || v->by_query ? any.end - any.begin : count_shown(v, row, 0, 0, any));
}

enum { CUTS_MOST = 32 };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int compare_cuts(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Queries from which on spans grow in another way, in order, from the first to one behind the last: between two of them beginnings and ends are linear. Returns how many. */
static int cuts_of(const op_attention_view *view, int64_t queries, int64_t cuts[CUTS_MOST]) {
    const int64_t far = (int64_t)1 << 61, t = least(view->slots, far), ahead = least(view->ahead, far), window = least(view->window, far);
    const int64_t turns[] = {-1, t - 1, -ahead, t - ahead, window - 1, t + window - 1};   /* positions where a limit is met or left */
    int count = 0;
    cuts[count++] = 0;
    for (size_t i = 0; i < COUNT_OF(turns); i++)
        for (int64_t at = turns[i] - view->offset - 1; at <= turns[i] - view->offset + 2; at++)
            if (at > 0 && at < queries) cuts[count++] = at;
    cuts[count++] = queries;
    qsort(cuts, (size_t)count, sizeof *cuts, compare_cuts);
    return count;
}

/* Without a mask: the sum over queries in order of the keys that each sees, and all of these. */
static double sum_of_spans(const op_attention_view *view, int64_t queries, op_attention_span *any) {
    int64_t cuts[CUTS_MOST];
    double sum = 0;
    for (int i = 1, count = cuts_of(view, queries, cuts); i < count; i++) {
        if (cuts[i - 1] == cuts[i]) continue;
        const op_attention_span first = op_attention_seen(view, cuts[i - 1]), last = op_attention_seen(view, cuts[i] - 1);
        sum += ((double)(first.end - first.begin) + (double)(last.end - last.begin)) / 2 * (double)(cuts[i] - cuts[i - 1]);
        *any = widen(widen(*any, first), last);
    }
    return sum;
}

/* By the place of each query; positions that are an operand and not known are those of the newest tokens. */
static sights sights_by_place(const op_call *call, op_attention_view view) {
    const dw_tensor *q = call->in[ATTENTION_Q];
    veil v = veil_of(call, &view);
    const int64_t differ = v.mask != NULL ? q->dims[0] : 1;      /* rows that may see different keys */
    sights all = {0, 0};
    if (view.position != NULL) view.offset = view.slots > q->dims[2] ? view.slots - q->dims[2] : 0;
    view.row = view.position = NULL;
    for (int64_t row = 0; row < differ; row++) {
        op_attention_span any = {0, 0};
        if (v.mask == NULL) all.pairs += sum_of_spans(&view, q->dims[2], &any) * (double)q->dims[1] * (double)q->dims[0];
        for (int64_t i = 0; i < q->dims[2] && v.mask != NULL; i++) {
            const op_attention_span seen = op_attention_seen(&view, i);
            all.pairs += pairs_of(&v, q->dims[1], row, i, seen);
            any = widen(any, seen);
        }
        all.keys += keys_of(&v, row, any) * (double)(view.rows / differ);
    }
    return all;
}

/* By the rows and positions of the queries, which are in the memory of the host. */
static sights sights_by_position(const op_call *call, const op_attention_view *view) {
    const dw_tensor *q = call->in[ATTENTION_Q];
    veil v = veil_of(call, view);
    sights all = {0, 0};
    for (int64_t text = 0; text < view->rows; text++) {
        op_attention_span any = {0, 0};
        for (int64_t i = 0; i < q->dims[2]; i++) {
            const int64_t row = op_attention_row(view, 0, i);
            const op_attention_span seen = op_attention_seen(view, i);
            if (op_attention_check(call, view, 0, i) != DW_OK || row != text) continue;
            all.pairs += pairs_of(&v, q->dims[1], row, i, seen);
            any = widen(any, seen);
        }
        const double keys = keys_of(&v, text, any);
        all.keys += keys < (double)view->slots ? keys : (double)view->slots;
    }
    return all;
}

static bool knows_positions(const op_call *call) {
    unsigned wanted = 1u << ATTENTION_POSITION;
    for (int i = ATTENTION_ROW; i <= ATTENTION_TABLE; i++) wanted |= op_operand(call, i) != NULL ? 1u << i : 0;
    return op_operand(call, ATTENTION_POSITION) != NULL && call->in[ATTENTION_Q]->dims[0] == 1 && (call->known_in & wanted) == wanted;
}

/* With rows that are not known nothing is known of who sees which row of a mask. */
static op_call without_mask(const op_call *call) {
    op_call plain = *call;
    plain.known_in &= ~(1u << ATTENTION_MASK);
    return plain;
}

/* 2 (d + e) for each head and each pair of a query and a key that it sees by causal, window and ahead, and by a mask whose elements are known; of another it is what it may show that
 * counts. A causal square is thus s (s + 1) / 2 pairs. Where positions are an operand that is not known, each query sees all that a cache holds of its window. Keys and values that no query
 * sees are not read. The softmax is not counted. */
void attention_work(const op_call *call, op_work *work) {
    const dw_tensor *q = call->in[ATTENTION_Q], *k = call->in[ATTENTION_K], *v = call->in[ATTENTION_V];
    const op_call plain = without_mask(call);
    op_attention_view view;
    if (op_attention_view_of(call, &view) != DW_OK) view.offset = 0;
    const bool is_placed = view.position != NULL || view.row != NULL;
    const sights seen = knows_positions(call) ? sights_by_position(call, &view) : sights_by_place(is_placed ? &plain : call, view);
    const double held = (double)k->dims[0] * (double)k->dims[2], some = held > 0 ? seen.keys / held : 0, part = some < 1 ? some : 1;   /* rows may share pages */
    op_work_each(call, 0, work);
    op_work_reads(call, ATTENTION_K, part * op_tensor_bytes(k), work);
    op_work_reads(call, ATTENTION_V, part * op_tensor_bytes(v), work);
    work->flops = 2.0 * (double)(q->dims[3] + v->dims[3]) * seen.pairs;
}
