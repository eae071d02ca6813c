/* Symbolic sizes: sympy's srepr text becomes dims, torch's symbols get readable names and ranges.
 * Fractions occur inside floors, so an expression is a fraction of two dims until its end. */
#include "capture/program.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 64, TERMS_MAX = 256, POWER_MAX = 8, UNBOUNDED_FROM_BITS = 62 };

typedef struct capture_symbol {
    const char *name;           /* as the graph calls it */
    int64_t min, max;
    bool of_input;              /* occurs in the size of an input; else it is known from the data alone */
} capture_symbol;

/* ---- expressions ---- */

typedef struct fraction { dim over, under; } fraction;

typedef struct parser {
    capture *capture;
    const char *text;           /* the whole, for messages */
    const char *at;
    int depth;
} parser;

static dw_status fail(const parser *p, dw_status status, const char *why) {
    return base_fail(p->capture->context, status, "%s: %s in the size expression '%.200s'", p->capture->source, why, p->text);
}

static dw_status check_terms(const parser *p, dim d) {
    if (d == NULL) return base_last_status(p->capture->context);
    return dim_term_count(d) <= TERMS_MAX ? DW_OK : fail(p, DW_LIMIT, "more than 256 terms");
}

static void skip_space(parser *p) {
    while (*p->at == ' ') p->at++;
}

static bool accept(parser *p, char c) {
    skip_space(p);
    if (*p->at != c) return false;
    p->at++;
    return true;
}

/* A name of at most room - 1 characters. */
static bool read_name(parser *p, char *name, size_t room) {
    size_t length = 0;
    skip_space(p);
    while ((isalnum((unsigned char)p->at[length]) || p->at[length] == '_') && length + 1 < room) length++;
    memcpy(name, p->at, length);
    name[length] = '\0';
    p->at += length;
    return length > 0;
}

static dw_status read_integer(parser *p, int64_t *value) {
    char *end;
    skip_space(p);
    errno = 0;
    long long number = strtoll(p->at, &end, 10);
    if (end == p->at || errno == ERANGE) return fail(p, DW_CORRUPT, "no integer of 64 bits where one must be");
    p->at = end;
    *value = number;
    return DW_OK;
}

static dw_status as_fraction(const parser *p, dim over, fraction *result) {
    TRY(check_terms(p, over));
    result->over = over;
    TRY_DIM(p->capture->context, result->under, dim_constant(p->capture->graph->dims, 1));
    return DW_OK;
}

static dw_status combine(const parser *p, char operation, fraction a, fraction b, fraction *result) {
    dim_table *dims = p->capture->graph->dims;
    dw_context *context = p->capture->context;
    if (operation == '*') {
        TRY_DIM(context, result->over, dim_mul(dims, a.over, b.over));
        TRY_DIM(context, result->under, dim_mul(dims, a.under, b.under));
    } else if (operation == '/') {
        TRY_DIM(context, result->over, dim_mul(dims, a.over, b.under));
        TRY_DIM(context, result->under, dim_mul(dims, a.under, b.over));
    } else if (a.under == b.under) {
        TRY_DIM(context, result->over, dim_add(dims, a.over, b.over));
        result->under = a.under;
    } else {
        dim left, right;
        TRY_DIM(context, left, dim_mul(dims, a.over, b.under));
        TRY_DIM(context, right, dim_mul(dims, b.over, a.under));
        TRY_DIM(context, result->over, dim_add(dims, left, right));
        TRY_DIM(context, result->under, dim_mul(dims, a.under, b.under));
    }
    TRY(check_terms(p, result->over));
    return check_terms(p, result->under);
}

/* The fraction as an integer; INVALID fractions are an error. */
static dw_status whole(const parser *p, fraction f, dim *result) {
    *result = dim_divide_exact(p->capture->graph->dims, f.over, f.under);
    return *result != NULL ? DW_OK : fail(p, DW_UNSUPPORTED, "a size that is a fraction");
}

static dw_status floor_of(const parser *p, fraction f, dim *result) {
    TRY_DIM(p->capture->context, *result, dim_floordiv(p->capture->graph->dims, f.over, f.under));
    return check_terms(p, *result);
}

static dw_status ceil_of(const parser *p, fraction f, dim *result) {
    dim zero, negative;
    TRY_DIM(p->capture->context, zero, dim_constant(p->capture->graph->dims, 0));
    TRY_DIM(p->capture->context, negative, dim_sub(p->capture->graph->dims, zero, f.over));
    TRY(floor_of(p, (fraction){.over = negative, .under = f.under}, result));
    TRY_DIM(p->capture->context, *result, dim_sub(p->capture->graph->dims, zero, *result));
    return check_terms(p, *result);
}

static dw_status find_symbol(capture *capture, const char *name, dim *result) {
    const capture_symbol *known = map_find(&capture->symbols, name);
    if (known == NULL) {
        TRY_DIM(capture->context, *result, dim_symbol(capture->graph->dims, name, name[0] == 'u' ? 0 : 1, DIM_UNBOUNDED));
    } else {
        TRY_DIM(capture->context, *result, dim_symbol(capture->graph->dims, known->name, known->min, known->max));
    }
    return DW_OK;
}

/* What stands in parentheses behind Symbol: 's0', integer=True, .. */
static dw_status parse_symbol(parser *p, fraction *result) {
    char name[64];
    dim d;
    if (!accept(p, '\'') || !read_name(p, name, sizeof name) || !accept(p, '\'')) return fail(p, DW_CORRUPT, "a symbol without a name");
    while (*p->at != '\0' && *p->at != ')') p->at++;
    TRY(find_symbol(p->capture, name, &d));
    return as_fraction(p, d, result);
}

static dw_status power(const parser *p, fraction base, fraction exponent, fraction *result) {
    dim integer;
    int64_t n;
    TRY(whole(p, exponent, &integer));
    if (!dim_is_constant(integer, &n) || n < -POWER_MAX || n > POWER_MAX) return fail(p, DW_UNSUPPORTED, "a power that is not small and constant");
    dim one;
    TRY_DIM(p->capture->context, one, dim_constant(p->capture->graph->dims, 1));
    *result = (fraction){.over = one, .under = one};
    for (int64_t i = 0; i < (n < 0 ? -n : n); i++) TRY(combine(p, n < 0 ? '/' : '*', *result, base, result));
    return DW_OK;
}

typedef enum call_kind {
    CALL_ADD, CALL_MUL, CALL_POW, CALL_MAX, CALL_MIN, CALL_FLOORDIV, CALL_CEILDIV, CALL_MOD, CALL_MODULAR, CALL_DIVIDE, CALL_FLOOR, CALL_CEIL, CALL_SAME
} call_kind;

/* Functions of sympy and of torch.utils._sympy.functions. most: how many arguments; 0 is any number. */
static const struct { const char *name; call_kind kind; int least, most; } functions[] = {
    {"Add", CALL_ADD, 1, 0},           {"Mul", CALL_MUL, 1, 0},           {"Pow", CALL_POW, 2, 2},          {"PowByNatural", CALL_POW, 2, 2},
    {"Max", CALL_MAX, 1, 0},           {"Min", CALL_MIN, 1, 0},           {"FloorDiv", CALL_FLOORDIV, 2, 2}, {"CeilDiv", CALL_CEILDIV, 2, 2},
    {"CleanDiv", CALL_FLOORDIV, 2, 2}, {"Mod", CALL_MOD, 2, 2},           {"PythonMod", CALL_MOD, 2, 2},    {"ModularIndexing", CALL_MODULAR, 3, 3},
    {"IntTrueDiv", CALL_DIVIDE, 2, 2}, {"FloatTrueDiv", CALL_DIVIDE, 2, 2}, {"Rational", CALL_DIVIDE, 2, 2}, {"floor", CALL_FLOOR, 1, 1},
    {"FloorToInt", CALL_FLOOR, 1, 1},  {"TruncToInt", CALL_FLOOR, 1, 1},  {"ceiling", CALL_CEIL, 1, 1},     {"CeilToInt", CALL_CEIL, 1, 1},
    {"ToFloat", CALL_SAME, 1, 1},      {"Identity", CALL_SAME, 1, 1},
};

/* a - b * floor(a / b): so that s + (-s) % 8, the next multiple of 8, is known to be one. */
static dw_status modulo(const parser *p, dim a, dim b, dim *result) {
    dim_table *dims = p->capture->graph->dims;
    TRY_DIM(p->capture->context, *result, dim_floordiv(dims, a, b));
    TRY_DIM(p->capture->context, *result, dim_mul(dims, *result, b));
    TRY_DIM(p->capture->context, *result, dim_sub(dims, a, *result));
    return check_terms(p, *result);
}

static dw_status fold_pair(const parser *p, call_kind kind, fraction a, fraction b, fraction *result) {
    dim_table *dims = p->capture->graph->dims;
    dim x, y, d;
    if (kind == CALL_ADD) return combine(p, '+', a, b, result);
    if (kind == CALL_MUL) return combine(p, '*', a, b, result);
    if (kind == CALL_DIVIDE) return combine(p, '/', a, b, result);
    if (kind == CALL_POW) return power(p, a, b, result);
    TRY(whole(p, a, &x));
    TRY(whole(p, b, &y));
    if (kind == CALL_FLOORDIV || kind == CALL_CEILDIV) {
        fraction quotient = {.over = x, .under = y};
        TRY(kind == CALL_FLOORDIV ? floor_of(p, quotient, &d) : ceil_of(p, quotient, &d));
    } else if (kind == CALL_MOD) {
        TRY(modulo(p, x, y, &d));
    } else {
        TRY_DIM(p->capture->context, d, kind == CALL_MAX ? dim_max(dims, x, y) : dim_min(dims, x, y));
    }
    return as_fraction(p, d, result);
}

static dw_status finish_call(const parser *p, call_kind kind, const fraction *arguments, fraction *result) {
    dim d, x, y, z;
    if (kind == CALL_FLOOR || kind == CALL_CEIL) {
        TRY(kind == CALL_FLOOR ? floor_of(p, *result, &d) : ceil_of(p, *result, &d));
        return as_fraction(p, d, result);
    }
    if (kind != CALL_MODULAR) return DW_OK;
    TRY(whole(p, arguments[0], &x));
    TRY(whole(p, arguments[1], &y));
    TRY(whole(p, arguments[2], &z));
    TRY_DIM(p->capture->context, d, dim_floordiv(p->capture->graph->dims, x, y));
    TRY(modulo(p, d, z, &d));
    return as_fraction(p, d, result);
}

static dw_status parse_expression(parser *p, fraction *result);

static dw_status parse_arguments(parser *p, call_kind kind, int least, int most, fraction *result) {
    fraction arguments[3];
    int count = 0;
    do {
        fraction next;
        if (most > 0 && count == most) return fail(p, DW_CORRUPT, "too many arguments");
        TRY(parse_expression(p, &next));
        if (count < 3) arguments[count] = next;
        if (count == 0) {
            *result = next;
        } else if (kind != CALL_MODULAR) {
            TRY(fold_pair(p, kind, *result, next, result));
        }
        count++;
    } while (accept(p, ','));
    if (count < least) return fail(p, DW_CORRUPT, "too few arguments");
    return finish_call(p, kind, arguments, result);
}

static dw_status parse_call(parser *p, const char *name, fraction *result) {
    if (strcmp(name, "Symbol") == 0) return parse_symbol(p, result);
    for (size_t i = 0; i < COUNT_OF(functions); i++) {
        if (strcmp(name, functions[i].name) == 0) return parse_arguments(p, functions[i].kind, functions[i].least, functions[i].most, result);
    }
    if (strcmp(name, "Integer") != 0) return fail(p, DW_UNSUPPORTED, "an unknown function");
    int64_t value;
    TRY(read_integer(p, &value));
    return as_fraction(p, dim_constant(p->capture->graph->dims, value), result);
}

static dw_status parse_expression(parser *p, fraction *result) {
    char name[64];
    skip_space(p);
    if (*p->at == '-' || isdigit((unsigned char)*p->at)) {
        int64_t value;
        TRY(read_integer(p, &value));
        return as_fraction(p, dim_constant(p->capture->graph->dims, value), result);
    }
    if (!read_name(p, name, sizeof name) || !accept(p, '(')) return fail(p, DW_CORRUPT, "no function where one must be");
    if (++p->depth > DEPTH_MAX) return fail(p, DW_LIMIT, "more than 64 levels");
    TRY(parse_call(p, name, result));
    p->depth--;
    return accept(p, ')') ? DW_OK : fail(p, DW_CORRUPT, "a missing parenthesis");
}

static dw_status read_expression(capture *capture, const char *text, dim *result) {
    *result = map_find(&capture->parsed, text);
    if (*result != NULL) return DW_OK;
    parser p = {.capture = capture, .text = text, .at = text};
    fraction f;
    TRY(parse_expression(&p, &f));
    skip_space(&p);
    if (*p.at != '\0') return fail(&p, DW_CORRUPT, "text behind the end");
    TRY(whole(&p, f, result));
    return map_set(&capture->parsed, text, (void *)*result);
}

bool capture_needs_data(const capture *capture, const json_t *size) {
    const char *at = json_string_value(json_object_get(json_object_get(size, "as_expr"), "expr_str"));
    static const char mark[] = "Symbol('";
    while (at != NULL && (at = strstr(at, mark)) != NULL) {
        char name[64];
        at += sizeof mark - 1;
        size_t length = strcspn(at, "'");
        if (length >= sizeof name) continue;
        memcpy(name, at, length);
        name[length] = '\0';
        const capture_symbol *symbol = map_find(&capture->symbols, name);
        if (symbol == NULL || !symbol->of_input) return true;
    }
    return false;
}

dw_status capture_read_size(capture *capture, const json_t *size, dim *result) {
    const json_t *known = json_object_get(size, "as_int");
    if (json_is_integer(known)) {
        TRY_DIM(capture->context, *result, dim_constant(capture->graph->dims, json_integer_value(known)));
        return DW_OK;
    }
    const char *text = json_string_value(json_object_get(json_object_get(size, "as_expr"), "expr_str"));
    if (text == NULL) return base_fail(capture->context, DW_CORRUPT, "%s: a size is neither an integer nor an expression", capture->source);
    return read_expression(capture, text, result);
}

/* ---- types ---- */

/* torch/csrc serialises dtypes by these numbers (torch/_export/serde/schema.py, ScalarType). */
static const struct { int scalar_type; dw_format format; } scalar_types[] = {
    {1, DW_FORMAT_u8},   {2, DW_FORMAT_i8},  {3, DW_FORMAT_i16},  {4, DW_FORMAT_i32},   {5, DW_FORMAT_i64},   {6, DW_FORMAT_f16}, {7, DW_FORMAT_f32},
    {8, DW_FORMAT_f64},  {12, DW_FORMAT_bool}, {13, DW_FORMAT_bf16}, {29, DW_FORMAT_e4m3}, {30, DW_FORMAT_e5m2}, {33, DW_FORMAT_e8m0},
};

dw_format capture_format_of(int64_t scalar_type) {
    for (size_t i = 0; i < COUNT_OF(scalar_types); i++) {
        if (scalar_types[i].scalar_type == scalar_type) return scalar_types[i].format;
    }
    return DW_FORMAT_COUNT;
}

dw_status capture_read_type(capture *capture, const json_t *meta, const char *what, op_type *type) {
    const json_t *dtype = json_object_get(meta, "dtype"), *sizes = json_object_get(meta, "sizes");
    if (!json_is_integer(dtype) || !json_is_array(sizes)) {
        return base_fail(capture->context, DW_CORRUPT, "%s: tensor '%s' has no dtype or no sizes", capture->source, what);
    }
    *type = (op_type){.format = capture_format_of(json_integer_value(dtype))};
    if (json_array_size(sizes) > DW_MAX_RANK) {
        return base_fail(capture->context, DW_UNSUPPORTED, "%s: tensor '%s' has %zu axes; at most %d are supported", capture->source, what,
                         json_array_size(sizes), DW_MAX_RANK);
    }
    type->rank = (int)json_array_size(sizes);
    for (int i = 0; i < type->rank; i++) {
        int64_t size;
        TRY(capture_read_size(capture, json_array_get(sizes, (size_t)i), &type->dims[i]));
        if (dim_is_constant(type->dims[i], &size) && size < 0) {
            return base_fail(capture->context, DW_CORRUPT, "%s: tensor '%s' has %lld elements along axis %d", capture->source, what, (long long)size, i);
        }
    }
    return DW_OK;
}

/* ---- names and ranges ---- */

/* For the first axis of inputs with several axes, for their second and for that of inputs with one, and for the sides of images. */
static const char *const batch_names[] = {"b", "c", "d", "e"};
static const char *const length_names[] = {"s", "t", "u", "v", "w", "x", "y", "z"};
static const char *const height_names[] = {"h", "k", "m"};
static const char *const width_names[] = {"w", "n", "q"};

static bool is_taken(const capture *capture, const char *name) {
    for (size_t i = 0; i < capture->symbols.count; i++) {
        const capture_symbol *symbol = capture->symbols.entries[i].value;
        if (symbol->name != NULL && strcmp(symbol->name, name) == 0) return true;
    }
    return false;
}

static dw_status name_symbol(capture *capture, const char *original, const char *const *names, size_t count) {
    if (map_find(&capture->symbols, original) != NULL) return DW_OK;
    capture_symbol *symbol;
    TRY_NEW(symbol, &capture->arena, 1);
    *symbol = (capture_symbol){.name = NULL, .min = 1, .max = DIM_UNBOUNDED};
    for (size_t i = 0; i < count && symbol->name == NULL; i++) {
        if (!is_taken(capture, names[i])) symbol->name = names[i];
    }
    if (symbol->name == NULL) symbol->name = arena_printf(&capture->arena, is_taken(capture, original) ? "%s_" : "%s", original);
    return symbol->name == NULL ? DW_NO_MEMORY : map_set(&capture->symbols, original, symbol);
}

/* Names every symbol that occurs in the size of axis. */
static dw_status name_axis(capture *capture, const json_t *size, int rank, int axis) {
    const char *at = json_string_value(json_object_get(json_object_get(size, "as_expr"), "expr_str"));
    static const char mark[] = "Symbol('";
    while (at != NULL && (at = strstr(at, mark)) != NULL) {
        char original[64];
        at += sizeof mark - 1;
        size_t length = strcspn(at, "'");
        if (length == 0 || length >= sizeof original) continue;
        memcpy(original, at, length);
        original[length] = '\0';
        if (rank > 1 && axis == 0) {
            TRY(name_symbol(capture, original, batch_names, COUNT_OF(batch_names)));
        } else if (rank == 4 && axis >= 2) {
            bool high = axis == 2;
            TRY(name_symbol(capture, original, high ? height_names : width_names, high ? COUNT_OF(height_names) : COUNT_OF(width_names)));
        } else {
            TRY(name_symbol(capture, original, length_names, COUNT_OF(length_names)));
        }
        ((capture_symbol *)map_find(&capture->symbols, original))->of_input = true;
    }
    return DW_OK;
}

/* Inputs of one axis come last: which axis of the others they share is then known. */
static dw_status name_inputs(capture *capture, const json_t *graph, const json_t *specs, bool vectors) {
    size_t index;
    json_t *spec;
    json_array_foreach(specs, index, spec) {
        const char *name = json_string_value(json_object_get(json_object_get(json_object_get(json_object_get(spec, "user_input"), "arg"), "as_tensor"), "name"));
        const json_t *sizes = name == NULL ? NULL : json_object_get(json_object_get(json_object_get(graph, "tensor_values"), name), "sizes");
        int rank = (int)json_array_size(sizes);
        if ((rank == 1) != vectors) continue;
        for (int axis = 0; axis < rank; axis++) TRY(name_axis(capture, json_array_get(sizes, (size_t)axis), rank, axis));
    }
    return DW_OK;
}

static int64_t bound(const json_t *range, const char *key, int64_t fallback) {
    const json_t *value = json_object_get(range, key);
    return json_is_integer(value) ? json_integer_value(value) : fallback;
}

/* The key of a range as <factor>*<symbol>: torch writes 8*s39 for a size that was asked to be a multiple. */
static bool split_key(const char *key, int64_t *factor, const char **symbol) {
    char *end;
    *factor = strtoll(key, &end, 10);
    *symbol = end + 1;
    return end != key && *end == '*' && *factor > 0 && strpbrk(end + 1, "*+-/() ") == NULL;
}

static dw_status set_range(capture *capture, const char *key, const json_t *range) {
    int64_t factor = 1;
    const char *original = key;
    if (strpbrk(key, "*+-/() ") != NULL && !split_key(key, &factor, &original)) return DW_OK;   /* of a derived size: its symbols have their own */
    int64_t min = bound(range, "min_val", 1), max = bound(range, "max_val", DIM_UNBOUNDED);
    if (max >= (int64_t)1 << UNBOUNDED_FROM_BITS) max = DIM_UNBOUNDED;
    if (factor > 1) {
        min = min / factor + (min % factor > 0);
        if (max != DIM_UNBOUNDED) max /= factor;
    }
    if (min <= 2) min = original[0] == 'u' ? (min > 0 ? min : 0) : 1;   /* torch's least 2 is how it specialises on 0 and 1, not a need */
    if (max < min) {
        return base_fail(capture->context, DW_CORRUPT, "%s: range_constraints: %s is said to lie between %lld and %lld", capture->source, key,
                         (long long)bound(range, "min_val", 1), (long long)max);
    }
    TRY(name_symbol(capture, original, NULL, 0));
    capture_symbol *symbol = map_find(&capture->symbols, original);
    symbol->min = min;
    symbol->max = max;
    return DW_OK;
}

void capture_bound_symbol(capture *capture, const char *original, int64_t max) {
    capture_symbol *symbol = map_find(&capture->symbols, original);
    if (symbol != NULL && max < symbol->max && max >= symbol->min) symbol->max = max;
}

dw_status capture_unite_symbols(capture *capture, const char *a, const char *b) {
    capture_symbol *one = map_find(&capture->symbols, a), *other = map_find(&capture->symbols, b);
    if (one == NULL || other == NULL || one == other) return DW_OK;
    if (other->min > one->min) one->min = other->min;
    if (other->max < one->max) one->max = other->max;
    if (one->max < one->min) return DW_OK;
    for (size_t i = 0; i < capture->symbols.count; i++) {
        if (capture->symbols.entries[i].value == other) TRY(map_set(&capture->symbols, capture->symbols.entries[i].key, one));
    }
    return DW_OK;
}

/* The symbols that a size has in place of another's, where that is all the difference. Sizes are read into a table of their own: those of the graph
 * are made when it is known which symbols are one. */
static dw_status find_difference(capture *capture, const json_t *a, const json_t *b, const char **one, const char **other) {
    dim_table *dims = capture->graph->dims;
    dim left, right, gap = NULL;
    *one = *other = NULL;
    TRY(capture_read_size(capture, a, &left));
    TRY(capture_read_size(capture, b, &right));
    if (left == right) return DW_OK;
    TRY_DIM(capture->context, gap, dim_sub(dims, left, right));
    for (int x = 0; x < dim_symbol_count(dims); x++) {
        for (int y = 0; y < dim_symbol_count(dims); y++) {
            dim first, second, difference;
            TRY_DIM(capture->context, first, dim_symbol(dims, dim_symbol_name(dims, x), 1, DIM_UNBOUNDED));
            TRY_DIM(capture->context, second, dim_symbol(dims, dim_symbol_name(dims, y), 1, DIM_UNBOUNDED));
            TRY_DIM(capture->context, difference, dim_sub(dims, first, second));
            if (x == y || difference != gap) continue;
            *one = arena_text(&capture->arena, dim_symbol_name(dims, x));
            *other = arena_text(&capture->arena, dim_symbol_name(dims, y));
            return *one != NULL && *other != NULL ? DW_OK : DW_NO_MEMORY;
        }
    }
    return DW_OK;
}

/* What torch calls the symbol of this name. */
static const char *original_of(const capture *capture, const char *name) {
    for (size_t i = 0; i < capture->symbols.count; i++) {
        const capture_symbol *symbol = capture->symbols.entries[i].value;
        if (symbol->name != NULL && strcmp(symbol->name, name) == 0) return capture->symbols.entries[i].key;
    }
    return NULL;
}

dw_status capture_unite_sizes(capture *capture, const json_t *a, const json_t *b) {
    dim_table *own, *kept = capture->graph->dims;
    map parsed = capture->parsed;
    const char *one, *other;
    if (json_object_get(a, "as_expr") == NULL || json_object_get(b, "as_expr") == NULL) return DW_OK;
    TRY(dim_table_create(capture->context, &own));
    capture->graph->dims = own;
    map_init(&capture->parsed, &capture->arena);
    dw_status status = find_difference(capture, a, b, &one, &other);
    dim_table_destroy(own);
    capture->graph->dims = kept;
    capture->parsed = parsed;
    if (status != DW_OK || one == NULL) return status;
    one = original_of(capture, one);
    other = original_of(capture, other);
    return one == NULL || other == NULL ? DW_OK : capture_unite_symbols(capture, one, other);
}

dw_status capture_name_symbols(capture *capture) {
    const json_t *module = json_object_get(capture->program, "graph_module");
    const json_t *specs = json_object_get(json_object_get(module, "signature"), "input_specs");
    TRY(name_inputs(capture, json_object_get(module, "graph"), specs, false));
    TRY(name_inputs(capture, json_object_get(module, "graph"), specs, true));
    const char *key;
    json_t *range;
    json_object_foreach(json_object_get(capture->program, "range_constraints"), key, range) TRY(set_range(capture, key, range));
    return DW_OK;
}
