/* The gradients of norms on a GPU, every operand read once: the host half of backward_rows.cu. */
#include "kernels/norm/backward_rows.h"

#include "kernels/gpu/host/host.h"
#include "kernels/gpu/rows/host.h"
#include "kernels/kernels.h"

enum { IN_X, IN_DY, IN_WEIGHT, IN_PLUS };

/* A team for each row: a part of a warp or a warp where its threads hold the row, else as few warps as can with two pieces a thread. As many clusters as are resident together, or fewer. */
typedef struct backward_division { int64_t rows, cols; int pieces, group, teams, threads, cluster, clusters; uint32_t row_bytes, rows_bytes, shared_bytes; } backward_division;

/* Shared memory of so many teams, whose rows have a format and perhaps something added. */
static void take_room(backward_division *d, int teams, dw_format format, bool has_plus) {
    d->teams = teams;
    d->row_bytes = BACKWARD_ROW_BYTES(d->pieces, format == DW_FORMAT_f32 ? CUDA_f32 : CUDA_bf16, teams * d->group);
    d->rows_bytes = d->row_bytes * (has_plus ? BACKWARD_ROWS + 1 : BACKWARD_ROWS);
    d->shared_bytes = d->rows_bytes + (uint32_t)(d->pieces * d->group * PIECE) * sizeof(float);
}

/* As many teams as a block of the chip has room for. */
static backward_division divide_row(const chip_caps *chip, int64_t cols, dw_format format, bool has_plus) {
    backward_division d = {.cols = cols, .pieces = 1, .group = 1};
    if (cols <= 32 * PIECE * (format == DW_FORMAT_f32 ? BACKWARD_F32_PIECES : BACKWARD_PIECES)) {
        while (d.group < 32 && d.group * PIECE < cols) d.group *= 2;
        d.pieces = (int)base_ceil_div(cols, d.group * PIECE);
    } else {
        d.pieces = 2;
        d.group = (int)base_ceil_div(base_ceil_div(cols, 2 * PIECE), 32) * 32;
    }
    d.threads = d.pieces > BACKWARD_F32_PIECES ? BACKWARD_MORE_THREADS : d.group > BACKWARD_THREADS ? BACKWARD_WIDE_THREADS : BACKWARD_THREADS;
    take_room(&d, d.threads / d.group, format, has_plus);
    while (d.teams > 1 && d.shared_bytes + BACKWARD_ROOM_BYTES > chip->shared_bytes) take_room(&d, d.teams / 2, format, has_plus);
    return d;
}

/* Rows of the run, as though they had so many columns. */
static backward_division divide_cols(const kernel_run *run, int64_t cols) {
    const dw_tensor *x = run->call.in[IN_X];
    backward_division d = divide_row(run->chip, cols, x->format, op_operand(&run->call, IN_PLUS) != NULL);
    d.rows = 1;
    for (int i = 0; i < x->rank - 1; i++) d.rows *= x->dims[i];
    if (d.cols == 0) return d;
    const int64_t by_shared = (int64_t)run->chip->shared_bytes / (d.shared_bytes + BACKWARD_ROOM_BYTES);
    const int64_t by_registers = BACKWARD_RESIDENT(d.pieces, d.threads, run->call.op->id == OP_layer_norm_backward);
    const int64_t resident = by_shared < 1 ? 1 : by_shared < by_registers ? by_shared : by_registers, needed = d.rows > d.teams ? base_ceil_div(d.rows, d.teams) : 1;
    d.cluster = (int)(needed < BACKWARD_CLUSTER ? needed : BACKWARD_CLUSTER);
    while (d.cluster > 1 && cuda_resident_clusters(run->chip, d.cluster, resident) == 0) d.cluster--;
    const int64_t most = base_ceil_div(needed, d.cluster), at_once = cuda_resident_clusters(run->chip, d.cluster, resident);
    d.clusters = (int)(most < at_once ? most : at_once);
    return d;
}

static backward_division divide(const kernel_run *run) {
    const dw_tensor *x = run->call.in[IN_X];
    return divide_cols(run, x->dims[x->rank - 1]);
}

/* The widest rows below these that are divided otherwise: divisions change at powers of two up to a piece for each thread of a warp, then at multiples of that at most. */
static int64_t narrower(int64_t cols) {
    enum { OF_WARP = 32 * PIECE };
    int64_t below = PIECE;
    if (cols > OF_WARP) return (cols - 1) / OF_WARP * OF_WARP;
    if (cols <= PIECE) return 0;
    while (below * 2 < cols) below *= 2;
    return below;
}

const char *norm_backward_rows_cuda_reject(const kernel_problem *problem, text *why) {
    const op_type *x = problem->in[IN_X];
    int64_t least, most;
    for (int i = 0; i < problem->n_in + problem->n_out; i++) {
        const op_type *type = i < problem->n_in ? problem->in[i] : problem->out[i - problem->n_in];
        const bool is_column = i == IN_WEIGHT || i > problem->n_in;
        if (type == NULL || (row_parts_reads(type->format) && (is_column || type->format == x->format))) continue;
        text_printf(why, "%s %d is %s%s", i < problem->n_in ? "operand" : "result", i < problem->n_in ? i : i - problem->n_in, dw_format_name(type->format), is_column ? "" : ", other than x or no format of its rows");
        return text_string(why);
    }
    dim_range(problem->dims, x->dims[x->rank - 1], &least, &most);
    if (least < 1 || most > BACKWARD_COLS_MOST) {
        text_printf(why, "rows have %lld to %lld elements; its threads hold from 1 to %d", (long long)least, (long long)most, BACKWARD_COLS_MOST);
        return text_string(why);
    }
    const backward_division d = divide_row(problem->chip, most, x->format, problem->n_in > IN_PLUS && problem->in[IN_PLUS] != NULL);
    if (d.shared_bytes + BACKWARD_ROOM_BYTES <= problem->chip->shared_bytes) return NULL;
    text_printf(why, "rows of %lld elements take %zu bytes of shared memory, and %s has %zu for a block", (long long)most, (size_t)d.shared_bytes + BACKWARD_ROOM_BYTES, problem->chip->name, problem->chip->shared_bytes);
    return text_string(why);
}

double norm_backward_rows_cuda_cost(const kernel_problem *problem) { return 4e-6 + kernel_roofline(problem, DW_FORMAT_f32, 0.5, 0.6); }

/* Enough for fewer columns too, at which more blocks are resident together and each has sums. */
size_t norm_backward_rows_cuda_workspace(const kernel_run *run) {
    const dw_tensor *x = run->call.in[IN_X];
    size_t most = 0;
    for (int64_t cols = x->dims[x->rank - 1]; cols > 0; cols = narrower(cols)) {
        const size_t bytes = (size_t)divide_cols(run, cols).clusters * 2 * (size_t)cols * sizeof(float);
        if (bytes > most) most = bytes;
    }
    return most;
}

static void take_columns(kernel_launch *launch, const kernel_run *run, norm_backward_rows_arguments *arguments) {
    const op_call *call = &run->call;
    cuda_take_array(launch, run, KERNEL_RESULT + 1, &arguments->dweight);
    arguments->dweight_step = call->out[1]->strides[0];
    if (!arguments->centred) return;
    cuda_take_array(launch, run, KERNEL_RESULT + 2, &arguments->dbias);
    arguments->dbias_step = call->out[2]->strides[0];
}

static void prepare(kernel_launch *launch, const kernel_run *run, const backward_division *d, const char *entry) {
    const op_call *call = &run->call;
    const dw_tensor *x = call->in[IN_X], *weight = op_operand(call, IN_WEIGHT), *plus = op_operand(call, IN_PLUS);
    const dw_tensor *tensors[] = {call->out[0], x, call->in[IN_DY], plus != NULL ? plus : x};
    norm_backward_rows_arguments *arguments = cuda_launch(launch, "norm_backward_rows", entry, sizeof *arguments);
    cuda_nest_lines(&arguments->nest, x->rank - 1, 4, tensors, arguments->steps);
    arguments->centred = call->op->id == OP_layer_norm_backward;
    arguments->rows = (int32_t)d->rows;
    arguments->cols = (int32_t)d->cols;
    arguments->group = d->group;
    arguments->teams = d->teams;
    arguments->part = (int32_t)base_ceil_div((arguments->centred ? 2 : 1) * d->cols, d->cluster);
    arguments->clusters = d->clusters;
    arguments->row_bytes = d->row_bytes;
    arguments->rows_bytes = d->rows_bytes;
    arguments->by_count = (float)(1.0 / (double)d->cols);
    arguments->eps = (float)op_attr_real(call->attrs, OP_ATTR_eps);
    arguments->has_weight = weight != NULL;
    arguments->has_plus = plus != NULL;
    arguments->is_whole = d->cols == (int64_t)d->pieces * d->group * PIECE;
    cuda_take_array(launch, run, KERNEL_RESULT, &arguments->dx);
    cuda_take_array(launch, run, IN_X, &arguments->x);
    cuda_take_array(launch, run, IN_DY, &arguments->dy);
    if (plus != NULL) cuda_take_array(launch, run, IN_PLUS, &arguments->plus);
    if (weight != NULL) {
        cuda_take_array(launch, run, IN_WEIGHT, &arguments->weight);
        arguments->weight_step = weight->strides[0];
    }
    take_columns(launch, run, arguments);
    cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &arguments->sums, 0);
    cuda_slot(launch, KERNEL_SLOT_COUNTERS, 0, &arguments->counters, 0);
    launch->overlaps = true;
}

dw_status norm_backward_rows_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    static const char *const entries[3][2][BACKWARD_PIECES + 1] = {
#define KIND(format, kind, four) {"norm_backward_" #format "_" kind "_1", "norm_backward_" #format "_" kind "_2", "norm_backward_" #format "_" kind "_3", four, "norm_backward_" #format "_" kind "_wide"}
#define PAIRS(format) {KIND(format, "rms", "norm_backward_" #format "_rms_4"), KIND(format, "layer", "norm_backward_" #format "_layer_4")}
        {KIND(f32, "rms", NULL), KIND(f32, "layer", NULL)}, PAIRS(bf16), PAIRS(f16),
#undef PAIRS
#undef KIND
    };
    const dw_format format = run->call.in[IN_X]->format;
    const backward_division d = divide(run);
    kernel_launch launch;
    if (d.cols == 0) return DW_OK;
    prepare(&launch, run, &d, entries[format == DW_FORMAT_f32 ? 0 : format == DW_FORMAT_bf16 ? 1 : 2][run->call.op->id == OP_layer_norm_backward][d.threads == BACKWARD_WIDE_THREADS ? BACKWARD_PIECES : d.pieces - 1]);
    cuda_grid(&launch, (int64_t)d.cluster * d.clusters, 1, 1);
    launch.cluster[0] = (uint32_t)d.cluster;
    launch.cluster[1] = launch.cluster[2] = 1;
    launch.block[0] = (uint32_t)(d.teams * d.group);
    launch.shared_bytes = d.shared_bytes;
    return launcher->add(launcher, &launch);
}
