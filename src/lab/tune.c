/* Measures those steps of a model for which the device has a choice. Of each product: every kernel that accepts it, and every variant, at several numbers of rows. Of each other case
 * (attention, grouped products, norms, ..): every kernel that accepts it, at the typical sizes. Writes the fastest down (plan_tuning). The choice by estimate is measured too:
 * the comments of the text say how much longer it takes, and what was not measured, and why. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lab/trial.h"

static const int64_t measured_rows[] = {1, 16, 64, 128, 512, 2048};
static const double limit_s = 4;            /* of one line: no further kernel is begun behind it */
static const double least_share = 1e-3;     /* of a plan's estimated seconds: what takes less is not worth its measurement */

/* What is to be measured, once per line. */
typedef struct wanted {
    const char *line;
    const plan_step *step;        /* the first with this line */
    bool product;
    double share;                 /* of its plan's estimated seconds: the largest over the plans */
    const plan *counted;          /* the plan whose steps are being added, and how much so far */
    double counted_share;
} wanted;

/* How the choices by estimate do, by op. */
typedef struct score { double logs; int count; } score;

typedef struct tuning {
    dw_context *context;
    arena arena;
    dw_model *model;
    plan_tuning choices;
    map wanted;                   /* line -> wanted */
    text out, skipped;
    int measured, single;         /* lines measured, and steps that one kernel alone runs */
    score scores[OP_COUNT];
    double end_s;                 /* when the line's time is over */
} tuning;

/* ---- the fastest ---- */

/* kernel: a row or a way; estimated, estimated_s: what the estimates choose, with the variant that it takes by itself. */
typedef struct fastest { const char *kernel, *variant, *estimated; double seconds, estimated_s; int tried; } fastest;

/* A comment ends with its line, and these words come from a library or from the file. */
static void add_foreign(text *text, const char *words) {
    for (; *words != '\0'; words++) text_printf(text, "%c", (unsigned char)*words < ' ' ? ' ' : *words);
}

/* What a library takes is known when it is asked. */
static bool is_refused(dw_status status, const kernel_verdict *verdict) { return status == DW_UNSUPPORTED && kernel_calls_library(verdict); }

static dw_status measure(trial *trial, const kernel_verdict *verdict, int variant, double best_s, double *seconds) {
    const kernel_tuned tuned = {INT64_MAX, verdict->way, variant};
    return trial_measure(trial, verdict->row, kernel_verdict_ways(verdict), verdict->way != NULL ? &tuned : NULL, best_s, seconds);
}

static dw_status try_one(tuning *t, trial *trial, const kernel_verdict *verdict, int variant, const char *name, fastest *best) {
    double seconds;
    dw_status status = measure(trial, verdict, variant, best->kernel != NULL ? best->seconds : INFINITY, &seconds);
    if (is_refused(status, verdict)) {
        text_printf(&t->out, "#   not %s%s%s: ", kernel_verdict_name(verdict), name[0] != '\0' ? " " : "", name);
        add_foreign(&t->out, dw_context_error(t->context));
        text_add(&t->out, "\n");
        return base_poll(t->context);
    }
    TRY(status);
    best->tried++;
    if (best->kernel == NULL || seconds < best->seconds) {
        best->kernel = kernel_verdict_name(verdict);
        best->variant = name;
        best->seconds = seconds;
    }
    return base_poll(t->context);
}

static bool is_chosen(const kernel_choice *choice, const kernel_verdict *verdict) {
    return verdict->row == choice->row && verdict->way == NULL ? true : verdict->way != NULL && verdict->way == choice->way;
}

static dw_status try_estimated(trial *trial, const kernel_choice *choice, fastest *best) {
    for (int i = 0; i < choice->verdict_count; i++) {
        const kernel_verdict *verdict = &choice->verdicts[i];
        if (!is_chosen(choice, verdict)) continue;
        best->estimated = kernel_verdict_name(verdict);
        best->estimated_s = best->seconds;
        if (strcmp(best->estimated, best->kernel) == 0 && best->variant[0] == '\0') return DW_OK;
        dw_status status = measure(trial, verdict, -1, best->seconds, &best->estimated_s);
        if (is_refused(status, verdict)) best->estimated_s = INFINITY;
        else TRY(status);
        return DW_OK;
    }
    return DW_OK;
}

static int by_estimate(const void *a, const void *b) {
    const double x = ((const kernel_verdict *)a)->seconds, y = ((const kernel_verdict *)b)->seconds;
    return (x > y) - (x < y);
}

static bool is_ours(const kernel_verdict *verdict) { return verdict->reason == NULL && !verdict->row->reference && !verdict->row->registered; }

/* Of a step: does the plan's problem, whose sizes may be symbols, allow the kernel? */
static bool is_accepted(const plan_step *step, const kernel_verdict *verdict) {
    for (int i = 0; i < step->verdict_count; i++)
        if (step->verdicts[i].row == verdict->row && step->verdicts[i].way == verdict->way) return is_ours(&step->verdicts[i]);
    return false;
}

static bool has_constant_types(const ir_node *node) {
    for (int i = 0; i < node->n_in; i++)
        for (int k = 0; ir_in(node, i) != NULL && k < ir_in(node, i)->type.rank; k++)
            if (!dim_is_constant(ir_in(node, i)->type.dims[k], NULL)) return false;
    return true;
}

static dw_status try_variants(tuning *t, trial *trial, const kernel_verdict *verdict, bool variants, fastest *best) {
    const char *name;
    if (verdict->way == NULL || kernel_way_variant(verdict->way, &trial->problem, 0) == NULL || !variants) return try_one(t, trial, verdict, -1, "", best);
    for (int k = 0; (name = kernel_way_variant(verdict->way, &trial->problem, k)) != NULL; k++)
        if (name[0] != '\0') TRY(try_one(t, trial, verdict, k, name, best));
    return DW_OK;
}

/* Variants of a case are for its sizes, so one whose sizes may change is left to the kernel's own choice among them. */
static dw_status try_all(tuning *t, trial *trial, const wanted *wanted, fastest *best) {
    kernel_choice choice;
    const bool variants = wanted->product || has_constant_types(wanted->step->node);
    TRY(kernel_choose(&trial->arena, &trial->problem, NULL, NULL, &choice));
    qsort(choice.verdicts, (size_t)choice.verdict_count, sizeof *choice.verdicts, by_estimate);
    for (int i = 0; i < choice.verdict_count; i++) {
        const kernel_verdict *verdict = &choice.verdicts[i];
        if (!is_ours(verdict) || (!wanted->product && !is_accepted(wanted->step, verdict))) continue;
        if (best->kernel != NULL && verdict->seconds > 50 * choice.seconds) continue;    /* a plain kernel's milliseconds would only be waited for */
        if (best->kernel == NULL || base_now() < t->end_s) TRY(try_variants(t, trial, verdict, variants, best));
        else text_printf(&t->out, "#   not %s: the %.0f s of its line are over\n", kernel_verdict_name(verdict), limit_s);
    }
    return best->kernel != NULL ? try_estimated(trial, &choice, best) : DW_OK;
}

/* "matmul bf16[*,768] .." with the rows put in. */
static dw_status put_rows(const char *line, int64_t rows, text *words) {
    for (const char *at = line; *at != '\0'; at++) {
        if (*at == '*') text_printf(words, "%" PRId64, rows);
        else text_printf(words, "%c", *at);
    }
    return text_status(words);
}

/* rows: of a product; 0: of a case. best->row NULL: each kernel refused it. */
static dw_status tune_rows(tuning *t, const wanted *wanted, int64_t rows, trial_weights *w, plan_tuned *entry, fastest *best) {
    trial trial;
    text words;
    *best = (fastest){0};
    text_init(&words, t->context);
    dw_status status = put_rows(wanted->line, rows, &words);
    if (status == DW_OK) {
        status = trial_open(&trial, t->context, t->model->device, text_string(&words), wanted->product ? 2 : 0, w);
        if (status == DW_OK) status = try_all(t, &trial, wanted, best);
        trial_close(&trial);
    }
    text_free(&words);
    if (status != DW_OK) return base_fail_at(t->context, status, "\"%s\", %" PRId64 " rows", wanted->line, rows);
    if (best->kernel != NULL) *entry = (plan_tuned){rows, best->kernel, best->variant};
    return DW_OK;
}

static void tell_fastest(tuning *t, const wanted *wanted, const fastest *best, int64_t rows) {
    const double ratio = best->estimated_s / best->seconds;
    score *score = &t->scores[wanted->step->node->op];
    text_add(&t->out, "#   ");
    if (wanted->product) text_printf(&t->out, "%-7" PRId64 " ", rows);
    text_printf(&t->out, "%9.2f us %s%s%s, of %d", best->seconds * 1e6, best->kernel, best->variant[0] != '\0' ? " " : "", best->variant, best->tried);
    if (isinf(ratio)) {
        text_printf(&t->out, "; by estimate %s, which refuses it\n", best->estimated);
        return;
    }
    text_printf(&t->out, "; by estimate %s, %.2fx\n", best->estimated, ratio);
    score->logs += log(ratio);
    score->count++;
}

static dw_status tune_sizes(tuning *t, const wanted *wanted, trial_weights *w, plan_tuned_line *line) {
    const int count = wanted->product ? (int)COUNT_OF(measured_rows) : 1;
    for (int i = 0; i < count; i++) {
        fastest best;
        const int64_t rows = wanted->product ? measured_rows[i] : 0;
        TRY(tune_rows(t, wanted, rows, w, &line->rows[line->count], &best));
        if (best.kernel == NULL) continue;     /* the comments say who refused it, and why */
        line->count++;
        tell_fastest(t, wanted, &best, rows);
    }
    return DW_OK;
}

static dw_status tune_line(tuning *t, const wanted *wanted) {
    plan_tuned_line *line;
    trial_weights w = {0};
    const double start = base_now();
    t->end_s = start + limit_s;
    TRY_NEW(line, &t->arena, 1);
    line->line = wanted->line;
    dw_status status = tune_sizes(t, wanted, &w, line);
    trial_free_weights(t->model->device, &w);
    TRY(status);
    text_printf(&t->out, "# of %s, in %.1f s\n", wanted->line, base_now() - start);
    t->measured++;
    return line->count > 0 ? map_set(&t->choices.lines, line->line, line) : DW_OK;
}

/* ---- what is to be measured ---- */

/* Kernels and variants of ours that the device has for the step; a kernel of the caller's leaves no choice. */
static int count_choices(const plan *plan, const plan_step *step) {
    const op_type *in[KERNEL_MAX_OPERANDS], *out[KERNEL_MAX_RESULTS];
    kernel_problem problem;
    int count = 0;
    const char *name;
    if (step->row->registered) return 0;
    plan_problem(plan, step, in, out, &problem);
    for (int i = 0; i < step->verdict_count; i++) {
        const kernel_way *way = step->verdicts[i].way;
        if (!is_ours(&step->verdicts[i])) continue;
        count++;
        for (int k = 0; way != NULL && has_constant_types(step->node) && (name = kernel_way_variant(way, &problem, k)) != NULL; k++) count += name[0] != '\0';
    }
    return count;
}

static dw_status want(tuning *t, const plan *plan, const plan_step *step, const char *line, bool product, double share) {
    wanted *wanted = map_find(&t->wanted, line);
    if (wanted == NULL) {
        TRY_NEW(wanted, &t->arena, 1);
        wanted->line = line;
        wanted->step = step;
        wanted->product = product;
        TRY(map_set(&t->wanted, line, wanted));
    }
    if (wanted->counted != plan) wanted->counted_share = 0;
    wanted->counted = plan;
    wanted->counted_share += share;
    if (wanted->counted_share > wanted->share) wanted->share = wanted->counted_share;
    return DW_OK;
}

static dw_status collect_step(tuning *t, const plan *plan, const plan_step *step, double plan_s) {
    const char *line, *why;
    const double share = plan_s > 0 ? step->seconds / plan_s : 1;
    TRY(plan_product_line(&t->arena, plan, step, &line));
    if (line != NULL && !step->row->registered) return want(t, plan, step, line, true, share);
    if (count_choices(plan, step) < 2) {
        t->single++;
        return DW_OK;
    }
    TRY(plan_case_line(&t->arena, plan, step, &line, &why));
    if (line != NULL) return want(t, plan, step, line, false, share);
    text_printf(&t->skipped, "# skipped %s of ", op_get(step->node->op)->name);
    add_foreign(&t->skipped, step->node->origin.module ? step->node->origin.module : "no module");
    text_printf(&t->skipped, ": %s\n", why);
    return DW_OK;
}

static dw_status collect(tuning *t, const plan *plan) {
    double seconds = 0;
    for (int i = plan->load_count; i < plan->step_count; i++) seconds += plan->steps[i].seconds;
    for (int i = plan->load_count; i < plan->step_count; i++) TRY(collect_step(t, plan, &plan->steps[i], seconds));
    return DW_OK;
}

static dw_status tune_all(tuning *t) {
    for (size_t i = 0; i < t->wanted.count; i++) {
        const wanted *wanted = t->wanted.entries[i].value;
        if (map_find(&t->choices.lines, wanted->line) != NULL) continue;
        if (wanted->share >= least_share) TRY(tune_line(t, wanted));
        else text_printf(&t->skipped, "# skipped %s: by estimate it is %.2f %% of a run\n", wanted->line, 100 * wanted->share);
    }
    return DW_OK;
}

/* ---- public ---- */

static dw_status open_for_key(dw_context *context, const char *device, dw_model *model) {
    *model = (dw_model){.context = context};
    if (device == NULL || strncmp(device, "cpu", 3) == 0) return DW_OK;
    return device_open(context, device, &model->device);
}

dw_status dw_tuning_key(dw_context *context, const char *device, char *key, size_t size) {
    dw_model model;
    plan_tuning found = {0};
    arena arena;
    arena_init(&arena, context);
    dw_status status = open_for_key(context, device, &model);
    if (status == DW_OK) status = engine_tuning_key(&model, &arena, &found);
    if (status == DW_OK && (size_t)snprintf(key, size, "%s-%s-%s", model.device->caps.name, found.driver, found.kernels) >= size)
        status = base_fail(context, DW_LIMIT, "the key of a tuning does not fit %zu bytes", size);
    for (char *at = key; status == DW_OK && *at != '\0'; at++)
        if (strchr(" /,", *at) != NULL) *at = '_';
    device_close(model.device);
    arena_free(&arena);
    return status;
}

/* How much longer the choices by estimate take than the fastest: all, and by op. */
static void tell_scores(tuning *t) {
    score all = {0};
    for (int i = 0; i < OP_COUNT; i++) all = (score){all.logs + t->scores[i].logs, all.count + t->scores[i].count};
    if (t->single > 0) text_printf(&t->out, "# %d steps have one kernel each, and no choice\n", t->single);
    if (all.count == 0) return;
    text_printf(&t->out, "# choices by estimate take %.3fx the fastest (geometric mean of %d)", exp(all.logs / all.count), all.count);
    for (int i = 0; i < OP_COUNT; i++)
        if (t->scores[i].count > 0) text_printf(&t->out, "; %s %.3fx of %d", op_get((op_id)i)->name, exp(t->scores[i].logs / t->scores[i].count), t->scores[i].count);
    text_add(&t->out, "\n");
}

static dw_status read_before(tuning *t, const char *name, const char *before) {
    plan_tuning key = {0};
    TRY(engine_tuning_key(t->model, &t->arena, &key));
    map_init(&t->choices.lines, &t->arena);
    if (before != NULL) TRY(engine_tuning_parse(&t->arena, name, before, &t->choices));
    if (before != NULL && !engine_tuning_is_same_key(&t->choices, &key))
        return base_fail(t->context, DW_MISMATCH, "%s: the tuning that was there is of %s under %s, kernels %s; this is %s under %s, kernels %s: put it away, and tune anew",
                         name != NULL ? name : "tuning", t->choices.chip, t->choices.driver, t->choices.kernels, key.chip, key.driver, key.kernels);
    t->choices.chip = key.chip;
    t->choices.driver = key.driver;
    t->choices.kernels = key.kernels;
    return DW_OK;
}

/* Whatever ends it early, what was measured is reported. */
static dw_status tune_model(tuning *t, dw_sink sink, void *user) {
    const plan *plans[] = {t->model->full.plan, t->model->step.plan, t->model->prelude.plan};
    map_init(&t->wanted, &t->arena);
    for (size_t i = 0; i < COUNT_OF(plans); i++)
        if (plans[i] != NULL) TRY(collect(t, plans[i]));
    dw_status status = tune_all(t);
    if (status != DW_OK && t->measured == 0) return status;
    text_add(&t->out, text_string(&t->skipped));
    tell_scores(t);
    if (plan_tuning_print(&t->choices, &t->out) != DW_OK || text_status(&t->skipped) != DW_OK) return status != DW_OK ? status : DW_NO_MEMORY;
    sink(user, text_string(&t->out), t->out.length);
    return status;
}

dw_status dw_tune(dw_context *context, const char *file, const dw_model_options *options, const char *before, dw_sink sink, void *user) {
    tuning t = {.context = context};
    dw_model_options asked = *options;
    asked.flags = (asked.flags & ~(unsigned)DW_MODEL_GENERATE_ONLY) | DW_MODEL_PLAN_ONLY | DW_MODEL_GENERATE;
    asked.tuning = NULL;
    TRY(dw_model_open(context, file, &asked, &t.model));
    arena_init(&t.arena, context);
    text_init(&t.out, context);
    text_init(&t.skipped, context);
    dw_status status = read_before(&t, options->tuning_name, before);
    if (status == DW_OK && t.model->captured == NULL)
        status = base_fail(context, DW_INVALID, "%s is compiled, with kernels that are settled: tune the .pt2 it was made from, and compile that again", file);
    if (status == DW_OK) status = tune_model(&t, sink, user);
    text_free(&t.skipped);
    text_free(&t.out);
    arena_free(&t.arena);
    dw_model_destroy(t.model);
    return status;
}
