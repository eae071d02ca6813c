/* Graphs of twenty thousand small nodes in the shapes that a quadratic step would show in: each is parsed, cleaned, fused, planned and made
 * ready to run within the memory and time that a file of its size may cost (256 MB and 5 s for 1 MB). What they compute is tested elsewhere. */
#include "support/support.h"

#include <string.h>
#include <time.h>

#include "support/session.h"

enum { NODES = 20000, CONSTANTS = 6000, MEGABYTE = 1 << 20 };

/* With sanitizers the bound on time means nothing. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SECONDS 100.0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SECONDS 100.0
#endif
#endif
#ifndef SECONDS
#define SECONDS 5.0
#endif

/* Seconds of this process's own work: other processes do not count. */
static double now(void) { return (double)clock() / CLOCKS_PER_SEC; }

static void begin(text *source, const char *lines) {
    text_add(source, "graph large\n");
    text_add(source, lines);
}

/* Each node reads the one before it. */
static void write_chain(text *source) {
    begin(source, "  input x f32[4]\n  %1 = exp x\n");
    for (int i = 1; i < NODES; i++) text_printf(source, "  %%%d = exp %%%d\n", i + 1, i);
    text_printf(source, "  output y %%%d\n", NODES);
}

/* All are alive at the same time. */
static void write_wide(text *source) {
    begin(source, "  input x f32[1,4]\n");
    const int each = NODES / 3;
    for (int i = 1; i <= each; i++) text_printf(source, "  %%%d = fill {shape=[1,4],value=%d,to=f32}\n", i, i);
    for (int i = 1; i <= each; i++) text_printf(source, "  %%%d = sub x, %%%d\n", each + i, i);
    for (int i = 2; i <= each; i++) text_printf(source, "  %%%d = add %%%d, %%%d\n", 2 * each + i - 1, i == 2 ? each + 1 : 2 * each + i - 2, each + i);
    text_printf(source, "  output y %%%d\n", 3 * each - 1);
}

/* Each is an output. */
static void write_outputs(text *source) {
    begin(source, "  input x f32[4]\n  %1 = exp x\n");
    for (int i = 1; i < NODES; i++) text_printf(source, "  %%%d = add x, %%%d\n", i + 1, i);
    for (int i = 0; i < NODES; i++) text_printf(source, "  output y%d %%%d\n", i, i + 1);
}

/* Each state becomes the next one, the last a new value. */
static void write_states(text *source) {
    begin(source, "  input x f32[4]\n");
    for (int i = 0; i < NODES / 2; i++) text_printf(source, "  state k%d f32[4]\n", i);
    text_add(source, "  %1 = add k0, x\n");
    for (int i = 0; i < NODES / 2; i++) text_printf(source, i + 1 < NODES / 2 ? "  next k%d k%d\n" : "  next k%d %%1\n", i, i + 1);
    text_add(source, "  output y k0\n");
}

/* A view of a view of a state, each read by a node too. */
static void write_views(text *source) {
    begin(source, "  input x f32[4,4]\n  state k f32[4,4]\n  %1 = transpose k {order=[1,0]}\n");
    int id = 1;
    for (int i = 0; i < NODES / 3; i++, id += 3) {
        text_printf(source, "  %%%d = exp %%%d\n", id + 1, id);
        text_printf(source, "  %%%d = slice %%%d {axis=0,start=1,end=4,step=1}\n", id + 2, id);
        text_printf(source, "  %%%d = concat %%%d, x {axis=0}\n", id + 3, id + 2);
        if (i == 0) text_printf(source, "  output e %%%d\n", id + 1);
        text_printf(source, "  %%%d = slice %%%d {axis=0,start=0,end=4,step=1}\n", id + 4, id + 3);
        id++;
    }
    text_printf(source, "  %%%d = add k, %%%d\n  next k %%%d\n", id + 1, id, id + 1);
}

/* A symbol for every input: more than a session binds. */
static void write_symbols(text *source) {
    begin(source, "");
    for (int i = 0; i < NODES / 4; i++) text_printf(source, "  symbol s%d 1..9223372036854775807\n  input x%d f32[s%d,4]\n", i, i, i);
    for (int i = 0; i < NODES / 4; i++) text_printf(source, "  %%%d = exp x%d\n  output y%d %%%d\n", i + 1, i, i, i + 1);
}

/* Known before any input, 64 KB each, and too much to fold: computed when the model is loaded. */
static void write_constants(text *source) {
    begin(source, "  input x f32[16384]\n  %1 = iota {length=16384,start=0,step=1,to=f32}\n");
    for (int i = 1; i < CONSTANTS; i++) text_printf(source, "  %%%d = sin %%%d\n", i + 1, i);
    text_printf(source, "  %%%d = add x, %%%d\n  output y %%%d\n", CONSTANTS + 1, CONSTANTS, CONSTANTS + 1);
}

static void write_products(text *source) {
    begin(source, "  input x f32[4,4]\n  %1 = matmul x, x\n");
    for (int i = 1; i < NODES; i++) text_printf(source, "  %%%d = matmul x, %%%d\n", i + 1, i);
    text_printf(source, "  output y %%%d\n", NODES);
}

static void count_bytes(void *user, const char *bytes, size_t length) {
    (void)bytes;
    *(size_t *)user += length;
}

/* Large graphs are as fast per byte as a megabyte may be, and so is explaining them. */
static void holds(void (*write)(text *source), unsigned flags) {
    test_memory memory = {.calls = 0};
    dw_context *context = test_context_create(&memory, 1);
    text source;
    ir_graph *graph;
    dw_model *model;
    dw_session *session = NULL;
    text_init(&source, context);
    write(&source);
    assert_ok(context, text_status(&source));
    double start = now(), share = source.length < MEGABYTE ? 1.0 : (double)source.length / MEGABYTE;
    assert_ok(context, ir_parse(context, "large", text_string(&source), source.length, NULL, &graph));
    assert_ok(context, dw_model_create(context, graph, &(dw_model_options){.flags = flags}, &model));
    if ((flags & DW_MODEL_PLAN_ONLY) == 0) assert_ok(context, dw_session_create(context, model, NULL, &session));
    size_t words = 0;
    assert_ok(context, dw_model_print(model, DW_PRINT_EXPLAIN, 0, count_bytes, &words));
    double seconds = now() - start;
    assert_ok(context, dw_model_print(model, DW_PRINT_EXPLAIN, 1, count_bytes, &words));
    assert_true(words > 0);
    print_message("%zu bytes: %.2f s, %zu MB\n", source.length, seconds, memory.peak_bytes >> 20);
    assert_true(seconds < SECONDS * share);
    assert_true((double)memory.peak_bytes < 256.0 * MEGABYTE * share);
    dw_session_destroy(session);
    dw_model_destroy(model);
    text_free(&source);
    dw_context_destroy(context);
    assert_int_equal(memory.live_count, 0);
}

static void chains_are_quick(void **state) { (void)state; holds(write_chain, 0); }
static void values_alive_together_are_quick(void **state) { (void)state; holds(write_wide, 0); }
static void outputs_are_quick(void **state) { (void)state; holds(write_outputs, 0); }
static void states_are_quick(void **state) { (void)state; holds(write_states, 0); }
static void views_of_views_are_quick(void **state) { (void)state; holds(write_views, 0); }
static void symbols_are_quick(void **state) { (void)state; holds(write_symbols, DW_MODEL_PLAN_ONLY); }
static void folding_ends(void **state) { (void)state; holds(write_constants, 0); }
static void products_are_quick(void **state) { (void)state; holds(write_products, 0); }

/* Tables computed at load are bounded by what the weights are. */
static void a_small_file_cannot_ask_for_gigabytes(void **state) {
    (void)state;
    static const char source[] = "graph g\n  input x f32[4]\n  %1 = iota {start=0,step=1,length=4000000000,to=i64}\n  %2 = slice %1 {axis=0,start=0,end=4,step=1}\n"
                                 "  %3 = cast %2 {to=f32}\n  %4 = add x, %3\n  output y %4\n";
    dw_context *context;
    dw_graph *graph;
    dw_model *model;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_int_equal(dw_graph_parse(context, "small", source, sizeof source - 1, &graph), DW_OK);
    assert_int_equal(dw_model_create(context, graph, NULL, &model), DW_LIMIT);
    assert_non_null(strstr(dw_context_error(context), "iota"));
    dw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chains_are_quick),
        cmocka_unit_test(values_alive_together_are_quick),
        cmocka_unit_test(outputs_are_quick),
        cmocka_unit_test(states_are_quick),
        cmocka_unit_test(views_of_views_are_quick),
        cmocka_unit_test(symbols_are_quick),
        cmocka_unit_test(folding_ends),
        cmocka_unit_test(products_are_quick),
        cmocka_unit_test(a_small_file_cannot_ask_for_gigabytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
