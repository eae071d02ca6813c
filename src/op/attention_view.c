/* Who sees what in a call of attention, and where tokens go in caches, from operands and attributes. Reads rows, positions and tables of pages, no keys. */
#include "op/op.h"

#include <string.h>

void op_attention_by_heads(const op_call *call, dw_tensor *out) {
    const int64_t heads = call->in[ATTENTION_Q]->dims[1], width = call->in[ATTENTION_V]->dims[3];
    *out = *call->out[0];
    if (out->rank == 4) return;
    const int64_t strides[] = {out->strides[0], width * out->strides[2], out->strides[1], out->strides[2]}, dims[] = {out->dims[0], heads, out->dims[1], width};
    out->rank = 4;
    memcpy(out->dims, dims, sizeof dims);
    memcpy(out->strides, strides, sizeof strides);
}

/* Within bounds in which sums with it stay in range. */
static dw_status eval_offset(const op_call *call, int64_t *offset) {
    const int64_t far = INT64_C(1) << 60;
    dim given = op_attr_dim(call->attrs, OP_ATTR_offset);
    *offset = 0;
    if (given != NULL) TRY(dim_eval(call->context, given, call->symbols, offset));
    if (*offset > far) *offset = far;
    if (*offset < -far) *offset = -far;
    return DW_OK;
}

static void broadcast(const dw_tensor *x, int64_t strides[4], int64_t *keys) {
    for (int axis = 0; x != NULL && axis < 4; axis++) strides[axis] = op_tensor_step(x, 3 - axis);
    *keys = x == NULL || x->rank == 0 || x->dims[x->rank - 1] == 1 ? 0 : x->dims[x->rank - 1];
}

/* Of a row of the table; out of int64 they are as many as that holds. */
static int64_t slots_of(const dw_tensor *table, int64_t page) {
    int64_t slots;
    return base_mul_i64(table->dims[1], page, &slots) ? slots : INT64_MAX;
}

dw_status op_attention_view_of(const op_call *call, op_attention_view *view) {
    const int64_t heads = call->in[ATTENTION_Q]->dims[1], groups = call->in[ATTENTION_K]->dims[1];
    *view = (op_attention_view){
        .slots = call->in[ATTENTION_K]->dims[2],
        .rows = call->in[ATTENTION_K]->dims[0],
        .causal = op_attr_bool(call->attrs, OP_ATTR_causal),
        .window = op_attr_int(call->attrs, OP_ATTR_window),
        .ahead = op_attr_int(call->attrs, OP_ATTR_ahead),
        .row = op_operand(call, ATTENTION_ROW),
        .position = op_operand(call, ATTENTION_POSITION),
        .mask = op_operand(call, ATTENTION_MASK),
        .bias = op_operand(call, ATTENTION_BIAS),
    };
    view->table = op_operand(call, ATTENTION_TABLE);
    if (view->table != NULL) {
        view->pages = view->rows;
        view->page = view->slots;
        view->rows = view->table->dims[0];
        view->slots = slots_of(view->table, view->page);
    }
    broadcast(view->mask, view->mask_strides, &view->mask_keys);
    broadcast(view->bias, view->bias_strides, &view->bias_keys);
    if (groups < 1 || heads % groups != 0)
        return base_fail(call->context, DW_MISMATCH, "attention: q has %lld heads, k has %lld, which does not divide them", (long long)heads, (long long)groups);
    return eval_offset(call, &view->offset);
}

static int64_t number_at(const dw_tensor *x, int64_t index) {
    if (x->format == DW_FORMAT_i64) return ((const int64_t *)x->data)[index * x->strides[0]];
    return op_tensor_load_int(x, &index);
}

static int64_t entry_of(const dw_tensor *table, int64_t row, int64_t index) {
    if (table->format == DW_FORMAT_i32) return ((const int32_t *)table->data)[row * table->strides[0] + index * table->strides[1]];
    return op_tensor_load_int(table, (int64_t[]){row, index});
}

int64_t op_attention_row(const op_attention_view *view, int64_t batch, int64_t query) { return view->row != NULL ? number_at(view->row, query) : batch; }
int64_t op_attention_position(const op_attention_view *view, int64_t query) { return view->position != NULL ? number_at(view->position, query) : query + view->offset; }

int64_t op_attention_entry(const op_attention_view *view, int64_t row, int64_t index) { return entry_of(view->table, row, index); }

op_attention_span op_attention_seen(const op_attention_view *view, int64_t query) {
    const int64_t position = op_attention_position(view, query);
    op_attention_span seen = {0, view->slots};
    if (view->row != NULL && number_at(view->row, query) == OP_NOWHERE) return (op_attention_span){0, 0};
    if (view->position != NULL) seen.end = position < INT64_MAX ? position + 1 : position;
    if (view->causal && seen.end - 1 > position) seen.end = position + 1;
    if (view->ahead > 0 && seen.end - view->ahead > position) seen.end = position + view->ahead;
    if (view->window > 0 && position >= view->window) seen.begin = position - view->window + 1;
    if (view->position != NULL && seen.end - view->slots > seen.begin) seen.begin = seen.end - view->slots;
    if (seen.end < seen.begin) seen.end = seen.begin;
    return seen;
}

op_cache_slot op_attention_key(const op_attention_view *view, int64_t row, int64_t position) {
    if (view->table == NULL) return (op_cache_slot){row, position % view->slots};
    return (op_cache_slot){entry_of(view->table, row, position / view->page), position % view->page};
}

/* ---- what lies outside ---- */

static dw_status check_pages(const op_call *call, const op_attention_view *view, int64_t row, int64_t query, op_attention_span seen) {
    if (view->position != NULL && seen.end > view->slots)
        return base_fail(call->context, DW_INVALID, "attention: query %lld stands at %lld, table has room for %lld positions: %lld pages of %lld", (long long)query,
                         (long long)op_attention_position(view, query), (long long)view->slots, (long long)view->table->dims[1], (long long)view->page);
    for (int64_t i = seen.begin < seen.end ? seen.begin / view->page : 0; i * view->page < seen.end; i++) {
        const int64_t page = entry_of(view->table, row, i);
        if (page == OP_NOWHERE || (page >= 0 && page < view->pages)) continue;
        return base_fail(call->context, DW_INVALID, "attention: table[%lld,%lld] is %lld, k has %lld pages; -1 stands for none", (long long)row, (long long)i, (long long)page,
                         (long long)view->pages);
    }
    return DW_OK;
}

dw_status op_attention_check(const op_call *call, const op_attention_view *view, int64_t batch, int64_t query) {
    const int64_t keys[] = {view->mask_keys, view->bias_keys}, row = op_attention_row(view, batch, query);
    const op_attention_span seen = op_attention_seen(view, query);
    if (row == OP_NOWHERE && view->row != NULL) return DW_OK;
    if (row < 0 || row >= view->rows)
        return base_fail(call->context, DW_INVALID, "attention: row %lld of query %lld is outside %s, which has %lld; -1 stands for none", (long long)row, (long long)query,
                         view->table != NULL ? "table" : "k", (long long)view->rows);
    for (int i = 0; i < 2 && view->position != NULL; i++) {
        if (keys[i] == 0 || keys[i] >= seen.end) continue;
        return base_fail(call->context, DW_MISMATCH, "attention: query %lld stands at %lld, %s has %lld positions", (long long)query,
                         (long long)op_attention_position(view, query), i == 0 ? "mask" : "bias", (long long)keys[i]);
    }
    return view->table != NULL ? check_pages(call, view, row, query, seen) : DW_OK;
}

/* ---- tokens into caches ---- */

op_cache_places op_cache_places_of(const op_call *call) {
    const bool both = call->op->id == OP_cache_update;
    const dw_tensor *x = call->in[CACHE_X];
    return (op_cache_places){
        .row = call->in[both ? (int)UPDATE_ROW : (int)CACHE_ROW],
        .position = call->in[both ? (int)UPDATE_POSITION : (int)CACHE_POSITION],
        .table = op_operand(call, both ? (int)UPDATE_TABLE : (int)CACHE_TABLE),
        .rows = x->dims[0],
        .slots = x->dims[2],
    };
}

op_cache_slot op_cache_slot_of(const op_cache_places *places, int64_t token) {
    const int64_t row = number_at(places->row, token), position = number_at(places->position, token);
    if (row == OP_NOWHERE) return (op_cache_slot){OP_NOWHERE, 0};
    return (op_cache_slot){places->table != NULL ? entry_of(places->table, row, position / places->slots) : row, position % places->slots};
}

static dw_status check_token(const op_call *call, const op_cache_places *places, int64_t token, int64_t row, int64_t position) {
    const dw_tensor *table = places->table;
    const int64_t rows = table != NULL ? table->dims[0] : places->rows, room = table != NULL ? slots_of(table, places->slots) : INT64_MAX;
    if (row < 0 || row >= rows || position < 0 || position >= room || places->slots == 0)
        return base_fail(call->context, DW_INVALID, "%s: token %lld goes to row %lld, position %lld; the %s has %lld rows of %lld", call->op->name, (long long)token, (long long)row,
                         (long long)position, table != NULL ? "table" : "cache", (long long)rows, (long long)(table != NULL ? room : places->slots));
    const int64_t page = table != NULL ? entry_of(table, row, position / places->slots) : 0;
    if (page == OP_NOWHERE || (page >= 0 && page < places->rows)) return DW_OK;
    return base_fail(call->context, DW_INVALID, "%s: token %lld goes to table[%lld,%lld], which is %lld; the cache has %lld pages, -1 stands for none", call->op->name,
                     (long long)token, (long long)row, (long long)(position / places->slots), (long long)page, (long long)places->rows);
}

dw_status op_cache_check(const op_call *call, const op_cache_places *places) {
    for (int64_t i = 0; i < places->row->dims[0]; i++) {
        const int64_t row = number_at(places->row, i);
        if (row != OP_NOWHERE) TRY(check_token(call, places, i, row, number_at(places->position, i)));
    }
    return DW_OK;
}
