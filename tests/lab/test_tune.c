/* dw_tune on the stand-ins for the driver and for libraries (tests/cuda): what is measured is for this device alone and is taken by plans, what is not measured is told, and what
 * ends it early leaves what was measured. */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "support/driver.h"
#include "support/session.h"

#define WITH DEVICE_NAME ",libraries=" TEST_BUILD_DIR "/tests/libraries"

/* Two products that differ, small ones: the stand-in is slow. */
static const char products_text[] = "graph products\n  input x f32[s,4]\n  input v f32[4,2]\n  input w f32[2,4]\n  %1 = matmul x, v\n  %2 = matmul %1, w\n  output y %2\n";
/* A product of batches, which two kernels run where a library is, and a norm, which one runs. */
static const char batched_text[] = "graph batched\n  input x f32[2,s,8]\n  input w f32[2,8,16]\n  input g f32[16]\n  %1 = matmul x, w\n  %2 = rms_norm %1, g {eps=1e-05}\n  output y %2\n";

static const char *write_graph(const char *text) {
    static const char path[] = TEST_BUILD_DIR "/tests/tune.graph";
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    return path;
}

static char told[1 << 16];

static void gather(void *user, const char *text, size_t length) {
    (void)user;
    strncat(told, text, length < sizeof told - strlen(told) - 1 ? length : 0);
}

static int count_words(const char *text, const char *words) {
    int count = 0;
    for (const char *at = strstr(text, words); at != NULL; at = strstr(at + 1, words)) count++;
    return count;
}

static void what_is_tuned_is_for_this_device(void **state) {
    (void)state;
    const dw_model_options options = {.device = DEVICE_NAME};
    dw_context *context = context_of();
    const char *file = write_graph(products_text);
    dw_model *model;
    char key[256];
    told[0] = '\0';
    assert_ok(context, dw_tune(context, file, &options, NULL, gather, NULL));
    assert_non_null(strstr(told, "\ntuning \"NVIDIA A100-SXM4-80GB\" \"CUDA 13.0\" \""));
    assert_non_null(strstr(told, "\n  rows 2048 cuda_matmul_plain\n"));
    dw_model_options tuned = options;
    tuned.tuning = told;
    assert_ok(context, dw_model_open(context, file, &tuned, &model));
    dw_model_destroy(model);
    const int launches = fake->launches;
    char *before = strdup(told);
    told[0] = '\0';
    assert_ok(context, dw_tune(context, file, &options, before, gather, NULL));     /* nothing is measured again */
    assert_int_equal(fake->launches, launches);
    assert_non_null(strstr(told, "rows 2048 cuda_matmul_plain"));
    assert_ok(context, dw_tuning_key(context, DEVICE_NAME, key, sizeof key));
    assert_true(strncmp(key, "a100-CUDA_13.0-", 15) == 0);
    fake->version = 13010;
    test_assert_fails(context, dw_model_open(context, file, &tuned, &model), DW_MISMATCH, "this is NVIDIA A100-SXM4-80GB under CUDA 13.1");
    test_assert_fails(context, dw_tune(context, file, &options, before, gather, NULL), DW_MISMATCH, "put it away, and tune anew");
    fake->version = 13000;
    free(before);
    test_assert_fails(context, dw_tune(context, file, &(dw_model_options){0}, NULL, gather, NULL), DW_UNSUPPORTED, "the CPU's kernels are chosen by estimates");
    test_assert_fails(context, dw_tuning_key(context, NULL, key, sizeof key), DW_UNSUPPORTED, "the CPU's kernels are chosen by estimates");
    setenv("DEEPWELL_SIM", "h200", 1);
    test_assert_fails(context, dw_tune(context, file, &(dw_model_options){.device = "cuda:0,driver=" TEST_BUILD_DIR "/libdeepwell-sim.so"}, NULL, gather, NULL), DW_UNSUPPORTED,
                      "is simulated, and a simulation says nothing of time");
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

static void what_it_refuses_is_not_tuned(void **state) {
    (void)state;
    char key[256];
    dw_context *context = context_of();
    fake->library_refuses = 1;
    told[0] = '\0';
    assert_ok(context, dw_tune(context, write_graph(products_text), &(dw_model_options){.device = WITH}, NULL, gather, NULL));
    fake->library_refuses = 0;
    assert_non_null(strstr(told, "#   not cuda_matmul_cublaslt candidate0: "));
    assert_non_null(strstr(told, "cuBLASLt has nothing for this product"));
    assert_non_null(strstr(told, "\ntuning \"NVIDIA A100-SXM4-80GB\" \"CUDA 13.0, cuBLASLt 13.0.0, cuDNN 9.19.0\" \""));
    assert_non_null(strstr(told, "\n  rows 2048 cuda_matmul_plain\n"));
    assert_ok(context, dw_tuning_key(context, WITH, key, sizeof key));
    assert_true(strncmp(key, "a100-CUDA_13.0__cuBLASLt_13.0.0__cuDNN_9.19.0-", 46) == 0);
    assert_int_equal(fake->live, 0);
    assert_int_equal(fake->library_live, 0);
    dw_context_destroy(context);
}

/* Each kernel that was tried at one size is a poll; a product of these has one kernel and six sizes. */
typedef struct stop { int launches, polls, at; bool fails; } stop;

static int is_stopped(void *user) {
    stop *stop = user;
    if (fake->launches == stop->launches || ++stop->polls != stop->at) return 0;
    if (stop->fails) fake->fail_at = fake->calls + 10;     /* what comes first gives memory back, whose failures nobody can mend */
    return !stop->fails;
}

static dw_context *context_that_stops(stop *stop) {
    dw_context *context = context_of();
    dw_context_destroy(context);
    stop->launches = fake->launches;
    assert_int_equal(dw_context_create(&(dw_context_options){.cancelled = is_stopped, .cancelled_user = stop}, &context), DW_OK);
    return context;
}

/* Products whose measurement was over stay, and the next tune measures the others alone. */
static void an_interruption_keeps_what_was_measured(void **state) {
    (void)state;
    static const dw_model_options options = {.device = DEVICE_NAME};
    static const int stops[] = {1, 8};      /* in the first product, and in the second */
    const char *file = write_graph(products_text);
    dw_context *context;
    for (int i = 0; i < (int)COUNT_OF(stops); i++) {
        stop stop = {.at = stops[i]};
        context = context_that_stops(&stop);
        told[0] = '\0';
        assert_int_equal(dw_tune(context, file, &options, NULL, gather, NULL), DW_CANCELLED);
        assert_int_equal(count_words(told, "\nproduct "), i);
        assert_true(i > 0 || told[0] == '\0');
        assert_int_equal(fake->live, 0);
        dw_context_destroy(context);
    }
    char *before = strdup(told);
    context = context_of();
    told[0] = '\0';
    assert_ok(context, dw_tune(context, file, &options, before, gather, NULL));
    assert_int_equal(count_words(told, "\nproduct "), 2);
    assert_int_equal(count_words(told, "\n# of matmul"), 1);
    free(before);
    dw_context_destroy(context);
}

static void a_failure_keeps_what_was_measured(void **state) {
    (void)state;
    stop stop = {.at = 8, .fails = true};
    const char *file = write_graph(products_text);
    dw_context *context = context_that_stops(&stop);
    fake->calls = 0;
    told[0] = '\0';
    test_assert_fails(context, dw_tune(context, file, &(dw_model_options){.device = DEVICE_NAME}, NULL, gather, NULL), DW_UNSUPPORTED, "matmul f32[*,2] f32[2,4]");
    fake->fail_at = 0;
    assert_int_equal(count_words(told, "\nproduct "), 1);
    assert_int_equal(fake->live, 0);
    dw_context_destroy(context);
}

static void other_ops_are_tuned_where_there_is_a_choice(void **state) {
    (void)state;
    static const dw_model_options options = {.device = WITH, .dims = "s=3"};
    static const char line[] = "\ncase \"matmul f32[2,3,8] f32[2,8,16]\"\n  kernel cuda_matmul_";
    dw_context *context = context_of();
    dw_model *model;
    const char *file = write_graph(batched_text);
    told[0] = '\0';
    assert_ok(context, dw_tune(context, file, &options, NULL, gather, NULL));
    assert_non_null(strstr(told, line));
    assert_non_null(strstr(told, "# of matmul f32[2,3,8] f32[2,8,16], in "));
    assert_non_null(strstr(told, "\n# 1 steps have one kernel each, and no choice\n"));
    assert_non_null(strstr(told, " (geometric mean of 1); matmul "));
    static const char *const rows[] = {"cublaslt", "plain"};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {       /* whichever it says is taken, at these sizes alone */
        char taken[1024], name[64];
        const char *header = strstr(told, "\ntuning ") + 1;
        snprintf(name, sizeof name, "cuda_matmul_%s", rows[i]);
        snprintf(taken, sizeof taken, "%.*s%s%s\nend 1\n", (int)strcspn(header, "\n"), header, line, rows[i]);
        dw_model_options tuned = options;
        tuned.tuning = taken;
        assert_ok(context, dw_model_open(context, file, &tuned, &model));
        const plan_step *step = &model->full.plan->steps[model->full.plan->load_count];
        assert_string_equal(step->picked->name, name);
        assert_string_equal(step->because, "measured");
        dw_model_destroy(model);
        tuned.dims = "s=4";
        assert_ok(context, dw_model_open(context, file, &tuned, &model));
        assert_null(model->full.plan->steps[model->full.plan->load_count].because);
        dw_model_destroy(model);
    }
    assert_int_equal(fake->live, 0);
    assert_int_equal(fake->library_live, 0);
    dw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_tuned_is_for_this_device),
        cmocka_unit_test(what_it_refuses_is_not_tuned),
        cmocka_unit_test(an_interruption_keeps_what_was_measured),
        cmocka_unit_test(a_failure_keeps_what_was_measured),
        cmocka_unit_test(other_ops_are_tuned_where_there_is_a_choice),
    };
    return cmocka_run_group_tests(tests, open_driver, NULL);
}
