/* matmul on the CPU: which operands the product core takes, how B is packed, and the call spread over batches. The arithmetic is in
 * product.c; what the versions of it bought is in README.md. */
#include <string.h>

#include "kernels/gemm/cpu/product.h"
#include "kernels/kernels.h"

/* What a call comes to, from formats and shapes alone. */
typedef struct setup {
    bool flat;                    /* the rows of all batches are one product: B has no batches, and strides run on */
    gemm_compute compute;
    gemm_pack pack;
    product_rows rows;
    int a_row_axis, a_k_axis;
    int64_t m, n, k;
    bool packs_here;              /* B is packed into the workspace at each run */
} setup;

static int64_t axis_stride(const dw_tensor *tensor, int from_end) {
    int axis = tensor->rank - from_end;
    return axis >= 0 && tensor->dims[axis] != 1 ? tensor->strides[axis] : 0;
}

/* Do all axes but the last run on as one axis of rows? */
static bool runs_on(const dw_tensor *tensor) {
    int64_t expected = -1;
    for (int axis = tensor->rank - 2; axis >= 0; axis--) {
        if (tensor->dims[axis] == 1) continue;
        if (expected >= 0 && tensor->strides[axis] != expected) return false;
        expected = tensor->strides[axis] * tensor->dims[axis];
    }
    return true;
}

/* The same row for all of the result? */
static bool is_one_row(const dw_tensor *tensor) {
    for (int axis = 0; axis < tensor->rank - 1; axis++) {
        if (tensor->dims[axis] != 1) return false;
    }
    return true;
}

/* A row of its own for each of the result's? */
static bool is_as_long(const dw_tensor *tensor, const dw_tensor *out) {
    if (tensor->rank != out->rank) return false;
    for (int axis = 0; axis < out->rank - 1; axis++) {
        if (tensor->dims[axis] != out->dims[axis]) return false;
    }
    return true;
}

/* Distance of neighbouring rows of a tensor whose rows run on. */
static int64_t flat_row_stride(const dw_tensor *tensor) {
    for (int axis = tensor->rank - 2; axis >= 0; axis--) {
        if (tensor->dims[axis] != 1) return tensor->strides[axis];
    }
    return 0;
}

static bool setup_of(const kernel_run *run, setup *s) {
    const op_call *call = &run->call;
    const dw_tensor *a = call->in[0], *b = call->in[1];
    *s = (setup){.packs_here = run->packed == NULL && !run->is_packed};
    bool at = op_attr_bool(call->attrs, OP_ATTR_at);
    s->a_row_axis = a->rank - (at ? 1 : 2);
    s->a_k_axis = a->rank - (at ? 2 : 1);
    if (!product_pack_of(call->attrs, &run->post, a->format, b, &s->compute, &s->pack)) return false;
    s->m = a->dims[s->a_row_axis];
    s->k = s->pack.k;
    s->n = s->pack.n;
    product_rows_init(&s->rows, a, s->compute, s->pack.panel, s->a_row_axis, s->a_k_axis);
    s->flat = s->pack.batches == 1 && !at && call->out[0]->rank == a->rank && runs_on(call->out[0]) && (s->rows.bytes > 0 || runs_on(a));
    for (int i = 2; i < call->n_in && s->flat; i++) s->flat = runs_on(call->in[i]) && (is_one_row(call->in[i]) || is_as_long(call->in[i], call->out[0]));
    return true;
}

static size_t workspace_of(const kernel_run *run) {
    setup s;
    if (!setup_of(run, &s)) return 0;
    return product_rows_workspace(&s.rows, run) + (s.packs_here ? s.pack.bytes : 0);
}

/* ---- one batch ---- */

typedef struct batches {
    const kernel_run *run;
    const setup *setup;
    const uint8_t *a, *panels;
    bool special;
} batches;

/* Offset of batch number index of the result within a tensor whose leading axes broadcast to the result's; unit: what one step of the last batch axis is in
 * strides (NULL: the tensor's own strides). */
static int64_t batch_offset(const dw_tensor *out, int64_t index, const dw_tensor *tensor, const int64_t *strides) {
    int64_t offset = 0;
    for (int axis = out->rank - 3; axis >= 0; axis--) {
        int64_t at = index % out->dims[axis];
        index /= out->dims[axis];
        int own = axis - (out->rank - tensor->rank);
        if (own >= 0 && tensor->dims[own] != 1) offset += at * strides[own];
    }
    return offset;
}

/* Strides that number the matrices of a tensor. */
static void matrix_strides(const dw_tensor *tensor, int64_t strides[DW_MAX_RANK]) {
    int64_t stride = 1;
    for (int axis = tensor->rank - 3; axis >= 0; axis--) {
        strides[axis] = stride;
        stride *= tensor->dims[axis];
    }
}

static void slice_of(const gemm_job *job, int64_t index, gemm_slice *slice) {
    const batches *b = job->owner;
    const setup *s = b->setup;
    const op_call *call = &b->run->call;
    const dw_tensor *a = call->in[0], *weight = call->in[1], *out = call->out[0];
    int64_t numbers[DW_MAX_RANK];
    matrix_strides(a, numbers);
    int64_t a_matrix = batch_offset(out, index, a, numbers);
    matrix_strides(weight, numbers);
    int64_t b_matrix = batch_offset(out, index, weight, numbers);
    size_t a_size = s->compute == GEMM_F32 ? sizeof(float) : sizeof(uint16_t);
    int64_t a_offset = s->rows.bytes > 0 ? a_matrix * s->m * s->rows.stride : batch_offset(out, index, a, a->strides);
    slice->rows = job->rows_max;
    slice->a = b->a + (size_t)a_offset * a_size;
    slice->panels = b->panels + (size_t)b_matrix * s->pack.batch_bytes;
    slice->special = b->special;
    slice->out = (uint8_t *)out->data + (size_t)batch_offset(out, index, out, out->strides) * product_element_bytes(out->format);
    if (a->format == DW_FORMAT_nvfp4_row && a->second != NULL) slice->row_factor = a->second + a_matrix * s->m;
    if (a->format == DW_FORMAT_fp8_row) slice->row_factor = (const float *)a->scales + a_matrix * s->m;
    if (a->format == DW_FORMAT_nvfp4) slice->factor = a->second;
    if (a->format == DW_FORMAT_fp8_tensor) slice->factor = a->scales;
    if (a->format == DW_FORMAT_fp8_1x128) slice->row_scales = (const float *)a->scales + a_matrix * s->m * job->row_scale_stride;
    for (int i = 2; i < call->n_in; i++) {
        const dw_tensor *x = call->in[i];
        slice->operands[i - 2] = (gemm_operand){
            .data = (const uint8_t *)x->data + (size_t)batch_offset(out, index, x, x->strides) * product_element_bytes(x->format),
            .format = x->format,
            .row_stride = s->flat ? flat_row_stride(x) : axis_stride(x, 2),
            .col_stride = axis_stride(x, 1),
        };
    }
}

static dw_status run_on(const kernel_run *run, const gemm_isa *isa) {
    const dw_tensor *out = run->call.out[0];
    setup s;
    if (!setup_of(run, &s)) return base_fail(run->call.context, DW_INTERNAL, "matmul: a kernel was chosen for formats that it refuses");
    batches b = {.run = run, .setup = &s, .a = run->call.in[0]->data};
    uint8_t *workspace = run->workspace;
    if (s.rows.bytes > 0) {
        product_rows_run(&s.rows, isa, run->call.in[0], s.a_row_axis, s.a_k_axis, run->pool, workspace);
        b.a = workspace;
    }
    const void *packed = run->packed;
    if (packed == NULL) {
        gemm_pack_run(&s.pack, isa, run->call.in[1], run->pool, workspace + s.rows.bytes);
        packed = workspace + s.rows.bytes;
    }
    b.panels = (const uint8_t *)packed + GEMM_HEADER_BYTES;
    b.special = ((const gemm_header *)packed)->special != 0;
    gemm_job job = {
        .isa = isa,
        .compute = s.compute,
        .pack = s.pack,
        .a_stride = s.rows.stride,
        .row_scale_stride = base_ceil_div(s.k, GEMM_SCALE_DEPTH),
        .slices = 1,
        .rows_max = s.m,
        .slice = slice_of,
        .owner = &b,
        .post = run->post,
        .out_format = out->format,
        .out_row_stride = out->strides[out->rank - 2],
        .n_out = out->dims[out->rank - 1],
    };
    for (int i = 0; i < out->rank - 2; i++) job.slices *= out->dims[i];
    if (s.flat && job.slices > 0) {
        job.rows_max *= job.slices;
        job.slices = 1;
        job.out_row_stride = flat_row_stride(out);
        if (s.rows.bytes == 0) job.a_stride = flat_row_stride(run->call.in[0]);
    }
    gemm_run(&job, run->pool);
    return DW_OK;
}

#define RUN(name) \
    dw_status matmul_##name##_run(const kernel_run *run) { return run_on(run, &gemm_isa_##name); }
RUN(portable)
#if defined(__x86_64__)
RUN(avx2)
RUN(avx512)
RUN(avx512bf16)
#endif

/* ---- choosing and packing ---- */

/* Kinds of row by what B is made of: each family refuses what another one packs. */
#define PANEL(name) (1u << GEMM_PANEL_##name)
#define FAMILY(name, panels, other)                                                                                                                       \
    const char *name##_reject(const kernel_problem *problem, text *why) { return product_reject(problem, why, 2, panels, other); }                       \
    double name##_cost(const kernel_problem *problem) { return product_cost(problem); }                                                                   \
    bool name##_packing(const kernel_problem *problem, const dw_tensor *weight, kernel_packing *packing) { return product_packing(problem, weight, packing); } \
    size_t name##_workspace(const kernel_run *run) { return workspace_of(run); }
FAMILY(matmul_f32, PANEL(F32), "b is not multiplied as f32")
FAMILY(matmul_bf16, PANEL(BF16), "b is not bf16")
FAMILY(matmul_fp8, PANEL(E4M3) | PANEL(E5M2), "b has no elements of 8 or 6 bits")
FAMILY(matmul_fp4, PANEL(E2M1_E8M0) | PANEL(E2M1_E4M3), "b has no elements of 4 bits")
