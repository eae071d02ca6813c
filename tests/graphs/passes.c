/* The graph before and after each pass, and each fusion by itself, evaluated by the references on the same inputs. Passes that only drop, share or evaluate keep every
 * bit. The others round at other points than before: outputs may differ by four times as much as they move when every computed number of either graph moves
 * by a last place, the largest of several such runs; of more runs, and by more places, before a difference counts. Where a node of the graph before makes an infinity of
 * finite numbers, or a NaN of none, those passes are not held to it: a fusion rounds less, and a row that sees nothing is NaN where softmax is spelled out. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pass/fuse/fuse.h"
#include "tests/graphs/graphs.h"

enum { MOST_OUTPUTS = 300, MOST_INPUTS = 64, MOST_ROUNDS = 64 };

static const struct { const char *name; fuse_function run; } fusions[] = {
#define FUSE(name, part, meaning) {#name, fuse_##name},
#include "pass/fuse/fuse.def"
#undef FUSE
};

int graphs_fusion_count(void) { return (int)COUNT_OF(fusions); }
const char *graphs_fusion_name(int index) { return fusions[index].name; }

typedef struct outputs { int count; dw_tensor tensors[MOST_OUTPUTS]; } outputs;

typedef struct comparing {
    checks *c;
    uint64_t seed;
    int turn;                     /* of graphs_sizes */
    arena arena;                  /* inputs, and what the graph gave before the pass */
    int input_count;
    const char *names[MOST_INPUTS];
    dw_tensor inputs[MOST_INPUTS];
    ir_graph *before;             /* a copy */
    bool calm;                    /* makes it no infinity of finite numbers, and no NaN? */
    outputs base;
} comparing;

/* ---- one graph ---- */

static dw_status bind_all(const comparing *w, const ir_graph *graph, evaluation *run) {
    int64_t symbols[64];
    graphs_sizes(graph, w->seed, w->turn, symbols);
    for (int i = 0; i < dim_symbol_count(graph->dims); i++) TRY(evaluation_set_symbol(run, dim_symbol_name(graph->dims, i), symbols[i]));
    for (int i = 0; i < w->input_count; i++)
        if (map_find(&graph->names, w->names[i]) != NULL) TRY(evaluation_bind(run, w->names[i], &w->inputs[i]));
    return DW_OK;
}

/* A part of zero bytes may have no address. */
static void copy_bytes(void *to, const void *from, size_t bytes) {
    if (bytes > 0) memcpy(to, from, bytes);
}

static dw_status copy_outputs(const ir_graph *graph, const evaluation *run, arena *arena, outputs *out) {
    out->count = (int)graph->output_count;
    for (int i = 0; i < out->count; i++) {
        const dw_tensor *from = evaluation_value(run, graph->outputs[i].value);
        dw_tensor *to = &out->tensors[i];
        int64_t index[DW_MAX_RANK] = {0};
        num_parts parts;
        TRY(graphs_tensor(arena, from->format, from->scale_layout, from->rank, from->dims, to));
        if (dw_format_is_block(from->format)) {
            num_layout(from->format, from->scale_layout, from->rank, from->dims, &parts);
            copy_bytes(to->data, from->data, parts.data_bytes);
            copy_bytes(to->scales, from->scales, parts.scale_bytes);
            copy_bytes(to->second, from->second, parts.second_bytes);
            continue;
        }
        for (int64_t k = 0, count = op_tensor_count(from); k < count; k++, op_tensor_next(from, index)) {
            if (is_number(from->format)) op_tensor_store(to, index, op_tensor_load(from, index));
            else op_tensor_store_int(to, index, op_tensor_load_int(from, index));
        }
    }
    return DW_OK;
}

enum { HAS_NAN = 1, HAS_INFINITY = 2, HAS_TINY = 4 };

static unsigned wild_in(const dw_tensor *t) {
    unsigned wild = 0;
    int64_t index[DW_MAX_RANK] = {0};
    for (int64_t i = 0, count = is_number(t->format) ? op_tensor_count(t) : 0; i < count; i++, op_tensor_next(t, index)) {
        const double x = op_tensor_load(t, index);
        if (!isfinite(x)) wild |= isnan(x) ? HAS_NAN : HAS_INFINITY;
        else if (x != 0 && fabs(x) < 1e-30) wild |= HAS_TINY;
    }
    return wild;
}

/* Does a pointwise node make an infinity, or a NaN, of finite numbers? */
static bool overflows(const ir_node *node, const evaluation *run) {
    const dw_tensor *y = evaluation_value(run, node->out[0]);
    int64_t index[DW_MAX_RANK] = {0}, at[DW_MAX_RANK] = {0};
    for (int64_t i = 0, count = is_number(y->format) ? op_tensor_count(y) : 0; i < count; i++, op_tensor_next(y, index)) {
        bool finite = true;
        if (isfinite(op_tensor_load(y, index))) continue;
        for (int k = 0; k < node->n_in && finite; k++) {
            const dw_tensor *x = ir_in(node, k) != NULL ? evaluation_value(run, ir_in(node, k)) : NULL;
            if (x == NULL || !is_number(x->format)) continue;
            for (int d = 0; d < x->rank; d++) at[d] = x->dims[d] == 1 ? 0 : index[y->rank - x->rank + d];
            finite = isfinite(op_tensor_load(x, at)) != 0;
        }
        if (finite) return true;
    }
    return false;
}

/* Does some node make a jump of a small difference? */
static bool jumps(const ir_graph *graph) {
    for (const ir_node *node = graph->first; node != NULL; node = node->next) {
        if (op_has(node->op, OP_TRAIT_JUMPS)) return true;
        if (node->n_in > 0 && is_number(ir_in(node, 0)->type.format) && !is_number(ir_out(node)->type.format)) return true;
    }
    return false;
}

/* Numbers so small that they are nearly lost matter to jumps, which tell them from 0. */
static bool is_calm(const ir_graph *graph, const evaluation *run) {
    const bool may_jump = jumps(graph);
    for (const ir_node *node = graph->first; node != NULL; node = node->next) {
        unsigned before = 0, after = 0;
        if ((op_get(node->op)->traits & OP_TRAIT_CREATE) != 0) continue;
        for (int i = 0; i < node->n_out; i++) after |= wild_in(evaluation_value(run, node->out[i]));
        for (int i = 0; i < node->n_in && after != 0; i++)
            if (ir_in(node, i) != NULL) before |= wild_in(evaluation_value(run, ir_in(node, i)));
        if ((after & (HAS_NAN | HAS_INFINITY)) != 0 && op_has(node->op, OP_TRAIT_POINTWISE) && overflows(node, run)) return false;
        if ((after & ~before & (HAS_NAN | HAS_INFINITY)) != 0 || (may_jump && (after & HAS_TINY) != 0)) return false;
    }
    return true;
}

/* Does a query see no key at all, of an attention whose mask was made of finite numbers that hide padding? fuse_attention says so in a note: that one row has another meaning then. */
static bool sees_padding_alone(const ir_graph *graph, const evaluation *run) {
    for (const ir_node *node = graph->first; node != NULL && map_find(&graph->notes, PASS_PADDING) != NULL; node = node->next) {
        const ir_value *value = node->op == OP_attention ? ir_in(node, ATTENTION_MASK) : NULL;
        const dw_tensor *mask = value != NULL ? evaluation_value(run, value) : NULL;
        int64_t index[DW_MAX_RANK] = {0}, seen = 0;
        for (int64_t i = 0, count = mask != NULL ? op_tensor_count(mask) : 0; i < count; i++, op_tensor_next(mask, index)) {
            const int64_t length = mask->rank > 0 ? mask->dims[mask->rank - 1] : 1;
            if (i % length == 0) seen = 0;
            seen += op_tensor_load_int(mask, index) != 0;
            if (i % length == length - 1 && seen == 0) return true;
        }
    }
    return false;
}

/* places 0: as it is. calm: NULL, or is it? *padded: NULL, or sees_padding_alone. */
static dw_status evaluate(const comparing *w, const ir_graph *graph, arena *arena, uint64_t perturbed, double places, outputs *out, bool *calm, bool *padded) {
    evaluation *run = NULL;
    dw_status status = evaluation_create(graph, &run);
    if (status == DW_OK) status = bind_all(w, graph, run);
    if (status == DW_OK) evaluation_perturb(run, perturbed, places);
    if (status == DW_OK) status = evaluation_run(run);
    if (status == DW_OK) status = copy_outputs(graph, run, arena, out);
    if (status == DW_OK && calm != NULL) *calm = is_calm(graph, run);
    if (status == DW_OK && padded != NULL) *padded = sees_padding_alone(graph, run);
    evaluation_destroy(run);
    return status;
}

/* ---- two graphs ---- */

static bool is_same_number(double x, double y) { return x == y || (isnan(x) && isnan(y)); }

static bool are_equal(const dw_tensor *a, const dw_tensor *b) {
    int64_t index[DW_MAX_RANK] = {0};
    if (a->format != b->format || a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dims[i] != b->dims[i]) return false;
    for (int64_t i = 0, count = op_tensor_count(a); i < count; i++, op_tensor_next(a, index))
        if (is_number(a->format) ? !is_same_number(op_tensor_load(a, index), op_tensor_load(b, index)) : op_tensor_load_int(a, index) != op_tensor_load_int(b, index)) return false;
    return true;
}

/* How far each row of an output goes when its graph is perturbed, and whether it may be anything else than finite. */
typedef struct spread { double *by; bool *wild; } spread;

static int64_t row_length(const dw_tensor *t) { return t->rank > 0 && t->dims[t->rank - 1] > 0 ? t->dims[t->rank - 1] : 1; }

static double element(const dw_tensor *t, const int64_t *index) { return is_number(t->format) ? op_tensor_load(t, index) : (double)op_tensor_load_int(t, index); }

static void widen(const dw_tensor *perturbed, const dw_tensor *base, spread *s) {
    int64_t index[DW_MAX_RANK] = {0};
    const int64_t length = row_length(base);
    for (int64_t i = 0, count = op_tensor_count(base); i < count; i++, op_tensor_next(base, index)) {
        const double x = element(perturbed, index), y = element(base, index);
        if (is_same_number(x, y)) continue;
        if (!isfinite(x) || !isfinite(y)) s->wild[i / length] = true;
        else s->by[i / length] = fmax(s->by[i / length], fabs(x - y));
    }
}

static dw_status measure(const comparing *w, const ir_graph *graph, const outputs *base, arena *arena, int runs, double places, spread *spreads) {
    for (int run = 0; run < runs; run++) {
        outputs moved;
        TRY(evaluate(w, graph, arena, w->seed * 131 + (uint64_t)run, places, &moved, NULL, NULL));
        for (int i = 0; i < base->count; i++) widen(&moved.tensors[i], &base->tensors[i], &spreads[i]);
    }
    return DW_OK;
}

/* Is each element within what the spreads allow? Behind jumps, which a run may meet by chance, one of 500 need not be. words say the first that is not. */
static bool stays_within(comparing *w, const outputs *made, const spread *spreads, text *words) {
    const bool may_jump = jumps(w->before);
    for (int k = 0; k < made->count; k++) {
        const dw_tensor *a = &made->tensors[k], *b = &w->base.tensors[k];
        int64_t index[DW_MAX_RANK] = {0};
        const int64_t length = row_length(b), count = op_tensor_count(b);
        int64_t spare = may_jump ? 1 + count / 500 : 0;
        if (a->format != b->format || op_tensor_count(a) != count) {
            text_printf(words, "output %d has another format or shape", k);
            return false;
        }
        for (int64_t i = 0; i < count; i++, op_tensor_next(b, index)) {
            const double x = element(a, index), y = element(b, index), by = spreads[k].by[i / length];
            if (is_same_number(x, y) || spreads[k].wild[i / length]) continue;
            if (isfinite(x) && isfinite(y) && fabs(x - y) <= 4 * by + 1e-12 * fabs(y)) continue;
            if (spare-- > 0) continue;
            text_printf(words, "output %d, element %lld is %.9g after and %.9g before, where perturbations move its row by %.3g", k, (long long)i, x, y, by);
            return false;
        }
    }
    return true;
}

static dw_status compare_closely(comparing *w, const ir_graph *after, const outputs *made, bool *held, text *words) {
    static const struct { int runs; double places; } efforts[] = {{2, 1}, {6, 1}, {12, 2}, {30, 4}};
    arena scratch;
    arena_init(&scratch, w->c->context);
    spread spreads[MOST_OUTPUTS];
    dw_status status = DW_OK;
    for (int k = 0; status == DW_OK && k < w->base.count; k++) {
        const int64_t rows = op_tensor_count(&w->base.tensors[k]) / row_length(&w->base.tensors[k]) + 1;
        spreads[k].by = arena_new(&scratch, (size_t)rows, sizeof(double));
        spreads[k].wild = arena_new(&scratch, (size_t)rows, sizeof(bool));
        if (spreads[k].wild == NULL || spreads[k].by == NULL) status = DW_NO_MEMORY;
    }
    *held = false;
    for (size_t i = 0; status == DW_OK && i < COUNT_OF(efforts) && !*held; i++) {
        text_free(words);
        text_init(words, w->c->context);
        status = measure(w, w->before, &w->base, &scratch, efforts[i].runs, efforts[i].places, spreads);
        if (status == DW_OK) status = measure(w, after, made, &scratch, efforts[i].runs, efforts[i].places, spreads);
        if (status == DW_OK) *held = stays_within(w, made, spreads, words);
    }
    arena_free(&scratch);
    return status;
}

static bool is_exact(const char *name) {
    static const char *const exact[] = {"fold", "cse", "dead", "chain", "fuse role", "fuse concat_empty"};
    for (size_t i = 0; i < COUNT_OF(exact); i++)
        if (strcmp(exact[i], name) == 0) return true;
    return false;
}

/* The graph as it is now becomes what the next pass is compared with. */
static dw_status take_base(comparing *w, const ir_graph *graph) {
    ir_graph_destroy(w->before);
    w->before = NULL;
    TRY(ir_graph_clone(graph, &w->before));
    return evaluate(w, w->before, &w->arena, 0, 0, &w->base, &w->calm, NULL);
}

static bool are_all_equal(const outputs *a, const outputs *b) {
    bool equal = a->count == b->count;
    for (int i = 0; equal && i < a->count; i++) equal = are_equal(&a->tensors[i], &b->tensors[i]);
    return equal;
}

/* Does what the graph gives now agree with what it gave? words say what does not. */
static bool agrees(comparing *w, const ir_graph *after, const outputs *made, const char *name, text *words) {
    bool held = false;
    if (are_all_equal(made, &w->base)) return true;
    if (is_exact(name)) {
        text_add(words, "it must keep every bit");
        return false;
    }
    if (made->count != w->base.count) return false;
    if (!w->calm) return true;
    if (compare_closely(w, after, made, &held, words) != DW_OK) text_add(words, dw_context_error(w->c->context));
    return held;
}

static bool compare(comparing *w, const ir_graph *after, const char *name) {
    outputs made;
    bool calm, padded;
    char kind[120];
    text words;
    snprintf(kind, sizeof kind, "pass %s changes what the graph means", name);
    if (ir_check(after) != DW_OK) return checks_fail(w->c, "pass leaves a graph that does not check", "%s: %s", name, dw_context_error(w->c->context));
    if (evaluate(w, after, &w->arena, 0, 0, &made, &calm, &padded) != DW_OK) return checks_fail(w->c, "pass leaves a graph that cannot be evaluated", "%s: %s", name, dw_context_error(w->c->context));
    text_init(&words, w->c->context);
    const bool held = (padded && strcmp(name, "fuse_attention") == 0) || agrees(w, after, &made, name, &words) || checks_fail(w->c, kind, "%s", text_string(&words));
    text_free(&words);
    ir_graph_destroy(w->before);
    w->before = NULL;
    w->base = made;
    w->calm = calm;
    return ir_graph_clone(after, &w->before) == DW_OK && held;
}

/* ---- the pipeline ---- */

/* What a fusion made did not check, so it was undone: the model runs, and the fusion is wrong. */
static bool none_undone(checks *c, const ir_graph *graph) {
    for (size_t i = 0; i < graph->notes.count; i++)
        if (strncmp(graph->notes.entries[i].key, PASS_UNDONE, strlen(PASS_UNDONE)) == 0) return checks_fail(c, "a fusion is undone", "%s", (const char *)graph->notes.entries[i].value);
    return true;
}

/* What the roles of all nodes are: a row that gives roles says of no graph that it changed it. */
static uint64_t roles_of(const ir_graph *graph) {
    uint64_t roles = 0;
    for (const ir_node *node = graph->first; node != NULL; node = node->next) {
        const char *role = node->origin.role != NULL ? node->origin.role : "";
        roles = base_hash(role, strlen(role), roles + 1);
    }
    return roles;
}

static bool fuse_rows(comparing *w, ir_graph *graph, bool *changed) {
    for (size_t i = 0, turns = 0; i < COUNT_OF(fusions); turns++) {
        bool row_changed = false;
        const uint64_t roles = roles_of(graph);
        char name[64];
        snprintf(name, sizeof name, "fuse %s", fusions[i].name);
        if (turns > 4000) return checks_fail(w->c, "fusions do not end", "%s still changes the graph", name);
        ir_cursor_end(graph);
        dw_status status = fuse_each(graph, fusions[i].name, fusions[i].run, &row_changed);
        ir_cursor_end(graph);
        graph->origin = (ir_origin){0};
        if (status == DW_OK && row_changed) status = ir_sort(graph);
        if (status != DW_OK) return checks_fail(w->c, "a fusion fails", "%s: %s", name, dw_context_error(w->c->context));
        if (!row_changed) {
            if (roles_of(graph) != roles) {
                if (w->c->counting) w->c->fusions_met[i]++;
                if (!compare(w, graph, name)) return false;
            }
            i++;
            continue;
        }
        ir_renumber(graph);
        if (w->c->counting) w->c->fusions_met[i]++;
        *changed = true;
        if (!compare(w, graph, name)) return false;
        i = 0;
    }
    return true;
}

static bool run_stage(comparing *w, ir_graph *graph, unsigned stage, const pass_options *options) {
    for (int round = 0; round < MOST_ROUNDS; round++) {
        bool any = false;
        for (int i = 0; pass_get(i) != NULL; i++) {
            const pass_row *row = pass_get(i);
            bool changed = false;
            if ((row->stages & stage) == 0) continue;
            if (strcmp(row->name, "fuse") == 0) {
                if (!fuse_rows(w, graph, &changed)) return false;
            } else if (pass_run_one(graph, row, options, &changed) != DW_OK) {
                return checks_fail(w->c, "a pass fails", "%s: %s", row->name, dw_context_error(w->c->context));
            }
            any = any || changed;
            if (!changed) continue;
            if (w->c->counting) w->c->passes_met[i]++;
            if (strcmp(row->name, "fuse") == 0) continue;
            if (strcmp(row->name, "precision") == 0 ? take_base(w, graph) != DW_OK : !compare(w, graph, row->name)) return w->c->kind[0] != '\0' ? false : checks_fail(w->c, "a pass leaves a graph that cannot be evaluated", "%s", dw_context_error(w->c->context));
        }
        if (!any) return true;
    }
    return checks_fail(w->c, "passes do not end", "stage %u", stage);
}

static dw_status make_inputs(comparing *w, const ir_graph *graph) {
    int64_t symbols[64], dims[DW_MAX_RANK];
    if (dim_symbol_count(graph->dims) > (int)COUNT_OF(symbols) || graph->input_count > MOST_INPUTS || graph->output_count > MOST_OUTPUTS) return DW_LIMIT;
    graphs_sizes(graph, w->seed, w->turn, symbols);
    for (size_t i = 0; i < graph->input_count; i++) {
        const op_type *type = &graph->inputs[i]->type;
        for (int d = 0; d < type->rank; d++) TRY(dim_eval(graph->context, type->dims[d], symbols, &dims[d]));
        w->names[i] = graph->inputs[i]->name;
        TRY(graphs_tensor(&w->arena, type->format, type->scale_layout, type->rank, dims, &w->inputs[i]));
        TRY(graphs_fill(graph->context, &w->inputs[i], w->names[i], w->seed));
        w->input_count = (int)i + 1;
    }
    return DW_OK;
}

bool graphs_is_meant(checks *c, const ir_graph *graph, uint64_t seed) {
    dw_status status = DW_OK;
    for (int turn = 0; status == DW_OK && turn <= (dim_symbol_count(graph->dims) > 0); turn++) {
        comparing w = {.c = c, .seed = seed, .turn = turn};
        arena_init(&w.arena, c->context);
        status = make_inputs(&w, graph);
        if (status == DW_OK) status = take_base(&w, graph);
        ir_graph_destroy(w.before);
        arena_free(&w.arena);
    }
    return status == DW_OK;
}

bool checks_passes(checks *c, const ir_graph *graph, uint64_t seed) {
    comparing w = {.c = c, .seed = seed};
    ir_graph *changing = NULL;
    pass_policy *policy = NULL;
    arena_init(&w.arena, c->context);
    const char *precision = graphs_precision(seed);
    dw_status status = make_inputs(&w, graph);
    if (status == DW_OK) status = take_base(&w, graph);
    if (status == DW_OK) status = ir_graph_clone(graph, &changing);
    if (status == DW_OK && precision != NULL) status = pass_policy_create(c->context, precision, "policy", NULL, &policy);
    bool held = status == DW_OK || checks_fail(c, "the graph cannot be evaluated", "%s", dw_context_error(c->context));
    const pass_options options = {.check = true, .policy = policy};
    static const unsigned stages[] = {PASS_STAGE_CLEAN, PASS_STAGE_FUSE, PASS_STAGE_CLEAN, PASS_STAGE_PRECISION, PASS_STAGE_SHARD, PASS_STAGE_MERGE, PASS_STAGE_CHAIN};
    for (size_t i = 0; held && i < COUNT_OF(stages); i++) held = run_stage(&w, changing, stages[i], &options);
    held = held && none_undone(c, changing);
    pass_policy_destroy(policy);
    ir_graph_destroy(changing);
    ir_graph_destroy(w.before);
    arena_free(&w.arena);
    return held;
}
