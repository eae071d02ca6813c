/* Fuzzes the text form of plans: refused with a message, or a plan that prints, parses to itself, and binds at its typical sizes without
 * touching memory that is not there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void require(dw_context *context, bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "%s: %s\n", what, dw_context_error(context));
    abort();
}

static void print_again(dw_context *context, const plan *parsed, const chip_caps *chip) {
    text first, second;
    plan *again;
    text_init(&first, context);
    text_init(&second, context);
    require(context, plan_print(parsed, &first) == DW_OK, "a parsed plan does not print");
    require(context, plan_parse(context, "printed", text_string(&first), first.length, NULL, chip, NULL, &again) == DW_OK, "a printed plan does not parse");
    require(context, plan_print(again, &second) == DW_OK, "a plan does not print twice");
    require(context, strcmp(text_string(&first), text_string(&second)) == 0, "a plan prints another way after parsing");
    plan_destroy(again);
    text_free(&first);
    text_free(&second);
}

static void bind(const plan *parsed) {
    plan_binding binding;
    if (plan_binding_create(parsed->context, parsed, &binding) != DW_OK) return;
    (void)!plan_bind(&binding, parsed->typical);
    plan_binding_destroy(&binding);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    dw_context *context;
    chip_caps chip;
    plan *parsed;
    if (dw_context_create(NULL, &context) != DW_OK) return 0;
    if (chip_find(context, "cpu-portable", 1, &chip) != DW_OK) abort();   /* the corpus carries its hash */
    dw_status status = plan_parse(context, "fuzz", (const char *)bytes, length, NULL, &chip, NULL, &parsed);
    require(context, status != DW_INTERNAL, "a text makes us contradict ourselves");
    require(context, status == DW_OK || dw_context_error(context)[0] != '\0', "a refusal without a message");
    if (status == DW_OK) {
        print_again(context, parsed, &chip);
        bind(parsed);
        plan_destroy(parsed);
    }
    dw_context_destroy(context);
    return 0;
}
