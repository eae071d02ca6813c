/* Sizes as text and by default. */
#include "plan/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

dw_status plan_read_dims(const ir_graph *graph, const char *words, int64_t *symbols)
{
    const dim_table *dims = graph->dims;
    for (const char *at = words; at != NULL && *at != '\0';) {
        const char *equals = strchr(at, '=');
        if (equals == NULL || equals == at || (size_t)(equals - at) >= 64)
            return base_fail(graph->context, DW_INVALID, "dims \"%s\": expected name=size, comma-separated", words);
        char name[64];
        memcpy(name, at, (size_t)(equals - at));
        name[equals - at] = '\0';
        char *end;
        errno = 0;
        long long value = strtoll(equals + 1, &end, 10);
        if (errno != 0 || end == equals + 1 || (*end != '\0' && *end != ','))
            return base_fail(graph->context, DW_INVALID, "dims \"%s\": the size of %s is not an integer", words, name);
        int index = dim_symbol_find(dims, name);
        if (index < 0) {
            base_fail(graph->context, DW_NOT_FOUND, "dims \"%s\": the graph has no size named %s; it has", words, name);
            for (int i = 0; i < dim_symbol_count(dims); i++) base_fail_at(graph->context, DW_NOT_FOUND, "%s", dim_symbol_name(dims, i));
            return DW_NOT_FOUND;
        }
        int64_t min, max;
        dim_symbol_range(dims, index, &min, &max);
        if (value < min || value > max)
            return base_fail(graph->context, DW_INVALID, "dims: %s=%lld is outside its range %lld..%lld", name, value, (long long)min, (long long)max);
        symbols[index] = value;
        at = *end == ',' ? end + 1 : end;
    }
    return DW_OK;
}

static bool leads_an_input(const ir_graph *graph, int symbol)
{
    for (size_t i = 0; i < graph->input_count; i++) {
        const op_type *type = &graph->inputs[i]->type;
        int index;
        if (type->rank > 1 && dim_is_symbol(type->dims[0], &index) && index == symbol) return true;
    }
    return false;
}

void plan_typical_dims(const ir_graph *graph, int64_t *symbols)
{
    for (int i = 0; i < dim_symbol_count(graph->dims); i++) {
        int64_t min, max, size = leads_an_input(graph, i) ? 1 : 128;
        dim_symbol_range(graph->dims, i, &min, &max);
        if (size < min) size = min;
        if (size > max) size = max;
        symbols[i] = size;
    }
}
