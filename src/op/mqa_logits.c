/* mqa_logits: how much each key counts for each query, by which sparse attention picks the keys that it reads. Many heads of q share the keys:
 *     logits[m,n] = sum over h of weights[m,h] * max(q[m,h,:] . k[n,:] * factor[n] * scale, 0)
 * A key outside of a query's range [start,end) has -inf, as one whose page is not there. Nothing of keys outside of all ranges is read, so they may hold anything. */
#include "op/family.h"

#include <math.h>

enum { KEYS = 32, HEADS = 16, CHUNK = 128 };   /* of a query, what is on the stack */

/* ---- inference ---- */

static const op_type *type_of(const op_infer *infer, int operand) { return operand < infer->n_in ? infer->in[operand] : NULL; }

static dw_status check_factor(op_infer *infer, const char *name, const op_type *type) {
    if (op_is_block(type->format)) return DW_OK;
    TRY(op_check_float(infer, name, type));
    return op_check_element(infer, name, type);
}

/* Numbers of a query, or of a key. */
static dw_status check_numbers(op_infer *infer, const char *name, const op_type *type, int rank) {
    TRY(op_check_rank(infer, name, type, rank, rank));
    TRY(op_check_number(infer, name, type));
    return op_check_float(infer, name, type);
}

static dw_status check_range(op_infer *infer, const char *name, const op_type *type) {
    const op_type *q = infer->in[MQA_Q];
    if (type == NULL) return DW_OK;
    TRY(op_check_rank(infer, name, type, 2, 2));
    TRY(op_check_integer(infer, name, type));
    TRY(op_check_same(infer, "b of q", q->dims[0], name, type->dims[0]));
    return op_check_same(infer, "m of q", q->dims[1], name, type->dims[1]);
}

/* *keys: how many positions a batch has. */
static dw_status check_table(op_infer *infer, dim *keys) {
    const op_type *q = infer->in[MQA_Q], *k = infer->in[MQA_K], *table = type_of(infer, MQA_TABLE);
    *keys = k->dims[1];
    if (table == NULL) return op_check_same(infer, "b of q", q->dims[0], "b of k", k->dims[0]);
    TRY(op_check_rank(infer, "table", table, 2, 2));
    TRY(op_check_integer(infer, "table", table));
    TRY(op_check_same(infer, "b of q", q->dims[0], "rows of table", table->dims[0]));
    TRY_DIM(infer->context, *keys, dim_mul(infer->dims, table->dims[1], k->dims[1]));
    return DW_OK;
}

dw_status mqa_logits_infer(op_infer *infer) {
    const op_type *q = infer->in[MQA_Q], *k = infer->in[MQA_K], *weights = infer->in[MQA_WEIGHTS], *factor = type_of(infer, MQA_FACTOR);
    const dw_format to = op_attr_format(infer->attrs, OP_ATTR_to);
    dim keys;
    TRY(op_check_rank(infer, "q", q, 4, 4));
    TRY(op_check_rank(infer, "k", k, 3, 3));
    TRY(check_factor(infer, "q", q));
    TRY(check_factor(infer, "k", k));
    TRY(op_check_same(infer, "d of q", q->dims[3], "d of k", k->dims[2]));
    TRY(check_numbers(infer, "weights", weights, 3));
    static const char *const axes[] = {"b of q", "m of q", "h of q"};
    for (int i = 0; i < 3; i++) TRY(op_check_same(infer, axes[i], q->dims[i], "that of weights", weights->dims[i]));
    if (factor != NULL) {
        TRY(check_numbers(infer, "factor", factor, 2));
        for (int i = 0; i < 2; i++) TRY(op_check_same_axis(infer, i, "k", k, "factor", factor));
    }
    TRY(check_table(infer, &keys));
    TRY(check_range(infer, "start", type_of(infer, MQA_START)));
    TRY(check_range(infer, "end", type_of(infer, MQA_END)));
    if (to != DW_FORMAT_COUNT) TRY(op_check_to(infer, to));
    op_type *out = infer->out;
    out->format = to != DW_FORMAT_COUNT ? to : q->format == DW_FORMAT_f64 ? DW_FORMAT_f64 : DW_FORMAT_f32;
    TRY(op_check_float(infer, "the result", out));
    TRY(op_add_axis(infer, out, q->dims[0]));
    TRY(op_add_axis(infer, out, q->dims[1]));
    return op_add_axis(infer, out, keys);
}

/* ---- who sees what, for kernels too ---- */

op_mqa_view op_mqa_view_of(const op_call *call) {
    const dw_tensor *k = call->in[MQA_K], *table = op_operand(call, MQA_TABLE);
    const op_attr *scale = op_attrs_get(call->attrs, OP_ATTR_scale);
    return (op_mqa_view){.factor = op_operand(call, MQA_FACTOR), .start = op_operand(call, MQA_START), .end = op_operand(call, MQA_END), .table = table,
                         .scale = scale != NULL ? scale->real : 1, .keys = call->out[0]->dims[2], .page = table != NULL ? k->dims[1] : 0, .pages = table != NULL ? k->dims[0] : 0};
}

static int64_t bound_at(const dw_tensor *x, int64_t batch, int64_t query, int64_t otherwise, int64_t keys) {
    const int64_t value = x == NULL ? otherwise : op_load_int_at(x, batch * x->strides[0] + query * x->strides[1]);
    return value < 0 ? 0 : value > keys ? keys : value;
}

op_attention_span op_mqa_seen(const op_mqa_view *view, int64_t batch, int64_t query) {
    return (op_attention_span){bound_at(view->start, batch, query, 0, view->keys), bound_at(view->end, batch, query, view->keys, view->keys)};
}

op_cache_slot op_mqa_key(const op_mqa_view *view, int64_t batch, int64_t position) {
    if (view->table == NULL) return (op_cache_slot){batch, position};
    const int64_t page = op_load_int_at(view->table, batch * view->table->strides[0] + position / view->page * view->table->strides[1]);
    return (op_cache_slot){page < 0 ? OP_NOWHERE : page, position % view->page};
}

dw_status op_mqa_check(const op_call *call, const op_mqa_view *view, int64_t batch, int64_t query) {
    const op_attention_span seen = op_mqa_seen(view, batch, query);
    if (view->table == NULL) return DW_OK;
    for (int64_t at = seen.begin - (view->page > 0 ? seen.begin % view->page : 0); at < seen.end; at += view->page) {
        const int64_t page = op_load_int_at(view->table, batch * view->table->strides[0] + at / view->page * view->table->strides[1]);
        if (page >= OP_NOWHERE && page < view->pages) continue;
        return base_fail(call->context, DW_INVALID, "mqa_logits: table[%lld,%lld] is %lld, k has %lld pages; -1 stands for none", (long long)batch, (long long)(at / view->page),
                         (long long)page, (long long)view->pages);
    }
    return DW_OK;
}

/* ---- reference ---- */

static double second_of(const op_rows *rows, int64_t row) { return rows->second == NULL ? 1.0 : (double)rows->second[rows->second_per_row ? row : 0]; }

/* One query and some of its keys. */
typedef struct tile {
    const op_call *call;
    const op_mqa_view *view;
    int64_t batch, query, first;
    int count;
    op_cache_slot places[KEYS];
} tile;

/* dots[i][j]: head first + i of the query times key j of the tile, in ascending d. */
static void multiply(const tile *t, int64_t first, int heads, double dots[HEADS][KEYS]) {
    const dw_tensor *q = t->call->in[MQA_Q], *k = t->call->in[MQA_K];
    int64_t q_strides[DW_MAX_RANK], k_strides[DW_MAX_RANK];
    double q_values[HEADS][CHUNK], k_values[KEYS][CHUNK];
    op_strides(q, q_strides);
    op_strides(k, k_strides);
    const op_rows of_q = op_rows_of(q, t->batch * q_strides[0] + t->query * q_strides[1], true), of_k = op_rows_of(k, 0, true);
    for (int i = 0; i < heads; i++)
        for (int j = 0; j < t->count; j++) dots[i][j] = 0;
    for (int64_t begin = 0; begin < q->dims[3]; begin += CHUNK) {
        const int64_t length = q->dims[3] - begin < CHUNK ? q->dims[3] - begin : CHUNK;
        for (int i = 0; i < heads; i++) op_load_row(&of_q.tensor, of_q.offset + (first + i) * of_q.row_stride + begin * of_q.k_stride, of_q.k_stride, length, q_values[i]);
        for (int j = 0; j < t->count; j++)
            if (t->places[j].row >= 0) op_load_row(&of_k.tensor, t->places[j].row * k_strides[0] + t->places[j].slot * k_strides[1] + begin * k_strides[2], k_strides[2], length, k_values[j]);
        for (int i = 0; i < heads; i++)
            for (int j = 0; j < t->count; j++)
                for (int64_t l = 0; l < length && t->places[j].row >= 0; l++) dots[i][j] += q_values[i][l] * k_values[j][l];
    }
    for (int i = 0; i < heads; i++)
        for (int j = 0; j < t->count; j++)
            if (t->places[j].row >= 0) dots[i][j] *= second_of(&of_q, first + i) * second_of(&of_k, t->places[j].row * k->dims[1] + t->places[j].slot);
}

static double positive(double x) { return isnan(x) || x > 0 ? x : 0; }

static void make_tile(const tile *t) {
    const dw_tensor *q = t->call->in[MQA_Q], *weights = t->call->in[MQA_WEIGHTS], *factor = t->view->factor, *out = t->call->out[0];
    double dots[HEADS][KEYS], sums[KEYS] = {0};
    for (int64_t first = 0; first < q->dims[2]; first += HEADS) {
        const int heads = q->dims[2] - first < HEADS ? (int)(q->dims[2] - first) : HEADS;
        multiply(t, first, heads, dots);
        for (int j = 0; j < t->count; j++) {
            const op_cache_slot at = t->places[j];
            const double of_key = t->view->scale * (factor == NULL || at.row < 0 ? 1 : op_load_at(factor, at.row * factor->strides[0] + at.slot * factor->strides[1]));
            for (int i = 0; i < heads; i++)
                sums[j] += positive(dots[i][j] * of_key) * op_load_at(weights, t->batch * weights->strides[0] + t->query * weights->strides[1] + (first + i) * weights->strides[2]);
        }
    }
    for (int j = 0; j < t->count; j++)
        op_store_at(out, t->batch * out->strides[0] + t->query * out->strides[1] + (t->first + j) * out->strides[2], t->places[j].row < 0 ? -INFINITY : sums[j]);
}

dw_status mqa_logits_reference(const op_call *call) {
    const op_mqa_view view = op_mqa_view_of(call);
    const dw_tensor *out = call->out[0];
    for (int64_t batch = 0; batch < out->dims[0]; batch++)
        for (int64_t query = 0; query < out->dims[1]; query++) {
            const op_attention_span seen = op_mqa_seen(&view, batch, query);
            TRY(op_mqa_check(call, &view, batch, query));
            for (int64_t first = 0; first < view.keys; first += KEYS) {
                tile t = {.call = call, .view = &view, .batch = batch, .query = query, .first = first, .count = view.keys - first < KEYS ? (int)(view.keys - first) : KEYS};
                for (int j = 0; j < t.count; j++) {
                    const bool is_seen = first + j >= seen.begin && first + j < seen.end;
                    t.places[j] = is_seen ? op_mqa_key(&view, batch, first + j) : (op_cache_slot){OP_NOWHERE, 0};
                }
                make_tile(&t);
            }
        }
    return DW_OK;
}

/* As if every query saw all keys, where the ranges are not known. */
void mqa_logits_work(const op_call *call, op_work *work) {
    const dw_tensor *q = call->in[MQA_Q];
    const op_mqa_view view = op_mqa_view_of(call);
    const unsigned ranges = (view.start != NULL ? 1u << MQA_START : 0) | (view.end != NULL ? 1u << MQA_END : 0);
    double pairs = (double)q->dims[0] * (double)q->dims[1] * (double)view.keys;
    if (ranges != 0 && (call->known_in & ranges) == ranges) {
        pairs = 0;
        for (int64_t batch = 0; batch < q->dims[0]; batch++)
            for (int64_t query = 0; query < q->dims[1]; query++) {
                const op_attention_span seen = op_mqa_seen(&view, batch, query);
                pairs += seen.end > seen.begin ? (double)(seen.end - seen.begin) : 0;
            }
    }
    op_work_each(call, 0, work);
    work->flops = 2 * pairs * (double)q->dims[2] * (double)q->dims[3];
}
