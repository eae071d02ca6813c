/* Ops at places named by integer tensors. Problem: take x[.., i, ..], gather, scatter, index, index_put; negative indices count from the end. All
 * indices are checked before anything is written; the reference then says which one is outside. Reads run over threads: take copies whole rows
 * where what follows the axis lies side by side (embeddings), gather and index go element by element. Writes (scatter, index_put) copy x over threads,
 * unless the result takes over its memory, and are then made in order: whole lines (rows of an embedding's gradient) over threads by columns, others by one thread. So the last of several to one place
 * stays, and sums have one order.
 * Measured speed: README.md. */
#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/integers.h"
#include "kernels/cpu/nest.h"
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"
#include "kernels/move/move.h"
#include "num/num.h"

enum { GRAIN = 8192, COLUMNS = 64, FIRST_INDEX = 2 };     /* elements of a task; columns of a task that writes lines; tensors before the indices in a nest: result, operand */

const char *index_reject(const kernel_problem *problem, text *why) {
    const op_type *x = problem->in[0];
    bool writes = problem->op->id == OP_scatter || problem->op->id == OP_index_put;
    if (!cpu_is_plain(x->format)) {
        text_printf(why, "x is %s, whose elements have less than a byte", dw_format_name(x->format));
        return text_string(why);
    }
    if (writes && op_attr_bool(problem->attrs, OP_ATTR_accumulate) && num_info(x->format)->class == NUM_FLOAT && num_info(x->format)->bits == 8) {
        text_printf(why, "sums in %s are left to the reference", dw_format_name(x->format));
        return text_string(why);
    }
    if (problem->n_in + 1 > NEST_TENSORS) return "there are more index tensors than a loop nest holds";
    return NULL;
}

double index_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 1, 0.3); }

size_t index_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* ---- the check ---- */

typedef struct check_job {
    const dw_tensor *indices;
    int64_t size;
    cpu_nest nest;
    atomic_bool outside;
} check_job;

static void check_line(void *argument, const int64_t *offset, int64_t count) {
    check_job *job = argument;
    int64_t step = cpu_nest_step(&job->nest, 0);
    bool outside = false;
    for (int64_t i = 0; i < count; i++) {
        int64_t index = cpu_load_integer(job->indices, offset[0] + i * step);
        outside |= index < -job->size || index >= job->size;
    }
    if (outside) atomic_store_explicit(&job->outside, true, memory_order_relaxed);
}

static bool all_inside(pool *pool, const dw_tensor *indices, int64_t size) {
    check_job job = {.indices = indices, .size = size};
    cpu_nest_start(&job.nest, indices->rank, indices->dims);
    cpu_nest_add(&job.nest, indices);
    cpu_nest_merge(&job.nest);
    cpu_nest_run(&job.nest, pool, GRAIN, check_line, &job);
    return !atomic_load(&job.outside);
}

/* ---- element by element: take, gather, index and the writes of scatter and index_put ---- */

typedef struct places_job {
    const dw_tensor *to, *from;
    size_t bytes;
    bool writes;                  /* the indices name places in to, else in from */
    bool accumulates;             /* from is added to what is in to */
    int indices;
    const dw_tensor *index[NEST_TENSORS];
    int64_t size[NEST_TENSORS], stride[NEST_TENSORS];     /* of the axis that an index tensor names */
    cpu_nest nest;                /* to, from (0 along indexed axes of the one that is indexed), index tensors */
} places_job;

static void copy_element(size_t bytes, void *to, const void *from) {
    switch (bytes) {
    case 1: memcpy(to, from, 1); return;
    case 2: memcpy(to, from, 2); return;
    case 4: memcpy(to, from, 4); return;
    default: memcpy(to, from, 8);
    }
}

#define ADD(type, sum)                                             \
    for (int64_t i = 0; i < count; i++) {                          \
        type *x = (type *)to + i * to_step;                        \
        type y = ((const type *)from)[i * from_step];              \
        *x = (type)(sum);                                          \
    }                                                              \
    return
/* to += from, each sum rounded once. */
static void add_elements(dw_format format, void *to, int64_t to_step, const void *from, int64_t from_step, int64_t count) {
    switch (format) {
    case DW_FORMAT_f64: ADD(double, *x + y);
    case DW_FORMAT_f32: ADD(float, *x + y);
    case DW_FORMAT_bf16: ADD(uint16_t, num_f32_to_bf16(num_bf16_to_f32(*x) + num_bf16_to_f32(y)));
    case DW_FORMAT_f16: ADD(uint16_t, num_f32_to_f16(num_f16_to_f32(*x) + num_f16_to_f32(y)));
    case DW_FORMAT_i64: ADD(uint64_t, *x + y);
    case DW_FORMAT_i32: ADD(uint32_t, *x + y);
    case DW_FORMAT_i16: ADD(uint16_t, *x + y);
    case DW_FORMAT_bool: ADD(uint8_t, (*x | y) != 0);
    default: ADD(uint8_t, *x + y);
    }
}
#undef ADD

static void places_line(void *argument, const int64_t *offset, int64_t count) {
    const places_job *job = argument;
    int64_t to_step = cpu_nest_step(&job->nest, 0), from_step = cpu_nest_step(&job->nest, 1);
    bool constant = true;
    for (int k = 0; k < job->indices; k++) constant &= cpu_nest_step(&job->nest, FIRST_INDEX + k) == 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t at[2] = {offset[0] + i * to_step, offset[1] + i * from_step};
        for (int k = 0; k < job->indices; k++) {
            int64_t index = cpu_load_integer(job->index[k], offset[FIRST_INDEX + k] + i * cpu_nest_step(&job->nest, FIRST_INDEX + k));
            at[job->writes ? 0 : 1] += (index < 0 ? index + job->size[k] : index) * job->stride[k];
        }
        uint8_t *to = cpu_at(job->to, at[0]);
        const uint8_t *from = cpu_at(job->from, at[1]);
        if (job->accumulates) {
            add_elements(job->to->format, to, to_step, from, from_step, constant ? count : 1);
        } else if (constant && to_step == 1 && from_step == 1) {
            memcpy(to, from, (size_t)count * job->bytes);
        } else {
            copy_element(job->bytes, to, from);
            continue;
        }
        if (constant) return;   /* one index for the whole line */
    }
}

/* All lines in row-major order of the indices, of each the columns from begin on. */
static void write_lines(const places_job *job, int64_t begin, int64_t count) {
    const cpu_nest *nest = &job->nest;
    const int last = nest->rank - 1;
    int64_t index[DW_MAX_RANK] = {0}, offset[NEST_TENSORS] = {0};
    for (int k = 0; k < nest->count; k++) offset[k] = begin * nest->strides[k][last];
    for (bool more = true; more;) {
        places_line((void *)(uintptr_t)job, offset, count);
        more = false;
        for (int axis = last - 1; axis >= 0 && !more; axis--) {
            more = ++index[axis] < nest->dims[axis];
            for (int k = 0; k < nest->count; k++) offset[k] += nest->strides[k][axis] * (more ? 1 : 1 - nest->dims[axis]);
            if (!more) index[axis] = 0;
        }
    }
}

static void write_columns(void *argument, int64_t piece, int worker) {
    const places_job *job = argument;
    const int64_t begin = piece * COLUMNS, left = job->nest.dims[job->nest.rank - 1] - begin;
    (void)worker;
    write_lines(job, begin, left < COLUMNS ? left : COLUMNS);
}

/* Does an index name a whole line, whose columns are places of their own? */
static bool has_whole_lines(const places_job *job) {
    for (int k = 0; k < job->indices; k++)
        if (cpu_nest_step(&job->nest, FIRST_INDEX + k) != 0) return false;
    return cpu_nest_step(&job->nest, 0) != 0;
}

/* Reads run over threads. Writes to one place stay in row-major order of the indices: whole lines, as rows of an embedding's gradient, run over threads by columns, others on this thread. */
static void run_places(const kernel_run *run, places_job *job) {
    if (!job->writes) {
        cpu_nest_merge(&job->nest);
        cpu_nest_run(&job->nest, run->pool, GRAIN, places_line, job);
        return;
    }
    if (job->nest.rank == 0) cpu_nest_merge(&job->nest);
    const int64_t size = cpu_nest_size(&job->nest), cols = job->nest.dims[job->nest.rank - 1];
    if (size == 0) return;
    if (size > GRAIN && cols > COLUMNS && has_whole_lines(job)) pool_run(run->pool, (cols + COLUMNS - 1) / COLUMNS, write_columns, job);
    else write_lines(job, 0, cols);
}

/* ---- take ---- */

static bool take_places(const op_call *call, places_job *job) {
    const dw_tensor *x = call->in[0], *indices = call->in[1], *out = call->out[0];
    int axis = (int)op_attr_int(call->attrs, OP_ATTR_axis);
    int64_t x_strides[DW_MAX_RANK] = {0}, index_strides[DW_MAX_RANK] = {0};
    for (int a = 0; a < axis; a++) x_strides[a] = x->strides[a];
    for (int a = 0; a < indices->rank; a++) index_strides[axis + a] = indices->strides[a];
    for (int a = axis + 1; a < x->rank; a++) x_strides[a + indices->rank - 1] = x->strides[a];
    cpu_nest_start(&job->nest, out->rank, out->dims);
    cpu_nest_add_strides(&job->nest, out->strides);
    cpu_nest_add_strides(&job->nest, x_strides);
    cpu_nest_add_strides(&job->nest, index_strides);
    job->indices = 1;
    job->index[0] = indices;
    job->size[0] = x->dims[axis];
    job->stride[0] = x->strides[axis];
    return true;
}

/* ---- gather, scatter ---- */

static bool reaches_no_further(const dw_tensor *indices, const dw_tensor *other, int skipped) {
    for (int a = 0; a < indices->rank; a++)
        if (a != skipped && indices->dims[a] > other->dims[a]) return false;
    return true;
}

/* indexed: x of gather, the result of scatter. other: the result of gather, y of scatter. */
static bool gather_places(const op_call *call, const dw_tensor *indexed, const dw_tensor *other, places_job *job) {
    const dw_tensor *indices = call->in[1];
    int axis = (int)op_attr_int(call->attrs, OP_ATTR_axis);
    if (!reaches_no_further(indices, indexed, axis) || !reaches_no_further(indices, other, -1)) return false;
    int64_t strides[DW_MAX_RANK] = {0};
    for (int a = 0; a < indexed->rank; a++) strides[a] = a == axis ? 0 : indexed->strides[a];
    cpu_nest_start(&job->nest, indices->rank, indices->dims);
    cpu_nest_add_strides(&job->nest, job->writes ? strides : other->strides);
    cpu_nest_add_strides(&job->nest, job->writes ? other->strides : strides);
    cpu_nest_add_strides(&job->nest, indices->strides);
    job->indices = 1;
    job->index[0] = indices;
    job->size[0] = indexed->dims[axis];
    job->stride[0] = indexed->strides[axis];
    return true;
}

/* ---- index, index_put ---- */

/* indexed: x of index, the result of index_put. other: the result of index, the values of index_put. */
static bool index_places(const op_call *call, int first_index, const dw_tensor *indexed, const dw_tensor *other, places_job *job) {
    int axis = (int)op_attr_int(call->attrs, OP_ATTR_axis), rank = 0;
    int64_t dims[DW_MAX_RANK], strides[DW_MAX_RANK] = {0}, other_strides[DW_MAX_RANK] = {0};
    job->indices = call->n_in - first_index;
    for (int k = 0; k < job->indices; k++) {
        job->index[k] = call->in[first_index + k];
        job->size[k] = indexed->dims[axis + k];
        job->stride[k] = indexed->strides[axis + k];
        if (job->index[k]->rank > rank) rank = job->index[k]->rank;
    }
    int rest = indexed->rank - axis - job->indices, total = axis + rank + rest;
    for (int a = 0; a < axis; a++) {
        dims[a] = indexed->dims[a];
        strides[a] = indexed->strides[a];
    }
    for (int a = 0; a < rank; a++) dims[axis + a] = 1;
    for (int k = 0; k < job->indices; k++)
        for (int a = 0; a < job->index[k]->rank; a++)
            if (job->index[k]->dims[a] != 1) dims[axis + rank - job->index[k]->rank + a] = job->index[k]->dims[a];
    for (int a = 0; a < rest; a++) {
        dims[axis + rank + a] = indexed->dims[axis + job->indices + a];
        strides[axis + rank + a] = indexed->strides[axis + job->indices + a];
    }
    for (int a = 0; a < other->rank; a++)
        other_strides[total - other->rank + a] = other->dims[a] == 1 ? 0 : other->strides[a];
    cpu_nest_start(&job->nest, total, dims);
    cpu_nest_add_strides(&job->nest, job->writes ? strides : other_strides);
    cpu_nest_add_strides(&job->nest, job->writes ? other_strides : strides);
    for (int k = 0; k < job->indices; k++) {
        const dw_tensor *index = job->index[k];
        int64_t index_strides[DW_MAX_RANK] = {0};
        for (int a = 0; a < index->rank; a++) index_strides[axis + rank - index->rank + a] = index->dims[a] == 1 ? 0 : index->strides[a];
        cpu_nest_add_strides(&job->nest, index_strides);
    }
    return true;
}

/* ---- runs ---- */

dw_status index_run(const kernel_run *run) {
    const op_call *call = &run->call;
    const dw_tensor *x = call->in[0], *out = call->out[0];
    op_id id = call->op->id;
    places_job job = {.to = out, .from = x, .bytes = cpu_element_bytes(x->format), .writes = id == OP_scatter || id == OP_index_put};
    job.accumulates = job.writes && op_attr_bool(call->attrs, OP_ATTR_accumulate);
    if (id == OP_scatter) job.from = call->in[2];
    if (id == OP_index_put) job.from = call->in[1];
    const dw_tensor *indexed = job.writes ? out : x, *other = job.writes ? job.from : out;
    bool fits = id == OP_take ? take_places(call, &job)
                : id == OP_gather || id == OP_scatter ? gather_places(call, indexed, other, &job)
                                                      : index_places(call, id == OP_index ? 1 : 2, indexed, other, &job);
    bool any = cpu_nest_size(&job.nest) > 0;
    for (int k = 0; fits && any && k < job.indices; k++) fits = all_inside(run->pool, job.index[k], job.size[k]);
    if (!fits) return call->op->reference(call);   /* says which index is outside */
    if (job.writes && out->data != x->data) move_copy(run->pool, out, x);
    if (any) run_places(run, &job);
    return DW_OK;
}
