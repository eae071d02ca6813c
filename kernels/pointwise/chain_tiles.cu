/* Chains, and ops alone, with operands that are transposed: side by side along an axis that is not the result's last. A block has a tile of 64 rows x 64 columns, or 16 x 256 where rows are few; columns run
 * along the last axis, rows along the operands'.
 *
 *     operand   [cols][rows] gmem, 8 lanes along a column x 4 columns  ->  a slot (smem), fp32 [rows][cols]        all of a thread's 16 elements on their way at once
 *     thread    the program on twice eight elements of a row, as chain_vectors.cu has it, with that slot as an operand  ->  gmem, 64 or 256 columns of a row side by side
 *
 * Operands that lie along the last axis but not in vectors come through slots, too, with lanes along rows, and so does a result of such rows. The bits are those of the ops one by one, but for the payloads
 * of NaNs. Resources: 16 KiB of shared memory for each slot. Speed: README.md. */
#include "kernels/pointwise/chain_steps.cuh"

enum { EACH = (1 << CHAIN_TILE_BITS) / CUDA_THREADS, WARPS = CUDA_THREADS / 32, VECTOR_BITS = 3 };   /* elements of a thread; logarithm of CUDA_VECTOR */
static_assert(1 << CHAIN_TILE_BITS == CUDA_THREADS * CHAIN_VECTORS * CUDA_VECTOR && 1 << VECTOR_BITS == CUDA_VECTOR, "a tile is what a block has in registers");

#define EACH_ELEMENT(u) _Pragma("unroll") for (int u = 0; u < EACH; u++)

/* ---- places ---- */

/* Of an element, or the first of a vector, in its tile; or from one to another. */
typedef struct tile_place { int row, col; } tile_place;

INLINE constexpr int col_bits(const int row_bits) { return CHAIN_TILE_BITS - row_bits; }

INLINE tile_place place_of_vector(const int row_bits, const int v) {
    const int vector = v * CUDA_THREADS + threadIdx.x, bits = col_bits(row_bits) - VECTOR_BITS;
    const tile_place p = {vector >> bits, (vector & ((1 << bits) - 1)) << VECTOR_BITS};
    return p;
}

/* How a thread goes through a tile element by element, or by pairs (width 2): its first place, and from there to the next one. A warp takes 8 places along a column of 4, or 32 columns of a row. */
typedef struct tile_walk { tile_place first, step; } tile_walk;

INLINE tile_walk walk_of(const int row_bits, const bool by_rows, const int width) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, bits = by_rows ? row_bits - 2 - width : col_bits(row_bits) - 5, inside = warp & ((1 << bits) - 1), outside = warp >> bits;
    tile_walk w = {{outside, inside * 32 + lane}, {WARPS >> bits, 0}};
    if (by_rows) w = (tile_walk){{(inside * 8 + lane % 8) * width, outside * 4 + lane / 8}, {0, (WARPS >> bits) * 4}};
    return w;
}

/* Where an element lies in a slot. Vectors of a row change places by the row's bits, so that neither a warp's elements of columns nor its vectors of rows meet in a bank. Bit by bit an exclusive or of row and column:
 * what lies a step further lies at the exclusive or with the step's own place. */
INLINE constexpr uint32_t place_in_slot(const int row_bits, const tile_place p) {
    const unsigned vector = (unsigned)(p.row << (col_bits(row_bits) - VECTOR_BITS) | p.col >> VECTOR_BITS) ^ ((p.row ^ p.row >> 3) & 7);
    return vector / CUDA_THREADS * VECTOR_BYTES + vector % CUDA_THREADS * 16 + (p.col >> 2 & 1) * (VECTOR_BYTES / 2) + (p.col & 3) * 4;
}
INLINE uint32_t next_in_slot(const int row_bits, const uint32_t first, const tile_place step, const int u) {
    const tile_place p = {step.row * u, step.col * u};
    return first ^ place_in_slot(row_bits, p);
}

/* The block's tile: rows and columns from its first on. */
typedef struct tile_rest { int64_t rows, cols; } tile_rest;
INLINE tile_rest rest_of(const chain_tile_arguments *a, const int row_bits) {
    const tile_rest r = {a->rows - ((int64_t)blockIdx.y << row_bits), a->cols - ((int64_t)blockIdx.x << col_bits(row_bits))};
    return r;
}
INLINE bool is_inside(const tile_rest *rest, const tile_place p) { return p.row < rest->rows && p.col < rest->cols; }

/* Where a place of the tile lies in an array: the result (0) or operand k (1 + k). */
INLINE int64_t offset_of(const chain_tile_arguments *a, const int row_bits, int array, const tile_place p) {
    const int64_t row = ((int64_t)blockIdx.y << row_bits) + p.row, col = ((int64_t)blockIdx.x << col_bits(row_bits)) + p.col;
    return chain_offset(&a->chain.nest, blockIdx.z, array) + row * a->row_steps[array] + col * a->col_steps[array];
}

/* Of a thread's places how many are in the array. */
INLINE int count_of(const tile_rest *rest, const tile_walk *w) {
    if (!is_inside(rest, w->first)) return 0;
    const int64_t left = w->step.row > 0 ? rest->rows - w->first.row : rest->cols - w->first.col;
    const int step = w->step.row > 0 ? w->step.row : w->step.col;
    return left >= EACH * step ? EACH : ((int)left + step - 1) / step;
}

/* ---- operands and the result ---- */

INLINE float value_of(const int format, uint32_t bits) {
    if (format == CUDA_f32) return __uint_as_float(bits);
    if (format == CUDA_bf16) return __uint_as_float(bits << 16);
    return format == CUDA_f16 ? cvt_f32_f16((uint16_t)bits) : (float)(bits != 0);
}
INLINE uint32_t load_bits(const int bytes, uint64_t from) { return bytes == 4 ? *(const uint32_t *)from : bytes == 2 ? *(const uint16_t *)from : *(const uint8_t *)from; }

/* An operand's tile to its slot. width: elements of a column at a time, two of 2 bytes each or one. */
INLINE void hold_operand(const chain_tile_arguments *a, const int row_bits, const bool by_rows, const int format, const int width, int k, uint32_t slot) {
    const int bytes = format == CUDA_f32 ? 4 : format == CUDA_bool ? 1 : 2;
    const tile_walk w = walk_of(row_bits, by_rows, width);
    const tile_rest rest = rest_of(a, row_bits);
    const int count = count_of(&rest, &w);
    const uint32_t in_slot = place_in_slot(row_bits, w.first);
    const tile_place below = {1, 0};
    uint64_t from = a->chain.in[k].data + (uint64_t)(offset_of(a, row_bits, 1 + k, w.first) * bytes);
    const uint64_t step = (uint64_t)((w.step.row * a->row_steps[1 + k] + w.step.col * a->col_steps[1 + k]) * bytes);
    uint32_t bits[EACH];
    EACH_ELEMENT(u) {
        if (u >= EACH / width) break;
        bits[u] = u < count ? load_bits(bytes * width, from) : 0;
        from += step;
    }
    EACH_ELEMENT(u) {
        if (u >= EACH / width) break;
        const uint32_t at = next_in_slot(row_bits, in_slot, w.step, u);
        st_shared_f32(slot + at, value_of(format, width == 2 ? bits[u] & 0xffff : bits[u]));
        if (width == 2) st_shared_f32(slot + (at ^ place_in_slot(row_bits, below)), value_of(format, bits[u] >> 16));
    }
}

INLINE void hold_by_format(const chain_tile_arguments *a, const int row_bits, const bool by_rows, int k, uint32_t slot) {
    switch (a->chain.in[k].format) {
    case CUDA_f32: hold_operand(a, row_bits, by_rows, CUDA_f32, 1, k, slot); break;
    case CUDA_bf16: hold_operand(a, row_bits, by_rows, CUDA_bf16, 1, k, slot); break;
    case CUDA_f16: hold_operand(a, row_bits, by_rows, CUDA_f16, 1, k, slot); break;
    default: hold_operand(a, row_bits, by_rows, CUDA_bool, 1, k, slot);
    }
}

INLINE void hold_operands(const chain_tile_arguments *a, const int row_bits, uint32_t slots) {
#pragma unroll 1
    for (int i = 0; i < a->hold_count; i++) {
        const int k = a->holds[i].operand;
        const uint32_t slot = slot_address(slots, i);
        if (!a->holds[i].by_rows) hold_by_format(a, row_bits, false, k, slot);
        else if (a->holds[i].width == 1) hold_by_format(a, row_bits, true, k, slot);
        else if (a->chain.in[k].format == CUDA_bf16) hold_operand(a, row_bits, true, CUDA_bf16, 2, k, slot);
        else hold_operand(a, row_bits, true, CUDA_f16, 2, k, slot);
    }
}

/* Vectors behind the end are the last one once more. */
INLINE void load_operand(const chain_vector_arguments *chain, const chain_place *place, int k, float x[][PIECE]) {
    const chain_tile_arguments *a = (const chain_tile_arguments *)chain;   /* which it is the first part of */
    const int row_bits = place->row_bits;
    const tile_rest rest = rest_of(a, row_bits);
    int64_t at[CHAIN_VECTORS];
    EACH_VECTOR(v) {
        const tile_place p = place_of_vector(row_bits, v), last = {(int)min((int64_t)p.row, rest.rows - 1), (int)min((int64_t)p.col, rest.cols - PIECE)};
        at[v] = offset_of(a, row_bits, 1 + k, last);
    }
    if (chain->lies[k] == CHAIN_REPEATS) {
        EACH_VECTOR(v) {
            const float one = chain_element_at(&chain->in[k], at[v]);
            EACH_OF_PIECE(i) x[v][i] = one;
        }
        return;
    }
    load_dense(&chain->in[k], at, x);
}

INLINE void store_element(const cuda_array *out, int64_t at, float x) {
    if (out->format == CUDA_f32) ((float *)out->data)[at] = x;
    else if (out->format == CUDA_bool) ((uint8_t *)out->data)[at] = x != 0;
    else ((uint16_t *)out->data)[at] = (uint16_t)(out->format == CUDA_bf16 ? pack_pair(CUDA_bf16, x, 0) : pack_pair(CUDA_f16, x, 0));
}

INLINE void store_tile(const chain_tile_arguments *a, const chain_place *place, uint32_t slot, float x[][PIECE]) {
    const int row_bits = place->row_bits;
    const tile_rest rest = rest_of(a, row_bits);
    if (a->in_vectors) {
        EACH_VECTOR(v) {
            const tile_place p = place_of_vector(row_bits, v);
            if (is_inside(&rest, p)) store_vector(&a->chain.out, offset_of(a, row_bits, 0, p), x[v]);
        }
        return;
    }
    const tile_walk w = walk_of(row_bits, false, 1);
    const int count = count_of(&rest, &w);
    const uint32_t in_slot = place_in_slot(row_bits, w.first);
    const int64_t first = offset_of(a, row_bits, 0, w.first), step = w.step.row * a->row_steps[0];
    slot_store(slot, place, x);
    __syncthreads();
    EACH_ELEMENT(u)
        if (u < count) store_element(&a->chain.out, first + u * step, ld_shared_f32(slot + next_in_slot(row_bits, in_slot, w.step, u)));
}

INLINE void chain_tiles(const chain_tile_arguments *a, const int row_bits) {
    extern __shared__ __align__(16) uint8_t slot_bytes[];
    const uint32_t slots = shared_address(slot_bytes);
    chain_place place = {.crosses = false, .row_bits = row_bits};
    float x[CHAIN_VECTORS][PIECE];
    EACH_VECTOR(v) place.in_slot[v] = place_in_slot(row_bits, place_of_vector(row_bits, v));
    grid_release();
    grid_wait();
    hold_operands(a, row_bits, slots);
    __syncthreads();
    run_chain(&a->chain, &place, slots, x);
    store_tile(a, &place, slots, x);
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 3) chain_tiles_64(const __grid_constant__ chain_tile_arguments arguments) { chain_tiles(&arguments, CHAIN_MOST_ROWS); }
extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 3) chain_tiles_16(const __grid_constant__ chain_tile_arguments arguments) { chain_tiles(&arguments, CHAIN_LEAST_ROWS); }
