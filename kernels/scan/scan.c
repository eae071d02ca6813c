/* cumsum, sort, topk, choose and bincount along an axis. Rows are shared over threads, one a task.
 *     cumsum    in double, or int64 that wraps
 *     sort      keys that order as the values do (64 bits: NaN last, -0 beside 0), then a merge sort of (key, index), so equal values keep their order
 *     topk      a heap of the best so far over one pass, then sorted
 *     choose    the same, then steps on the line's values (op_line_run)
 *     bincount  one thread: counts of different threads would have to be added
 * Measured speed: README.md. */
#include <string.h>

#include "kernels/cpu/integers.h"
#include "kernels/cpu/nest.h"
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"
#include "num/num.h"

const char *scan_reject(const kernel_problem *problem, text *why) {
    (void)problem;
    (void)why;
    return NULL;
}

double scan_cost(const kernel_problem *problem) {
    bool sorts = problem->op->id == OP_sort || problem->op->id == OP_topk || problem->op->id == OP_choose;
    return kernel_roofline(problem, DW_FORMAT_f32, 0.05, sorts ? 0.02 : 0.2);
}

typedef struct entry { uint64_t key; int64_t index; } entry;

typedef struct scan_job {
    const dw_tensor *x, *y, *out, *indices;       /* y: what the values are of */
    bool by_softmax, has_y;       /* choose: from the softmax of a row; the values are of y, which may be x itself, rather than of what is chosen from */
    op_chain steps;
    int axis;
    int64_t count, length;        /* elements along the axis of x, and of the results */
    bool integer, exclusive, reversed, whole;     /* reversed: from large to small; whole: all are sorted */
    entry *entries;               /* [rows][count] merged to and fro; of topk [rows][length] */
    int64_t row_entries;
} scan_job;

static int64_t rows_of(const dw_tensor *tensor, int axis) {
    int64_t rows = 1;
    for (int i = 0; i < tensor->rank; i++)
        if (i != axis) rows *= tensor->dims[i];
    return rows;
}

/* A whole sort needs two arrays of entries, topk and choose one heap. */
static int64_t entries_of_row(const op_call *call) {
    int axis = (int)op_attr_int(call->attrs, OP_ATTR_axis);
    return call->op->id == OP_sort ? 2 * call->in[0]->dims[axis] : call->op->id == OP_topk || call->op->id == OP_choose ? call->out[1]->dims[axis] : 0;
}

/* A row's entries for each thread: a task uses those of its worker, and leaves nothing there. */
size_t scan_workspace(const kernel_run *run) {
    return (size_t)entries_of_row(&run->call) * sizeof(entry) * (size_t)pool_threads(run->pool);
}

/* ---- elements ---- */

static double load_real(const dw_tensor *tensor, int64_t offset) {
    switch (tensor->format) {
    case DW_FORMAT_f64: return ((const double *)tensor->data)[offset];
    case DW_FORMAT_f32: return (double)((const float *)tensor->data)[offset];
    case DW_FORMAT_bf16: return (double)num_bf16_to_f32(((const uint16_t *)tensor->data)[offset]);
    default: return (double)num_f16_to_f32(((const uint16_t *)tensor->data)[offset]);
    }
}

static void store_real(const dw_tensor *tensor, int64_t offset, double value) {
    if (tensor->format == DW_FORMAT_f32) ((float *)tensor->data)[offset] = (float)value;
    else if (tensor->format == DW_FORMAT_f64) ((double *)tensor->data)[offset] = value;
    else num_store(tensor->format, tensor->data, offset, value, false);
}

/* Orders as the values do: larger than all numbers for NaN, the same for both zeros. */
static uint64_t key_at(const scan_job *job, int64_t offset) {
    const uint64_t top = UINT64_C(1) << 63;
    uint64_t key;
    if (job->integer) {
        key = (uint64_t)cpu_load_integer(job->x, offset) ^ top;
    } else {
        double value = load_real(job->x, offset) + 0.0;   /* -0 becomes 0 */
        memcpy(&key, &value, sizeof key);
        key = value != value ? UINT64_MAX : key & top ? ~key : key | top;
    }
    return job->reversed ? ~key : key;
}

/* The offset of row number row of the index space without the axis. */
static int64_t row_offset(const dw_tensor *tensor, int axis, int64_t row) {
    int64_t offset = 0;
    for (int i = tensor->rank - 1; i >= 0; i--) {
        if (i == axis) continue;
        offset += row % tensor->dims[i] * tensor->strides[i];
        row /= tensor->dims[i];
    }
    return offset;
}

/* ---- cumsum ---- */

static void cumsum_task(void *argument, int64_t row, int worker) {
    (void)worker;
    const scan_job *job = argument;
    int64_t from = row_offset(job->x, job->axis, row), to = row_offset(job->out, job->axis, row);
    int64_t from_step = job->x->strides[job->axis], to_step = job->out->strides[job->axis];
    double sum = 0;
    uint64_t sum_int = 0;
    for (int64_t i = 0; i < job->count; i++, from += from_step, to += to_step) {
        if (job->integer) {
            uint64_t value = (uint64_t)cpu_load_integer(job->x, from);
            ((uint64_t *)job->out->data)[to] = job->exclusive ? sum_int : sum_int + value;
            sum_int += value;
        } else {
            double value = load_real(job->x, from);
            store_real(job->out, to, job->exclusive ? sum : sum + value);
            sum += value;
        }
    }
}

/* ---- sort, topk ---- */

static bool is_before(const entry *a, const entry *b) { return a->key != b->key ? a->key < b->key : a->index < b->index; }

/* Runs of 1, 2, 4, .. are merged from one array into the other; returns the one that holds the result. */
static const entry *merge_sort(entry *from, entry *to, int64_t count) {
    for (int64_t run = 1; run < count; run *= 2) {
        for (int64_t first = 0; first < count; first += 2 * run) {
            int64_t middle = first + run < count ? first + run : count, end = first + 2 * run < count ? first + 2 * run : count;
            for (int64_t a = first, b = middle, k = first; k < end; k++)
                to[k] = b == end || (a < middle && is_before(&from[a], &from[b])) ? from[a++] : from[b++];
        }
        entry *swap = from;
        from = to;
        to = swap;
    }
    return from;
}

/* The last in order is on top. */
static void sift(entry *heap, int64_t size, int64_t hole, entry item) {
    for (int64_t child; (child = 2 * hole + 1) < size; hole = child) {
        if (child + 1 < size && is_before(&heap[child], &heap[child + 1])) child++;
        if (!is_before(&item, &heap[child])) break;
        heap[hole] = heap[child];
    }
    heap[hole] = item;
}

static const entry *best_of(const scan_job *job, int64_t from, entry *heap) {
    int64_t length = job->length, step = job->x->strides[job->axis];
    for (int64_t i = 0; i < length; i++) heap[i] = (entry){key_at(job, from + i * step), i};
    for (int64_t i = length / 2 - 1; i >= 0; i--) sift(heap, length, i, heap[i]);
    for (int64_t i = length; i < job->count; i++) {
        entry item = {key_at(job, from + i * step), i};
        if (is_before(&item, &heap[0])) sift(heap, length, 0, item);
    }
    for (int64_t size = length - 1; size > 0; size--) {
        entry last = heap[0];
        sift(heap, size, 0, heap[size]);
        heap[size] = last;
    }
    return heap;
}

/* The softmax of a row of x, as elements of its format. */
static void softmax_row(const scan_job *job, int64_t from, uint64_t *elements, dw_tensor *softmax) {
    double values[OP_SOFTMAX_LINE];
    *softmax = (dw_tensor){.format = job->x->format, .rank = 1, .dims = {job->count}, .strides = {1}, .data = elements};
    for (int64_t i = 0; i < job->count; i++) values[i] = load_real(job->x, from + i * job->x->strides[job->axis]);
    op_line_softmax(values, job->count);
    for (int64_t i = 0; i < job->count; i++) store_real(softmax, i, values[i]);
}

/* choose: a row of x, or of its softmax, and what the steps make of the values. */
static void choose_task(void *argument, int64_t row, int worker) {
    const scan_job *job = argument;
    uint64_t elements[OP_SOFTMAX_LINE];
    dw_tensor softmax;
    op_line_values line;
    scan_job own = *job;          /* of the row alone, where that is its softmax */
    int64_t from = row_offset(job->x, job->axis, row), from_y = row_offset(job->y, job->axis, row), y_step = job->y->strides[job->axis];
    const int64_t to = row_offset(job->out, job->axis, row), to_index = row_offset(job->indices, job->axis, row);
    if (job->by_softmax) {
        softmax_row(job, from, elements, &softmax);
        own.x = &softmax;
        own.axis = 0;
        from = 0;
        if (!job->has_y) own.y = &softmax, from_y = 0, y_step = 1;
    }
    const entry *sorted = best_of(&own, from, job->entries + worker * job->row_entries);
    for (int64_t i = 0; i < job->length; i++) {
        ((int64_t *)job->indices->data)[to_index + i * job->indices->strides[job->axis]] = sorted[i].index;
        memcpy(&line[0][i], cpu_at(own.y, from_y + sorted[i].index * y_step), cpu_element_bytes(own.y->format));
    }
    op_line_run(&job->steps, own.y->format, (int)job->length, line);
    for (int64_t i = 0; i < job->out->dims[job->axis]; i++)
        memcpy(cpu_at(job->out, to + i * job->out->strides[job->axis]), &line[job->steps.count][i], cpu_element_bytes(job->out->format));
}

static void order_task(void *argument, int64_t row, int worker) {
    const scan_job *job = argument;
    int64_t from = row_offset(job->x, job->axis, row), x_step = job->x->strides[job->axis];
    int64_t to = row_offset(job->out, job->axis, row), to_index = row_offset(job->indices, job->axis, row);
    entry *entries = job->entries + worker * job->row_entries;
    const entry *sorted;
    if (job->whole) {
        for (int64_t i = 0; i < job->count; i++) entries[i] = (entry){key_at(job, from + i * x_step), i};
        sorted = merge_sort(entries, entries + job->count, job->count);
    } else {
        sorted = best_of(job, from, entries);
    }
    size_t bytes = cpu_element_bytes(job->x->format);
    for (int64_t i = 0; i < job->length; i++) {
        ((int64_t *)job->indices->data)[to_index + i * job->indices->strides[job->axis]] = sorted[i].index;
        memcpy(cpu_at(job->out, to + i * job->out->strides[job->axis]), cpu_at(job->x, from + sorted[i].index * x_step), bytes);
    }
}

/* ---- runs ---- */

dw_status scan_run(const kernel_run *run) {
    const op_call *call = &run->call;
    const dw_tensor *x = call->in[0], *out = call->out[0];
    scan_job job = {
        .x = x,
        .out = out,
        .axis = (int)op_attr_int(call->attrs, OP_ATTR_axis),
        .integer = num_info(x->format)->class != NUM_FLOAT,
        .exclusive = op_attr_bool(call->attrs, OP_ATTR_exclusive),
    };
    job.count = x->dims[job.axis];
    job.length = call->n_out > 1 ? call->out[1]->dims[job.axis] : out->dims[job.axis];
    if (job.length > job.count) return call->op->reference(call);   /* says so */
    if (op_tensor_count(out) == 0) return DW_OK;
    if (call->op->id == OP_cumsum) {
        pool_run(run->pool, rows_of(out, job.axis), cumsum_task, &job);
        return DW_OK;
    }
    job.whole = call->op->id == OP_sort;
    job.reversed = op_attr_bool(call->attrs, job.whole ? OP_ATTR_descending : OP_ATTR_largest);
    job.indices = call->out[1];
    job.has_y = call->op->id == OP_choose && op_operand(call, CHOOSE_Y) != NULL;
    job.y = job.has_y ? call->in[CHOOSE_Y] : x;
    job.entries = run->workspace;
    job.row_entries = entries_of_row(call);
    if (call->op->id == OP_choose) {
        job.by_softmax = op_attr_bool(call->attrs, OP_ATTR_softmax);
        TRY(op_line_of(call, &job.steps));
    }
    pool_run(run->pool, rows_of(job.indices, job.axis), call->op->id == OP_choose ? choose_task : order_task, &job);
    return DW_OK;
}

typedef struct count_job {
    const dw_tensor *x;
    cpu_nest nest;
    int64_t *counts;
    int64_t stride, length;
} count_job;

static void count_line(const count_job *job, int64_t line) {
    const cpu_nest *nest = &job->nest;
    int64_t offset = 0, step = cpu_nest_step(nest, 0);
    for (int axis = nest->rank - 2; axis >= 0; axis--) {
        offset += line % nest->dims[axis] * nest->strides[0][axis];
        line /= nest->dims[axis];
    }
    for (int64_t i = 0; i < nest->dims[nest->rank - 1]; i++) {
        int64_t value = cpu_load_integer(job->x, offset + i * step);
        if (value >= 0 && value < job->length) job->counts[value * job->stride]++;
    }
}

size_t scan_count_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

const char *scan_count_reject(const kernel_problem *problem, text *why) { return scan_reject(problem, why); }

double scan_count_cost(const kernel_problem *problem) { return scan_cost(problem); }

dw_status scan_count_run(const kernel_run *run) {
    const dw_tensor *x = run->call.in[0], *out = run->call.out[0];
    count_job job = {.x = x, .counts = out->data, .stride = out->strides[0], .length = out->dims[0]};
    for (int64_t i = 0; i < job.length; i++) job.counts[i * job.stride] = 0;
    cpu_nest_start(&job.nest, x->rank, x->dims);
    cpu_nest_add(&job.nest, x);
    cpu_nest_merge(&job.nest);
    int64_t size = cpu_nest_size(&job.nest);
    if (size == 0) return DW_OK;
    for (int64_t line = 0; line < size / job.nest.dims[job.nest.rank - 1]; line++) count_line(&job, line);
    return DW_OK;
}
