/* One layout of the workspace for all sizes up to some. Each value gets room for its largest size; values that are alive at the same time lie
 * apart. So the places hold at every smaller size, too. */
#include "plan/internal.h"

dw_status plan_layout_create(const plan *plan, arena *arena, plan_layout *layout)
{
    *layout = (plan_layout){.context = arena->context, .plan = plan};
    TRY_NEW(layout->bytes, arena, plan->value_count);
    TRY_NEW(layout->offsets, arena, plan->value_count);
    return DW_OK;
}

static void widen(plan_layout *layout, int index, size_t bytes)
{
    if (bytes > layout->bytes[index]) layout->bytes[index] = bytes;
}

void plan_layout_widen(plan_layout *layout, const plan_binding *binding)
{
    for (int i = 0; i < layout->plan->value_count; i++)
        if (plan_needs_place(&layout->plan->values[i])) widen(layout, i, binding->bytes[i]);
}

/* The largest bytes of a type whose dims are rewritten into dims; false when there is no bound. */
static dw_status largest(dw_context *context, const plan *plan, dim_table *dims, const dim *replacement, const op_type *type, size_t *bytes)
{
    int64_t least, most[DW_MAX_RANK];
    num_parts parts;
    *bytes = 0;
    for (int i = 0; i < type->rank; i++) {
        dim size;
        TRY_DIM(context, size, dim_rewrite(dims, plan->graph->dims, type->dims[i], replacement));
        dim_range(dims, size, &least, &most[i]);
        if (most[i] == INT64_MAX) return DW_OK;
    }
    if (num_layout(type->format, type->scale_layout, type->rank, most, &parts)) *bytes = parts.total_bytes;
    return DW_OK;
}

static dw_status widen_all(plan_layout *layout, const int64_t *symbols, dim_table *dims, arena *arena)
{
    const plan *plan = layout->plan;
    int count = dim_symbol_count(plan->graph->dims);
    dim *replacement;
    TRY_NEW(replacement, arena, count + 1);
    for (int i = 0; i < count; i++) {
        int64_t min, max;
        dim_symbol_range(plan->graph->dims, i, &min, &max);
        TRY_DIM(layout->context, replacement[i], dim_symbol(dims, dim_symbol_name(plan->graph->dims, i), min, symbols[i]));
    }
    for (int i = 0; i < plan->value_count; i++) {
        size_t bytes;
        if (!plan_needs_place(&plan->values[i])) continue;
        TRY(largest(layout->context, plan, dims, replacement, &plan->values[i].value->type, &bytes));
        widen(layout, i, plan->values[i].may_be_plain ? plan_plain_room(&plan->values[i], bytes) : bytes);
    }
    return DW_OK;
}

dw_status plan_layout_widen_up_to(plan_layout *layout, const int64_t *symbols)
{
    dim_table *dims;
    arena arena;
    TRY(dim_table_create(layout->context, &dims));
    arena_init(&arena, layout->context);
    dw_status status = widen_all(layout, symbols, dims, &arena);
    arena_free(&arena);
    dim_table_destroy(dims);
    return status;
}

dw_status plan_layout_place(plan_layout *layout)
{
    arena arena;
    arena_init(&arena, layout->context);
    int *order = arena_new(&arena, (size_t)layout->plan->value_count, sizeof *order);
    if (order != NULL) plan_place_values(layout->plan, layout->bytes, order, layout->offsets, &layout->value_bytes);
    arena_free(&arena);
    return order ? DW_OK : DW_NO_MEMORY;
}
