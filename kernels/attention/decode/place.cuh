/* The decoding attention: the constants of an entry, shared memory, and the rows of a lane. No products: products.cuh. */
#ifndef KERNELS_ATTENTION_DECODE_PLACE_CUH
#define KERNELS_ATTENTION_DECODE_PLACE_CUH

#include "kernels/attention/decode/rows.cuh"

enum { ROWS = DECODE_ROWS, KEYS = DECODE_KEYS, WARPS = DECODE_WARPS, THREADS = 32 * WARPS, ROW_BYTES = 128, CHUNK_COLS = 64, CHUNK_BYTES = KEYS * ROW_BYTES, COLUMNS = 4 };

/* The constants of an entry. width, value_width: multiples of 64 that the operands are padded to. rows: of a tile, 8 or 16. */
typedef struct decode_shape {
    int element, width, value_width, rows, stages;
    int general;                  /* scores are capped, hidden by a mask or have a bias, or the scale is not positive */
    int codes;                    /* DECODE_PLAIN, or the format of blocks that keys and values are in */
    int writes;                   /* the token's own key and value (token.cuh) */
} decode_shape;

/* MOST_BUNCHES: of 8 rows, which are columns of products. MOST_SUMS: of a lane, [16 columns][bunches][4]; MOST_KEPT: pairs of q in registers; MOST_PARTS: blocks
 * of a row that have a scale, and so weights, of their own. */
enum { MOST_BUNCHES = ROWS / 8, MOST_SUMS = 256 / 16 * MOST_BUNCHES, MOST_KEPT = 128 / 16, MOST_PARTS = 128 / 32, Q_BYTES = 32 * 8 };

/* What numbers of e2m1 are of what they are multiplied as (pair_of_e2m1). */
#define E2M1_UP 16384.0f

INLINE int bunches(const decode_shape s) { return s.rows / 8; }
INLINE int keeps_q(const decode_shape s) { return s.rows == 8 && s.width <= 128; }
/* Each warp brings all of q into its own registers, from memory. */
INLINE int takes_q(const decode_shape s) { return keeps_q(s) && !s.codes && !s.writes; }
INLINE int key_bytes(const decode_shape s) { return KEYS * (s.codes ? DECODE_ROW_BYTES(s.codes) : s.width * 2); }
INLINE int stage_bytes(const decode_shape s) { return s.codes ? 2 * key_bytes(s) : KEYS * (s.width + s.value_width) * 2; }
INLINE int scale_bytes(const decode_shape s) { return s.codes ? DECODE_SCALE_BYTES : 0; }
INLINE int scale_row_bytes(const decode_shape s) { return DECODE_SCALE_ROW_BYTES(s.codes, s.width); }
INLINE int pitch(const decode_shape s) { return s.value_width + DECODE_PAD; }

/* Addresses in smem. q as the second operand of products: of each 16 columns 8 bytes of each lane for each bunch of rows. Sums [warps][rows][pitch] come to lie where the rings were;
 * ends [warps][rows][2]: largest score and sum of weights. own: key and value of a token that is written. */
typedef struct decode_smem { uint32_t ring, q, scales, full, ends, own; } decode_smem;

INLINE decode_smem smem_of(const decode_shape s, uint32_t base) {
    decode_smem m;
    m.ring = base;
    m.q = m.ring + WARPS * s.stages * stage_bytes(s);
    m.scales = m.q + s.width / 16 * bunches(s) * Q_BYTES;      /* of keys and of values: [warps][stages][2], DECODE_SCALES bytes each */
    m.full = m.scales + WARPS * s.stages * scale_bytes(s);
    m.ends = m.full + DECODE_BARRIER_BYTES;
    m.own = m.ends + WARPS * ROWS * 8;
    return m;
}

/* ---- places ---- */

/* Where a row's slot lies while nothing may be written, a fault neither. row -2: the table says what cannot be. */
enum { CANNOT_BE = -2 };
INLINE attention_slot early_slot_at(const attention_arguments *p, int row, int slot) {
    attention_slot at = {row, slot};
    if (p->page == 0) return at;
    const int index = slot / p->page;
    const int64_t page = load_int(&p->table, at.row * p->table_strides[0] + index * p->table_strides[1]);
    at.row = page >= -1 && page < p->pages ? (int)page : (int)CANNOT_BE;
    at.slot = slot - index * p->page;
    return at;
}

/* ---- the tokens of a run, while nothing may be written ---- */

/* Whose and which a token is. */
typedef struct token_number { int64_t row, position; } token_number;

/* Of queries lane and lane + 32; row -1: there is none. Asked for at once. */
typedef struct decode_numbers { token_number of[DECODE_EARLY / 32]; } decode_numbers;

INLINE decode_numbers numbers_of_lane(const attention_arguments *p) {
    decode_numbers numbers;
#pragma unroll
    for (int i = 0; i < DECODE_EARLY / 32; i++) {
        const int query = (int)threadIdx.x % 32 + 32 * i;
        numbers.of[i] = (token_number){-1, 0};
        if (query < (int)p->queries) numbers.of[i] = (token_number){((const int64_t *)p->row.data)[query * p->row_step], ((const int64_t *)p->position.data)[query * p->position_step]};
    }
    return numbers;
}

/* By a warp: the number of a query, the same for all lanes. */
INLINE token_number number_of_query(const decode_numbers *numbers, int query) {
    const token_number *of = &numbers->of[0], *far = &numbers->of[1];
    return (token_number){__shfl_sync(0xffffffff, query < 32 ? of->row : far->row, query % 32), __shfl_sync(0xffffffff, query < 32 ? of->position : far->position, query % 32)};
}

/* Is there nothing to complain of in the row and the position of a query? */
INLINE bool is_good_query(const attention_arguments *p, int64_t row, int64_t position) {
    const int64_t room = p->page != 0 ? p->keys : INT64_MAX, of_mask = p->mask_keys > 0 ? p->mask_keys : room, of_bias = p->bias_keys > 0 ? p->bias_keys : room;
    return row >= -1 && row < p->cache_rows && position < room && position < of_mask && position < of_bias;
}

/* By a warp: may its keys be asked for early? It and its place are there, as nothing may be complained of yet, and all positions are counted in 32 bits. */
INLINE bool is_early_query(const attention_arguments *p, const decode_numbers *numbers, token_number number) {
    return __all_sync(0xffffffff, is_good_query(p, number.row, number.position) && numbers->of[0].position < INT32_MAX && numbers->of[1].position < INT32_MAX);
}

/* What it sees, as view_from says. */
INLINE attention_view early_view(const attention_arguments *p, token_number number) {
    const int slots = (int)p->keys, window = (int)min(p->window, (int64_t)INT32_MAX), position = (int)max(number.position, (int64_t)-1), end = position + 1;
    const int begin = max(window > 0 && position >= window ? end - window : 0, end - slots);
    if (number.row < 0) return (attention_view){0, 0, 0, -1};
    return (attention_view){begin < slots ? begin : begin % slots, end - begin, begin, (int)number.row};
}

/* The blocks of 16 slots into which launches in front write the tokens of queries lane and lane + 32; row -1: none. */
typedef struct decode_written { attention_slot at[DECODE_EARLY / 32]; } decode_written;

INLINE decode_written written_by_run(const attention_arguments *p, const decode_numbers *numbers) {
    decode_written written;
#pragma unroll
    for (int i = 0; i < DECODE_EARLY / 32; i++) {
        const token_number number = numbers->of[i];
        const int slots = (int)p->keys, position = (int)number.position;
        written.at[i] = (attention_slot){-1, 0};
        if (number.row >= 0 && number.row < p->cache_rows && position >= 0 && (p->page == 0 || position < slots)) written.at[i] = early_slot_at(p, (int)number.row, position < slots ? position : position % slots);
        written.at[i].slot = written.at[i].slot / KEYS * KEYS;
    }
    return written;
}

/* By a warp: has a block of 16 slots, the same for all lanes, a token of the run's? */
INLINE bool is_written(const decode_written *written, attention_slot at) {
    bool is = false;
#pragma unroll
    for (int i = 0; i < DECODE_EARLY / 32; i++) is = is || (written->at[i].row == at.row && written->at[i].slot == at.slot);
    return __any_sync(0xffffffff, is);
}

/* ---- rows ---- */

/* Of a token that is written: a grid has blocks of a cluster along x, and tiles along y. */
INLINE decode_tile tile_of_token(const attention_decode_arguments *g, int index) {
    const int shared = (int)g->call.shared_heads;
    return (decode_tile){.batch = 0, .group = index, .first_head = index * shared, .heads = shared, .first_query = 0, .rows = shared};
}

/* The rows of a lane, 8 bunch + 2 (lane % 4) and the next, and what they have come to. factor: of products, that makes them scores. sum: of this lane's keys. reach: a power of 2 that weights of codes are multiplied
 * by, so that f16 has room for them. inner: the slots that all rows see. */
typedef struct decode_rows {
    int start[2 * MOST_BUNCHES], count[2 * MOST_BUNCHES], base[2 * MOST_BUNCHES], inner_start, inner_count;
    float factor[2 * MOST_BUNCHES], max[2 * MOST_BUNCHES], sum[2 * MOST_BUNCHES], reach[2 * MOST_BUNCHES];
} decode_rows;

INLINE int row_at(int i) { return i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2; }

INLINE decode_rows rows_of(const attention_decode_arguments *g, const decode_shape s, const decode_tile *tile) {
    decode_rows rows;
    const attention_view first = view_of_row(g, tile, 0), last = view_of_row(g, tile, tile->rows - 1);
    rows.inner_start = g->queries == 1 ? first.start : last.start;
    rows.inner_count = g->queries == 1 ? first.count : first.start + first.count - last.start;
#pragma unroll
    for (int i = 0; i < 2 * bunches(s); i++) {
        attention_view view = {0, 0, 0, 0};
        if (row_at(i) < tile->rows) view = view_of_row(g, tile, row_at(i));
        rows.start[i] = view.start;
        rows.count[i] = view.count;
        rows.base[i] = view.base;
        rows.factor[i] = s.general ? 1 : g->call.scale * LOG2_E;
        if (s.codes == DECODE_NVFP4) rows.factor[i] *= E2M1_UP * rows_second(&g->blocks.k, 0);
        rows.max[i] = -INFINITE;
        rows.sum[i] = 0;
        rows.reach[i] = 1;
    }
    return rows;
}

#endif
