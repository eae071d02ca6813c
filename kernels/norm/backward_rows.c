/* The gradients of norms on a GPU, every operand read once: the host half of backward_rows.cu. */
#include "kernels/norm/backward_rows.h"

#include <stdlib.h>

#include "kernels/gpu/host/host.h"
#include "kernels/gpu/rows/host.h"
#include "kernels/kernels.h"

enum { IN_X, IN_DY, IN_WEIGHT, IN_PLUS };

/* A team for each row: 2, 4, .. or 32 threads of a warp, or one, where they hold the row, else as few warps as can with two pieces a thread. A block for each multiprocessor, or fewer. */
typedef struct backward_division { int64_t rows, cols; int pieces, group, teams, blocks; uint32_t rows_bytes, shared_bytes; } backward_division;

static int64_t padded_cols(int64_t cols) { return base_ceil_div(cols, 4) * 4; }

/* Shared memory of so many teams, whose rows have a format and perhaps something added. */
static void take_room(backward_division *d, int teams, dw_format format, bool has_plus) {
    d->teams = teams;
    d->rows_bytes = BACKWARD_ROW_BYTES(d->pieces, format == DW_FORMAT_f32 ? CUDA_f32 : CUDA_bf16, teams * d->group) * (has_plus ? BACKWARD_ROWS + 1 : BACKWARD_ROWS);
    d->shared_bytes = d->rows_bytes + (uint32_t)(d->pieces * d->group * PIECE) * sizeof(float);
}

/* As many teams as a block of the chip has room for. in_words: rows lie in words of 16 bytes. */
static backward_division divide_row(const chip_caps *chip, int64_t cols, dw_format format, bool centred, bool in_words, bool has_plus) {
    backward_division d = {.cols = cols, .pieces = 1, .group = 1};
    if (in_words && cols <= 32 * PIECE * (format == DW_FORMAT_f32 ? BACKWARD_F32_PIECES : BACKWARD_PIECES)) {
        while (d.group < 32 && d.group * PIECE < cols) d.group *= 2;
        d.pieces = (int)base_ceil_div(cols, d.group * PIECE);
    } else {
        d.pieces = 2;
        while (d.group < 32 && d.group * 2 * PIECE < cols) d.group *= 2;
        if (d.group == 32) d.group = (int)base_ceil_div(cols, 32 * 2 * PIECE) * 32;
    }
    const int fewer = d.group < 32 ? 32 / d.group : 1;   /* a block is whole warps */
    take_room(&d, (in_words ? BACKWARD_THREADS(d.pieces, centred) : BACKWARD_ANY_THREADS) / d.group, format, has_plus);
    while (d.teams > fewer && d.shared_bytes + BACKWARD_ROOM_BYTES > chip->shared_bytes) take_room(&d, d.teams - fewer, format, has_plus);
    return d;
}

/* Do rows, and the weight, lie in words of 16 bytes, what every axis counts whole words apart? steps and nest as in the arguments. */
static bool lies_in_words(const kernel_run *run) {
    const dw_tensor *x = run->call.in[IN_X], *weight = op_operand(&run->call, IN_WEIGHT), *plus = op_operand(&run->call, IN_PLUS), *tensors[] = {run->call.out[0], x, run->call.in[IN_DY], plus != NULL ? plus : x};
    const int64_t elements = x->format == DW_FORMAT_f32 ? 4 : 8;
    int64_t steps[4];
    cuda_nest nest;
    cuda_nest_lines(&nest, x->rank - 1, 4, tensors, steps);
    bool in_words = nest.narrow && x->dims[x->rank - 1] % elements == 0 && (weight == NULL || (weight->strides[0] == 1 && cuda_lies_at_16(weight->data)));
    for (int k = 0; k < 4; k++) {
        in_words = in_words && steps[k] == 1 && cuda_lies_at_16(tensors[k]->data);
        for (int axis = 0; axis < nest.rank; axis++) in_words = in_words && nest.strides[k][axis] % elements == 0 && llabs(nest.strides[k][axis]) <= INT32_MAX / 4;
    }
    return in_words;
}

static backward_division divide(const kernel_run *run, bool centred, bool in_words) {
    const dw_tensor *x = run->call.in[IN_X];
    backward_division d = divide_row(run->chip, x->dims[x->rank - 1], x->format, centred, in_words, op_operand(&run->call, IN_PLUS) != NULL);
    d.rows = 1;
    for (int i = 0; i < x->rank - 1; i++) d.rows *= x->dims[i];
    if (d.cols == 0) return d;
    const int64_t most = base_ceil_div(d.rows, d.teams);
    d.blocks = (int)(most < 1 ? 1 : most < run->chip->units ? most : run->chip->units);
    return d;
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
    const backward_division d = divide_row(problem->chip, most, x->format, problem->op->id == OP_layer_norm_backward, false, problem->n_in > IN_PLUS && problem->in[IN_PLUS] != NULL);
    if (d.shared_bytes + BACKWARD_ROOM_BYTES <= problem->chip->shared_bytes) return NULL;
    text_printf(why, "rows of %lld elements take %zu bytes of shared memory, and %s has %zu for a block", (long long)most, (size_t)d.shared_bytes + BACKWARD_ROOM_BYTES, problem->chip->name, problem->chip->shared_bytes);
    return text_string(why);
}

/* What an H200 takes (bench/results/h200/training.md): few rows a row's way and the columns' way over blocks, many rows 3.7 TB/s. */
double norm_backward_rows_cuda_cost(const kernel_problem *problem) { return 4.5e-6 + kernel_roofline(problem, DW_FORMAT_f32, 0.5, 0.83); }

size_t norm_backward_rows_cuda_workspace(const kernel_run *run) {
    const dw_tensor *x = run->call.in[IN_X];
    return (size_t)run->chip->units * 2 * (size_t)padded_cols(x->dims[x->rank - 1]) * sizeof(float);
}

static row_divisor divisor_of(uint32_t size) {
    row_divisor divisor = {.shift = 0};
    while (UINT64_C(2) << divisor.shift < size) divisor.shift++;
    divisor.by = (uint32_t)(((UINT64_C(1) << (32 + divisor.shift)) + size - 1) / size);
    return divisor;
}

static void take_columns(kernel_launch *launch, const kernel_run *run, norm_backward_rows_arguments *arguments) {
    const op_call *call = &run->call;
    cuda_take_array(launch, run, KERNEL_RESULT + 1, &arguments->dweight);
    arguments->dweight_step = call->out[1]->strides[0];
    if (!arguments->centred) return;
    cuda_take_array(launch, run, KERNEL_RESULT + 2, &arguments->dbias);
    arguments->dbias_step = call->out[2]->strides[0];
}

/* How rows in words are found. Of others it is not read. */
static void take_nest(norm_backward_rows_arguments *arguments, int64_t bytes) {
    const cuda_nest *nest = &arguments->nest;
    for (int axis = 0; axis < nest->rank; axis++) {
        for (int k = 0; k < 4; k++) arguments->pitches[k][axis] = (int32_t)(nest->strides[k][axis] * bytes);
        if (nest->dims[axis] > 1 && nest->narrow) arguments->sizes[axis] = divisor_of((uint32_t)nest->dims[axis]);
    }
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
    arguments->padded = (int32_t)padded_cols(d->cols);
    arguments->group = d->group;
    arguments->teams = d->teams;
    arguments->blocks = d->blocks;
    arguments->rows_bytes = d->rows_bytes;
    arguments->by_count = (float)(1.0 / (double)d->cols);
    arguments->by_first = 1.0f / (float)(d->cols < PIECE ? d->cols : PIECE);
    take_nest(arguments, x->format == DW_FORMAT_f32 ? 4 : 2);
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
    launch->overlaps = true;
}

dw_status norm_backward_rows_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    static const char *const entries[3][2][BACKWARD_PIECES + 1] = {   /* in front those of rows in no words */
#define KIND(format, kind, four) {"norm_backward_" #format "_" kind "_any", "norm_backward_" #format "_" kind "_1", "norm_backward_" #format "_" kind "_2", "norm_backward_" #format "_" kind "_3", four}
#define PAIRS(format) {KIND(format, "rms", "norm_backward_" #format "_rms_4"), KIND(format, "layer", "norm_backward_" #format "_layer_4")}
        {KIND(f32, "rms", NULL), KIND(f32, "layer", NULL)}, PAIRS(bf16), PAIRS(f16),
#undef PAIRS
#undef KIND
    };
    const dw_format format = run->call.in[IN_X]->format;
    const bool in_words = lies_in_words(run), centred = run->call.op->id == OP_layer_norm_backward;
    const backward_division d = divide(run, centred, in_words);
    kernel_launch rows, sums;
    if (d.cols == 0) return DW_OK;
    prepare(&rows, run, &d, entries[format == DW_FORMAT_f32 ? 0 : format == DW_FORMAT_bf16 ? 1 : 2][centred][in_words ? d.pieces : 0]);
    cuda_grid(&rows, d.blocks, 1, 1);
    rows.block[0] = (uint32_t)(d.teams * d.group);
    rows.shared_bytes = d.shared_bytes;
    TRY(launcher->add(launcher, &rows));
    prepare(&sums, run, &d, "norm_backward_sums");
    cuda_grid(&sums, base_ceil_div(d.cols, BACKWARD_SUM_COLS), centred ? 2 : 1, 1);
    sums.block[0] = BACKWARD_SUM_WARPS * 32;
    return launcher->add(launcher, &sums);
}
