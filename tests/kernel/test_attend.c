/* The bound of attention by tiles (src/kernel/attend.h): what binds which heads on which chip, and that no public time is shorter than it. */
#include "support/support.h"

#include <string.h>

#include "kernel/kernel.h"

/* What a chip's call comes to, and the entry that runs it. */
typedef struct bounded { kernel_tiles_bound bound; double tflops; char entry[64]; } bounded;
typedef struct recorder { kernel_launcher launcher; bounded *of; } recorder;

static dw_status record(kernel_launcher *launcher, const kernel_launch *launch) {
    const recorder *r = (const recorder *)launcher;
    snprintf(r->of->entry, sizeof r->of->entry, "%s", launch->entry);
    return DW_OK;
}

static bounded bounded_of(const char *name, const char *line) {
    static const int64_t no_symbols[1] = {0};
    dw_context *context;
    chip_caps chip;
    arena arena;
    dim_table *dims;
    kernel_case c;
    kernel_choice choice;
    kernel_typical typical;
    bounded b;
    recorder recorder = {{record}, &b};
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_int_equal(chip_find(context, name, 0, &chip), DW_OK);
    arena_init(&arena, context);
    assert_int_equal(dim_table_create(context, &dims), DW_OK);
    assert_int_equal(kernel_case_parse(&arena, dims, "test", 1, line, &c), DW_OK);
    const kernel_problem problem = {.context = context, .op = c.op, .attrs = &c.attrs, .post = c.post, .n_in = c.n_in, .n_out = c.n_out, .in = c.in, .out = c.out, .constant_in = c.constant,
                                    .dims = c.dims, .symbols = no_symbols, .chip = &chip};
    assert_int_equal(kernel_choose(&arena, &problem, NULL, "cuda_attention_tcgen05", &choice), DW_OK);
    assert_true(kernel_at_typical(&problem, choice.ways, &typical) && kernel_pick_bound(choice.row, &typical.run, &b.bound));
    assert_int_equal(kernel_shape(choice.row, &typical.run, &recorder.launcher), DW_OK);
    op_work work;
    c.op->work(&typical.run.call, &work);
    b.tflops = 1e-12 * work.flops / b.bound.seconds;
    dim_table_destroy(dims);
    arena_free(&arena);
    dw_context_destroy(context);
    return b;
}

static const char narrow[] = "attention bf16[4,32,8192,64] bf16[4,32,8192,64] bf16[4,32,8192,64] scale=0.125", wide[] = "attention bf16[4,32,8192,128] bf16[4,32,8192,128] bf16[4,32,8192,128] scale=0.09";

static void powers_of_2_bind_narrow_heads(void **state) {
    (void)state;
    const bounded b = bounded_of("b200", narrow);
    print_message("b200, d64: %.1f %% of the matrix rate, %s\n", 100 * b.bound.part, kernel_resource_words(b.bound.limit));
    assert_int_equal(b.bound.limit, KERNEL_RESOURCE_powers);
    assert_true(b.bound.part >= 0.65);
    assert_string_equal(b.entry, "attention_tcgen05_bf16_d64");
}

static void products_bind_wide_heads(void **state) {
    (void)state;
    const bounded b = bounded_of("b200", wide);
    print_message("b200, d128: %.1f %% of the matrix rate, %s\n", 100 * b.bound.part, kernel_resource_words(b.bound.limit));
    assert_int_equal(b.bound.limit, KERNEL_RESOURCE_mma);
    assert_true(b.bound.part >= 0.90);
}

/* Multiplying and adding buys nothing where powers of 2 come at twice the rate. */
static void a_chip_of_fast_powers_emulates_none(void **state) {
    (void)state;
    const bounded n = bounded_of("b300", narrow), w = bounded_of("b300", wide);
    print_message("b300, d64: %.1f %% of the matrix rate, %s\n", 100 * n.bound.part, kernel_resource_words(n.bound.limit));
    assert_string_equal(n.entry, "attention_tcgen05_bf16_d64_ex2");
    assert_string_equal(w.entry, "attention_tcgen05_bf16_d128_ex2");
    assert_true(n.bound.part > bounded_of("b200", narrow).bound.part);
}

/* Products of codes take half the cycles. Of wide heads powers of 2 then take as long as the products, of which more are made by multiplying and adding. */
static void codes_take_less_of_wide_heads(void **state) {
    (void)state;
    static const char e4m3[] = "attention fp8_1x128[4,32,8192,128] fp8_128x128[4,32,8192,128] bf16[4,32,8192,128] scale=0.09", mxfp8[] = "attention mxfp8[4,32,8192,128] mxfp8[4,32,8192,128] bf16[4,32,8192,128] scale=0.09";
    const double halves = bounded_of("b200", wide).bound.seconds;
    const bounded e = bounded_of("b200", e4m3), m = bounded_of("b200", mxfp8), fast = bounded_of("b300", mxfp8);
    print_message("b200, d128, predicted: bf16 %.0f us, e4m3 %.0f us, mxfp8 %.0f us (%s)\n", 1e6 * halves, 1e6 * e.bound.seconds, 1e6 * m.bound.seconds, kernel_resource_words(m.bound.limit));
    print_message("b300, d128, predicted: bf16 %.0f us, mxfp8 %.0f us\n", 1e6 * bounded_of("b300", wide).bound.seconds, 1e6 * fast.bound.seconds);
    assert_string_equal(e.entry, "attention_tcgen05_e4m3_d128");
    assert_string_equal(m.entry, "attention_tcgen05_mxfp8_d128");
    assert_string_equal(fast.entry, "attention_tcgen05_mxfp8_d128_ex2");
    assert_true(e.bound.seconds < 0.8 * halves && m.bound.seconds < 0.85 * halves);
}

/* One tile of 128 queries reads what two tiles of narrower heads share, so the L2 cache is near to its limit; products bind, as its pieces come in time. */
static void products_bind_heads_of_256(void **state) {
    (void)state;
    const bounded b = bounded_of("b200", "attention bf16[2,16,8192,256] bf16[2,16,8192,256] bf16[2,16,8192,256] scale=0.06");
    print_message("b200, d256: %.1f %% of the matrix rate, %s, %.0f us predicted; of the L2 cache %.0f %%\n", 100 * b.bound.part, kernel_resource_words(b.bound.limit), 1e6 * b.bound.seconds,
                  100 * b.bound.cycles[KERNEL_RESOURCE_l2] / b.bound.cycles[KERNEL_RESOURCE_mma]);
    assert_string_equal(b.entry, "attention_tcgen05_bf16_d256");
    assert_int_equal(b.bound.limit, KERNEL_RESOURCE_mma);
    assert_true(b.bound.part >= 0.90);
}

/* Blocks of 192 columns of keys come in pieces: two stages of whole blocks are all that there is room for, and those are waited for. */
static void pieces_come_in_time_for_heads_of_192(void **state) {
    (void)state;
    const bounded b = bounded_of("b200", "attention bf16[2,16,8192,192] bf16[2,16,8192,192] bf16[2,16,8192,128] scale=0.07");
    print_message("b200, d192: %.1f %% of the matrix rate, %s, %.0f us predicted\n", 100 * b.bound.part, kernel_resource_words(b.bound.limit), 1e6 * b.bound.seconds);
    assert_string_equal(b.entry, "attention_tcgen05_bf16_d192");
    assert_true(b.bound.part >= 0.94);
}

/* The bound of a ring: of two tiles, or one, a block's products take mma cycles, and a load comes 1606 cycles after it was asked for, which is when both tiles have read what lay there. */
static void rings_that_are_too_short_are_waited_for(void **state) {
    (void)state;
    static const struct { int tiles, width, value_width, stages, key_pieces, value_pieces; double cycles; } rings[] = {   /* cycles of a tile's block; 0: nothing is waited for */
        {2, 128, 128, 3, 1, 1, (1024 + 1606) / 2.0},   /* keys wait for the stage of the values before, whose second product ends 1024 cycles behind the first scores */
        {2, 128, 128, 4, 1, 1, 0},
        {2, 192, 128, 2, 1, 1, (2048 + 1606) / 2.0},   /* of the keys before: until the second tile's scores have been multiplied */
        {2, 192, 128, 7, 3, 2, (1024 + 1606) / 2.0},
        {2, 192, 128, 8, 3, 2, 0},
        {1, 256, 256, 8, 4, 4, 0},
    };
    const kernel_attention call = {.heads = 64, .shared = 1, .queries = 8192, .keys = 8192, .seen = 8192, .score_bits = 16, .bits = 16, .result_bytes = 2};
    dw_context *context;
    chip_caps chip;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_int_equal(chip_find(context, "b200", 0, &chip), DW_OK);
    for (size_t i = 0; i < COUNT_OF(rings); i++) {
        const kernel_attend kernel = {.rows = 128, .keys = 128, .tiles = rings[i].tiles, .width = rings[i].width, .value_width = rings[i].value_width, .stages = rings[i].stages, .key_pieces = rings[i].key_pieces,
                                      .value_pieces = rings[i].value_pieces};
        kernel_tiles_bound b;
        kernel_attend_bound_of(&kernel, &call, &chip, &b);
        const double products = 4.0 * (rings[i].width + rings[i].value_width), cycles = products * b.cycles[KERNEL_RESOURCE_latency] / b.cycles[KERNEL_RESOURCE_mma];
        print_message("%d tiles of %d, %d stages: %.0f cycles of a tile's block by loads, %.0f by products\n", rings[i].tiles, rings[i].width, rings[i].stages, cycles, products);
        assert_float_equal(cycles, rings[i].cycles, 1e-6 * products);
        assert_int_equal(b.limit, rings[i].cycles > 0 ? KERNEL_RESOURCE_latency : KERNEL_RESOURCE_mma);
    }
    dw_context_destroy(context);
}

/* What more than position hides, and what wide heads have besides, goes by entries of its own, none of them plain. */
static void masks_have_entries(void **state) {
    (void)state;
    static const struct { const char *line, *entry; } calls[] = {
        {"attention mxfp8[8,12,512,64] mxfp8[8,12,512,64] bf16[8,12,512,64] bool[8,1,1,512] scale=0.125", "attention_tcgen05_mxfp8_d64_masked"},
        {"attention fp8_1x128[8,12,512,128] fp8_128x128[8,12,512,128] bf16[8,12,512,128] bool[8,1,1,512] scale=0.09", "attention_tcgen05_e4m3_d128_masked"},
        {"attention mxfp8[8,12,512,128] mxfp8[8,12,512,128] bf16[8,12,512,128] - f32[12,512,512] scale=0.09", "attention_tcgen05_mxfp8_d128_general"},
        {"attention bf16[1,8,2048,256] bf16[1,4,2048,256] bf16[1,4,2048,256] scale=0.06 softcap=50 causal=true", "attention_tcgen05_bf16_d256_general"},
        {"attention bf16[1,8,2048,192] bf16[64,8,64,192] bf16[64,8,64,128] - - - i32[2048] i32[2048] i32[1,64] scale=0.07 causal=true", "attention_tcgen05_bf16_d256_texts"},
    };
    for (size_t i = 0; i < COUNT_OF(calls); i++) assert_string_equal(bounded_of("b200", calls[i].line).entry, calls[i].entry);
}

/* FlashAttention 4 on a B200, as its authors publish it: full attention of 16384 keys. A bound above which a kernel runs is none; one of which it reaches less than half says little. */
static void no_public_time_is_shorter(void **state) {
    (void)state;
    static const struct { const char *line; double tflops; } peers[] = {
        {"attention bf16[2,16,16384,128] bf16[2,16,16384,128] bf16[2,16,16384,128] scale=0.09", 1330},
        {"attention bf16[2,32,16384,64] bf16[2,32,16384,64] bf16[2,32,16384,64] scale=0.125", 879},
    };
    for (size_t i = 0; i < COUNT_OF(peers); i++) {
        const bounded b = bounded_of("b200", peers[i].line);
        print_message("predicted at most %.0f TFLOP/s, reached %.0f: %s\n", b.tflops, peers[i].tflops, peers[i].line);
        assert_true(peers[i].tflops < b.tflops && peers[i].tflops > 0.5 * b.tflops);
    }
}

/* Half of the keys are seen; blocks on the diagonal count whole. */
static void a_causal_mask_takes_about_half(void **state) {
    (void)state;
    const double full = bounded_of("b200", wide).bound.seconds, causal = bounded_of("b200", "attention bf16[4,32,8192,128] bf16[4,32,8192,128] bf16[4,32,8192,128] scale=0.09 causal=true").bound.seconds;
    assert_true(causal > 0.5 * full && causal < 0.56 * full);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(powers_of_2_bind_narrow_heads),
        cmocka_unit_test(products_bind_wide_heads),
        cmocka_unit_test(a_chip_of_fast_powers_emulates_none),
        cmocka_unit_test(codes_take_less_of_wide_heads),
        cmocka_unit_test(products_bind_heads_of_256),
        cmocka_unit_test(pieces_come_in_time_for_heads_of_192),
        cmocka_unit_test(rings_that_are_too_short_are_waited_for),
        cmocka_unit_test(masks_have_entries),
        cmocka_unit_test(no_public_time_is_shorter),
        cmocka_unit_test(a_causal_mask_takes_about_half),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
