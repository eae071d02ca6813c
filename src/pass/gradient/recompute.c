/* Which of a graph's forward nodes may be made again in its backward part, by rules: "blocks.0.* = none, role:attention = cheap, block". A rule's pattern is over the node's module path, or with role: over
 * its role, as in a precision policy; the first that matches wins, and what none matches has the level that stands alone. Moves nothing (again.c does). */
#include "pass/gradient/gradient.h"

#include <string.h>

static const char *const names[] = {
#define RECOMPUTE(name, meaning) #name,
#include "pass/gradient/recompute.def"
#undef RECOMPUTE
};

static const char role[] = "role:";

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static void trim(const char **begin, const char **end) {
    while (*begin < *end && is_blank(**begin)) ++*begin;
    while (*begin < *end && is_blank((*end)[-1])) --*end;
}

static dw_status read_level(dw_context *context, const char *begin, const char *end, gradient_level *level) {
    text known;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (strlen(names[i]) != (size_t)(end - begin) || memcmp(names[i], begin, (size_t)(end - begin)) != 0) continue;
        *level = (gradient_level)i;
        return DW_OK;
    }
    text_init(&known, context);
    for (size_t i = 0; i < COUNT_OF(names); i++) text_printf(&known, "%s%s", i > 0 ? ", " : "", names[i]);
    const dw_status status = base_fail(context, DW_NOT_FOUND, "recompute: there is no '%.*s'; there are %s", (int)(end - begin), begin, text_string(&known));
    text_free(&known);
    return status;
}

/* "pattern = level" */
static dw_status read_rule(arena *arena, const char *begin, const char *end, gradient_recompute *rules, size_t *capacity) {
    const char *equals = memchr(begin, '=', (size_t)(end - begin)), *pattern_end = equals, *right = equals + 1;
    gradient_recompute_rule rule;
    trim(&begin, &pattern_end);
    trim(&right, &end);
    bool is_rule = pattern_end > begin && end > right;
    for (const char *at = begin; is_rule && at < pattern_end; at++) is_rule = !is_blank(*at);
    if (!is_rule) return base_fail(arena->context, DW_SYNTAX, "recompute: a rule is 'pattern = level', found '%.*s'", (int)(end - begin), begin);
    TRY(read_level(arena->context, right, end, &rule.level));
    rule.pattern = arena_text_n(arena, begin, (size_t)(pattern_end - begin));
    rules->items = arena_grow(arena, rules->items, rules->count, capacity, sizeof *rules->items);
    if (rule.pattern == NULL || rules->items == NULL) return DW_NO_MEMORY;
    rules->items[rules->count++] = rule;
    return DW_OK;
}

dw_status gradient_read_recompute(arena *arena, const char *words, gradient_recompute *rules) {
    size_t capacity = 0;
    bool has_rest = false;
    *rules = (gradient_recompute){.rest = GRADIENT_RECOMPUTE_none};
    const char *at = words;
    if (words == NULL) return DW_OK;
    do {
        const size_t length = strcspn(at, ",");
        const char *begin = at, *end = at + length;
        at += length + (at[length] == ',');
        trim(&begin, &end);
        if (memchr(begin, '=', (size_t)(end - begin)) != NULL) {
            TRY(read_rule(arena, begin, end, rules, &capacity));
            continue;
        }
        if (has_rest) return base_fail(arena->context, DW_SYNTAX, "recompute: '%s' has two levels for what no rule matches", words);
        TRY(read_level(arena->context, begin, end, &rules->rest));
        has_rest = true;
    } while (*at != '\0');
    return DW_OK;
}

static bool matches(const char *pattern, const ir_origin *origin) {
    const size_t prefix = strlen(role);
    if (strncmp(pattern, role, prefix) == 0) return origin->role != NULL && pass_matches(pattern + prefix, strlen(pattern + prefix), origin->role);
    return pass_matches(pattern, strlen(pattern), origin->module != NULL ? origin->module : "");
}

gradient_level gradient_recompute_of(const gradient_recompute *rules, const ir_node *node) {
    for (size_t i = 0; i < rules->count; i++)
        if (matches(rules->items[i].pattern, &node->origin)) return rules->items[i].level;
    return rules->rest;
}

dw_status gradient_check_recompute(const ir_graph *graph, const gradient_recompute *rules) {
    for (size_t i = 0; i < rules->count; i++) {
        bool found = false;
        for (const ir_node *node = graph->first; node != NULL && !found; node = node->next) found = matches(rules->items[i].pattern, &node->origin);
        if (!found) return base_fail(graph->context, DW_NOT_FOUND, "recompute: graph '%s' has no module that the pattern '%s' matches", graph->name, rules->items[i].pattern);
    }
    return DW_OK;
}
