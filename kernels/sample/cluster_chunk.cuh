/* sample by clusters: what a block keeps of a row, and what the blocks of a cluster show each other. */
#ifndef KERNELS_SAMPLE_CLUSTER_CHUNK_CUH
#define KERNELS_SAMPLE_CLUSTER_CHUNK_CUH

#include "kernels/gpu/ptx/bulk.cuh"
#include "kernels/gpu/ptx/warp.cuh"
#include "kernels/gpu/rows/row_parts.cuh"
#include "kernels/sample/sample_cuda.h"
#include "op/sampling.h"

#define LOG2_E 1.44269504f

enum { THREADS = SAMPLE_CLUSTER_THREADS, WARPS = THREADS / 32, DIGIT = 11, BUCKETS = 1 << DIGIT, WORDS = 4, NONE = 0x7fffffff };
enum { OF_THREAD = BUCKETS / THREADS, LISTED = THREADS / SAMPLE_CLUSTER_BLOCKS };      /* buckets of a thread; candidates of a block at most, so that a thread holds one of all blocks' */
enum { STEP = THREADS * WORDS, AHEAD = 2, COPY = STEP * AHEAD, COPIES = (SAMPLE_CLUSTER_MOST + COPY - 1) / COPY };   /* ids that a block reads in a step, and that come as one copy */
static_assert(OF_THREAD == 4, "a thread reads its buckets as one vector");

/* What a block shows the others; each is written once between two meetings of the cluster. */
typedef struct shown { float largest, sum, best, share; uint32_t bad, high, low, count; } shown;

/* What was read: the largest logit and the sum of e^x as they come; the likeliest as they are kept, its id, and about the sum of masses beside it; bad: some are NaN or +inf. */
typedef struct reading { float largest, sum, best, share; int id; uint32_t bad; } reading;

/* Which bucket has a cut, -1: it is behind all; how many are in front of it, and in it. last: the last of equal ids at the cut, in the block that has it. */
typedef struct found { int bucket; uint32_t before, inside; int last; } found;

/* What is divided into buckets: logits by steps below the largest; or the orders from low to high by 2^shift. */
typedef struct interval { uint32_t low, high; int shift; bool by_steps; } interval;

/* An id that asks what is in front of it. */
typedef struct pivot { float x; int id; } pivot;
enum { PIVOTS = 2, ALL = PIVOTS, SUMS };
/* Sums of masses, in units: in front of each pivot, and of all ids. */
typedef struct mass_sums { double of[SUMS]; } mass_sums;

typedef struct cluster_room {
    __align__(16) uint32_t buckets[BUCKETS];
    unsigned long long of_warp[WARPS], ranks[LISTED];   /* ranks: of candidates, by their scores */
    float logits[LISTED];         /* theirs */
    int ids[LISTED];              /* in the chunk */
    uint64_t piece_full[COPIES];  /* mbarriers: a piece's bytes are there; each is used once */
    mass_sums of_warps[WARPS], sums[2];
    float warp_largest[WARPS], warp_sum[WARPS], warp_best[WARPS], warp_share[WARPS];
    sampling_settings settings;
    float least;                  /* the least heat that min_p keeps */
    uint64_t seed, draw;
    reading all;
    unsigned long long best;
    shown show[3];
    pivot pivots[PIVOTS];
    found cut;
    uint32_t edges[2], listed;    /* listed: candidates, also those for which there was no room */
} cluster_room;
static_assert(sizeof(cluster_room) <= SAMPLE_CLUSTER_ROOM, "the host counts with so much");

/* A block's part of a row. */
typedef struct sample_chunk {
    void *kept;                   /* smem [here] */
    int format;                   /* of kept */
    cluster_room *room;
    int64_t picked;
    int first, here;              /* ids */
    int copied;                   /* ids that the copy engine brings; 0: none */
    uint32_t rank, blocks;
    float largest;
    float over, scale;            /* 1 / temperature, and what makes of a difference of logits a power of two; 0 where the likeliest is asked for */
    bool divides;                 /* heats are computed by over */
} sample_chunk;

INLINE int64_t row_of(const sample_chunk *c) { return blockIdx.x / c->blocks; }

INLINE void meet(void) {
    cluster_arrive();
    cluster_wait();
}

INLINE uint32_t word_of_block(const void *place, uint32_t rank) { return __float_as_uint(ld_cluster_f32(cluster_map(shared_address(place), rank))); }

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
    if (threadIdx.x % 32 == 0) room->of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x < 32) {
        x = warp_most(threadIdx.x < WARPS ? room->of_warp[threadIdx.x] : 0);
        room->show[place].high = (uint32_t)(x >> 32);
        room->show[place].low = (uint32_t)x;
    }
    meet();
    x = 0;
    for (uint32_t i = 0; i < c->blocks; i++) {
        const unsigned long long other = (unsigned long long)word_of_block(&room->show[place].high, i) << 32 | word_of_block(&room->show[place].low, i);
        x = other > x ? other : x;
    }
    return x;
}

/* The largest of the block, to all its threads. Between two uses its threads meet. */
INLINE unsigned long long block_most(const sample_chunk *c, unsigned long long x) {
    x = warp_most(x);
    if (threadIdx.x % 32 == 0) c->room->of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_most(c->room->of_warp[threadIdx.x % WARPS]);
}

INLINE bool adjusts_logits(const sample_arguments *a) { return a->bias.data != 0 || a->mask.data != 0 || a->counts.data != 0; }

INLINE float kept_at(const sample_chunk *c, int i) {
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

/* Four logits that the copy engine has brought. */
INLINE void load_kept(const int format, const sample_chunk *c, int at, float *x) {
    if (format == CUDA_f32) {
        const float4 four = ((const float4 *)c->kept)[at / WORDS];
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    } else {
        const uint2 four = ((const uint2 *)c->kept)[at / WORDS];
        unpack_pair(format, four.x, x);
        unpack_pair(format, four.y, x + 2);
    }
}

/* Four logits that are kept in shared memory, -inf behind the last. */
INLINE void kept_four(const sample_chunk *c, int at, float *x) {
    if (at + WORDS <= c->here) {
        load_kept(c->format, c, at, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < WORDS; i++) x[i] = at + i < c->here ? kept_at(c, at + i) : -INFINITE;
}

/* The number that orders as the logits do, back to the logit. */
INLINE float logit_of_order(uint32_t order) { return small_float((int32_t)(order ^ (order >> 31 != 0 ? 0x80000000u : 0xffffffffu))); }

#endif
