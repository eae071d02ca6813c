/* What a trainer would do, in words: made of the facts of explain_train.c alone. */
#include "lab/explain.h"

#include <inttypes.h>

static const char *member(const json_t *facts, const char *key) {
    const char *value = json_string_value(json_object_get(facts, key));
    return value != NULL ? value : "";
}

static double number(const json_t *facts, const char *key) { return json_number_value(json_object_get(facts, key)); }

static double megabytes(const json_t *facts, const char *key) { return number(facts, key) / 1e6; }

static void print_logits(text *out, const json_t *logits, const json_t *kept) {
    if (json_is_null(logits)) return;
    const double whole = megabytes(logits, "whole_bytes");
    text_printf(out, "logits: %.0f rows of %.0f, ", number(logits, "rows"), number(logits, "cols"));
    if (number(logits, "parts") > 1)
        text_printf(out, "in %.0f parts one after the other, as %s: with their gradients %.1f MB, at most %.1f MB of them at a time, instead of %.1f MB\n", number(logits, "parts"), member(logits, "because"),
                    megabytes(kept, "logits_bytes"), 2 * megabytes(kept, "logits_largest_bytes"), whole);
    else text_printf(out, "whole: %s; with their gradient %.1f MB\n", member(logits, "because"), whole);
}

static void print_kept(text *out, const json_t *program) {
    const json_t *kept = json_object_get(program, "kept");
    size_t i;
    json_t *row, *bytes;
    const char *name;
    text_printf(out, "kept for gradients: %.1f MB in %.0f values, logits not counted; made again: %.1f MB by %.0f steps, %.1f us estimated\n", megabytes(kept, "bytes"), number(kept, "values"),
                megabytes(kept, "again_bytes"), number(kept, "again_steps"), number(kept, "again_us"));
    if (number(kept, "prepared_bytes") + number(kept, "packed_bytes") > 0)
        text_printf(out, "prepared once after each update of weights, for all micro-batches: %.1f MB as they are, %.1f MB packed\n", megabytes(kept, "prepared_bytes"), megabytes(kept, "packed_bytes"));
    if (number(kept, "weights_bytes") > 0) text_printf(out, "weights in the formats that products read, which gradients read too: %.1f MB\n", megabytes(kept, "weights_bytes"));
    if (json_array_size(json_object_get(kept, "layers")) > 0) text_printf(out, "  %-32s %10s %10s %10s  %s\n", "layer", "kept MB", "again MB", "again us", "kept MB by what makes them");
    json_array_foreach(json_object_get(kept, "layers"), i, row) {
        text_printf(out, "  %-32s %10.2f %10.2f %10.1f ", member(row, "layer")[0] != '\0' ? member(row, "layer") : "in no layer", megabytes(row, "kept_bytes"), megabytes(row, "again_bytes"),
                    number(row, "again_us"));
        json_object_foreach(json_object_get(row, "ops"), name, bytes) text_printf(out, " %s %.2f", name, json_number_value(bytes) / 1e6);
        text_add(out, "\n");
    }
}

static void print_phases(text *out, const json_t *program) {
    size_t i;
    json_t *row;
    text_printf(out, "program %s, by phase\n  %-8s %6s %12s %10s\n", member(program, "name"), "phase", "steps", "est. us", "GFLOP");
    json_array_foreach(json_object_get(program, "phases"), i, row)
        text_printf(out, "  %-8s %6.0f %12.1f %10.4g\n", member(row, "phase"), number(row, "steps"), number(row, "us"), number(row, "flops") / 1e9);
    const json_t *peak = json_object_get(program, "peak");
    if (json_is_object(peak))
        text_printf(out, "  workspace %.1f MB; most values are alive at %%%.0f %s [%s] %s: %.1f MB\n", megabytes(program, "workspace_bytes"), number(peak, "value"), member(peak, "op"), member(peak, "phase"),
                    member(peak, "module"), megabytes(peak, "bytes"));
}

void words_print_training(text *out, const json_t *facts) {
    const json_t *memory = json_object_get(facts, "memory"), *states = json_object_get(memory, "states"), *programs = json_object_get(facts, "programs"), *first = json_array_get(programs, 0);
    size_t i;
    json_t *row;
    text_printf(out, "training of %s on %s, precision %s, optimiser %s, loss %s, %.0f micro-batch%s a step\n%s", member(facts, "file"), member(facts, "chip"), member(facts, "precision"),
                member(facts, "optimizer"), member(facts, "loss"), number(facts, "accumulate"), number(facts, "accumulate") > 1 ? "es" : "", member(facts, "capabilities"));
    text_printf(out, "memory of a step: %.1f MB: parameters %.1f, gradients that are added up %.1f, optimisers %.1f, buffers %.1f, workspace %.1f\n", megabytes(memory, "bytes"), megabytes(states, "parameters"),
                megabytes(states, "gradients"), megabytes(states, "optimisers"), megabytes(states, "buffers"), megabytes(memory, "workspace_bytes"));
    print_logits(out, json_object_get(facts, "logits"), json_object_get(first, "kept"));
    text_printf(out, "recompute: %s\n", member(facts, "recompute"));
    print_kept(out, first);
    json_array_foreach((json_t *)(uintptr_t)programs, i, row) print_phases(out, row);
    if (member(facts, "policy")[0] != '\0') text_printf(out, "precision by layer\n%s", member(facts, "policy"));
    json_array_foreach((json_t *)(uintptr_t)programs, i, row) words_print_plan(out, member(row, "name"), json_object_get(row, "plan"));
}
