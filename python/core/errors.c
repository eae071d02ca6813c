/* Exceptions: Error, and one subclass per row of status.def. */
#include "core.h"

#include <stdarg.h>
#include <string.h>

static PyObject *error, *errors[DW_STATUS_COUNT], *warning;

/* NO_MEMORY -> NoMemory */
static void class_name(const char *status, char *name) {
    int up = 1;
    for (; *status; status++) {
        if (*status == '_') {
            up = 1;
            continue;
        }
        *name++ = (char)(up ? *status : *status | 0x20);
        up = 0;
    }
    *name = '\0';
}

static int set_text(PyObject *object, const char *name, const char *text) {
    PyObject *value = PyUnicode_FromString(text);
    int done = value != NULL && PyObject_SetAttrString(object, name, value) == 0;
    Py_XDECREF(value);
    return done;
}

static PyObject *add(PyObject *module, const char *name, const char *doc, PyObject *base, const char *status) {
    char full[64];
    PyOS_snprintf(full, sizeof full, "deepwell._core.%s", name);
    PyObject *made = PyErr_NewExceptionWithDoc(full, doc, base, NULL);
    if (made == NULL || !set_text(made, "status", status)) return NULL;
    Py_INCREF(made);
    if (PyModule_AddObject(module, name, made) < 0) return NULL;
    return made;
}

int core_add_errors(PyObject *module) {
    error = add(module, "Error", "What Deepwell refused or could not do: what, where, the values, and what to do.", NULL, "");
    if (error == NULL) return 0;
    for (int i = 0; i < DW_STATUS_COUNT; i++) {
        char name[64];
        if (i == DW_OK) continue;
        class_name(dw_status_name((dw_status)i), name);
        errors[i] = add(module, name, dw_status_meaning((dw_status)i), error, dw_status_name((dw_status)i));
        if (errors[i] == NULL) return 0;
    }
    warning = PyErr_NewExceptionWithDoc("deepwell._core.DeepwellWarning", "What a user should know and may well accept; never an error in disguise.", PyExc_UserWarning, NULL);
    Py_XINCREF(warning);
    return warning != NULL && PyModule_AddObject(module, "DeepwellWarning", warning) == 0;
}

int core_warn(const char *text) { return PyErr_WarnEx(warning, text, 1) == 0; }

/* Without the status in front, which the class says. */
static const char *without_status(dw_status status, const char *message) {
    size_t length = strlen(dw_status_name(status));
    return strncmp(message, dw_status_name(status), length) == 0 && message[length] == ':' && message[length + 1] == ' ' ? message + length + 2 : message;
}

PyObject *core_raise(dw_status status, const char *message) {
    if (message == NULL || message[0] == '\0') message = dw_status_meaning(status);
    PyObject *text = PyUnicode_DecodeUTF8(without_status(status, message), (Py_ssize_t)strlen(without_status(status, message)), "replace");
    if (text != NULL) PyErr_SetObject(status > DW_OK && status < DW_STATUS_COUNT ? errors[status] : error, text);
    Py_XDECREF(text);
    return NULL;
}

PyObject *core_fail(dw_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    PyObject *text = PyUnicode_FromFormatV(format, arguments);
    va_end(arguments);
    if (text != NULL) PyErr_SetObject(errors[status], text);
    Py_XDECREF(text);
    return NULL;
}
