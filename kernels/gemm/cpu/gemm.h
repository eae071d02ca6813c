/* The CPU's matrix product core: packed panels of B, microkernels per instruction set, and the driver that runs both over threads.
 * Shared by matmul, grouped_matmul and conv. Knows nothing of ops but the post lists that end a product.
 *
 * B [k,n] lies in panels of GEMM_COLS columns; k is cut into chunks of GEMM_DEPTH. A sum runs over a chunk in order with one fused multiply-add a
 * step (bf16: the odd element of a pair before the even one, as vdpbf16ps does), starting from zero; chunks are added in order in fp32. So a row of
 * the result has the same bits whatever the number of rows and threads. Operands count as they are, subnormal ones too; of sums in bf16 products those below
 * 2^-126 in magnitude may count as zero (vdpbf16ps), so that a result may be off by k 2^-126 before factors. */
#ifndef KERNELS_GEMM_CPU_GEMM_H
#define KERNELS_GEMM_CPU_GEMM_H

#include "kernel/kernel.h"

enum {
    GEMM_COLS = 32,           /* columns of a panel */
    GEMM_DEPTH = 256,         /* k of a chunk; formats with fp32 block scales: GEMM_SCALE_DEPTH */
    GEMM_SCALE_DEPTH = 128,
    GEMM_GROUP = 32,          /* k that quantised panels are padded to, and the unit of their scales */
    GEMM_ROWS_MAX = 12,       /* rows of the largest microkernel */
    GEMM_CHUNK_ROWS = 264,    /* rows of A that a task works on */
    GEMM_DIRECT_ROWS = 24,    /* up to so many rows quantised panels are decoded in registers, for GEMM_ROWS_MAX at a time */
    GEMM_BESIDE_ROWS = 2      /* and up to so many two panels at a time: the sums of one are in turn too few to hide how long a product takes */
};

/* What the elements of a panel are. */
typedef enum gemm_panel {
    GEMM_PANEL_F32,           /* float [k][32] */
    GEMM_PANEL_BF16,          /* uint16 [k/2][32][2], k padded to even */
    GEMM_PANEL_E4M3,          /* codes of 8 bits, a scale exponent for 32 of k; FP6 elements are rewritten as E4M3, exactly */
    GEMM_PANEL_E5M2,
    GEMM_PANEL_E2M1_E8M0,     /* codes of 4 bits, a scale exponent for 32 of k */
    GEMM_PANEL_E2M1_E4M3,     /* codes of 4 bits, an E4M3 scale for 16 of k */
    GEMM_PANEL_COUNT
} gemm_panel;

/* What the multiplications are done in: fp32, or bf16 pairs with fp32 sums. */
typedef enum gemm_compute { GEMM_F32, GEMM_BF16, GEMM_COMPUTE_COUNT } gemm_compute;

/* How a weight is packed: known from formats and shapes alone. */
typedef struct gemm_pack {
    gemm_panel panel;
    dw_format format;             /* of B as the tensor has it */
    int64_t k, n, batches;
    bool transposed;              /* B lies as [n,k] */
    bool halves;                  /* columns j and n/2 + j are needed together: panels alternate between the halves */
    bool block_scales;            /* fp32 scales for every 128 of k: chunks are 128 deep and scaled as they are added */
    int64_t panels;               /* of one batch */
    int64_t depth, chunks;        /* k of a chunk, and how many */
    size_t factor_offset;         /* in a panel: float [32], a factor of each column */
    size_t scale_offset;          /* in a panel: float [chunks][32], with block_scales */
    size_t flag_offset;           /* in a panel of bf16: uint32, not 0 where it holds subnormal numbers */
    size_t panel_bytes, batch_bytes, bytes;
} gemm_pack;

/* The packed weight begins with this; panels follow at GEMM_HEADER_BYTES. */
typedef struct gemm_header { uint32_t special; } gemm_header;   /* special: holds codes or scales that need the exact scalar decoder */
enum { GEMM_HEADER_BYTES = 64 };

/* One microkernel call: c [rows][32] = or += a [rows][steps] times a chunk of a panel. */
typedef struct gemm_tile {
    int rows;                     /* 1 .. rows_max of the instruction set */
    int64_t steps;                /* f32: k; bf16: pairs */
    const void *a;                /* float, or uint16 pairs, which need no alignment */
    int64_t a_stride;             /* elements */
    const void *b;
    float *c;
    bool add;
    const float *row_scale;       /* NULL, or one per row, row_scale_stride apart: what is added is sum * (row scale * column scale) */
    int64_t row_scale_stride;
    const float *col_scale;
} gemm_tile;

/* The whole of k for a few rows and a quantised panel or two, decoded in registers. Same bits as decode and tile. */
typedef struct gemm_direct {
    int rows;                     /* 1 .. GEMM_ROWS_MAX */
    int panels;                   /* 1, or of up to GEMM_BESIDE_ROWS rows 2 */
    int64_t k, depth;             /* of all, of a chunk */
    const uint16_t *a;
    int64_t a_stride;
    const uint8_t *b;
    size_t panel_bytes;           /* from one panel to the next */
    float *c;                     /* [rows][32], and c_stride floats behind it those of the second panel */
    ptrdiff_t c_stride;
    const float *col_scales;      /* NULL, or of the first panel [chunks][32]: sums of a chunk are multiplied with row scale * column scale */
    const float *row_scales;      /* NULL: ones; or [rows][row_scale_stride] */
    int64_t row_scale_stride;
} gemm_direct;

/* k elements of a quantised row of A as BF16, each times its block's scale. */
typedef struct gemm_codes {
    dw_format format;             /* of the row: blocks of 8 or 4 bits */
    int64_t k;
    const uint8_t *codes, *scales;
    uint16_t *to;
} gemm_codes;

/* What an instruction set provides. Entries of decode may be NULL where panel and compute agree. */
typedef struct gemm_isa {
    const char *name;
    uint64_t needs;
    int rows_max[GEMM_COMPUTE_COUNT];
    void (*tile[GEMM_COMPUTE_COUNT])(const gemm_tile *tile);
    /* Where tile[GEMM_BF16] takes subnormal operands as zeros: the tile that takes them as they are, with the same bits for others; and is there one among these?
     * NULL: tile does. */
    void (*exact_tile)(const gemm_tile *tile);
    bool (*has_subnormal)(const uint16_t *x, int64_t count);
    /* The chunk of k elements at source as the panel chunk that tile reads; padded to GEMM_GROUP in k. */
    void (*decode[GEMM_PANEL_COUNT][GEMM_COMPUTE_COUNT])(const uint8_t *source, int64_t k, void *chunk);
    void (*direct[GEMM_PANEL_COUNT])(const gemm_direct *direct);   /* NULL: none */
    /* Brings memory that is read soon into the L2 cache. NULL: does not. */
    void (*fetch)(const uint8_t *from, size_t bytes);
    /* As many elements from the front as are whole groups of GEMM_GROUP without special codes or scales; returns how many. NULL: none. */
    int64_t (*decode_row)(const gemm_codes *row);
    /* y[i] = step(y[i], x[i]); x NULL for steps without an operand. */
    void (*post)(op_post step, float *y, const float *x, int64_t count);
    void (*to_bf16)(const float *x, uint16_t *y, int64_t count);
    void (*from_bf16)(const uint16_t *x, float *y, int64_t count);
    /* to [cols][rows] = from [rows][cols] turned, of elements of 4 bytes. Rows lie so many bytes apart and need no alignment. */
    void (*turn)(const void *from, ptrdiff_t from_bytes, int64_t rows, int64_t cols, void *to, ptrdiff_t to_bytes);
    /* to [count][2] = even and odd in turns. */
    void (*pair)(const uint16_t *even, const uint16_t *odd, int64_t count, uint16_t *to);
} gemm_isa;

/* turn and pair in plain C (gemm_moves.c). */
void gemm_turn(const void *from, ptrdiff_t from_bytes, int64_t rows, int64_t cols, void *to, ptrdiff_t to_bytes);
void gemm_pair_rows(const uint16_t *even, const uint16_t *odd, int64_t count, uint16_t *to);

extern const gemm_isa gemm_isa_portable;
#if defined(__x86_64__)
extern const gemm_isa gemm_isa_avx2, gemm_isa_avx512, gemm_isa_avx512bf16;
#endif
/* The best that the chip has. */
const gemm_isa *gemm_isa_of(const chip_caps *chip);

/* ---- packing (gemm_pack.c) ---- */

/* false: the format has no panel, or sizes overflow. */
bool gemm_pack_init(gemm_pack *pack, dw_format format, gemm_compute compute, int64_t k, int64_t n, int64_t batches, unsigned flags);
enum {
    GEMM_TRANSPOSED = 1,          /* B lies as [n,k] */
    GEMM_HALVES = 2,              /* a post step takes both halves of the columns */
    GEMM_A_SCALES = 4             /* A has fp32 scales for every 128 of k: chunks as deep */
};
/* Packs weight [.., k, n] or, transposed, [.., n, k] (its leading axes are the batches, any strides for element formats) into packed, pack->bytes long and aligned to 64.
 * isa: what packs, and multiplies; NULL: any may multiply. */
void gemm_pack_run(const gemm_pack *pack, const gemm_isa *isa, const dw_tensor *weight, pool *pool, void *packed);
/* The same as a row's packing, whose run is gemm_pack_run; and the pack that a packing's numbers are of. */
void gemm_packing(const gemm_pack *pack, kernel_packing *packing);
void gemm_pack_of(const kernel_packing *packing, gemm_pack *pack);
/* Bytes of one chunk of k elements within a panel, and where the chunk that begins at k element `at` is. */
size_t gemm_chunk_bytes(gemm_panel panel, int64_t k);
size_t gemm_chunk_offset(const gemm_pack *pack, int64_t at);
/* The decoder of chunks with special codes or scales: exact for all. */
void gemm_decode_special(gemm_panel panel, gemm_compute compute, const uint8_t *source, int64_t k, void *chunk);

/* ---- the product (gemm_run.c) ---- */

/* One operand of a post list, broadcast to the result by strides: element (slice, row, column). */
typedef struct gemm_operand {
    const void *data;             /* first element */
    dw_format format;
    int64_t row_stride, col_stride;
} gemm_operand;

/* One of the independent products of a call. */
typedef struct gemm_slice {
    int64_t rows;
    const void *a;                /* [rows][k] in the compute's format */
    const float *row_factor;      /* NULL, or [rows]: multiplies the sums at the end */
    const float *factor;          /* NULL, or one for all rows */
    const float *row_scales;      /* with block scales on A: [rows][a_chunks] */
    const uint8_t *panels;        /* packed B */
    bool special;
    void *out;
    gemm_operand operands[OP_MAX_POST];
} gemm_slice;

typedef struct gemm_job gemm_job;
struct gemm_job {
    const gemm_isa *isa;
    gemm_compute compute;
    gemm_pack pack;
    int64_t a_stride;             /* elements */
    int64_t row_scale_stride;
    int64_t slices, rows_max;     /* rows of the longest slice */
    void (*slice)(const gemm_job *job, int64_t index, gemm_slice *slice);
    const void *owner;            /* for slice() */
    op_post_list post;
    dw_format out_format;         /* f32, bf16 or f16 */
    int64_t out_row_stride;       /* elements */
    int64_t n_out;
};

void gemm_run(const gemm_job *job, pool *pool);

#endif
