/* conv as a matrix product. Problem: out[b,o,p] = sum over k of w[o,k] * x(p,k) + bias[o], where x(p,k) is the element of x under tap k of the window at
 * p, 0 in the padding.
 *     patches [rows, k] in workspace, rows = (b,p)     a window a row, runs of neighbouring taps copied; a piece of at most 4 MiB at a time
 *     product [rows, o] in workspace                   the core of kernels/gemm/cpu on w packed at load, bias in its post list
 *     out [b,o,p]                                      transposed copy
 * bf16 is multiplied as bf16, f16 in fp32. Measured speed: README.md. */
#include <string.h>

#include "kernels/gemm/cpu/gemm.h"
#include "kernels/cpu/rows.h"
#include "kernels/conv/conv.h"
#include "kernels/kernels.h"
#include "kernels/move/move.h"

enum { PATCH_BYTES = 4 << 20, TASK_BYTES = 1 << 16, SHORT_RUN = 8 };

typedef struct setup {
    conv_shape shape;
    gemm_compute compute;
    gemm_pack pack;
    int64_t rows, piece_rows;     /* of all patches; of those in workspace at a time */
    int64_t patch_stride;         /* elements, a multiple of the pairs that are read together */
    size_t element, patch_bytes, product_bytes, pack_bytes;
} setup;

static bool pack_of(dw_format format, int64_t outputs, int64_t groups, int64_t depth, gemm_compute *compute, gemm_pack *pack) {
    *compute = format == DW_FORMAT_bf16 ? GEMM_BF16 : GEMM_F32;
    return gemm_pack_init(pack, format, *compute, depth, outputs, groups, GEMM_TRANSPOSED);
}

static bool setup_of(const kernel_run *run, setup *s) {
    conv_shape_of(&run->call, &s->shape);
    const conv_shape *shape = &s->shape;
    if (!pack_of(shape->x->format, shape->outputs, shape->groups, conv_depth(shape), &s->compute, &s->pack)) return false;
    s->element = s->compute == GEMM_F32 ? sizeof(float) : sizeof(uint16_t);
    s->patch_stride = base_ceil_div(s->pack.k, GEMM_GROUP) * GEMM_GROUP;
    s->rows = shape->batches * shape->places[0] * shape->places[1];
    int64_t row_bytes = s->patch_stride * (int64_t)s->element * shape->groups;
    s->piece_rows = row_bytes > 0 && PATCH_BYTES / row_bytes < s->rows ? PATCH_BYTES / row_bytes + 1 : s->rows;
    s->patch_bytes = base_align_up((size_t)(s->piece_rows * row_bytes), 64);
    s->product_bytes = base_align_up((size_t)(s->rows * shape->outputs * shape->groups) * cpu_element_bytes(shape->out->format), 64);
    s->pack_bytes = run->packed == NULL && !run->is_packed ? s->pack.bytes : 0;
    return true;
}

/* ---- patches ---- */

typedef struct patch_job {
    const setup *setup;
    const cpu_rows *rows;
    int64_t first, count, task_rows;     /* rows of this piece; and of a task */
    uint8_t *patches;                    /* [groups][piece_rows][patch_stride] */
} patch_job;

/* count taps side by side in a row of x, from width position at on, those outside as zeros. */
static void copy_taps(const patch_job *job, int64_t row_offset, int64_t at, uint8_t *to) {
    const conv_shape *s = &job->setup->shape;
    int64_t count = s->taps[1], step = s->dilation[1], begin = 0, end = count;
    size_t element = job->setup->element;
    while (begin < end && at + begin * step < 0) begin++;
    while (end > begin && at + (end - 1) * step >= s->size[1]) end--;
    memset(to, 0, (size_t)begin * element);
    memset(to + (size_t)end * element, 0, (size_t)(count - end) * element);
    for (int64_t i = begin; i < end; i += CPU_BLOCK) {
        int64_t part = end - i < CPU_BLOCK ? end - i : CPU_BLOCK, offset = row_offset + (at + i * step) * s->x_strides[3], stride = step * s->x_strides[3];
        uint8_t *target = to + (size_t)i * element;
        if (job->setup->compute == GEMM_BF16) {
            cpu_gather(sizeof(uint16_t), cpu_at(s->x, offset), stride, part, target);
        } else {
            float buffer[CPU_BLOCK];
            const float *values = cpu_load(job->rows, s->x, offset, stride, part, buffer);
            memcpy(target, values, (size_t)part * sizeof *values);
        }
    }
}

/* Of a window that lies inside, its taps side by side, in the format that is multiplied: short runs, so loops rather than calls. */
#define COPY_INSIDE(type)                                                                                      \
    static type *copy_inside_##type(const conv_shape *s, int64_t offset, type *to) {                           \
        const type *x = (const type *)s->x->data + offset;                                                     \
        for (int64_t channel = 0; channel < s->channels; channel++, x += s->x_strides[1]) {                    \
            const type *line = x;                                                                              \
            for (int64_t tap = 0; tap < s->taps[0]; tap++, line += s->dilation[0] * s->x_strides[2])           \
                for (int64_t i = 0; i < s->taps[1]; i++) *to++ = line[i];                                      \
        }                                                                                                      \
        return to;                                                                                             \
    }
COPY_INSIDE(float)
COPY_INSIDE(uint16_t)
#undef COPY_INSIDE

/* Can the window be copied so? */
static bool lies_plain(const setup *setup, int64_t top, int64_t left) {
    const conv_shape *s = &setup->shape;
    bool inside = top >= 0 && left >= 0 && top + (s->taps[0] - 1) * s->dilation[0] < s->size[0] && left + s->taps[1] <= s->size[1];
    return inside && s->x_strides[3] == 1 && s->dilation[1] == 1 && cpu_element_bytes(s->x->format) == setup->element && s->taps[1] <= SHORT_RUN;
}

static void copy_patch(const patch_job *job, int64_t row, int64_t group, void *first_tap) {
    const setup *setup = job->setup;
    const conv_shape *s = &setup->shape;
    int64_t column = row % s->places[1], line = row / s->places[1] % s->places[0], batch = row / s->places[1] / s->places[0];
    int64_t top = line * s->stride[0] - s->padding[0], left = column * s->stride[1] - s->padding[1];
    uint8_t *to = first_tap;
    size_t run = (size_t)s->taps[1] * setup->element, padding = (size_t)(setup->patch_stride - setup->pack.k) * setup->element;
    if (lies_plain(setup, top, left)) {
        int64_t first = batch * s->x_strides[0] + group * s->channels * s->x_strides[1] + top * s->x_strides[2] + left;
        if (setup->compute == GEMM_F32) memset(copy_inside_float(s, first, first_tap), 0, padding);
        else memset(copy_inside_uint16_t(s, first, first_tap), 0, padding);
        return;
    }
    for (int64_t channel = 0; channel < s->channels; channel++) {
        int64_t offset = batch * s->x_strides[0] + (group * s->channels + channel) * s->x_strides[1];
        for (int64_t tap = 0; tap < s->taps[0]; tap++, to += run) {
            int64_t y = top + tap * s->dilation[0];
            if (y < 0 || y >= s->size[0]) memset(to, 0, run);
            else copy_taps(job, offset + y * s->x_strides[2], left, to);
        }
    }
    memset(to, 0, padding);
}

static void patch_task(void *argument, int64_t task, int worker) {
    (void)worker;
    const patch_job *job = argument;
    const setup *s = job->setup;
    int64_t end = (task + 1) * job->task_rows < job->count ? (task + 1) * job->task_rows : job->count;
    size_t row_bytes = (size_t)s->patch_stride * s->element;
    for (int64_t row = task * job->task_rows; row < end; row++)
        for (int64_t group = 0; group < s->shape.groups; group++)
            copy_patch(job, job->first + row, group, job->patches + (size_t)(group * s->piece_rows + row) * row_bytes);
}

/* ---- the product ---- */

typedef struct piece {
    const setup *setup;
    const uint8_t *patches;
    const uint8_t *panels;
    uint8_t *product;             /* [groups][rows][outputs], from this piece's first row on */
} piece;

static void slice_of(const gemm_job *job, int64_t index, gemm_slice *slice) {
    const piece *p = job->owner;
    const setup *s = p->setup;
    size_t bytes = cpu_element_bytes(s->shape.out->format);
    slice->rows = job->rows_max;
    slice->a = p->patches + (size_t)(index * s->piece_rows * s->patch_stride) * s->element;
    slice->panels = p->panels + (size_t)index * s->pack.batch_bytes;
    slice->out = p->product + (size_t)(index * s->rows * s->shape.outputs) * bytes;
    const dw_tensor *bias = s->shape.bias;
    if (bias == NULL) return;
    slice->operands[0] = (gemm_operand){
        .data = cpu_at(bias, index * s->shape.outputs * bias->strides[0]), .format = bias->format, .row_stride = 0, .col_stride = bias->strides[0]};
}

/* The product as [b, group, o, height, width] into the result. */
static void turn(const kernel_run *run, const setup *s, void *product) {
    const conv_shape *c = &s->shape;
    int64_t places = c->places[0] * c->places[1], group = c->out_strides[1] * c->outputs;
    dw_tensor to = {.format = c->out->format, .rank = 5, .data = c->out->data,
                    .dims = {c->batches, c->groups, c->outputs, c->places[0], c->places[1]},
                    .strides = {c->out_strides[0], group, c->out_strides[1], c->out_strides[2], c->out_strides[3]}};
    dw_tensor from = to;
    from.data = product;
    const int64_t strides[5] = {places * c->outputs, s->rows * c->outputs, 1, c->places[1] * c->outputs, c->outputs};
    memcpy(from.strides, strides, sizeof strides);
    move_copy(run->pool, &to, &from);
}

dw_status conv_gemm_run(const kernel_run *run) {
    setup s;
    if (run->call.in[1]->dims[0] % op_attr_int(run->call.attrs, OP_ATTR_groups) != 0) return run->call.op->reference(&run->call);   /* says so */
    if (!setup_of(run, &s)) return base_fail(run->call.context, DW_INTERNAL, "conv: a kernel was chosen for a format that it refuses");
    if (s.rows == 0 || s.shape.outputs == 0) return DW_OK;
    uint8_t *patches = run->workspace, *product = patches + s.patch_bytes;
    const uint8_t *packed = run->packed;
    if (packed == NULL) {
        /* w [o,c,taps..] is [groups, outputs, k]: it is contiguous */
        dw_tensor weight;
        const int64_t dims[3] = {s.shape.groups, s.shape.outputs, s.pack.k};
        if (!op_tensor_init(&weight, s.shape.weight->format, DW_SCALE_plain, 3, dims, s.shape.weight->data))
            return base_fail(run->call.context, DW_LIMIT, "conv: w is too large to address");
        gemm_pack_run(&s.pack, gemm_isa_of(run->chip), &weight, run->pool, product + s.product_bytes);
        packed = product + s.product_bytes;
    }
    for (int64_t first = 0; first < s.rows; first += s.piece_rows) {
        patch_job patch = {.setup = &s, .rows = cpu_rows_of(run->chip), .first = first, .patches = patches};
        patch.count = s.rows - first < s.piece_rows ? s.rows - first : s.piece_rows;
        patch.task_rows = TASK_BYTES / (s.patch_stride * (int64_t)s.element * s.shape.groups + 1) + 1;
        pool_run(run->pool, base_ceil_div(patch.count, patch.task_rows), patch_task, &patch);
        piece p = {.setup = &s, .patches = patches, .panels = packed + GEMM_HEADER_BYTES,
                   .product = product + (size_t)(first * s.shape.outputs) * cpu_element_bytes(s.shape.out->format)};
        gemm_job job = {
            .isa = gemm_isa_of(run->chip),
            .compute = s.compute,
            .pack = s.pack,
            .a_stride = s.patch_stride,
            .slices = s.shape.groups,
            .rows_max = patch.count,
            .slice = slice_of,
            .owner = &p,
            .post = {.count = s.shape.bias != NULL, .steps = {OP_POST_bias}},
            .out_format = s.shape.out->format,
            .out_row_stride = s.shape.outputs,
            .n_out = s.shape.outputs,
        };
        gemm_run(&job, run->pool);
    }
    turn(run, &s, product);
    return DW_OK;
}

/* ---- choosing and packing ---- */

const char *conv_gemm_reject(const kernel_problem *problem, text *why) {
    int64_t outputs, groups = op_attr_int(problem->attrs, OP_ATTR_groups);
    if (problem->in[0]->format == DW_FORMAT_f64) return "x is f64, which is computed in double";
    if (!dim_is_constant(problem->in[1]->dims[0], &outputs) || outputs / groups >= CONV_LEAST_OUTPUTS) return NULL;
    text_printf(why, "a group has %lld outputs, a matrix product pays from %d on", (long long)(outputs / groups), CONV_LEAST_OUTPUTS);
    return text_string(why);
}

double conv_gemm_cost(const kernel_problem *problem) { return kernel_roofline(problem, problem->in[0]->format, 0.5, 0.5); }

size_t conv_gemm_workspace(const kernel_run *run) {
    setup s;
    if (op_attr_int(run->call.attrs, OP_ATTR_groups) < 1 || !setup_of(run, &s)) return 0;
    return s.patch_bytes + s.product_bytes + s.pack_bytes;
}

static dw_status run_packing(const kernel_packing *packing, dw_context *context, pool *pool, const dw_tensor *weight, void *packed) {
    gemm_pack pack;
    dw_tensor matrix;
    gemm_pack_of(packing, &pack);
    const int64_t dims[3] = {pack.batches, pack.n, pack.k};   /* w [o,c,taps..] by groups */
    if (!op_tensor_is_contiguous(weight) || !op_tensor_init(&matrix, weight->format, DW_SCALE_plain, 3, dims, weight->data))
        return base_fail(context, DW_INTERNAL, "conv: w has no packed form");
    gemm_pack_run(&pack, NULL, &matrix, pool, packed);
    return DW_OK;
}

bool conv_gemm_packing(const kernel_problem *problem, const dw_tensor *weight, kernel_packing *packing) {
    int64_t groups = op_attr_int(problem->attrs, OP_ATTR_groups), depth = 1;
    gemm_compute compute;
    gemm_pack pack;
    if (groups < 1 || weight->dims[0] % groups != 0) return false;
    for (int i = 1; i < weight->rank; i++) depth *= weight->dims[i];
    if (!pack_of(weight->format, weight->dims[0] / groups, groups, depth, &compute, &pack)) return false;
    gemm_packing(&pack, packing);
    packing->name = "taps";
    packing->run = run_packing;
    return true;
}
