/* Tokens of PTX text (PTX ISA 4.1 to 4.5): names, dotted words, numbers in every radix, exact floats, strings, punctuation. */
#include "ptx.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const ptx_type_info ptx_types[PTX_TYPE_COUNT] = {
    {"none", 0, PTX_BITS},
#define PTX_TYPE(name, bits, class) {#name, bits, PTX_##class},
#include "type.def"
#undef PTX_TYPE
};

const char *const ptx_space_names[PTX_SPACE_COUNT] = {"generic", "register", "parameter", "local", "shared", "global", "constant"};

ptx_type ptx_type_find(const char *name, size_t length) {
    for (int i = 1; i < PTX_TYPE_COUNT; i++) {
        if (strlen(ptx_types[i].name) == length && memcmp(ptx_types[i].name, name, length) == 0) return (ptx_type)i;
    }
    return PTX_NO_TYPE;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%'; }

static int hex_digit(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* White space and comments; true if there was any. */
static bool skip_space(ptx_lexer *lexer) {
    const char *begin = lexer->at;
    while (lexer->at < lexer->end) {
        char c = *lexer->at;
        if (c == '\n') {
            lexer->line++;
        } else if (c == '/' && lexer->end - lexer->at > 1 && lexer->at[1] == '/') {
            while (lexer->at < lexer->end && *lexer->at != '\n') lexer->at++;
            continue;
        } else if (c == '/' && lexer->end - lexer->at > 1 && lexer->at[1] == '*') {
            lexer->at += 2;
            while (lexer->end - lexer->at > 1 && !(lexer->at[0] == '*' && lexer->at[1] == '/')) lexer->line += *lexer->at++ == '\n';
            lexer->at = lexer->end - lexer->at > 1 ? lexer->at + 2 : lexer->end;
            continue;
        } else if (c != ' ' && c != '\t' && c != '\r') {
            break;
        }
        lexer->at++;
    }
    return lexer->at != begin;
}

static dw_status fail(ptx_lexer *lexer, const char *what) {
    return base_fail(lexer->context, DW_SYNTAX, "%s:%d: %s", lexer->source, lexer->line, what);
}

/* 0f and 0d with exactly so many hexadecimal digits. */
static dw_status lex_exact(ptx_lexer *lexer, ptx_token *token, int digits) {
    lexer->at += 2;
    for (int i = 0; i < digits; i++, lexer->at++) {
        int digit = lexer->at < lexer->end ? hex_digit(*lexer->at) : -1;
        if (digit < 0) return fail(lexer, "a float in hexadecimal has 8 digits after 0f, 16 after 0d");
        token->bits = token->bits << 4 | (uint64_t)digit;
    }
    token->kind = PTX_REAL;
    token->real_bits = digits * 4;
    return DW_OK;
}

static dw_status lex_decimal(ptx_lexer *lexer, ptx_token *token) {
    char digits[64];
    const char *at = lexer->at;
    bool real = false;
    while (at < lexer->end && (is_digit(*at) || *at == '.' || ((*at == 'e' || *at == 'E') && real) || ((*at == '+' || *at == '-') && (at[-1] == 'e' || at[-1] == 'E')))) {
        real |= *at == '.';
        at++;
    }
    size_t length = (size_t)(at - lexer->at);
    if (length >= sizeof digits) return fail(lexer, "a number of more than 63 characters");
    memcpy(digits, lexer->at, length);
    digits[length] = '\0';
    lexer->at = at;
    if (real) {
        char *end;
        double value = strtod(digits, &end);
        if (*end != '\0') return fail(lexer, "a number that cannot be read");
        memcpy(&token->bits, &value, sizeof value);
        token->kind = PTX_REAL;
        token->real_bits = 64;
        return DW_OK;
    }
    errno = 0;
    token->bits = strtoull(digits, NULL, digits[0] == '0' ? 8 : 10);
    if (errno != 0) return fail(lexer, "an integer beyond 64 bits");
    return DW_OK;
}

static dw_status lex_radix(ptx_lexer *lexer, ptx_token *token, int shift) {
    const char *begin = lexer->at += 2;
    for (; lexer->at < lexer->end; lexer->at++) {
        int digit = hex_digit(*lexer->at);
        if (digit < 0 || digit >= 1 << shift) break;
        if (token->bits >> (64 - shift) != 0) return fail(lexer, "an integer beyond 64 bits");
        token->bits = token->bits << shift | (uint64_t)digit;
    }
    return lexer->at == begin ? fail(lexer, "0x or 0b without digits") : DW_OK;
}

static dw_status lex_number(ptx_lexer *lexer, ptx_token *token) {
    char second = lexer->end - lexer->at > 1 ? lexer->at[1] : '\0';
    bool zero = *lexer->at == '0';
    token->kind = PTX_INTEGER;
    if (zero && (second == 'f' || second == 'F')) return lex_exact(lexer, token, 8);
    if (zero && (second == 'd' || second == 'D')) return lex_exact(lexer, token, 16);
    if (zero && (second == 'x' || second == 'X')) TRY(lex_radix(lexer, token, 4));
    else if (zero && (second == 'b' || second == 'B')) TRY(lex_radix(lexer, token, 1));
    else TRY(lex_decimal(lexer, token));
    if (token->kind == PTX_INTEGER && lexer->at < lexer->end && *lexer->at == 'U') lexer->at++;
    return DW_OK;
}

dw_status ptx_lex(ptx_lexer *lexer, ptx_token *token) {
    *token = (ptx_token){.kind = PTX_END, .spaced = skip_space(lexer)};
    token->line = lexer->line;
    token->text = lexer->at;
    if (lexer->at >= lexer->end || *lexer->at == '\0') return DW_OK;
    char c = *lexer->at;
    if (is_digit(c)) {
        TRY(lex_number(lexer, token));
    } else if (is_letter(c)) {
        token->kind = PTX_NAME;
        lexer->at++;
        while (lexer->at < lexer->end && ((is_letter(*lexer->at) && *lexer->at != '%') || is_digit(*lexer->at))) lexer->at++;
    } else if (c == '.') {
        token->kind = PTX_WORD;
        lexer->at++;
        while (lexer->at < lexer->end && ((is_letter(*lexer->at) && *lexer->at != '%') || is_digit(*lexer->at) ||
                                          (lexer->end - lexer->at > 2 && lexer->at[0] == ':' && lexer->at[1] == ':') || (*lexer->at == ':' && lexer->at[-1] == ':'))) {
            lexer->at++;
        }
        if (lexer->at - token->text == 1) return fail(lexer, "a dot with nothing behind it");
    } else if (c == '"') {
        token->kind = PTX_STRING;
        lexer->at++;
        while (lexer->at < lexer->end && *lexer->at != '"' && *lexer->at != '\n') lexer->at += *lexer->at == '\\' && lexer->end - lexer->at > 1 ? 2 : 1;
        if (lexer->at >= lexer->end || *lexer->at != '"') return fail(lexer, "a string that does not end on its line");
        lexer->at++;
        token->text++;
        token->length = (size_t)(lexer->at - token->text) - 1;
        return DW_OK;
    } else if (c < ' ' || c > '~') {
        return fail(lexer, "a byte that has no place in PTX");
    } else {
        token->kind = PTX_PUNCTUATION;
        lexer->at++;
    }
    token->length = (size_t)(lexer->at - token->text);
    return DW_OK;
}
