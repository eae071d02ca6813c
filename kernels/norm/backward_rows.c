/* The gradients of norms on a GPU, every operand read once: the host half of backward_rows.cu. */
#include "kernels/norm/backward_rows.h"

#include "kernels/gpu/host/host.h"
#include "kernels/gpu/rows/host.h"
#include "kernels/kernels.h"

enum { IN_X, IN_DY, IN_WEIGHT, IN_PLUS };

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
    if (least >= 1 && most <= BACKWARD_COLS_MOST) return NULL;
    text_printf(why, "rows have %lld to %lld elements; its threads hold from 1 to %d", (long long)least, (long long)most, BACKWARD_COLS_MOST);
    return text_string(why);
}

double norm_backward_rows_cuda_cost(const kernel_problem *problem) { return 4e-6 + kernel_roofline(problem, DW_FORMAT_f32, 0.5, 0.6); }

/* A team for each row, of threads with a piece each, or two where that is more than a block has; as many blocks as are resident together, or fewer. */
typedef struct backward_division { int64_t rows, cols; int pieces, group, teams, blocks; } backward_division;

static backward_division divide(const kernel_run *run) {
    const dw_tensor *x = run->call.in[IN_X];
    backward_division d = {.rows = 1, .cols = x->dims[x->rank - 1], .pieces = 1, .group = 1};
    for (int i = 0; i < x->rank - 1; i++) d.rows *= x->dims[i];
    const bool is_narrow = x->format != DW_FORMAT_f32 && d.cols <= BACKWARD_NARROW_THREADS * PIECE;
    const int threads = is_narrow ? BACKWARD_NARROW_THREADS : BACKWARD_THREADS;
    if (d.cols > BACKWARD_THREADS * PIECE || (x->format != DW_FORMAT_f32 && !is_narrow)) d.pieces = 2;
    const int64_t needed = base_ceil_div(d.cols, PIECE * d.pieces);
    while (d.group < needed && d.group < 32) d.group *= 2;
    if (needed > 32) d.group = (int)base_ceil_div(needed, 32) * 32;
    d.teams = threads / d.group;
    if (d.pieces == 2 && d.teams > 1) d.teams = 1;
    const int64_t most = base_ceil_div(d.rows, d.teams), resident = (int64_t)((is_narrow ? BACKWARD_NARROW_RESIDENT : BACKWARD_THREADS) / (d.teams * d.group)) * run->chip->units;
    d.blocks = (int)(most < resident ? most : resident);
    return d;
}

size_t norm_backward_rows_cuda_workspace(const kernel_run *run) {
    const backward_division d = divide(run);
    return (size_t)d.blocks * 2 * (size_t)d.cols * sizeof(float);
}

static void take_columns(kernel_launch *launch, const kernel_run *run, norm_backward_rows_arguments *arguments) {
    const op_call *call = &run->call;
    cuda_take_array(launch, run, KERNEL_RESULT + 1, &arguments->dweight);
    arguments->dweight_step = call->out[1]->strides[0];
    if (!arguments->centred) return;
    cuda_take_array(launch, run, KERNEL_RESULT + 2, &arguments->dbias);
    arguments->dbias_step = call->out[2]->strides[0];
}

static norm_backward_rows_arguments *prepare(kernel_launch *launch, const kernel_run *run, const backward_division *d, const char *entry) {
    const op_call *call = &run->call;
    const dw_tensor *x = call->in[IN_X], *weight = op_operand(call, IN_WEIGHT), *plus = op_operand(call, IN_PLUS);
    const dw_tensor *tensors[] = {call->out[0], x, call->in[IN_DY], plus != NULL ? plus : x};
    norm_backward_rows_arguments *arguments = cuda_launch(launch, "norm_backward_rows", entry, sizeof *arguments);
    cuda_nest_lines(&arguments->nest, x->rank - 1, 4, tensors, arguments->steps);
    arguments->rows = (int32_t)d->rows;
    arguments->cols = (int32_t)d->cols;
    arguments->group = d->group;
    arguments->teams = d->teams;
    arguments->blocks = d->blocks;
    arguments->by_count = (float)(1.0 / (double)d->cols);
    arguments->eps = (float)op_attr_real(call->attrs, OP_ATTR_eps);
    arguments->centred = call->op->id == OP_layer_norm_backward;
    arguments->has_weight = weight != NULL;
    arguments->has_plus = plus != NULL;
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
    launch->overlaps = true;
    return arguments;
}

dw_status norm_backward_rows_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    static const char *const entries[3][2][BACKWARD_PIECES] = {
#define ENTRIES(format) {{"norm_backward_" #format "_rms_1", "norm_backward_" #format "_rms_2"}, {"norm_backward_" #format "_layer_1", "norm_backward_" #format "_layer_2"}}
        ENTRIES(f32), ENTRIES(bf16), ENTRIES(f16),
#undef ENTRIES
    };
    const dw_format format = run->call.in[IN_X]->format;
    const backward_division d = divide(run);
    kernel_launch rows, sums;
    if (d.cols == 0) return DW_OK;
    prepare(&rows, run, &d, entries[format == DW_FORMAT_f32 ? 0 : format == DW_FORMAT_bf16 ? 1 : 2][run->call.op->id == OP_layer_norm_backward][d.pieces - 1]);
    cuda_grid(&rows, d.blocks, 1, 1);
    rows.block[0] = (uint32_t)(d.teams * d.group);
    if (d.rows > 0) TRY(launcher->add(launcher, &rows));
    prepare(&sums, run, &d, "norm_backward_sums");
    cuda_grid(&sums, base_ceil_div(d.cols, BACKWARD_SUM_COLS), 1, 1);
    sums.block[0] = BACKWARD_SUM_WARPS * 32;
    return launcher->add(launcher, &sums);
}
