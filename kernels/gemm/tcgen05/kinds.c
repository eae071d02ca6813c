/* See kinds.h. Pure: knows no driver. */
#include "kernels/gemm/tcgen05/kinds.h"

#include "kernels/gemm/dequantise/dequantised.h"
#include "kernels/gemm/host.h"
#include "kernels/gpu/host/host.h"

static bool is_one_scale(dw_format format) { return format == DW_FORMAT_fp8_tensor || format == DW_FORMAT_fp8_row; }
static bool is_mxfp8(dw_format format) { return format == DW_FORMAT_mxfp8 || format == DW_FORMAT_mxfp8_e5m2; }
static bool is_nvfp4(dw_format format) { return format == DW_FORMAT_nvfp4 || format == DW_FORMAT_nvfp4_row; }

/* PTX ISA, "Instruction descriptor": the bits of the types of a and b. */
static uint32_t types(uint32_t a, uint32_t b) { return a << 7 | b << 10; }
enum { E2M1_BESIDE_BYTES = 5 };   /* of the kinds f8f6f4; 1 in those of 4 bits alone */

bool tcgen05_product_of(dw_format a, dw_format b, tcgen05_product *p) {
    bool taken = true;
    *p = (tcgen05_product){.kind = KIND_COUNT};
    if (a == DW_FORMAT_bf16 && b == DW_FORMAT_bf16) *p = (tcgen05_product){KIND_HALF, 16, 16, 0, 0, types(1, 1)};
    else if (a == DW_FORMAT_f16 && b == DW_FORMAT_f16) *p = (tcgen05_product){KIND_HALF, 16, 16, 0, 0, types(0, 0)};
    else if (is_one_scale(a) && is_one_scale(b)) *p = (tcgen05_product){KIND_E4M3, 8, 8, 0, 0, types(0, 0)};
    else if (a == DW_FORMAT_fp8_1x128 && b == DW_FORMAT_fp8_128x128) *p = (tcgen05_product){KIND_E4M3_BLOCK, 8, 8, 0, 0, types(0, 0)};
    else if (is_mxfp8(a) && is_mxfp8(b)) *p = (tcgen05_product){KIND_MXFP8, 8, 8, 32, 1, types(a == DW_FORMAT_mxfp8_e5m2, b == DW_FORMAT_mxfp8_e5m2)};
    else if (is_mxfp8(a) && b == DW_FORMAT_mxfp4) *p = (tcgen05_product){KIND_MXFP8, 8, 4, 32, 1, types(a == DW_FORMAT_mxfp8_e5m2, E2M1_BESIDE_BYTES)};
    else if (a == DW_FORMAT_mxfp4 && b == DW_FORMAT_mxfp4) *p = (tcgen05_product){KIND_MXFP4, 4, 4, 32, 2, types(1, 1)};
    else if (is_nvfp4(a) && is_nvfp4(b)) *p = (tcgen05_product){KIND_NVFP4, 4, 4, 16, 4, types(1, 1)};
    else taken = false;
    return taken;
}

unsigned matmul_tcgen05_dequantised(const dw_format formats[2], const int64_t rows[2]) {
    tcgen05_product product;
    return tcgen05_product_of(formats[0], formats[1], &product) ? 0 : dequantised_operands(formats, rows);
}

const char *tcgen05_refuses_operands(const kernel_problem *problem, tcgen05_product *product, text *why) {
    const op_type *a = problem->in[0], *b = problem->in[1];
    int64_t k, n;
    if (!tcgen05_product_of(a->format, b->format, product)) {
        text_printf(why, "%s times %s is not one of its products", dw_format_name(a->format), dw_format_name(b->format));
        return text_string(why);
    }
    if (op_attr_bool(problem->attrs, OP_ATTR_at)) return "a is stored with k first";
    if (!op_attr_bool(problem->attrs, OP_ATTR_bt)) return "b is stored with n last; it is read as [n,k]";
    if (!dim_is_constant(a->dims[a->rank - 1], &k) || !dim_is_constant(b->dims[b->rank - 2], &n)) return "k or n is not known at plan time";
    return k == 0 || n == 0 ? "k or n is 0" : NULL;
}

const char *tcgen05_refuses_layout(const kernel_problem *problem, const tcgen05_product *product, text *why) {
    const op_type *a = problem->in[0], *b = problem->in[1];
    int64_t k = 0;
    (void)dim_is_constant(a->dims[a->rank - 1], &k);
    if (tcgen05_row_bytes(product, k) % 16 != 0 && problem->dequantised == 0) {
        text_printf(why, "rows of k = %lld elements are not multiples of 16 bytes", (long long)k);
        return text_string(why);
    }
    if (tcgen05_pads_b(product) && k % 128 != 0) {
        text_printf(why, "k = %lld is not a multiple of 128, by which TMA pads mxfp4 to bytes", (long long)k);
        return text_string(why);
    }
    if (product->scale_block > 0 && (a->scale_layout != DW_SCALE_tile128x4 || b->scale_layout != DW_SCALE_tile128x4)) return "scales do not lie as tile128x4";
    return NULL;
}

const char *tcgen05_refuses(const kernel_problem *problem, tcgen05_product *product, text *why) {
    const char *reason = tcgen05_refuses_operands(problem, product, why);
    return reason != NULL ? reason : matmul_reject_result(problem, why);
}

void tcgen05_take_map(kernel_launch *launch, int operand, const tcgen05_product *product, int64_t rows, int64_t row_bytes, int box_rows, const void *field) {
    enum { BOX_BYTES = 128 };
    const int bytes = product->element_bits == 16 ? 2 : 1;
    const bool padded = operand == 1 && tcgen05_pads_b(product);
    launch->maps[launch->map_count] = (kernel_map){
        .operand = (uint16_t)operand,
        .type = padded ? KERNEL_MAP_PADDED_4 : bytes == 2 ? KERNEL_MAP_F16 : KERNEL_MAP_BYTE,   /* only the size counts */
        .rank = 2,
        .swizzle = KERNEL_SWIZZLE_128,
        .promotion = KERNEL_PROMOTION_256,
        .dims = {(uint64_t)(row_bytes / bytes), (uint64_t)rows},
        .strides = {(uint64_t)(padded ? row_bytes / 2 : row_bytes)},
        .box = {(uint32_t)(BOX_BYTES / bytes), (uint32_t)box_rows},
    };
    cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, field, 0);
}

void tcgen05_take_block_scales(kernel_launch *launch, int64_t k, matmul_tiles_arguments *g) {
    enum { SCALE_BLOCK = 128 };
    cuda_slot(launch, KERNEL_SLOT_SCALES, 0, &g->a_scales, 0);
    cuda_slot(launch, KERNEL_SLOT_SCALES, 1, &g->b_scales, 0);
    g->scale_stride = (int32_t)base_ceil_div(k, SCALE_BLOCK);
}

/* A tile of scales as 256 elements of 16 bits. */
void tcgen05_take_scales(kernel_launch *launch, const kernel_run *run, int operand, int64_t row_tiles, int box_tiles, const void *field) {
    num_parts parts;
    const dw_tensor *x = run->call.in[operand];
    num_layout(x->format, x->scale_layout, x->rank, x->dims, &parts);
    const int64_t tiles_of_row = parts.scale_cols / 4;
    launch->maps[launch->map_count] = (kernel_map){
        .operand = (uint16_t)operand,
        .of_scales = true,
        .type = KERNEL_MAP_F16,   /* only the size counts */
        .rank = 3,
        .swizzle = KERNEL_SWIZZLE_NONE,
        .promotion = KERNEL_PROMOTION_256,
        .dims = {TILES_SCALE_TILE / 2, (uint64_t)tiles_of_row, (uint64_t)row_tiles},
        .strides = {TILES_SCALE_TILE, (uint64_t)(tiles_of_row * TILES_SCALE_TILE)},
        .box = {TILES_SCALE_TILE / 2, (uint32_t)box_tiles, 1},
    };
    cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, field, 0);
}

void tcgen05_take_result(kernel_launch *launch, const kernel_run *run, int64_t m, int64_t n, const void *field) {
    const int bytes = dw_format_bits(run->call.out[0]->format) / 8;
    launch->maps[launch->map_count] = (kernel_map){
        .operand = KERNEL_RESULT,
        .type = bytes == 4 ? KERNEL_MAP_F32 : KERNEL_MAP_F16,
        .rank = 2,
        .swizzle = KERNEL_SWIZZLE_128,
        .promotion = KERNEL_PROMOTION_256,
        .dims = {(uint64_t)n, (uint64_t)m},
        .strides = {(uint64_t)(n * bytes)},
        .box = {(uint32_t)(128 / bytes), 32},
    };
    cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, field, 0);
}
