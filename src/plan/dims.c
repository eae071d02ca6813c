/* Sizes as text and by default. */
#include "plan/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "pass/pass.h"

/* A range without an upper end is written as one. */
dw_status plan_check_size(dw_context *context, const ir_graph *graph, int symbol, int64_t size)
{
    int64_t min, max;
    char end[32] = "";
    dim_symbol_range(graph->dims, symbol, &min, &max);
    if (size >= min && size <= max) return DW_OK;
    if (max != INT64_MAX) snprintf(end, sizeof end, "%" PRId64, max);
    return base_fail(context, DW_INVALID, "size %s is %" PRId64 ", outside its range %" PRId64 "..%s", dim_symbol_name(graph->dims, symbol), size, min, end);
}

static dw_status fail_unknown(dw_context *context, const ir_graph *graph, const char *words, const char *name)
{
    char known[512] = "none";
    size_t at = 0;
    for (int i = 0; i < dim_symbol_count(graph->dims) && at < sizeof known; i++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", dim_symbol_name(graph->dims, i));
    return base_fail(context, DW_NOT_FOUND, "dims \"%s\": the graph has no size named %s; its sizes: %s", words, name, known);
}

dw_status plan_read_dims(dw_context *context, const ir_graph *graph, const char *words, int64_t *symbols)
{
    const dim_table *dims = graph->dims;
    for (const char *at = words; at != NULL && *at != '\0';) {
        const char *equals = strchr(at, '=');
        if (equals == NULL || equals == at || (size_t)(equals - at) >= 64)
            return base_fail(context, DW_INVALID, "dims \"%s\": expected name=size, comma-separated", words);
        char name[64];
        memcpy(name, at, (size_t)(equals - at));
        name[equals - at] = '\0';
        char *end;
        errno = 0;
        long long value = strtoll(equals + 1, &end, 10);
        if (errno != 0 || end == equals + 1 || (*end != '\0' && *end != ','))
            return base_fail(context, DW_INVALID, "dims \"%s\": the size of %s is not an integer", words, name);
        int index = dim_symbol_find(dims, name);
        if (index < 0 || strncmp(name, DIM_RANK, strlen(DIM_RANK)) == 0) return fail_unknown(context, graph, words, name);
        TRY(plan_check_size(context, graph, index, value));
        symbols[index] = value;
        at = *end == ',' ? end + 1 : end;
    }
    return DW_OK;
}

enum { USUAL = 128 };   /* of an axis that leads no input */

static bool leads_an_input(const ir_graph *graph, int symbol)
{
    for (size_t i = 0; i < graph->input_count; i++) {
        const op_type *type = &graph->inputs[i]->type;
        int index;
        if (type->rank > 1 && dim_is_symbol(type->dims[0], &index) && index == symbol) return true;
    }
    return false;
}

/* Is it an axis of an input, but not the leading one? */
static bool follows_in_an_input(const ir_graph *graph, int symbol)
{
    for (size_t i = 0; i < graph->input_count; i++) {
        const op_type *type = &graph->inputs[i]->type;
        int index;
        for (int axis = 1; axis < type->rank; axis++)
            if (dim_is_symbol(type->dims[axis], &index) && index == symbol) return true;
    }
    return false;
}

/* In a cached step one text is typical, of one page, and so is the token that is wanted of it; the model's batch is 1 there. */
static bool is_one_in_step(const ir_graph *graph, int symbol)
{
    const char *name = dim_symbol_name(graph->dims, symbol);
    if (map_find(&graph->names, STEP_INPUT_ROW) == NULL) return false;
    if (strcmp(name, STEP_SYMBOL_ROWS) == 0 || strcmp(name, STEP_SYMBOL_ENDS) == 0 || strcmp(name, STEP_SYMBOL_ENTRIES) == 0) return true;
    if (strncmp(name, STEP_SYMBOL_PAGES, strlen(STEP_SYMBOL_PAGES)) == 0) return true;
    for (size_t i = 0; i < graph->input_count + graph->state_count; i++) {
        const op_type *type = i < graph->input_count ? &graph->inputs[i]->type : &graph->states[i - graph->input_count]->type;
        int index;
        for (int axis = 0; axis < type->rank; axis++)
            if (dim_is_symbol(type->dims[axis], &index) && index == symbol) return false;
    }
    return strncmp(name, "cache_", 6) != 0;
}

/* How many new tokens a run has, and what its caches have room for: however long the example was, a step is planned for pieces of what is usual. */
static bool is_of_step(const ir_graph *graph, int symbol)
{
    const ir_value *row = map_find(&graph->names, STEP_INPUT_ROW);
    int tokens;
    if (row == NULL) return false;
    if (row->type.rank == 1 && dim_is_symbol(row->type.dims[0], &tokens) && tokens == symbol) return true;
    return is_one_in_step(graph, symbol) || strncmp(dim_symbol_name(graph->dims, symbol), "cache_", 6) == 0;
}

/* What the graph's note says of the symbol; 0: nothing. It may say anything: names of no symbol and what is no size are passed over. */
static int64_t noted_size(const ir_graph *graph, int symbol)
{
    const char *name = dim_symbol_name(graph->dims, symbol);
    const size_t length = strlen(name);
    for (const char *at = map_find(&graph->notes, IR_NOTE_EXAMPLE); at != NULL && *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
        char *end;
        if (strncmp(at, name, length) != 0 || at[length] != '=') continue;
        errno = 0;
        const long long size = strtoll(at + length + 1, &end, 10);
        return errno == 0 && end != at + length + 1 && (*end == ',' || *end == '\0') ? size : 0;
    }
    return 0;
}

/* What the example had of an axis that is no batch; a short one says nothing of what comes. */
static int64_t example_size(const ir_graph *graph, int symbol)
{
    const bool is_batch = leads_an_input(graph, symbol) && !follows_in_an_input(graph, symbol);
    const int64_t size = is_batch || is_of_step(graph, symbol) ? 0 : noted_size(graph, symbol);
    return size > USUAL ? size : 0;
}

void plan_typical_dims(const ir_graph *graph, int64_t *symbols)
{
    for (int i = 0; i < dim_symbol_count(graph->dims); i++) {
        const int64_t example = example_size(graph, i);
        int64_t min, max, size = example > 0 ? example : leads_an_input(graph, i) || is_one_in_step(graph, i) ? 1 : USUAL;
        dim_symbol_range(graph->dims, i, &min, &max);
        if (size < min) size = min;
        if (size > max) size = max;
        symbols[i] = size;
    }
}
