/* Which way of cutting takes the least time: what rules say (cut.c), the same with columns where they would cut along k, or whole. The graph is cut for a trial in each way. Between groups of nodes that are
 * cut together values are whole, so each group is chosen by itself, and the sum is the least there is. The first graph of a model chooses; its others keep to that, so that weights are cut in one way.
 *
 *     rules      column, .., row     one all_reduce
 *     columns    column, .., column  what is split is put together in front of the last, and its result behind it
 *     whole      nothing is sent, and each rank has all of the weights
 *
 * Then whether sums of products along k are of all tokens or of a rank's (tokens.c): residuals lead from layer to layer, so of a graph all are, or none. Two more trials differ in that, and what differs in time
 * is compared. */
#include "pass/shard/shard.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>

#define FIRM 0.9   /* another way than by rules has to take so much of its time: estimates are no better */

typedef enum way { RULES, COLUMNS, WHOLE, WAYS } way;

/* A graph of its own, cut. */
typedef struct attempt { sharding sharding; shard_trial trial; } attempt;

enum { SUMS = WAYS - 1, TOKENS, ATTEMPTS };   /* beside RULES and COLUMNS, as chosen: with whole sums, and by tokens */

static dw_status attempt_cut(const sharding *real, attempt *attempt) {
    sharding *sharding = &attempt->sharding;
    TRY(ir_graph_clone(real->graph, &sharding->graph));
    return shard_cut(sharding);
}

static void attempt_begin(const sharding *real, attempt *attempt) {
    attempt->sharding = *real;
    attempt->sharding.graph = NULL;
    attempt->sharding.report = NULL;
    attempt->sharding.trial = &attempt->trial;
    arena_init(&attempt->sharding.arena, real->graph->context);
}

static void attempt_end(attempt *attempt) {
    ir_graph_destroy(attempt->sharding.graph);
    arena_free(&attempt->sharding.arena);
}

/* ---- a group ---- */

static bool decides(const ir_node *node) { return shard_is_weighted(node) || node->op == OP_dispatch; }

/* Is it for us to say: does it have products with names, none of which a line names or was chosen for before? */
static bool is_free(const sharding *sharding, const shard_trial *trial, int group) {
    bool any = false;
    for (int i = 0; i < trial->count; i++) {
        const ir_node *node = trial->nodes[i];
        const char *rule, *module = node->origin.module;
        if (shard_trial_group(trial, i) != group || !decides(node)) continue;
        any = true;
        if (module == NULL || module[0] == '\0' || shard_is_decided(sharding->splits, module)) return false;
        if (pass_splits_choose(sharding->splits, module, node->origin.role, &rule) != PASS_SPLIT_chosen) return false;
    }
    return any;
}

static void add_up(const attempt attempts[2], int group, double seconds[WAYS]) {
    const shard_trial *rules = &attempts[RULES].trial, *columns = &attempts[COLUMNS].trial;
    for (int i = 0; i < rules->count; i++) {
        if (shard_trial_group(rules, i) != group) continue;
        seconds[RULES] += rules->seconds[i];
        seconds[COLUMNS] += i < columns->count ? columns->seconds[i] : INFINITY;
        seconds[WHOLE] += rules->whole[i];
    }
}

static bool is_along_k(sharding *sharding, const ir_node *node) {
    const ir_value *a = ir_in(node, 0);
    return shard_is_weighted(node) && shard_of(sharding, ir_in(node, 0))->place.kind == SHARD_SPLIT && shard_of(sharding, ir_in(node, 0))->place.axis == a->type.rank - 1;
}

/* Of the nodes of a group that one whose line says what the group takes: its dispatch, else its last product. */
static int teller_of(const shard_trial *trial, int group) {
    int last = -1;
    for (int i = group; i < trial->count; i++) {
        if (shard_trial_group(trial, i) != group || !decides(trial->nodes[i])) continue;
        last = i;
        if (trial->nodes[i]->op == OP_dispatch) break;
    }
    return last;
}

static dw_status tell_group(attempt *rules, int group, const double seconds[WAYS]) {
    sharding *sharding = &rules->sharding;
    const shard_trial *trial = &rules->trial;
    const way other = seconds[WHOLE] <= seconds[COLUMNS] ? WHOLE : COLUMNS, least = seconds[other] < FIRM * seconds[RULES] ? other : RULES;
    char words[160], others[48] = "";
    if (seconds[COLUMNS] != seconds[RULES] && isfinite(seconds[COLUMNS])) snprintf(others, sizeof others, ", by columns alone %.1f", seconds[COLUMNS] * 1e6);
    if (least == COLUMNS) snprintf(words, sizeof words, "less time: %.1f us by columns alone, along k %.1f, whole %.1f", seconds[COLUMNS] * 1e6, seconds[RULES] * 1e6, seconds[WHOLE] * 1e6);
    else if (least == WHOLE) snprintf(words, sizeof words, "less time: %.1f us whole, cut %.1f%s", seconds[WHOLE] * 1e6, seconds[RULES] * 1e6, others);
    else snprintf(words, sizeof words, "%.1f us in all with what is cut together%s, whole %.1f", seconds[RULES] * 1e6, others, seconds[WHOLE] * 1e6);
    const int teller = teller_of(trial, group);
    for (int i = 0; i < trial->count; i++) {
        const ir_node *node = trial->nodes[i];
        if (shard_trial_group(trial, i) != group || !decides(node)) continue;
        const pass_split split = least == WHOLE ? PASS_SPLIT_whole : least == COLUMNS && is_along_k(sharding, node) ? PASS_SPLIT_column : PASS_SPLIT_chosen;
        TRY(shard_prefer(sharding->splits, node->origin.module, split, split != PASS_SPLIT_chosen || i == teller ? words : NULL));
    }
    return DW_OK;
}

/* Are they the same but for numbers: one layer and another? */
static bool is_like(const char *a, const char *b) {
    while (*a != '\0' && *b != '\0') {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            while (isdigit((unsigned char)*a)) a++;
            while (isdigit((unsigned char)*b)) b++;
        } else if (*a++ != *b++) {
            return false;
        }
    }
    return *a == *b;
}

static const char *name_of(const shard_trial *trial, int group) {
    for (int i = group; i < trial->count; i++)
        if (shard_trial_group(trial, i) == group && decides(trial->nodes[i])) return trial->nodes[i]->origin.module;
    return "";
}

/* Layers that differ in numbers alone are cut in one way. */
static dw_status choose(attempt attempts[2], int *open) {
    const shard_trial *trial = &attempts[RULES].trial;
    int count = 0;
    for (int i = 0; i < trial->count; i++)
        if (shard_trial_group(trial, i) == i && trial->is_cut[i] && is_free(&attempts[RULES].sharding, trial, i)) open[count++] = i;
    for (int i = 0; i < count; i++) {
        double seconds[WAYS] = {0};
        if (open[i] < 0) continue;
        const char *name = name_of(trial, open[i]);
        for (int k = i; k < count; k++)
            if (open[k] >= 0 && is_like(name, name_of(trial, open[k]))) add_up(attempts, open[k], seconds);
        for (int k = count - 1; k >= i; k--) {
            if (open[k] < 0 || !is_like(name, name_of(trial, open[k]))) continue;
            TRY(tell_group(&attempts[RULES], open[k], seconds));
            open[k] = -1;
        }
    }
    return DW_OK;
}

/* ---- sums ---- */

/* A product whose sums are by tokens, if we say so: no line names it, and no graph before had it. */
static bool may_be_by_tokens(sharding *sharding, ir_node *node) {
    const char *rule;
    if (!shard_is_weighted(node) || node->origin.module == NULL || node->origin.module[0] == '\0' || shard_sums_are_decided(sharding->splits, node->origin.module)) return false;
    const shard_place *place = &shard_of(sharding, ir_out(node))->place;
    const bool by_tokens = place->kind == SHARD_TOKENS || (place->kind == SHARD_PARTIAL && place->by_tokens);
    return by_tokens && pass_splits_choose(sharding->splits, node->origin.module, node->origin.role, &rule) == PASS_SPLIT_chosen;
}

/* Seconds of what takes another time by tokens. */
static void compare_sums(const attempt attempts[ATTEMPTS], double seconds[ATTEMPTS]) {
    for (int i = 0; i < attempts[SUMS].trial.count && i < attempts[TOKENS].trial.count; i++) {
        if (attempts[SUMS].trial.seconds[i] == attempts[TOKENS].trial.seconds[i]) continue;
        seconds[SUMS] += attempts[SUMS].trial.seconds[i];
        seconds[TOKENS] += attempts[TOKENS].trial.seconds[i];
    }
}

static dw_status choose_sums(sharding *real, attempt attempts[ATTEMPTS]) {
    double seconds[ATTEMPTS] = {0};
    char words[160];
    bool any = false;
    if (pass_splits_sums(real->splits) != PASS_SPLIT_chosen) return DW_OK;
    TRY(attempt_cut(real, &attempts[TOKENS]));
    const shard_trial *trial = &attempts[TOKENS].trial;
    for (int i = 0; i < trial->count && !any; i++) any = may_be_by_tokens(&attempts[TOKENS].sharding, trial->nodes[i]);
    if (!any) return DW_OK;
    TRY(attempt_cut(real, &attempts[SUMS]));
    compare_sums(attempts, seconds);
    const bool pays = seconds[TOKENS] < FIRM * seconds[SUMS];
    if (pays) snprintf(words, sizeof words, "less time: %.1f us for sums, residuals and norms of all layers by tokens, whole %.1f", seconds[TOKENS] * 1e6, seconds[SUMS] * 1e6);
    else snprintf(words, sizeof words, "%.1f for sums, residuals and norms of all layers, by tokens %.1f", seconds[SUMS] * 1e6, seconds[TOKENS] * 1e6);
    for (int i = 0; i < trial->count; i++)
        if (may_be_by_tokens(&attempts[TOKENS].sharding, trial->nodes[i])) TRY(shard_prefer_sums(real->splits, trial->nodes[i]->origin.module, pays, words));
    return DW_OK;
}

static dw_status try_all(sharding *real, attempt attempts[ATTEMPTS]) {
    int *open;
    for (int i = 0; i < 2; i++) TRY(attempt_cut(real, &attempts[i]));
    TRY_NEW(open, &real->arena, attempts[RULES].trial.count + 1);
    TRY(choose(attempts, open));
    return choose_sums(real, attempts);
}

dw_status shard_choose(sharding *real) {
    attempt attempts[ATTEMPTS] = {0};
    if (real->options->estimates == NULL || pass_splits_all(real->splits)) return DW_OK;
    attempts[COLUMNS].trial.by_columns = true;
    attempts[TOKENS].trial.by_tokens = true;
    for (int i = 0; i < ATTEMPTS; i++) attempt_begin(real, &attempts[i]);
    const dw_status status = try_all(real, attempts);
    for (int i = 0; i < ATTEMPTS; i++) attempt_end(&attempts[i]);
    return status;
}
