/* Masks and biases of keys (ATTENTION_KEYS), in the attention kernel by wgmma: the loading warp reads them, block by block, and says with each block what becomes of it:
 *
 *   all biases are 0                     the block is as good as plain
 *   all keys are hidden                  it is not loaded
 *   all biases are OP_ATTENTION_HIDES or    left out if all queries of the tile see a key that is not hidden: beside its score their weights are 0. A row of which that is not so, as its scores are
 *   less, some not -inf                  NaN or -inf, is done again (store.cuh). Without such a key: put off; behind all others warps answer whether any of their rows has come to
 *                                        no larger score, and only then these blocks are loaded, too
 *   anything else                        the biases go to smem, [keys] fp32, four blocks of them */
#ifndef KERNELS_ATTENTION_WGMMA_KEYS_CUH
#define KERNELS_ATTENTION_WGMMA_KEYS_CUH

#include "kernels/attention/wgmma/soften.cuh"

/* With a block of keys: its number times 4 and whether it has biases; or there is none, and an answer is asked for, or it was the last of the tile, with NOTE_LATE if hidden ones were left out. */
enum { NOTE_LATE = 4 };
enum { NOTE_PLAIN, NOTE_BIASED, NOTE_ASK, NOTE_END };

/* The mask and bias of a key as one number. */
INLINE float key_bias(const attention_arguments *p, attention_extra extra, int key) {
    return p->has_mask && *(const uint8_t *)(extra.mask + key * p->mask_strides[3]) == 0 ? -INFINITE : p->has_bias ? bias_at(p, extra, key) : 0;
}

/* What becomes of a window of blocks from `first` on, a bit each. plain: all biases are 0; hidden: OP_ATTENTION_HIDES or less; gone: -inf; settles: a key of range is not hidden. */
enum { WINDOW_KEYS = 256 };
typedef struct block_kinds { uint32_t plain, hidden, gone, settles; } block_kinds;

/* By one warp. All is read before any is looked at: the warp that loads waits for memory once a window. */
INLINE block_kinds kinds_of(const attention_arguments *p, const attention_shape s, attention_extra extra, int first, attention_range range) {
    const int keys = (int)p->keys, from = first * s.keys + threadIdx.x % 32;
    float biases[WINDOW_KEYS / 32];
    block_kinds kinds = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < WINDOW_KEYS / 32; i++) biases[i] = from + i * 32 < keys ? key_bias(p, extra, from + i * 32) : -INFINITE;
#pragma unroll
    for (int block = 0; block < WINDOW_KEYS / s.keys; block++) {
        bool plain = true, hidden = true, gone = true, settles = false;
#pragma unroll
        for (int i = block * s.keys / 32; i < (block + 1) * s.keys / 32; i++) {
            const int key = from + i * 32;
            plain = plain && (key >= keys || biases[i] == 0);
            hidden = hidden && biases[i] <= OP_ATTENTION_HIDES;
            gone = gone && biases[i] == -INFINITE;
            settles = settles || (key >= range.begin && key < range.end && biases[i] > SETTLED);
        }
        kinds.plain |= (uint32_t)__all_sync(0xffffffff, plain) << block;
        kinds.hidden |= (uint32_t)__all_sync(0xffffffff, hidden) << block;
        kinds.gone |= (uint32_t)__all_sync(0xffffffff, gone) << block;
        kinds.settles |= (uint32_t)(__any_sync(0xffffffff, settles) != 0) << block;
    }
    return kinds;
}

/* The biases of a block, [keys] fp32; -inf of no key behind the last one. */
INLINE void stage_biases(const attention_arguments *p, const attention_shape s, attention_extra extra, int block, uint32_t to) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < s.keys / 32; i++) {
        const int key = block * s.keys + i * 32 + lane;
        st_shared_f32(to + (i * 32 + lane) * 4, key < (int)p->keys ? key_bias(p, extra, key) : -INFINITE);
    }
    __syncwarp();
}

/* A note without a block; by one warp. */
INLINE void give_note(const attention_shape s, attention_smem m, ring_turn *turn, uint32_t note) {
    ring_wait_empty(m.k_ring, *turn);
    if (threadIdx.x % 32 == 0) {
        st_shared_u32(m.notes + 4 * turn->stage, note);
        ring_arrive_full(m.k_ring, *turn);
    }
    ring_next(turn, s.stages);
}

/* Does a row need the keys that have been put off? asked: how often that was asked before. */
INLINE bool is_answered_yes(const attention_shape s, attention_smem m, uint32_t asked) {
    const int lane = threadIdx.x % 32;
    mbarrier_wait(m.answered, asked & 1);
    return __any_sync(0xffffffff, lane < 4 * s.groups && ld_shared_u32(m.answers + (lane < 4 * s.groups ? lane : 0) * 4) != 0);
}

/* Whether a row of this warp has come to no score beside which hidden keys weigh nothing, to the warp that loads. sees: has this warpgroup queries? */
INLINE void answer(const attention_wgmma_arguments *g, attention_smem m, const attention_rows *rows, bool sees) {
    bool open = false;
#pragma unroll
    for (int half = 0; half < 2; half++) open = open || (end_of(g, rows->query + 8 * half) > begin_of(g, rows->query + 8 * half) && !(rows->max[half] > SETTLED));
    const bool any = __any_sync(0xffffffff, sees && open);
    if (threadIdx.x % 32 != 0) return;
    st_shared_u32(m.answers + threadIdx.x / 32 * 4, any);
    mbarrier_arrive(m.answered);
}

#endif
