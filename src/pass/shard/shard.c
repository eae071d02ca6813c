/* Cuts a graph for the ranks of one axis of a mesh. Behind it the graph has local sizes and collectives, and the place of a rank as a symbol; nothing else knows of ranks.
 *
 *     %1 = matmul x, up {bt=true,post="silu"}         %1 = slice up {axis=0,start=512*rank.tp,end=512*rank.tp+512}; %2 = matmul x, %1 {bt=true,post="silu"}
 *     %2 = matmul %1, down {bt=true}             ->   %3 = slice down {axis=1,start=512*rank.tp,end=512*rank.tp+512}; %4 = matmul %2, %3 {bt=true}
 *     output y %2                                     %5 = all_reduce %4 {over="tp",ranks=2,by="sum"}
 *
 * How each node is cut is cut.c's, and which of several ways takes the least time choose.c's. Formats are chosen by then, and products are not merged yet. The note "mesh" says that it is done, and for which. */
#include "pass/shard/shard.h"

#include <stdio.h>
#include <string.h>

#define NOTE "mesh"

/* Has the graph collectives over the axis? Then somebody has cut it, and its weights are a rank's own. */
static bool is_cut_already(const sharding *sharding) {
    for (const ir_node *node = sharding->graph->first; node != NULL; node = node->next)
        if (op_has(node->op, OP_TRAIT_COLLECTIVE) && strcmp(ir_attr_text(node, OP_ATTR_over), sharding->over) == 0) {
            if (sharding->report != NULL) text_printf(sharding->report, "  %-44s %-11s it has collectives over %s already, such as %s, and stays as it is\n", "graph", "as-it-is", sharding->over, op_get(node->op)->name);
            return true;
        }
    return false;
}

static dw_status cut_graph(sharding *sharding) {
    if (is_cut_already(sharding)) return DW_OK;
    TRY(shard_choose(sharding));
    TRY(shard_cut(sharding));
    for (int i = sharding->replaced_count - 1; i >= 0; i--) TRY(ir_remove(sharding->graph, sharding->replaced[i]));
    return pass_splits_check(sharding->splits);
}

dw_status pass_shard(ir_graph *graph, const pass_options *options, bool *changed) {
    *changed = false;
    if (options->splits == NULL || pass_splits_ranks(options->splits) < 2 || map_find(&graph->notes, NOTE) != NULL) return DW_OK;
    sharding sharding = {.graph = graph, .options = options, .splits = options->splits, .over = pass_splits_over(options->splits), .ranks = pass_splits_ranks(options->splits), .report = options->told};
    arena_init(&sharding.arena, graph->context);
    dw_status status = cut_graph(&sharding);
    char note[64];
    snprintf(note, sizeof note, "%s=%d", sharding.over, sharding.ranks);
    if (status == DW_OK) status = ir_set_note(graph, NOTE, note);
    shard_clear_marks(graph);
    arena_free(&sharding.arena);
    *changed = true;
    return status;
}
