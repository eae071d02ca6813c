/* cumsum, sort, topk, choose and bincount on a GPU: the host half of scan.cu, scan_blocks.cu, topk_rows.cu and choose_rows.cu. */
#include "kernels/scan/scan_cuda.h"

#include <assert.h>

#include "kernels/gpu/host/host.h"
#include "kernels/move/parts.h"
#include "kernels/kernels.h"
#include "kernels/pointwise/functions.h"

static_assert((int)CHOOSE_LENGTH == (int)OP_LINE && sizeof(choose_arguments) <= KERNEL_ARGUMENT_BYTES, "a launch holds the steps of a line");

const char *scan_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

/* Is it a topk of lines that are short enough for a warp? */
static bool has_short_lines(const kernel_problem *problem) {
    int64_t count, length;
    const int axis = (int)op_attr_int(problem->attrs, OP_ATTR_axis);
    if ((problem->op->id != OP_topk && problem->op->id != OP_choose) || !dim_is_constant(problem->in[0]->dims[axis], &count) || !dim_is_constant(problem->out[1]->dims[axis], &length)) return false;
    return count <= TOPK_COUNT && length <= TOPK_LENGTH;
}

/* The share of the bandwidth is an H200's: 1.6 TB/s of cumsum; of sort and topk 49 to 114 ps an element, where lines are many. Of short lines it is a guess. */
double scan_cuda_cost(const kernel_problem *problem) {
    const op_id id = problem->op->id;
    if (!chip_has(problem->chip, CHIP_tma)) return cuda_cost(problem);
    if (has_short_lines(problem)) return (id == OP_choose ? 3.9e-6 : 0) + kernel_roofline(problem, DW_FORMAT_f32, 0.1, 0.107);   /* 3.9: in a step of a model, with softmax */
    return id == OP_sort || id == OP_topk ? kernel_roofline(problem, DW_FORMAT_f32, 0.1, 0.0128) : id == OP_cumsum ? kernel_roofline(problem, DW_FORMAT_f32, 0.1, 0.352) : cuda_cost(problem);
}

static dw_status shape_cumsum(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    enum { OF_BLOCK = 32, MANY_LINES = 1 << 16 };   /* elements of a line that a block takes; lines that keep all threads busy, a thread each */
    cumsum_arguments *arguments = cuda_launch(&launch, "scan", "scan_cumsum", sizeof *arguments);
    int axis = (int)op_attr_int(run->call.attrs, OP_ATTR_axis);
    const dw_tensor *tensors[] = {run->call.out[0], run->call.in[0]};
    int64_t steps[2];
    cuda_nest_lines(&arguments->nest, axis, 2, tensors, steps);
    arguments->count = tensors[0]->dims[axis];
    arguments->out_step = tensors[0]->strides[axis];
    arguments->x_step = tensors[1]->strides[axis];
    arguments->exclusive = op_attr_bool(run->call.attrs, OP_ATTR_exclusive);
    if (arguments->nest.count == 0 || arguments->count == 0) return DW_OK;
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    const bool by_blocks = chip_has(run->chip, CHIP_tma) && arguments->count >= OF_BLOCK && (arguments->x_step == 1 || kernel_rows_beside(run, arguments->nest.count) < MANY_LINES);
    if (by_blocks) {
        launch.image = "scan_blocks";
        launch.entry = num_info(tensors[1]->format)->class == NUM_FLOAT ? "scan_cumsum_real" : "scan_cumsum_whole";
    }
    cuda_grid_items(&launch, arguments->nest.count * (by_blocks ? CUDA_THREADS : 1));
    return launcher->add(launcher, &launch);
}

/* ---- sort and topk ---- */

static int64_t power_from(int64_t x) {
    int64_t power = 1;
    while (power < x) power *= 2;
    return power;
}

typedef struct order_plan {
    int64_t lines, count, length;
    bool in_tiles;                /* else each element counts those in front of it */
    bool in_rounds;               /* of each tile the first ones stay, until one tile holds them; else tiles are merged */
    size_t bytes;                 /* of workspace: what the first two rounds leave, or all pairs */
    size_t first_bytes;           /* what the first round leaves */
} order_plan;

static size_t round_bytes(const order_plan *plan, int64_t count) { return base_align_up((size_t)(plan->lines * base_ceil_div(count, SORT_TILE) * plan->length) * SORT_PAIR_BYTES, 64); }

static order_plan plan_order(const kernel_run *run) {
    const int axis = (int)op_attr_int(run->call.attrs, OP_ATTR_axis);
    const dw_tensor *x = run->call.in[0];
    order_plan plan = {.count = x->dims[axis], .length = run->call.out[0]->dims[axis]};
    plan.lines = plan.count > 0 ? op_tensor_count(x) / plan.count : 0;
    plan.in_tiles = chip_has(run->chip, CHIP_tma) && plan.count < UINT32_MAX;
    if (!plan.in_tiles || plan.count <= SORT_TILE) return plan;
    plan.in_rounds = plan.length <= SORT_TILE / 4;
    if (plan.in_rounds) {
        const int64_t left = base_ceil_div(plan.count, SORT_TILE) * plan.length;
        plan.first_bytes = round_bytes(&plan, plan.count);
        plan.bytes = plan.first_bytes + (left > SORT_TILE ? round_bytes(&plan, left) : 0);
    } else {
        plan.bytes = (size_t)(plan.lines * power_from(base_ceil_div(plan.count, SORT_TILE)) * SORT_TILE) * SORT_PAIR_BYTES;
    }
    return plan;
}

size_t scan_cuda_workspace(const kernel_run *run) {
    const op_id id = run->call.op->id;
    return id == OP_sort || id == OP_topk ? plan_order(run).bytes : 0;
}

/* Pairs in the workspace: keys, then places. */
static void take_pairs(kernel_launch *launch, uint64_t *keys, uint64_t *places, size_t offset, int64_t pairs) {
    cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, keys, (int64_t)offset);
    cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, places, (int64_t)offset + pairs * 8);
}

/* A launch of entry, with the operands. */
static sort_arguments *sort_launch(const kernel_run *run, kernel_launch *launch, const char *entry, const sort_arguments *common) {
    sort_arguments *arguments = cuda_launch(launch, "scan_blocks", entry, sizeof *arguments);
    *arguments = *common;
    cuda_take_array(launch, run, KERNEL_RESULT, &arguments->values);
    cuda_take_array(launch, run, 0, &arguments->x);
    cuda_take_array(launch, run, KERNEL_RESULT + 1, &arguments->indices);
    return arguments;
}

static void in_tiles(kernel_launch *launch, int64_t tiles) {
    launch->block[0] = SORT_THREADS;
    launch->shared_bytes = SORT_TILE * SORT_PAIR_BYTES;
    cuda_grid(launch, tiles, 1, 1);
}

/* Rounds over tiles of which the first ones stay; the last round has one tile, or a part of one, for each line. */
static dw_status add_rounds(const kernel_run *run, kernel_launcher *launcher, const order_plan *plan, const sort_arguments *common) {
    int64_t count = plan->count, pairs_before = 0;
    size_t from = 0, to = 0;
    for (bool is_first = true;; is_first = false) {
        kernel_launch launch;
        sort_arguments *arguments = sort_launch(run, &launch, "scan_sort_tiles", common);
        const bool is_last = count <= SORT_TILE;
        const int64_t tiles = base_ceil_div(count, SORT_TILE), pairs = plan->lines * tiles * plan->length;
        arguments->count = count;
        arguments->tiles = tiles;
        arguments->segment = is_last ? power_from(count) : SORT_TILE;
        arguments->kept = plan->length;
        if (!is_first) take_pairs(&launch, &arguments->from_keys, &arguments->from_places, from, pairs_before);
        if (!is_last) take_pairs(&launch, &arguments->to_keys, &arguments->to_places, to, pairs);
        in_tiles(&launch, is_last ? base_ceil_div(plan->lines, SORT_TILE / arguments->segment) : plan->lines * tiles);
        TRY(launcher->add(launcher, &launch));
        if (is_last) return DW_OK;
        from = to;
        to = to == 0 ? plan->first_bytes : 0;
        pairs_before = pairs;
        count = tiles * plan->length;
    }
}

/* Sorted tiles, and all steps of the network behind them. */
static dw_status add_merges(const kernel_run *run, kernel_launcher *launcher, const order_plan *plan, const sort_arguments *common) {
    const int64_t tiles = power_from(base_ceil_div(plan->count, SORT_TILE)), padded = tiles * SORT_TILE, pairs = plan->lines * padded;
    kernel_launch launch;
    sort_arguments *arguments = sort_launch(run, &launch, "scan_sort_tiles", common);
    arguments->count = plan->count;
    arguments->tiles = tiles;
    arguments->segment = arguments->kept = SORT_TILE;
    arguments->alternates = true;
    take_pairs(&launch, &arguments->to_keys, &arguments->to_places, 0, pairs);
    in_tiles(&launch, plan->lines * tiles);
    TRY(launcher->add(launcher, &launch));
    arguments->kept = plan->length;
    for (int64_t size = 2 * SORT_TILE; size <= padded; size *= 2) {
        arguments->size = size;
        for (int64_t stride = size / 2; stride >= SORT_TILE; stride /= 2) {
            arguments->stride = stride;
            launch.entry = "scan_sort_step";
            launch.block[0] = CUDA_THREADS;
            launch.shared_bytes = 0;
            cuda_grid_items(&launch, pairs / 2);
            TRY(launcher->add(launcher, &launch));
        }
        launch.entry = "scan_sort_merge";
        in_tiles(&launch, plan->lines * tiles);
        TRY(launcher->add(launcher, &launch));
    }
    return DW_OK;
}

/* The entry for lines that a warp each takes; NULL: they are longer, or others. */
static const char *rows_entry(const kernel_run *run, int64_t count, int64_t length) {
    static const struct { int64_t count; const char *topk, *choose; } entries[] = {
        {64, "scan_topk_64", "scan_choose_64"}, {128, "scan_topk_128", "scan_choose_128"}, {256, "scan_topk_256", "scan_choose_256"}, {TOPK_COUNT, "scan_topk_512", "scan_choose_512"}};
    const op_id id = run->call.op->id;
    const dw_format format = run->call.in[0]->format;
    const bool has_keys = num_info(format)->class == NUM_FLOAT ? format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16 : dw_format_bits(format) <= 32;
    if ((id != OP_topk && id != OP_choose) || !chip_has(run->chip, CHIP_tma) || length > TOPK_LENGTH || !has_keys) return NULL;
    for (size_t i = 0; i < COUNT_OF(entries); i++)
        if (count <= entries[i].count) return id == OP_topk ? entries[i].topk : entries[i].choose;
    return NULL;
}

static dw_status shape_choose(const kernel_run *run, kernel_launcher *launcher) {
    const int axis = (int)op_attr_int(run->call.attrs, OP_ATTR_axis), from = op_operand(&run->call, CHOOSE_Y) != NULL ? CHOOSE_Y : CHOOSE_X;
    const dw_tensor *values = run->call.out[0], *indices = run->call.out[1];
    dw_tensor lines[] = {*indices, *run->call.in[CHOOSE_X], *run->call.in[from], *values};
    const dw_tensor *tensors[CHOOSE_ARRAYS];
    int64_t steps[CHOOSE_ARRAYS];
    op_chain chain;
    kernel_launch launch;
    choose_arguments *arguments = cuda_launch(&launch, "scan", "scan_choose", sizeof *arguments);
    arguments->count = (int32_t)lines[CHOOSE_OF_X].dims[axis];
    arguments->length = (int32_t)indices->dims[axis];
    arguments->results = (int32_t)values->dims[axis];
    if (arguments->length > arguments->count)
        return base_fail(run->call.context, DW_INVALID, "%s: length is %lld, the axis has size %lld", run->call.op->name, (long long)arguments->length, (long long)arguments->count);
    for (int i = 0; i < CHOOSE_ARRAYS; i++) {
        lines[i].dims[axis] = 1;   /* so that lines compare; the axis itself is left out */
        tensors[i] = &lines[i];
    }
    cuda_nest_lines(&arguments->nest, axis, CHOOSE_ARRAYS, tensors, steps);
    if (arguments->nest.count == 0) return DW_OK;
    arguments->values_step = values->strides[axis];
    arguments->x_step = lines[CHOOSE_OF_X].strides[axis];
    arguments->y_step = lines[CHOOSE_OF_Y].strides[axis];
    arguments->indices_step = indices->strides[axis];
    arguments->descending = op_attr_bool(run->call.attrs, OP_ATTR_largest);
    arguments->by_softmax = op_attr_bool(run->call.attrs, OP_ATTR_softmax);
    arguments->y_is_x = from == CHOOSE_X;
    TRY(op_line_of(&run->call, &chain));
    arguments->steps = chain.count;
    for (int i = 0; i < chain.count; i++) few_code_of(&chain.steps[i], 1, &arguments->codes[i]);
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->values);
    cuda_take_array(&launch, run, KERNEL_RESULT + 1, &arguments->indices);
    cuda_take_array(&launch, run, CHOOSE_X, &arguments->x);
    cuda_take_array(&launch, run, from, &arguments->y);
    const char *by_warps = rows_entry(run, arguments->count, arguments->length);
    if (by_warps != NULL) {
        launch.image = "choose_rows";
        launch.entry = by_warps;
        launch.overlaps = true;
    }
    cuda_grid_items(&launch, arguments->nest.count * (by_warps != NULL ? 32 : 1));
    return launcher->add(launcher, &launch);
}

static dw_status shape_order(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    order_arguments *arguments = cuda_launch(&launch, "scan", "scan_order", sizeof *arguments);
    int axis = (int)op_attr_int(run->call.attrs, OP_ATTR_axis);
    const dw_tensor *values = run->call.out[0], *indices = run->call.out[1];
    dw_tensor x = *run->call.in[0];
    bool is_topk = run->call.op->id == OP_topk;
    arguments->count = x.dims[axis];
    arguments->length = values->dims[axis];
    if (arguments->length > arguments->count)
        return base_fail(run->call.context, DW_INVALID, "%s: length is %lld, the axis has size %lld", run->call.op->name, (long long)arguments->length, (long long)arguments->count);
    x.dims[axis] = values->dims[axis];   /* so that lines compare; the axis itself is left out */
    const dw_tensor *tensors[] = {values, &x, indices};
    int64_t steps[3];
    cuda_nest_lines(&arguments->nest, axis, 3, tensors, steps);
    arguments->values_step = values->strides[axis];
    arguments->x_step = x.strides[axis];
    arguments->indices_step = indices->strides[axis];
    arguments->descending = op_attr_bool(run->call.attrs, is_topk ? OP_ATTR_largest : OP_ATTR_descending);
    if (arguments->nest.count == 0 || arguments->length == 0) return DW_OK;
    const order_plan plan = plan_order(run);
    const char *by_warps = rows_entry(run, arguments->count, arguments->length);
    if (by_warps == NULL && plan.in_tiles) {
        const sort_arguments common = {.nest = arguments->nest, .values_step = arguments->values_step, .x_step = arguments->x_step, .indices_step = arguments->indices_step,
                                       .descending = arguments->descending};
        return plan.in_rounds || plan.count <= SORT_TILE ? add_rounds(run, launcher, &plan, &common) : add_merges(run, launcher, &plan, &common);
    }
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->values);
    cuda_take_array(&launch, run, 0, &arguments->x);
    cuda_take_array(&launch, run, KERNEL_RESULT + 1, &arguments->indices);
    if (by_warps != NULL) {
        launch.image = "topk_rows";
        launch.entry = by_warps;
        launch.overlaps = true;
    }
    cuda_grid_items(&launch, arguments->nest.count * (by_warps != NULL ? 32 : arguments->count));
    return launcher->add(launcher, &launch);
}

static dw_status shape_bincount(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    bincount_arguments *arguments = cuda_launch(&launch, "scan", "scan_bincount", sizeof *arguments);
    const dw_tensor *x = run->call.in[0], *out = run->call.out[0];
    TRY(cuda_fill_with(run, launcher, KERNEL_RESULT, 0));
    cuda_nest_tensors(&arguments->nest, 1, &x);
    arguments->length = out->dims[0];
    arguments->out_step = out->strides[0];
    if (arguments->nest.count == 0) return DW_OK;
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    cuda_grid_items(&launch, arguments->nest.count);
    return launcher->add(launcher, &launch);
}

dw_status scan_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    if (run->call.op->id == OP_cumsum) return shape_cumsum(run, launcher);
    if (run->call.op->id == OP_choose) return shape_choose(run, launcher);
    return run->call.op->id == OP_bincount ? shape_bincount(run, launcher) : shape_order(run, launcher);
}
