/* cache_write: the keys or values of new tokens, of any rows, into a cache of several rows. A cache shorter than its text is a ring: a new
 * token takes the place of the one t before it. With a table the cache is pages of t slots, and the token of position p of row r goes into page table[r, p / t], slot
 * p mod t. A token of row -1, or of a page -1, is written nowhere. cache_update: both at once, and the rotation that goes before.
 *
 * A cache in blocks within rows holds what quantize makes of a token's row of a head, by the plain rule for scales. The second level of nvfp4 is the cache's, or 1 where that is 0, as in a cache
 * that nothing has been written into. */
#include "op/family.h"

#include <string.h>

enum { PIECE = 256 };         /* columns that are quantised at a time: a multiple of all blocks */

/* ---- inference ---- */

/* One cache and what is written into it. */
static dw_status check_pair(op_infer *infer, const char *x_name, const op_type *x, const char *y_name, const op_type *y) {
    int64_t rows;
    TRY(op_check_rank(infer, x_name, x, 4, 4));
    TRY(op_check_cache(infer, x_name, x));
    TRY(op_check_rank(infer, y_name, y, 4, 4));
    if (op_is_block(x->format)) {
        TRY(op_check_number(infer, y_name, y));
        TRY(op_check_float(infer, y_name, y));
    } else {
        TRY(op_check_same_format(infer, x_name, x, y_name, y));
    }
    if (!dim_is_constant(y->dims[0], &rows) || rows != 1)
        return base_fail(infer->context, DW_MISMATCH, "%s: axis 0 of %s must be 1: the tokens of all rows lie along axis 2", infer->op->name, y_name);
    TRY(op_check_same_axis(infer, 1, x_name, x, y_name, y));
    return op_check_same_axis(infer, 3, x_name, x, y_name, y);
}

static const op_type *type_of(const op_infer *infer, int operand) { return operand < infer->n_in ? infer->in[operand] : NULL; }

/* Whose and which the tokens along axis 2 of y are, and the pages of rows. */
static dw_status check_places(op_infer *infer, const char *y_name, const op_type *y, int first, const op_type *table) {
    static const char *const names[] = {"row", "position"};
    for (int i = 0; i < 2; i++) {
        const op_type *type = infer->in[first + i];
        if (type == NULL) return base_fail(infer->context, DW_INVALID, "%s: %s is absent", infer->op->name, names[i]);
        TRY(op_check_rank(infer, names[i], type, 1, 1));
        TRY(op_check_integer(infer, names[i], type));
        TRY(op_check_same(infer, y_name, y->dims[2], names[i], type->dims[0]));
    }
    if (table == NULL) return DW_OK;
    TRY(op_check_rank(infer, "table", table, 2, 2));
    return op_check_integer(infer, "table", table);
}

static dw_status infer_write(op_infer *infer) {
    TRY(check_pair(infer, "x", infer->in[CACHE_X], "y", infer->in[CACHE_Y]));
    TRY(check_places(infer, "s of y", infer->in[CACHE_Y], CACHE_ROW, type_of(infer, CACHE_TABLE)));
    *infer->out = *infer->in[CACHE_X];
    return DW_OK;
}

/* cos and sin, the same for all heads, and the width of what is turned: of keys and queries. */
static dw_status check_turning(op_infer *infer) {
    const op_type *keys = infer->in[UPDATE_KEYS], *cosine = type_of(infer, UPDATE_COS), *sine = type_of(infer, UPDATE_SIN), *queries = type_of(infer, UPDATE_QUERIES);
    const int64_t width = op_attr_int(infer->attrs, OP_ATTR_width);
    int64_t size;
    if ((cosine == NULL) != (sine == NULL)) return base_fail(infer->context, DW_INVALID, "cache_update: of cos and sin one is absent; give both or neither");
    if (cosine == NULL && queries != NULL) return base_fail(infer->context, DW_INVALID, "cache_update: queries need cos and sin");
    if (cosine == NULL && op_attrs_get(infer->attrs, OP_ATTR_width) != NULL) return base_fail(infer->context, DW_INVALID, "cache_update: width needs cos and sin");
    if (cosine == NULL) return DW_OK;
    if (width < 2 || width % 2 != 0) return base_fail(infer->context, DW_INVALID, "cache_update: width is %lld, it must be even and 2 or more", (long long)width);
    TRY(op_check_number(infer, "keys", keys));
    TRY(op_check_float(infer, "keys", keys));
    if (dim_is_constant(keys->dims[3], &size) && width > size)
        return base_fail(infer->context, DW_MISMATCH, "cache_update: width is %lld, the last axis of keys is %lld", (long long)width, (long long)size);
    dim turned[4] = {[2] = keys->dims[2]};
    for (int i = 0; i < 2; i++) TRY_DIM(infer->context, turned[i], dim_constant(infer->dims, 1));
    TRY_DIM(infer->context, turned[3], dim_constant(infer->dims, width));
    for (int i = 0; i < 2; i++) {
        const op_type *angle = i == 0 ? cosine : sine;
        const char *name = i == 0 ? "cos" : "sin";
        TRY(op_check_number(infer, name, angle));
        TRY(op_check_float(infer, name, angle));
        TRY(op_check_broadcasts_to(infer, i == 0 ? "cos " : "sin ", angle, 4, turned));
    }
    if (queries == NULL) return DW_OK;
    TRY(op_check_rank(infer, "queries", queries, 4, 4));
    TRY(op_check_same_format(infer, "keys", keys, "queries", queries));
    for (int axis = 0; axis < 4; axis++)
        if (axis != 1) TRY(op_check_same_axis(infer, axis, "keys", keys, "queries", queries));
    infer->out[2] = *queries;
    return DW_OK;
}

static dw_status infer_update(op_infer *infer) {
    const op_type *x = infer->in[UPDATE_X], *y = infer->in[UPDATE_Y], *keys = infer->in[UPDATE_KEYS], *values = infer->in[UPDATE_VALUES];
    TRY(check_pair(infer, "x", x, "keys", keys));
    TRY(check_pair(infer, "y", y, "values", values));
    TRY(op_check_same_axis(infer, 0, "x", x, "y", y));
    TRY(op_check_same_axis(infer, 2, "x", x, "y", y));
    TRY(check_places(infer, "s of keys", keys, UPDATE_ROW, type_of(infer, UPDATE_TABLE)));
    TRY(check_places(infer, "s of values", values, UPDATE_ROW, NULL));
    infer->out[0] = *x;
    infer->out[1] = *y;
    return check_turning(infer);
}

dw_status cache_infer(op_infer *infer) {
    for (int i = 0; i < (infer->op->id == OP_cache_write ? (int)CACHE_TABLE : (int)UPDATE_COS); i++)
        if (infer->in[i] == NULL) return base_fail(infer->context, DW_INVALID, "%s: operand %d is absent and must be there", infer->op->name, i);
    return infer->op->id == OP_cache_write ? infer_write(infer) : infer_update(infer);
}

/* ---- meaning ---- */

float op_cache_second(const dw_tensor *cache) { return cache->second == NULL || *cache->second == 0 ? 1 : *cache->second; }

/* Blocks lie as all of a tensor does, whatever strides say. */
static void copy_blocks(const dw_tensor *x, const dw_tensor *out) {
    num_parts parts;
    if (!num_layout(x->format, x->scale_layout, x->rank, x->dims, &parts)) return;
    const float second = op_cache_second(x);
    if (out->data != x->data) {
        memcpy(out->data, x->data, parts.data_bytes);
        memcpy(out->scales, x->scales, parts.scale_bytes);
    }
    if (out->second != NULL) *out->second = second;
}

static void copy_cache(const dw_tensor *x, const dw_tensor *out) {
    walk w;
    if (op_is_block(x->format)) {
        copy_blocks(x, out);
        return;
    }
    walk_start(&w, 4, x->dims);
    const int at_x = walk_add(&w, x), at_out = walk_add(&w, out);
    for (; w.left > 0; walk_next(&w)) op_copy_at(out, w.offset[at_out], x, w.offset[at_x]);
}

/* A call's angles; width 0: it has none. */
static op_turn turn_of(const op_call *call, const dw_tensor *x, const dw_tensor *out) {
    const dw_tensor *cosine = op_operand(call, UPDATE_COS), *sine = op_operand(call, UPDATE_SIN);
    op_turn turn = {.x = x, .cosine = cosine, .sine = sine, .out = out, .x_step = x->strides[3], .out_step = out->strides[3], .cols = x->dims[3]};
    if (call->op->id != OP_cache_update || cosine == NULL) return turn;
    turn.width = op_attr_int(call->attrs, OP_ATTR_width);
    turn.interleaved = op_attr_bool(call->attrs, OP_ATTR_interleaved);
    turn.cosine_step = op_tensor_step(cosine, 0);
    turn.sine_step = op_tensor_step(sine, 0);
    return turn;
}

void op_cache_quantize(const dw_tensor *cache, int64_t offset, const float *values, int64_t count) {
    const num_format *info = num_info(cache->format);
    const int64_t cols = cache->dims[3], line = offset / cols, col = offset % cols, blocks = base_ceil_div(cols, info->cols);
    num_matrix part = {
        .format = cache->format,
        .layout = DW_SCALE_plain,
        .rows = 1,
        .cols = count,
        .data = (uint8_t *)cache->data + (size_t)line * num_row_bytes(cache->format, cols) + num_row_bytes(cache->format, col),
        .scales = (uint8_t *)cache->scales + (size_t)(line * blocks + col / info->cols) * ((size_t)num_info(info->scale)->bits / 8),
        .second = cache->second,
        .batches = 1,
    };
    num_quantize(values, count, NUM_ROUND_UP, info->second == 1, &part);
}

/* The same of a row that begins at offset to: turned where there are angles, and rounded to its own format before it is quantised. */
static void put_blocks(const op_turn *turn, const int64_t at[4]) {
    float values[PIECE];
    for (int64_t first = 0; first < turn->cols; first += PIECE) {
        const int64_t count = turn->cols - first < PIECE ? turn->cols - first : PIECE;
        for (int64_t c = 0; c < count; c++) values[c] = (float)op_turned_at(turn, at, first + c);
        op_cache_quantize(turn->out, at[0] + first, values, count);
    }
}

/* All heads of token i of turn->x to offset to of turn->out, heads head_step apart. */
static void put_token(const op_turn *turn, int64_t i, int64_t to, int64_t head_step) {
    for (int64_t head = 0; head < turn->x->dims[1]; head++, to += head_step) {
        const int64_t from = head * turn->x->strides[1] + i * turn->x->strides[2];
        if (op_is_block(turn->out->format)) {
            put_blocks(turn, (int64_t[4]){to, from, turn->width > 0 ? i * op_tensor_step(turn->cosine, 1) : 0, turn->width > 0 ? i * op_tensor_step(turn->sine, 1) : 0});
            continue;
        }
        if (turn->width > 0) {
            op_turn_row(turn, (int64_t[4]){to, from, i * op_tensor_step(turn->cosine, 1), i * op_tensor_step(turn->sine, 1)});
        } else {
            for (int64_t c = 0; c < turn->cols; c++) op_copy_at(turn->out, to + c * turn->out_step, turn->x, from + c * turn->x_step);
        }
    }
}

static void write_tokens(const op_turn *turn, const op_cache_places *places) {
    int64_t steps[DW_MAX_RANK];
    op_strides(turn->out, steps);
    for (int64_t i = 0; i < turn->x->dims[2]; i++) {
        const op_cache_slot place = op_cache_slot_of(places, i);
        if (place.row != OP_NOWHERE) put_token(turn, i, place.row * steps[0] + place.slot * steps[2], steps[1]);
    }
}

static dw_status write_reference(const op_call *call) {
    const op_cache_places places = op_cache_places_of(call);
    TRY(op_cache_check(call, &places));
    copy_cache(call->in[CACHE_X], call->out[0]);
    const op_turn plain = turn_of(call, call->in[CACHE_Y], call->out[0]);
    write_tokens(&plain, &places);
    return DW_OK;
}

static dw_status update_reference(const op_call *call) {
    const dw_tensor *keys = call->in[UPDATE_KEYS], *values = call->in[UPDATE_VALUES], *queries = op_operand(call, UPDATE_QUERIES);
    const op_cache_places places = op_cache_places_of(call);
    const op_turn of_keys = turn_of(call, keys, call->out[0]);
    op_turn of_values = turn_of(call, values, call->out[1]);
    of_values.width = 0;
    if (of_keys.width > of_keys.cols)
        return base_fail(call->context, DW_MISMATCH, "cache_update: width is %lld, the last axis of keys is %lld", (long long)of_keys.width, (long long)of_keys.cols);
    TRY(op_cache_check(call, &places));
    copy_cache(call->in[UPDATE_X], call->out[0]);
    copy_cache(call->in[UPDATE_Y], call->out[1]);
    write_tokens(&of_keys, &places);
    write_tokens(&of_values, &places);
    if (queries == NULL) return DW_OK;
    const op_turn of_queries = turn_of(call, queries, call->out[2]);
    for (int64_t i = 0; i < queries->dims[2]; i++) put_token(&of_queries, i, i * call->out[2]->strides[2], call->out[2]->strides[1]);
    return DW_OK;
}

dw_status cache_reference(const op_call *call) { return call->op->id == OP_cache_write ? write_reference(call) : update_reference(call); }

/* Bytes of tokens in the cache's format. */
static double written_bytes(const dw_tensor *tokens, const dw_tensor *cache) {
    dw_tensor written;
    if (!op_is_block(cache->format) || !op_tensor_init(&written, cache->format, DW_SCALE_plain, tokens->rank, tokens->dims, NULL)) return op_tensor_bytes(tokens);
    return op_tensor_bytes(&written);
}

/* What is written; the rest of a cache stays where it is. */
void cache_work(const op_call *call, op_work *work) {
    static const int tokens[] = {UPDATE_KEYS, UPDATE_VALUES, UPDATE_QUERIES};
    op_work_each(call, 0, work);
    op_work_reads(call, CACHE_X, 0, work);
    work->bytes_written = written_bytes(call->in[CACHE_Y], call->in[CACHE_X]);
    if (call->op->id == OP_cache_write) return;
    op_work_reads(call, UPDATE_Y, 0, work);
    work->bytes_written = 0;
    for (size_t i = 0; i < COUNT_OF(tokens); i++) {
        const dw_tensor *x = op_operand(call, tokens[i]);
        if (x == NULL) continue;
        work->bytes_written += tokens[i] == UPDATE_QUERIES ? op_tensor_bytes(x) : written_bytes(x, call->in[tokens[i] == UPDATE_KEYS ? UPDATE_X : UPDATE_Y]);
        if (tokens[i] != UPDATE_VALUES && op_operand(call, UPDATE_COS) != NULL) work->flops += 3 * (double)op_tensor_count(x);
    }
}
