/* What inference refuses, in one wording for all ops. Infers no result but the broadcast shape. */
#include "op/family.h"

/* Two things printed into a message. */
typedef struct pair { text a, b; } pair;

static void pair_init(pair *pair, dw_context *context) {
    text_init(&pair->a, context);
    text_init(&pair->b, context);
}

static dw_status pair_status(const pair *pair) {
    return text_status(&pair->a) != DW_OK ? text_status(&pair->a) : text_status(&pair->b);
}

static void pair_free(pair *pair) {
    text_free(&pair->a);
    text_free(&pair->b);
}

static dw_status fail_dims(op_infer *infer, const char *what_a, dim a, const char *what_b, dim b) {
    pair pair;
    pair_init(&pair, infer->context);
    dim_print(&pair.a, infer->dims, a);
    dim_print(&pair.b, infer->dims, b);
    dw_status status = pair_status(&pair);
    if (status == DW_OK)
        status = base_fail(infer->context, DW_MISMATCH, "%s: %s is %s, %s is %s", infer->op->name, what_a, text_string(&pair.a), what_b, text_string(&pair.b));
    pair_free(&pair);
    return status;
}

/* "<op>: <before><a> <between> <b><after>" */
static dw_status fail_types(op_infer *infer, const char *before, const op_type *a, const char *between, const op_type *b, const char *after) {
    pair pair;
    pair_init(&pair, infer->context);
    op_type_print(&pair.a, infer->dims, a);
    op_type_print(&pair.b, infer->dims, b);
    dw_status status = pair_status(&pair);
    if (status == DW_OK)
        status = base_fail(infer->context, DW_MISMATCH, "%s: %s%s %s %s%s", infer->op->name, before, text_string(&pair.a), between, text_string(&pair.b), after);
    pair_free(&pair);
    return status;
}

dw_status op_check_same(op_infer *infer, const char *what_a, dim a, const char *what_b, dim b) {
    return a == b ? DW_OK : fail_dims(infer, what_a, a, what_b, b);
}

dw_status op_check_le(op_infer *infer, const char *what_a, dim a, const char *what_b, dim b) {
    return dim_always_lt(infer->dims, b, a) ? fail_dims(infer, what_a, a, what_b, b) : DW_OK;
}

/* What axes are called in messages. */
typedef struct axis_names { char a[64], b[64]; } axis_names;

static axis_names name_axes(int axis, const char *name_a, const char *name_b) {
    axis_names names;
    snprintf(names.a, sizeof names.a, "axis %d of %s", axis, name_a);
    snprintf(names.b, sizeof names.b, "axis %d of %s", axis, name_b);
    return names;
}

dw_status op_check_same_axis(op_infer *infer, int axis, const char *name_a, const op_type *a, const char *name_b, const op_type *b) {
    axis_names names = name_axes(axis, name_a, name_b);
    return op_check_same(infer, names.a, a->dims[axis], names.b, b->dims[axis]);
}

dw_status op_check_le_axis(op_infer *infer, int axis, const char *name_a, const op_type *a, const char *name_b, const op_type *b) {
    axis_names names = name_axes(axis, name_a, name_b);
    return op_check_le(infer, names.a, a->dims[axis], names.b, b->dims[axis]);
}

dw_status op_check_axis(op_infer *infer, int64_t axis, int rank) {
    if (axis >= 0 && axis < rank) return DW_OK;
    return base_fail(infer->context, DW_INVALID, "%s: axis is %lld, x has rank %d; axes are counted from 0", infer->op->name, (long long)axis, rank);
}

dw_status op_check_rank(op_infer *infer, const char *name, const op_type *type, int min, int max) {
    if (type->rank >= min && type->rank <= max) return DW_OK;
    if (min == max)
        return base_fail(infer->context, DW_MISMATCH, "%s: %s has rank %d, it must be %d", infer->op->name, name, type->rank, min);
    return base_fail(infer->context, DW_MISMATCH, "%s: %s has rank %d, it must be %d to %d", infer->op->name, name, type->rank, min, max);
}

dw_status op_check_element(op_infer *infer, const char *name, const op_type *type) {
    const num_format *info = num_info(type->format);
    if (info->class == NUM_BLOCK)
        return base_fail(infer->context, DW_UNSUPPORTED, "%s: %s is %s, a block format; dequantize it first", infer->op->name, name, info->name);
    if (info->bits < 8)
        return base_fail(infer->context, DW_UNSUPPORTED, "%s: %s is %s, whose elements are less than a byte; cast it first", infer->op->name, name, info->name);
    return DW_OK;
}

bool op_is_cache_format(dw_format format) {
    const num_format *info = num_info(format);
    return info->class == NUM_BLOCK && info->rows == 1 && info->cols > 0 && info->second < 2;
}

dw_status op_check_cache(op_infer *infer, const char *name, const op_type *type) {
    if (!op_is_block(type->format)) return op_check_element(infer, name, type);
    if (!op_is_cache_format(type->format))
        return base_fail(infer->context, DW_UNSUPPORTED, "%s: %s is %s, whose scales are not those of blocks within a row of a head; a cache is in fp8_1x128, an MX format or nvfp4",
                         infer->op->name, name, dw_format_name(type->format));
    if (type->scale_layout == DW_SCALE_plain) return DW_OK;
    return base_fail(infer->context, DW_UNSUPPORTED, "%s: the scales of %s lie in tiles; caches have plain ones", infer->op->name, name);
}

dw_status op_check_number(op_infer *infer, const char *name, const op_type *type) {
    TRY(op_check_element(infer, name, type));
    if (op_is_integer(type->format) || (op_is_float(type->format) && num_info(type->format)->bits >= 16)) return DW_OK;
    return base_fail(infer->context, DW_UNSUPPORTED, "%s: %s is %s; cast it to f32, f16 or bf16 first", infer->op->name, name, dw_format_name(type->format));
}

dw_status op_check_float(op_infer *infer, const char *name, const op_type *type) {
    if (op_is_float(type->format)) return DW_OK;
    return base_fail(infer->context, DW_MISMATCH, "%s: %s is %s, it must be a floating-point format; cast it first", infer->op->name, name,
                     dw_format_name(type->format));
}

dw_status op_check_integer(op_infer *infer, const char *name, const op_type *type) {
    if (op_is_integer(type->format) && type->format != DW_FORMAT_bool) return DW_OK;
    return base_fail(infer->context, DW_MISMATCH, "%s: %s is %s, it must be an integer format", infer->op->name, name, dw_format_name(type->format));
}

dw_status op_check_same_format(op_infer *infer, const char *name_a, const op_type *a, const char *name_b, const op_type *b) {
    if (a->format == b->format) return DW_OK;
    return base_fail(infer->context, DW_MISMATCH, "%s: %s is %s, %s is %s; cast one of them", infer->op->name, name_a, dw_format_name(a->format),
                     name_b, dw_format_name(b->format));
}

dw_status op_check_to(op_infer *infer, dw_format to) {
    if (op_is_integer(to) || (op_is_float(to) && num_info(to)->bits >= 16)) return DW_OK;
    return base_fail(infer->context, DW_INVALID, "%s: to is %s; it must be bool, an integer format, f64, f32, f16 or bf16", infer->op->name, dw_format_name(to));
}

dw_status op_add_axis(op_infer *infer, op_type *type, dim d) {
    if (type->rank == DW_MAX_RANK)
        return base_fail(infer->context, DW_LIMIT, "%s: the result has more than %d dimensions", infer->op->name, DW_MAX_RANK);
    type->dims[type->rank++] = d;
    return DW_OK;
}

static bool is_one(dim d) {
    int64_t value;
    return dim_is_constant(d, &value) && value == 1;
}

dw_status op_check_broadcast(op_infer *infer, const op_type *a, const op_type *b, op_type *out) {
    int rank = a->rank > b->rank ? a->rank : b->rank;
    op_type shape = {.format = out->format, .rank = rank};
    for (int i = 1; i <= rank; i++) {
        dim of_a = i <= a->rank ? a->dims[a->rank - i] : NULL, of_b = i <= b->rank ? b->dims[b->rank - i] : NULL;
        if (of_a == NULL || of_b == NULL) shape.dims[rank - i] = of_a != NULL ? of_a : of_b;
        else if (of_a == of_b || is_one(of_b)) shape.dims[rank - i] = of_a;
        else if (is_one(of_a)) shape.dims[rank - i] = of_b;
        else return fail_types(infer, "", a, "and", b, " do not broadcast");
    }
    *out = shape;
    return DW_OK;
}

dw_status op_check_broadcasts_to(op_infer *infer, const char *prefix, const op_type *type, int rank, const dim *dims) {
    op_type shape = {.format = type->format, .rank = rank};
    for (int i = 0; i < rank; i++) shape.dims[i] = dims[i];
    bool fits = type->rank <= rank;
    for (int i = 1; fits && i <= type->rank; i++) {
        dim d = type->dims[type->rank - i];
        fits = d == dims[rank - i] || is_one(d);
    }
    return fits ? DW_OK : fail_types(infer, prefix, type, "does not broadcast to", &shape, "");
}
