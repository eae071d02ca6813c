/* The report: runs of a model, measured step by step on its device. On a GPU its graph tells the times (cuda_times.c); on the CPU the host's clock does, between steps. What is reported of a run is in
 * report_facts.c. */
#include "lab/report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"

enum { MOST_TOKENS = 9 };             /* that are generated behind a prompt: the first is the prompt's, the others a step each */

typedef struct reporter {
    dw_context *context;
    const dw_model *model;
    const dw_report_options *options;
    int repeat;
    bool simulated;
    chip_caps chip;               /* with measured rates */
    arena arena;
    json_t *facts;
} reporter;

/* Something that is run over and over. */
typedef struct subject {
    dw_session *session;
    engine_runner *runner;
    int input_count, output_count;
    const dw_named_tensor *inputs;/* where runs read them: a whole run's are in the device's memory, where it has its own */
    dw_named_tensor *outputs;
    void **elements;              /* of the inputs, in the host's memory, by the graph's */
} subject;

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts. */
static double median(double *seconds, int count) {
    qsort(seconds, (size_t)count, sizeof *seconds, compare);
    return seconds[count / 2];
}

/* ---- times of one run ---- */

static dw_status run_once(const subject *s) {
    plan_binding *made;
    if (s->runner == &s->session->step) return engine_run_again(s->session);
    if (s->runner == &s->session->prelude) return engine_prelude_run(s->session, s->input_count, s->inputs, &made);
    if (s->session->device == NULL) return dw_session_run(s->session, s->input_count, s->inputs, s->output_count, s->outputs);
    TRY(dw_session_enqueue(s->session, NULL, s->input_count, s->inputs, s->output_count, s->outputs));
    return dw_session_synchronize(s->session);
}

/* What the runs took: all, and what of it was no step; of the CPU's steps by[step][run], and profile, where a run adds its own up. */
typedef struct clocked { double *walls, *rests, *by, *profile; size_t steps, before; } clocked;

static dw_status make_clocked(const reporter *r, arena *arena, const plan *plan, clocked *c) {
    *c = (clocked){.before = (size_t)plan->load_count, .steps = (size_t)(plan->step_count - plan->load_count)};
    TRY_NEW(c->walls, arena, r->repeat);
    TRY_NEW(c->rests, arena, r->repeat);
    TRY_NEW(c->by, arena, c->steps * (size_t)r->repeat + 1);
    TRY_NEW(c->profile, arena, plan->step_count + 1);
    return DW_OK;
}

/* run below 0: it does not count. */
static dw_status clock_run(const reporter *r, const subject *s, clocked *c, int run) {
    double all = 0;
    memset(c->profile, 0, (c->before + c->steps) * sizeof *c->profile);
    s->runner->profile = s->session->device == NULL ? c->profile : NULL;
    const double start = base_now();
    dw_status status = run_once(s);
    const double wall = base_now() - start;
    s->runner->profile = NULL;
    for (size_t i = 0; i < c->steps && run >= 0; i++) all += c->by[i * (size_t)r->repeat + (size_t)run] = c->profile[c->before + i];
    if (run >= 0) c->walls[run] = wall;
    if (run >= 0) c->rests[run] = wall - all;
    return status;
}

/* On the CPU steps are what the host's clock says between them; on a GPU its graph is asked. */
static dw_status time_steps(const reporter *r, const subject *s, clocked *c, report_times *times) {
    device_times *t = &times->device;
    plan_binding *binding;
    times->wall = median(c->walls, r->repeat);
    times->host = median(c->rests, r->repeat);
    t->step_count = c->steps;
    for (size_t i = 0; i < c->steps; i++) t->whole += t->steps[i] = median(&c->by[i * (size_t)r->repeat], r->repeat);
    t->apart = t->whole;
    if (s->session->device == NULL) return DW_OK;
    TRY(engine_bind(s->session, s->runner, &binding));
    TRY(engine_time_on_device(s->session, s->runner, binding, r->repeat, t));
    times->host = times->wall - t->whole;
    return DW_OK;
}

static dw_status time_runs(const reporter *r, const subject *s, report_times *times) {
    arena arena;
    clocked c;
    arena_init(&arena, r->context);
    dw_status status = make_clocked(r, &arena, s->runner->program->plan, &c);
    for (int run = -1; run < r->repeat && status == DW_OK; run++) status = clock_run(r, s, &c, run);
    if (status == DW_OK) status = time_steps(r, s, &c, times);
    times->measured = true;
    arena_free(&arena);
    return status;
}

static dw_status add_run(reporter *r, const subject *s, json_t *facts) {
    const plan *plan = s->runner->program->plan;
    report_times times = {0};
    TRY_NEW(times.device.steps, &r->arena, plan->step_count);
    if (!r->simulated) TRY(time_runs(r, s, &times));
    return report_add_run(facts, &(report_run){plan, s->runner->symbols, s->elements != NULL ? s->elements : s->runner->inputs, &r->chip}, &times);
}

static json_t *new_run(reporter *r, const char *name) {
    json_t *facts = json_pack("{s:s}", "name", name);
    json_array_append_new(json_object_get(r->facts, "runs"), facts);
    return facts;
}

/* ---- a whole run ---- */

/* The sizes of the run, and its inputs' elements, which graph the inputs are of aside. */
static dw_status find_sizes(reporter *r, subject *s) {
    const dw_tensor *matched[ENGINE_MAX_INPUTS];
    const plan *plan = s->runner->program->plan;
    TRY(engine_match(r->context, plan, s->input_count, s->inputs, matched, s->runner->symbols));
    TRY_NEW(s->elements, &r->arena, plan->graph->input_count + 1);
    for (size_t i = 0; i < plan->graph->input_count; i++) s->elements[i] = matched[i]->data;
    return DW_OK;
}

static void add_sizes(const plan *plan, const int64_t *symbols, json_t *facts) {
    json_t *sizes = json_object();
    for (int i = 0; i < dim_symbol_count(plan->graph->dims); i++) json_object_set_new(sizes, dim_symbol_name(plan->graph->dims, i), json_integer(symbols[i]));
    json_object_set_new(facts, "sizes", sizes);
}

/* Memory of a device for tensors that are here, in the order in which it was taken. */
typedef struct there { device *device; void **memory; size_t *bytes; size_t count; } there;

static dw_status place_there(reporter *r, there *t, const dw_named_tensor *from, int count, bool written, dw_named_tensor **placed) {
    TRY_NEW(*placed, &r->arena, count + 1);
    for (int i = 0; i < count; i++) {
        uint64_t bytes;
        (*placed)[i] = from[i];
        TRY(dw_tensor_bytes(r->context, &from[i].tensor, &bytes));
        TRY(t->device->calls->alloc(t->device, (size_t)bytes + 1, &t->memory[t->count]));
        t->bytes[t->count] = (size_t)bytes + 1;
        (*placed)[i].tensor.data = t->memory[t->count++];
        if (written) TRY(t->device->calls->write(t->device, (*placed)[i].tensor.data, from[i].tensor.data, (size_t)bytes));
    }
    return t->device->calls->synchronize(t->device);
}

static dw_status move_there(reporter *r, subject *s, there *t) {
    dw_named_tensor *inputs;
    const size_t most = (size_t)(s->input_count + s->output_count);
    t->device = s->session->device;
    TRY_NEW(t->memory, &r->arena, most + 1);
    TRY_NEW(t->bytes, &r->arena, most + 1);
    TRY(place_there(r, t, s->inputs, s->input_count, true, &inputs));
    s->inputs = inputs;
    return place_there(r, t, s->outputs, s->output_count, false, &s->outputs);
}

static dw_status report_session(reporter *r, subject *s) {
    json_t *facts = new_run(r, "a whole run");
    there there = {0};
    TRY(find_sizes(r, s));
    add_sizes(s->runner->program->plan, s->runner->symbols, facts);
    dw_status status = s->session->device != NULL && !r->simulated ? move_there(r, s, &there) : DW_OK;
    if (status == DW_OK) status = add_run(r, s, facts);
    for (size_t i = 0; i < there.count; i++) there.device->calls->release(there.device, there.memory[i], there.bytes[i]);
    return status == DW_OK ? report_finish_run(r->context, facts) : status;
}

static dw_status report_whole(reporter *r, int input_count, const dw_named_tensor *inputs) {
    const plan *plan = r->model->full.plan;
    const ir_graph *graph = plan->graph;
    subject s = {.input_count = input_count, .inputs = inputs, .output_count = (int)graph->output_count};
    const bool on_device = r->model->device != NULL && !r->simulated;
    int64_t *symbols;
    char sizes[1024] = "";
    dw_named_tensor *made;
    TRY_NEW(symbols, &r->arena, dim_symbol_count(graph->dims) + 1);
    memcpy(symbols, plan->typical, (size_t)dim_symbol_count(graph->dims) * sizeof *symbols);
    if (input_count > 0) TRY(dw_model_sizes(r->model, input_count, inputs, sizes, sizeof sizes));
    TRY(plan_read_dims(r->context, graph, input_count > 0 ? sizes : r->options->dims, symbols));
    if (input_count == 0) {
        TRY_NEW(made, &r->arena, graph->input_count);
        TRY(lab_random_inputs(&r->arena, plan, symbols, made));
        s.input_count = (int)graph->input_count;
        s.inputs = made;
    }
    TRY_NEW(s.outputs, &r->arena, graph->output_count);
    TRY(lab_new_outputs(&r->arena, plan, symbols, s.outputs));
    const dw_session_options options = {.dims = input_count > 0 ? sizes : r->options->dims, .flags = on_device ? DW_SESSION_DEVICE_MEMORY : 0};
    TRY(dw_session_create(r->context, r->model, &options, &s.session));
    s.runner = &s.session->full;
    dw_status status = report_session(r, &s);
    dw_session_destroy(s.session);
    return status;
}

/* ---- generation ---- */

typedef struct sizes { int64_t prefill, keys, texts, tokens; } sizes;

/* Random, for what an encoder-decoder takes besides the prompt. */
static dw_status make_inputs(reporter *r, const dw_session *session, dw_generate_options *options) {
    dw_named_tensor *inputs;
    if (session->prelude.program == NULL) return DW_OK;
    const plan *plan = session->prelude.program->plan;
    TRY_NEW(inputs, &r->arena, plan->graph->input_count);
    TRY(lab_random_inputs(&r->arena, plan, session->prelude_most, inputs));
    options->inputs = inputs;
    options->input_count = (int)plan->graph->input_count;
    return DW_OK;
}

/* Texts of so many random ids, continued by some; which leaves the caches full. */
static dw_status generate(reporter *r, dw_session *session, int64_t count, int64_t texts, int64_t tokens, dw_generate_times *times) {
    dw_generate_options options = {.tokens = tokens};
    dw_prompt *prompts;
    int64_t *ids, *made;
    TRY(make_inputs(r, session, &options));
    TRY_NEW(prompts, &r->arena, texts);
    TRY_NEW(ids, &r->arena, count * texts);
    TRY_NEW(made, &r->arena, tokens * texts);
    for (int64_t i = 0; i < count * texts; i++) ids[i] = (int64_t)(num_random(1, (uint64_t)i) % 100);
    for (int64_t i = 0; i < texts; i++) prompts[i] = (dw_prompt){.count = count, .ids = ids + i * count, .made_ids = made + i * tokens};
    return dw_session_generate_batch(session, (int)texts, prompts, &options, times);
}

static dw_status report_tokens(reporter *r, dw_session *session, const char *name, int64_t from, int64_t to, double generate_s) {
    const subject s = {.session = session, .runner = &session->step};
    json_t *facts = new_run(r, name);
    int runs = 0;
    for (; engine_prepare_again(session, from, to, runs); runs++) {
        if (runs == 0) add_sizes(s.runner->program->plan, s.runner->symbols, facts);
        TRY(add_run(r, &s, facts));
    }
    json_object_set_new(facts, "runs", json_integer(runs));
    if (!r->simulated) json_object_set_new(facts, "generate_seconds", json_real(generate_s));
    return report_finish_run(r->context, facts);
}

/* What an encoder-decoder computes before the first token. */
static dw_status report_prelude(reporter *r, dw_session *session) {
    subject s = {.session = session, .runner = &session->prelude};
    dw_generate_options options = {0};
    if (session->prelude.program == NULL) return DW_OK;
    json_t *facts = new_run(r, "once for each text, before its first token");
    TRY(make_inputs(r, session, &options));
    s.inputs = options.inputs;
    s.input_count = options.input_count;
    TRY(find_sizes(r, &s));
    add_sizes(s.runner->program->plan, s.runner->symbols, facts);
    TRY(add_run(r, &s, facts));
    return report_finish_run(r->context, facts);
}

static const char *texts_word(int64_t texts) { return texts == 1 ? "text" : "texts"; }

static dw_status report_prefill(reporter *r, dw_session *session, const sizes *z) {
    dw_generate_times times = {0};
    char name[96];
    for (int i = 0; i < 2 && !r->simulated; i++) TRY(generate(r, session, z->prefill, z->texts, 1, &times));   /* the first makes device graphs, too */
    snprintf(name, sizeof name, "prefill of %" PRId64 " tokens, %" PRId64 " %s", z->prefill, z->texts, texts_word(z->texts));
    return report_tokens(r, session, name, 0, z->prefill, times.prefill_s);
}

static dw_status report_step(reporter *r, dw_session *session, const sizes *z) {
    dw_generate_times times = {0};
    char name[96];
    for (int i = 0; i < 2 && !r->simulated; i++) TRY(generate(r, session, z->keys, z->texts, z->tokens, &times));
    snprintf(name, sizeof name, "a cached step behind %" PRId64 " tokens, %" PRId64 " %s", z->keys, z->texts, texts_word(z->texts));
    return report_tokens(r, session, name, z->keys, z->keys + 1, times.decode_s / (double)(z->tokens - 1));
}

static dw_status report_sizes(reporter *r, const sizes *z) {
    const int64_t most = (z->keys > z->prefill ? z->keys : z->prefill) + z->tokens;
    dw_session *session;
    TRY(dw_session_create(r->context, r->model, &(dw_session_options){.dims = r->options->dims, .max_tokens = most, .rows = z->texts}, &session));
    dw_status status = report_prelude(r, session);
    if (status == DW_OK && z->prefill > 0) status = report_prefill(r, session, z);
    if (status == DW_OK && z->keys > 0) status = report_step(r, session, z);
    dw_session_destroy(session);
    return status;
}

/* At the sizes that were asked for; else at ones that the model takes. Where its tables end is known, or shows in a run that fails. */
static dw_status report_generation(reporter *r) {
    const dw_report_options *o = r->options;
    const bool usual = o->prefill <= 0 && o->keys <= 0;
    json_t *runs = json_object_get(r->facts, "runs");
    const size_t before = json_array_size(runs);
    if (o->prefill < 0 && o->keys < 0) return DW_OK;
    if (r->model->step.plan == NULL && usual) return DW_OK;
    if (r->model->step.plan == NULL) return base_fail(r->context, DW_UNSUPPORTED, "a report of generation: %s", r->model->no_step);
    const int64_t room = lab_step_room(r->model->step.plan), tokens = room < 2 * MOST_TOKENS ? 2 : MOST_TOKENS;
    int64_t length = r->simulated ? 8 : 128;
    if (length > room - tokens) length = room > tokens ? room - tokens : 1;
    for (;; length /= 2) {
        sizes z = {.prefill = o->prefill != 0 ? o->prefill : length, .texts = o->texts > 0 ? o->texts : 1, .tokens = tokens};
        z.keys = o->keys != 0 ? o->keys : z.prefill > 0 ? z.prefill : length;
        dw_status status = report_sizes(r, &z);
        if (status != DW_INVALID || !usual || length <= 8) return status;
        while (json_array_size(runs) > before) json_array_remove(runs, json_array_size(runs) - 1);
    }
}

/* ---- the chip ---- */

static json_t *rates_json(const chip_caps *chip) {
    json_t *rates = json_object();
    for (int i = 0; i < CHIP_RATE_COUNT; i++) {
        const chip_rates *rate = &chip->rates[i];
        if (!(rate->expected > 0) || chip_rate_is_of_unit((chip_rate)i)) continue;
        json_object_set_new(rates, chip_rate_name((chip_rate)i), json_pack("{s:f, s:b}", "rate", rate->expected, "measured", rate->measured > 0));
    }
    return rates;
}

static dw_status find_rates(reporter *r) {
    const dw_model *model = r->model;
    r->chip = model->chip;
    if (model->device == NULL) TRY(report_measure_cpu(r->context, model->device_name, &r->chip));
    json_object_set_new(r->facts, "rates", rates_json(&r->chip));
    if (model->device == NULL || r->simulated) return DW_OK;
    double launch;
    TRY(report_measure_launch(r->context, model->device_name, &launch));
    json_object_set_new(r->facts, "launch_seconds", json_real(launch));
    return DW_OK;
}

static dw_status report_all(reporter *r, int input_count, const dw_named_tensor *inputs) {
    if (r->model->flags & DW_MODEL_PLAN_ONLY) return base_fail(r->context, DW_INVALID, "the model was opened for planning only: open it without DW_MODEL_PLAN_ONLY to measure it");
    TRY(find_rates(r));
    if (r->model->full.plan != NULL && !(r->options->flags & DW_REPORT_NO_WHOLE)) TRY(report_whole(r, input_count, inputs));
    return report_generation(r);
}

/* ---- public ---- */

static dw_status emit(const reporter *r, dw_sink sink, void *user) {
    char *words = json_dumps(r->facts, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    if (words == NULL) return base_fail(r->context, DW_NO_MEMORY, "the report does not fit in memory");
    sink(user, words, strlen(words));
    sink(user, "\n", 1);
    free(words);
    return DW_OK;
}

dw_status dw_report(dw_context *context, const dw_model *model, const dw_report_options *options, int input_count, const dw_named_tensor *inputs, dw_sink sink, void *user) {
    static const dw_report_options none = {0};
    const size_t failed = base_failed_allocations(context);
    reporter r = {.context = context, .model = model, .options = options != NULL ? options : &none, .simulated = device_is_simulated(model->device)};
    r.repeat = r.options->repeat > 0 ? r.options->repeat : 5;
    r.facts = json_pack("{s:s, s:s, s:s, s:b, s:i, s:i, s:i, s:[]}", "file", model->file ? model->file : "", "device", model->chip.name, "precision", model->precision, "simulated", r.simulated, "arch", model->chip.arch, "threads",
                        dw_context_threads(context), "repeat", r.repeat, "runs");
    arena_init(&r.arena, context);
    dw_status status = report_all(&r, input_count, inputs);
    if (status == DW_OK && base_failed_allocations(context) != failed) status = base_fail(context, DW_NO_MEMORY, "the report does not fit in memory");
    if (status == DW_OK) status = emit(&r, sink, user);
    arena_free(&r.arena);
    json_decref(r.facts);
    return status;
}

dw_status dw_report_print(dw_context *context, const char *facts, size_t length, const dw_report_words *words, dw_sink sink, void *user) {
    static const dw_report_words none = {0};
    json_error_t error;
    text out;
    json_t *read = json_loadb(facts, length, 0, &error);
    if (!json_is_object(read)) {
        json_decref(read);
        return base_fail(context, DW_SYNTAX, "the facts of a report are no JSON object: %s", read == NULL ? error.text : "they are another value");
    }
    text_init(&out, context);
    report_print(&out, read, words != NULL ? words : &none);
    dw_status status = text_status(&out);
    if (status == DW_OK) sink(user, text_string(&out), out.length);
    text_free(&out);
    json_decref(read);
    return status;
}
