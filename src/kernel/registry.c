/* The rows of kernel.def with one reference row per op behind them, and the choice among rows. Pure: no device, no measurement. */
#include "kernel/kernel.h"

#include <string.h>

#include "kernels/kernels.h"

#define HAS(feature) (UINT64_C(1) << CHIP_##feature)
#define ALL UINT64_MAX
#define NO 0
#define NONE (-1)
#define KERNEL(row, op_name, needs_features, strided, strided_first_out, operand, family, function)                      \
    {.name = #row, .op = OP_##op_name, .device = CHIP_CPU, .needs = needs_features, .strided_in = strided,               \
     .strided_out = strided_first_out, .in_place = operand, .packs = NONE, .reject = family##_reject,                    \
     .cost = family##_cost, .workspace = family##_workspace, .run = function##_run},
#define PACKED(row, op_name, needs_features, strided, strided_first_out, operand, packed, family, function)              \
    {.name = #row, .op = OP_##op_name, .device = CHIP_CPU, .needs = needs_features, .strided_in = strided,               \
     .strided_out = strided_first_out, .in_place = operand, .packs = packed, .reject = family##_reject,                  \
     .cost = family##_cost, .packing = family##_packing, .workspace = family##_workspace, .run = function##_run},
#define CUDA(row, op_name, needs_features, strided, strided_first_out, operand, family, function)                        \
    {.name = #row, .op = OP_##op_name, .device = CHIP_GPU, .needs = needs_features, .strided_in = strided,               \
     .strided_out = strided_first_out, .in_place = operand, .packs = NONE, .reject = family##_reject,                    \
     .cost = family##_cost, .workspace = family##_workspace, .shape = function##_shape},
#define TUNED(row, op_name, needs_features, strided, strided_first_out, operand, family, function)                       \
    {.name = #row, .op = OP_##op_name, .device = CHIP_GPU, .needs = needs_features, .strided_in = strided,               \
     .strided_out = strided_first_out, .in_place = operand, .packs = NONE, .reject = family##_reject,                    \
     .cost = family##_cost, .workspace = family##_workspace, .shape = function##_shape, .variant = family##_variant},
#define NAMED(row, op_name, needs_features, strided, strided_first_out, operand, family, function)                       \
    {.name = #row, .op = OP_##op_name, .device = CHIP_GPU, .needs = needs_features, .strided_in = strided,               \
     .strided_out = strided_first_out, .in_place = operand, .packs = NONE, .reject = family##_reject,                    \
     .cost = family##_cost, .workspace = family##_workspace, .shape = function##_shape, .by_name = true},
#define OP(name_of_op, min_in, max_in, min_out, max_out, family, attributes, traits, meaning)                            \
    {.name = "reference_" #name_of_op, .op = OP_##name_of_op, .device = CHIP_CPU, .strided_in = ALL, .strided_out = true, \
     .in_place = NONE, .packs = NONE, .reject = reference_reject, .cost = reference_cost, .workspace = reference_workspace, \
     .run = reference_run, .reference = true},
static const kernel_row rows[] = {
#include "kernels/kernel.def"
#include "op/op.def"
};
#undef KERNEL
#undef PACKED
#undef CUDA
#undef TUNED
#undef NAMED
#undef OP

int kernel_tuned_variant(const kernel_run *run, int64_t rows) {
    for (int i = 0; i < run->tuned_count; i++)
        if (rows <= run->tuned[i].rows || i + 1 == run->tuned_count) return run->tuned[i].variant;
    return -1;
}

int kernel_count(void) { return (int)COUNT_OF(rows); }
const kernel_row *kernel_at(int index) { return &rows[index]; }

/* Row index of the registry followed by the built-in rows; NULL past the end. */
static const kernel_row *row_at(const kernel_registry *registry, int index) {
    int registered = registry != NULL ? registry->count : 0;
    if (index < registered) return &registry->rows[index];
    index -= registered;
    return index < kernel_count() ? &rows[index] : NULL;
}

static bool is_candidate(const kernel_row *row, const kernel_problem *problem) {
    return row->op == problem->op->id && row->device == problem->chip->kind;
}

const char *kernel_refusal(const kernel_row *row, const kernel_problem *problem, text *why) {
    uint64_t lacks = row->needs & ~problem->chip->features;
    for (int bit = 0; bit < CHIP_FEATURE_COUNT; bit++) {
        if (!(lacks >> bit & 1)) continue;
        if (CHIP_LIBRARIES >> bit & 1) text_printf(why, "needs the library %s, which is not loaded (--device cuda:0,libraries=FOLDER)", chip_feature_name((chip_feature)bit));
        else text_printf(why, "needs %s, which %s does not have", chip_feature_name((chip_feature)bit), problem->chip->name);
        return text_string(why);
    }
    kernel_problem asked = *problem;
    asked.user = row->user;
    return row->reject != NULL ? row->reject(&asked, why) : NULL;
}

static dw_status judge(arena *arena, const kernel_row *row, const kernel_problem *asked, bool is_named, kernel_verdict *verdict) {
    text why;
    kernel_problem own = *asked;
    const kernel_problem *problem = &own;
    own.named = asked->named && is_named;
    text_init(&why, arena->context);
    *verdict = (kernel_verdict){.row = row};
    const char *reason = kernel_refusal(row, problem, &why);
    dw_status status = text_status(&why);
    if (status == DW_OK && reason != NULL) {
        verdict->reason = arena_text(arena, reason);
        if (verdict->reason == NULL) status = DW_NO_MEMORY;
    }
    text_free(&why);
    if (status == DW_OK && reason == NULL) {
        verdict->seconds = row->cost != NULL ? row->cost(problem) : kernel_roofline(problem, DW_FORMAT_f32, 0.5, 0.5);
    }
    return status;
}

/* The caller's kernel before ours, ours before a reference, those by name behind the others, then the lesser cost, then the earlier row. */
static bool is_better(const kernel_verdict *a, const kernel_verdict *b) {
    if (a->row->registered != b->row->registered) return a->row->registered;
    if (a->row->reference != b->row->reference) return !a->row->reference;
    if (a->row->by_name != b->row->by_name) return !a->row->by_name;
    return a->seconds < b->seconds;
}

static dw_status fail_refused(const kernel_problem *problem, dw_context *context, const kernel_choice *choice) {
    text list;
    text_init(&list, context);
    for (int i = 0; i < choice->verdict_count; i++) {
        text_printf(&list, "%s %s: %s", i > 0 ? ";" : "", choice->verdicts[i].row->name, choice->verdicts[i].reason);
    }
    dw_status status = text_status(&list);
    if (status == DW_OK) {
        status = base_fail(context, DW_UNSUPPORTED, "%s: no kernel for %s runs this:%s", problem->op->name, problem->chip->name,
                           choice->verdict_count > 0 ? text_string(&list) : " there is no row for this op on such a chip");
    }
    text_free(&list);
    return status;
}

dw_status kernel_choose(arena *arena, const kernel_problem *asked, const kernel_registry *registry, const char *only, kernel_choice *choice) {
    kernel_problem problem = *asked;
    if (problem.context == NULL) problem.context = arena->context;
    *choice = (kernel_choice){0};
    int candidates = 0;
    const kernel_row *row;
    for (int i = 0; (row = row_at(registry, i)) != NULL; i++) candidates += is_candidate(row, &problem);
    TRY_NEW(choice->verdicts, arena, candidates);
    const kernel_verdict *best = NULL, *named = NULL;
    for (int i = 0; (row = row_at(registry, i)) != NULL; i++) {
        if (!is_candidate(row, &problem)) continue;
        kernel_verdict *verdict = &choice->verdicts[choice->verdict_count++];
        const bool is_named = only != NULL && named == NULL && strcmp(row->name, only) == 0;
        TRY(judge(arena, row, &problem, is_named, verdict));
        if (is_named) named = verdict;
        if (verdict->reason == NULL && (best == NULL || is_better(verdict, best))) best = verdict;
    }
    if (only != NULL) {
        if (named == NULL) {
            return base_fail(arena->context, DW_NOT_FOUND, "%s: kernel '%s' is not one of its kernels on %s; explain lists them", problem.op->name, only,
                             problem.chip->name);
        }
        if (named->reason != NULL) {
            return base_fail(arena->context, DW_UNSUPPORTED, "%s: kernel '%s' cannot run this: %s", problem.op->name, only, named->reason);
        }
        best = named;
    }
    if (best == NULL) return fail_refused(&problem, arena->context, choice);
    choice->row = best->row;
    choice->seconds = best->seconds;
    return DW_OK;
}
