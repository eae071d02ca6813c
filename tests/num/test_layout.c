/* Sizes of the parts of tensors, and where scales lie: the tile128x4 formula against the tiles walked in the order of their bytes. */
#include "support/support.h"

#include "num/num.h"

static num_parts parts_of(dw_format format, dw_scale_layout layout, int rank, const int64_t *dims) {
    num_parts parts;
    assert_true(num_layout(format, layout, rank, dims, &parts));
    return parts;
}

static void tile128x4_orders_scales_as_the_hardware_reads_them(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 1}, {128, 4}, {129, 4}, {130, 5}, {384, 12}, {1000, 33}};
    for (size_t s = 0; s < COUNT_OF(shapes); s++) {
        const int64_t dims[] = {shapes[s][0], shapes[s][1] * 32};
        num_parts parts = parts_of(DW_FORMAT_mxfp8, DW_SCALE_tile128x4, 2, dims);
        size_t at = 0;
        for (int64_t tile_row = 0; tile_row < parts.scale_rows; tile_row += 128)
            for (int64_t tile_col = 0; tile_col < parts.scale_cols; tile_col += 4)
                for (int64_t line = 0; line < 32; line++)
                    for (int64_t group = 0; group < 4; group++)
                        for (int64_t c = 0; c < 4; c++)
                            assert_int_equal(num_scale_index(DW_SCALE_tile128x4, tile_row + group * 32 + line, tile_col + c, parts.scale_cols), at++);
        assert_int_equal(at, parts.scale_bytes);
        assert_true(parts.scale_rows >= shapes[s][0] && parts.scale_rows < shapes[s][0] + 128 && parts.scale_rows % 128 == 0);
        assert_true(parts.scale_cols >= shapes[s][1] && parts.scale_cols < shapes[s][1] + 4 && parts.scale_cols % 4 == 0);
    }
    /* Two places from cuBLAS's documentation: its formula by hand. */
    assert_int_equal(num_scale_index(DW_SCALE_tile128x4, 33, 2, 8), 1 * 16 + 1 * 4 + 2);
    assert_int_equal(num_scale_index(DW_SCALE_tile128x4, 128 + 65, 5, 8), (1 * 2 + 1) * 512 + 1 * 16 + 2 * 4 + 1);
}

static void plain_scales_are_row_major(void **state) {
    (void)state;
    assert_int_equal(num_scale_index(DW_SCALE_plain, 3, 2, 7), 23);
}

typedef struct size_case {
    dw_format format;
    dw_scale_layout layout;
    int rank;
    int64_t dims[3];
    size_t data_bytes, scale_bytes, second_bytes;
    int64_t scale_rows, scale_cols;
} size_case;

static void parts_have_the_sizes_of_their_format(void **state) {
    (void)state;
    static const size_case cases[] = {
        {DW_FORMAT_f32, DW_SCALE_plain, 2, {3, 5}, 60, 0, 0, 0, 0},
        {DW_FORMAT_i64, DW_SCALE_plain, 0, {0}, 8, 0, 0, 0, 0},
        {DW_FORMAT_e2m1, DW_SCALE_plain, 2, {3, 5}, 9, 0, 0, 0, 0},
        {DW_FORMAT_e3m2, DW_SCALE_plain, 3, {2, 3, 5}, 24, 0, 0, 0, 0},
        {DW_FORMAT_bf16, DW_SCALE_tile128x4, 1, {7}, 14, 0, 0, 0, 0},
        {DW_FORMAT_mxfp8, DW_SCALE_plain, 2, {3, 65}, 195, 9, 0, 3, 3},
        {DW_FORMAT_mxfp8, DW_SCALE_tile128x4, 2, {3, 65}, 195, 512, 0, 128, 4},
        {DW_FORMAT_mxfp8, DW_SCALE_tile128x4, 3, {2, 129, 160}, 2 * 129 * 160, 4096, 0, 256, 8},
        {DW_FORMAT_mxfp6_e2m3, DW_SCALE_plain, 2, {2, 33}, 50, 4, 0, 2, 2},
        {DW_FORMAT_mxfp4, DW_SCALE_plain, 1, {33}, 17, 2, 0, 1, 2},
        {DW_FORMAT_nvfp4, DW_SCALE_plain, 3, {2, 3, 40}, 120, 18, 4, 3, 3},
        {DW_FORMAT_nvfp4_row, DW_SCALE_plain, 3, {2, 3, 40}, 120, 18, 24, 3, 3},
        {DW_FORMAT_fp8_1x128, DW_SCALE_plain, 2, {3, 129}, 387, 24, 0, 3, 2},
        {DW_FORMAT_fp8_128x128, DW_SCALE_plain, 3, {2, 129, 129}, 2 * 129 * 129, 32, 0, 2, 2},
        {DW_FORMAT_fp8_row, DW_SCALE_plain, 2, {3, 129}, 387, 12, 0, 3, 1},
        {DW_FORMAT_fp8_tensor, DW_SCALE_plain, 3, {2, 3, 4}, 24, 4, 0, 1, 1},
        {DW_FORMAT_mxfp8, DW_SCALE_tile128x4, 2, {0, 65}, 0, 0, 0, 0, 4},
        {DW_FORMAT_mxfp8, DW_SCALE_plain, 2, {3, 0}, 0, 0, 0, 3, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        num_parts parts = parts_of(cases[i].format, cases[i].layout, cases[i].rank, cases[i].dims);
        assert_int_equal(parts.data_bytes, cases[i].data_bytes);
        assert_int_equal(parts.scale_bytes, cases[i].scale_bytes);
        assert_int_equal(parts.second_bytes, cases[i].second_bytes);
        assert_int_equal(parts.scale_rows, cases[i].scale_rows);
        assert_int_equal(parts.scale_cols, cases[i].scale_cols);
        if (parts.scale_bytes > 0) assert_int_equal(parts.scale_offset % 64, 0);
        if (parts.second_bytes > 0) assert_int_equal(parts.second_offset % 64, 0);
        assert_true(parts.scale_offset >= parts.data_bytes);
        assert_true(parts.second_offset >= parts.scale_offset + parts.scale_bytes);
        assert_int_equal(parts.total_bytes, parts.second_offset + parts.second_bytes);
    }
}

static void impossible_layouts_are_refused(void **state) {
    (void)state;
    num_parts parts;
    static const int64_t huge[] = {INT64_MAX, INT64_MAX}, wide[] = {INT64_MAX}, negative[] = {3, -1}, batches[] = {INT64_MAX / 2, 3, 1}, edge[] = {INT64_MAX - 5, 1};
    assert_false(num_layout(DW_FORMAT_f32, DW_SCALE_plain, 2, huge, &parts));
    assert_false(num_layout(DW_FORMAT_f32, DW_SCALE_plain, 1, wide, &parts));
    assert_false(num_layout(DW_FORMAT_f32, DW_SCALE_plain, 2, negative, &parts));
    assert_false(num_layout(DW_FORMAT_mxfp4, DW_SCALE_plain, 3, batches, &parts));
    assert_false(num_layout(DW_FORMAT_mxfp8, DW_SCALE_tile128x4, 2, edge, &parts));
    assert_false(num_layout(DW_FORMAT_fp8_1x128, DW_SCALE_tile128x4, 2, (int64_t[]){1, 1}, &parts));
    assert_false(num_has_layout(DW_FORMAT_fp8_row, DW_SCALE_tile128x4));
    assert_true(num_has_layout(DW_FORMAT_nvfp4_row, DW_SCALE_tile128x4));
    assert_true(num_has_layout(DW_FORMAT_f32, DW_SCALE_tile128x4));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tile128x4_orders_scales_as_the_hardware_reads_them),
        cmocka_unit_test(plain_scales_are_row_major),
        cmocka_unit_test(parts_have_the_sizes_of_their_format),
        cmocka_unit_test(impossible_layouts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
