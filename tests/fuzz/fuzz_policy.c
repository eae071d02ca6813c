/* Fuzzes policies of precisions and of splits: a text is refused with its place, or every layer gets a precision by a rule, and a split by one, or none. */
#include <stdlib.h>
#include <string.h>

#include "pass/pass.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static const char *const layers[] = {"", "lm_head", "model.layers.0.mlp.up_proj", "a.b.c.d.e.f.g.h.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"};

static void split(dw_context *context, const char *text) {
    pass_splits *splits;
    const dw_status status = pass_splits_create(context, "tp", 3, "fuzz", text, &splits);
    if (status != DW_OK && (status == DW_INTERNAL || strstr(dw_context_error(context), "fuzz:") == NULL)) abort();
    for (size_t i = 0; status == DW_OK && i < sizeof layers / sizeof layers[0]; i++) {
        const char *rule = NULL;
        const pass_split found = pass_splits_choose(splits, layers[i], i % 2 ? "mlp" : NULL, &rule);
        if ((found == PASS_SPLIT_chosen) != (rule == NULL) || pass_split_name(found) == NULL) abort();
    }
    if (status == DW_OK) pass_splits_destroy(splits);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    dw_context *context;
    pass_policy *policy;
    if (dw_context_create(NULL, &context) != DW_OK) return 0;
    char *text = malloc(length + 1);
    if (text == NULL) abort();
    memcpy(text, bytes, length);
    text[length] = '\0';
    dw_status status = pass_policy_create(context, NULL, "fuzz", text, &policy);
    if (status == DW_INTERNAL || (status != DW_OK && dw_context_error(context)[0] == '\0')) abort();
    for (size_t i = 0; status == DW_OK && i < sizeof layers / sizeof layers[0]; i++) {
        const char *rule = NULL;
        const pass_precision_row *precision = NULL;
        if (pass_policy_choose(policy, layers[i], i % 2 ? "mlp" : NULL, NULL, &precision, &rule) != DW_OK || precision == NULL || rule == NULL) abort();
    }
    if (status == DW_OK) pass_policy_destroy(policy);
    status = pass_policy_create(context, text, NULL, NULL, &policy);
    if (status == DW_OK) pass_policy_destroy(policy);
    split(context, text);
    free(text);
    dw_context_destroy(context);
    return 0;
}
