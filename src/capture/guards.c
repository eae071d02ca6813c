/* What the guards of an export say about its sizes. torch lists as Python text what it took for granted while tracing; two kinds of equations
 * are used, as the sizes recorded in the program are only consistent with them:
 *
 *     64*L['m'].size()[0]*L['m'].size()[1] == 64*L['x'].size()[0]*L['m'].size()[1]      the first axes of m and x are one symbol
 *     L['ids'].size()[1] == 64 + (-1)*max(0, 64 + (-1)*L['ids'].size()[1])              the second axis of ids is at most 64
 *
 * All others are left alone: shape inference finds what does not fit. */
#include "capture/program.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 64, TERMS_MAX = 64, LENGTH_MAX = 2000, GUARDS_MAX = 2000 };

typedef struct parser {
    capture *capture;
    const json_t *tensor_values;
    dim_table *dims;            /* its symbols have torch's names */
    const char *at;
    int depth;
} parser;

static bool accept(parser *p, const char *word) {
    while (*p->at == ' ') p->at++;
    size_t length = strlen(word);
    if (strncmp(p->at, word, length) != 0) return false;
    p->at += length;
    return true;
}

/* All functions below give NULL for what is no sum of products of sizes, and for failures. */
static dim small(dim d) { return d != NULL && dim_term_count(d) <= TERMS_MAX ? d : NULL; }

/* The symbol that the size of an axis is. */
static dim axis_symbol(const parser *p, const char *name, int64_t axis) {
    static const char mark[] = "Symbol('";
    const json_t *sizes = json_object_get(json_object_get(p->tensor_values, name), "sizes");
    const char *text = json_string_value(json_object_get(json_object_get(json_array_get(sizes, (size_t)axis), "as_expr"), "expr_str"));
    if (text == NULL || strncmp(text, mark, sizeof mark - 1) != 0) return NULL;
    char symbol[64];
    size_t length = strcspn(text + sizeof mark - 1, "'");
    if (length == 0 || length >= sizeof symbol) return NULL;
    memcpy(symbol, text + sizeof mark - 1, length);
    symbol[length] = '\0';
    return dim_symbol(p->dims, symbol, 1, DIM_UNBOUNDED);
}

/* ids'].size()[1] */
static dim parse_axis(parser *p) {
    char name[128];
    size_t length = strcspn(p->at, "'");
    if (length >= sizeof name) return NULL;
    memcpy(name, p->at, length);
    name[length] = '\0';
    p->at += length;
    if (!accept(p, "'].size()[") || !isdigit((unsigned char)*p->at)) return NULL;
    int64_t axis = strtoll(p->at, (char **)&p->at, 10);
    return accept(p, "]") ? axis_symbol(p, name, axis) : NULL;
}

static dim parse_sum(parser *p);

/* The arguments of min or max, behind the parenthesis. */
static dim parse_extreme(parser *p, bool largest) {
    dim result = parse_sum(p);
    while (result != NULL && accept(p, ",")) {
        dim next = parse_sum(p);
        if (next == NULL) return NULL;
        result = small(largest ? dim_max(p->dims, result, next) : dim_min(p->dims, result, next));
    }
    return accept(p, ")") ? result : NULL;
}

static dim parse_factor(parser *p) {
    dim result = NULL;
    if (p->depth == DEPTH_MAX) return NULL;
    p->depth++;
    if (accept(p, "L['")) result = parse_axis(p);
    else if (accept(p, "max(")) result = parse_extreme(p, true);
    else if (accept(p, "min(")) result = parse_extreme(p, false);
    else if (accept(p, "(")) result = (result = parse_sum(p)) != NULL && accept(p, ")") ? result : NULL;
    else if (isdigit((unsigned char)*p->at) || *p->at == '-') {
        char *end;
        int64_t number = strtoll(p->at, &end, 10);
        if (end != p->at) result = dim_constant(p->dims, number);
        p->at = end;
    }
    p->depth--;
    return result;
}

static dim parse_product(parser *p) {
    dim result = parse_factor(p);
    while (result != NULL) {
        char operation = accept(p, "//") ? '/' : accept(p, "*") ? '*' : accept(p, "%") ? '%' : '\0';
        if (operation == '\0') break;
        dim next = parse_factor(p);
        if (next == NULL) return NULL;
        result = small(operation == '*' ? dim_mul(p->dims, result, next) : operation == '/' ? dim_floordiv(p->dims, result, next) : dim_mod(p->dims, result, next));
    }
    return result;
}

static dim parse_sum(parser *p) {
    dim result = parse_product(p);
    while (result != NULL) {
        bool plus = accept(p, "+");
        if (!plus && !accept(p, "-")) break;
        dim next = parse_product(p);
        if (next == NULL) return NULL;
        result = small(plus ? dim_add(p->dims, result, next) : dim_sub(p->dims, result, next));
    }
    return result;
}

/* ---- conclusions ---- */

/* One symbol alone equals what is never more than some number: neither is it. */
static void conclude_bound(const parser *p, dim alone, dim other) {
    int index;
    int64_t min, max, least, most;
    if (!dim_is_symbol(alone, &index)) return;
    dim_range(p->dims, other, &min, &max);
    dim_symbol_range(p->dims, index, &least, &most);
    if (max < most && max >= 1) capture_bound_symbol(p->capture, dim_symbol_name(p->dims, index), max);
}

/* The difference is (a - b) times one product of sizes, none of which is 0: a and b are equal. */
static dw_status conclude_equal(const parser *p, dim difference) {
    int count = dim_symbol_count(p->dims);
    for (int a = 0; a < count; a++) {
        for (int b = a + 1; b < count; b++) {
            dim x = dim_symbol(p->dims, dim_symbol_name(p->dims, a), 1, DIM_UNBOUNDED), y = dim_symbol(p->dims, dim_symbol_name(p->dims, b), 1, DIM_UNBOUNDED);
            dim gap = x != NULL && y != NULL ? dim_sub(p->dims, x, y) : NULL;
            if (gap == NULL) return base_last_status(p->capture->context);
            dim product = dim_divide_exact(p->dims, difference, gap);
            if (product == NULL || dim_term_count(product) != 1) continue;
            TRY(capture_unite_symbols(p->capture, dim_symbol_name(p->dims, a), dim_symbol_name(p->dims, b)));
        }
    }
    return DW_OK;
}

static dw_status read_guard(parser *p, const char *guard) {
    p->at = guard;
    p->depth = 0;
    dim left = parse_sum(p);
    if (left == NULL || !accept(p, "==")) return DW_OK;
    dim right = parse_sum(p);
    while (right != NULL && *p->at == ' ') p->at++;
    if (right == NULL || *p->at != '\0') return DW_OK;
    dim difference = small(dim_sub(p->dims, left, right));
    if (difference == NULL) return DW_OK;
    conclude_bound(p, left, right);
    conclude_bound(p, right, left);
    return conclude_equal(p, difference);
}

dw_status capture_read_guards(capture *capture) {
    const json_t *guards = json_object_get(capture->program, "guards_code");
    const json_t *graph = json_object_get(json_object_get(capture->program, "graph_module"), "graph");
    parser p = {.capture = capture, .tensor_values = json_object_get(graph, "tensor_values")};
    dw_status status = DW_OK;
    for (size_t i = 0; status == DW_OK && i < json_array_size(guards) && i < GUARDS_MAX; i++) {
        const char *guard = json_string_value(json_array_get(guards, i));
        if (guard == NULL || strlen(guard) > LENGTH_MAX || strstr(guard, "==") == NULL) continue;
        status = dim_table_create(capture->context, &p.dims);
        if (status != DW_OK) break;
        status = read_guard(&p, guard);
        dim_table_destroy(p.dims);
    }
    return status;
}
