/* The module deepwell._core: what it holds, and calls that need no model. */
#include "core.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

int core_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type) {
    PyObject *made = PyType_FromSpec(spec);
    if (made == NULL) return 0;
    *type = (PyTypeObject *)made;
    Py_INCREF(made);
    return PyModule_AddObject(module, strrchr(spec->name, '.') + 1, made) == 0;
}

PyObject *core_no_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    (void)type, (void)arguments, (void)keywords;
    PyErr_SetString(PyExc_TypeError, "it is made by its class methods");
    return NULL;
}

static PyObject *version(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    return PyUnicode_FromString(dw_version());
}

typedef dw_status (*tell)(dw_context *context, int json, dw_sink sink, void *user);

static PyObject *facts(tell tell) {
    core_context own = {0};
    core_text text = {0};
    PyObject *told = NULL;
    if (core_context_open(&own, 0) && core_begin(&own) && core_end(&own, tell(own.context, 1, core_gather, &text))) told = core_text_take(&text);
    core_text_free(&text);
    core_context_close(&own);
    return told;
}

static PyObject *probe(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    return facts(dw_probe);
}

static PyObject *operators(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    return facts(dw_operators);
}

static PyObject *precisions(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    return facts(dw_precisions);
}

/* {name: (bits, element, scale, rows, cols, second)}; of an element format the rest is "", "", 0, 0, 0. */
static PyObject *formats(PyObject *module, PyObject *none) {
    static const struct row { const char *name; int bits; const char *element, *scale; int rows, cols, second; } rows[] = {
#define DW_ELEMENT(name, bits, class, exp, man, bias, inf, nan, max, doc) {#name, bits, "", "", 0, 0, 0},
#define DW_BLOCK(name, element, scale, rows, cols, second, doc) {#name, 0, #element, #scale, rows, cols, second},
#include "deepwell/format.def"
#undef DW_ELEMENT
#undef DW_BLOCK
    };
    (void)module, (void)none;
    PyObject *made = PyDict_New();
    for (size_t i = 0; made != NULL && i < sizeof rows / sizeof *rows; i++) {
        const struct row *row = &rows[i];
        PyObject *value = Py_BuildValue("(issiii)", dw_format_bits(dw_format_find(row->name)), row->element, row->scale, row->rows, row->cols, row->second);
        if (value == NULL || PyDict_SetItemString(made, row->name, value) < 0) Py_CLEAR(made);
        Py_XDECREF(value);
    }
    return made;
}

/* argv[0..count] as C has them; *kept holds their bytes. */
static char **read_words(PyObject *list, Py_ssize_t count, PyObject **kept) {
    char **words = calloc((size_t)count + 2, sizeof *words);
    *kept = PyList_New(0);
    if (words == NULL) PyErr_NoMemory();
    if (words == NULL || *kept == NULL) goto fail;
    words[0] = "deepwell";
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *bytes;
        if (!PyUnicode_FSConverter(PyList_GetItem(list, i), &bytes)) goto fail;
        int added = PyList_Append(*kept, bytes);
        Py_DECREF(bytes);
        if (added < 0) goto fail;
        words[i + 1] = PyBytes_AsString(bytes);
    }
    return words;
fail:
    free(words);
    Py_CLEAR(*kept);
    return NULL;
}

static PyObject *run_main(PyObject *module, PyObject *arguments) {
    static const int signals[] = {SIGINT, SIGTERM};
    struct sigaction before[2];
    PyObject *list, *kept, *comm = Py_None;
    core_context own = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!|O", &PyList_Type, &list, &comm)) return NULL;
    if (comm != Py_None && !PyObject_TypeCheck(comm, core_comm_type)) {
        PyErr_SetString(PyExc_TypeError, "comm is a Comm or None");
        return NULL;
    }
    if (comm != Py_None && !core_context_open(&own, 1)) return NULL;   /* what its callbacks come back through */
    Py_ssize_t count = PyList_Size(list);
    char **words = read_words(list, count, &kept);
    if (words == NULL) return NULL;
    for (int i = 0; i < 2; i++) sigaction(signals[i], NULL, &before[i]);
    int code = -1, ended = 1;
    if (comm != Py_None) {
        if (core_begin(&own)) {
            code = cli_main_of_rank((int)count + 1, words, core_comm_of(comm));
            ended = core_end(&own, DW_OK);
        }
        core_context_close(&own);
    } else {
        PyThreadState *thread = PyEval_SaveThread();
        code = cli_main((int)count + 1, words);
        PyEval_RestoreThread(thread);
    }
    for (int i = 0; i < 2; i++) sigaction(signals[i], &before[i], NULL);
    free(words);
    Py_DECREF(kept);
    return code >= 0 && ended ? PyLong_FromLong(code) : NULL;
}

static PyMethodDef functions[] = {
    {"report_table", (PyCFunction)(void (*)(void))core_report_table, METH_VARARGS | METH_KEYWORDS, "report_table(facts, all=False, lines=0): what Model.report gave, as tables."},
    {"version", version, METH_NOARGS, "version(): \"0.1.0\""},
    {"probe", probe, METH_NOARGS, "probe(): what this machine has, as JSON."},
    {"operators", operators, METH_NOARGS, "operators(): every operator that capture reads, as JSON."},
    {"precisions", precisions, METH_NOARGS, "precisions(): every precision that a policy may give, as JSON."},
    {"formats", formats, METH_NOARGS, "formats(): {name: (bits of an element, element, scale, rows, cols, second)}, as in docs/formats.md."},
    {"op", (PyCFunction)(void (*)(void))core_op, METH_VARARGS | METH_KEYWORDS,
     "op(name, attributes, inputs, results=1, make=None, threads=0): one op at once, as in docs/ops.md."},
    {"main", run_main, METH_VARARGS, "main(arguments, comm=None): the command line; gives its exit code. comm: this process is one of its ranks. Not from two threads at a time."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "deepwell._core", "Deepwell's C core: every decision is made there.", -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && core_add_errors(module) && core_add_graph(module) && core_add_registry(module) && core_add_comm(module) && core_add_model(module) && core_add_session(module) && core_add_service(module)) return module;
    Py_XDECREF(module);
    return NULL;
}
