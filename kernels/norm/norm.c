/* layer_norm and rms_norm over the last axis, group_norm. Problem: y = (x - mean) / sqrt(var + eps) * weight + bias for each row (group), after
 * x + residual where there is one, which is rounded to x's format and is the second result. Statistics in fp32, in two passes (the mean first), summed in
 * 64 lanes and those in double; where squares leave fp32's range, all of the row is done in double. A row is read block by block of 1024 and stays in a cache between passes. A result in a block format: the row is made in
 * workspace, rounded to x's format, and quantised from there. Rows are shared over threads, so the bits do not depend on how many there are.
 * Measured speed: README.md. */
#include <math.h>

#include "kernels/cpu/nest.h"
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"
#include "kernels/quantize/rows.h"
#include "num/num.h"

enum { GRAIN = 16384 };       /* elements of a task */

const char *norm_reject(const kernel_problem *problem, text *why) {
    (void)why;
    return problem->in[0]->format == DW_FORMAT_f64 ? "x is f64, for which statistics in fp32 are too coarse" : NULL;
}

double norm_cost(const kernel_problem *problem) {
    const double plain = kernel_roofline(problem, DW_FORMAT_f32, 0.2, 0.7);
    kernel_typical typical;
    if (!dw_format_is_block(problem->out[0]->format) || !kernel_at_typical(problem, 0, &typical)) return plain;
    return plain + quantize_rows_seconds(problem->chip, problem->out[0]->format, op_quantize_round(problem->attrs), op_tensor_count(&typical.out[0]));
}

/* Of a result in a block format: one row for each thread. */
static size_t wide_floats(const op_call *call) {
    const dw_tensor *out = call->out[0];
    return dw_format_is_block(out->format) ? base_align_up((size_t)out->dims[out->rank - 1], 16) : 0;
}

size_t norm_workspace(const kernel_run *run) { return wide_floats(&run->call) * sizeof(float) * (size_t)pool_threads(run->pool); }

/* ---- layer_norm, rms_norm ---- */

typedef struct norm_job {
    const cpu_rows *rows;
    const dw_tensor *x, *weight, *bias, *residual, *out, *sum;    /* sum: what is normalised, x when there is no residual */
    bool centred;
    double eps;
    int64_t cols;
    cpu_nest nest;                /* over rows: out, x, sum, residual */
    /* Of a result in a block format: */
    num_matrix matrix;
    quantize_row_function fast;
    num_round round;             /* of its scales */
    float *wide;                  /* [threads, wide_floats] */
    size_t wide_floats;
    int64_t row_count, task_rows;
} norm_job;

static int64_t last_stride(const dw_tensor *tensor) { return tensor->strides[tensor->rank - 1]; }

static int64_t block_at(const norm_job *job, int64_t at) { return job->cols - at < CPU_BLOCK ? job->cols - at : CPU_BLOCK; }

static void add_residual(const norm_job *job, int64_t at_x, int64_t at_residual, int64_t at_sum) {
    float x_buffer[CPU_BLOCK], residual_buffer[CPU_BLOCK], sums[CPU_BLOCK];
    int64_t x_step = last_stride(job->x), residual_step = last_stride(job->residual), sum_step = last_stride(job->sum);
    for (int64_t at = 0; at < job->cols; at += CPU_BLOCK) {
        int64_t count = block_at(job, at);
        const float *x = cpu_load(job->rows, job->x, at_x + at * x_step, x_step, count, x_buffer);
        const float *residual = cpu_load(job->rows, job->residual, at_residual + at * residual_step, residual_step, count, residual_buffer);
        job->rows->add(x, residual, sums, count);
        cpu_store(job->rows, sums, job->sum, at_sum + at * sum_step, sum_step, count);
    }
}

/* The mean is mean + low, so that numbers far from 0 lose nothing by its rounding; 0 when not centred. Where is_far the doubles count. */
typedef struct moments {
    float mean, low, scale;
    bool is_far;
    double far_mean, far_scale;
} moments;

/* From sums of x, and of squares around mean. */
static moments moments_of(double sum, double squares, double count, float mean, double eps) {
    double low = sum / count - (double)mean, variance = squares / count - low * low;
    return (moments){.mean = mean, .low = (float)low, .scale = (float)(1 / sqrt((variance < 0 ? 0 : variance) + eps))};
}

/* Did squares in fp32 overflow, or are they so small that they were lost? A NaN counts, too. */
static bool are_far(double sum, double squares, double count, double eps) { return !isfinite(sum) || !isfinite(squares) || squares / count + eps < 0x1p-100; }

static moments far_moments(double mean, double squares, double count, double eps) { return (moments){.is_far = true, .far_mean = mean, .far_scale = 1 / sqrt(squares / count + eps)}; }

static double far_sum(const float *x, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (double)x[i];
    return sum;
}

static double far_squares(const float *x, double mean, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += ((double)x[i] - mean) * ((double)x[i] - mean);
    return sum;
}

static void far_normalise(const float *x, const moments *m, const float *weight, const float *bias, float *y, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        y[i] = (float)(((double)x[i] - m->far_mean) * m->far_scale * (weight != NULL ? (double)weight[i] : 1) + (bias != NULL ? (double)bias[i] : 0));
}

static moments far_row_moments(const norm_job *job, int64_t offset) {
    float buffer[CPU_BLOCK];
    int64_t step = last_stride(job->sum);
    double sum = 0, squares = 0;
    for (int64_t at = 0; job->centred && at < job->cols; at += CPU_BLOCK) {
        int64_t count = block_at(job, at);
        sum += far_sum(cpu_load(job->rows, job->sum, offset + at * step, step, count, buffer), count);
    }
    const double mean = sum / (double)job->cols;
    for (int64_t at = 0; at < job->cols; at += CPU_BLOCK) {
        int64_t count = block_at(job, at);
        squares += far_squares(cpu_load(job->rows, job->sum, offset + at * step, step, count, buffer), mean, count);
    }
    return far_moments(mean, squares, (double)job->cols, job->eps);
}

static moments row_moments(const norm_job *job, int64_t offset) {
    float buffer[CPU_BLOCK];
    int64_t step = last_stride(job->sum);
    double sum = 0, squares = 0;
    for (int64_t at = 0; job->centred && at < job->cols; at += CPU_BLOCK) {
        int64_t count = block_at(job, at);
        sum += job->rows->sum(cpu_load(job->rows, job->sum, offset + at * step, step, count, buffer), count);
    }
    float mean = (float)(sum / (double)job->cols);
    for (int64_t at = 0; at < job->cols; at += CPU_BLOCK) {
        int64_t count = block_at(job, at);
        squares += job->rows->sum_squares(cpu_load(job->rows, job->sum, offset + at * step, step, count, buffer), mean, count);
    }
    if (are_far(sum, squares, (double)job->cols, job->eps)) return far_row_moments(job, offset);
    return moments_of(sum, squares, (double)job->cols, mean, job->eps);
}

static const float *load_column(const norm_job *job, const dw_tensor *column, int64_t at, int64_t count, float *buffer) {
    return column != NULL ? cpu_load(job->rows, column, at * column->strides[0], column->strides[0], count, buffer) : NULL;
}

/* Rounds values to x's format, which a quantised result goes through. */
static void round_as_x(const norm_job *job, float *values, int64_t count) {
    uint16_t codes[CPU_BLOCK];
    if (job->x->format == DW_FORMAT_bf16) {
        job->rows->to_bf16(values, codes, count);
        job->rows->from_bf16(codes, values, count);
    } else if (job->x->format == DW_FORMAT_f16) {
        job->rows->to_f16(values, codes, count);
        job->rows->from_f16(codes, values, count);
    }
}

/* wide: where the row goes in fp32, rounded to x's format; NULL when it goes into the result. */
static void run_row(const norm_job *job, float *wide, int64_t at_out, int64_t at_x, int64_t at_sum, int64_t at_residual) {
    float x_buffer[CPU_BLOCK], weight_buffer[CPU_BLOCK], bias_buffer[CPU_BLOCK], y[CPU_BLOCK];
    int64_t sum_step = last_stride(job->sum), out_step = last_stride(job->out);
    if (job->residual != NULL) add_residual(job, at_x, at_residual, at_sum);
    moments m = row_moments(job, at_sum);
    for (int64_t at = 0; at < job->cols; at += CPU_BLOCK) {
        int64_t count = block_at(job, at);
        const float *x = cpu_load(job->rows, job->sum, at_sum + at * sum_step, sum_step, count, x_buffer);
        const float *weight = load_column(job, job->weight, at, count, weight_buffer), *bias = load_column(job, job->bias, at, count, bias_buffer);
        float *target = wide != NULL ? wide + at : cpu_target(job->out, at_out + at * out_step, out_step, y);
        if (target == x) target = y;   /* in place: the loops want apart what they read and write */
        if (m.is_far) far_normalise(x, &m, weight, bias, target, count);
        else job->rows->normalise(x, m.mean, m.low, m.scale, weight, bias, target, count);
        if (wide != NULL) round_as_x(job, target, count);
        else cpu_store(job->rows, target, job->out, at_out + at * out_step, out_step, count);
    }
}

static void run_rows(void *argument, const int64_t *offset, int64_t count) {
    const norm_job *job = argument;
    for (int64_t i = 0; i < count; i++) {
        int64_t at[4];
        for (int k = 0; k < 4; k++) at[k] = k < job->nest.count ? offset[k] + i * cpu_nest_step(&job->nest, k) : 0;
        run_row(job, NULL, at[0], at[1], at[2], at[3]);
    }
}

/* Where row number index of a tensor begins. */
static int64_t row_offset(const dw_tensor *tensor, int64_t index) {
    int64_t offset = 0;
    for (int axis = tensor->rank - 2; axis >= 0; axis--) {
        offset += index % tensor->dims[axis] * tensor->strides[axis];
        index /= tensor->dims[axis];
    }
    return offset;
}

static void quantise_rows(void *argument, int64_t task, int worker) {
    const norm_job *job = argument;
    const num_scaling scaling = {.round = job->round};
    float *wide = job->wide + (size_t)worker * job->wide_floats;
    int64_t begin = task * job->task_rows, end = job->row_count - begin < job->task_rows ? job->row_count : begin + job->task_rows;
    for (int64_t row = begin; row < end; row++) {
        run_row(job, wide, 0, row_offset(job->x, row), row_offset(job->sum, row), job->residual != NULL ? row_offset(job->residual, row) : 0);
        quantize_one_row(job->fast, wide, &scaling, &job->matrix, row);
    }
}

static void run_quantised(const kernel_run *run, norm_job *job) {
    const float none = 0;
    job->matrix = op_tensor_matrix(job->out);
    job->row_count = job->matrix.batches * job->matrix.rows;
    if (job->row_count == 0) return;
    if (job->cols == 0) {
        num_quantize(&none, 0, job->round, false, &job->matrix);
        return;
    }
    quantize_clear_tiles(job->out);
    job->fast = quantize_row_of(run->chip);
    job->wide = run->workspace;
    job->wide_floats = wide_floats(&run->call);
    job->task_rows = job->cols < GRAIN ? GRAIN / job->cols : 1;
    pool_run(run->pool, base_ceil_div(job->row_count, job->task_rows), quantise_rows, job);
}

dw_status norm_rows_run(const kernel_run *run) {
    const op_call *call = &run->call;
    bool is_layer = call->op->id == OP_layer_norm;
    norm_job job = {
        .rows = cpu_rows_of(run->chip),
        .x = call->in[0],
        .weight = op_operand(call, 1),
        .bias = is_layer ? op_operand(call, 2) : NULL,
        .residual = op_operand(call, is_layer ? 3 : 2),
        .out = call->out[0],
        .centred = is_layer,
        .eps = op_attr_real(call->attrs, OP_ATTR_eps),
        .round = op_quantize_round(call->attrs),
    };
    job.sum = job.residual != NULL ? call->out[1] : job.x;
    int last = job.x->rank - 1;
    job.cols = job.x->dims[last];
    if (dw_format_is_block(job.out->format)) {
        run_quantised(run, &job);
        return DW_OK;
    }
    if (job.cols == 0) return DW_OK;
    cpu_nest_start(&job.nest, last, job.x->dims);
    cpu_nest_add_strides(&job.nest, job.out->strides);
    cpu_nest_add_strides(&job.nest, job.x->strides);
    cpu_nest_add_strides(&job.nest, job.sum->strides);
    if (job.residual != NULL) cpu_nest_add_strides(&job.nest, job.residual->strides);
    cpu_nest_merge(&job.nest);
    cpu_nest_run(&job.nest, run->pool, GRAIN / job.cols, run_rows, &job);
    return DW_OK;
}

/* ---- group_norm ---- */

typedef struct group_job {
    const cpu_rows *rows;
    const dw_tensor *x, *weight, *bias, *out;
    int64_t groups, channels;     /* of a group */
    double eps;
    cpu_nest channel;             /* the elements of one channel: out, x */
} group_job;

typedef enum group_pass { GROUP_SUM, GROUP_SQUARES, GROUP_WRITE } group_pass;

/* What a pass adds up of one block. */
static double block_sum(const group_job *job, group_pass pass, const moments *m, const float *x, int64_t count) {
    if (pass == GROUP_SUM) return m->is_far ? far_sum(x, count) : job->rows->sum(x, count);
    return m->is_far ? far_squares(x, m->far_mean, count) : job->rows->sum_squares(x, m->mean, count);
}

/* One pass over one channel, line by line and block by block. */
static double channel_pass(const group_job *job, group_pass pass, int64_t at_x, int64_t at_out, const moments *m, float shift) {
    const cpu_nest *nest = &job->channel;
    float buffer[CPU_BLOCK], y[CPU_BLOCK];
    int last = nest->rank - 1;
    int64_t x_step = cpu_nest_step(nest, 1), out_step = cpu_nest_step(nest, 0), lines = cpu_nest_size(nest) / nest->dims[last];
    double total = 0;
    for (int64_t line = 0; line < lines; line++) {
        int64_t rest = line, from = at_x, to = at_out;
        for (int axis = last - 1; axis >= 0; axis--) {
            from += rest % nest->dims[axis] * nest->strides[1][axis];
            to += rest % nest->dims[axis] * nest->strides[0][axis];
            rest /= nest->dims[axis];
        }
        for (int64_t at = 0; at < nest->dims[last]; at += CPU_BLOCK) {
            int64_t count = nest->dims[last] - at < CPU_BLOCK ? nest->dims[last] - at : CPU_BLOCK;
            const float *x = cpu_load(job->rows, job->x, from + at * x_step, x_step, count, buffer);
            if (pass != GROUP_WRITE) {
                total += block_sum(job, pass, m, x, count);
                continue;
            }
            for (int64_t i = 0; i < count; i++) y[i] = m->is_far ? (float)(((double)x[i] - m->far_mean) * m->far_scale + (double)shift) : (x[i] - m->mean - m->low) * m->scale + shift;
            cpu_store(job->rows, y, job->out, to + at * out_step, out_step, count);
        }
    }
    return total;
}

static float column_at(const group_job *job, const dw_tensor *column, int64_t channel, float absent) {
    float value;
    return column != NULL ? *cpu_load(job->rows, column, channel * column->strides[0], 1, 1, &value) : absent;
}

/* is_far: in double. */
static moments group_moments(const group_job *job, int64_t at_x, bool is_far) {
    moments m = {.is_far = is_far};
    double sum = 0, squares = 0, count = (double)(job->channels * cpu_nest_size(&job->channel));
    for (int64_t c = 0; c < job->channels; c++) sum += channel_pass(job, GROUP_SUM, at_x + c * job->x->strides[1], 0, &m, 0);
    m.mean = (float)(sum / count);
    m.far_mean = sum / count;
    for (int64_t c = 0; c < job->channels; c++) squares += channel_pass(job, GROUP_SQUARES, at_x + c * job->x->strides[1], 0, &m, 0);
    if (is_far) return far_moments(m.far_mean, squares, count, job->eps);
    return are_far(sum, squares, count, job->eps) ? group_moments(job, at_x, true) : moments_of(sum, squares, count, m.mean, job->eps);
}

static void group_task(void *argument, int64_t task, int worker) {
    (void)worker;
    const group_job *job = argument;
    int64_t batch = task / job->groups, first = task % job->groups * job->channels;
    int64_t at_x = batch * job->x->strides[0] + first * job->x->strides[1], at_out = batch * job->out->strides[0] + first * job->out->strides[1];
    const moments m = group_moments(job, at_x, false);
    for (int64_t c = 0; c < job->channels; c++) {
        float weight = column_at(job, job->weight, first + c, 1), bias = column_at(job, job->bias, first + c, 0);
        moments weighted = m;
        weighted.scale *= weight;
        weighted.far_scale *= (double)weight;
        channel_pass(job, GROUP_WRITE, at_x + c * job->x->strides[1], at_out + c * job->out->strides[1], &weighted, bias);
    }
}

dw_status norm_group_run(const kernel_run *run) {
    const op_call *call = &run->call;
    group_job job = {
        .rows = cpu_rows_of(run->chip),
        .x = call->in[0],
        .weight = op_operand(call, 1),
        .bias = op_operand(call, 2),
        .out = call->out[0],
        .groups = op_attr_int(call->attrs, OP_ATTR_groups),
        .eps = op_attr_real(call->attrs, OP_ATTR_eps),
    };
    if (job.x->dims[1] % job.groups != 0) return call->op->reference(call);   /* says so */
    if (op_tensor_count(job.x) == 0) return DW_OK;
    job.channels = job.x->dims[1] / job.groups;
    cpu_nest_start(&job.channel, job.x->rank - 2, job.x->dims + 2);
    cpu_nest_add_strides(&job.channel, job.out->strides + 2);
    cpu_nest_add_strides(&job.channel, job.x->strides + 2);
    cpu_nest_merge(&job.channel);
    pool_run(run->pool, job.x->dims[0] * job.groups, group_task, &job);
    return DW_OK;
}
