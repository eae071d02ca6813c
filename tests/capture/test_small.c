/* What capture makes of a small program, word by word: names of symbols and values, origins, roles, state, notes. */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capture/capture.h"
#include "support/archives.h"
#include "support/evaluate.h"

static const char small_path[] = TEST_SOURCE_DIR "/tests/capture/cases/small.pt2";
static const char golden_path[] = TEST_SOURCE_DIR "/tests/capture/cases/small.txt";

typedef struct fixture { test_memory memory; dw_context *context; ir_weights weights; ir_graph *graph; } fixture;

static int capture_small(void **state) {
    static fixture f;
    f = (fixture){.graph = NULL};
    f.context = test_context_create(&f.memory, 1);
    ir_weights_init(&f.weights, f.context);
    *state = &f;
    return capture_pt2(f.context, small_path, NULL, &f.weights, &f.graph) == DW_OK ? 0 : -1;
}

static int release_small(void **state) {
    fixture *f = *state;
    ir_graph_destroy(f->graph);
    ir_weights_free(&f->weights);
    dw_context_destroy(f->context);
    return f->memory.live_count == 0 ? 0 : -1;
}

/* The golden text is what --print wrote when it was last looked over: test_capture_small --print > tests/capture/cases/small.txt */
static void the_graph_reads_as_it_should(void **state) {
    fixture *f = *state;
    text printed;
    file_map golden;
    text_init(&printed, f->context);
    assert_int_equal(ir_print(f->graph, &printed), DW_OK);
    assert_int_equal(file_map_open(f->context, golden_path, &golden), DW_OK);
    bool same = golden.length == printed.length && memcmp(golden.bytes, printed.bytes, golden.length) == 0;
    if (!same) printf("the graph is:\n%s", text_string(&printed));
    file_map_close(&golden);
    text_free(&printed);
    assert_true(same);
}

static void a_buffer_that_is_written_lives_across_runs(void **state) {
    fixture *f = *state;
    evaluation *run;
    dw_tensor ids;
    int64_t dims[] = {1, 3};
    assert_int_equal(evaluation_create(f->graph, &run), DW_OK);
    assert_int_equal(evaluation_bind_new(run, "ids", 2, dims, &ids), DW_OK);
    for (int64_t i = 1; i <= 3; i++) {
        assert_int_equal(evaluation_run(run), DW_OK);
        assert_int_equal(op_tensor_load_int(evaluation_output(run, "mul_2"), NULL), i);
        assert_int_equal(op_tensor_load_int(evaluation_state(run, "runs"), NULL), i);
    }
    evaluation_reset(run);
    assert_int_equal(evaluation_run(run), DW_OK);
    assert_int_equal(op_tensor_load_int(evaluation_output(run, "mul_2"), NULL), 1);
    evaluation_destroy(run);
}

static void weights_lie_in_the_mapped_file(void **state) {
    fixture *f = *state;
    assert_int_equal(f->weights.storage_count, 1);
    const ir_storage *file = &f->weights.storages[0];
    for (size_t i = 0; i < f->weights.by_name.count; i++) {
        const ir_weight *weight = f->weights.by_name.entries[i].value;
        const uint8_t *data = weight->tensor.data;
        assert_true(data >= (const uint8_t *)file->bytes && data < (const uint8_t *)file->bytes + file->length);
    }
}

static void tied_weights_share_their_bytes(void **state) {
    fixture *f = *state;
    assert_ptr_equal(ir_weights_find(&f->weights, "embed.weight")->tensor.data, ir_weights_find(&f->weights, "head.weight")->tensor.data);
}

static void the_tokenizer_record_becomes_a_note(void **state) {
    fixture *f = *state;
    const ir_storage *file = &f->weights.storages[0];
    ir_weights weights;
    ir_graph *graph;
    text made;
    text_init(&made, f->context);
    ir_weights_init(&weights, f->context);
    archive_change change = {.name = ".data/version", .rename = "extra/tokenizer", .contents = "bytes\n"};
    archive_rebuild(f->context, file->bytes, file->length, 1, &change, &made);
    assert_int_equal(capture_pt2_read(f->context, "noted.pt2", made.bytes, made.length, NULL, &weights, &graph), DW_OK);
    assert_string_equal(map_find(&graph->notes, "tokenizer"), "bytes");
    ir_graph_destroy(graph);
    ir_weights_free(&weights);
    text_free(&made);
}

static void a_model_is_found_by_name(void **state) {
    fixture *f = *state;
    ir_weights weights;
    ir_graph *graph;
    capture_options options = {.model = "decoder"};
    ir_weights_init(&weights, f->context);
    test_assert_fails(f->context, capture_pt2(f->context, small_path, &options, &weights, &graph), DW_NOT_FOUND, "no model 'decoder'");
    ir_weights_free(&weights);
}

static void a_file_that_is_not_there_is_an_error(void **state) {
    fixture *f = *state;
    ir_weights weights;
    ir_graph *graph;
    ir_weights_init(&weights, f->context);
    assert_int_not_equal(capture_pt2(f->context, "/nowhere/model.pt2", NULL, &weights, &graph), DW_OK);
    assert_non_null(strstr(dw_context_error(f->context), "/nowhere/model.pt2"));
    ir_weights_free(&weights);
}

static void rows_of_operators_are_whole(void **state) {
    (void)state;
    assert_in_range(capture_operator_count(), 130, 1000);
    for (int i = 0; i < capture_operator_count(); i++) {
        capture_operator row = capture_operator_at(i);
        assert_true(strlen(row.target) > 0 && strlen(row.arguments) > 0 && strlen(row.becomes) > 0);
        for (int k = 0; k < i; k++) assert_string_not_equal(row.target, capture_operator_at(k).target);
    }
}

static int print_small(void) {
    void *state;
    int failed = capture_small(&state);
    fixture *f = state;
    text printed;
    text_init(&printed, f->context);
    if (failed == 0 && ir_print(f->graph, &printed) == DW_OK) fputs(text_string(&printed), stdout);
    text_free(&printed);
    return release_small(&state) != 0 || failed != 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--print") == 0) return print_small();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_graph_reads_as_it_should, capture_small, release_small),
        cmocka_unit_test_setup_teardown(a_buffer_that_is_written_lives_across_runs, capture_small, release_small),
        cmocka_unit_test_setup_teardown(weights_lie_in_the_mapped_file, capture_small, release_small),
        cmocka_unit_test_setup_teardown(tied_weights_share_their_bytes, capture_small, release_small),
        cmocka_unit_test_setup_teardown(the_tokenizer_record_becomes_a_note, capture_small, release_small),
        cmocka_unit_test_setup_teardown(a_model_is_found_by_name, capture_small, release_small),
        cmocka_unit_test_setup_teardown(a_file_that_is_not_there_is_an_error, capture_small, release_small),
        cmocka_unit_test(rows_of_operators_are_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
