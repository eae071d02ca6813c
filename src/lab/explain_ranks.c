/* Of a model that is cut over ranks: how each layer is, why, what a rank sends, and what the layer takes beside what it would take whole, which is the next best that a line of a policy can ask for. Layers that
 * differ in numbers of their names alone are told together. */
#include "lab/explain.h"

#include <stdlib.h>
#include <string.h>

/* What a rank sends at least of one collective at the typical sizes. Of a sum each element goes round twice but for its own part; of what is gathered each rank's part goes to all others. */
static double sent_bytes(const plan *plan, const ir_node *node) {
    const double ranks = (double)op_attr_int(&node->attrs, OP_ATTR_ranks);
    dw_tensor tensor;
    if (op_tensor_bind(plan->context, &ir_in(node, 0)->type, plan->typical, NULL, &tensor) != DW_OK) return 0;
    const double bytes = op_tensor_bytes(&tensor);
    switch (node->op) {
    case OP_all_reduce: return 2 * bytes * (ranks - 1) / ranks;
    case OP_all_gather: return bytes * (ranks - 1);
    default: return bytes * (ranks - 1) / ranks;
    }
}

static void add_plan(json_t *plans, const char *of, const plan *cut, const plan *whole) {
    double bytes = 0, seconds = 0, all = 0, alone = 0;
    int count = 0;
    if (cut == NULL) return;
    for (int i = cut->load_count; i < cut->step_count; i++) {
        const plan_step *step = &cut->steps[i];
        all += step->seconds;
        if (!op_has(step->node->op, OP_TRAIT_COLLECTIVE)) continue;
        bytes += sent_bytes(cut, step->node);
        seconds += step->seconds;
        count++;
    }
    for (int i = whole != NULL ? whole->load_count : 0; whole != NULL && i < whole->step_count; i++) alone += whole->steps[i].seconds;
    json_t *one = json_pack("{s:s, s:i, s:f, s:f, s:f}", "of", of, "collectives", count, "sent_bytes", bytes, "collectives_us", seconds * 1e6, "us", all * 1e6);
    if (whole != NULL) json_object_set_new(one, "whole_us", json_real(alone * 1e6));
    json_array_append_new(plans, one);
}

/* Bytes that a rank sends for a draw, a row of logits of which it has a part: each of its likeliest, or the part. NULL: each rank has all. */
static json_t *draw_json(const ir_graph *step) {
    int64_t columns;
    const int logits = incremental_find_logits(step, &columns);
    const ir_node *told = step->first;
    while (told != NULL && !op_has(told->op, OP_TRAIT_COLLECTIVE)) told = told->next;
    if (logits < 0 || told == NULL || map_find(&step->notes, STEP_NOTE_VOCABULARY) == NULL) return NULL;
    const double others = (double)ir_int(told, OP_ATTR_ranks) - 1;
    const double size = dw_format_bits(step->outputs[logits].value->type.format) / 8;
    return json_pack("{s:f, s:i, s:f}", "candidate_bytes", ((double)sizeof(int32_t) + size) * others, "most", GENERATION_CANDIDATES, "row_bytes", (double)columns * size * others);
}

/* ---- layers ---- */

static void add_to(json_t *object, const char *key, double more) { json_object_set_new(object, key, json_real(json_number_value(json_object_get(object, key)) + more)); }

/* Seconds of each pattern's steps, and of its collectives, under "us" and "collectives_us", or under one key. */
static void add_steps(json_t *times, const plan *plan, const char *key, bool cut) {
    for (int i = plan->load_count; i < plan->step_count; i++) {
        const plan_step *step = &plan->steps[i];
        const char *module = step->node->origin.module;
        if (module == NULL || module[0] == '\0') continue;
        char *pattern = explain_pattern(module);
        if (pattern == NULL) return;
        if (json_object_get(times, pattern) == NULL) json_object_set_new(times, pattern, json_object());
        json_t *row = json_object_get(times, pattern);
        const bool sends = cut && op_has(step->node->op, OP_TRAIT_COLLECTIVE);
        add_to(row, sends ? "collectives_us" : key, step->seconds * 1e6);
        if (sends) add_to(row, "sent_bytes", sent_bytes(plan, step->node));
        free(pattern);
    }
}

/* Lines "name split reason" of the report, those of one pattern and split once, with their number. */
static json_t *splits_json(const char *report) {
    json_t *rows = json_array();
    for (const char *at = report; *at != '\0'; at = strchr(at, '\n') + 1) {
        char name[256], split[32], reason[256] = "";
        size_t index;
        json_t *row;
        bool found = false;
        if (strchr(at, '\n') == NULL || sscanf(at, " %255s %31s %255[^\n]", name, split, reason) < 2) break;
        char *pattern = explain_pattern(name);
        if (pattern == NULL) break;
        json_array_foreach(rows, index, row) {
            if (strcmp(json_string_value(json_object_get(row, "layers")), pattern) != 0 || strcmp(json_string_value(json_object_get(row, "split")), split) != 0 ||
                strcmp(json_string_value(json_object_get(row, "reason")), reason) != 0) continue;
            json_object_set_new(row, "count", json_integer(json_integer_value(json_object_get(row, "count")) + 1));
            found = true;
        }
        if (!found) json_array_append_new(rows, json_pack("{s:s, s:s, s:s, s:i}", "layers", pattern, "split", split, "reason", reason, "count", 1));
        free(pattern);
    }
    return rows;
}

/* Is it a line of a policy, of a layer that can be cut? What is only put together in front of a node is none. */
static bool is_line(const json_t *row) {
    static const char *const others[] = {"its parts are put together", "op "};
    const char *reason = json_string_value(json_object_get(row, "reason"));
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (strncmp(reason, others[i], strlen(others[i])) == 0) return false;
    return strcmp(json_string_value(json_object_get(row, "split")), "as-it-is") != 0;
}

/* "pattern = split" of each pattern, as --shard takes them. */
static json_t *lines_json(const json_t *rows) {
    json_t *lines = json_array(), *seen = json_object();
    size_t index;
    const json_t *row;
    json_array_foreach(rows, index, row) {
        const char *layers = json_string_value(json_object_get(row, "layers"));
        if (!is_line(row) || json_object_get(seen, layers) != NULL) continue;
        json_object_set_new(seen, layers, json_true());
        json_array_append_new(lines, json_sprintf("%s = %s", layers, json_string_value(json_object_get(row, "split"))));
    }
    json_decref(seen);
    return lines;
}

/* The same graph on one rank, planned for the same chip; NULL: there is no graph any more. */
static dw_model *plan_whole(const dw_model *model) {
    dw_model_options options = model->options;
    ir_graph *graph;
    dw_model *whole = NULL;
    if (model->captured == NULL || ir_graph_clone(model->captured, &graph) != DW_OK) return NULL;
    options.comm = NULL;
    options.mesh = options.shard = NULL;
    if (model->chip.kind == CHIP_GPU) options.chip = model->chip.name;
    options.flags = DW_MODEL_PLAN_ONLY | (model->flags & (DW_MODEL_GENERATE | DW_MODEL_GENERATE_ONLY));
    return dw_model_create(model->context, graph, &options, &whole) == DW_OK ? whole : NULL;
}

json_t *explain_ranks(const dw_model *model) {
    const char *mesh = model->options.comm != NULL ? dw_comm_mesh(model->options.comm) : model->options.mesh;
    if (mesh == NULL) return NULL;
    dw_model *whole = plan_whole(model);
    const plan *plan = model->full.plan != NULL ? model->full.plan : model->step.plan;
    json_t *facts = json_pack("{s:s, s:o}", "mesh", mesh, "splits", splits_json(model->split_report)), *plans = json_array(), *times = json_object();
    json_object_set_new(facts, "lines", lines_json(json_object_get(facts, "splits")));
    add_plan(plans, "a whole run", model->full.plan, whole != NULL ? whole->full.plan : NULL);
    add_plan(plans, "what is computed once for each text", model->prelude.plan, whole != NULL ? whole->prelude.plan : NULL);
    add_plan(plans, "the cached step", model->step.plan, whole != NULL ? whole->step.plan : NULL);
    add_steps(times, plan, "us", true);
    if (whole != NULL) add_steps(times, model->full.plan != NULL ? whole->full.plan : whole->step.plan, "whole_us", false);
    json_object_set_new(facts, "runs", plans);
    json_t *draw = model->step.plan != NULL ? draw_json(model->step.plan->graph) : NULL;
    if (draw != NULL) json_object_set_new(facts, "draw", draw);
    json_object_set_new(facts, "times", times);
    json_object_set_new(facts, "weight_bytes", json_integer((json_int_t)dw_model_weight_bytes(model)));
    if (whole != NULL) json_object_set_new(facts, "whole_weight_bytes", json_integer((json_int_t)dw_model_weight_bytes(whole)));
    dw_model_destroy(whole);
    return facts;
}

/* ---- words ---- */

static double number(const json_t *row, const char *key) { return json_number_value(json_object_get(row, key)); }
static const char *string(const json_t *row, const char *key) { return json_string_value(json_object_get(row, key)); }

static void print_splits(text *out, const json_t *rows) {
    size_t index;
    const json_t *row;
    json_array_foreach(rows, index, row) {
        const long long count = (long long)json_integer_value(json_object_get(row, "count"));
        text_printf(out, "  %-44s %-11s %s", string(row, "layers"), string(row, "split"), string(row, "reason"));
        text_printf(out, count > 1 ? " (%lld)\n" : "\n", count);
    }
}

static void print_lines(text *out, const json_t *lines) {
    size_t index;
    const json_t *line;
    text_add(out, "  the same as lines that --shard takes\n");
    json_array_foreach(lines, index, line) text_printf(out, "    %s\n", json_string_value(line));
}

static void print_times(text *out, json_t *times) {
    const char *layers;
    json_t *row;
    text_add(out, "  layers, at the typical sizes                  a rank us    collectives us   sends kB    whole us\n");
    json_object_foreach(times, layers, row) {
        if (json_object_get(row, "us") == NULL && json_object_get(row, "collectives_us") == NULL) continue;
        text_printf(out, "  %-44s %10.1f %17.1f %10.1f ", layers, number(row, "us"), number(row, "collectives_us"), number(row, "sent_bytes") / 1e3);
        if (json_object_get(row, "whole_us") != NULL) text_printf(out, "%11.1f", number(row, "whole_us"));
        text_add(out, "\n");
    }
}

void words_print_ranks(text *out, const json_t *facts) {
    size_t index;
    const json_t *one;
    text_printf(out, "ranks %s: how layers are cut\n", string(facts, "mesh"));
    print_splits(out, json_object_get(facts, "splits"));
    print_lines(out, json_object_get(facts, "lines"));
    print_times(out, json_object_get(facts, "times"));
    json_array_foreach(json_object_get(facts, "runs"), index, one) {
        text_printf(out, "  %s: %.1f us estimated, of which %lld collectives %.1f, in which a rank sends %.1f kB or more", string(one, "of"), number(one, "us"),
                    (long long)json_integer_value(json_object_get(one, "collectives")), number(one, "collectives_us"), number(one, "sent_bytes") / 1e3);
        if (json_object_get(one, "whole_us") != NULL) text_printf(out, "; on one rank %.1f us", number(one, "whole_us"));
        text_add(out, "\n");
    }
    const json_t *draw = json_object_get(facts, "draw");
    if (draw != NULL)
        text_printf(out, "  a draw, of each row of logits: a rank sends %.0f B for each of top_k up to %lld, else its part, %.1f kB; the likeliest token needs no more than the step sends\n", number(draw, "candidate_bytes"),
                    (long long)json_integer_value(json_object_get(draw, "most")), number(draw, "row_bytes") / 1e3);
    text_printf(out, "  weights of a rank: %.2f MB", number(facts, "weight_bytes") / 1e6);
    if (json_object_get(facts, "whole_weight_bytes") != NULL) text_printf(out, "; of the whole: %.2f MB", number(facts, "whole_weight_bytes") / 1e6);
    text_add(out, "\n");
}
