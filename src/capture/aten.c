/* The table of aten operators: which rule reads a call of which target. */
#include "capture/program.h"

#include <string.h>

#define ATEN(target, arguments, in_place, rule, op, becomes) dw_status capture_rule_##rule(capture_call *call);
#include "capture/aten.def"
#undef ATEN

enum { OP_none = OP_COUNT };   /* for rows whose rule needs no op */

static const capture_row rows[] = {
#define ATEN(target, arguments, in_place, rule, op, becomes) {target, arguments, becomes, capture_rule_##rule, (op_id)OP_##op, in_place},
#include "capture/aten.def"
#undef ATEN
};

int capture_operator_count(void) { return (int)COUNT_OF(rows); }

capture_operator capture_operator_at(int index) {
    return (capture_operator){.target = rows[index].target, .arguments = rows[index].arguments, .becomes = rows[index].becomes,
                              .in_place = rows[index].in_place};
}

/* "aten.add_.Tensor" -> "aten.add.Tensor"; false when the operator has no trailing underscore. */
static bool strip_underscore(const char *target, char *stripped, size_t room) {
    const char *overload = strrchr(target, '.');
    size_t length = strlen(target);
    if (overload == NULL || overload - target < 2 || overload[-1] != '_' || overload[-2] == '_' || length >= room) return false;
    size_t before = (size_t)(overload - target) - 1;
    memcpy(stripped, target, before);
    memcpy(stripped + before, overload, length - before);   /* with its NUL */
    return true;
}

const capture_row *capture_find_row(const char *target, bool *in_place) {
    char stripped[128];
    *in_place = false;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (strcmp(rows[i].target, target) == 0) return &rows[i];
    }
    if (!strip_underscore(target, stripped, sizeof stripped)) return NULL;
    *in_place = true;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (rows[i].in_place && strcmp(rows[i].target, stripped) == 0) return &rows[i];
    }
    return NULL;
}
