/* Measures, for each product of a model, every kernel that accepts it and every variant of those, at several numbers of rows on the device itself, and writes the fastest
 * down (plan_tuning). A product is run over and over in one device graph, on weights that take turns, so that they come from memory as in a run. One call comes first: it says how many a
 * graph holds, and a kernel that takes more than twice the best one's time in it is left at that. What the estimates alone would have chosen is measured too: the comments of the text tell
 * how much longer it takes. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "engine/engine.h"

enum { COPIES_MOST = 32, NODES = 32, TURNS = 3, RANDOM = 4096, ROWS = 128 };
static const double graph_s = 2e-3, start_s = 30e-6;   /* what a graph is to take; what starting one call and waiting for it adds to it at most */
static const size_t COLD_BYTES = (size_t)160 << 20;    /* more than a GPU's cache holds */
static const int64_t measured_rows[] = {1, 16, 64, 128, 512, 2048};

typedef struct tuning {
    dw_context *context;
    arena arena;
    dw_model *model;
    plan_tuning choices;
    text out;
    int products, compared;
    double logs;            /* of how much longer the choices by estimate take, summed over all that was measured */
} tuning;

/* ---- one product at one number of rows ---- */

/* Those of a product, the same for all numbers of rows. */
typedef struct weights { dw_tensor copies[COPIES_MOST]; int count; size_t bytes; } weights;

typedef struct trial {
    arena arena;
    dim_table *dims;
    kernel_case c;
    dw_tensor in[KERNEL_CASE_OPERANDS], out[KERNEL_CASE_RESULTS];
    const dw_tensor *ins[KERNEL_CASE_OPERANDS], *outs[KERNEL_CASE_RESULTS];
    const weights *weights;
    size_t bytes[KERNEL_CASE_OPERANDS + KERNEL_CASE_RESULTS];
} trial;

/* "matmul bf16[*,768] .." with the rows put in. */
static dw_status put_rows(tuning *t, trial *trial, const char *line, int64_t rows, const char **made) {
    text words;
    text_init(&words, t->context);
    for (const char *at = line; *at != '\0'; at++) {
        if (*at == '*') text_printf(&words, "%" PRId64, rows);
        else text_printf(&words, "%c", *at);
    }
    dw_status status = text_status(&words);
    if (status == DW_OK) {
        *made = arena_text(&trial->arena, text_string(&words));
        if (*made == NULL) status = DW_NO_MEMORY;
    }
    text_free(&words);
    return status;
}

static dw_status take(tuning *t, const op_type *type, dw_tensor *tensor, size_t *bytes) {
    num_parts parts;
    void *memory;
    TRY(op_tensor_bind(t->context, type, NULL, NULL, tensor));
    if (!num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts)) return base_fail(t->context, DW_LIMIT, "the bytes of an operand overflow");
    TRY(t->model->device->calls->alloc(t->model->device, parts.total_bytes + 1, &memory));
    op_tensor_init(tensor, tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, memory);
    *bytes = parts.total_bytes;
    return DW_OK;
}

/* A few thousand numbers over and over. */
static void repeat_random(dw_format format, int64_t count, uint64_t seed, uint8_t *values) {
    const size_t period = RANDOM * (size_t)dw_format_bits(format) / 8, bytes = ((size_t)count * (size_t)dw_format_bits(format) + 7) / 8;
    for (int64_t i = 0; i < count && i < RANDOM; i++) num_store(format, values, i, (double)num_random_normal(seed, (uint64_t)i), true);
    for (size_t at = period; at < bytes; at += period) memcpy(values + at, values, bytes - at < period ? bytes - at : period);
}

/* The first rows of a tensor as numbers on the host, quantised where the format is a block's. */
static dw_status make_rows(tuning *t, arena *arena, const dw_tensor *tensor, int64_t rows, uint64_t seed, dw_tensor *made) {
    const int64_t dims[] = {rows, tensor->rank > 0 ? tensor->dims[tensor->rank - 1] : 1};
    const bool is_block = dw_format_is_block(tensor->format);
    num_parts parts;
    dw_tensor plain;
    if (!num_layout(tensor->format, tensor->scale_layout, 2, dims, &parts)) return base_fail(t->context, DW_LIMIT, "the bytes of an operand overflow");
    const size_t plain_bytes = is_block ? (size_t)(dims[0] * dims[1]) * sizeof(float) : parts.total_bytes;
    uint8_t *values = arena_new(arena, plain_bytes + 8, ENGINE_ALIGN), *memory = is_block ? arena_new(arena, parts.total_bytes + ENGINE_ALIGN, ENGINE_ALIGN) : values;
    if (values == NULL || memory == NULL) return DW_NO_MEMORY;
    op_tensor_init(&plain, is_block ? DW_FORMAT_f32 : tensor->format, DW_SCALE_plain, 2, dims, values);
    op_tensor_init(made, tensor->format, tensor->scale_layout, 2, dims, memory);
    repeat_random(plain.format, dims[0] * dims[1], seed, values);
    if (!is_block) return DW_OK;
    op_attr to = op_set_format(OP_ATTR_to, tensor->format);
    const op_attrs attrs = {1, &to};
    const dw_tensor *in = &plain, *out = made;
    const op_call call = {.context = t->context, .op = op_get(OP_quantize), .attrs = &attrs, .n_in = 1, .in = &in, .n_out = 1, .out = &out};
    return call.op->reference(&call);
}

/* `have` bytes of the host, over and over in `bytes` of the device. */
static dw_status spread(tuning *t, void *to, const void *from, size_t have, size_t bytes) {
    device *device = t->model->device;
    if (have > bytes) have = bytes;
    if (have == 0) return DW_OK;
    TRY(device->calls->write(device, to, from, have));
    for (size_t at = have; at < bytes;) {
        const size_t more = bytes - at < at ? bytes - at : at;
        TRY(device->calls->copy(device, (uint8_t *)to + at, to, more));
        at += more;
    }
    return DW_OK;
}

/* A few rows of numbers, which all others repeat; scales of formats lie by blocks of up to ROWS rows. */
static dw_status fill(tuning *t, const dw_tensor *tensor, uint64_t seed) {
    const int64_t cols = tensor->rank > 0 ? tensor->dims[tensor->rank - 1] : 1, all = cols > 0 ? op_tensor_count(tensor) / cols : 0, rows = all < ROWS ? all : ROWS;
    arena scratch;
    dw_tensor made;
    num_parts some, whole;
    arena_init(&scratch, t->context);
    dw_status status = make_rows(t, &scratch, tensor, rows, seed, &made);
    if (status == DW_OK && num_layout(made.format, made.scale_layout, made.rank, made.dims, &some) && num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &whole)) {
        status = spread(t, tensor->data, made.data, some.data_bytes, whole.data_bytes);
        if (status == DW_OK) status = spread(t, tensor->scales, made.scales, some.scale_bytes, whole.scale_bytes);
        if (status == DW_OK) status = spread(t, tensor->second, made.second, some.second_bytes, whole.second_bytes);
        if (status == DW_OK) status = t->model->device->calls->synchronize(t->model->device);
    }
    arena_free(&scratch);
    return status;
}

static dw_status make_weights(tuning *t, trial *trial, weights *w) {
    const device_calls *calls = t->model->device->calls;
    TRY(take(t, trial->c.in[1], &w->copies[0], &w->bytes));
    w->count = 1;
    TRY(fill(t, &w->copies[0], 2));
    while (w->count < COPIES_MOST && (size_t)w->count * w->bytes < COLD_BYTES) {
        dw_tensor *copy = &w->copies[w->count];
        TRY(take(t, trial->c.in[1], copy, &w->bytes));
        w->count++;
        TRY(calls->copy(t->model->device, copy->data, w->copies[0].data, w->bytes));
    }
    return DW_OK;
}

static void free_weights(tuning *t, weights *w) {
    for (int i = 0; i < w->count; i++) t->model->device->calls->release(t->model->device, w->copies[i].data, w->bytes + 1);
}

static dw_status make_operands(tuning *t, trial *trial, weights *w) {
    if (w->count == 0) TRY(make_weights(t, trial, w));
    trial->weights = w;
    trial->ins[1] = &w->copies[0];
    for (int i = 0; i < trial->c.n_in; i++) {
        if (i == 1) continue;
        TRY(take(t, trial->c.in[i], &trial->in[i], &trial->bytes[i]));
        TRY(fill(t, &trial->in[i], (uint64_t)i + 1));
        trial->ins[i] = &trial->in[i];
    }
    for (int i = 0; i < trial->c.n_out; i++) {
        TRY(take(t, trial->c.out[i], &trial->out[i], &trial->bytes[KERNEL_CASE_OPERANDS + i]));
        trial->outs[i] = &trial->out[i];
    }
    return DW_OK;
}

static void free_trial(tuning *t, trial *trial) {
    const device_calls *calls = t->model->device->calls;
    for (int i = 0; i < trial->c.n_in; i++)
        if (i != 1) calls->release(t->model->device, trial->in[i].data, trial->bytes[i] + 1);
    for (int i = 0; i < trial->c.n_out; i++) calls->release(t->model->device, trial->out[i].data, trial->bytes[KERNEL_CASE_OPERANDS + i] + 1);
    dim_table_destroy(trial->dims);
    arena_free(&trial->arena);
}

/* A graph of so many calls, launched once. */
static dw_status record(tuning *t, trial *trial, const kernel_row *row, kernel_run *run, int nodes, device_graph *graph) {
    device *device = t->model->device;
    TRY(device->calls->graph_begin(device, graph));
    for (int i = 0; i < nodes; i++) {
        trial->ins[1] = &trial->weights->copies[i % trial->weights->count];
        TRY(device->calls->graph_add(device, graph, row, run));
    }
    TRY(device->calls->graph_launch(device, graph));
    return device->calls->synchronize(device);
}

/* Seconds of the graph: the least of some turns. */
static dw_status launch(tuning *t, device_graph *graph, double *seconds) {
    device *device = t->model->device;
    for (int i = 0; i < TURNS; i++) {
        const double start = engine_now();
        TRY(device->calls->graph_launch(device, graph));
        TRY(device->calls->synchronize(device));
        const double spent = engine_now() - start;
        if (i == 0 || spent < *seconds) *seconds = spent;
    }
    return DW_OK;
}

/* Calls of a graph: so many that it takes some milliseconds, and that all weights have their turn. */
static int count_nodes(const trial *trial, double call_s) {
    const int least = trial->weights->count;
    return call_s * NODES < graph_s ? NODES : call_s * least > graph_s ? least : (int)(graph_s / call_s);
}

static dw_status time_calls(tuning *t, trial *trial, const kernel_row *row, kernel_run *run, double best_s, device_graph *graph, double *seconds) {
    TRY(record(t, trial, row, run, 1, graph));
    TRY(launch(t, graph, seconds));
    if (*seconds > 2 * best_s + start_s) return DW_OK;
    const int nodes = count_nodes(trial, *seconds);
    TRY(record(t, trial, row, run, nodes, graph));
    TRY(launch(t, graph, seconds));
    *seconds /= nodes;
    return DW_OK;
}

/* Seconds of one call. best_s: of the fastest so far, or infinity; one that is far slower is told from one call by itself, its start included. */
static dw_status measure(tuning *t, trial *trial, const kernel_row *row, int variant, double best_s, double *seconds) {
    device *device = t->model->device;
    const kernel_tuned tuned = {INT64_MAX, variant};
    kernel_run run = {.call = {.context = t->context, .op = trial->c.op, .attrs = &trial->c.attrs, .n_in = trial->c.n_in, .in = trial->ins, .n_out = trial->c.n_out, .out = trial->outs},
                      .post = trial->c.post, .chip = &device->caps, .user = row->user, .tuned = &tuned, .tuned_count = variant >= 0};
    const size_t workspace = row->workspace ? row->workspace(&run) : 0;
    device_graph *graph;
    *seconds = 0;
    TRY(device->calls->alloc(device, workspace, &run.workspace));
    dw_status status = device->calls->graph_create(device, &graph);
    if (status == DW_OK) {
        status = time_calls(t, trial, row, &run, best_s, graph, seconds);
        device->calls->graph_release(device, graph);
    }
    device->calls->release(device, run.workspace, workspace);
    return status;
}

/* ---- the fastest ---- */

/* estimated, estimated_s: the kernel that the estimates choose, with the variant that it takes by itself. */
typedef struct fastest { const kernel_row *row, *estimated; const char *variant; double seconds, estimated_s; int tried; } fastest;

/* What a library takes is known when it is asked. */
static bool is_refused(dw_status status, const kernel_row *row) { return status == DW_UNSUPPORTED && (row->needs & CHIP_LIBRARIES) != 0; }

static dw_status try_one(tuning *t, trial *trial, const kernel_row *row, int variant, const char *name, fastest *best) {
    double seconds;
    dw_status status = measure(t, trial, row, variant, best->row != NULL ? best->seconds : INFINITY, &seconds);
    if (is_refused(status, row)) {
        text_printf(&t->out, "#   not %s %s: %s\n", row->name, name, dw_context_error(t->context));
        return base_poll(t->context);
    }
    TRY(status);
    best->tried++;
    if (best->row == NULL || seconds < best->seconds) {
        best->row = row;
        best->variant = name;
        best->seconds = seconds;
    }
    return base_poll(t->context);
}

static dw_status try_estimated(tuning *t, trial *trial, const kernel_row *row, fastest *best) {
    dw_status status = measure(t, trial, row, -1, best->seconds, &best->estimated_s);
    best->estimated = row;
    if (is_refused(status, row)) best->estimated_s = INFINITY;
    else TRY(status);
    return DW_OK;
}

static dw_status try_all(tuning *t, trial *trial, weights *w, fastest *best) {
    static const int64_t no_symbols[1] = {0};
    kernel_problem problem = {.context = t->context, .op = trial->c.op, .attrs = &trial->c.attrs, .post = trial->c.post, .n_in = trial->c.n_in, .n_out = trial->c.n_out,
                              .in = trial->c.in, .out = trial->c.out, .constant_in = 2, .dims = trial->dims, .symbols = no_symbols, .chip = &t->model->chip};
    kernel_choice choice;
    TRY(kernel_choose(&trial->arena, &problem, t->model->registry, NULL, &choice));
    TRY(make_operands(t, trial, w));
    for (int i = 0; i < choice.verdict_count; i++) {
        const kernel_row *row = choice.verdicts[i].row;
        const char *name;
        if (choice.verdicts[i].reason != NULL || row->registered) continue;
        if (choice.verdicts[i].seconds > 50 * choice.seconds) continue;    /* a plain kernel's milliseconds would only be waited for */
        if (row->variant == NULL) TRY(try_one(t, trial, row, -1, "", best));
        for (int k = 0; row->variant != NULL && (name = row->variant(&problem, k)) != NULL; k++)
            if (name[0] != '\0') TRY(try_one(t, trial, row, k, name, best));
    }
    return best->row != NULL ? try_estimated(t, trial, choice.row, best) : DW_OK;
}

static dw_status tune_rows(tuning *t, const char *line, int64_t rows, weights *w, plan_tuned *entry, fastest *best) {
    trial trial = {0};
    const char *words;
    *best = (fastest){0};
    arena_init(&trial.arena, t->context);
    dw_status status = put_rows(t, &trial, line, rows, &words);
    if (status == DW_OK) status = dim_table_create(t->context, &trial.dims);
    if (status == DW_OK) status = kernel_case_parse(&trial.arena, trial.dims, "product", 1, words, &trial.c);
    if (status == DW_OK) status = try_all(t, &trial, w, best);
    free_trial(t, &trial);
    if (status != DW_OK) return base_fail_at(t->context, status, "product \"%s\", %" PRId64 " rows", line, rows);
    if (best->row == NULL) return base_fail(t->context, DW_INTERNAL, "product \"%s\": nothing was measured", line);
    *entry = (plan_tuned){rows, best->row->name, best->variant};
    return DW_OK;
}

static void tell_estimated(tuning *t, const fastest *best) {
    const double ratio = best->estimated_s / best->seconds;
    if (isinf(ratio)) {
        text_printf(&t->out, "; by estimate %s, which refuses it\n", best->estimated->name);
        return;
    }
    text_printf(&t->out, "; by estimate %s, %.2fx\n", best->estimated->name, ratio);
    t->logs += log(ratio);
    t->compared++;
}

static dw_status tune_all_rows(tuning *t, const char *line, weights *w, plan_tuned_product *product) {
    for (size_t i = 0; i < COUNT_OF(measured_rows); i++) {
        fastest best;
        TRY(tune_rows(t, line, measured_rows[i], w, &product->rows[product->count++], &best));
        text_printf(&t->out, "#   %-7" PRId64 " %9.2f us %s %s, of %d", measured_rows[i], best.seconds * 1e6, best.row->name, best.variant, best.tried);
        tell_estimated(t, &best);
    }
    return DW_OK;
}

static dw_status tune_product(tuning *t, const char *line) {
    plan_tuned_product *product;
    weights w = {0};
    const double start = engine_now();
    if (map_find(&t->choices.products, line) != NULL) return DW_OK;
    TRY_NEW(product, &t->arena, 1);
    product->line = line;
    dw_status status = tune_all_rows(t, line, &w, product);
    free_weights(t, &w);
    TRY(status);
    text_printf(&t->out, "# of %s, in %.1f s\n", line, engine_now() - start);
    t->products++;
    return map_set(&t->choices.products, line, product);
}

static dw_status tune_plan(tuning *t, const plan *plan) {
    for (int i = plan != NULL ? plan->load_count : 0; plan != NULL && i < plan->step_count; i++) {
        const char *line;
        TRY(plan_product_line(&t->arena, plan, &plan->steps[i], &line));
        if (line != NULL) TRY(tune_product(t, line));
    }
    return DW_OK;
}

/* ---- keys ---- */

static uint64_t hash_kernels(void) {
    uint64_t hash = 0;
    for (int i = 0; i < kernel_count(); i++) hash = base_hash(kernel_at(i)->name, strlen(kernel_at(i)->name), hash);
    for (int i = 0; i < kernel_image_count(); i++) {
        size_t bytes;
        const char *why;
        const void *image = kernel_image(kernel_image_name(i), &bytes, &why);
        if (image != NULL) hash = base_hash(image, bytes, hash);
    }
    return hash;
}

/* What measurements are good for: this chip, driver, and kernels. */
static dw_status take_key(tuning *t, plan_tuning *key) {
    char driver[64];
    device *device = t->model->device;
    if (device == NULL) return base_fail(t->context, DW_UNSUPPORTED, "the CPU's kernels are chosen by estimates, and none of them has variants: name a GPU, --device cuda");
    if (device->calls->driver == NULL || !device->calls->driver(device, driver, sizeof driver))
        return base_fail(t->context, DW_UNSUPPORTED, "%s is simulated, and a simulation says nothing of time: tune on the GPU itself", device->caps.model);
    key->chip = arena_text(&t->arena, device->caps.model);
    key->driver = arena_text(&t->arena, driver);
    key->kernels = arena_printf(&t->arena, "%016" PRIx64, hash_kernels());
    return key->chip && key->driver && key->kernels ? DW_OK : DW_NO_MEMORY;
}

static bool is_same_key(const plan_tuning *a, const plan_tuning *b) {
    return strcmp(a->chip, b->chip) == 0 && strcmp(a->driver, b->driver) == 0 && strcmp(a->kernels, b->kernels) == 0;
}

dw_status engine_take_tuning(dw_model *model, const char *words, plan_tuning **result) {
    plan_tuning key = {0};
    tuning t = {.context = model->context, .model = model};
    *result = NULL;
    if (words == NULL) return DW_OK;
    arena_init(&t.arena, model->context);
    TRY_NEW(*result, &model->arena, 1);
    dw_status status = plan_tuning_parse(&model->arena, "tuning", words, strlen(words), *result);
    if (status == DW_OK) status = take_key(&t, &key);
    if (status == DW_OK && !is_same_key(*result, &key))
        status = base_fail(model->context, DW_MISMATCH, "the tuning is of %s under %s, kernels %s; this is %s under %s, kernels %s: tune again", (*result)->chip, (*result)->driver,
                           (*result)->kernels, key.chip, key.driver, key.kernels);
    arena_free(&t.arena);
    return status;
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
    tuning t = {.context = context, .model = &model};
    arena_init(&t.arena, context);
    dw_status status = open_for_key(context, device, &model);
    if (status == DW_OK) status = take_key(&t, &found);
    if (status == DW_OK && (size_t)snprintf(key, size, "%s-%s-%s", model.device->caps.name, found.driver, found.kernels) >= size)
        status = base_fail(context, DW_LIMIT, "the key of a tuning does not fit %zu bytes", size);
    for (char *at = key; status == DW_OK && *at != '\0'; at++)
        if (strchr(" /,", *at) != NULL) *at = '_';
    device_close(model.device);
    arena_free(&t.arena);
    return status;
}

static dw_status tune_model(tuning *t, const char *before) {
    plan_tuning key = {0};
    TRY(take_key(t, &key));
    if (before != NULL) TRY(plan_tuning_parse(&t->arena, "tuning", before, strlen(before), &t->choices));
    if (before != NULL && !is_same_key(&t->choices, &key))
        return base_fail(t->context, DW_MISMATCH, "the tuning that was there is of %s under %s, kernels %s: put it away, and tune anew", t->choices.chip, t->choices.driver, t->choices.kernels);
    if (before == NULL) map_init(&t->choices.products, &t->arena);
    t->choices.chip = key.chip;
    t->choices.driver = key.driver;
    t->choices.kernels = key.kernels;
    const plan *plans[] = {t->model->full.plan, t->model->step.plan, t->model->prelude.plan};
    dw_status status = DW_OK;
    for (size_t i = 0; i < COUNT_OF(plans) && status == DW_OK; i++) status = tune_plan(t, plans[i]);
    if (status != DW_OK && !(status == DW_CANCELLED && t->products > 0)) return status;
    if (t->compared > 0) text_printf(&t->out, "# choices by estimate take %.3fx the fastest (geometric mean of %d)\n", exp(t->logs / t->compared), t->compared);
    TRY(plan_tuning_print(&t->choices, &t->out));
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
    dw_status status = tune_model(&t, before);
    if (status == DW_OK || (status == DW_CANCELLED && t.products > 0)) sink(user, text_string(&t.out), t.out.length);
    text_free(&t.out);
    arena_free(&t.arena);
    dw_model_destroy(t.model);
    return status;
}
