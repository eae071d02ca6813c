/* Text that the library prints piece by piece becomes a str. */
#include "core.h"

#include <stdlib.h>
#include <string.h>

void core_gather(void *user, const char *piece, size_t length) {
    core_text *text = user;
    if (text->failed) return;
    if (text->room - text->length < length) {
        size_t room = text->room * 2 > text->length + length ? text->room * 2 : text->length + length;
        char *bytes = realloc(text->bytes, room);
        if (bytes == NULL) {
            text->failed = 1;
            return;
        }
        text->bytes = bytes;
        text->room = room;
    }
    memcpy(text->bytes + text->length, piece, length);
    text->length += length;
}

PyObject *core_text_take(core_text *text) {
    PyObject *taken = text->failed ? PyErr_NoMemory() : PyUnicode_DecodeUTF8(text->bytes ? text->bytes : "", (Py_ssize_t)text->length, "replace");
    core_text_free(text);
    return taken;
}

void core_text_free(core_text *text) {
    free(text->bytes);
    *text = (core_text){0};
}
