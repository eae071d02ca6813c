/* Attention by tcgen05 of one format of values: the entries of tiles.def, or of codes.def, by the constants of the image's row: ENTRIES: their names are attention_<ENTRIES>_..; ELEMENT: one of scores.cuh;
 * CODES: q and k are codes.
 *
 *   warp 14       q_empty, kv_empty -> TMA: q [128, width] of two tiles, k, v [128, width] of a block -> q_full, kv_full
 *   warp 12       scores = q k^T (smem x smem, into tmem) -> scores;  ready, rest -> sums += weights v (tmem x smem) -> kv_empty, at last sums
 *   warps 0-3, 4-7    of a tile: scores -> registers, largest, factor -> said_full;  weights -> tmem -> ready, rest;  at last sum and largest -> said_full
 *   warps 8-11    said_full -> sums scaled in tmem where a largest score has grown -> ready;  at last sums -> registers -> results in smem -> out_full
 *   warp 13       out_full -> TMA out -> out_empty
 *   (of one tile, wide.cuh: warps 0-3 alone, of every block; warps 4-7 end)
 *   warp 15       which units: a head's 256 queries, of wide heads 128, and the blocks of keys that they see; where queries are of several texts, of one text after the other
 *
 * Of codes scores are products of e4m3: their fp32 scales, of a row of q and of 128 keys, are parts of what becomes an exponent of 2. With mxfp8 the matrix instructions apply scales, which warp 14 brings and warp 12
 * copies to where the other tile's scores were, once these have been read: scores -> read.
 *
 * Persistent: a thread block takes unit after unit, and its rings run on. Scores, softmax and sums are fp32, weights are rounded to the operands' format, their sum is not.
 * Which keys a query sees is an interval, of slots modulo their number where keys are a ring; blocks that none of a unit's queries sees are left out. A bool mask of keys comes as bits, by votes of
 * the warps that hide by it. Caps, other masks and biases are applied where products lie, 32 of a row at a time. Keys in pages come in pieces. A hidden key may hold anything: a row with a NaN among its results while its
 * sum is none is done again without the keys of no weight.
 *
 * Resources: 1 block a multiprocessor, 512 threads; registers 184 (softmax), 88 (corrections), 56 (others), of entries for texts 176, 96 and 64; all columns of tensor memory. Speed: not measured, as no Blackwell
 * was there; README.md has what is predicted. */
#include "kernels/attention/tcgen05/correct.cuh"
#include "kernels/attention/tcgen05/products.cuh"
#include "kernels/attention/tcgen05/soften.cuh"
#include "kernels/attention/tcgen05/wide.cuh"

/* All threads have come here. */
INLINE void meet(void) {
    tcgen05_fence_before();
    __syncthreads();
    tcgen05_fence_after();
}

INLINE void attend_units(const attention_tcgen05_arguments *g, const attend_shape s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    attend_place p = place_of(s, shared_address(shared));
    if (threadIdx.x == LOAD_WARP * 32) {
        init_barriers(s, &p);
        tma_prefetch((const tensor_map *)g->map_q);
        tma_prefetch((const tensor_map *)g->map_k);
        tma_prefetch((const tensor_map *)g->map_v);
        if (!s.blocks) tma_prefetch((const tensor_map *)g->map_out);
    }
    if (warp == MULTIPLY_WARP) tmem_alloc(p.tmem_at, ATTEND_TMEM), tmem_relinquish();
    meet();
    p.tmem = ld_shared_u32(p.tmem_at);
    grid_release();
    grid_wait();
    if (warp < CORRECT_WARP) {
        if (s.texts) setmaxnreg_inc(176);
        else setmaxnreg_inc(184);
        if (s.tiles == ATTEND_TILES || warp < TILE_WARPS) soften_units(g, s, &p, warp / TILE_WARPS);
    } else if (warp < MULTIPLY_WARP) {
        if (s.texts) setmaxnreg_dec(96);
        else setmaxnreg_dec(88);
        correct_units(g, s, &p);
    } else {
        if (s.texts) setmaxnreg_dec(64);
        else setmaxnreg_dec(56);
        if (warp == MULTIPLY_WARP && s.tiles == 1) multiply_wide(g, s, &p);
        else if (warp == MULTIPLY_WARP) multiply_units(g, s, &p);
        else if (warp == LOAD_WARP && s.tiles == 1) load_wide(g, s, &p);
        else if (warp == LOAD_WARP) load_units(g, s, &p);
        else if (warp == STORE_WARP) store_units(g, s, &p);
        else publish_units(g, s, &p);
        __syncwarp();
    }
    meet();
    if (threadIdx.x / 32 == MULTIPLY_WARP) tmem_dealloc(p.tmem, ATTEND_TMEM);   /* asked again, as no register is left to keep it in */
}

#define JOIN(entries, name) attention_##entries##_##name
#define NAMED(entries, name) JOIN(entries, name)
#define ATTENTION_TILE(name, ...)                                                                                                                                 \
    static constexpr attend_sizes name##_sizes = {__VA_ARGS__};                                                                                                   \
    static_assert(attend_stages(name##_sizes) >= 2 && attend_shared_bytes(name##_sizes) <= ATTEND_SHARED_BYTES, "two stages fit in shared memory");                \
    extern "C" __global__ void __launch_bounds__(ATTEND_THREADS, 1) NAMED(ENTRIES, name)(const __grid_constant__ attention_tcgen05_arguments arguments) {           \
        constexpr attend_sizes sizes = name##_sizes;                                                                                                               \
        const attend_shape shape = {ELEMENT, sizes, sizes.width, sizes.value_width, attend_stages(sizes), attend_outs(sizes), attend_tiles(sizes), sizes.scores, sizes.texts, sizes.codes, sizes.blocks};                              \
        attend_units(&arguments, shape);                                                                                                                           \
    }
#ifdef CODES
#include "kernels/attention/tcgen05/codes.def"
#else
#include "kernels/attention/tcgen05/tiles.def"
#endif
