/* matmul and grouped_matmul on a GPU: the host half of plain.cu. */
#include "kernels/matmul/matmul_cuda.h"

#include "kernels/common/cuda/host.h"
#include "kernels/kernels.h"

const char *matmul_cuda_reject(const kernel_problem *problem, text *why) {
    int operands = 0;
    bool doubles = problem->out[0]->format == DW_FORMAT_f64;
    for (int i = 0; i < problem->post.count; i++) operands += op_post_operand_of(problem->post.steps[i]) != OP_POST_NONE;
    for (int i = 0; i < problem->n_in; i++)
        if (problem->in[i] != NULL) doubles = doubles || problem->in[i]->format == DW_FORMAT_f64;
    if (operands > CUDA_POST_OPERANDS) {
        text_printf(why, "post has %d operands, this kernel takes %d", operands, CUDA_POST_OPERANDS);
        return text_string(why);
    }
    if (!doubles) return NULL;
    if (problem->op->id == OP_grouped_matmul) return "f64 is not taken in groups";
    if (problem->post.count > 0) return "a post list is computed in fp32, and this is f64";
    bool plain = cuda_is_plain(problem->in[0]->format) && cuda_is_plain(problem->in[1]->format);
    return plain ? NULL : "f64 times a block format";
}

/* Fractions of the chip's rates that were measured of 1 to 64 rows (README.md): each product decodes both of its operands. */
double matmul_cuda_cost(const kernel_problem *problem) {
    bool decodes = dw_format_is_block(problem->in[0]->format) || dw_format_is_block(problem->in[1]->format);
    return kernel_roofline(problem, DW_FORMAT_f32, 0.07, decodes ? 0.015 : 0.05);
}

size_t matmul_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* The list, and its operands' strides by batch into strides[3..]. first: the operand of the call that the first step takes. */
static void take_post(kernel_launch *launch, const kernel_run *run, int first, cuda_post *post, int64_t (*strides)[CUDA_RANK]) {
    const dw_tensor *out = run->call.out[0];
    int rank = out->rank, number = 0;
    post->count = run->post.count;
    for (int i = 0; i < run->post.count; i++) {
        op_post_operand operand = op_post_operand_of(run->post.steps[i]);
        post->steps[i] = run->post.steps[i];
        post->halves[i] = op_post_halves(run->post.steps[i]);
        post->operand[i] = operand == OP_POST_NONE ? 0 : operand == OP_POST_COLUMN ? 1 : 2;
        if (post->halves[i]) post->half = out->dims[rank - 1];
    }
    for (int i = 0; i < run->post.count; i++) {
        if (post->operand[i] == 0) continue;
        const dw_tensor *x = run->call.in[first + number];
        int64_t all[CUDA_RANK] = {0};
        int lead = rank - x->rank;
        for (int a = 0; a < x->rank; a++) all[lead + a] = x->dims[a] == 1 ? 0 : x->strides[a];
        for (int a = 0; a < rank - 2 && post->operand[i] == 2; a++) strides[3 + number][a] = all[a];
        post->row_stride[number] = all[rank - 2];
        post->col_stride[number] = all[rank - 1];
        cuda_take_array(launch, run, first + number, &post->arrays[number]);
        number++;
    }
}

static void take_batches(const kernel_run *run, matmul_arguments *arguments, int64_t (*strides)[CUDA_RANK]) {
    const dw_tensor *out = run->call.out[0], *a = run->call.in[0], *b = run->call.in[1];
    dw_tensor batches[3] = {*out, *a, *b};
    for (int i = 0; i < 3; i++) {
        batches[i].rank -= 2;
        cuda_broadcast(&batches[i], out->rank - 2, out->dims, strides[i]);
    }
    cuda_nest_build(&arguments->batch, out->rank - 2, out->dims, 3 + CUDA_POST_OPERANDS, (const int64_t(*)[CUDA_RANK])strides);
}

static void take_result(kernel_launch *launch, const kernel_run *run, matmul_arguments *arguments) {
    const dw_tensor *out = run->call.out[0];
    arguments->m = out->dims[out->rank - 2];
    arguments->n = out->dims[out->rank - 1];
    arguments->out_row = out->strides[out->rank - 2];
    arguments->out_col = out->strides[out->rank - 1];
    cuda_take_array(launch, run, KERNEL_RESULT, &arguments->out);
}

dw_status matmul_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    matmul_arguments *arguments = cuda_launch(&launch, "matmul_plain", "matmul_tiles", sizeof *arguments);
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    bool at = op_attr_bool(run->call.attrs, OP_ATTR_at), bt = op_attr_bool(run->call.attrs, OP_ATTR_bt);
    bool doubles = a->format == DW_FORMAT_f64 || b->format == DW_FORMAT_f64 || run->call.out[0]->format == DW_FORMAT_f64;
    int64_t strides[CUDA_OPERANDS][CUDA_RANK] = {{0}};
    take_result(&launch, run, arguments);
    arguments->k = a->dims[a->rank - (at ? 2 : 1)];
    cuda_take_rows(&launch, run, 0, !at, &arguments->a);
    cuda_take_rows(&launch, run, 1, bt, &arguments->b);
    take_post(&launch, run, 2, &arguments->post, strides);
    take_batches(run, arguments, strides);
    int64_t items = arguments->batch.count * arguments->m * arguments->n;
    if (items == 0) return DW_OK;
    if (doubles) {
        launch.entry = "matmul_double";
        cuda_grid_items(&launch, items);
    } else if (arguments->m <= MATMUL_FEW && arguments->b.k_stride == 1) {
        launch.entry = "matmul_few";
        cuda_grid_items(&launch, arguments->batch.count * arguments->n * CUDA_THREADS);
    } else {
        int64_t tiles = (arguments->m + MATMUL_TILE - 1) / MATMUL_TILE * ((arguments->n + MATMUL_TILE - 1) / MATMUL_TILE);
        cuda_grid_items(&launch, arguments->batch.count * tiles * CUDA_THREADS);
    }
    return launcher->add(launcher, &launch);
}

dw_status grouped_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    matmul_arguments *arguments = cuda_launch(&launch, "matmul_plain", "matmul_groups", sizeof *arguments);
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1], *offsets = run->call.in[2];
    enum { MOST = 65535 };
    int64_t strides[CUDA_OPERANDS][CUDA_RANK] = {{0}};
    take_result(&launch, run, arguments);
    arguments->k = a->dims[1];
    cuda_take_rows(&launch, run, 0, true, &arguments->a);
    cuda_take_rows(&launch, run, 1, op_attr_bool(run->call.attrs, OP_ATTR_bt), &arguments->b);
    take_post(&launch, run, 3, &arguments->post, strides);
    arguments->batch.count = 1;
    arguments->groups = b->dims[0];
    arguments->b_group = b->strides[0];
    arguments->offsets_step = offsets->strides[0];
    cuda_take_array(&launch, run, 2, &arguments->offsets);
    cuda_take_fault(&launch, &arguments->fault);
    if (arguments->m == 0 || arguments->n == 0) return DW_OK;
    if (arguments->groups + 1 > MOST) return base_fail(run->call.context, DW_LIMIT, "grouped_matmul: %lld groups, at most %d on a GPU", (long long)arguments->groups, MOST - 1);
    int64_t down = (arguments->m + MATMUL_TILE - 1) / MATMUL_TILE;
    cuda_grid(&launch, (arguments->n + MATMUL_TILE - 1) / MATMUL_TILE, down < MOST ? down : MOST, arguments->groups + 1);
    return launcher->add(launcher, &launch);
}
