/* A graph that is cut over ranks, by splits that the seed draws: all ranks, node by node by the references, beside the graph as it was. */
#include "tests/graphs/graphs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pass/pass.h"

/* What sums in another order may do: so many times what moving every number by a place does, and fp32's own; of a precision of few bits one more code of a block. */
enum { TIMES = 16, MOVES = 4 };
#define LEAST 1e-5

static const char *const lines[] = {"", "* = whole\n", "* = column\n", "* = row\n", "* = vocabulary\n", "* = heads\n", "sums = tokens\n", "all\nsums = tokens\n"};

static dw_status bind(const ir_graph *graph, uint64_t seed, int turn, arena *arena, evaluation *evaluation) {
    int64_t symbols[64], dims[DW_MAX_RANK];
    if (dim_symbol_count(graph->dims) > (int)COUNT_OF(symbols)) return DW_LIMIT;
    graphs_sizes(graph, seed, turn, symbols);
    for (size_t i = 0; i < graph->input_count; i++) {
        const op_type *type = &graph->inputs[i]->type;
        dw_tensor tensor;
        for (int d = 0; d < type->rank; d++) TRY(dim_eval(graph->context, type->dims[d], symbols, &dims[d]));
        TRY(graphs_tensor(arena, type->format, type->scale_layout, type->rank, dims, &tensor));
        TRY(graphs_fill(graph->context, &tensor, graph->inputs[i]->name, seed));
        TRY(evaluation_bind(evaluation, graph->inputs[i]->name, &tensor));
    }
    for (int i = 0; i < dim_symbol_count(graph->dims); i++) TRY(evaluation_set_symbol(evaluation, dim_symbol_name(graph->dims, i), symbols[i]));
    return DW_OK;
}

typedef struct cut { const ir_graph *whole; ir_graph *part; int ranks; uint64_t seed; } cut;

/* Estimates that the seed draws, so that each way of cutting is the shortest somewhere. */
static dw_status draw_sizes(void *user, const ir_graph *graph, int64_t *symbols) {
    (void)user;
    for (int i = 0; i < dim_symbol_count(graph->dims); i++) symbols[i] = 1;
    return DW_OK;
}

static dw_status draw_seconds(void *user, const ir_graph *graph, const ir_node *node, const int64_t *symbols, double *seconds) {
    const cut *cut = user;
    (void)graph;
    (void)symbols;
    *seconds = (double)(num_random(cut->seed, 40 + (uint64_t)node->op) % 64) * (op_has(node->op, OP_TRAIT_COLLECTIVE) ? 1 : 1 + (double)(num_random(cut->seed, 400) % 3));
    return DW_OK;
}

/* Layers are chosen for by their names. */
static dw_status name_layers(ir_graph *graph) {
    int count = 0;
    for (ir_node *node = graph->first; node != NULL; node = node->next) {
        char name[32];
        snprintf(name, sizeof name, "layer%c.%d", 'a' + count % 3, count);
        count++;
        if (node->origin.module == NULL || node->origin.module[0] == '\0') TRY(ir_intern(graph, name, &node->origin.module));
    }
    return DW_OK;
}

/* The graph as precision leaves it, and a copy that is cut; part NULL: the splits are refused. */
static dw_status make_part(const ir_graph *graph, cut *cut) {
    pass_splits *splits = NULL;
    TRY(ir_graph_clone(graph, &cut->part));
    TRY(name_layers(cut->part));
    TRY(pass_splits_create(graph->context, "tp", cut->ranks, "seed", lines[num_random(cut->seed, 31) % COUNT_OF(lines)], &splits));
    const pass_estimates estimates = {.user = cut, .sizes = draw_sizes, .seconds = draw_seconds};
    const pass_options options = {.check = true, .splits = splits, .estimates = num_random(cut->seed, 32) % 2 == 0 ? &estimates : NULL};
    dw_status status = pass_run(cut->part, PASS_STAGE_SHARD, &options);
    if (status == DW_OK) status = pass_run(cut->part, PASS_STAGE_MERGE | PASS_STAGE_CLEAN | PASS_STAGE_CHAIN, &options);
    pass_splits_destroy(splits);
    if (status == DW_OK) return DW_OK;
    ir_graph_destroy(cut->part);
    cut->part = NULL;
    return status == DW_INVALID && strstr(dw_context_error(graph->context), "shard: ") != NULL ? DW_OK : status;
}

static bool is_finite(const dw_tensor *tensor) {
    int64_t index[DW_MAX_RANK] = {0};
    if (num_info(tensor->format)->class != NUM_FLOAT && num_info(tensor->format)->class != NUM_BLOCK) return true;
    for (int64_t i = 0, count = op_tensor_count(tensor); i < count; i++, op_tensor_next(tensor, index))
        if (!isfinite(op_tensor_load(tensor, index)) || fabs(op_tensor_load(tensor, index)) > 1e30) return false;
    return true;
}

/* How far outputs move when every number does, the most of some times. */
static dw_status find_moves(const cut *cut, int turn, arena *arena, evaluation *base, double *moves) {
    for (size_t i = 0; i < cut->whole->output_count; i++) moves[i] = 0;
    for (int move = 0; move < MOVES; move++) {
        evaluation *moved;
        TRY(evaluation_create(cut->whole, &moved));
        dw_status status = bind(cut->whole, cut->seed, turn, arena, moved);
        evaluation_perturb(moved, 2 * cut->seed + (uint64_t)move + 1, 1);
        if (status == DW_OK) status = evaluation_run(moved);
        for (size_t i = 0; status == DW_OK && i < cut->whole->output_count; i++) {
            const double error = tensor_error(evaluation_value(moved, cut->whole->outputs[i].value), evaluation_value(base, cut->whole->outputs[i].value));
            if (!(error <= moves[i])) moves[i] = error;
        }
        evaluation_destroy(moved);
        if (status != DW_OK) return status;
    }
    return DW_OK;
}

/* Where sums overflow, terms of them may cancel as NaN, which an output of true and false shows in other words. */
static bool was_finite(const cut *cut, const evaluation *base) {
    for (const ir_node *node = cut->whole->first; node != NULL; node = node->next)
        for (int i = 0; i < node->n_out; i++)
            if (!is_finite(evaluation_value(base, node->out[i]))) return false;
    return true;
}

/* Does a product add infinities, or what is saturated to the largest numbers? Its parts may be NaN where the whole is a number, and what follows, as tanh does, may hide how large that was. */
static bool adds_infinities(const cut *cut, const evaluation *base) {
    for (const ir_node *node = cut->whole->first; node != NULL; node = node->next)
        for (int i = 0; i < node->n_in && op_has(node->op, OP_TRAIT_CONTRACTION) && node->op != OP_attention; i++)
            if (ir_in(node, i) != NULL && !is_finite(evaluation_value(base, ir_in(node, i)))) return true;
    return false;
}

static bool is_float(const dw_tensor *tensor) { return num_info(tensor->format)->class == NUM_FLOAT || num_info(tensor->format)->class == NUM_BLOCK; }

/* Of what is true or false, or a place, a few elements lie where a sum in another order falls on the other side, and no move may have met them: one, and one in 64, of eight and more. Of fewer each counts. */
static bool differs_in_few(const dw_tensor *made, const dw_tensor *expected) {
    int64_t index[DW_MAX_RANK] = {0}, others = 0;
    const int64_t count = op_tensor_count(expected);
    if (is_float(expected) || count < 8) return false;
    for (int64_t left = count; left > 0; left--) {
        others += op_tensor_load_int(made, index) != op_tensor_load_int(expected, index);
        op_tensor_next(expected, index);
    }
    return others <= 1 + count / 64;
}

static bool compare(checks *c, const cut *cut, int turn, arena *arena, evaluation *base, evaluation *const *ranks) {
    double *moves = arena_new(arena, cut->whole->output_count + 1, sizeof *moves);
    if (moves == NULL || adds_infinities(cut, base) || find_moves(cut, turn, arena, base, moves) != DW_OK) return true;
    for (size_t i = 0; i < cut->whole->output_count; i++) {
        const dw_tensor *expected = evaluation_value(base, cut->whole->outputs[i].value);
        if (!is_finite(expected) || (!is_float(expected) && !was_finite(cut, base))) continue;
        for (int rank = 0; rank < cut->ranks; rank++) {
            const dw_tensor *made = evaluation_value(ranks[rank], cut->part->outputs[i].value);
            const double error = tensor_error(made, expected);
            if (!(error <= LEAST + TIMES * moves[i]) && !differs_in_few(made, expected)) return checks_fail(c, "ranks give another output", "output %s of rank %d of %d: off by %.2e, moved by %.2e", cut->whole->outputs[i].name, rank, cut->ranks, error, moves[i]);
        }
    }
    return true;
}

static bool run_turn(checks *c, const cut *cut, int turn) {
    enum { MOST = 4 };
    evaluation *base = NULL, *ranks[MOST] = {NULL};
    char place[16] = DIM_RANK "tp";
    arena arena;
    arena_init(&arena, c->context);
    dw_status status = evaluation_create(cut->whole, &base);
    if (status == DW_OK) status = bind(cut->whole, cut->seed, turn, &arena, base);
    const bool meant = status == DW_OK && evaluation_run(base) == DW_OK;
    for (int i = 0; meant && status == DW_OK && i < cut->ranks; i++) {
        status = evaluation_create(cut->part, &ranks[i]);
        if (status == DW_OK) status = bind(cut->part, cut->seed, turn, &arena, ranks[i]);
        if (status == DW_OK && dim_symbol_find(cut->part->dims, place) >= 0) status = evaluation_set_symbol(ranks[i], place, i);
    }
    if (meant && status == DW_OK) status = evaluation_run_ranks(cut->ranks, ranks);
    bool held = status == DW_OK || !meant || checks_fail(c, "ranks cannot be evaluated", "%s", dw_context_error(c->context));
    if (held && meant) held = compare(c, cut, turn, &arena, base, ranks);
    for (int i = 0; i < MOST; i++) evaluation_destroy(ranks[i]);
    evaluation_destroy(base);
    arena_free(&arena);
    return held;
}

/* Those are cut already, for other ranks. */
static bool has_collectives(const ir_graph *graph) {
    for (const ir_node *node = graph->first; node != NULL; node = node->next)
        if (op_has(node->op, OP_TRAIT_COLLECTIVE)) return true;
    return false;
}

bool checks_ranks(checks *c, const ir_graph *graph, uint64_t seed) {
    if (has_collectives(graph)) return true;
    cut cut = {.ranks = 2 + (int)(num_random(seed, 30) % 3), .seed = seed};
    ir_graph *whole = NULL;
    pass_policy *policy = NULL;
    const char *precision = graphs_precision(seed);
    bool held = true;
    dw_status status = ir_graph_clone(graph, &whole);
    if (status == DW_OK && precision != NULL) status = pass_policy_create(c->context, precision, "policy", NULL, &policy);
    const pass_options options = {.policy = policy};
    if (status == DW_OK) status = pass_run(whole, PASS_STAGE_CLEAN | PASS_STAGE_FUSE | PASS_STAGE_PRECISION, &options);
    cut.whole = whole;
    if (status == DW_OK) {
        status = make_part(whole, &cut);
        held = status == DW_OK || checks_fail(c, "a cut fails", "%s", dw_context_error(c->context));
    }
    for (const ir_node *node = cut.part != NULL && c->counting ? cut.part->first : NULL; node != NULL; node = node->next) c->ops_met[node->op] += op_has(node->op, OP_TRAIT_COLLECTIVE);
    for (int turn = 0; held && cut.part != NULL && turn <= (dim_symbol_count(graph->dims) > 0); turn++) held = run_turn(c, &cut, turn);
    pass_policy_destroy(policy);
    ir_graph_destroy(cut.part);
    ir_graph_destroy(whole);
    return held;
}
