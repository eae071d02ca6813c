/* What the parts of the attention kernel by wgmma share: the constants of an entry, shared memory, the tile that a thread block works on. */
#ifndef KERNELS_ATTENTION_WGMMA_SHAPE_CUH
#define KERNELS_ATTENTION_WGMMA_SHAPE_CUH

#include "kernels/attention/scores.cuh"
#include "kernels/attention/wgmma/wgmma.h"
#include "kernels/gpu/pipe/ring.cuh"

enum { ROW_BYTES = 128, CHUNK_COLS = 64 };

/* The constants of an entry, columns of tiles.def; everything in here is known to the compiler. */
typedef struct attention_shape {
    int element, groups, width, value_width, keys, stages, q_stages, blocks, apart, ordered, scores, placed, quantised;
} attention_shape;

/* Addresses in smem: operands, results where they do not go over q, what queries see (placed), the tiles that are loaded, barriers; notes, answers and biases of masks of keys. */
typedef struct attention_smem {
    uint32_t q, k, v, out, views, segments, work, notes, answers, answered, bias;
    ring_barriers q_ring, k_ring, v_ring;
} attention_smem;

INLINE attention_smem smem_of(const attention_shape s, uint32_t base) {
    const int rows = s.groups * 64;
    attention_smem m;
    m.q = base;
    m.k = m.q + s.q_stages * rows * s.width * 2;
    m.v = m.k + s.stages * s.keys * s.width * 2;
    m.out = s.apart ? m.v + s.stages * s.keys * s.value_width * 2 : m.q;
    m.views = m.v + s.stages * s.keys * s.value_width * 2 + (s.apart ? rows * s.value_width * 2 : 0);
    m.segments = m.views + (s.placed ? s.q_stages * rows * ATTENTION_ROW_BYTES : 0);
    m.work = m.segments + (s.placed ? s.q_stages * (rows + 1) * ATTENTION_SEGMENT_BYTES : 0);
    m.q_ring = ring_at(m.work + s.q_stages * ATTENTION_WORK_BYTES, s.q_stages);
    m.k_ring = ring_at(ring_end(m.q_ring, s.q_stages), s.stages);
    m.v_ring = ring_at(ring_end(m.k_ring, s.stages), s.stages);
    m.answered = ring_end(m.v_ring, s.stages);
    m.notes = m.answered + BARRIER_BYTES;
    m.answers = m.notes + 4 * s.stages;
    m.bias = m.work + ATTENTION_BARRIER_BYTES;
    return m;
}

/* A tile: 64 x groups queries of one head, from first on, and the blocks of keys that one of them sees (not of placed queries). */
typedef struct attention_work { int batch, head, first, begin, end; } attention_work;

INLINE void store_work(attention_smem m, int stage, attention_work work) {
    const uint32_t at = m.work + stage * ATTENTION_WORK_BYTES;
    st_shared_u32x4(at, make_uint4((uint32_t)work.batch, (uint32_t)work.head, (uint32_t)work.first, (uint32_t)work.begin));
    st_shared_u32(at + 16, (uint32_t)work.end);
}
INLINE attention_work load_work(attention_smem m, int stage) {
    const uint32_t at = m.work + stage * ATTENTION_WORK_BYTES;
    const uint4 x = ld_shared_u32x4(at);
    const attention_work work = {(int)x.x, (int)x.y, (int)x.z, (int)x.w, (int)ld_shared_u32(at + 16)};
    return work;
}

/* What all threads of the warp agree on. Loops that end by it keep what they count in uniform registers, where the descriptors of products are made. */
INLINE bool agreed(bool x) { return __any_sync(0xffffffff, x); }

/* Of a side, for the length of the kernel. */
typedef struct attention_turns { ring_turn q, k, v; } attention_turns;

/* The warp has read the stage. */
INLINE void release(const ring_barriers ring, ring_turn turn) {
    if (threadIdx.x % 32 == 0) ring_arrive_empty(ring, turn);
}

#endif
