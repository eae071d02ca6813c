/* Number formats: what their codes mean, how blocks are scaled, packed and laid out; random numbers; error measures.
 * Pure functions of their arguments: no context, no allocation. The rules and their sources are stated at each declaration. */
#ifndef NUM_NUM_H
#define NUM_NUM_H

#include "base/base.h"
#include "deepwell/format.h"

typedef enum num_class { NUM_BOOL, NUM_UNSIGNED, NUM_SIGNED, NUM_FLOAT, NUM_SCALE, NUM_BLOCK } num_class;
typedef enum num_nan { NUM_NAN_NONE, NUM_NAN_IEEE, NUM_NAN_ALL_ONES } num_nan;
/* How a block's scale follows from its values: an e8m0 scale as cvt.rp rounds (the default) or as OCP MX 1.0 says; or the best of those near the default. */
typedef enum num_round { NUM_ROUND_UP, NUM_ROUND_FLOOR, NUM_ROUND_SEARCH } num_round;

/* A row of format.def. */
typedef struct num_format {
    const char *name, *doc;
    num_class class;
    int bits;           /* of an element, for block formats too */
    int exponent_bits, mantissa_bits, bias;
    bool has_infinity;
    num_nan nan;
    double max;         /* largest finite value; of a block format, of its elements */
    /* block formats: */
    dw_format element, scale;
    int rows, cols;     /* block size; cols 0: the whole last axis; rows 0: the whole tensor */
    int second;         /* fp32 second level: 0 none, 1 per tensor, 2 per row */
} num_format;

const num_format *num_info(dw_format format);

/* ---- elements (format.c) ---- */

/* The value of a code (low bits of code). Exact for every format but i64 beyond 2^53. */
double num_decode(dw_format format, uint64_t code);
/* Nearest, ties to even, rounded once. Beyond the largest finite value (infinity included) a format saturates if saturate, else
 * gives infinity, or NaN where it has none (as cvt.satfinite and plain cvt); e2m1, e3m2 and e2m3 always saturate.
 * NaN: the canonical NaN of PTX, positive with all other bits set; formats without one give +max (e2m1, e3m2, e2m3) as PTX does.
 * Integers: round to nearest even, saturate, NaN is 0. bool: 1 for all but zero. e8m0: the magnitude rounded up (cvt.rp), 0x00 for all up to 2^-127.
 * In a block format these two, and num_load and num_store, speak of its elements. */
uint64_t num_encode(dw_format format, double value, bool saturate);
/* The same bits as the two above, faster: bf16 and f16 do not saturate, the others do (satfinite). */
float num_bf16_to_f32(uint16_t code);
uint16_t num_f32_to_bf16(float value);
float num_f16_to_f32(uint16_t code);
uint16_t num_f32_to_f16(float value);
uint8_t num_f32_to_e4m3(float value);
float num_e4m3_to_f32(uint8_t code);
uint8_t num_f32_to_e5m2(float value);
float num_e5m2_to_f32(uint8_t code);
uint8_t num_f32_to_e3m2(float value);
float num_e3m2_to_f32(uint8_t code);
uint8_t num_f32_to_e2m3(float value);
float num_e2m3_to_f32(uint8_t code);
uint8_t num_f32_to_e2m1(float value);     /* one nibble */
float num_e2m1_to_f32(uint8_t code);
float num_e8m0_to_f32(uint8_t code);
/* count values in a row, by the conversions above, fast; x and codes do not overlap. */
void num_f32_to_bf16_row(const float *x, uint16_t *codes, int64_t count);
void num_bf16_to_f32_row(const uint16_t *codes, float *x, int64_t count);
void num_f32_to_f16_row(const float *x, uint16_t *codes, int64_t count);
void num_f16_to_f32_row(const uint16_t *codes, float *x, int64_t count);
/* Element index of a packed or plain buffer <-> value. index counts elements of a row that starts at data. */
double num_load(dw_format format, const void *data, int64_t index);
/* Elements begin, begin + stride, .. of such a row; count of them. */
void num_load_row(dw_format format, const void *data, int64_t begin, int64_t stride, int64_t count, double *values);
void num_store(dw_format format, void *data, int64_t index, double value, bool saturate);

/* ---- layout (layout.c): sizes of the three parts of a tensor in memory ---- */

typedef struct num_parts {
    size_t data_bytes, scale_bytes, second_bytes;
    size_t scale_offset, second_offset;   /* when the three share one buffer: each part starts on a multiple of 64 bytes */
    size_t total_bytes;
    int64_t scale_rows, scale_cols;       /* scales as stored, padding of tile128x4 included */
} num_parts;

/* Can scales of this format lie so? tile128x4 needs scales of one byte; element formats have none, and take any layout. */
bool num_has_layout(dw_format format, dw_scale_layout layout);
/* dims of a row-major tensor; leading axes are batches of matrices [rows, cols] (rank 1 is one row, rank 0 one element). Each matrix has its own scales;
 * fp8_tensor has one scale and nvfp4 one second level over all of them. false: sizes overflow, a dimension is negative, or the layout does not go with the format. */
bool num_layout(dw_format format, dw_scale_layout layout, int rank, const int64_t *dims, num_parts *parts);
bool num_is_part(const num_parts *parts, size_t at);       /* is this byte of a buffer that the three share one of theirs, or in a gap? */
size_t num_row_bytes(dw_format format, int64_t cols);          /* bytes of cols packed elements, rounded up to a byte */
/* Index of the scale of block (row_block, col_block) within the scales of one matrix; scale_cols as stored, padding included. */
size_t num_scale_index(dw_scale_layout layout, int64_t row_block, int64_t col_block, int64_t scale_cols);

/* ---- blocks: quantise and dequantise matrices (block.c is the meaning, quantize.c the same bits at speed) ---- */

/* Matrices [rows, cols] of a block format in memory, one after the other; rows of data start on a byte; scales as num_layout sizes them.
 * second: one float (nvfp4) or batches * rows floats (nvfp4_row); NULL in other formats. */
typedef struct num_matrix {
    dw_format format;
    dw_scale_layout layout;
    int64_t rows, cols;
    uint8_t *data;
    void *scales;
    float *second;
    int64_t batches;        /* how many; 0 means 1 */
} num_matrix;

/* Quantise x, fp32 [batches * rows, cols] with row stride x_stride (elements), into out. What the formats mean:
 * MX: the scale by round from the block's largest magnitude amax (round up: the smallest power of two that lets no element saturate, which is cvt.rp of amax / max;
 *   floor: 2^(floor(log2 amax) - emax)), clamped to 2^-127..2^127; elements RN(x * 2^-e), satfinite. A zero block has scale 0x00. amax infinite: scale 0xfe.
 * NVFP4: Transformer Engine's rule in fp32, each operation rounded, in this order. amax: of the tensor (nvfp4) or of the row (nvfp4_row), NaN left out.
 *   S_enc = min(2688 / amax, FLT_MAX), but 1 if amax or the quotient is 0;  *second = S_dec = 1 / S_enc
 *   s = e4m3(amax_block * (S_enc * fl(1/6))), satfinite;  elements e2m1(x * min(1 / (s * S_dec), FLT_MAX))
 *   Where s is 0 (a zero block, or one too small beside the tensor) all elements are zeros. has_second: *second is given (calibrated: a positive number; others are
 *   taken as they are, scales under one below zero are so, too, and are not searched)
 *   and S_enc = min(1 / S_dec, FLT_MAX).
 * search (formats of e2m1 elements, num_can_search): of the scales near the one that rounding up gives, the one with the least squared error. The candidates are that
 *   scale's code c plus 0, -1, 1, 4, 5, 3 as far as it lies in 1..0x7e (NVFP4), plus 0, -1 as far as it is not negative (MX); none but c where c is 0 or the
 *   block holds NaN or infinity. An element's error is |x| * U - q * S, where q is the magnitude that it rounds to under the candidate; U = S_enc and S = the candidate's
 *   value (NVFP4), U = 2^-e and S = 1 or 1/2 (MX). Squares are summed in the order of the elements, each operation in fp32; of equal sums the earlier candidate stays.
 * fp8 with fp32 scales: amax is taken as at most FLT_MAX and at least 448 * 2^-126 (so that scales are normal numbers); scale = amax / 448,
 *   elements e4m3(x * (448 / amax)), satfinite. An all-zero or empty block has scale 1.
 * In all: zeros keep their signs. A NaN makes its block's scale NaN (e8m0 0xff, e4m3 0x7f, fp32 NaN) and all the block's elements NaN (e2m1, e3m2, e2m3: +max),
 *   so the block decodes to NaN. Infinities saturate. The last block of a row (and of a column) may be ragged. rows or cols may be 0.
 *   Unused bits of a row's last byte and the padding of tile128x4 are zero. */
void num_quantize(const float *x, int64_t x_stride, num_round round, bool has_second, num_matrix *out);
/* Can scales of this format be searched for? */
bool num_can_search(dw_format format);
/* The same function spelled out with num_encode: slow, and what num_quantize is tested against. */
void num_quantize_reference(const float *x, int64_t x_stride, num_round round, bool has_second, num_matrix *out);
/* Can rows be quantised one by one? Not when a block or a computed second level spans rows. */
bool num_is_row_wise(dw_format format, bool has_second);
/* How rows are scaled: by round, under second levels that are given in out if has_second. encode: the S_enc that goes with those, 0 where it is to follow from them. */
typedef struct num_scaling {
    num_round round;
    bool has_second;
    float encode;
} num_scaling;
/* Rows [begin, end) of what num_quantize does, for threads that share the work of a row-wise format. x and out are the whole ones (rows of all batches counted through).
 * Does not write padding: zero the scales of tile128x4 before. */
void num_quantize_rows(const float *x, int64_t x_stride, const num_scaling *scaling, num_matrix *out, int64_t begin, int64_t end);
/* NVFP4's second level over a whole tensor in two steps, so that threads can share it: the largest magnitude of count values, NaN left out; then S_dec (which becomes
 * *second) and S_enc from the largest of all. */
float num_amax(const float *x, int64_t count);
float num_second_level(float amax, float *second);
/* Element times scale in fp32: exact for MX (infinity beyond FLT_MAX) and NVFP4's first level, one rounding for fp32 scales;
 * NVFP4's second level multiplied last, in fp32 (second NULL: left out). */
void num_dequantize(const num_matrix *in, float *x, int64_t x_stride);
/* Element times block scale as a BF16 number, the operand of exact block-scaled products (second level NOT applied): always exact for NVFP4, and for MX where the
 * product is a normal BF16 number, which scales in 2^-110..2^112 ensure. Beyond: the exact product rounded to nearest even, subnormal or infinite as it falls.
 * fp8 formats with fp32 scales: the element alone. */
void num_dequantize_bf16(const num_matrix *in, uint16_t *x, int64_t x_stride);
/* Is every element times its block scale zero, a normal BF16 number, infinite by its own code, or NaN: the same on hardware that flushes subnormals? */
bool num_is_bf16_exact(const num_matrix *in);

/* ---- random numbers of trials and tests (random.c), the same on every machine; tokens are drawn by philox.h ---- */

/* For data of tests, measurements and checks; draws of generation are Philox's (philox.h). Output number counter of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), started from mix(seed); seed 0 is the published sequence. */
uint64_t num_random(uint64_t seed, uint64_t counter);           /* 64 uniform bits */
float num_random_uniform(uint64_t seed, uint64_t counter);      /* [0, 1) with 24 bits */
/* Standard normal: the inverse distribution function (Wichura, AS 241, Applied Statistics 37, 1988) of 53 bits, rounded to fp32. */
float num_random_normal(uint64_t seed, uint64_t counter);

/* ---- error measures (error.c) ---- */

/* Equal infinities and NaN against NaN are no error; any other non-finite value is an infinite one. Sums in double, in order. */
typedef struct num_error {
    double relative;          /* |x - ref|_2 / |ref|_2; 0 when both are zero, infinity when only ref is */
    double sqnr_db;           /* 10 log10(|ref|^2 / |x - ref|^2); infinity when there is no error */
    double max_abs, max_ref;  /* largest |x - ref| and largest finite |ref| */
    int64_t max_index;        /* where the largest error is (flat index); -1 when there is no error */
    int64_t count, nan_count, inf_count;      /* of x where ref has none */
} num_error;
void num_compare(const float *x, const float *reference, int64_t count, num_error *error);
/* How many of count values overflow the format (beyond its range, infinities among them), or underflow to zero, when cast without a scale. NaN does neither. */
void num_range(dw_format format, const float *x, int64_t count, int64_t *overflow, int64_t *underflow);

#endif
