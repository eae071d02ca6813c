/* Tokens into caches, and keys and queries turned on the way, of rows that lie side by side at multiples of 16 bytes. Few tokens are a thread block each, or several for one: a thread
 * turns eight elements and their partners in fp32, or moves 16 bytes, all of which is asked for before any of it is looked at. Of many tokens a thread has the same elements of several:
 *
 *     gmem -> smem   cp.async: AHEAD vectors of each thread, its own; angles of the block's tokens, for all
 *     places         meanwhile: where the block's tokens go, and which of them a later one overtakes
 *     smem -> gmem   a token after the other, the next vector asked for behind each
 *
 * Behind a norm of heads, and into caches in blocks, a thread has eight elements alone, and the threads of a row, which lie in one warp, exchange sums, partners and largest numbers. Resources and speed:
 * README.md. */
#include "kernels/cache/lanes.cuh"
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/gpu/ptx/mbarrier.cuh"
#include "kernels/quantize/blocks.cuh"

/* What eight elements and their partners are turned of. */
typedef struct halves_words { vector_words x, y, low_cosine, low_sine, high_cosine, high_sine; } halves_words;

INLINE halves_words bring_halves(const cache_arguments *a, const cache_part *p, const cache_item *item, const cache_angles *angles, int64_t token) {
    const int64_t i = item->unit * CUDA_VECTOR, j = i + a->width / 2, cosine = token * angles->cosine_token, sine = token * angles->sine_token;
    if (p->from.element_bytes == 2 && a->cosine.element_bytes == 2 && a->sine.element_bytes == 2)     /* without a branch in between */
        return (halves_words){{load_uint4(&p->from, item->from + i, 2)}, {load_uint4(&p->from, item->from + j, 2)}, {load_uint4(&a->cosine, cosine + i, 2)}, {load_uint4(&a->sine, sine + i, 2)},
                              {load_uint4(&a->cosine, cosine + j, 2)}, {load_uint4(&a->sine, sine + j, 2)}};
    return (halves_words){bring_vector(&p->from, item->from + i), bring_vector(&p->from, item->from + j), bring_cosine(a, angles, token, i), bring_sine(a, angles, token, i),
                          bring_cosine(a, angles, token, j), bring_sine(a, angles, token, j)};
}

INLINE void turn_halves(const cache_arguments *a, const cache_part *p, const cache_item *item, const halves_words *words) {
    const int64_t i = item->unit * CUDA_VECTOR, j = i + a->width / 2;
    float x[PIECE], y[PIECE], low_cosine[PIECE], low_sine[PIECE], high_cosine[PIECE], high_sine[PIECE], low[PIECE], high[PIECE];
    unpack_vector(&p->from, &words->x, x);
    unpack_vector(&p->from, &words->y, y);
    unpack_vector(&a->cosine, &words->low_cosine, low_cosine);
    unpack_vector(&a->sine, &words->low_sine, low_sine);
    unpack_vector(&a->cosine, &words->high_cosine, high_cosine);
    unpack_vector(&a->sine, &words->high_sine, high_sine);
    turn_pairs(x, y, low_cosine, low_sine, high_cosine, high_sine, low, high);
    store_vector(&p->to, item->to + i, low);
    store_vector(&p->to, item->to + j, high);
}

/* The same of two vectors that are there: one half of the result after the other, for which fewer registers do. */
INLINE void turn_halves_of(const cache_arguments *a, const cache_part *p, const cache_item *item, const vector_words *x_words, const vector_words *y_words, const cache_angles *angles, int64_t token) {
    float x[PIECE], y[PIECE], cosine[PIECE], sine[PIECE], turned[PIECE];
    unpack_vector(&p->from, x_words, x);
    unpack_vector(&p->from, y_words, y);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t i = item->unit * CUDA_VECTOR + (half == 0 ? 0 : a->width / 2);
        const vector_words cosine_words = bring_cosine(a, angles, token, i), sine_words = bring_sine(a, angles, token, i);
        unpack_vector(&a->cosine, &cosine_words, cosine);
        unpack_vector(&a->sine, &sine_words, sine);
        if (half == 0) EACH_OF_PIECE(k) turned[k] = x[k] * cosine[k] - y[k] * sine[k];
        else EACH_OF_PIECE(k) turned[k] = y[k] * cosine[k] + x[k] * sine[k];
        store_vector(&p->to, item->to + i, turned);
    }
}

INLINE void turn_neighbours(const cache_arguments *a, const cache_part *p, const cache_item *item, const vector_words *own, const cache_angles *angles, int64_t token) {
    const int64_t i = item->unit * CUDA_VECTOR;
    const vector_words cosine_words = bring_cosine(a, angles, token, i), sine_words = bring_sine(a, angles, token, i);
    float x[PIECE], cosine[PIECE], sine[PIECE], turned[PIECE];
    unpack_vector(&p->from, own, x);
    unpack_vector(&a->cosine, &cosine_words, cosine);
    unpack_vector(&a->sine, &sine_words, sine);
    turn_four(x, cosine, sine, turned);
    store_vector(&p->to, item->to + i, turned);
}

/* Units of a head's row that are turned. */
INLINE int64_t turned_units(const cache_arguments *a) { return (a->interleaved ? a->width : a->width / 2) / CUDA_VECTOR; }
/* Which of the row's elements a unit has; those behind the width are moved. */
INLINE int64_t column_of(const cache_arguments *a, const cache_item *item) { return item->unit * CUDA_VECTOR + (a->interleaved || item->unit < turned_units(a) ? 0 : a->width / 2); }
INLINE bool is_in_halves(const cache_arguments *a, const cache_part *p, const cache_item *item) { return p->turned && !a->interleaved && item->unit < turned_units(a); }

/* A lane without a head comes along for the others of its warp: it reads the last one, and goes nowhere. */
INLINE bool has_head(const cache_part *p, const cache_item *item) { return item->head < p->heads; }
INLINE cache_item vectors_at(const cache_arguments *a, const cache_place *place, int64_t i) {
    cache_item item = cache_item_at(a, 0, place, i);
    const cache_part *p = &a->parts[item.part];
    if (has_head(p, &item)) return item;
    item.from = (p->heads - 1) * p->from_head;
    item.to = -1;
    return item;
}

/* ---- into blocks: bit for bit as num has them ---- */

/* A cache's second level, 1 where it is 0, and from then on: what each finds may be what another one has just written. */
INLINE float second_of(const cuda_rows *to) {
    const unsigned one = 0x3f800000u, found = to->second_kind != 0 ? atomicCAS((unsigned *)to->second, 0u, one) : one;
    return __uint_as_float(found == 0 ? one : found);
}

/* The same to all lanes of a row, by one of them. */
INLINE float lanes_second(const cache_part *p, const cuda_rows *to) {
    if (to->second_kind == 0) return 1;
    const int first = (int)threadIdx.x % 32 & ~(p->lanes - 1);
    return __shfl_sync(ALL_LANES, (int)threadIdx.x % 32 == first ? second_of(to) : 0, first);
}

/* Of a block, and what its elements are multiplied by. writes: this lane stores the scale, the at-th. */
INLINE float make_scale(const cuda_rows *to, float amax, float second, bool writes, int64_t at) {
    if (to->scale_format == CUDA_f32) {
        if (writes) ((float *)to->scales)[at] = fp8_scale(amax);
        return fp8_inverse(amax);
    }
    const bool is_mx = to->scale_format == CUDA_e8m0;
    const int32_t code = is_mx ? rules_mx_scale(amax, largest_code(to->format), 0) : rules_nv_scale(amax, rules_nv_encode_of(second));
    if (writes) ((uint8_t *)to->scales)[at] = (uint8_t)code;
    return is_mx ? rules_mx_inverse(code) : rules_nv_inverse(code, second);
}

/* A lane's eight elements of the row that item->to counts. The lanes of a block lie side by side. */
INLINE void store_head_in_blocks(const cache_part *p, const cuda_rows *to, const cache_item *item, float second, uint4 words) {
    const int bits = code_bits(to->format), unit = (int)item->unit, of_block = min(p->lanes, (int)to->block_cols / PIECE);
    float x[PIECE];
    unpack_halves(p->from.format, words, x);
    uint32_t most = __float_as_uint(piece_amax(x)) & 0x7fffffff;   /* a NaN is larger than all */
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        if (step < of_block) most = max(most, __shfl_xor_sync(ALL_LANES, most, step));
    const float inverse = make_scale(to, __uint_as_float(most), second, item->to >= 0 && unit % of_block == 0, item->to * to->scale_cols + unit * PIECE / (int)to->block_cols);
    EACH_OF_PIECE(i) x[i] *= inverse;
    const uint2 codes = piece_codes(to->format, x);
    if (item->to < 0) return;
    uint8_t *bytes = (uint8_t *)to->data + item->to * to->row_bytes + unit * bits;
    if (bits == 8) *(uint2 *)bytes = codes;
    else if (bits == 4) *(uint32_t *)bytes = codes.x;
    else ((uint16_t *)bytes)[0] = (uint16_t)codes.x, ((uint16_t *)bytes)[1] = (uint16_t)(codes.x >> 16), ((uint16_t *)bytes)[2] = (uint16_t)codes.y;
}

/* Where the parts that go into blocks go, none: there are none; and each part's second level, none: a row's lanes look for it. */
typedef struct cache_targets { const cuda_rows *blocks; float *seconds; } cache_targets;

INLINE void end_head(const cache_arguments *a, const cache_targets *targets, const cache_item *item, const head_words *words, const norm_columns *columns) {
    const cache_part *p = &a->parts[item->part];
    const uint4 made = p->from.format == CUDA_bf16 ? make_head(CUDA_bf16, a, p, item, words, columns) : make_head(CUDA_f16, a, p, item, words, columns);
    const cuda_rows *to = targets->blocks == 0 ? 0 : &targets->blocks[item->part];
    if (to != 0 && to->block_cols != 0) store_head_in_blocks(p, to, item, targets->seconds != 0 ? targets->seconds[item->part] : lanes_second(p, to), made);
    else if (item->to >= 0) store_uint4(&p->to, item->to + item->unit * CUDA_VECTOR, 2, made);
}

/* Eight elements by themselves, at column i of a row that is turned: neighbours, or behind the width. */
INLINE void end_vector(const cache_arguments *a, const cache_part *p, const cache_item *item, const vector_words *words, const cache_angles *angles, int64_t token) {
    const int64_t i = column_of(a, item);
    if (item->unit < turned_units(a)) {
        turn_neighbours(a, p, item, words, angles, token);
        return;
    }
    store_uint4(&p->to, item->to + i, p->to.element_bytes, words->low);
    if (p->to.element_bytes == 4) store_uint4(&p->to, item->to + i + 4, 4, words->high);
}

/* ---- few tokens: a block has one of them ---- */

/* only: the run has one token, and no barrier is needed. What is moved does not depend on where it goes: it is asked for before the place is looked for, a norm's columns before the launches in front have ended,
 * and so is the place where those write nothing of it. */
INLINE void run_few(const bool only, const bool heads, const cache_arguments *a, const cache_targets *targets) {
    const cache_place start = {0, 0};
    const int64_t token = only ? 0 : blockIdx.x;
    const cache_angles angles = angles_of(a);
    uint32_t i = blockIdx.y * CUDA_THREADS + threadIdx.x;
    cache_item item = vectors_at(a, &start, i);
    cache_place place;
    norm_words columns;
    const norm_columns own = {&columns, 0};
    bool is_found = a->places_given;
    if (heads && i < (uint32_t)a->units && a->parts[item.part].lanes > 0) columns = bring_columns(&a->parts[item.part], item.unit);
    if (is_found) place = only ? place_of_only(a) : cache_block_place(a, token);
    grid_wait();
    if (targets->blocks != 0 && blockIdx.y == 0 && threadIdx.x < (unsigned)a->count) second_of(&targets->blocks[threadIdx.x]);   /* of a token that goes nowhere, too */
    for (;;) {
        const cache_part *p = &a->parts[item.part];
        const bool is_one = i < (uint32_t)a->units, lanes = heads && p->lanes > 0, there = is_one && has_head(p, &item), halves = !lanes && is_in_halves(a, p, &item);
        halves_words words;
        head_words head;
        item.from += token * p->from_token;
        if (lanes && is_one) head = bring_head(a, p, &item, &angles, token);
        else if (halves && there) words = bring_halves(a, p, &item, &angles, token);
        else if (!p->turned && there) words.x.low = ((const uint4 *)p->from.data)[item.from + item.unit];
        else if (there) words.x = bring_vector(&p->from, item.from + column_of(a, &item));
        if (!is_found) place = only ? place_of_only(a) : cache_block_place(a, token);
        is_found = true;
        if (item.to >= 0) item.to += p->cached ? place.row * p->to_row + place.slot * p->to_token : token * p->to_token;
        if (!is_one || (p->cached && place.row < 0)) {
        } else if (lanes) {
            end_head(a, targets, &item, &head, &own);
        } else if (item.to >= 0) {
            if (halves) turn_halves(a, p, &item, &words);
            else if (!p->turned) ((uint4 *)p->to.data)[item.to + item.unit] = words.x.low;
            else end_vector(a, p, &item, &words.x, &angles, token);
        }
        i += gridDim.y * CUDA_THREADS;
        if (i - threadIdx.x >= (uint32_t)a->units) break;
        item = vectors_at(a, &start, i);
        if (heads && a->parts[item.part].lanes > 0) columns = bring_columns(&a->parts[item.part], item.unit);
    }
    if (place.row < 0 && blockIdx.y == 0 && threadIdx.x == 0) cache_raise_outside(a, token);
}

/* ---- all of them: a thread has the same unit of the same head of several tokens ---- */

/* Vectors of 16 bytes that a thread has on the way into shared memory: of the tokens behind the one that it is at, and of its first ones before it knows where they go. Of a few tokens all have come by then. */
enum { AHEAD = 8, AT_ONCE = 2 };

typedef enum cache_way { MOVED, IN_LANES, IN_HALVES, BY_ITSELF } cache_way;

/* part, unit: its own. from: of its first token, in bytes; to: of its head in row 0 and slot 0 of a cache, or of the run's first token; -1: nowhere. The thread has count of the block's tokens, from token on, each step-th. */
typedef struct cache_thread {
    int part, count, token, step;
    uint32_t unit, room;          /* room: of its first vector in shared memory */
    uint64_t from;
    int64_t to;
} cache_thread;

INLINE cache_way way_of(const cache_arguments *a, const cache_part *p, const cache_item *item) {
    return p->lanes > 0 ? IN_LANES : !p->turned ? MOVED : is_in_halves(a, p, item) ? IN_HALVES : BY_ITSELF;
}
INLINE int vectors_of(const cache_part *p, cache_way way) { return (way == IN_HALVES ? 2 : 1) * (way != MOVED && p->from.element_bytes == 4 ? 2 : 1); }

/* Asks for a token's vectors, in a group of their own: of halves those of the first one first. */
INLINE void ask_token(const cache_arguments *a, const cache_thread *t, const cache_way way, const int vectors, int index) {
    const cache_part *p = &a->parts[t->part];
    const uint64_t bytes = way == MOVED ? 16 : p->from.element_bytes, from = t->from + (uint64_t)(index * t->step * p->from_token) * bytes;
    const uint32_t room = t->room + (uint32_t)(index * vectors % AHEAD) * blockDim.x * 16;
#pragma unroll
    for (int i = 0; i < vectors && index < t->count; i++) {
        const bool second = way == IN_HALVES && i >= vectors / 2;
        cp_async_stream(room + (uint32_t)i * blockDim.x * 16, (const void *)(from + (second ? a->width / 2 * bytes + (uint64_t)(i - vectors / 2) * 16 : (uint64_t)i * 16)), 16);
    }
    cp_async_commit();
}

/* Asks for the block's angles, a row for each token, in a group of their own. What is behind the run's last token has none. */
INLINE void ask_rows(const cuda_array *array, int64_t token_step, int64_t width, int64_t first, int count, uint4 *to) {
    const uint32_t vectors = (uint32_t)width * array->element_bytes / 16;
    for (uint32_t i = threadIdx.x; i < (uint32_t)count * vectors; i += blockDim.x) {
        const uint32_t token = i / vectors;
        cp_async_stream(shared_address(to + i), (const void *)(array->data + (uint64_t)((first + token) * token_step) * array->element_bytes + (uint64_t)(i - token * vectors) * 16), 16);
    }
}
INLINE cache_angles ask_angles(const cache_arguments *a, int64_t first, uint4 *rooms) {
    const int count = (int)min((int64_t)a->together, a->tokens - first);
    uint4 *sines = rooms + (uint32_t)a->together * (uint32_t)a->width * a->cosine.element_bytes / 16;
    if (!a->angles_kept) return (cache_angles){a->cosine.data + (uint64_t)(first * a->cosine_token) * a->cosine.element_bytes, a->sine.data + (uint64_t)(first * a->sine_token) * a->sine.element_bytes, a->cosine_token, a->sine_token};
    ask_rows(&a->cosine, a->cosine_token, a->width, first, count, rooms);
    ask_rows(&a->sine, a->sine_token, a->width, first, count, sines);
    cp_async_commit();
    return (cache_angles){(uint64_t)rooms, (uint64_t)sines, a->width, a->width};
}

INLINE void ask_first(const cache_arguments *a, const cache_thread *t, const cache_way way, const int vectors) {
#pragma unroll 1
    for (int index = 0; index < (t->count > AT_ONCE ? AHEAD / vectors : t->count); index++) ask_token(a, t, way, vectors, index);
}

/* For all that was asked for before the first tokens. */
INLINE void wait_behind(const int vectors) {
    if (vectors == 1) cp_async_wait(AHEAD + 0);
    else if (vectors == 2) cp_async_wait(AHEAD / 2);
    else cp_async_wait(AHEAD / 4);
}

/* For the oldest token. */
INLINE void wait_ahead(const int vectors) {
    if (vectors == 1) cp_async_wait(AHEAD - 1);
    else if (vectors == 2) cp_async_wait(AHEAD / 2 - 1);
    else cp_async_wait(AHEAD / 4 - 1);
}

/* Of what has come. */
INLINE uint4 vector_at(const cache_thread *t, const int vectors, int index, const int i) { return ld_shared_u32x4(t->room + (uint32_t)(index * vectors % AHEAD + i) * blockDim.x * 16); }
INLINE vector_words words_at(const cache_thread *t, const cache_way way, const int vectors, int index, const int i) {
    vector_words words = {vector_at(t, vectors, index, i), {0, 0, 0, 0}};
    if (vectors == (way == IN_HALVES ? 4 : 2)) words.high = vector_at(t, vectors, index, i + 1);
    return words;
}

INLINE void run_tokens(const cache_arguments *a, const cache_targets *targets, const cache_thread *t, const cache_way way, const int vectors, int64_t first, const cache_found *found, const cache_angles *angles, const norm_columns *columns) {
    const cache_part *p = &a->parts[t->part];
#pragma unroll 1
    for (int index = 0; index < t->count; index++) {
        const int own = t->token + index * t->step;
        cache_item item = {t->part, 0, t->unit, (first + own) * p->to_token, 0};
        bool there = true;
        if (t->count > AT_ONCE) wait_ahead(vectors);
        if (p->cached) {
            const cache_place place = cache_place_of(found, own);
            there = place.row >= 0;
            item.to = place.row * p->to_row + place.slot * p->to_token;
        }
        item.to = way == IN_LANES && t->to < 0 ? -1 : t->to + item.to;
        if (there) {
            if (way == MOVED) {
                ((uint4 *)p->to.data)[item.to + item.unit] = vector_at(t, 1, index, 0);
            } else if (way == IN_LANES) {
                head_words words;
                words.x = vector_at(t, 1, index, 0);
                bring_head_angles(a, p, &item, angles, own, &words);
                end_head(a, targets, &item, &words, columns);
            } else if (way == IN_HALVES) {
                const vector_words x = words_at(t, way, vectors, index, 0), y = words_at(t, way, vectors, index, vectors / 2);
                turn_halves_of(a, p, &item, &x, &y, angles, own);
            } else {
                const vector_words x = words_at(t, way, vectors, index, 0);
                end_vector(a, p, &item, &x, angles, own);
            }
        }
        if (t->count > AT_ONCE) ask_token(a, t, way, vectors, index + AHEAD / vectors);
    }
}

/* Threads of a block lie along the units of a token, and those of several tokens where a token has few. */
INLINE cache_thread thread_at(const cache_arguments *a, int64_t first, uint32_t room) {
    const uint32_t units = (uint32_t)a->units, i = blockIdx.y * blockDim.x + threadIdx.x, mine = i / units;
    const cache_place start = {0, 0};
    const cache_item item = vectors_at(a, &start, i - mine * units);
    const cache_part *p = &a->parts[item.part];
    const cache_way way = way_of(a, p, &item);
    cache_thread t = {item.part, 0, (int)mine, (int)max(blockDim.x / units, 1u), (uint32_t)item.unit, room, 0, item.to};
    const int64_t tokens = min((int64_t)a->together, a->tokens - first), column = way == MOVED ? item.unit : way == IN_LANES ? item.unit * CUDA_VECTOR : column_of(a, &item);
    if (t.token < t.step && t.token < tokens && (way == IN_LANES || has_head(p, &item))) t.count = ((int)tokens - 1 - t.token) / t.step + 1;
    t.from = p->from.data + (uint64_t)(item.from + column + (first + t.token) * p->from_token) * (way == MOVED ? 16 : p->from.element_bytes);
    return t;
}

/* kept: none, where lanes share no rows. */
INLINE void run_all(const cache_arguments *a, const cache_targets *targets, norm_lanes *kept) {
    extern __shared__ uint4 rooms[];      /* AHEAD for each thread; cosines of the block's tokens; sines */
    const int64_t first = (int64_t)blockIdx.x * a->together;
    const cache_thread t = thread_at(a, first, shared_address(rooms + threadIdx.x));
    const cache_part *p = &a->parts[t.part];
    const cache_item item = {t.part, 0, t.unit, 0, 0};
    const cache_way way = way_of(a, p, &item);
    const int vectors = vectors_of(p, way);
    const norm_columns columns = {0, kept == 0 ? 0 : &kept[t.part]};
    cache_found found;
    if (kept != 0) keep_columns(a, kept);
    if (a->places_given) found = cache_places(a, first);
    grid_wait();
    if (targets->seconds != 0 && threadIdx.x < (unsigned)a->count) targets->seconds[threadIdx.x] = second_of(&targets->blocks[threadIdx.x]);
    const cache_angles angles = ask_angles(a, first, rooms + AHEAD * blockDim.x);
    if (way == IN_HALVES && vectors == 4) ask_first(a, &t, IN_HALVES, 4);
    else if (way == IN_HALVES) ask_first(a, &t, IN_HALVES, 2);
    else if (vectors == 2) ask_first(a, &t, BY_ITSELF, 2);
    else ask_first(a, &t, way, 1);
    if (!a->places_given) found = cache_places(a, first);
    if (blockIdx.y == 0 && threadIdx.x < (unsigned)a->together && found.places[threadIdx.x].row < 0) cache_raise_outside(a, first + threadIdx.x);
    if (t.count <= AT_ONCE) cp_async_wait(0);
    else if (a->angles_kept) wait_behind(vectors);
    __syncthreads();
    if (way == MOVED) run_tokens(a, targets, &t, MOVED, 1, first, &found, &angles, &columns);
    else if (kept != 0 && way == IN_LANES) run_tokens(a, targets, &t, IN_LANES, 1, first, &found, &angles, &columns);
    else if (way == IN_HALVES && vectors == 4) run_tokens(a, targets, &t, IN_HALVES, 4, first, &found, &angles, &columns);
    else if (way == IN_HALVES) run_tokens(a, targets, &t, IN_HALVES, 2, first, &found, &angles, &columns);
    else if (vectors == 2) run_tokens(a, targets, &t, BY_ITSELF, 2, first, &found, &angles, &columns);
    else run_tokens(a, targets, &t, BY_ITSELF, 1, first, &found, &angles, &columns);
}

/* ---- entries: blocks along y share the units of the same tokens; _heads: behind norms; _blocks: some parts go into blocks, which are of a row's lanes, too ---- */

#define FEW(name, only, heads)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS) name(const __grid_constant__ cache_arguments arguments) {           \
        const cache_targets targets = {0, 0};                                                                                      \
        grid_release();                                                                                                            \
        run_few(only, heads, &arguments, &targets);                                                                                \
    }
#define FEW_BLOCKS(name, only)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS) name(const __grid_constant__ cache_blocks_arguments arguments) {    \
        const cache_targets targets = {arguments.to, 0};                                                                           \
        grid_release();                                                                                                            \
        run_few(only, true, &arguments.call, &targets);                                                                            \
    }

FEW(cache_vectors_one, true, false)
FEW(cache_vectors_one_heads, true, true)
FEW_BLOCKS(cache_vectors_one_blocks, true)
FEW(cache_vectors_few, false, false)
FEW(cache_vectors_few_heads, false, true)
FEW_BLOCKS(cache_vectors_few_blocks, false)

extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 3) cache_vectors(const __grid_constant__ cache_arguments arguments) {
    const cache_targets targets = {0, 0};
    grid_release();
    run_all(&arguments, &targets, 0);
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 3) cache_vectors_heads(const __grid_constant__ cache_arguments arguments) {
    __shared__ norm_lanes columns[CACHE_PARTS];
    const cache_targets targets = {0, 0};
    grid_release();
    run_all(&arguments, &targets, columns);
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 3) cache_vectors_blocks(const __grid_constant__ cache_blocks_arguments arguments) {
    __shared__ norm_lanes columns[CACHE_PARTS];
    __shared__ float seconds[CACHE_PARTS];
    const cache_targets targets = {arguments.to, seconds};
    grid_release();
    run_all(&arguments.call, &targets, columns);
}
