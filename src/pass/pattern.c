/* Patterns over names, as policies and lists of parameters have them, and what paths of modules say. */
#include "pass/pass.h"

#include <string.h>

/* Goes back to the last '*' only: linear in practice, never exponential. */
bool pass_matches(const char *pattern, size_t length, const char *name) {
    const char *const end = pattern + length;
    const char *star = NULL, *resume = NULL;
    while (*name != '\0') {
        if (pattern < end && *pattern == '*') {
            star = ++pattern;
            resume = name;
        } else if (pattern < end && (*pattern == '?' || *pattern == *name)) {
            pattern++;
            name++;
        } else if (star != NULL) {
            pattern = star;
            name = ++resume;
        } else {
            return false;
        }
    }
    while (pattern < end && *pattern == '*') pattern++;
    return pattern == end;
}

size_t pass_layer_length(const char *module) {
    for (const char *at = module; *at != '\0';) {
        const size_t length = strcspn(at, ".");
        if (length > 0 && strspn(at, "0123456789") >= length) return (size_t)(at + length - module);
        at += length + (at[length] == '.');
    }
    return 0;
}

size_t pass_parent_length(const char *module) {
    const char *dot = module != NULL ? strrchr(module, '.') : NULL;
    return dot != NULL ? (size_t)(dot - module) + 1 : 0;
}

bool pass_are_siblings(const char *module, const char *other) {
    if (module == NULL || other == NULL) return module == other;
    return pass_parent_length(module) == pass_parent_length(other) && strncmp(module, other, pass_parent_length(module)) == 0;
}

dw_status pass_join_modules(ir_graph *graph, int count, ir_node *const *nodes, const char **module) {
    *module = nodes[0]->origin.module;
    for (int i = 1; i < count && *module != NULL; i++) {
        if (nodes[i]->origin.module == NULL) continue;
        const char *joined = arena_printf(&graph->arena, "%s+%s", *module, nodes[i]->origin.module + pass_parent_length(nodes[i]->origin.module));
        if (joined == NULL) return DW_NO_MEMORY;
        *module = joined;
    }
    return DW_OK;
}

bool pass_is_listed(const char *patterns, const char *name) {
    for (const char *at = patterns;; at++) {
        at += strspn(at, " ");
        const size_t length = strcspn(at, ",");
        size_t kept = length;
        while (kept > 0 && at[kept - 1] == ' ') kept--;
        if (kept > 0 && pass_matches(at, kept, name)) return true;
        at += length;
        if (*at == '\0') return false;
    }
}
