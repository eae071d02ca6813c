/* How long rows are divided among the blocks of a cluster: the host half of row_chunks.cuh. Pure: knows no driver. */
#include "kernels/gpu/rows/host.h"

#include "kernels/gpu/host/host.h"

#include <inttypes.h>

dw_status row_chunks_divide(kernel_launch *launch, const kernel_run *run, const dw_tensor *x, row_chunks *chunks) {
    enum {
        WHOLE_PIECES = 16,            /* of the largest block of a format */
        FEW_PIECES = 512,             /* of a block that is not worth dividing */
        MANY_BYTES = 64 << 10         /* of a chunk, so that two or three blocks share a multiprocessor */
    };
    const chip_caps *chip = run->chip;
    const int64_t cols = x->dims[x->rank - 1], piece_bytes = PIECE * dw_format_bits(x->format) / 8, rows = chunks->nest.count;
    const int64_t all = base_ceil_div(cols + PIECE - 1, PIECE);   /* pieces begin where memory's words do, so the first one may hold one element alone */
    if (cols > INT32_MAX / 2) return base_fail(run->call.context, DW_LIMIT, "%s of rows of %" PRId64 " elements: at most %d on a GPU", run->call.op->name, cols, INT32_MAX / 2);
    int64_t blocks = 1;
    while (blocks < ROW_BLOCKS_MOST && (base_ceil_div(all, blocks) * piece_bytes > MANY_BYTES || (kernel_rows_beside(run, rows) * blocks < chip->units && all / blocks > FEW_PIECES))) blocks *= 2;
    const int64_t pieces = base_ceil_div(base_ceil_div(all, blocks), WHOLE_PIECES) * WHOLE_PIECES;
    const int64_t turns = base_ceil_div(pieces, PIECES_MOST * CHUNK_THREADS_MOST), threads = base_ceil_div(base_ceil_div(pieces, turns * PIECES_MOST), 32) * 32;
    const int64_t kept_bytes = base_ceil_div(pieces, threads) * threads * piece_bytes;
    chunks->cols = (int32_t)cols;
    chunks->pieces = (int32_t)pieces;
    chunks->is_kept = kept_bytes + (1 << 10) <= (int64_t)chip->shared_bytes;   /* beside the rooms of sums */
    if (chunks->is_kept) launch->shared_bytes = (uint32_t)kept_bytes;
    launch->block[0] = (uint32_t)threads;
    launch->cluster[0] = (uint32_t)blocks;
    launch->cluster[1] = launch->cluster[2] = 1;
    cuda_grid(launch, rows * blocks, 1, 1);
    return DW_OK;
}
