/* sample: a block of 256 threads for each row of logits, which it reads again and again: for the largest and the sum, a digit of 8 bits at a time for each cut, for the draw, and once for each
 * of the likeliest. What decides on an id is that of op/sampling.h; sums of exponentials are in double. tally: a thread for each id. Resources: 12 KiB of shared memory. Speed: not measured. */
#include "kernels/gpu/plain/device.cuh"
#include "kernels/sample/sample_cuda.h"
#include "op/sampling.h"

enum { DIGIT = 8, BUCKETS = 1 << DIGIT, ORDER = 32, WORDS = 4, NONE = 0x7fffffff };

BLOCK_MAX(block_max)
BLOCK_SUM(block_sum)
BLOCK_REDUCE(block_most, unsigned long long, a > b ? a : b)

/* A row; the last id that is kept, in order: those of a larger order, of the same one ids up to this. */
typedef struct sample_row {
    int64_t row, picked;
    sampling_settings settings;
    float largest;
    uint32_t order;
    int32_t last;
} sample_row;

DEVICE float logit_of(const sample_arguments *a, const sample_row *r, int64_t id) { return load_float(&a->logits, r->row * a->count + id); }

/* As bias, mask and counts make it: -inf where the id is out. */
DEVICE float adjusted(const sample_arguments *a, const sample_row *r, int64_t id) {
    float x = logit_of(a, r, id);
    if (r->picked < 0) return x;
    if (a->bias.data != 0) x = SAMPLING_ADD(x, load_float(&a->bias, r->picked * a->count + id));
    if (a->mask.data != 0 && (load_int(&a->mask, r->picked * a->mask_words + id / 32) >> (id % 32) & 1) == 0) return -INFINITE;
    return a->counts.data != 0 ? sampling_penalise(x, (int32_t)load_int(&a->counts, r->picked * a->count + id), &r->settings) : x;
}

DEVICE int is_kept(const sample_row *r, float x, int64_t id) {
    const uint32_t order = sampling_order(x);
    return x != -INFINITE && (order > r->order || (order == r->order && id <= r->last));
}

/* Orders as a number does and, of equal ones, from the least id on; never 0. */
DEVICE unsigned long long rank_of(float x, int64_t id) { return (unsigned long long)sampling_order(x) << 32 | (0xffffffffu - (uint32_t)id); }
DEVICE int64_t id_of(unsigned long long rank) { return (int64_t)(0xffffffffu - (uint32_t)rank); }

DEVICE uint32_t weight_of(const sample_row *r, float x, int masses) { return masses ? (uint32_t)sampling_mass(sampling_heat(x, r->largest, r->settings.temperature)) : 1; }

/* ---- cuts ---- */

/* What the threads of a block tell each other. */
typedef struct cut_state { unsigned long long before, wanted; uint32_t order; int32_t last; } cut_state;

/* The sums of a digit, of what is kept and has the digits in front of it. */
DEVICE void fill_buckets(const sample_arguments *a, const sample_row *r, int shift, uint32_t order, int masses, unsigned long long *buckets) {
    __syncthreads();
    for (int i = threadIdx.x; i < BUCKETS; i += CUDA_THREADS) buckets[i] = 0;
    __syncthreads();
    for (int64_t id = threadIdx.x; id < a->count; id += CUDA_THREADS) {
        const float x = adjusted(a, r, id);
        const uint32_t own = sampling_order(x);
        if (!is_kept(r, x, id) || ((uint64_t)(own ^ order) >> (shift + DIGIT)) != 0) continue;
        atomicAdd(&buckets[own >> shift & (BUCKETS - 1)], (unsigned long long)weight_of(r, x, masses));
    }
    __syncthreads();
}

/* Of the ids that have the order of the cut the one whose number is wanted; all of them in the row's order, a stretch for each thread. */
DEVICE void find_tie(const sample_arguments *a, const sample_row *r, cut_state *state, unsigned long long *buckets) {
    const int64_t stretch = (a->count + CUDA_THREADS - 1) / CUDA_THREADS, first = threadIdx.x * stretch, end = first + stretch < a->count ? first + stretch : a->count;
    unsigned long long own = 0, before = 0;
    __syncthreads();
    for (int64_t id = first; id < end; id++) {
        const float x = adjusted(a, r, id);
        own += is_kept(r, x, id) && sampling_order(x) == state->order;
    }
    buckets[threadIdx.x] = own;
    __syncthreads();
    for (int i = 0; i < (int)threadIdx.x; i++) before += buckets[i];
    if (before < state->wanted && before + own >= state->wanted) {
        for (int64_t id = first; before < state->wanted; id++) {
            const float x = adjusted(a, r, id);
            before += is_kept(r, x, id) && sampling_order(x) == state->order;
            state->last = (int32_t)id;
        }
    }
    __syncthreads();
}

/* Keeps the fewest ids from the front on whose sum is at least wanted; there are so many. */
DEVICE void cut_at(const sample_arguments *a, sample_row *r, unsigned long long wanted, int masses) {
    __shared__ unsigned long long buckets[BUCKETS];
    __shared__ cut_state state;
    uint32_t order = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        const cut_state start = {0, wanted, 0, NONE};
        state = start;
    }
    for (int shift = ORDER - DIGIT; shift >= 0; shift -= DIGIT) {
        fill_buckets(a, r, shift, order, masses, buckets);
        if (threadIdx.x == 0) {
            int bucket = BUCKETS - 1;
            for (; state.before + buckets[bucket] < wanted; bucket--) state.before += buckets[bucket];
            state.order |= (uint32_t)bucket << shift;
        }
        __syncthreads();
        order = state.order;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        const float x = small_float((int32_t)(order ^ (order >> 31 != 0 ? 0x80000000u : 0xffffffffu)));
        const unsigned long long each = weight_of(r, x, masses);
        state.wanted = (wanted - state.before + each - 1) / each;
    }
    find_tie(a, r, &state, buckets);
    r->order = order;
    r->last = state.last;
}

/* ---- the id ---- */

DEVICE int64_t draw_among(const sample_arguments *a, const sample_row *r) {
    const uint64_t seed = (uint64_t)load_int(&a->draw, 2 * r->row), number = (uint64_t)load_int(&a->draw, 2 * r->row + 1);
    const float least = sampling_least_heat(r->settings.min_p);
    unsigned long long best = 0;
    for (int64_t group = threadIdx.x; group * WORDS < a->count; group += CUDA_THREADS) {
        const philox_words words = sampling_words(seed, number, (uint32_t)group);
        for (int word = 0; word < WORDS && group * WORDS + word < a->count; word++) {
            const int64_t id = group * WORDS + word;
            const float x = adjusted(a, r, id), heat = sampling_heat(x, r->largest, r->settings.temperature);
            if (!is_kept(r, x, id) || !(heat >= least)) continue;
            const unsigned long long rank = rank_of(SAMPLING_ADD(heat, sampling_noise(words.word[word])), id);
            best = rank > best ? rank : best;
        }
    }
    return id_of(block_most(best));
}

/* The mass of what is kept. */
DEVICE double mass_of(const sample_arguments *a, const sample_row *r) {
    double sum = 0;
    for (int64_t id = threadIdx.x; id < a->count; id += CUDA_THREADS) {
        const float x = adjusted(a, r, id);
        if (is_kept(r, x, id)) sum += weight_of(r, x, 1);
    }
    return block_sum(sum);
}

DEVICE int64_t choose(const sample_arguments *a, sample_row *r) {
    const sampling_settings *s = &r->settings;
    unsigned long long best = 0;
    double left = 0, largest = -(double)INFINITE;
    for (int64_t id = threadIdx.x; id < a->count; id += CUDA_THREADS) {
        const float x = adjusted(a, r, id);
        const unsigned long long rank = rank_of(x, id);
        largest = largest != largest || (double)x <= largest ? largest : (double)x;
        left += x != -INFINITE;
        best = rank > best ? rank : best;
    }
    largest = block_max(largest);
    left = block_sum(left);
    best = block_most(best);
    if (!(largest < (double)INFINITE)) return SAMPLING_NOT_FINITE;
    if (left == 0) return SAMPLING_NOTHING_LEFT;
    if (s->temperature == 0) return id_of(best);
    r->largest = (float)largest;
    if (s->top_k >= 1 && (double)s->top_k < left) cut_at(a, r, (unsigned long long)s->top_k, 0);
    if (s->top_p > 0 && s->top_p < 1) cut_at(a, r, (unsigned long long)ceil((double)s->top_p * mass_of(a, r)), 1);
    return draw_among(a, r);
}

/* ---- logarithms ---- */

/* Of the sum of e^logit; NaN where a logit is NaN or +inf. */
DEVICE double log_sum(const sample_arguments *a, const sample_row *r) {
    double largest = -(double)INFINITE, sum = 0;
    for (int64_t id = threadIdx.x; id < a->count; id += CUDA_THREADS) {
        const double x = (double)logit_of(a, r, id);
        largest = largest != largest || x <= largest ? largest : x;
    }
    largest = block_max(largest);
    if (!(largest < (double)INFINITE)) return (double)NOT_A_NUMBER;
    if (largest == -(double)INFINITE) return largest;
    for (int64_t id = threadIdx.x; id < a->count; id += CUDA_THREADS) sum += exp((double)logit_of(a, r, id) - largest);
    return largest + log(block_sum(sum));
}

DEVICE void store_best(const sample_arguments *a, const sample_row *r, double sum, int none) {
    unsigned long long before = ~0ull;
    for (int64_t i = 0; i < a->length; i++) {
        unsigned long long best = 0;
        for (int64_t id = threadIdx.x; id < a->count && !none; id += CUDA_THREADS) {
            const unsigned long long rank = rank_of(logit_of(a, r, id), id);
            if (rank < before && rank > best) best = rank;
        }
        before = block_most(best);
        if (threadIdx.x != 0) continue;
        store_int(&a->best_ids, r->row * a->length + i, none ? -1 : id_of(before));
        store_float(&a->best_logs, r->row * a->length + i, none ? NOT_A_NUMBER : (float)((double)logit_of(a, r, id_of(before)) - sum));
    }
}

/* Are settings and the picked row in range? */
DEVICE int read_settings(const sample_arguments *a, sample_row *r) {
    float values[SAMPLING_SETTINGS];
    for (int i = 0; i < SAMPLING_SETTINGS; i++) values[i] = load_float(&a->settings, r->row * SAMPLING_SETTINGS + i);
    r->settings = sampling_settings_of(values);
    r->picked = a->row.data != 0 ? load_int(&a->row, r->row) : r->row;
    return sampling_are_good(&r->settings) && r->picked >= -1 && r->picked < a->picked_rows;
}

KERNEL(sample_rows, sample_arguments) {
    for (int64_t row = blockIdx.x; row < arguments.rows; row += gridDim.x) {
        sample_row r = {row, 0, {0, 0, 0, 0, 0, 0, 0}, 0, 0, NONE};
        int64_t id = SAMPLING_BAD_SETTINGS;
        double sum = 0;
        if (read_settings(&arguments, &r)) {
            sum = log_sum(&arguments, &r);
            id = sum != sum ? (int64_t)SAMPLING_NOT_FINITE : choose(&arguments, &r);
        }
        store_best(&arguments, &r, sum, id < 0);
        if (threadIdx.x != 0) continue;
        store_int(&arguments.ids, row, id);
        store_float(&arguments.logs, row, id < 0 ? NOT_A_NUMBER : (float)((double)logit_of(&arguments, &r, id) - sum));
    }
}

KERNEL(sample_tally, tally_arguments) {
    for (int64_t i = item_first(); i < arguments.count; i += item_step()) {
        const int64_t id = load_int(&arguments.ids, i), row = load_int(&arguments.row, i);
        if (row < 0 || row >= arguments.rows || id < 0 || id >= arguments.cols) continue;
        atomicAdd((unsigned int *)arguments.counts.data + row * arguments.cols + id, 1u);
    }
}
