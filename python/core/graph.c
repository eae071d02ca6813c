/* Graph: a program or a text with its tensors, or a file. It is read once when it is made, for what is wrong with it and what goes in and out,
 * and again by each Model, whose context differs. */
#include "core.h"

#include <string.h>

typedef enum graph_kind { GRAPH_FILE, GRAPH_PROGRAM, GRAPH_TEXT } graph_kind;

typedef struct core_graph {
    PyObject_HEAD
    core_context own;
    graph_kind kind;
    PyObject *source, *text;   /* bytes: the name used in messages (of a file: its path), and JSON or text */
    core_tensors tensors;
    dw_graph *graph;
} core_graph;

PyTypeObject *core_graph_type;

dw_status core_graph_make(PyObject *object, dw_context *context, dw_graph **made) {
    const core_graph *self = (core_graph *)object;
    const char *source = PyBytes_AsString(self->source), *text = self->text ? PyBytes_AsString(self->text) : "";
    size_t length = self->text ? (size_t)PyBytes_Size(self->text) : 0;
    *made = NULL;
    if (self->kind == GRAPH_FILE) return dw_graph_open(context, source, made);
    if (self->kind == GRAPH_PROGRAM) return dw_graph_program(context, source, text, length, self->tensors.count, self->tensors.rows, self->tensors.places, made);
    dw_status status = dw_graph_parse(context, source, text, length, made);
    if (status == DW_OK) status = dw_graph_bind(*made, self->tensors.count, self->tensors.rows);
    if (status == DW_OK) return DW_OK;
    dw_graph_destroy(*made);
    *made = NULL;
    return status;
}

const char *core_graph_place(PyObject *graph, const char *name) {
    const core_graph *self = (core_graph *)graph;
    for (int i = 0; i < self->tensors.count; i++)
        if (strcmp(self->tensors.rows[i].name, name) == 0) return self->tensors.places[i];
    return NULL;
}

PyObject *core_graph_tensor(PyObject *graph, PyObject *name) {
    const core_graph *self = (core_graph *)graph;
    PyObject *bytes = PyUnicode_AsUTF8String(name);
    if (bytes == NULL) return NULL;
    for (int i = 0; i < self->tensors.count; i++) {
        if (strcmp(self->tensors.rows[i].name, PyBytes_AsString(bytes)) != 0) continue;
        Py_DECREF(bytes);
        return self->tensors.owners[i];
    }
    core_fail(DW_NOT_FOUND, "the graph was given no tensor named '%s'", PyBytes_AsString(bytes));
    Py_DECREF(bytes);
    return NULL;
}

const char *core_graph_path(PyObject *graph) {
    const core_graph *self = (core_graph *)graph;
    return self->kind == GRAPH_FILE ? PyBytes_AsString(self->source) : NULL;
}

static int graph_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    return core_tensors_visit(&((core_graph *)object)->tensors, visit, arg);
}

static void graph_dealloc(PyObject *object) {
    core_graph *self = (core_graph *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    dw_graph_destroy(self->graph);
    core_tensors_free(&self->tensors);
    Py_XDECREF(self->source);
    Py_XDECREF(self->text);
    core_context_close(&self->own);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* Takes the references source and text over (NULL: raised already). */
static core_graph *new_graph(graph_kind kind, PyObject *source, PyObject *text, PyObject *tensors) {
    core_graph *self = source != NULL && (text != NULL || kind == GRAPH_FILE) ? PyObject_GC_New(core_graph, core_graph_type) : NULL;
    if (self == NULL) {
        Py_XDECREF(source);
        Py_XDECREF(text);
        return NULL;
    }
    memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
    self->kind = kind;
    self->source = source;
    self->text = text;
    PyObject_GC_Track((PyObject *)self);
    if ((kind == GRAPH_PROGRAM ? core_tensors_read_anywhere : core_tensors_read)(tensors, &self->tensors) && core_context_open(&self->own, 1)) return self;
    Py_DECREF(self);
    return NULL;
}

/* Reads it, if that has not been done; NULL: raised, and the reference is gone. */
static PyObject *read_graph(core_graph *self) {
    if (self == NULL || self->graph != NULL) return (PyObject *)self;
    if (core_begin(&self->own) && core_end(&self->own, core_graph_make((PyObject *)self, self->own.context, &self->graph))) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

PyObject *core_graph_of_file(PyObject *path) {
    PyObject *bytes;
    if (!PyUnicode_FSConverter(path, &bytes)) return NULL;
    return (PyObject *)new_graph(GRAPH_FILE, bytes, NULL, Py_None);
}

static PyObject *as_bytes(PyObject *text) {
    if (PyBytes_Check(text)) {
        Py_INCREF(text);
        return text;
    }
    return PyUnicode_AsUTF8String(text);   /* raises TypeError for what is no str */
}

static PyObject *from_words(graph_kind kind, PyObject *arguments, PyObject *keywords, char **names) {
    PyObject *source, *text, *tensors = Py_None;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "UO|O", names, &source, &text, &tensors)) return NULL;
    return read_graph(new_graph(kind, PyUnicode_AsUTF8String(source), as_bytes(text), tensors));
}

static PyObject *graph_program(PyObject *class, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"source", "json", "tensors", NULL};
    (void)class;
    return from_words(GRAPH_PROGRAM, arguments, keywords, names);
}

static PyObject *graph_text(PyObject *class, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"source", "text", "tensors", NULL};
    (void)class;
    return from_words(GRAPH_TEXT, arguments, keywords, names);
}

static PyObject *graph_open(PyObject *class, PyObject *path) {
    (void)class;
    return read_graph((core_graph *)core_graph_of_file(path));
}

/* For what needs it read; false: raised. */
static int is_read(core_graph *self) {
    if (self->graph != NULL) return 1;
    Py_INCREF(self);
    if (read_graph(self) == NULL) return 0;
    Py_DECREF(self);
    return 1;
}

static PyObject *graph_print(PyObject *object, PyObject *none) {
    core_graph *self = (core_graph *)object;
    core_text text = {0};
    (void)none;
    if (!is_read(self) || !core_begin(&self->own)) return NULL;
    if (core_end(&self->own, dw_graph_print(self->graph, core_gather, &text))) return core_text_take(&text);
    core_text_free(&text);
    return NULL;
}

typedef dw_status (*row_at)(const dw_graph *graph, int index, const char **name, char *type, size_t size);

static PyObject *list_of(core_graph *self, int count, row_at at) {
    enum { TYPE_BYTES = 4096 };
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < count; i++) {
        const char *name;
        char type[TYPE_BYTES];
        PyObject *row = NULL;
        if (core_begin(&self->own) && core_end(&self->own, at(self->graph, i, &name, type, sizeof type))) row = Py_BuildValue("(ss)", name, type);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

static PyObject *graph_inputs(PyObject *object, void *none) {
    core_graph *self = (core_graph *)object;
    (void)none;
    return is_read(self) ? list_of(self, dw_graph_input_count(self->graph), dw_graph_input_at) : NULL;
}

static PyObject *graph_outputs(PyObject *object, void *none) {
    core_graph *self = (core_graph *)object;
    (void)none;
    return is_read(self) ? list_of(self, dw_graph_output_count(self->graph), dw_graph_output_at) : NULL;
}

static PyMethodDef methods[] = {
    {"program", (PyCFunction)(void (*)(void))graph_program, METH_VARARGS | METH_KEYWORDS | METH_CLASS,
     "program(source, json, tensors=[]): the exported program's JSON, as a .pt2 holds it, over tensors in memory: a list of (name, tensor). They are borrowed, not copied."},
    {"text", (PyCFunction)(void (*)(void))graph_text, METH_VARARGS | METH_KEYWORDS | METH_CLASS,
     "text(source, text, tensors=[]): a graph in its text form; tensors give params and states their data."},
    {"open", graph_open, METH_O | METH_CLASS, "open(path): a .pt2 archive, or a graph in its text form."},
    {"print", graph_print, METH_NOARGS, "print(): the text form."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"inputs", graph_inputs, NULL, "[(name, \"f32[b,s,64]\"), ..]", NULL},
    {"outputs", graph_outputs, NULL, "[(name, \"f32[b,s,64]\"), ..]", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "What a model is made of: an exported program, a text, or a file."},
    {Py_tp_new, core_no_new},
    {Py_tp_dealloc, graph_dealloc},
    {Py_tp_traverse, graph_traverse},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

static PyType_Spec spec = {"deepwell._core.Graph", sizeof(core_graph), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int core_add_graph(PyObject *module) { return core_add_type(module, &spec, &core_graph_type); }
