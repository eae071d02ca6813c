/* matmul and grouped_matmul on a GPU by multiply-adds in fp32: the host half of plain.cu and of fp32.cu. */
#include "kernels/matmul/matmul_cuda.h"

#include "kernels/common/cuda/host.h"
#include "kernels/kernels.h"
#include "kernels/quantize/quantised.h"

const char *matmul_cuda_reject(const kernel_problem *problem, text *why) {
    if (dw_format_is_block(problem->out[0]->format)) return quantised_reject(problem, why, matmul_cuda_reject);
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
    if (dw_format_is_block(problem->out[0]->format)) return quantised_cost(problem, matmul_cuda_cost);
    bool decodes = dw_format_is_block(problem->in[0]->format) || dw_format_is_block(problem->in[1]->format);
    return kernel_roofline(problem, DW_FORMAT_f32, 0.07, decodes ? 0.016 : 0.0533);
}

size_t matmul_cuda_workspace(const kernel_run *run) { return dw_format_is_block(run->call.out[0]->format) ? quantised_workspace(run, matmul_cuda_workspace) : 0; }

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

/* All but the entry. */
static matmul_arguments *take_matmul(kernel_launch *launch, const kernel_run *run) {
    matmul_arguments *arguments = cuda_launch(launch, "matmul_plain", "matmul_tiles", sizeof *arguments);
    const dw_tensor *a = run->call.in[0];
    bool at = op_attr_bool(run->call.attrs, OP_ATTR_at), bt = op_attr_bool(run->call.attrs, OP_ATTR_bt);
    int64_t strides[CUDA_OPERANDS][CUDA_RANK] = {{0}};
    take_result(launch, run, arguments);
    arguments->k = a->dims[a->rank - (at ? 2 : 1)];
    cuda_take_rows(launch, run, 0, !at, &arguments->a);
    cuda_take_rows(launch, run, 1, bt, &arguments->b);
    take_post(launch, run, 2, &arguments->post, strides);
    take_batches(run, arguments, strides);
    return arguments;
}

static bool has_few_rows(const matmul_arguments *arguments) { return arguments->m <= MATMUL_FEW && arguments->b.k_stride == 1; }

static dw_status launch_plain(kernel_launcher *launcher, kernel_launch *launch, const matmul_arguments *arguments, bool doubles) {
    int64_t items = arguments->batch.count * arguments->m * arguments->n;
    if (items == 0) return DW_OK;
    if (doubles) {
        launch->entry = "matmul_double";
        cuda_grid_items(launch, items);
    } else if (has_few_rows(arguments)) {
        launch->entry = "matmul_few";
        cuda_grid_items(launch, arguments->batch.count * arguments->n * CUDA_THREADS);
    } else {
        int64_t tiles = (arguments->m + MATMUL_TILE - 1) / MATMUL_TILE * ((arguments->n + MATMUL_TILE - 1) / MATMUL_TILE);
        cuda_grid_items(launch, arguments->batch.count * tiles * CUDA_THREADS);
    }
    return launcher->add(launcher, launch);
}

dw_status matmul_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    if (dw_format_is_block(run->call.out[0]->format)) return quantised_shape(run, launcher, matmul_cuda_workspace, matmul_cuda_shape);
    kernel_launch launch;
    const matmul_arguments *arguments = take_matmul(&launch, run);
    bool doubles = run->call.in[0]->format == DW_FORMAT_f64 || run->call.in[1]->format == DW_FORMAT_f64 || run->call.out[0]->format == DW_FORMAT_f64;
    return launch_plain(launcher, &launch, arguments, doubles);
}

/* ---- many rows ---- */

static bool is_float(dw_format format) { return format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }

const char *matmul_fp32_reject(const kernel_problem *problem, text *why) {
    if (dw_format_is_block(problem->out[0]->format)) return quantised_reject(problem, why, matmul_fp32_reject);
    const dw_format a = problem->in[0]->format, b = problem->in[1]->format;
    if (!is_float(a) || !is_float(b)) {
        text_printf(why, "%s times %s is not of f32, bf16 and f16", dw_format_name(a), dw_format_name(b));
        return text_string(why);
    }
    return matmul_cuda_reject(problem, why);
}

static int64_t tiles_of(int tile, int64_t batches, int64_t m, int64_t n, bool halves) {
    const int64_t wide = halves ? tile / 2 : tile;
    return batches * ((m + tile - 1) / tile) * ((n + wide - 1) / wide);
}

/* Multiprocessors take tiles in turns. With two blocks on each the loop keeps four fifths of the multiply-adds busy, as counted in its machine code, or, where tiles
 * are small, three fifths, as shared memory is read more; one block alone hides less. Not measured. */
static double fp32_seconds(const chip_caps *chip, int tile, int64_t tiles, int64_t k) {
    const int64_t turns = (tiles + chip->units - 1) / chip->units;
    const double share = (tile == 128 ? 0.8 : 0.6) * (turns > 1 ? 1 : 0.7), each = 2.0 * tile * tile * (double)k * chip->units / (chip_flops(chip, DW_FORMAT_f32) * share);
    return 3e-6 + (double)turns * (each + 1e-6);
}

static int fp32_tile(const chip_caps *chip, int64_t batches, int64_t m, int64_t n, int64_t k, bool halves) {
    return fp32_seconds(chip, 128, tiles_of(128, batches, m, n, halves), k) <= fp32_seconds(chip, 64, tiles_of(64, batches, m, n, halves), k) ? 128 : 64;
}

double matmul_fp32_cost(const kernel_problem *problem) {
    if (dw_format_is_block(problem->out[0]->format)) return quantised_cost(problem, matmul_fp32_cost);
    dw_tensor in[KERNEL_MAX_OPERANDS], out[KERNEL_MAX_RESULTS];
    const dw_tensor *in_pointers[KERNEL_MAX_OPERANDS], *out_pointers[KERNEL_MAX_RESULTS];
    op_call call;
    const double plain = matmul_cuda_cost(problem);
    if (problem->symbols == NULL || kernel_problem_call(problem, in, out, in_pointers, out_pointers, &call) != DW_OK) return plain;
    const bool at = op_attr_bool(problem->attrs, OP_ATTR_at);
    const int64_t m = out[0].dims[out[0].rank - 2], n = out[0].dims[out[0].rank - 1], k = in[0].dims[in[0].rank - (at ? 2 : 1)];
    bool halves = false;
    int64_t batches = 1;
    for (int i = 0; i < out[0].rank - 2; i++) batches *= out[0].dims[i];
    for (int i = 0; i < problem->post.count; i++) halves = halves || op_post_halves(problem->post.steps[i]);
    if ((m <= MATMUL_FEW && !problem->named) || n == 0) return plain;
    const int tile = fp32_tile(problem->chip, batches, m, n, k, halves);
    const double bound = kernel_roofline(problem, DW_FORMAT_f32, 1, 0.746), seconds = fp32_seconds(problem->chip, tile, tiles_of(tile, batches, m, n, halves), k);
    return seconds > bound ? seconds : bound;
}

size_t matmul_fp32_workspace(const kernel_run *run) { return dw_format_is_block(run->call.out[0]->format) ? quantised_workspace(run, matmul_fp32_workspace) : 0; }

/* Does fp32.cu count to all of it? */
static bool is_narrow(const matmul_arguments *p, int64_t tiles) {
    const int64_t most = INT32_MAX / 64, strides[] = {p->a.row_stride, p->a.k_stride, p->b.row_stride, p->b.k_stride};
    for (size_t i = 0; i < COUNT_OF(strides); i++)
        if (strides[i] > most || strides[i] < -most) return false;
    return p->m < INT32_MAX / 4 && p->n < INT32_MAX / 4 && p->k < INT32_MAX / 4 && tiles < INT32_MAX / 4;
}

/* Of few rows, unless the row was asked for by name, and past what fp32.cu counts to, the plain kernel's entries. */
dw_status matmul_fp32_shape(const kernel_run *run, kernel_launcher *launcher) {
    if (dw_format_is_block(run->call.out[0]->format)) return quantised_shape(run, launcher, matmul_fp32_workspace, matmul_fp32_shape);
    enum { MOST_BLOCKS = 1 << 16 };
    kernel_launch launch;
    const matmul_arguments *arguments = take_matmul(&launch, run);
    const bool halves = arguments->post.half > 0;
    const int tile = fp32_tile(run->chip, arguments->batch.count, arguments->m, arguments->n, arguments->k, halves);
    const int64_t tiles = tiles_of(tile, arguments->batch.count, arguments->m, arguments->n, halves);
    if (tiles == 0) return DW_OK;
    if (!is_narrow(arguments, tiles)) return kernel_hand_over(run, launcher, "cuda_matmul_fp32", "cuda_matmul_plain", "it counts to fewer elements", matmul_cuda_shape);
    if (has_few_rows(arguments) && !run->named) return launch_plain(launcher, &launch, arguments, false);
    launch.image = "matmul_fp32";
    launch.entry = tile == 128 ? "matmul_fp32_128" : "matmul_fp32_64";
    launch.shared_bytes = (uint32_t)(tile * (tile + 4) * 4);
    cuda_grid(&launch, tiles < MOST_BLOCKS ? tiles : MOST_BLOCKS, 1, 1);
    return launcher->add(launcher, &launch);
}

/* ---- groups ---- */

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
