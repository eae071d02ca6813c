#include "support/lines.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 1024 };

static const struct { const char *class, *op; } classes[] = {
#define OP_REAL1(name, formula) {"real1", #name},
#define OP_REAL2(name, formula) {"real2", #name},
#define OP_INTEGER1(name, formula) {"integer1", #name},
#define OP_INTEGER2(name, formula) {"integer2", #name},
#define OP_TRUTH1(name, formula) {"truth1", #name},
#define OP_TRUTH2(name, formula) {"truth2", #name},
#include "op/pointwise.def"
};

/* Is the op one of "-log-sqrt f32[..]"? */
static bool is_excluded(const char *list, const char *op) {
    while (*list == '-') {
        const size_t length = strcspn(++list, "- ");
        if (strlen(op) == length && memcmp(list, op, length) == 0) return true;
        list += length;
    }
    return false;
}

static dw_status read_each(const char *line, int number, line_reader read, void *argument) {
    const size_t length = strcspn(line, "- ");
    char one[LINE_BYTES];
    bool is_class = false;
    for (size_t i = 0; i < COUNT_OF(classes); i++) {
        if (strlen(classes[i].class) != length || memcmp(classes[i].class, line, length) != 0) continue;
        is_class = true;
        if (is_excluded(line + length, classes[i].op)) continue;
        snprintf(one, sizeof one, "%s%s", classes[i].op, line + strcspn(line, " "));
        const dw_status status = read(argument, number, one);
        if (status != DW_OK) return status;
    }
    return is_class ? DW_OK : read(argument, number, line);   /* which says that there is no such op */
}

dw_status lines_read(const char *bytes, size_t length, line_reader read, void *argument) {
    const char *at = bytes, *end = bytes + length;
    for (int number = 1; at < end; number++) {
        const char *next = memchr(at, '\n', (size_t)(end - at)), *stop = next != NULL ? next : end;
        char line[LINE_BYTES];
        size_t used = 0;
        while (at + used < stop && at[used] != '#') used++;
        while (used > 0 && isspace((unsigned char)at[used - 1])) used--;
        if (used >= sizeof line) return DW_LIMIT;
        memcpy(line, at, used);
        line[used] = '\0';
        dw_status status = DW_OK;
        if (line[0] == '@') status = read_each(line + 1, number, read, argument);
        else if (used > 0) status = read(argument, number, line);
        if (status != DW_OK) return status;
        at = stop + 1;
    }
    return DW_OK;
}

dw_status lines_read_file(const char *path, line_reader read, void *argument) {
    FILE *file = fopen(path, "r");
    if (file == NULL) return DW_NOT_FOUND;
    static char bytes[1 << 20];
    const size_t length = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    return length < sizeof bytes ? lines_read(bytes, length, read, argument) : DW_LIMIT;
}
