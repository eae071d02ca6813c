/* The growing string. A failed append is remembered and reported once, at the end. */
#include "base/base.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void text_init(text *text, dw_context *context) {
    *text = (struct text){.context = context, .status = DW_OK};
}

void text_free(text *text) {
    base_release(text->context, text->bytes, text->capacity, 1);
    text_init(text, text->context);
}

/* Room for length more bytes and the NUL. */
static bool text_reserve(text *text, size_t length) {
    if (text->status != DW_OK) return false;
    size_t needed;
    if (!base_add_size(text->length, length, &needed) || !base_add_size(needed, 1, &needed)) {
        text->status = base_fail(text->context, DW_NO_MEMORY, "a text of %zu + %zu bytes does not fit the address space",
                                 text->length, length);
        return false;
    }
    if (needed <= text->capacity) return true;
    size_t capacity = text->capacity < 64 ? 128 : text->capacity;
    while (capacity < needed) capacity = capacity > SIZE_MAX / 2 ? needed : 2 * capacity;
    void *moved;
    text->status = base_alloc(text->context, capacity, 1, &moved);
    if (text->status != DW_OK) return false;
    if (text->length > 0) memcpy(moved, text->bytes, text->length);
    base_release(text->context, text->bytes, text->capacity, 1);
    text->bytes = moved;
    text->capacity = capacity;
    return true;
}

void text_add(text *text, const char *string) { text_add_n(text, string, strlen(string)); }

void text_add_n(text *text, const char *string, size_t length) {
    if (!text_reserve(text, length)) return;
    if (length > 0) memcpy(text->bytes + text->length, string, length);
    text->length += length;
    text->bytes[text->length] = '\0';
}

void text_vprintf(text *text, const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    if (length < 0) {
        if (text->status == DW_OK) {
            text->status = base_fail(text->context, DW_INTERNAL, "text could not be formatted by \"%s\"", format);
        }
    } else if (text_reserve(text, (size_t)length)) {
        vsnprintf(text->bytes + text->length, (size_t)length + 1, format, again);
        text->length += (size_t)length;
    }
    va_end(again);
}

void text_printf(text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    text_vprintf(text, format, arguments);
    va_end(arguments);
}

/* number with digits significant digits, a point and never a comma, whatever the locale. */
static void print_digits(char *at, size_t room, int digits, double number) {
    snprintf(at, room, "%.*g", digits, number);
    const char *point = localeconv()->decimal_point;
    char *found = strcmp(point, ".") == 0 ? NULL : strstr(at, point);
    if (found == NULL) return;
    *found = '.';
    memmove(found + 1, found + strlen(point), strlen(found + strlen(point)) + 1);
}

void text_real(text *text, double number) {
    char digits[64];
    if (isnan(number)) {
        text_add(text, "nan");
        return;
    }
    if (isinf(number)) {
        text_add(text, number > 0 ? "inf" : "-inf");
        return;
    }
    for (int count = 15; count <= 17; count++) {
        char in_locale[64];
        snprintf(in_locale, sizeof in_locale, "%.*g", count, number);
        print_digits(digits, sizeof digits, count, number);
        if (strtod(in_locale, NULL) == number) break;
    }
    text_add(text, digits);
    if (strpbrk(digits, ".e") == NULL) text_add(text, ".0");
}

void text_digits(text *text, int digits, double number) {
    char printed[64];
    print_digits(printed, sizeof printed, digits, number);
    text_add(text, printed);
}

bool text_read_real(const char *at, size_t length, double *number) {
    char digits[400], *end;
    const char *point = localeconv()->decimal_point;
    size_t used = 0;
    for (size_t i = 0; i < length; i++) {
        char one[2] = {at[i], '\0'};
        const char *part = one[0] == '.' ? point : one;
        if (used + strlen(part) >= sizeof digits) return false;
        memcpy(digits + used, part, strlen(part));
        used += strlen(part);
    }
    digits[used] = '\0';
    *number = strtod(digits, &end);
    return used > 0 && *end == '\0';
}

void text_json_string(text *text, const char *string) {
    static const char escaped[] = "\"\\\b\f\n\r\t";
    static const char letters[] = "\"\\bfnrt";
    text_add_n(text, "\"", 1);
    for (const char *run = string; *run != '\0';) {
        size_t plain = 0;
        while ((unsigned char)run[plain] >= 0x20 && run[plain] != '"' && run[plain] != '\\') plain++;
        text_add_n(text, run, plain);
        run += plain;
        if (*run == '\0') break;
        const char *known = strchr(escaped, *run);
        if (known != NULL) {
            text_printf(text, "\\%c", letters[known - escaped]);
        } else {
            text_printf(text, "\\u%04x", (unsigned)(unsigned char)*run);
        }
        run++;
    }
    text_add_n(text, "\"", 1);
}

dw_status text_status(const text *text) { return text->status; }

const char *text_string(const text *text) { return text->bytes == NULL ? "" : text->bytes; }
