/* Fuzzes precision policies: a text is refused with its place, or every layer gets a precision by a rule. */
#include <stdlib.h>
#include <string.h>

#include "pass/pass.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    static const char *const layers[] = {"", "lm_head", "model.layers.0.mlp.up_proj", "a.b.c.d.e.f.g.h.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"};
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
        if (pass_policy_choose(policy, layers[i], i % 2 ? "mlp" : NULL, &rule) == NULL || rule == NULL) abort();
    }
    if (status == DW_OK) pass_policy_destroy(policy);
    status = pass_policy_create(context, text, NULL, NULL, &policy);
    if (status == DW_OK) pass_policy_destroy(policy);
    free(text);
    dw_context_destroy(context);
    return 0;
}
