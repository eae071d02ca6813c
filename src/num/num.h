/* Number formats: what their codes mean, how blocks are scaled, packed and laid out; random numbers; error measures.
 * Pure functions of their arguments: no context, no allocation. The rules and their sources are stated at each declaration. */
#ifndef NUM_NUM_H
#define NUM_NUM_H

#include "base/base.h"
#include "deepwell/format.h"

typedef enum num_class { NUM_BOOL, NUM_UNSIGNED, NUM_SIGNED, NUM_FLOAT, NUM_SCALE, NUM_BLOCK } num_class;
typedef enum num_nan { NUM_NAN_NONE, NUM_NAN_IEEE, NUM_NAN_ALL_ONES } num_nan;
typedef enum num_round { NUM_ROUND_UP, NUM_ROUND_FLOOR } num_round;  /* of an e8m0 scale: cvt.rp (the default) or OCP MX 1.0 */

/* A row of format.def. */
typedef struct num_format {
    const char *name, *doc;
    num_class class;
    int bits, exponent_bits, mantissa_bits, bias;
    bool has_infinity;
    num_nan nan;
    double max;
    /* block formats: */
    dw_format element, scale;
    int rows, cols;     /* block size; cols 0: the whole last axis; rows 0: the whole tensor */
    int second;         /* fp32 second level: 0 none, 1 per tensor, 2 per row */
} num_format;

const num_format *num_info(dw_format format);

/* ---- elements (format.c) ---- */

/* The value of a code (low bits of code). Exact for every format but i64 beyond 2^53. */
double num_decode(dw_format format, uint64_t code);
/* Nearest, ties to even; beyond the largest finite value formats saturate if saturate, else give infinity or NaN (as cvt.satfinite and plain cvt).
 * NaN: the format's canonical NaN; formats without one give +max (e2m1, e3m2, e2m3) as PTX does. Integers: round to nearest even, saturate, NaN is 0. */
uint64_t num_encode(dw_format format, double value, bool saturate);
float num_bf16_to_f32(uint16_t code);
uint16_t num_f32_to_bf16(float value);
float num_f16_to_f32(uint16_t code);
uint16_t num_f32_to_f16(float value);
uint8_t num_f32_to_e4m3(float value);     /* satfinite */
float num_e4m3_to_f32(uint8_t code);
uint8_t num_f32_to_e2m1(float value);     /* satfinite; one nibble */
float num_e8m0_to_f32(uint8_t code);
/* Element index of a packed or plain buffer <-> value. index counts elements of a row that starts at data. */
double num_load(dw_format format, const void *data, int64_t index);
void num_store(dw_format format, void *data, int64_t index, double value, bool saturate);

/* ---- layout (layout.c): sizes of the three parts of a tensor in memory ---- */

typedef struct num_parts {
    size_t data_bytes, scale_bytes, second_bytes;
    size_t scale_offset, second_offset;   /* when the three share one buffer: each part starts on a multiple of 64 bytes */
    size_t total_bytes;
    int64_t scale_rows, scale_cols;       /* scales as stored, padding of tile128x4 included */
} num_parts;

/* dims of a row-major tensor; leading axes are batches of matrices [rows, cols] (rank 1 is one row). false: sizes overflow. */
bool num_layout(dw_format format, dw_scale_layout layout, int rank, const int64_t *dims, num_parts *parts);
size_t num_row_bytes(dw_format format, int64_t cols);          /* bytes of cols packed elements, rounded up to a byte */
/* Index of the scale of block (row_block, col_block) within the scales of one matrix. */
size_t num_scale_index(dw_scale_layout layout, int64_t row_block, int64_t col_block, int64_t scale_cols);

/* ---- blocks (block.c): quantise and dequantise a matrix ---- */

/* A matrix [rows, cols] of a block format in memory; second: one float (per tensor) or rows floats (per row), or NULL. */
typedef struct num_matrix {
    dw_format format;
    dw_scale_layout layout;
    int64_t rows, cols;
    uint8_t *data;
    void *scales;
    float *second;
} num_matrix;

/* The reference quantiser, the meaning of each block format. x is fp32 [rows, cols] with row stride x_stride.
 * MX: scale by round (RCEIL or floor), elements RN of x * 2^-e, satfinite; a zero block has scale 0x00 and signed zeros; a NaN in a block makes its scale NaN.
 * NVFP4: Transformer Engine's rule (numerics note in block.c); when *second is given (calibrated) by has_second it is used as it is.
 * fp8 blocks: scale = amax / 448 in fp32, elements RN(x / scale as x * (448 / amax)); an all-zero block has scale 1.
 * The last block of a row (and of a column) may be ragged. rows or cols may be 0. */
void num_quantize(const float *x, int64_t x_stride, num_round round, bool has_second, num_matrix *out);
/* Exact: element times scale in fp32; NVFP4's second level multiplied last, in fp32. */
void num_dequantize(const num_matrix *in, float *x, int64_t x_stride);
/* Element times block scale as a BF16 number, the operand of exact block-scaled products (second level NOT applied): exact for MX scales in
 * 2^-110..2^112 and always for NVFP4. fp8 formats with fp32 scales: the element alone. */
void num_dequantize_bf16(const num_matrix *in, uint16_t *x, int64_t x_stride);
/* Does every element times its scale fit BF16 exactly (idea 6 of the design)? */
bool num_is_bf16_exact(const num_matrix *in);

/* ---- random numbers (random.c): a counter-based generator, the same on every machine ---- */
uint64_t num_random(uint64_t seed, uint64_t counter);           /* 64 uniform bits */
float num_random_uniform(uint64_t seed, uint64_t counter);      /* [0, 1) with 24 bits */
float num_random_normal(uint64_t seed, uint64_t counter);

/* ---- error measures (error.c) ---- */
typedef struct num_error {
    double relative;          /* |x - ref|_2 / |ref|_2; 0 when both are zero, infinity when only ref is */
    double sqnr_db;           /* 10 log10(|ref|^2 / |x - ref|^2) */
    double max_abs, max_ref;  /* largest |x - ref| and largest |ref| */
    int64_t max_index;        /* where the largest error is (flat index) */
    int64_t count, nan_count, inf_count;      /* of x where ref has none */
} num_error;
void num_compare(const float *x, const float *reference, int64_t count, num_error *error);
/* How many of count values overflow the format (|x| beyond its largest value), or underflow to zero, when cast without a scale. */
void num_range(dw_format format, const float *x, int64_t count, int64_t *overflow, int64_t *underflow);

#endif
