/* Copies between tensors of any strides, and of a few bytes from place to place, fills, ascending integers and triangles: one thread an element. Speed: bench/results/h200/plain.md. */
#include "kernels/gpu/plain/device.cuh"
#include "kernels/move/move_cuda.h"
#include "kernels/move/pieces.cuh"

KERNEL(move_copy, copy_arguments) {
    for (int64_t i = item_first(); i < arguments.nest.count; i += item_step()) {
        int64_t at[2];
        nest_offsets(&arguments.nest, i, 2, at);
        copy_element(&arguments.to, at[0], &arguments.from, at[1]);
    }
}

KERNEL(move_fill, fill_arguments) {
    for (int64_t i = item_first(); i < arguments.nest.count; i += item_step()) {
        int64_t at[1];
        nest_offsets(&arguments.nest, i, 1, at);
        store_int(&arguments.to, at[0], (int64_t)arguments.element);
    }
}

KERNEL(move_iota, iota_arguments) {
    for (int64_t i = item_first(); i < arguments.count; i += item_step())
        store_integer(&arguments.to, i * arguments.stride, (int64_t)((uint64_t)arguments.start + (uint64_t)i * (uint64_t)arguments.step));
}

KERNEL(move_triangle, triangle_arguments) {
    int64_t area = arguments.rows * arguments.cols;
    for (int64_t i = item_first(); i < arguments.nest.count * area; i += item_step()) {
        int64_t at[2], row = i % area / arguments.cols, col = i % arguments.cols;
        nest_offsets(&arguments.nest, i / area, 2, at);
        at[0] += row * arguments.to_row + col * arguments.to_col;
        at[1] += row * arguments.from_row + col * arguments.from_col;
        if (arguments.lower ? col - row <= arguments.offset : col - row >= arguments.offset) copy_element(&arguments.to, at[0], &arguments.from, at[1]);
        else store_int(&arguments.to, at[0], 0);
    }
}

KERNEL(move_pieces, piece_arguments) { copy_piece(&arguments.pieces[blockIdx.x]); }
