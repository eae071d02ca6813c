/* What attention's driver asks of an instruction set: small products on blocks of FLASH_KEYS keys, and one step of the running softmax.
 * Blocks begin at multiples of FLASH_KEYS, and sums run over d and over keys in order, so a row's bits depend neither on the other rows of the call
 * nor on threads. */
#ifndef KERNELS_ATTENTION_CPU_FLASH_H
#define KERNELS_ATTENTION_CPU_FLASH_H

#include <stdbool.h>
#include <stdint.h>

#include "deepwell/format.h"
#include "op/scores.h"

enum {
    FLASH_KEYS = 64,        /* keys of a block */
    FLASH_COLUMNS = 64,     /* columns of v that one product works on */
    FLASH_ROWS = 6,         /* rows of one product at most */
    FLASH_TURN = 16,        /* keys that are transposed at a time */
    FLASH_PAIRS = FLASH_KEYS / 2
};

/* A row of scores on its way to weights, and the running state of the row's softmax. */
typedef struct flash_row {
    float scale, softcap;             /* softcap 0: none */
    const float *bias;                /* [FLASH_KEYS] or NULL; of OP_ATTENTION_HIDES or less it is the score */
    const uint8_t *mask;              /* [FLASH_KEYS], 0 hides; or NULL */
    int begin, end;                   /* the keys of the block that are seen by position */
    float max, sum;                   /* so far: the largest score, the sum of e^(score - max) */
} flash_row;

/* What is read soon, row beside row of the operand of a product: `bytes` of each, fetched into the second cache on the way. With few rows of q, or long heads in fp32, memory is what is waited for,
 * and blocks are too short for the hardware to run ahead. stride: in bytes; then: what follows it; those that are left when the product's own are done come at once. NULL: nothing. */
typedef struct flash_next flash_next;
struct flash_next { const char *data; int64_t stride, bytes; int rows; const flash_next *then; };

/* Rows of codes from a byte on, those of each `block` times their scale, of a byte each; scales NULL: alone. Strides in bytes. */
typedef struct flash_codes { dw_format element, scale; const uint8_t *codes, *scales; int64_t code_stride, scale_stride, block; } flash_codes;

/* Products of bf16, two elements of a sum at a time, in fp32. Pairs of neighbours along the sum lie in words, the first one low. Sums of v's columns come out in another order, which straighten undoes. */
typedef struct flash_pairs {
    /* scores [rows][FLASH_KEYS] = or, with add, += q [rows][words] times keys [words][FLASH_KEYS], of which count are there: the scores of others may be anything. */
    void (*scores)(int rows, int count, int64_t words, const uint32_t *q, int64_t q_stride, const uint32_t *keys, int add, float *scores);
    /* out [rows][columns] = out * factor[row] + weights [rows][keys / 2] times v [keys][columns]; columns: up to FLASH_COLUMNS, of out as many as fill 32. Of an odd number of keys
     * the last one's pair is no key, with a weight of 0. */
    void (*values)(int rows, int keys, int columns, const uint32_t *weights, const uint16_t *v, int64_t v_stride, const flash_next *next, const float *factor, float *out,
                   int64_t out_stride);
    /* As scores_in_place and transpose below, of words. */
    void (*scores_in_place)(int rows, int64_t words, const uint32_t *q, int64_t q_stride, const uint16_t *k, int64_t k_stride, const flash_next *next, int add, float *scores);
    void (*transpose)(int keys, int64_t words, const uint16_t *k, int64_t k_stride, const flash_next *next, int first, uint32_t *transposed);
    /* count sums of a row, 32 at a time, to the order of the columns from that of values: 0-3, 8-11, 16-19, 24-27, then 4-7, 12-15, 20-23, 28-31. */
    void (*straighten)(float *out, int64_t count);
    /* weights [FLASH_KEYS], rounded, in pairs. */
    void (*round)(const float *weights, uint32_t *pairs);
    /* count elements of each of `rows` rows of e4m3 or e2m1 become bf16, to_stride apart. count is at most 256. false: it does not unpack the format. */
    bool (*unpack)(const flash_codes *from, int64_t rows, int64_t count, uint16_t *to, int64_t to_stride);
} flash_pairs;

typedef struct flash_isa {
    /* scores [rows][FLASH_KEYS] = or, with add, += q [rows][d] times keys [d][FLASH_KEYS], of which count are there: the scores of others may be anything. rows at most FLASH_ROWS. */
    void (*scores)(int rows, int count, int64_t d, const float *q, int64_t q_stride, const float *keys, int add, float *scores);
    /* The same sums of the FLASH_TURN keys from scores on, from k [FLASH_TURN][d] where it lies: what the others do by a transpose, in registers. d: a multiple of 16 words. NULL: there is none. */
    void (*scores_in_place)(int rows, int64_t d, const float *q, int64_t q_stride, const float *k, int64_t k_stride, const flash_next *next, int add, float *scores);
    /* out [rows][columns] = out * factor[row] + weights [rows][FLASH_KEYS] times v [keys][columns]; columns: a multiple of 16 up to FLASH_COLUMNS. */
    void (*values)(int rows, int keys, int columns, const float *weights, const float *v, int64_t v_stride, const flash_next *next, const float *factor, float *out,
                   int64_t out_stride);
    /* transposed [d][FLASH_KEYS] = k [keys][d] from column `first` on, for up to 16 keys; zeros where a key is missing. first: a multiple of 16. */
    void (*transpose)(int keys, int64_t d, const float *k, int64_t k_stride, const flash_next *next, int first, float *transposed);
    const flash_pairs *pairs;     /* NULL: operands are widened to fp32, and what follows multiplies them */
    /* scores [FLASH_KEYS] become weights relative to the new largest score; returns what earlier sums are to be multiplied with. */
    float (*soften)(flash_row *row, float *scores);
    bool (*has_nan)(const float *x, int64_t count);
    /* out [count] /= sum, but for a sum of 0; and then to = out in bf16, where to is not NULL. */
    void (*end_row)(float *out, int64_t count, float sum, uint16_t *to);
} flash_isa;

extern const flash_isa flash_isa_portable;
#if defined(__x86_64__)
extern const flash_isa flash_isa_avx2, flash_isa_avx512, flash_isa_avx512bf16;
#endif

#endif
