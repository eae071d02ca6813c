/* Fused attention by wgmma: the body of the entries of wgmma.cu, which gives it its constants. A block makes 64 x groups queries of one head.
 *
 *   the last warps, one thread  empty -> TMA q once; k [keys, width], v [keys, value_width] -> full          stages of each in smem, in columns of 64
 *   warpgroups 0 .. groups - 1  scores [64, keys] = q k^T (wgmma, smem x smem) -> weights in registers -> sums [64, value_width] += weights v (wgmma,
 *                               registers x smem, v as it lies: keys are rows)
 *
 *   of a warpgroup:   q k(i+1)^T issued | weights(i) v(i) issued | largest scores of i+1 under the second product | weights(i+1), sums scaled | ..
 *
 * Warpgroups take turns in issuing products, so that one's softmax runs under another's products. The softmax is online, in fp32, in powers of 2; weights
 * are rounded to the operands' format for the second product, their sum is not.
 *
 * Which keys a query sees is an interval [start, start + count) of slots, modulo the number of slots: a cache may be a ring. Queries of several texts (the
 * operand row) are taken in segments, runs of queries with the same row of the cache. Blocks of keys begin at multiples of keys; those that no query of
 * a segment sees are skipped, those that all see are not masked. Keys in pages (paged): a block comes in pieces, one box of TMA for each page or part of one; of pages that are not there come zeros, and a note beside the stage hides them. A hidden key may hold anything: a row with a NaN among its results while its sum is
 * none is done again without the keys of no weight.
 *
 * A mask or bias of keys (ATTENTION_KEYS) is read by the loading warp, a window of 512 keys at a time (256 where it has few registers), which says with each block what becomes of it:
 *   all biases are 0                     the block is as good as plain
 *   all keys are hidden                  it is not loaded
 *   all biases are OP_ATTENTION_HIDES or    put off; behind all others warps answer whether any of their rows has come to no larger score, and only then these blocks
 *   less, some not -inf                  are loaded, too, as otherwise their weights are 0
 *   anything else                        the biases go to smem, [keys] fp32, those of eight blocks
 *
 * A bias of queries and keys in the operands' format (ATTENTION_TILED) comes in tiles by TMA, with the keys of a block, [queries, keys] smem; a mask of keys beside it as above. A warp reads
 * its part of the tile by ldmatrix, as scores lie in registers.
 *
 * Keys and values in blocks (blocks.cuh): all warps of the last two warpgroups copy codes, and write what they are as bf16 to a stage.
 *
 * Registers: 48 and 208 where keys are in blocks, 56 and 200 of mxfp8; 24 (loads), 240 (products), 40 and 232 with masks of keys or pages; where a multiprocessor holds several blocks, one warp loads and all have the same. Speed: README.md. */
#ifndef KERNELS_ATTENTION_WGMMA_WGMMA_CUH
#define KERNELS_ATTENTION_WGMMA_WGMMA_CUH

#include "kernels/attention/wgmma/blocks.cuh"
#include "kernels/attention/wgmma/results.cuh"

/* ---- a block ---- */

/* Heads in bunches, of a bunch the last tiles first, since with a causal mask they are the longest; behind all others the first tiles of all heads, so that blocks end together. */
INLINE attention_tile tile_at(const attention_wgmma_arguments *g, const attention_shape s, int number_of_all) {
    int all = (int)(g->call.batches * g->call.heads), longer = g->tiles - g->last_tiles, rest = number_of_all - longer * all, head = rest % all, number = g->last_tiles - 1 - rest / all;
    if (rest < 0) {
        const schedule_place place = schedule_in_bands(number_of_all, all, longer, g->heads_together);
        head = place.row;
        number = g->tiles - 1 - place.col;
    }
    attention_tile tile = {head / (int)g->call.heads, head % (int)g->call.heads, number * s.groups * 64};
    return tile;
}

INLINE attention_smem smem_of(const attention_shape s, uint32_t base) {
    const int rows = s.groups * 64, views = view_stages(s), results = rows * value_row_bytes(s), queries = s.q_stages * rows * row_bytes(s);
    attention_smem m;
    m.q = base;
    m.k = m.q + (s.stays || queries > results ? queries : results);
    m.v = m.k + s.stages * s.keys * row_bytes(s);
    m.tiles = m.v + s.stages * s.keys * value_row_bytes(s);
    m.out = s.stays ? m.tiles : m.q;
    m.codes = m.tiles + s.stages * tile_bytes(s) + (s.stays ? results : 0);
    m.rows = m.codes + CACHED_BUFFERS * (buffer_bytes(s) + buffer_scale_bytes(s));
    m.segments = m.rows + views * rows * ATTENTION_ROW_BYTES;
    m.places = m.segments + views * (rows + 1) * ATTENTION_SEGMENT_BYTES;
    m.q_ring = ring_at(m.places + (walks(s) ? ATTENTION_PLACES * ATTENTION_PLACE_BYTES(s.keys) : 0), s.q_stages);
    m.k_ring = ring_at(ring_end(m.q_ring, s.q_stages), s.stages);
    m.v_ring = ring_at(ring_end(m.k_ring, s.stages), s.stages);
    m.work = m.q_ring.full + ATTENTION_BARRIER_BYTES - (walks(s) ? views : s.q_stages) * ATTENTION_WORK_BYTES;
    m.view_ring = ring_at(m.work - 2 * ATTENTION_VIEW_STAGES * BARRIER_BYTES, ATTENTION_VIEW_STAGES);
    m.place_ring = ring_at(m.view_ring.full - 2 * ATTENTION_PLACES * BARRIER_BYTES, ATTENTION_PLACES);
    m.go = m.place_ring.full - BARRIER_BYTES;
    m.answered = ring_end(m.v_ring, s.stages);
    m.notes = m.answered + BARRIER_BYTES;
    m.answers = m.notes + note_bytes(s) * s.stages;
    m.bias = m.q_ring.full + ATTENTION_BARRIER_BYTES;
    return m;
}

INLINE void attention_tma(const attention_wgmma_arguments *g, const attention_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    attention_smem m = smem_of(s, shared_address(shared));
    const attention_tile tile = tile_at(g, s, (int)blockIdx.x);
    int role = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        mbarrier_init(m.q_ring.full, 1);
        ring_init(m.k_ring, s.stages, s.cached ? CACHED_THREADS / 32 : 1, 4 * s.groups);
        ring_init(m.v_ring, s.stages, s.cached ? CACHED_THREADS / 32 : 1, 4 * s.groups);
        if (has_notes(s)) mbarrier_init(m.answered, 4 * s.groups);
        fence_mbarrier_init();
    }
    grid_release();
    grid_wait();
    const bool whole = has_notes(s) || (!g->call.has_row && !g->call.has_position && g->call.page == 0);
    if (threadIdx.x == s.groups * 128 && whole) store_whole_tile(g, s, m, tile.batch, tile.first);
    for (int row = threadIdx.x; row < s.groups * 64; row += blockDim.x)
        store_view(m.rows, row, whole ? plain_view_of(g, tile.batch, tile.first + row) : view_of(&g->call, tile.batch, tile.first + row));
    __syncthreads();
    if (!whole) {
        if (threadIdx.x < 32) find_segments(s, (int)g->call.keys, m);
        __syncthreads();
    }
    const bool reads = has_notes(s) || s.paged;   /* masks or pages, by the warp that loads */
    if (role >= s.groups) {
        if (s.cached == CACHED_MXFP8) setmaxnreg_dec(56);
        else if (s.cached) setmaxnreg_dec(48);
        else if (s.blocks == 1 && reads) setmaxnreg_dec(40);
        else if (s.blocks == 1) setmaxnreg_dec(24);
        if (has_notes(s) && threadIdx.x / 32 == 4 * s.groups) load_seen_blocks(g, s, m, tile);
        if (s.cached) {
            dequantise_blocks(g, s, m, tile);
        } else if (!has_notes(s) && threadIdx.x / 32 == 4 * s.groups) {
            if (s.paged && g->call.page != 0) load_paged_blocks(g, s, m, tile);
            else if (elect_one()) load_blocks(g, s, m, tile);
        }
    } else {
        if (s.cached == CACHED_MXFP8) setmaxnreg_inc(200);
        else if (s.cached) setmaxnreg_inc(208);
        else if (s.blocks == 1 && reads) setmaxnreg_inc(232);
        else if (s.blocks == 1) setmaxnreg_inc(240);
        attend_tile(g, s, m, tile, role);
    }
}

#endif
