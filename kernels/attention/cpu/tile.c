/* A tile of attention on the CPU, over blocks of keys with a running softmax; scores are never stored.
 *
 *     for each block of 64 keys that some row of the tile sees:
 *         keys [d,64]     = k transposed, as fp32
 *         scores [rows,64] = q keys, scaled, capped, biased; hidden keys are -inf
 *         weights         = e^(scores - running max); factor = e^(old max - new max)
 *         out [rows,e]    = out * factor + weights v
 *
 * While a block is worked on the next one is fetched; behind the last one of few rows comes the first one of the next head, which lies beside it. Blocks are of positions, wherever a ring or pages keep them, so
 * the bits are those of a cache without an end.
 *
 * Queries, keys and values in blocks become fp32 where they are read, or bf16 for products of pairs. There scales that are fp32 are factors of scores and weights, and the second level of nvfp4 is one of
 * the scale and of the result. */
#include <math.h>
#include <string.h>

#include "kernels/attention/cpu/tile.h"
#include "kernels/attention/results.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Are rows of k or v multiplied as they lie? */
static bool is_in_place(const attention *call, const dw_tensor *tensor) {
    const dw_format format = call->isa->pairs != NULL ? DW_FORMAT_bf16 : DW_FORMAT_f32;
    return tensor->format == format && (tensor->strides[3] == 1 || tensor->dims[3] <= 1);
}

/* count elements from offset on, stride apart, as floats. */
static void load(const dw_tensor *tensor, int64_t offset, int64_t stride, int64_t count, float *to) {
    if (dw_format_is_block(tensor->format)) {
        blocks_floats(tensor, offset, count, to);
        return;
    }
    const float *from = (const float *)tensor->data + offset;
    const uint16_t *codes = (const uint16_t *)tensor->data + offset;
    if (stride == 1 || count == 1) {
        if (tensor->format == DW_FORMAT_f32) memcpy(to, from, (size_t)count * sizeof *to);
        else if (tensor->format == DW_FORMAT_bf16) num_bf16_to_f32_row(codes, to, count);
        else num_f16_to_f32_row(codes, to, count);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        if (tensor->format == DW_FORMAT_f32) to[i] = from[i * stride];
        else to[i] = tensor->format == DW_FORMAT_bf16 ? num_bf16_to_f32(codes[i * stride]) : num_f16_to_f32(codes[i * stride]);
    }
}

/* count elements of bf16 from offset on, stride apart. */
static void load_codes(const dw_tensor *tensor, int64_t offset, int64_t stride, int64_t count, uint16_t *to) {
    const uint16_t *from = (const uint16_t *)tensor->data + offset;
    for (int64_t i = 0; i < count && stride != 1; i++) to[i] = from[i * stride];
    if (stride == 1) memcpy(to, from, (size_t)count * sizeof *to);
}

/* Offset of the first element of axis 3. */
static int64_t at3(const dw_tensor *tensor, int64_t i0, int64_t i1, int64_t i2) {
    return i0 * tensor->strides[0] + i1 * tensor->strides[1] + i2 * tensor->strides[2];
}

static int64_t query_of(const tile *t, int row) { return (t->at.first + row) / t->call->shared; }
static int64_t head_of(const tile *t, int row) { return t->at.group * t->call->shared + (t->at.first + row) % t->call->shared; }

/* ---- a block of keys ---- */

/* The block of keys from first on. */
void attention_find_block(const attention *call, const part *at, int64_t first, block *b) {
    const op_attention_view *view = &call->view;
    const int64_t size = view->table != NULL ? view->page : view->slots;
    b->first = first;
    b->group = at->group;
    b->keys = (int)(first < at->end ? least(at->end - first, FLASH_KEYS) : 0);
    b->count = 0;
    b->gaps = false;
    for (int key = 0; key < b->keys; b->count++) {
        const op_cache_slot place = op_attention_key(view, at->cache, first + key);
        const stretch keys = {place.row, place.slot, key, (int)least(b->keys - key, size - place.slot)};
        b->stretches[b->count] = keys;
        if (view->table != NULL) memset(b->there + key, keys.row != OP_NOWHERE, (size_t)keys.count);
        b->gaps |= keys.row == OP_NOWHERE;
        key += keys.count;
    }
}

/* The stretch that holds a key of the block. */
static const stretch *stretch_at(const block *b, int key) {
    const stretch *s = b->stretches;
    while (key >= s->key + s->count) s++;
    return s;
}

static bool is_empty(const block *b) {
    for (int i = 0; i < b->count; i++)
        if (b->stretches[i].row != OP_NOWHERE) return false;
    return true;
}

/* Columns at .. of the tile's queries; with pairs the last column of an odd number has a 0 beside it. */
static void load_q(tile *t, int64_t at, int64_t width) {
    const dw_tensor *q = t->call->q;
    for (int r = 0; r < t->at.rows; r++) {
        const int64_t offset = at3(q, t->at.batch, head_of(t, r), query_of(t, r)) + at * q->strides[3];
        if (t->call->isa->pairs == NULL) {
            load(q, offset, q->strides[3], width, t->q.floats + r * WIDTH);
            continue;
        }
        uint16_t *codes = t->q.codes + r * WIDTH;
        if (dw_format_is_block(q->format)) blocks_codes(t->call->isa->pairs, q, offset, 1, width, codes, WIDTH);
        else load_codes(q, offset, q->strides[3], width, codes);
        if (width % 2 != 0) codes[width] = 0;
    }
}

static const char *bytes_at(const dw_tensor *tensor, int64_t offset) { return (const char *)tensor->data + offset * (dw_format_bits(tensor->format) / 8); }

/* Up to `count` rows of k or v from a key of a block on, `columns` from `column` on of each, as what is read next; NULL where they are not read where they lie. */
static flash_next *next_of(const tile *t, const dw_tensor *tensor, const block *b, int key, int count, int64_t column, int64_t columns, flash_next *next) {
    if (count <= 0 || key >= b->keys || column >= tensor->dims[3] || !is_in_place(t->call, tensor)) return NULL;
    const stretch *keys = stretch_at(b, key);
    if (keys->row == OP_NOWHERE) return NULL;
    const int64_t element = dw_format_bits(tensor->format) / 8, offset = at3(tensor, keys->row, b->group, keys->slot + key - keys->key) + column;
    *next = (flash_next){bytes_at(tensor, offset), tensor->strides[2] * element, least(columns, tensor->dims[3] - column) * element, (int)least(keys->key + keys->count - key, count), NULL};
    return next;
}

/* A run of keys that is read: columns of k or of v in a block. */
typedef struct reading { const dw_tensor *tensor; const block *block; int64_t column, columns; } reading;

/* Does a tile wait for memory rather than for its products? One of up to 24 rows does in pairs. In fp32 values of more than FLASH_ROWS are not multiplied where they lie. */
static bool has_few_rows(const tile *t) { return t->at.rows <= (t->call->isa->pairs != NULL ? 4 * FLASH_ROWS : FLASH_ROWS); }

/* What is to be fetched while `count` keys from `key` on are read, where `now` is followed by `then`. Of few rows what is read AHEAD bytes later, wherever that is: so close that the hardware, which goes
 * by misses, runs ahead besides, and so far that it is there in time. Many rows of pairs hide the coming of the next keys; of those of fp32, which do not while the keys of a head do not fit the second
 * cache, the same keys of `then` are. */
static const flash_next *ahead_of(const tile *t, const reading *now, const reading *then, int key, int count, flash_next memory[2]) {
    enum { AHEAD = 8192 };
    if (!has_few_rows(t)) return t->call->isa->pairs != NULL ? NULL : next_of(t, then->tensor, then->block, key, count, then->column, then->columns, memory);
    const int64_t bytes = now->columns * (dw_format_bits(now->tensor->format) / 8);
    const int first = key + (int)(bytes > 0 ? least(base_ceil_div(AHEAD, bytes), FLASH_KEYS) : FLASH_KEYS), here = (int)least(FLASH_KEYS - first, count);
    flash_next *a = next_of(t, now->tensor, now->block, first, here, now->column, now->columns, memory);
    const flash_next *b = next_of(t, then->tensor, then->block, here < 0 ? first - FLASH_KEYS : 0, here < 0 ? count : count - here, then->column, then->columns, memory + 1);
    if (a == NULL) return b;
    a->then = b;
    return a;
}

/* count rows in blocks, as below, as bf16, stretch by stretch. */
static void load_blocks(const tile *t, const dw_tensor *tensor, const block *b, int first, int count, int64_t column, int64_t width, int64_t stride, uint16_t *codes) {
    for (int i = 0, rows; i < count; i += rows) {
        const stretch *keys = stretch_at(b, first + i);
        rows = (int)least(count - i, keys->key + keys->count - first - i);
        if (keys->row == OP_NOWHERE || width < stride) memset(codes + i * stride, 0, (size_t)(rows * stride) * sizeof *codes);
        if (keys->row == OP_NOWHERE) continue;
        blocks_codes(t->call->isa->pairs, tensor, at3(tensor, keys->row, t->at.group, keys->slot + first + i - keys->key) + column, rows, width, codes + i * stride, stride);
    }
}

/* count rows of k or v from a key of the block on, 0 where a page is not there: as floats, or where they are multiplied in pairs as they are. */
static void load_rows(const tile *t, const dw_tensor *tensor, const block *b, int first, int count, int64_t column, int64_t width, int64_t stride, float *floats, uint16_t *codes) {
    const bool pairs = t->call->isa->pairs != NULL;
    if (pairs && dw_format_is_block(tensor->format)) {
        load_blocks(t, tensor, b, first, count, column, width, stride, codes);
        return;
    }
    for (int i = 0; i < count; i++) {
        const stretch *keys = stretch_at(b, first + i);
        const int64_t offset = keys->row == OP_NOWHERE ? 0 : at3(tensor, keys->row, t->at.group, keys->slot + first + i - keys->key) + column * tensor->strides[3];
        if (pairs && (keys->row == OP_NOWHERE || width < stride)) memset(codes + i * stride, 0, (size_t)stride * sizeof *codes);
        else if (keys->row == OP_NOWHERE || width < stride) memset(floats + i * stride, 0, (size_t)stride * sizeof *floats);
        if (keys->row == OP_NOWHERE) continue;
        if (pairs) load_codes(tensor, offset, tensor->strides[3], width, codes + i * stride);
        else load(tensor, offset, tensor->strides[3], width, floats + i * stride);
    }
}

/* keys [width][FLASH_KEYS] = columns at .. of k from key `first` on, those of a turn. */
static void transpose(tile *t, int key, int count, int64_t width, const void *k, int64_t stride, const flash_next *next) {
    const flash_isa *isa = t->call->isa;
    if (isa->pairs != NULL) isa->pairs->transpose(count, (width + 1) / 2, k, stride, next, key, t->keys.pairs);
    else isa->transpose(count, width, k, stride, next, key, t->keys.floats);
}

/* The turns of the block that have keys: scores of others are hidden, whatever they are. While k is read, what follows comes, and so it is with v (add_in_place). */
static void load_keys(tile *t, const reading *now, const reading *then) {
    const dw_tensor *k = t->call->k;
    const block *b = now->block;
    const int64_t at = now->column, width = now->columns;
    const bool in_place = is_in_place(t->call, k) && (t->call->isa->pairs == NULL || width % 2 == 0);
    const void *loaded = t->call->isa->pairs != NULL ? (const void *)t->loaded.codes : t->loaded.floats;
    const int64_t padded = (width + 1) / 2 * 2;
    flash_next memory[2];
    for (int key = 0; key < b->keys; key += FLASH_TURN) {
        const int here = (int)least(b->keys - key, FLASH_TURN);
        const stretch *keys = stretch_at(b, key);
        if (in_place && key + here <= keys->key + keys->count && keys->row != OP_NOWHERE) {
            const flash_next *next = ahead_of(t, now, then, key, key + FLASH_TURN < b->keys ? FLASH_TURN : FLASH_KEYS, memory);
            transpose(t, key, here, width, bytes_at(k, at3(k, keys->row, t->at.group, keys->slot + key - keys->key) + at), k->strides[2], next);
            continue;
        }
        load_rows(t, k, b, key, here, at, width, padded, t->loaded.floats, t->loaded.codes);
        transpose(t, key, here, width, loaded, padded, NULL);
    }
}

/* scales [FLASH_KEYS] of the block's keys, 0 where there is none, in the block of columns that holds `column`. */
static void load_scales(tile *t, const dw_tensor *tensor, const block *b, int64_t column) {
    memset(t->scales, 0, sizeof t->scales);
    for (int i = 0; i < b->count; i++) {
        const stretch *keys = &b->stretches[i];
        if (keys->row != OP_NOWHERE) blocks_factors(tensor, at3(tensor, keys->row, t->at.group, keys->slot) + column, keys->count, t->scales + keys->key);
    }
}

/* The scale of a row's q in a block of columns. */
static float scale_of_q(const tile *t, int row, int64_t column) {
    const dw_tensor *q = t->call->q;
    float scale = 1;
    if (dw_format_is_block(q->format)) blocks_factors(q, at3(q, t->at.batch, head_of(t, row), query_of(t, row)) + column, 1, &scale);
    return scale;
}

/* scores = scores + products of a block of columns times the keys' scales, and the query's. */
static void add_products(tile *t, const block *b, int64_t column) {
    load_scales(t, t->call->k, b, column);
    for (int r = 0; r < t->at.rows; r++) {
        float *to = t->scores + r * FLASH_KEYS;
        const float *products = t->products + r * FLASH_KEYS, scale = scale_of_q(t, r, column);
        for (int i = 0; i < FLASH_KEYS; i++) {
            const float product = products[i] * (t->scales[i] * scale);
            to[i] = column > 0 ? to[i] + product : product;
        }
    }
}

/* Rows of a product, as even as can be. */
static int rows_of_product(int rows, int done) {
    int left = rows - done, products = base_ceil_div(left, FLASH_ROWS);
    return base_ceil_div(left, products);
}

/* Are scores of few rows made of k where it lies? All keys are there, those of a turn side by side. */
static bool scores_in_place(const tile *t, const block *b, int64_t width) {
    const flash_isa *isa = t->call->isa;
    const int64_t step = isa->pairs != NULL ? 32 : 16;
    if ((isa->pairs != NULL ? isa->pairs->scores_in_place == NULL : isa->scores_in_place == NULL) || t->at.rows > FLASH_ROWS) return false;
    if (!is_in_place(t->call, t->call->k) || b->keys < FLASH_KEYS || width == 0 || width % step != 0) return false;
    for (int i = 0; i < b->count; i++)
        if (b->stretches[i].row == OP_NOWHERE || b->stretches[i].key % FLASH_TURN != 0) return false;
    return true;
}

/* q: of the first row, columns as `now` says. */
static void score_in_place(tile *t, const reading *now, const reading *then, int64_t q, bool adds) {
    const flash_isa *isa = t->call->isa;
    const dw_tensor *k = t->call->k;
    flash_next memory[2];
    for (int key = 0; key < FLASH_KEYS; key += FLASH_TURN) {
        const stretch *keys = stretch_at(now->block, key);
        const flash_next *next = ahead_of(t, now, then, key, FLASH_TURN, memory);
        const void *rows = bytes_at(k, at3(k, keys->row, t->at.group, keys->slot + key - keys->key) + now->column);
        if (isa->pairs != NULL) isa->pairs->scores_in_place(t->at.rows, now->columns / 2, t->q.pairs + q / 2, WIDTH / 2, rows, k->strides[2], next, adds, t->scores + key);
        else isa->scores_in_place(t->at.rows, now->columns, t->q.floats + q, WIDTH, rows, k->strides[2], next, adds, t->scores + key);
    }
}

/* What is read behind columns of k up to `at`: more columns, or v; with many rows k of the next block. */
static reading after_keys(const tile *t, const block *b, const block *after, int64_t at, int64_t most) {
    const attention *call = t->call;
    if (at < call->d) return (reading){call->k, b, at, least(call->d - at, most)};
    if (!has_few_rows(t)) return (reading){call->k, after, 0, least(call->d, most)};
    return (reading){call->v, b, t->column, FLASH_COLUMNS};
}

static void score(tile *t, const block *b, const block *after) {
    const attention *call = t->call;
    const int64_t most = call->has_factors ? SCALED : WIDTH;
    for (int64_t at = 0; at < call->d || at == 0; at += most) {
        const int64_t width = least(call->d - at, most), from = call->d > WIDTH ? 0 : at;
        const bool adds = at > 0 && !call->has_factors;
        float *to = call->has_factors ? t->products : t->scores;
        const reading now = {call->k, b, at, width}, then = after_keys(t, b, after, at + width, most);
        if (call->d > WIDTH) load_q(t, at, width);
        if (scores_in_place(t, b, width)) {
            score_in_place(t, &now, &then, from, adds);
            continue;
        }
        load_keys(t, &now, &then);
        for (int r = 0, rows; r < t->at.rows; r += rows) {
            rows = rows_of_product(t->at.rows, r);
            if (call->isa->pairs != NULL) call->isa->pairs->scores(rows, b->keys, (width + 1) / 2, t->q.pairs + (r * WIDTH + from) / 2, WIDTH / 2, t->keys.pairs, adds, to + r * FLASH_KEYS);
            else call->isa->scores(rows, b->keys, width, t->q.floats + r * WIDTH + from, WIDTH, t->keys.floats, adds, to + r * FLASH_KEYS);
        }
        if (call->has_factors) add_products(t, b, at);
    }
}

static void soften(tile *t, const block *b) {
    const attention *call = t->call;
    const int64_t first = b->first;
    const int count = b->keys;
    float bias[FLASH_KEYS] = {0};
    uint8_t mask[FLASH_KEYS] = {0};
    const uint8_t *masked = NULL;      /* what mask is of: rows have the same one, as a rule */
    for (int r = 0; r < t->at.rows; r++) {
        flash_row *row = &t->state[r];
        int64_t begin = t->spans[r].begin - first, end = t->spans[r].end - first;
        row->begin = (int)(begin > 0 ? least(begin, FLASH_KEYS) : 0);
        row->end = (int)(end > 0 ? least(end, FLASH_KEYS) : 0);
        if (row->end <= row->begin) {
            memset(t->scores + r * FLASH_KEYS, 0, FLASH_KEYS * sizeof(float));
            t->factors[r] = 1.0f;
            continue;
        }
        if (call->view.bias != NULL) {
            const int64_t *strides = call->view.bias_strides;
            load(call->view.bias, t->at.cache * strides[0] + head_of(t, r) * strides[1] + query_of(t, r) * strides[2] + first * strides[3], strides[3], count, bias);
            row->bias = bias;
        }
        if (call->view.mask != NULL) {
            const int64_t *strides = call->view.mask_strides;
            const uint8_t *data = call->view.mask->data;
            data += t->at.cache * strides[0] + head_of(t, r) * strides[1] + query_of(t, r) * strides[2] + first * strides[3];
            for (int i = 0; data != masked && i < count; i++) mask[i] = data[i * strides[3]] != 0 && (!b->gaps || b->there[i]);
            masked = data;
            row->mask = mask;
        } else {
            row->mask = b->gaps ? b->there : NULL;
        }
        t->factors[r] = call->isa->soften(row, t->scores + r * FLASH_KEYS);
    }
    for (int r = 0; r < t->at.rows && call->isa->pairs != NULL && !call->has_value_factors; r++) call->isa->pairs->round(t->scores + r * FLASH_KEYS, t->weights + r * FLASH_PAIRS);
}

/* Weights times the scales of values, in pairs: for a block of columns. */
static void scale_weights(tile *t, const block *b, int64_t column) {
    load_scales(t, t->call->v, b, column);
    for (int r = 0; r < t->at.rows; r++) {
        float *to = t->products + r * FLASH_KEYS;
        for (int i = 0; i < FLASH_KEYS; i++) to[i] = t->scores[r * FLASH_KEYS + i] * t->scales[i];
        t->call->isa->pairs->round(to, t->weights + r * FLASH_PAIRS);
    }
}

/* out = out * factors + weights v, of `count` keys from the block's key `key` on. */
static void multiply_values(tile *t, int key, int count, int64_t columns, const void *values, int64_t stride, const flash_next *next, const float *factors, int64_t at) {
    const flash_isa *isa = t->call->isa;
    for (int r = 0, rows; r < t->at.rows; r += rows) {
        float *out = t->out + r * t->out_stride + at;
        rows = rows_of_product(t->at.rows, r);
        if (isa->pairs != NULL) isa->pairs->values(rows, count, (int)columns, t->weights + r * FLASH_PAIRS + key / 2, values, stride, r == 0 ? next : NULL, factors + r, out, t->out_stride);
        else isa->values(rows, count, (int)columns, t->scores + r * FLASH_KEYS + key, values, stride, next, factors + r, out, t->out_stride);
    }
}

/* Stretch by stretch, of v where it lies: the first one brings the factors. */
static void add_in_place(tile *t, const block *b, const block *after, int64_t at, int64_t width) {
    const dw_tensor *v = t->call->v;
    const float *factors = t->factors;
    const reading now = {v, b, t->column + at, width};
    const reading then = at + width < t->columns ? (reading){v, b, t->column + at + width, FLASH_COLUMNS} : (reading){t->call->k, after, 0, WIDTH};
    flash_next memory[2];
    for (int i = 0; i < b->count; i++) {
        const stretch *keys = &b->stretches[i];
        if (keys->row == OP_NOWHERE) continue;
        const flash_next *next = ahead_of(t, &now, &then, keys->key, i + 1 < b->count ? keys->count : FLASH_KEYS, memory);
        multiply_values(t, keys->key, keys->count, width, bytes_at(v, at3(v, keys->row, t->at.group, keys->slot) + t->column + at), v->strides[2], next, factors, at);
        factors = t->ones;
    }
}

/* Do the stretches of the block begin at even keys? Then both keys of a pair lie in one. */
static bool keeps_pairs(const block *b) {
    for (int i = 0; i < b->count; i++)
        if (b->stretches[i].key % 2 != 0) return false;
    return true;
}

/* Where v lies in memory it is multiplied: in fp32 of few rows and whole vectors of columns, in pairs always, if no pair is apart. */
static bool adds_in_place(const tile *t, const block *b, int64_t width) {
    if (!is_in_place(t->call, t->call->v)) return false;
    return t->call->isa->pairs != NULL ? keeps_pairs(b) : t->at.rows <= FLASH_ROWS && width % 16 == 0;
}

static void add_values(tile *t, const block *b, const block *after) {
    const void *loaded = t->call->isa->pairs != NULL ? (const void *)t->v.codes : t->v.floats;
    for (int64_t at = 0; at < t->columns; at += FLASH_COLUMNS) {
        const int64_t width = least(t->columns - at, FLASH_COLUMNS), padded = (width + 15) / 16 * 16;
        if (t->call->has_value_factors && (t->column + at) % SCALED == 0) scale_weights(t, b, t->column + at);
        if (adds_in_place(t, b, width)) {
            add_in_place(t, b, after, at, width);
            continue;
        }
        load_rows(t, t->call->v, b, 0, b->keys, t->column + at, width, padded, t->v.floats, t->v.codes);
        multiply_values(t, 0, b->keys, padded, loaded, padded, NULL, t->factors, at);
    }
}

/* Does the mask operand show any key of the block to any row? */
static bool shows_any(const tile *t, int64_t first, int count) {
    const attention *call = t->call;
    const int64_t *strides = call->view.mask_strides;
    if (call->view.mask == NULL) return true;
    bool same = strides[1] == 0 && strides[2] == 0;
    for (int r = 0; r < (same ? 1 : t->at.rows); r++) {
        const uint8_t *data = call->view.mask->data;
        data += t->at.cache * strides[0] + head_of(t, r) * strides[1] + query_of(t, r) * strides[2] + first * strides[3];
        for (int i = 0; i < count; i++) {
            if (data[i * strides[3]]) return true;
        }
    }
    return false;
}

/* ---- the end of a row ---- */

enum { AGAIN = 64 };   /* elements of q and k at a time, fewer than OUT_WIDTH */

/* A hidden key's v may hold what 0 cannot be multiplied with: this row again, key by key, without those of no weight. */
static void again(const tile *t, int row, float *out) {
    const attention *call = t->call;
    const dw_tensor *q = call->q, *k = call->k, *v = call->v;
    const flash_row *state = &t->state[row];
    int64_t query = query_of(t, row), head = head_of(t, row);
    for (int64_t c = 0; c < t->columns; c++) out[c] = 0;
    if (state->max == -INFINITY) return;
    for (int64_t key = t->spans[row].begin; key < t->spans[row].end; key++) {
        float dot = 0, a[AGAIN], b[OUT_WIDTH];
        const op_cache_slot place = op_attention_key(&call->view, t->at.cache, key);
        const int64_t *m = call->view.mask_strides, *s = call->view.bias_strides;
        if (place.row == OP_NOWHERE) continue;
        if (call->view.mask != NULL && !((const uint8_t *)call->view.mask->data)[t->at.cache * m[0] + head * m[1] + query * m[2] + key * m[3]]) continue;
        for (int64_t at = 0; at < call->d; at += AGAIN) {
            const int64_t part = call->d - at < AGAIN ? call->d - at : AGAIN;
            load(q, at3(q, t->at.batch, head, query) + at * q->strides[3], q->strides[3], part, a);
            load(k, at3(k, place.row, t->at.group, place.slot) + at * k->strides[3], k->strides[3], part, b);
            for (int64_t i = 0; i < part; i++) dot = fmaf(a[i], b[i], dot);
        }
        dot *= call->scale;
        if (call->softcap > 0) dot = call->softcap * tanhf(dot / call->softcap);
        if (call->view.bias != NULL) {
            load(call->view.bias, t->at.cache * s[0] + head * s[1] + query * s[2] + key * s[3], 1, 1, b);
            dot = *b <= OP_ATTENTION_HIDES ? *b : dot + *b;
        }
        float weight = expf(dot - state->max);
        if (weight == 0) continue;
        load(v, at3(v, place.row, t->at.group, place.slot) + t->column * v->strides[3], v->strides[3], t->columns, b);
        for (int64_t c = 0; c < t->columns; c++) out[c] = fmaf(weight, b[c], out[c]);
    }
}

static void finish(tile *t, int row) {
    const dw_tensor *to = t->call->out;
    const flash_isa *isa = t->call->isa;
    const flash_row *state = &t->state[row];
    const int64_t offset = at3(to, t->at.batch, head_of(t, row), query_of(t, row)) + t->column;
    float *out = t->out + row * t->out_stride;
    if (isa->pairs != NULL) isa->pairs->straighten(out, t->out_stride);
    for (int64_t c = 0; c < t->columns && t->call->second_v != 1; c++) out[c] *= t->call->second_v;
    if (isfinite(state->sum) && isa->has_nan(out, t->columns)) again(t, row, out);
    isa->end_row(out, t->columns, state->sum, to->format == DW_FORMAT_bf16 ? (uint16_t *)to->data + offset : NULL);
    if (t->call->lse != NULL && t->column == 0) ((float *)t->call->lse->data)[at3(t->call->lse, t->at.batch, head_of(t, row), query_of(t, row))] = state->max + logf(state->sum);
    if (to->format == DW_FORMAT_f32) memcpy((float *)to->data + offset, out, (size_t)t->columns * sizeof *out);
    else if (to->format == DW_FORMAT_f16) num_f32_to_f16_row(out, (uint16_t *)to->data + offset, t->columns);
}

/* ---- tiles ---- */

/* Some columns of v for all rows of the tile. */
static void pass(tile *t) {
    const attention *call = t->call;
    const op_attention_span seen = t->at.seen;
    for (int r = 0; r < t->at.rows; r++) {
        float sink = -INFINITY;
        if (call->sink != NULL) load(call->sink, head_of(t, r) * call->sink->strides[0], 1, 1, &sink);
        t->state[r] = (flash_row){.scale = call->product_scale, .softcap = call->softcap, .max = sink, .sum = sink == -INFINITY ? 0.0f : expf(sink - sink)};
    }
    t->out_stride = (t->columns + COLUMNS - 1) / COLUMNS * COLUMNS;
    memset(t->out, 0, (size_t)(t->at.rows * t->out_stride) * sizeof *t->out);
    if (call->d <= WIDTH) load_q(t, 0, call->d);
    const int64_t begin = seen.begin / FLASH_KEYS * FLASH_KEYS;
    block *b = &t->blocks[0], *after = &t->blocks[1];
    if (begin < seen.end) attention_find_block(call, &t->at, begin, b);
    for (int64_t first = begin; first < seen.end; first += FLASH_KEYS) {
        if (first + FLASH_KEYS < seen.end) attention_find_block(call, &t->at, first + FLASH_KEYS, after);
        else after = &t->behind;
        if (!is_empty(b) && shows_any(t, first, b->keys)) {
            score(t, b, after);
            soften(t, b);
            add_values(t, b, after);
        }
        block *const done = b;
        b = after;
        after = done;
    }
    for (int r = 0; r < t->at.rows; r++) finish(t, r);
}

/* All columns of v for the rows of a part. */
void attention_run_part(tile *t) {
    const attention *call = t->call;
    for (int r = 0; r < t->at.rows; r++) t->spans[r] = op_attention_seen(&call->view, query_of(t, r));
    for (t->column = 0; t->column < call->e || t->column == 0; t->column += OUT_WIDTH) {
        t->columns = least(call->e - t->column, OUT_WIDTH);
        pass(t);
    }
}
