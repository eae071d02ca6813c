/* The text form of symbolic dimensions: printed and parsed. */
#include "base/dim_node.h"

#define NESTING_MAX 200   /* parentheses in parentheses */

/* ---- print ------------------------------------------------------------------------------------------------------------------ */

static void print_dim(text *text, dim d);

/* An operand of '/' and '%', in parentheses unless it is a single token or a call. */
static void print_operand(text *text, dim d) {
    dim_kind kind = dim_kind_of(d);
    int64_t value;
    bool is_plain = kind == DIM_SYMBOL || kind == DIM_MIN || kind == DIM_MAX || (dim_is_constant(d, &value) && value >= 0);
    if (!is_plain) text_add(text, "(");
    print_dim(text, d);
    if (!is_plain) text_add(text, ")");
}

static void print_atom(text *text, const atom *atom) {
    switch (atom->kind) {
    case DIM_FLOORDIV:
    case DIM_MOD:
        print_operand(text, atom->a);
        text_add(text, atom->kind == DIM_MOD ? "%" : "/");
        print_operand(text, atom->b);
        break;
    case DIM_MIN:
    case DIM_MAX:
        text_add(text, atom->kind == DIM_MIN ? "min(" : "max(");
        print_dim(text, atom->a);
        text_add(text, ",");
        print_dim(text, atom->b);
        text_add(text, ")");
        break;
    default: text_add(text, atom->name); break;
    }
}

/* The first term of a sum brings its sign only when negative. */
static void print_term(text *text, const term *term, bool is_first) {
    bool is_negative = term->coefficient < 0;
    uint64_t magnitude = is_negative ? 0 - (uint64_t)term->coefficient : (uint64_t)term->coefficient;
    int degree = term->product->degree;
    if (is_negative) {
        text_add(text, "-");
    } else if (!is_first) {
        text_add(text, "+");
    }
    if (magnitude != 1 || degree == 0) text_printf(text, "%llu", (unsigned long long)magnitude);
    for (int i = 0; i < degree; i++) {
        const atom *atom = term->product->atoms[i];
        bool is_fraction = atom->kind == DIM_FLOORDIV || atom->kind == DIM_MOD;
        bool is_alone = degree == 1 && term->coefficient == 1;
        if (i > 0 || magnitude != 1) text_add(text, "*");
        if (is_fraction && !is_alone) text_add(text, "(");
        print_atom(text, atom);
        if (is_fraction && !is_alone) text_add(text, ")");
    }
}

static void print_dim(text *text, dim d) {
    if (d->term_count == 0) text_add(text, "0");
    for (int i = 0; i < d->term_count; i++) print_term(text, &d->terms[i], i == 0);
}

void dim_print(text *text, const dim_table *table, dim d) {
    (void)table;   /* a dim has its symbols' names */
    print_dim(text, d);
}

/* ---- parse ------------------------------------------------------------------------------------------------------------------ */

typedef struct dim_parser {
    scanner *scanner;
    dim_table *table;
    int nesting;
} dim_parser;

static dw_status parse_sum(dim_parser *parser, dim *result);

/* made is what an operation gave: NULL gets its place. */
static dw_status placed(dim_parser *parser, dim made, dim *result) {
    *result = made;
    if (made != NULL) return DW_OK;
    dw_status status = base_last_status(parser->scanner->context);
    return base_fail_at(parser->scanner->context, status, "%s:%d", parser->scanner->source, parser->scanner->line);
}

/* "min" or "max" was read and "(" is next. */
static dw_status parse_call(dim_parser *parser, bool is_min, dim *result) {
    TRY(scan_expect(parser->scanner, "("));
    TRY(parse_sum(parser, result));
    if (!scan_is(parser->scanner, ",")) {
        return scan_fail(parser->scanner, "expected ',' and a second operand of %s", is_min ? "min" : "max");
    }
    while (scan_is(parser->scanner, ",")) {
        dim other;
        TRY(scan_next(parser->scanner));
        TRY(parse_sum(parser, &other));
        dim chosen = is_min ? dim_min(parser->table, *result, other) : dim_max(parser->table, *result, other);
        TRY(placed(parser, chosen, result));
    }
    return scan_expect(parser->scanner, ")");
}

static dw_status parse_factor(dim_parser *parser, dim *result) {
    scanner *scanner = parser->scanner;
    bool accepted;
    if (scanner->kind == SCAN_INTEGER) {
        TRY(placed(parser, dim_constant(parser->table, scanner->integer), result));
        return scan_next(scanner);
    }
    if (scanner->kind == SCAN_NAME) {
        const char *name = scanner->token;
        bool is_min = scan_is(scanner, "min");
        bool may_call = is_min || scan_is(scanner, "max");
        TRY(scan_next(scanner));
        if (may_call && scan_is(scanner, "(")) return parse_call(parser, is_min, result);
        return placed(parser, dim_symbol(parser->table, name, 0, DIM_UNBOUNDED), result);
    }
    TRY(scan_accept(scanner, "(", &accepted));
    if (!accepted) return scan_fail(scanner, "expected a dimension");
    TRY(parse_sum(parser, result));
    return scan_expect(scanner, ")");
}

static dw_status parse_term(dim_parser *parser, dim *result) {
    scanner *scanner = parser->scanner;
    TRY(parse_factor(parser, result));
    for (;;) {
        char operation;
        dim other;
        if (scanner->kind == SCAN_VALUE) {   /* "s%4": the scanner reads %4 as a value */
            operation = '%';
            TRY(placed(parser, dim_constant(parser->table, scanner->integer), &other));
            TRY(scan_next(scanner));
        } else if (scan_is(scanner, "*") || scan_is(scanner, "/") || scan_is(scanner, "%")) {
            operation = scanner->token[0];
            TRY(scan_next(scanner));
            TRY(parse_factor(parser, &other));
        } else {
            return DW_OK;
        }
        dim made = operation == '*'   ? dim_mul(parser->table, *result, other)
                   : operation == '/' ? dim_floordiv(parser->table, *result, other)
                                    : dim_mod(parser->table, *result, other);
        TRY(placed(parser, made, result));
    }
}

static dw_status parse_sum(dim_parser *parser, dim *result) {
    scanner *scanner = parser->scanner;
    if (++parser->nesting > NESTING_MAX) return scan_fail(scanner, "a dimension is nested deeper than %d parentheses", NESTING_MAX);
    bool is_negative;
    TRY(scan_accept(scanner, "-", &is_negative));
    TRY(parse_term(parser, result));
    if (is_negative) TRY(placed(parser, dim_sub(parser->table, parser->table->zero, *result), result));
    while (scan_is(scanner, "+") || scan_is(scanner, "-")) {
        bool is_minus = scan_is(scanner, "-");
        dim other;
        TRY(scan_next(scanner));
        TRY(parse_term(parser, &other));
        dim made = is_minus ? dim_sub(parser->table, *result, other) : dim_add(parser->table, *result, other);
        TRY(placed(parser, made, result));
    }
    parser->nesting--;
    return DW_OK;
}

dw_status dim_parse(scanner *scanner, dim_table *table, dim *result) {
    *result = NULL;
    dim_parser parser = {scanner, table, 0};
    dim made;
    TRY(parse_sum(&parser, &made));
    *result = made;
    return DW_OK;
}
