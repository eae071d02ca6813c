/* take, gather and index: one thread an element of the result. scatter and index_put: one thread for all that may write to the same elements, in the order of
 * the index tensor, so that the last one stays and sums have one order. Resources: no shared memory. Speed: bench/results/h200/plain.md. */
#include "kernels/index/index.cuh"

KERNEL(index_read, read_arguments) {
    for (int64_t i = item_first(); i < arguments.nest.count; i += item_step()) {
        int64_t at[2 + INDEX_MOST], from = read_place(&arguments, i, at);
        if (from < 0) store_int(&arguments.out, at[0], 0);
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
