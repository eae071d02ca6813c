/* cumsum: a thread for each line, in order, in double or int64. sort and topk: a thread for each element, which counts how many come before it; that is
 * its place, and equal values keep their order. choose: a thread for each line, which looks for one element after the other. bincount: additions of integers, whose order does not matter. Resources: no shared memory. Speed: bench/results/h200/scan.md;
 * sorting is quadratic in the length of a line. */
#include "kernels/pointwise/float.cuh"
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

/* A line of x, or its softmax: what its largest is, and the sum of the powers. */
typedef struct choose_line { int64_t at; double most, sum; } choose_line;

DEVICE double round_to(int format, double x) {
    if (format == CUDA_f64) return x;
    if (format == CUDA_bf16) return small_from_bf16((uint16_t)small_bf16(odd_float(x)));
    return format == CUDA_f16 ? small_from_f16((uint16_t)small_f16(odd_float(x))) : (double)(float)x;
}

DEVICE choose_line read_line(const choose_arguments *a, int64_t at) {
    choose_line line = {at, -(double)INFINITE, 0};
    for (int64_t i = 0; a->by_softmax && i < a->count; i++) {
        const double x = load_double(&a->x, at + i * a->x_step);
        line.most = line.most != line.most || line.most > x ? line.most : x;
    }
    for (int64_t i = 0; a->by_softmax && i < a->count; i++) line.sum += exp(load_double(&a->x, at + i * a->x_step) - line.most);
    return line;
}

DEVICE double line_element(const choose_arguments *a, const choose_line *line, int64_t i) {
    const double x = load_double(&a->x, line->at + i * a->x_step);
    if (!a->by_softmax) return x;
    return line->most == -(double)INFINITE ? 0 : round_to(a->x.format, exp(x - line->most) / line->sum);
}

/* NaN is larger than every number. */
DEVICE int compare_numbers(double a, double b) { return a != a || b != b ? (a != a) - (b != b) : (a > b) - (a < b); }

/* The first in order of those behind element last, which is below 0 in front of the first. */
DEVICE int64_t next_in_order(const choose_arguments *a, const choose_line *line, int64_t last) {
    const double before = last < 0 ? 0 : line_element(a, line, last);
    double best = 0;
    int64_t found = -1;
    for (int64_t i = 0; i < a->count; i++) {
        const double x = line_element(a, line, i);
        const int behind = a->descending ? compare_numbers(before, x) : compare_numbers(x, before);
        if (last >= 0 && (behind < 0 || (behind == 0 && i <= last))) continue;
        const int better = a->descending ? compare_numbers(x, best) : compare_numbers(best, x);
        if (found >= 0 && better <= 0) continue;
        found = i;
        best = x;
    }
    return found;
}

DEVICE float read_slot(const few_code *code, int k, float (*slots)[CHOOSE_LENGTH], int place) { return code->from[k] == FEW_NUMBER ? code->numbers[k] : slots[code->from[k]][place]; }

DEVICE void run_line(const few_code *code, int length, float (*slots)[CHOOSE_LENGTH], float *result) {
    double sum = 0, most = -(double)INFINITE;
    for (int i = 0; i < length; i++) {
        const float x = read_slot(code, 0, slots, i);
        sum += (double)x;
        most = most != most || most > (double)x ? most : (double)x;
        if (code->function < FEW_SUM) result[i] = round_to(code->rounds, (double)evaluate_float(code->function, x, read_slot(code, 1, slots, i)));
    }
    if (code->function < FEW_SUM) return;
    if (code->function == FEW_SOFTMAX) sum = 0;
    for (int i = 0; code->function == FEW_SOFTMAX && i < length; i++) sum += exp((double)read_slot(code, 0, slots, i) - most);
    for (int i = 0; i < length; i++) {
        const double power = code->function == FEW_SOFTMAX ? exp((double)read_slot(code, 0, slots, i) - most) : 0;
        result[i] = round_to(code->rounds, code->function == FEW_SUM ? sum : most == -(double)INFINITE ? 0 : power / sum);
    }
}

KERNEL(scan_choose, choose_arguments) {
    for (int64_t line = item_first(); line < arguments.nest.count; line += item_step()) {
        float slots[CHOOSE_SLOTS][CHOOSE_LENGTH];
        int64_t at[CHOOSE_ARRAYS], last = -1;
        nest_offsets(&arguments.nest, line, CHOOSE_ARRAYS, at);
        const choose_line x = read_line(&arguments, at[CHOOSE_OF_X]);
        for (int i = 0; i < arguments.length; i++) {
            last = next_in_order(&arguments, &x, last);
            store_int(&arguments.indices, at[CHOOSE_OF_INDICES] + i * arguments.indices_step, last);
            slots[0][i] = arguments.y_is_x ? (float)line_element(&arguments, &x, last) : load_float(&arguments.y, at[CHOOSE_OF_Y] + last * arguments.y_step);
        }
        for (int c = 0; c < arguments.steps; c++) run_line(&arguments.codes[c], arguments.length, slots, slots[1 + c]);
        for (int i = 0; i < arguments.results; i++) store_float(&arguments.values, at[CHOOSE_OF_VALUES] + i * arguments.values_step, slots[arguments.steps][i]);
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
