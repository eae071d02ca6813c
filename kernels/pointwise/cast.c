/* cast between unpacked formats, each rounded once: fp32, bf16 and f16 by way of fp32, integers by way of int64, f64 on its own. What would round
 * twice (f64 or a large integer to 16 bits and less) goes through num, element by element. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/nest.h"
#include "kernels/kernels.h"
#include "kernels/pointwise/pointwise.h"
#include "num/num.h"

typedef struct cast_job {
    const cpu_rows *rows;
    const dw_tensor *x, *out;
    pointwise_class from, to;
    cpu_nest nest;
} cast_job;

#define EXACT_IN_FLOAT (INT64_C(1) << 24)

/* Toward zero, saturating; NaN is 0. */
static int64_t integer_of(double value) {
    if (isnan(value)) return 0;
    if (value >= 9223372036854775808.0) return INT64_MAX;
    if (value < -9223372036854775808.0) return INT64_MIN;
    return (int64_t)value;
}

/* What an integer may keep on the way to a narrower format: beyond 2^53 the bits that do not fit leave one behind, so that the next rounding is right. */
static double real_of(int64_t value) {
    if (value > -(INT64_C(1) << 53) && value < INT64_C(1) << 53) return (double)value;
    uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    uint64_t kept = (magnitude & ~UINT64_C(0x7ff)) | ((magnitude & 0x7ff) != 0 ? 0x400u : 0u);
    return value < 0 ? -(double)kept : (double)kept;
}

#define READ(type)                                                                          \
    for (int64_t i = 0; i < count; i++) to[i] = (int64_t)((const type *)from)[i * step];    \
    return
static void read_integers(dw_format format, const void *from, int64_t step, int64_t count, int64_t *to) {
    switch (format) {
    case DW_FORMAT_bool:
        for (int64_t i = 0; i < count; i++) to[i] = ((const uint8_t *)from)[i * step] != 0;
        return;
    case DW_FORMAT_u8: READ(uint8_t);
    case DW_FORMAT_i8: READ(int8_t);
    case DW_FORMAT_i16: READ(int16_t);
    case DW_FORMAT_i32: READ(int32_t);
    default: READ(int64_t);
    }
}
#undef READ

#define WRITE(type)                                                                         \
    for (int64_t i = 0; i < count; i++) ((type *)to)[i * step] = (type)(uint64_t)from[i];   \
    return
static void write_integers(dw_format format, const int64_t *from, int64_t count, void *to, int64_t step) {
    if (format == DW_FORMAT_bool) {
        for (int64_t i = 0; i < count; i++) ((uint8_t *)to)[i * step] = from[i] != 0;
        return;
    }
    switch (cpu_element_bytes(format)) {
    case 1: WRITE(uint8_t);
    case 2: WRITE(uint16_t);
    case 4: WRITE(uint32_t);
    default: WRITE(uint64_t);
    }
}
#undef WRITE

/* To an integer format or bool; the values are in doubles. */
static void write_reals_as_integers(const cast_job *job, const double *values, int64_t offset, int64_t step, int64_t count) {
    int64_t integers[CPU_BLOCK];
    bool to_bool = job->to == POINTWISE_BOOL;
    for (int64_t i = 0; i < count; i++) integers[i] = to_bool ? values[i] != 0 : integer_of(values[i]);
    write_integers(job->out->format, integers, count, cpu_at(job->out, offset), step);
}

static void write_doubles(const cast_job *job, const double *values, int64_t offset, int64_t step, int64_t count) {
    void *to = cpu_at(job->out, offset);
    if (job->to == POINTWISE_DOUBLE) {
        cpu_scatter(sizeof(double), values, to, step, count);
    } else if (job->to != POINTWISE_REAL) {
        write_reals_as_integers(job, values, offset, step, count);
    } else if (job->out->format == DW_FORMAT_f32) {
        for (int64_t i = 0; i < count; i++) ((float *)to)[i * step] = (float)values[i];
    } else {
        for (int64_t i = 0; i < count; i++) num_store(job->out->format, to, i * step, values[i], false);
    }
}

static void write_integer_values(const cast_job *job, const int64_t *values, int64_t offset, int64_t step, int64_t count) {
    double reals[CPU_BLOCK];
    float floats[CPU_BLOCK];
    bool exact = true;
    if (job->to == POINTWISE_INTEGER || job->to == POINTWISE_BOOL) {
        write_integers(job->out->format, values, count, cpu_at(job->out, offset), step);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        floats[i] = (float)values[i];
        exact &= values[i] <= EXACT_IN_FLOAT && values[i] >= -EXACT_IN_FLOAT;
    }
    if (job->to == POINTWISE_REAL && (exact || job->out->format == DW_FORMAT_f32)) {
        cpu_store(job->rows, floats, job->out, offset, step, count);
        return;
    }
    for (int64_t i = 0; i < count; i++) reals[i] = job->to == POINTWISE_DOUBLE ? (double)values[i] : real_of(values[i]);
    write_doubles(job, reals, offset, step, count);
}

static void cast_block(const cast_job *job, int64_t at_x, int64_t x_step, int64_t at_out, int64_t out_step, int64_t count) {
    float floats[CPU_BLOCK];
    double doubles[CPU_BLOCK];
    int64_t integers[CPU_BLOCK];
    if (job->from == POINTWISE_REAL && job->to == POINTWISE_REAL && job->x->format == DW_FORMAT_f32) {
        cpu_store(job->rows, cpu_load(job->rows, job->x, at_x, x_step, count, floats), job->out, at_out, out_step, count);
    } else if (job->from == POINTWISE_REAL && job->to == POINTWISE_REAL) {
        const float *values = cpu_load(job->rows, job->x, at_x, x_step, count, cpu_target(job->out, at_out, out_step, floats));
        cpu_store(job->rows, values, job->out, at_out, out_step, count);
    } else if (job->from == POINTWISE_REAL) {
        const float *values = cpu_load(job->rows, job->x, at_x, x_step, count, floats);
        for (int64_t i = 0; i < count; i++) doubles[i] = (double)values[i];
        write_doubles(job, doubles, at_out, out_step, count);
    } else if (job->from == POINTWISE_DOUBLE) {
        cpu_gather(sizeof(double), cpu_at(job->x, at_x), x_step, count, doubles);
        write_doubles(job, doubles, at_out, out_step, count);
    } else {
        read_integers(job->x->format, cpu_at(job->x, at_x), x_step, count, integers);
        write_integer_values(job, integers, at_out, out_step, count);
    }
}

/* e8m0 holds powers of two: read and written as the other small formats are. */
static pointwise_class class_of(dw_format format) {
    return num_info(format)->class == NUM_SCALE ? POINTWISE_REAL : pointwise_class_of(format);
}

void pointwise_cast_block(const cpu_rows *rows, const dw_tensor *x, int64_t at_x, int64_t x_step, const dw_tensor *out, int64_t at_out, int64_t out_step, int64_t count) {
    const cast_job job = {.rows = rows, .x = x, .out = out, .from = class_of(x->format), .to = class_of(out->format)};
    if (x->format != out->format) {
        cast_block(&job, at_x, x_step, at_out, out_step, count);
        return;
    }
    uint64_t buffer[CPU_BLOCK];   /* the same format: bits are copied */
    const size_t bytes = cpu_element_bytes(x->format);
    if (cpu_at(x, at_x) == cpu_at(out, at_out)) return;
    cpu_gather(bytes, cpu_at(x, at_x), x_step, count, buffer);
    cpu_scatter(bytes, buffer, cpu_at(out, at_out), out_step, count);
}

static void run_line(void *argument, const int64_t *offset, int64_t count) {
    const cast_job *job = argument;
    const int64_t out_step = cpu_nest_step(&job->nest, 0), x_step = cpu_nest_step(&job->nest, 1);
    for (int64_t at = 0; at < count; at += CPU_BLOCK) {
        const int64_t part = count - at < CPU_BLOCK ? count - at : CPU_BLOCK;
        pointwise_cast_block(job->rows, job->x, offset[1] + at * x_step, x_step, job->out, offset[0] + at * out_step, out_step, part);
    }
}

dw_status pointwise_cast(const kernel_run *run) {
    const op_call *call = &run->call;
    cast_job job = {.rows = cpu_rows_of(run->chip), .x = call->in[0], .out = call->out[0]};
    cpu_nest_start(&job.nest, job.out->rank, job.out->dims);
    cpu_nest_add(&job.nest, job.out);
    cpu_nest_add(&job.nest, job.x);
    cpu_nest_merge(&job.nest);
    cpu_nest_run(&job.nest, run->pool, POINTWISE_GRAIN, run_line, &job);
    return DW_OK;
}
