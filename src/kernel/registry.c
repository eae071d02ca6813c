/* The rows of kernel.def with one reference row per op behind them, their ways, and the choice among rows when a plan is made; among a row's ways pick.c chooses once sizes are known.
 * Pure: no device, no measurement. */
#include "kernel/compose.h"

#include <string.h>

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
#define WAYS(row, op_name, strided, strided_first_out, operand, family)                                                  \
    {.name = #row, .op = OP_##op_name, .device = CHIP_GPU, .strided_in = strided, .strided_out = strided_first_out,      \
     .in_place = operand, .packs = NONE, .ways = family##_ways, .way_count = (int)COUNT_OF(family##_ways)},
#define OP(name_of_op, min_in, max_in, min_out, max_out, family, attributes, traits, meaning)                            \
    {.name = "reference_" #name_of_op, .op = OP_##name_of_op, .device = CHIP_CPU, .strided_in = ALL, .strided_out = true, \
     .in_place = NONE, .packs = NONE, .reject = reference_reject, .cost = reference_cost, .workspace = reference_workspace, \
     .run = reference_run, .reference = true},
#define STRIDES KERNEL_WAY_STRIDES
#define QUANTISED KERNEL_WAY_QUANTISED
#define NAMED KERNEL_WAY_NAMED
#define APART KERNEL_WAY_APART
#define QUANTISES KERNEL_WAY_QUANTISES
#define NORMALISES KERNEL_WAY_NORMALISES
#define WRITES KERNEL_WAY_WRITES
#define TILED KERNEL_WAY_TILED
#define VARIES KERNEL_WAY_VARIES
#define UNALIASED KERNEL_WAY_UNALIASED
#define WAY(way, needs_features, said, shared, way_rank, operands, rows, scratch, variants, functions)                   \
    {.name = #way, .needs = needs_features, .flags = said, .shared_bytes = shared, .rank = way_rank,                     \
     .dequantised = operands, .refuses = functions##_refuses, .takes = functions##_takes, .seconds = functions##_seconds, \
     .most_rows = rows, .workspace = scratch, .shape = functions##_shape, .variant = variants},
static const kernel_way attention_ways[] = {
#include "kernels/attention/ways.def"
};
static const kernel_way attention_backward_ways[] = {
#include "kernels/attention/backward_ways.def"
};
static const kernel_way gemm_ways[] = {
#include "kernels/gemm/ways.def"
};
static const kernel_way grouped_ways[] = {
#include "kernels/gemm/grouped_ways.def"
};
static const kernel_way grouped_outer_ways[] = {
#include "kernels/gemm/grouped_outer_ways.def"
};
static const kernel_way mqa_logits_ways[] = {
#include "kernels/mqa_logits/ways.def"
};
#undef WAY
#undef STRIDES
#undef QUANTISED
#undef QUANTISES
#undef NORMALISES
#undef WRITES
#undef TILED
#undef VARIES
#undef NAMED
#undef APART
static const kernel_row rows[] = {
#include "kernels/kernel.def"
#include "op/op.def"
};
#undef KERNEL
#undef PACKED
#undef CUDA
#undef WAYS
#undef OP

bool kernel_is_norm_of_products(const kernel_row *row) { return row->shape == norm_rows_cuda_shape; }

bool kernel_may_normalise_heads(const kernel_row *row) { return row->shape == cache_cuda_shape && row->op == OP_cache_update; }
bool kernel_normalises_heads(const kernel_row *row, const kernel_run *run) { return kernel_may_normalise_heads(row) && cache_cuda_normalises(run); }

bool kernel_writes_both(const kernel_row *row, const kernel_run *run, const kernel_row *quantising) {
    return row->shape == norm_rows_cuda_shape && quantising->shape == quantize_rows_shape && norm_rows_writes_both(run);
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

/* A row whose operands may have any strides has the ways that take them. */
static bool may_be_of(const kernel_row *row, const kernel_way *way) { return kernel_way_is(way, KERNEL_WAY_STRIDES) || row->strided_in == NO; }

static bool is_candidate(const kernel_row *row, const kernel_problem *problem) {
    return row->op == problem->op->id && row->device == problem->chip->kind;
}

const kernel_way *kernel_find_way(const kernel_row *row, const char *name) {
    for (int i = 0; i < row->way_count; i++)
        if (may_be_of(row, &row->ways[i]) && strcmp(row->ways[i].name, name) == 0) return &row->ways[i];
    return NULL;
}

bool kernel_is_named(const kernel_row *row, const char *name) { return strcmp(row->name, name) == 0 || kernel_find_way(row, name) != NULL; }

uint32_t kernel_ways_of(const kernel_row *row, const char *const *names, int count) {
    uint32_t ways = 0;
    for (int i = 0; i < count; i++) {
        const kernel_way *way = kernel_find_way(row, names[i]);
        if (way != NULL) ways |= UINT32_C(1) << (way - row->ways);
    }
    return ways;
}

/* ---- refusals ---- */

static const char *feature_refusal(uint64_t needs, const chip_caps *chip, text *why) {
    uint64_t lacks = needs & ~chip->features;
    for (int bit = 0; bit < CHIP_FEATURE_COUNT; bit++) {
        if (!(lacks >> bit & 1)) continue;
        if (CHIP_LIBRARIES >> bit & 1) text_printf(why, "needs the library %s, which is not loaded (--device cuda:0,libraries=FOLDER)", chip_feature_name((chip_feature)bit));
        else text_printf(why, "needs %s, which %s does not have", chip_feature_name((chip_feature)bit), chip->name);
        return text_string(why);
    }
    return NULL;
}

static bool is_in_blocks(const kernel_problem *problem) { return problem->n_out > 0 && dw_format_is_block(problem->out[0]->format); }

static const char *chip_refusal(const kernel_way *way, const chip_caps *chip, text *why) {
    const char *reason = feature_refusal(way->needs, chip, why);
    if (reason != NULL || way->shared_bytes <= chip->shared_bytes) return reason;
    return kernel_because(why, "it needs %zu bytes of shared memory or more, and %s has %zu for a block", way->shared_bytes, chip->name, chip->shared_bytes);
}

static const char *way_refusal(const kernel_row *row, const kernel_way *way, const kernel_problem *problem, text *why) {
    composed_problem c;
    const char *reason = may_be_of(row, way) ? chip_refusal(way, problem->chip, why) : "it does not take any strides";
    if (reason != NULL) return reason;
    if (problem->invariant && kernel_way_is(way, KERNEL_WAY_VARIES)) return "how it divides a row's sums follows from how many rows there are, and the plan is invariant";
    compose_problem(way, problem, &c);
    return way->refuses(&c.kernel, why);
}

/* Each way's reason, one behind another; NULL: one of them takes it. */
static const char *ways_refusal(const kernel_row *row, const kernel_problem *problem, text *why) {
    for (int i = 0, count = 0; i < row->way_count; i++) {
        const kernel_way *way = &row->ways[i];
        text own;
        if (!may_be_of(row, way)) continue;
        text_init(&own, problem->context);
        const char *reason = way_refusal(row, way, problem, &own);
        if (reason != NULL) text_printf(why, "%s%s: %s", count++ > 0 ? "; " : "", way->name, reason);
        text_free(&own);
        if (reason == NULL) return NULL;
    }
    return text_string(why);
}

const char *kernel_refusal(const kernel_row *row, const kernel_way *way, const kernel_problem *problem, text *why) {
    op_type type;
    const op_type *out;
    kernel_problem asked = *problem;
    if (way != NULL) return way_refusal(row, way, problem, why);
    if (row->way_count > 0) return ways_refusal(row, problem, why);
    const char *reason = feature_refusal(row->needs, problem->chip, why);
    if (reason != NULL || row->reject == NULL) return reason;
    if (kernel_is_quantised(row, problem->op) && is_in_blocks(problem)) asked = quantised_plain(problem, &type, &out);
    asked.user = row->user;
    return row->reject(&asked, why);
}

/* ---- choosing ---- */

/* What chips have no room for at the typical sizes is refused before it is chosen; launches of other sizes are looked at when these are known. */
static const char *room_refusal(const kernel_row *row, const kernel_way *way, const kernel_problem *problem, text *why) {
    kernel_typical typical;
    if (row->device != CHIP_GPU || !kernel_at_typical(problem, 0, &typical)) return NULL;
    return kernel_launches_refusal(row, way, &typical.run, why);
}

static dw_status judge(arena *arena, const kernel_row *row, const kernel_way *way, const kernel_problem *problem, kernel_verdict *verdict) {
    text why;
    text_init(&why, arena->context);
    *verdict = (kernel_verdict){.row = row, .way = way};
    const char *reason = kernel_refusal(row, way, problem, &why);
    if (reason == NULL && way == NULL) reason = room_refusal(row, way, problem, &why);
    dw_status status = text_status(&why);
    if (status == DW_OK && reason != NULL) {
        verdict->reason = arena_text(arena, reason);
        if (verdict->reason == NULL) status = DW_NO_MEMORY;
    }
    text_free(&why);
    if (status == DW_OK && reason == NULL) verdict->seconds = kernel_seconds(row, way != NULL ? UINT32_C(1) << (way - row->ways) : 0, problem);
    return status;
}

/* Why a way that does not refuse the problem does not run it at the typical sizes; in the arena. */
static dw_status judge_typical(arena *arena, const kernel_row *row, const kernel_problem *problem, kernel_verdict *verdict) {
    kernel_typical typical;
    text why;
    dw_status status = DW_OK;
    if (!kernel_at_typical(problem, UINT32_C(1) << (verdict->way - row->ways), &typical)) return DW_OK;
    text_init(&why, arena->context);
    const char *reason = kernel_size_refusal(verdict->way, &typical.run, &why);
    if (reason != NULL && (verdict->reason = arena_text(arena, reason)) == NULL) status = DW_NO_MEMORY;
    text_free(&why);
    return status;
}

static const kernel_verdict *find_verdict(const kernel_choice *choice, const kernel_way *way) {
    for (int i = 0; i < choice->verdict_count; i++)
        if (choice->verdicts[i].way == way) return &choice->verdicts[i];
    return NULL;
}

/* What a row comes to: its ways that do not refuse, and of the one that is picked at the typical sizes the seconds, and whether it is for few rows alone. */
typedef struct row_verdict { const kernel_row *row; uint32_t ways; bool accepted, few; double seconds; } row_verdict;

static bool is_for_few(const kernel_row *row, uint32_t ways, const kernel_problem *problem) {
    kernel_typical typical;
    const kernel_way *way;
    if (!kernel_at_typical(problem, ways, &typical) || kernel_pick(row, &typical.run, &way) != DW_OK || way == NULL) return false;
    return way->most_rows(&typical.run) != INT64_MAX;
}

static dw_status judge_ways(arena *arena, const kernel_row *row, const kernel_problem *problem, kernel_choice *choice, row_verdict *result) {
    uint32_t typical = 0, accepted = 0;
    for (int i = 0; i < row->way_count; i++) {
        const kernel_way *way = &row->ways[i];
        if (!may_be_of(row, way)) continue;
        const kernel_verdict *found = find_verdict(choice, way);
        if (found == NULL) {
            kernel_verdict *verdict = &choice->verdicts[choice->verdict_count++];
            TRY(judge(arena, row, way, problem, verdict));
            verdict->refuses = verdict->reason != NULL;
            if (!verdict->refuses) TRY(judge_typical(arena, row, problem, verdict));
            found = verdict;
        }
        if (found->refuses || kernel_way_is(way, KERNEL_WAY_NAMED)) continue;
        accepted |= UINT32_C(1) << i;
        if (found->reason == NULL) typical |= UINT32_C(1) << i;
    }
    *result = (row_verdict){.row = row, .ways = accepted, .accepted = typical != 0};
    if (typical == 0) return DW_OK;
    result->few = is_for_few(row, accepted, problem);
    result->seconds = kernel_seconds(row, accepted, problem);
    return DW_OK;
}

static dw_status judge_row(arena *arena, const kernel_row *row, const kernel_problem *problem, kernel_choice *choice, row_verdict *result) {
    if (row->way_count > 0) return judge_ways(arena, row, problem, choice, result);
    kernel_verdict *verdict = &choice->verdicts[choice->verdict_count++];
    TRY(judge(arena, row, NULL, problem, verdict));
    *result = (row_verdict){.row = row, .accepted = verdict->reason == NULL, .seconds = verdict->seconds};
    return DW_OK;
}

static int count_ways(uint32_t ways) {
    int count = 0;
    for (; ways != 0; ways &= ways - 1) count++;
    return count;
}

/* The caller's kernel before ours, ours before a reference, then the lesser cost. Of equals, by a way of both that is for few rows, the row that has more ways for other sizes; then the
 * earlier one. */
static bool is_better(const row_verdict *a, const row_verdict *b) {
    if (a->row->registered != b->row->registered) return a->row->registered;
    if (a->row->reference != b->row->reference) return !a->row->reference;
    if (a->seconds == b->seconds) return a->few && b->few && count_ways(a->ways) > count_ways(b->ways);
    return a->seconds < b->seconds;
}

static dw_status fail_refused(const kernel_problem *problem, dw_context *context, const kernel_choice *choice) {
    text list;
    text_init(&list, context);
    for (int i = 0; i < choice->verdict_count; i++) {
        const kernel_verdict *v = &choice->verdicts[i];
        text_printf(&list, "%s %s: %s", i > 0 ? ";" : "", kernel_verdict_name(v), v->reason != NULL ? v->reason : "it is taken by name alone");
    }
    dw_status status = text_status(&list);
    if (status == DW_OK) {
        status = base_fail(context, DW_UNSUPPORTED, "%s: no kernel for %s runs this:%s", problem->op->name, problem->chip->name,
                           choice->verdict_count > 0 ? text_string(&list) : op_has(problem->op->id, OP_TRAIT_COLLECTIVE) ? " collectives of GPUs call NCCL, for which there is no row yet; ranks run on the CPU" : " there is no row for this op on such a chip");
    }
    text_free(&list);
    return status;
}

/* The row, and of its ways the one that was asked for. */
static dw_status choose_named(dw_context *context, const kernel_problem *problem, const kernel_row *row, const char *only, kernel_choice *choice) {
    const kernel_way *way = kernel_find_way(row, only);
    const char *reason = NULL;
    for (int i = 0; i < choice->verdict_count; i++) {
        const kernel_verdict *v = &choice->verdicts[i];
        if (way != NULL ? v->way == way : v->row == row && v->way == NULL) reason = v->reason, choice->seconds = v->seconds;
    }
    if (reason != NULL) return base_fail(context, DW_UNSUPPORTED, "%s: kernel '%s' cannot run this: %s", problem->op->name, only, reason);
    choice->row = row;
    choice->way = way;
    if (way != NULL) choice->ways = UINT32_C(1) << (way - row->ways);
    return DW_OK;
}

static dw_status pick_typical(const kernel_problem *problem, kernel_choice *choice) {
    kernel_typical typical;
    return choice->ways != 0 && kernel_at_typical(problem, choice->ways, &typical) ? kernel_pick(choice->row, &typical.run, &choice->way) : DW_OK;
}

dw_status kernel_choose(arena *arena, const kernel_problem *asked, const kernel_registry *registry, const char *only, kernel_choice *choice) {
    kernel_problem problem = *asked;
    if (problem.context == NULL) problem.context = arena->context;
    *choice = (kernel_choice){0};
    int candidates = 0;
    const kernel_row *row;
    for (int i = 0; (row = row_at(registry, i)) != NULL; i++)
        if (is_candidate(row, &problem)) candidates += row->way_count > 0 ? row->way_count : 1;
    TRY_NEW(choice->verdicts, arena, candidates);
    row_verdict best = {0}, named = {0};
    for (int i = 0; (row = row_at(registry, i)) != NULL; i++) {
        row_verdict verdict;
        if (!is_candidate(row, &problem)) continue;
        TRY(judge_row(arena, row, &problem, choice, &verdict));
        if (only != NULL && named.row == NULL && kernel_is_named(row, only)) named = verdict;
        if (verdict.accepted && (best.row == NULL || is_better(&verdict, &best))) best = verdict;
    }
    if (only != NULL && named.row == NULL)
        return base_fail(arena->context, DW_NOT_FOUND, "%s: kernel '%s' is not one of its kernels on %s; explain lists them", problem.op->name, only, problem.chip->name);
    const bool by_row = named.row != NULL && strcmp(named.row->name, only) == 0 && named.row->way_count > 0;
    if (by_row && !named.accepted)
        return base_fail(arena->context, DW_UNSUPPORTED, "%s: none of the kernels of '%s' can run this; explain says why", problem.op->name, only);
    if (named.row != NULL && !by_row) return choose_named(arena->context, &problem, named.row, only, choice);
    if (by_row) best = named;
    if (best.row == NULL) return fail_refused(&problem, arena->context, choice);
    choice->row = best.row;
    choice->ways = best.ways;
    choice->seconds = best.seconds;
    return pick_typical(&problem, choice);
}

/* Is there a way among these that writes no result of the format over an operand? */
static bool is_unaliased(const kernel_row *row, uint32_t ways, dw_format format) {
    for (int i = 0; i < row->way_count; i++)
        if ((ways >> i & 1) != 0 && kernel_way_is(&row->ways[i], KERNEL_WAY_UNALIASED)) return dw_format_bits(format) == 16;
    return false;
}

int kernel_in_place(const kernel_row *row, uint32_t ways, dw_format format, int result) {
    if (is_unaliased(row, ways, format)) return -1;
    if (result == 0 || row->in_place < 0) return row->in_place;
    if (op_has(row->op, OP_TRAIT_UPDATES)) return op_updated(row->op, result);
    return result == 1 && op_has(row->op, OP_TRAIT_PAIRED) ? row->in_place + 1 : -1;
}

uint32_t kernel_accepted_ways(const kernel_row *row, const kernel_problem *problem) {
    uint32_t ways = 0;
    for (int i = 0; i < row->way_count; i++) {
        text why;
        text_init(&why, problem->context);
        if (!kernel_way_is(&row->ways[i], KERNEL_WAY_NAMED) && way_refusal(row, &row->ways[i], problem, &why) == NULL) ways |= UINT32_C(1) << i;
        text_free(&why);
    }
    return ways;
}

/* ---- what binds ---- */

typedef struct bounded_way { const char *name; bool (*bound)(const kernel_run *run, kernel_tiles_bound *bound); } bounded_way;
static const bounded_way bounded_ways[] = {
#define BOUND(way, function) {#way, function},
#include "kernels/attention/bounded_ways.def"
#include "kernels/gemm/bounded_ways.def"
#undef BOUND
};

bool kernel_pick_bound(const kernel_row *row, const kernel_run *run, kernel_tiles_bound *bound) {
    const kernel_way *way = NULL;
    composed c;
    if (run->passes || kernel_pick(row, run, &way) != DW_OK || way == NULL) return false;
    for (size_t i = 0; i < COUNT_OF(bounded_ways); i++) {
        if (strcmp(bounded_ways[i].name, way->name) != 0) continue;
        compose(way, run, &c);
        return bounded_ways[i].bound(c.kernel, bound);
    }
    return false;
}
