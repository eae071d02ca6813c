/* Sums of products as the matrix units add them: all terms aligned to the largest exponent, cut to so many bits behind it, added exactly, and the sum cut to
 * the result's bits (rules published by microsoft/MMA-Sim, arXiv 2511.10909). */
#ifndef SIM_MATH_PRODUCT_H
#define SIM_MATH_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

/* A finite number as significand * 2^exponent; kind 0 finite, 1 infinite, 2 NaN. The significand carries the sign. exponent is that of the leading bit's place,
 * of subnormals too that of the smallest normal number. */
typedef struct product_number { int32_t significand; int16_t exponent; uint8_t kind, negative; } product_number;

/* A format that matrix units read, by its PTX type (NULL: another); bits of an element; below: those under the mantissa that the units ignore. */
typedef enum product_special { PRODUCT_FINITE, PRODUCT_INFINITY, PRODUCT_ONE_NAN } product_special;
typedef struct product_format { int type, bits, exponent_bits, mantissa, bias, below; product_special special; } product_format;
const product_format *product_format_of(int type);
/* The first magnitude that is no finite number's. */
static inline int32_t product_first_special(const product_format *f) {
    int32_t end = 1 << (f->exponent_bits + f->mantissa);
    return f->special == PRODUCT_FINITE ? end : f->special == PRODUCT_ONE_NAN ? end - 1 : end - (1 << f->mantissa);
}
/* Do four bits of metadata of a sparse A name two of four places? Compressors name place 0 twice where both elements are zeros, for which it is the same wherever they stand. */
static inline bool product_names_places(uint32_t metadata, uint32_t element, uint32_t other) { return (metadata & 3) < metadata >> 2 || (metadata == 0 && element == 0 && other == 0); }
static inline product_number product_read(const product_format *f, uint32_t code, bool negate) {
    code >>= f->below;
    uint32_t mantissa = code & ((1u << f->mantissa) - 1), exponent = code >> f->mantissa & ((1u << f->exponent_bits) - 1);
    bool negative = ((code >> (f->mantissa + f->exponent_bits) & 1) != 0) != negate;
    product_number n = {.negative = negative};
    if ((int32_t)(exponent << f->mantissa | mantissa) >= product_first_special(f)) {
        n.kind = f->special == PRODUCT_INFINITY && mantissa == 0 ? 1 : 2;
        return n;
    }
    n.significand = (int32_t)(exponent == 0 ? mantissa : mantissa | 1u << f->mantissa);
    n.exponent = (int16_t)((exponent == 0 ? 1 : (int)exponent) - f->bias);
    if (negative) n.significand = -n.significand;
    return n;
}
/* Is one of the codes a NaN? Then so is each sum of products that has them all. */
bool product_has_nan(const product_format *f, const uint32_t *codes, int count);

/* fraction: bits kept behind the largest exponent. result_bits: of the result's fraction. Returns the bits of an fp32. a and b: count factors each. */
uint32_t product_sum(const product_number *a, const product_number *b, int count, uint32_t c, int significand_bits, int fraction, int result_bits);

/* The sum of product_sum before it is cut to a result: for results that are rounded otherwise. Infinity and NaN as such. */
double product_sum_exact(const product_number *a, const product_number *b, int count, uint32_t c, int significand_bits, int fraction);

/* c plus finite terms[i] * 2^(exponents[i] - point), aligned to the largest exponent of all, zeros included, and cut to fraction bits behind it: the sum of
 * partial sums with block scales. */
uint32_t product_sum_terms(const int64_t *terms, const int *exponents, int count, int point, uint32_t c, int fraction);

#endif
