/* Parses a call written as one line; see kernel.h. */
#include "kernel/kernel.h"

#include <stdlib.h>
#include <string.h>

typedef struct reader {
    arena *arena;
    kernel_case *c;
} reader;

static dw_status fail(const reader *r, const char *what, const char *word) {
    return base_fail(r->arena->context, DW_SYNTAX, "%s:%d: %s: '%s'", r->c->source, r->c->number, what, word);
}

static dw_status read_type(reader *r, const char *word) {
    kernel_case *c = r->c;
    if (c->n_in == KERNEL_CASE_OPERANDS) return fail(r, "too many operands", word);
    int index = c->n_in++;
    if (strcmp(word, "-") == 0) return DW_OK;
    scanner scanner;
    TRY(scan_open(&scanner, r->arena, c->source, word, strlen(word)));
    TRY(op_type_parse(&scanner, c->dims, &c->types[index]));
    c->in[index] = &c->types[index];
    return DW_OK;
}

/* "1,2,3" into numbers; "" is none. */
static dw_status read_list(reader *r, const char *text, int *count, int64_t **values) {
    TRY_NEW(*values, r->arena, strlen(text) / 2 + 1);
    *count = 0;
    while (*text != '\0') {
        char *end;
        (*values)[(*count)++] = strtoll(text, &end, 10);
        if (end == text || (*end != ',' && *end != '\0')) return fail(r, "a list of integers is expected", text);
        text = *end == ',' ? end + 1 : end;
    }
    return DW_OK;
}

static dw_status read_attr(reader *r, op_attr_id id, const char *value) {
    kernel_case *c = r->c;
    if (c->n_attrs == KERNEL_CASE_ATTRS) return fail(r, "too many attributes", value);
    op_attr *attr = &c->items[c->n_attrs++];
    int count;
    int64_t *list;
    switch (op_attr_kind_of(id)) {
    case OP_KIND_INT: *attr = op_set_int(id, strtoll(value, NULL, 10)); return DW_OK;
    case OP_KIND_BOOL: *attr = op_set_bool(id, strcmp(value, "true") == 0); return DW_OK;
    case OP_KIND_REAL: *attr = op_set_real(id, strtod(value, NULL)); return DW_OK;
    case OP_KIND_TEXT: *attr = op_set_text(id, value); return DW_OK;
    case OP_KIND_FORMAT: *attr = op_set_format(id, dw_format_find(value)); return DW_OK;
    case OP_KIND_INTS:
        TRY(read_list(r, value, &count, &list));
        *attr = op_set_ints(id, count, list);
        return DW_OK;
    case OP_KIND_DIM: *attr = op_set_dim(id, dim_constant(c->dims, strtoll(value, NULL, 10))); return DW_OK;
    case OP_KIND_DIMS: {
        TRY(read_list(r, value, &count, &list));
        dim *dims;
        TRY_NEW(dims, r->arena, count + 1);
        for (int i = 0; i < count; i++) dims[i] = dim_constant(c->dims, list[i]);
        *attr = op_set_dims(id, count, dims);
        return DW_OK;
    }
    }
    return fail(r, "an attribute of a kind that is not read here", value);
}

static dw_status read_range(reader *r, const char *value) {
    char *end;
    long index = strtol(value, &end, 10);
    if (index < 0 || index >= KERNEL_CASE_OPERANDS || *end != ':') return fail(r, "range=I:LO:HI is expected", value);
    kernel_range *range = &r->c->ranges[index];
    range->given = true;
    range->low = strtod(end + 1, &end);
    if (*end != ':') return fail(r, "range=I:LO:HI is expected", value);
    range->high = strtod(end + 1, NULL);
    return DW_OK;
}

static dw_status read_mask(reader *r, const char *value, unsigned *mask) {
    int count;
    int64_t *list;
    TRY(read_list(r, value, &count, &list));
    for (int i = 0; i < count; i++) *mask |= 1u << list[i];
    return DW_OK;
}

static dw_status read_word(reader *r, char *word) {
    char *equals = strchr(word, '=');
    if (equals == NULL) return read_type(r, word);
    *equals = '\0';
    const char *value = equals + 1;
    if (strcmp(word, "pack") == 0) return read_mask(r, value, &r->c->constant);
    if (strcmp(word, "strided") == 0) return read_mask(r, value, &r->c->strided);
    if (strcmp(word, "ascending") == 0) return read_mask(r, value, &r->c->ascending);
    if (strcmp(word, "special") == 0) return read_mask(r, value, &r->c->special);
    if (strcmp(word, "range") == 0) return read_range(r, value);
    if (strcmp(word, "bound") == 0) {
        r->c->bound = strtod(value, NULL);
        return DW_OK;
    }
    op_attr_id id = op_attr_find(word);
    if (id == OP_ATTR_COUNT) return fail(r, "there is no attribute of this name", word);
    return read_attr(r, id, value);
}

static int by_id(const void *a, const void *b) { return (int)((const op_attr *)a)->id - (int)((const op_attr *)b)->id; }

dw_status kernel_case_parse(arena *arena, dim_table *dims, const char *source, int number, const char *line, kernel_case *c) {
    *c = (kernel_case){.source = source, .number = number, .line = line, .dims = dims, .bound = 1e-5};
    reader r = {arena, c};
    char *copy = arena_text(arena, line), *rest = NULL;
    if (copy == NULL) return DW_NO_MEMORY;
    char *word = strtok_r(copy, " ", &rest);
    op_id id = op_find(word);
    if (id == OP_COUNT) return fail(&r, "there is no op of this name", word);
    c->op = op_get(id);
    while ((word = strtok_r(NULL, " ", &rest)) != NULL) TRY(read_word(&r, word));
    qsort(c->items, (size_t)c->n_attrs, sizeof c->items[0], by_id);
    c->attrs = (op_attrs){c->n_attrs, c->items};
    TRY(op_post_parse(arena->context, op_attr_text(&c->attrs, OP_ATTR_post), &c->post));
    bool present[KERNEL_CASE_OPERANDS];
    for (int i = 0; i < c->n_in; i++) present[i] = c->in[i] != NULL;
    c->n_out = op_result_count(id, c->n_in, present);
    for (int i = 0; i < c->n_out; i++) c->out[i] = &c->results[i];
    op_infer infer = {arena->context, dims, c->op, &c->attrs, c->n_in, c->in, c->n_out, c->results};
    dw_status status = op_infer_types(&infer);
    return status == DW_OK ? DW_OK : base_fail_at(arena->context, status, "%s:%d", source, number);
}
