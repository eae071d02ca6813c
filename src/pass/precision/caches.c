/* Formats of caches by policy, "role:cache = fp8". In a cached step the states become so, and cache_write quantises:
 *
 *     state cache.0 bf16[..]                                      state cache.0 fp8_1x128[..]
 *     %1 = cache_write cache.0, k, row, position            ->    %1 = cache_write cache.0, k, row, position
 *
 * A whole graph has no caches. There the keys and values of causal attention are rounded to what the step's caches would hold, so that scores, checks and generation without a step tell of the same
 * numbers:
 *
 *     attention q, k, v {causal=true}                       ->    %1 = quantize k {to=fp8_1x128}; %2 = quantize v {..}; attention q, %1, %2 {causal=true}
 *
 * Scales follow the plain rule, without a search. nvfp4 has a second level of 1. No precision that is not named for role:cache changes any of this. */
#include "pass/fuse/fuse.h"
#include "pass/precision/told.h"

#include <stdio.h>

/* value as a cache of that format holds it. */
static dw_status emit_held(ir_graph *graph, ir_value *value, dw_format to, ir_value **held) {
    ir_value *in[2] = {value, NULL};
    const op_attr attrs[] = {op_set_format(OP_ATTR_to, to)};
    if (!dw_format_is_block(to)) return ir_emit_cast(graph, value, to, held);
    if (num_info(to)->second == 1) TRY(ir_emit_scalar(graph, DW_FORMAT_f32, 1, &in[1]));
    return ir_emit(graph, OP_quantize, in[1] != NULL ? 2 : 1, in, 1, attrs, held);
}

/* ---- the cached step ---- */

/* Is value what is written into a state, that attention alone reads? */
static bool is_cache(const ir_value *value) {
    const ir_node *node = ir_def(value, OP_cache_write);
    if (node == NULL || ir_in(node, CACHE_X)->kind != IR_STATE || ir_in(node, CACHE_X)->next != value || ir_in(node, CACHE_X)->uses->next != NULL || ir_in(node, CACHE_X)->weight != NULL) return false;
    for (const ir_use *use = value->uses; use != NULL; use = use->next)
        if (use->node->op != OP_attention || (use->index != ATTENTION_K && use->index != ATTENTION_V)) return false;
    return true;
}

static dw_status change_cache(ir_graph *graph, ir_node *node, dw_format to) {
    ir_value *state = ir_in(node, CACHE_X), *tokens = ir_in(node, CACHE_Y);
    state->type.format = to;
    if (!dw_format_is_block(to)) {
        ir_cursor_before(graph, node);
        TRY(ir_emit_cast(graph, tokens, to, &tokens));
        ir_set_operand(node, CACHE_Y, tokens);
    }
    return ir_infer(graph, node);
}

/* ---- the whole graph ---- */

static dw_status emit_rounded(ir_graph *graph, ir_node *node, dw_format to, ir_value **result) {
    ir_value *in[ATTENTION_OPERANDS];
    op_attr attrs[OP_ATTR_COUNT];
    const dw_format format = ir_out(node)->type.format;
    int count = 0;
    bool has_to = false;
    ir_cursor_before(graph, node);
    for (int i = 0; i < node->n_in; i++) in[i] = ir_in(node, i);
    for (int i = ATTENTION_K; i <= ATTENTION_V; i++) TRY(emit_held(graph, in[i], to, &in[i]));
    for (int i = 0; i < node->attrs.count; i++) {
        attrs[count++] = node->attrs.items[i];
        has_to = has_to || node->attrs.items[i].id == OP_ATTR_to;
    }
    if (!has_to && format != in[ATTENTION_Q]->type.format) attrs[count++] = op_set_format(OP_ATTR_to, format);
    return ir_emit(graph, OP_attention, node->n_in, in, count, attrs, result);
}

/* Attention that a cached step would read caches in: of tokens, causal, without places of its own. */
static bool would_read_caches(const ir_node *node) {
    if (!ir_bool(node, OP_ATTR_causal) || (ir_is_constant(ir_in(node, ATTENTION_K)) && ir_is_constant(ir_in(node, ATTENTION_V)))) return false;
    for (int i = ATTENTION_ROW; i <= ATTENTION_TABLE; i++)
        if (ir_in(node, i) != NULL) return false;
    return fuse_is_float(ir_in(node, ATTENTION_K)->type.format) && fuse_is_float(ir_in(node, ATTENTION_V)->type.format);
}

/* The attention with rounded keys and values, which are as they are where caches stay as exported. */
static dw_status round_attention(ir_graph *graph, const pass_options *options, ir_node *node, dw_format to, int number) {
    ir_value *made = ir_out(node);
    if (to != DW_FORMAT_f32) TRY(emit_rounded(graph, node, to, &made));
    return precision_take_attention(graph, options, node, "cache", number, made);
}

dw_status precision_caches(ir_graph *graph, const pass_options *options) {
    const char *rule;
    const pass_precision_row *precision = pass_policy_apart(options->policy, PASS_CACHE, &rule);
    int caches = 0, rounded = 0;
    if (precision == NULL || (precision->cache == DW_FORMAT_f32 && options->probe == PASS_PROBE_NONE)) return DW_OK;
    for (ir_node *node = graph->first, *next; node != NULL; node = next) {
        next = node->next;
        if (node->op == OP_cache_write && precision->cache != DW_FORMAT_f32 && is_cache(ir_out(node))) {
            TRY(change_cache(graph, node, precision->cache));
            caches++;
        } else if (node->op == OP_attention && would_read_caches(node)) {
            TRY(round_attention(graph, options, node, precision->cache, ++rounded));
        }
    }
    pass_policy_used_apart(options->policy, PASS_CACHE, caches + rounded > 0);
    if (caches + rounded > 0) precision_report(options, "keys and values", "cache", precision->name, rule);
    return DW_OK;
}
