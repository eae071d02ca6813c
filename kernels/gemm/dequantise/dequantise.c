/* The host half of dequantise.cu: products with operands in rows of bf16. Pure: knows no driver. */
#include "kernels/gemm/dequantise/dequantise.h"

#include "kernels/gemm/dequantise/dequantised.h"
#include "kernels/gemm/host.h"
#include "kernels/gpu/host/host.h"

enum { PART_BYTES = 256 << 20 };      /* of matrices of b that are dequantised at a time; one at least */

/* Blocks within rows or over several whose scales are fp32. */
static bool has_wide_scales(dw_format format) {
    const num_format *info = num_info(format);
    return info->class == NUM_BLOCK && info->scale == DW_FORMAT_f32 && info->cols > 0;
}

/* Elements of such a format are bf16 numbers. */
static bool is_exact(dw_format format) { return format == DW_FORMAT_bf16 || (num_info(format)->class == NUM_BLOCK && !has_wide_scales(format)); }

static int planes_of(const dw_format formats[2]) { return formats[0] == DW_FORMAT_bf16 && has_wide_scales(formats[1]) ? 2 : 1; }

static bool is_whole(dw_format format, int64_t row) { return format == DW_FORMAT_bf16 && row % DEQUANTISE_UNIT == 0; }

unsigned dequantised_operands(const dw_format formats[2], const int64_t rows[2]) {
    if (planes_of(formats) > 1) return 3;
    if (!is_exact(formats[0]) || !is_exact(formats[1])) return 0;
    return (is_whole(formats[0], rows[0]) ? 0u : 1u) | (is_whole(formats[1], rows[1]) ? 0u : 2u);
}

/* ---- what a run comes to ---- */

static int64_t units_of(int64_t k) { return base_ceil_div(k, DEQUANTISE_UNIT); }
/* Elements from one row to the next. */
static int64_t stride_of(const dw_format formats[2], int64_t row) { return units_of(row) * DEQUANTISE_UNIT * planes_of(formats); }
/* What is behind the last element of k is zeros, which count as others do; rows of operands that lie turned are of m or n. */
int64_t dequantised_row(const dw_format formats[2], int64_t row) { return formats[0] == DW_FORMAT_bf16 && formats[1] == DW_FORMAT_bf16 ? row : stride_of(formats, row); }
/* Elements of an operand's rows: k, or of operands that lie turned m or n. */
static int64_t row_of(const dequantised_runs *runs, int operand) { return runs->asked->call.in[operand]->dims[runs->asked->call.in[operand]->rank - 1]; }
static int64_t cols_of(const dequantised_runs *runs) { return runs->asked->call.in[1]->dims[runs->asked->call.in[1]->rank - 2]; }
static bool is_dequantised(const dequantised_runs *runs, int operand) { return (runs->operands >> operand & 1) != 0; }

static int64_t rows_of(const dw_tensor *x) {
    int64_t rows = 1;
    for (int axis = 0; axis < x->rank - 1; axis++) rows *= x->dims[axis];
    return rows;
}

/* Bytes of so many rows; parts of the workspace begin at multiples of 128. */
static size_t bytes_of(const dequantised_runs *runs, int operand, int64_t rows) {
    return is_dequantised(runs, operand) ? ((size_t)rows * (size_t)stride_of(runs->formats, row_of(runs, operand)) * 2 + 127) / 128 * 128 : 0;
}

static size_t a_bytes(const dequantised_runs *runs) { return bytes_of(runs, 0, rows_of(runs->asked->call.in[0])); }
static size_t b_bytes(const dequantised_runs *runs, int64_t groups) { return bytes_of(runs, 1, groups * cols_of(runs)); }

/* The tensor that the product reads. */
static void split_operand(dequantised_runs *runs, int operand) {
    const dw_tensor *x = runs->asked->call.in[operand];
    dw_tensor *rows = &runs->tensors[operand];
    op_tensor_init(rows, DW_FORMAT_bf16, DW_SCALE_plain, x->rank, x->dims, NULL);
    rows->dims[x->rank - 1] = dequantised_row(runs->formats, row_of(runs, operand));
    int64_t stride = stride_of(runs->formats, row_of(runs, operand));
    for (int axis = x->rank - 2; axis >= 0; axis--) {
        rows->strides[axis] = stride;
        stride *= x->dims[axis];
    }
    runs->in[operand] = rows;
    runs->product.came[operand] = x;
}

void dequantised_split(const kernel_run *run, unsigned operands, dequantised_runs *runs) {
    const dw_tensor *b = run->call.in[1];
    runs->asked = run;
    runs->operands = operands;
    for (int i = 0; i < 2; i++) runs->formats[i] = run->call.in[i]->format;
    runs->groups = run->call.op->id == OP_grouped_matmul ? b->dims[0] : 1;
    runs->at_a_time = runs->groups;
    runs->product = *run;
    for (int i = 0; i < run->call.n_in; i++) runs->in[i] = run->call.in[i];
    for (int i = 0; i < 2; i++)
        if (is_dequantised(runs, i)) split_operand(runs, i);
    runs->product.call.in = runs->in;
    if (runs->groups == 1 || !is_dequantised(runs, 1)) return;
    const size_t each = b_bytes(runs, 1);
    if (each > 0 && PART_BYTES / each < (size_t)runs->groups) runs->at_a_time = PART_BYTES / each > 0 ? (int64_t)(PART_BYTES / each) : 1;
}

size_t dequantised_workspace(const dequantised_runs *runs) { return a_bytes(runs) + b_bytes(runs, runs->at_a_time); }

/* Half of the bytes more are read. Matrices of groups without rows are left out: how many groups have some is not known, but it is no more than there are rows. */
double dequantised_seconds(const dequantised_runs *runs) {
    const chip_caps *chip = runs->asked->chip;
    const int64_t m = rows_of(runs->asked->call.in[0]), busy = runs->groups < m ? runs->groups : m;
    const size_t bytes = a_bytes(runs) + (size_t)busy * b_bytes(runs, 1);
    return 1e-6 * (2 + 1e6 * 1.5 * (double)bytes / (0.746 * chip_bytes_per_s(chip)) + 2.0 * (double)(base_ceil_div(runs->groups, runs->at_a_time) - 1));
}

/* ---- the launches ---- */

/* One part: matrices first to end - 1 of b, and with the first of them a. at: bytes in the workspace. */
typedef struct part { int64_t first, end; int64_t at[2]; } part;

static bool is_in(const dequantised_runs *runs, const part *p, int operand) { return is_dequantised(runs, operand) && (operand == 1 || p->first == 0); }

enum { TILE_ROWS_MOST = 256 };   /* rows of b that a tile has at most */

static void take_operand(kernel_launch *launch, dequantise_arguments *g, const dequantised_runs *runs, const part *p, int operand) {
    enum { MOST_BLOCKS = 1 << 14 };
    const kernel_run *run = runs->asked;
    const int64_t down = DEQUANTISE_THREADS >> g->across;
    int64_t rows = rows_of(run->call.in[operand]);
    if (operand == 1 && run->call.op->id == OP_grouped_matmul) {
        g->group_rows = (int32_t)cols_of(runs);
        g->group_spill = cols_of(runs) % TILE_ROWS_MOST == 0 ? 0 : TILE_ROWS_MOST;
        rows = (p->end - p->first) * cols_of(runs);
        matmul_take_groups(launch, run, p->first, p->end, &g->groups);
    }
    matmul_take_rows(launch, run, operand, &g->rows[operand]);
    cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &g->to[operand], p->at[operand]);
    g->count[operand] = (int32_t)rows;
    g->blocks[operand] = (int32_t)(base_ceil_div(rows, down) < MOST_BLOCKS ? base_ceil_div(rows, down) : MOST_BLOCKS);
}

/* operands: of those whose rows are as long as this one's. */
static dw_status launch_rows(const dequantised_runs *runs, const part *p, unsigned operands, kernel_launcher *launcher) {
    kernel_launch launch;
    dequantise_arguments *g = cuda_launch(&launch, "matmul_decode", "matmul_decode", sizeof *g);
    g->k = (int32_t)row_of(runs, operands & 1 ? 0 : 1);
    g->planes = planes_of(runs->formats);
    while (g->across < 8 && 1 << g->across < units_of(g->k)) g->across++;
    for (int i = 0; i < 2; i++)
        if ((operands >> i & 1) != 0) take_operand(&launch, g, runs, p, i);
    cuda_grid(&launch, g->blocks[0] + g->blocks[1], 1, 1);
    launch.block[0] = DEQUANTISE_THREADS;
    return launcher->add(launcher, &launch);
}

static dw_status launch_part(const dequantised_runs *runs, const part *p, kernel_launcher *launcher) {
    const unsigned a = is_in(runs, p, 0) ? 1 : 0, b = is_in(runs, p, 1) ? 2 : 0;
    if ((a | b) == 3 && row_of(runs, 0) == row_of(runs, 1)) return launch_rows(runs, p, 3, launcher);
    if (a != 0) TRY(launch_rows(runs, p, a, launcher));
    return b != 0 ? launch_rows(runs, p, b, launcher) : DW_OK;
}

dw_status dequantised_shape(const dequantised_runs *runs, size_t own, kernel_launcher *launcher, dw_status (*product)(const kernel_run *run, kernel_launcher *launcher)) {
    const int64_t at[2] = {(int64_t)own, (int64_t)(own + a_bytes(runs))};
    cuda_move moves[2];
    int count = 0;
    for (int i = 0; i < 2; i++)
        if (is_dequantised(runs, i)) moves[count++] = (cuda_move){i, true, at[i]};
    for (int64_t first = 0; first < runs->groups; first += runs->at_a_time) {
        const part p = {first, first + runs->at_a_time < runs->groups ? first + runs->at_a_time : runs->groups, {at[0], at[1]}};
        dequantised_runs here = *runs;
        cuda_mover mover = cuda_mover_to(launcher, count, moves);
        here.product.call.in = here.in;
        here.product.first_group = first;
        if (is_dequantised(runs, 1)) here.in[1] = &here.tensors[1];
        if (runs->at_a_time < runs->groups) here.tensors[1].dims[0] = p.end - first;
        TRY(launch_part(runs, &p, launcher));
        TRY(product(&here.product, &mover.launcher));
    }
    return DW_OK;
}
