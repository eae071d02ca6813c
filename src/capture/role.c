/* Roles: which part of a transformer a node belongs to. One table of words that module paths and classes contain, then dataflow for the head.
 * A policy may name a role; nothing computed depends on one. */
#include "capture/program.h"

#include <ctype.h>
#include <string.h>

/* Words of module paths and classes, in lower case. The first row decides whose word occurs in the stack, or in its innermost module alone. */
static const struct { const char *word, *role; bool innermost; } words[] = {
    /* word             role         innermost */
    {"norm",            "norm",      true},
    {".ln_",            "norm",      true},
    {"embed",           "embedding", true},
    {".wte",            "embedding", true},
    {".wpe",            "embedding", true},
    {"lm_head",         "lm_head",   true},
    {"embed_out",       "lm_head",   true},
    {"router",          "router",    false},
    {"mlp.gate,",       "router",    false},
    {"moe.gate,",       "router",    false},
    {"experts",         "expert",    false},
    {"attention",       "attention", false},
    {"attn",            "attention", false},
    {"mlp",             "mlp",       false},
    {"feedforward",     "mlp",       false},
    {"feed_forward",    "mlp",       false},
    {"ffn",             "mlp",       false},
    {"densereludense",  "mlp",       false},
    {"intermediate",    "mlp",       false},
    {".output.dense,",  "mlp",       false},
    {"fc1,",            "mlp",       true},
    {"fc2,",            "mlp",       true},
    {"embed",           "embedding", false},
};

/* Does the text up to end contain word, case aside? */
static bool contains(const char *text, const char *end, const char *word) {
    size_t length = strlen(word);
    for (; (size_t)(end - text) >= length; text++) {
        size_t i = 0;
        while (i < length && tolower((unsigned char)text[i]) == word[i]) i++;
        if (i == length) return true;
    }
    return false;
}

const char *capture_role_of(const char *stack) {
    const char *end = stack + strlen(stack), *last = strrchr(stack, ';');
    /* the outermost module is the model itself, whose class ("BertModel", "MixtralForCausalLM") implies no role */
    const char *inner = strchr(stack, ';');
    if (inner == NULL) return NULL;
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        const char *from = words[i].innermost ? last : inner;
        const char *path = strchr(from, ',');       /* behind the key, which repeats the path */
        if (path != NULL && contains(words[i].innermost ? path : inner, end, words[i].word)) return words[i].role;
    }
    return NULL;
}

/* ---- dataflow ---- */

static bool is_product(const ir_node *node) { return node->op == OP_matmul; }

/* The product that an output is made of, through ops that change no more than the form or the range of its elements. */
static ir_node *head_of(const ir_value *value) {
    while (value->node != NULL && !is_product(value->node)) {
        const ir_node *node = value->node;
        bool passes = node->n_in >= 1 && (op_get(node->op)->traits & (OP_TRAIT_VIEW | OP_TRAIT_POINTWISE)) && ir_in(node, 0) != NULL;
        if (!passes) return NULL;
        value = ir_in(node, 0);
    }
    return value->node;
}

/* Is the value made from a table that integer inputs index, so that the model takes token ids? */
static bool takes_tokens(const ir_graph *graph) {
    for (const ir_node *node = graph->first; node != NULL; node = node->next) {
        if (node->op == OP_take && ir_in(node, 0)->kind == IR_PARAM && ir_in(node, 0)->type.rank == 2 && ir_in(node, 1)->kind == IR_INPUT) return true;
    }
    return false;
}

/* The head: the product that makes the first output of three axes (or more) of a model that takes token ids, wider than it is deep. */
static void find_head(ir_graph *graph) {
    if (!takes_tokens(graph)) return;
    for (size_t i = 0; i < graph->output_count; i++) {
        ir_node *head = head_of(graph->outputs[i].value);
        int64_t width, depth;
        if (head == NULL || ir_in(head, 1)->kind != IR_PARAM) continue;
        const op_type *weight = &ir_in(head, 1)->type;
        bool stored_transposed = ir_bool(head, OP_ATTR_bt);
        if (weight->rank != 2 || !dim_is_constant(weight->dims[stored_transposed ? 0 : 1], &width) || !dim_is_constant(weight->dims[stored_transposed ? 1 : 0], &depth)) continue;
        if (head->origin.role == NULL && width > depth) head->origin.role = "lm_head";
    }
}

/* Who uses the product, through views and pointwise ops other than gates, decides for a product whose module has no telltale name. */
static const char *role_by_use(const ir_node *node, int depth) {
    const ir_value *value = ir_out(node);
    for (const ir_use *use = value->uses; use != NULL; use = use->next) {
        op_id op = use->node->op;
        if (op == OP_attention) return "attention";
        if (op_has(op, OP_TRAIT_ACTIVATION)) return "mlp";
        bool passes = op_has(op, OP_TRAIT_VIEW);
        const char *role = passes && depth < 8 ? role_by_use(use->node, depth + 1) : NULL;
        if (role != NULL) return role;
    }
    return NULL;
}

void capture_find_roles(ir_graph *graph) {
    find_head(graph);
    for (ir_node *node = graph->first; node != NULL; node = node->next) {
        if (node->origin.role != NULL) continue;
        if (node->op == OP_attention) node->origin.role = "attention";
        else if (op_has(node->op, OP_TRAIT_NORM)) node->origin.role = "norm";
        else if (node->op == OP_take && ir_in(node, 0)->kind == IR_PARAM && ir_in(node, 0)->type.rank == 2) node->origin.role = "embedding";
        else if (is_product(node)) node->origin.role = role_by_use(node, 0);
    }
}
