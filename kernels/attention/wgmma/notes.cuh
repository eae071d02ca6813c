/* Of attention by wgmma: the warp that loads where keys have a mask or a bias, and says with each block what becomes of it. */
#ifndef KERNELS_ATTENTION_WGMMA_NOTES_CUH
#define KERNELS_ATTENTION_WGMMA_NOTES_CUH

#include "kernels/attention/wgmma/load.cuh"

/* ---- masks of keys ---- */

/* With a block of keys: its number times 4 and whether it has biases; or there is none, and an answer is asked for, or it was the last. */
enum { NOTE_PLAIN, NOTE_BIASED, NOTE_ASK, NOTE_END };

/* Whatever a row holds above this, no key of OP_ATTENTION_HIDES or less has weight beside it. */
#define SETTLED (OP_ATTENTION_HIDES / 2)

/* Keys of which a warp reads the masks at a time, before it looks at one: it waits for memory once for so many. */
enum { MOST_READS = 16 };
/* A warp that loads for large warpgroups has few registers. */
INLINE int window_blocks(const attention_shape s) { return (s.blocks > 1 ? MOST_READS : s.groups < 3 ? MOST_READS / 2 : MOST_READS / 4) * 32 / s.keys; }

/* Numbers of size bytes, `step` bytes apart, as they lie; none behind the last key, of which `left` are 32 x i away. */
INLINE void read_numbers(const int size, uint64_t at, int64_t step, int left, const int count, uint32_t *numbers) {
#pragma unroll
    for (int i = 0; i < count; i++, at += step) {
        numbers[i] = 0;
        if (i * 32 < left) numbers[i] = size == 4 ? __ldg((const uint32_t *)at) : size == 2 ? __ldg((const uint16_t *)at) : __ldg((const uint8_t *)at);
    }
}

/* The mask and bias (not one that comes in tiles) of each of count x 32 keys from `first` on as one number; -inf of no key behind the last one. By one warp, a key to a lane. */
INLINE void read_biases(const attention_arguments *p, const attention_shape s, attention_extra extra, int first, const int count, float *biases) {
    const int key = first + threadIdx.x % 32, left = (int)p->keys - key, size = p->bias.element_bytes;
    const int64_t step = p->bias_strides[3] * size;
    uint32_t numbers[MOST_READS];
#pragma unroll
    for (int i = 0; i < count; i++) biases[i] = 0;
    if (s.scores == ATTENTION_KEYS && p->has_bias && size == 4) {
        read_numbers(4, extra.bias + key * step, 32 * step, left, count, numbers);
#pragma unroll
        for (int i = 0; i < count; i++) biases[i] = __uint_as_float(numbers[i]);
    } else if (s.scores == ATTENTION_KEYS && p->has_bias) {
        read_numbers(2, extra.bias + key * step, 32 * step, left, count, numbers);
#pragma unroll
        for (int i = 0; i < count; i++) biases[i] = p->bias.format == CUDA_bf16 ? __uint_as_float(numbers[i] << 16) : cvt_f32_f16((uint16_t)numbers[i]);
    }
    if (p->has_mask) {
        read_numbers(1, extra.mask + key * p->mask_strides[3], 32 * p->mask_strides[3], left, count, numbers);
#pragma unroll
        for (int i = 0; i < count; i++) biases[i] = numbers[i] == 0 ? -INFINITE : biases[i];
    }
#pragma unroll
    for (int i = 0; i < count; i++) biases[i] = i * 32 < left ? biases[i] : -INFINITE;
}

/* What becomes of the blocks of a window of keys, a bit each. plain: all biases are 0; hidden: OP_ATTENTION_HIDES or less; gone: -inf. */
typedef struct block_kinds { uint32_t plain, hidden, gone; } block_kinds;

INLINE block_kinds read_kinds(const attention_arguments *p, const attention_shape s, attention_extra extra, int first_block) {
    const int first = first_block * s.keys, left = (int)p->keys - first - threadIdx.x % 32, each = s.keys / 32;
    float biases[MOST_READS];
    block_kinds kinds = {0, 0, 0};
    read_biases(p, s, extra, first, window_blocks(s) * each, biases);
#pragma unroll
    for (int block = 0; block < window_blocks(s); block++) {
        bool plain = true, hidden = true, gone = true;
#pragma unroll
        for (int i = block * each; i < (block + 1) * each; i++) {
            plain = plain && (biases[i] == 0 || i * 32 >= left);
            hidden = hidden && biases[i] <= OP_ATTENTION_HIDES;
            gone = gone && biases[i] == -INFINITE;
        }
        kinds.plain |= (uint32_t)__all_sync(0xffffffff, plain) << block;
        kinds.hidden |= (uint32_t)__all_sync(0xffffffff, hidden) << block;
        kinds.gone |= (uint32_t)__all_sync(0xffffffff, gone) << block;
    }
    return kinds;
}

/* The biases of a block, [keys] fp32. */
INLINE void stage_biases(const attention_arguments *p, const attention_shape s, attention_extra extra, int block, uint32_t to) {
    float biases[MOST_READS];
    read_biases(p, s, extra, block * s.keys, s.keys / 32, biases);
#pragma unroll
    for (int i = 0; i < s.keys / 32; i++) st_shared_f32(to + (i * 32 + threadIdx.x % 32) * 4, biases[i]);
    __syncwarp();
}

INLINE bool is_unmasked(const attention_arguments *p, attention_extra extra, int key) { return *(const uint8_t *)(extra.mask + key * p->mask_strides[3]) != 0; }

/* Which of a block's keys, of which there are no more than 128, a bool mask lets be seen (ATTENTION_MASKED): a bit each. By one warp. */
INLINE uint4 read_bits(const attention_arguments *p, const attention_shape s, attention_extra extra, int block) {
    const int first = block * s.keys + threadIdx.x % 32;
    uint32_t numbers[4], bits[4] = {0, 0, 0, 0};
    read_numbers(1, extra.mask + first * p->mask_strides[3], 32 * p->mask_strides[3], (int)p->keys - first, s.keys / 32, numbers);
#pragma unroll
    for (int i = 0; i < s.keys / 32; i++) bits[i] = __ballot_sync(0xffffffff, numbers[i] != 0);
    return make_uint4(bits[0], bits[1], bits[2], bits[3]);
}

/* Scores of keys without a bit become -inf. at: the block's bits, smem. */
INLINE void hide_bits(const attention_shape s, uint32_t at, float *scores) {
    const uint4 x = ld_shared_u32x4(at);
    const int shift = threadIdx.x % 4 * 2;
    const uint32_t bits[4] = {x.x >> shift, x.y >> shift, x.z >> shift, x.w >> shift};
#pragma unroll
    for (int i = 0; i < s.keys / 2; i++)
        if ((bits[i / 16] >> (i / 4 % 4 * 8 + (i & 1)) & 1) == 0) scores[i] = -INFINITE;
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

/* Of the warp that loads: its turns, the blocks that it has given so far, whose biases have places of their own, and how often it has asked. */
typedef struct giver { ring_turn k, v; uint32_t given, asked; } giver;

/* A block of keys with its note, biases (unless it is plain) and values; or with bits of a mask (ATTENTION_MASKED). */
INLINE void give_block(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, attention_extra extra, int block, bool plain, uint4 bits, giver *to) {
    const int k_bytes = s.keys * s.width * 2, v_bytes = s.keys * s.value_width * 2, group = tile.head / (int)g->call.shared_heads;
    ring_wait_empty(m.k_ring, to->k);
    if (!plain && s.scores != ATTENTION_MASKED) stage_biases(&g->call, s, extra, block, m.bias + to->given % ATTENTION_BIAS_STAGES * s.keys * 4);
    if (threadIdx.x % 32 == 0) {
        if (!plain && s.scores == ATTENTION_MASKED) st_shared_u32x4(m.bias + to->given % ATTENTION_BIAS_STAGES * s.keys * 4, bits);
        st_shared_u32(m.notes + 4 * to->k.stage, (uint32_t)block * 4 + (plain ? NOTE_PLAIN : NOTE_BIASED));
        uint32_t full = ring_expect_full(m.k_ring, to->k, k_bytes + tile_bytes(s));
        load_tile((const tensor_map *)g->map_k, m.k + to->k.stage * k_bytes, full, s.keys, s.width, block * s.keys, group, tile.batch, TMA_EVICT_LAST);
        if (s.scores == ATTENTION_TILED)
            tma_load_4d(m.tiles + to->k.stage * tile_bytes(s), (const tensor_map *)g->map_bias, full, block * s.keys, tile.first, g->bias_head * tile.head, g->bias_batch * tile.batch, TMA_EVICT_LAST);
        ring_wait_empty(m.v_ring, to->v);
        full = ring_expect_full(m.v_ring, to->v, v_bytes);
        load_tile((const tensor_map *)g->map_v, m.v + to->v.stage * v_bytes, full, s.keys, s.value_width, block * s.keys, group, tile.batch, TMA_EVICT_LAST);
    }
    __syncwarp();
    ring_next(&to->k, s.stages);
    ring_next(&to->v, s.stages);
    to->given++;
}

/* The blocks [begin, end) of a tile, those that are seen; by one warp. */
INLINE void give_blocks(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, int begin, int end, giver *to) {
    const attention_extra extra = extra_of(&g->call, tile.batch, tile.head, 0);
    block_kinds kinds;
#pragma unroll 1
    for (int round = 0; round < 2; round++) {
        bool put_off = false;
#pragma unroll 1
        for (int block = begin; block < end; block++) {
            const int place = (block - begin) % window_blocks(s);
            if (place == 0) kinds = read_kinds(&g->call, s, extra, block);
            const bool plain = kinds.plain >> place & 1, hidden = kinds.hidden >> place & 1;
            if (kinds.gone >> place & 1) continue;
            put_off = put_off || hidden;
            if (hidden == (round == 1)) give_block(g, s, m, tile, extra, block, plain, make_uint4(0, 0, 0, 0), to);
        }
        if (round == 1 || !put_off) break;
        give_note(s, m, &to->k, NOTE_ASK);
        if (!is_answered_yes(s, m, to->asked++)) break;
    }
    give_note(s, m, &to->k, NOTE_END);
}

/* The same by the bits of a mask, of which none is put off. */
INLINE void give_masked_blocks(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile, int end, giver *to) {
    const attention_extra extra = extra_of(&g->call, tile.batch, tile.head, 0);
#pragma unroll 1
    for (int block = 0; block < end; block++) {
        const uint4 bits = read_bits(&g->call, s, extra, block);
        const bool plain = (bits.x & bits.y & bits.z & bits.w) == 0xffffffff, gone = (bits.x | bits.y | bits.z | bits.w) == 0;
        if (!gone) give_block(g, s, m, tile, extra, block, plain, bits, to);
    }
    give_note(s, m, &to->k, NOTE_END);
}

/* What load_blocks does, by one warp, of the blocks that are seen. */
INLINE void load_seen_blocks(const attention_wgmma_arguments *g, const attention_shape s, attention_smem m, attention_tile tile) {
    const int q_rows = s.groups * 64;
    const attention_segment segment = load_segment(m.segments, 0);
    giver to = {ring_writer(), ring_writer(), 0, 0};
    if (threadIdx.x % 32 == 0) {
        mbarrier_arrive_expect(m.q_ring.full, q_rows * s.width * 2);
        load_tile((const tensor_map *)g->map_q, m.q, m.q_ring.full, q_rows, s.width, tile.first, tile.head, tile.batch, TMA_EVICT_FIRST);
    }
    give_blocks(g, s, m, tile, segment.block, segment.end_block, &to);
}

#endif
