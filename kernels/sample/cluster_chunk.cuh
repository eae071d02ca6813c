/* sample by clusters: what a block keeps of a row, and what the blocks of a cluster show each other. */
#ifndef KERNELS_SAMPLE_CLUSTER_CHUNK_CUH
#define KERNELS_SAMPLE_CLUSTER_CHUNK_CUH

#include "kernels/gpu/ptx/bulk.cuh"
#include "kernels/gpu/ptx/ldst.cuh"
#include "kernels/gpu/ptx/math.cuh"
#include "kernels/gpu/ptx/warp.cuh"
#include "kernels/gpu/rows/row_parts.cuh"
#include "kernels/sample/sample_cuda.h"
#include "op/sampling.h"

#include <stddef.h>

#define LOG2_E 1.44269504f
#define LARGEST 3.40282347e38f

enum { THREADS = SAMPLE_CLUSTER_THREADS, WARPS = THREADS / 32, DIGIT = 11, BUCKETS = 1 << DIGIT, WORDS = 4, NONE = 0x7fffffff };
enum { OF_THREAD = 4, LISTED = 256 };   /* buckets of a thread that has some; candidates of a row at most, as many of each block; a thread holds one */
enum { STEP = THREADS * WORDS, COPIES = (SAMPLE_CLUSTER_MOST + STEP - 1) / STEP };   /* ids that a block reads in a step, which come as one copy */
static_assert(BUCKETS <= OF_THREAD * THREADS, "each bucket has a thread");

/* What a block shows the others; each is written once between two meetings of the cluster. What is short is written to all of them, so that none waits for it behind the meeting. */
typedef struct shown { __align__(16) float largest; float sum, best, share; uint32_t high, low, count; } shown;
enum { SENT = 24 };                   /* bytes of it that blocks send each other when they have read: up to count */

/* What was read: the largest logit and the sum of e^x as they come; the likeliest as they are kept, its id, and about the sum of masses beside it; from: what e^x is over as it is summed. Where some are NaN or +inf, sum is NaN. */
typedef struct reading { float largest, sum, best, share, from; int id; } reading;

/* Which bucket has a cut, -1: it is behind all; how many are in front of it, and in it. last: the last of equal ids at the cut, in the block that has it. */
typedef struct found { int bucket; uint32_t before, inside; int last; } found;

/* What is divided into buckets: logits by steps below the largest; or the orders from low to high by 2^shift. */
typedef struct interval { uint32_t low, high; int shift; bool by_steps; } interval;

/* An id that asks what is in front of it. */
typedef struct pivot { float x; int id; } pivot;
enum { PIVOTS = 3, ALL = PIVOTS, SUMS };
/* Sums of masses, in units: in front of each pivot, and of all ids. */
typedef struct mass_sums { double of[SUMS]; } mass_sums;

/* The last id that is kept: those of a larger order, of the same one ids up to last. */
typedef struct cut { uint32_t order; int last; } cut;

typedef struct cluster_room {
    union {
        __align__(16) uint32_t buckets[BUCKETS];
        int watched[THREADS];     /* fours of the chunk that were listed while it was read */
    };
    unsigned long long of_warp[WARPS], ranks[LISTED];   /* ranks: of all blocks' candidates, by their scores */
    float logits[LISTED];         /* theirs */
    int ids[LISTED];              /* of the block's own, in the chunk */
    uint64_t read_full;           /* mbarrier: all that blocks send when they have read is there */
    uint64_t piece_full[COPIES];  /* mbarriers: the bytes of a step are there; each is used once */
    mass_sums of_warps[WARPS], sums[2][SAMPLE_CLUSTER_BLOCKS];
    float warp_largest[WARPS], warp_sum[WARPS], warp_best[WARPS], warp_share[WARPS];
    float best_so_far[2][WARPS], share_so_far[2][WARPS];
    sampling_settings settings;
    float least;                  /* the least heat that min_p keeps */
    __align__(16) uint32_t noise[4 + 2 * PHILOX_ROUNDS];   /* cluster_watch.cuh */
    float log_sum;                /* of e^x of the row, for the first thread */
    uint32_t candidates;          /* of a block at most */
    double all;                   /* of masses, exactly */
    uint64_t data;                /* gmem: the chunk */
    float over;                   /* 1 / temperature */
    bool divides;                 /* heats are computed by it */
    cut end;                      /* of what is read there */
    shown show[3], read_by[SAMPLE_CLUSTER_BLOCKS];
    pivot pivots[PIVOTS];
    found cut;
    uint32_t edges[2], listed, watching, listed_by[SAMPLE_CLUSTER_BLOCKS];   /* how many there are in the lists, also those for which there was no room */
} cluster_room;
static_assert(sizeof(cluster_room) <= SAMPLE_CLUSTER_ROOM, "the host counts with so much");

/* A block's part of a row. */
typedef struct sample_chunk {
    void *kept;                   /* smem [near] */
    uint32_t kept_address, room_address;
    int format;                   /* of kept */
    cluster_room *room;
    int64_t picked;
    int first, here, near;        /* ids; near: those from the first on that are kept. Others are read where they lie */
    int copied;                   /* ids that bulk copies bring; 0: none */
    float largest;
    float scale;                  /* what makes of a difference of logits a power of two; 0 where the likeliest is asked for */
} sample_chunk;

/* Its number, of which the compiler makes nothing in front of loops, as registers are few. */
INLINE int thread(void) { return anew((int)threadIdx.x); }

INLINE int64_t row_of(const sample_chunk *c) { return blockIdx.x / cluster_blocks(); }

INLINE void meet(void) {
    cluster_arrive();
    cluster_wait();
}

INLINE uint32_t word_of_block(const void *place, uint32_t rank) { return __float_as_uint(ld_cluster_f32(cluster_map(shared_address(place), rank))); }

/* The address of the same place in another block. */
INLINE uint32_t place_of_block(const void *place, uint32_t rank) { return cluster_map(shared_address(place), rank); }

INLINE void show_word(uint32_t place, uint32_t word) { st_cluster_f32(place, __uint_as_float(word)); }

INLINE void show_words(uint32_t place, unsigned long long words) {
    show_word(place, (uint32_t)words);
    show_word(place + 4, (uint32_t)(words >> 32));
}

INLINE unsigned long long rank_of(float x, int id) { return (unsigned long long)sampling_order(x) << 32 | (0xffffffffu - (uint32_t)id); }
INLINE int id_of(unsigned long long rank) { return (int)(0xffffffffu - (uint32_t)rank); }

INLINE unsigned long long warp_most(unsigned long long x) {
    const uint32_t high = redux_max((uint32_t)(x >> 32)), low = redux_max((uint32_t)(x >> 32) == high ? (uint32_t)x : 0);
    return (unsigned long long)high << 32 | low;
}

/* The largest of the cluster, to all its threads. place: which of the things shown; the next use of the same one is two meetings later. */
INLINE unsigned long long cluster_most(const sample_chunk *c, unsigned long long x, int place) {
    cluster_room *room = c->room;
    x = warp_most(x);
    if (threadIdx.x % 32 == 0) room->of_warp[thread() / 32] = x;
    __syncthreads();
    if (threadIdx.x < 32) {
        x = warp_most(threadIdx.x < WARPS ? room->of_warp[threadIdx.x] : 0);
        room->show[place].high = (uint32_t)(x >> 32);
        room->show[place].low = (uint32_t)x;
    }
    meet();
    x = 0;
    for (uint32_t i = 0; i < cluster_blocks(); i++) {
        const unsigned long long other = (unsigned long long)word_of_block(&room->show[place].high, i) << 32 | word_of_block(&room->show[place].low, i);
        x = other > x ? other : x;
    }
    return x;
}

/* The largest of the block, to all its threads. Between two uses its threads meet. */
INLINE unsigned long long block_most(const sample_chunk *c, unsigned long long x) {
    x = warp_most(x);
    if (threadIdx.x % 32 == 0) c->room->of_warp[thread() / 32] = x;
    __syncthreads();
    return warp_most(c->room->of_warp[threadIdx.x % WARPS]);
}

INLINE bool adjusts_logits(const sample_arguments *a) { return a->bias.data != 0 || a->mask.data != 0 || a->counts.data != 0; }

INLINE bool is_in_front(const cut *end, float x, int id) {
    const uint32_t order = sampling_order(x);
    return order > end->order || (order == end->order && id <= end->last);
}

/* Four logits from memory, -inf behind the last: 16 bytes at a time where they lie so. */
INLINE void load_four(const int format, const sample_chunk *c, int at, int here, float *x) {
    const uint64_t data = c->room->data;
    const bool in_words = data % (WORDS * (format == CUDA_f32 ? 4 : 2)) == 0;
    if (in_words && at + WORDS <= here && format == CUDA_f32) {
        const float4 four = ((const float4 *)data)[at / WORDS];
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    } else if (in_words && at + WORDS <= here) {
        const uint2 four = ((const uint2 *)data)[at / WORDS];
        unpack_pair(format, four.x, x);
        unpack_pair(format, four.y, x + 2);
    } else {
#pragma unroll
        for (int i = 0; i < WORDS; i++) x[i] = at + i < here ? element_at(format, data, at + i) : -INFINITE;
    }
}

/* Four logits that are not kept. */
INLINE void far_four(const sample_chunk *c, int at, float *x) {
    load_four(c->format, c, at, c->here, x);
    if (c->room->end.order == 0) return;
#pragma unroll
    for (int i = 0; i < WORDS; i++) x[i] = is_in_front(&c->room->end, x[i], c->first + at + i) ? x[i] : -INFINITE;
}

INLINE float kept_at(const sample_chunk *c, int i) {
    if (i >= c->near) {
        const float x = element_at(c->format, c->room->data, i);
        return is_in_front(&c->room->end, x, c->first + i) ? x : -INFINITE;
    }
    if (c->format == CUDA_f32) return ((const float *)c->kept)[i];
    const uint16_t bits = ((const uint16_t *)c->kept)[i];
    return c->format == CUDA_bf16 ? __uint_as_float((uint32_t)bits << 16) : cvt_f32_f16(bits);
}

INLINE void keep(const sample_chunk *c, int i, float x) {
    if (c->format == CUDA_f32) ((float *)c->kept)[i] = x;
    else ((uint16_t *)c->kept)[i] = (uint16_t)pack_pair(c->format, x, 0);
}

INLINE void keep_four(const sample_chunk *c, int at, const float *x) {
    if (c->format == CUDA_f32) ((float4 *)c->kept)[at / WORDS] = make_float4(x[0], x[1], x[2], x[3]);
    else ((uint2 *)c->kept)[at / WORDS] = make_uint2(pack_pair(c->format, x[0], x[1]), pack_pair(c->format, x[2], x[3]));
}

/* Four logits that are kept. */
INLINE void load_kept(const int format, const sample_chunk *c, int at, float *x) {
    if (format == CUDA_f32) {
        const uint4 four = ld_shared_u32x4(c->kept_address + (uint32_t)at * 4);
        x[0] = __uint_as_float(four.x), x[1] = __uint_as_float(four.y), x[2] = __uint_as_float(four.z), x[3] = __uint_as_float(four.w);
    } else {
        const float2 four = ld_shared_f32x2(c->kept_address + (uint32_t)at * 2);
        unpack_pair(format, __float_as_uint(four.x), x);
        unpack_pair(format, __float_as_uint(four.y), x + 2);
    }
}

/* Of those that are kept, -inf behind the last. */
INLINE void near_four(const sample_chunk *c, int at, float *x) {
    if (at + WORDS <= c->near) {
        load_kept(c->format, c, at, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < WORDS; i++) x[i] = at + i < c->near ? kept_at(c, at + i) : -INFINITE;
}

INLINE void kept_four(const sample_chunk *c, int at, float *x) {
    if (at < c->near) near_four(c, at, x);
    else far_four(c, at, x);
}

/* A thread's fours, those that are kept and others in turns, as many steps in all threads; one that is not kept is asked for while the one in front of it is used. */
typedef struct walk { int own, near, far, step; float next[WORDS]; } walk;

INLINE walk begin_walk(const sample_chunk *c) {
    walk w = {thread() * WORDS, 0, c->near, 0, {0}};
    if (w.far < c->here) far_four(c, w.far + w.own, w.next);
    return w;
}

INLINE bool has_step(const sample_chunk *c, const walk *w) { return w->near < c->near || w->far < c->here; }

/* Is the next four one that is kept? */
INLINE bool is_near(const sample_chunk *c, const walk *w) { return w->near < c->near && (w->step % 2 == 0 || w->far >= c->here); }

/* Where it lies: near_step first, and then its logits; or far_step, with them. */
INLINE int near_step(walk *w) {
    const int at = w->near + w->own;
    w->near += STEP;
    w->step++;
    return at;
}

INLINE int far_step(const sample_chunk *c, walk *w, float *x) {
    const int at = w->far + w->own;
#pragma unroll
    for (int i = 0; i < WORDS; i++) x[i] = w->next[i];
    w->far += STEP;
    w->step++;
    if (w->far < c->here) far_four(c, at + STEP, w->next);
    return at;
}

/* The number that orders as the logits do, back to the logit. */
INLINE float logit_of_order(uint32_t order) { return small_float((int32_t)(order ^ (order >> 31 != 0 ? 0x80000000u : 0xffffffffu))); }

#endif
