/* The report: bounds of steps whose bytes and FLOPs can be counted by hand, sums that add up, what is marked, and what a simulated device is not asked for. */
#include "support/support.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "lab/report.h"
#include "support/driver.h"
#include "support/session.h"

static void take_words(void *user, const char *bytes, size_t length) { text_printf(user, "%.*s", (int)length, bytes); }

static dw_context *new_context(void) {
    dw_context *context;
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &context), DW_OK);
    return context;
}

static double number(const json_t *facts, const char *key) {
    if (json_object_get(facts, key) == NULL) fail_msg("there is no %s", key);
    return json_number_value(json_object_get(facts, key));
}

static void assert_near(double a, double b) {
    if (fabs(a - b) > 1e-7 * fabs(b))   /* of a clock in float milliseconds, and in JSON of 9 digits */
         fail_msg("%.12g is not %.12g", a, b);
}

/* ---- bounds ---- */

/* The facts of a run of the graph, which is only planned, for a chip at sizes. inputs: elements, by input; NULL: not known. */
static json_t *bounds_of(dw_context *context, const char *graph, const char *chip, const char *dims, void *const *inputs) {
    const dw_model_options options = {.flags = DW_MODEL_PLAN_ONLY, .chip = chip, .dims = dims};
    dw_model *model = model_of_text(context, graph, &options);
    const plan *plan = model->full.plan;
    const report_times times = {0};
    json_t *facts = json_object();
    assert_ok(context, report_add_run(facts, &(report_run){plan, plan->typical, inputs, &plan->chip}, &times));
    assert_ok(context, report_finish_run(context, facts));
    dw_model_destroy(model);
    return facts;
}

static json_t *step_of(const json_t *facts, const char *op) {
    size_t i;
    json_t *step;
    json_array_foreach(json_object_get(facts, "steps"), i, step)
        if (strncmp(json_string_value(json_object_get(step, "op")), op, strlen(op)) == 0) return step;
    fail_msg("there is no step %s", op);
    return NULL;
}

/* One expectation: a graph's only step of an op on the H200. */
typedef struct expectation { const char *graph, *op; double flops, read, written; const char *by; double seconds; } expectation;

static const double memory = 4503e9, bf16 = 828e12, fp8 = 1561e12;

static void bounds_are_those_counted_by_hand(void **state) {
    (void)state;
    const expectation rows[] = {
        /* 4096 rows: 2 m n k FLOPs at the rate of bf16 */
        {"graph g\n  input x bf16[4096,2048]\n  input w bf16[8192,2048]\n  %1 = matmul x, w {bt=true}\n  output y %1\n", "matmul", 2.0 * 4096 * 8192 * 2048, 2.0 * (4096 * 2048 + 8192 * 2048),
         2.0 * 4096 * 8192, "operations", 2.0 * 4096 * 8192 * 2048 / bf16},
        /* one row: the weights' bytes at the rate of the memory */
        {"graph g\n  input x bf16[1,2048]\n  input w bf16[8192,2048]\n  %1 = matmul x, w {bt=true}\n  output y %1\n", "matmul", 2.0 * 8192 * 2048, 2.0 * (2048 + 8192 * 2048), 2.0 * 8192, "memory",
         2.0 * (2048 + 8192 * 2048 + 8192) / memory},
        /* weights in blocks have a byte of scale for each 32 elements; beside bf16 they are multiplied as bf16 */
        {"graph g\n  input x bf16[4096,2048]\n  input w mxfp8[8192,2048]\n  %1 = matmul x, w {bt=true}\n  output y %1\n", "matmul", 2.0 * 4096 * 8192 * 2048,
         2.0 * 4096 * 2048 + 8192 * 2048 + 8192 * 64, 2.0 * 4096 * 8192, "operations", 2.0 * 4096 * 8192 * 2048 / bf16},
        {"graph g\n  input x mxfp8[4096,2048]\n  input w mxfp8[8192,2048]\n  %1 = matmul x, w {bt=true,to=bf16}\n  output y %1\n", "matmul", 2.0 * 4096 * 8192 * 2048,
         (4096.0 + 8192) * (2048 + 64), 2.0 * 4096 * 8192, "operations", 2.0 * 4096 * 8192 * 2048 / fp8},
        /* what a step has joined is read and written with it: a bias, a residual, and half of the columns */
        {"graph g\n  input x bf16[1,64]\n  input w bf16[128,64]\n  input b bf16[128]\n  input r bf16[1,64]\n  %1 = matmul x, w, b, r {bt=true,post=\"bias,swiglu,add\"}\n  output y %1\n", "matmul",
         2.0 * 128 * 64, 2.0 * (64 + 128 * 64 + 128 + 64), 2.0 * 64, "memory", 2.0 * (64 + 128 * 64 + 128 + 64 + 64) / memory},
        /* a causal square sees s (s + 1) / 2 pairs; 8 heads of queries share 2 of keys */
        {"graph g\n  input q bf16[2,8,512,64]\n  input k bf16[2,2,512,64]\n  input v bf16[2,2,512,64]\n  %1 = attention q, k, v {scale=0.125,causal=true}\n  output y %1\n", "attention",
         2.0 * 128 * (512 * 513 / 2) * 8 * 2, 2.0 * 2 * 512 * 64 * (8 + 2 + 2), 2.0 * 2 * 8 * 512 * 64, "operations", 2.0 * 128 * (512 * 513 / 2) * 8 * 2 / bf16},
        /* a table gives what is taken from it; so does an operand that occurs twice, once */
        {"graph g\n  input x bf16[1000,64]\n  input i i64[3]\n  %1 = take x, i {axis=0}\n  output y %1\n", "take", 0, 3 * 8 + 3 * 128, 3 * 128, "memory", (24.0 + 768) / memory},
        {"graph g\n  input x f32[1024]\n  %1 = mul x, x\n  output y %1\n", "mul", 1024, 4096, 4096, "memory", 8192 / memory},
        /* a matrix for each of 4 groups, of which 2 rows at random fill 1.75 */
        {"graph g\n  input a bf16[2,64]\n  input b bf16[4,32,64]\n  input o i32[4]\n  %1 = grouped_matmul a, b, o {bt=true}\n  output y %1\n", "grouped_matmul", 2.0 * 2 * 64 * 32,
         2.0 * 2 * 64 + 1.75 * 2 * 32 * 64 + 16, 2.0 * 2 * 32, "memory", (2.0 * 2 * 64 + 1.75 * 2 * 32 * 64 + 16 + 2.0 * 2 * 32) / memory},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const expectation *e = &rows[i];
        dw_context *context = new_context();
        json_t *facts = bounds_of(context, e->graph, "h200", NULL, NULL), *step = step_of(facts, e->op);
        assert_near(number(step, "flops"), e->flops);
        assert_near(number(step, "bytes_read"), e->read);
        assert_near(number(step, "bytes_written"), e->written);
        assert_string_equal(json_string_value(json_object_get(step, "bound_by")), e->by);
        assert_near(number(step, "bound_seconds"), e->seconds);
        json_decref(facts);
        dw_context_destroy(context);
    }
}

/* Two texts in a cache of 1000 places each: query 0 of text 1 stands at 9 and sees 10 keys, query 1 of text 0 stands at 99 and sees 100. Where positions are not known, each sees all. */
static void caches_count_the_keys_that_are_there(void **state) {
    (void)state;
    static const char graph[] = "graph g\n  input q bf16[1,4,2,64]\n  input k bf16[2,2,1000,64]\n  input v bf16[2,2,1000,64]\n  input r i64[2]\n  input p i64[2]\n"
                                "  %1 = attention q, k, v, -, -, -, r, p {scale=0.125,causal=true}\n  output y %1\n";
    int64_t rows[] = {1, 0}, positions[] = {9, 99};
    void *const inputs[] = {NULL, NULL, NULL, rows, positions};
    dw_context *context = new_context();
    json_t *facts = bounds_of(context, graph, "h200", NULL, inputs), *step = step_of(facts, "attention");
    assert_near(number(step, "flops"), 2.0 * 128 * 110 * 4);
    assert_near(number(step, "bytes_read"), 2.0 * (4 * 2 * 64) + 2 * 2.0 * (2 * 110 * 64) + 32);
    assert_near(number(facts, "bytes"), 2 * 2.0 * (4 * 2 * 64) + 2 * 2.0 * (2 * 110 * 64) + 32);
    json_decref(facts);
    facts = bounds_of(context, graph, "h200", NULL, NULL);
    assert_near(number(step_of(facts, "attention"), "bytes_read"), 2.0 * (4 * 2 * 64) + 2 * 2.0 * (2 * 2 * 1000 * 64) + 32);
    json_decref(facts);
    dw_context_destroy(context);
}

/* Two texts of 8, of which the second ends after 3: 8 x 8 and 8 x 3 pairs for each of 2 heads, and 11 of 16 keys. The mask is computed from an input. */
static void masks_of_padding_count(void **state) {
    (void)state;
    static const char graph[] = "graph g\n  input q bf16[2,2,8,64]\n  input k bf16[2,2,8,64]\n  input v bf16[2,2,8,64]\n  input m i64[2,8]\n"
                                "  %1 = cast m {to=bool}\n  %2 = reshape %1 {shape=[2,1,1,8]}\n  %3 = attention q, k, v, %2 {scale=0.125}\n  output y %3\n";
    int64_t mask[16];
    void *const inputs[] = {NULL, NULL, NULL, mask};
    for (int i = 0; i < 16; i++) mask[i] = i < 11;
    dw_context *context = new_context();
    json_t *facts = bounds_of(context, graph, "h200", NULL, inputs), *step = step_of(facts, "attention");
    assert_near(number(step, "flops"), 2.0 * 128 * (64 + 24) * 2);
    assert_near(number(step, "bytes_read"), 2.0 * (2 * 2 * 8 * 64) + 2 * 2.0 * (2 * 11 * 64) + 16);
    json_decref(facts);
    facts = bounds_of(context, graph, "h200", NULL, NULL);
    assert_near(number(step_of(facts, "attention"), "flops"), 2.0 * 128 * 128 * 2);
    json_decref(facts);
    dw_context_destroy(context);
}

/* A weight that two steps read comes from memory once in a run, and what one step makes for the other not at all. */
static void a_run_reads_its_weights_once(void **state) {
    (void)state;
    dw_context *context = new_context();
    json_t *facts = bounds_of(context, "graph g\n  input x bf16[2,64]\n  input w bf16[64,64]\n  %1 = matmul x, w {bt=true}\n  %2 = softmax %1 {axis=1}\n  %3 = matmul %2, w {bt=true}\n  output y %3\n", "h200", NULL, NULL);
    assert_near(number(facts, "bytes"), 2.0 * (2 * 64 + 64 * 64 + 2 * 64));
    assert_near(number(facts, "bound_memory_seconds"), 2.0 * (2 * 64 + 64 * 64 + 2 * 64) / memory);
    assert_near(number(facts, "bound_products_seconds"), 2 * 2.0 * 2 * 64 * 64 / bf16 + number(step_of(facts, "softmax"), "flops") / 67e12);
    assert_int_equal(json_array_size(json_object_get(facts, "steps")), 3);
    assert_int_equal(json_array_size(json_object_get(facts, "groups")), 2);   /* the products are equal */
    json_decref(facts);
    dw_context_destroy(context);
}

/* Of a cache that is a state only what is new is written, and what is seen is read: 3 tokens at 7, 8 and 9 see 8, 9 and 10 keys, 10 in all. */
static void a_step_writes_what_is_new_into_its_caches(void **state) {
    (void)state;
    static const char graph[] = "graph g\n  input q bf16[1,2,3,64]\n  input k bf16[1,2,3,64]\n  input v bf16[1,2,3,64]\n  input r i64[3]\n  input p i64[3]\n  state a bf16[1,2,100,64]\n"
                                "  state b bf16[1,2,100,64]\n  %1 = cache_write a, k, r, p\n  %2 = cache_write b, v, r, p\n  %3 = attention q, %1, %2, -, -, -, r, p {scale=0.125,causal=true}\n"
                                "  next a %1\n  next b %2\n  output y %3\n";
    int64_t rows[] = {0, 0, 0}, positions[] = {7, 8, 9};
    void *const inputs[] = {NULL, NULL, NULL, rows, positions};
    const double token = 2.0 * 2 * 64;
    dw_context *context = new_context();
    json_t *facts = bounds_of(context, graph, "h200", NULL, inputs);
    assert_near(number(step_of(facts, "attention"), "flops"), 2.0 * 128 * (8 + 9 + 10) * 2);
    assert_near(number(step_of(facts, "attention"), "far_bytes"), 3 * token + 2 * 10 * token + 48);
    assert_near(number(facts, "bytes"), 3 * 3 * token + 48 + 2 * 10 * token + 2 * 3 * token + 3 * token);   /* q, k, v; rows and positions; keys and values; the new ones; the result */
    const json_t *launches = json_object_get(step_of(facts, "cache_update"), "launches");
    assert_int_equal(json_array_size(launches), 1);     /* in place: nothing is copied first */
    assert_string_equal(json_string_value(json_array_get(launches, 0)), "cache_vectors_few");
    json_decref(facts);
    dw_context_destroy(context);
}

/* Of a weight that is packed only that form is kept, and it is read all the same. */
static void packed_weights_are_read(void **state) {
    (void)state;
    static const char graph[] = "graph g\n  symbol s 1..64\n  input x f32[s,96]\n  param w f32[64,96]\n  param v f32[96,64]\n  %1 = matmul x, w {bt=true}\n  %2 = relu %1\n  %3 = matmul %2, v {bt=true}\n  output y %3\n";
    static const char *const chips[] = {"cpu-avx512bf16", "h200"};
    for (size_t i = 0; i < COUNT_OF(chips); i++) {
        dw_context *context = new_context();
        json_t *facts = bounds_of(context, graph, chips[i], "s=4", NULL);
        assert_near(number(facts, "weight_bytes"), 2.0 * 4 * 64 * 96);
        assert_near(number(facts, "bytes"), 2.0 * 4 * 64 * 96 + 2.0 * 4 * 4 * 96);
        assert_near(number(step_of(facts, "matmul"), "far_bytes"), 4.0 * 64 * 96 + 4 * 4 * 96);
        json_decref(facts);
        dw_context_destroy(context);
    }
}

/* The B300 has a cache of 126 MB, whose rate is known: a run of 0.5 MB stays there, one of 200 MB does not, and reads its weights from memory. */
static void what_fits_the_cache_is_bounded_by_it(void **state) {
    (void)state;
    static const char graph[] = "graph g\n  input x bf16[8,%d]\n  input w bf16[%d,%d]\n  %%1 = matmul x, w {bt=true}\n  output y %%1\n";
    const int sizes[] = {512, 10000};
    for (int i = 0; i < 2; i++) {
        const double bytes = 2.0 * (8.0 * sizes[i] + (double)sizes[i] * sizes[i] + 8.0 * sizes[i]), rate = i == 0 ? 18000e9 : 7200e9;
        char words[256];
        dw_context *context = new_context();
        snprintf(words, sizeof words, graph, sizes[i], sizes[i], sizes[i]);
        json_t *facts = bounds_of(context, words, "b300", NULL, NULL), *step = step_of(facts, "matmul");
        assert_true(json_is_true(json_object_get(facts, "in_cache")) == (i == 0));
        assert_near(number(facts, "bound_memory_seconds"), bytes / rate);
        assert_string_equal(json_string_value(json_object_get(step, "bound_by")), i == 0 ? "cache" : "memory");
        assert_near(number(step, "bound_seconds"), i == 0 ? bytes / rate : 2.0 * (8.0 * sizes[i] + (double)sizes[i] * sizes[i]) / rate);
        json_decref(facts);
        dw_context_destroy(context);
    }
}

/* ---- times ---- */

static const char block_text[] = "graph g\n  symbol s 1..64\n  input x f32[s,32]\n  input w f32[32,32]\n  %1 = matmul x, w {bt=true}\n  %2 = softmax %1 {axis=1}\n  %3 = matmul %2, w {bt=true}\n  output y %3\n";

/* Equal steps share their mark; a step within half of its bound has none, and none has where all of its kind take a hundredth of the run. */
static void what_loses_is_marked(void **state) {
    (void)state;
    dw_context *context = new_context();
    dw_model *model = model_of_text(context, block_text, &(dw_model_options){.flags = DW_MODEL_PLAN_ONLY, .chip = "h200", .dims = "s=8"});
    const plan *plan = model->full.plan;
    double steps[] = {0.4, 0.009, 0.591};
    const report_times times = {.measured = true, .wall = 1.5, .host = 0.5, .device = {.whole = 1, .apart = 1, .steps = steps, .step_count = 3, .launches = 3}};
    json_t *facts = json_object();
    assert_int_equal(plan->step_count - plan->load_count, 3);
    assert_ok(context, report_add_run(facts, &(report_run){plan, plan->typical, NULL, &plan->chip}, &times));
    assert_ok(context, report_finish_run(context, facts));
    json_t *products = json_array_get(json_object_get(facts, "groups"), 0), *softmax = json_array_get(json_object_get(facts, "groups"), 1);
    assert_near(number(products, "seconds"), 0.991);
    assert_near(number(products, "lost_seconds"), 0.991 - number(products, "bound_seconds"));
    assert_true(json_is_true(json_object_get(products, "marked")) && json_is_true(json_object_get(step_of(facts, "matmul"), "marked")));
    assert_true(json_is_false(json_object_get(softmax, "marked")));
    assert_near(number(facts, "host_seconds"), 0.5);
    json_decref(facts);
    dw_model_destroy(model);
    dw_context_destroy(context);
}

static json_t *report_of(dw_context *context, const dw_model *model, const dw_report_options *options) {
    text words;
    text_init(&words, context);
    assert_ok(context, dw_report(context, model, options, 0, NULL, take_words, &words));
    json_t *facts = json_loads(text_string(&words), 0, NULL);
    assert_non_null(facts);
    text_free(&words);
    return facts;
}

static double sum(const json_t *rows, const char *key) {
    size_t i;
    json_t *row;
    double all = 0;
    json_array_foreach((json_t *)(uintptr_t)rows, i, row) all += number(row, key);
    return all;
}

static void a_report_on_the_cpu_adds_up(void **state) {
    (void)state;
    dw_context *context = new_context();
    dw_model *model = model_of_text(context, block_text, NULL);
    json_t *facts = report_of(context, model, &(dw_report_options){.dims = "s=64", .repeat = 3}), *run = json_array_get(json_object_get(facts, "runs"), 0);
    const char *const sums[] = {"seconds", "bound_seconds", "estimate_seconds"};
    assert_int_equal(json_array_size(json_object_get(facts, "runs")), 1);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(run, "sizes"), "s")), 64);
    assert_true(json_is_true(json_object_get(run, "measured")) && json_is_true(json_object_get(json_object_get(json_object_get(facts, "rates"), "memory"), "measured")));
    for (size_t i = 0; i < COUNT_OF(sums); i++) assert_near(sum(json_object_get(run, "steps"), sums[i]), sum(json_object_get(run, "groups"), sums[i]));
    assert_near(sum(json_object_get(run, "steps"), "seconds"), number(run, "apart_seconds"));
    assert_near(sum(json_object_get(run, "steps"), "bound_seconds"), number(run, "step_bounds_seconds"));
    assert_true(number(run, "seconds") > 0 && number(run, "wall_seconds") > 0);
    assert_near(number(run, "ratio"), number(run, "bound_seconds") / number(run, "seconds"));
    json_decref(facts);
    dw_model_destroy(model);
    dw_context_destroy(context);
}

/* ---- refusals ---- */

static void generation_that_is_not_there_is_refused(void **state) {
    (void)state;
    dw_context *context = new_context();
    dw_model *model = model_of_text(context, block_text, NULL);
    text words;
    text_init(&words, context);
    assert_int_equal(dw_report(context, model, &(dw_report_options){.keys = 16}, 0, NULL, take_words, &words), DW_UNSUPPORTED);
    assert_int_equal(words.length, 0);
    assert_int_equal(dw_report_print(context, "[1]", 3, NULL, take_words, &words), DW_SYNTAX);
    text_free(&words);
    dw_model_destroy(model);
    dw_context_destroy(context);
}

/* The stand-in for the driver is a GPU as any other, whose clock stands still but for its kernels, 1 ms each, and its events. */
static void a_gpu_is_measured_by_its_own_clock(void **state) {
    (void)state;
    dw_context *context = context_of();
    dw_model *model = model_of_text(context, block_text, &(dw_model_options){.device = DEVICE_NAME});
    fake->kernel_ms = 1;
    fake->event_ms = 0.5;
    json_t *facts = report_of(context, model, &(dw_report_options){.dims = "s=8"}), *run = json_array_get(json_object_get(facts, "runs"), 0);
    fake->kernel_ms = fake->event_ms = 0;
    const double launches = number(run, "launches");
    assert_true(launches >= 3);
    assert_near(number(run, "seconds"), launches * 1e-3 + 0.5e-3);
    assert_near(number(run, "apart_seconds"), launches * 1e-3 + 0.5e-3);
    assert_near(sum(json_object_get(run, "steps"), "seconds"), number(run, "apart_seconds"));
    assert_near(number(facts, "launch_seconds"), (128 + 0.5) * 1e-3 / 128);
    assert_near(number(run, "host_seconds"), number(run, "wall_seconds") - number(run, "seconds"));
    json_decref(facts);
    dw_model_destroy(model);
    dw_context_destroy(context);
    assert_int_equal(fake->live, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_are_those_counted_by_hand),       cmocka_unit_test(caches_count_the_keys_that_are_there), cmocka_unit_test(masks_of_padding_count),
        cmocka_unit_test(a_run_reads_its_weights_once),
        cmocka_unit_test(a_step_writes_what_is_new_into_its_caches),
        cmocka_unit_test(packed_weights_are_read),
        cmocka_unit_test(what_fits_the_cache_is_bounded_by_it),
        cmocka_unit_test(what_loses_is_marked),                   cmocka_unit_test(a_report_on_the_cpu_adds_up),          cmocka_unit_test(generation_that_is_not_there_is_refused),
        cmocka_unit_test(a_gpu_is_measured_by_its_own_clock),
    };
    return cmocka_run_group_tests(tests, open_driver, NULL);
}
