/* dispatch: one block; a thread for each expert counts its ids, one thread adds the counts up, and each expert's thread writes its rows in order. combine: a
 * thread for each element of the result. Resources: no shared memory. Speed: bench/results/h200/route.md. */
#include "kernels/gpu/plain/device.cuh"
#include "kernels/route/route_cuda.h"

DEVICE int64_t expert_at(const dispatch_arguments *a, int64_t i) {
    int64_t id = load_int(&a->ids, i / a->choices * a->ids_token + i % a->choices * a->ids_choice);
    return id < 0 || id >= a->experts ? a->experts : id;
}

KERNEL(route_dispatch, dispatch_arguments) {
    int64_t count = arguments.tokens * arguments.choices;
    for (int64_t expert = threadIdx.x; expert < arguments.experts; expert += CUDA_THREADS) {
        int64_t mine = 0;
        for (int64_t i = 0; i < count; i++) mine += expert_at(&arguments, i) == expert;
        store_int(&arguments.offsets, expert * arguments.offsets_step, mine);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int64_t sum = 0;
        for (int64_t expert = 0; expert < arguments.experts; expert++) {
            sum += load_int(&arguments.offsets, expert * arguments.offsets_step);
            store_int(&arguments.offsets, expert * arguments.offsets_step, sum);
        }
    }
    __syncthreads();
    for (int64_t expert = threadIdx.x; expert <= arguments.experts; expert += CUDA_THREADS) {
        int64_t next = expert == 0 ? 0 : load_int(&arguments.offsets, (expert - 1) * arguments.offsets_step);
        for (int64_t i = 0; i < count; i++) {
            if (expert_at(&arguments, i) != expert) continue;
            int64_t token = i / arguments.choices, choice = i % arguments.choices;
            store_int(&arguments.rows, next * arguments.rows_step, token);
            store_int(&arguments.place, token * arguments.place_token + choice * arguments.place_choice, next++);
        }
    }
}

KERNEL(route_combine, combine_arguments) {
    for (int64_t i = item_first(); i < arguments.tokens * arguments.cols; i += item_step()) {
        int64_t token = i / arguments.cols, col = i % arguments.cols;
        double sum = 0;
        for (int64_t choice = 0; choice < arguments.choices; choice++) {
            int64_t row = load_int(&arguments.place, token * arguments.place_token + choice * arguments.place_choice);
            if (row < 0 || row >= arguments.y_rows) {
                fault_raise(&arguments.fault, CUDA_FAULT_INDEX, row, arguments.y_rows);
                continue;
            }
            sum += load_double(&arguments.weights, token * arguments.weights_token + choice * arguments.weights_choice) *
                   load_double(&arguments.y, row * arguments.y_row + col * arguments.y_col);
        }
        store_double(&arguments.out, token * arguments.out_token + col * arguments.out_col, sum);
    }
}
