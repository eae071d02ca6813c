/* layer_norm_backward and rms_norm_backward on the CPU, in fp32 with sums in 64 parts, of gradients 32: two passes over a row of x for its statistics, one for the two means, one that writes dx and adds to dweight and
 * dbias. Rows of up to KEPT elements are widened once. Rows are cut into at most PARTS parts, whatever the number of threads; each part sums its own columns in fp32, and the parts are added in order, in double. */
#include "kernels/norm/backward.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"

enum { X, DY, WEIGHT, PLUS };
enum { PARTS = 64, LEAST_ROWS = 8, KEPT = 4096 };

const char *norm_backward_reject(const kernel_problem *problem, text *why) {
    static const char *const names[] = {"x", "dy", "weight", "plus"};
    for (int i = 0; i < problem->n_in; i++) {
        if (problem->in[i] == NULL || problem->in[i]->format != DW_FORMAT_f64) continue;
        text_printf(why, "%s is f64, which is computed in double", names[i]);
        return text_string(why);
    }
    return NULL;
}

double norm_backward_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.2, 0.5); }

typedef struct job {
    const op_call *call;
    const cpu_rows *rows;
    const norm_backward_loops *loops;
    const dw_tensor *x, *dy, *weight, *plus;
    int64_t cols, row_count, part_rows, parts;
    bool centred;
    double eps;
    float *columns;                      /* [parts][2][cols] */
} job;

static job job_of(const op_call *call) {
    job j = {.call = call, .x = call->in[X], .dy = call->in[DY], .weight = op_operand(call, WEIGHT), .plus = op_operand(call, PLUS), .row_count = 1,
             .centred = call->op->id == OP_layer_norm_backward, .eps = op_attr_real(call->attrs, OP_ATTR_eps)};
    for (int i = 0; i < j.x->rank - 1; i++) j.row_count *= j.x->dims[i];
    j.cols = j.x->dims[j.x->rank - 1];
    j.part_rows = base_ceil_div(j.row_count, PARTS);
    if (j.part_rows < LEAST_ROWS) j.part_rows = LEAST_ROWS;
    j.parts = base_ceil_div(j.row_count, j.part_rows);
    return j;
}

/* Where row number index begins. */
static int64_t begin_of(const dw_tensor *tensor, int64_t index) {
    int64_t offset = 0;
    for (int axis = tensor->rank - 2; axis >= 0; axis--) {
        offset += index % tensor->dims[axis] * tensor->strides[axis];
        index /= tensor->dims[axis];
    }
    return offset;
}

static const float *load(const job *j, const dw_tensor *x, int64_t begin, int64_t at, int64_t count, float *buffer) {
    const int64_t step = x->strides[x->rank - 1];
    return cpu_load(j->rows, x, begin + at * step, step, count, buffer);
}

static int64_t block_at(const job *j, int64_t at) { return j->cols - at < CPU_BLOCK ? j->cols - at : CPU_BLOCK; }

/* A row of an operand, which begins at element begin. kept: all of it as fp32 where it lies so or has been widened, else NULL. */
typedef struct row_values { const dw_tensor *x; int64_t begin; const float *kept; } row_values;

static row_values row_of(const job *j, const dw_tensor *x, int64_t index, float room[KEPT]) {
    row_values row = {.x = x, .begin = begin_of(x, index)};
    if (x->format == DW_FORMAT_f32 && x->strides[x->rank - 1] == 1) row.kept = (const float *)x->data + row.begin;
    if (row.kept != NULL || j->cols > KEPT) return row;
    for (int64_t at = 0; at < j->cols; at += CPU_BLOCK) {
        const float *piece = load(j, x, row.begin, at, block_at(j, at), room + at);
        if (piece != room + at) memcpy(room + at, piece, (size_t)block_at(j, at) * sizeof *piece);
    }
    row.kept = room;
    return row;
}

static const float *piece_of(const job *j, const row_values *row, int64_t at, float *buffer) { return row->kept != NULL ? row->kept + at : load(j, row->x, row->begin, at, block_at(j, at), buffer); }

/* mean in double, as of a row far from 0 fp32 has lost what is between its elements; those are subtracted in fp32, and behind them what the mean has lost of itself there. */
static norm_row measure(const job *j, const row_values *x) {
    float buffer[CPU_BLOCK];
    double sum = 0, squares = 0;
    for (int64_t at = 0; at < j->cols && j->centred; at += CPU_BLOCK) sum += j->rows->sum(piece_of(j, x, at, buffer), block_at(j, at));
    norm_row row = {.mean = (float)(sum / (double)j->cols)};
    const double low = sum / (double)j->cols - (double)row.mean;
    for (int64_t at = 0; at < j->cols; at += CPU_BLOCK) squares += j->rows->sum_squares(piece_of(j, x, at, buffer), row.mean, block_at(j, at));
    row.low = (float)low;
    row.rstd = (float)(1 / sqrt(squares / (double)j->cols - low * low + j->eps));
    return row;
}

static const float *load_weight(const job *j, int64_t at, const float *ones, float *buffer) { return j->weight != NULL ? load(j, j->weight, 0, at, block_at(j, at), buffer) : ones; }

static void run_row(const job *j, int64_t index, const float *ones, const float *zeros, float *dweight, float *dbias) {
    float x_room[KEPT], dy_room[KEPT], x_buffer[CPU_BLOCK], dy_buffer[CPU_BLOCK], weight_buffer[CPU_BLOCK], plus_buffer[CPU_BLOCK], y_buffer[CPU_BLOCK];
    const dw_tensor *dx = j->call->out[0];
    const row_values x = row_of(j, j->x, index, x_room), dy = row_of(j, j->dy, index, dy_room);
    const int64_t plus = j->plus != NULL ? begin_of(j->plus, index) : 0, to = begin_of(dx, index), step = dx->strides[dx->rank - 1];
    double of[2] = {0, 0};
    norm_row row = measure(j, &x);
    for (int64_t at = 0; at < j->cols; at += CPU_BLOCK)
        j->loops->sums(&row, piece_of(j, &x, at, x_buffer), piece_of(j, &dy, at, dy_buffer), load_weight(j, at, ones, weight_buffer), block_at(j, at), of);
    row.shift = j->centred ? (float)(of[0] / (double)j->cols) : 0;
    row.along = (float)(of[1] / (double)j->cols);
    for (int64_t at = 0; at < j->cols; at += CPU_BLOCK) {
        const int64_t count = block_at(j, at);
        const norm_backward_block block = {piece_of(j, &x, at, x_buffer), piece_of(j, &dy, at, dy_buffer), load_weight(j, at, ones, weight_buffer),
                                           j->plus != NULL ? load(j, j->plus, plus, at, count, plus_buffer) : zeros};
        float *y = cpu_target(dx, to + at * step, step, y_buffer);
        j->loops->write(&row, &block, y, dweight + at, dbias + at, count);
        cpu_store(j->rows, y, dx, to + at * step, step, count);
    }
}

static void run_part(void *argument, int64_t part, int worker) {
    (void)worker;
    const job *j = argument;
    const int64_t begin = part * j->part_rows, end = j->row_count - begin < j->part_rows ? j->row_count : begin + j->part_rows;
    float ones[CPU_BLOCK], zeros[CPU_BLOCK] = {0}, *dweight = j->columns + part * 2 * j->cols;
    for (int i = 0; i < CPU_BLOCK; i++) ones[i] = 1;
    memset(dweight, 0, (size_t)(2 * j->cols) * sizeof *dweight);
    for (int64_t row = begin; row < end; row++) run_row(j, row, ones, zeros, dweight, dweight + j->cols);
}

enum { ADDED = 256 };   /* columns of a task */

/* Some columns of dweight, or of dbias: the parts one after another. */
static void add_columns(void *argument, int64_t task, int worker) {
    const job *j = argument;
    const int64_t results = j->call->n_out - 1, which = task % results, at = task / results * ADDED, count = j->cols - at < ADDED ? j->cols - at : ADDED;
    const dw_tensor *to = j->call->out[1 + which];
    double sums[ADDED] = {0};
    float rounded[ADDED];
    (void)worker;
    for (int64_t part = 0; part < j->parts; part++) j->loops->add(j->columns + (part * 2 + which) * j->cols + at, count, sums);
    for (int64_t i = 0; i < count; i++) rounded[i] = (float)sums[i];
    cpu_store(j->rows, rounded, to, at * to->strides[0], to->strides[0], count);
}

size_t norm_backward_workspace(const kernel_run *run) {
    const job j = job_of(&run->call);
    return (size_t)(j.parts * 2 * j.cols) * sizeof(float);
}

dw_status norm_backward_run(const kernel_run *run) {
    job j = job_of(&run->call);
    j.columns = run->workspace;
    j.rows = cpu_rows_of(run->chip);
    j.loops = &norm_backward_portable;
#if defined(__x86_64__)
    if (chip_has(run->chip, CHIP_avx2)) j.loops = &norm_backward_avx2;
    if (chip_has(run->chip, CHIP_avx512)) j.loops = &norm_backward_avx512;
#endif
    if (j.cols == 0) return DW_OK;
    pool_run(run->pool, j.parts, run_part, &j);
    pool_run(run->pool, (run->call.n_out - 1) * base_ceil_div(j.cols, ADDED), add_columns, &j);
    return DW_OK;
}
