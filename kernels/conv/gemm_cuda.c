/* conv on a GPU as a matrix product: out[b,o,p] = sum over k of w[o,k] * x(p,k) + bias[o], where x(p,k) is the element of x under tap k of the window at p, 0 in the padding.
 *     patches [groups][rows, k] in workspace, rows = (b,p)      conv_patches.cu, a piece of at most PATCH_BYTES at a time
 *     product [groups][rows, o] in workspace                    a kernel of matmul for each group and piece, bias in its post list
 *     out [b,o,p]                                               transposed copy
 * bf16 and f16 are multiplied by tensor cores where rows of k are multiples of 16 bytes; else, and f32, by multiply-adds in fp32. */
#include "kernels/gpu/host/host.h"
#include "kernels/move/parts.h"
#include "kernels/conv/conv.h"
#include "kernels/conv/conv_cuda.h"
#include "kernels/kernels.h"

/* Patches for tensor cores stay in the second-level cache until they are multiplied; multiply-adds take long enough to read them from memory, and pieces of many rows keep the chip full. */
enum { PATCH_BYTES = 32 << 20, PATCH_BYTES_FP32 = 128 << 20, PIECE_ROWS = 128, MOST_GROUPS = 64, ALIGN = 256 };

/* ---- the product ---- */

typedef struct multiplier {
    chip_feature feature;
    bool halves;                  /* products of 16-bit elements, with rows of whole 16 bytes */
    const char *ways[2];          /* of cuda_matmul, that take them */
    double share;                 /* of the format's rate; a guess */
} multiplier;

static const multiplier multipliers[] = {
    {CHIP_tcgen05, true, {"cuda_matmul_tcgen05", "cuda_matmul_tcgen05"}, 0.478},
    {CHIP_wgmma, true, {"cuda_matmul_wgmma", "cuda_matmul_skinny"}, 0.597},
    {CHIP_tma, false, {"cuda_matmul_fp32", "cuda_matmul_plain"}, 0.5},
};

static const kernel_row *product_row(void) {
    for (int i = 0; i < kernel_count(); i++)
        if (kernel_find_way(kernel_at(i), multipliers[0].ways[0]) != NULL) return kernel_at(i);
    return NULL;
}

static const multiplier *multiplier_of(const chip_caps *chip, dw_format format, int64_t depth) {
    const bool halves = dw_format_bits(format) == 16 && depth % 8 == 0;
    for (size_t i = 0; i < COUNT_OF(multipliers); i++)
        if (chip_has(chip, multipliers[i].feature) && (halves || !multipliers[i].halves)) return &multipliers[i];
    return NULL;
}

/* ---- where all of it lies ---- */

typedef struct setup {
    conv_shape shape;
    const multiplier *by;
    const kernel_row *row;        /* of the product */
    int64_t depth, rows, piece_rows, element;
    size_t own_bytes, patch_bytes, product_bytes;   /* the workspace: what the product needs itself, patches, product */
} setup;

/* A product of so many rows, with one group's weight. Its operands 0 and its result have no address. */
typedef struct product {
    dw_tensor patches, weight, out;
    const dw_tensor *in[3], *outs[1];
    op_attr bt;
    op_attrs attrs;
    kernel_run run;
} product;

static void make_product(const kernel_run *run, const setup *s, int64_t rows, product *p) {
    const conv_shape *shape = &s->shape;
    const dw_format format = shape->x->format;
    const bool has_bias = shape->bias != NULL;
    op_tensor_init(&p->patches, format, DW_SCALE_plain, 2, (int64_t[]){rows, s->depth}, NULL);
    op_tensor_init(&p->weight, format, DW_SCALE_plain, 2, (int64_t[]){shape->outputs, s->depth}, shape->weight->data);
    op_tensor_init(&p->out, format, DW_SCALE_plain, 2, (int64_t[]){rows, shape->outputs}, NULL);
    p->in[0] = &p->patches;
    p->in[1] = &p->weight;
    p->in[2] = shape->bias;
    p->outs[0] = &p->out;
    p->bt = op_set_bool(OP_ATTR_bt, true);
    p->attrs = (op_attrs){1, &p->bt};
    p->run = (kernel_run){
        .call = {.context = run->call.context, .op = op_get(OP_matmul), .attrs = &p->attrs, .symbols = run->call.symbols, .n_in = has_bias ? 3 : 2, .in = p->in, .n_out = 1, .out = p->outs},
        .post = {.count = has_bias, .steps = {OP_POST_bias}},
        .constant_in = run->constant_in & ~1u,
        .pool = run->pool,
        .chip = run->chip,
        .invariant = run->invariant,
        .ways = kernel_ways_of(s->row, s->by->ways, COUNT_OF(s->by->ways)),
    };
}

static setup setup_of(const kernel_run *run) {
    setup s = {0};
    product p;
    conv_shape_of(&run->call, &s.shape);
    s.depth = conv_depth(&s.shape);
    s.element = dw_format_bits(s.shape.x->format) / 8;
    s.by = multiplier_of(run->chip, s.shape.x->format, s.depth);
    s.row = product_row();
    s.rows = s.shape.batches * s.shape.places[0] * s.shape.places[1];
    const int64_t row_bytes = s.depth * s.element * s.shape.groups, patch_bytes = s.by != NULL && s.by->halves ? PATCH_BYTES : PATCH_BYTES_FP32;
    const int64_t pieces_of = row_bytes > 0 ? patch_bytes / row_bytes / PIECE_ROWS : 0;
    s.piece_rows = (pieces_of > 0 ? pieces_of : 1) * PIECE_ROWS;
    if (s.piece_rows > s.rows) s.piece_rows = s.rows;
    s.patch_bytes = base_align_up((size_t)(s.piece_rows * row_bytes), ALIGN);
    s.product_bytes = base_align_up((size_t)(s.rows * s.shape.outputs * s.shape.groups * s.element), ALIGN);
    make_product(run, &s, s.piece_rows, &p);
    s.own_bytes = base_align_up(kernel_workspace(s.row, &p.run), ALIGN);
    return s;
}

/* ---- choosing ---- */

const char *conv_gemm_cuda_reject(const kernel_problem *problem, text *why) {
    const int64_t groups = op_attr_int(problem->attrs, OP_ATTR_groups);
    const dw_format format = problem->in[0]->format;
    int64_t outputs, depth = 1;
    if (format != DW_FORMAT_f32 && format != DW_FORMAT_bf16 && format != DW_FORMAT_f16) {
        text_printf(why, "x is %s, not f32, bf16 or f16", dw_format_name(format));
        return text_string(why);
    }
    for (int i = 1; i < problem->in[1]->rank; i++) {
        int64_t size;
        if (!dim_is_constant(problem->in[1]->dims[i], &size)) return "the size of w is not known at plan time";
        depth *= size;
    }
    if (!dim_is_constant(problem->in[1]->dims[0], &outputs)) return "the size of w is not known at plan time";
    if (depth == 0 || depth > INT32_MAX / 8 || outputs == 0) return "w has no elements, or too many for a row of patches";
    if (groups > MOST_GROUPS || outputs / groups < CONV_LEAST_OUTPUTS) {
        text_printf(why, "a product for each of %lld groups of %lld outputs does not pay; at most %d groups, of %d outputs or more", (long long)groups, (long long)(outputs / groups), MOST_GROUPS,
                    CONV_LEAST_OUTPUTS);
        return text_string(why);
    }
    return NULL;
}

double conv_gemm_cuda_cost(const kernel_problem *problem) {
    dw_tensor in[KERNEL_MAX_OPERANDS], out[KERNEL_MAX_RESULTS];
    const dw_tensor *in_pointers[KERNEL_MAX_OPERANDS], *out_pointers[KERNEL_MAX_RESULTS];
    const chip_caps *chip = problem->chip;
    kernel_run run = {.chip = chip};
    if (problem->symbols == NULL || kernel_problem_call(problem, in, out, in_pointers, out_pointers, &run.call) != DW_OK)
        return kernel_roofline(problem, problem->in[0]->format, 0.478, 0.267);
    const setup s = setup_of(&run);
    const double pieces = s.piece_rows > 0 ? (double)base_ceil_div(s.rows, s.piece_rows) : 0, groups = (double)s.shape.groups;
    const double flops = 2.0 * (double)s.rows * (double)s.depth * (double)s.shape.outputs * groups, bytes = 2 * (double)(s.rows * s.depth * s.element) * groups + 4 * (double)s.product_bytes;
    return flops / (chip_flops(chip, s.by->halves ? s.shape.x->format : DW_FORMAT_f32) * s.by->share) + bytes / (0.533 * chip_bytes_per_s(chip)) + (pieces * (1 + groups) + 1) * chip->launch_s;
}

size_t conv_gemm_cuda_workspace(const kernel_run *run) {
    if (op_attr_int(run->call.attrs, OP_ATTR_groups) < 1) return 0;
    const setup s = setup_of(run);
    return s.own_bytes + s.patch_bytes + s.product_bytes;
}

/* ---- the launches ---- */

static dw_status add_patches(const kernel_run *run, kernel_launcher *launcher, const setup *s, int64_t first, int64_t rows) {
    kernel_launch launch;
    patch_arguments *arguments = cuda_launch(&launch, "conv_patches", s->element == 2 ? "conv_patches_2" : "conv_patches_4", sizeof *arguments);
    conv_take_windows(&s->shape, &arguments->conv);
    arguments->groups = s->shape.groups;
    arguments->first = first;
    arguments->count = rows;
    arguments->in_words = s->depth * s->element % 16 == 0;
    cuda_take_array(&launch, run, 0, &arguments->conv.x);
    cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &arguments->patches, (int64_t)s->own_bytes);
    launch.overlaps = true;
    cuda_grid_items(&launch, s->shape.groups * rows * (arguments->in_words ? s->depth * s->element / 16 : s->depth));
    return launcher->add(launcher, &launch);
}

/* Rows from first on of every group. */
static dw_status add_products(const kernel_run *run, kernel_launcher *launcher, const setup *s, int64_t first, int64_t rows) {
    const conv_shape *shape = &s->shape;
    for (int64_t group = 0; group < shape->groups; group++) {
        product p;
        make_product(run, s, rows, &p);
        const int64_t patches = (int64_t)s->own_bytes + group * rows * s->depth * s->element;
        const int64_t out = (int64_t)(s->own_bytes + s->patch_bytes) + (group * s->rows + first) * shape->outputs * s->element;
        const int64_t bias = shape->bias != NULL ? group * shape->outputs * shape->bias->strides[0] * s->element : 0;
        const cuda_move moves[] = {{0, true, patches}, {1, false, group * shape->outputs * s->depth * s->element}, {2, false, bias}, {KERNEL_RESULT, true, out}};
        cuda_mover mover = cuda_mover_to(launcher, COUNT_OF(moves), moves);
        dw_tensor of_group;
        if (shape->bias != NULL) {
            of_group = *shape->bias;
            of_group.dims[0] = shape->outputs;
            p.in[2] = &of_group;
        }
        TRY(kernel_shape(s->row, &p.run, &mover.launcher));
    }
    return DW_OK;
}

/* product [groups][b, places.., o] to out [b, groups, o, places..]. */
static dw_status add_turn(const kernel_run *run, kernel_launcher *launcher, const setup *s) {
    const conv_shape *shape = &s->shape;
    const int64_t dims[] = {shape->batches, shape->groups, shape->outputs, shape->places[0], shape->places[1]}, line = shape->places[1] * shape->outputs;
    const int64_t from_strides[] = {shape->places[0] * line, s->rows * shape->outputs, 1, line, shape->outputs};
    const int64_t to_strides[] = {shape->out_strides[0], shape->outputs * shape->out_strides[1], shape->out_strides[1], shape->out_strides[2], shape->out_strides[3]};
    dw_tensor made;
    const dw_tensor *in = &made;
    kernel_run copy = *run;
    cuda_part to = {.operand = KERNEL_RESULT}, from = {.operand = 0};
    op_tensor_init(&made, shape->out->format, DW_SCALE_plain, COUNT_OF(dims), dims, NULL);
    from.tensor = to.tensor = made;
    for (size_t i = 0; i < COUNT_OF(dims); i++) {
        from.tensor.strides[i] = from_strides[i];
        to.tensor.strides[i] = to_strides[i];
    }
    copy.call.in = &in;
    copy.call.n_in = 1;
    cuda_mover mover = cuda_mover_to(launcher, 1, &(cuda_move){0, true, (int64_t)(s->own_bytes + s->patch_bytes)});
    return cuda_copy_part(&copy, &mover.launcher, &to, &from);
}

dw_status conv_gemm_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    TRY(conv_check_groups(run));
    const setup s = setup_of(run);
    if (s.rows == 0) return DW_OK;
    for (int64_t first = 0; first < s.rows; first += s.piece_rows) {
        const int64_t rows = s.rows - first < s.piece_rows ? s.rows - first : s.piece_rows;
        TRY(add_patches(run, launcher, &s, first, rows));
        TRY(add_products(run, launcher, &s, first, rows));
    }
    return add_turn(run, launcher, &s);
}
