/* Skinny products on Hopper and later, of few rows: the host half of skinny.cuh. Which products it takes, how a call is divided, the launch; with rows in groups, too. Pure: knows no
 * driver. */
#include "kernels/gemm/skinny/skinny.h"

#include <math.h>

#include "kernels/gpu/host/host.h"
#include "kernels/gpu/rows/host.h"
#include "kernels/kernels.h"
#include "kernels/gemm/host.h"
#include "kernels/gemm/skinny/host.h"

/* ---- what is taken ---- */

/* By tiles of rows of a, log2: entries, and those of the image for chips with little shared memory; vector: the entry for one row; wide: that whose warps have four rows of b; persistent: that whose blocks are; narrow: that for up to 8 rows whose products are in f16; groups:
 * those for rows in groups, of weights for which the tiles are not as fast. */
typedef struct skinny_weights { dw_format b; const char *image, *entries[4], *small[4], *narrow, *groups[2], *small_groups, *vector, *wide, *persistent; } skinny_weights;

#define ENTRIES(name)                                                                                                                                       \
    "matmul_stream_" #name, {"matmul_stream_" #name "_m8", "matmul_stream_" #name "_m16", "matmul_stream_" #name "_m32", "matmul_stream_" #name "_m64"}, \
        {NULL, "matmul_stream_" #name "_m16_small", NULL, "matmul_stream_" #name "_m64_small"}
#define GROUPS(name) {"matmul_stream_" #name "_m8_groups", "matmul_stream_" #name "_m16_groups"}, "matmul_stream_" #name "_m16_groups_small"
static const skinny_weights all_weights[] = {
    {DW_FORMAT_bf16, ENTRIES(bf16), NULL, {NULL, NULL}, NULL, "matmul_stream_bf16_m1", "matmul_stream_bf16_m1_wide", "matmul_stream_bf16_m1_persistent"},
    {DW_FORMAT_f16, ENTRIES(f16), NULL, {NULL, NULL}, NULL, "matmul_stream_f16_m1", "matmul_stream_f16_m1_wide", "matmul_stream_f16_m1_persistent"},
    {DW_FORMAT_fp8_tensor, ENTRIES(e4m3), "matmul_stream_e4m3_m8_f16", GROUPS(e4m3), NULL, NULL, NULL},
    {DW_FORMAT_fp8_row, ENTRIES(e4m3), "matmul_stream_e4m3_m8_f16", GROUPS(e4m3), NULL, NULL, NULL},
    {DW_FORMAT_fp8_1x128, ENTRIES(e4m3_block), "matmul_stream_e4m3_block_m8_f16", {NULL, NULL}, NULL, NULL, NULL, NULL},
    {DW_FORMAT_fp8_128x128, ENTRIES(e4m3_block), "matmul_stream_e4m3_block_m8_f16", {NULL, NULL}, NULL, "matmul_stream_e4m3_block_m1", "matmul_stream_e4m3_block_m1_wide", NULL},
    {DW_FORMAT_mxfp8, ENTRIES(mxfp8), "matmul_stream_mxfp8_m8_f16", GROUPS(mxfp8), NULL, NULL, NULL},
    {DW_FORMAT_mxfp8_e5m2, ENTRIES(mxfp8_e5m2), "matmul_stream_mxfp8_e5m2_m8_f16", GROUPS(mxfp8_e5m2), NULL, NULL, NULL},
    {DW_FORMAT_mxfp4, ENTRIES(mxfp4), "matmul_stream_mxfp4_m8_f16", GROUPS(mxfp4), NULL, NULL, NULL},
    {DW_FORMAT_nvfp4, ENTRIES(nvfp4), "matmul_stream_nvfp4_m8_f16", GROUPS(nvfp4), NULL, NULL, NULL},
    {DW_FORMAT_nvfp4_row, ENTRIES(nvfp4), "matmul_stream_nvfp4_m8_f16", GROUPS(nvfp4), NULL, NULL, NULL},
};

static const skinny_weights *weights_of(dw_format b) {
    for (size_t i = 0; i < COUNT_OF(all_weights); i++)
        if (all_weights[i].b == b) return &all_weights[i];
    return NULL;
}

/* How many rows of a one row is; 0: it is not taken with weights b. */
static int planes_of(dw_format a, dw_format b) {
    switch (a) {
    case DW_FORMAT_f32: return b == DW_FORMAT_f16 ? 0 : 3;
    case DW_FORMAT_f16: return b == DW_FORMAT_f16 ? 1 : 2;
    case DW_FORMAT_bf16:
    case DW_FORMAT_mxfp8:
    case DW_FORMAT_mxfp8_e5m2:
    case DW_FORMAT_mxfp4:
    case DW_FORMAT_nvfp4:
    case DW_FORMAT_nvfp4_row:
    case DW_FORMAT_fp8_tensor:
    case DW_FORMAT_fp8_row: return b != DW_FORMAT_f16;
    case DW_FORMAT_fp8_1x128: return b == DW_FORMAT_fp8_1x128 || b == DW_FORMAT_fp8_128x128;
    default: return 0;
    }
}

/* Does a block have too little shared memory for the entries that others take? */
static bool is_small(const chip_caps *chip) { return chip->shared_bytes < SKINNY_ROOM; }

/* Are products in f16? Then one row is one. */
static bool is_narrow(const chip_caps *chip, dw_format a, dw_format b, int64_t m) { return m <= 8 && !is_small(chip) && weights_of(b)->narrow != NULL && a != DW_FORMAT_f32 && planes_of(a, b) > 0; }

/* Has f16 the range of all their elements, block scales applied? */
static bool fits_f16(dw_format a) {
    return a == DW_FORMAT_f16 || a == DW_FORMAT_nvfp4 || a == DW_FORMAT_nvfp4_row || a == DW_FORMAT_fp8_tensor || a == DW_FORMAT_fp8_row || a == DW_FORMAT_fp8_1x128;
}

/* Of rows so few that each block quantises a itself: blocks of a row, or all of it. */
static bool is_quantised_here(dw_format a) {
    return a == DW_FORMAT_mxfp8 || a == DW_FORMAT_mxfp8_e5m2 || a == DW_FORMAT_mxfp4 || a == DW_FORMAT_nvfp4_row || a == DW_FORMAT_fp8_row || a == DW_FORMAT_fp8_1x128;
}

_Static_assert((int)MATMUL_fp8_row == (int)DW_FORMAT_fp8_row && (int)MATMUL_nvfp4_row == (int)DW_FORMAT_nvfp4_row, "the device half has the formats' numbers");

/* The format of a in the product. */
static dw_format format_of_a(const kernel_run *run) { return run->quantises ? run->quantised : run->call.in[0]->format; }

static int64_t most_rows(dw_format a, dw_format b) { return weights_of(b) != NULL && planes_of(a, b) > 0 ? 64 / planes_of(a, b) : 0; }

static const char *reject_products(const kernel_problem *problem, text *why) {
    const op_type *a = problem->in[0], *b = problem->in[1];
    if (weights_of(b->format) == NULL || planes_of(a->format, b->format) == 0 || (problem->op->id == OP_grouped_matmul && weights_of(b->format)->groups[0] == NULL)) {
        text_printf(why, "%s times %s is not one of its products", dw_format_name(a->format), dw_format_name(b->format));
        return text_string(why);
    }
    if (op_attr_bool(problem->attrs, OP_ATTR_at)) return "a is stored with k first";
    if (!op_attr_bool(problem->attrs, OP_ATTR_bt)) return "b is stored with n last; it is read as [n,k]";
    return problem->op->id == OP_grouped_matmul ? matmul_reject_post(problem, 3, why) : matmul_reject_result(problem, why);
}

const char *matmul_skinny_refuses(const kernel_problem *problem, text *why) {
    const char *reason = reject_products(problem, why);
    return reason != NULL ? reason : matmul_plain_refuses(problem, why);
}

static const char *sizes_refusal(const kernel_run *run, int64_t most, text *why) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const int64_t rows = kernel_result_rows(&run->call), n = b->dims[b->rank - 2], k = a->dims[a->rank - 1];
    if (rows > most) return kernel_because(why, "it takes up to %lld rows of %s times %s, and there are %lld", (long long)most, dw_format_name(a->format), dw_format_name(b->format), (long long)rows);
    return k > 0 && n < INT32_MAX / 2 && k < INT32_MAX / 8 ? NULL : kernel_because(why, "k is 0, or k or n beyond what it counts to");
}

int64_t matmul_skinny_rows(const kernel_run *run) { return most_rows(format_of_a(run), run->call.in[1]->format); }

/* Of how many elements in all each block quantises a, where that takes it less than a launch would: measured with 8192 elements, fp8_1x128 takes 0.7 us and fp8_row 2.8 more, and a launch 2;
 * with 65536 fp8_1x128 takes 3.1 more. A search is slow by itself, and its launch too. */
static int64_t most_quantised(const kernel_run *run) {
    enum { BY_BLOCK = 32768, BY_ROW = 8192, SEARCHED = 16384 };
    if (run->searches) return dw_format_bits(run->call.in[1]->format) == 4 ? SEARCHED : 0;
    return num_info(run->quantised)->cols == 0 || num_info(run->quantised)->second != 0 ? BY_ROW : BY_BLOCK;
}

/* Why a, which comes plain, is not quantised here. */
static const char *quantising_refusal(const kernel_run *run, text *why) {
    const dw_tensor *x = run->call.in[0];
    const int64_t count = op_tensor_count(x);
    if (x->format != DW_FORMAT_bf16 && x->format != DW_FORMAT_f16) return kernel_because(why, "it quantises operands in bf16 and f16, and a is %s", dw_format_name(x->format));
    if (!is_quantised_here(run->quantised) || !is_narrow(run->chip, run->quantised, run->call.in[1]->format, kernel_result_rows(&run->call)))
        return kernel_because(why, "it quantises up to 8 rows to formats with scales in or for a row, with products in f16");
    if (count <= most_quantised(run)) return NULL;
    return kernel_because(why, "it quantises up to %lld elements here, and there are %lld", (long long)most_quantised(run), (long long)count);
}

/* Of weight and bias, for each k. */
static int column_bytes(const kernel_norm *norm) {
    int bytes = 0;
    for (int i = 0; i < 2; i++)
        if (norm->columns[i] != NULL) bytes += dw_format_bits(norm->columns[i]->format) / 8;
    return bytes;
}

static int64_t norm_bytes(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0];
    return run->norm != NULL ? SKINNY_NORM_BYTES(kernel_result_rows(&run->call), a->dims[a->rank - 1], column_bytes(run->norm)) : 0;
}

/* ---- one row ---- */

/* rows: of b that a warp has; parts: warps that share k, a power of two; span: units of 16 bytes that a lane has of a row of b. */
typedef struct vector_division { int rows, parts, span; bool is_persistent; int64_t blocks; } vector_division;

/* cols: of the result. As few parts as hold a row of b, whose lanes have up to `most` units of it, and more where there are fewer blocks than `wanted`. blocks 0: a row is too long. */
static vector_division divide_rows(int rows, int64_t units, int64_t most, int64_t cols, bool halves, int wanted) {
    const int64_t teams = base_ceil_div(cols, halves ? rows / 2 : rows);
    vector_division d = {.rows = rows, .parts = 1};
    while (d.parts < SKINNY_VECTOR_WARPS && units > (int64_t)d.parts * most * 32) d.parts *= 2;
    if (units > (int64_t)d.parts * most * 32) return d;
    while (d.parts < SKINNY_VECTOR_WARPS && units > d.parts * 32 && teams * d.parts < (int64_t)wanted * SKINNY_VECTOR_WARPS) d.parts *= 2;
    d.span = (int)base_ceil_div(units, d.parts * 32);
    d.blocks = base_ceil_div(teams * d.parts, SKINNY_VECTOR_WARPS);
    return d;
}

/* Blocks of the kernel that a multiprocessor holds at a time. */
enum { VECTOR_RESIDENT = 2 };

/* Blocks are persistent where there are more than run at a time, of rows that their threads bring at once; else warps have four rows of b where two would make more blocks than run at a time, and four make fewer; of columns that a step joins the two of each half, which share a scale, begin where it is even.
 * Of 16 bits half as many blocks as multiprocessors are enough, so that what is left holds the next launch's, which load meanwhile; of codes that was slower. */
static vector_division divide_vector(const chip_caps *chip, dw_format b, int64_t k, int64_t cols, bool halves) {
    const int bits = dw_format_bits(b);
    const int64_t units = base_ceil_div(k, 128 / bits), most = bits == 16 ? SKINNY_VECTOR_UNITS(2) : SKINNY_CODES_UNITS(2);
    const int wanted = bits == 16 ? chip->units / 2 : chip->units;
    const vector_division d = divide_rows(2, units, most, cols, halves, wanted), wide = divide_rows(4, units, most / 2, cols, halves, wanted);
    if (bits == 16 && k <= SKINNY_VECTOR_PIECES && d.blocks > VECTOR_RESIDENT * chip->units && (wide.blocks == 0 || wide.blocks > VECTOR_RESIDENT * chip->units))
        return (vector_division){.rows = 2, .parts = 1, .span = d.span, .is_persistent = true, .blocks = VECTOR_RESIDENT * chip->units};
    return d.blocks <= VECTOR_RESIDENT * chip->units || wide.blocks == 0 || wide.blocks >= d.blocks || (halves && cols % 2 != 0) ? d : wide;
}

/* Not rows of b that several warps share, unless b is small: each block reads all of a, which by then is half as much as its rows of b. */
static bool is_short(const kernel_run *run) {
    enum { LONG = 2048, SMALL_BYTES = 16 * 1024 * 1024 };
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    return a->dims[a->rank - 1] <= LONG || op_tensor_count(b) * dw_format_bits(b->format) / 8 <= SMALL_BYTES;
}

/* The threads that normalise a row have a piece of 8 elements each, and blocks that run one behind the other would each do it again. */
static bool is_normed_in_vector(const kernel_run *run, int64_t blocks) {
    return run->call.in[0]->dims[run->call.in[0]->rank - 1] <= SKINNY_VECTOR_PIECES && blocks <= run->chip->units * VECTOR_RESIDENT;
}

/* Does the kernel for one row take it? Of codes where a has blocks of 128, as it comes or as it is quantised here, and the blocks are few more than run at a time: with more the persistent kernel in f16 takes
 * less, as its ring never stands still. */
static bool is_vector(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1], *out = run->call.out[0];
    const bool codes = dw_format_bits(b->format) == 8;
    if (is_small(run->chip) || weights_of(b->format)->vector == NULL || kernel_result_rows(&run->call) != 1 || (!codes && !is_short(run))) return false;
    if (codes ? format_of_a(run) != DW_FORMAT_fp8_1x128 : run->quantises || a->format != b->format) return false;
    const int64_t blocks = divide_vector(run->chip, b->format, a->dims[a->rank - 1], out->dims[out->rank - 1], matmul_halves_columns(&run->post)).blocks;
    if (run->norm != NULL && !is_normed_in_vector(run, blocks)) return false;
    return blocks > 0 && blocks <= (codes ? run->chip->units * 5 / 4 * VECTOR_RESIDENT : INT32_MAX);
}

/* Of two and more rows: panels one after another, where the streams of this file are not estimated to take less. */
static bool takes_panels(const kernel_run *run);

/* Why a, which comes before a norm, is not normalised here. */
static const char *norm_refusal(const kernel_run *run, text *why) {
    const dw_tensor *x = run->call.in[0];
    const int64_t rows = kernel_result_rows(&run->call), most = is_small(run->chip) ? SKINNY_NORM_ROWS / 2 : SKINNY_NORM_ROWS;
    const dw_format b = run->call.in[1]->format;
    if (x->format != DW_FORMAT_bf16 && x->format != DW_FORMAT_f16) return kernel_because(why, "it normalises operands in bf16 and f16, and a is %s", dw_format_name(x->format));
    const char *reason = skinny_columns_refusal(run, why);
    if (reason != NULL) return reason;
    kernel_run plain = *run;
    plain.norm = NULL;
    if (panel_takes(&plain) || takes_panels(&plain)) return "products of so many rows take less behind a norm's own launch";
    if (rows > most) return kernel_because(why, "it normalises up to %lld rows, and there are %lld", (long long)most, (long long)rows);
    if ((run->constant_in >> 1 & 1) == 0) return kernel_because(why, "b is not known when the model is loaded");
    if (x->dims[x->rank - 1] % 8 != 0 || row_is_long(x->dims[x->rank - 1]) || norm_bytes(run) > SKINNY_NORM_MOST) return kernel_because(why, "k is no multiple of 8, or rows that it normalises do not fit into %d bytes", (int)SKINNY_NORM_MOST);
    const dw_format a = format_of_a(run);
    return is_narrow(run->chip, a, b, rows) || planes_of(a, b) == 1 ? NULL : kernel_because(why, "elements of a that are several numbers of bf16 are not normalised");
}

const char *matmul_skinny_takes(const kernel_run *run, text *why) {
    const dw_tensor *b = run->call.in[1];
    const bool has_rows = op_attr_bool(run->call.attrs, OP_ATTR_bt) && !op_attr_bool(run->call.attrs, OP_ATTR_at);
    if (!has_rows || b->rank != 2) return kernel_because(why, "an operand is stored with k first, or b has batches");
    const char *reason = sizes_refusal(run, matmul_skinny_rows(run), why);
    if (reason == NULL && run->norm != NULL) reason = norm_refusal(run, why);
    return reason == NULL && run->quantises ? quantising_refusal(run, why) : reason;
}

/* ---- how a call is divided ---- */

/* across, width: warps of a block side by side along n, and those of them that have columns; splits: blocks of a cluster, which share k; slab_steps: of k whose part
 * of a is in shared memory at a time. */
typedef struct skinny_division { int size, across, width, splits, steps, slab_steps; int64_t tiles, blocks; uint32_t shared_bytes; } skinny_division;

/* Words of scales that a thread brings with each step of a row. */
static int scale_words(dw_format b) {
    if (!dw_format_is_block(b) || num_info(b)->cols == 0) return 0;
    return dw_format_bits(b) == 4 ? 2 : 1;
}

/* How many clusters of so many blocks run at a time. Parts of the chip whose multiprocessors are no multiple of four or eight leave some unused: on an H200 products of 32 clusters of four,
 * and of 16 of eight, took twice as long as those of 66 of two. How many do find room was not measured: 3 and 2 fewer are cautious. */
static int64_t clusters_of(int64_t multiprocessors, int splits) {
    const int64_t unused = splits <= 2 ? 0 : splits == 4 ? 3 : 2, clusters = multiprocessors / splits - unused;
    return clusters > 0 ? clusters : 1;
}

/* Of 16 columns each, how many a block has, where so many blocks share all in as few rounds as their warps side by side allow. */
static int64_t width_of(int64_t units, int64_t blocks, int64_t warps) { return base_ceil_div(units, blocks * base_ceil_div(units, blocks * warps)); }

/* One block for k or two, each of which brings its half of a alone, at the price of adding their sums: where that is less. In bytes that a block moves, of b and of a (step_bytes a step).
 * Measured: in a chain of a layer's products on an H200 1 x 3072 x 2048 of bf16 takes 2 us less by one block, in which it moves 35 KiB more; 8 x 2048 x 8192 of fp8 6.7 less by two, alone. */
static int least_splits(int64_t units, int64_t steps, int64_t step_bytes, int64_t warps, int64_t multiprocessors) {
    enum { SPLIT_BYTES = 40 * 1024 };
    int64_t bytes[2];
    for (int i = 0; i < 2; i++) {
        const int64_t blocks = multiprocessors >> i, own = base_ceil_div(steps, i + 1);
        if (blocks == 0 || own < 2) return 1;
        const int64_t width = width_of(units, blocks, warps), rounds = base_ceil_div(units, blocks * width);
        if (i == 1 && own * width < warps) return 1;      /* warps without a step */
        bytes[i] = rounds * width * 16 * own * SKINNY_STEP_BYTES + own * step_bytes + i * SPLIT_BYTES;
    }
    return bytes[1] < bytes[0] ? 2 : 1;
}

/* rows: of a, planes counted. cols: of the result. groups: 0, or how many. beside: bytes that something else takes up. A block's columns are its share of all, in as many rounds as its warps side by side need;
 * clusters share k where there are columns for half the multiprocessors or fewer. Of a lies in shared memory what finds room there, in even parts. */
static skinny_division divide(dw_format b, int64_t m, int planes, int64_t cols, bool halves, int64_t k, int64_t groups, int64_t beside, const chip_caps *chip) {
    enum { KEPT_BYTES = 1024 };           /* of a block's shared memory, for the driver */
    const bool small = is_small(chip);
    const int multiprocessors = chip->units;
    const int64_t rows = m * planes, depth = SKINNY_STEP_BYTES * 8 / dw_format_bits(b), step_bytes = depth * 2 * rows + rows * 4 + depth / 32 * SKINNY_NARROW_PAD;
    skinny_division d = {.size = small ? (rows <= 16 ? 1 : 3) : rows <= 8 ? 0 : rows <= 16 ? 1 : rows <= 32 ? 2 : 3, .across = 1, .splits = 1};
    const int64_t tiles = 1ll << d.size, warps = SKINNY_WARPS(tiles, small), most_bytes = (int64_t)chip->shared_bytes - KEPT_BYTES, busy = groups > 0 ? (groups < m ? groups : m) : 1, units = base_ceil_div(cols, halves ? 8 : 16);
    d.steps = (int)base_ceil_div(k, depth);
    d.splits = groups > 0 ? 1 : least_splits(units, d.steps, depth * 2 * rows, warps, multiprocessors);
    d.width = (int)width_of(units * busy, multiprocessors / d.splits, warps);
    if (d.width > units) d.width = (int)units;
    while (d.across < d.width) d.across *= 2;
    d.tiles = base_ceil_div(units, d.width);
    while (d.splits < SKINNY_SPLITS && d.tiles * busy <= clusters_of(multiprocessors, 2 * d.splits) && d.steps >= 2 * d.splits * warps / d.across) d.splits *= 2;
    const int64_t sums = warps * 8 * tiles * SKINNY_SUM_PITCH * 4 + m * 64 * d.width;
    const int64_t fixed = beside + SKINNY_STAGES(tiles, small) * warps * 32 * (64 + 8 * scale_words(b)) + sums + 16 + (groups > 0 ? SKINNY_LIST_BYTES : rows <= 8 ? SKINNY_AMAX_BYTES : 0);
    const int64_t own = base_ceil_div(d.steps, d.splits), room = most_bytes - fixed > step_bytes ? (most_bytes - fixed) / step_bytes : 1;
    d.slab_steps = (int)base_ceil_div(own, base_ceil_div(own, room));
    d.shared_bytes = (uint32_t)(fixed + d.slab_steps * step_bytes);
    const int64_t slots = clusters_of(multiprocessors, d.splits);
    d.blocks = (d.tiles * busy < slots ? d.tiles * busy : slots) * d.splits;
    return d;
}

/* Microseconds of a product's start: alone, as those of groups are estimated, whose ring waits for what is in front of them; and between the launches of a step, fitted to steps of Llama-1B with one
 * text on an H200, of codes to chains of the product alone, beside products of codes as they are (bench/results/h200/decoded.md). */
typedef struct start_us { double alone, step; } start_us;

static start_us start_of(dw_format b) {
    static const start_us halves = {5, 2.9}, floats = {5, 3.5}, codes = {6, 5.1};
    return dw_format_bits(b) == 16 ? halves : num_info(b)->scale == DW_FORMAT_f32 ? floats : codes;
}

/* Of 9 and more rows: what a start takes more, the share of the bandwidth, and what a thousand elements of a take, of up to 16 rows, 32 and 64. Of 16 bits and of fp8 with scales in fp32 as measured behind a norm, 512 x 256
 * to 4096 x 4096, on an H100 (bench/results/h200/skinny.md); of the others by what an H200 took alone, whose time beyond 16 rows goes by the bytes of b. */
typedef struct more_rows { double start, share, thousand_us[3]; } more_rows;

static more_rows more_rows_of(dw_format b) {
    static const more_rows halves = {2.8, 0.9, {0.04, 0.08, 0.12}}, floats = {3.7, 0.66, {0.06, 0.14, 0.14}}, bytes = {2.5, 0.66, {0.19, 0.19, 0.19}}, nibbles = {2.5, 0.448, {0.1, 0.1, 0.1}};
    if (dw_format_bits(b) == 16) return halves;
    return num_info(b)->scale == DW_FORMAT_f32 ? floats : dw_format_bits(b) == 8 ? bytes : nibbles;
}

/* The start, the bytes of b at shares of an H200's bandwidth, and what a block takes for its part of a, which it converts; all measured there (README.md). narrow: by the entries in f16. */
static double skinny_us(const chip_caps *chip, dw_format a, dw_format b, int64_t m, int64_t n, int64_t k, bool narrow, double start) {
    enum { MANY = 16 };
    static const double CLUSTER_US = 1.9;    /* of 9 and more rows, where two blocks share k: of 16 by 768 x 3072 in bf16, behind a norm on an H200, where 2048 x 3072 without took what is expected */
    static const double LEAST_US = 6.6;      /* of fp8 with scales in fp32 and few rows, however small b is: on an H100 behind a norm */
    static const double MILLION_US = 0.046;  /* multiply-adds of more than 16 rows: of 64 by 50257 x 768 there, 131 us in bf16 and 135 in fp8 */
    const int64_t rows = narrow ? m : m * planes_of(a, b);
    const int bits = dw_format_bits(b), splits = divide(b, m, narrow ? 1 : planes_of(a, b), n, false, k, 0, 0, chip).splits;
    const double bytes = (double)n * (double)num_row_bytes(b, k), thousands = 1e-3 * (double)(rows * base_ceil_div(k, splits));
    if (rows > 8) {
        const more_rows more = more_rows_of(b);
        const double share = rows > MANY && bits < 16 && num_info(b)->scale != DW_FORMAT_f32 ? 0.064 : more.share;
        const double converted = thousands * more.thousand_us[rows <= MANY ? 0 : rows <= 2 * MANY ? 1 : 2], multiplied = rows > MANY ? MILLION_US * 1e-6 * (double)(rows * n) * (double)k : 0;
        return start + more.start + (splits > 1 ? CLUSTER_US : 0) + 1e6 * bytes / (chip_bytes_per_s(chip) * share) + fmax(converted, multiplied);
    }
    const double thousand_us = bits == 16 ? 0.085 : bits == 8 ? 0.19 : 0.1, least = narrow && num_info(b)->scale == DW_FORMAT_f32 ? LEAST_US : 0;
    const double share = bits == 16 ? (rows <= 2 ? 0.917 : 0.8) : bits == 8 ? (rows <= 2 ? (least > 0 ? 1 : 0.917) : 0.66) : rows <= 2 ? 0.704 : 0.448;
    return fmax(least, start + 1e6 * bytes / (chip_bytes_per_s(chip) * share) + thousand_us * thousands);
}

/* What of a each block does itself, in microseconds by elements. Of quantising: measured, blocks with 2048 and 8192 elements, rows with 8192, searches with 2048 and 8192. Of a norm, in steps: in front of weights of
 * 16 bits, with 768 to 2048 elements, 2 to 3 where it is of squares alone, 4 to 5 where a mean comes first; of fp8 with scales in fp32, with 768 to 1280 (steps of GPT-2, Whisper-large and T5-large on an H100), 2.5 to
 * 3 and 4; of others: with 2048, 1.3 to 1.6; more are guessed. */
static double prologue_us(const kernel_run *run) {
    const double thousands = 1e-3 * (double)op_tensor_count(run->call.in[0]);
    double us = 0;
    const dw_format b = run->call.in[1]->format;
    if (run->norm != NULL) us = dw_format_bits(b) == 16 || num_info(b)->scale == DW_FORMAT_f32 ? 2.5 + (run->norm->centred ? 2 : 0) + 0.2 * thousands : 0.6 + 0.4 * thousands;
    if (run->quantises) us += run->searches ? 3.5 + 0.8 * thousands : num_info(run->quantised)->cols == 0 || num_info(run->quantised)->second != 0 ? 0.3 * thousands : 1.1 + 0.065 * thousands;
    return us;
}

/* Of one row: as steps of GPT-2, Whisper-large and Llama-1B on an H200 take them, less what overlaps. */
static double vector_seconds(const kernel_run *run) {
    static const double START_US = 2.2, QUANTISED_US = 0.4;
    const dw_tensor *b = run->call.in[1];
    return 1e-6 * (START_US + skinny_norm_us(run) + (run->quantises ? QUANTISED_US : 0)) + (double)op_tensor_count(b) * dw_format_bits(b->format) / 8 / (chip_bytes_per_s(run->chip) * 0.97);
}

static double stream_seconds(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const int64_t m = kernel_result_rows(&run->call);
    const dw_format format = format_of_a(run);
    return 1e-6 * (prologue_us(run) + skinny_us(run->chip, format, b->format, m, b->dims[b->rank - 2], a->dims[a->rank - 1], is_narrow(run->chip, format, b->format, m), start_of(b->format).step));
}

static bool takes_panels(const kernel_run *run) { return panels_takes(run) && panels_seconds(run) <= stream_seconds(run); }

/* Of the matrices of groups that have rows. */
double grouped_skinny_seconds(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const int64_t m = a->dims[0], busy = m < b->dims[0] ? m : b->dims[0];
    return 1e-6 * skinny_us(run->chip, a->format, b->format, m, busy * b->dims[1], a->dims[1], false, start_of(b->format).alone);   /* which matrices are read, only the offsets say */
}

/* ---- the launch ---- */

/* Of b, that a block asks for ahead of its ring while it waits for the launches in front. */
enum { AHEAD_BYTES = 96 * 1024 };

static dw_status launch_skinny(const kernel_run *run, kernel_launcher *launcher, int64_t m, int64_t groups) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1], *out = run->call.out[0];
    const skinny_weights *weights = weights_of(b->format);
    int64_t k = a->dims[a->rank - 1], cols = out->dims[out->rank - 1];
    bool halves = matmul_halves_columns(&run->post);
    const dw_format format = format_of_a(run);
    const bool narrow = groups == 0 && is_narrow(run->chip, format, b->format, m);
    const int planes = narrow ? 1 : planes_of(format, b->format);
    const int64_t normed = norm_bytes(run) + (run->norm != NULL ? 16 : 0);      /* which begin at a multiple of 16 */
    skinny_division d = divide(b->format, m, planes, cols, halves, k, groups, normed, run->chip);
    kernel_launch launch;
    const bool small = is_small(run->chip);
    const char *entry = groups > 0 ? (small ? weights->small_groups : weights->groups[d.size]) : narrow ? weights->narrow : small ? weights->small[d.size] : weights->entries[d.size];
    skinny_arguments *g = cuda_launch(&launch, small ? "matmul_stream_small" : weights->image, entry, sizeof *g);
    matmul_take_epilogue(&launch, run, groups > 0 ? 3 : 2, &g->epilogue);
    if (groups > 0) matmul_take_groups(&launch, run, 0, groups, &g->groups);
    if (narrow && dw_format_bits(b->format) == 4) g->epilogue.alpha = 16384;
    else if (b->format == DW_FORMAT_nvfp4 || b->format == DW_FORMAT_nvfp4_row) g->epilogue.alpha = 65536;
    skinny_take_product(&launch, run, m, g);
    g->planes = planes;
    g->ranged = narrow && !fits_f16(format);
    g->across = d.across;
    g->width = d.width;
    g->tiles = (int32_t)d.tiles;
    g->steps = d.steps;
    g->slab_steps = d.slab_steps;
    g->b_is_constant = groups == 0 && g->b_is_constant;      /* of groups the offsets, which a launch in front may write, say which matrices are read */
    g->ahead = AHEAD_BYTES / (16 * d.width) & ~127;
    if (run->norm != NULL) skinny_take_norm(&launch, run, (d.shared_bytes - normed + 15) / 16 * 16, &g->norm);
    cuda_grid(&launch, d.blocks, 1, 1);
    if (d.splits > 1) launch.cluster[0] = (uint32_t)d.splits, launch.cluster[1] = launch.cluster[2] = 1;
    launch.block[0] = (uint32_t)(SKINNY_WARPS(1 << d.size, small) * 32);
    launch.shared_bytes = d.shared_bytes;
    launch.overlaps = true;
    return launcher->add(launcher, &launch);
}

static dw_status launch_vector(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *a = run->call.in[0], *out = run->call.out[0];
    const skinny_weights *weights = weights_of(run->call.in[1]->format);
    const vector_division d = divide_vector(run->chip, run->call.in[1]->format, a->dims[a->rank - 1], out->dims[out->rank - 1], matmul_halves_columns(&run->post));
    kernel_launch launch;
    skinny_arguments *g = cuda_launch(&launch, weights->image, d.is_persistent ? weights->persistent : d.rows > 2 ? weights->wide : weights->vector, sizeof *g);
    matmul_take_epilogue(&launch, run, 2, &g->epilogue);
    skinny_take_product(&launch, run, 1, g);
    g->parts = d.parts;
    g->span = d.span;
    cuda_grid(&launch, d.blocks, 1, 1);
    launch.block[0] = SKINNY_VECTOR_WARPS * 32;
    if (run->quantises) launch.shared_bytes = (uint32_t)SKINNY_CODES_BYTES(a->dims[a->rank - 1]);
    if (run->norm != NULL || d.is_persistent) {
        const int64_t at = base_ceil_div(launch.shared_bytes, 16) * 16;
        if (run->norm != NULL) skinny_take_norm(&launch, run, at, &g->norm);
        launch.shared_bytes = (uint32_t)(at + base_ceil_div(a->dims[a->rank - 1], 8) * 16);
    }
    launch.overlaps = true;
    return launcher->add(launcher, &launch);
}

static dw_status launch_stream(const kernel_run *run, kernel_launcher *launcher) { return launch_skinny(run, launcher, kernel_result_rows(&run->call), 0); }

/* ---- which kernel ---- */

/* The kernels for few of the calls, and behind them the one for all: a call gets the first that takes it. */
typedef struct skinny_kernel { bool (*takes)(const kernel_run *run); double (*seconds)(const kernel_run *run); dw_status (*launch)(const kernel_run *run, kernel_launcher *launcher); } skinny_kernel;

static bool is_any(const kernel_run *run) {
    (void)run;
    return true;
}

static const skinny_kernel *kernel_of(const kernel_run *run) {
    static const skinny_kernel all[] = {
        {ring_nibbles_takes, ring_nibbles_seconds, ring_nibbles_launch}, {ring_takes, ring_seconds, ring_launch}, {ring_codes_takes, ring_codes_seconds, ring_codes_launch},
        {panel_takes, panel_seconds, panel_launch}, {takes_panels, panels_seconds, panels_launch}, {is_vector, vector_seconds, launch_vector}, {is_any, stream_seconds, launch_stream},
    };
    const skinny_kernel *own = all;
    while (!own->takes(run)) own++;
    return own;
}

double matmul_skinny_seconds(const kernel_run *run) { return kernel_of(run)->seconds(run); }
dw_status matmul_skinny_shape(const kernel_run *run, kernel_launcher *launcher) { return kernel_of(run)->launch(run, launcher); }

/* ---- rows in groups ---- */

const char *grouped_skinny_refuses(const kernel_problem *problem, text *why) {
    int64_t groups, n;
    const op_type *b = problem->in[1];
    const char *reason = reject_products(problem, why);
    if (reason != NULL) return reason;
    if (!dim_is_constant(b->dims[0], &groups) || !dim_is_constant(b->dims[1], &n)) return "n or the number of groups is not known at plan time";
    if (groups == 0) return "there are no groups";
    if (n > INT32_MAX / 2 / groups) return "the rows of all groups' b are more than this kernel counts to";
    return grouped_plain_refuses(problem, why);
}

int64_t grouped_skinny_rows(const kernel_run *run) { return SKINNY_GROUP_ROWS / planes_of(run->call.in[0]->format, run->call.in[1]->format); }
const char *grouped_skinny_takes(const kernel_run *run, text *why) { return sizes_refusal(run, grouped_skinny_rows(run), why); }
dw_status grouped_skinny_shape(const kernel_run *run, kernel_launcher *launcher) { return launch_skinny(run, launcher, run->call.in[0]->dims[0], run->call.in[1]->dims[0]); }
