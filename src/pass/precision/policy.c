/* Precision policies: rules from a flag and a file, their patterns, and the choice for a layer. Changes no graph (precision.c does).
 *
 *     # policy.txt
 *     lm_head          = bf16
 *     *.mlp.down_proj  = mxfp8
 *     role:attention   = nvfp4-weights
 *     role:cache       = fp8
 *     *                = nvfp4 or nvfp4-weights
 *
 * Caches are no layers, nor are scores of attention (role:scores): the rule of that very pattern alone is theirs. */
#include "pass/pass.h"

#include <string.h>

static const pass_precision_row rows[] = {
#define PRECISION(name, weight, activation, cache, scores, head, meaning) {name, DW_FORMAT_##weight, DW_FORMAT_##activation, DW_FORMAT_##cache, DW_FORMAT_##scores, head, meaning},
#include "pass/precision/precision.def"
#undef PRECISION
#define PRECISION(name, weight, activation, cache, scores, head, meaning) {name "-weights", DW_FORMAT_##weight, DW_FORMAT_bf16, DW_FORMAT_COUNT, DW_FORMAT_COUNT, head, meaning "; weights only, activations in bf16"},
#include "pass/precision/precision.def"
#undef PRECISION
};

/* fp32 and bf16 have no weight-only form; mxfp4-mxfp8's would be mxfp4's. */
static bool is_offered(const pass_precision_row *row) {
    const char *dash = strstr(row->name, "-weights");
    if (dash == NULL) return true;
    return dw_format_is_block(row->weight) && strcmp(row->name, "mxfp4-mxfp8-weights") != 0;
}

const pass_precision_row *pass_precision_get(int index) {
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (is_offered(&rows[i]) && index-- == 0) return &rows[i];
    }
    return NULL;
}

const pass_precision_row *pass_precision_find(const char *name) {
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (is_offered(&rows[i]) && strcmp(rows[i].name, name) == 0) return &rows[i];
    }
    return NULL;
}

typedef struct rule {
    const char *pattern, *said, *words;    /* said: "precision" or "precision or precision"; words: "pattern = said (source:line)" */
    const pass_precision_row *precisions[PASS_OPEN];
    int count;
    bool is_default, has_matched;
} rule;

struct pass_policy {
    dw_context *context;
    arena arena;
    rule *rules;
    size_t count, capacity;
    const char *words;
    int tried;
    map settled;                    /* weight -> pass_settled */
    bool has_warned;
};

/* ---- reading ---- */

static dw_status fail_precision(dw_context *context, const char *place, const char *name) {
    text known;
    const pass_precision_row *row;
    text_init(&known, context);
    for (int i = 0; (row = pass_precision_get(i)) != NULL; i++) text_printf(&known, "%s%s", i > 0 ? ", " : "", row->name);
    dw_status status = base_fail(context, DW_NOT_FOUND, "%s: there is no precision '%s'; there are %s", place, name, text_string(&known));
    text_free(&known);
    return status;
}

/* What a rule of its own is about: its pattern, and what it is said to be where it may not be so, or changes nothing. */
typedef struct apart { const char *pattern, *no, *one, *nothing; } apart;
static const apart aparts[] = {
    [PASS_CACHE] = {"role:cache", "no cache of keys and values is", "one", "the model has no causal attention whose keys and values are cached here"},
    [PASS_SCORES] = {"role:scores", "no scores of attention are", "they", "each attention of the model is in 16 bits already (bf16), is causal (fp8, mxfp8), reads caches of another format or has gradients, if there is any"},
};

static dw_format format_apart(const pass_precision_row *row, pass_apart which) { return which == PASS_CACHE ? row->cache : row->scores; }

/* Which the pattern is of; PASS_APARTS: of layers. */
static pass_apart apart_of(const char *pattern) {
    int i = 0;
    while (i < PASS_APARTS && strcmp(pattern, aparts[i].pattern) != 0) i++;
    return (pass_apart)i;
}

static dw_status fail_apart(dw_context *context, const char *place, const char *name, pass_apart which) {
    text known;
    const pass_precision_row *row;
    bool any = false;
    text_init(&known, context);
    for (int i = 0; (row = pass_precision_get(i)) != NULL; i++) {
        if (format_apart(row, which) == DW_FORMAT_COUNT) continue;
        text_printf(&known, "%s%s", any ? ", " : "", row->name);
        any = true;
    }
    dw_status status = base_fail(context, DW_UNSUPPORTED, "%s: %s in '%s'; %s may be in %s", place, aparts[which].no, name, aparts[which].one, text_string(&known));
    text_free(&known);
    return status;
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/* The next word from *at on, NULL behind the last. */
static dw_status take_word(pass_policy *policy, const char **at, const char **word) {
    const char *begin = *at;
    while (is_blank(*begin)) begin++;
    *at = begin;
    while (**at != '\0' && !is_blank(**at)) ++*at;
    *word = *at > begin ? arena_text_n(&policy->arena, begin, (size_t)(*at - begin)) : NULL;
    return *at > begin && *word == NULL ? DW_NO_MEMORY : DW_OK;
}

/* "fp8 or fp8-weights" */
static dw_status read_precisions(pass_policy *policy, const char *said, const char *place, rule *rule) {
    const char *at = said, *name, *between = "or";
    for (rule->count = 0; between != NULL; rule->count++) {
        TRY(take_word(policy, &at, &name));
        if (name == NULL || strcmp(between, "or") != 0) return base_fail(policy->context, DW_SYNTAX, "%s: '%s' is no precision, and no precisions with 'or' between them; write 'fp8', or 'fp8 or fp8-weights'", place, said);
        if (rule->count == PASS_OPEN) return base_fail(policy->context, DW_LIMIT, "%s: '%s' leaves more than %d precisions open", place, said, PASS_OPEN);
        rule->precisions[rule->count] = pass_precision_find(name);
        if (rule->precisions[rule->count] == NULL) return fail_precision(policy->context, place, name);
        for (int i = 0; i < rule->count; i++)
            if (rule->precisions[i] == rule->precisions[rule->count]) return base_fail(policy->context, DW_SYNTAX, "%s: '%s' has %s twice", place, said, name);
        TRY(take_word(policy, &at, &between));
    }
    return DW_OK;
}

static dw_status check_apart(const pass_policy *policy, const rule *rule, const char *place) {
    const pass_apart which = apart_of(rule->pattern);
    if (which == PASS_APARTS) return DW_OK;
    if (rule->count > 1) return base_fail(policy->context, DW_UNSUPPORTED, "%s: '%s' leaves the precision open; that can be left open of layers alone, so give %s one", place, rule->words, rule->pattern);
    return format_apart(rule->precisions[0], which) != DW_FORMAT_COUNT ? DW_OK : fail_apart(policy->context, place, rule->precisions[0]->name, which);
}

static dw_status add_rule(pass_policy *policy, const char *pattern, const char *said, const char *place, bool is_default) {
    rule made = {.pattern = arena_text(&policy->arena, pattern), .is_default = is_default};
    TRY(read_precisions(policy, said, place, &made));
    text words;
    text_init(&words, policy->context);
    for (int i = 0; i < made.count; i++) text_printf(&words, "%s%s", i > 0 ? " or " : "", made.precisions[i]->name);
    const dw_status status = text_status(&words);
    made.said = arena_text(&policy->arena, text_string(&words));
    text_free(&words);
    TRY(status);
    if (made.pattern == NULL || made.said == NULL) return DW_NO_MEMORY;
    made.words = arena_printf(&policy->arena, "%s = %s (%s)", pattern, made.said, place);
    if (made.words == NULL) return DW_NO_MEMORY;
    TRY(check_apart(policy, &made, place));
    rule *rules = arena_grow(&policy->arena, policy->rules, policy->count, &policy->capacity, sizeof *rules);
    if (rules == NULL) return DW_NO_MEMORY;
    policy->rules = rules;
    rules[policy->count++] = made;
    return DW_OK;
}

static void trim(const char **begin, const char **end) {
    while (*begin < *end && is_blank(**begin)) ++*begin;
    while (*begin < *end && is_blank((*end)[-1])) --*end;
}

/* "pattern = precision" in [begin, end) */
static dw_status add_line(pass_policy *policy, const char *begin, const char *end, const char *place) {
    const char *equals = memchr(begin, '=', (size_t)(end - begin)), *pattern_end = equals, *right = equals != NULL ? equals + 1 : end;
    if (equals != NULL) {
        trim(&begin, &pattern_end);
        trim(&right, &end);
    }
    bool is_rule = equals != NULL && pattern_end > begin && end > right;
    for (const char *at = begin; is_rule && at < pattern_end; at++) is_rule = !is_blank(*at);
    if (!is_rule) return base_fail(policy->context, DW_SYNTAX, "%s: a rule is 'pattern = precision', found '%.*s'", place, (int)(end - begin), begin);
    const char *pattern = arena_text_n(&policy->arena, begin, (size_t)(pattern_end - begin));
    const char *precision = arena_text_n(&policy->arena, right, (size_t)(end - right));
    if (pattern == NULL || precision == NULL) return DW_NO_MEMORY;
    return add_rule(policy, pattern, precision, place, false);
}

static dw_status read_lines(pass_policy *policy, const char *source, const char *rules) {
    int line = 1;
    for (const char *at = rules; *at != '\0'; line++) {
        size_t length = strcspn(at, "\n");
        const char *begin = at, *end = at + strcspn(at, "#\n");
        at += length + (at[length] == '\n');
        trim(&begin, &end);
        if (begin == end) continue;
        const char *place = arena_printf(&policy->arena, "%s:%d", source, line);
        if (place == NULL) return DW_NO_MEMORY;
        TRY(add_line(policy, begin, end, place));
    }
    return DW_OK;
}

static bool keeps_head_higher(const pass_precision_row *row) { return strcmp(row->head, row->name) != 0 && strncmp(row->name, row->head, strlen(row->head)) != 0; }

/* What stays high unless a rule above names it, then the default itself. */
static dw_status add_defaults(pass_policy *policy, const char *said) {
    rule given = {.pattern = "*"};
    bool changes = false;
    const char *head = NULL;
    TRY(read_precisions(policy, said, "precision", &given));
    for (int i = 0; i < given.count; i++) {
        changes = changes || given.precisions[i]->weight != DW_FORMAT_f32;
        if (keeps_head_higher(given.precisions[i])) head = given.precisions[i]->head;
    }
    if (changes) {
        TRY(add_rule(policy, "role:router", "fp32", "default: few bits move tokens to other experts", true));
        TRY(add_rule(policy, "role:convolution", "fp32", "default: convolutions stay as exported, in whatever form they are computed", true));
    }
    if (head != NULL) TRY(add_rule(policy, "role:lm_head", head, "default: four bits cost most in the logits", true));
    return add_rule(policy, "*", said, "default", true);
}

/* "lm_head=bf16,mxfp8" */
static dw_status read_flag(pass_policy *policy, const char *flag) {
    const char *name = NULL;
    for (const char *at = flag; *at != '\0';) {
        size_t length = strcspn(at, ",");
        const char *begin = at, *end = at + length;
        at += length + (at[length] == ',');
        trim(&begin, &end);
        if (memchr(begin, '=', (size_t)(end - begin)) != NULL) {
            TRY(add_line(policy, begin, end, "precision"));
            continue;
        }
        if (name != NULL) return base_fail(policy->context, DW_SYNTAX, "precision: '%s' names two precisions for what no rule matches", flag);
        name = arena_text_n(&policy->arena, begin, (size_t)(end - begin));
        if (name == NULL) return DW_NO_MEMORY;
    }
    return add_defaults(policy, name != NULL ? name : "fp32");
}

/* The rules that were asked for, and the default, one after the other. */
static dw_status make_words(pass_policy *policy) {
    text words;
    text_init(&words, policy->context);
    for (size_t i = 0; i < policy->count; i++) {
        const rule *rule = &policy->rules[i];
        if (!rule->is_default) text_printf(&words, "%s = %s, ", rule->pattern, rule->said);
        else if (i + 1 == policy->count) text_add(&words, rule->said);
    }
    dw_status status = text_status(&words);
    if (status == DW_OK) {
        policy->words = arena_text(&policy->arena, text_string(&words));
        if (policy->words == NULL) status = DW_NO_MEMORY;
    }
    text_free(&words);
    return status;
}

dw_status pass_policy_create(dw_context *context, const char *defaults, const char *source, const char *rules, pass_policy **policy) {
    void *memory;
    *policy = NULL;
    TRY(base_alloc(context, sizeof **policy, _Alignof(struct pass_policy), &memory));
    struct pass_policy *made = memory;
    *made = (struct pass_policy){.context = context};
    arena_init(&made->arena, context);
    map_init(&made->settled, &made->arena);
    dw_status status = rules != NULL ? read_lines(made, source != NULL ? source : "policy", rules) : DW_OK;
    if (status == DW_OK) status = read_flag(made, defaults != NULL ? defaults : "fp32");
    if (status == DW_OK) status = make_words(made);
    if (status != DW_OK) {
        pass_policy_destroy(made);
        return status;
    }
    *policy = made;
    return DW_OK;
}

void pass_policy_destroy(pass_policy *policy) {
    if (policy == NULL) return;
    arena_free(&policy->arena);
    base_release(policy->context, policy, sizeof *policy, _Alignof(struct pass_policy));
}

/* ---- choosing ---- */

static int at_most(int choice, int count) { return choice < count ? choice : count - 1; }

/* "* = fp8 or fp8-weights (default); fp8 12.3 us, fp8-weights 8.1 us (the cached step)" */
static dw_status settled_words(pass_policy *policy, const rule *rule, const pass_settled *settled, const char **kept) {
    text words;
    text_init(&words, policy->context);
    text_printf(&words, "%s; ", rule->words);
    for (int i = 0; i < rule->count; i++) text_printf(&words, "%s%s %.1f us", i > 0 ? ", " : "", rule->precisions[i]->name, settled->seconds[i] * 1e6);
    text_printf(&words, " (%s)", settled->because);
    dw_status status = text_status(&words);
    *kept = arena_text(&policy->arena, text_string(&words));
    text_free(&words);
    return status == DW_OK && *kept == NULL ? DW_NO_MEMORY : status;
}

dw_status pass_policy_choose(pass_policy *policy, const char *layer, const char *role, const char *weight, const pass_precision_row **precision, const char **rule) {
    const size_t prefix = strlen("role:");
    struct rule *chosen = NULL;
    for (size_t i = 0; i < policy->count; i++) {
        struct rule *at = &policy->rules[i];
        bool is_role = strncmp(at->pattern, "role:", prefix) == 0;
        bool matches = is_role ? role != NULL && pass_matches(at->pattern + prefix, strlen(at->pattern + prefix), role) : pass_matches(at->pattern, strlen(at->pattern), layer);
        if (!matches) continue;
        at->has_matched = true;
        if (chosen == NULL) chosen = at;
    }
    *rule = chosen->words;           /* the last rule matches every layer */
    const pass_settled *settled = chosen->count > 1 && weight != NULL ? map_find(&policy->settled, weight) : NULL;
    *precision = chosen->precisions[at_most(settled != NULL ? settled->choice : policy->tried, chosen->count)];
    return settled != NULL ? settled_words(policy, chosen, settled, rule) : DW_OK;
}

int pass_policy_open(const pass_policy *policy) {
    int most = 1;
    for (size_t i = 0; i < policy->count; i++) most = policy->rules[i].count > most ? policy->rules[i].count : most;
    return most;
}

void pass_policy_try(pass_policy *policy, int choice) { policy->tried = choice; }

dw_status pass_policy_settle(pass_policy *policy, int count, const pass_settled *settled) {
    for (int i = 0; i < count; i++) TRY(map_set(&policy->settled, settled[i].weight, (void *)(uintptr_t)&settled[i]));
    return DW_OK;
}

static struct rule *rule_apart(pass_policy *policy, pass_apart which) {
    for (size_t i = 0; policy != NULL && i < policy->count; i++)
        if (apart_of(policy->rules[i].pattern) == which) return &policy->rules[i];
    return NULL;
}

const pass_precision_row *pass_policy_apart(pass_policy *policy, pass_apart which, const char **rule) {
    const struct rule *found = rule_apart(policy, which);
    *rule = found != NULL ? found->words : "";
    return found != NULL ? found->precisions[0] : NULL;
}

void pass_policy_used_apart(pass_policy *policy, pass_apart which, bool used) {
    struct rule *found = rule_apart(policy, which);
    if (found != NULL) found->has_matched = found->has_matched || used;
}

void pass_policy_warn(pass_policy *policy) {
    for (size_t i = 0; i < policy->count && !policy->has_warned; i++) {
        const rule *rule = &policy->rules[i];
        if (rule->is_default || rule->has_matched) continue;
        const pass_apart which = apart_of(rule->pattern);
        if (which == PASS_APARTS) base_log(policy->context, DW_LOG_WARNING, "the pattern of '%s' matches no layer of the model", rule->words);
        else if (format_apart(rule->precisions[0], which) != DW_FORMAT_f32) base_log(policy->context, DW_LOG_WARNING, "'%s' changes nothing: %s", rule->words, aparts[which].nothing);
    }
    policy->has_warned = true;
}

const char *pass_policy_words(const pass_policy *policy) { return policy->words; }
