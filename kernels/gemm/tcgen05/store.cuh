/* Results on their way to global memory: by boxes of 32 rows by 128 bytes, which each warp stages of its own rows in shared memory and the copy engine stores; or in blocks, from registers. */
#ifndef KERNELS_GEMM_TCGEN05_STORE_CUH
#define KERNELS_GEMM_TCGEN05_STORE_CUH

#include "kernels/gpu/ptx/math.cuh"
#include "kernels/gpu/ptx/small.cuh"
#include "kernels/gpu/ptx/tma.cuh"
#include "kernels/gemm/tcgen05/epilogue.cuh"
#include "kernels/gemm/tcgen05/tiles.h"
#include "kernels/quantize/scales.cuh"

/* A warp's boxes are taken in turn; lane 0 issues all stores, and waits for them. count is a constant of the entry: 1 or 2. */
typedef struct store_boxes {
    int count, next;
    uint32_t place;               /* of the warp's boxes, smem */
} store_boxes;

/* Are a tile's results whole boxes of a result that a tensor map describes? */
INLINE bool store_is_staged(const matmul_epilogue *e, int columns) { return e->by_tma && columns % (e->out_format == MATMUL_f32 ? 32 : 64) == 0; }

/* The box that is filled next, once the last store has read it. */
INLINE void store_begin_box(store_boxes *boxes) {
    boxes->next = boxes->next + 1 < boxes->count ? boxes->next + 1 : 0;
    if (threadIdx.x % 32 == 0) {
        if (boxes->count == 1) tma_wait_read(0);
        else tma_wait_read(1);
    }
    __syncwarp();
}

/* Parts of 16 columns of a box: a power of two. */
INLINE int parts_of_box(const matmul_epilogue *e) { return e->out_format == MATMUL_f32 ? 2 : 4; }

/* 16 columns of a lane's row, number part of the box's, swizzled as the map of out is: 16 bytes number c of row r lie at c xor r % 8. */
INLINE void store_stage(const int format, uint32_t box, int part, const float *values) {
    const int count = row_words(format == MATMUL_f32 ? 4 : 2);
    const uint32_t to = box_word(box, threadIdx.x % 32, part * count);
    uint4 words[row_words(4)];
    row_pack(format, values, words);
#pragma unroll
    for (int i = 0; i < count; i++) st_shared_u32x4(next_word(to, i), words[i]);
}

/* Part number turn of a tile, in the order in which they come, into a box that was begun in front of the first part of it: its results of columns [part * 16, part * 16 + 16), from column col of out and the warp's first row on. The parts of a
 * box come one after the other, in either direction. */
INLINE void store_part(const matmul_epilogue *e, const tensor_map *map, store_boxes *boxes, const float *values, int turn, int part, int row, int col) {
    const int each = parts_of_box(e), place = part & (each - 1);
    const uint32_t box = boxes->place + boxes->next * TILES_BOX_BYTES;
    if (e->out_format == MATMUL_f32) store_stage(MATMUL_f32, box, place, values);
    else if (e->out_format == MATMUL_bf16) store_stage(MATMUL_bf16, box, place, values);
    else store_stage(MATMUL_f16, box, place, values);
    if ((turn & (each - 1)) != each - 1) return;
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 != 0) return;
    tma_store_2d(map, box, col + (part - place) * TCGEN05_CHUNK, row);
    tma_commit();
}

/* ---- an operand of the post list, ahead ----
 *
 * While a warp computes the results of a box, the next box of an operand that has an element for each of the result's is on its way, to the place where those results will lie:
 *
 *   box 0 of the operand: asked for before the sums are there      box i + 1: asked for behind the second part of box i, once the store of box i - 1 has read that place
 *
 * So a tile's results wait for memory once and not with every 16 columns. Lanes copy 16 bytes each, 8 of them a row; a warp waits for its own copies alone. */

/* The step whose operand comes so: the first one behind any that joins columns, of elements as large as the result's, in rows of whole 16 bytes. -1: there is none. */
INLINE int brought_step(const matmul_epilogue *e) {
    const int size = e->out_format == MATMUL_f32 ? 4 : 2;
    for (int i = e->halving + 1; i < e->count; i++) {
        const matmul_step *step = &e->steps[i];
        if (step->step != MATMUL_POST_add && step->step != MATMUL_POST_mul) continue;
        if (step->col_stride == 1 && step->row_stride > 1 && (step->format == MATMUL_f32 ? 4 : 2) == size && step->data % 16 == 0 && step->row_stride * size % 16 == 0) return i;
    }
    return -1;
}

/* Of the operand the warp's 32 rows from row on, columns from col on; rows, end: those that there are. pending: stores that may still be reading other boxes. */
INLINE void bring_box(const matmul_epilogue *e, int number, const store_boxes *boxes, int row, int rows, int col, int end, const int pending) {
    const matmul_step *step = &e->steps[number];
    const int lane = threadIdx.x % 32, word = lane % 8, size = e->out_format == MATMUL_f32 ? 4 : 2;
    const uint32_t box = boxes->place + (boxes->next + 1 < boxes->count ? boxes->next + 1 : 0) * TILES_BOX_BYTES;
    const uint8_t *from = (const uint8_t *)step->data + ((row + lane / 8) * step->row_stride + col) * size + word * 16;
    if (lane == 0) {
        if (pending == 0) tma_wait_read(0);
        else tma_wait_read(1);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 32; i += 4)
        if (row + i + lane / 8 < rows && col + (word + 1) * 16 / size <= end) cp_async(box_word(box, i + lane / 8, word), from + i * step->row_stride * size, 16, 16);
    cp_async_commit();
}

/* All lanes' copies are there for all of them. */
INLINE void wait_brought(void) {
    cp_async_wait(0);
    __syncwarp();
}

/* ---- results in blocks of 32 e4m3 or e2m1, or of 16 e2m1, along a row ---- */

/* What is quantised: rounded to the format in front of it; columns from end on do not count. */
INLINE void block_round(int format, float *values, int col, int end) {
    EACH_COLUMN {
        if (format == MATMUL_bf16) values[i] = __uint_as_float(cvt_bf16x2(values[i], 0) << 16);
        if (format == MATMUL_f16) values[i] = cvt_f32_f16((uint16_t)cvt_f16x2(values[i], 0));
        values[i] = col + i < end ? values[i] : 0;
    }
}

INLINE float block_largest(float most, const float *values) {
    EACH_COLUMN most = max_nan(most, fabsf(values[i]));
    return most;
}

/* 16 codes of e4m3 from column col on. */
INLINE void block_store_e4m3(const matmul_epilogue *e, const float *values, float inverse, const row_place p) {
    const uint64_t to = e->out + p.row * e->out_row_stride + p.col;
    uint32_t codes[TCGEN05_CHUNK / 4];
#pragma unroll
    for (int i = 0; i < TCGEN05_CHUNK / 4; i++) {
        const float *v = values + 4 * i;
        codes[i] = cvt_e4m3x2(v[0] * inverse, v[1] * inverse) | (uint32_t)cvt_e4m3x2(v[2] * inverse, v[3] * inverse) << 16;
    }
    if (lies_in_words(to, p.col, p.end)) {
        *(uint4 *)to = make_uint4(codes[0], codes[1], codes[2], codes[3]);
        return;
    }
    EACH_COLUMN
        if (p.col + i < p.end) ((uint8_t *)to)[i] = (uint8_t)(codes[i / 4] >> i % 4 * 8);
}

/* 16 codes of e2m1 from column col on, two in a byte; that behind a row's last column is zero. */
INLINE void block_store_e2m1(const matmul_epilogue *e, const float *values, float inverse, const row_place p) {
    uint8_t *to = (uint8_t *)e->out + p.row * ((e->out_row_stride + 1) / 2) + p.col / 2;
    uint32_t codes[TCGEN05_CHUNK / 8];
#pragma unroll
    for (int i = 0; i < TCGEN05_CHUNK / 8; i++) {
        const float *v = values + 8 * i;
        codes[i] = cvt_e2m1x2(v[0] * inverse, v[1] * inverse) | cvt_e2m1x2(v[2] * inverse, v[3] * inverse) << 8 | cvt_e2m1x2(v[4] * inverse, v[5] * inverse) << 16 |
                   cvt_e2m1x2(v[6] * inverse, v[7] * inverse) << 24;
    }
    if ((uint64_t)to % 8 == 0 && p.col + TCGEN05_CHUNK <= p.end) {
        *(uint2 *)to = make_uint2(codes[0], codes[1]);
        return;
    }
#pragma unroll
    for (int i = 0; i < TCGEN05_CHUNK / 2; i++) {
        const int col = p.col + 2 * i;
        if (col < p.end) to[i] = (uint8_t)(codes[i / 4] >> i % 4 * 8 & (col + 1 < p.end ? 0xff : 0xf));
    }
}

INLINE void block_store(const matmul_tiles_arguments *g, const float *values, float inverse, const row_place p) {
    if (g->result_bits == 4) block_store_e2m1(&g->epilogue, values, inverse, p);
    else block_store_e4m3(&g->epilogue, values, inverse, p);
}

/* The scale of a row's block number block, if it is_there; where scales lie in tiles, those of padding rows and columns are zero. */
INLINE void store_scale(const matmul_tiles_arguments *g, const row_place p, int block, bool is_there, int32_t code) {
    const matmul_epilogue *e = &g->epilogue;
    uint8_t *scales = (uint8_t *)e->scales;
    if (g->scale_step == 0 && is_there) scales[p.row * e->scale_row_stride + block] = (uint8_t)code;
    if (g->scale_step > 0 && p.row < g->scale_rows && block < 4 * g->scale_step)
        scales[((int64_t)(p.row / 128) * g->scale_step + block / 4) * 512 + p.row % 32 * 16 + p.row % 128 / 32 * 4 + block % 4] = is_there ? (uint8_t)code : 0;
}

/* A part of 16 columns is a block of nvfp4. Its scale is bit for bit what a quantiser makes of the results under the second level. */
INLINE void store_block_nvfp4(const matmul_tiles_arguments *g, float *values, const row_place p) {
    const matmul_epilogue *e = &g->epilogue;
    block_round(e->out_format, values, p.col, p.end);
    const int32_t code = rules_nv_scale(block_largest(0, values), rules_nv_encode_of(g->level));
    const bool is_there = p.row < p.rows && p.col < p.end;
    store_scale(g, p, p.col / TCGEN05_CHUNK, is_there, code);
    if (is_there) block_store_e2m1(e, values, rules_nv_inverse(code, g->level), p);
}

/* Two parts of 16 columns side by side, in either order, are a block of mxfp8 or mxfp4. Its scale is bit for bit what a quantiser makes of the results. */
INLINE void store_block(const matmul_tiles_arguments *g, float *first, float *second, const row_place p, int first_col, int second_col) {
    const matmul_epilogue *e = &g->epilogue;
    const int block = p.col / 32;
    block_round(e->out_format, first, first_col, p.end);
    block_round(e->out_format, second, second_col, p.end);
    const int32_t code = rules_mx_scale(block_largest(block_largest(0, first), second), largest_code(g->result_bits == 4 ? CUDA_e2m1 : CUDA_e4m3), 0);
    const bool is_there = p.row < p.rows && block * 32 < p.end;
    const float inverse = rules_mx_inverse(code);
    store_scale(g, p, block, is_there, code);
    if (!is_there) return;
    row_place here = p;
    here.col = first_col;
    block_store(g, first, inverse, here);
    here.col = second_col;
    block_store(g, second, inverse, here);
}

#endif
