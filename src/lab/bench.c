/* Times of a file on this device: loading, whole runs, prefill and decode. Every time is of counted runs after one that is not; the least
 * and the median are printed. Inputs are random. */
#include "device/device.h"
#include "lab/lab.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench {
    dw_context *context;
    const dw_bench_options *options;
    int repeat;
    bool simulated;               /* everything runs once, and nothing is timed */
    arena arena;
    json_t *facts;
} bench;

static int compare_times(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static json_t *times_json(double *seconds, int count) {
    qsort(seconds, (size_t)count, sizeof *seconds, compare_times);
    return json_pack("{s:f, s:f, s:f, s:i}", "seconds", seconds[count / 2], "min", seconds[0], "max", seconds[count - 1], "runs", count);
}

static dw_status bench_run(bench *bench, const dw_model *model, const char *dims) {
    const plan *plan = model->full.plan;
    const ir_graph *graph = plan->graph;
    dw_session *session;
    dw_named_tensor *inputs, *outputs;
    double *seconds, *steps;
    TRY_NEW(steps, &bench->arena, plan->step_count);
    TRY_NEW(inputs, &bench->arena, graph->input_count);
    TRY_NEW(outputs, &bench->arena, graph->output_count);
    TRY_NEW(seconds, &bench->arena, bench->repeat);
    TRY(lab_random_inputs(&bench->arena, plan, plan->typical, inputs));
    TRY(lab_new_outputs(&bench->arena, plan, plan->typical, outputs));
    TRY(dw_session_create(bench->context, model, &(dw_session_options){.dims = dims}, &session));
    dw_status status = DW_OK;
    for (int i = -1; i < (bench->simulated ? 0 : bench->repeat) && status == DW_OK; i++) {
        double start = base_now();
        status = dw_session_run(session, (int)graph->input_count, inputs, (int)graph->output_count, outputs);
        if (i >= 0) seconds[i] = base_now() - start;
        if (i < 0) session->full.profile = steps;   /* from the second run on */
    }
    if (status == DW_OK && !bench->simulated) {
        json_object_set_new(bench->facts, "run_kernels", lab_profile_json(plan, steps, bench->repeat, plan->typical));
        json_object_set_new(bench->facts, "run", times_json(seconds, bench->repeat));
    }
    if (status == DW_OK) json_object_set_new(bench->facts, "workspace_bytes", json_integer((json_int_t)session->workspace_bytes));
    dw_session_destroy(session);
    return status;
}

/* What an encoder-decoder takes besides the prompt: random. */
static dw_status make_inputs(bench *bench, const dw_session *session, dw_generate_options *generate) {
    dw_named_tensor *inputs;
    if (session->prelude.program == NULL) return DW_OK;
    const plan *plan = session->prelude.program->plan;
    TRY_NEW(inputs, &bench->arena, plan->graph->input_count);
    TRY(lab_random_inputs(&bench->arena, plan, session->prelude_most, inputs));
    generate->inputs = inputs;
    generate->input_count = (int)plan->graph->input_count;
    return DW_OK;
}

/* One more generation of two tokens behind a prompt that fills the cache but for one: the second is a decode step alone. */
static dw_status profile_decode(bench *bench, dw_session *session, const dw_generate_options *options, int64_t past, double *steps) {
    const plan *plan = session->step.program->plan;
    dw_generate_options generate = *options;
    int64_t *prompt, id, made;
    generate.tokens = 1;
    TRY_NEW(prompt, &bench->arena, past);
    TRY(dw_session_generate(session, past, prompt, &generate, &id, &made, NULL));
    for (int i = 0; i < bench->repeat; i++) {
        session->step.profile = steps;
        TRY(engine_decode_again(session, id, past));
    }
    session->step.profile = NULL;
    plan_binding *binding;
    TRY(engine_bind(session, &session->step, &binding));
    json_object_set_new(bench->facts, "decode_kernels", lab_profile_json(plan, steps, bench->repeat, binding->symbols));
    return DW_OK;
}

int64_t lab_step_room(const plan *step) {
    const dim_table *dims = step->graph->dims;
    int64_t room = INT64_MAX;
    for (int i = 0; i < dim_symbol_count(dims); i++) {
        int64_t min, max;
        dim_symbol_range(dims, i, &min, &max);
        if (strcmp(dim_symbol_name(dims, i), STEP_SYMBOL_MAX) == 0) room = max;   /* as pass_incremental names it */
    }
    return room;
}

static dw_status time_generation(bench *bench, const dw_model *model, const char *dims, int64_t prefill, int64_t tokens) {
    dw_session *session;
    dw_generate_options generate = {.tokens = tokens};
    int64_t made, *prompt, *ids;
    double *first, *next, *steps;
    const plan *plan = model->step.plan;
    TRY_NEW(steps, &bench->arena, plan->step_count);
    TRY_NEW(prompt, &bench->arena, prefill);
    TRY_NEW(ids, &bench->arena, generate.tokens);
    TRY_NEW(first, &bench->arena, bench->repeat);
    TRY_NEW(next, &bench->arena, bench->repeat);
    TRY(dw_session_create(bench->context, model, &(dw_session_options){.dims = dims, .max_tokens = prefill + generate.tokens}, &session));
    for (int64_t i = 0; i < prefill; i++) prompt[i] = (int64_t)(num_random(1, (uint64_t)i) % 100);
    dw_status status = make_inputs(bench, session, &generate);
    dw_generate_times times = {0};
    for (int i = -1; i < (bench->simulated ? 0 : bench->repeat) && status == DW_OK; i++) {
        status = dw_session_generate(session, prefill, prompt, &generate, ids, &made, &times);
        if (i < 0 || status != DW_OK) continue;
        first[i] = times.prefill_s;
        next[i] = made > 1 ? times.decode_s / (double)(made - 1) : 0;
    }
    if (status == DW_OK) {
        json_object_set_new(bench->facts, "prefill_tokens", json_integer(prefill));
        json_object_set_new(bench->facts, "decode_tokens", json_integer(made));
        json_object_set_new(bench->facts, "cached", json_boolean(times.cached));
    }
    if (status == DW_OK && !bench->simulated) {
        json_object_set_new(bench->facts, "prefill", times_json(first, bench->repeat));
        json_object_set_new(bench->facts, "decode", times_json(next, bench->repeat));
        status = profile_decode(bench, session, &generate, prefill + generate.tokens - 1, steps);
    }
    dw_session_destroy(session);
    return status;
}

/* At the sizes that were asked for; else at ones that the model takes. Where its tables end is known, or shows in a run that fails. */
static dw_status bench_generation(bench *bench, const dw_model *model, const char *dims) {
    const dw_bench_options *options = bench->options;
    int64_t prefill = options->prefill > 0 ? options->prefill : bench->simulated ? 8 : 128, tokens = options->tokens > 0 ? options->tokens : bench->simulated ? 4 : 64, room = lab_step_room(model->step.plan);
    if (options->prefill == 0 && prefill > room / 2) prefill = room > 1 ? room / 2 : 1;
    if (options->tokens == 0 && tokens > room - prefill) tokens = room - prefill;
    dw_status status = time_generation(bench, model, dims, prefill, tokens);
    while (status == DW_INVALID && options->prefill == 0 && options->tokens == 0 && prefill > 8) {
        prefill /= 2;
        tokens /= 2;
        status = time_generation(bench, model, dims, prefill, tokens);
    }
    return status;
}

static double reference_share(const plan *plan) {
    double all = 0, reference = 0;
    for (int i = plan->load_count; i < plan->step_count; i++) {
        const plan_step *step = &plan->steps[i];
        op_work work;
        if (!(op_get(step->node->op)->traits & OP_TRAIT_CONTRACTION) || ir_work(plan->graph, step->node, plan->typical, &work) != DW_OK) continue;
        all += work.flops;
        if (step->row->reference) reference += work.flops;
    }
    return all > 0 ? reference / all : 0;
}

/* Of a file, or of a graph when that is not NULL. */
static dw_status bench_model(bench *bench, const char *file, dw_graph *graph, const dw_model_options *options) {
    dw_model *model;
    dw_model_options asked = *options;
    asked.flags |= DW_MODEL_GENERATE;
    double start = base_now();
    TRY(graph != NULL ? dw_model_create(bench->context, graph, &asked, &model) : dw_model_open(bench->context, file, &asked, &model));
    json_object_set_new(bench->facts, "file", json_string(model->file));
    json_object_set_new(bench->facts, "device", json_string(model->chip.name));
    bench->simulated = device_is_simulated(model->device);
    json_object_set_new(bench->facts, "simulated", json_boolean(bench->simulated));
    json_object_set_new(bench->facts, "threads", json_integer(dw_context_threads(bench->context)));
    json_object_set_new(bench->facts, "precision", json_string(model->precision));
    if (!bench->simulated) json_object_set_new(bench->facts, "load_seconds", json_real(base_now() - start));
    json_object_set_new(bench->facts, "weight_bytes", json_integer((json_int_t)dw_model_weight_bytes(model)));
    json_object_set_new(bench->facts, "reference_flops_share", json_real(reference_share(model->full.plan)));
    dw_status status = bench_run(bench, model, options->dims);
    if (status == DW_OK && model->step.plan != NULL) status = bench_generation(bench, model, options->dims);
    dw_model_destroy(model);
    return status;
}

static double seconds_of(const json_t *facts, const char *key, const char *which) {
    return json_real_value(json_object_get(json_object_get(facts, key), which));
}

static void print_simulated(text *out, const json_t *facts) {
    text_printf(out, "  simulated: functional only, there are no times\n  weights %.2f MB; %.1f %% of FLOPs on reference kernels\n  a whole run: done\n",
                (double)json_integer_value(json_object_get(facts, "weight_bytes")) / 1e6, 100 * json_real_value(json_object_get(facts, "reference_flops_share")));
    if (json_object_get(facts, "prefill_tokens") != NULL)
        text_printf(out, "  a prompt of %lld tokens and %lld tokens behind it: done\n", (long long)json_integer_value(json_object_get(facts, "prefill_tokens")),
                    (long long)json_integer_value(json_object_get(facts, "decode_tokens")));
}

static void print_times(text *out, const json_t *facts) {
    text_printf(out, "%s on %s, %d threads, precision %s\n", json_string_value(json_object_get(facts, "file")),
                json_string_value(json_object_get(facts, "device")), (int)json_integer_value(json_object_get(facts, "threads")),
                json_string_value(json_object_get(facts, "precision")));
    if (json_is_true(json_object_get(facts, "simulated"))) {
        print_simulated(out, facts);
        return;
    }
    text_printf(out, "  capture, compile and load %.1f ms; weights %.2f MB; %.1f %% of FLOPs on reference kernels\n",
                json_real_value(json_object_get(facts, "load_seconds")) * 1e3,
                (double)json_integer_value(json_object_get(facts, "weight_bytes")) / 1e6,
                100 * json_real_value(json_object_get(facts, "reference_flops_share")));
    text_printf(out, "  %-28s %12s %12s\n", "", "median ms", "least ms");
    text_printf(out, "  %-28s %12.3f %12.3f\n", "whole run", seconds_of(facts, "run", "seconds") * 1e3, seconds_of(facts, "run", "min") * 1e3);
    lab_profile_print(out, json_object_get(facts, "run_kernels"));
    if (json_object_get(facts, "prefill") == NULL) return;
    char name[64];
    double prefill = seconds_of(facts, "prefill", "seconds"), decode = seconds_of(facts, "decode", "seconds");
    int64_t tokens = json_integer_value(json_object_get(facts, "prefill_tokens"));
    snprintf(name, sizeof name, "prefill of %" PRId64 " tokens", tokens);
    text_printf(out, "  %-28s %12.3f %12.3f   %.0f tokens/s\n", name, prefill * 1e3, seconds_of(facts, "prefill", "min") * 1e3,
                (double)tokens / prefill);
    text_printf(out, "  %-28s %12.3f %12.3f   %.0f tokens/s\n", "decode, per token", decode * 1e3, seconds_of(facts, "decode", "min") * 1e3,
                1 / decode);
    lab_profile_print(out, json_object_get(facts, "decode_kernels"));
}

static dw_status run_bench(dw_context *context, const char *file, dw_graph *graph, const dw_model_options *model_options, const dw_bench_options *options,
                           int json, dw_sink sink, void *user) {
    static const dw_model_options no_model_options = {0};
    static const dw_bench_options no_options = {0};
    text out;
    bench bench = {.context = context, .options = options ? options : &no_options, .facts = json_object()};
    bench.repeat = bench.options->repeat > 0 ? bench.options->repeat : 5;
    arena_init(&bench.arena, context);
    text_init(&out, context);
    dw_status status = bench_model(&bench, file, graph, model_options ? model_options : &no_model_options);
    if (status == DW_OK && json) {
        char *words = json_dumps(bench.facts, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        text_add(&out, words ? words : "");
        text_add(&out, "\n");
        free(words);
    } else if (status == DW_OK) {
        print_times(&out, bench.facts);
    }
    if (status == DW_OK) status = text_status(&out);
    if (status == DW_OK) sink(user, text_string(&out), out.length);
    json_decref(bench.facts);
    text_free(&out);
    arena_free(&bench.arena);
    return status;
}

dw_status dw_bench(dw_context *context, const char *file, const dw_model_options *model_options, const dw_bench_options *options, int json,
                   dw_sink sink, void *user) {
    if (lab_is_op_line(file)) return lab_bench_op(context, file, model_options ? model_options->device : NULL, json, sink, user);
    return run_bench(context, file, NULL, model_options, options, json, sink, user);
}

dw_status dw_bench_graph(dw_context *context, dw_graph *graph, const dw_model_options *model_options, const dw_bench_options *options, int json,
                         dw_sink sink, void *user) {
    return run_bench(context, NULL, graph, model_options, options, json, sink, user);
}
