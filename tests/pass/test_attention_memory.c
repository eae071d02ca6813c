/* Attention, the cached step and the last token with every allocation failing once. */
#include <stdio.h>

#include "pass/step/incremental.h"
#include "pass/pass.h"
#include "support/support.h"

/* Between them: a mask and a bias to read, heads to ungroup, a step with two caches and passive values. */
static const char attention_graph[] =
    "graph attention\n"
    "  symbol b 1..3\n"
    "  symbol s 1..7\n"
    "  input ids i64[b,s]\n"
    "  input attention_mask i64[b,s]\n"
    "  param wte f32[6,8]\n"
    "  param slopes f32[2]\n"
    "  %1 = take wte, ids {axis=0}\n"
    "  %2 = reshape %1 {shape=[b,s,2,4]}\n"
    "  %3 = transpose %2 {order=[0,2,1,3]}\n"
    "  %4 = slice %3 {axis=1,start=0,end=1,step=1}\n"
    "  %5 = broadcast %4 {shape=[b,2,s,4]}\n"
    "  %6 = transpose %5 {order=[0,1,3,2]}\n"
    "  %7 = matmul %3, %6\n"
    "  %8 = fill {shape=[],value=0.25,to=f32}\n"
    "  %9 = mul %7, %8\n"
    "  %10 = iota {length=s,start=0,step=1,to=i64}\n"
    "  %11 = reshape %10 {shape=[s,1]}\n"
    "  %12 = le %10, %11\n"
    "  %13 = cast attention_mask {to=bool}\n"
    "  %14 = reshape %13 {shape=[b,1,1,s]}\n"
    "  %15 = and %12, %14\n"
    "  %16 = fill {shape=[],value=-inf,to=f32}\n"
    "  %17 = where %15, %9, %16\n"
    "  %18 = cast %10 {to=f32}\n"
    "  %19 = reshape slopes {shape=[2,1,1]}\n"
    "  %20 = mul %19, %18\n"
    "  %21 = add %17, %20\n"
    "  %22 = softmax %21 {axis=3}\n"
    "  %23 = slice %3 {axis=1,start=1,end=2,step=1}\n"
    "  %24 = broadcast %23 {shape=[b,2,s,4]}\n"
    "  %25 = matmul %22, %24\n"
    "  output y %25\n";

static dw_status run_passes(ir_graph *graph) {
    static const char *const names[] = {"fuse_attention", "cse", "dead"};
    const pass_options options = {.check = true};
    bool changed;
    text why;
    ir_graph *step = NULL, *prelude = NULL;
    for (size_t i = 0; i < COUNT_OF(names); i++) TRY(pass_run_one(graph, pass_find(names[i]), &options, &changed));
    text_init(&why, graph->context);
    dw_status status = pass_incremental(graph, STEP_CACHE_ROWS, &step, &prelude, &why);
    text_free(&why);
    if (status == DW_OK) {
        assert_non_null(step);
        assert_int_equal(step->state_count, 2);
        status = pass_last_token(step, &changed);
    }
    ir_graph_destroy(step);
    ir_graph_destroy(prelude);
    return status;
}

static dw_status scenario(dw_context *context, void *argument) {
    (void)argument;
    ir_graph *graph;
    TRY(ir_parse(context, "attention", attention_graph, sizeof attention_graph - 1, NULL, &graph));
    const dw_status status = run_passes(graph);
    ir_graph_destroy(graph);
    return status;
}

static void passes_report_every_allocation_that_fails(void **state) {
    (void)state;
    test_every_allocation(scenario, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(passes_report_every_allocation_that_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
