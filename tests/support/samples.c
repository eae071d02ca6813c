/* Inputs for conversions; see samples.h. */
#include "support/samples.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "num/num.h"

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static const uint32_t specials[] = {0x7f800000, 0x7f800001, 0x7fbfffff, 0x7fc00000, 0x7fffffff, 0x7f7fffff, 0x00000001, 0x00000002,
                                    0x007fffff, 0x00800000, 0x00800001, 0x3effffff, 0x4b000000, 0x4b000001, 0x4f000000};

/* Magnitude codes that are finite values: 0 .. this. */
static int64_t finite_codes(dw_format format) {
    int64_t code = (INT64_C(1) << (num_info(format)->class == NUM_SCALE ? 8 : num_info(format)->bits - 1)) - 1;
    while (!isfinite(num_decode(format, (uint64_t)code))) code--;
    return code;
}

enum { EACH = 12 };   /* a value and the boundary above it, each with two neighbours, in both signs */

int64_t samples_fixed_count(dw_format format) {
    return (finite_codes(format) + 1) * EACH + 2 * (int64_t)COUNT_OF(specials) + 65536;
}

static float *add_with_neighbours(float *x, float value) {
    float three[] = {value, nextafterf(value, INFINITY), nextafterf(value, -INFINITY)};
    for (int i = 0; i < 3; i++) {
        *x++ = three[i];
        *x++ = -three[i];
    }
    return x;
}

/* The exponents around which a format's values lie: half of the random samples have them. */
static void exponent_range(dw_format format, int *lowest, int *highest) {
    const num_format *f = num_info(format);
    *lowest = -f->bias - f->mantissa_bits - 3;
    *highest = ilogb(f->max) + 3;
    if (*lowest < -127) *lowest = -127;
    if (*highest > 128) *highest = 128;
}

void samples_fill(dw_format format, float *x, int64_t count) {
    assert(count >= samples_fixed_count(format));
    float *end = x + count;
    int64_t last = finite_codes(format);
    double previous = 0;
    for (int64_t code = 0; code <= last; code++) {
        double value = num_decode(format, (uint64_t)code);
        double next = code < last ? num_decode(format, (uint64_t)code + 1) : 2 * value - previous;
        x = add_with_neighbours(x, (float)value);
        x = add_with_neighbours(x, (float)((value + next) / 2));
        previous = value;
    }
    for (size_t i = 0; i < COUNT_OF(specials); i++) {
        *x++ = from_bits(specials[i]);
        *x++ = from_bits(specials[i] | 0x80000000);
    }
    for (uint32_t code = 0; code < 65536; code++) *x++ = from_bits(code << 16);
    int lowest, highest;
    exponent_range(format, &lowest, &highest);
    for (uint64_t i = 0; x < end; i++) {
        uint64_t random = num_random(format, i);
        uint32_t bits = (uint32_t)random;
        if (random >> 63) {
            uint32_t exponent = (uint32_t)(lowest + 127) + (uint32_t)(random >> 32) % (uint32_t)(highest - lowest + 1);
            bits = (bits & 0x807fffff) | exponent << 23;
        }
        *x++ = from_bits(bits);
    }
}
