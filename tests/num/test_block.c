/* Block quantisers: the golden cases of blocks.txt (made by block_rules.py), what num.h promises of special blocks, the exactness of bf16 operands.
 * test_oracle.py compares many more matrices with block_rules.py, and the fast quantiser with the reference. */
#include "support/support.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "num/num.h"

enum { BYTES = 1 << 16 };

/* A matrix with room of its own. */
typedef struct room {
    num_matrix matrix;
    num_parts parts;
    uint8_t data[BYTES], scales[BYTES];
    float second[64];
} room;

static room *make(dw_format format, dw_scale_layout layout, int64_t batches, int64_t rows, int64_t cols) {
    room *r = calloc(1, sizeof *r);
    assert_non_null(r);
    assert_true(num_layout(format, layout, 3, (int64_t[]){batches, rows, cols}, &r->parts));
    assert_true(r->parts.data_bytes <= BYTES && r->parts.scale_bytes <= BYTES && r->parts.second_bytes <= sizeof r->second);
    memset(r->data, 0xcc, sizeof r->data);
    memset(r->scales, 0xcc, sizeof r->scales);
    r->matrix = (num_matrix){.format = format, .layout = layout, .rows = rows, .cols = cols, .data = r->data, .scales = r->scales, .second = r->second, .batches = batches};
    return r;
}

/* One row of count values, quantised rounding up. */
static room *quantized(dw_format format, const float *x, int64_t count) {
    room *r = make(format, DW_SCALE_plain, 1, 1, count);
    num_quantize(x, count, NUM_ROUND_UP, false, &r->matrix);
    return r;
}

static void assert_same(const room *a, const room *b) {
    assert_memory_equal(a->data, b->data, BYTES);
    assert_memory_equal(a->scales, b->scales, BYTES);
    assert_memory_equal(a->second, b->second, sizeof a->second);
}

static bool is_mx(dw_format format) { return num_info(format)->class == NUM_BLOCK && num_info(format)->scale == DW_FORMAT_e8m0; }

/* ---- golden cases ---- */

static size_t read_hex(const char *text, void *memory, size_t room_bytes) {
    size_t count = 0;
    unsigned byte;
    for (; sscanf(text, "%2x", &byte) == 1 && *text != ' '; text += 2, count++) {
        assert_true(count < room_bytes);
        ((uint8_t *)memory)[count] = (uint8_t)byte;
    }
    return count;
}

static void golden_cases(void **state) {
    (void)state;
    FILE *file = fopen(TEST_SOURCE_DIR "/tests/num/blocks.txt", "r");
    assert_non_null(file);
    static char line[8192], parts[4][4096];
    int cases = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (line[0] == '#') continue;
        char name[32], layout[32], rule[32];
        int batches, rows, cols;
        assert_int_equal(sscanf(line, "%31s %31s %31s %d %d %d : %4095s : %4095s : %4095s : %4095s", name, layout, rule, &batches, &rows, &cols, parts[0], parts[1],
                                parts[2], parts[3]), 10);
        float x[256], second[64];
        assert_int_equal(read_hex(parts[0], x, sizeof x), (size_t)(batches * rows * cols) * sizeof *x);
        static uint8_t data[4096], scales[4096];
        for (int reference = 0; reference < 2; reference++) {
            room *r = make(dw_format_find(name), strcmp(layout, "plain") == 0 ? DW_SCALE_plain : DW_SCALE_tile128x4, batches, rows, cols);
            num_round round = strcmp(rule, "up") == 0 ? NUM_ROUND_UP : strcmp(rule, "floor") == 0 ? NUM_ROUND_FLOOR : NUM_ROUND_SEARCH;
            (reference ? num_quantize_reference : num_quantize)(x, cols, round, false, &r->matrix);
            assert_int_equal(read_hex(parts[1], data, sizeof data), r->parts.data_bytes);
            assert_int_equal(read_hex(parts[2], scales, sizeof scales), r->parts.scale_bytes);
            assert_int_equal(read_hex(parts[3], second, sizeof second), r->parts.second_bytes);
            assert_memory_equal(r->data, data, r->parts.data_bytes);
            assert_memory_equal(r->scales, scales, r->parts.scale_bytes);
            assert_memory_equal(r->second, second, r->parts.second_bytes);
            free(r);
        }
        cases++;
    }
    fclose(file);
    assert_true(cases >= 30);
}

/* ---- special blocks ---- */

static void zero_blocks_keep_signs_under_the_smallest_scale(void **state) {
    (void)state;
    const float x[5] = {0.0f, -0.0f, 0.0f, 0.0f, -0.0f};
    for (int f = 0; f < DW_FORMAT_COUNT; f++) {
        if (!dw_format_is_block((dw_format)f)) continue;
        room *r = quantized((dw_format)f, x, 5);
        if (num_info((dw_format)f)->scale == DW_FORMAT_f32) assert_true(((float *)(void *)r->scales)[0] == 1.0f);
        else assert_int_equal(r->scales[0], 0x00);
        float back[5];
        num_dequantize(&r->matrix, back, 5);
        for (int i = 0; i < 5; i++) assert_true(back[i] == 0 && !signbit(back[i]) == !signbit(x[i]));
        assert_true(num_is_bf16_exact(&r->matrix));
        if (num_info((dw_format)f)->second > 0) assert_true(r->second[0] == 1.0f);
        free(r);
    }
}

static void a_nan_makes_its_block_nan_and_no_other(void **state) {
    (void)state;
    float x[128 * 3];
    for (int i = 0; i < 128 * 3; i++) x[i] = (float)(i % 7) - 3;
    x[5] = NAN;
    for (int f = 0; f < DW_FORMAT_COUNT; f++) {
        const num_format *info = num_info((dw_format)f);
        if (info->class != NUM_BLOCK) continue;
        int64_t block = info->cols > 0 ? info->cols : 128 * 3;
        room *r = quantized((dw_format)f, x, 128 * 3);
        float back[128 * 3];
        num_dequantize(&r->matrix, back, 128 * 3);
        uint16_t operand[128 * 3];
        num_dequantize_bf16(&r->matrix, operand, 128 * 3);
        for (int64_t i = 0; i < 128 * 3; i++) {
            assert_int_equal(isnan(back[i]) != 0, i < block);
            assert_int_equal(isnan(num_bf16_to_f32(operand[i])) != 0, i < block);
        }
        free(r);
    }
}

static void infinities_saturate(void **state) {
    (void)state;
    const float x[4] = {INFINITY, -INFINITY, 1.0f, -FLT_MAX};
    for (int f = 0; f < DW_FORMAT_COUNT; f++) {
        if (!dw_format_is_block((dw_format)f)) continue;
        room *r = quantized((dw_format)f, x, 4);
        double max = num_info(num_info((dw_format)f)->element)->max;
        assert_true(num_load((dw_format)f, r->data, 0) == max);
        assert_true(num_load((dw_format)f, r->data, 1) == -max);
        if (is_mx((dw_format)f)) assert_int_equal(r->scales[0], 0xfe);
        free(r);
    }
}

/* The largest magnitude of a block at max * 2^k and one ulp to both sides: rounding up, the scale is 2^k up to it, 2^(k+1) after. */
static void mx_scale_steps_just_above_the_largest_element(void **state) {
    (void)state;
    for (int f = 0; f < DW_FORMAT_COUNT; f++) {
        if (!is_mx((dw_format)f)) continue;
        float max = (float)num_info(num_info((dw_format)f)->element)->max;
        int exponent_max = ilogbf(max);
        for (int k = -110; k <= 100; k++) {
            float edge = ldexpf(max, k), power = ldexpf(1, k + exponent_max);
            const float x[] = {nextafterf(edge, 0), edge, nextafterf(edge, INFINITY), nextafterf(power, 0), power};
            const int up[] = {k, k, k + 1, k - 1 + (nextafterf(power, 0) > edge / 2), k}, floor[] = {k, k, k, k - 1, k};
            for (size_t i = 0; i < COUNT_OF(x); i++) {
                room *r = make((dw_format)f, DW_SCALE_plain, 1, 1, 1);
                num_quantize(&x[i], 1, NUM_ROUND_UP, false, &r->matrix);
                assert_int_equal(r->scales[0] - 127, up[i]);
                num_quantize(&x[i], 1, NUM_ROUND_FLOOR, false, &r->matrix);
                assert_int_equal(r->scales[0] - 127, floor[i]);
                free(r);
            }
        }
    }
}

/* Rounding up never clips: what saturates is what rounds there. Rounding down clips, and OCP says so. */
static void floor_clips_and_round_up_does_not(void **state) {
    (void)state;
    const float x[1] = {511.0f};
    float back;
    room *r = make(DW_FORMAT_mxfp8, DW_SCALE_plain, 1, 1, 1);
    num_quantize(x, 1, NUM_ROUND_FLOOR, false, &r->matrix);
    num_dequantize(&r->matrix, &back, 1);
    assert_true(back == 448.0f);
    num_quantize(x, 1, NUM_ROUND_UP, false, &r->matrix);
    num_dequantize(&r->matrix, &back, 1);
    assert_true(back == 512.0f);
    free(r);
}

static void subnormal_numbers_quantise(void **state) {
    (void)state;
    const float x[3] = {0x1p-130f, -0x1p-131f, 0x1p-149f};
    room *r = quantized(DW_FORMAT_mxfp8, x, 3);
    float back[3];
    num_dequantize(&r->matrix, back, 3);
    assert_int_equal(r->scales[0], 0);   /* 2^-127: elements 2^-3, -2^-4, 0 */
    assert_true(back[0] == x[0] && back[1] == x[1] && back[2] == 0);
    assert_false(num_is_bf16_exact(&r->matrix));
    free(r);
    room *f = quantized(DW_FORMAT_fp8_row, x, 3);
    num_dequantize(&f->matrix, back, 3);
    assert_true(back[0] == x[0] && back[1] == x[1]);   /* the scale is 2^-126, the smallest */
    free(f);
}

/* A row's last block has fewer elements; the bits after them in the last byte are zero, and what follows is untouched. */
static void ragged_rows_end_in_zero_bits(void **state) {
    (void)state;
    float x[37];
    for (int i = 0; i < 37; i++) x[i] = -6.0f;
    for (int f = 0; f < DW_FORMAT_COUNT; f++) {
        if (!dw_format_is_block((dw_format)f)) continue;
        room *r = quantized((dw_format)f, x, 37);
        size_t bytes = num_row_bytes((dw_format)f, 37), used = 37 * (size_t)dw_format_bits((dw_format)f) % 8;
        if (used > 0) assert_int_equal(r->data[bytes - 1] >> used, 0);
        assert_int_equal(r->data[bytes], 0xcc);
        float back[37];
        num_dequantize(&r->matrix, back, 37);
        for (int i = 0; i < 37; i++) assert_true(fabsf(back[i] + 6) < 0.5f);
        free(r);
    }
}

static void empty_matrices_need_no_memory(void **state) {
    (void)state;
    for (int f = 0; f < DW_FORMAT_COUNT; f++) {
        if (!dw_format_is_block((dw_format)f)) continue;
        for (int shape = 0; shape < 3; shape++) {
            int64_t rows = shape == 0 ? 0 : shape == 1 ? 3 : 0, cols = shape == 0 ? 40 : 0;
            room *r = make((dw_format)f, DW_SCALE_plain, 1, rows, cols);
            if (r->parts.data_bytes == 0) r->matrix.data = NULL;
            if (r->parts.scale_bytes == 0) r->matrix.scales = NULL;
            num_quantize(NULL, cols, NUM_ROUND_UP, false, &r->matrix);
            num_quantize_reference(NULL, cols, NUM_ROUND_UP, false, &r->matrix);
            num_dequantize(&r->matrix, NULL, cols);
            num_dequantize_bf16(&r->matrix, NULL, cols);
            assert_true(num_is_bf16_exact(&r->matrix));
            assert_int_equal(r->parts.data_bytes, 0);
            for (size_t i = 0; num_info((dw_format)f)->scale == DW_FORMAT_f32 && i < r->parts.scale_bytes / 4; i++)
                assert_true(((float *)(void *)r->scales)[i] == 1.0f);
            free(r);
        }
    }
}

/* ---- NVFP4 ---- */

static void nvfp4_blocks_too_small_for_their_tensor_are_zero(void **state) {
    (void)state;
    float x[32] = {[0] = 1e6f, [16] = 1e-3f, [17] = -1e-3f};
    room *r = quantized(DW_FORMAT_nvfp4, x, 32);
    assert_int_equal(r->scales[0], 0x7e);
    assert_int_equal(r->scales[1], 0x00);
    assert_int_equal(r->data[8], 0x80);   /* codes +0 and -0, as Transformer Engine's reference in C++ has it */
    free(r);
}

static void nvfp4_row_does_not_see_other_rows(void **state) {
    (void)state;
    float x[3][50];
    for (uint64_t i = 0; i < 150; i++) x[i / 50][i % 50] = num_random_normal(5, i);
    room *before = make(DW_FORMAT_nvfp4_row, DW_SCALE_plain, 1, 3, 50), *after = make(DW_FORMAT_nvfp4_row, DW_SCALE_plain, 1, 3, 50);
    num_quantize(x[0], 50, NUM_ROUND_UP, false, &before->matrix);
    for (int i = 0; i < 50; i++) x[2][i] *= 1000;
    num_quantize(x[0], 50, NUM_ROUND_UP, false, &after->matrix);
    assert_memory_equal(before->data, after->data, 2 * num_row_bytes(DW_FORMAT_nvfp4_row, 50));
    assert_memory_equal(before->scales, after->scales, 2 * 4);
    assert_true(before->second[0] == after->second[0] && before->second[1] == after->second[1] && before->second[2] != after->second[2]);
    free(before);
    free(after);
}

static void a_calibrated_second_level_is_used_as_it_is(void **state) {
    (void)state;
    const float x[2] = {3.0f, -1.5f};
    room *r = make(DW_FORMAT_nvfp4, DW_SCALE_plain, 1, 1, 2);
    r->second[0] = 0.5f;
    num_quantize(x, 2, NUM_ROUND_UP, true, &r->matrix);
    assert_true(r->second[0] == 0.5f);
    assert_true(num_decode(DW_FORMAT_e4m3, r->scales[0]) == 1.0);   /* 3 / 0.5 / 6 */
    float back[2];
    num_dequantize(&r->matrix, back, 2);
    assert_true(back[0] == 3.0f && back[1] == -1.5f);
    r->matrix.second = NULL;   /* without it: element times block scale */
    num_dequantize(&r->matrix, back, 2);
    assert_true(back[0] == 6.0f && back[1] == -3.0f);
    free(r);
}

/* ---- searched scales ---- */

static double squared_error(const num_matrix *matrix, const float *x, int64_t count) {
    float back[64];
    double sum = 0;
    num_dequantize(matrix, back, count);
    for (int64_t i = 0; i < count; i++) sum += ((double)back[i] - x[i]) * ((double)back[i] - x[i]);
    return sum;
}

/* Blocks of normal numbers: never worse than the plain rule but for the rounding of sums, and often better. */
static void searched_scales_have_no_larger_error(void **state) {
    (void)state;
    static const dw_format formats[] = {DW_FORMAT_mxfp4, DW_FORMAT_nvfp4, DW_FORMAT_nvfp4_row};
    for (size_t f = 0; f < COUNT_OF(formats); f++) {
        int better = 0;
        for (uint64_t trial = 0; trial < 1000; trial++) {
            float x[64];
            for (uint64_t i = 0; i < 64; i++) x[i] = num_random_normal(trial, i);
            room *plain = quantized(formats[f], x, 64), *searched = make(formats[f], DW_SCALE_plain, 1, 1, 64);
            num_quantize(x, 64, NUM_ROUND_SEARCH, false, &searched->matrix);
            double before = squared_error(&plain->matrix, x, 64), after = squared_error(&searched->matrix, x, 64);
            assert_true(after <= before * (1 + 1e-5));
            if (num_info(formats[f])->second > 0) assert_true(plain->second[0] == searched->second[0]);
            better += after < before;
            free(plain);
            free(searched);
        }
        assert_true(better > 100);
    }
}

/* All but exact under 1.25, where the largest is 4 of 6; and 6.5 saturates under 1.0, where all others are exact. */
static void a_search_moves_scales_both_ways(void **state) {
    (void)state;
    const float up[17] = {5, 5, 5, -5, 5, 2.5f, 2.5f, 1.25f, 0, 5, 5, 5, 5, 5, 5, 5, 6 * 448}, down[17] = {6.5f, 6, 4, 3, 2, 1, -6, -4, 3, 2, 1, 6, 4, 3, 2, 1, 6 * 448};
    room *r = make(DW_FORMAT_nvfp4, DW_SCALE_plain, 1, 1, 17);
    num_quantize(up, 17, NUM_ROUND_SEARCH, false, &r->matrix);
    assert_true(num_decode(DW_FORMAT_e4m3, r->scales[0]) == 1.25);   /* 5 / 6 is 0.8125 in e4m3 */
    assert_true(num_load(DW_FORMAT_e2m1, r->data, 0) == 4 && num_load(DW_FORMAT_e2m1, r->data, 5) == 2 && num_load(DW_FORMAT_e2m1, r->data, 7) == 1);
    num_quantize(down, 17, NUM_ROUND_SEARCH, false, &r->matrix);
    assert_true(num_decode(DW_FORMAT_e4m3, r->scales[0]) == 1.0);   /* 6.5 / 6 is 1.125 in e4m3 */
    free(r);
}

/* ---- by rows, strides, batches ---- */

static void rows_in_any_pieces_make_the_whole(void **state) {
    (void)state;
    enum { ROWS = 7, COLS = 70, STRIDE = 80, BATCHES = 2 };
    static float x[BATCHES * ROWS * STRIDE];
    for (uint64_t i = 0; i < COUNT_OF(x); i++) x[i] = num_random_normal(9, i);
    for (int f = 0; f < DW_FORMAT_COUNT; f++)
        for (int layout = 0; layout < DW_SCALE_LAYOUT_COUNT; layout++)
            for (int given = 0; given < 2; given++) {
                dw_format format = (dw_format)f;
                if (!dw_format_is_block(format) || !num_has_layout(format, (dw_scale_layout)layout) || !num_is_row_wise(format, given)) continue;
                if (given && num_info(format)->second == 0) continue;
                room *whole = make(format, (dw_scale_layout)layout, BATCHES, ROWS, COLS), *pieces = make(format, (dw_scale_layout)layout, BATCHES, ROWS, COLS);
                for (size_t i = 0; given && i < 64; i++) whole->second[i] = pieces->second[i] = 0.001f * (float)(i + 1);
                const num_scaling scaling = {.round = NUM_ROUND_UP, .has_second = given};
                num_quantize(x, STRIDE, NUM_ROUND_UP, given, &whole->matrix);
                memset(pieces->scales, 0, pieces->parts.scale_bytes);
                num_quantize_rows(x, STRIDE, &scaling, &pieces->matrix, 3, 9);
                num_quantize_rows(x, STRIDE, &scaling, &pieces->matrix, 9, BATCHES * ROWS);
                num_quantize_rows(x, STRIDE, &scaling, &pieces->matrix, 0, 3);
                assert_same(whole, pieces);
                free(whole);
                free(pieces);
            }
    assert_false(num_is_row_wise(DW_FORMAT_nvfp4, false));
    assert_true(num_is_row_wise(DW_FORMAT_nvfp4, true));
    assert_false(num_is_row_wise(DW_FORMAT_fp8_128x128, false));
    assert_false(num_is_row_wise(DW_FORMAT_fp8_tensor, false));
    assert_false(num_is_row_wise(DW_FORMAT_bf16, false));
}

/* What a matrix quantises to does not depend on how its scales are laid out. */
static void layouts_hold_the_same_scales(void **state) {
    (void)state;
    enum { ROWS = 140, COLS = 200 };
    static float x[ROWS * COLS], plain_values[ROWS * COLS], tile_values[ROWS * COLS];
    for (uint64_t i = 0; i < COUNT_OF(x); i++) x[i] = num_random_normal(4, i);
    room *plain = make(DW_FORMAT_nvfp4, DW_SCALE_plain, 1, ROWS, COLS), *tile = make(DW_FORMAT_nvfp4, DW_SCALE_tile128x4, 1, ROWS, COLS);
    num_quantize(x, COLS, NUM_ROUND_UP, false, &plain->matrix);
    num_quantize(x, COLS, NUM_ROUND_UP, false, &tile->matrix);
    assert_memory_equal(plain->data, tile->data, BYTES);
    num_dequantize(&plain->matrix, plain_values, COLS);
    num_dequantize(&tile->matrix, tile_values, COLS);
    assert_memory_equal(plain_values, tile_values, sizeof plain_values);
    free(plain);
    free(tile);
}

/* ---- exact operands ---- */

/* Every element code under every scale code: where num.h says so, the bf16 operand is the product exactly; elsewhere it is the rounded product. */
static void every_code_under_every_scale(void **state) {
    (void)state;
    for (int f = 0; f < DW_FORMAT_COUNT; f++) {
        const num_format *info = num_info((dw_format)f);
        if (info->class != NUM_BLOCK || info->scale == DW_FORMAT_f32) continue;
        room *r = make((dw_format)f, DW_SCALE_plain, 1, 1, 1);
        for (unsigned scale = 0; scale < 256; scale++)
            for (unsigned code = 0; code < 1u << info->bits; code++) {
                r->scales[0] = (uint8_t)scale;
                r->data[0] = (uint8_t)code;
                r->second[0] = 1.0f;
                double product = num_decode(info->element, code) * num_decode(info->scale, scale);
                float found;
                uint16_t operand;
                num_dequantize(&r->matrix, &found, 1);
                num_dequantize_bf16(&r->matrix, &operand, 1);
                bool exact = num_is_bf16_exact(&r->matrix);
                if (isnan(product)) {
                    assert_true(isnan(found) && isnan(num_bf16_to_f32(operand)) && exact);
                    continue;
                }
                if (fabs(product) <= (double)FLT_MAX || isinf(product)) assert_true((double)found == product);
                else assert_true(isinf(found));
                assert_int_equal(operand, num_encode(DW_FORMAT_bf16, product, false));
                bool is_normal = product == 0 || (fabs(product) >= (double)FLT_MIN && fabs(product) <= num_info(DW_FORMAT_bf16)->max) || isinf(num_decode(info->element, code));
                assert_int_equal(exact, is_normal);
                if (exact) assert_true((double)num_bf16_to_f32(operand) == product);
                if (info->scale == DW_FORMAT_e4m3 || (scale >= 127 - 110 && scale <= 127 + 112)) assert_true(exact);
            }
        free(r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_cases),
        cmocka_unit_test(zero_blocks_keep_signs_under_the_smallest_scale),
        cmocka_unit_test(a_nan_makes_its_block_nan_and_no_other),
        cmocka_unit_test(infinities_saturate),
        cmocka_unit_test(mx_scale_steps_just_above_the_largest_element),
        cmocka_unit_test(floor_clips_and_round_up_does_not),
        cmocka_unit_test(subnormal_numbers_quantise),
        cmocka_unit_test(ragged_rows_end_in_zero_bits),
        cmocka_unit_test(empty_matrices_need_no_memory),
        cmocka_unit_test(nvfp4_blocks_too_small_for_their_tensor_are_zero),
        cmocka_unit_test(nvfp4_row_does_not_see_other_rows),
        cmocka_unit_test(a_calibrated_second_level_is_used_as_it_is),
        cmocka_unit_test(searched_scales_have_no_larger_error),
        cmocka_unit_test(a_search_moves_scales_both_ways),
        cmocka_unit_test(rows_in_any_pieces_make_the_whole),
        cmocka_unit_test(layouts_hold_the_same_scales),
        cmocka_unit_test(every_code_under_every_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
