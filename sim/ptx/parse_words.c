/* What every part of the parser reads: words, names and constants; and its errors. */
#include "parse_internal.h"

#include <string.h>

dw_status parse_next(parser *p) { return ptx_lex(&p->lexer, &p->token); }

dw_status parse_fail(parser *p, const char *format, ...) {
    char what[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    int shown = p->token.length > 40 ? 40 : (int)p->token.length;
    return base_fail(p->context, DW_SYNTAX, "%s:%d: %s, found '%.*s'", p->lexer.source, p->token.line, what,
                     p->token.kind == PTX_END ? 15 : shown, p->token.kind == PTX_END ? "the end of text" : p->token.text);
}

bool parse_is(const parser *p, const char *text) {
    return p->token.kind != PTX_STRING && p->token.kind != PTX_END && p->token.length == strlen(text) && memcmp(p->token.text, text, p->token.length) == 0;
}

dw_status parse_accept(parser *p, const char *text, bool *accepted) {
    *accepted = parse_is(p, text);
    return *accepted ? parse_next(p) : DW_OK;
}

dw_status parse_expect(parser *p, const char *text) {
    if (!parse_is(p, text)) return parse_fail(p, "expected '%s'", text);
    return parse_next(p);
}

dw_status parse_take_name(parser *p, const char **name) {
    if (p->token.kind != PTX_NAME) return parse_fail(p, "expected a name");
    *name = arena_text_n(p->arena, p->token.text, p->token.length);
    if (*name == NULL) return DW_NO_MEMORY;
    return parse_next(p);
}

/* ---- constant expressions ---- */

static dw_status parse_unary(parser *p, int64_t *value) {
    if (++p->depth > PARSE_MAX_DEPTH) return parse_fail(p, "more than %d levels of parentheses", PARSE_MAX_DEPTH);
    bool minus, not, complement, plus, open;
    TRY(parse_accept(p, "-", &minus));
    TRY(parse_accept(p, "!", &not));
    TRY(parse_accept(p, "~", &complement));
    TRY(parse_accept(p, "+", &plus));
    if (minus || not || complement || plus) {
        TRY(parse_unary(p, value));
        if (minus) *value = (int64_t)(0 - (uint64_t)*value);
        if (not) *value = *value == 0;
        if (complement) *value = ~*value;
        p->depth--;
        return DW_OK;
    }
    TRY(parse_accept(p, "(", &open));
    if (open) {
        TRY(parse_integer(p, value));
        TRY(parse_expect(p, ")"));
    } else {
        if (p->token.kind != PTX_INTEGER) return parse_fail(p, "expected an integer");
        *value = (int64_t)p->token.bits;
        TRY(parse_next(p));
    }
    p->depth--;
    return DW_OK;
}

/* Products and sums: what compilers write. */
static dw_status parse_product(parser *p, int64_t *value) {
    TRY(parse_unary(p, value));
    while (parse_is(p, "*") || parse_is(p, "/") || parse_is(p, "%")) {
        char operation = p->token.text[0];
        int64_t right;
        TRY(parse_next(p));
        TRY(parse_unary(p, &right));
        if (operation == '*') {
            *value = (int64_t)((uint64_t)*value * (uint64_t)right);
        } else {
            if (right == 0 || (right == -1 && *value == INT64_MIN)) return parse_fail(p, "a constant division that has no result");
            *value = operation == '/' ? *value / right : *value % right;
        }
    }
    return DW_OK;
}

dw_status parse_integer(parser *p, int64_t *value) {
    TRY(parse_product(p, value));
    while (parse_is(p, "+") || parse_is(p, "-")) {
        bool minus = parse_is(p, "-");
        int64_t right;
        TRY(parse_next(p));
        TRY(parse_product(p, &right));
        *value = (int64_t)((uint64_t)*value + (minus ? 0 - (uint64_t)right : (uint64_t)right));
    }
    return DW_OK;
}

bool parse_starts_integer(const parser *p) {
    return p->token.kind == PTX_INTEGER || parse_is(p, "-") || parse_is(p, "+") || parse_is(p, "(") || parse_is(p, "~") || parse_is(p, "!");
}

dw_status parse_constant_bits(parser *p, ptx_type type, uint64_t *bits) {
    bool minus = false;
    if (parse_is(p, "-")) {   /* of a real: the constant expressions know integers only */
        ptx_lexer ahead = p->lexer;
        ptx_token token;
        TRY(ptx_lex(&ahead, &token));
        minus = token.kind == PTX_REAL;
        if (minus) TRY(parse_next(p));
    }
    if (p->token.kind != PTX_REAL) {
        int64_t value;
        TRY(parse_integer(p, &value));
        *bits = (uint64_t)value;
        if (ptx_types[type].class == PTX_FLOAT) {
            double real = (double)value;
            float narrow = (float)real;
            uint32_t narrow_bits;
            memcpy(&narrow_bits, &narrow, sizeof narrow_bits);
            if (type == PTX_f32) *bits = narrow_bits;
            if (type == PTX_f64) memcpy(bits, &real, sizeof real);
        }
        return DW_OK;
    }
    double real;
    float narrow;
    uint32_t narrow_bits = (uint32_t)p->token.bits;
    if (p->token.real_bits == 32) {
        memcpy(&narrow, &narrow_bits, sizeof narrow);
        real = (double)narrow;
    } else {
        memcpy(&real, &p->token.bits, sizeof real);
        narrow = (float)real;
    }
    if (minus) {
        real = -real;
        narrow = -narrow;
    }
    memcpy(&narrow_bits, &narrow, sizeof narrow_bits);
    *bits = narrow_bits;
    if (ptx_types[type].bits == 64) memcpy(bits, &real, sizeof real);
    return parse_next(p);
}
