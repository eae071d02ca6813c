/* Tokens into caches, and keys and queries turned on the way, of rows that lie side by side at multiples of 16 bytes: a thread block for each few tokens, or several for one. A thread
 * turns eight elements and their partners in fp32, or moves 16 bytes. All that it turns is asked for before any of it is looked at. Behind a norm of heads, and into caches in blocks, a thread has eight
 * elements alone, and the threads of a row, which lie in one warp, exchange sums, partners and largest numbers. Resources and speed: README.md. */
#include "kernels/cache/places.cuh"
#include "kernels/gpu/ptx/cluster.cuh"
#include "kernels/quantize/blocks.cuh"
#include "kernels/rotary/turn.cuh"

/* Eight elements as they lie: of f32 both words. */
typedef struct vector_words { uint4 low, high; } vector_words;

INLINE vector_words bring_vector(const cuda_array *array, int64_t at) {
    vector_words words = {load_uint4(array, at, array->element_bytes), {0, 0, 0, 0}};
    if (array->element_bytes == 4) words.high = load_uint4(array, at + 4, 4);
    return words;
}

INLINE void unpack_vector(const cuda_array *array, const vector_words *words, float *x) {
    if (array->format == CUDA_bf16) {
        unpack_halves(CUDA_bf16, words->low, x);
    } else if (array->format == CUDA_f16) {
        unpack_halves(CUDA_f16, words->low, x);
    } else {
        const uint32_t bits[PIECE] = {words->low.x, words->low.y, words->low.z, words->low.w, words->high.x, words->high.y, words->high.z, words->high.w};
        EACH_OF_PIECE(i) x[i] = __uint_as_float(bits[i]);
    }
}

/* What eight elements and their partners are turned of. */
typedef struct halves_words { vector_words x, y, low_cosine, low_sine, high_cosine, high_sine; } halves_words;

INLINE halves_words bring_halves(const cache_arguments *a, const cache_part *p, const cache_item *item, int64_t token) {
    const int64_t i = item->unit * CUDA_VECTOR, j = i + a->width / 2, cosine = token * a->cosine_token, sine = token * a->sine_token;
    return (halves_words){bring_vector(&p->from, item->from + i), bring_vector(&p->from, item->from + j), bring_vector(&a->cosine, cosine + i), bring_vector(&a->sine, sine + i),
                          bring_vector(&a->cosine, cosine + j), bring_vector(&a->sine, sine + j)};
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

INLINE void turn_neighbours(const cache_arguments *a, const cache_part *p, const cache_item *item, int64_t token) {
    const int64_t i = item->unit * CUDA_VECTOR;
    const vector_words words[3] = {bring_vector(&p->from, item->from + i), bring_vector(&a->cosine, token * a->cosine_token + i), bring_vector(&a->sine, token * a->sine_token + i)};
    float x[PIECE], cosine[PIECE], sine[PIECE], turned[PIECE];
    unpack_vector(&p->from, &words[0], x);
    unpack_vector(&a->cosine, &words[1], cosine);
    unpack_vector(&a->sine, &words[2], sine);
    turn_four(x, cosine, sine, turned);
    store_vector(&p->to, item->to + i, turned);
}

/* Eight elements behind the width. */
INLINE void copy_rest(const cache_part *p, const cache_item *item, int64_t i) {
    const int bytes = p->from.element_bytes;
    store_uint4(&p->to, item->to + i, bytes, load_uint4(&p->from, item->from + i, bytes));
    if (bytes == 4) store_uint4(&p->to, item->to + i + 4, bytes, load_uint4(&p->from, item->from + i + 4, bytes));
}

/* Units of a head's row that are turned. */
INLINE int64_t turned_units(const cache_arguments *a) { return (a->interleaved ? a->width : a->width / 2) / CUDA_VECTOR; }
INLINE bool is_in_halves(const cache_arguments *a, const cache_part *p, const cache_item *item) { return p->turned && !a->interleaved && item->unit < turned_units(a); }

/* ---- a row that lanes share: norms bit for bit as kernels/norm/norm_rows.cu and what turns its result have it ---- */

typedef struct norm_words { vector_words weight, bias; } norm_words;

/* What no launch of the run writes. */
INLINE norm_words bring_columns(const cache_part *p, const cache_item *item) {
    norm_words words = {{{0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}}};
    if (p->norm.weight.data != 0) words.weight = bring_vector(&p->norm.weight, item->unit * CUDA_VECTOR);
    if (p->norm.bias.data != 0) words.bias = bring_vector(&p->norm.bias, item->unit * CUDA_VECTOR);
    return words;
}

typedef struct head_words { uint4 x; vector_words cosine, sine; } head_words;

INLINE bool is_turned(const cache_arguments *a, const cache_part *p, const cache_item *item) { return p->turned && item->unit * CUDA_VECTOR < a->width; }

INLINE head_words bring_head(const cache_arguments *a, const cache_part *p, const cache_item *item, int64_t token) {
    const int64_t i = item->unit * CUDA_VECTOR;
    head_words words = {load_uint4(&p->from, item->from + i, 2), {{0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}}};
    if (!is_turned(a, p, item)) return words;
    words.cosine = bring_vector(&a->cosine, token * a->cosine_token + i);
    words.sine = bring_vector(&a->sine, token * a->sine_token + i);
    return words;
}

/* The lanes that share a row with this one. */
INLINE uint32_t lanes_of(const cache_part *p) { return (~0u >> (32 - p->lanes)) << (threadIdx.x % 32 & ~(p->lanes - 1)); }

INLINE float lanes_sum(const cache_part *p, float x) {
#pragma unroll 1
    for (int step = p->lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(lanes_of(p), x, step);
    return x;
}

INLINE float sum_of_piece(const float x[PIECE]) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PIECE; i++) sum += x[i];
    return sum;
}
INLINE float squares_of_piece(const float x[PIECE]) {
    float sum = x[0] * x[0];
#pragma unroll
    for (int i = 1; i < PIECE; i++) sum = fmaf(x[i], x[i], sum);
    return sum;
}

INLINE void normalise_piece(const cache_part *p, const norm_words *columns, float x[PIECE]) {
    const cache_norm *n = &p->norm;
    float low = 0, y[PIECE];
    if (n->centred) {
        const float mean = lanes_sum(p, sum_of_piece(x)) * n->by_count;
        EACH_OF_PIECE(i) x[i] -= mean;
        low = lanes_sum(p, sum_of_piece(x)) * n->by_count;
    }
    const float variance = lanes_sum(p, squares_of_piece(x)) * n->by_count - low * low, scale = rsqrtf((variance < 0 ? 0 : variance) + n->eps), shift = -low * scale;
    EACH_OF_PIECE(i) x[i] = fmaf(x[i], scale, shift);
    if (n->weight.data != 0) {
        unpack_vector(&n->weight, &columns->weight, y);
        EACH_OF_PIECE(i) x[i] *= y[i];
    }
    if (n->bias.data != 0) {
        unpack_vector(&n->bias, &columns->bias, y);
        EACH_OF_PIECE(i) x[i] += y[i];
    }
}

/* What the lane of the other half has. All of a row's lanes come here. */
INLINE uint4 partner_of(const cache_arguments *a, const cache_part *p, const cache_item *item, uint4 own) {
    const int half = (int)a->width / (2 * CUDA_VECTOR), unit = (int)item->unit;
    const bool has_one = p->turned && !a->interleaved && unit < 2 * half;
    const int lane = (int)(threadIdx.x % 32) + (!has_one ? 0 : unit < half ? half : -half);
    const uint32_t lanes = lanes_of(p);
    return make_uint4(__shfl_sync(lanes, own.x, lane), __shfl_sync(lanes, own.y, lane), __shfl_sync(lanes, own.z, lane), __shfl_sync(lanes, own.w, lane));
}

/* Eight elements of a head's row and what becomes of them in front of where they go, as they lie there: behind the norm, and turned. */
INLINE uint4 make_head(const cache_arguments *a, const cache_part *p, const cache_item *item, const head_words *words, const norm_words *columns) {
    const int format = p->from.format;
    uint4 own = words->x;
    float x[PIECE], y[PIECE], cosine[PIECE], sine[PIECE], low[PIECE], high[PIECE];
    if (p->norm.is_there) {
        unpack_halves(format, own, x);
        normalise_piece(p, columns, x);
        own = pack_halves(format, x);
    }
    const uint4 other = partner_of(a, p, item, own);
    if (!is_turned(a, p, item)) return own;
    unpack_vector(&a->cosine, &words->cosine, cosine);
    unpack_vector(&a->sine, &words->sine, sine);
    const bool is_high = !a->interleaved && item->unit >= a->width / (2 * CUDA_VECTOR);
    unpack_halves(format, is_high ? other : own, x);
    unpack_halves(format, is_high ? own : other, y);
    if (a->interleaved) turn_four(x, cosine, sine, low);
    else turn_pairs(x, y, cosine, sine, cosine, sine, low, high);
    EACH_OF_PIECE(k) low[k] = is_high ? high[k] : low[k];
    return pack_halves(format, low);
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
    return __shfl_sync(lanes_of(p), (int)threadIdx.x % 32 == first ? second_of(to) : 0, first);
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
#pragma unroll 1
    for (int step = of_block / 2; step > 0; step /= 2) most = max(most, __shfl_xor_sync(lanes_of(p), most, step));
    const float inverse = make_scale(to, __uint_as_float(most), second, unit % of_block == 0, item->to * to->scale_cols + unit * PIECE / (int)to->block_cols);
    EACH_OF_PIECE(i) x[i] *= inverse;
    const uint2 codes = piece_codes(to->format, x);
    uint8_t *bytes = (uint8_t *)to->data + item->to * to->row_bytes + unit * bits;
    if (bits == 8) *(uint2 *)bytes = codes;
    else if (bits == 4) *(uint32_t *)bytes = codes.x;
    else ((uint16_t *)bytes)[0] = (uint16_t)codes.x, ((uint16_t *)bytes)[1] = (uint16_t)(codes.x >> 16), ((uint16_t *)bytes)[2] = (uint16_t)codes.y;
}

/* Where the parts that go into blocks go, none: there are none; and each part's second level, none: a row's lanes look for it. */
typedef struct cache_targets { const cuda_rows *blocks; const float *seconds; } cache_targets;

INLINE void end_head(const cache_arguments *a, const cache_targets *targets, const cache_item *item, const head_words *words, const norm_words *columns) {
    const cache_part *p = &a->parts[item->part];
    const uint4 made = make_head(a, p, item, words, columns);
    const cuda_rows *to = targets->blocks == 0 ? 0 : &targets->blocks[item->part];
    if (to == 0 || to->block_cols == 0) store_uint4(&p->to, item->to + item->unit * CUDA_VECTOR, 2, made);
    else store_head_in_blocks(p, to, item, targets->seconds != 0 ? targets->seconds[item->part] : lanes_second(p, to), made);
}

/* heads: do lanes share rows of some parts? */
INLINE void run_item(const bool heads, const cache_arguments *a, const cache_targets *targets, const cache_item *item, int64_t token) {
    const cache_part *p = &a->parts[item->part];
    if (heads && p->lanes > 0) {
        const norm_words columns = bring_columns(p, item);
        const head_words words = bring_head(a, p, item, token);
        end_head(a, targets, item, &words, &columns);
    } else if (!p->turned) {
        ((uint4 *)p->to.data)[item->to + item->unit] = ((const uint4 *)p->from.data)[item->from + item->unit];
    } else if (is_in_halves(a, p, item)) {
        const halves_words words = bring_halves(a, p, item, token);
        turn_halves(a, p, item, &words);
    } else if (item->unit >= turned_units(a)) {
        copy_rest(p, item, a->width + (item->unit - turned_units(a)) * CUDA_VECTOR);
    } else {
        turn_neighbours(a, p, item, token);
    }
}

/* ---- a run's only token ---- */

/* Without a table row and position are asked for side by side. */
INLINE cache_place place_of_only(const cache_arguments *a, bool raises) {
    if (a->has_table || a->row.format != CUDA_i64 || a->position.format != CUDA_i64) return cache_only_place(a, raises);
    const int64_t row = *(const int64_t *)a->row.data, position = *(const int64_t *)a->position.data;
    if (row < 0 || row >= a->rows || position < 0) return cache_only_place(a, raises);
    return (cache_place){row, (position | a->slots) <= UINT32_MAX ? (int64_t)((uint32_t)position % (uint32_t)a->slots) : position % a->slots};
}

/* What is moved does not depend on where it goes: it is asked for before row and position are looked at; a norm's columns, before the launches in front have ended. */
INLINE void run_only(const bool heads, const cache_arguments *a, const cache_targets *targets) {
    const cache_place nowhere = {-1, 0};
    uint32_t i = blockIdx.y * CUDA_THREADS + threadIdx.x;
    cache_item item = cache_item_at(a, 0, &nowhere, i);
    norm_words columns;
    if (heads && i < (uint32_t)a->units && a->parts[item.part].lanes > 0) columns = bring_columns(&a->parts[item.part], &item);
    grid_wait();
    if (targets->blocks != 0 && blockIdx.y == 0 && threadIdx.x < (unsigned)a->count) second_of(&targets->blocks[threadIdx.x]);   /* of a token that goes nowhere, too */
    while (i < (uint32_t)a->units) {
        const cache_part *p = &a->parts[item.part];
        const bool normed = heads && p->lanes > 0, halves = !normed && is_in_halves(a, p, &item);
        halves_words words;
        head_words head;
        if (normed) head = bring_head(a, p, &item, 0);
        else if (halves) words = bring_halves(a, p, &item, 0);
        else if (!p->turned) words.x.low = ((const uint4 *)p->from.data)[item.from + item.unit];
        const cache_place place = place_of_only(a, i == 0);
        item = cache_item_at(a, 0, &place, i);
        if (item.to >= 0) {
            if (normed) end_head(a, targets, &item, &head, &columns);
            else if (halves) turn_halves(a, p, &item, &words);
            else if (!p->turned) ((uint4 *)p->to.data)[item.to + item.unit] = words.x.low;
            else run_item(false, a, targets, &item, 0);
        }
        i += gridDim.y * CUDA_THREADS;
        if (i >= (uint32_t)a->units) break;
        item = cache_item_at(a, 0, &nowhere, i);
        if (heads && a->parts[item.part].lanes > 0) columns = bring_columns(&a->parts[item.part], &item);
    }
}

/* ---- all of them ---- */

INLINE void run_all(const bool heads, const cache_arguments *a, const cache_targets *targets) {
    const uint32_t units = (uint32_t)a->units, all = units * (uint32_t)a->together;
    const int64_t first = (int64_t)blockIdx.x * a->together;
    const cache_place *places = cache_places(a, first, blockIdx.y == 0);
    for (uint32_t i = blockIdx.y * CUDA_THREADS + threadIdx.x; i < all; i += gridDim.y * CUDA_THREADS) {
        const uint32_t token = i / units;
        if (first + token >= a->tokens) break;
        const cache_item item = cache_item_at(a, first + token, &places[token], i - token * units);
        if (item.to >= 0) run_item(heads, a, targets, &item, first + token);
    }
}

/* ---- entries: blocks along y share the units of the same tokens; _heads: behind norms; _blocks: some parts go into blocks, which are of a row's lanes, too ---- */

#define ONE(name, heads)                                                                                                           \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS) name(const __grid_constant__ cache_arguments arguments) {           \
        const cache_targets targets = {0, 0};                                                                                      \
        grid_release();                                                                                                            \
        run_only(heads, &arguments, &targets);                                                                                     \
    }
#define ALL(name, heads, blocks)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS, blocks) name(const __grid_constant__ cache_arguments arguments) {   \
        const cache_targets targets = {0, 0};                                                                                      \
        grid_release();                                                                                                            \
        grid_wait();                                                                                                               \
        run_all(heads, &arguments, &targets);                                                                                      \
    }

ONE(cache_vectors_one, false)
ONE(cache_vectors_one_heads, true)
ALL(cache_vectors, false, 4)
ALL(cache_vectors_heads, true, 3)

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) cache_vectors_one_blocks(const __grid_constant__ cache_blocks_arguments arguments) {
    const cache_targets targets = {arguments.to, 0};
    grid_release();
    run_only(true, &arguments.call, &targets);
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 3) cache_vectors_blocks(const __grid_constant__ cache_blocks_arguments arguments) {
    __shared__ float seconds[CACHE_PARTS];
    const cache_targets targets = {arguments.to, seconds};
    grid_release();
    grid_wait();
    if (threadIdx.x < (unsigned)arguments.call.count) seconds[threadIdx.x] = second_of(&arguments.to[threadIdx.x]);
    run_all(true, &arguments.call, &targets);   /* which meets before it reads them */
}
