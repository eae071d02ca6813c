/* The report in words: made of the facts alone, so that both always say the same. */
#include "lab/report.h"

#include <stdlib.h>
#include <string.h>

static double number(const json_t *facts, const char *key) { return json_number_value(json_object_get(facts, key)); }
static double ms(const json_t *facts, const char *key) { return number(facts, key) * 1e3; }
static const char *word(const json_t *facts, const char *key) {
    const char *found = json_string_value(json_object_get(facts, key));
    return found != NULL ? found : "";
}

static void print_head(text *out, const json_t *facts) {
    static const struct { const char *name, *unit; double scale; } shown[] = {{"memory", "GB/s", 1e9}, {"l2", "GB/s", 1e9}, {"f32", "TFLOP/s", 1e12}, {"bf16", "TFLOP/s", 1e12},
                                                                             {"fp8", "TFLOP/s", 1e12}, {"fp4", "TFLOP/s", 1e12}};
    text_printf(out, "%s on %s, precision %s\nbounds by", word(facts, "file"), word(facts, "device"), word(facts, "precision"));
    for (size_t i = 0, count = 0; i < COUNT_OF(shown); i++) {
        const json_t *rate = json_object_get(json_object_get(facts, "rates"), shown[i].name);
        if (rate == NULL || (i > 3 && number(facts, "arch") == 0)) continue;
        text_printf(out, "%s %s %.4g %s%s", count++ > 0 ? "," : "", strcmp(shown[i].name, "l2") == 0 ? "cache" : shown[i].name, number(rate, "rate") / shown[i].scale, shown[i].unit,
                    json_is_true(json_object_get(rate, "measured")) ? "" : " (not measured)");
    }
    text_add(out, "\n");
}

static void print_times(text *out, const json_t *facts, const json_t *run) {
    const double device = ms(run, "seconds"), apart = ms(run, "apart_seconds"), launch = ms(facts, "launch_seconds");
    text_printf(out, "  %.3f ms on the device, bound %.3f: ratio %.2f; the host adds %.3f", device, ms(run, "bound_seconds"), number(run, "ratio"), ms(run, "host_seconds"));
    if (json_object_get(run, "generate_seconds") != NULL) text_printf(out, "; as text is generated %.3f", ms(run, "generate_seconds"));
    text_printf(out, "\n  estimated %.3f ms, %.2f of what was measured\n", ms(run, "estimate_seconds"), ms(run, "estimate_seconds") / device);
    if (json_object_get(facts, "launch_seconds") == NULL) return;
    const double starts = launch * number(run, "launches"), hidden = apart - device;
    text_printf(out, "  %.0f launches, %.0f of which may begin early; one after the other the steps take %.3f ms, so that overlap hides %.3f\n", number(run, "launches"), number(run, "early_launches"), apart,
                hidden);
    text_printf(out, "  an empty launch takes %.2f us, all starts %.3f ms: gaps of %.3f ms that nothing hides\n", launch * 1e3, starts, starts > hidden ? starts - hidden : 0);
}

static int by_loss(const void *a, const void *b) {
    const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
    const char *key = json_object_get(x, "lost_seconds") != NULL ? "lost_seconds" : "bound_seconds";
    return (number(x, key) < number(y, key)) - (number(x, key) > number(y, key));
}

/* "matmul_bf16_m128n128pair", or "a +2" where there are more. */
static void print_launches(text *out, const json_t *row) {
    json_t *launches = json_object_get(row, "launches");
    if (json_array_size(launches) == 0) return;
    const char *first = json_string_value(json_array_get(launches, 0));
    text_printf(out, " [%s", first != NULL ? first : "");
    if (json_array_size(launches) > 1) text_printf(out, " +%d", (int)json_array_size(launches) - 1);
    text_add(out, "]");
}

static void print_row(text *out, const json_t *row, const json_t *run, bool measured) {
    const json_t *count = json_object_get(row, "count");
    if (count != NULL) text_printf(out, "%s%5d ", json_is_true(json_object_get(row, "marked")) ? "!" : " ", (int)json_integer_value(count));
    else text_printf(out, "%s%%%-5d", json_is_true(json_object_get(row, "marked")) ? "!" : " ", (int)json_integer_value(json_object_get(row, "value")));
    if (measured) text_printf(out, "%9.4f %5.1f %9.4f %6.2f %9.4f %9.4f", ms(row, "seconds"), 100 * ms(row, "seconds") / ms(run, "apart_seconds"), ms(row, "bound_seconds"), number(row, "ratio"),
                              ms(row, "lost_seconds"), ms(row, "estimate_seconds"));
    else text_printf(out, "%9s %5s %9.4f %6s %9s %9.4f", "-", "-", ms(row, "bound_seconds"), "-", "-", ms(row, "estimate_seconds"));
    text_printf(out, "  %-10s %s", word(row, "bound_by"), word(row, "kernel"));
    print_launches(out, row);
    text_printf(out, ", %s: %s %s", word(row, "why"), word(row, "op"), word(row, "shapes"));
    if (count == NULL && word(row, "module")[0] != '\0') text_printf(out, "  %s", word(row, "module"));
    text_add(out, "\n");
}

/* The rows that lose most first; steps in their order. */
static void print_rows(text *out, const json_t *run, const dw_report_words *words, bool measured) {
    json_t *rows = json_object_get(run, words->all ? "steps" : "groups");
    const size_t count = json_array_size(rows), most = words->lines > 0 && (size_t)words->lines < count ? (size_t)words->lines : count;
    void *memory;
    if (base_alloc(out->context, (count + 1) * sizeof(json_t *), _Alignof(max_align_t), &memory) != DW_OK) {
        out->status = DW_NO_MEMORY;
        return;
    }
    json_t **ordered = memory;
    for (size_t i = 0; i < count; i++) ordered[i] = json_array_get(rows, i);
    if (!words->all || words->lines > 0) qsort(ordered, count, sizeof *ordered, by_loss);
    text_printf(out, "  %5s %9s %5s %9s %6s %9s %9s  %-10s %s\n", words->all ? "value" : "steps", "ms", "%", "bound", "ratio", "lost", "estimate", "bound by", "kernel [launches], why: op and shapes");
    for (size_t i = 0; i < most; i++) print_row(out, ordered[i], run, measured);
    if (most < count) text_printf(out, "  and %d more\n", (int)(count - most));
    base_release(out->context, memory, (count + 1) * sizeof(json_t *), _Alignof(max_align_t));
}

static void print_run(text *out, const json_t *facts, const json_t *run, const dw_report_words *words) {
    const bool measured = json_is_true(json_object_get(run, "measured"));
    const char *name;
    json_t *size;
    size_t count = 0;
    text_printf(out, "\n%s", word(run, "name"));
    json_object_foreach(json_object_get(run, "sizes"), name, size) text_printf(out, "%s%s=%lld", count++ > 0 ? "," : " at ", name, (long long)json_integer_value(size));
    if (json_integer_value(json_object_get(run, "runs")) > 1) text_printf(out, ", in %d runs", (int)json_integer_value(json_object_get(run, "runs")));
    text_add(out, "\n");
    if (measured) print_times(out, facts, run);
    else text_printf(out, "  not measured: the device is simulated; bound %.3f ms, estimated %.3f\n", ms(run, "bound_seconds"), ms(run, "estimate_seconds"));
    text_printf(out, "  bound of the run: %.2f MB, of these weights %.2f, %s%.3f ms; operations %.3f ms; the bounds of its steps add up to %.3f\n", number(run, "bytes") / 1e6, number(run, "weight_bytes") / 1e6,
                json_is_true(json_object_get(run, "in_cache")) ? "all in the cache, " : "", ms(run, "bound_memory_seconds"), ms(run, "bound_products_seconds"), ms(run, "step_bounds_seconds"));
    print_rows(out, run, words, measured);
}

void report_print(text *out, const json_t *facts, const dw_report_words *words) {
    size_t i;
    json_t *run;
    print_head(out, facts);
    json_array_foreach(json_object_get(facts, "runs"), i, run) print_run(out, facts, run, words);
    if (!json_is_true(json_object_get(facts, "simulated"))) text_add(out, "\n! under half of the bound, and more than 1 % of the run\n");
}
