/* matmul and grouped_matmul on a GPU by multiply-adds in fp32: the host half of plain.cu and of fp32.cu. */
#include "kernels/gemm/plain/plain.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

static const char *reject(const kernel_problem *problem, text *why) {
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
    if (problem->op->id == OP_grouped_matmul || problem->op->id == OP_grouped_outer) return "f64 is not taken in groups";
    if (problem->post.count > 0) return "a post list is computed in fp32, and this is f64";
    bool plain = cuda_is_plain(problem->in[0]->format) && cuda_is_plain(problem->in[1]->format);
    return plain ? NULL : "f64 times a block format";
}

/* Fractions of the chip's rates that were measured of 1 to 64 rows (README.md): each product decodes both of its operands. Of tiles, which more rows than MATMUL_FEW are, each step along k waits for memory, as
 * measured of 9 to 64 rows of up to 4096 columns on an H100 (bench/results/h200/plain.md). */
static double plain_seconds(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0];
    const bool decodes = dw_format_is_block(a->format) || dw_format_is_block(run->call.in[1]->format);
    const double roofline = kernel_run_roofline(run, DW_FORMAT_f32, 0.07, decodes ? 0.016 : 0.0533), rows = (double)kernel_result_rows(&run->call);
    if (rows <= MATMUL_FEW) return roofline;
    const bool is_outer = run->call.op->id == OP_grouped_outer;      /* whose k is a group's rows, as many as another's */
    const double k = is_outer ? (double)a->dims[0] / (double)run->call.out[0]->dims[0] : (double)a->dims[a->rank - (op_attr_bool(run->call.attrs, OP_ATTR_at) ? 2 : 1)];
    const double in_tile = rows < MATMUL_TILE ? rows : MATMUL_TILE;
    const double steps = 1e-6 * k * (decodes ? 0.295 * (1 + in_tile / 155) : 0.235 * (1 + in_tile / 250));
    return steps > roofline ? steps : roofline;
}

const char *matmul_plain_refuses(const kernel_problem *problem, text *why) { return reject(problem, why); }
double matmul_plain_seconds(const kernel_run *run) { return plain_seconds(run); }

/* Its estimate was measured of up to so many rows; for more it is what runs where nothing else does. */
enum { PLAIN_ROWS = 64 };

int64_t matmul_plain_rows(const kernel_run *run) {
    (void)run;
    return PLAIN_ROWS;
}

int64_t grouped_plain_rows(const kernel_run *run) {
    (void)run;
    return PLAIN_ROWS;
}

const char *matmul_plain_takes(const kernel_run *run, text *why) {
    (void)run, (void)why;
    return NULL;
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

/* Few rows have a kernel of their own, which divides k among threads. */
static bool has_few_rows(const kernel_run *run, const matmul_arguments *arguments) { return !run->invariant && arguments->m <= MATMUL_FEW && arguments->b.k_stride == 1; }

static dw_status launch_plain(const kernel_run *run, kernel_launcher *launcher, kernel_launch *launch, const matmul_arguments *arguments, bool doubles) {
    int64_t items = arguments->batch.count * arguments->m * arguments->n;
    if (items == 0) return DW_OK;
    if (doubles) {
        launch->entry = "matmul_double";
        cuda_grid_items(launch, items);
    } else if (has_few_rows(run, arguments)) {
        launch->entry = "matmul_few";
        cuda_grid_items(launch, arguments->batch.count * arguments->n * CUDA_THREADS);
    } else {
        int64_t tiles = base_ceil_div(arguments->m, MATMUL_TILE) * base_ceil_div(arguments->n, MATMUL_TILE);
        cuda_grid_items(launch, arguments->batch.count * tiles * CUDA_THREADS);
    }
    return launcher->add(launcher, launch);
}

dw_status matmul_plain_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    const matmul_arguments *arguments = take_matmul(&launch, run);
    bool doubles = run->call.in[0]->format == DW_FORMAT_f64 || run->call.in[1]->format == DW_FORMAT_f64 || run->call.out[0]->format == DW_FORMAT_f64;
    return launch_plain(run, launcher, &launch, arguments, doubles);
}

/* ---- many rows ---- */

static bool is_float(dw_format format) { return format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }

const char *matmul_fp32_refuses(const kernel_problem *problem, text *why) {
    const dw_format a = problem->in[0]->format, b = problem->in[1]->format;
    if (!is_float(a) || !is_float(b)) {
        text_printf(why, "%s times %s is not of f32, bf16 and f16", dw_format_name(a), dw_format_name(b));
        return text_string(why);
    }
    return reject(problem, why);
}

static int64_t tiles_of(int tile, int64_t batches, int64_t m, int64_t n, bool halves) {
    const int64_t wide = halves ? tile / 2 : tile;
    return batches * base_ceil_div(m, tile) * base_ceil_div(n, wide);
}

/* Multiprocessors take tiles in turns. With two blocks on each the loop keeps four fifths of the multiply-adds busy, as counted in its machine code, or, where tiles
 * are small, three fifths, as shared memory is read more; one block alone hides less. Not measured. */
static double fp32_seconds(const chip_caps *chip, int tile, int64_t tiles, int64_t k) {
    const int64_t turns = base_ceil_div(tiles, chip->units);
    const double share = (tile == 128 ? 0.8 : 0.6) * (turns > 1 ? 1 : 0.7), each = 2.0 * tile * tile * (double)k * chip->units / (chip_flops(chip, DW_FORMAT_f32) * share);
    return 3e-6 + (double)turns * (each + 1e-6);
}

static int fp32_tile(const chip_caps *chip, int64_t batches, int64_t m, int64_t n, int64_t k, bool halves) {
    return fp32_seconds(chip, 128, tiles_of(128, batches, m, n, halves), k) <= fp32_seconds(chip, 64, tiles_of(64, batches, m, n, halves), k) ? 128 : 64;
}

/* Whose rows and columns are the last two axes. */
typedef struct fp32_sizes { int64_t batches, m, n, k; bool halves; } fp32_sizes;

static fp32_sizes sizes_of(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0], *out = run->call.out[0];
    fp32_sizes z = {1, out->dims[out->rank - 2], out->dims[out->rank - 1], a->dims[a->rank - (op_attr_bool(run->call.attrs, OP_ATTR_at) ? 2 : 1)], false};
    for (int i = 0; i < out->rank - 2; i++) z.batches *= out->dims[i];
    for (int i = 0; i < run->post.count; i++) z.halves = z.halves || op_post_halves(run->post.steps[i]);
    return z;
}

double matmul_fp32_seconds(const kernel_run *run) {
    const fp32_sizes z = sizes_of(run);
    const int tile = fp32_tile(run->chip, z.batches, z.m, z.n, z.k, z.halves);
    const double bound = kernel_run_roofline(run, DW_FORMAT_f32, 1, 0.746), seconds = fp32_seconds(run->chip, tile, tiles_of(tile, z.batches, z.m, z.n, z.halves), z.k);
    return seconds > bound ? seconds : bound;
}

/* Does fp32.cu count to all of it? */
static bool is_narrow(const matmul_arguments *p, int64_t tiles) {
    const int64_t most = INT32_MAX / 64, strides[] = {p->a.row_stride, p->a.k_stride, p->b.row_stride, p->b.k_stride};
    for (size_t i = 0; i < COUNT_OF(strides); i++)
        if (strides[i] > most || strides[i] < -most) return false;
    return p->m < INT32_MAX / 4 && p->n < INT32_MAX / 4 && p->k < INT32_MAX / 4 && tiles < INT32_MAX / 4;
}

static int64_t all_tiles(const matmul_arguments *p, int tile) { return tiles_of(tile, p->batch.count, p->m, p->n, p->post.half > 0); }
static int tile_of(const kernel_run *run, const matmul_arguments *p) { return fp32_tile(run->chip, p->batch.count, p->m, p->n, p->k, p->post.half > 0); }

const char *matmul_fp32_takes(const kernel_run *run, text *why) {
    kernel_launch launch;
    const matmul_arguments *arguments = take_matmul(&launch, run);
    return is_narrow(arguments, all_tiles(arguments, tile_of(run, arguments))) ? NULL : kernel_because(why, "it counts to fewer elements");
}

/* Few rows of a past rows of b are the plain kernel's, which has an entry for them. */
int64_t matmul_fp32_rows(const kernel_run *run) {
    kernel_launch launch;
    return has_few_rows(run, take_matmul(&launch, run)) ? 0 : INT64_MAX;
}

dw_status matmul_fp32_shape(const kernel_run *run, kernel_launcher *launcher) {
    enum { MOST_BLOCKS = 1 << 16 };
    kernel_launch launch;
    const matmul_arguments *arguments = take_matmul(&launch, run);
    const int tile = tile_of(run, arguments);
    const int64_t tiles = all_tiles(arguments, tile);
    launch.image = "matmul_fp32";
    launch.entry = tile == 128 ? "matmul_fp32_128" : "matmul_fp32_64";
    launch.shared_bytes = (uint32_t)(tile * (tile + 4) * 4);
    cuda_grid(&launch, tiles < MOST_BLOCKS ? tiles : MOST_BLOCKS, 1, 1);
    return launcher->add(launcher, &launch);
}

/* ---- groups ---- */

enum { MOST_GROUPS = 65535 };         /* of blocks along an axis of a grid */

const char *grouped_plain_refuses(const kernel_problem *problem, text *why) {
    if (dw_format_is_block(problem->out[0]->format)) return "the result is in blocks";
    return reject(problem, why);
}

const char *grouped_plain_takes(const kernel_run *run, text *why) {
    const int64_t groups = run->call.in[1]->dims[0];
    return groups < MOST_GROUPS ? NULL : kernel_because(why, "%lld groups, at most %d on a GPU", (long long)groups, MOST_GROUPS - 1);
}

double grouped_plain_seconds(const kernel_run *run) { return plain_seconds(run); }

dw_status grouped_plain_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    matmul_arguments *arguments = cuda_launch(&launch, "matmul_plain", "matmul_groups", sizeof *arguments);
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1], *offsets = run->call.in[2];
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
    arguments->apart = op_rows_apart(&run->call);
    cuda_take_array(&launch, run, 2, &arguments->offsets);
    cuda_take_fault(&launch, &arguments->fault);
    if (arguments->m == 0 || arguments->n == 0) return DW_OK;
    int64_t down = base_ceil_div(arguments->m, MATMUL_TILE);
    cuda_grid(&launch, base_ceil_div(arguments->n, MATMUL_TILE), down < MOST_GROUPS ? down : MOST_GROUPS, arguments->groups + 1);
    return launcher->add(launcher, &launch);
}

/* ---- outer products of groups ---- */

const char *grouped_outer_plain_refuses(const kernel_problem *problem, text *why) { return reject(problem, why); }

const char *grouped_outer_plain_takes(const kernel_run *run, text *why) {
    (void)run, (void)why;
    return NULL;
}

double grouped_outer_plain_seconds(const kernel_run *run) { return plain_seconds(run); }

/* The result's matrices are [m,n]; k is all rows, of which each group has its own. */
dw_status grouped_outer_plain_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    matmul_arguments *arguments = cuda_launch(&launch, "matmul_plain", "matmul_outer", sizeof *arguments);
    const dw_tensor *offsets = run->call.in[2], *out = run->call.out[0];
    take_result(&launch, run, arguments);
    arguments->k = run->call.in[0]->dims[0];
    cuda_take_rows(&launch, run, 0, false, &arguments->a);
    cuda_take_rows(&launch, run, 1, false, &arguments->b);
    arguments->batch.count = 1;
    arguments->groups = out->dims[0];
    arguments->b_group = out->strides[0];
    arguments->offsets_step = offsets->strides[0];
    cuda_take_array(&launch, run, 2, &arguments->offsets);
    cuda_take_fault(&launch, &arguments->fault);
    const int64_t down = base_ceil_div(arguments->m, MATMUL_TILE);
    cuda_grid(&launch, base_ceil_div(arguments->n, MATMUL_TILE), down < MOST_GROUPS ? down : MOST_GROUPS, arguments->groups < MOST_GROUPS ? arguments->groups : MOST_GROUPS);
    return launcher->add(launcher, &launch);
}
