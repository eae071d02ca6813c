/* Text cases of passes: tests/pass/cases/<pass>/<case>.txt holds a line "pass <name> <name> ..", a graph, "----", and the graph after those
 * passes, or the error. Each pass must change nothing when it runs once more, and no rewrite may need to be undone; before and after, the graph is evaluated by references on
 * random inputs, and the outputs must agree. Lines between the first and the graph set options:
 *     policy <precision>      the policy's default, and rules with commas between them; what the pass reports follows the graph
 *     rule <pattern> = <precision>     a line of the policy's text
 *     probe layers|isolated   outputs that the precision pass adds
 *     exact                   the outputs keep every bit
 *     error <number>          the bound on the outputs' relative error, for passes that round. An element rounded to E4M3 is off by 2.6 % in the mean
 *                             square, one rounded to E2M1 in blocks by 11 %; n such operands in a chain give sqrt(n) times that: 0.065 and 0.27
 *                             for the three products of a gated mlp, for which the cases allow 0.1 and 0.4 */
#include <math.h>
#include <string.h>

#include "pass/pass.h"
#include "support/cases.h"
#include "support/evaluate.h"

/* These keep every bit. The others may change the order of sums in fp32. */
static const char *const exact_passes[] = {"fold", "cse", "dead", "chain"};
#define MAX_ERROR 3e-6
/* Rounding once to bf16 instead of twice: half a unit in the last place, 2^-8 of a number at most. */
#define MAX_BF16_ERROR 0x1p-8

enum { MAX_PASSES = 16 };

typedef struct plan {
    const pass_row *rows[MAX_PASSES];
    int count;
    bool is_exact;
    char defaults[128], rules[512];
    pass_probe probe;
    double max_error;               /* 0: by format */
} plan;

static bool is_exact(const char *name) {
    for (size_t i = 0; i < COUNT_OF(exact_passes); i++) {
        if (strcmp(exact_passes[i], name) == 0) return true;
    }
    return false;
}

/* "pass fold dead" */
static dw_status parse_plan(dw_context *context, char *line, plan *plan) {
    plan->is_exact = true;
    strtok(line, " ");
    for (char *name; (name = strtok(NULL, " ")) != NULL;) {
        const pass_row *row = pass_find(name);
        if (row == NULL) return base_fail(context, DW_NOT_FOUND, "there is no pass '%s'", name);
        if (plan->count == MAX_PASSES) return base_fail(context, DW_LIMIT, "more than %d passes in a case", MAX_PASSES);
        plan->rows[plan->count++] = row;
        plan->is_exact = plan->is_exact && is_exact(name);
    }
    return plan->count > 0 ? DW_OK : base_fail(context, DW_INVALID, "the line names no pass");
}

/* The outputs of after on the inputs that before ran with. */
static dw_status compare(dw_context *context, const ir_graph *before, const ir_graph *after, const plan *plan) {
    evaluation *first = NULL, *second = NULL;
    dw_status status = evaluation_create(before, &first);
    if (status == DW_OK) status = evaluation_create(after, &second);
    if (status == DW_OK) status = evaluation_bind_random(first, 1);
    if (status == DW_OK) status = evaluation_bind_random(second, 1);
    if (status == DW_OK) status = evaluation_run(first);
    if (status == DW_OK) status = evaluation_run(second);
    for (size_t i = 0; status == DW_OK && i < before->output_count; i++) {
        const dw_tensor *expected = evaluation_value(first, before->outputs[i].value), *made = evaluation_value(second, after->outputs[i].value);
        double bound = plan->max_error > 0 ? plan->max_error : before->outputs[i].value->type.format == DW_FORMAT_bf16 ? MAX_BF16_ERROR : MAX_ERROR;
        if (plan->is_exact ? tensor_is_same(made, expected) : tensor_error(made, expected) <= bound) continue;
        status = base_fail(context, DW_INTERNAL, "output '%s' is another after the passes: relative error %g", before->outputs[i].name, tensor_error(made, expected));
    }
    evaluation_destroy(first);
    evaluation_destroy(second);
    return status;
}

static dw_status run_passes(const plan *plan, ir_graph *graph, pass_policy *policy, text *report) {
    pass_options options = {.check = true, .policy = policy, .probe = plan->probe, .report = report};
    bool changed;
    for (int i = 0; i < plan->count; i++) {
        TRY(pass_run_one(graph, plan->rows[i], &options, &changed));
        TRY(pass_run_one(graph, plan->rows[i], &options, &changed));
        if (changed) return base_fail(graph->context, DW_INTERNAL, "pass %s changes its own result once more", plan->rows[i]->name);
    }
    for (size_t i = 0; i < graph->notes.count; i++) {
        const map_entry *note = &graph->notes.entries[i];
        if (strncmp(note->key, PASS_UNDONE, strlen(PASS_UNDONE)) == 0) return base_fail(graph->context, DW_INTERNAL, "%s", (const char *)note->value);
    }
    return DW_OK;
}

static dw_status run_graph(dw_context *context, const plan *plan, const ir_graph *before, text *output) {
    ir_graph *after;
    pass_policy *policy = NULL;
    text report;
    bool has_policy = plan->defaults[0] != '\0' || plan->rules[0] != '\0';
    if (has_policy) TRY(pass_policy_create(context, plan->defaults[0] != '\0' ? plan->defaults : NULL, "rules", plan->rules, &policy));
    text_init(&report, context);
    dw_status status = ir_graph_clone(before, &after);
    if (status == DW_OK) status = run_passes(plan, after, policy, &report);
    if (status == DW_OK) status = ir_print(after, output);
    if (status == DW_OK) text_add(output, text_string(&report));
    if (status == DW_OK) status = compare(context, before, after, plan);
    ir_graph_destroy(after);
    pass_policy_destroy(policy);
    text_free(&report);
    return status;
}

/* The lines between the passes and the graph. */
static dw_status parse_options(dw_context *context, const char **input, size_t *length, plan *plan) {
    char line[256];
    for (;;) {
        if (case_take_line(input, length, "policy ", line, sizeof line)) {
            snprintf(plan->defaults, sizeof plan->defaults, "%.120s", line + strlen("policy "));
        } else if (case_take_line(input, length, "rule ", line, sizeof line)) {
            size_t used = strlen(plan->rules);
            snprintf(plan->rules + used, sizeof plan->rules - used, "%.200s\n", line + strlen("rule "));
        } else if (case_take_line(input, length, "error ", line, sizeof line)) {
            if (sscanf(line, "error %lf", &plan->max_error) != 1) return base_fail(context, DW_SYNTAX, "no number behind \"error\"");
        } else if (case_take_line(input, length, "exact", line, sizeof line)) {
            plan->is_exact = true;
        } else if (case_take_line(input, length, "probe ", line, sizeof line)) {
            plan->probe = strcmp(line, "probe isolated") == 0 ? PASS_PROBE_ISOLATED : PASS_PROBE_LAYERS;
        } else {
            return DW_OK;
        }
    }
}

static dw_status run(dw_context *context, const char *name, const char *input, size_t length, text *output) {
    char line[256];
    plan plan = {.count = 0};
    ir_graph *before;
    (void)name;
    if (!case_take_line(&input, &length, "pass ", line, sizeof line)) return base_fail(context, DW_SYNTAX, "the first line is not \"pass <name> ..\"");
    TRY(parse_plan(context, line, &plan));
    TRY(parse_options(context, &input, &length, &plan));
    TRY(ir_parse(context, "case", input, length, NULL, &before));
    dw_status status = run_graph(context, &plan, before, output);
    ir_graph_destroy(before);
    return status;
}

int main(int argc, char **argv) { return cases_main(argc, argv, TEST_SOURCE_DIR "/tests/pass/cases", run); }
