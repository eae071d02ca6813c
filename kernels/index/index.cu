/* take, gather and index: one thread an element of the result. scatter and index_put: one thread for all that may write to the same elements, in the order of
 * the index tensor, so that the last one stays and sums have one order. Resources: no shared memory. Speed: not measured. */
#include "kernels/common/cuda/device.cuh"
#include "kernels/index/index_cuda.h"

/* An index from the front; -1 and a fault when it lies outside. */
DEVICE int64_t load_index(const cuda_array *index, int64_t at, int64_t size, const cuda_fault_place *fault) {
    int64_t given = load_int(index, at), from_front = given < 0 ? given + size : given;
    if (from_front >= 0 && from_front < size) return from_front;
    fault_raise(fault, CUDA_FAULT_INDEX, given, size);
    return -1;
}

KERNEL(index_read, read_arguments) {
    for (int64_t i = item_first(); i < arguments.nest.count; i += item_step()) {
        int64_t at[2 + INDEX_MOST];
        nest_offsets(&arguments.nest, i, 2 + arguments.indices, at);
        int64_t from = at[1];
        int outside = 0;
        for (int k = 0; k < arguments.indices; k++) {
            int64_t index = load_index(&arguments.index[k], at[2 + k], arguments.sizes[k], &arguments.fault);
            outside |= index < 0;
            from += index * arguments.strides[k];
        }
        if (outside) store_int(&arguments.out, at[0], 0);
        else copy_element(&arguments.out, at[0], &arguments.x, from);
    }
}

KERNEL(index_write, write_arguments) {
    for (int64_t i = item_first(); i < arguments.items.count; i += item_step()) {
        int64_t item[2 + INDEX_MOST], at[2 + INDEX_MOST];
        nest_offsets(&arguments.items, i, 2 + arguments.indices, item);
        for (int64_t j = 0; j < arguments.places.count; j++) {
            nest_offsets(&arguments.places, j, 2 + arguments.indices, at);
            int64_t to = item[0] + at[0], from = item[1] + at[1];
            int outside = 0;
            for (int k = 0; k < arguments.indices; k++) {
                int64_t index = load_index(&arguments.index[k], item[2 + k] + at[2 + k], arguments.sizes[k], &arguments.fault);
                outside |= index < 0;
                to += index * arguments.strides[k];
            }
            if (outside) continue;
            if (arguments.accumulate) add_element(&arguments.out, to, &arguments.values, from);
            else copy_element(&arguments.out, to, &arguments.values, from);
        }
    }
}
