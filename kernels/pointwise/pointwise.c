/* Pointwise ops on the CPU. Problem: out = f(x) or f(x, y), operands broadcast and strided in any way. Lines of the merged index space are cut
 * into blocks that stay in the first-level cache; a block is widened when its elements are not what the loop computes in, or do not lie side by side.
 * Same results on any number of threads. Measured speed: README.md. */
#include "kernels/pointwise/pointwise.h"

#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/nest.h"
#include "kernels/kernels.h"
#include "num/num.h"

enum { BLOCK = 512 };   /* elements that are widened at a time: short, so that memory is asked for throughout */

const char *pointwise_reject(const kernel_problem *problem, text *why) {
    for (int i = 0; i < problem->n_in; i++) {
        if (cpu_is_plain(problem->in[i]->format)) continue;
        text_printf(why, "operand %d is %s, whose elements have less than a byte", i, dw_format_name(problem->in[i]->format));
        return text_string(why);
    }
    if (cpu_is_plain(problem->out[0]->format)) return NULL;
    text_printf(why, "the result is %s, whose elements have less than a byte", dw_format_name(problem->out[0]->format));
    return text_string(why);
}

double pointwise_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.1, 0.7); }

size_t pointwise_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* ---- blocks of integers ---- */

#define WIDEN(type)                                                                         \
    for (int64_t i = 0; i < count; i++) to[i] = (int64_t)((const type *)from)[i * stride];  \
    return
static void widen_integers(dw_format format, const void *from, int64_t stride, int64_t count, int64_t *to) {
    switch (format) {
    case DW_FORMAT_u8: WIDEN(uint8_t);
    case DW_FORMAT_i8: WIDEN(int8_t);
    case DW_FORMAT_i16: WIDEN(int16_t);
    case DW_FORMAT_i32: WIDEN(int32_t);
    default: WIDEN(int64_t);
    }
}
#undef WIDEN

#define WRAP(type)                                                                          \
    for (int64_t i = 0; i < count; i++) ((type *)to)[i * stride] = (type)(uint64_t)from[i]; \
    return
static void wrap_integers(dw_format format, const int64_t *from, int64_t count, void *to, int64_t stride) {
    switch (cpu_element_bytes(format)) {
    case 1: WRAP(uint8_t);
    case 2: WRAP(uint16_t);
    case 4: WRAP(uint32_t);
    default: WRAP(uint64_t);
    }
}
#undef WRAP

/* ---- lines ---- */

const void *pointwise_load(const cpu_rows *rows, pointwise_class class, const dw_tensor *tensor, int64_t offset, int64_t step, int64_t count, void *buffer) {
    if (class == POINTWISE_REAL) return cpu_load(rows, tensor, offset, step, count, buffer);
    const void *from = cpu_at(tensor, offset);
    if (step == 1 && cpu_element_bytes(tensor->format) == pointwise_class_bytes(class)) return from;
    if (class == POINTWISE_INTEGER) widen_integers(tensor->format, from, step, count, buffer);
    else cpu_gather(pointwise_class_bytes(class), from, step, count, buffer);
    return buffer;
}

void pointwise_store(const cpu_rows *rows, pointwise_class class, const void *values, const dw_tensor *tensor, int64_t offset, int64_t step, int64_t count) {
    void *to = cpu_at(tensor, offset);
    if (class == POINTWISE_BOOL) cpu_scatter(1, values, to, step, count);
    else if (class == POINTWISE_REAL) cpu_store(rows, values, tensor, offset, step, count);
    else if (class == POINTWISE_DOUBLE) cpu_scatter(sizeof(double), values, to, step, count);
    else wrap_integers(tensor->format, values, count, to, step);
}

typedef struct pointwise_job {
    const cpu_rows *rows;
    pointwise_loop loop;
    pointwise_class class, made;       /* of the operands, and of the result: bool for predicates */
    const dw_tensor *x, *y, *out;      /* y NULL with one operand */
    cpu_nest nest;
    atomic_bool divided_by_zero;
} pointwise_job;

static void run_line(void *argument, const int64_t *offset, int64_t count) {
    pointwise_job *job = argument;
    int64_t out_step = cpu_nest_step(&job->nest, 0), x_step = cpu_nest_step(&job->nest, 1), y_step = job->y != NULL ? cpu_nest_step(&job->nest, 2) : 0;
    int64_t x_buffer[BLOCK], y_buffer[BLOCK], out_buffer[BLOCK];
    bool direct = out_step == 1 && pointwise_class_bytes(job->made) == cpu_element_bytes(job->out->format);
    const void *x = NULL, *y = NULL;
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t part = count - at < BLOCK ? count - at : BLOCK;
        int64_t at_out = offset[0] + at * out_step;
        if (at == 0 || x_step != 0) x = pointwise_load(job->rows, job->class, job->x, offset[1] + at * x_step, x_step, part, x_buffer);
        if (job->y != NULL && (at == 0 || y_step != 0)) y = pointwise_load(job->rows, job->class, job->y, offset[2] + at * y_step, y_step, part, y_buffer);
        void *home = cpu_at(job->out, at_out);
        bool in_place = home == x || home == y;
        void *target = direct && !in_place ? home : out_buffer;
        if (!job->loop(x, y, target, part)) atomic_store_explicit(&job->divided_by_zero, true, memory_order_relaxed);
        if (target != home) pointwise_store(job->rows, job->made, target, job->out, at_out, out_step, part);
    }
}

static const pointwise_table *table_of(const chip_caps *chip) {
#if defined(__x86_64__)
    if (chip_has(chip, CHIP_avx512)) return &pointwise_avx512;
    if (chip_has(chip, CHIP_avx2)) return &pointwise_avx2;
#else
    (void)chip;
#endif
    return &pointwise_portable;
}

pointwise_loop pointwise_loop_of(const chip_caps *chip, op_id op, pointwise_class class) { return table_of(chip)->loop[op][class]; }

dw_status pointwise_run(const kernel_run *run) {
    const op_call *call = &run->call;
    if (call->op->id == OP_cast) return pointwise_cast(run);
    if (call->op->id == OP_where) return pointwise_where(run);
    pointwise_job job = {
        .rows = cpu_rows_of(run->chip),
        .class = pointwise_class_of(call->in[0]->format),
        .x = call->in[0],
        .y = call->n_in > 1 ? call->in[1] : NULL,
        .out = call->out[0],
    };
    job.made = call->op->traits & OP_TRAIT_PREDICATE ? POINTWISE_BOOL : job.class;
    job.loop = pointwise_loop_of(run->chip, call->op->id, job.class);
    if (job.loop == NULL)
        return base_fail(call->context, DW_UNSUPPORTED, "%s: x is %s, for which this op has no meaning", call->op->name, dw_format_name(job.x->format));
    cpu_nest_start(&job.nest, job.out->rank, job.out->dims);
    cpu_nest_add(&job.nest, job.out);
    cpu_nest_add(&job.nest, job.x);
    if (job.y != NULL) cpu_nest_add(&job.nest, job.y);
    cpu_nest_merge(&job.nest);
    cpu_nest_run(&job.nest, run->pool, POINTWISE_GRAIN, run_line, &job);
    if (atomic_load(&job.divided_by_zero)) return call->op->reference(call);   /* says which number was divided by zero */
    return DW_OK;
}
