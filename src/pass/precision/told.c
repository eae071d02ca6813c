/* What the pass precision tells of the layers that it goes through: lines of its report, and outputs by which check sees them. */
#include "pass/fuse/fuse.h"
#include "pass/precision/told.h"

#include <stdio.h>

#define PROBE "check."

/* An output "check.<layer>". */
static dw_status add_probe(ir_graph *graph, const char *layer, ir_value *value) {
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

dw_status precision_take_place(ir_graph *graph, const pass_options *options, const char *layer, ir_value *result, ir_value *made) {
    bool changed = false;
    if (made != result && options->probe != PASS_PROBE_ISOLATED) TRY(fuse_replace(graph, result, made, &changed));
    return options->probe != PASS_PROBE_NONE ? add_probe(graph, layer, made) : DW_OK;
}

dw_status precision_take_attention(ir_graph *graph, const pass_options *options, ir_node *attention, const char *what, int number, ir_value *made) {
    const char *module = attention->origin.module != NULL && attention->origin.module[0] != '\0' ? attention->origin.module : "attention";
    char layer[512];
    snprintf(layer, sizeof layer, "%.480s.%s.%d", module, what, number);
    return precision_take_place(graph, options, layer, ir_out(attention), made);
}
