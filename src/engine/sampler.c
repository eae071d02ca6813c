/* Tokens from rows of logits: the operands of one call of sample, and that call, on the host or on a device. */
#include "engine/sampler.h"

#include <float.h>
#include <inttypes.h>
#include <string.h>

#include "device/device.h"
#include "engine/engine.h"

enum { WORD = 32, LARGEST_CHOICE = 4 };

/* ---- memory ---- */

static size_t table_bytes(const engine_sampler *s, sampler_table table) {
    const size_t cols = table == SAMPLER_MASK ? (size_t)base_ceil_div(s->vocabulary, WORD) : (size_t)s->vocabulary;
    return (size_t)s->texts * cols * sizeof(int32_t);
}

static size_t row_bytes(const engine_sampler *s, sampler_table table) { return table_bytes(s, table) / (size_t)s->texts; }

static void *carve(uint8_t *memory, size_t *at, size_t bytes) {
    void *place = memory != NULL ? memory + *at : NULL;
    *at += base_align_up(bytes, ENGINE_ALIGN);
    return place;
}

/* Measures with memory NULL. */
static size_t lay_out(engine_sampler *s, uint8_t *memory) {
    size_t at = 0;
    const size_t rows = (size_t)s->rows;
    s->settings = carve(memory, &at, rows * SAMPLING_SETTINGS * sizeof *s->settings);
    s->draws = carve(memory, &at, rows * 2 * sizeof *s->draws);
    s->text = carve(memory, &at, rows * sizeof *s->text);
    s->ids = carve(memory, &at, rows * sizeof *s->ids);
    s->logs = carve(memory, &at, rows * sizeof *s->logs);
    for (int i = 0; i < SAMPLER_ON_DEVICE; i++) s->is_there[i] = carve(memory, &at, (size_t)s->texts * sizeof **s->is_there);
    return at;
}

/* The kernel of this machine. */
static dw_status find_kernel(engine_sampler *s) {
    TRY(device_probe_cpu(s->context, "", dw_context_threads(s->context), &s->chip));
    for (int i = 0; i < kernel_count() && s->kernel == NULL; i++) {
        const kernel_row *row = kernel_at(i);
        if (row->op == OP_sample && row->device == CHIP_CPU && (row->needs & ~s->chip.features) == 0) s->kernel = row;
    }
    return s->kernel != NULL ? DW_OK : base_fail(s->context, DW_UNSUPPORTED, "no kernel of this machine makes tokens");
}

/* ---- the call ---- */

typedef struct sampler_call {
    dw_tensor in[SAMPLE_OPERANDS], out[LARGEST_CHOICE];
    const dw_tensor *ins[SAMPLE_OPERANDS], *outs[LARGEST_CHOICE];
    op_attr length;
    op_attrs attrs;
    kernel_run run;
} sampler_call;

static dw_status put(const engine_sampler *s, const dw_tensor **place, dw_tensor *tensor, dw_format format, int64_t rows, int64_t cols, const void *memory) {
    const int64_t dims[] = {rows, cols};
    if (!op_tensor_init(tensor, format, DW_SCALE_plain, cols > 0 ? 2 : 1, dims, (void *)memory)) return base_fail(s->context, DW_LIMIT, "the logits of %lld texts overflow", (long long)rows);
    *place = tensor;
    return DW_OK;
}

static dw_status put_tables(const engine_sampler *s, sampler_call *c) {
    static const dw_format formats[] = {[SAMPLER_COUNTS] = DW_FORMAT_i32, [SAMPLER_BIAS] = DW_FORMAT_f32, [SAMPLER_MASK] = DW_FORMAT_i32};
    int64_t count = c->run.call.n_in;
    for (int i = 0; i < SAMPLER_TABLES; i++) {
        if (s->tables[i] == NULL) continue;
        const int operand = SAMPLE_COUNTS + i;
        TRY(put(s, &c->ins[operand], &c->in[operand], formats[i], s->texts, i == SAMPLER_MASK ? base_ceil_div(s->vocabulary, WORD) : s->vocabulary, s->tables[i]));
        count = operand + 1;
    }
    c->run.call.n_in = (int)count;
    return count > SAMPLE_ROW ? put(s, &c->ins[SAMPLE_ROW], &c->in[SAMPLE_ROW], DW_FORMAT_i64, c->in[SAMPLE_LOGITS].dims[0], 0, s->text) : DW_OK;
}

/* Its tensors point into the sampler. */
static dw_status make_call(const engine_sampler *s, const void *logits, int64_t count, sampler_call *c) {
    *c = (sampler_call){0};
    c->run.call = (op_call){.context = s->context, .op = op_get(OP_sample), .attrs = &c->attrs, .n_in = SAMPLE_ROW, .in = c->ins, .n_out = s->length > 0 ? 4 : 2, .out = c->outs};
    c->run.chip = &s->chip;
    TRY(base_pool(s->context, &c->run.pool));
    TRY(put(s, &c->ins[SAMPLE_LOGITS], &c->in[SAMPLE_LOGITS], s->format, count, s->vocabulary, logits));
    TRY(put(s, &c->ins[SAMPLE_PARAMETERS], &c->in[SAMPLE_PARAMETERS], DW_FORMAT_f32, count, SAMPLING_SETTINGS, s->settings));
    TRY(put(s, &c->ins[SAMPLE_DRAW], &c->in[SAMPLE_DRAW], DW_FORMAT_i64, count, 2, s->draws));
    TRY(put_tables(s, c));
    TRY(put(s, &c->outs[0], &c->out[0], DW_FORMAT_i64, count, 0, s->ids));
    TRY(put(s, &c->outs[1], &c->out[1], DW_FORMAT_f32, count, 0, s->logs));
    if (s->length == 0) return DW_OK;
    TRY(put(s, &c->outs[2], &c->out[2], DW_FORMAT_i64, count, s->length, s->best_ids));
    return put(s, &c->outs[3], &c->out[3], DW_FORMAT_f32, count, s->length, s->best_logs);
}

/* ---- use ---- */

dw_status engine_sampler_create(dw_context *context, device *device, int64_t vocabulary, dw_format format, int64_t rows, int64_t texts, engine_sampler **result) {
    engine_sampler *s;
    sampler_call call;
    *result = NULL;
    TRY(base_alloc(context, sizeof *s, _Alignof(engine_sampler), (void **)&s));
    *s = (engine_sampler){.context = context, .device = device, .vocabulary = vocabulary, .format = format, .rows = rows, .texts = texts};
    s->bytes = lay_out(s, NULL);
    dw_status status = base_alloc(context, s->bytes, ENGINE_ALIGN, &s->memory);
    if (status == DW_OK) {
        lay_out(s, s->memory);
        status = find_kernel(s);
    }
    if (status == DW_OK) status = make_call(s, NULL, rows, &call);
    if (status == DW_OK) {
        s->workspace_bytes = kernel_workspace(s->kernel, &call.run);
        status = base_alloc(context, s->workspace_bytes, ENGINE_ALIGN, &s->workspace);
    }
    if (status == DW_OK) *result = s;
    else engine_sampler_destroy(s);
    return status;
}

void engine_sampler_destroy(engine_sampler *s) {
    if (s == NULL) return;
    base_release(s->context, s->workspace, s->workspace_bytes, ENGINE_ALIGN);
    base_release(s->context, s->best_memory, s->best_bytes, ENGINE_ALIGN);
    base_release(s->context, s->memory, s->bytes, ENGINE_ALIGN);
    for (int i = 0; i < SAMPLER_TABLES; i++) base_release(s->context, s->tables[i], table_bytes(s, (sampler_table)i), ENGINE_ALIGN);
    for (int i = 0; i < SAMPLER_ON_DEVICE; i++)
        if (s->there[i] != NULL) s->device->calls->release(s->device, s->there[i], table_bytes(s, (sampler_table)i));
    base_release(s->context, s, sizeof *s, _Alignof(engine_sampler));
}

uint64_t engine_sampler_bytes(const engine_sampler *s) {
    uint64_t bytes = sizeof *s + s->bytes + s->best_bytes + s->workspace_bytes;
    for (int i = 0; i < SAMPLER_TABLES; i++) bytes += s->tables[i] != NULL ? table_bytes(s, (sampler_table)i) : 0;
    return bytes;
}

dw_status engine_sampler_use(engine_sampler *s, sampler_table table) {
    if (s->tables[table] != NULL) return DW_OK;
    TRY(base_alloc(s->context, table_bytes(s, table), ENGINE_ALIGN, &s->tables[table]));
    memset(s->tables[table], table == SAMPLER_MASK ? 0xff : 0, table_bytes(s, table));
    return DW_OK;
}

dw_status engine_sampler_tell(engine_sampler *s, int64_t length) {
    const size_t of_ids = base_align_up((size_t)(s->rows * length) * sizeof *s->best_ids, ENGINE_ALIGN), bytes = of_ids + (size_t)(s->rows * length) * sizeof *s->best_logs;
    void *memory;
    if (length == s->length) return DW_OK;
    if (length < 0 || length > s->vocabulary)
        return base_fail(s->context, DW_INVALID, "%lld of the likeliest tokens are asked for; the vocabulary has %lld", (long long)length, (long long)s->vocabulary);
    if (bytes > s->best_bytes) {
        TRY(base_alloc(s->context, bytes, ENGINE_ALIGN, &memory));
        base_release(s->context, s->best_memory, s->best_bytes, ENGINE_ALIGN);
        s->best_memory = memory;
        s->best_bytes = bytes;
    }
    s->length = length;
    s->best_ids = s->best_memory;
    s->best_logs = (float *)(void *)((uint8_t *)s->best_memory + of_ids);
    return DW_OK;
}

sampling_settings engine_sampler_settings(double temperature, int top_k, double top_p) {
    return (sampling_settings){.temperature = temperature < FLT_MAX ? (float)temperature : FLT_MAX, .top_k = (float)top_k, .top_p = (float)top_p, .repetition = 1};
}

void engine_sampler_ask(engine_sampler *s, int64_t row, const sampling_settings *settings, uint64_t seed, uint64_t draw, int64_t text) {
    float *at = s->settings + row * SAMPLING_SETTINGS;
    at[SAMPLING_TEMPERATURE] = settings->temperature;
    at[SAMPLING_TOP_K] = settings->top_k;
    at[SAMPLING_TOP_P] = settings->top_p;
    at[SAMPLING_MIN_P] = settings->min_p;
    at[SAMPLING_REPETITION] = settings->repetition;
    at[SAMPLING_PRESENCE] = settings->presence;
    at[SAMPLING_FREQUENCY] = settings->frequency;
    s->draws[2 * row] = (int64_t)seed;
    s->draws[2 * row + 1] = (int64_t)draw;
    s->text[row] = text;
}

dw_status engine_sampler_run(engine_sampler *s, const void *logits, int64_t count) {
    sampler_call call;
    TRY(make_call(s, logits, count, &call));
    call.run.workspace = s->workspace;
    return kernel_execute(s->kernel, &call.run);
}

/* ---- on a device ---- */

/* Settings, draws and rows of tables, which go there, and what comes back, in this order, from where memory is. */
static size_t place_on_device(const engine_sampler *s, uint8_t *memory, engine_sampler *placed) {
    size_t at = 0;
    placed->settings = carve(memory, &at, (size_t)s->rows * SAMPLING_SETTINGS * sizeof *s->settings);
    placed->draws = carve(memory, &at, (size_t)s->rows * 2 * sizeof *s->draws);
    placed->text = carve(memory, &at, (size_t)s->rows * sizeof *s->text);
    placed->logs = carve(memory, &at, (size_t)s->rows * sizeof *s->logs);
    placed->best_ids = carve(memory, &at, (size_t)(s->rows * SAMPLER_TOLD) * sizeof *s->best_ids);
    placed->best_logs = carve(memory, &at, (size_t)(s->rows * SAMPLER_TOLD) * sizeof *s->best_logs);
    return at;
}

size_t engine_sampler_device_bytes(const engine_sampler *s) {
    engine_sampler placed = *s;
    return place_on_device(s, NULL, &placed);
}

static const kernel_row *row_on(const device *device, op_id op) {
    for (int i = 0; i < kernel_count(); i++) {
        const kernel_row *row = kernel_at(i);
        if (row->op == op && row->device == device->caps.kind && (row->needs & ~device->caps.features) == 0) return row;
    }
    return NULL;
}

void engine_sampler_send(const engine_sampler *s, int64_t count, void *there, void *host, kernel_piece *piece) {
    engine_sampler here = *s, placed = *s;
    place_on_device(s, host, &here);
    place_on_device(s, there, &placed);
    memcpy(here.settings, s->settings, (size_t)count * SAMPLING_SETTINGS * sizeof *s->settings);
    memcpy(here.draws, s->draws, (size_t)count * 2 * sizeof *s->draws);
    memcpy(here.text, s->text, (size_t)count * sizeof *s->text);
    *piece = (kernel_piece){placed.settings, here.settings, (size_t)((uint8_t *)here.text - (uint8_t *)here.settings) + (size_t)count * sizeof *s->text};
}

dw_status engine_sampler_place(engine_sampler *s, sampler_table table) {
    const size_t bytes = table_bytes(s, table);
    if (s->there[table] != NULL) return DW_OK;
    const dw_status status = s->device->calls->alloc(s->device, bytes, &s->there[table]);
    if (status != DW_NO_MEMORY) return status;
    return base_fail(s->context, DW_LIMIT, "%s of %" PRId64 " texts take %zu bytes of %s, which has not as many: give the cache fewer bytes, or take fewer rows", table == SAMPLER_BIAS ? "biases" : "counts of tokens, for penalties,",
                     s->texts, bytes, s->device->caps.model);
}

/* The row as the host has it. */
static dw_status bring_row(engine_sampler *s, sampler_table table, int64_t text) {
    const size_t bytes = row_bytes(s, table), at = (size_t)text * bytes;
    TRY(s->device->calls->write(s->device, (uint8_t *)s->there[table] + at, (const uint8_t *)s->tables[table] + at, bytes));
    s->is_there[table][text] = true;
    return DW_OK;
}

dw_status engine_sampler_bring(engine_sampler *s, int64_t text) {
    for (int i = 0; i < SAMPLER_ON_DEVICE; i++)
        if (s->there[i] != NULL && !s->is_there[i][text]) TRY(bring_row(s, (sampler_table)i, text));
    return DW_OK;
}

void engine_sampler_changed(engine_sampler *s, int64_t text) {
    if (s->device == NULL) return;
    for (int i = 0; i < SAMPLER_ON_DEVICE; i++)
        for (int64_t t = text < 0 ? 0 : text; t < (text < 0 ? s->texts : text + 1); t++) s->is_there[i][t] = false;
}

/* What was drawn is counted, of rows that have a text. */
static dw_status launch_tally(const engine_sampler *s, int64_t count, const void *ids, const int64_t *text) {
    const kernel_row *row = row_on(s->device, OP_tally);
    const op_attrs attrs = {0};
    dw_tensor in[3], out;
    const dw_tensor *ins[3], *outs[1];
    kernel_run run = {.call = {.context = s->context, .op = op_get(OP_tally), .attrs = &attrs, .n_in = 3, .in = ins, .n_out = 1, .out = outs}, .chip = &s->device->caps};
    if (row == NULL) return base_fail(s->context, DW_UNSUPPORTED, "no kernel of %s counts tokens", s->device->caps.model);
    TRY(put(s, &ins[TALLY_X], &in[TALLY_X], DW_FORMAT_i32, s->texts, s->vocabulary, s->there[SAMPLER_COUNTS]));
    TRY(put(s, &ins[TALLY_IDS], &in[TALLY_IDS], DW_FORMAT_i64, count, 0, ids));
    TRY(put(s, &ins[TALLY_ROW], &in[TALLY_ROW], DW_FORMAT_i64, count, 0, text));
    TRY(put(s, &outs[0], &out, DW_FORMAT_i32, s->texts, s->vocabulary, s->there[SAMPLER_COUNTS]));
    return s->device->calls->run(s->device, row, &run);
}

dw_status engine_sampler_launch(const engine_sampler *s, const void *logits, int64_t count, void *ids, void *there, void *host, sampler_made *made, kernel_piece *back, int *back_count) {
    sampler_call call;
    engine_sampler here = *s, placed = *s;
    const kernel_row *row = row_on(s->device, OP_sample);
    bool any = false;
    if (row == NULL) return base_fail(s->context, DW_UNSUPPORTED, "no kernel of %s makes tokens", s->device->caps.model);
    place_on_device(s, host, &here);
    place_on_device(s, there, &placed);
    placed.ids = ids;
    for (int64_t i = 0; i < count; i++) any = any || s->text[i] >= 0;
    for (int i = 0; i < SAMPLER_TABLES; i++) placed.tables[i] = any && i < SAMPLER_ON_DEVICE ? s->there[i] : NULL;
    TRY(make_call(&placed, logits, count, &call));
    call.run.invariant = s->invariant;
    *made = (sampler_made){here.best_ids, here.logs, here.best_logs, s->length};
    back[0] = (kernel_piece){here.logs, placed.logs, (size_t)count * sizeof *s->logs};
    back[1] = (kernel_piece){here.best_ids, placed.best_ids, (size_t)(count * s->length) * sizeof *s->best_ids};
    back[2] = (kernel_piece){here.best_logs, placed.best_logs, (size_t)(count * s->length) * sizeof *s->best_logs};
    *back_count = s->length > 0 ? 3 : 1;
    TRY(s->device->calls->run(s->device, row, &call.run));
    return placed.tables[SAMPLER_COUNTS] != NULL ? launch_tally(s, count, ids, placed.text) : DW_OK;
}

dw_status engine_sampler_check(dw_context *context, int64_t id) {
    static const char *const reasons[] = {
        [-SAMPLING_NOT_FINITE] = "a logit is NaN or infinite: the model's numbers leave their range, or bias and penalties do",
        [-SAMPLING_NOTHING_LEFT] = "no id is left: the mask and the bias leave none, or each logit is -inf",
        [-SAMPLING_BAD_SETTINGS] = "temperature, top_k, top_p, min_p or a penalty is out of range",
    };
    return id >= 0 ? DW_OK : base_fail(context, DW_INVALID, "no token can be made: %s", reasons[-id]);
}
