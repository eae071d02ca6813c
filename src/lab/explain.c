/* What is printed of a model, of capture and of the machine: graphs, plans, facts, in words or as JSON. */
#include "lab/explain.h"

#include <stdlib.h>
#include <string.h>

#include "capture/capture.h"
#include "device/device.h"

static dw_status emit(const text *out, dw_sink sink, void *user) {
    TRY(text_status(out));
    sink(user, text_string(out), out->length);
    return DW_OK;
}

/* JSON on its way to a sink, some kilobytes at a time: its text can be many times the facts. */
typedef struct page { char bytes[8192]; size_t used; dw_sink sink; void *user; } page;

static void turn(page *page) {
    if (page->used > 0) page->sink(page->user, page->bytes, page->used);
    page->used = 0;
}

static int write_page(const char *bytes, size_t length, void *user) {
    page *page = user;
    while (length > 0) {
        size_t room = sizeof page->bytes - page->used, part = length < room ? length : room;
        memcpy(page->bytes + page->used, bytes, part);
        page->used += part;
        bytes += part;
        length -= part;
        if (page->used == sizeof page->bytes) turn(page);
    }
    return 0;
}

dw_status explain_emit_json(dw_context *context, json_t *facts, dw_sink sink, void *user) {
    page page = {.sink = sink, .user = user};
    bool done = facts != NULL && json_dump_callback(facts, write_page, &page, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) == 0;
    json_decref(facts);
    if (!done) return base_fail(context, DW_NO_MEMORY, "the facts of the model do not fit in memory");
    write_page("\n", 1, &page);
    turn(&page);
    return DW_OK;
}

static dw_status print_memory(const plan *plan, text *out) {
    plan_binding binding;
    TRY(plan_binding_create(plan->context, plan, &binding));
    dw_status status = plan_bind(&binding, plan->typical);
    if (status == DW_OK) {
        text_printf(out, "workspace of %zu bytes\n", binding.value_bytes);
        status = plan_print_memory(&binding, out);
    }
    plan_binding_destroy(&binding);
    return status;
}

static dw_status print_text(const dw_model *model, dw_print what, text *out) {
    const plan *full = model->full.plan ? model->full.plan : model->step.plan;
    switch (what) {
    case DW_PRINT_CAPTURED:
    case DW_PRINT_FUSED:    {
        const ir_graph *graph = what == DW_PRINT_CAPTURED ? model->captured : model->fused;
        if (graph == NULL) return base_fail(model->context, DW_UNSUPPORTED, "%s is compiled: it holds no graph before precision", model->file);
        return ir_print(graph, out);
    }
    case DW_PRINT_GRAPH: return ir_print(full->graph, out);
    case DW_PRINT_STEP:
        if (model->step.plan == NULL) return base_fail(model->context, DW_UNSUPPORTED, "%s has no cached step: %s", model->file, model->no_step);
        if (model->prelude.plan != NULL) TRY(ir_print(model->prelude.plan->graph, out));
        return ir_print(model->step.plan->graph, out);
    case DW_PRINT_PLAN:    return plan_print(full, out);
    case DW_PRINT_MEMORY:  return print_memory(full, out);
    case DW_PRINT_SUMMARY:
    case DW_PRINT_EXPLAIN: break;
    }
    json_t *facts = facts_of(model, what);
    if (facts == NULL) return base_fail(model->context, DW_NO_MEMORY, "the facts of the model do not fit in memory");
    (what == DW_PRINT_SUMMARY ? words_print_summary : words_print_explain)(out, facts);
    json_decref(facts);
    return DW_OK;
}

dw_status dw_model_print(const dw_model *model, dw_print what, int json, dw_sink sink, void *user) {
    if (json && (what == DW_PRINT_SUMMARY || what == DW_PRINT_EXPLAIN)) return explain_emit_json(model->context, facts_of(model, what), sink, user);
    text out;
    text_init(&out, model->context);
    dw_status status = print_text(model, what, &out);
    if (status == DW_OK) status = emit(&out, sink, user);
    text_free(&out);
    return status;
}

dw_status dw_operators(dw_context *context, int json, dw_sink sink, void *user) {
    text out;
    json_t *rows = json_array();
    text_init(&out, context);
    for (int i = 0; i < capture_operator_count(); i++) {
        capture_operator row = capture_operator_at(i);
        json_array_append_new(rows, json_pack("{s:s, s:s, s:s, s:b}", "target", row.target, "arguments", row.arguments, "becomes", row.becomes,
                                              "in_place", row.in_place));
        text_printf(&out, "%-48s %s%s\n", row.target, row.becomes, row.in_place ? " (in place too)" : "");
    }
    dw_status status = json ? explain_emit_json(context, json_incref(rows), sink, user) : emit(&out, sink, user);
    json_decref(rows);
    text_free(&out);
    return status;
}

dw_status dw_precisions(dw_context *context, int json, dw_sink sink, void *user) {
    text out;
    json_t *rows = json_array();
    const pass_precision_row *row;
    text_init(&out, context);
    for (int i = 0; (row = pass_precision_get(i)) != NULL; i++) {
        const char *weight = dw_format_name(row->weight), *activation = dw_format_name(row->activation);
        json_array_append_new(rows, json_pack("{s:s, s:s, s:s, s:s}", "name", row->name, "weight", weight, "activation", activation, "meaning", row->meaning));
        text_printf(&out, "%-20s %-12s %-12s %s\n", row->name, weight, activation, row->meaning);
    }
    dw_status status = json ? explain_emit_json(context, json_incref(rows), sink, user) : emit(&out, sink, user);
    json_decref(rows);
    text_free(&out);
    return status;
}

static json_t *features_json(const chip_caps *caps) {
    json_t *features = json_array();
    for (int i = 0; i < CHIP_FEATURE_COUNT; i++)
        if (chip_has(caps, (chip_feature)i)) json_array_append_new(features, json_string(chip_feature_name((chip_feature)i)));
    return features;
}

static json_t *rate_or_null(double rate) { return rate > 0 ? json_real(rate) : json_null(); }

/* By rate; null: not published, no such unit, or measured by nobody. */
static json_t *rates_json(const chip_caps *caps) {
    json_t *rates = json_object();
    for (int i = 0; i < CHIP_RATE_COUNT; i++)
        json_object_set_new(rates, chip_rate_name((chip_rate)i), json_pack("{s:o, s:o}", "nominal", rate_or_null(caps->rates[i].nominal), "measured", rate_or_null(caps->rates[i].measured)));
    return rates;
}

static json_t *measurements_json(const chip_caps *caps) {
    json_t *list = json_array();
    const chip_measurement *m;
    for (int i = 0; (m = chip_measurement_at(i)) != NULL; i++) {
        if (strcmp(m->chip, caps->name) != 0) continue;
        json_array_append_new(list, json_pack("{s:s, s:f, s:b, s:s, s:s}", "rate", chip_rate_name(m->rate), "value", m->value * chip_rate_scale(m->rate), "instruction_alone", m->alone,
                                              "date", m->date, "source", m->source));
    }
    return list;
}

/* Each GPU that can be opened, as a line or an object; when there is none, why. */
static dw_status list_gpus(dw_context *context, text *out, json_t *list) {
    enum { MOST = 64 };
    for (int i = 0; i < MOST; i++) {
        char name[16], driver[128] = "";
        device *gpu;
        snprintf(name, sizeof name, "cuda:%d", i);
        dw_status status = device_open(context, name, &gpu);
        if (status == DW_NO_MEMORY || status == DW_CANCELLED) return status;
        if (status != DW_OK) {
            if (i == 0 && out != NULL) text_printf(out, "gpus: none (%s)\n", dw_context_error(context));
            return DW_OK;
        }
        if (gpu->calls->driver != NULL) gpu->calls->driver(gpu, driver, sizeof driver);
        if (out != NULL) {
            text_printf(out, "%s ", name);
            chip_print(out, &gpu->caps);
            text_printf(out, "  driver and libraries: %s\n", driver);
        }
        if (list != NULL)
            json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:o, s:I, s:o}", "device", name, "driver", driver, "level", gpu->caps.name, "model",
                                                  gpu->caps.model, "arch", gpu->caps.arch, "multiprocessors", gpu->caps.units, "features", features_json(&gpu->caps), "memory_bytes", (json_int_t)gpu->caps.memory_bytes,
                                                  "rates", rates_json(&gpu->caps)));
        device_close(gpu);
    }
    return DW_OK;
}

dw_status dw_chip(dw_context *context, const char *name, int json, dw_device_sink sink, void *user) {
    chip_caps caps;
    text out;
    TRY(chip_find(context, name, 0, &caps));
    if (json) {
        json_t *facts = json_pack("{s:s, s:i, s:i, s:o, s:I, s:o, s:o}", "level", caps.name, "arch", caps.arch, "multiprocessors", caps.units, "features", features_json(&caps), "memory_bytes",
                                  (json_int_t)caps.memory_bytes, "rates", rates_json(&caps), "measurements", measurements_json(&caps));
        return explain_emit_json(context, facts, sink, user);
    }
    text_init(&out, context);
    chip_print(&out, &caps);
    if (caps.kind == CHIP_GPU) chip_print_rates(&out, &caps);
    dw_status status = emit(&out, sink, user);
    text_free(&out);
    return status;
}

dw_status dw_probe(dw_context *context, int json, dw_device_sink sink, void *user) {
    chip_caps caps;
    text out;
    TRY(device_probe_cpu(context, "", dw_context_threads(context), &caps));
    if (json) {
        json_t *features = features_json(&caps), *gpus = json_array();
        dw_status status = list_gpus(context, NULL, gpus);
        json_t *cpu = json_pack("{s:s, s:s, s:i, s:o, s:I}", "level", caps.name, "model", caps.model, "threads", caps.units, "features", features,
                                "memory_bytes", (json_int_t)caps.memory_bytes);
        json_t *facts = json_pack("{s:s, s:o, s:o, s:b}", "version", dw_version(), "cpu", cpu, "gpus", gpus, "gpu_code", kernel_lacks_images() == NULL);
        if (status == DW_OK) return explain_emit_json(context, facts, sink, user);
        json_decref(facts);
        return status;
    }
    text_init(&out, context);
    chip_print(&out, &caps);
    dw_status status = list_gpus(context, &out, NULL);
    if (kernel_lacks_images() != NULL) text_printf(&out, "gpu code: none (%s)\n", kernel_lacks_images());
    if (status == DW_OK) status = emit(&out, sink, user);
    text_free(&out);
    return status;
}
