/* Runs of sessions mean what the references say, bit for bit: views, results that are no node's own, states, sizes, and random graphs. */
#include "support/support.h"

#include <string.h>

#include "support/random_graph.h"
#include "support/session.h"

typedef struct sample { const char *name, *text; } sample;

/* One symbol, s, in 0..16; runs at several sizes, states carried on from run to run. */
static const sample samples[] = {
    {"an_input_is_an_output", "  input x f32[s,4]\n  output y x\n"},
    {"a_constant_is_an_output", "  input x f32[s]\n  const c f32[3] = 1, 2, 3\n  output y c\n  output x x\n"},
    {"a_computed_constant_is_an_output", "  const c f32[3] = 1, 2, 3\n  %1 = exp c\n  %2 = transpose %1 {order=[0]}\n  output y %1\n  output z %2\n"},
    {"outputs_twice", "  input x f32[s,4]\n  %1 = neg x\n  output a %1\n  output b %1\n  output c x\n  output d x\n"},
    {"outputs_are_views",
     "  input x f32[s,4]\n  %1 = neg x\n  %2 = transpose %1 {order=[1,0]}\n  %3 = reshape %1 {shape=[4*s]}\n  output t %2\n  output r %3\n  output n %1\n"},
    {"a_transpose_feeds_a_reshape",
     "  input x f32[s,2,3,4]\n  %1 = abs x\n  %2 = transpose %1 {order=[0,2,1,3]}\n  %3 = reshape %2 {shape=[s,3,8]}\n  %4 = neg %3\n  output y %4\n"},
    {"views_of_views",
     "  input x f32[s,6]\n  %1 = transpose x {order=[1,0]}\n  %2 = slice %1 {axis=0,start=1,end=6,step=2}\n  %3 = reshape %2 {shape=[3,s,1]}\n"
     "  %4 = broadcast %3 {shape=[3,s,2]}\n  %5 = neg %4\n  %6 = add %5, %4\n  output y %5\n  output z %6\n"},
    {"an_in_place_chain",
     "  input x f32[s,4]\n  %1 = neg x\n  %2 = abs %1\n  %3 = relu %2\n  %4 = neg %3\n  %5 = add %4, x\n  %6 = mul %5, %5\n  output y %6\n"},
    {"in_place_is_not_taken_from_who_is_read_later",
     "  input x f32[s,4]\n  %1 = neg x\n  %2 = transpose %1 {order=[1,0]}\n  %3 = abs %1\n  %4 = reshape %3 {shape=[4,s]}\n  %5 = add %2, %4\n  %6 = neg %5\n"
     "  %7 = add %6, %2\n  output y %7\n"},
    {"an_operand_twice", "  input x f32[s,s]\n  %1 = neg x\n  %2 = transpose %1 {order=[1,0]}\n  %3 = add %1, %2\n  %4 = sub %3, %3\n  output y %3\n  output z %4\n"},
    {"a_result_in_another_order",
     "  input x f32[s,4,6]\n  const c f32[6,6] = 1,2,3,4,5,6,1,2,3,4,5,6,1,2,3,4,5,6,1,2,3,4,5,6,1,2,3,4,5,6,1,2,3,4,5,6\n  %1 = matmul x, c\n"
     "  %2 = transpose %1 {order=[1,0,2]}\n  %3 = reshape %2 {shape=[24*s]}\n  output y %3\n"},
    {"constants_computed_at_load",
     "  input x f32[s,4]\n  const c f32[2,4] = 1,2,3,4,5,6,7,8\n  %1 = transpose c {order=[1,0]}\n  %2 = slice %1 {axis=1,start=1,end=2,step=1}\n"
     "  %3 = reshape %2 {shape=[4]}\n  %4 = neg %3\n  %5 = add x, %4\n  %6 = matmul x, %1\n  output y %5\n  output z %6\n"},
    {"constants_merged_and_seen_in_part",
     "  input x f32[s,4]\n  const a f32[2,4] = 1,2,3,4,5,6,7,8\n  const b f32[2,4] = 8,7,6,5,4,3,2,1\n  %1 = concat a, b {axis=0}\n"
     "  %2 = matmul x, %1 {bt=true}\n  %3 = slice %1 {axis=0,start=1,end=3,step=1}\n  %4 = matmul x, %3 {bt=true}\n  %5 = transpose %1 {order=[1,0]}\n"
     "  %6 = matmul x, %5\n  output y %2\n  output z %4\n  output w %6\n"},
    {"two_results", "  input x f32[s,5]\n  %1, %2 = topk x {axis=1,length=2,largest=true}\n  %3 = neg %1\n  output v %3\n  output i %2\n"},
    {"one_of_two_results_is_read", "  input x f32[s,5]\n  %1, %2 = sort x {axis=1}\n  output i %2\n"},
    {"nothing_is_computed", "  input x f32[s]\n  %1 = reshape x {shape=[s,1]}\n  %2 = broadcast %1 {shape=[s,3]}\n  output y %2\n"},
    {"sizes_are_numbers_of_the_result", "  input x i64[s]\n  %1 = size {size=2*s}\n  %2 = add x, %1\n  %3 = iota {start=1,step=2,length=s,to=i64}\n  output y %2\n  output z %3\n  output n %1\n"},
    {"a_state_counts", "  input x i64[s]\n  state n i64[2]\n  const one i64[2] = 1, 1\n  %1 = add n, one\n  next n %1\n  output y n\n  output z %1\n"},
    {"a_state_is_updated_in_place",
     "  input x f32[2,3]\n  state k f32[8,3]\n  %1 = slice_scatter k, x {axis=0,start=2,step=1}\n  %2 = neg %1\n  next k %1\n  output y %2\n"},
    {"a_state_is_read_after_its_update",
     "  input x f32[2,3]\n  state k f32[8,3]\n  %1 = slice_scatter k, x {axis=0,start=2,step=1}\n  %2 = sub %1, k\n  next k %1\n  output y %2\n"},
    {"states_swap", "  input x f32[3]\n  state a f32[3]\n  state b f32[3]\n  %1 = add a, x\n  next a b\n  next b %1\n  output y a\n"},
    {"states_swap_as_they_are",
     "  input x f32[3]\n  state a f32[3]\n  state b f32[3]\n  state c f32[3]\n  %1 = add a, x\n  next a b\n  next b c\n  next c %1\n  output y b\n  output z c\n"},
    {"pure_rotation_of_states",
     "  input x f32[3]\n  state a f32[3]\n  state b f32[3]\n  state c f32[3]\n  state d f32[3]\n  %1 = add d, x\n  next a b\n  next b a\n  next c a\n  next d %1\n"
     "  output ya a\n  output yb b\n  output yc c\n"},
    {"a_state_becomes_anothers_view",
     "  input x f32[2,2]\n  state a f32[2,2]\n  state b f32[2,2]\n  %1 = transpose a {order=[1,0]}\n  %2 = add a, x\n  next a %2\n  next b %1\n  output y b\n"},
    {"an_updated_state_is_anothers_next_as_it_was",
     "  input x f32[3]\n  state a f32[3]\n  state b f32[3]\n  %1 = add a, x\n  next a %1\n  next b a\n  output y b\n  output z a\n"},
    {"two_states_get_one_value", "  input x f32[3]\n  state a f32[3]\n  state b f32[3]\n  %1 = add a, x\n  next a %1\n  next b %1\n  output y b\n  output z %1\n"},
    {"a_state_becomes_a_constant_or_an_input",
     "  input x f32[3]\n  const c f32[3] = 5, 6, 7\n  state a f32[3]\n  state b f32[3]\n  next a c\n  next b x\n  output ya a\n  output yb b\n"},
    {"bools_and_small_integers", "  input x bool[s,2]\n  input u u8[s,2]\n  %1 = not x\n  %2 = cast %1 {to=u8}\n  %3 = add %2, u\n  output y %1\n  output z %3\n"},
};

static void prepare_symbols(const ir_graph *graph, int64_t size, int64_t *symbols) {
    for (int i = 0; i < dim_symbol_count(graph->dims); i++) symbols[i] = size;
}

static void run_sample(dw_context *context, const sample *sample) {
    static const int64_t sizes[] = {16, 5, 1, 0, 5, 7, 16, 3, 2, 1};
    text words;
    ir_graph *graph;
    evaluation *oracle;
    int64_t symbols[4];
    text_init(&words, context);
    text_printf(&words, "graph %s\n  symbol s 0..16\n%s", sample->name, sample->text);
    assert_ok(context, text_status(&words));
    assert_ok(context, ir_parse(context, sample->name, text_string(&words), words.length, NULL, &graph));
    assert_ok(context, evaluation_create(graph, &oracle));
    dw_model *model = model_of_text(context, text_string(&words), &(dw_model_options){.flags = DW_MODEL_VERIFY});
    dw_session *session = session_of(context, model, dim_symbol_count(graph->dims) ? "s=16" : NULL);
    for (int turn = 0; turn < 2; turn++) {
        for (size_t i = 0; i < COUNT_OF(sizes); i++) {
            prepare_symbols(graph, sizes[i], symbols);
            if (dim_symbol_count(graph->dims)) assert_ok(context, evaluation_set_symbol(oracle, "s", sizes[i]));
            assert_runs_as_references(context, session, oracle, graph, symbols, RUN_SMALL_INTEGERS, i);
        }
        assert_ok(context, dw_session_reset(session));
        evaluation_reset(oracle);
    }
    dw_session_destroy(session);
    dw_model_destroy(model);
    evaluation_destroy(oracle);
    ir_graph_destroy(graph);
    text_free(&words);
}

static void runs_mean_what_the_references_say(void **state) {
    for (size_t i = 0; i < COUNT_OF(samples); i++) run_sample(*state, &samples[i]);
}

/* ---- random graphs ---- */

/* References where sums are taken in another order or functions approximated; all else has the same bits in every kernel. */
#define INEXACT                                                                                                                              \
    "matmul=reference_matmul,softmax=reference_softmax,exp=reference_exp,sin=reference_sin,sum=reference_sum,mean=reference_mean,cumsum=reference_cumsum"

static void give_weight(ir_graph *graph) {
    for (size_t i = 0; i < graph->param_count; i++) {
        ir_value *param = graph->params[i];
        if (param->weight != NULL) continue;
        ir_weight *weight = arena_new(&graph->arena, 1, sizeof *weight);
        void *memory = arena_new(&graph->arena, 16, sizeof(float));
        assert_true(weight != NULL && memory != NULL);
        *weight = (ir_weight){.name = param->name};
        assert_true(op_tensor_init(&weight->tensor, DW_FORMAT_f32, DW_SCALE_plain, 2, (int64_t[]){4, 4}, memory));
        for (int k = 0; k < 16; k++) ((float *)memory)[k] = num_random_normal(7, (uint64_t)k);
        param->weight = weight;
    }
}

static void random_graphs_run_as_the_references(void **state) {
    dw_context *context = *state;
    static const int64_t sizes[] = {8, 1, 5, 2, 7, 3, 8, 6, 1};   /* more than a session keeps bound */
    assert_true(COUNT_OF(sizes) > ENGINE_BINDINGS);
    for (uint64_t seed = 0; seed < 150; seed++) {
        ir_graph *graph, *oracle_graph;
        evaluation *oracle;
        dw_model *model;
        assert_ok(context, random_graph(context, seed, 4, &graph));
        give_weight(graph);
        assert_ok(context, ir_graph_clone(graph, &oracle_graph));
        assert_ok(context, dw_model_create(context, graph, &(dw_model_options){.flags = DW_MODEL_VERIFY, .kernels = INEXACT}, &model));
        /* fusion may change the last bits, so the fused graph is what the references run */
        assert_ok(context, evaluation_create(model->fused, &oracle));
        dw_session *session = session_of(context, model, "s=8");
        for (size_t i = 0; i < COUNT_OF(sizes); i++)
            assert_runs_as_references(context, session, oracle, model->fused, &sizes[i], RUN_ANY_NUMBERS, seed + i);
        dw_session_destroy(session);
        evaluation_destroy(oracle);
        ir_graph_destroy(oracle_graph);
        dw_model_destroy(model);
    }
}

static int setup(void **state) { return dw_context_create(&(dw_context_options){.threads = 2}, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(runs_mean_what_the_references_say, setup, teardown),
        cmocka_unit_test_setup_teardown(random_graphs_run_as_the_references, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
