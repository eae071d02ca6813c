/* What the choice of kernels expects of an H200, held against what one took (bench/results/h200 says with which driver and when): within a fifth. */
#include "support/support.h"

#include <math.h>

#include "kernel/kernel.h"

typedef struct measured_line { const char *line; double us; } measured_line;

static const measured_line attentions[] = {
    {"attention bf16[32,12,512,64] bf16[32,12,512,64] bf16[32,12,512,64] causal=true scale=0.125", 59.4},
    {"attention bf16[16,12,1024,64] bf16[16,12,1024,64] bf16[16,12,1024,64] causal=true scale=0.125", 90.9},
    {"attention bf16[32,16,512,64] bf16[32,16,512,64] bf16[32,16,512,64] scale=0.125", 108},
    {"attention bf16[8,32,2048,64] bf16[8,32,2048,64] bf16[8,32,2048,64] scale=0.125", 640},
    {"attention bf16[8,32,2048,64] bf16[8,32,2048,64] bf16[8,32,2048,64] causal=true scale=0.125", 362},
    {"attention bf16[4,32,2048,128] bf16[4,32,2048,128] bf16[4,32,2048,128] causal=true scale=0.0884", 280.7},
    {"attention bf16[1,32,2048,128] bf16[1,8,2048,128] bf16[1,8,2048,128] causal=true scale=0.0884", 72.6},
    {"attention bf16[8,32,512,128] bf16[8,32,512,128] bf16[8,32,512,128] causal=true scale=0.0884", 79.1},
    {"attention bf16[2,16,8192,128] bf16[2,16,8192,128] bf16[2,16,8192,128] causal=true scale=0.0884", 824},
    {"attention bf16[2,16,8192,128] bf16[2,16,8192,128] bf16[2,16,8192,128] scale=0.0884", 1590},
    {"attention bf16[4,8,2048,256] bf16[4,8,2048,256] bf16[4,8,2048,256] causal=true scale=0.0625", 136.9},
    {"attention bf16[64,32,1,128] bf16[64,32,4096,128] bf16[64,32,4096,128] scale=0.0884", 1055},
    {"attention bf16[16,32,1,128] bf16[16,8,4096,128] bf16[16,8,4096,128] scale=0.0884", 70.6},
};

/* Of more rows than the skinny kernels take, whose choice is by what a product takes among others in a step. */
static const measured_line products[] = {
    {"matmul bf16[4096,4096] bf16[4096,4096] bt=true", 175.1},
    {"matmul bf16[4096,7168] bf16[4096,7168] bt=true", 300.4},
    {"matmul bf16[512,7168] bf16[2112,7168] bt=true", 25.8},
    {"matmul bf16[128,7168] bf16[4096,7168] bt=true", 21.1},
    {"matmul fp8_1x128[4096,7168] fp8_128x128[4096,7168] bt=true to=bf16", 183.4},
    {"matmul fp8_1x128[512,7168] fp8_128x128[4096,7168] bt=true to=bf16", 27.2},
    {"matmul mxfp8[4096,4096] mxfp8[4096,4096] bt=true to=bf16", 209},
    {"matmul mxfp8[512,4096] mxfp8[4096,4096] bt=true to=bf16", 46.6},
    {"matmul mxfp8[128,4096] mxfp8[4096,4096] bt=true to=bf16", 32.7},
};

static double estimate_us(dw_context *context, const char *line) {
    static const int64_t no_symbols[1] = {0};
    arena arena;
    dim_table *dims;
    kernel_case c;
    kernel_choice choice;
    chip_caps chip;
    arena_init(&arena, context);
    assert_int_equal(dim_table_create(context, &dims), DW_OK);
    assert_int_equal(chip_find(context, "h200", 0, &chip), DW_OK);
    assert_int_equal(kernel_case_parse(&arena, dims, "line", 1, line, &c), DW_OK);
    const kernel_problem problem = {.context = context, .op = c.op, .attrs = &c.attrs, .post = c.post, .n_in = c.n_in, .n_out = c.n_out, .in = c.in, .out = c.out,
                                    .constant_in = c.constant, .dims = c.dims, .symbols = no_symbols, .chip = &chip};
    assert_int_equal(kernel_choose(&arena, &problem, NULL, NULL, &choice), DW_OK);
    const double us = choice.seconds * 1e6;
    dim_table_destroy(dims);
    arena_free(&arena);
    return us;
}

static void check_lines(const measured_line *lines, size_t count) {
    dw_context *context;
    int wrong = 0;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    for (size_t i = 0; i < count; i++) {
        const double us = estimate_us(context, lines[i].line);
        if (fabs(us / lines[i].us - 1) <= 0.2) continue;
        print_error("%s: %.1f us expected, %.1f measured\n", lines[i].line, us, lines[i].us);
        wrong++;
    }
    assert_int_equal(wrong, 0);
    dw_context_destroy(context);
}

static void attention_is_estimated_as_an_h200_took(void **state) {
    (void)state;
    check_lines(attentions, COUNT_OF(attentions));
}

static void products_are_estimated_as_an_h200_took(void **state) {
    (void)state;
    check_lines(products, COUNT_OF(products));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(attention_is_estimated_as_an_h200_took), cmocka_unit_test(products_are_estimated_as_an_h200_took)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
