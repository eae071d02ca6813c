/* What lines of conformance cannot say of sample: that ids come as often as they should, that a row has the same bits at any number of threads and beside any others,
 * and that words of random bits are used as they should be. */
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"

enum { WORDS = 200, DRAWS = 20000 };

typedef struct settings_row { float value[SAMPLING_SETTINGS]; } settings_row;

/* A call of rows rows on a row of kernel.def, or, with NULL, the reference. */
static void sample(dw_context *context, const kernel_row *row, const chip_caps *chip, int64_t rows, int64_t words, const float *logits, const settings_row *settings, const int64_t *draws,
                   int64_t *ids, float *logs) {
    dw_tensor in[3], out[2];
    const dw_tensor *ins[] = {&in[0], &in[1], &in[2]}, *outs[] = {&out[0], &out[1]};
    assert_true(op_tensor_init(&in[0], DW_FORMAT_f32, DW_SCALE_plain, 2, (int64_t[]){rows, words}, (void *)(uintptr_t)logits));
    assert_true(op_tensor_init(&in[1], DW_FORMAT_f32, DW_SCALE_plain, 2, (int64_t[]){rows, SAMPLING_SETTINGS}, (void *)(uintptr_t)settings));
    assert_true(op_tensor_init(&in[2], DW_FORMAT_i64, DW_SCALE_plain, 2, (int64_t[]){rows, 2}, (void *)(uintptr_t)draws));
    assert_true(op_tensor_init(&out[0], DW_FORMAT_i64, DW_SCALE_plain, 1, &rows, ids));
    assert_true(op_tensor_init(&out[1], DW_FORMAT_f32, DW_SCALE_plain, 1, &rows, logs));
    const op_attrs none = {0};
    kernel_run run = {.call = {.context = context, .op = op_get(OP_sample), .attrs = &none, .n_in = 3, .in = ins, .n_out = 2, .out = outs}, .chip = chip};
    if (row == NULL) {
        assert_int_equal(run.call.op->reference(&run.call), DW_OK);
        return;
    }
    assert_int_equal(base_pool(context, &run.pool), DW_OK);
    const size_t bytes = kernel_workspace(row, &run);
    run.workspace = malloc(bytes + 64);
    void *const memory = run.workspace;
    run.workspace = (void *)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
    assert_int_equal(kernel_execute(row, &run), DW_OK);
    free(memory);
}

static const kernel_row *row_of(const chip_caps *chip) {
    for (int i = 0; i < kernel_count(); i++)
        if (kernel_at(i)->op == OP_sample && kernel_at(i)->device == CHIP_CPU && (kernel_at(i)->needs & ~chip->features) == 0) return kernel_at(i);
    return NULL;
}

static dw_context *context_of(int threads, chip_caps *chip) {
    dw_context *context;
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = threads}, &context), DW_OK);
    assert_int_equal(device_probe_cpu(context, "", threads, chip), DW_OK);
    return context;
}

/* ---- frequencies ---- */

static float heats[WORDS];

static int by_heat(const void *a, const void *b) {
    const int i = *(const int *)a, j = *(const int *)b;
    return heats[i] != heats[j] ? (heats[i] > heats[j] ? -1 : 1) : i - j;
}

/* The probability of each id, by its meaning: softmax, cut to top_k, then to the share top_p, then to min_p of the largest. */
static void probabilities(const float *logits, const settings_row *settings, double *p) {
    int order[WORDS], kept = WORDS;
    double sum = 0, share = 0;
    const float *s = settings->value;
    for (int i = 0; i < WORDS; i++) {
        heats[i] = logits[i] / s[SAMPLING_TEMPERATURE];
        order[i] = i;
        p[i] = 0;
    }
    qsort(order, WORDS, sizeof *order, by_heat);
    if (s[SAMPLING_TOP_K] > 0) kept = (int)s[SAMPLING_TOP_K];
    for (int i = 0; i < kept; i++) sum += exp((double)(heats[order[i]] - heats[order[0]]));
    for (int i = 0; i < kept && s[SAMPLING_TOP_P] > 0; i++) {
        share += exp((double)(heats[order[i]] - heats[order[0]])) / sum;
        if (share >= (double)s[SAMPLING_TOP_P]) kept = i + 1;
    }
    while (exp((double)(heats[order[kept - 1]] - heats[order[0]])) < (double)s[SAMPLING_MIN_P]) kept--;
    sum = 0;
    for (int i = 0; i < kept; i++) sum += exp((double)(heats[order[i]] - heats[order[0]]));
    for (int i = 0; i < kept; i++) p[order[i]] = exp((double)(heats[order[i]] - heats[order[0]])) / sum;
}

/* The numbers are fixed: chi-square of ids that are expected five times or more stays below what one in a thousand exceeds, by Wilson and Hilferty; what is cut off never comes. */
static void ids_come_as_often_as_they_should(void **state) {
    (void)state;
    static const settings_row all[] = {{{1, 0, 0, 0, 1}}, {{3, 0, 0, 0, 1}}, {{0.4f, 0, 0, 0, 1}}, {{2, 30, 0, 0, 1}}, {{1, 0, 0.8f, 0, 1}}, {{2, 50, 0.7f, 0, 1}}, {{2, 0, 0, 0.05f, 1}}, {{1, 1, 0, 0, 1}}};
    static float logits[DRAWS / 20 * WORDS];
    static settings_row settings[DRAWS / 20];
    static int64_t draws[DRAWS / 20 * 2], ids[DRAWS / 20];
    static float logs[DRAWS / 20];
    chip_caps chip;
    dw_context *context = context_of(1, &chip);
    const kernel_row *row = row_of(&chip);
    for (size_t way = 0; way < COUNT_OF(all); way++) {
        int counts[WORDS] = {0};
        double p[WORDS], chi_square = 0, rest = 0, rest_count = 0;
        int degrees = -1;
        for (int i = 0; i < DRAWS / 20 * WORDS; i++) logits[i] = 2 * num_random_normal(way, (uint64_t)(i % WORDS));
        probabilities(logits, &all[way], p);
        for (int part = 0; part < 20; part++) {
            for (int i = 0; i < DRAWS / 20; i++) {
                settings[i] = all[way];
                draws[2 * i] = part % 2 == 0 ? 11 : (int64_t)part * (DRAWS / 20) + i;        /* many draws of a seed, and a draw each of many seeds */
                draws[2 * i + 1] = part % 2 == 0 ? (int64_t)part * (DRAWS / 20) + i : 3;
            }
            sample(context, row, &chip, DRAWS / 20, WORDS, logits, settings, draws, ids, logs);
            for (int i = 0; i < DRAWS / 20; i++) {
                assert_in_range(ids[i], 0, WORDS - 1);
                counts[ids[i]]++;
            }
        }
        for (int i = 0; i < WORDS; i++) {
            if (p[i] == 0) assert_int_equal(counts[i], 0);
            if (p[i] * DRAWS < 5) {
                rest += p[i] * DRAWS;
                rest_count += counts[i];
                continue;
            }
            chi_square += pow(counts[i] - p[i] * DRAWS, 2) / (p[i] * DRAWS);
            degrees++;
        }
        if (rest >= 5) {
            chi_square += pow(rest_count - rest, 2) / rest;
            degrees++;
        }
        const double n = degrees > 0 ? degrees : 1, limit = n * pow(1 - 2 / (9 * n) + 3.09 * sqrt(2 / (9 * n)), 3);
        if (chi_square > limit) fail_msg("settings %zu: chi-square %g of %d degrees, limit %g", way, chi_square, degrees, limit);
    }
    dw_context_destroy(context);
}

/* ---- the same bits ---- */

static void a_row_is_the_same_alone_and_among_others_at_any_number_of_threads(void **state) {
    (void)state;
    enum { ROWS = 24, MANY = 5003 };
    static float logits[ROWS * MANY];
    static settings_row settings[ROWS];
    int64_t draws[ROWS * 2], expected[ROWS], ids[ROWS];
    float log_expected[ROWS], logs[ROWS];
    for (int i = 0; i < ROWS * MANY; i++) logits[i] = (float)(1 + i / MANY % 4) * num_random_normal(7, (uint64_t)i);
    for (int i = 0; i < ROWS; i++) {
        static const float warm[] = {0, 0.5f, 1, 4}, shares[] = {0, 0.5f, 0.99f}, most[] = {0, 40};
        settings[i] = (settings_row){{warm[i % 4], most[i / 12], shares[i / 4 % 3], 0, 1}};
        draws[2 * i] = i % 5;
        draws[2 * i + 1] = i;
    }
    for (int threads = 1; threads <= 3; threads++) {
        chip_caps chip;
        dw_context *context = context_of(threads, &chip);
        const kernel_row *row = row_of(&chip);
        sample(context, row, &chip, ROWS, MANY, logits, settings, draws, ids, logs);
        if (threads == 1) {
            memcpy(expected, ids, sizeof expected);
            memcpy(log_expected, logs, sizeof log_expected);
        }
        assert_memory_equal(ids, expected, sizeof expected);
        assert_memory_equal(logs, log_expected, sizeof logs);
        for (int i = 0; i < ROWS; i++) {
            sample(context, row, &chip, 1, MANY, logits + i * MANY, settings + i, draws + 2 * i, ids, logs);
            assert_int_equal(ids[0], expected[i]);
            assert_memory_equal(logs, log_expected + i, sizeof logs[0]);
        }
        dw_context_destroy(context);
    }
}

/* ---- noise ---- */

/* Beside double: to a few units of the last place, and to what 1 - u loses where u, in fp32, is near 1. The least word has the most noise, and that is what the header says. */
static void noise_is_gumbels(void **state) {
    (void)state;
    float before = INFINITY;
    for (uint64_t word = 0; word <= UINT32_MAX; word += word < 4096 || word > UINT32_MAX - 4096 ? 1 : 1000003) {
        const double u = ((double)(word >> 1) + 0.5) * 0x1p-31;
        const float noise = sampling_noise((uint32_t)word);
        const double below = fmin(u, 1 - 0x1p-24), share = -log1p(-below), expected = -log(share), lost = 0x1p-25 / ((1 - below) * share);
        if (fabs((double)noise - expected) > 3e-7 * fmax(1, fabs(expected)) + lost) fail_msg("word %llu: %.9g instead of %.9g", (unsigned long long)word, (double)noise, expected);
        assert_true(noise <= before + 1e-6f && noise < SAMPLING_MOST_NOISE);
        before = noise;
    }
}

/* Of heats that have no mass, and exponentials beside double. */
static void masses_are_shares(void **state) {
    (void)state;
    assert_int_equal(sampling_mass(0), 1 << 30);
    assert_int_equal(sampling_mass(SAMPLING_LEAST_MASS), 0);
    assert_int_equal(sampling_mass(-INFINITY), 0);
    for (int i = 0; i < 200000; i++) {
        const float z = -87 * num_random_uniform(1, (uint64_t)i);
        assert_true(fabs((double)sampling_exp(z) / exp((double)z) - 1) < 2.5e-7);
    }
    for (int i = 0; i < 200000; i++) {
        const float x = ldexpf(0.5f + num_random_uniform(2, (uint64_t)i), i % 200 - 100);
        assert_true(fabs((double)sampling_log(x) - log((double)x)) < 1.2e-7 * fmax(1, fabs(log((double)x))));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_come_as_often_as_they_should),
        cmocka_unit_test(a_row_is_the_same_alone_and_among_others_at_any_number_of_threads),
        cmocka_unit_test(noise_is_gumbels),
        cmocka_unit_test(masses_are_shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
