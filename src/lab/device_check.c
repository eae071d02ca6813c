/* One precision on two machines: a GPU beside the CPU. Each kernel on the CPU's operands, outputs end to end beside what a perturbation does to them, perplexity and
 * greedy text, of one call and of a service; and whether all of it is what sums in another order explain. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "deepwell/serve.h"
#include "lab/stepwise.h"

enum { PROMPT = 16, GREEDY = 64, DRAWN = 240, SIMULATED_GREEDY = 4, SIMULATED_DRAWN = 16, PERTURBATIONS = 8, TEXTS = 32, DRAWN_AT_A_TIME = 2 };   /* a simulated GPU takes seconds for a token */
static const double OUTPUT_BOUND = 1e-5, PERTURBED_TIMES = 1.5, MARGIN_TIMES = 10;   /* sums in another order differ by a few times 1e-7 */
/* Of the perplexity; texts are added until the estimate's standard error is a fourth of it, or there are TEXTS. Where it is more, three of them are the bound. */
static const double PERPLEXITY_BOUND = 0.002, PERPLEXITY_ERROR = 0.0005, PERPLEXITY_ERRORS = 3;

/* One of the two. */
typedef struct side {
    dw_model *model;
    dw_session *session;
    dw_named_tensor *outputs;
    int64_t greedy[PROMPT + GREEDY], made;
} side;

/* The greedy text once more, of a service on the GPU. */
typedef struct served {
    int64_t ids[GREEDY], made, pages;
    const char *none;                 /* why there is no such text; NULL: there is */
} served;

static void close_session(side *side) {
    dw_session_destroy(side->session);
    side->session = NULL;
}

/* What a perturbation does, the most of all seeds. */
typedef struct moved {
    double *outputs;                  /* by output: the relative difference */
    double perplexity;                /* the ratio, less 1 */
    double logits;                    /* the root mean square of what the logits of the text move by */
} moved;

typedef struct device_check {
    dw_context *context;
    arena arena;
    const char *file;
    const dw_model_options *options;
    served served;
    side cpu, gpu, fp32;              /* the last one on the CPU, to draw texts by; not opened where the precision is fp32, or no texts are drawn */
    stepwise steps;
    bool has_steps;
    int input_count;
    const dw_named_tensor *inputs;
    const char *no_text;              /* why there is no text; NULL: there is */
    int64_t text[PROMPT + DRAWN];     /* drawn by the CPU; the inputs are made of it */
    int64_t positions, vocabulary, drawn;
    moved by_input, by_sums;
    struct { int texts; int64_t tokens; double cpu, differences, squares; } likelihood;   /* over texts: nats of the CPU; of each text's mean, there less here */
    json_t *facts;
    bool holds;
} device_check;

/* ---- a text ---- */

static dw_status make_session(device_check *check, side *side, const char *dims, int64_t tokens) {
    return dw_session_create(check->context, side->model, &(dw_session_options){.dims = dims, .max_tokens = tokens}, &side->session);
}

static const char *reason_of(device_check *check) {
    const char *reason = arena_text(&check->arena, dw_context_error(check->context));
    return reason != NULL ? reason : "memory ran out";
}

/* Continues the PROMPT ids at ids, in place. */
static dw_status generate(side *side, int64_t tokens, double temperature, int64_t *ids, int64_t *made) {
    int64_t prompt[PROMPT];
    memcpy(prompt, ids, sizeof prompt);
    return dw_session_generate(side->session, PROMPT, prompt, &(dw_generate_options){.tokens = tokens, .temperature = temperature, .seed = 1}, ids + PROMPT, made, NULL);
}

static int64_t vocabulary_of(const side *side) {
    const op_type *type = &side->session->full.program->plan->graph->outputs[0].value->type;
    int64_t size = 0;
    if (type->rank > 0 && !dim_is_constant(type->dims[type->rank - 1], &size)) size = 0;
    return size;
}

static dw_status set_text(device_check *check, int64_t count, const int64_t *ids) {
    dw_named_tensor *inputs;
    const ir_graph *graph = check->cpu.session->full.program->plan->graph;
    TRY_NEW(inputs, &check->arena, graph->input_count);
    TRY(engine_text_inputs(check->cpu.session, &check->arena, count, ids, inputs));
    check->inputs = inputs;
    check->input_count = (int)graph->input_count;
    check->positions = count;
    return DW_OK;
}

/* What pages take that hold two texts of so many tokens, on a model with a step whose caches are pages: a service that nobody limits takes nearly all that the GPU has left. */
static dw_status two_texts_bytes(device_check *check, int64_t tokens, uint64_t *bytes) {
    const ir_graph *graph = check->gpu.model->paged.plan->graph;
    const int count = dim_symbol_count(graph->dims), slots = dim_symbol_find(graph->dims, STEP_SYMBOL_SLOTS);
    int64_t *sizes;
    TRY_NEW(sizes, &check->arena, count);
    for (int i = 0; i < count; i++) sizes[i] = i == slots ? ENGINE_PAGE : 1;
    *bytes = 0;
    for (size_t i = 0; i < graph->state_count; i++) {
        dw_tensor page;
        TRY(op_tensor_bind(check->context, &graph->states[i]->type, sizes, NULL, &page));
        *bytes += op_tensor_bytes(&page) * 2 * (uint64_t)base_ceil_div(tokens, ENGINE_PAGE);
    }
    return DW_OK;
}

static bool is_refusal(dw_status status) { return status == DW_UNSUPPORTED || status == DW_LIMIT || status == DW_NO_MEMORY; }

/* A service with room for two texts of so many tokens; *service NULL: there is none, and check->served says why. */
static dw_status make_service(device_check *check, int64_t tokens, dw_service **service) {
    dw_model *model = check->gpu.model;
    dw_service_options options = {.rows = 2, .run_tokens = 2 * PROMPT, .context = tokens, .page_tokens = ENGINE_PAGE};
    dw_service_facts facts;
    *service = NULL;
    dw_status status = engine_add_pages(model);
    if (status == DW_OK && model->paged.plan != NULL) status = two_texts_bytes(check, tokens, &options.cache_bytes);
    if (status == DW_OK) status = dw_service_create(check->context, model, &options, service);
    if (is_refusal(status)) return check->served.none = reason_of(check), DW_OK;
    if (status != DW_OK) return status;
    dw_service_measure(*service, &facts);
    check->served.pages = facts.pages;
    if (facts.alone == NULL) return DW_OK;
    check->served.none = arena_text(&check->arena, facts.alone);
    dw_service_destroy(*service);
    *service = NULL;
    return check->served.none != NULL ? DW_OK : base_fail(check->context, DW_NO_MEMORY, "a check needs memory");
}

static dw_status take_served(device_check *check, dw_service *service, uint64_t request) {
    dw_event events[2 * (GREEDY + 1)];
    served *served = &check->served;
    for (int busy = 1; busy;) {
        TRY(dw_service_step(check->context, service, &busy));
        const int count = dw_service_poll(service, events, COUNT_OF(events));
        for (int i = 0; i < count; i++) {
            if (events[i].end == DW_END_FAULT) return base_fail(check->context, DW_INTERNAL, "a text of a service: %s", events[i].message);
            if (events[i].request == request && events[i].id >= 0) served->ids[served->made++] = events[i].id;
        }
    }
    return DW_OK;
}

/* The greedy text once more, by the step whose caches are pages, with the prompt backwards beside it. */
static dw_status serve_greedy(device_check *check, int64_t greedy) {
    dw_service *service;
    uint64_t requests[2];
    int64_t ids[2][PROMPT];
    for (int i = 0; i < PROMPT; i++) ids[0][i] = ids[1][PROMPT - 1 - i] = check->gpu.greedy[i];
    check->served = (served){0};
    TRY(make_service(check, PROMPT + greedy, &service));
    if (service == NULL) return DW_OK;
    dw_status status = DW_OK;
    for (int i = 0; i < 2 && status == DW_OK; i++)
        status = dw_service_submit(check->context, service, &(dw_request){.count = PROMPT, .ids = ids[i], .tokens = greedy}, &requests[i]);
    if (status == DW_OK) status = take_served(check, service, requests[0]);
    dw_service_destroy(service);
    return status;
}

/* Greedy text on both, and a drawn one, which becomes the inputs. */
static dw_status run_text(device_check *check, int64_t drawn, int64_t greedy) {
    int64_t made;
    const int64_t room = PROMPT + (drawn > greedy ? drawn : greedy);
    close_session(&check->cpu);
    close_session(&check->gpu);
    TRY(make_session(check, &check->cpu, NULL, room));
    TRY(make_session(check, &check->gpu, NULL, room));
    check->vocabulary = vocabulary_of(&check->cpu);
    check->drawn = drawn;
    if (check->vocabulary < 1) return base_fail(check->context, DW_UNSUPPORTED, "its first output has no vocabulary");
    for (int i = 0; i < PROMPT; i++)
        check->text[i] = check->cpu.greedy[i] = check->gpu.greedy[i] = (int64_t)(num_random(17, (uint64_t)i) % (uint64_t)check->vocabulary);
    TRY(set_text(check, PROMPT, check->text));   /* says now what it could not do later */
    TRY(generate(&check->cpu, greedy, 0, check->cpu.greedy, &check->cpu.made));
    TRY(generate(&check->gpu, greedy, 0, check->gpu.greedy, &check->gpu.made));
    TRY(serve_greedy(check, greedy));
    TRY(generate(&check->cpu, drawn, 1, check->text, &made));
    return set_text(check, PROMPT + made, check->text);
}

/* ---- whole runs ---- */

static dw_status run_side(device_check *check, side *side) {
    const ir_graph *graph = side->model->full.plan->graph;
    char sizes[512];
    close_session(side);
    TRY(dw_model_sizes(side->model, check->input_count, check->inputs, sizes, sizeof sizes));
    TRY(make_session(check, side, sizes, 0));
    TRY_NEW(side->outputs, &check->arena, graph->output_count);
    TRY(lab_new_outputs(&check->arena, side->model->full.plan, side->session->full.most, side->outputs));
    return dw_session_run(side->session, check->input_count, check->inputs, (int)graph->output_count, side->outputs);
}

static dw_status values_of(arena *arena, const dw_tensor *tensor, float **values) {
    int64_t index[DW_MAX_RANK] = {0};
    TRY_NEW(*values, arena, op_tensor_count(tensor));
    for (int64_t i = 0, count = op_tensor_count(tensor); i < count; i++) {
        (*values)[i] = (float)op_tensor_load(tensor, index);
        op_tensor_next(tensor, index);
    }
    return DW_OK;
}

static double relative(const float *x, const float *reference, int64_t count) {
    num_error all;
    num_compare(x, reference, count, &all);
    return all.relative;
}

/* Mean negative log-likelihood of the text. */
static double nats_of(const device_check *check, const float *logits) {
    double nats = 0;
    for (int64_t p = 0; p + 1 < check->positions; p++) {
        const float *row = logits + p * check->vocabulary;
        double largest = -INFINITY, sum = 0;
        for (int64_t i = 0; i < check->vocabulary; i++) largest = row[i] > largest ? row[i] : largest;
        for (int64_t i = 0; i < check->vocabulary; i++) sum += exp((double)row[i] - largest);
        nats += largest + log(sum) - (double)row[check->text[p + 1]];
    }
    return check->positions > 1 ? nats / (double)(check->positions - 1) : 0;
}

/* ---- perturbations ---- */

static void note_logits(const device_check *check, moved *moved, const float *logits, const float *reference) {
    const int64_t count = check->positions * check->vocabulary;
    double squares = 0;
    for (int64_t i = 0; i < count; i++) squares += ((double)logits[i] - (double)reference[i]) * ((double)logits[i] - (double)reference[i]);
    const double by = count > 0 ? sqrt(squares / (double)count) : 0;
    if (by > moved->logits) moved->logits = by;
}

static dw_status note_run(device_check *check, moved *moved, float *const *exact) {
    const ir_graph *graph = check->gpu.model->full.plan->graph;
    arena scratch;
    arena_init(&scratch, check->context);
    dw_status status = DW_OK;
    for (size_t i = 0; i < graph->output_count && status == DW_OK; i++) {
        float *values;
        const dw_tensor *output = stepwise_output(&check->steps, i);
        status = values_of(&scratch, output, &values);
        if (status != DW_OK) break;
        const double by = relative(values, exact[i], op_tensor_count(output));
        if (by > moved->outputs[i]) moved->outputs[i] = by;
        if (i > 0 || check->no_text != NULL) continue;
        const double ratio = fabs(exp(nats_of(check, values) - nats_of(check, exact[0])) - 1);
        if (ratio > moved->perplexity) moved->perplexity = ratio;
        note_logits(check, moved, values, exact[0]);
    }
    arena_free(&scratch);
    return status;
}

static dw_status make_moved(device_check *check, moved *moved) {
    *moved = (struct moved){0};
    TRY_NEW(moved->outputs, &check->arena, check->gpu.model->full.plan->graph->output_count);
    return DW_OK;
}

/* The unperturbed run, on the device too where steps have one, and the perturbed ones. */
static dw_status run_perturbed(device_check *check) {
    const ir_graph *graph = check->gpu.model->full.plan->graph;
    float **exact;
    TRY(make_moved(check, &check->by_input));
    TRY(make_moved(check, &check->by_sums));
    TRY_NEW(exact, &check->arena, graph->output_count);
    TRY(stepwise_run(&check->steps, check->input_count, check->inputs, STEPWISE_NOTHING, 0));
    for (size_t i = 0; i < graph->output_count; i++) TRY(values_of(&check->arena, stepwise_output(&check->steps, i), &exact[i]));
    check->steps.device = NULL;
    for (uint64_t seed = 1; seed <= PERTURBATIONS; seed++) {
        TRY(stepwise_run(&check->steps, check->input_count, check->inputs, STEPWISE_INPUT, seed));
        TRY(note_run(check, &check->by_input, exact));
        TRY(stepwise_run(&check->steps, check->input_count, check->inputs, STEPWISE_SUMS, seed));
        TRY(note_run(check, &check->by_sums, exact));
    }
    return DW_OK;
}

static double larger(double a, double b) { return a > b ? a : b; }

/* ---- what was found ---- */

static void conclude(device_check *check, json_t *row, bool holds) {
    json_object_set_new(row, "holds", json_boolean(holds));
    check->holds = check->holds && holds;
}

static json_t *real(double value) { return isfinite(value) ? json_real(value) : json_string(isnan(value) ? "nan" : "infinity"); }

static void add_kernels(device_check *check) {
    json_t *rows = json_array();
    json_object_set_new(check->facts, "kernels", rows);
    for (size_t i = 0; i < check->steps.row_count; i++) {
        const stepwise_row *r = &check->steps.rows[i];
        json_t *row = json_pack("{s:s, s:s, s:i, s:b, s:o, s:f, s:i, s:s}", "kernel", r->kernel, "format", dw_format_name(r->format), "calls", r->calls, "exact", r->exact,
                                "worst", real(r->worst), "bound", r->bound, "node", r->node, "module", r->module ? r->module : "");
        conclude(check, row, r->worst <= r->bound);
        json_array_append_new(rows, row);
    }
}

static dw_status add_outputs(device_check *check) {
    const ir_graph *graph = check->gpu.model->full.plan->graph;
    json_t *rows = json_array();
    json_object_set_new(check->facts, "outputs", rows);
    for (size_t i = 0; i < graph->output_count; i++) {
        float *cpu, *gpu;
        TRY(values_of(&check->arena, &check->cpu.outputs[i].tensor, &cpu));
        TRY(values_of(&check->arena, &check->gpu.outputs[i].tensor, &gpu));
        const double error = relative(gpu, cpu, op_tensor_count(&check->cpu.outputs[i].tensor)), input = check->by_input.outputs[i], sums = check->by_sums.outputs[i];
        json_t *row = json_pack("{s:s, s:o, s:o, s:o}", "output", graph->outputs[i].name, "difference", real(error), "input_perturbed", real(input), "sums_perturbed", real(sums));
        conclude(check, row, error <= OUTPUT_BOUND || error <= PERTURBED_TIMES * larger(input, sums));
        json_array_append_new(rows, row);
    }
    return DW_OK;
}

/* The best token of a row of logits, and how far it is ahead of the second. */
static int64_t best_of(const float *logits, int64_t count, double *margin) {
    int64_t best = 0;
    double second = -INFINITY;
    for (int64_t i = 1; i < count; i++) {
        if (logits[i] > logits[best]) {
            second = logits[best];
            best = i;
        } else if (logits[i] > second) {
            second = logits[i];
        }
    }
    *margin = count > 1 ? (double)logits[best] - second : INFINITY;
    return best;
}

static double moved_by(const device_check *check) { return larger(check->by_input.logits, check->by_sums.logits); }

static dw_status note_likelihood(device_check *check) {
    float *cpu, *gpu;
    arena scratch;
    arena_init(&scratch, check->context);
    dw_status status = values_of(&scratch, &check->cpu.outputs[0].tensor, &cpu);
    if (status == DW_OK) status = values_of(&scratch, &check->gpu.outputs[0].tensor, &gpu);
    if (status == DW_OK) {
        const double here = nats_of(check, cpu), by = nats_of(check, gpu) - here;
        check->likelihood.texts++;
        check->likelihood.tokens += check->positions;
        check->likelihood.cpu += here;
        check->likelihood.differences += by;
        check->likelihood.squares += by * by;
    }
    arena_free(&scratch);
    return status;
}

/* Of the mean difference; of a single text it is not known. */
static double standard_error(const device_check *check) {
    const double n = check->likelihood.texts, mean = check->likelihood.differences / n, variance = check->likelihood.squares / n - mean * mean;
    return n < 2 ? INFINITY : sqrt(larger(variance, 0) / (n - 1));
}

static dw_status draw_texts(device_check *check, side *side, uint64_t seed, int64_t (*texts)[PROMPT + DRAWN], dw_prompt *prompts) {
    const dw_session_options options = {.max_tokens = PROMPT + check->drawn, .rows = DRAWN_AT_A_TIME};
    close_session(side);
    TRY(dw_session_create(check->context, side->model, &options, &side->session));
    for (int t = 0; t < DRAWN_AT_A_TIME; t++) {
        for (int i = 0; i < PROMPT; i++) texts[t][i] = (int64_t)(num_random(seed + (uint64_t)t, (uint64_t)i) % (uint64_t)check->vocabulary);
        prompts[t] = (dw_prompt){.count = PROMPT, .ids = texts[t], .seed = seed + (uint64_t)t, .made_ids = texts[t] + PROMPT};
    }
    return dw_session_generate_batch(side->session, DRAWN_AT_A_TIME, prompts, &(dw_generate_options){.tokens = check->drawn, .temperature = 1}, NULL);
}

/* One more text on both. What it takes is given back, as there are many. */
static dw_status run_more(device_check *check, const int64_t *ids, int64_t count) {
    const arena kept = check->arena;
    arena_init(&check->arena, check->context);
    memcpy(check->text, ids, (size_t)count * sizeof *ids);
    dw_status status = set_text(check, count, check->text);
    if (status == DW_OK) status = run_side(check, &check->cpu);
    if (status == DW_OK) status = run_side(check, &check->gpu);
    if (status == DW_OK) status = note_likelihood(check);
    arena_free(&check->arena);
    check->arena = kept;
    return status;
}

/* Texts are drawn by the same model in fp32, from which both sides are equally far. A text that one side has drawn would be likelier to it than to the other, whatever differs; and a GPU's cached
 * steps round otherwise than its whole runs, by which it is judged. In fp32 the two sides are alike enough. */
static dw_status open_author(device_check *check, side **author) {
    dw_model_options options = *check->options;
    *author = &check->cpu;
    if (strcmp(check->cpu.model->precision, "fp32") == 0) return DW_OK;
    *author = &check->fp32;
    options.precision = "fp32";
    options.policy = NULL;
    options.device = options.kernels = options.tuning = options.tuning_name = NULL;
    options.flags = (options.flags & ~(unsigned)(DW_MODEL_PLAN_ONLY | DW_MODEL_GENERATE_ONLY)) | DW_MODEL_GENERATE;
    return dw_model_open(check->context, check->file, &options, &check->fp32.model);
}

static dw_status add_texts(device_check *check) {
    side *author;
    int64_t texts[DRAWN_AT_A_TIME][PROMPT + DRAWN];
    dw_prompt prompts[DRAWN_AT_A_TIME];
    if (device_is_simulated(check->gpu.model->device)) return note_likelihood(check);
    TRY(open_author(check, &author));
    while (check->likelihood.texts < TEXTS && (check->likelihood.texts < 2 * DRAWN_AT_A_TIME || standard_error(check) > PERPLEXITY_ERROR)) {
        TRY(draw_texts(check, author, 1000 + (uint64_t)check->likelihood.texts, texts, prompts));
        for (int t = 0; t < DRAWN_AT_A_TIME; t++) TRY(run_more(check, texts[t], PROMPT + prompts[t].made));
    }
    return DW_OK;
}

static dw_status add_perplexity(device_check *check) {
    TRY(add_texts(check));
    const double here = check->likelihood.cpu / check->likelihood.texts, by = check->likelihood.differences / check->likelihood.texts, error = standard_error(check);
    const double ratio = exp(by) - 1, perturbed = larger(check->by_input.perplexity, check->by_sums.perplexity);
    json_t *row = json_pack("{s:i, s:I, s:o, s:o, s:o, s:o, s:o}", "texts", check->likelihood.texts, "tokens", (json_int_t)check->likelihood.tokens, "cpu", real(exp(here)), "gpu",
                            real(exp(here + by)), "difference", real(ratio), "error", real(error), "perturbed", real(perturbed));
    json_object_set_new(check->facts, "perplexity", row);
    conclude(check, row, fabs(ratio) <= larger(PERPLEXITY_BOUND, check->likelihood.texts > 1 ? PERPLEXITY_ERRORS * error : PERTURBED_TIMES * perturbed));
    return DW_OK;
}

/* The best token of each position of the drawn text, whatever came before. */
static void add_positions(device_check *check, const float *cpu, const float *gpu) {
    int64_t differ = 0, beyond = 0;
    for (int64_t p = 0; p < check->positions; p++) {
        double margin, there;
        const int64_t best = best_of(cpu + p * check->vocabulary, check->vocabulary, &margin);
        if (best_of(gpu + p * check->vocabulary, check->vocabulary, &there) == best) continue;
        differ++;
        beyond += margin > MARGIN_TIMES * moved_by(check);
    }
    json_t *row = json_pack("{s:I, s:I, s:I}", "positions", (json_int_t)check->positions, "differ", (json_int_t)differ, "beyond", (json_int_t)beyond);
    json_object_set_new(check->facts, "best_tokens", row);
    conclude(check, row, beyond == 0);
}

/* Where greedy text parts, the text up to there is run once more, for the margin and for what perturbations do there. */
static dw_status add_greedy(device_check *check, const char *name, const int64_t *there, int64_t made) {
    int64_t at = 0;
    const int64_t *here = check->cpu.greedy + PROMPT;
    while (at < check->cpu.made && at < made && here[at] == there[at]) at++;
    const bool same = at == check->cpu.made && at == made;
    json_t *row = json_pack("{s:I, s:I}", "tokens", (json_int_t)check->cpu.made, "same", (json_int_t)at);
    json_object_set_new(check->facts, name, row);
    double margin = INFINITY, moves = 0;
    if (!same) {
        float *logits;
        const int64_t last = PROMPT + at - 1;
        memcpy(check->text, check->cpu.greedy, (size_t)(last + 1) * sizeof *check->text);
        TRY(set_text(check, last + 1, check->text));
        TRY(run_side(check, &check->cpu));
        TRY(run_perturbed(check));
        TRY(values_of(&check->arena, &check->cpu.outputs[0].tensor, &logits));
        best_of(logits + last * check->vocabulary, check->vocabulary, &margin);
        moves = moved_by(check);
        json_object_set_new(row, "margin", real(margin));
        json_object_set_new(row, "moved", real(moves));
    }
    conclude(check, row, same || margin <= MARGIN_TIMES * moves);
    return DW_OK;
}

static dw_status add_text(device_check *check) {
    float *cpu, *gpu;
    TRY(values_of(&check->arena, &check->cpu.outputs[0].tensor, &cpu));
    TRY(values_of(&check->arena, &check->gpu.outputs[0].tensor, &gpu));
    add_positions(check, cpu, gpu);
    TRY(add_perplexity(check));
    TRY(add_greedy(check, "greedy", check->gpu.greedy + PROMPT, check->gpu.made));
    json_object_set_new(check->facts, "no_service", check->served.none != NULL ? json_string(check->served.none) : json_null());
    if (check->served.none != NULL) return DW_OK;
    TRY(add_greedy(check, "served", check->served.ids, check->served.made));
    json_object_set_new(json_object_get(check->facts, "served"), "pages", json_integer((json_int_t)check->served.pages));
    return DW_OK;
}

/* ---- the whole ---- */

/* A text where the model makes one: a long one, or as much as it takes. */
static dw_status choose_inputs(device_check *check) {
    const plan *plan = check->cpu.model->full.plan;
    dw_named_tensor *inputs;
    if (check->input_count > 0) {
        check->no_text = "inputs are given";
        return DW_OK;
    }
    dw_status status = DW_UNSUPPORTED;
    check->no_text = check->cpu.model->no_step;
    if (check->cpu.model->step.plan != NULL) {
        const bool simulated = device_is_simulated(check->gpu.model->device);
        status = run_text(check, simulated ? SIMULATED_DRAWN : DRAWN, simulated ? SIMULATED_GREEDY : GREEDY);
        if ((status == DW_LIMIT || status == DW_INVALID) && !simulated) status = run_text(check, GREEDY, GREEDY);   /* INVALID: a table of positions that the graph says nothing of */
        check->no_text = status == DW_OK ? NULL : reason_of(check);
    }
    if (status != DW_UNSUPPORTED && status != DW_LIMIT && status != DW_INVALID) return status;
    TRY_NEW(inputs, &check->arena, plan->graph->input_count);
    TRY(lab_random_inputs(&check->arena, plan, plan->typical, inputs));
    check->inputs = inputs;
    check->input_count = (int)plan->graph->input_count;
    check->positions = 0;
    return DW_OK;
}

static dw_status run_check(device_check *check) {
    TRY(choose_inputs(check));
    json_object_set_new(check->facts, "no_text", check->no_text ? json_string(check->no_text) : json_null());
    TRY(run_side(check, &check->cpu));
    TRY(run_side(check, &check->gpu));
    check->has_steps = true;
    TRY(stepwise_create(check->context, &check->gpu.model->full, check->gpu.model->device, &check->steps));
    TRY(run_perturbed(check));
    add_kernels(check);
    TRY(add_outputs(check));
    return check->no_text == NULL ? add_text(check) : DW_OK;
}

/* ---- words ---- */

static const char *verdict_of(const json_t *row) { return json_is_true(json_object_get(row, "holds")) ? "" : "   <- more than that"; }
static double number_of(const json_t *row, const char *key) {
    const json_t *value = json_object_get(row, key);
    return json_is_string(value) ? INFINITY : json_number_value(value);
}
static long long count_of(const json_t *row, const char *key) { return (long long)json_integer_value(json_object_get(row, key)); }

static void print_kernels(text *out, const json_t *facts) {
    size_t i;
    json_t *row;
    text_printf(out, "%-34s %-7s %6s %12s %12s  %s\n", "kernel, on the CPU's operands", "result", "calls", "largest", "bound", "where");
    json_array_foreach(json_object_get(facts, "kernels"), i, row) {
        text_printf(out, "%-34s %-7s %6lld ", json_string_value(json_object_get(row, "kernel")), json_string_value(json_object_get(row, "format")), count_of(row, "calls"));
        if (json_is_true(json_object_get(row, "exact"))) text_printf(out, "%12.0f %12s", number_of(row, "worst"), "bit for bit");
        else text_printf(out, "%12.2e %12.2e", number_of(row, "worst"), number_of(row, "bound"));
        text_printf(out, "  %%%lld %s%s\n", count_of(row, "node"), json_string_value(json_object_get(row, "module")), verdict_of(row));
    }
}

static void print_greedy(text *out, const char *name, const json_t *row) {
    if (row == NULL) return;
    if (count_of(row, "same") == count_of(row, "tokens")) {
        text_printf(out, "%s: %lld tokens, all the same\n", name, count_of(row, "tokens"));
    } else {
        text_printf(out, "%s: the same for %lld of %lld tokens; then the two best are %.3e apart, and perturbations move logits by %.3e%s\n", name, count_of(row, "same"), count_of(row, "tokens"),
                    number_of(row, "margin"), number_of(row, "moved"), verdict_of(row));
    }
}

static void print_text(text *out, const json_t *facts) {
    const json_t *perplexity = json_object_get(facts, "perplexity"), *best = json_object_get(facts, "best_tokens"), *served = json_object_get(facts, "served");
    char name[80];
    const char *none = json_string_value(json_object_get(facts, "no_text")), *no_service = json_string_value(json_object_get(facts, "no_service"));
    if (none != NULL) text_printf(out, "no text: %s\n", none);
    if (none != NULL) return;
    text_printf(out, "perplexity of %lld tokens drawn in %lld texts: %.5f on the CPU, %.5f there, %+.4f %% with a standard error of %.4f; perturbations move that of the first text by up to %.4f %%%s\n",
                count_of(perplexity, "tokens"), count_of(perplexity, "texts"), number_of(perplexity, "cpu"), number_of(perplexity, "gpu"), 100 * number_of(perplexity, "difference"),
                100 * number_of(perplexity, "error"), 100 * number_of(perplexity, "perturbed"), verdict_of(perplexity));
    print_greedy(out, "greedy text", json_object_get(facts, "greedy"));
    if (no_service != NULL) text_printf(out, "no text of a service: %s\n", no_service);
    snprintf(name, sizeof name, "greedy text of a service in %lld pages", count_of(served, "pages"));
    print_greedy(out, name, served);
    text_printf(out, "best token of each position: differs in %lld of %lld, in %lld where the two best are more than %.0f times that apart%s\n", count_of(best, "differ"),
                count_of(best, "positions"), count_of(best, "beyond"), MARGIN_TIMES, verdict_of(best));
}

static void print_all(const device_check *check, text *out) {
    size_t i;
    json_t *row;
    text_printf(out, "%s in %s: %s beside the CPU\n", check->gpu.model->file, check->gpu.model->precision, check->gpu.model->chip.model);
    print_kernels(out, check->facts);
    json_array_foreach(json_object_get(check->facts, "outputs"), i, row)
        text_printf(out, "output %s: relative difference %.3e; the CPU's moves by %.3e where the input is perturbed by 1e-7, by %.3e where all sums are, or are as far off as the device's (largest of %d)%s\n",
                    json_string_value(json_object_get(row, "output")), number_of(row, "difference"), number_of(row, "input_perturbed"), number_of(row, "sums_perturbed"),
                    PERTURBATIONS, verdict_of(row));
    print_text(out, check->facts);
    text_add(out, check->holds ? "all of it is within what sums in another order explain\n" : "more differs than sums in another order explain\n");
}

static dw_status emit(const device_check *check, int json, dw_sink sink, void *user) {
    text out;
    text_init(&out, check->context);
    if (json) {
        char *words = json_dumps(check->facts, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        text_add(&out, words ? words : "");
        text_add(&out, "\n");
        free(words);
    } else {
        print_all(check, &out);
    }
    dw_status status = text_status(&out);
    if (status == DW_OK) sink(user, text_string(&out), out.length);
    text_free(&out);
    return status;
}

/* ---- public ---- */

static dw_status open_both(device_check *check, const char *file, const dw_model_options *options) {
    dw_model_options here = *options, there = *options;
    there.flags = here.flags = (options->flags & ~(unsigned)(DW_MODEL_PLAN_ONLY | DW_MODEL_GENERATE_ONLY)) | DW_MODEL_GENERATE;
    here.device = here.kernels = here.tuning = here.tuning_name = NULL;    /* which are for the GPU */
    TRY(dw_model_open(check->context, file, &there, &check->gpu.model));
    if (check->gpu.model->device == NULL)
        return base_fail(check->context, DW_INVALID, "there is nothing to hold beside the CPU: name a GPU, --device cuda:0, or a simulated one, sim:h200");
    return dw_model_open(check->context, file, &here, &check->cpu.model);
}

static void close_side(side *side) {
    close_session(side);
    dw_model_destroy(side->model);
}

dw_status dw_check_device(dw_context *context, const char *file, const dw_model_options *options, int input_count, const dw_named_tensor *inputs, int json,
                          dw_sink sink, void *user) {
    device_check check = {.context = context, .file = file, .options = options, .input_count = input_count, .inputs = inputs, .holds = true};
    arena_init(&check.arena, context);
    dw_status status = open_both(&check, file, options);
    if (status == DW_OK) {
        check.facts = json_pack("{s:s, s:s, s:s}", "file", file, "precision", check.gpu.model->precision, "device", check.gpu.model->chip.model);
        status = run_check(&check);
    }
    if (status == DW_OK) {
        json_object_set_new(check.facts, "holds", json_boolean(check.holds));
        status = emit(&check, json, sink, user);
    }
    if (status == DW_OK && !check.holds) status = base_fail(context, DW_MISMATCH, "%s differs from the CPU by more than sums in another order explain", check.gpu.model->chip.model);
    json_decref(check.facts);
    if (check.has_steps) stepwise_free(&check.steps);
    close_side(&check.cpu);
    close_side(&check.gpu);
    close_side(&check.fp32);
    arena_free(&check.arena);
    return status;
}
