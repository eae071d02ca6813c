/* Reductions on a GPU: the host half of reduce.cu and reduce_vectors.cu. */
#include "kernels/reduce/reduce_cuda.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

enum { TOGETHER = 64 };   /* from so many elements on, a block makes each result */

const char *reduce_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

static bool finds_index(op_id id) { return id == OP_argmax || id == OP_argmin; }

/* Is the last axis of a rank left as it is, so that columns are reduced? */
static bool reduces_columns(const kernel_problem *problem) {
    const int64_t *axes;
    if (finds_index(problem->op->id) || !chip_has(problem->chip, CHIP_tma)) return false;
    const int count = op_attr_ints(problem->attrs, OP_ATTR_axes, &axes);
    return count > 0 && axes[count - 1] != problem->in[0]->rank - 1;
}

/* Behind the bandwidth a reduction waits for its last elements: what that takes in a model's step on an H200 (bench/results/h200/models.md), of long rows whose place is looked for, in two launches, more.
 * Columns: as measured by themselves (bench/results/h200/training.md). */
double reduce_cuda_cost(const kernel_problem *problem) {
    enum { LONG = 4096 };
    const op_type *x = problem->in[0];
    int64_t last;
    if (reduces_columns(problem)) return 2.5e-6 + kernel_roofline(problem, DW_FORMAT_f32, 0.1, 0.9);
    const bool is_long = finds_index(problem->op->id) && x->rank > 0 && dim_is_constant(x->dims[x->rank - 1], &last) && last >= LONG;
    return cuda_vector_cost(problem) + (is_long ? 11e-6 : 0.5e-6);
}

static int function_of(op_id id) {
    switch (id) {
    case OP_mean: return REDUCE_mean;
    case OP_prod: return REDUCE_prod;
    case OP_amax: return REDUCE_amax;
    case OP_amin: return REDUCE_amin;
    case OP_any: return REDUCE_any;
    case OP_all: return REDUCE_all;
    case OP_argmax: return REDUCE_argmax;
    case OP_argmin: return REDUCE_argmin;
    default: return REDUCE_sum;
    }
}

static void build_nests(const op_call *call, cuda_nest *outer_nest, cuda_nest *inner_nest) {
    const dw_tensor *x = call->in[0], *out = call->out[0];
    const int64_t one = op_attr_int(call->attrs, OP_ATTR_axis), *axes = &one;
    int count = finds_index(call->op->id) ? 1 : op_attr_ints(call->attrs, OP_ATTR_axes, &axes), outer = 0, inner = 0;
    bool keep = op_attr_bool(call->attrs, OP_ATTR_keep);
    int64_t outer_dims[CUDA_RANK], inner_dims[CUDA_RANK], outer_strides[2][CUDA_RANK], inner_strides[1][CUDA_RANK];
    for (int i = 0, next = 0, of_out = 0; i < x->rank; i++) {
        bool reduced = next < count && axes[next] == i;
        next += reduced;
        if (reduced) {
            inner_dims[inner] = x->dims[i];
            inner_strides[0][inner++] = x->strides[i];
            of_out += keep;
            continue;
        }
        outer_dims[outer] = x->dims[i];
        outer_strides[0][outer] = out->strides[of_out++];
        outer_strides[1][outer++] = x->strides[i];
    }
    cuda_nest_build(outer_nest, outer, outer_dims, 2, (const int64_t(*)[CUDA_RANK])outer_strides);
    cuda_nest_build(inner_nest, inner, inner_dims, 1, (const int64_t(*)[CUDA_RANK])inner_strides);
}

static bool needs_elements(op_id id) { return finds_index(id) || id == OP_amax || id == OP_amin; }

/* ---- in vectors ---- */

typedef enum reduce_way { REDUCE_PLAIN, REDUCE_ROWS, REDUCE_COLUMNS } reduce_way;

/* The shortest parts of a row and of columns that are worth a block, and blocks that keep a multiprocessor busy. */
enum { ROW_PART = 8192, COLUMN_PART = 128, BLOCKS_OF_UNIT = 4 };

static int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }

/* So many parts of a result that the chip is busy: blocks that there are without them, and the most parts that are worth it. */
static int64_t parts_of(const chip_caps *chip, int64_t blocks, int64_t most) {
    const int64_t wanted = base_ceil_div((int64_t)chip->units * BLOCKS_OF_UNIT, blocks);
    return blocks >= chip->units || most < 2 ? 1 : least(wanted, most);
}

static int64_t column_tiles(const reduce_vector_arguments *a) {
    const int64_t width = a->outer.dims[a->outer.rank - 1];
    return base_ceil_div(a->outer.count / width * base_ceil_div(width, CUDA_VECTOR), REDUCE_LANES);
}

static reduce_way plan_rows(const kernel_run *run, reduce_vector_arguments *a) {
    enum { WARP_LENGTH = 2048, LONG_WARP_LENGTH = 8192, WARPS_OF_UNIT = 32 };
    const int64_t rows = kernel_rows_beside(run, a->outer.count);
    const bool is_many = rows >= (int64_t)run->chip->units * WARPS_OF_UNIT;
    a->group = a->length <= (is_many ? LONG_WARP_LENGTH : WARP_LENGTH) ? 32 : CUDA_THREADS;
    a->splits = a->group == 32 ? 1 : parts_of(run->chip, rows, base_ceil_div(a->length, ROW_PART));
    a->part = base_ceil_div(base_ceil_div(a->length + CUDA_VECTOR - 1, a->splits), CUDA_VECTOR) * CUDA_VECTOR;   /* pieces begin where 16 bytes do, before the row at worst */
    return REDUCE_ROWS;
}

/* Parts of a tile's lines, as many as leave all blocks resident together. */
static reduce_way plan_columns(const kernel_run *run, reduce_vector_arguments *a) {
    const int64_t resident = (int64_t)run->chip->units * REDUCE_RESIDENT, beside = kernel_rows_beside(run, column_tiles(a)), most = base_ceil_div(a->length, COLUMN_PART);
    a->splits = beside >= resident ? 1 : least(most, resident / beside);
    a->part = base_ceil_div(a->length, a->splits);
    return REDUCE_COLUMNS;
}

/* Which way a reduction goes; fills in all but the arrays. */
static reduce_way plan_vectors(const kernel_run *run, reduce_vector_arguments *a) {
    enum { FEW = 32, FEW_ROWS_OF_UNIT = 64 };   /* elements that a thread adds as fast, where rows are as many as the chip has warps for at a time */
    const op_id id = run->call.op->id;
    const dw_format format = run->call.in[0]->format;
    build_nests(&run->call, &a->outer, &a->inner);
    a->function = function_of(id);
    a->finite = op_attr_bool(run->call.attrs, OP_ATTR_finite);
    a->length = a->inner.count;
    if (!chip_has(run->chip, CHIP_tma) || (format != DW_FORMAT_f32 && format != DW_FORMAT_bf16 && format != DW_FORMAT_f16)) return REDUCE_PLAIN;
    if (a->outer.count == 0 || a->length >= INT32_MAX / 2 || a->inner.rank == 0) return REDUCE_PLAIN;
    if (a->inner.rank == 1 && a->inner.strides[0][0] == 1) return a->length < FEW && kernel_rows_beside(run, a->outer.count) > (int64_t)run->chip->units * FEW_ROWS_OF_UNIT ? REDUCE_PLAIN : plan_rows(run, a);
    const int last = a->outer.rank - 1;
    const bool has_columns = last >= 0 && a->outer.strides[1][last] == 1 && a->outer.dims[last] >= CUDA_VECTOR && a->outer.dims[last] < INT32_MAX / 2;
    return has_columns && !finds_index(id) && a->length > 1 ? plan_columns(run, a) : REDUCE_PLAIN;
}

/* Enough for smaller sizes too, at which fewer results are divided among more blocks: of rows these are fewer than 5 to a multiprocessor wherever there are parts, of columns as many as are resident. */
size_t reduce_cuda_workspace(const kernel_run *run) {
    reduce_vector_arguments a = {0};
    const reduce_way way = plan_vectors(run, &a);
    if (way == REDUCE_PLAIN || a.length <= (way == REDUCE_ROWS ? ROW_PART : COLUMN_PART)) return 0;
    return (size_t)run->chip->units * (way == REDUCE_ROWS ? (BLOCKS_OF_UNIT + 1) * (sizeof(double) + sizeof(int64_t)) : REDUCE_RESIDENT * REDUCE_TILE * sizeof(double));
}

static dw_status shape_vectors(const kernel_run *run, kernel_launcher *launcher, reduce_way way, kernel_launch *launch, reduce_vector_arguments *a) {
    static const char *const rows[] = {"reduce_rows_f32", "reduce_rows_bf16", "reduce_rows_f16"}, *const found[] = {"reduce_found_f32", "reduce_found_bf16", "reduce_found_f16"};
    static const char *const columns[] = {"reduce_columns_f32", "reduce_columns_bf16", "reduce_columns_f16"};
    const dw_format format = run->call.in[0]->format;
    const int of_format = format == DW_FORMAT_f32 ? 0 : format == DW_FORMAT_bf16 ? 1 : 2;
    const int64_t results = a->outer.count;
    launch->entry = way == REDUCE_COLUMNS ? columns[of_format] : finds_index(run->call.op->id) ? found[of_format] : rows[of_format];
    launch->overlaps = true;
    cuda_take_array(launch, run, KERNEL_RESULT, &a->out);
    cuda_take_array(launch, run, 0, &a->x);
    if (a->splits > 1) cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &a->partial, 0);
    if (a->splits > 1 && way == REDUCE_COLUMNS) cuda_slot(launch, KERNEL_SLOT_COUNTERS, 0, &a->counters, 0);
    if (way == REDUCE_ROWS) {
        cuda_grid(launch, base_ceil_div(results * a->splits, CUDA_THREADS / a->group), 1, 1);
    } else {
        cuda_grid(launch, column_tiles(a) * a->splits, 1, 1);
    }
    TRY(launcher->add(launcher, launch));
    if (a->splits == 1 || way == REDUCE_COLUMNS) return DW_OK;
    launch->entry = "reduce_join";
    cuda_grid(launch, base_ceil_div(results, CUDA_THREADS / 32), 1, 1);
    return launcher->add(launcher, launch);
}

/* ---- any format, lying in any way ---- */

dw_status reduce_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    op_id id = run->call.op->id;
    reduce_vector_arguments *vectors = cuda_launch(&launch, "reduce_vectors", NULL, sizeof *vectors);
    const reduce_way way = plan_vectors(run, vectors);
    if (vectors->outer.count == 0) return DW_OK;
    if (vectors->inner.count == 0 && needs_elements(id))
        return base_fail(run->call.context, DW_INVALID, "%s: the reduced axes have size 0 and so no element to name", run->call.op->name);
    if (way != REDUCE_PLAIN) return shape_vectors(run, launcher, way, &launch, vectors);
    bool integer = num_info(run->call.in[0]->format)->class != NUM_FLOAT;
    reduce_arguments *arguments = cuda_launch(&launch, "reduce", finds_index(id) ? "reduce_index" : integer ? "reduce_integer" : "reduce_real", sizeof *arguments);
    build_nests(&run->call, &arguments->outer, &arguments->inner);
    arguments->function = function_of(id);
    arguments->finite = op_attr_bool(run->call.attrs, OP_ATTR_finite);
    arguments->together = finds_index(id) || arguments->inner.count >= TOGETHER;
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    cuda_grid_items(&launch, arguments->together ? arguments->outer.count * CUDA_THREADS : arguments->outer.count);
    return launcher->add(launcher, &launch);
}
