/* Attributes: their names and kinds, reading them from a list, comparing lists. Does not parse or print their values: ir does. */
#include "op/op.h"

#include <string.h>

static const char *const names[] = {
#define OP_ATTR(name, kind, meaning) #name,
#include "op/attr.def"
#undef OP_ATTR
};

static const op_attr_kind kinds[] = {
#define OP_ATTR(name, kind, meaning) OP_KIND_##kind,
#include "op/attr.def"
#undef OP_ATTR
};

static bool attr_equal(const op_attr *a, const op_attr *b) {
    if (a->id != b->id) return false;
    switch (kinds[a->id]) {
    case OP_KIND_INT:
    case OP_KIND_BOOL: return a->integer == b->integer;
    case OP_KIND_REAL: return memcmp(&a->real, &b->real, sizeof a->real) == 0;   /* NaN equals itself, 0 differs from -0 */
    case OP_KIND_TEXT: return strcmp(a->text, b->text) == 0;
    case OP_KIND_FORMAT: return a->format == b->format;
    case OP_KIND_DIM: return a->dim == b->dim;
    case OP_KIND_INTS:
        return a->count == b->count && (a->count == 0 || memcmp(a->integers, b->integers, (size_t)a->count * sizeof *a->integers) == 0);
    case OP_KIND_DIMS:
        for (int i = 0; i < a->count && i < b->count; i++)
            if (a->dims[i] != b->dims[i]) return false;
        return a->count == b->count;
    }
    return false;
}

const char *op_attr_name(op_attr_id id) { return names[id]; }

op_attr_kind op_attr_kind_of(op_attr_id id) { return kinds[id]; }

op_attr_id op_attr_find(const char *name) {
    for (int i = 0; i < OP_ATTR_COUNT; i++)
        if (strcmp(names[i], name) == 0) return (op_attr_id)i;
    return OP_ATTR_COUNT;
}

const op_attr *op_attrs_get(const op_attrs *attrs, op_attr_id id) {
    for (int i = 0; i < attrs->count; i++)
        if (attrs->items[i].id == id) return &attrs->items[i];
    return NULL;
}

int64_t op_attr_int(const op_attrs *attrs, op_attr_id id) {
    const op_attr *attr = op_attrs_get(attrs, id);
    return attr != NULL ? attr->integer : 0;
}

bool op_attr_bool(const op_attrs *attrs, op_attr_id id) { return op_attr_int(attrs, id) != 0; }

double op_attr_real(const op_attrs *attrs, op_attr_id id) {
    const op_attr *attr = op_attrs_get(attrs, id);
    return attr != NULL ? attr->real : 0.0;
}

const char *op_attr_text(const op_attrs *attrs, op_attr_id id) {
    const op_attr *attr = op_attrs_get(attrs, id);
    return attr != NULL ? attr->text : "";
}

dw_format op_attr_format(const op_attrs *attrs, op_attr_id id) {
    const op_attr *attr = op_attrs_get(attrs, id);
    return attr != NULL ? attr->format : DW_FORMAT_COUNT;
}

dim op_attr_dim(const op_attrs *attrs, op_attr_id id) {
    const op_attr *attr = op_attrs_get(attrs, id);
    return attr != NULL ? attr->dim : NULL;
}

int op_attr_ints(const op_attrs *attrs, op_attr_id id, const int64_t **values) {
    const op_attr *attr = op_attrs_get(attrs, id);
    *values = attr != NULL ? attr->integers : NULL;
    return attr != NULL ? attr->count : 0;
}

int op_attr_dims(const op_attrs *attrs, op_attr_id id, const dim **values) {
    const op_attr *attr = op_attrs_get(attrs, id);
    *values = attr != NULL ? attr->dims : NULL;
    return attr != NULL ? attr->count : 0;
}

bool op_attrs_equal(const op_attrs *a, const op_attrs *b) {
    if (a->count != b->count) return false;
    for (int i = 0; i < a->count; i++)
        if (!attr_equal(&a->items[i], &b->items[i])) return false;
    return true;
}
