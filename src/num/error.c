/* How far a result is from its reference, and how much of it a format cannot hold. */
#include "num/num.h"

#include <math.h>

/* |x - reference|, where equal non-finite values agree and others are infinitely far. */
static double distance(float x, float reference) {
    if (isnan(x) && isnan(reference)) return 0;
    if (x == reference) return 0;
    if (!isfinite(x) || !isfinite(reference)) return (double)INFINITY;
    return fabs((double)x - (double)reference);
}

void num_compare(const float *x, const float *reference, int64_t count, num_error *error) {
    num_error e = {.count = count, .max_index = -1};
    double error_square = 0, reference_square = 0;
    for (int64_t i = 0; i < count; i++) {
        double d = distance(x[i], reference[i]), r = fabs((double)reference[i]);
        error_square += d * d;
        if (isfinite(r)) {
            reference_square += r * r;
            if (r > e.max_ref) e.max_ref = r;
        }
        if (d > e.max_abs) {
            e.max_abs = d;
            e.max_index = i;
        }
        if (isnan(x[i]) && !isnan(reference[i])) e.nan_count++;
        if (isinf(x[i]) && !isinf(reference[i])) e.inf_count++;
    }
    if (error_square == 0) {
        e.sqnr_db = (double)INFINITY;
    } else {
        e.relative = reference_square > 0 ? sqrt(error_square / reference_square) : (double)INFINITY;
        e.sqnr_db = reference_square > 0 ? 10 * log10(reference_square / error_square) : -(double)INFINITY;
    }
    *error = e;
}

/* The largest magnitude that rounds to zero; negative when none does. */
static double largest_zero(const num_format *f) {
    switch (f->class) {
    case NUM_FLOAT: return ldexp(0.5, 1 - f->bias - f->mantissa_bits);   /* half the smallest step: a tie, and 0 is even */
    case NUM_UNSIGNED:
    case NUM_SIGNED: return 0.5;
    default: return -1;
    }
}

void num_range(dw_format format, const float *x, int64_t count, int64_t *overflow, int64_t *underflow) {
    const num_format *f = num_info(num_info(format)->element);
    double lowest = f->class == NUM_SIGNED ? -f->max - 1 : f->class == NUM_UNSIGNED || f->class == NUM_BOOL ? 0 : -f->max;
    double zero = largest_zero(f);
    *overflow = *underflow = 0;
    for (int64_t i = 0; i < count; i++) {
        double value = (double)x[i];
        if (value > f->max || value < lowest) ++*overflow;
        else if (value != 0 && fabs(value) <= zero) ++*underflow;
    }
}
