/* One case on a GPU: its operands there, and the seconds of a kernel and of a variant of it. One device graph runs a call over and over, on copies of the largest operand known at load in
 * turn, so that it comes from memory as in a run. One call by itself comes first. Its time says how many calls a graph holds; a kernel that takes more than twice the best one's time in it is not measured
 * further. Operands lie without gaps. Chooses nothing: tune.c does. */
#include "lab/trial.h"

#include <math.h>
#include <string.h>

enum { NODES = 32, TURNS = 3, RANDOM = 4096, ROWS = 128 };
static const double graph_s = 2e-3, start_s = 30e-6;   /* what a graph is to take; what starting one call and waiting for it adds to it at most */
static const size_t COLD_BYTES = (size_t)160 << 20;    /* more than a GPU's cache holds */

static dw_status alloc_tensor(trial *t, const op_type *type, dw_tensor *tensor, size_t *bytes) {
    num_parts parts;
    void *memory;
    TRY(op_tensor_bind(t->context, type, NULL, NULL, tensor));
    if (!num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts)) return base_fail(t->context, DW_LIMIT, "the bytes of an operand overflow");
    TRY(t->device->calls->alloc(t->device, parts.total_bytes + 1, &memory));
    op_tensor_init(tensor, tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, memory);
    *bytes = parts.total_bytes;
    return DW_OK;
}

/* A few thousand numbers over and over. */
static void repeat_random(dw_format format, int64_t count, uint64_t seed, uint8_t *values) {
    const size_t period = RANDOM * (size_t)dw_format_bits(format) / 8, bytes = ((size_t)count * (size_t)dw_format_bits(format) + 7) / 8;
    for (int64_t i = 0; i < count && i < RANDOM; i++) num_store(format, values, i, (double)num_random_normal(seed, (uint64_t)i), true);
    for (size_t at = period; at < bytes; at += period) memcpy(values + at, values, bytes - at < period ? bytes - at : period);
}

/* The first rows of a tensor as numbers on the host, quantised where the format is a block's. */
static dw_status make_rows(trial *t, arena *arena, const dw_tensor *tensor, int64_t rows, uint64_t seed, dw_tensor *made) {
    const int64_t dims[] = {rows, tensor->rank > 0 ? tensor->dims[tensor->rank - 1] : 1};
    const bool is_block = dw_format_is_block(tensor->format);
    num_parts parts;
    dw_tensor plain;
    if (!num_layout(tensor->format, tensor->scale_layout, 2, dims, &parts)) return base_fail(t->context, DW_LIMIT, "the bytes of an operand overflow");
    const size_t plain_bytes = is_block ? (size_t)(dims[0] * dims[1]) * sizeof(float) : parts.total_bytes;
    uint8_t *values = arena_new(arena, plain_bytes + 8, ENGINE_ALIGN), *memory = is_block ? arena_new(arena, parts.total_bytes + ENGINE_ALIGN, ENGINE_ALIGN) : values;
    if (values == NULL || memory == NULL) return DW_NO_MEMORY;
    op_tensor_init(&plain, is_block ? DW_FORMAT_f32 : tensor->format, DW_SCALE_plain, 2, dims, values);
    op_tensor_init(made, tensor->format, tensor->scale_layout, 2, dims, memory);
    repeat_random(plain.format, dims[0] * dims[1], seed, values);
    if (!is_block) return DW_OK;
    op_attr to = op_set_format(OP_ATTR_to, tensor->format);
    const op_attrs attrs = {1, &to};
    const dw_tensor *in = &plain, *out = made;
    const op_call call = {.context = t->context, .op = op_get(OP_quantize), .attrs = &attrs, .n_in = 1, .in = &in, .n_out = 1, .out = &out};
    return call.op->reference(&call);
}

/* `have` bytes of the host, over and over in `bytes` of the device. */
static dw_status spread(trial *t, void *to, const void *from, size_t have, size_t bytes) {
    device *device = t->device;
    if (have > bytes) have = bytes;
    if (have == 0) return DW_OK;
    TRY(device->calls->write(device, to, from, have));
    for (size_t at = have; at < bytes;) {
        const size_t more = bytes - at < at ? bytes - at : at;
        TRY(device->calls->copy(device, (uint8_t *)to + at, to, more));
        at += more;
    }
    return DW_OK;
}

/* A few rows of numbers, which all others repeat; scales of formats lie by blocks of up to ROWS rows. */
static dw_status fill_rows(trial *t, const dw_tensor *tensor, uint64_t seed) {
    const int64_t cols = tensor->rank > 0 ? tensor->dims[tensor->rank - 1] : 1, all = cols > 0 ? op_tensor_count(tensor) / cols : 0, rows = all < ROWS ? all : ROWS;
    arena scratch;
    dw_tensor made;
    num_parts some, whole;
    arena_init(&scratch, t->context);
    dw_status status = make_rows(t, &scratch, tensor, rows, seed, &made);
    if (status == DW_OK && num_layout(made.format, made.scale_layout, made.rank, made.dims, &some) && num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &whole)) {
        status = spread(t, tensor->data, made.data, some.data_bytes, whole.data_bytes);
        if (status == DW_OK) status = spread(t, tensor->scales, made.scales, some.scale_bytes, whole.scale_bytes);
        if (status == DW_OK) status = spread(t, tensor->second, made.second, some.second_bytes, whole.second_bytes);
        if (status == DW_OK) status = t->device->calls->synchronize(t->device);
    }
    arena_free(&scratch);
    return status;
}

/* Numbers of a range: those that ascend in even steps, the last one at its end. */
static dw_status fill_range(trial *t, int operand) {
    const dw_tensor *tensor = &t->in[operand];
    const kernel_range *range = &t->c.ranges[operand];
    const bool ascends = t->c.ascending >> operand & 1;
    const int64_t count = op_tensor_count(tensor);
    arena scratch;
    arena_init(&scratch, t->context);
    uint8_t *values = arena_new(&scratch, t->bytes[operand] + 8, ENGINE_ALIGN);
    dw_status status = values != NULL ? DW_OK : DW_NO_MEMORY;
    for (int64_t i = 0; values != NULL && i < count; i++) {
        const double width = range->high - range->low;
        const double step = ascends ? width * (double)(i + 1) / (double)count : fmin(width, (double)num_random_uniform((uint64_t)operand, (uint64_t)i) * (width + 1));
        num_store(tensor->format, values, i, floor(range->low + step), true);
    }
    if (status == DW_OK && count > 0) status = t->device->calls->write(t->device, tensor->data, values, t->bytes[operand]);
    if (status == DW_OK) status = t->device->calls->synchronize(t->device);
    arena_free(&scratch);
    return status;
}

static dw_status make_weights(trial *t, trial_weights *w) {
    const device_calls *calls = t->device->calls;
    TRY(alloc_tensor(t, t->c.in[t->weight], &w->copies[0], &w->bytes));
    w->count = 1;
    TRY(fill_rows(t, &w->copies[0], 2));
    if (w->bytes < COLD_BYTES / 4 / TRIAL_COPIES) return DW_OK;     /* all copies together would stay in the cache, as it does in a run */
    while (w->count < TRIAL_COPIES && (size_t)w->count * w->bytes < COLD_BYTES) {
        dw_tensor *copy = &w->copies[w->count];
        TRY(alloc_tensor(t, t->c.in[t->weight], copy, &w->bytes));
        w->count++;
        TRY(calls->copy(t->device, copy->data, w->copies[0].data, w->bytes));
    }
    return DW_OK;
}

void trial_free_weights(device *device, trial_weights *w) {
    for (int i = 0; i < w->count; i++) device->calls->release(device, w->copies[i].data, w->bytes + 1);
}

/* The largest of those known at load; -1: none is. */
static int find_weight(const trial *t) {
    int largest = -1;
    int64_t most = 0;
    for (int i = 0; i < t->c.n_in; i++) {
        dw_tensor tensor;
        if (t->c.in[i] == NULL || (t->c.constant >> i & 1) == 0 || op_tensor_bind(t->context, t->c.in[i], NULL, NULL, &tensor) != DW_OK) continue;
        if (op_tensor_count(&tensor) > most) largest = i;
        if (op_tensor_count(&tensor) > most) most = op_tensor_count(&tensor);
    }
    return largest;
}

static dw_status make_operands(trial *t) {
    t->weight = find_weight(t);
    if (t->weight >= 0 && t->weights->count == 0) TRY(make_weights(t, t->weights));
    for (int i = 0; i < t->c.n_in; i++) {
        if (i == t->weight || t->c.in[i] == NULL) continue;
        TRY(alloc_tensor(t, t->c.in[i], &t->in[i], &t->bytes[i]));
        TRY(t->c.ranges[i].given ? fill_range(t, i) : fill_rows(t, &t->in[i], (uint64_t)i + 1));
        t->ins[i] = &t->in[i];
    }
    for (int i = 0; i < t->c.n_out; i++) {
        TRY(alloc_tensor(t, t->c.out[i], &t->out[i], &t->bytes[KERNEL_CASE_OPERANDS + i]));
        t->outs[i] = &t->out[i];
    }
    return DW_OK;
}

dw_status trial_open(trial *t, dw_context *context, device *device, const char *line, unsigned constant, trial_weights *weights) {
    static const int64_t no_symbols[1] = {0};
    *t = (trial){.context = context, .device = device, .weights = weights, .weight = -1};
    arena_init(&t->arena, context);
    TRY(dim_table_create(context, &t->dims));
    TRY(kernel_case_parse(&t->arena, t->dims, "case", 1, line, &t->c));
    t->c.constant |= constant;
    t->problem = (kernel_problem){.context = context, .op = t->c.op, .attrs = &t->c.attrs, .post = t->c.post, .n_in = t->c.n_in, .n_out = t->c.n_out, .in = t->c.in, .out = t->c.out,
                                  .constant_in = t->c.constant, .dims = t->dims, .symbols = no_symbols, .chip = &device->caps};
    return make_operands(t);
}

void trial_close(trial *t) {
    const device_calls *calls = t->device->calls;
    for (int i = 0; i < t->c.n_in; i++)
        if (i != t->weight && t->in[i].data != NULL) calls->release(t->device, t->in[i].data, t->bytes[i] + 1);
    for (int i = 0; i < t->c.n_out; i++)
        if (t->out[i].data != NULL) calls->release(t->device, t->out[i].data, t->bytes[KERNEL_CASE_OPERANDS + i] + 1);
    dim_table_destroy(t->dims);
    arena_free(&t->arena);
}

/* A graph of so many calls, launched once. */
static dw_status record(trial *t, const kernel_row *row, kernel_run *run, int nodes, device_graph *graph) {
    TRY(t->device->calls->graph_begin(t->device, graph));
    for (int i = 0; i < nodes; i++) {
        if (t->weight >= 0) t->ins[t->weight] = &t->weights->copies[i % t->weights->count];
        TRY(t->device->calls->graph_add(t->device, graph, row, run));
    }
    TRY(t->device->calls->graph_launch(t->device, graph));
    return t->device->calls->synchronize(t->device);
}

/* Seconds of the graph: the least of some turns. */
static dw_status launch(trial *t, device_graph *graph, double *seconds) {
    for (int i = 0; i < TURNS; i++) {
        const double start = base_now();
        TRY(t->device->calls->graph_launch(t->device, graph));
        TRY(t->device->calls->synchronize(t->device));
        const double spent = base_now() - start;
        if (i == 0 || spent < *seconds) *seconds = spent;
    }
    return DW_OK;
}

/* Calls of a graph: so many that it takes some milliseconds, and that all weights have their turn. */
static int count_nodes(const trial *t, double call_s) {
    const int least = t->weight >= 0 ? t->weights->count : 1;
    return call_s * NODES < graph_s ? NODES : call_s * least > graph_s ? least : (int)(graph_s / call_s);
}

static dw_status time_calls(trial *t, const kernel_row *row, kernel_run *run, double best_s, device_graph *graph, double *seconds) {
    TRY(record(t, row, run, 1, graph));
    TRY(launch(t, graph, seconds));
    if (*seconds > 2 * best_s + start_s) return DW_OK;
    const int nodes = count_nodes(t, *seconds);
    TRY(record(t, row, run, nodes, graph));
    TRY(launch(t, graph, seconds));
    *seconds /= nodes;
    return DW_OK;
}

dw_status trial_measure(trial *t, const kernel_row *row, uint32_t ways, const kernel_tuned *tuned, double best_s, double *seconds) {
    device *device = t->device;
    kernel_run run = {.call = {.context = t->context, .op = t->c.op, .attrs = &t->c.attrs, .n_in = t->c.n_in, .in = t->ins, .n_out = t->c.n_out, .out = t->outs},
                      .post = t->c.post, .constant_in = t->c.constant, .chip = &device->caps, .user = row->user, .ways = ways, .tuned = tuned, .tuned_count = tuned != NULL};
    device_graph *graph;
    *seconds = 0;
    if (t->weight >= 0) t->ins[t->weight] = &t->weights->copies[0];
    const size_t workspace = kernel_workspace(row, &run);
    TRY(device->calls->alloc(device, workspace, &run.workspace));
    dw_status status = device->calls->graph_create(device, &graph);
    if (status == DW_OK) {
        status = time_calls(t, row, &run, best_s, graph, seconds);
        device->calls->graph_release(device, graph);
    }
    device->calls->release(device, run.workspace, workspace);
    return status;
}
