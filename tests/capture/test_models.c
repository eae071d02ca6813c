/* Every exported model of the fixtures, and every spelling of an operator, is captured, run by the reference interpreter and held against
 * PyTorch's outputs. Usage: test_capture_models [MODEL...]: those alone; with --print before them their graphs are printed as well; with --part I/N before
 * them all are captured and checked, and of the models every N-th is run.
 * The fixtures lie in build/fixtures (models/export.py makes them), or where DEEPWELL_FIXTURES says. */
#include "support/support.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capture/capture.h"
#include "support/evaluate.h"

/* PyTorch's fp32 is within 5e-7 of fp64 here, and so is another order of sums; the interpreter rounds every op once. */
#define BOUND 3e-6

static const char *fixtures(void) {
    const char *named = getenv("DEEPWELL_FIXTURES");
    return named != NULL ? named : TEST_SOURCE_DIR "/build/fixtures";
}

static const char *folder = "";   /* within the fixtures */

static void path_of(const char *file, char *path, size_t room) { snprintf(path, room, "%s/%s%s", fixtures(), folder, file); }

/* ---- one case ---- */

typedef struct model { dw_context *context; const char *name; ir_weights weights; ir_graph *graph; } model;

static bool check(const model *m, dw_status status, const char *what) {
    if (status != DW_OK) printf("%s: %s: %s\n", m->name, what, dw_context_error(m->context));
    return status == DW_OK;
}

static bool bind_inputs(const model *m, evaluation *run, const ir_weights *inputs) {
    for (size_t i = 0; i < inputs->by_name.count; i++) {
        const ir_weight *input = inputs->by_name.entries[i].value;
        if (!check(m, evaluation_bind(run, input->name, &input->tensor), "an input")) return false;
    }
    return true;
}

static bool compare_outputs(const model *m, const evaluation *run, const ir_weights *outputs, double bound, double *worst) {
    bool good = true;
    for (size_t i = 0; i < outputs->by_name.count; i++) {
        const ir_weight *output = outputs->by_name.entries[i].value;
        const dw_tensor *made = evaluation_output(run, output->name);
        double error = made == NULL ? INFINITY : tensor_error(made, &output->tensor);
        if (error > *worst) *worst = error;
        if (error <= bound) continue;
        printf("%s: output %s: relative error %.2e, allowed %.0e\n", m->name, output->name, error, bound);
        good = false;
    }
    return good;
}

static bool run_case(const model *m, const json_t *one, double bound, double *worst) {
    char path[4096];
    ir_weights inputs, outputs;
    evaluation *run = NULL;
    ir_weights_init(&inputs, m->context);
    ir_weights_init(&outputs, m->context);
    path_of(json_string_value(json_object_get(one, "in")), path, sizeof path);
    bool good = check(m, safetensors_open(m->context, path, &inputs), "inputs");
    path_of(json_string_value(json_object_get(one, "out")), path, sizeof path);
    good = good && check(m, safetensors_open(m->context, path, &outputs), "outputs");
    good = good && check(m, evaluation_create(m->graph, &run), "evaluation") && bind_inputs(m, run, &inputs);
    good = good && check(m, evaluation_run(run), "run") && compare_outputs(m, run, &outputs, bound, worst);
    evaluation_destroy(run);
    ir_weights_free(&inputs);
    ir_weights_free(&outputs);
    return good;
}

/* ---- one model ---- */

static void print_graph(const model *m) {
    text out;
    text_init(&out, m->context);
    if (ir_print(m->graph, &out) == DW_OK) printf("%s\n", text_string(&out));
    text_free(&out);
}

/* Parsing what was printed gives the same text: capture makes nothing that the text form cannot say. */
static bool check_text(const model *m) {
    text first, second;
    ir_graph *parsed = NULL;
    text_init(&first, m->context);
    text_init(&second, m->context);
    bool good = check(m, ir_print(m->graph, &first), "print");
    good = good && check(m, ir_parse(m->context, m->name, first.bytes, first.length, NULL, &parsed), "parse");
    good = good && check(m, ir_print(parsed, &second), "print again");
    if (good && strcmp(text_string(&first), text_string(&second)) != 0) {
        printf("%s: the graph reads differently after parsing\n", m->name);
        good = false;
    }
    ir_graph_destroy(parsed);
    text_free(&first);
    text_free(&second);
    return good;
}

static bool run_model(const json_t *entry, bool print, bool runs) {
    char path[4096];
    model m = {.name = json_string_value(json_object_get(entry, "name"))};
    test_memory memory = {0};
    m.context = test_context_create(&memory, 1);
    ir_weights_init(&m.weights, m.context);
    path_of(json_string_value(json_object_get(entry, "file")), path, sizeof path);
    bool good = check(&m, capture_pt2(m.context, path, NULL, &m.weights, &m.graph), "capture");
    if (good && print) print_graph(&m);
    good = good && check(&m, ir_check(m.graph), "check") && check_text(&m);
    double worst = 0, bound = json_is_number(json_object_get(entry, "bound")) ? json_number_value(json_object_get(entry, "bound")) : BOUND;
    size_t index;
    json_t *one;
    json_array_foreach(json_object_get(entry, "cases"), index, one) good = good && (!runs || run_case(&m, one, bound, &worst));
    if (good && !runs) printf("%-24s is captured; it is run in another part\n", m.name);
    else printf("%-24s %s, worst relative error %.1e\n", m.name, good ? "agrees" : "FAILS", worst);
    ir_graph_destroy(m.graph);
    ir_weights_free(&m.weights);
    dw_context_destroy(m.context);
    if (memory.live_count != 0) printf("%s: %zu allocations are not released\n", m.name, memory.live_count);
    return good && memory.live_count == 0;
}

static bool print_graphs;
static size_t part, parts = 1;   /* of --part */
static int wanted_count;
static char **wanted;

static bool is_wanted(const char *name) {
    for (int i = 0; i < wanted_count; i++) {
        if (strcmp(wanted[i], name) == 0) return true;
    }
    return wanted_count == 0;
}

static void run_manifest(const char *named) {
    char path[4096];
    folder = named;
    path_of("manifest.json", path, sizeof path);
    json_t *manifest = json_load_file(path, 0, NULL), *entry;
    if (manifest == NULL) {
        printf("skipped: there is no %s; scripts/fixtures.sh makes it\n", path);
        skip();
    }
    size_t index;
    int failures = 0;
    json_array_foreach(json_object_get(manifest, "models"), index, entry) {
        const bool runs = folder[0] != '\0' || index % parts == part;   /* operators are small */
        if (is_wanted(json_string_value(json_object_get(entry, "name")))) failures += !run_model(entry, print_graphs, runs);
    }
    json_decref(manifest);
    assert_int_equal(failures, 0);
}

static void every_model_agrees_with_pytorch(void **state) {
    (void)state;
    run_manifest("");
}

static void every_operator_agrees_with_pytorch(void **state) {
    (void)state;
    run_manifest("operators/");
}

int main(int argc, char **argv) {
    int first = 1;
    print_graphs = argc > first && strcmp(argv[first], "--print") == 0;
    first += print_graphs;
    if (argc > first + 1 && strcmp(argv[first], "--part") == 0) {
        if (sscanf(argv[first + 1], "%zu/%zu", &part, &parts) != 2 || part >= parts) {
            fprintf(stderr, "usage: test_capture_models [--print] [--part I/N] [MODEL..]\n");
            return 2;
        }
        first += 2;
    }
    wanted_count = argc - first;
    wanted = argv + first;
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_model_agrees_with_pytorch), cmocka_unit_test(every_operator_agrees_with_pytorch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
