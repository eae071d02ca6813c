/* Tokens into caches, and keys and queries turned on the way, of rows that lie side by side at multiples of 16 bytes: a thread block for each few tokens, or several for one. A thread
 * turns eight elements and their partners in fp32, or moves 16 bytes. All that it turns is asked for before any of it is looked at. Resources and speed: README.md. */
#include "kernels/cache/places.cuh"
#include "kernels/gpu/ptx/cluster.cuh"
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

INLINE void run_item(const cache_arguments *a, const cache_item *item, int64_t token) {
    const cache_part *p = &a->parts[item->part];
    if (!p->turned) {
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

/* What is moved does not depend on where it goes: it is asked for before row and position are looked at. */
INLINE void run_only(const cache_arguments *a) {
    const cache_place nowhere = {-1, 0};
    for (uint32_t i = blockIdx.y * CUDA_THREADS + threadIdx.x; i < (uint32_t)a->units; i += gridDim.y * CUDA_THREADS) {
        cache_item item = cache_item_at(a, 0, &nowhere, i);
        const cache_part *p = &a->parts[item.part];
        const bool halves = is_in_halves(a, p, &item);
        halves_words words;
        if (halves) words = bring_halves(a, p, &item, 0);
        if (!p->turned) words.x.low = ((const uint4 *)p->from.data)[item.from + item.unit];
        const cache_place place = place_of_only(a, i == 0);
        item = cache_item_at(a, 0, &place, i);
        if (item.to < 0) continue;
        if (halves) turn_halves(a, p, &item, &words);
        else if (!p->turned) ((uint4 *)p->to.data)[item.to + item.unit] = words.x.low;
        else run_item(a, &item, 0);
    }
}

/* ---- entries: blocks along y share the units of the same tokens ---- */

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) cache_vectors_one(const __grid_constant__ cache_arguments arguments) {
    grid_release();
    grid_wait();
    run_only(&arguments);
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 4) cache_vectors(const __grid_constant__ cache_arguments arguments) {
    const cache_arguments *a = &arguments;
    const uint32_t units = (uint32_t)a->units, all = units * (uint32_t)a->together;
    grid_release();
    grid_wait();
    const int64_t first = (int64_t)blockIdx.x * a->together;
    const cache_place *places = cache_places(a, first, blockIdx.y == 0);
    for (uint32_t i = blockIdx.y * CUDA_THREADS + threadIdx.x; i < all; i += gridDim.y * CUDA_THREADS) {
        const uint32_t token = i / units;
        if (first + token >= a->tokens) break;
        const cache_item item = cache_item_at(a, first + token, &places[token], i - token * units);
        if (item.to >= 0) run_item(a, &item, first + token);
    }
}
