/* Policies of splits: lines "pattern = column", over module paths or "role:" and a role, the first that matches wins. What no line names is chosen (product.c, lookup.c, experts.c). Changes no graph.
 *
 *     # split.txt
 *     lm_head              = whole
 *     *.mlp.down_proj      = row
 *     role:attention       = heads
 *     all                             everything is cut that can be, whatever time it takes: for the least memory
 *     scales = local                  of formats with a scale a row each rank has one of its part; else the scale is that of the whole row
 *     sums = tokens                   of products that are cut along k each rank has the sums of some tokens; whole: of all of them; else the least time decides
 *     strict                          what no rule of shard.def cuts is an error instead of being computed whole, on every rank */
#include "pass/shard/shard.h"

#include <stdio.h>
#include <string.h>

/* What was found to take the least time. */
typedef struct preference { pass_split split; const char *words; bool sums_are_decided; } preference;
typedef struct rule { const char *pattern, *words; pass_split split; bool has_matched; } rule;

struct pass_splits {
    dw_context *context;
    arena arena;
    const char *over;
    int ranks;
    rule *rules;
    size_t count, capacity;
    const char *strict;             /* the place of the line; NULL: there is none */
    bool all, local_scales, was_checked;
    pass_split sums;                /* tokens, row: asked for; chosen: not */
    map preferences;                /* by module */
};

static const char *const names[] = {
    "chosen",
#define SPLIT(name, meaning) #name,
#include "pass/shard/split.def"
#undef SPLIT
};

const char *pass_split_name(pass_split split) { return names[split]; }
const char *pass_splits_over(const pass_splits *shard) { return shard->over; }
int pass_splits_ranks(const pass_splits *shard) { return shard->ranks; }
const char *pass_splits_strict(const pass_splits *shard) { return shard->strict; }
bool pass_splits_local_scales(const pass_splits *shard) { return shard->local_scales; }
pass_split pass_splits_sums(const pass_splits *shard) { return shard->sums; }
bool pass_splits_all(const pass_splits *shard) { return shard->all; }

static dw_status fail_split(pass_splits *shard, const char *place, const char *name) {
    text known;
    text_init(&known, shard->context);
    for (size_t i = 1; i < COUNT_OF(names); i++) text_printf(&known, "%s%s", i > 1 ? ", " : "", names[i]);
    dw_status status = base_fail(shard->context, DW_NOT_FOUND, "%s: there is no split '%s'; there are %s", place, name, text_string(&known));
    text_free(&known);
    return status;
}

static dw_status add_rule(pass_splits *shard, const char *pattern, const char *name, const char *place) {
    size_t split = 1;
    while (split < COUNT_OF(names) && strcmp(names[split], name) != 0) split++;
    if (split == COUNT_OF(names)) return fail_split(shard, place, name);
    rule *rules = arena_grow(&shard->arena, shard->rules, shard->count, &shard->capacity, sizeof *rules);
    if (rules == NULL) return DW_NO_MEMORY;
    shard->rules = rules;
    const char *words = arena_printf(&shard->arena, "%s = %s (%s)", pattern, name, place);
    if (words == NULL) return DW_NO_MEMORY;
    rules[shard->count++] = (rule){.pattern = pattern, .words = words, .split = (pass_split)split};
    return DW_OK;
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/* The next word of [*at, end): up to a blank or '='. */
static const char *read_word(pass_splits *shard, const char **at, const char *end) {
    while (*at < end && is_blank(**at)) ++*at;
    const char *begin = *at;
    while (*at < end && !is_blank(**at) && **at != '=') ++*at;
    const char *word = arena_text_n(&shard->arena, begin, (size_t)(*at - begin));
    while (*at < end && is_blank(**at)) ++*at;
    return word;
}

static dw_status add_line(pass_splits *shard, const char *begin, const char *end, const char *place) {
    const char *at = begin, *pattern = read_word(shard, &at, end);
    const bool equals = at < end && *at == '=';
    if (equals) at++;
    const char *name = read_word(shard, &at, end);
    if (pattern == NULL || name == NULL) return DW_NO_MEMORY;
    if (!equals && at == end && strcmp(pattern, "strict") == 0) {
        shard->strict = place;
        return DW_OK;
    }
    if (!equals && at == end && strcmp(pattern, "all") == 0) {
        shard->all = true;
        return DW_OK;
    }
    if (!equals || at != end || *pattern == '\0' || *name == '\0') return base_fail(shard->context, DW_SYNTAX, "%s: a line is 'pattern = split', 'all' or 'strict', found '%.*s'", place, (int)(end - begin), begin);
    if (strcmp(pattern, "sums") == 0) {
        shard->sums = strcmp(name, "tokens") == 0 ? PASS_SPLIT_tokens : PASS_SPLIT_row;
        return strcmp(name, "tokens") == 0 || strcmp(name, "whole") == 0 ? DW_OK : base_fail(shard->context, DW_NOT_FOUND, "%s: sums are of 'tokens' or 'whole', found '%s'", place, name);
    }
    if (strcmp(pattern, "scales") != 0) return add_rule(shard, pattern, name, place);
    shard->local_scales = strcmp(name, "local") == 0;
    return shard->local_scales || strcmp(name, "whole") == 0 ? DW_OK : base_fail(shard->context, DW_NOT_FOUND, "%s: scales are 'local' or 'whole', found '%s'", place, name);
}

static dw_status read_lines(pass_splits *shard, const char *source, const char *rules) {
    int line = 1;
    for (const char *at = rules; *at != '\0'; line++) {
        const size_t length = strcspn(at, "\n");
        const char *begin = at, *end = at + strcspn(at, "#\n");
        at += length + (at[length] == '\n');
        while (begin < end && is_blank(*begin)) begin++;
        while (begin < end && is_blank(end[-1])) end--;
        if (begin == end) continue;
        const char *place = arena_printf(&shard->arena, "%s:%d", source, line);
        if (place == NULL) return DW_NO_MEMORY;
        TRY(add_line(shard, begin, end, place));
    }
    return DW_OK;
}

dw_status pass_splits_create(dw_context *context, const char *over, int ranks, const char *source, const char *rules, pass_splits **shard) {
    void *memory;
    *shard = NULL;
    TRY(base_alloc(context, sizeof **shard, _Alignof(struct pass_splits), &memory));
    struct pass_splits *made = memory;
    *made = (struct pass_splits){.context = context, .ranks = ranks};
    arena_init(&made->arena, context);
    map_init(&made->preferences, &made->arena);
    made->over = arena_text(&made->arena, over);
    dw_status status = made->over != NULL ? DW_OK : DW_NO_MEMORY;
    if (status == DW_OK && rules != NULL) status = read_lines(made, source != NULL ? source : "shard", rules);
    if (status != DW_OK) {
        pass_splits_destroy(made);
        return status;
    }
    *shard = made;
    return DW_OK;
}

void pass_splits_destroy(pass_splits *shard) {
    if (shard == NULL) return;
    arena_free(&shard->arena);
    base_release(shard->context, shard, sizeof *shard, _Alignof(struct pass_splits));
}

pass_split pass_splits_choose(pass_splits *shard, const char *module, const char *role, const char **rule) {
    static const char prefix[] = "role:";
    struct rule *chosen = NULL;
    for (size_t i = 0; i < shard->count; i++) {
        struct rule *at = &shard->rules[i];
        const bool is_role = strncmp(at->pattern, prefix, strlen(prefix)) == 0;
        const char *pattern = is_role ? at->pattern + strlen(prefix) : at->pattern, *name = is_role ? role : module;
        if (name == NULL || !pass_matches(pattern, strlen(pattern), name)) continue;
        at->has_matched = true;
        if (chosen == NULL) chosen = at;
    }
    *rule = chosen != NULL ? chosen->words : NULL;
    return chosen != NULL ? chosen->split : PASS_SPLIT_chosen;
}

dw_status shard_prefer(pass_splits *shard, const char *module, pass_split split, const char *words) {
    preference *made;
    if (map_find(&shard->preferences, module) != NULL) return DW_OK;
    TRY_NEW(made, &shard->arena, 1);
    const char *key = arena_text(&shard->arena, module);
    made->split = split;
    made->words = words != NULL ? arena_text(&shard->arena, words) : NULL;
    if (key == NULL || (words != NULL && made->words == NULL)) return DW_NO_MEMORY;
    return map_set(&shard->preferences, key, made);
}

/* The first graph of a model that has a product decides. */
dw_status shard_prefer_sums(pass_splits *shard, const char *module, bool by_tokens, const char *words) {
    TRY(shard_prefer(shard, module, PASS_SPLIT_chosen, NULL));
    preference *found = map_find(&shard->preferences, module);
    if (found->sums_are_decided) return DW_OK;
    found->sums_are_decided = true;
    if (found->split != PASS_SPLIT_chosen || (!by_tokens && found->words == NULL)) return DW_OK;
    if (by_tokens) found->split = PASS_SPLIT_tokens;
    found->words = by_tokens ? arena_text(&shard->arena, words) : arena_printf(&shard->arena, "%s; %s", found->words, words);
    return found->words != NULL ? DW_OK : DW_NO_MEMORY;
}

bool shard_sums_are_decided(const pass_splits *shard, const char *module) {
    const preference *found = map_find(&shard->preferences, module);
    return found != NULL && found->sums_are_decided;
}

bool shard_is_decided(const pass_splits *shard, const char *module) { return module != NULL && map_find(&shard->preferences, module) != NULL; }

pass_split shard_preferred(const pass_splits *shard, const char *module, const char **words) {
    const preference *found = module != NULL ? map_find(&shard->preferences, module) : NULL;
    *words = found != NULL ? found->words : NULL;
    return found != NULL ? found->split : PASS_SPLIT_chosen;
}

dw_status pass_splits_check(pass_splits *shard) {
    for (size_t i = 0; i < shard->count && !shard->was_checked; i++)
        if (!shard->rules[i].has_matched)
            return base_fail(shard->context, DW_INVALID, "shard: the pattern of '%s' matches no layer that can be cut; explain lists them", shard->rules[i].words);
    shard->was_checked = true;
    return DW_OK;
}

void shard_tell(sharding *sharding, const ir_node *node, const char *choice, const char *reason) {
    const char *module = node->origin.module;
    if (sharding->report == NULL) return;
    text_printf(sharding->report, "  %-44s %-11s %s\n", module != NULL && module[0] != '\0' ? module : op_get(node->op)->name, choice, reason);
}

void shard_explain(sharding *sharding, const ir_node *node, const char *choice, const char *reason, const char *others) {
    char words[320];
    snprintf(words, sizeof words, "%s%s%s", reason, others != NULL ? "; " : "", others != NULL ? others : "");
    shard_tell(sharding, node, choice, words);
}
