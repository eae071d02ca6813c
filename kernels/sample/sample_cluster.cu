/* sample on GPUs with clusters: the blocks of one share a row, each reads its chunk once and keeps it in shared memory.
 *
 *     gmem -> smem   logits as bias, mask and counts make them, in fp32. Where there is none of these the copy engine brings them as they come, all pieces at once, and threads read
 *                    each piece when it is there
 *     reading        the likeliest, the largest and the sum of e^x of the logits as they come, and about the sum of masses. The likeliest alone needs no more
 *     top_k          histograms of counts in each block, which all blocks add up and walk down: 2048 equal steps below the largest logit, then 11 bits at a time of the ordered logits in the
 *                    step that has the cut; equal ones at the cut by their ids. What is out becomes -inf
 *     draw           4 ids a thread and Philox counter; the scores of four are bounded together from above by fast arithmetic, and exact ones computed of the few whose bound is not below what
 *                    the sum of masses says the winner will have
 *     top_p          of those, the highest that has less than the share of all masses in front of it
 *
 * Whatever is estimated says only where to look first: counts are integers, and so are masses, so ids are those of op/sampling.h.
 * Resources: 4 bytes an id of the chunk, or 2, and 12 KiB. Speed: README.md. */
#include "kernels/sample/cluster_draw.cuh"
#include "kernels/sample/cluster_read.cuh"

INLINE float logit_of(const int format, const sample_arguments *a, const sample_chunk *c, int id) { return element_at(format, a->logits.data, row_of(c) * a->count + id); }

/* The likeliest by the logits as they come, one after the other. */
INLINE void store_best(const int format, const sample_arguments *a, const sample_chunk *c, float log_sum, const bool none) {
    unsigned long long before = ~0ull;
    for (int k = 0; k < (int)a->length; k++) {
        unsigned long long best = 0;
        for (int i = threadIdx.x; i < c->here && !none; i += THREADS) {
            const unsigned long long rank = rank_of(logit_of(format, a, c, c->first + i), c->first + i);
            if (rank < before && rank > best) best = rank;
        }
        before = cluster_most(c, best, k % 2);
        if (c->rank != 0 || threadIdx.x != 0) continue;
        ((int64_t *)a->best_ids.data)[row_of(c) * a->length + k] = none ? -1 : id_of(before);
        ((float *)a->best_logs.data)[row_of(c) * a->length + k] = none ? NOT_A_NUMBER : logit_of(format, a, c, id_of(before)) - log_sum;
    }
}

INLINE int choose(const sample_arguments *a, sample_chunk *c) {
    const sampling_settings *s = &c->room->settings;
    const unsigned long long best = c->room->best;
    c->largest = logit_of_order((uint32_t)(best >> 32));
    if (best == 0 || c->largest == -INFINITE) return SAMPLING_NOTHING_LEFT;
    if (s->temperature == 0) return id_of(best);
    c->divides = divides_safely(s->temperature, c->largest);
    if (s->top_k >= 1 && s->top_k < (float)a->count) keep_first(c, (uint32_t)s->top_k);
    return draw_among(a, c);
}

/* Behind it threads see what the first one has begun with. */
INLINE bool read_settings(const sample_arguments *a, sample_chunk *c) {
    const sampling_settings settings = sampling_settings_of((const float *)a->settings.data + row_of(c) * SAMPLING_SETTINGS);
    if (threadIdx.x == 0) {
        const int64_t *numbers = (const int64_t *)a->draw.data + 2 * row_of(c);
        c->room->settings = settings;
        c->room->least = sampling_least_heat(settings.min_p);
        c->room->seed = (uint64_t)numbers[0];
        c->room->draw = (uint64_t)numbers[1];
    }
    __syncthreads();
    c->over = settings.temperature > 0 ? 1.0f / settings.temperature : 0;
    c->scale = fminf(c->over, 1e30f) * LOG2_E;
    c->picked = a->row.data != 0 ? load_int(&a->row, row_of(c)) : row_of(c);
    return sampling_are_good(&settings) && c->picked >= -1 && c->picked < a->picked_rows;
}

INLINE void sample_chunked(const int format, const sample_arguments *a, cluster_room *room) {
    extern __shared__ __align__(16) float kept[];
    sample_chunk c = {kept, format == CUDA_f32 || adjusts_logits(a) ? CUDA_f32 : format, room};
    reading all = {-INFINITE, 0, -INFINITE, 0, NONE, 0};
    int id = SAMPLING_BAD_SETTINGS;
    c.rank = cluster_rank();
    c.blocks = cluster_blocks();
    c.first = (int)c.rank * a->chunk;
    c.here = max(0, min(a->chunk, (int)a->count - c.first));
    if (threadIdx.x == 0) {
        room->listed = 0;
        for (int i = 0; i < COPIES; i++) mbarrier_init(shared_address(&room->piece_full[i]), 1);
        fence_mbarrier_init();
    }
    grid_release();
    grid_wait();
    copy_chunk(format, a, &c);
    if (read_settings(a, &c)) {
        read_chunk(format, a, &c, &all);
        gather_readings(&c, &all);
        id = all.bad ? (int)SAMPLING_NOT_FINITE : choose(a, &c);
    } else {
        await_chunk(&c);
    }
    const float log_sum = id == SAMPLING_BAD_SETTINGS ? 0 : room->all.largest + logf(room->all.sum);
    if (a->length > 0) meet();
    store_best(format, a, &c, log_sum, id < 0);
    if (c.rank == 0 && threadIdx.x == 0) {
        ((int64_t *)a->ids.data)[row_of(&c)] = id;
        ((float *)a->logs.data)[row_of(&c)] = id < 0 ? NOT_A_NUMBER : logit_of(format, a, &c, id) - log_sum;
    }
    meet();                           /* no block ends while another one reads what it shows */
}

#define ENTRY(name, format)                                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) name(const __grid_constant__ sample_arguments arguments) {                     \
        __shared__ cluster_room room;                                                                                                      \
        sample_chunked(format, &arguments, &room);                                                                                         \
    }

ENTRY(sample_cluster_f32, CUDA_f32)
ENTRY(sample_cluster_bf16, CUDA_bf16)
ENTRY(sample_cluster_f16, CUDA_f16)
