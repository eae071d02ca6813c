/* cumsum: a thread for each line, in order, in double or int64. sort and topk: a thread for each element, which counts how many come before it; that is
 * its place, and equal values keep their order. bincount: additions of integers, whose order does not matter. Resources: no shared memory. Speed: bench/results/h200/scan.md;
 * sorting is quadratic in the length of a line. */
#include "kernels/gpu/plain/device.cuh"
#include "kernels/scan/scan_cuda.h"

KERNEL(scan_cumsum, cumsum_arguments) {
    int integer = is_integer(arguments.x.format);
    for (int64_t line = item_first(); line < arguments.nest.count; line += item_step()) {
        int64_t at[2], whole = 0;
        double sum = 0;
        nest_offsets(&arguments.nest, line, 2, at);
        for (int64_t i = 0; i < arguments.count; i++) {
            int64_t from = at[1] + i * arguments.x_step, to = at[0] + i * arguments.out_step;
            int64_t whole_before = whole;
            double before = sum;
            if (integer) whole = (int64_t)((uint64_t)whole + (uint64_t)load_int(&arguments.x, from));
            else sum += load_double(&arguments.x, from);
            if (integer) store_int(&arguments.out, to, arguments.exclusive ? whole_before : whole);
            else store_double(&arguments.out, to, arguments.exclusive ? before : sum);
        }
    }
}

/* NaN is larger than every number. */
DEVICE int compare(const cuda_array *x, int64_t i, int64_t j) {
    if (is_integer(x->format)) {
        int64_t a = load_int(x, i), b = load_int(x, j);
        return (a > b) - (a < b);
    }
    double a = load_double(x, i), b = load_double(x, j);
    return a != a || b != b ? (a != a) - (b != b) : (a > b) - (a < b);
}

KERNEL(scan_order, order_arguments) {
    for (int64_t item = item_first(); item < arguments.nest.count * arguments.count; item += item_step()) {
        int64_t at[3], i = item % arguments.count, place = 0;
        nest_offsets(&arguments.nest, item / arguments.count, 3, at);
        for (int64_t j = 0; j < arguments.count; j++) {
            int sign = compare(&arguments.x, at[1] + j * arguments.x_step, at[1] + i * arguments.x_step);
            place += sign == 0 ? j < i : arguments.descending ? sign > 0 : sign < 0;
        }
        if (place >= arguments.length) continue;
        copy_element(&arguments.values, at[0] + place * arguments.values_step, &arguments.x, at[1] + i * arguments.x_step);
        store_int(&arguments.indices, at[2] + place * arguments.indices_step, i);
    }
}

KERNEL(scan_bincount, bincount_arguments) {
    for (int64_t i = item_first(); i < arguments.nest.count; i += item_step()) {
        int64_t at[1];
        nest_offsets(&arguments.nest, i, 1, at);
        int64_t value = load_int(&arguments.x, at[0]);
        if (value < 0 || value >= arguments.length) continue;
        atomicAdd((unsigned long long *)arguments.out.data + value * arguments.out_step, 1ULL);
    }
}
