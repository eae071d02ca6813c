/* Memory runs out at every allocation in turn, in each thing that a user does with the public interface: every time the call says
 * NO_MEMORY, nothing leaks and no file stays behind. Needs the exported models (scripts/fixtures.sh). */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deepwell/deepwell.h"

enum { ROWS = 2, WIDTH = 64, RESULT_BYTES = 1 << 20 };

static char scratch[] = "/tmp/deepwell-oom-XXXXXX";

static const char *fixture(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", TEST_FIXTURES_DIR, name);
    return path;
}

static const char *in_scratch(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    return path;
}

static void ignore(void *user, const char *text, size_t length) { (void)user, (void)text, (void)length; }

static dw_status run_op(dw_context *context, void *argument) {
    static float a[WIDTH * WIDTH], b[WIDTH * WIDTH], y[WIDTH * WIDTH];
    dw_tensor shape = {.format = DW_FORMAT_f32, .rank = 2, .dims = {WIDTH, WIDTH}, .strides = {WIDTH, 1}};
    dw_tensor tensors[3] = {shape, shape, shape};
    tensors[0].data = a;
    tensors[1].data = b;
    tensors[2].data = y;
    const dw_tensor *in[2] = {&tensors[0], &tensors[1]}, *out[1] = {&tensors[2]};
    return dw_op_run(context, "matmul", argument, NULL, 2, in, 1, out);
}

static dw_status build(dw_graph *graph) {
    static float weights[WIDTH * WIDTH];
    const dw_tensor weight = {.format = DW_FORMAT_f32, .rank = 2, .dims = {WIDTH, WIDTH}, .strides = {WIDTH, 1}, .data = weights};
    dw_value *x, *w, *g, *h;
    dw_status status = dw_graph_symbol(graph, "m", 1, 4096);
    if (status == DW_OK) status = dw_graph_input(graph, "x", "f32[m,64]", &x);
    if (status == DW_OK) status = dw_graph_param(graph, "w", &weight, &w);
    if (status == DW_OK) status = dw_graph_op(graph, "matmul", "bt=true", 2, (dw_value *[]){x, w}, 1, &g);
    if (status == DW_OK) status = dw_graph_op(graph, "silu", "", 1, (dw_value *[]){g}, 1, &h);
    return status == DW_OK ? dw_graph_output(graph, "y", h) : status;
}

static dw_status run_graph(dw_context *context, void *argument) {
    static float x[ROWS * WIDTH], y[ROWS * WIDTH];
    const dw_tensor shape = {.format = DW_FORMAT_f32, .rank = 2, .dims = {ROWS, WIDTH}, .strides = {WIDTH, 1}};
    dw_named_tensor in = {"x", shape}, out = {"y", shape};
    in.tensor.data = x;
    out.tensor.data = y;
    dw_graph *graph;
    dw_model *model = NULL;
    dw_session *session = NULL;
    dw_status status = dw_graph_create(context, "mlp", &graph);
    if (status != DW_OK) return status;
    status = build(graph);
    if (status != DW_OK) {
        dw_graph_destroy(graph);
        return status;
    }
    status = dw_model_create(context, graph, &(dw_model_options){.precision = argument}, &model);
    if (status == DW_OK) status = dw_session_create(context, model, &(dw_session_options){.dims = "m=2"}, &session);
    if (status == DW_OK) status = dw_session_run(session, 1, &in, 1, &out);
    dw_session_destroy(session);
    dw_model_destroy(model);
    return status;
}

/* The model's first output for the inputs of one of its cases, written to a file. */
static dw_status ignore_call(const dw_kernel_call *call) {
    (void)call;
    return DW_OK;
}

/* Of two registered kernels one takes the product without its activation, which is split off, and the other nothing, which is warned of. */
static dw_status plan_registered(dw_context *context, void *argument) {
    dw_graph *graph = NULL;
    dw_registry *registry = NULL;
    dw_model *model = NULL;
    dw_status status = dw_registry_create(context, &registry);
    if (status == DW_OK) status = dw_registry_add(registry, &(dw_kernel_options){.name = "mine", .precision = argument, .run = ignore_call});
    if (status == DW_OK) status = dw_registry_add(registry, &(dw_kernel_options){.name = "other", .precision = "nvfp4", .run = ignore_call});
    if (status == DW_OK) status = dw_graph_create(context, "mlp", &graph);
    if (status == DW_OK) status = build(graph);
    if (status != DW_OK) dw_graph_destroy(graph);
    else status = dw_model_create(context, graph, &(dw_model_options){.registry = registry, .flags = DW_MODEL_PLAN_ONLY}, &model);
    if (status == DW_OK) status = dw_model_print(model, DW_PRINT_EXPLAIN, 0, ignore, NULL);
    dw_model_destroy(model);
    dw_registry_destroy(registry);
    return status;
}

static dw_status run_case(dw_context *context, const dw_model *model, const dw_tensors *inputs) {
    static char results[RESULT_BYTES];
    dw_named_tensor in[8], out[8];
    int in_count = dw_tensors_count(inputs), out_count = dw_model_output_count(model);
    assert_true(in_count <= 8 && out_count <= 8);
    for (int i = 0; i < in_count; i++) in[i] = dw_tensors_at(inputs, i);
    char sizes[256];
    dw_session *session = NULL;
    dw_status status = dw_model_sizes(model, in_count, in, sizes, sizeof sizes);
    if (status == DW_OK) status = dw_session_create(context, model, &(dw_session_options){.dims = sizes}, &session);
    if (status == DW_OK) status = dw_session_shapes(session, in_count, in, out);
    char *at = results;
    for (int i = 0; i < out_count && status == DW_OK; i++) {
        uint64_t bytes;
        status = dw_tensor_bytes(context, &out[i].tensor, &bytes);
        if (status != DW_OK) break;
        assert_true((uint64_t)(results + RESULT_BYTES - at) >= bytes);
        out[i].tensor.data = at;
        at += (bytes + 63) / 64 * 64;
    }
    if (status == DW_OK) status = dw_session_run(session, in_count, in, out_count, out);
    if (status == DW_OK) status = dw_tensors_write(context, in_scratch("out.safetensors"), out_count, out);
    if (status == DW_OK) assert_int_equal(unlink(in_scratch("out.safetensors")), 0);
    dw_session_destroy(session);
    return status;
}

static dw_status run_exported(dw_context *context, void *argument) {
    dw_model *model = NULL;
    dw_tensors *inputs = NULL;
    dw_status status = dw_model_open(context, fixture("mlp_gated.pt2"), &(dw_model_options){.precision = argument}, &model);
    if (status == DW_OK) status = dw_tensors_open(context, fixture("mlp_gated.cases/b2_s5.in.safetensors"), &inputs);
    if (status == DW_OK) status = run_case(context, model, inputs);
    dw_tensors_close(inputs);
    dw_model_destroy(model);
    return status;
}

static dw_status print_exported(dw_context *context, void *argument) {
    dw_model *model = NULL;
    const dw_model_options options = {.precision = "nvfp4", .flags = DW_MODEL_PLAN_ONLY, .chip = argument};
    dw_status status = dw_model_open(context, fixture("mlp_gated.pt2"), &options, &model);
    for (int what = DW_PRINT_SUMMARY; what <= DW_PRINT_MEMORY && status == DW_OK; what++) {
        if (what == DW_PRINT_STEP) continue;   /* it has none */
        status = dw_model_print(model, (dw_print)what, what == DW_PRINT_EXPLAIN, ignore, NULL);
    }
    dw_model_destroy(model);
    return status;
}

static dw_status save_and_open(dw_context *context, void *argument) {
    dw_model *model = NULL, *opened = NULL;
    dw_tensors *inputs = NULL;
    dw_status status = dw_model_open(context, fixture("mlp_gated.pt2"), &(dw_model_options){.precision = argument}, &model);
    if (status == DW_OK) status = dw_model_save(model, in_scratch("model.dw"));
    if (status == DW_OK) status = dw_model_open(context, in_scratch("model.dw"), NULL, &opened);
    if (status == DW_OK) status = dw_tensors_open(context, fixture("mlp_gated.cases/b1_s1.in.safetensors"), &inputs);
    if (status == DW_OK) status = run_case(context, opened, inputs);
    dw_tensors_close(inputs);
    dw_model_destroy(opened);
    dw_model_destroy(model);
    unlink(in_scratch("model.dw"));   /* absent where the failure came before it was whole */
    return status;
}

static dw_status generate(dw_context *context, void *argument) {
    static const int64_t prompt[3] = {1, 2, 3};
    int64_t ids[2], made;
    dw_model *model = NULL;
    dw_session *session = NULL;
    const dw_model_options options = {.precision = argument, .flags = DW_MODEL_GENERATE};
    dw_status status = dw_model_open(context, fixture("tril_gpt.pt2"), &options, &model);
    if (status == DW_OK) status = dw_session_create(context, model, &(dw_session_options){.max_tokens = 8}, &session);
    if (status == DW_OK) {
        status = dw_session_generate(session, 3, prompt, &(dw_generate_options){.tokens = 2, .temperature = 1, .top_k = 5}, ids, &made, NULL);
    }
    dw_session_destroy(session);
    dw_model_destroy(model);
    return status;
}

/* Two rows, three prompts. */
static dw_status generate_batch(dw_context *context, void *argument) {
    static const int64_t ids[3] = {1, 2, 3};
    int64_t made[3][2];
    dw_prompt prompts[3];
    dw_model *model = NULL;
    dw_session *session = NULL;
    for (int i = 0; i < 3; i++) prompts[i] = (dw_prompt){.count = 1 + i, .ids = ids, .made_ids = made[i]};
    dw_status status = dw_model_open(context, fixture(argument), &(dw_model_options){.flags = DW_MODEL_GENERATE | DW_MODEL_GENERATE_ONLY}, &model);
    if (status == DW_OK) status = dw_session_create(context, model, &(dw_session_options){.max_tokens = 8, .rows = 2, .chunk = 2}, &session);
    if (status == DW_OK) status = dw_session_generate_batch(session, 3, prompts, &(dw_generate_options){.tokens = 2}, NULL);
    dw_session_destroy(session);
    dw_model_destroy(model);
    return status;
}

static dw_status check(dw_context *context, void *argument) {
    return dw_check(context, fixture("mlp_gated.pt2"), &(dw_model_options){.precision = argument}, 0, NULL, 0, ignore, NULL);
}

/* Every attention, mask, normalisation and rotary embedding there is comes by in one of these. */
static dw_status plan_exported(dw_context *context, void *argument) {
    dw_model *model = NULL;
    const dw_model_options options = {.precision = "fp8", .flags = DW_MODEL_GENERATE | DW_MODEL_PLAN_ONLY};
    dw_status status = dw_model_open(context, fixture(argument), &options, &model);
    dw_model_destroy(model);
    return status;
}

static void need_fixtures(void) {
    if (access(fixture("manifest.json"), R_OK) == 0) return;
    print_message("skipped: %s is not there (scripts/fixtures.sh makes it)\n", fixture("manifest.json"));
    skip();
}

static void one_op(void **state) {
    (void)state;
    test_every_allocation(run_op, "bt=true");
}

static void a_graph_built_by_hand(void **state) {
    (void)state;
    test_every_allocation(run_graph, "fp32");
    test_every_allocation(run_graph, "mxfp8");
    test_every_allocation(run_graph, "fp8 or bf16");
    test_every_allocation(plan_registered, "f32");
}

static void an_exported_model_run_on_a_file_of_inputs(void **state) {
    (void)state;
    need_fixtures();
    test_every_allocation(run_exported, "mxfp4");
}

static void an_exported_model_printed_in_every_form(void **state) {
    (void)state;
    need_fixtures();
    test_every_allocation(print_exported, NULL);
    test_every_allocation(print_exported, "h200");
}

static void a_model_saved_and_opened_again(void **state) {
    (void)state;
    need_fixtures();
    test_every_allocation(save_and_open, "mxfp8");
}

static void generation_with_a_cache(void **state) {
    (void)state;
    need_fixtures();
    test_every_allocation(generate, "bf16");
    test_every_allocation(generate_batch, "tril_gpt.pt2");
    test_every_allocation(generate_batch, "llama_static_cache.pt2");
}

static void accuracy_beside_fp32(void **state) {
    (void)state;
    need_fixtures();
    test_every_allocation(check, "nvfp4 or mxfp8-weights");
}

static void models_captured_fused_and_planned(void **state) {
    (void)state;
    need_fixtures();
    static char *const models[] = {"llama.pt2", "bert.pt2"};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) test_every_allocation(plan_exported, models[i]);
}

static int make_scratch(void **state) {
    (void)state;
    return mkdtemp(scratch) == NULL;
}

static int remove_scratch(void **state) {
    (void)state;
    return rmdir(scratch);   /* fails when a file stayed behind */
}

/* Steps of two micro-batches, a checkpoint and back, the parameters in a file, and a model of them. */
static dw_status train_on(dw_trainer *trainer) {
    static float x[2 * 3], t[2 * 2];
    const dw_named_tensor inputs[] = {{"x", {.format = DW_FORMAT_f32, .rank = 2, .dims = {2, 3}, .strides = {3, 1}, .data = x}},
                                      {"t", {.format = DW_FORMAT_f32, .rank = 2, .dims = {2, 2}, .strides = {2, 1}, .data = t}}};
    dw_model *model;
    double loss;
    dw_status status = DW_OK;
    for (int i = 0; status == DW_OK && i < 4; i++) status = dw_trainer_step(trainer, 2, inputs, 0.1, NULL);
    if (status == DW_OK) status = dw_trainer_loss(trainer, 2, inputs, &loss);
    if (status == DW_OK) status = dw_trainer_save(trainer, in_scratch("checkpoint"), 4);
    if (status == DW_OK) status = dw_trainer_resume(trainer, in_scratch("checkpoint"), NULL);
    if (status == DW_OK) status = dw_trainer_export(trainer, in_scratch("weights"));
    if (status == DW_OK) status = dw_trainer_model(trainer, NULL, &model);
    if (status == DW_OK) dw_model_destroy(model);
    remove(in_scratch("checkpoint"));
    remove(in_scratch("weights"));
    return status;
}

static dw_status train_a_graph(dw_context *context, void *optimizer) {
    static const char text[] = "graph g\n  symbol b 1..8\n  input x f32[b,3]\n  input t f32[b,2]\n  param w f32[3,2]\n  %1 = matmul x, w\n  %2 = sub %1, t\n  %3 = mul %2, %2\n  %4 = mean %3 {axes=[0,1]}\n"
                               "  output loss %4\n";
    static float w[3 * 2] = {1, 2, 3, 4, 5, 6};
    const dw_named_tensor weight = {"w", {.format = DW_FORMAT_f32, .rank = 2, .dims = {3, 2}, .strides = {2, 1}, .data = w}};
    dw_graph *graph;
    dw_trainer *trainer;
    dw_status status = dw_graph_parse(context, "g", text, strlen(text), &graph);
    if (status != DW_OK) return status;
    status = dw_graph_bind(graph, 1, &weight);
    if (status != DW_OK) {
        dw_graph_destroy(graph);
        return status;
    }
    status = dw_trainer_create(context, graph, &(dw_trainer_options){.optimizer = optimizer, .accumulate = 2, .clip = 1, .precision = "bf16"}, &trainer);
    if (status != DW_OK) return status;
    status = train_on(trainer);
    dw_trainer_destroy(trainer);
    return status;
}

static void a_graph_trained(void **state) {
    (void)state;
    test_every_allocation(train_a_graph, "adamw");
    test_every_allocation(train_a_graph, "muon");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_op),
        cmocka_unit_test(a_graph_built_by_hand),
        cmocka_unit_test(an_exported_model_run_on_a_file_of_inputs),
        cmocka_unit_test(an_exported_model_printed_in_every_form),
        cmocka_unit_test(a_model_saved_and_opened_again),
        cmocka_unit_test(generation_with_a_cache),
        cmocka_unit_test(a_graph_trained),
        cmocka_unit_test(accuracy_beside_fp32),
        cmocka_unit_test(models_captured_fused_and_planned),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
