/* sample on GPUs with clusters: the blocks of one share a row, each reads its chunk once and keeps it in shared memory.
 *
 *     gmem -> smem   logits as bias, mask and counts make them, in fp32. Where there is none of these bulk copies bring them as they come, all pieces at once, and threads read
 *                    each piece when it is there. What finds no room then is read where it lies
 *     reading        the likeliest, the largest and the sum of e^x of the logits as they come, which are all that a temperature of 0 needs; else about the sum of masses, and fours of ids that the
 *                    draw could give, where all are kept. Blocks send each other what they have read
 *     top_k          histograms of counts in each block, which all blocks add up and walk down: 2048 equal steps below the largest logit, then 11 bits at a time of the ordered logits in the
 *                    step that has the cut; equal ones at the cut by their ids. What is out becomes -inf
 *     draw           4 ids a thread and Philox counter; the scores of four are bounded together from above by fast arithmetic, and exact ones computed of the few whose bound is not below what
 *                    the sum of masses says the winner will have. Behind a cut the row is gone over for that
 *     top_p          of those, the highest that has less than the share of all masses in front of it
 *
 * Whatever is estimated says only where to look first: counts are integers, and so are masses, so ids are those of op/sampling.h.
 * Resources: 4 bytes an id that is kept, or 2, and 16 KiB; 64 registers, of which a block has all. Speed: README.md. */
#include "kernels/sample/cluster_draw.cuh"
#include "kernels/sample/cluster_read.cuh"

INLINE float logit_of(const int format, const sample_arguments *a, const sample_chunk *c, int id) { return element_at(format, a->logits.data, row_of(c) * a->count + id); }

/* The likeliest by the logits as they come, one after the other. */
INLINE void store_best(const int format, const sample_arguments *a, const sample_chunk *c, const bool none) {
    unsigned long long before = ~0ull;
    for (int k = 0; k < (int)a->length; k++) {
        unsigned long long best = 0;
        for (int i = threadIdx.x; i < c->here && !none; i += THREADS) {
            const unsigned long long rank = rank_of(logit_of(format, a, c, c->first + i), c->first + i);
            if (rank < before && rank > best) best = rank;
        }
        before = cluster_most(c, best, k % 2);
        if (cluster_rank() != 0 || threadIdx.x != 0) continue;
        ((int64_t *)a->best_ids.data)[row_of(c) * a->length + k] = none ? -1 : id_of(before);
        ((float *)a->best_logs.data)[row_of(c) * a->length + k] = none ? NOT_A_NUMBER : logit_of(format, a, c, id_of(before)) - c->room->log_sum;
    }
}

INLINE int choose(const sample_arguments *a, sample_chunk *c, const reading *all, bool was_watched) {
    const sampling_settings *s = &c->room->settings;
    c->largest = all->best;
    if (c->largest == -INFINITE) return SAMPLING_NOTHING_LEFT;
    if (s->temperature == 0) return all->id;
    if (threadIdx.x == 0) c->room->divides = divides_safely(s->temperature, c->largest);
    __syncthreads();                  /* heats are computed from here on */
    if (keeps_first(a, c)) keep_first(c, (uint32_t)s->top_k);
    return draw_among(a, c, all->share, was_watched);
}

/* What a row brings beside its logits. It is asked for in front of these, so as not to wait behind them. */
typedef struct request { sampling_settings settings; uint64_t seed, draw; int64_t picked; } request;

INLINE request load_request(const sample_arguments *a, int64_t row) {
    const uint64_t *numbers = (const uint64_t *)a->draw.data + 2 * row;
    const request q = {sampling_settings_of((const float *)a->settings.data + row * SAMPLING_SETTINGS), numbers[0], numbers[1], a->row.data != 0 ? load_int(&a->row, row) : row};
    return q;
}

/* Behind it threads see what the first one has begun with. Are its settings good? */
INLINE bool begin_row(const sample_arguments *a, sample_chunk *c, const request *q) {
    const float temperature = q->settings.temperature;
    if (threadIdx.x == 0) {
        c->room->settings = q->settings;
        c->room->over = temperature > 0 ? 1.0f / temperature : 0;
        c->room->least = sampling_least_heat(q->settings.min_p);
        begin_noise(c->room, q->seed, q->draw);
    }
    __syncthreads();
    c->scale = temperature > 0 ? fminf(1.0f / temperature, 1e30f) * LOG2_E : 0;
    c->picked = q->picked;
    return sampling_are_good(&q->settings) && c->picked >= -1 && c->picked < a->picked_rows;
}

INLINE void sample_chunked(const int format, const sample_arguments *a, cluster_room *room) {
    extern __shared__ __align__(16) float kept[];
    sample_chunk c = {.kept = kept, .format = format == CUDA_f32 || adjusts_logits(a) ? CUDA_f32 : format, .room = room};
    reading all = {-INFINITE, 0, -INFINITE, 0, -LARGEST, NONE};
    int id = SAMPLING_BAD_SETTINGS;
    c.kept_address = (uint32_t)anew((int)shared_address(kept));
    c.room_address = (uint32_t)anew((int)shared_address(room));
    c.first = (int)cluster_rank() * a->chunk;
    c.here = max(0, min(a->chunk, (int)a->count - c.first));
    c.near = min(a->kept, c.here);
    const uint64_t data = a->logits.data + (uint64_t)(row_of(&c) * a->count + c.first) * (format == CUDA_f32 ? 4 : 2);
    if (threadIdx.x == 0) {
        room->listed = room->watching = 0;
        room->candidates = LISTED / cluster_blocks();
        room->data = data;
        room->end.order = 0;
        room->end.last = NONE;
        for (int i = 0; i < COPIES; i++) mbarrier_init(shared_address(&room->piece_full[i]), 1);
        mbarrier_init(shared_address(&room->read_full), 1);
        fence_mbarrier_init();
    }
    cluster_arrive_relaxed();
    grid_release();
    grid_wait();
    const request asked = load_request(a, row_of(&c));
    copy_chunk(format, a, &c, data);
    const bool is_good = begin_row(a, &c, &asked);
    cluster_wait();                   /* all blocks have begun, so that others may write there */
    if (is_good) {
        watch w = {room->settings.temperature > 0 && c.scale > 0 && !keeps_first(a, &c) && !adjusts_logits(a), -INFINITE, -INFINITE, -INFINITE, fminf(room->over, 1e30f)};
        read_chunk(format, a, &c, &w, &all);
        gather_readings(&c, &all);
        if (threadIdx.x == 0) room->log_sum = all.largest + logf(all.sum);
        id = all.sum != all.sum ? (int)SAMPLING_NOT_FINITE : choose(a, &c, &all, w.is_on);
    } else {
        await_chunk(&c);
    }
    const int at = id - c.first;
    if (threadIdx.x == 0 && (id < 0 ? cluster_rank() == 0 : at >= 0 && at < c.here)) {
        float log = NOT_A_NUMBER;
        if (id >= 0) log = (adjusts_logits(a) ? logit_of(format, a, &c, id) : room->settings.temperature == 0 ? c.largest : kept_at(&c, at)) - room->log_sum;
        ((int64_t *)a->ids.data)[row_of(&c)] = id;
        ((float *)a->logs.data)[row_of(&c)] = log;
    }
    if (a->length == 0) return;       /* since the cluster met last nothing is read of other blocks */
    meet();
    store_best(format, a, &c, id < 0);
    meet();                           /* no block ends while another one reads what it shows */
}

#define ENTRY(name, format)                                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const __grid_constant__ sample_arguments arguments) {                     \
        __shared__ cluster_room room;                                                                                                      \
        sample_chunked(format, &arguments, &room);                                                                                         \
    }

ENTRY(sample_cluster_f32, CUDA_f32)
ENTRY(sample_cluster_bf16, CUDA_bf16)
ENTRY(sample_cluster_f16, CUDA_f16)
