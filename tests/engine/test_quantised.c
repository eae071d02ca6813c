/* A product or attention that takes in what quantises its result: fewer steps, and the bits of the plan without. */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "support/session.h"

/* Two products, whose middle is an output too where that is asked for: then it has to be there before it is quantised. */
static void print_graph(char *text, size_t room, const char *format, const char *blocks, const char *weights, const char *post, int columns, const char *middle) {
    snprintf(text, room,
             "graph mlp\n"
             "  symbol s 1..600\n"
             "  input x %s[s,128]\n"
             "  %%1 = iota {to=f32,length=65536,start=1,step=7}\n"
             "  %%2 = sin %%1\n"
             "  %%3 = reshape %%2 {shape=[512,128]}\n"
             "  %%4 = quantize %%3 {to=%s}\n"
             "  %%5 = quantize x {to=%s}\n"
             "  %%6 = matmul %%5, %%4 {to=%s,bt=true,post=\"%s\"}\n"
             "  %%7 = quantize %%6 {to=%s}\n"
             "  %%8 = slice %%2 {axis=0,start=0,end=%d,step=1}\n"
             "  %%9 = reshape %%8 {shape=[128,%d]}\n"
             "  %%10 = quantize %%9 {to=%s}\n"
             "  %%11 = matmul %%7, %%10 {bt=true}\n"
             "  output y %%11\n"
             "%s",
             format, weights, blocks, format, post, blocks, 128 * columns, columns, weights, middle);
}

/* Attention over heads of 128 and a product with what it gives. */
static void print_attention(char *text, size_t room, const char *format, const char *blocks, const char *weights, const char *middle) {
    snprintf(text, room,
             "graph attn\n"
             "  symbol s 1..600\n"
             "  input x %s[s,256]\n"
             "  %%1 = iota {to=f32,length=16384,start=1,step=7}\n"
             "  %%2 = sin %%1\n"
             "  %%3 = reshape %%2 {shape=[64,256]}\n"
             "  %%4 = quantize %%3 {to=%s}\n"
             "  %%5 = reshape x {shape=[1,s,2,128]}\n"
             "  %%6 = transpose %%5 {order=[0,2,1,3]}\n"
             "  %%7 = attention %%6, %%6, %%6 {scale=0.01,causal=true}\n"
             "  %%8 = transpose %%7 {order=[0,2,1,3]}\n"
             "  %%9 = reshape %%8 {shape=[1,s,256]}\n"
             "  %%10 = quantize %%9 {to=%s}\n"
             "  %%11 = matmul %%10, %%4 {bt=true}\n"
             "  output y %%11\n"
             "%s",
             format, weights, blocks, middle);
}

static int count_quantisers(const dw_model *model) {
    const plan *plan = model->full.plan;
    int count = 0;
    for (int i = plan->load_count; i < plan->step_count; i++) count += plan->steps[i].node->op == OP_quantize;
    return count;
}

static void run_at(dw_context *context, dw_session *session, const dw_model *model, int64_t rows, run_io *io) {
    run_io_create(io, model->full.plan->graph, &rows, RUN_SMALL_INTEGERS, 3);
    run_io_add_outputs(io, session);
    assert_ok(context, dw_session_run(session, io->input_count, io->inputs, io->output_count, io->outputs));
}

enum { ROOM = 1024 };

/* quantisers: those that the first has, one less than the second. */
static void assert_same(dw_context *context, char text[2][ROOM], int quantisers) {
    static const int64_t sizes[] = {1, 5, 600};
    dw_model *models[2];
    dw_session *sessions[2];
    for (int i = 0; i < 2; i++) {
        models[i] = model_of_text(context, text[i], &(dw_model_options){0});
        sessions[i] = session_of(context, models[i], "s=600");
        assert_int_equal(count_quantisers(models[i]), quantisers + i);
    }
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        run_io io[2];
        for (int j = 0; j < 2; j++) run_at(context, sessions[j], models[j], sizes[i], &io[j]);
        if (!tensor_is_same(run_io_output(&io[0], "y"), run_io_output(&io[1], "y"))) fail_msg("%lld rows: other bits\n%s", (long long)sizes[i], text[0]);
        for (int j = 0; j < 2; j++) run_io_free(&io[j]);
    }
    for (int i = 0; i < 2; i++) {
        dw_session_destroy(sessions[i]);
        dw_model_destroy(models[i]);
    }
}

static void assert_same_as_apart(dw_context *context, const char *format, const char *blocks, const char *weights, const char *post, int columns) {
    char text[2][ROOM];
    for (int i = 0; i < 2; i++) print_graph(text[i], ROOM, format, blocks, weights, post, columns, i == 0 ? "" : "  output middle %6\n");
    assert_same(context, text, 1);   /* that of x */
}

static void attention_is_the_same(dw_context *context, const char *format, const char *blocks, const char *weights) {
    char text[2][ROOM];
    for (int i = 0; i < 2; i++) print_attention(text[i], ROOM, format, blocks, weights, i == 0 ? "" : "  output middle %9\n");
    assert_same(context, text, 0);
}

static void bits_of_attention_are_those_of_two_steps(void **state) {
    dw_context *context = *state;
    attention_is_the_same(context, "bf16", "fp8_1x128", "fp8_128x128");
    attention_is_the_same(context, "f32", "mxfp8", "mxfp4");
}

static void bits_are_those_of_two_steps(void **state) {
    dw_context *context = *state;
    assert_same_as_apart(context, "bf16", "fp8_1x128", "fp8_128x128", "gelu", 512);
    assert_same_as_apart(context, "f32", "mxfp8", "mxfp8", "swiglu", 256);
    assert_same_as_apart(context, "f16", "mxfp6_e2m3", "mxfp4", "silu", 512);
}

static int setup(void **state) { return dw_context_create(&(dw_context_options){.threads = 2}, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bits_are_those_of_two_steps, setup, teardown),
        cmocka_unit_test_setup_teardown(bits_of_attention_are_those_of_two_steps, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
