/* The chip table: nominal rates, what was measured of them, and what estimates expect. */
#include "support/support.h"

#include <string.h>

#include "chip/chip.h"

static chip_caps chip_of(dw_context *context, const char *name) {
    chip_caps chip;
    assert_int_equal(chip_find(context, name, 0, &chip), DW_OK);
    return chip;
}

static void every_measurement_is_of_a_chip_and_dated(void **state) {
    dw_context *context;
    const chip_measurement *m, *other;
    int count = 0;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    for (; (m = chip_measurement_at(count)) != NULL; count++) {
        const chip_caps chip = chip_of(context, m->chip);
        assert_int_equal(chip.kind, CHIP_GPU);
        assert_true(m->value > 0 && m->source[0] != '\0');
        assert_non_null(strstr(m->date, "20"));
        for (int i = 0; i < count; i++) {
            other = chip_measurement_at(i);
            if (strcmp(other->chip, m->chip) == 0 && other->rate == m->rate && other->alone == m->alone) fail_msg("%s has two rows of %s", m->chip, chip_rate_name(m->rate));
        }
    }
    assert_true(count > 0);
    dw_context_destroy(context);
}

/* What the instruction does alone, without its operands brought, is expected of no kernel. */
static void estimates_expect_what_whole_kernels_reached(void **state) {
    dw_context *context;
    const chip_measurement *m;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    for (int i = 0; (m = chip_measurement_at(i)) != NULL; i++) {
        const chip_caps chip = chip_of(context, m->chip);
        const chip_rates *rates = &chip.rates[m->rate];
        if (m->alone) assert_true(rates->expected < m->value * chip_rate_scale(m->rate));
        else assert_true(rates->measured == m->value * chip_rate_scale(m->rate) && rates->expected == rates->measured);
    }
    dw_context_destroy(context);
}

static void a_chip_that_nobody_measured_is_expected_to_reach_what_an_h200_does(void **state) {
    dw_context *context;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    const chip_caps h100 = chip_of(context, "h100"), h200 = chip_of(context, "h200"), cpu = chip_of(context, "cpu-avx2");
    for (int i = 0; i < CHIP_RATE_COUNT; i++) {
        const chip_rates *here = &h100.rates[i], *there = &h200.rates[i];
        assert_true(here->measured == 0);
        if (there->nominal > 0) assert_float_equal(here->expected / here->nominal, there->expected / there->nominal, 1e-12);
        assert_true(cpu.rates[i].expected == cpu.rates[i].nominal);
    }
    dw_context_destroy(context);
}

static void fp4_is_estimated_by_instructions_of_k_64(void **state) {
    dw_context *context;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    const chip_caps b300 = chip_of(context, "b300"), h200 = chip_of(context, "h200");
    assert_true(chip_flops(&b300, DW_FORMAT_nvfp4) == b300.rates[CHIP_RATE_fp4].expected);
    assert_true(b300.rates[CHIP_RATE_fp4_k96].nominal == 1.5 * b300.rates[CHIP_RATE_fp4].nominal);
    assert_true(chip_flops(&h200, DW_FORMAT_nvfp4) == chip_flops(&h200, DW_FORMAT_mxfp8));
    dw_context_destroy(context);
}

static void fewer_multiprocessors_multiply_less_and_read_as_fast(void **state) {
    dw_context *context;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    const chip_caps whole = chip_of(context, "h200");
    chip_caps half = whole;
    chip_scale(&half, whole.units / 2);
    assert_float_equal(chip_flops(&half, DW_FORMAT_bf16), chip_flops(&whole, DW_FORMAT_bf16) / 2, 1);
    assert_true(chip_bytes_per_s(&half) == chip_bytes_per_s(&whole));
    dw_context_destroy(context);
}

static void both_rates_are_printed_and_a_question_mark_where_nobody_measured(void **state) {
    dw_context *context;
    text out;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    const chip_caps h200 = chip_of(context, "h200");
    text_init(&out, context);
    chip_print(&out, &h200);
    chip_print_rates(&out, &h200);
    assert_non_null(strstr(text_string(&out), "989 TFLOP/s bf16 (828 measured)"));
    assert_non_null(strstr(text_string(&out), "l2                   -          ?  GB/s\n"));
    assert_non_null(strstr(text_string(&out), "memory            4800       4503  GB/s"));
    text_free(&out);
    dw_context_destroy(context);
}

/* What one multiprocessor does is a matter of its generation; what all do together is not. */
static void units_of_a_chip_are_expected_to_be_as_those_of_its_generation(void **state) {
    dw_context *context;
    text out;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    const chip_caps h100 = chip_of(context, "h100"), h200 = chip_of(context, "h200"), b200 = chip_of(context, "b200"), b300 = chip_of(context, "b300"), rtx5090 = chip_of(context, "rtx5090");
    for (int i = 0; i < CHIP_RATE_COUNT; i++) {
        if (!chip_rate_is_of_unit((chip_rate)i)) continue;
        assert_true(h100.rates[i].measured == 0 && h100.rates[i].expected == h200.rates[i].expected);
        assert_true(rtx5090.rates[i].expected == 0);
    }
    assert_true(b200.rates[CHIP_RATE_operands].measured == 0 && b200.rates[CHIP_RATE_operands].expected == b300.rates[CHIP_RATE_operands].measured);
    assert_true(b200.rates[CHIP_RATE_l2].expected == 0 && b300.rates[CHIP_RATE_l2].expected > 0);
    text_init(&out, context);
    chip_print_rates(&out, &b200);
    assert_non_null(strstr(text_string(&out), "operands             -          ?  B/clk    65.4 of b300 is expected\n"));
    text_free(&out);
    dw_context_destroy(context);
}

/* A plan is bound to the level, whatever its processor does. */
static void a_processor_that_was_measured_is_expected_to_do_what_it_did(void **state) {
    dw_context *context;
    text out;
    chip_caps other;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    const chip_caps level = chip_of(context, "cpu-avx512bf16");
    chip_caps measured = level;
    chip_take_processor(&measured, "AuthenticAMD", 25);
    for (int i = CHIP_RATE_f32; i <= CHIP_RATE_fp4; i++) {
        assert_true(measured.rates[i].nominal == level.rates[i].nominal && measured.rates[i].expected < level.rates[i].expected);
        assert_true(measured.rates[i].expected == measured.rates[i].measured);
    }
    assert_true(chip_hash(&measured) == chip_hash(&level));
    text_init(&out, context);
    chip_print(&out, &measured);
    assert_non_null(strstr(text_string(&out), " GB/s (as measured of AMD Zen 4, "));
    text_free(&out);
    other = level;
    chip_take_processor(&other, "GenuineIntel", 25);
    chip_take_processor(&other, "AuthenticAMD", 24);
    assert_memory_equal(&other, &level, sizeof level);
    assert_int_equal(chip_find(context, "cpu-avx512bf16", 1000, &measured), DW_OK);
    chip_take_processor(&measured, "AuthenticAMD", 25);
    assert_true(chip_bytes_per_s(&measured) == 400e9);       /* the chip's, of however many threads */
    dw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_measurement_is_of_a_chip_and_dated),
        cmocka_unit_test(estimates_expect_what_whole_kernels_reached),
        cmocka_unit_test(a_chip_that_nobody_measured_is_expected_to_reach_what_an_h200_does),
        cmocka_unit_test(fp4_is_estimated_by_instructions_of_k_64),
        cmocka_unit_test(fewer_multiprocessors_multiply_less_and_read_as_fast),
        cmocka_unit_test(units_of_a_chip_are_expected_to_be_as_those_of_its_generation),
        cmocka_unit_test(a_processor_that_was_measured_is_expected_to_do_what_it_did),
        cmocka_unit_test(both_rates_are_printed_and_a_question_mark_where_nobody_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
