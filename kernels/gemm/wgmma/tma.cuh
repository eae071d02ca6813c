/* out [m,n] = epilogue(a [m,k] b [n,k]^T) by wgmma, operands both brought by TMA: bf16, f16 and e4m3 with fp32 scales. Operands of 16 bits may lie turned, a as [k,m], b as [k,n]. The body of the entries of
 * wgmma.cu, which gives it its constants.
 *
 *   warpgroup 0, one thread   empty[s] -> TMA a box [tile_m, 128 B], b boxes 2 x [tile_n / 2, 128 B] -> full[s]      ring of stages in smem
 *   warpgroups 1, 2           full[s] -> wgmma m64n(tile_n) -> empty[s];  at the end of a tile: epilogue -> smem -> TMA out
 *
 * Persistent: a block takes tiles until there are none; the ring runs on from tile to tile, so the loads of the next one overlap the epilogue.
 * pair: two blocks of a cluster take tiles one below the other, and each loads half of b for both. splits: the blocks of a cluster share one tile's k, and
 * add their sums, in the order of k, through each other's smem.
 * e4m3: sums of 128 of k are brought to fp32 registers (the tensor core's own sums of fp8 products are short), times both scales where there are some.
 * parts: with scales by block, of how many parts the tile's columns have one each; a second warp of warpgroup 0 brings the scales, of four blocks of k at a
 * time, into a ring of slots of its own.
 * tile_m 256: each warpgroup multiplies two waves of 64 rows one after the other, with one set of registers for a block's part; e4m3 of 256 columns: two of 128 columns. tile_m 64: both multiply the same
 * rows, runs of four blocks of k in turns: so little is multiplied in a block that the instructions around it take longer than its bytes.
 * turns: each warpgroup multiplies whole tiles, in turns: while the products of one run, the other one finishes its tile. Then a tile may be half as large, and its operands are read
 * twice as often, but the tensor core does not wait for the epilogue.
 * groups: rows of a come in groups, each with a matrix of b of its own; a third warp of warpgroup 0 publishes the tiles (groups.cuh).
 * Registers: 40 (loads), 232 (products); 24 and 240 where many_registers says so. Speed: README.md. */
#ifndef KERNELS_GEMM_WGMMA_TMA_CUH
#define KERNELS_GEMM_WGMMA_TMA_CUH

#include "kernels/gpu/ptx/wgmma.cuh"
#include "kernels/gemm/wgmma/groups.cuh"
#include "kernels/gemm/wgmma/store.cuh"

/* ---- loads: one thread ---- */

/* Boxes of turned operands: 64 of k by 64 of m or n, one behind the other, each as many bytes as 64 rows of k. What hangs over an edge of the tensor is zeros. Tiles whose halves are no whole
 * boxes are loaded as columns beside each other. */
INLINE void load_turned_a(const tma_shape s, uint32_t a, const tensor_map *map, uint32_t full, int block, int row) {
#pragma unroll
    for (int i = 0; i < s.tile_m / CHUNK; i++) tma_load_2d(a + i * CHUNK_BYTES, map, full, row + i * CHUNK, block * CHUNK, TMA_EVICT_NORMAL);
}

INLINE void load_turned_b(const tma_shape s, uint32_t b, const tensor_map *map, uint32_t full, int depth, const tma_tile *tile, int rank) {
    const int half = s.tile_n / 2 / CHUNK;
    if (s.pair > 1) {
#pragma unroll
        for (int i = 0; i < half; i++)
            tma_load_2d_multicast(b + (rank * half + i) * CHUNK_BYTES, map, full, (rank == 0 ? tile->col : tile->up) + i * CHUNK, depth, 3, TMA_EVICT_NORMAL);
        return;
    }
#pragma unroll
    for (int i = 0; i < s.tile_n / CHUNK; i++)
        tma_load_2d(b + i * CHUNK_BYTES, map, full, (s.tile_n / 2 % CHUNK != 0 || i < half ? tile->col + i * CHUNK : tile->up + (i - half) * CHUNK), depth, TMA_EVICT_NORMAL);
}

/* Boxes of a have g->a_rows rows: of few rows those that are there, as boxes that hang over an edge cost more. What lies in the rest of the tile's rows is
 * never stored. */
INLINE void load_tiles(const matmul_wgmma_arguments *g, const tma_shape s, tma_ring ring, int rank) {
    const tensor_map *map_a = (const tensor_map *)g->map_a, *map_b = (const tensor_map *)g->map_b;
    const int a_bytes = s.tile_m * ROW_BYTES, half_bytes = s.tile_n / 2 * ROW_BYTES, stage_bytes = a_bytes + 2 * half_bytes;
    const int depth = s.element == TMA_E4M3 ? 128 : 64;
    const schedule_range range = depth_range(g, s, rank);
    int turn = schedule_first(ring.schedule);
    ring_turn at = ring_writer();
    tma_tile tile;
    for (; find_tile(g, s, ring, turn, rank, &tile); turn = schedule_next(ring.schedule, turn)) {
        const int boxes = a_boxes(g, s, &tile), before = b_depth(g, s, &tile);
        tile.col += b_row(g, s, &tile), tile.up += b_row(g, s, &tile);
        if (s.groups) schedule_release(ring.schedule, turn);
        for (int block = range.first; block < range.end; block++) {
            const uint32_t a = ring.data + at.stage * stage_bytes, b = a + a_bytes;
            ring_wait_empty(ring.stages, at);
            const uint32_t full = ring_expect_full(ring.stages, at, (s.a_turned ? a_bytes : boxes * g->a_rows * ROW_BYTES) + 2 * half_bytes);
            if (s.a_turned) load_turned_a(s, a, map_a, full, block, tile.row);
            for (int i = 0; i < boxes && !s.a_turned; i++) tma_load_2d(a + i * g->a_rows * ROW_BYTES, map_a, full, block * depth, tile.row + i * g->a_rows, TMA_EVICT_NORMAL);
            if (s.b_turned) {
                load_turned_b(s, b, map_b, full, before + block * CHUNK, &tile, rank);
            } else if (s.pair > 1) {
                tma_load_2d_multicast(b + rank * half_bytes, map_b, full, block * depth, rank == 0 ? tile.col : tile.up, 3, TMA_EVICT_NORMAL);
            } else {
                tma_load_2d(b, map_b, full, block * depth, tile.col, TMA_EVICT_NORMAL);
                tma_load_2d(b + half_bytes, map_b, full, block * depth, tile.up, TMA_EVICT_NORMAL);
            }
            ring_next(&at, s.stages);
        }
    }
}

/* Scales of one row, or of one part of the columns, for the blocks of k of one slot: floats from from on, of which valid are there; in_quads: all four lie in memory. */
INLINE void load_scale_row(uint32_t to, const float *from, int valid, bool in_quads) {
    if (in_quads) {
        cp_async(to, from, 16, 16);
        return;
    }
#pragma unroll
    for (int i = 0; i < MATMUL_SLOT_BLOCKS; i++)
        if (i < valid) cp_async(to + 4 * i, from + i, 4, 4);
}

/* A warp brings the scales by block: a slot holds those of four blocks of k, [tile_m][4] of the tile's rows and [parts][4] of its columns. A row's scales lie side by
 * side along k, a row to a line of the cache, so one at a time they would take as many cycles of L1 as the tiles do. */
INLINE void load_scales(const matmul_wgmma_arguments *g, const tma_shape s, tma_ring ring, int rank) {
    const float *a = (const float *)g->a_scales, *b = (const float *)g->b_scales;
    bool in_quads = (g->a_scale_stride | g->b_scale_stride) % 4 == 0 && (g->a_scales | g->b_scales) % 16 == 0;
    const schedule_range range = depth_range(g, s, rank);
    int lane = threadIdx.x % 32, blocks = ceil_div(g->k, 128), turn = schedule_first(ring.schedule);
    uint32_t use = 0;
    tma_tile tile;
    in_quads &= range.first % MATMUL_SLOT_BLOCKS == 0;
    for (; find_tile(g, s, ring, turn, rank, &tile); turn = schedule_next(ring.schedule, turn)) {
        if (s.groups) {
            __syncwarp();
            if (lane == 0) schedule_release(ring.schedule, turn);
        }
        int column = lane * (s.tile_n / s.parts), at = column < s.tile_n / 2 ? tile.col + column : tile.up + column - s.tile_n / 2;
        uint32_t part = (min(at, g->n - 1) / 128 + (s.groups ? tile.group * ceil_div(g->n, 128) : 0)) * (uint32_t)g->b_scale_stride;
#pragma unroll 1
        for (int block = range.first; block < range.end; block += MATMUL_SLOT_BLOCKS) {
            const ring_turn slot = ring_writer_turn(use++, MATMUL_SLOTS);
            uint32_t to = ring.scales + slot.stage * MATMUL_SLOT_BYTES(s.tile_m) + lane * 16;
            ring_wait_empty(ring.scale_slots, slot);
            if (lane < s.parts) load_scale_row(to + s.tile_m * 16, b + part + block, blocks - block, in_quads);
#pragma unroll 1
            for (int i = lane; i < s.tile_m; i += 32, to += 512)
                load_scale_row(to, a + min(tile.row + i, g->m - 1) * (uint32_t)g->a_scale_stride + block, blocks - block, in_quads);
            cp_async_arrive(ring_full(ring.scale_slots, slot.stage));
        }
    }
}

/* ---- products: two warpgroups ---- */

INLINE constexpr bool is_turned(const tma_shape s) { return s.a_turned || s.b_turned; }

INLINE void multiply(const tma_shape s, float *d, uint64_t a, uint64_t b, int accumulate) {
#define SHAPE(n)                                                                                   \
    if (wave_cols(s) == n && s.element == TMA_BF16 && !is_turned(s)) wgmma_n##n##_bf16(d, a, b, accumulate); \
    if (wave_cols(s) == n && s.element == TMA_F16 && !is_turned(s)) wgmma_n##n##_f16(d, a, b, accumulate);   \
    if (wave_cols(s) == n && s.element == TMA_E4M3) wgmma_n##n##_e4m3(d, a, b, accumulate);
    SHAPE(32)
    SHAPE(64)
    SHAPE(128)
    SHAPE(192)
    SHAPE(256)
#undef SHAPE
#define TURNED_AS(n, a_is, b_is, name)                                                                                                                         \
    if (wave_cols(s) == n && s.element == TMA_BF16 && s.a_turned == a_is && s.b_turned == b_is) wgmma_n##n##_bf16_##name##_turned(d, a, b, accumulate); \
    if (wave_cols(s) == n && s.element == TMA_F16 && s.a_turned == a_is && s.b_turned == b_is) wgmma_n##n##_f16_##name##_turned(d, a, b, accumulate);
#define TURNED_SHAPE(n) TURNED_AS(n, 1, 0, a) TURNED_AS(n, 0, 1, b) TURNED_AS(n, 1, 1, both)
    TURNED_SHAPE(64)
    TURNED_SHAPE(128)
    TURNED_SHAPE(192)
    TURNED_SHAPE(256)
#undef TURNED_SHAPE
#undef TURNED_AS
}

/* Where a consumer stands in the ring: addresses are carried along rather than computed from the stage, which costs the loop more than its products. */
typedef struct tma_reader {
    ring_turn turn;
    uint32_t full;                /* the stage's barrier, */
    uint32_t a, b;                /* its tiles, as lower halves of descriptors, */
    int behind;                   /* the oldest stage not handed back, */
    uint32_t empty;               /* and its barrier in the block that this lane tells; 0: none */
} tma_reader;

INLINE uint64_t descriptor_of(uint32_t low) { return (uint64_t)(1u << 30 | 64) << 32 | low; }

/* As ring_next, with the addresses. */
INLINE void next_stage(tma_reader *reader, const tma_shape s) {
    const uint32_t step = (s.tile_m + s.tile_n) * ROW_BYTES / 16;
    reader->a += step, reader->b += step, reader->full += BARRIER_BYTES;
    if (++reader->turn.stage < s.stages) return;
    reader->turn.stage = 0;
    reader->turn.phase ^= 1;
    reader->a -= s.stages * step, reader->b -= s.stages * step, reader->full -= s.stages * BARRIER_BYTES;
}

INLINE void next_behind(tma_reader *reader, const tma_shape s) {
    if (reader->empty != 0) reader->empty += BARRIER_BYTES;
    if (++reader->behind < s.stages) return;
    reader->behind = 0;
    if (reader->empty != 0) reader->empty -= s.stages * BARRIER_BYTES;
}

/* Hands the oldest stage back to every block that writes into it. */
INLINE void hand_back(tma_reader *reader, const tma_shape s) {
    if (reader->empty != 0) {
        if (s.pair > 1) mbarrier_arrive_cluster(reader->empty);
        else mbarrier_arrive(reader->empty);
    }
    next_behind(reader, s);
}

/* One block of k into d, as one wgmma group; nothing is waited for but the block's arrival. */
INLINE void issue_block(const tma_shape s, tma_reader *reader, float *d, int accumulate) {
    const int waves = s.turns ? wave_count(s) : 1, a_step = s.a_turned ? CHUNK_BYTES / 64 : 2, b_step = s.b_turned ? CHUNK_BYTES / 64 : 2;   /* 16 of k */
    uint64_t a = descriptor_of(reader->a), b = descriptor_of(reader->b);
    mbarrier_wait(reader->full, reader->turn.phase);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
        for (int wave = 0; wave < waves; wave++) multiply(s, d + wave * s.tile_n / 2, a + wave * (wave_rows(s) * ROW_BYTES / 16) + a_step * step, b + b_step * step, step > 0 || accumulate);
    wgmma_commit();
    next_stage(reader, s);
}

/* Warpgroups that take whole tiles in turns: while one multiplies a tile, the other one finishes the tile before it. */
INLINE void await_turn(int group) { barrier_sync(TURN_BARRIER + group, 256); }
INLINE void give_turn(int group) { barrier_arrive(TURN_BARRIER + group, 256); }

/* Past the stages of the other warpgroup's tile. Nothing waits there: the turn that is given says that they have been read. */
INLINE void pass_over(tma_reader *reader, const tma_shape s, int blocks) {
    const uint32_t step = (s.tile_m + s.tile_n) * ROW_BYTES / 16;
    const int upto = reader->turn.stage + blocks, rounds = upto / s.stages, moved = blocks - rounds * s.stages;
    reader->turn.stage = reader->behind = upto - rounds * s.stages;
    reader->turn.phase ^= rounds & 1;
    reader->a += moved * step, reader->b += moved * step, reader->full += moved * BARRIER_BYTES;
    if (reader->empty != 0) reader->empty += moved * BARRIER_BYTES;
}

/* All blocks of k, one group in flight behind the one that is issued. Sums of rows that warpgroups share are added to. next_group: who gets the turn then, or -1. */
INLINE void multiply_tile(const tma_shape s, tma_reader *reader, int first, int end, int next_group, float *sums) {
#pragma unroll 1
    for (int block = first; block < end; block++) {
        issue_block(s, reader, sums, shares_rows(s) || block > first);
        wgmma_wait(1);
        if (block > first) hand_back(reader, s);
    }
    if (next_group >= 0) give_turn(next_group);   /* its products come behind those under way */
    wgmma_wait(0);
    if (end > first) hand_back(reader, s);
}

/* A tile of this warpgroup's, when its turn has come. */
INLINE void multiply_in_turn(const tma_shape s, tma_reader *reader, const schedule_range range, bool waits, int next_group, float *sums) {
    if (waits) await_turn(threadIdx.x / 128 - 1);
    multiply_tile(s, reader, range.first, range.end, next_group, sums);
    pass_over(reader, s, range.end - range.first);
}

/* Registers lie in two banks, by even and odd numbers. A multiply-add whose part and sum share one waits while products of the other warpgroup read and write
 * theirs, and which registers ptxas gives to sums depends on how they are cleared: in pairs, or one by one. One by one, no sum of the large tiles shares the bank of its
 * part; that may change with any code of the kernel (README.md). */
INLINE void clear_sums(const tma_shape s, float *sums) {
    const int values = wave_cols(s) / 2 * wave_count(s);
#pragma unroll
    for (int i = 0; i < values; i++) {
        if (is_large(s)) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(sums[i]));
        else sums[i] = 0;
    }
}

/* A finished block's part to the sums. */
INLINE void promote(const int values, const float *part, float *sums) {
#pragma unroll
    for (int i = 0; i < values; i++) sums[i] += part[i];
}

INLINE void promote_scaled(const tma_shape s, const float *rows, const float *parts, const float *part, float *sums) {
    const int values = wave_cols(s) / 2, here = s.parts / waves_across(s);
#pragma unroll
    for (int i = 0; i < values; i++) sums[i] = fmaf(rows[i >> 1 & 1] * parts[i * here / values], part[i], sums[i]);
}

/* One wave of a block of k, on its own: 64 rows of each warpgroup, of all columns or of one half. */
INLINE void multiply_wave(const tma_shape s, const tma_reader *reader, int wave, float *part) {
    const int down = wave / waves_across(s), across = wave % waves_across(s);
    uint64_t a = descriptor_of(reader->a + down * (wave_rows(s) * ROW_BYTES / 16)), b = descriptor_of(reader->b + across * (wave_cols(s) * ROW_BYTES / 16));
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++) multiply(s, part, a + 2 * step, b + 2 * step, step > 0);
    wgmma_commit();
    wgmma_wait(0);
}

/* Where a consumer stands in the ring of scales: slot, and which block of k of it. */
typedef struct tma_scales {
    ring_turn slot;
    uint32_t quarter;
    uint32_t row;                 /* the place in a slot of this thread's first row */
} tma_scales;

/* A slot's scales of the block of k. */
INLINE uint32_t scales_at(const tma_shape s, const tma_ring *ring, const tma_scales *at) { return ring->scales + at->slot.stage * MATMUL_SLOT_BYTES(s.tile_m) + at->quarter * 4; }

/* On to the next block's scales; with the last of a slot, or of a tile, the slot is handed back. */
INLINE void next_scales(const tma_ring *ring, tma_scales *at, bool more) {
    bool ends = at->quarter == MATMUL_SLOT_BLOCKS - 1 || !more;
    __syncwarp();
    if (ends && threadIdx.x % 32 == 0) ring_arrive_empty(ring->scale_slots, at->slot);
    at->quarter = ends ? 0 : at->quarter + 1;
    ring_next_if(&at->slot, MATMUL_SLOTS, ends);
}

/* One block of k, which has arrived: its waves one after the other, each added in fp32, times its scales where there are some. The two warpgroups overlap products and
 * sums; what comes between a block's sums and the next one's products is what the tensor core may wait for. So addresses are computed while products run, and whether
 * the next block has arrived is asked before the sums, which no branch divides. False: it had not, or there is none, which is more. */
INLINE bool multiply_block_waves(const tma_shape s, const tma_ring *ring, tma_reader *reader, tma_scales *at, bool more, float *sums) {
    const int values = wave_cols(s) / 2;
    const uint32_t scales = scales_at(s, ring, at);
    float part[MOST_VALUES], parts[MOST_VALUES / 32];
    bool ready = more;
#pragma unroll
    for (int i = 0; i < s.parts; i++) parts[i] = ld_shared_f32(scales + (s.tile_m + i) * 16);
#pragma unroll
    for (int wave = 0; wave < wave_count(s); wave++) {
        float rows[2];
        if (s.parts > 0)
            for (int i = 0; i < 2; i++) rows[i] = ld_shared_f32(at->row + scales + (wave / waves_across(s) * wave_rows(s) + 8 * i) * 16);
        multiply_wave(s, reader, wave, part);
        if (wave == wave_count(s) - 1) {
            hand_back(reader, s);
            next_stage(reader, s);
            ready &= mbarrier_test_wait(reader->full, reader->turn.phase);
            if (s.parts > 0) {
                next_scales(ring, at, more);
                ready &= ring_is_full(ring->scale_slots, at->slot);
            }
        }
        if (s.parts > 0) promote_scaled(s, rows, parts + wave % waves_across(s) * (s.parts / waves_across(s)), part, sums + wave * values);
        else promote(values, part, sums + wave * values);
    }
    return ready;
}

/* All blocks of k. */
INLINE void multiply_tile_waves(const tma_shape s, const tma_ring *ring, tma_reader *reader, tma_scales *at, int first, int end, float *sums) {
    bool more = first < end;
#pragma unroll 1
    for (int block = first; more;) {
        mbarrier_wait(reader->full, reader->turn.phase);
        if (s.parts > 0) ring_wait_full(ring->scale_slots, at->slot);
        do more = ++block < end;
        while (multiply_block_waves(s, ring, reader, at, more, sums));
    }
}

/* The scales of a block of k under way: of this thread's two rows, and of the tile's parts. */
typedef struct tma_factors { float rows[2], parts[2]; } tma_factors;

INLINE void begin_block(const tma_shape s, const tma_ring *ring, tma_reader *reader, tma_scales *at, bool more, tma_factors *factors, float *part) {
    if (s.parts > 0) {
        const uint32_t scales = scales_at(s, ring, at);
        ring_wait_full(ring->scale_slots, at->slot);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            factors->rows[i] = ld_shared_f32(at->row + scales + 8 * i * 16);
            if (i < s.parts) factors->parts[i] = ld_shared_f32(scales + (s.tile_m + i) * 16);
        }
    }
    issue_block(s, reader, part, 0);
    if (s.parts > 0) next_scales(ring, at, more);
}

/* The oldest block whose products are under way: the wait for it, its stage handed back, its part added. */
INLINE void finish_block(const tma_shape s, tma_reader *reader, const int behind, const tma_factors *factors, const float *part, float *sums) {
    if (behind == 2) wgmma_wait(1);
    else wgmma_wait(0);
    hand_back(reader, s);
    if (s.parts > 0) promote_scaled(s, factors->rows, factors->parts, part, sums);
    else promote(s.tile_n / 2, part, sums);
}

/* Two parts: while one block's is added, the products of the next one run. */
INLINE void multiply_tile_promoted(const tma_shape s, const tma_ring *ring, tma_reader *reader, tma_scales *at, int first, int end, float *sums) {
    float even[64], odd[64];
    tma_factors even_factors, odd_factors;
    int left = end - first;
    if (left <= 0) return;
    begin_block(s, ring, reader, at, left > 1, &even_factors, even);
#pragma unroll 1
    for (;; left -= 2) {
        if (left == 1) {
            finish_block(s, reader, 1, &even_factors, even, sums);
            return;
        }
        begin_block(s, ring, reader, at, left > 2, &odd_factors, odd);
        finish_block(s, reader, 2, &even_factors, even, sums);
        if (left == 2) {
            finish_block(s, reader, 1, &odd_factors, odd, sums);
            return;
        }
        begin_block(s, ring, reader, at, left > 3, &even_factors, even);
        finish_block(s, reader, 2, &odd_factors, odd, sums);
    }
}

/* Past a run that the other warpgroup takes: its stages, and its slot of scales. Each is waited for and handed back all the same: a wait names a phase by its parity, so of a stage that came round twice
 * meanwhile it would wait for ever. A stage is filled again only when both warpgroups have seen it. */
INLINE void skip_run(const tma_shape s, const tma_ring *ring, tma_reader *reader, tma_scales *at, int blocks) {
#pragma unroll 1
    for (int i = 0; i < blocks; i++) {
        mbarrier_wait(reader->full, reader->turn.phase);
        __syncwarp();
        next_stage(reader, s);
        hand_back(reader, s);
    }
    if (s.parts == 0) return;
    ring_wait_full(ring->scale_slots, at->slot);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ring_arrive_empty(ring->scale_slots, at->slot);
    ring_next_if(&at->slot, MATMUL_SLOTS, true);
}

/* The runs that this warpgroup takes, added to sums. */
INLINE void multiply_tile_shared(const tma_shape s, const tma_ring *ring, tma_reader *reader, tma_scales *at, int first, int end, int group, float *sums) {
#pragma unroll 1
    for (int run = first, turn = 0; run < end; run += MATMUL_SLOT_BLOCKS, turn ^= 1) {
        int upto = min(run + MATMUL_SLOT_BLOCKS, end);
        if (turn != group) skip_run(s, ring, reader, at, upto - run);
        else if (s.element == TMA_E4M3) multiply_tile_promoted(s, ring, reader, at, run, upto, sums);
        else multiply_tile(s, reader, run, upto, -1, sums);
    }
}

INLINE void multiply_tiles(const matmul_wgmma_arguments *g, const tma_shape s, tma_ring ring, int group, int rank) {
    const int values = s.tile_n / 2;
    int thread = threadIdx.x % 128, lane = thread % 32, turn = schedule_first(ring.schedule), first_row = group_row(s, group), row_in_tile = first_row + thread / 32 * 16 + lane / 4;
    tma_reader reader = {ring_reader(), ring.stages.full, 0, 0, 0, 0};
    tma_scales scales = {ring_reader(), 0, s.parts > 0 ? (uint32_t)kept(row_in_tile) * 16 : 0};
    int box = 0;
    tma_tile tile;
    reader.a = (uint32_t)wgmma_descriptor(ring.data + first_row * ROW_BYTES);
    reader.b = (uint32_t)wgmma_descriptor(ring.data + s.tile_m * ROW_BYTES);
    if (s.a_turned) reader.a = (uint32_t)wgmma_descriptor_columns(ring.data + first_row * ROW_BYTES, CHUNK_BYTES);
    if (s.b_turned) reader.b = (uint32_t)wgmma_descriptor_columns(ring.data + s.tile_m * ROW_BYTES, CHUNK_BYTES);
    if (s.pair > 1 && lane < s.pair) reader.empty = cluster_map(ring.stages.empty, lane);
    if (s.pair == 1 && lane == 0) reader.empty = ring.stages.empty;
    const schedule_range range = depth_range(g, s, rank);
    bool waits = s.turns && group == 1;
    if (s.turns) ring.columns += group * s.tile_n * 4;
    if (waits) pass_over(&reader, s, range.end - range.first), turn = schedule_next(ring.schedule, turn);
    for (; find_tile(g, s, ring, turn, rank, &tile); turn = schedule_next(ring.schedule, turn)) {
        float sums[MOST_VALUES];
        if (s.turns) turn = schedule_next(ring.schedule, turn);
        if (s.element == TMA_E4M3 || shares_rows(s) || range.first >= range.end) clear_sums(s, sums);
        tma_head head;
        if (s.splits == 1 && s.element != TMA_E4M3) head = begin_head(g, s, &tile);
        if (shares_rows(s)) multiply_tile_shared(s, &ring, &reader, &scales, range.first, range.end, group, sums);
        else if (s.turns) multiply_in_turn(s, &reader, range, waits, turn < g->units_m * g->units_n ? 1 - group : -1, sums);
        else if (s.element != TMA_E4M3) multiply_tile(s, &reader, range.first, range.end, -1, sums);
        else if (s.parts > 0 || is_large(s)) multiply_tile_waves(s, &ring, &reader, &scales, range.first, range.end, sums);
        else multiply_tile_promoted(s, &ring, &reader, &scales, range.first, range.end, sums);
        if (s.splits > 1) {
            barrier_sync(1, 256);
            store_split_tile(g, s, ring, &tile, group, rank, sums);
            continue;
        }
        if (s.groups) tile = published_tile(g, s, schedule_read(ring.schedule, turn));   /* again, as registers are dear */
        if (s.element == TMA_E4M3) head = begin_head(g, s, &tile);   /* before, no registers were left for it */
        share_head(s, &head, ring.columns);
        if (shares_rows(s)) {
            join_sums(s, ring, group, sums);
            if (group == 1) continue;
        }
        if (s.blocks) store_waves_in_blocks(g, s, ring, &tile, group, row_in_tile, &head, sums, &box);
#pragma unroll
        for (int wave = 0; wave < waves_down(s) && !s.blocks; wave++) {
            float factors[2];
            row_factors(g, &head, tile.row + row_in_tile, rows_end(g, s, &tile), factors);
            store_tile(g, s, ring, &tile, group, &head, factors, sums + wave * values, &box);
            tile.row += wave_rows(s);
        }
        waits = s.turns;
        if (s.groups) {
            __syncwarp();
            if (lane == 0) schedule_release(ring.schedule, turn);
        }
    }
    if (lane == 0) tma_wait_read(0);
}

/* Many sums, or two parts (e4m3 without scales by block). The warps that load scales need more than the 24 registers that others then have. */
INLINE constexpr bool many_registers(const tma_shape s) { return s.tile_m * s.tile_n > 128 * 128 || (s.element == TMA_E4M3 && s.parts == 0); }

INLINE void matmul_tma(const matmul_wgmma_arguments *g, const tma_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int stage_bytes = (s.tile_m + s.tile_n) * ROW_BYTES, cluster = s.pair * s.splits;
    tma_ring ring;
    ring.data = shared_address(shared);
    ring.staging = ring.data + s.stages * stage_bytes;
    ring.columns = ring.staging + 2 * s.boxes * MATMUL_BOX_BYTES;
    ring.scales = ring.columns + MATMUL_COLUMN_BYTES;
    ring.stages = ring_at(ring.scales + (s.parts > 0 ? MATMUL_SLOTS * MATMUL_SLOT_BYTES(s.tile_m) : 0), s.stages);
    ring.scale_slots = ring_at(ring_end(ring.stages, s.stages), MATMUL_SLOTS);
    const uint32_t behind = s.parts > 0 ? ring_end(ring.scale_slots, MATMUL_SLOTS) : ring_end(ring.stages, s.stages);
    ring.schedule = schedule_at(s.groups, cluster, MATMUL_TOLD, (behind + 15) & ~15u);
    int rank = cluster > 1 ? cluster_rank() : 0, role = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        ring_init(ring.stages, s.stages, 1, reading_warps(s) * s.pair);
        if (s.parts > 0) ring_init(ring.scale_slots, MATMUL_SLOTS, 32, reading_warps(s));
        schedule_init(ring.schedule, s.parts > 0 ? 10 : 9);
        fence_mbarrier_init();
    }
    if (threadIdx.x == 32) {
        tma_prefetch((const tensor_map *)g->map_a);
        tma_prefetch((const tensor_map *)g->map_b);
        if (g->epilogue.by_tma) tma_prefetch((const tensor_map *)g->map_out);
    }
    if (cluster > 1) {
        cluster_arrive_relaxed();
        cluster_wait();
    } else {
        __syncthreads();
    }
    grid_wait();
    if (role == 0) {
        if (many_registers(s)) setmaxnreg_dec(24);
        else setmaxnreg_dec(40);
        if (threadIdx.x < 32) {
            if (elect_one()) load_tiles(g, s, ring, rank);
            __syncwarp();
            grid_release();       /* not before: a tile leaves no registers to others, so what began early would crowd on the multiprocessors that have no tile */
        }
        if (s.parts > 0 && threadIdx.x / 32 == 1) load_scales(g, s, ring, rank);
        if (s.groups && threadIdx.x / 32 == 2) publish_tiles(g, s, ring, rank);
        if (s.groups && threadIdx.x / 32 == 3) clear_rest(&g->epilogue, &g->groups, g->m);
        if (s.splits > 1) {
            cluster_arrive();
            cluster_wait();
        }
    } else {
        if (many_registers(s)) setmaxnreg_inc(240);
        else setmaxnreg_inc(232);
        multiply_tiles(g, s, ring, role - 1, rank);
    }
    if (cluster > 1) {            /* nobody leaves whose smem and barriers others may still reach */
        cluster_arrive_relaxed();
        cluster_wait();
    }
}

#define MATMUL_TMA_ENTRY(name, element, tile_m, tile_n, stages, boxes, pair, splits, parts, groups, blocks, turns, a_turned, b_turned)  \
    extern "C" __global__ void __cluster_dims__((pair) * (splits), 1, 1) __launch_bounds__(MATMUL_THREADS, 1)                           \
        name(const __grid_constant__ matmul_wgmma_arguments arguments) {                                                          \
        const tma_shape shape = {element, tile_m, tile_n, stages, boxes, pair, splits, parts, groups, blocks, turns, a_turned, b_turned}; \
        matmul_tma(&arguments, shape);                                                                                           \
    }

#endif
