/* Which optimiser a parameter has, and its settings: the text "adamw(decay=0.1); muon(momentum=0.9) for blocks.*" read. */
#include "train/train.h"

#include <string.h>

/* The words between begin and end without blanks around them. */
static void trim(const char **begin, const char **end) {
    while (*begin < *end && **begin == ' ') ++*begin;
    while (*end > *begin && (*end)[-1] == ' ') --*end;
}

static dw_status fail_name(dw_context *context, const char *begin, const char *end) {
    text known;
    text_init(&known, context);
    for (int i = 0; train_optimizer_get(i) != NULL; i++) text_printf(&known, "%s, ", train_optimizer_get(i)->name);
    const dw_status status = base_fail(context, DW_NOT_FOUND, "there is no optimiser '%.*s'; there are %sand none", (int)(end - begin), begin, text_string(&known));
    text_free(&known);
    return status;
}

/* "name=number name=number", the defaults of a row. */
static dw_status add_defaults(arena *arena, train_rule *rule) {
    for (const char *at = rule->optimizer->settings; *at != '\0';) {
        const size_t length = strcspn(at, " "), name = strcspn(at, "=");
        rule->settings[rule->count].name = arena_text_n(arena, at, name);
        if (rule->settings[rule->count].name == NULL) return DW_NO_MEMORY;
        text_read_real(at + name + 1, length - name - 1, &rule->settings[rule->count].value);
        rule->count++;
        at += length + strspn(at + length, " ");
    }
    return DW_OK;
}

static dw_status set(dw_context *context, train_rule *rule, const char *begin, const char *end) {
    trim(&begin, &end);
    const char *equals = memchr(begin, '=', (size_t)(end - begin)), *name_end = equals, *number = equals != NULL ? equals + 1 : end;
    double value;
    if (equals == NULL) return base_fail(context, DW_SYNTAX, "%s: a setting is name=number, found '%.*s'", rule->optimizer->name, (int)(end - begin), begin);
    trim(&begin, &name_end);
    trim(&number, &end);
    const size_t length = (size_t)(name_end - begin), digits = (size_t)(end - number);
    if (digits == 4 && memcmp(number, "true", 4) == 0) value = 1;
    else if (digits == 5 && memcmp(number, "false", 5) == 0) value = 0;
    else if (!text_read_real(number, digits, &value)) return base_fail(context, DW_SYNTAX, "%s: '%.*s' is no number (%.*s)", rule->optimizer->name, (int)digits, number, (int)length, begin);
    for (int i = 0; i < rule->count; i++) {
        if (strlen(rule->settings[i].name) != length || memcmp(rule->settings[i].name, begin, length) != 0) continue;
        if (!(value >= 0 && value < 1e30)) return base_fail(context, DW_INVALID, "%s: %s is %g, it must be a number from 0", rule->optimizer->name, rule->settings[i].name, value);
        rule->settings[i].value = value;
        return DW_OK;
    }
    return base_fail(context, DW_NOT_FOUND, "%s has no setting '%.*s'; it has, with these defaults: %s", rule->optimizer->name, (int)length, begin, rule->optimizer->settings);
}

/* "name", "name(settings)", each with "for patterns" behind it. */
static dw_status parse_rule(arena *arena, const char *begin, const char *end, train_rule *rule) {
    dw_context *context = arena->context;
    trim(&begin, &end);
    const char *at = begin;
    while (at < end && *at != ' ' && *at != '(') at++;
    *rule = (train_rule){0};
    const bool is_none = at - begin == 4 && memcmp(begin, "none", 4) == 0;
    for (int i = 0; !is_none && rule->optimizer == NULL && train_optimizer_get(i) != NULL; i++) {
        const train_optimizer *row = train_optimizer_get(i);
        if (strlen(row->name) == (size_t)(at - begin) && memcmp(row->name, begin, strlen(row->name)) == 0) rule->optimizer = row;
    }
    if (rule->optimizer == NULL && !is_none) return fail_name(context, begin, at);
    if (rule->optimizer != NULL) TRY(add_defaults(arena, rule));
    while (at < end && *at == ' ') at++;
    if (at < end && *at == '(') {
        const char *close = memchr(at, ')', (size_t)(end - at));
        if (close == NULL || is_none) return base_fail(context, DW_SYNTAX, "%.*s: expected settings in parentheses behind a name, 'adamw(decay=0.1)'", (int)(end - begin), begin);
        for (at++; at < close; at++) {
            const char *comma = memchr(at, ',', (size_t)(close - at)), *last = comma != NULL ? comma : close;
            TRY(set(context, rule, at, last));
            at = last;
            if (comma == NULL) break;
        }
        at = close + 1;
    }
    trim(&at, &end);
    if (at == end) return DW_OK;
    if (end - at < 5 || memcmp(at, "for ", 4) != 0) return base_fail(context, DW_SYNTAX, "an optimiser is 'name(settings)' or that and 'for patterns', found '%.*s'", (int)(end - at), at);
    rule->patterns = arena_text_n(arena, at + 4, (size_t)(end - at - 4));
    return rule->patterns != NULL ? DW_OK : DW_NO_MEMORY;
}

/* No setting makes a step that means nothing. */
static dw_status check_rule(dw_context *context, const train_rule *rule) {
    static const char *const shares[] = {"beta1", "beta2", "momentum"};
    for (int i = 0; i < rule->count; i++)
        for (size_t k = 0; k < COUNT_OF(shares); k++)
            if (strcmp(rule->settings[i].name, shares[k]) == 0 && rule->settings[i].value >= 1)
                return base_fail(context, DW_INVALID, "%s: %s is %g, it must be below 1", rule->optimizer->name, shares[k], rule->settings[i].value);
    if (rule->optimizer != NULL && strcmp(rule->optimizer->name, "sgd") == 0 && train_setting(rule, "nesterov") != 0 && train_setting(rule, "momentum") == 0)
        return base_fail(context, DW_INVALID, "sgd: nesterov needs a momentum above 0");
    return DW_OK;
}

dw_status train_rules_parse(arena *arena, const char *words, train_rules *rules) {
    size_t room = 0;
    *rules = (train_rules){0};
    if (words == NULL) words = "adamw";
    for (const char *at = words;; at++) {
        const char *end = at + strcspn(at, ";");
        train_rule *grown = arena_grow(arena, rules->items, (size_t)rules->count, &room, sizeof *grown);
        if (grown == NULL) return DW_NO_MEMORY;
        rules->items = grown;
        TRY(parse_rule(arena, at, end, &grown[rules->count]));
        TRY(check_rule(arena->context, &grown[rules->count]));
        rules->count++;
        if (*end == '\0') break;
        at = end;
    }
    for (int i = 0; rules->count > 1 && i < rules->count; i++)
        if (rules->items[i].optimizer == NULL) return base_fail(arena->context, DW_INVALID, "the optimiser none leaves all parameters to the caller: give no other beside it");
    return DW_OK;
}

dw_status train_rule_of(dw_context *context, const train_rules *rules, const char *name, const op_type *type, const train_rule **rule) {
    for (int i = rules->count; i-- > 0;) {
        *rule = &rules->items[i];
        if ((*rule)->patterns != NULL && !pass_is_listed((*rule)->patterns, name)) continue;
        if ((*rule)->optimizer == NULL || !(*rule)->optimizer->matrices || type->rank == 2) return DW_OK;
    }
    return base_fail(context, DW_NOT_FOUND, "no optimiser takes the parameter %s (%d axes): put one that does in front, 'adamw; muon for blocks.*'", name, type->rank);
}
