/* Collectives on the CPU: a rank meets the others (kernel_comm), reads their operands where these lie, and makes its own result of them. Sums are made in fp32 in order of ranks, so
 * they have the reference's bits however the work is cut. Of few elements each rank sums all; of more each sums a part, and takes the other parts from who made them.
 * Speed: README.md. Waits, and what goes wrong with other ranks, are src/comm's. */
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"

#include <string.h>

enum { TILE = 16384, LINE = 64, PARTED_FROM = 4096, PARTED_OF_TWO_FROM = 65536 };   /* elements: of a task; that no two ranks' parts share, as those of a cache line; from which each rank sums a part, and of two */

const char *collective_reject(const kernel_problem *problem, text *why) {
    (void)problem;
    (void)why;
    return NULL;
}

static int ranks_of(const kernel_run *run) { return (int)op_attr_int(run->call.attrs, OP_ATTR_ranks); }

static bool is_fast(const kernel_run *run) {
    const dw_format format = run->call.in[0]->format;
    return op_collective_sums(run->call.attrs) && (format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16);
}

/* Does each rank sum a part of an all_reduce, and meet the others once more? Two ranks have as much to send either way, and less to add only. */
static bool is_parted(const kernel_run *run) {
    const int64_t count = op_tensor_count(run->call.in[0]);
    if (run->call.op->id != OP_all_reduce || !is_fast(run)) return false;
    return ranks_of(run) > 2 ? count >= PARTED_FROM : run->comm->shares_memory && count >= PARTED_OF_TWO_FROM;
}

/* What a rank of several that sum parts moves: the operands of all in its part, and the others' parts of the result. By op_work it would read all of all operands. */
static double parted_seconds(const kernel_run *run) {
    const double bytes = op_tensor_bytes(run->call.in[0]), ranks = ranks_of(run);
    return bytes * (3 - 1 / ranks) / (chip_bytes_per_s(run->chip) * 0.5) + run->chip->launch_s;
}

/* Of the others: operands, or the rank's parts of them; of sums in parts those twice. */
static double brought_bytes(const kernel_run *run, bool parted) {
    const double bytes = op_tensor_bytes(run->call.in[0]), ranks = ranks_of(run), others = bytes * (ranks - 1);
    if (parted) return 2 * others / ranks;
    return run->call.op->id == OP_all_to_all || run->call.op->id == OP_reduce_scatter ? others / ranks : others;
}

/* Of ranks that have a CPU each and come at the same time; what one waits for another that comes later is no part of it. */
double collective_cost(const kernel_problem *problem) {
    const chip_link_row *link = chip_link_get(problem->chip->link);
    kernel_typical typical;
    const double work = kernel_roofline(problem, DW_FORMAT_f32, 0.2, 0.5);
    if (op_attr_int(problem->attrs, OP_ATTR_ranks) == 1 || !kernel_at_typical(problem, 0, &typical)) return work;
    const bool parted = ranks_of(&typical.run) > 2 && is_parted(&typical.run);
    const double brought = link->bytes_per_s > 0 ? brought_bytes(&typical.run, parted) / link->bytes_per_s : 0;
    return (parted ? parted_seconds(&typical.run) + 2 * link->meeting_s : work + link->meeting_s) + brought;
}

/* Elements of a rank's part of an all_reduce; the last parts may end behind the operand. */
static int64_t part_length(const kernel_run *run) { return base_ceil_div(base_ceil_div(op_tensor_count(run->call.in[0]), ranks_of(run)), LINE) * LINE; }

static void make_row(dw_tensor *row, dw_format format, int64_t count, void *data) { op_tensor_init(row, format, DW_SCALE_plain, 1, &count, data); }

/* Is the operand of a reduce_scatter the ranks' parts, one behind another? */
static bool lies_in_parts(const kernel_run *run) {
    const dw_tensor *in = run->call.in[0];
    const int axis = (int)op_attr_int(run->call.attrs, OP_ATTR_axis);
    for (int i = 0; i < axis; i++)
        if (in->dims[i] != 1) return false;
    return in->dims[axis] % ranks_of(run) == 0;
}

/* What lies in the workspace: what the communicator needs, the others' tensors, and, of sums in parts by ranks that share no memory, the operand as whole parts one behind another, and of an all_reduce the rank's own part. */
typedef struct layout { size_t theirs, filled, part, bytes; } layout;

static layout layout_of(const kernel_run *run) {
    const int count = ranks_of(run);
    dw_tensor filled = *run->call.in[0];
    layout l = {0};
    if (run->comm == NULL || count == 1) return l;
    const bool scatters = run->call.op->id == OP_reduce_scatter && is_fast(run);   /* also where it lies in parts: smaller sizes may not, and memory is that of the largest */
    const bool fills = (is_parted(run) || scatters) && !run->comm->shares_memory;
    const int64_t length = !fills ? 0 : scatters ? op_tensor_count(run->call.out[0]) : part_length(run);
    if (fills) make_row(&filled, filled.format, length * count, NULL);
    const size_t size = (size_t)dw_format_bits(filled.format) / 8;
    l.theirs = run->comm->calls->room(run->comm, count, &filled);
    l.filled = base_align_up(l.theirs + (size_t)count * sizeof(dw_tensor), 64);
    l.part = base_align_up(l.filled + (size_t)(length * count) * size, 64);
    l.bytes = l.part + (scatters ? 0 : (size_t)length * size);
    return l;
}

size_t collective_workspace(const kernel_run *run) { return layout_of(run).bytes; }

/* The ranks that take part; their tensors are there when they have met. */
static dw_status find_group(const kernel_run *run, op_group *group) {
    *group = (op_group){0, 1, run->call.in[0]};
    if (run->comm == NULL || ranks_of(run) == 1) return DW_OK;
    group->in = (void *)((uint8_t *)run->workspace + layout_of(run).theirs);
    return run->comm->calls->place(run->comm, run, &group->rank, &group->count);
}

static dw_status meet(const kernel_run *run, const op_group *group, kernel_meeting how, const dw_tensor *mine) {
    return group->count > 1 ? run->comm->calls->meet(run->comm, run, how, mine, (dw_tensor *)group->in) : DW_OK;
}

/* Also where its own part has failed: the others are reading. */
static dw_status leave(const kernel_run *run, const op_group *group, dw_status status) {
    const dw_status left = group->count > 1 ? run->comm->calls->leave(run->comm, run) : DW_OK;
    return status == DW_OK ? left : status;
}

static dw_status by_reference(const kernel_run *run, const op_group *group) {
    op_call call = run->call;
    if (run->comm != NULL) call.group = group;
    return call.op->reference(&call);
}

/* ---- sums ---- */

/* Rows of elements that are summed: of each rank those from first on, out of which come those from out_first on. */
typedef struct summing {
    const cpu_rows *rows;
    const op_group *group;
    const dw_tensor *out;
    int64_t first, out_first, count;
} summing;

/* Two ranks' elements of 16 bits, without a detour by rows of fp32. */
static bool sum_halves(const summing *s, int64_t at, int64_t count) {
    const dw_tensor *in = s->group->in;
    const dw_format format = in[0].format;
    if (s->group->count != 2 || s->out->format != format || (format != DW_FORMAT_bf16 && format != DW_FORMAT_f16)) return false;
    (format == DW_FORMAT_bf16 ? s->rows->add_bf16 : s->rows->add_f16)(cpu_at(&in[0], s->first + at), cpu_at(&in[1], s->first + at), cpu_at(s->out, s->out_first + at), count);
    return true;
}

/* In blocks that stay in the cache while they are added to. */
static void sum_block(const summing *s, int64_t at, int64_t count) {
    const op_group *group = s->group;
    float own[CPU_BLOCK], first[CPU_BLOCK], next[CPU_BLOCK];
    float *sum = cpu_target(s->out, s->out_first + at, 1, own);
    const float *x = cpu_load(s->rows, &group->in[0], s->first + at, 1, count, first);
    for (int i = 1; i < group->count; i++) {
        s->rows->add(x, cpu_load(s->rows, &group->in[i], s->first + at, 1, count, next), sum, count);
        x = sum;
    }
    cpu_store(s->rows, sum, s->out, s->out_first + at, 1, count);
}

static void sum_tile(void *argument, int64_t task, int worker) {
    const summing *s = argument;
    const int64_t begin = task * TILE, end = begin + TILE < s->count ? begin + TILE : s->count;
    (void)worker;
    if (end == begin || sum_halves(s, begin, end - begin)) return;
    for (int64_t at = begin; at < end; at += CPU_BLOCK) sum_block(s, at, end - at < CPU_BLOCK ? end - at : CPU_BLOCK);
}

static void sum_rows(const kernel_run *run, summing s) {
    s.rows = cpu_rows_of(run->chip);
    pool_run(run->pool, base_ceil_div(s.count, TILE), sum_tile, &s);
}

/* ---- all_reduce ---- */

/* Elements of the result that are the part of a rank: [*begin, *begin + what is returned). */
static int64_t part_of(const kernel_run *run, int rank, int64_t *begin) {
    const int64_t count = op_tensor_count(run->call.out[0]), length = part_length(run);
    *begin = length * rank < count ? length * rank : count;
    return count - *begin < length ? count - *begin : length;
}

static void copy_part(const kernel_run *run, int rank, const void *from) {
    const dw_tensor *out = run->call.out[0];
    const size_t size = (size_t)dw_format_bits(out->format) / 8;
    int64_t begin;
    const int64_t count = part_of(run, rank, &begin);
    if (count > 0) memcpy((uint8_t *)out->data + (size_t)begin * size, from, (size_t)count * size);
}

/* Each sums its own part into its result; then they meet again, and take the others' parts from there. */
static dw_status reduce_shared(const kernel_run *run, const op_group *group) {
    const dw_tensor *out = run->call.out[0];
    const size_t size = (size_t)dw_format_bits(out->format) / 8;
    int64_t begin;
    TRY(meet(run, group, KERNEL_MEET_WHOLE, run->call.in[0]));
    const int64_t count = part_of(run, group->rank, &begin);
    sum_rows(run, (summing){.group = group, .out = out, .first = begin, .out_first = begin, .count = count});
    TRY(meet(run, group, KERNEL_MEET_WHOLE, out));
    for (int i = 0; i < group->count; i++) {
        part_of(run, i, &begin);
        if (i != group->rank) copy_part(run, i, (const uint8_t *)group->in[i].data + (size_t)begin * size);
    }
    return leave(run, group, DW_OK);
}

/* The same where parts travel: each is sent what it sums alone, and sends its sums. */
static dw_status reduce_parted(const kernel_run *run, const op_group *group) {
    const dw_tensor *in = run->call.in[0];
    const layout l = layout_of(run);
    const int64_t length = part_length(run);
    const size_t bytes = (size_t)op_tensor_count(in) * (size_t)dw_format_bits(in->format) / 8, all = (size_t)(length * group->count) * (size_t)dw_format_bits(in->format) / 8;
    uint8_t *memory = (uint8_t *)run->workspace + l.filled;
    dw_tensor filled, part;
    make_row(&filled, in->format, length * group->count, memory);
    make_row(&part, in->format, length, (uint8_t *)run->workspace + l.part);
    memcpy(memory, in->data, bytes);
    memset(memory + bytes, 0, all - bytes);
    TRY(meet(run, group, KERNEL_MEET_PARTS, &filled));
    sum_rows(run, (summing){.group = group, .out = &part, .count = length});
    TRY(meet(run, group, KERNEL_MEET_WHOLE, &part));
    for (int i = 0; i < group->count; i++) copy_part(run, i, group->in[i].data);
    return leave(run, group, DW_OK);
}

dw_status all_reduce_run(const kernel_run *run) {
    op_group group;
    dw_status status = DW_OK;
    TRY(find_group(run, &group));
    if (group.count > 1 && is_parted(run)) return run->comm->shares_memory ? reduce_shared(run, &group) : reduce_parted(run, &group);
    TRY(meet(run, &group, KERNEL_MEET_WHOLE, run->call.in[0]));
    if (group.count == 1 || !is_fast(run)) status = by_reference(run, &group);
    else sum_rows(run, (summing){.group = &group, .out = run->call.out[0], .count = op_tensor_count(run->call.out[0])});
    return leave(run, &group, status);
}

/* ---- reduce_scatter ---- */

/* In front of the axis lie outer matrices, in each of which a rank has a run of neighbours: of all elements there those from its number times as many on. The last runs may end early. */
typedef struct runs { int64_t outer, neighbours, all; } runs;

static runs runs_of(const kernel_run *run) {
    const dw_tensor *in = run->call.in[0], *out = run->call.out[0];
    const int axis = (int)op_attr_int(run->call.attrs, OP_ATTR_axis);
    runs r = {1, 1, 1};
    for (int i = 0; i < axis; i++) r.outer *= out->dims[i];
    for (int i = axis; i < out->rank; i++) r.neighbours *= out->dims[i], r.all *= in->dims[i];
    return r;
}

static int64_t run_length(const runs *r, int rank) {
    const int64_t left = r->all - rank * r->neighbours;
    return left <= 0 ? 0 : left < r->neighbours ? left : r->neighbours;
}

static void fill_zeros(const dw_tensor *tensor, int64_t first, int64_t count) {
    const size_t size = (size_t)dw_format_bits(tensor->format) / 8;
    if (count > 0) memset((uint8_t *)tensor->data + (size_t)first * size, 0, (size_t)count * size);
}

/* From where all operands lie. */
static dw_status scatter_shared(const kernel_run *run, const op_group *group, const runs *r) {
    const int64_t count = run_length(r, group->rank);
    TRY(meet(run, group, KERNEL_MEET_WHOLE, run->call.in[0]));
    for (int64_t i = 0; i < r->outer; i++) {
        sum_rows(run, (summing){.group = group, .out = run->call.out[0], .first = i * r->all + group->rank * r->neighbours, .out_first = i * r->neighbours, .count = count});
        fill_zeros(run->call.out[0], i * r->neighbours + count, r->neighbours - count);
    }
    return leave(run, group, DW_OK);
}

/* The ranks' parts one behind another in the workspace, filled up to one size. */
static void pack_parts(const kernel_run *run, const op_group *group, const runs *r, dw_tensor *packed) {
    const dw_tensor *in = run->call.in[0];
    const size_t size = (size_t)dw_format_bits(in->format) / 8;
    make_row(packed, in->format, r->outer * r->neighbours * group->count, (uint8_t *)run->workspace + layout_of(run).filled);
    for (int rank = 0; rank < group->count; rank++) {
        const int64_t count = run_length(r, rank);
        for (int64_t i = 0; i < r->outer; i++) {
            const int64_t to = (rank * r->outer + i) * r->neighbours;
            if (count > 0) memcpy((uint8_t *)packed->data + (size_t)to * size, (const uint8_t *)in->data + (size_t)(i * r->all + rank * r->neighbours) * size, (size_t)count * size);
            fill_zeros(packed, to + count, r->neighbours - count);
        }
    }
}

/* Of each rank the part that is this rank's alone. */
static dw_status scatter_parts(const kernel_run *run, const op_group *group, const runs *r) {
    dw_tensor packed;
    if (!lies_in_parts(run)) pack_parts(run, group, r, &packed);
    TRY(meet(run, group, KERNEL_MEET_PARTS, lies_in_parts(run) ? run->call.in[0] : &packed));
    sum_rows(run, (summing){.group = group, .out = run->call.out[0], .count = r->outer * r->neighbours});
    return leave(run, group, DW_OK);
}

dw_status reduce_scatter_run(const kernel_run *run) {
    op_group group;
    TRY(find_group(run, &group));
    const runs r = runs_of(run);
    if (group.count > 1 && is_fast(run)) return run->comm->shares_memory ? scatter_shared(run, &group, &r) : scatter_parts(run, &group, &r);
    TRY(meet(run, &group, KERNEL_MEET_WHOLE, run->call.in[0]));
    return leave(run, &group, by_reference(run, &group));
}

/* ---- all_gather and all_to_all ---- */

typedef struct moving { const kernel_run *run; const op_group *group; bool parts; } moving;

/* The box of one rank, by rows of neighbouring elements as long as they are in both tensors. */
static void move_box(void *argument, int64_t from, int worker) {
    const moving *m = argument;
    const dw_tensor *in = m->run->call.in[0], *out = m->run->call.out[0];   /* in: of all ranks alike */
    const size_t size = (size_t)dw_format_bits(out->format) / 8;
    op_collective_box box;
    int64_t index[DW_MAX_RANK] = {0}, rows = 1, row = 1;
    int axis = in->rank;
    (void)worker;
    op_collective_box_of(&m->run->call, m->group->rank, (int)from, in, &box);
    if (m->parts) box.first_in = 0;
    while (axis > 0 && (row == in->strides[axis - 1] && row == out->strides[axis - 1])) row *= box.dims[--axis];
    for (int i = 0; i < axis; i++) rows *= box.dims[i];
    for (int64_t left = row > 0 ? rows : 0; left > 0; left--) {
        int64_t at_in = box.first_in, at_out = box.first_out;
        for (int i = 0; i < axis; i++) at_in += index[i] * in->strides[i], at_out += index[i] * out->strides[i];
        memcpy((uint8_t *)out->data + (size_t)at_out * size, (const uint8_t *)m->group->in[from].data + (size_t)at_in * size, (size_t)row * size);
        for (int i = axis - 1; i >= 0 && ++index[i] == box.dims[i]; i--) index[i] = 0;
    }
}

/* Do the parts of an all_to_all lie one behind another? */
static bool is_in_parts(const kernel_run *run) {
    const int split = (int)op_attr_int(run->call.attrs, OP_ATTR_split);
    bool parts = run->call.op->id == OP_all_to_all;
    for (int i = 0; parts && i < split; i++) parts = run->call.in[0]->dims[i] == 1;
    return parts;
}

dw_status collective_move_run(const kernel_run *run) {
    op_group group;
    dw_status status = DW_OK;
    TRY(op_collective_check(&run->call));
    TRY(find_group(run, &group));
    const moving m = {run, &group, group.count > 1 && is_in_parts(run)};
    TRY(meet(run, &group, m.parts ? KERNEL_MEET_PARTS : KERNEL_MEET_WHOLE, run->call.in[0]));
    if (group.count == 1 || dw_format_is_block(run->call.out[0]->format)) status = by_reference(run, &group);
    else pool_run(run->pool, group.count, move_box, (void *)&m);
    return leave(run, &group, status);
}
