/* What the pass precision tells of the layers that it goes through: lines of its report, and outputs by which check sees them. */
#include "pass/precision/told.h"

#define PROBE "check."

dw_status precision_add_probe(ir_graph *graph, const char *layer, ir_value *value) {
    text name;
    const char *kept;
    text_init(&name, graph->context);
    text_printf(&name, PROBE "%s", layer);
    dw_status status = text_status(&name);
    if (status == DW_OK) status = ir_intern(graph, text_string(&name), &kept);
    if (status == DW_OK) status = ir_add_output(graph, kept, value);
    text_free(&name);
    return status;
}

void precision_report(const pass_options *options, const char *layer, const char *role, const char *precision, const char *rule) {
    if (options->report == NULL) return;
    text_printf(options->report, "  %-44s %-14s %-10s %s\n", layer, precision, role != NULL ? role : "-", rule);
}
