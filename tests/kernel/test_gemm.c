/* What lines of conformance cannot say of the CPU's product core: that quantised panels have the same bits however they are decoded, beside every scale, and results in bf16 the codes of num. */
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "kernels/gemm/cpu/gemm.h"

enum { ROWS = GEMM_DIRECT_ROWS + 2, COLUMNS = 256, DEPTH = 2 * GEMM_DEPTH };   /* few rows are decoded in registers, more in memory */

typedef struct product { gemm_slice slice; } product;

static void slice_of(const gemm_job *job, int64_t index, gemm_slice *slice) {
    (void)index;
    *slice = ((const product *)job->owner)->slice;
}

/* c [rows][COLUMNS] = a times the packed weight. special: by the decoder that is exact for all codes and scales. */
static void multiply(const device *device, const gemm_pack *pack, const uint8_t *packed, const uint16_t *a, int64_t rows, bool special, float *c) {
    product p = {.slice = {.rows = rows, .a = a, .panels = packed + GEMM_HEADER_BYTES, .special = special, .out = c}};
    gemm_job job = {.isa = gemm_isa_of(&device->caps), .compute = GEMM_BF16, .pack = *pack, .a_stride = DEPTH, .slices = 1, .rows_max = rows, .slice = slice_of, .owner = &p,
                    .out_format = DW_FORMAT_f32, .out_row_stride = COLUMNS, .n_out = COLUMNS};
    gemm_run(&job, device->pool);
}

/* Codes are random; all blocks of a column have one scale, and the columns have all from `least` to `most` in turn. */
static void fill(dw_tensor *weight, size_t code_bytes, int bits, unsigned nan_from, unsigned least, unsigned most) {
    uint8_t *codes = weight->data, *scales = weight->scales;
    const int64_t blocks = DEPTH / num_info(weight->format)->cols;
    for (size_t i = 0; i < code_bytes; i++) {
        codes[i] = (uint8_t)num_random(3, i);
        if (bits == 8 && (codes[i] & 0x7fu) >= nan_from) codes[i] = 0;
        if (bits == 8 && i % DEPTH >= DEPTH / 2 && (codes[i] & 0x78u) == 0) codes[i] |= 8;   /* half of k has no subnormal E4M3 */
    }
    if (weight->second != NULL) ((float *)(uintptr_t)weight->second)[0] = 1.0f;
    for (int64_t column = 0; column < COLUMNS; column++) memset(scales + column * blocks, (int)(least + (unsigned)column % (most - least + 1)), (size_t)blocks);
}

static void decoders_have_the_exact_bits(dw_format format, unsigned nan_from, unsigned least, unsigned most) {
    const int64_t dims[2] = {COLUMNS, DEPTH};
    static uint16_t a[ROWS * DEPTH];
    static float exact[ROWS * COLUMNS], got[ROWS * COLUMNS];
    dw_context *context;
    device *device;
    gemm_pack pack;
    num_parts parts;
    dw_tensor weight;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_int_equal(device_open(context, "cpu", &device), DW_OK);
    assert_true(gemm_pack_init(&pack, format, GEMM_BF16, DEPTH, COLUMNS, 1, GEMM_TRANSPOSED));
    assert_true(num_layout(format, DW_SCALE_plain, 2, dims, &parts));
    uint8_t *raw = calloc(1, parts.total_bytes), *packed = aligned_alloc(64, base_align_up(pack.bytes, 64));
    assert_true(op_tensor_init(&weight, format, DW_SCALE_plain, 2, dims, raw));
    fill(&weight, parts.data_bytes, dw_format_bits(format), nan_from, least, most);
    for (int i = 0; i < ROWS * DEPTH; i++) a[i] = num_f32_to_bf16(num_random_normal(4, (uint64_t)i));
    gemm_pack_run(&pack, NULL, &weight, device->pool, packed);
    assert_int_equal(((const gemm_header *)(const void *)packed)->special, 0);
    multiply(device, &pack, packed, a, ROWS, true, exact);
    for (int rows = 1; rows <= ROWS; rows++) {
        multiply(device, &pack, packed, a, rows, false, got);
        for (int i = 0; i < rows * COLUMNS; i++) {
            if (got[i] == exact[i]) continue;
            fail_msg("%s, %d rows, row %d, scale %u: %a instead of %a", dw_format_name(format), rows, i / COLUMNS, least + (unsigned)i % COLUMNS % (most - least + 1), (double)got[i],
                     (double)exact[i]);
        }
    }
    free(raw);
    free(packed);
    device_close(device);
    dw_context_destroy(context);
}

/* The scales are those that the fast decoders take (is_special_scale of gemm_pack.c). */
static void mxfp8_is_decoded_exactly(void **state) { (void)state; decoders_have_the_exact_bits(DW_FORMAT_mxfp8, 0x7f, 17, 134); }
static void mxfp8_e5m2_is_decoded_exactly(void **state) { (void)state; decoders_have_the_exact_bits(DW_FORMAT_mxfp8_e5m2, 0x7c, 17, 142); }
static void mxfp4_is_decoded_exactly(void **state) { (void)state; decoders_have_the_exact_bits(DW_FORMAT_mxfp4, 0, 17, 239); }
static void nvfp4_is_decoded_exactly(void **state) { (void)state; decoders_have_the_exact_bits(DW_FORMAT_nvfp4, 0, 0, 0x7e); }

/* Numbers of all exponents, halfway ones, subnormal ones, infinities and NaN among them, at each place of a vector. */
static void results_in_bf16_have_the_codes_of_num(void **state) {
    (void)state;
    enum { COUNT = 1 << 16, MOST = 100 };
    dw_context *context;
    device *device;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_int_equal(device_open(context, "cpu", &device), DW_OK);
    const gemm_isa *isa = gemm_isa_of(&device->caps);
    for (int at = 0; at < COUNT;) {
        float x[MOST];
        uint16_t got[MOST];
        const int count = 1 + (int)(num_random(7, (uint64_t)at) % MOST);
        for (int i = 0; i < count; i++) {
            uint32_t bits = (uint32_t)num_random(8, (uint64_t)(at + i));
            if ((at + i) % 3 == 0) bits = (bits & 0xffff0000) | 0x8000;             /* halfway */
            if ((at + i) % 101 == 0) bits = (bits & 0x807fffff);                     /* subnormal, or 0 */
            if ((at + i) % 103 == 0) bits |= 0x7f800000;                             /* NaN */
            if ((at + i) % 107 == 0) bits = (bits & 0x80000000) | 0x7f800000;
            memcpy(&x[i], &bits, sizeof bits);
        }
        isa->to_bf16(x, got, count);
        for (int i = 0; i < count; i++)
            if (got[i] != num_f32_to_bf16(x[i])) fail_msg("%s: %a becomes %#x, not %#x", isa->name, (double)x[i], got[i], num_f32_to_bf16(x[i]));
        at += count;
    }
    device_close(device);
    dw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mxfp8_is_decoded_exactly),
        cmocka_unit_test(mxfp8_e5m2_is_decoded_exactly),
        cmocka_unit_test(mxfp4_is_decoded_exactly),
        cmocka_unit_test(nvfp4_is_decoded_exactly),
        cmocka_unit_test(results_in_bf16_have_the_codes_of_num),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
