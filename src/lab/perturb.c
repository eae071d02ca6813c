/* See perturb.h: each number moves by a random sign and a fixed part of itself, or a share of the numbers by a last place. */
#include "lab/perturb.h"

#include <math.h>

static const double PERTURBATION = 1e-7;

static double place_of(dw_format format) { return ldexp(1, -num_info(format)->mantissa_bits); }

static double sign_of(uint64_t seed, int64_t i) { return num_random(seed, 2 * (uint64_t)i + 2) & 1 ? 1 : -1; }

/* In [0, 1). */
static double drawn_at(uint64_t seed, int64_t i) { return (double)(num_random(seed, 2 * (uint64_t)i + 1) >> 11) * 0x1p-53; }

perturb_distance perturb_measure(const dw_tensor *x, const dw_tensor *reference) {
    int64_t index[DW_MAX_RANK] = {0};
    double squares = 0, sizes = 0;
    const int64_t count = op_tensor_count(reference);
    for (int64_t i = 0; i < count; i++, op_tensor_next(reference, index)) {
        const double a = op_tensor_load(x, index), b = op_tensor_load(reference, index);
        if (!isfinite(a) || !isfinite(b)) continue;
        squares += (a - b) * (a - b);
        sizes += b * b;
    }
    return count > 0 ? (perturb_distance){sqrt(squares / (double)count), sqrt(sizes / (double)count)} : (perturb_distance){0};
}

/* ---- numbers ---- */

static void perturb_by(const dw_tensor *tensor, double by, uint64_t seed) {
    const int64_t count = op_tensor_count(tensor);
    const double place = place_of(tensor->format), share = by / place;
    if (count == 0) return;
    const int64_t certain = (int64_t)(num_random(seed, 0) % (uint64_t)count);   /* so that something moves */
    for (int64_t i = 0; i < count; i++) {
        const double x = num_load(tensor->format, tensor->data, i);
        if (share >= 1) num_store(tensor->format, tensor->data, i, x * (1 + sign_of(seed, i) * by), true);
        else if (drawn_at(seed, i) < share || i == certain) num_store(tensor->format, tensor->data, i, x * (1 + sign_of(seed, i) * place), true);
    }
}

void perturb(const dw_tensor *tensor, uint64_t seed) { perturb_by(tensor, PERTURBATION, seed); }

/* ---- codes of blocks: sign and magnitude, in 8 bits or 4 ---- */

typedef struct code { uint8_t *byte; int shift, bits; } code;

static code code_at(const dw_tensor *tensor, int64_t row, int64_t col) {
    const int64_t cols = tensor->dims[tensor->rank - 1];
    const int bits = dw_format_bits(num_info(tensor->format)->element);
    uint8_t *data = (uint8_t *)tensor->data + (size_t)row * num_row_bytes(tensor->format, cols);
    return bits == 8 ? (code){data + col, 0, 8} : (code){data + col / 2, col % 2 == 0 ? 0 : 4, 4};
}

/* The code one further from zero, or nearer to it; false: there is none that is a finite number, or it is 0, from which the next is too far. */
static bool next_code(const dw_tensor *tensor, const code *c, bool up, uint8_t *next) {
    const uint8_t all = (uint8_t)((1u << c->bits) - 1), sign = (uint8_t)(1u << (c->bits - 1)), x = *c->byte >> c->shift & all;
    const unsigned magnitude = x & ~sign & all, moved = up ? magnitude + 1 : magnitude - 1;
    if (magnitude == 0 || moved >= sign) return false;
    *next = (uint8_t)((x & sign) | moved);
    return isfinite(num_load(num_info(tensor->format)->element, next, 0));
}

/* Moves the code there; the square of how far the number moves, 0 where it cannot. */
static double move_code(const dw_tensor *tensor, int64_t row, int64_t col, const int64_t *index, bool up, bool keep) {
    const code c = code_at(tensor, row, col);
    const uint8_t before = *c.byte, all = (uint8_t)((1u << c.bits) - 1);
    uint8_t next;
    if (!next_code(tensor, &c, up, &next)) return 0;
    const double x = op_tensor_load(tensor, index);
    *c.byte = (uint8_t)((before & ~(all << c.shift)) | next << c.shift);
    const double by = op_tensor_load(tensor, index) - x;
    if (!keep) *c.byte = before;
    return isfinite(by) ? by * by : 0;
}

/* As many as make up for `by`, one at least if there is any difference: those for which the least is drawn. */
static void perturb_codes(const dw_tensor *tensor, double by, uint64_t seed) {
    const int64_t cols = tensor->rank > 0 ? tensor->dims[tensor->rank - 1] : 1, count = op_tensor_count(tensor);
    double squares = 0, least = 1;
    for (int pass = 0; pass < 2 && by > 0; pass++) {
        const double share = squares > 0 ? by * by * (double)count / squares : 0;
        int64_t index[DW_MAX_RANK] = {0};
        for (int64_t i = 0; i < count; i++, op_tensor_next(tensor, index)) {
            const bool up = sign_of(seed, i) > 0;
            const double drawn = drawn_at(seed, i);
            if (pass == 1 && (drawn < share || drawn == least)) move_code(tensor, i / cols, i % cols, index, up, true);
            if (pass == 1) continue;
            const double square = move_code(tensor, i / cols, i % cols, index, up, false);
            squares += square;
            if (square > 0) least = fmin(least, drawn);
        }
    }
}

/* ---- sums ---- */

void perturb_sum(const dw_tensor *tensor, const perturb_distance *off, uint64_t seed) {
    if (dw_format_is_block(tensor->format)) {
        perturb_codes(tensor, off->by, seed);
        return;
    }
    const double place = place_of(tensor->format), seen = off->of > 0 ? off->by / off->of : 0;
    if (seen <= PERTURBATION) perturb_by(tensor, PERTURBATION, seed);
    else if (seen < place) perturb_by(tensor, fmax(PERTURBATION, seen * seen / place), seed);   /* a share p of elements a place away is sqrt(p) places, root mean square */
    else for (int64_t i = 0, count = op_tensor_count(tensor); i < count; i++)
        num_store(tensor->format, tensor->data, i, num_load(tensor->format, tensor->data, i) + sign_of(seed, i) * off->by, true);
}
