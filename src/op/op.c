/* The table of ops, and the checks that are the same for all: counts of operands and results, and which attributes are there. */
#include "op/family.h"

#include <string.h>

enum { MAX_OPERANDS = 64 };   /* of any row */

enum {
    POINTWISE = OP_TRAIT_POINTWISE, COMMUTES = OP_TRAIT_COMMUTES, PREDICATE = OP_TRAIT_PREDICATE, CREATE = OP_TRAIT_CREATE,
    VIEW = OP_TRAIT_VIEW, REDUCE = OP_TRAIT_REDUCE, ROWWISE = OP_TRAIT_ROWWISE, CONTRACTION = OP_TRAIT_CONTRACTION,
    EXACT = OP_TRAIT_EXACT, JUMPS = OP_TRAIT_JUMPS, APPROXIMATE = OP_TRAIT_APPROXIMATE, QUOTIENT = OP_TRAIT_QUOTIENT, TAILS = OP_TRAIT_TAILS,
    ACTIVATION = OP_TRAIT_ACTIVATION, NORM = OP_TRAIT_NORM, PAIRED = OP_TRAIT_PAIRED, UPDATES = OP_TRAIT_UPDATES, COLLECTIVE = OP_TRAIT_COLLECTIVE
};

static const op_def ops[OP_COUNT] = {
#define OP(name, min_in, max_in, min_out, max_out, family, attributes, traits, meaning) \
    {#name, meaning, attributes, OP_##name, min_in, max_in, min_out, max_out, traits, family##_infer, family##_reference, family##_work},
#include "op/op.def"
#undef OP
};

/* The next word of an attribute list such as "to? axis"; NULL at its end. */
static const char *next_word(const char *at, size_t *length, bool *optional) {
    at += strspn(at, " ");
    if (*at == '\0') return NULL;
    *length = strcspn(at, " ");
    *optional = at[*length - 1] == '?';
    if (*optional) --*length;
    return at;
}

static bool is_listed(const char *attributes, const char *name) {
    size_t length;
    bool optional;
    for (const char *at = attributes; (at = next_word(at, &length, &optional)) != NULL; at += length + optional)
        if (strlen(name) == length && memcmp(at, name, length) == 0) return true;
    return false;
}

static bool is_given(const op_attrs *attrs, const char *name, size_t length) {
    for (int i = 0; i < attrs->count; i++) {
        const char *given = op_attr_name(attrs->items[i].id);
        if (strlen(given) == length && memcmp(given, name, length) == 0) return true;
    }
    return false;
}

static dw_status check_attributes(const op_infer *infer) {
    const op_def *op = infer->op;
    for (int i = 0; i < infer->attrs->count; i++) {
        op_attr_id id = infer->attrs->items[i].id;
        if (!is_listed(op->attributes, op_attr_name(id)))
            return base_fail(infer->context, DW_INVALID, "%s: there is no attribute %s; it takes: %s", op->name, op_attr_name(id),
                             op->attributes[0] != '\0' ? op->attributes : "none");
        if (i > 0 && infer->attrs->items[i - 1].id >= id)
            return base_fail(infer->context, DW_INVALID, "%s: attribute %s is given twice or out of order", op->name, op_attr_name(id));
    }
    size_t length;
    bool optional;
    for (const char *at = op->attributes; (at = next_word(at, &length, &optional)) != NULL; at += length + optional)
        if (!optional && !is_given(infer->attrs, at, length))
            return base_fail(infer->context, DW_INVALID, "%s: attribute %.*s is missing", op->name, (int)length, at);
    return DW_OK;
}

static dw_status check_counts(const op_infer *infer) {
    const op_def *op = infer->op;
    if (infer->n_in < op->min_in || infer->n_in > op->max_in) {
        if (op->min_in == op->max_in)
            return base_fail(infer->context, DW_INVALID, "%s: %d operand%s, it takes %d", op->name, infer->n_in, infer->n_in == 1 ? "" : "s", op->min_in);
        return base_fail(infer->context, DW_INVALID, "%s: %d operand%s, it takes %d to %d", op->name, infer->n_in, infer->n_in == 1 ? "" : "s", op->min_in, op->max_in);
    }
    for (int i = 0; i < op->min_in; i++)
        if (infer->in[i] == NULL) return base_fail(infer->context, DW_INVALID, "%s: operand %d is absent and must be there", op->name, i);
    bool present[MAX_OPERANDS];
    for (int i = 0; i < infer->n_in; i++) present[i] = infer->in[i] != NULL;
    int results = op_result_count(op->id, infer->attrs, infer->n_in, present);
    if (infer->n_out != results)
        return base_fail(infer->context, DW_INVALID, "%s: %d results, it gives %d", op->name, infer->n_out, results);
    return DW_OK;
}

/* No size is known to be negative. */
static dw_status check_results(const op_infer *infer) {
    for (int i = 0; i < infer->n_out; i++) {
        for (int axis = 0; axis < infer->out[i].rank; axis++) {
            int64_t size;
            if (dim_is_constant(infer->out[i].dims[axis], &size) && size < 0)
                return base_fail(infer->context, DW_INVALID, "%s: axis %d of the result would have size %lld", infer->op->name, axis, (long long)size);
        }
    }
    return DW_OK;
}

const op_def *op_get(op_id id) { return &ops[id]; }

bool op_has(op_id id, unsigned traits) { return (ops[id].traits & traits) != 0; }

op_id op_find(const char *name) {
    for (int i = 0; i < OP_COUNT; i++)
        if (strcmp(ops[i].name, name) == 0) return (op_id)i;
    return OP_COUNT;
}

int op_result_count(op_id id, const op_attrs *attrs, int n_in, const bool *present) {
    const op_def *op = &ops[id];
    if (op_has(id, OP_TRAIT_UPDATES)) return op->min_out * op_update_groups(id, n_in);
    const int brings = id == OP_cache_update ? (int)UPDATE_QUERIES : op->max_in - 1;   /* the operand that one more result comes of */
    const bool has_more = id == OP_attention ? op_attr_bool(attrs, OP_ATTR_lse) : id == OP_attention_backward ? op_attr_bool(attrs, OP_ATTR_dbias) : id == OP_sample ? op_attrs_get(attrs, OP_ATTR_length) != NULL : brings >= 0 && brings < n_in && present[brings];
    return op->min_out == op->max_out || has_more ? op->max_out : op->min_out;
}

/* The first result's block scales, by the attribute that all ops with results in blocks share. */
static dw_status lay_scales(op_infer *infer) {
    op_type *out = &infer->out[0];
    if (!op_attr_bool(infer->attrs, OP_ATTR_tiled)) return DW_OK;
    if (!op_is_block(out->format) || !num_has_layout(out->format, DW_SCALE_tile128x4))
        return base_fail(infer->context, DW_INVALID, "%s: tiled is said of block scales of one byte, and %s has none; leave it out", infer->op->name, dw_format_name(out->format));
    out->scale_layout = DW_SCALE_tile128x4;
    return DW_OK;
}

dw_status op_infer_types(op_infer *infer) {
    TRY(check_counts(infer));
    TRY(check_attributes(infer));
    for (int i = 0; i < infer->n_out; i++) infer->out[i] = (op_type){0};
    TRY(infer->op->infer(infer));
    TRY(lay_scales(infer));
    return check_results(infer);
}
