/* A for the product core: read where it lies, or cast, transposed, gathered or decoded into rows. Multiplies nothing. */
#include "kernels/gemm/cpu/product.h"

#include <string.h>

enum { ROWS_PER_TASK = 16 };   /* that one task brings into form */
enum { ROWS_TURNED = 64 };     /* .. where rows lie side by side */

bool product_has_operand_format(dw_format format) { return format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }

bool product_has_halves(const op_post_list *post) {
    for (int i = 0; i < post->count; i++) {
        if (op_post_halves(post->steps[i])) return true;
    }
    return false;
}

bool product_compute(dw_format a, dw_format b, gemm_compute *compute) {
    bool narrow_a = a == DW_FORMAT_bf16 || dw_format_is_block(a), narrow_b = b == DW_FORMAT_bf16 || dw_format_is_block(b);
    *compute = narrow_a && narrow_b ? GEMM_BF16 : GEMM_F32;
    if (!dw_format_is_block(a) && !product_has_operand_format(a)) return false;
    if (a == DW_FORMAT_fp8_128x128) return false;
    /* A bf16 beside an f32 or f16 B: fp32 panels. */
    gemm_pack pack;
    return gemm_pack_init(&pack, b, *compute, 1, 1, 1, GEMM_TRANSPOSED);
}

size_t product_element_bytes(dw_format format) { return (size_t)dw_format_bits(format) / 8; }

bool product_pack_of(const op_attrs *attrs, const op_post_list *post, dw_format a, const dw_tensor *b, gemm_compute *compute, gemm_pack *pack) {
    if (!product_compute(a, b->format, compute)) return false;
    bool bt = op_attr_bool(attrs, OP_ATTR_bt);
    int64_t k = b->dims[b->rank - (bt ? 1 : 2)], n = b->dims[b->rank - (bt ? 2 : 1)], batches = 1;
    for (int i = 0; i < b->rank - 2; i++) batches *= b->dims[i];
    unsigned flags = (bt ? GEMM_TRANSPOSED : 0) | (product_has_halves(post) ? GEMM_HALVES : 0) | (a == DW_FORMAT_fp8_1x128 ? GEMM_A_SCALES : 0);
    return gemm_pack_init(pack, b->format, *compute, k, n, batches, flags);
}

static int64_t batch_offset(const dw_tensor *a, int64_t batch, int row_axis, int k_axis) {
    int64_t offset = 0;
    for (int axis = a->rank - 1; axis >= 0; axis--) {
        if (axis == row_axis || axis == k_axis) continue;
        offset += batch % a->dims[axis] * a->strides[axis];
        batch /= a->dims[axis];
    }
    return offset;
}

void product_rows_init(product_rows *rows, const dw_tensor *a, gemm_compute compute, gemm_panel panel, int row_axis, int k_axis) {
    int64_t k = a->dims[k_axis], count = op_tensor_count(a);
    *rows = (product_rows){.compute = compute, .k = k, .rows = k > 0 ? count / k : 0};
    int64_t stride = base_ceil_div(k, GEMM_GROUP) * GEMM_GROUP;
    if (stride % 512 == 0) stride += GEMM_GROUP;   /* so that the rows of a tile do not share cache sets */
    rows->room = base_align_up((size_t)(rows->rows * stride) * (compute == GEMM_F32 ? sizeof(float) : sizeof(uint16_t)), 64);
    bool quantised = panel != GEMM_PANEL_F32 && panel != GEMM_PANEL_BF16;
    bool fits = a->strides[k_axis] == 1 || k <= 1;
    if (compute == GEMM_F32) {
        fits = fits && a->format == DW_FORMAT_f32;
    } else {
        fits = fits && a->format == DW_FORMAT_bf16 && k % (quantised ? GEMM_GROUP : 2) == 0;
    }
    if (fits) {
        rows->stride = a->strides[row_axis];
        return;
    }
    rows->bytes = rows->room;
    rows->stride = stride;
}

/* k of a weight is one and the same. */
size_t product_rows_workspace(const product_rows *rows, const kernel_run *run) {
    bool is_fixed = rows->compute == GEMM_F32 || run->is_packed || (run->constant_in & 2) != 0;
    return is_fixed ? rows->bytes : rows->room;
}

typedef struct rows_job {
    const product_rows *rows;
    const gemm_isa *isa;
    const dw_tensor *a;
    int row_axis, k_axis;
    uint8_t *to;
    size_t scale_row_bytes;
} rows_job;

/* A row that lies in one piece. */
static bool cast_dense_row(const rows_job *job, const uint8_t *from, uint8_t *to) {
    const dw_format format = job->a->format;
    const int64_t k = job->rows->k;
    if (job->a->strides[job->k_axis] != 1) return false;
    if ((job->rows->compute == GEMM_BF16) == (format == DW_FORMAT_bf16) && format != DW_FORMAT_f16) memcpy(to, from, (size_t)k * product_element_bytes(format));
    else if (format == DW_FORMAT_bf16) job->isa->from_bf16((const uint16_t *)(const void *)from, (float *)(void *)to, k);
    else return false;
    return true;
}

static void cast_row(const rows_job *job, int64_t row, uint8_t *to) {
    const dw_tensor *a = job->a;
    int64_t m = a->dims[job->row_axis], k_stride = a->strides[job->k_axis], k = job->rows->k;
    int64_t offset = batch_offset(a, row / m, job->row_axis, job->k_axis) + row % m * a->strides[job->row_axis];
    if (cast_dense_row(job, (const uint8_t *)a->data + offset * (int64_t)product_element_bytes(a->format), to)) return;
    if (job->rows->compute == GEMM_BF16) {
        const uint16_t *from = (const uint16_t *)a->data + offset;
        for (int64_t i = 0; i < k; i++) ((uint16_t *)to)[i] = from[i * k_stride];
        return;
    }
    float *out = (float *)to;
    if (a->format == DW_FORMAT_f32) {
        const float *from = (const float *)a->data + offset;
        for (int64_t i = 0; i < k; i++) out[i] = from[i * k_stride];
    } else if (a->format == DW_FORMAT_bf16) {
        const uint16_t *from = (const uint16_t *)a->data + offset;
        for (int64_t i = 0; i < k; i++) out[i] = num_bf16_to_f32(from[i * k_stride]);
    } else {
        const uint16_t *from = (const uint16_t *)a->data + offset;
        for (int64_t i = 0; i < k; i++) out[i] = num_f16_to_f32(from[i * k_stride]);
    }
}

/* Rows [row, row + count) of one matrix, which lie side by side: k is turned in blocks of few columns. */
static void turn_rows(const rows_job *job, int64_t row, int64_t count, uint8_t *to) {
    enum { DEPTH = 32 };          /* of k at a time */
    const dw_tensor *a = job->a;
    const product_rows *rows = job->rows;
    const int64_t m = a->dims[job->row_axis], k_stride = a->strides[job->k_axis], offset = batch_offset(a, row / m, job->row_axis, job->k_axis) + row % m;
    const gemm_isa *isa = job->isa;
    if (a->format == DW_FORMAT_f32) {
        isa->turn((const float *)a->data + offset, k_stride * (ptrdiff_t)sizeof(float), rows->k, count, to, rows->stride * (ptrdiff_t)sizeof(float));
        return;
    }
    const uint16_t *from = (const uint16_t *)a->data + offset;
    for (int64_t k = 0; k < rows->k; k += DEPTH) {
        const int64_t depth = rows->k - k < DEPTH ? rows->k - k : DEPTH;
        if (rows->compute == GEMM_F32) {
            _Alignas(64) float wide[DEPTH][ROWS_TURNED];
            for (int64_t i = 0; i < depth; i++) isa->from_bf16(from + (k + i) * k_stride, wide[i], count);
            isa->turn(wide, sizeof wide[0], depth, count, to + (size_t)k * sizeof(float), rows->stride * (ptrdiff_t)sizeof(float));
        } else {
            static const uint16_t zeros[ROWS_TURNED];
            _Alignas(64) uint16_t pairs[DEPTH / 2][2 * ROWS_TURNED];
            for (int64_t i = 0; i < depth; i += 2) isa->pair(from + (k + i) * k_stride, i + 1 < depth ? from + (k + i + 1) * k_stride : zeros, count, pairs[i / 2]);
            isa->turn(pairs, sizeof pairs[0], (depth + 1) / 2, count, to + (size_t)k * sizeof(uint16_t), rows->stride * (ptrdiff_t)sizeof(uint16_t));
        }
    }
}

static void turn_task(void *argument, int64_t task, int worker) {
    (void)worker;
    const rows_job *job = argument;
    const product_rows *rows = job->rows;
    const int64_t m = job->a->dims[job->row_axis], per_matrix = base_ceil_div(m, ROWS_TURNED), first = task % per_matrix * ROWS_TURNED;
    const int64_t row = task / per_matrix * m + first, count = m - first < ROWS_TURNED ? m - first : ROWS_TURNED;
    const size_t size = rows->compute == GEMM_F32 ? sizeof(float) : sizeof(uint16_t), row_bytes = (size_t)rows->stride * size, used = (size_t)rows->k * size;
    uint8_t *to = job->to + (size_t)row * row_bytes;
    turn_rows(job, row, count, to);
    for (int64_t i = 0; i < count; i++) memset(to + (size_t)i * row_bytes + used, 0, row_bytes - used);
}

/* Are neighbouring rows neighbouring elements? */
static bool lies_turned(const dw_tensor *a, int row_axis, int k_axis) {
    return !dw_format_is_block(a->format) && a->format != DW_FORMAT_f16 && a->strides[row_axis] == 1 && a->strides[k_axis] != 1 && a->dims[row_axis] > 1;
}

/* By the instruction set's decoder as far as that goes, group by group with num's where it stops. */
static void decode_row(const rows_job *job, int64_t row, uint16_t *to) {
    const dw_tensor *a = job->a;
    const num_format *info = num_info(a->format);
    int64_t k = job->rows->k;
    const uint8_t *codes = (const uint8_t *)a->data + (size_t)row * num_row_bytes(a->format, k), *scales = (const uint8_t *)a->scales + (size_t)row * job->scale_row_bytes;
    for (int64_t at = 0; at < k;) {
        size_t codes_at = num_row_bytes(a->format, at);
        size_t scales_at = info->cols > 0 && job->scale_row_bytes > 0 ? (size_t)(at / info->cols) * (size_t)dw_format_bits(info->scale) / 8 : 0;
        if (job->isa->decode_row != NULL) {
            gemm_codes rest = {.format = a->format, .k = k - at, .codes = codes + codes_at, .scales = scales + scales_at, .to = to + at};
            int64_t done = job->isa->decode_row(&rest);
            at += done;
            if (done > 0) continue;
        }
        int64_t count = job->isa->decode_row == NULL || k - at < GEMM_GROUP ? k - at : GEMM_GROUP;
        num_matrix part = {.format = a->format, .rows = 1, .cols = count, .data = (uint8_t *)(uintptr_t)(codes + codes_at), .scales = (uint8_t *)(uintptr_t)(scales + scales_at)};
        num_dequantize_bf16(&part, to + at, count);
        at += count;
    }
}

static void rows_task(void *argument, int64_t task, int worker) {
    (void)worker;
    const rows_job *job = argument;
    const product_rows *rows = job->rows;
    size_t size = rows->compute == GEMM_F32 ? sizeof(float) : sizeof(uint16_t), row_bytes = (size_t)rows->stride * size;
    int64_t first = task * ROWS_PER_TASK, end = first + ROWS_PER_TASK < rows->rows ? first + ROWS_PER_TASK : rows->rows;
    for (int64_t row = first; row < end; row++) {
        uint8_t *to = job->to + (size_t)row * row_bytes;
        if (dw_format_is_block(job->a->format)) decode_row(job, row, (uint16_t *)to);
        else cast_row(job, row, to);
        memset(to + (size_t)rows->k * size, 0, row_bytes - (size_t)rows->k * size);
    }
}

/* Scales in tiles do not cut into rows: one matrix after the other, on one thread. */
static void decode_tiled(const product_rows *rows, const dw_tensor *a, uint16_t *to) {
    num_matrix all = {
        .format = a->format,
        .layout = a->scale_layout,
        .rows = a->dims[a->rank - 2],
        .cols = rows->k,
        .data = a->data,
        .scales = a->scales,
        .batches = rows->rows / (a->dims[a->rank - 2] > 0 ? a->dims[a->rank - 2] : 1),
    };
    num_dequantize_bf16(&all, to, rows->stride);
    for (int64_t row = 0; row < rows->rows; row++) memset(to + row * rows->stride + rows->k, 0, (size_t)(rows->stride - rows->k) * sizeof *to);
}

void product_rows_run(const product_rows *rows, const gemm_isa *isa, const dw_tensor *a, int row_axis, int k_axis, pool *pool, void *to) {
    if (rows->bytes == 0 || rows->rows == 0) return;
    if (dw_format_is_block(a->format) && a->scale_layout != DW_SCALE_plain) {
        decode_tiled(rows, a, to);
        return;
    }
    rows_job job = {.rows = rows, .isa = isa, .a = a, .row_axis = row_axis, .k_axis = k_axis, .to = to};
    if (dw_format_is_block(a->format)) {
        const num_format *info = num_info(a->format);
        int64_t blocks = info->cols > 0 ? base_ceil_div(rows->k, info->cols) : 1;
        /* One scale for the whole tensor is not part of the bf16 operand. */
        job.scale_row_bytes = info->rows == 0 ? 0 : (size_t)blocks * (size_t)dw_format_bits(info->scale) / 8;
    }
    if (lies_turned(a, row_axis, k_axis)) pool_run(pool, rows->rows / a->dims[row_axis] * base_ceil_div(a->dims[row_axis], ROWS_TURNED), turn_task, &job);
    else pool_run(pool, base_ceil_div(rows->rows, ROWS_PER_TASK), rows_task, &job);
}

/* ---- choosing and packing ---- */

const char *product_reject(const kernel_problem *problem, text *why, int first_post, unsigned panels, const char *other) {
    const op_type *a = problem->in[0], *b = problem->in[1], *out = problem->out[0];
    gemm_compute compute;
    gemm_pack pack;
    if (!product_compute(a->format, b->format, &compute) || !gemm_pack_init(&pack, b->format, compute, 1, 1, 1, GEMM_TRANSPOSED)) {
        text_printf(why, "%s times %s is not one of its products", dw_format_name(a->format), dw_format_name(b->format));
        return text_string(why);
    }
    if (!(panels >> pack.panel & 1)) return other;
    if (!product_has_operand_format(out->format)) {
        text_printf(why, "the result is %s; it gives f32, bf16 and f16", dw_format_name(out->format));
        return text_string(why);
    }
    for (int i = first_post; i < problem->n_in; i++) {
        if (problem->in[i] == NULL || product_has_operand_format(problem->in[i]->format)) continue;
        text_printf(why, "operand %d of the post list is %s; it takes f32, bf16 and f16", i, dw_format_name(problem->in[i]->format));
        return text_string(why);
    }
    return NULL;
}

double product_cost(const kernel_problem *problem) {
    gemm_compute compute = GEMM_F32;
    product_compute(problem->in[0]->format, problem->in[1]->format, &compute);
    return kernel_roofline(problem, compute == GEMM_F32 ? DW_FORMAT_f32 : DW_FORMAT_bf16, 0.9, 0.9);
}

bool product_packing(const kernel_problem *problem, const dw_tensor *weight, kernel_packing *packing) {
    gemm_compute compute;
    gemm_pack pack;
    if (!product_pack_of(problem->attrs, &problem->post, problem->in[0]->format, weight, &compute, &pack)) return false;
    gemm_packing(&pack, packing);
    return true;
}
