/* Every exported model and every spelling of an operator through the engine: none is refused, no fusion of one had to be undone, and the operators' outputs are
 * PyTorch's. (Those of models are held against it by the command, tests/models.) Usage: test_engine_fixtures [NAME...]: those alone. The fixtures lie in
 * build/fixtures (models/export.py makes them), or where DEEPWELL_FIXTURES says. */
#include "support/support.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capture/capture.h"
#include "support/session.h"

/* PyTorch's fp32 is within 5e-7 of fp64 here; so is another order of sums. */
#define BOUND 3e-6

static const char *folder;

static void path_of(const json_t *object, const char *key, char *path, size_t room) {
    const char *named = getenv("DEEPWELL_FIXTURES"), *file = json_string_value(json_object_get(object, key));
    snprintf(path, room, "%s/%s%s", named != NULL ? named : TEST_SOURCE_DIR "/build/fixtures", folder, file != NULL ? file : key);
}

static bool complain(dw_context *context, const char *name, dw_status status) {
    if (status != DW_OK) printf("%s: %s\n", name, dw_context_error(context));
    return status != DW_OK;
}

/* The model's run of the case, at its sizes, beside PyTorch's outputs. */
static bool run_case(dw_context *context, const char *name, const dw_model *model, run_io *io, const ir_weights *outputs, double bound) {
    char dims[512];
    dw_session *session;
    if (complain(context, name, dw_model_sizes(model, io->input_count, io->inputs, dims, sizeof dims))) return false;
    if (complain(context, name, dw_session_create(context, model, &(dw_session_options){.dims = dims}, &session))) return false;
    run_io_add_outputs(io, session);
    bool good = !complain(context, name, dw_session_run(session, io->input_count, io->inputs, io->output_count, io->outputs));
    for (size_t i = 0; good && i < outputs->by_name.count; i++) {
        const ir_weight *expected = outputs->by_name.entries[i].value;
        const double error = tensor_error(run_io_output(io, expected->name), &expected->tensor);
        good = error <= bound;
        if (!good) printf("%s: output %s: relative error %.2e, allowed %.0e\n", name, expected->name, error, bound);
    }
    dw_session_destroy(session);
    return good;
}

static bool runs_as_pytorch(dw_context *context, const char *name, const dw_model *model, const json_t *one, double bound) {
    ir_weights inputs, outputs;
    run_io io = {0};
    char path[4096];
    ir_weights_init(&inputs, context);
    ir_weights_init(&outputs, context);
    path_of(one, "in", path, sizeof path);
    bool good = !complain(context, name, safetensors_open(context, path, &inputs));
    path_of(one, "out", path, sizeof path);
    good = good && !complain(context, name, safetensors_open(context, path, &outputs));
    assert_true(inputs.by_name.count <= RUN_MAX_INPUTS);
    for (size_t i = 0; i < inputs.by_name.count; i++) {
        const ir_weight *input = inputs.by_name.entries[i].value;
        io.inputs[io.input_count++] = (dw_named_tensor){input->name, input->tensor};
    }
    good = good && run_case(context, name, model, &io, &outputs, bound);
    io.input_count = 0;   /* they lie in the file */
    run_io_free(&io);
    ir_weights_free(&inputs);
    ir_weights_free(&outputs);
    return good;
}

static bool run_entry(const json_t *entry, bool runs) {
    const char *name = json_string_value(json_object_get(entry, "name"));
    const json_t *given = json_object_get(entry, "bound");
    const double bound = json_is_number(given) ? json_number_value(given) : BOUND;
    dw_context *context;
    dw_model *model;
    char path[4096];
    size_t index;
    json_t *one;
    path_of(entry, "file", path, sizeof path);
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 2}, &context), DW_OK);
    const unsigned flags = DW_MODEL_GENERATE | DW_MODEL_VERIFY | (runs ? 0 : DW_MODEL_PLAN_ONLY);
    bool good = !complain(context, name, dw_model_open(context, path, &(dw_model_options){.flags = flags}, &model));
    if (good && strstr(model->fusion_notes, " is undone") != NULL) {
        printf("%s:\n%s", name, model->fusion_notes);
        good = false;
    }
    json_array_foreach(json_object_get(entry, "cases"), index, one) good = good && (!runs || runs_as_pytorch(context, name, model, one, bound));
    dw_model_destroy(model);
    dw_context_destroy(context);
    return good;
}

static int wanted_count;
static char **wanted;

static bool is_wanted(const char *name) {
    for (int i = 0; i < wanted_count; i++) {
        if (strcmp(wanted[i], name) == 0) return true;
    }
    return wanted_count == 0;
}

static void run_manifest(const char *named, bool runs) {
    char path[4096];
    folder = named;
    path_of(NULL, "manifest.json", path, sizeof path);
    json_t *manifest = json_load_file(path, 0, NULL), *entry;
    if (manifest == NULL) {
        printf("skipped: there is no %s; scripts/fixtures.sh makes it\n", path);
        skip();
    }
    size_t index;
    int failures = 0;
    json_array_foreach(json_object_get(manifest, "models"), index, entry) {
        if (is_wanted(json_string_value(json_object_get(entry, "name")))) failures += !run_entry(entry, runs);
    }
    json_decref(manifest);
    assert_int_equal(failures, 0);
}

static void every_model_opens_with_all_its_fusions(void **state) {
    (void)state;
    run_manifest("", false);
}

static void every_operator_runs_as_in_pytorch(void **state) {
    (void)state;
    run_manifest("operators/", true);
}

int main(int argc, char **argv) {
    wanted_count = argc - 1;
    wanted = argv + 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_model_opens_with_all_its_fusions), cmocka_unit_test(every_operator_runs_as_in_pytorch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
