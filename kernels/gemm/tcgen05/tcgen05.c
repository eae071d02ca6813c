/* matmul by tcgen05: the host half of tcgen05.cu. Which products its entries take, and the launch. Pure: knows no driver. */
#include "kernels/gemm/tcgen05/tcgen05.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/gemm/host.h"

/* An entry; scale_block: elements of a scale, 0: none; formats: types of the instruction descriptor (PTX ISA, "Instruction descriptor"). */
typedef struct tcgen05_entry { const char *name; int element_bits, scale_block, scale_tiles; uint32_t formats; } tcgen05_entry;

static uint32_t types(uint32_t a, uint32_t b) { return a << 7 | b << 10; }

static bool is_one_scale(dw_format format) { return format == DW_FORMAT_fp8_tensor || format == DW_FORMAT_fp8_row; }
static bool is_mxfp8(dw_format format) { return format == DW_FORMAT_mxfp8 || format == DW_FORMAT_mxfp8_e5m2; }
static bool is_nvfp4(dw_format format) { return format == DW_FORMAT_nvfp4 || format == DW_FORMAT_nvfp4_row; }

static bool entry_of(dw_format a, dw_format b, tcgen05_entry *e) {
    bool taken = true;
    *e = (tcgen05_entry){0};
    if (a == DW_FORMAT_bf16 && b == DW_FORMAT_bf16) *e = (tcgen05_entry){"matmul_half_sm100", 16, 0, 0, types(1, 1)};
    else if (a == DW_FORMAT_f16 && b == DW_FORMAT_f16) *e = (tcgen05_entry){"matmul_half_sm100", 16, 0, 0, types(0, 0)};
    else if (is_one_scale(a) && is_one_scale(b)) *e = (tcgen05_entry){"matmul_e4m3_sm100", 8, 0, 0, types(0, 0)};
    else if (is_mxfp8(a) && is_mxfp8(b)) *e = (tcgen05_entry){"matmul_mxfp8_sm100", 8, 32, 1, types(a == DW_FORMAT_mxfp8_e5m2, b == DW_FORMAT_mxfp8_e5m2)};
    else if (a == DW_FORMAT_mxfp4 && b == DW_FORMAT_mxfp4) *e = (tcgen05_entry){"matmul_mxfp4_sm100", 4, 32, 2, types(1, 1)};
    else if (is_nvfp4(a) && is_nvfp4(b)) *e = (tcgen05_entry){"matmul_nvfp4_sm100", 4, 16, 4, types(1, 1)};
    else taken = false;
    return taken;
}

/* ---- what is taken ---- */

const char *matmul_tcgen05_refuses(const kernel_problem *problem, text *why) {
    const op_type *a = problem->in[0], *b = problem->in[1];
    tcgen05_entry entry;
    int64_t k, n;
    if (!entry_of(a->format, b->format, &entry)) {
        text_printf(why, "%s times %s is not one of its products", dw_format_name(a->format), dw_format_name(b->format));
        return text_string(why);
    }
    if (op_attr_bool(problem->attrs, OP_ATTR_at)) return "a is stored with k first";
    if (!op_attr_bool(problem->attrs, OP_ATTR_bt)) return "b is stored with n last; it is read as [n,k]";
    const char *reason = matmul_reject_result(problem, why);
    if (reason != NULL) return reason;
    if (!dim_is_constant(a->dims[a->rank - 1], &k) || !dim_is_constant(b->dims[b->rank - 2], &n)) return "k or n is not known at plan time";
    if (k == 0 || n == 0) return "k or n is 0";
    if (a->rank > 2 && a->scale_layout == DW_SCALE_tile128x4) return "a has batches, and tiles of scales for each";
    return NULL;
}

/* ---- how long ---- */

/* Lines of the L1 cache, which looks one up in a cycle, that a warp's 32 rows lie in. */
static double lines_of_rows(int64_t row_bytes) {
    const int64_t lines = base_ceil_div(32 * row_bytes, 128);
    return lines < 32 ? (double)lines : 32;
}

/* Of the scales of a k-block: four warps load each operand's byte by byte, a row a lane. */
static double scale_cycles(const kernel_run *run, const tcgen05_entry *e, int64_t k) {
    double lines = 0;
    for (int i = 0; i < 2 && e->scale_block > 0; i++) {
        const bool tiled = run->call.in[i]->scale_layout == DW_SCALE_tile128x4;
        lines += 4.0 * 4 * e->scale_tiles * lines_of_rows(tiled ? 16 : base_ceil_div(k, e->scale_block));
    }
    return lines;
}

/* What its code is, as its machine code is counted (README.md): both warps that issue are far from binding. A row's results are stored one by one, a row a lane. */
static kernel_tiles tiles_of_run(const kernel_run *run, const tcgen05_entry *e, int64_t k) {
    const dw_tensor *out = run->call.out[0];
    const int columns = matmul_halves_columns(&run->post) ? TCGEN05_TILE / 2 : TCGEN05_TILE;
    return (kernel_tiles){.m = TCGEN05_TILE, .n = TCGEN05_TILE, .stages = TCGEN05_STAGES, .accumulators = 1, .restarts = true, .multiply = 95, .load = 40, .scale_cycles = scale_cycles(run, e, k),
                          .epilogue_cycles = 4.0 * columns * lines_of_rows(out->dims[out->rank - 1] * dw_format_bits(out->format) / 8)};
}

bool matmul_tcgen05_bound(const kernel_run *run, kernel_tiles_bound *bound) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const int64_t k = a->dims[a->rank - 1];
    tcgen05_entry e;
    if (!kernel_tiles_known(run->chip) || !entry_of(a->format, b->format, &e)) return false;
    const kernel_product product = {.m = kernel_result_rows(&run->call), .n = b->dims[b->rank - 2], .k = k, .bits = {e.element_bits, e.element_bits}, .scale_block = e.scale_block,
                                    .result_bytes = dw_format_bits(run->call.out[0]->format) / 8};
    const kernel_tiles tiles = tiles_of_run(run, &e, k);
    kernel_tiles_bound_of(&tiles, &product, run->chip, bound);
    return true;
}

/* A chip of whose tensor units nobody knows the rate has the vendor's rates alone. */
double matmul_tcgen05_seconds(const kernel_run *run) {
    kernel_tiles_bound bound;
    return matmul_tcgen05_bound(run, &bound) ? bound.seconds : kernel_run_roofline(run, run->call.in[0]->format, 1, 1);
}

/* ---- which sizes ---- */

static int64_t tiles_of(const kernel_run *run) {
    const dw_tensor *out = run->call.out[0];
    return base_ceil_div(kernel_result_rows(&run->call), TCGEN05_TILE) * base_ceil_div(out->dims[out->rank - 1], matmul_halves_columns(&run->post) ? TCGEN05_TILE / 2 : TCGEN05_TILE);
}

const char *matmul_tcgen05_takes(const kernel_run *run, text *why) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const int64_t m = kernel_result_rows(&run->call), n = b->dims[b->rank - 2], k = a->dims[a->rank - 1];
    if (m <= INT32_MAX / 2 && n <= INT32_MAX / 2 && k <= INT32_MAX / 4 && tiles_of(run) <= INT32_MAX) return NULL;
    return kernel_because(why, "%lld x %lld x %lld is more than it counts to", (long long)m, (long long)n, (long long)k);
}

/* ---- the launch ---- */

static void take_map(kernel_launch *launch, int index, const tcgen05_entry *e, const tcgen05_operand *o, int box_rows, const void *field) {
    int bytes = e->element_bits == 16 ? 2 : 1;
    launch->maps[launch->map_count] = (kernel_map){
        .operand = (uint16_t)index,
        .type = bytes == 2 ? KERNEL_MAP_F16 : KERNEL_MAP_BYTE,   /* only the size counts */
        .rank = 2,
        .swizzle = KERNEL_SWIZZLE_128,
        .promotion = KERNEL_PROMOTION_256,
        .dims = {(uint64_t)(o->row_bytes / bytes), (uint64_t)o->rows},
        .strides = {(uint64_t)o->row_bytes},
        .box = {(uint32_t)(TCGEN05_ROW_BYTES / bytes), (uint32_t)box_rows},
    };
    cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, field, 0);
}

static void take_operand(kernel_launch *launch, const kernel_run *run, int index, const tcgen05_entry *e, int64_t rows, int64_t k, tcgen05_operand *o) {
    o->rows = (int32_t)rows;
    o->row_bytes = (k * e->element_bits + 7) / 8;
    o->by_tma = o->row_bytes % 16 == 0;
    cuda_slot(launch, KERNEL_SLOT_DATA, index, &o->data, 0);
    if (e->scale_block == 0) return;
    o->tiled = run->call.in[index]->scale_layout == DW_SCALE_tile128x4;
    o->blocks = (int32_t)base_ceil_div(k, e->scale_block);
    o->scale_cols = o->tiled ? base_ceil_div(o->blocks, 4) * 4 : o->blocks;
    cuda_slot(launch, KERNEL_SLOT_SCALES, index, &o->scales, 0);
}

static uint32_t shared_bytes(const tcgen05_entry *e) {
    enum { BARRIERS = 2 * TCGEN05_STAGES + 1, ADDRESS_OF_SUMS = 8 };
    return (uint32_t)(TCGEN05_STAGES * 2 * (TCGEN05_OPERAND_BYTES + e->scale_tiles * TCGEN05_SCALE_TILE) + BARRIERS * 8 + ADDRESS_OF_SUMS);
}

dw_status matmul_tcgen05_shape(const kernel_run *run, kernel_launcher *launcher) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    const int64_t m = kernel_result_rows(&run->call), n = b->dims[b->rank - 2], k = a->dims[a->rank - 1];
    tcgen05_entry entry;
    kernel_launch launch;
    entry_of(a->format, b->format, &entry);
    matmul_tcgen05_arguments *g = cuda_launch(&launch, "matmul_sm100", entry.name, sizeof *g);
    matmul_take_epilogue(&launch, run, 2, &g->epilogue);
    take_operand(&launch, run, 0, &entry, m, k, &g->a);
    take_operand(&launch, run, 1, &entry, n, k, &g->b);
    g->k_bytes = (int32_t)g->a.row_bytes;
    g->formats = entry.formats;
    if (g->a.by_tma) take_map(&launch, 0, &entry, &g->a, TCGEN05_TILE, g->map_a);
    if (g->b.by_tma) take_map(&launch, 1, &entry, &g->b, TCGEN05_TILE / 2, g->map_b);
    cuda_grid(&launch, tiles_of(run), 1, 1);
    launch.block[0] = TCGEN05_THREADS;
    launch.shared_bytes = shared_bytes(&entry);
    return launcher->add(launcher, &launch);
}
