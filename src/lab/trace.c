/* The instruction trace of one warp. A file or one op runs on a simulated GPU; options in the device's name make its driver write down what one warp of one
 * launch executes. The text is passed on as it is. */
#include <string.h>
#include <unistd.h>

#include "lab/op_case.h"

/* Options of the simulator (docs/sim.md) behind those that were given. */
static dw_status name_device(dw_context *context, const char *device, const dw_trace_options *options, int file, text *name) {
    if (device == NULL || strncmp(device, "sim:", 4) != 0)
        return base_fail(context, DW_INVALID, "device %s: a trace is of a simulated GPU's instructions: name one, as --device sim:h200", device != NULL ? device : "cpu");
    if (options->launch != NULL && (options->launch[0] == '\0' || strchr(options->launch, ',') != NULL))
        return base_fail(context, DW_INVALID, "launch '%s': expected a number from 1, a kernel's name or a part of it, or NAME:N", options->launch);
    text_printf(name, "%s,trace=%s,trace_file=/proc/self/fd/%d,trace_warp=%d", device, options->launch != NULL ? options->launch : "list", file, options->warp);
    if (options->lines > 0) text_printf(name, ",trace_lines=%lld", (long long)options->lines);
    if (options->cta != NULL) text_add(name, ",trace_cta=");
    for (const char *at = options->cta; at != NULL && *at != '\0'; at++) text_printf(name, "%c", *at == ',' ? ':' : *at);
    return text_status(name);
}

static dw_status run_op(dw_context *context, const char *line, const dw_model_options *options) {
    op_case o;
    kernel_run run;
    dw_status status = op_case_open(&o, context, line, options->device, options->kernels);
    if (status == DW_OK) status = op_case_prepare(&o, o.choice.row, o.choice.ways, &run);
    if (status == DW_OK) status = op_case_run(&o, o.choice.row, &run);
    op_case_close(&o);
    return status;
}

static dw_status run_session(arena *arena, const dw_model *model, const char *dims, int count, const dw_named_tensor *given) {
    const plan *plan = model->full.plan;
    const ir_graph *graph = plan->graph;
    const dw_tensor **matched;
    dw_named_tensor *inputs, *outputs;
    dw_session *session;
    char sizes[512];
    int64_t symbols[ENGINE_MAX_SYMBOLS];
    TRY_NEW(inputs, arena, graph->input_count);
    TRY_NEW(outputs, arena, graph->output_count);
    TRY_NEW(matched, arena, graph->input_count);
    if (count == 0) {
        TRY(lab_random_inputs(arena, plan, plan->typical, inputs));
        count = (int)graph->input_count;
        given = inputs;
    } else {
        TRY(dw_model_sizes(model, count, given, sizes, sizeof sizes));
        dims = sizes;
    }
    TRY(engine_match(arena->context, plan, count, given, matched, symbols));
    TRY(lab_new_outputs(arena, plan, symbols, outputs));
    TRY(dw_session_create(arena->context, model, &(dw_session_options){.dims = dims}, &session));
    dw_status status = dw_session_run(session, count, given, (int)graph->output_count, outputs);
    dw_session_destroy(session);
    return status;
}

static dw_status run_model(dw_context *context, const char *file, const dw_model_options *options, int count, const dw_named_tensor *inputs) {
    dw_model *model;
    arena arena;
    TRY(dw_model_open(context, file, options, &model));
    arena_init(&arena, context);
    dw_status status = run_session(&arena, model, options->dims, count, inputs);
    arena_free(&arena);
    dw_model_destroy(model);
    return status;
}

static dw_status pass_on(dw_context *context, FILE *file, dw_sink sink, void *user, bool *empty) {
    char part[4096];
    rewind(file);
    for (size_t length; (length = fread(part, 1, sizeof part, file)) > 0;) {
        sink(user, part, length);
        *empty = false;
    }
    return ferror(file) ? base_fail(context, DW_IO, "the trace cannot be read back") : DW_OK;
}

static dw_status run_traced(dw_context *context, const char *file, const dw_model_options *options, int count, const dw_named_tensor *inputs) {
    return lab_is_op_line(file) ? run_op(context, file, options) : run_model(context, file, options, count, inputs);
}

dw_status dw_trace(dw_context *context, const char *file, const dw_model_options *model_options, const dw_trace_options *trace_options, int input_count,
                   const dw_named_tensor *inputs, dw_sink sink, void *user) {
    FILE *written = tmpfile();
    dw_model_options options = model_options ? *model_options : (dw_model_options){0};
    const dw_trace_options asked = trace_options ? *trace_options : (dw_trace_options){0};
    bool empty = true;
    text name;
    if (written == NULL) return base_fail(context, DW_IO, "there is no temporary file for the trace");
    text_init(&name, context);
    dw_status status = name_device(context, options.device, &asked, fileno(written), &name);
    options.flags &= ~(unsigned)DW_MODEL_PLAN_ONLY;
    options.device = text_string(&name);
    if (status == DW_OK) status = run_traced(context, file, &options, input_count, inputs);
    dw_status read = pass_on(context, written, sink, user, &empty);   /* what there is, of a run that failed too */
    if (status == DW_OK) status = read;
    if (status == DW_OK && empty) {
        if (asked.launch == NULL) status = base_fail(context, DW_NOT_FOUND, "%s launched no kernel", file);
        else status = base_fail(context, DW_NOT_FOUND, "the run has no launch '%s'; without a launch's name or number, trace lists them", asked.launch);
    }
    text_free(&name);
    fclose(written);
    return status;
}
