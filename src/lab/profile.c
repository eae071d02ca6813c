/* Where the time goes: the measured seconds of a plan's steps, gathered by kernel and format. */
#include <jansson.h>
#include <string.h>

#include "lab/lab.h"

/* What a product multiplies with, or the format of a result. */
static const char *format_of(const ir_node *node) {
    bool product = (op_get(node->op)->traits & OP_TRAIT_CONTRACTION) && ir_in(node, 1) != NULL;
    return dw_format_name((product ? ir_in(node, 1) : ir_out(node))->type.format);
}

static json_t *find_row(json_t *rows, const char *kernel, const char *format) {
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) {
        if (strcmp(json_string_value(json_object_get(row, "kernel")), kernel) == 0 &&
            strcmp(json_string_value(json_object_get(row, "format")), format) == 0)
            return row;
    }
    row = json_pack("{s:s, s:s, s:i, s:f, s:f, s:f}", "kernel", kernel, "format", format, "steps", 0, "seconds", 0.0, "flops", 0.0, "bytes", 0.0);
    json_array_append_new(rows, row);
    return row;
}

static void add(json_t *row, const char *key, double more) {
    json_object_set_new(row, key, json_real(json_real_value(json_object_get(row, key)) + more));
}

json_t *lab_profile_json(const plan *plan, const double *seconds, int runs, const int64_t *symbols) {
    json_t *rows = json_array();
    plan_binding binding;
    const bool bound = plan_binding_create(plan->context, plan, &binding) == DW_OK && plan_bind(&binding, symbols) == DW_OK;   /* else rows stand for their ways */
    for (int i = plan->load_count; i < plan->step_count; i++) {
        op_work work = {0};
        const plan_step *step = &plan->steps[i];
        json_t *row = find_row(rows, bound ? kernel_runs_as(step->row, &binding.calls[i].run) : step->row->name, format_of(step->node));
        if (ir_work(plan->graph, step->node, symbols, &work) != DW_OK) work = (op_work){0};
        json_object_set_new(row, "steps", json_integer(json_integer_value(json_object_get(row, "steps")) + 1));
        add(row, "seconds", seconds[i] / runs);
        add(row, "flops", work.flops);
        add(row, "bytes", work.bytes_read + work.bytes_written);
    }
    plan_binding_destroy(&binding);
    return rows;
}

void lab_profile_print(text *out, const json_t *rows) {
    size_t i, next;
    json_t *row;
    double total = 0;
    json_array_foreach((json_t *)(uintptr_t)rows, i, row) total += json_real_value(json_object_get(row, "seconds"));
    double above = 1e30;
    for (size_t printed = 0; printed < json_array_size(rows); printed++) {   /* slowest first */
        json_t *slowest = NULL;
        json_array_foreach((json_t *)(uintptr_t)rows, next, row) {
            double seconds = json_real_value(json_object_get(row, "seconds"));
            if (seconds < above && (slowest == NULL || seconds > json_real_value(json_object_get(slowest, "seconds")))) slowest = row;
        }
        if (slowest == NULL) return;
        double seconds = above = json_real_value(json_object_get(slowest, "seconds"));
        text_printf(out, "    %-26s %-12s x%-4d %10.3f ms %5.1f %% %8.1f GFLOP/s %7.1f GB/s\n", json_string_value(json_object_get(slowest, "kernel")),
                    json_string_value(json_object_get(slowest, "format")), (int)json_integer_value(json_object_get(slowest, "steps")), seconds * 1e3,
                    100 * seconds / total, json_real_value(json_object_get(slowest, "flops")) / seconds / 1e9,
                    json_real_value(json_object_get(slowest, "bytes")) / seconds / 1e9);
    }
}
