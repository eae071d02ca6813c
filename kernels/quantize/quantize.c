/* quantize and dequantize. Problem: rows [..,k] to and from a block format; the rules, bit for bit, are num.h's. Formats whose rows are independent are
 * quantised row by row over threads, straight from x where it is fp32 side by side, else through workspace, one row of a task after another where they lie at one distance, by the loops of rows_loops.h or, for what
 * those leave, num_quantize_rows; so is nvfp4, once the threads have found the largest magnitude of all rows, where no second level is given. fp8_128x128 and
 * fp8_tensor go through num_quantize in one piece, x having been widened over threads.
 * Measured speed: README.md. */
#include <string.h>

#include "kernels/cpu/nest.h"
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"
#include "kernels/quantize/rows.h"
#include "num/num.h"

enum { GRAIN = 16384, AMAX_TASKS = 64 };       /* elements of a task; tasks that look for a largest magnitude */

const char *quantize_reject(const kernel_problem *problem, text *why) {
    (void)why;
    if (problem->op->id == OP_quantize && problem->in[0]->format == DW_FORMAT_f64) return "x is f64; rules are stated for fp32, so cast it first";
    if (problem->op->id == OP_dequantize && problem->out[0]->format == DW_FORMAT_f64) return "the result is f64, which is computed in double";
    return NULL;
}

double quantize_cost(const kernel_problem *problem) {
    const chip_caps *chip = problem->chip;
    const double moved = kernel_roofline(problem, DW_FORMAT_f32, 0.1, 0.5);
    kernel_typical typical;
    if (!kernel_at_typical(problem, 0, &typical)) return moved;
    const double worked = quantize_rows_seconds(chip, problem->out[0]->format, op_quantize_round(problem->attrs), op_tensor_count(&typical.in[0])) + chip->launch_s;
    return worked > moved ? worked : moved;
}

/* Rows at one distance, elements side by side. */
static bool is_rows(const dw_tensor *x, int64_t *row_stride) {
    int last = x->rank - 1;
    *row_stride = last > 0 ? x->strides[last - 1] : x->dims[last];
    if (x->dims[last] > 1 && x->strides[last] != 1) return false;
    for (int i = last - 2; i >= 0; i--)
        if (x->strides[i] != x->strides[i + 1] * x->dims[i + 1]) return false;
    return true;
}

static bool is_plain_rows(const dw_tensor *x, int64_t *row_stride) { return is_rows(x, row_stride) && x->format == DW_FORMAT_f32; }

size_t quantize_workspace(const kernel_run *run) {
    const dw_tensor *x = run->call.in[0];
    int64_t stride;
    if (run->call.op->id == OP_dequantize) return op_tensor_is_contiguous(run->call.out[0]) && run->call.out[0]->format == DW_FORMAT_f32 ? 0 : (size_t)op_tensor_count(x) * sizeof(float);
    return is_plain_rows(x, &stride) ? 0 : (size_t)op_tensor_count(x) * sizeof(float);
}

/* ---- fp32 copies of tensors ---- */

typedef struct convert_job {
    const cpu_rows *rows;
    const dw_tensor *tensor;
    float *values;                /* contiguous */
    cpu_nest nest;                /* values, tensor */
    bool back;                    /* from values into tensor */
} convert_job;

static void convert_line(void *argument, const int64_t *offset, int64_t count) {
    const convert_job *job = argument;
    int64_t values_step = cpu_nest_step(&job->nest, 0), step = cpu_nest_step(&job->nest, 1);
    for (int64_t at = 0; at < count; at += CPU_BLOCK) {
        int64_t part = count - at < CPU_BLOCK ? count - at : CPU_BLOCK, place = offset[1] + at * step;
        float *values = job->values + offset[0] + at * values_step;
        if (job->back) {
            cpu_store(job->rows, values, job->tensor, place, step, part);
        } else {
            const float *from = cpu_load(job->rows, job->tensor, place, step, part, values);   /* there, or where fp32 lies */
            if (from != values) memcpy(values, from, (size_t)part * sizeof *from);
        }
    }
}

static void convert(const kernel_run *run, const dw_tensor *tensor, float *values, bool back) {
    convert_job job = {.rows = cpu_rows_of(run->chip), .tensor = tensor, .values = values, .back = back};
    int64_t strides[DW_MAX_RANK], stride = 1;
    for (int i = tensor->rank - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= tensor->dims[i];
    }
    cpu_nest_start(&job.nest, tensor->rank, tensor->dims);
    cpu_nest_add_strides(&job.nest, strides);
    cpu_nest_add(&job.nest, tensor);
    cpu_nest_merge(&job.nest);
    cpu_nest_run(&job.nest, run->pool, GRAIN, convert_line, &job);
}

/* ---- quantize ---- */

typedef struct quantize_job {
    const float *x;
    int64_t x_stride, rows, task_rows;
    const cpu_rows *read;         /* rows are of another format, source, and a task widens one after the other, each where the last one was in x; NULL: x is what is quantised */
    const dw_tensor *source;
    num_scaling scaling;
    num_matrix out;
    quantize_row_function fast;
    float amax[AMAX_TASKS];
} quantize_job;

static void widen(const quantize_job *job, int64_t row, float *to) {
    for (int64_t at = 0; at < job->out.cols; at += CPU_BLOCK) {
        const int64_t part = job->out.cols - at < CPU_BLOCK ? job->out.cols - at : CPU_BLOCK;
        cpu_load(job->read, job->source, row * job->x_stride + at, 1, part, to + at);
    }
}

static void quantize_task(void *argument, int64_t task, int worker) {
    (void)worker;
    quantize_job *job = argument;
    int64_t begin = task * job->task_rows, end = begin + job->task_rows < job->rows ? begin + job->task_rows : job->rows;
    for (int64_t row = begin; row < end; row++) {
        const float *x = job->x + row * job->x_stride;
        if (job->read != NULL) {
            float *wide = (float *)(uintptr_t)job->x + task * job->out.cols;
            widen(job, row, wide);
            x = wide;
        }
        quantize_one_row(job->fast, x, &job->scaling, &job->out, row);
    }
}

static void amax_task(void *argument, int64_t task, int worker) {
    (void)worker;
    quantize_job *job = argument;
    float largest = 0;
    for (int64_t row = job->rows * task / AMAX_TASKS, end = job->rows * (task + 1) / AMAX_TASKS; row < end; row++) {
        float amax = num_amax(job->x + row * job->x_stride, job->out.cols);
        largest = amax > largest ? amax : largest;
    }
    job->amax[task] = largest;
}

/* The second level over all rows, given from now on. */
static void find_second(quantize_job *job, pool *pool) {
    float largest = 0;
    pool_run(pool, AMAX_TASKS, amax_task, job);
    for (int task = 0; task < AMAX_TASKS; task++) largest = job->amax[task] > largest ? job->amax[task] : largest;
    job->scaling.encode = num_second_level(largest, job->out.second);
    job->scaling.has_second = true;
}

dw_status quantize_run(const kernel_run *run) {
    const op_call *call = &run->call;
    const dw_tensor *x = call->in[0], *second = call->n_in > 1 ? call->in[1] : NULL, *out = call->out[0];
    num_parts parts;
    if (!num_layout(out->format, out->scale_layout, out->rank, out->dims, &parts))
        return base_fail(call->context, DW_LIMIT, "quantize: the result is too large to address");
    quantize_job job = {
        .x = x->data,
        .scaling = {.round = op_quantize_round(call->attrs), .has_second = second != NULL || op_has_level(call->attrs)},
        .out = op_tensor_matrix(out),
        .fast = quantize_row_of(run->chip),
    };
    if (job.out.batches == 0) return DW_OK;
    job.rows = job.out.batches * job.out.rows;
    if (second != NULL) memcpy(out->second, second->data, sizeof(float));
    if (op_has_level(call->attrs)) out->second[0] = op_level(call->attrs);
    const bool finds_second = num_info(out->format)->second == 1 && !job.scaling.has_second;
    if (x->format != DW_FORMAT_f32 && is_rows(x, &job.x_stride) && num_is_row_wise(out->format, job.scaling.has_second) && !finds_second) {
        job.read = cpu_rows_of(run->chip);
        job.source = x;
        job.x = run->workspace;
    } else if (!is_plain_rows(x, &job.x_stride)) {
        convert(run, x, run->workspace, false);
        job.x = run->workspace;
        job.x_stride = job.out.cols;
    }
    bool is_empty = job.rows == 0 || job.out.cols == 0;
    if (!is_empty && finds_second) find_second(&job, run->pool);
    if (is_empty || !num_is_row_wise(out->format, job.scaling.has_second)) {
        num_quantize(job.x, job.x_stride, job.scaling.round, job.scaling.has_second, &job.out);
        return DW_OK;
    }
    quantize_clear_tiles(out);
    job.task_rows = job.out.cols < GRAIN ? GRAIN / job.out.cols : 1;
    pool_run(run->pool, base_ceil_div(job.rows, job.task_rows), quantize_task, &job);
    return DW_OK;
}

/* ---- dequantize ---- */

typedef struct dequantize_job {
    num_matrix in;
    float *values;
    int64_t band, bands;          /* rows of a task within a matrix, a multiple of the block's; and tasks of a matrix */
    num_parts parts;
} dequantize_job;

/* A band of one matrix as a matrix of its own. */
static void dequantize_task(void *argument, int64_t task, int worker) {
    (void)worker;
    const dequantize_job *job = argument;
    const num_format *info = num_info(job->in.format);
    int64_t matrix = task / job->bands, first = task % job->bands * job->band, row = matrix * job->in.rows + first;
    num_matrix part = job->in;
    part.batches = 1;
    part.rows = job->in.rows - first < job->band ? job->in.rows - first : job->band;
    part.data += (size_t)row * num_row_bytes(job->in.format, job->in.cols);
    int64_t block_rows = info->rows > 0 ? first / info->rows : 0, matrix_scales = info->rows > 0 ? matrix * job->parts.scale_rows * job->parts.scale_cols : 0;
    size_t scale = (size_t)matrix_scales + (info->rows > 0 ? num_scale_index(job->in.layout, block_rows, 0, job->parts.scale_cols) : 0);
    part.scales = (uint8_t *)job->in.scales + scale * ((size_t)num_info(info->scale)->bits / 8);
    if (info->second == 2 && part.second != NULL) part.second += row;
    num_dequantize(&part, job->values + row * job->in.cols, job->in.cols);
}

dw_status quantize_back_run(const kernel_run *run) {
    const op_call *call = &run->call;
    const dw_tensor *x = call->in[0], *out = call->out[0];
    dequantize_job job = {.in = op_tensor_matrix(x)};
    if (!num_layout(x->format, x->scale_layout, x->rank, x->dims, &job.parts))
        return base_fail(call->context, DW_LIMIT, "dequantize: x is too large to address");
    if (op_tensor_count(x) == 0) return DW_OK;
    bool direct = op_tensor_is_contiguous(out) && out->format == DW_FORMAT_f32;
    job.values = direct ? out->data : run->workspace;
    /* 128 rows are whole blocks of every format and whole tiles of tile128x4. */
    job.band = 128;
    job.bands = base_ceil_div(job.in.rows, job.band);
    pool_run(run->pool, job.in.batches * job.bands, dequantize_task, &job);
    if (!direct) convert(run, out, job.values, true);
    return DW_OK;
}
