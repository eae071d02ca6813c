/* Copies between tensors of any strides, fills, ascending integers and triangles: one thread an element. Resources: no shared memory. Speed: not measured. */
#include "kernels/common/cuda/device.cuh"
#include "kernels/move/move_cuda.h"

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

/* A thread for each element of a token: tokens in order, so that of two that meet in a ring the later one stays. */
KERNEL(move_cache_write, cache_arguments) {
    for (int64_t i = item_first(); i < arguments.groups * arguments.cols; i += item_step()) {
        int64_t group = i / arguments.cols, col = i % arguments.cols;
        for (int64_t token = 0; token < arguments.tokens; token++) {
            int64_t row = load_int(&arguments.row, token * arguments.row_step), position = load_int(&arguments.position, token * arguments.position_step);
            if (row < 0 || row >= arguments.rows || position < 0) {
                int outside = row < 0 || row >= arguments.rows;
                fault_raise(&arguments.fault, CUDA_FAULT_INDEX, outside ? row : position, outside ? arguments.rows : arguments.slots);
                continue;
            }
            int64_t to = row * arguments.out_strides[0] + group * arguments.out_strides[1] + position % arguments.slots * arguments.out_strides[2] + col * arguments.out_strides[3];
            copy_element(&arguments.out, to, &arguments.y, group * arguments.y_strides[1] + token * arguments.y_strides[2] + col * arguments.y_strides[3]);
        }
    }
}
