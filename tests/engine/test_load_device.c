/* What a device computes from weights when a model is loaded has the bits that the host gives it, in every precision. */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "support/session.h"

/* How many constants of the program the device made; each is compared with the one of host. */
static int compare(dw_context *context, const dw_model *model, const engine_program *program, const engine_program *host) {
    int made = 0;
    for (int i = 0; i < program->plan->value_count; i++) {
        const plan_value *v = &program->plan->values[i];
        const dw_tensor *want = &host->constants[i];
        engine_constant fetched;
        num_parts parts;
        if (v->key == NULL || v->view || !v->read_plain) continue;
        made += program->constants[i].data == NULL;
        assert_ok(context, engine_constants_fetch(&model->constants, v->key, &fetched));
        assert_true(num_layout(want->format, want->scale_layout, want->rank, want->dims, &parts));
        assert_int_equal(parts.total_bytes, fetched.bytes);
        assert_memory_equal(want->data, fetched.tensor.data, parts.data_bytes);
        if (parts.scale_bytes > 0) assert_memory_equal(want->scales, fetched.tensor.scales, parts.scale_bytes);
        if (parts.second_bytes > 0) assert_memory_equal(want->second, fetched.tensor.second, parts.second_bytes);
        base_release(context, fetched.owned, fetched.owned_bytes, ENGINE_ALIGN);
    }
    return made;
}

static int check_program(dw_context *context, const dw_model *model, const engine_program *program) {
    engine_constants constants;
    engine_program host = {.plan = program->plan};
    pool *pool;
    if (program->plan == NULL) return 0;
    assert_ok(context, base_pool(context, &pool));
    engine_constants_init(&constants, context);
    assert_ok(context, engine_load(&constants, pool, &host));
    const int made = compare(context, model, program, &host);
    engine_constants_free(&constants);
    return made;
}

static int check_model(const char *device, const char *precision) {
    dw_context *context;
    dw_model *model;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_ok(context, dw_model_open(context, TEST_SOURCE_DIR "/models/kjv.pt2", &(dw_model_options){.precision = precision, .device = device, .flags = DW_MODEL_GENERATE}, &model));
    const int made = check_program(context, model, &model->full) + check_program(context, model, &model->step);
    dw_model_destroy(model);
    dw_context_destroy(context);
    return made;
}

static void test_bits(void **state) {
    static const char *const devices[] = {"sim:h200", "sim:b200"}, *const quantised[] = {"fp8", "fp8-row", "mxfp8", "mxfp4", "nvfp4"};
    (void)state;
    if (kernel_lacks_images() != NULL) skip();
    for (size_t d = 0; d < COUNT_OF(devices); d++) {
        check_model(devices[d], "bf16");
        for (size_t i = 0; i < COUNT_OF(quantised); i++)
            if (check_model(devices[d], quantised[i]) == 0) fail_msg("%s on %s: the device made none of the constants", quantised[i], devices[d]);
    }
}

/* Weights that lie in the device's memory are read there, whatever of them is prepared; on the host they are refused. */
enum { MOST = 512 };
typedef struct moved { int count; void *memory[MOST]; size_t bytes[MOST]; } moved;

static void put_there(dw_context *context, device *device, ir_graph *graph, const char *place, moved *moved) {
    for (size_t i = 0; i < graph->param_count; i++) {
        ir_weight *weight = graph->params[i]->weight;
        void *there;
        num_parts parts;
        if (weight == NULL || weight->place != NULL || weight->buffer || !op_tensor_is_contiguous(&weight->tensor)) continue;
        assert_true(num_layout(weight->tensor.format, weight->tensor.scale_layout, weight->tensor.rank, weight->tensor.dims, &parts));
        assert_ok(context, device->calls->alloc(device, parts.total_bytes, &there));
        assert_ok(context, device->calls->write(device, there, weight->tensor.data, parts.total_bytes));
        assert_ok(context, device->calls->synchronize(device));
        assert_true(moved->count < MOST);
        moved->memory[moved->count] = there;
        moved->bytes[moved->count++] = parts.total_bytes;
        weight->place = place;
        weight->there = there;
        weight->tensor.data = NULL;
    }
}

static dw_status load_there(dw_context *context, device *device, const char *name, const char *precision, moved *moved, dw_model **model) {
    dw_graph *graph;
    *model = NULL;
    assert_ok(context, dw_graph_open(context, TEST_SOURCE_DIR "/models/kjv.pt2", &graph));
    put_there(context, device, graph, "sim:h200", moved);
    return dw_model_create(context, graph, &(dw_model_options){.precision = precision, .device = name}, model);
}

static void test_weights_there(void **state) {
    static const char *const precisions[] = {"fp32", "bf16", "fp8", "nvfp4"};
    dw_context *context;
    device *device;
    moved moved = {0};
    (void)state;
    if (kernel_lacks_images() != NULL) skip();
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_ok(context, device_open(context, "sim:h200", &device));
    for (size_t i = 0; i < COUNT_OF(precisions); i++) {
        dw_model *host, *there;
        assert_ok(context, dw_model_open(context, TEST_SOURCE_DIR "/models/kjv.pt2", &(dw_model_options){.precision = precisions[i], .device = "sim:h200"}, &host));
        assert_ok(context, load_there(context, device, "sim:h200", precisions[i], &moved, &there));
        for (int v = 0; v < host->full.plan->value_count; v++) {
            const plan_value *value = &host->full.plan->values[v];
            engine_constant a, b;
            if (value->key == NULL || value->view || !value->read_plain) continue;
            assert_ok(context, engine_constants_fetch(&host->constants, value->key, &a));
            assert_ok(context, engine_constants_fetch(&there->constants, value->key, &b));
            assert_int_equal(a.bytes, b.bytes);
            assert_memory_equal(a.owned, b.owned, a.bytes);
            base_release(context, a.owned, a.owned_bytes, ENGINE_ALIGN);
            base_release(context, b.owned, b.owned_bytes, ENGINE_ALIGN);
        }
        dw_model_destroy(host);
        dw_model_destroy(there);
    }
    dw_model *model;
    test_assert_fails(context, load_there(context, device, "cpu", "bf16", &moved, &model), DW_UNSUPPORTED, "lies in the memory of sim:h200, and the model does not run there");
    for (int i = 0; i < moved.count; i++) device->calls->release(device, moved.memory[i], moved.bytes[i]);
    device_close(device);
    dw_context_destroy(context);
}

/* A long line of constants, each read by the next alone: what the device holds at a time is little, and that is what the limit is of. */
static void test_released(void **state) {
    enum { TURNS = 290 };      /* of 1 MiB each, where a model with this weight may hold 272 */
    static float weight[512 * 512];
    dw_context *context;
    dw_graph *graph;
    dw_model *model;
    text words;
    (void)state;
    if (kernel_lacks_images() != NULL) skip();
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    text_init(&words, context);
    text_add(&words, "graph turns\n  input x f32[2,512]\n  param w f32[512,512]\n");
    for (int i = 0; i < TURNS; i++) {
        char from[16] = "w";
        if (i > 0) snprintf(from, sizeof from, "%%%d", 3 * i);
        text_printf(&words, "  %%%d = slice %s {axis=0,start=8,end=512,step=1}\n  %%%d = slice %s {axis=0,start=0,end=8,step=1}\n", 3 * i + 1, from, 3 * i + 2, from);
        text_printf(&words, "  %%%d = concat %%%d, %%%d {axis=0}\n", 3 * i + 3, 3 * i + 1, 3 * i + 2);
    }
    text_printf(&words, "  %%%d = matmul x, %%%d {bt=true}\n  output y %%%d\n", 3 * TURNS + 1, 3 * TURNS, 3 * TURNS + 1);
    assert_ok(context, text_status(&words));
    assert_ok(context, dw_graph_parse(context, "turns", text_string(&words), words.length, &graph));
    assert_ok(context, dw_graph_bind(graph, 1, &(dw_named_tensor){"w", {.format = DW_FORMAT_f32, .rank = 2, .dims = {512, 512}, .strides = {512, 1}, .data = weight}}));
    for (int i = 0; i < 512 * 512; i++) weight[i] = (float)(i / 512);
    assert_ok(context, dw_model_create(context, graph, &(dw_model_options){.device = "sim:h200"}, &model));
    const plan *plan = model->full.plan;
    const plan_value *last = plan_value_of(ir_in(plan->steps[plan->load_count].node, 1));
    engine_constant fetched;
    assert_ok(context, engine_constants_fetch(&model->constants, last->root->key, &fetched));
    for (int row = 0; row < 512; row++) assert_true(((const float *)fetched.owned)[row * 512] == (float)((row + 8 * TURNS) % 512));
    base_release(context, fetched.owned, fetched.owned_bytes, ENGINE_ALIGN);
    text_free(&words);
    dw_model_destroy(model);
    dw_context_destroy(context);
}

/* ---- attention in fp32 on a GPU ---- */

typedef struct warnings { int count; char last[512]; } warnings;

static void keep_warning(void *user, dw_log_level level, const char *line) {
    warnings *seen = user;
    if (level != DW_LOG_WARNING) return;
    seen->count++;
    snprintf(seen->last, sizeof seen->last, "%s", line);
}

/* Where it is most of a run and layers are not in fp32, the rule that mends it is named; on the CPU, in bf16, where a plan with that rule takes no less, or where nothing was asked for, nothing is. */
static void test_fp32_scores_are_warned_of(void **state) {
    (void)state;
    static const char heads[] = "graph heads\n  symbol s 1..\n  input x f32[1,8,s,64]\n  %1 = attention x, x, x {scale=0.125}\n  output y %1\n";
    static const struct { const char *device, *precision; bool warned; } cases[] = {
        {"sim:h200", "mxfp8", true}, {"sim:h200", "role:scores=bf16,mxfp8", false}, {"sim:h200", "role:scores=fp32,mxfp8", false}, {"sim:h200", "fp32", false},
        {"sim:h200", NULL, false}, {"sim:rtx5090", "mxfp8", false}, {"cpu", "mxfp8", false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        warnings seen = {0};
        dw_context *context;
        dw_graph *graph;
        dw_model *model;
        assert_int_equal(dw_context_create(&(dw_context_options){.log = keep_warning, .log_user = &seen}, &context), DW_OK);
        assert_ok(context, dw_graph_parse(context, "heads", heads, strlen(heads), &graph));
        assert_ok(context, dw_model_create(context, graph, &(dw_model_options){.device = cases[i].device, .precision = cases[i].precision, .dims = "s=1024"}, &model));
        assert_int_equal(seen.count, cases[i].warned);
        if (cases[i].warned) assert_non_null(strstr(seen.last, "attention of heads is in fp32, as it was exported, and by estimate 100 % of a run: with the precision 'role:scores=bf16,mxfp8' a run takes "));
        dw_model_destroy(model);
        dw_context_destroy(context);
    }
}

int main(void) {
    return cmocka_run_group_tests(((const struct CMUnitTest[]){cmocka_unit_test(test_bits), cmocka_unit_test(test_weights_there), cmocka_unit_test(test_released), cmocka_unit_test(test_fp32_scores_are_warned_of)}), NULL, NULL);
}
