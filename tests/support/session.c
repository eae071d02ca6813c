/* Runs of sessions beside the oracle; see session.h. */
#include "support/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

static double number(run_numbers numbers, uint64_t seed, uint64_t index) {
    static const double special[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1.0, 1e-40, -1e30, 65520.0, 0.1};
    uint64_t choice = num_random(seed, index);
    if (numbers == RUN_SMALL_INTEGERS) return (double)(choice % 5) - 2;
    choice %= 3 * COUNT_OF(special);
    return choice < COUNT_OF(special) ? special[choice] : (double)num_random_normal(seed, index);
}

static void fill(const dw_tensor *tensor, run_numbers numbers, uint64_t seed) {
    int64_t index[DW_MAX_RANK] = {0}, count = op_tensor_count(tensor);
    num_class class = num_info(tensor->format)->class;
    for (int64_t i = 0; i < count; i++) {
        if (class == NUM_FLOAT) op_tensor_store(tensor, index, number(numbers, seed, (uint64_t)i));
        else op_tensor_store_int(tensor, index, (int64_t)(num_random(seed, (uint64_t)i) & 1));
        op_tensor_next(tensor, index);
    }
}

static void *allocate(dw_tensor *tensor) {
    num_parts parts;
    assert_true(num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts));
    void *memory = malloc(parts.total_bytes + 1);
    assert_non_null(memory);
    memset(memory, 0xa7, parts.total_bytes + 1);
    assert_true(op_tensor_init(tensor, tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, memory));
    return memory;
}

void run_io_create(run_io *io, const ir_graph *graph, const int64_t *symbols, run_numbers numbers, uint64_t seed) {
    *io = (run_io){.input_count = (int)graph->input_count};
    assert_true(io->input_count <= RUN_MAX_INPUTS);
    for (int i = 0; i < io->input_count; i++) {
        const ir_value *input = graph->inputs[i];
        io->inputs[i].name = input->name;
        assert_ok(graph->context, op_tensor_bind(graph->context, &input->type, symbols, NULL, &io->inputs[i].tensor));
        allocate(&io->inputs[i].tensor);
        fill(&io->inputs[i].tensor, numbers, seed ^ base_hash(input->name, strlen(input->name), 0));
    }
}

void run_io_add_outputs(run_io *io, dw_session *session) {
    io->output_count = dw_model_output_count(session->model);
    assert_true(io->output_count <= RUN_MAX_OUTPUTS);
    assert_ok(session->context, dw_session_shapes(session, io->input_count, io->inputs, io->outputs));
    for (int i = 0; i < io->output_count; i++) allocate(&io->outputs[i].tensor);
}

void run_io_free(run_io *io) {
    for (int i = 0; i < io->input_count; i++) free(io->inputs[i].tensor.data);
    for (int i = 0; i < io->output_count; i++) free(io->outputs[i].tensor.data);
    *io = (run_io){0};
}

const dw_tensor *run_io_output(const run_io *io, const char *name) {
    for (int i = 0; i < io->output_count; i++)
        if (strcmp(io->outputs[i].name, name) == 0) return &io->outputs[i].tensor;
    fail_msg("there is no output %s", name);
    return NULL;
}

void assert_ok(dw_context *context, dw_status status) {
    if (status != DW_OK) fail_msg("%s", dw_context_error(context));   /* begins with the status */
}

dw_model *model_of_text(dw_context *context, const char *text, const dw_model_options *options) {
    dw_graph *graph;
    dw_model *model;
    assert_ok(context, dw_graph_parse(context, "text", text, strlen(text), &graph));
    assert_ok(context, dw_model_create(context, graph, options, &model));
    return model;
}

dw_session *session_of(dw_context *context, const dw_model *model, const char *dims) {
    dw_session *session;
    assert_ok(context, dw_session_create(context, model, &(dw_session_options){.dims = dims}, &session));
    return session;
}

static void print_run(const ir_graph *graph, const dw_session *session, const int64_t *symbols) {
    text words;
    text_init(&words, graph->context);
    ir_print(graph, &words);
    plan_print(session->model->full.plan, &words);
    for (int i = 0; i < dim_symbol_count(graph->dims); i++) text_printf(&words, "%s=%lld ", dim_symbol_name(graph->dims, i), (long long)symbols[i]);
    print_error("%s\n", text_string(&words));
    text_free(&words);
}

void assert_runs_as_references(dw_context *context, dw_session *session, evaluation *oracle, const ir_graph *graph, const int64_t *symbols,
                               run_numbers numbers, uint64_t seed) {
    run_io io;
    run_io_create(&io, graph, symbols, numbers, seed);
    for (int i = 0; i < io.input_count; i++) assert_ok(context, evaluation_bind(oracle, io.inputs[i].name, &io.inputs[i].tensor));
    assert_ok(context, evaluation_run(oracle));
    run_io_add_outputs(&io, session);
    assert_ok(context, dw_session_run(session, io.input_count, io.inputs, io.output_count, io.outputs));
    for (int i = 0; i < io.output_count; i++) {
        const dw_tensor *expected = evaluation_output(oracle, io.outputs[i].name);
        if (tensor_is_same(&io.outputs[i].tensor, expected)) continue;
        print_run(graph, session, symbols);
        fail_msg("output %s differs: relative error %g", io.outputs[i].name, tensor_error(&io.outputs[i].tensor, expected));
    }
    run_io_free(&io);
}
