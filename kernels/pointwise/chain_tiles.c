/* Chains and ops that read transposed operands: the host half of chain_tiles.cu. */
#include "kernels/pointwise/chain_codes.h"

#include <assert.h>

#include "kernels/gpu/host/host.h"
#include "kernels/pointwise/functions.h"

static_assert(sizeof(chain_tile_arguments) <= KERNEL_ARGUMENT_BYTES, "a launch holds a chain");

enum { SLOT_BYTES = (1 << CHAIN_TILE_BITS) * (int)sizeof(float) };

/* The axis along which an operand lies side by side that neither does so along the last axis nor repeats there; -1: there is none. Both are of at least 8 elements. */
static int turned_axis(const cuda_nest *nest, int operands) {
    enum { LEAST = 8 };
    const int last = nest->rank - 1;
    if (nest->rank < 2 || nest->dims[last] < LEAST) return -1;
    for (int k = 1; k <= operands; k++)
        for (int axis = 0; axis < last; axis++)
            if (nest->strides[k][last] != 0 && nest->strides[k][last] != 1 && nest->strides[k][axis] == 1 && nest->dims[axis] >= LEAST) return axis;
    return -1;
}

/* Are the strides of all axes but the last multiples? */
static bool has_multiples(const cuda_nest *nest, int array, int64_t of) {
    for (int axis = 0; axis < nest->rank - 1; axis++)
        if (nest->strides[array][axis] % of != 0) return false;
    return true;
}

/* Rows of whole vectors at multiples of 16 bytes. */
static bool lies_in_vectors(const cuda_nest *nest, int array, const dw_tensor *t) {
    const int last = nest->rank - 1;
    return nest->strides[array][last] == 1 && nest->dims[last] % CUDA_VECTOR == 0 && cuda_lies_at_16(t->data) && has_multiples(nest, array, CUDA_VECTOR);
}

/* Pairs of halves of a column, at multiples of 4 bytes? */
static bool has_pairs(const cuda_nest *nest, int array, int row, const dw_tensor *t) {
    if (dw_format_bits(t->format) != 16 || nest->dims[row] % 2 != 0 || (uintptr_t)t->data % 4 != 0) return false;
    for (int axis = 0; axis < nest->rank; axis++)
        if (axis != row && nest->strides[array][axis] % 2 != 0) return false;
    return true;
}

/* Tiles of 2^row_bits rows that cover rows and columns. */
typedef struct tiling { int row_bits; int64_t row_tiles, col_tiles; } tiling;

static tiling tiling_of(int64_t rows, int64_t cols, int row_bits) {
    return (tiling){row_bits, base_ceil_div(rows, INT64_C(1) << row_bits), base_ceil_div(cols, INT64_C(1) << (CHAIN_TILE_BITS - row_bits))};
}

/* Those of 64 rows, which read columns in longer pieces, unless the others are fewer by a quarter. false: more than three quarters of their elements would not be there, or they are more than a grid counts. */
static bool choose_tiles(const cuda_nest *nest, int row, tiling *t) {
    enum { WORST = 4, MOST = UINT16_MAX };
    const int64_t rows = nest->dims[row], cols = nest->dims[nest->rank - 1], outside = nest->count / (rows * cols);
    const tiling wide = tiling_of(rows, cols, CHAIN_LEAST_ROWS);
    *t = tiling_of(rows, cols, CHAIN_MOST_ROWS);
    if (4 * wide.row_tiles * wide.col_tiles <= 3 * t->row_tiles * t->col_tiles) *t = wide;
    return t->row_tiles * t->col_tiles <= WORST * rows * cols >> CHAIN_TILE_BITS && t->row_tiles <= MOST && t->col_tiles <= INT32_MAX && outside <= MOST;
}

static void take_space(const cuda_nest *nest, int arrays, int row, chain_tile_arguments *a) {
    const int last = nest->rank - 1;
    cuda_nest *outside = &a->chain.nest;
    a->rows = nest->dims[row];
    a->cols = nest->dims[last];
    *outside = (cuda_nest){.narrow = nest->narrow, .count = nest->count / (a->rows * a->cols)};
    for (int axis = 0; axis < last; axis++) {
        if (axis == row) continue;
        outside->dims[outside->rank] = nest->dims[axis];
        for (int k = 0; k < arrays; k++) outside->strides[k][outside->rank] = nest->strides[k][axis];
        outside->rank++;
    }
    if (outside->rank == 0) outside->dims[outside->rank++] = 1;
    for (int k = 0; k < arrays; k++) {
        a->row_steps[k] = nest->strides[k][row];
        a->col_steps[k] = nest->strides[k][last];
    }
    a->chain.vectors = outside->count;
}

/* What lies neither in vectors nor repeats comes by slots. */
static void take_operands(const kernel_run *run, const cuda_nest *nest, int row, chain_tile_arguments *a, int *held) {
    for (int i = 0; i < CHAIN_OPERANDS; i++) held[i] = -1;
    for (int i = 0; i < run->call.n_in; i++) {
        const bool repeats = nest->strides[1 + i][nest->rank - 1] == 0, in_vectors = lies_in_vectors(nest, 1 + i, run->call.in[i]);
        a->chain.lies[i] = repeats ? CHAIN_REPEATS : in_vectors ? CHAIN_DENSE : CHAIN_HELD;
        if (repeats || in_vectors) continue;
        const bool by_rows = nest->strides[1 + i][row] == 1;
        held[i] = a->hold_count;
        a->holds[a->hold_count++] = (chain_hold){.operand = (uint8_t)i, .by_rows = by_rows, .width = by_rows && has_pairs(nest, 1 + i, row, run->call.in[i]) ? 2 : 1};
    }
}

bool chain_tiles_launch(const kernel_run *run, const op_chain *chain, const cuda_nest *nest, kernel_launch *launch) {
    const int row = turned_axis(nest, run->call.n_in);
    int held[CHAIN_OPERANDS], slots;
    tiling tiles;
    if (row < 0 || nest->strides[0][nest->rank - 1] != 1 || !chain_has_vectors(run, chain) || !choose_tiles(nest, row, &tiles)) return false;
    chain_tile_arguments *a = cuda_launch(launch, "chain_tiles", tiles.row_bits == CHAIN_MOST_ROWS ? "chain_tiles_64" : "chain_tiles_16", sizeof *a);
    take_space(nest, 1 + run->call.n_in, row, a);
    take_operands(run, nest, row, a, held);
    a->in_vectors = lies_in_vectors(nest, 0, run->call.out[0]);
    a->chain.operands = run->call.n_in;
    for (int i = 0; i < run->call.n_in; i++) cuda_take_array(launch, run, i, &a->chain.in[i]);
    cuda_take_array(launch, run, KERNEL_RESULT, &a->chain.out);
    slots = chain_take_codes(chain, held, &a->chain);
    launch->shared_bytes = (uint32_t)(slots * SLOT_BYTES);
    launch->overlaps = true;
    cuda_grid(launch, tiles.col_tiles, tiles.row_tiles, a->chain.vectors);
    return launch->shared_bytes <= run->chip->shared_bytes;
}

bool chain_tiles_launch_op(const kernel_run *run, const cuda_nest *nest, kernel_launch *launch) {
    const dw_format format = run->call.out[0]->format;
    op_chain chain = {.count = 1, .steps[0] = {.op = run->call.op->id, .n_in = run->call.n_in, .to = run->call.op->id == OP_cast ? format : DW_FORMAT_COUNT, .format = format}};
    const bool moves = run->call.op->id == OP_where || (run->call.op->id == OP_cast && run->call.in[0]->format == format);
    if (run->call.n_in > OP_CHAIN_READS || nest->count <= chain_few_most(run->chip) || (moves && dw_format_bits(format) == 16)) return false;
    for (int i = 0; i < run->call.n_in; i++) chain.steps[0].in[i] = (op_chain_read){.kind = OP_CHAIN_OPERAND, .index = i, .format = run->call.in[i]->format};
    return chain_tiles_launch(run, &chain, nest, launch);
}
