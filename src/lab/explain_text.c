/* What a model is and why it runs as it does, in words: made of the facts (explain_facts.c) alone, so that both always say the same. */
#include "lab/explain.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *member(const json_t *facts, const char *key) {
    const char *value = json_string_value(json_object_get(facts, key));
    return value ? value : "";
}

static void print_ops(text *out, const char *title, json_t *ops) {
    const char *name;
    json_t *count;
    int64_t total = 0;
    json_object_foreach(ops, name, count) total += json_integer_value(count);
    text_printf(out, "%s%" PRId64 " ops:", title, total);
    json_object_foreach(ops, name, count) text_printf(out, " %s x%" PRId64, name, (int64_t)json_integer_value(count));
    text_add(out, "\n");
}

static void print_symbols(text *out, const json_t *symbols) {
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)(uintptr_t)symbols, i, row) {
        const json_t *max = json_object_get(row, "max");
        text_printf(out, "%s%s=%" PRId64 " (%" PRId64 "..", i ? ", " : "", member(row, "name"),
                    (int64_t)json_integer_value(json_object_get(row, "typical")), (int64_t)json_integer_value(json_object_get(row, "min")));
        if (max != NULL) text_printf(out, "%" PRId64, (int64_t)json_integer_value(max));
        text_add(out, ")");
    }
}

void words_print_summary(text *out, const json_t *facts) {
    size_t i;
    json_t *row;
    text_printf(out, "%s: graph %s\n", member(facts, "file"), member(facts, "graph"));
    text_printf(out, "  parameters  %.3f million, %.2f MB\n", (double)json_integer_value(json_object_get(facts, "parameters")) / 1e6,
                (double)json_integer_value(json_object_get(facts, "parameter_bytes")) / 1e6);
    json_array_foreach(json_object_get(facts, "inputs"), i, row) text_printf(out, "  input       %s %s\n", member(row, "name"), member(row, "type"));
    json_array_foreach(json_object_get(facts, "outputs"), i, row) text_printf(out, "  output      %s %s\n", member(row, "name"), member(row, "type"));
    text_add(out, "  sizes       ");
    print_symbols(out, json_object_get(facts, "symbols"));
    text_printf(out, "\n  work        %.4g GFLOP at these sizes\n", json_real_value(json_object_get(facts, "flops")) / 1e9);
    print_ops(out, "  captured    ", json_object_get(facts, "ops"));
    print_ops(out, "  to run      ", json_object_get(facts, "fused_ops"));
    text_printf(out, "  generation with a cache: %s\n", member(facts, "cached_generation"));
    text_printf(out, "  texts of a service go together and share pages: %s\n", member(facts, "shared_generation"));
}

/* Two steps with the same kernel and the same words for the others are explained once. */
static void print_choices(text *out, const json_t *steps) {
    json_t *seen = json_object();
    size_t i, k;
    json_t *step, *other;
    json_array_foreach((json_t *)(uintptr_t)steps, i, step) {
        const char *because = json_string_value(json_object_get(step, "because"));
        text why;
        text_init(&why, out->context);
        json_array_foreach(json_object_get(step, "others"), k, other) {
            const char *refused = json_string_value(json_object_get(other, "refused"));
            if (refused != NULL) text_printf(&why, "      not %s: %s\n", member(other, "kernel"), refused);
            else if (strncmp(member(other, "kernel"), "reference_", 10) != 0)
                text_printf(&why, "      not %s: %s\n", member(other, "kernel"),
                            because != NULL ? "not what was chosen" : json_is_true(json_object_get(other, "by_name")) ? "taken only where it is asked for" : "slower by estimate");
        }
        if (json_object_get(step, "passed_over") != NULL)
            text_printf(&why, "      passed over, to be invariant: %s; by estimate %.1f us more for it\n", member(step, "passed_over"), json_real_value(json_object_get(step, "invariant_us")));
        char *key = NULL;
        json_t *joined = json_sprintf("%s %s\n%s", member(step, "kernel"), because ? because : "", text_string(&why));
        key = strdup(json_string_value(joined) ? json_string_value(joined) : "");
        json_decref(joined);
        if (key != NULL && json_object_get(seen, key) == NULL) {
            json_object_set_new(seen, key, json_true());
            text_printf(out, "    %s %s: %s%s%s\n%s", member(step, "op"), member(step, "format"),
                        strncmp(member(step, "kernel"), "reference_", 10) == 0 ? "reference kernel, no other accepts" : member(step, "kernel"), because ? ", " : "",
                        because == NULL ? "" : strcmp(because, "measured") == 0 ? "by tuning: the fastest of those measured" : because, text_string(&why));
        }
        free(key);
        if (text_status(&why) != DW_OK) out->status = text_status(&why);
        text_free(&why);
    }
    json_decref(seen);
}

/* "launches matmul_decode, matmul_bf16_m128n128", of a GPU's step: several of one kernel are one name. */
static void print_launches(text *out, const json_t *step) {
    size_t i;
    json_t *name;
    const char *before = "";
    json_array_foreach(json_object_get(step, "launches"), i, name) {
        const char *entry = json_string_value(name);
        if (entry == NULL || strcmp(entry, before) == 0) continue;
        text_printf(out, "%s%s", i == 0 ? "  launches " : ", ", entry);
        before = entry;
    }
}

/* "by sizes 1.. cuda_matmul_skinny, 64.. cuda_matmul_wgmma", of a step that other kernels run at other sizes. */
static void print_ways(text *out, const json_t *step) {
    size_t i;
    json_t *way;
    json_array_foreach(json_object_get(step, "ways"), i, way)
        text_printf(out, "%s%" PRId64 ".. %s", i == 0 ? "; by sizes " : ", ", (int64_t)json_integer_value(json_object_get(way, "sizes")), member(way, "kernel"));
}

void words_print_plan(text *out, const char *title, const json_t *facts) {
    size_t i;
    json_t *step;
    text_printf(out, "%s at ", title);
    print_symbols(out, json_object_get(facts, "symbols"));
    text_printf(out, ": %" PRId64 " steps per run, %" PRId64 " at load, %" PRId64 " views; %.1f us estimated, bounds of %.1f us, %.4g GFLOP, workspace %.1f kB\n",
                (int64_t)json_integer_value(json_object_get(facts, "steps_per_run")),
                (int64_t)json_integer_value(json_object_get(facts, "steps_at_load")), (int64_t)json_integer_value(json_object_get(facts, "views")),
                json_real_value(json_object_get(facts, "us")), json_real_value(json_object_get(facts, "bound_us")), json_real_value(json_object_get(facts, "flops")) / 1e9,
                (double)json_integer_value(json_object_get(facts, "workspace_bytes")) / 1e3);
    text_printf(out, "  FLOPs on reference kernels: %.1f %%\n", 100 * json_real_value(json_object_get(facts, "reference_flops_share")));
    if (member(facts, "split")[0] != '\0') text_printf(out, "  split again, as a kernel that was asked for or registered does not apply it\n%s", member(facts, "split"));
    text_printf(out, "  %-6s %-16s %-12s %-28s %9s %9s  %s\n", "value", "op", "format", "kernel", "est. us", "bound us", "module");
    json_array_foreach(json_object_get(facts, "steps"), i, step) {
        bool load = json_is_true(json_object_get(step, "at_load"));
        text_printf(out, "  %%%-5" PRId64 " %-16s %-12s %-28s ", (int64_t)json_integer_value(json_object_get(step, "value")), member(step, "op"),
                    member(step, "format"), member(step, "kernel"));
        if (load) text_printf(out, "%9s %9s  %s", "at load", "", member(step, "module"));
        else text_printf(out, "%9.1f %9.2f  %s", json_real_value(json_object_get(step, "us")), json_real_value(json_object_get(step, "bound_us")), member(step, "module"));
        if (json_object_get(step, "members") != NULL) text_printf(out, "%s(%s)", member(step, "module")[0] != '\0' ? " " : "", member(step, "members"));
        if (member(step, "phase")[0] != '\0') text_printf(out, " [%s]", member(step, "phase"));
        print_launches(out, step);
        if (json_object_get(step, "around") != NULL) text_printf(out, " (%s)", member(step, "around"));
        print_ways(out, step);
        if (json_object_get(step, "binds") != NULL)
            text_printf(out, " (predicted: %.2g %% of the matrix rate, bound by %s)", 100 * json_real_value(json_object_get(step, "matrix_rate_share")), member(step, "binds"));
        text_add(out, "\n");
    }
    text_add(out, "  why these kernels\n");
    print_choices(out, json_object_get(facts, "steps"));
}

/* "  whole runs: fp8 170.3 us (quantisers 37.5), bf16 120.9 us, fp8-weights 131.0 us; fp8 takes 1.41 times as long as bf16 at these sizes" */
static void print_beside(text *out, const char *title, const char *plan, const json_t *rows) {
    const json_t *own = json_object_get(json_array_get(rows, 0), plan), *plain = json_object_get(json_array_get(rows, 1), plan);
    size_t i;
    json_t *row;
    if (own == NULL) return;
    text_printf(out, "  %s: ", title);
    json_array_foreach((json_t *)(uintptr_t)rows, i, row) {
        const json_t *costs = json_object_get(row, plan);
        if (costs != NULL) text_printf(out, "%s%s %.1f us", i > 0 ? ", " : "", member(row, "precision"), json_real_value(json_object_get(costs, "us")));
        if (i == 0) text_printf(out, " (quantisers %.1f)", json_real_value(json_object_get(costs, "quantize_us")));
    }
    const double us = json_real_value(json_object_get(own, "us")), least = json_real_value(json_object_get(plain, "us"));
    if (least > 0 && us > least) text_printf(out, "; %s takes %.2f times as long as %s at these sizes", member(json_array_get(rows, 0), "precision"), us / least, member(json_array_get(rows, 1), "precision"));
    text_add(out, "\n");
    const json_t *slower = json_object_get(own, "slower");
    if (json_array_size(slower) > 0) text_add(out, "    layers that take longer than in bf16 by estimate; rules \"LAYER = bf16\" of a policy, for each of those that a + joins, keep them there:\n");
    json_array_foreach((json_t *)(uintptr_t)slower, i, row) {
        const double count = (double)json_integer_value(json_object_get(row, "count"));
        text_printf(out, "      %.0f x %s  %.1f us, in bf16 %.1f\n", count, member(row, "layers"), json_real_value(json_object_get(row, "us")) / count, json_real_value(json_object_get(row, "bf16_us")) / count);
    }
}

static void print_besides(text *out, const json_t *rows) {
    size_t i;
    json_t *row;
    text_add(out, "this and other precisions, estimated at the same sizes\n");
    print_beside(out, "whole runs", "plan", rows);
    print_beside(out, "the cached step", "step_plan", rows);
    json_array_foreach((json_t *)(uintptr_t)rows, i, row)
        if (member(row, "refused")[0] != '\0') text_printf(out, "  %s: not planned: %s\n", member(row, "precision"), member(row, "refused"));
}

/* Caches of one kind and module are one line. */
static void print_caches(text *out, json_t *caches) {
    size_t i;
    json_t *row;
    const char *before = NULL;
    text_add(out, "caches of the step, for each text\n");
    json_array_foreach(caches, i, row) {
        const int64_t window = (int64_t)json_integer_value(json_object_get(row, "window"));
        if (before != NULL && strcmp(before, member(row, "module")) == 0) text_printf(out, ", %s", member(row, "name"));
        else text_printf(out, "%s  %s: %s", before ? "\n" : "", member(row, "module")[0] != '\0' ? member(row, "module") : "attention", member(row, "name"));
        before = member(row, "module");
        json_t *next = json_array_get(caches, i + 1);
        if (next != NULL && strcmp(before, member(next, "module")) == 0 && json_integer_value(json_object_get(next, "window")) == window) continue;
        if (window > 0) text_printf(out, " keep the last %" PRId64 " tokens and those of one run (%s)", window, member(row, "type"));
        else text_printf(out, " keep every token (%s)", member(row, "type"));
    }
    text_add(out, "\n");
}

static double megabytes(const json_t *bytes, const char *name) { return (double)json_integer_value(json_object_get(bytes, name)) / 1e6; }

/* "weights in the form that runs: 5.04 MB; runs read 5.04 and generation 4.91, of which both 4.91" */
static void print_weights(text *out, const json_t *weights) {
    const double all = megabytes(weights, "bytes"), runs = megabytes(weights, "of_runs"), generation = megabytes(weights, "of_generation");
    text_printf(out, "weights in the form that runs: %.2f MB", all);
    if (runs > 0 && generation > 0) text_printf(out, "; runs read %.2f and generation %.2f, of which both %.2f", runs, generation, runs + generation - all);
    text_add(out, "\n");
}

void words_print_explain(text *out, const json_t *facts) {
    text_printf(out, "%s for %s, precision %s\n%s", member(facts, "file"), member(facts, "chip"), member(facts, "precision"),
                member(facts, "capabilities"));
    if (!json_is_true(json_object_get(facts, "gpu_code"))) text_printf(out, "gpu code: none (%s)\n", kernel_lacks_images());
    if (json_object_get(facts, "captured_ops")) print_ops(out, "captured  ", json_object_get(facts, "captured_ops"));
    if (json_object_get(facts, "fused_ops")) print_ops(out, "fused to  ", json_object_get(facts, "fused_ops"));
    if (member(facts, "not_fused")[0] != '\0') text_printf(out, "not fused\n%s", member(facts, "not_fused"));
    if (json_object_get(facts, "padding")) text_printf(out, "padding: %s\n", member(facts, "padding"));
    if (member(facts, "policy")[0] != '\0') text_printf(out, "precision by layer\n%s", member(facts, "policy"));
    if (json_object_get(facts, "ranks")) words_print_ranks(out, json_object_get(facts, "ranks"));
    if (json_object_get(facts, "plan")) words_print_plan(out, "plan of a whole run", json_object_get(facts, "plan"));
    if (json_object_get(facts, "prelude_plan"))
        words_print_plan(out, "plan of what is computed once for each text, before its first token", json_object_get(facts, "prelude_plan"));
    if (json_object_get(facts, "step_plan")) words_print_plan(out, "plan of the cached step", json_object_get(facts, "step_plan"));
    if (json_array_size(json_object_get(facts, "caches")) > 0) print_caches(out, json_object_get(facts, "caches"));
    if (json_object_get(facts, "beside") != NULL) print_besides(out, json_object_get(facts, "beside"));
    print_weights(out, json_object_get(facts, "weights"));
    text_printf(out, "generation with a cache: %s\n", member(facts, "cached_generation"));
    text_printf(out, "texts of a service go together and share pages: %s\n", member(facts, "shared_generation"));
}
