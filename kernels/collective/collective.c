/* Collectives on the CPU: a rank meets the others (kernel_comm), reads their operands where these lie, and makes its own result of them. Sums are made in fp32 in order of ranks, so
 * they have the reference's bits however the work is cut. Two ranks each sum all of it; of more, whose memory is shared, each sums a part, and takes the other parts from who made them.
 * Speed: README.md. Waits, and what goes wrong with other ranks, are src/comm's. */
#include "kernels/kernels.h"

#include <string.h>

enum { TILE = 16384, BLOCK = 1024, LANES = 16, SHARED_FROM = 4096 };   /* elements: of a task, of a buffer, of a loop's inner part, from which parts are shared out */

const char *collective_reject(const kernel_problem *problem, text *why) {
    (void)problem;
    (void)why;
    return NULL;
}

double collective_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.2, 0.5); }

static int ranks_of(const kernel_run *run) { return (int)op_attr_int(run->call.attrs, OP_ATTR_ranks); }

/* The communicator's, and behind it the others' tensors. */
size_t collective_workspace(const kernel_run *run) {
    const int count = ranks_of(run);
    if (run->comm == NULL || count == 1) return 0;
    return run->comm->calls->room(run->comm, count, run->call.in[0]) + (size_t)count * sizeof(dw_tensor);
}

/* The others' operands, read till leave_all. */
static dw_status meet_all(const kernel_run *run, op_group *group) {
    const int count = ranks_of(run);
    *group = (op_group){0, 1, run->call.in[0]};
    if (run->comm == NULL || count == 1) return DW_OK;
    dw_tensor *theirs = (void *)((uint8_t *)run->workspace + run->comm->calls->room(run->comm, count, run->call.in[0]));
    TRY(run->comm->calls->place(run->comm, run, &group->rank, &group->count));
    group->in = theirs;
    return run->comm->calls->meet(run->comm, run, run->call.in[0], theirs);
}

/* Also where its own part has failed: the others are reading. */
static dw_status leave_all(const kernel_run *run, const op_group *group, dw_status status) {
    const dw_status left = group->count > 1 ? run->comm->calls->leave(run->comm, run) : DW_OK;
    return status == DW_OK ? left : status;
}

static dw_status by_reference(const kernel_run *run, const op_group *group) {
    op_call call = run->call;
    call.group = group;
    return call.op->reference(&call);
}

/* ---- sums ---- */

/* Rows of elements that are summed: of each rank those from first on, out of which come those from out_first on. */
typedef struct summing {
    const op_group *group;
    const dw_tensor *out;
    int64_t first, out_first, count;
} summing;

static bool is_fast(const kernel_run *run) {
    const dw_format format = run->call.in[0]->format;
    return op_collective_sums(run->call.attrs) && (format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16);
}

static void add_two(const float *a, const float *b, float *sum, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int k = 0; k < LANES; k++) sum[i + k] = a[i + k] + b[i + k];
    for (; i < count; i++) sum[i] = a[i] + b[i];
}

static void sum_floats(const summing *s, int64_t begin, int64_t end) {
    const dw_tensor *in = s->group->in;
    float *out = (float *)s->out->data + s->out_first;
    for (int64_t at = begin; at < end; at += BLOCK) {   /* a block stays in the cache while it is added to */
        const int64_t count = end - at < BLOCK ? end - at : BLOCK, from = s->first + at;
        add_two((const float *)in[0].data + from, (const float *)in[1].data + from, out + at, count);
        for (int i = 2; i < s->group->count; i++) add_two(out + at, (const float *)in[i].data + from, out + at, count);
    }
}

static void widen(dw_format format, const void *data, int64_t first, int64_t count, float *values) {
    if (format == DW_FORMAT_bf16) num_bf16_to_f32_row((const uint16_t *)data + first, values, count);
    else num_f16_to_f32_row((const uint16_t *)data + first, values, count);
}

static void sum_halves(const summing *s, int64_t begin, int64_t end) {
    const dw_format format = s->out->format;
    float sum[BLOCK], next[BLOCK];
    for (int64_t at = begin; at < end; at += BLOCK) {
        const int64_t count = end - at < BLOCK ? end - at : BLOCK;
        uint16_t *out = (uint16_t *)s->out->data + s->out_first + at;
        widen(format, s->group->in[0].data, s->first + at, count, sum);
        for (int i = 1; i < s->group->count; i++) {
            widen(format, s->group->in[i].data, s->first + at, count, next);
            add_two(sum, next, sum, count);
        }
        if (format == DW_FORMAT_bf16) num_f32_to_bf16_row(sum, out, count);
        else num_f32_to_f16_row(sum, out, count);
    }
}

static void sum_tile(void *argument, int64_t task, int worker) {
    const summing *s = argument;
    const int64_t begin = task * TILE, end = begin + TILE < s->count ? begin + TILE : s->count;
    (void)worker;
    if (s->out->format == DW_FORMAT_f32) sum_floats(s, begin, end);
    else sum_halves(s, begin, end);
}

static void sum_rows(const kernel_run *run, const summing *s) { pool_run(run->pool, base_ceil_div(s->count, TILE), sum_tile, (void *)s); }

/* ---- all_reduce ---- */

/* Elements of the part that a rank sums, [begin, end). */
static void part_of(int64_t count, int ranks, int rank, int64_t *begin, int64_t *end) {
    const int64_t each = base_ceil_div(base_ceil_div(count, ranks), LANES) * LANES;
    *begin = each * rank < count ? each * rank : count;
    *end = *begin + each < count ? *begin + each : count;
}

/* Its own part of the sum; then it meets the others again, and takes theirs. */
static dw_status reduce_shared(const kernel_run *run, const op_group *group) {
    const dw_tensor *out = run->call.out[0];
    const int64_t count = op_tensor_count(out);
    const size_t size = (size_t)dw_format_bits(out->format) / 8;
    dw_tensor *made = (dw_tensor *)group->in;
    int64_t begin, end;
    part_of(count, group->count, group->rank, &begin, &end);
    const summing own = {.group = group, .out = out, .first = begin, .out_first = begin, .count = end - begin};
    sum_rows(run, &own);
    TRY(run->comm->calls->meet(run->comm, run, out, made));
    for (int i = 0; i < group->count; i++) {
        part_of(count, group->count, i, &begin, &end);
        if (i != group->rank && end > begin) memcpy((uint8_t *)out->data + (size_t)begin * size, (const uint8_t *)made[i].data + (size_t)begin * size, (size_t)(end - begin) * size);
    }
    return DW_OK;
}

dw_status all_reduce_run(const kernel_run *run) {
    op_group group;
    dw_status status = DW_OK;
    TRY(meet_all(run, &group));
    const int64_t count = op_tensor_count(run->call.out[0]);
    if (group.count == 1 || !is_fast(run)) status = by_reference(run, &group);
    else if (group.count > 2 && run->comm->shares_memory && count >= SHARED_FROM) TRY(reduce_shared(run, &group));   /* where that fails they have not met */
    else sum_rows(run, &(summing){.group = &group, .out = run->call.out[0], .count = count});
    return leave_all(run, &group, status);
}

/* ---- reduce_scatter ---- */

/* In front of the axis lie outer matrices, of each of which the rank sums a run of neighbours. */
static void reduce_runs(const kernel_run *run, const op_group *group) {
    const dw_tensor *in = run->call.in[0], *out = run->call.out[0];
    const int axis = (int)op_attr_int(run->call.attrs, OP_ATTR_axis);
    int64_t outer = 1, neighbours = 1;
    for (int i = 0; i < axis; i++) outer *= out->dims[i];
    for (int i = axis; i < out->rank; i++) neighbours *= out->dims[i];
    if (in->dims[axis] == 0) return;
    for (int64_t i = 0; i < outer; i++)
        sum_rows(run, &(summing){.group = group, .out = out, .first = (i * group->count + group->rank) * neighbours, .out_first = i * neighbours, .count = neighbours});
}

dw_status reduce_scatter_run(const kernel_run *run) {
    op_group group;
    dw_status status = DW_OK;
    TRY(meet_all(run, &group));
    if (group.count == 1 || !is_fast(run)) status = by_reference(run, &group);
    else reduce_runs(run, &group);
    return leave_all(run, &group, status);
}

/* ---- all_gather and all_to_all ---- */

typedef struct moving { const kernel_run *run; const op_group *group; } moving;

/* The box of one rank, by rows of neighbouring elements as long as they are in both tensors. */
static void move_box(void *argument, int64_t from, int worker) {
    const moving *m = argument;
    const dw_tensor *in = &m->group->in[from], *out = m->run->call.out[0];
    const size_t size = (size_t)dw_format_bits(out->format) / 8;
    op_collective_box box;
    int64_t index[DW_MAX_RANK] = {0}, rows = 1, row = 1;
    int axis = in->rank;
    (void)worker;
    op_collective_box_of(&m->run->call, m->group->rank, (int)from, in, &box);
    while (axis > 0 && (row == in->strides[axis - 1] && row == out->strides[axis - 1])) row *= box.dims[--axis];
    for (int i = 0; i < axis; i++) rows *= box.dims[i];
    for (int64_t left = row > 0 ? rows : 0; left > 0; left--) {
        int64_t at_in = box.first_in, at_out = box.first_out;
        for (int i = 0; i < axis; i++) at_in += index[i] * in->strides[i], at_out += index[i] * out->strides[i];
        memcpy((uint8_t *)out->data + (size_t)at_out * size, (const uint8_t *)in->data + (size_t)at_in * size, (size_t)row * size);
        for (int i = axis - 1; i >= 0 && ++index[i] == box.dims[i]; i--) index[i] = 0;
    }
}

dw_status collective_move_run(const kernel_run *run) {
    op_group group;
    dw_status status = DW_OK;
    TRY(meet_all(run, &group));
    if (group.count == 1 || dw_format_is_block(run->call.out[0]->format)) status = by_reference(run, &group);
    else pool_run(run->pool, group.count, move_box, &(moving){run, &group});
    return leave_all(run, &group, status);
}
