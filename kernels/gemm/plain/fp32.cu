/* matmul in fp32 multiply-adds, for many rows of f32, bf16 and f16 with any strides: out [m,n] = post(a [m,k] b [n,k]^T), batch by batch.
 *
 *   a block: 256 threads, a tile of TILE x TILE, 16 x 16 threads of SUMS x SUMS sums each, SUMS = TILE / 16
 *   a, b [TILE, DEPTH]  gmem -> reg, four elements a thread, a block of k ahead -> smem [2][DEPTH][TILE + 4], k first, DEPTH = 1024 / TILE
 *   products            smem -> reg by 16 bytes, one fused multiply-add for each element of k, in its order: the plain kernel's sums, bit for bit
 *   sums                reg -> smem [TILE][TILE + 4] -> post list -> gmem, neighbouring threads neighbouring columns
 *
 * In tiles and blocks of k that lie inside, four elements are one load where they are neighbours in aligned memory, along k or along rows; elsewhere they are
 * loaded one by one, what lies outside being zero. A step that halves takes half a tile of
 * columns from each half of b. Resources: 128 registers, 67.6 KiB of shared memory (tiles of 64: 17). Speed: README.md. */
#include "kernels/gpu/epilogue/post.cuh"
#include "kernels/gemm/plain/plain.h"

#define INLINE static __device__ __forceinline__

enum { PITCH_PAD = 4, BAND = 8 };

/* What is brought of an operand: of each block of k four elements a thread, along k or along rows. */
typedef struct fp32_source {
    int format, along_k;
    int step;                     /* bytes from one of the four to the next */
    int block_step;               /* .. and from one block of k to the next */
    const uint8_t *from;
    int rows;                     /* of the four, how many rows there are; along k four or none */
    int k;                        /* of the first, in a block */
} fp32_source;

INLINE float load_one(int format, const uint8_t *from) {
    if (format == CUDA_f32) return *(const float *)from;
    return format == CUDA_bf16 ? small_from_bf16(*(const uint16_t *)from) : small_from_f16(*(const uint16_t *)from);
}

/* left: columns of k from the block on. */
INLINE float4 load_four(const fp32_source *x, int left) {
    float4 y = make_float4(0, 0, 0, 0);
    int count = x->along_k ? (x->rows > 0 ? left - x->k : 0) : x->k < left ? x->rows : 0;
    if (count > 0) y.x = load_one(x->format, x->from);
    if (count > 1) y.y = load_one(x->format, x->from + x->step);
    if (count > 2) y.z = load_one(x->format, x->from + 2ll * x->step);
    if (count > 3) y.w = load_one(x->format, x->from + 3ll * x->step);
    return y;
}

/* The place of this thread's four in the tile: row and k of the first. */
INLINE void place_of_four(const int tile, int along_k, int *row, int *k) {
    const int depth = 1024 / tile;
    if (along_k) *row = threadIdx.x / (depth / 4), *k = threadIdx.x % (depth / 4) * 4;
    else *row = threadIdx.x % (tile / 4) * 4, *k = threadIdx.x / (tile / 4);
}

/* Rows [first, end) of an operand from element at on; those of the tile's upper half lie upper rows further on (0: behind the lower ones). */
INLINE void open_source(fp32_source *x, const int tile, const cuda_rows *rows, int64_t at, int first, int end, int upper) {
    const int bytes = rows->format == CUDA_f32 ? 4 : 2;
    int row;
    x->format = rows->format;
    x->along_k = rows->row_stride != 1 || rows->k_stride == 1;
    x->step = (int)(x->along_k ? rows->k_stride : rows->row_stride) * bytes;
    x->block_step = 1024 / tile * (int)rows->k_stride * bytes;
    place_of_four(tile, x->along_k, &row, &x->k);
    bool is_upper = upper > 0 && row >= tile / 2;
    int own = first + (is_upper ? row - tile / 2 : row);
    x->rows = own >= end ? 0 : x->along_k ? 4 : min(end - own, 4);
    if (is_upper) own += upper;
    x->from = (const uint8_t *)rows->data + (at + own * rows->row_stride + x->k * rows->k_stride) * bytes;
}

/* Four into smem [depth][tile + 4]. */
INLINE void put_four(const int tile, const fp32_source *x, float *to, float4 y) {
    const int pitch = tile + PITCH_PAD;
    int row, k;
    place_of_four(tile, x->along_k, &row, &k);
    to += k * pitch + row;
    if (!x->along_k) {
        *(float4 *)to = y;
        return;
    }
    to[0] = y.x, to[pitch] = y.y, to[2 * pitch] = y.z, to[3 * pitch] = y.w;
}

/* Row or column number i of a thread's sums: quads of neighbours, 64 apart. */
INLINE int place_of_sum(int thread, const int i) { return i / 4 * 64 + thread * 4 + i % 4; }

INLINE void multiply_block(const int tile, const float *a, const float *b, int down, int across, float sums[8][8]) {
    const int depth = 1024 / tile, count = tile / 16, pitch = tile + PITCH_PAD;
#pragma unroll
    for (int l = 0; l < depth; l++) {
        float x[8], y[8];
#pragma unroll
        for (int i = 0; i < count; i += 4) {
            float4 quad = *(const float4 *)(a + l * pitch + place_of_sum(down, i));
            x[i] = quad.x, x[i + 1] = quad.y, x[i + 2] = quad.z, x[i + 3] = quad.w;
            quad = *(const float4 *)(b + l * pitch + place_of_sum(across, i));
            y[i] = quad.x, y[i + 1] = quad.y, y[i + 2] = quad.z, y[i + 3] = quad.w;
        }
#pragma unroll
        for (int i = 0; i < count; i++)
#pragma unroll
            for (int j = 0; j < count; j++) sums[i][j] = fmaf(x[i], y[j], sums[i][j]);
    }
}

/* Columns [begin, end) of k to the sums. whole: every four of the operands' rows and columns is there and one load. */
INLINE void multiply_span(const matmul_arguments *p, const int tile, const int whole, const int64_t *at, int top, int left, int begin, int end, int *turn, float *shared, float sums[8][8]) {
    const int depth = 1024 / tile, block = depth * (tile + PITCH_PAD);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, down = warp / 2 * 4 + lane / 8, across = warp % 2 * 8 + lane % 8;
    fp32_source a, b;
    open_source(&a, tile, &p->a, at[1] + begin * p->a.k_stride, top, (int)p->m, 0);
    open_source(&b, tile, &p->b, at[2] + begin * p->b.k_stride, left, (int)p->n, (int)p->post.half);
    float4 next_a = whole ? *(const float4 *)a.from : load_four(&a, end - begin), next_b = whole ? *(const float4 *)b.from : load_four(&b, end - begin);
#pragma unroll 1
    for (int rest = end - begin; rest > 0; rest -= depth, *turn ^= 1) {
        float *now = shared + *turn * 2 * block;
        put_four(tile, &a, now, next_a);
        put_four(tile, &b, now + block, next_b);
        __syncthreads();          /* the buffer that comes next was read before the last one of these */
        a.from += a.block_step, b.from += b.block_step;
        if (rest > depth) {
            next_a = whole ? *(const float4 *)a.from : load_four(&a, rest - depth);
            next_b = whole ? *(const float4 *)b.from : load_four(&b, rest - depth);
        }
        multiply_block(tile, now, now + block, down, across, sums);
    }
}

/* Does whole hold, of rows whose tile lies inside? */
INLINE int is_whole(const cuda_rows *rows, int64_t at, int64_t upper) {
    const int along_k = rows->k_stride == 1;
    const int64_t other = along_k ? rows->row_stride : rows->k_stride;
    return rows->format == CUDA_f32 && (along_k || rows->row_stride == 1) && (other | (along_k ? 0 : upper)) % 4 == 0 && (rows->data + at * 4) % 16 == 0;
}

INLINE void store_sums(const matmul_arguments *p, const int tile, const int64_t *at, int top, int left, float *shared, float sums[8][8]) {
    const int count = tile / 16, pitch = tile + PITCH_PAD, halves = p->post.half > 0, wide = halves ? tile / 2 : tile;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, down = warp / 2 * 4 + lane / 8, across = warp % 2 * 8 + lane % 8;
#pragma unroll
    for (int i = 0; i < count; i++)
#pragma unroll
        for (int j = 0; j < count; j += 4)
            *(float4 *)(shared + place_of_sum(down, i) * pitch + place_of_sum(across, j)) = make_float4(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < tile * wide; i += CUDA_THREADS) {
        int r = i / wide, c = i % wide, row = top + r, col = left + c;
        if (row >= p->m || col >= p->n) continue;
        float y = shared[r * pitch + c], u = halves ? shared[r * pitch + wide + c] : 0;
        store_float(&p->out, at[0] + row * p->out_row + col * p->out_col, post_apply(&p->post, at + 3, row, 0, col, y, u));
    }
    __syncthreads();
}

INLINE void multiply_tile(const matmul_arguments *p, const int tile, const int64_t *at, int top, int left, float *shared) {
    const int depth = 1024 / tile, count = tile / 16, wide = p->post.half > 0 ? tile / 2 : tile;
    float sums[8][8];
    int turn = 0, done = 0;
#pragma unroll
    for (int i = 0; i < count; i++)
#pragma unroll
        for (int j = 0; j < count; j++) sums[i][j] = 0;
    if (top + tile <= p->m && left + wide <= p->n && is_whole(&p->a, at[1], 0) && is_whole(&p->b, at[2], p->post.half)) done = (int)p->k / depth * depth;
    if (done > 0) multiply_span(p, tile, 1, at, top, left, 0, done, &turn, shared, sums);
    if (done < p->k) multiply_span(p, tile, 0, at, top, left, done, (int)p->k, &turn, shared, sums);
    __syncthreads();
    store_sums(p, tile, at, top, left, shared, sums);
}

/* Tiles in bands BAND high, so that those in flight at a time need few rows of a and of b. */
INLINE void multiply_tiles(const matmul_arguments *p, const int tile) {
    extern __shared__ __align__(16) float shared[];
    const int wide = p->post.half > 0 ? tile / 2 : tile, across = ((int)p->n + wide - 1) / wide, down = ((int)p->m + tile - 1) / tile, all = across * down;
#pragma unroll 1
    for (int item = blockIdx.x; item < (int)p->batch.count * all; item += gridDim.x) {
        int64_t at[3 + CUDA_POST_OPERANDS];
        int own = item % all, first = own / (BAND * across) * BAND, height = min(down - first, (int)BAND), rest = own - first * across;
        nest_offsets(&p->batch, item / all, 3 + CUDA_POST_OPERANDS, at);
        multiply_tile(p, tile, at, (first + rest % height) * tile, rest / height * wide, shared);
    }
}

#define ENTRY(tile) \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 2) matmul_fp32_##tile(const __grid_constant__ matmul_arguments arguments) { multiply_tiles(&arguments, tile); }
ENTRY(128)
ENTRY(64)
