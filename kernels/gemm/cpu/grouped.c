/* grouped_matmul on the CPU: the product core with one slice for each group, whose rows the offsets tell. The rows of a group have the same bits as
 * in a matmul of their own. */
#include <string.h>

#include "kernels/gemm/cpu/product.h"
#include "kernels/kernels.h"

/* What a call comes to, from formats and shapes alone. */
typedef struct setup {
    gemm_compute compute;
    gemm_pack pack;
    product_rows rows;
    bool packs_here;              /* b is packed into the workspace at each run */
} setup;

static bool setup_of(const kernel_run *run, setup *s) {
    const op_call *call = &run->call;
    const dw_tensor *a = call->in[0], *b = call->in[1];
    *s = (setup){.packs_here = run->packed == NULL && !run->is_packed};
    if (!product_pack_of(call->attrs, &run->post, a->format, b, &s->compute, &s->pack)) return false;
    product_rows_init(&s->rows, a, s->compute, s->pack.panel, 0, 1);
    return true;
}

/* INVALID unless all groups' rows are rows of a; the rows of the largest group. */
static dw_status check_offsets(const op_call *call, int64_t *largest) {
    *largest = 0;
    for (int64_t group = 0; group < call->in[2]->dims[0]; group++) {
        int64_t begin, end;
        TRY(op_group_rows(call, group, &begin, &end));
        if (end - begin > *largest) *largest = end - begin;
    }
    return DW_OK;
}

typedef struct groups {
    const kernel_run *run;
    const setup *setup;
    const uint8_t *a, *panels;
    bool special;
} groups;

/* A post operand from a group's first row on; a column operand may have a row for each group. */
static void post_operand(op_post step, const dw_tensor *x, int64_t group, int64_t row, gemm_operand *operand) {
    int64_t strides[2] = {0, 0};
    for (int axis = 0; axis < 2; axis++) {
        int own = axis - (2 - x->rank);
        if (own >= 0 && x->dims[own] != 1) strides[axis] = x->strides[own];
    }
    bool columns = op_post_operand_of(step) == OP_POST_COLUMN;
    *operand = (gemm_operand){
        .data = (const uint8_t *)x->data + (size_t)((columns ? group : row) * strides[0]) * product_element_bytes(x->format),
        .format = x->format,
        .row_stride = columns ? 0 : strides[0],
        .col_stride = strides[1],
    };
}

static void slice_of(const gemm_job *job, int64_t index, gemm_slice *slice) {
    const groups *g = job->owner;
    const op_call *call = &g->run->call;
    const dw_tensor *a = call->in[0], *out = call->out[0];
    int64_t row = 0, end = 0;
    (void)op_group_rows(call, index, &row, &end);      /* checked before */
    slice->rows = end - row;
    slice->a = g->a + (size_t)(row * job->a_stride) * (job->compute == GEMM_F32 ? sizeof(float) : sizeof(uint16_t));
    slice->panels = g->panels + (size_t)index * job->pack.batch_bytes;
    slice->special = g->special;
    slice->out = (uint8_t *)out->data + (size_t)(row * out->strides[0]) * product_element_bytes(out->format);
    if (a->format == DW_FORMAT_nvfp4_row && a->second != NULL) slice->row_factor = a->second + row;
    if (a->format == DW_FORMAT_fp8_row) slice->row_factor = (const float *)a->scales + row;
    if (a->format == DW_FORMAT_nvfp4) slice->factor = a->second;
    if (a->format == DW_FORMAT_fp8_tensor) slice->factor = a->scales;
    if (a->format == DW_FORMAT_fp8_1x128) slice->row_scales = (const float *)a->scales + row * job->row_scale_stride;
    for (int i = 0, operand = 0; i < job->post.count; i++) {
        op_post step = job->post.steps[i];
        if (op_post_operand_of(step) == OP_POST_NONE) continue;
        post_operand(step, call->in[3 + operand], index, row, &slice->operands[operand]);
        operand++;
    }
}

static void clear_rows(const dw_tensor *out, int64_t begin, int64_t end) {
    const size_t element = product_element_bytes(out->format);
    for (int64_t row = begin; row < end; row++) memset((uint8_t *)out->data + (size_t)(row * out->strides[0]) * element, 0, (size_t)out->dims[1] * element);
}

/* Rows of no group: behind the last one, or behind each that is padded. */
static dw_status clear_rest(const op_call *call) {
    const int64_t apart = op_rows_apart(call), groups = call->in[2]->dims[0];
    int64_t begin = 0, end = 0;
    for (int64_t group = apart > 0 || groups == 0 ? 0 : groups - 1; group < groups; group++) {
        TRY(op_group_rows(call, group, &begin, &end));
        if (apart > 0) clear_rows(call->out[0], end, begin + apart);
    }
    if (apart == 0) clear_rows(call->out[0], end, call->out[0]->dims[0]);
    return DW_OK;
}

static dw_status run_on(const kernel_run *run, const gemm_isa *isa) {
    const op_call *call = &run->call;
    const dw_tensor *a = call->in[0], *out = call->out[0];
    setup s;
    if (!setup_of(run, &s)) return base_fail(call->context, DW_INTERNAL, "grouped_matmul: a kernel was chosen for formats that it refuses");
    int64_t largest;
    TRY(check_offsets(call, &largest));
    groups g = {.run = run, .setup = &s, .a = a->data};
    uint8_t *workspace = run->workspace;
    if (s.rows.bytes > 0) {
        product_rows_run(&s.rows, isa, a, 0, 1, run->pool, workspace);
        g.a = workspace;
    }
    const void *packed = run->packed;
    if (packed == NULL) {
        packed = workspace + s.rows.bytes;
        gemm_pack_run(&s.pack, isa, call->in[1], run->pool, workspace + s.rows.bytes);
    }
    g.panels = (const uint8_t *)packed + GEMM_HEADER_BYTES;
    g.special = ((const gemm_header *)packed)->special != 0;
    gemm_job job = {
        .isa = isa,
        .compute = s.compute,
        .pack = s.pack,
        .a_stride = s.rows.stride,
        .row_scale_stride = base_ceil_div(s.pack.k, GEMM_SCALE_DEPTH),
        .slices = s.pack.batches,
        .rows_max = largest,
        .slice = slice_of,
        .owner = &g,
        .post = run->post,
        .out_format = out->format,
        .out_row_stride = out->strides[0],
        .n_out = out->dims[1],
    };
    gemm_run(&job, run->pool);
    return clear_rest(call);
}

dw_status grouped_portable_run(const kernel_run *run) { return run_on(run, &gemm_isa_portable); }
#if defined(__x86_64__)
dw_status grouped_avx2_run(const kernel_run *run) { return run_on(run, &gemm_isa_avx2); }
dw_status grouped_avx512_run(const kernel_run *run) { return run_on(run, &gemm_isa_avx512); }
dw_status grouped_avx512bf16_run(const kernel_run *run) { return run_on(run, &gemm_isa_avx512bf16); }
#endif

/* ---- choosing and packing ---- */

const char *grouped_reject(const kernel_problem *problem, text *why) { return product_reject(problem, why, 3, ~0u, NULL); }
double grouped_cost(const kernel_problem *problem) { return product_cost(problem); }
bool grouped_packing(const kernel_problem *problem, const dw_tensor *weight, kernel_packing *packing) { return product_packing(problem, weight, packing); }

size_t grouped_workspace(const kernel_run *run) {
    setup s;
    if (!setup_of(run, &s)) return 0;
    return product_rows_workspace(&s.rows, run) + (s.packs_here ? s.pack.bytes : 0);
}
