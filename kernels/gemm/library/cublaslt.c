/* matmul by cuBLASLt. It counts matrices by columns, so a row of ours is a column of its: our result [m,n] is its [n,m], our b its a. Pure: knows no driver. */
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/library/cublaslt.h"
#include "kernels/gemm/host.h"
#include "kernels/move/move_cuda.h"

#include <math.h>

/* ---- modes ---- */

/* What it multiplies: formats of a and b, its type and scale modes of a and b (ours), the chips, and fractions of their rates (README.md). */
typedef struct lt_mode {
    dw_format a, b;
    cublaslt_type type;
    int scaled, mode_a, mode_b;
    int first_arch, last_arch;
    double compute, memory;
} lt_mode;

static const lt_mode modes[] = {
    {DW_FORMAT_bf16, DW_FORMAT_bf16, CUBLASLT_BF16, 0, 0, 0, 80, 999, 0.932, 0.885},
    {DW_FORMAT_f16, DW_FORMAT_f16, CUBLASLT_F16, 0, 0, 0, 80, 999, 0.932, 0.885},
    {DW_FORMAT_f32, DW_FORMAT_f32, CUBLASLT_F32, 0, 0, 0, 80, 999, 0.7, 0.746},
    {DW_FORMAT_fp8_tensor, DW_FORMAT_fp8_tensor, CUBLASLT_E4M3, 1, CUBLASLT_SCALE_ONE, CUBLASLT_SCALE_ONE, 89, 999, 0.837, 0.853},
    {DW_FORMAT_fp8_row, DW_FORMAT_fp8_row, CUBLASLT_E4M3, 1, CUBLASLT_SCALE_EACH, CUBLASLT_SCALE_EACH, 90, 103, 0.811, 0.426},
    {DW_FORMAT_fp8_1x128, DW_FORMAT_fp8_128x128, CUBLASLT_E4M3, 1, CUBLASLT_SCALE_1X128, CUBLASLT_SCALE_128X128, 90, 90, 0.761, 0.426},
    {DW_FORMAT_mxfp8, DW_FORMAT_mxfp8, CUBLASLT_E4M3, 1, CUBLASLT_SCALE_32_E8M0, CUBLASLT_SCALE_32_E8M0, 100, 999, 0.837, 0.853},
};

static const lt_mode *mode_of(dw_format a, dw_format b) {
    for (size_t i = 0; i < COUNT_OF(modes); i++)
        if (modes[i].a == a && modes[i].b == b) return &modes[i];
    return NULL;
}

/* ---- post lists ---- */

typedef struct lt_post { int epilogue; int bias, add; } lt_post;   /* operands of the call; 0: none */

/* Is the list [bias] [add | relu | gelu_tanh]? */
static bool take_post(const op_post_list *post, lt_post *taken) {
    int at = 0, operand = 2;
    *taken = (lt_post){0};
    if (at < post->count && post->steps[at] == OP_POST_bias) at++, taken->epilogue |= CUBLASLT_POST_BIAS, taken->bias = operand++;
    if (at < post->count) {
        if (post->steps[at] == OP_POST_add) at++, taken->add = operand++;
        else if (post->steps[at] == OP_POST_relu) at++, taken->epilogue |= CUBLASLT_POST_RELU;
        else if (post->steps[at] == OP_POST_gelu_tanh) at++, taken->epilogue |= CUBLASLT_POST_GELU;
    }
    if (taken->epilogue == 0) taken->epilogue = CUBLASLT_POST_NONE;
    return at == post->count;
}

/* ---- what is taken ---- */

static bool is_result_of(const lt_mode *mode, dw_format out) {
    switch (mode->type) {
    case CUBLASLT_F32: return out == DW_FORMAT_f32;
    case CUBLASLT_F16: return out == DW_FORMAT_f16 || out == DW_FORMAT_f32;
    case CUBLASLT_BF16: return out == DW_FORMAT_bf16 || out == DW_FORMAT_f32;
    default: return out == DW_FORMAT_f16 || out == DW_FORMAT_bf16 || out == DW_FORMAT_f32;
    }
}

static bool is_one(dim d) {
    int64_t value;
    return dim_is_constant(d, &value) && value == 1;
}

static bool has_batches(const op_type *x) {
    for (int i = 0; i < x->rank - 2; i++)
        if (!is_one(x->dims[i])) return true;
    return false;
}

static bool are_same(const op_type *x, const op_type *y, int rank) {
    for (int i = 0; i < rank; i++)
        if (x->dims[i] != y->dims[i]) return false;
    return x->rank == y->rank;
}

static const char *reject_operands(const kernel_problem *problem, const lt_mode *mode) {
    const op_type *a = problem->in[0], *b = problem->in[1];
    const bool at = op_attr_bool(problem->attrs, OP_ATTR_at), bt = op_attr_bool(problem->attrs, OP_ATTR_bt);
    if (mode->scaled && (at || !bt)) return "operands of 8 bits are read with k last";
    if (mode->scaled && has_batches(b)) return "b has batches, and scales for each";
    if (has_batches(b) && !are_same(a, b, a->rank - 2)) return "the batches of a are not those of b";
    if (at && has_batches(a) && !has_batches(b)) return "a has batches and is stored with k first";
    if (!has_batches(b) && a->rank < b->rank) return "b has more axes than a";
    if (mode->mode_a == CUBLASLT_SCALE_32_E8M0 && (a->scale_layout != DW_SCALE_tile128x4 || b->scale_layout != DW_SCALE_tile128x4 || has_batches(a)))
        return "scales of 32 are read in tiles of 128 x 4, of a matrix without batches";
    if (mode->mode_a != CUBLASLT_SCALE_32_E8M0 && (a->scale_layout != DW_SCALE_plain || b->scale_layout != DW_SCALE_plain)) return "scales are in tiles of 128 x 4";
    return NULL;
}

/* Rows between multiples of 16 bytes go to kernels of its that round a result of 16 bits more than once: seen with bias and gelu, README.md. */
static const char *reject_rows(const kernel_problem *problem) {
    const op_type *const rows[] = {problem->in[0], problem->in[1], problem->out[0]};
    for (int i = 0; i < 3; i++) {
        int64_t size;
        if (!dim_is_constant(rows[i]->dims[rows[i]->rank - 1], &size) || size % 8 != 0) return "rows are not known to be multiples of 16 bytes, and the result has 16 bits";
    }
    return NULL;
}

static const char *reject_sizes(const kernel_problem *problem, const lt_mode *mode) {
    const op_type *a = problem->in[0], *out = problem->out[0];
    const bool at = op_attr_bool(problem->attrs, OP_ATTR_at);
    int64_t k = 1, n, rows = 1, size;
    const bool has_k = dim_is_constant(a->dims[a->rank - (at ? 2 : 1)], &k);
    if (!dim_is_constant(out->dims[out->rank - 1], &n)) return "n is not known at plan time";
    if (mode->scaled && !has_k) return "k is not known at plan time, and scales are for parts of it";
    if ((has_k && k == 0) || n == 0) return "k or n is 0";
    if (mode->scaled && (k % 16 != 0 || n % 16 != 0)) return "k or n is not a multiple of 16";
    if (!mode->scaled && out->format != DW_FORMAT_f32 && reject_rows(problem) != NULL) return reject_rows(problem);
    for (int i = 0; i < a->rank - 1 && mode->mode_a == CUBLASLT_SCALE_1X128; i++) {
        if (!dim_is_constant(a->dims[i], &size)) return "scales by block want a number of rows that is a multiple of 4, and it is not known";
        rows *= size;
    }
    return mode->mode_a == CUBLASLT_SCALE_1X128 && rows % 4 != 0 ? "scales by block want a number of rows that is a multiple of 4" : NULL;
}

static const char *reject_post(const kernel_problem *problem, const lt_mode *mode) {
    const op_type *out = problem->out[0];
    lt_post post;
    if (!take_post(&problem->post, &post)) return "of post lists it has bias, and behind it add, relu or gelu_tanh";
    const dw_format bias = mode->scaled && out->format == DW_FORMAT_f32 ? DW_FORMAT_bf16 : out->format;
    if (post.bias > 0 && problem->in[post.bias]->format != bias) return "the bias is in another format than the result";
    if (post.add > 0 && (problem->in[post.add]->format != out->format || !are_same(problem->in[post.add], out, out->rank))) return "what is added has another format or shape than the result";
    return NULL;
}

const char *matmul_cublaslt_refuses(const kernel_problem *problem, text *why) {
    const op_type *a = problem->in[0], *b = problem->in[1];
    const lt_mode *mode = mode_of(a->format, b->format);
    if (mode == NULL || !is_result_of(mode, problem->out[0]->format)) {
        text_printf(why, "%s times %s to %s is not one of its products", dw_format_name(a->format), dw_format_name(b->format), dw_format_name(problem->out[0]->format));
        return text_string(why);
    }
    if (problem->chip->arch < mode->first_arch || problem->chip->arch > mode->last_arch) {
        text_printf(why, "it multiplies %s and %s from sm_%d to sm_%d, not on sm_%d", dw_format_name(a->format), dw_format_name(b->format), mode->first_arch, mode->last_arch,
                    problem->chip->arch);
        return text_string(why);
    }
    const char *reason = reject_operands(problem, mode);
    if (reason == NULL) reason = reject_sizes(problem, mode);
    return reason != NULL ? reason : reject_post(problem, mode);
}

/* What is added is read when the products of a tile are done: in a model's run on an H200 at 0.7 of the bandwidth (bench/results/h200/models.md). */
static double added_seconds(const kernel_run *run) {
    lt_post post;
    if (!take_post(&run->post, &post) || post.add == 0) return 0;
    return (double)op_tensor_bytes(run->call.in[post.add]) / (0.7 * chip_bytes_per_s(run->chip));
}

/* Its launch has no place where the next one could hang, which then begins when it has ended: 1.3 us a launch that overlap hides behind tiles of our own (48 of a run of BERT-base of 128 tokens on an H200). */
#define OVERLAP_SECONDS 1.2e-6

/* Of 16 bits the parts of a long k are added up by a launch of their own: 8.0 us of 16 rows and 9.1 of 128 by 768 x 3072, 9.6 of 128 by 1024 x 4096, in runs on an H200. With scales of rows no call divides k, which takes its time however few
 * tiles there are: 6.3, 8.7, 13.1 and 22.7 us for k of 1024, 2048, 4096 and 8192 at 128 rows. */
static double depth_seconds(const lt_mode *mode, int64_t k) {
    enum { LONG = 2048 };
    if (mode->mode_a == CUBLASLT_SCALE_EACH && mode->scaled) return 4e-6 + 2.3e-9 * (double)k;
    return !mode->scaled && mode->type != CUBLASLT_F32 && k > LONG ? 4.4e-6 + 0.6e-9 * (double)k : 0;
}

/* With fp8 scales by block no call divides k, which then takes its time whatever the other
 * sizes are, and both operands' scales are copied first (measured on an H200: 10, 12, 23 and 38 us for k of 2048, 3072, 7168 and 16384 at 16 to 128 rows). */
double matmul_cublaslt_seconds(const kernel_run *run) {
    const dw_tensor *a = run->call.in[0];
    const lt_mode *mode = mode_of(a->format, run->call.in[1]->format);
    const double roofline = kernel_run_roofline(run, a->format, mode->compute, mode->memory), around = added_seconds(run) + OVERLAP_SECONDS;
    const int64_t k = a->dims[a->rank - (op_attr_bool(run->call.attrs, OP_ATTR_at) ? 2 : 1)];
    if (a->format != DW_FORMAT_fp8_1x128) return around + fmax(roofline, depth_seconds(mode, k));
    return 3e-6 + around + fmax(roofline, 4e-6 + 2.5e-9 * (double)a->dims[a->rank - 1]);
}

const char *matmul_cublaslt_takes(const kernel_run *run, text *why) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1], *out = run->call.out[0];
    const int64_t m = kernel_result_rows(&run->call), n = out->dims[out->rank - 1], k = a->dims[a->rank - (op_attr_bool(run->call.attrs, OP_ATTR_at) ? 2 : 1)];
    int64_t batches = 1;
    for (int i = 0; i < b->rank - 2; i++) batches *= b->dims[i];
    if (k == 0) return "k is 0";
    if (m / batches <= INT32_MAX && n <= INT32_MAX && k <= INT32_MAX && batches <= INT32_MAX) return NULL;
    return kernel_because(why, "%lld x %lld x %lld, %lld times, is more than cuBLASLt counts to", (long long)(m / batches), (long long)n, (long long)k, (long long)batches);
}

const char *matmul_cublaslt_variant(const kernel_problem *problem, int index) {
    static const char *const names[CUBLASLT_CANDIDATES] = {"candidate0", "candidate1", "candidate2", "candidate3", "candidate4", "candidate5", "candidate6", "candidate7"};
    (void)problem;
    return index < CUBLASLT_CANDIDATES ? names[index] : NULL;
}

/* ---- scales by block ---- */

enum { ROUND = 256 };

/* Bytes of its copies of scales: those of a with rows running fastest, those of b with a multiple of 4 along k. */
static int64_t scale_bytes(const kernel_run *run, int operand) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    if (a->format != DW_FORMAT_fp8_1x128) return 0;
    const int64_t blocks = base_ceil_div(a->dims[a->rank - 1], 128);
    int64_t rows = 1;
    for (int i = 0; i < a->rank - 1; i++) rows *= a->dims[i];
    const int64_t count = operand == 0 ? rows * blocks : base_ceil_div(b->dims[b->rank - 2], 128) * base_ceil_div(blocks, 4) * 4;
    return base_ceil_div(count * 4, ROUND) * ROUND;
}

size_t matmul_cublaslt_workspace(const kernel_run *run) {
    return (size_t)(scale_bytes(run, 0) + scale_bytes(run, 1)) + CUBLASLT_WORKSPACE + CUBLASLT_WORKSPACE_ALIGN;
}

/* Scales [rows, blocks] of an operand to offset bytes in the workspace, with these strides. */
static dw_status copy_scales(const kernel_run *run, kernel_launcher *launcher, int operand, int64_t rows, int64_t blocks, int64_t row_stride, int64_t block_stride, int64_t offset) {
    kernel_launch launch;
    copy_arguments *g = cuda_launch(&launch, "move", "move_copy", sizeof *g);
    const int64_t dims[] = {rows, blocks}, strides[2][CUDA_RANK] = {{row_stride, block_stride}, {blocks, 1}};
    (void)run;
    cuda_nest_build(&g->nest, 2, dims, 2, strides);
    cuda_take_scratch(&launch, DW_FORMAT_f32, offset, &g->to);
    g->from.format = DW_FORMAT_f32;
    g->from.element_bytes = 4;
    cuda_slot(&launch, KERNEL_SLOT_SCALES, operand, &g->from.data, 0);
    cuda_grid_items(&launch, g->nest.count);
    return launcher->add(launcher, &launch);
}

/* Both in the layout that it reads (cublasLt.h, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F and _BLK128x128_32F). */
static dw_status copy_block_scales(const kernel_run *run, kernel_launcher *launcher, int64_t m, int64_t n, int64_t k) {
    const int64_t blocks = base_ceil_div(k, 128);
    TRY(copy_scales(run, launcher, 0, m, blocks, 1, m, 0));
    return copy_scales(run, launcher, 1, base_ceil_div(n, 128), blocks, base_ceil_div(blocks, 4) * 4, 1, scale_bytes(run, 0));
}

/* ---- the launch ---- */

static cublaslt_type type_of(dw_format format) { return format == DW_FORMAT_f32 ? CUBLASLT_F32 : format == DW_FORMAT_f16 ? CUBLASLT_F16 : CUBLASLT_BF16; }

static int64_t count_batches(const dw_tensor *x) {
    int64_t batches = 1;
    for (int i = 0; i < x->rank - 2; i++) batches *= x->dims[i];
    return batches;
}

static void take_scales(kernel_launch *launch, const kernel_run *run, const lt_mode *mode, cublaslt_product *p) {
    const int64_t first = scale_bytes(run, 0);
    if (!mode->scaled) return;
    p->mode_a = mode->mode_b;
    p->mode_b = mode->mode_a;
    if (mode->mode_a == CUBLASLT_SCALE_1X128) {
        cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &p->scales_b, 0);
        cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &p->scales_a, first);
    } else {
        cuda_slot(launch, KERNEL_SLOT_SCALES, 0, &p->scales_b, 0);
        cuda_slot(launch, KERNEL_SLOT_SCALES, 1, &p->scales_a, 0);
    }
}

static void take_operands(kernel_launch *launch, const kernel_run *run, const lt_post *post, cublaslt_product *p) {
    cuda_slot(launch, KERNEL_SLOT_DATA, 1, &p->a, 0);
    cuda_slot(launch, KERNEL_SLOT_DATA, 0, &p->b, 0);
    cuda_slot(launch, KERNEL_SLOT_DATA, KERNEL_RESULT, &p->d, 0);
    cuda_slot(launch, KERNEL_SLOT_WORKSPACE, 0, &p->workspace, scale_bytes(run, 0) + scale_bytes(run, 1));
    if (post->add > 0) cuda_slot(launch, KERNEL_SLOT_DATA, post->add, &p->c, 0);
    if (post->bias == 0) return;
    cuda_slot(launch, KERNEL_SLOT_DATA, post->bias, &p->bias, 0);
    p->type_bias = (int32_t)type_of(run->call.in[post->bias]->format);
}

dw_status matmul_cublaslt_shape(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1], *out = run->call.out[0];
    const bool at = op_attr_bool(run->call.attrs, OP_ATTR_at), bt = op_attr_bool(run->call.attrs, OP_ATTR_bt);
    const lt_mode *mode = mode_of(a->format, b->format);
    const int64_t n = out->dims[out->rank - 1], k = a->dims[a->rank - (at ? 2 : 1)], batches = count_batches(b);
    const int64_t rows = count_batches(out) * out->dims[out->rank - 2], m = batches > 0 ? rows / batches : 0;   /* without batches of b, all axes of a are rows */
    lt_post post;
    kernel_launch launch;
    cublaslt_product *p = cuda_launch(&launch, NULL, "matmul_cublaslt", sizeof *p);
    launch.library = "cublaslt";
    launch.enqueue = cublaslt_enqueue;
    take_post(&run->post, &post);
    *p = (cublaslt_product){.m = n, .n = m, .k = k, .stride_a = bt ? k : n, .stride_b = at ? m : k, .stride_d = n, .batches = (int32_t)batches, .batch_a = n * k,
                            .batch_b = m * k, .batch_d = m * n, .transpose_a = bt, .transpose_b = at, .type = (int32_t)mode->type, .type_d = (int32_t)type_of(out->format),
                            .epilogue = post.epilogue};
    p->candidate = run->variant > 0 ? run->variant - 1 : 0;
    take_operands(&launch, run, &post, p);
    take_scales(&launch, run, mode, p);
    if (mode->mode_a == CUBLASLT_SCALE_1X128) TRY(copy_block_scales(run, launcher, m, n, k));
    return launcher->add(launcher, &launch);
}
