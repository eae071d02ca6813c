/* Reads the tokens of the project's text forms. Knows no grammar: the parsers of graphs, plans and dimensions do. */
#include "base/base.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Not <ctype.h>: that follows the locale. */
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_name_start(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_'; }
static bool is_name_part(char c) { return is_name_start(c) || is_digit(c) || c == '.' || c == '$'; }

static int hex_digit(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* The character ahead steps on, NUL at the end. */
static char peek(const scanner *scanner, size_t ahead) {
    return ahead < (size_t)(scanner->end - scanner->at) ? scanner->at[ahead] : '\0';
}

static void print_found(const scanner *scanner, char *at, size_t room) {
    switch (scanner->kind) {
    case SCAN_END: snprintf(at, room, "the end"); break;
    case SCAN_NEWLINE: snprintf(at, room, "the end of the line"); break;
    case SCAN_VALUE: snprintf(at, room, "'%%%lld'", (long long)scanner->integer); break;
    case SCAN_INTEGER: snprintf(at, room, "'%lld'", (long long)scanner->integer); break;
    case SCAN_REAL: snprintf(at, room, "'%g'", scanner->real); break;
    case SCAN_STRING: snprintf(at, room, "\"%.60s\"", scanner->token); break;
    case SCAN_NAME:
    case SCAN_PUNCTUATION: snprintf(at, room, "'%.60s'", scanner->token); break;
    }
}

/* A failure within a token: no token was found. */
static dw_status fail_in_token(scanner *scanner, const char *what) {
    return base_fail(scanner->context, DW_SYNTAX, "%s:%d: %s", scanner->source, scanner->line, what);
}

dw_status scan_fail(scanner *scanner, const char *format, ...) {
    char what[1024], found[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    print_found(scanner, found, sizeof found);
    return base_fail(scanner->context, DW_SYNTAX, "%s:%d: %s, found %s", scanner->source, scanner->line, what, found);
}

/* Digits in base 10 or 16 at scanner->at, with the sign given. */
static dw_status read_integer(scanner *scanner, int base, bool is_negative) {
    int64_t value = 0;
    bool fits = true;
    for (int digit; (digit = hex_digit(peek(scanner, 0))) >= 0 && digit < base; scanner->at++) {
        fits = fits && base_mul_i64(value, base, &value) && base_add_i64(value, is_negative ? -digit : digit, &value);
    }
    if (!fits) return fail_in_token(scanner, "an integer does not fit 64 bits");
    if (is_name_start(peek(scanner, 0))) return fail_in_token(scanner, "a number ends in a letter");
    scanner->integer = value;
    scanner->real = (double)value;
    return DW_OK;
}

/* length characters of the form 12.5e-3. */
static dw_status read_real(scanner *scanner, size_t length) {
    if (!text_read_real(scanner->at, length, &scanner->real)) return fail_in_token(scanner, "a real number is longer than 390 characters");
    scanner->at += length;
    if (is_name_start(peek(scanner, 0))) return fail_in_token(scanner, "a number ends in a letter");
    if (isinf(scanner->real)) return fail_in_token(scanner, "a real number does not fit 64 bits; write inf for infinity");
    scanner->kind = SCAN_REAL;
    return DW_OK;
}

/* At a digit, or at a minus before one. */
static dw_status read_number(scanner *scanner) {
    bool is_negative = peek(scanner, 0) == '-';
    size_t length = is_negative;
    scanner->kind = SCAN_INTEGER;
    if (peek(scanner, length) == '0' && peek(scanner, length + 1) == 'x' && hex_digit(peek(scanner, length + 2)) >= 0) {
        scanner->at += length + 2;
        return read_integer(scanner, 16, is_negative);
    }
    bool is_real = false;
    while (is_digit(peek(scanner, length))) length++;
    if (peek(scanner, length) == '.' && is_digit(peek(scanner, length + 1))) {
        is_real = true;
        length++;
        while (is_digit(peek(scanner, length))) length++;
    }
    char letter = peek(scanner, length);
    if (letter == 'e' || letter == 'E') {
        char sign = peek(scanner, length + 1);
        size_t digits = length + 1 + (sign == '+' || sign == '-');
        if (is_digit(peek(scanner, digits))) {
            is_real = true;
            length = digits;
            while (is_digit(peek(scanner, length))) length++;
        }
    }
    if (is_real) return read_real(scanner, length);
    scanner->at += is_negative;
    return read_integer(scanner, 10, is_negative);
}

/* Four hex digits at scanner->at. */
static dw_status read_code_unit(scanner *scanner, uint32_t *unit) {
    *unit = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(peek(scanner, 0));
        if (digit < 0) return fail_in_token(scanner, "\\u is not followed by four hex digits");
        *unit = *unit * 16 + (uint32_t)digit;
        scanner->at++;
    }
    return DW_OK;
}

/* The rest of \uXXXX, surrogate pairs joined, as UTF-8 at *to. */
static dw_status read_unicode(scanner *scanner, char **to) {
    uint32_t code, low;
    TRY(read_code_unit(scanner, &code));
    if (code >= 0xd800 && code < 0xdc00) {
        if (peek(scanner, 0) != '\\' || peek(scanner, 1) != 'u') return fail_in_token(scanner, "half of a surrogate pair");
        scanner->at += 2;
        TRY(read_code_unit(scanner, &low));
        if (low < 0xdc00 || low > 0xdfff) return fail_in_token(scanner, "half of a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code <= 0xdfff) {
        return fail_in_token(scanner, "half of a surrogate pair");
    }
    if (code == 0) return fail_in_token(scanner, "\\u0000 in a string");
    char *at = *to;
    if (code < 0x80) {
        *at++ = (char)code;
    } else {
        int follow = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
        static const uint32_t lead[] = {0, 0xc0, 0xe0, 0xf0};
        *at++ = (char)(lead[follow] | code >> (6 * follow));
        while (follow-- > 0) *at++ = (char)(0x80 | (code >> (6 * follow) & 0x3f));
    }
    *to = at;
    return DW_OK;
}

/* At the opening quote. A string never grows by unescaping. */
static dw_status read_string(scanner *scanner) {
    scanner->at++;
    size_t length = 0;
    while (peek(scanner, length) != '"') {
        if ((unsigned char)peek(scanner, length) < 0x20) return fail_in_token(scanner, "a string does not end on its line");
        length += peek(scanner, length) == '\\' && peek(scanner, length + 1) >= 0x20 ? 2 : 1;
    }
    char *made = arena_new(scanner->arena, length + 1, 1);
    if (made == NULL) return DW_NO_MEMORY;
    const char *end = scanner->at + length;
    char *to = made;
    while (scanner->at < end) {
        char c = *scanner->at++;
        if (c != '\\') {
            *to++ = c;
            continue;
        }
        static const char letters[] = "\"\\/bfnrt";
        static const char meant[] = "\"\\/\b\f\n\r\t";
        char letter = *scanner->at++;
        const char *known = letter == '\0' ? NULL : strchr(letters, letter);
        if (known != NULL) {
            *to++ = meant[known - letters];
        } else if (letter == 'u') {
            TRY(read_unicode(scanner, &to));
        } else {
            return fail_in_token(scanner, "an unknown escape in a string");
        }
    }
    scanner->at++;
    scanner->kind = SCAN_STRING;
    scanner->token = made;
    return DW_OK;
}

static dw_status read_name(scanner *scanner) {
    size_t length = 1;
    while (is_name_part(peek(scanner, length))) length++;
    const char *name = arena_text_n(scanner->arena, scanner->at, length);
    if (name == NULL) return DW_NO_MEMORY;
    scanner->at += length;
    scanner->token = name;
    scanner->kind = SCAN_NAME;
    if (strcmp(name, "inf") == 0 || strcmp(name, "nan") == 0) {
        scanner->real = name[0] == 'i' ? (double)INFINITY : (double)NAN;
        scanner->kind = SCAN_REAL;
    }
    return DW_OK;
}

/* Whether the current token can end an operand, so that a minus after it subtracts. */
static bool ends_operand(const scanner *scanner) {
    switch (scanner->kind) {
    case SCAN_NAME:
    case SCAN_VALUE:
    case SCAN_INTEGER:
    case SCAN_REAL:
    case SCAN_STRING: return true;
    case SCAN_PUNCTUATION: return scanner->token[0] == ')' || scanner->token[0] == ']';
    case SCAN_END:
    case SCAN_NEWLINE: return false;
    }
    return false;
}

dw_status scan_next(scanner *scanner) {
    if (scanner->kind == SCAN_NEWLINE) scanner->line++;
    while (peek(scanner, 0) == ' ' || peek(scanner, 0) == '\t' || peek(scanner, 0) == '\r') scanner->at++;
    if (peek(scanner, 0) == '#') {
        while (scanner->at < scanner->end && *scanner->at != '\n') scanner->at++;
    }
    if (scanner->at == scanner->end) {
        scanner->kind = SCAN_END;
        return DW_OK;
    }
    char c = peek(scanner, 0);
    char after = peek(scanner, 1);
    if (c == '\n') {
        scanner->at++;
        scanner->kind = SCAN_NEWLINE;
        return DW_OK;
    }
    if (is_name_start(c)) return read_name(scanner);
    if (is_digit(c)) return read_number(scanner);
    if (c == '"') return read_string(scanner);
    if (c == '-' && !ends_operand(scanner)) {
        if (is_digit(after)) return read_number(scanner);
        if (after == 'i' && peek(scanner, 2) == 'n' && peek(scanner, 3) == 'f' && !is_name_part(peek(scanner, 4))) {
            scanner->at += 4;
            scanner->real = -(double)INFINITY;
            scanner->kind = SCAN_REAL;
            return DW_OK;
        }
    }
    if (c == '%' && is_digit(after)) {
        scanner->at++;
        scanner->kind = SCAN_VALUE;
        return read_integer(scanner, 10, false);
    }
    if ((unsigned char)c < 0x20 || (unsigned char)c >= 0x7f) {
        return base_fail(scanner->context, DW_SYNTAX, "%s:%d: byte 0x%02x outside a string", scanner->source, scanner->line,
                         (unsigned)(unsigned char)c);
    }
    scanner->at++;
    scanner->kind = SCAN_PUNCTUATION;
    scanner->punctuation[0] = c;
    scanner->token = scanner->punctuation;
    return DW_OK;
}

dw_status scan_open(scanner *scanner, arena *arena, const char *source, const char *bytes, size_t length) {
    *scanner = (struct scanner){
        .context = arena->context,
        .arena = arena,
        .source = source,
        .at = bytes,
        .end = bytes + length,
        .line = 1,
    };
    return scan_next(scanner);
}

bool scan_is(const scanner *scanner, const char *name_or_punctuation) {
    if (scanner->kind != SCAN_NAME && scanner->kind != SCAN_PUNCTUATION) return false;
    return strcmp(scanner->token, name_or_punctuation) == 0;
}

dw_status scan_accept(scanner *scanner, const char *name_or_punctuation, bool *accepted) {
    *accepted = scan_is(scanner, name_or_punctuation);
    return *accepted ? scan_next(scanner) : DW_OK;
}

dw_status scan_expect(scanner *scanner, const char *name_or_punctuation) {
    if (!scan_is(scanner, name_or_punctuation)) return scan_fail(scanner, "expected '%s'", name_or_punctuation);
    return scan_next(scanner);
}

dw_status scan_name(scanner *scanner, const char **name) {
    *name = NULL;
    if (scanner->kind != SCAN_NAME) return scan_fail(scanner, "expected a name");
    *name = scanner->token;
    return scan_next(scanner);
}

dw_status scan_string(scanner *scanner, const char **string) {
    *string = NULL;
    if (scanner->kind != SCAN_STRING) return scan_fail(scanner, "expected a string in quotes");
    *string = scanner->token;
    return scan_next(scanner);
}

dw_status scan_integer(scanner *scanner, int64_t *integer) {
    *integer = 0;
    if (scanner->kind != SCAN_INTEGER) return scan_fail(scanner, "expected an integer");
    *integer = scanner->integer;
    return scan_next(scanner);
}

dw_status scan_real(scanner *scanner, double *real) {
    *real = 0;
    if (scanner->kind != SCAN_REAL && scanner->kind != SCAN_INTEGER) return scan_fail(scanner, "expected a number");
    *real = scanner->real;
    return scan_next(scanner);
}

dw_status scan_end_of_line(scanner *scanner) {
    if (scanner->kind != SCAN_NEWLINE && scanner->kind != SCAN_END) return scan_fail(scanner, "expected the end of the line");
    while (scanner->kind == SCAN_NEWLINE) TRY(scan_next(scanner));
    return DW_OK;
}
