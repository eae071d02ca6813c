/* Types as text: "bf16[s0,4096]", "mxfp8@tile128x4[128,64]", and numbers of a format. Infers nothing. */
#include "op/op.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const layouts[DW_SCALE_LAYOUT_COUNT] = {[DW_SCALE_plain] = "plain", [DW_SCALE_tile128x4] = "tile128x4"};

static dw_status parse_layout(scanner *scanner, op_type *type) {
    bool given;
    TRY(scan_accept(scanner, "@", &given));
    if (!given) return DW_OK;
    for (int i = 0; i < DW_SCALE_LAYOUT_COUNT; i++) {
        if (scanner->kind != SCAN_NAME || !scan_is(scanner, layouts[i])) continue;
        type->scale_layout = (dw_scale_layout)i;
        if (!num_has_layout(type->format, type->scale_layout))
            return scan_fail(scanner, "%s has no scales in layout %s", dw_format_name(type->format), layouts[i]);
        return scan_next(scanner);
    }
    return scan_fail(scanner, "a scale layout is expected behind '@': plain or tile128x4");
}

bool op_type_equal(const op_type *a, const op_type *b) {
    if (a->format != b->format || a->scale_layout != b->scale_layout || a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dims[i] != b->dims[i]) return false;
    return true;
}

void op_type_print(text *text, const dim_table *dims, const op_type *type) {
    text_add(text, dw_format_name(type->format));
    if (type->scale_layout != DW_SCALE_plain) text_printf(text, "@%s", layouts[type->scale_layout]);
    text_add(text, "[");
    for (int i = 0; i < type->rank; i++) {
        if (i > 0) text_add(text, ",");
        dim_print(text, dims, type->dims[i]);
    }
    text_add(text, "]");
}

dw_status op_type_parse(scanner *scanner, dim_table *dims, op_type *type) {
    *type = (op_type){0};
    if (scanner->kind != SCAN_NAME) return scan_fail(scanner, "a type such as f32[2,3] is expected");
    type->format = dw_format_find(scanner->token);
    if (type->format == DW_FORMAT_COUNT) return scan_fail(scanner, "a number format is expected (f32, bf16, mxfp8, ..)");
    TRY(scan_next(scanner));
    TRY(parse_layout(scanner, type));
    TRY(scan_expect(scanner, "["));
    bool closed;
    TRY(scan_accept(scanner, "]", &closed));
    while (!closed) {
        if (type->rank == DW_MAX_RANK) return scan_fail(scanner, "a type has at most %d dimensions", DW_MAX_RANK);
        TRY(dim_parse(scanner, dims, &type->dims[type->rank]));
        type->rank++;
        TRY(scan_accept(scanner, "]", &closed));
        if (!closed) TRY(scan_expect(scanner, ","));
    }
    return DW_OK;
}

static bool reads_back(dw_format format, int precision, double number) {
    char digits[40];
    snprintf(digits, sizeof digits, "%.*g", precision, number);
    return num_decode(format, num_encode(format, strtod(digits, NULL), false)) == number;
}

void op_number_print(text *text, dw_format format, double number) {
    if (isnan(number) || isinf(number)) {
        text_add(text, isnan(number) ? "nan" : number > 0 ? "inf" : "-inf");
    } else if (number == 0.0) {
        text_add(text, signbit(number) ? "-0.0" : "0");
    } else {
        int precision = 1, whole = fabs(number) < 1e9 ? (int)log10(fabs(number)) + 1 : 0;
        while (precision < 17 && !reads_back(format, precision, number)) precision++;
        text_digits(text, precision > whole ? precision : whole, number);
    }
}
