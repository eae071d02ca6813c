/* Comm: one process's membership among ranks, by an engine in Python, which moves their bytes. */
#include "core.h"

#include <stdlib.h>
#include <string.h>

PyTypeObject *core_comm_type;

enum { WORDS = 512, WRITABLE = 0x200 };   /* PyBUF_WRITE, which the limited API has no name for */

typedef struct core_comm {
    PyObject_HEAD
    core_context own;
    dw_comm *comm;
    PyObject *engine;
    size_t world;
    char words[WORDS];         /* of the engine's last failure */
} core_comm;

/* ---- callbacks ---- */

/* What is raised now becomes words for the error of the call, which knows the op and the layer. A signal's or the interpreter's own exception goes on as it is. */
static int take_error(core_comm *self, core_context *own) {
    PyObject *type, *value, *traceback;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        if (own != NULL) core_keep_error(own);
        else PyErr_WriteUnraisable(self->engine);
        return DW_CANCELLED;
    }
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *name = PyObject_GetAttrString(type, "__name__"), *text = name && value ? PyUnicode_FromFormat("%U: %S", name, value) : NULL;
    PyObject *bytes = text ? PyUnicode_AsUTF8String(text) : NULL;
    const char *words = bytes ? PyBytes_AsString(bytes) : NULL;
    strncpy(self->words, words ? words : "an exception without words", WORDS - 1);
    PyErr_Clear();
    Py_XDECREF(bytes);
    Py_XDECREF(text);
    Py_XDECREF(name);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return DW_LOST;
}

static void end_view(PyObject *view) {
    PyObject *done = view ? PyObject_CallMethod(view, "release", NULL) : NULL;
    if (done == NULL) PyErr_Clear();   /* somebody keeps it: he was told not to */
    Py_XDECREF(done);
    Py_XDECREF(view);
}

/* In a call of Python's, or in the loop of a service, which is a thread of the library's. */
static int call(core_comm *self, const char *method, int axis, const void *from, size_t from_bytes, void *to, size_t to_bytes) {
    core_context *own = core_current();
    PyGILState_STATE state = PyGILState_UNLOCKED;
    if (own != NULL) core_hold(own);
    else state = PyGILState_Ensure();
    PyObject *mine = PyMemoryView_FromMemory((char *)from, (Py_ssize_t)from_bytes, WRITABLE), *theirs = PyMemoryView_FromMemory(to, (Py_ssize_t)to_bytes, WRITABLE);
    PyObject *answer = mine && theirs ? PyObject_CallMethod(self->engine, method, "iOO", axis, mine, theirs) : NULL;
    const int failed = answer != NULL ? 0 : take_error(self, own);
    Py_XDECREF(answer);
    end_view(mine);
    end_view(theirs);
    if (own != NULL) core_drop(own);
    else PyGILState_Release(state);
    return failed;
}

/* Ranks on an axis of the mesh, or all, as they are while the communicator is made. */
static size_t count_of(const core_comm *self, int axis) {
    const char *at = axis < 0 ? NULL : dw_comm_mesh(self->comm);
    for (int i = 0; at != NULL && i < axis; i++) at = strchr(at, ',') + 1;
    return at != NULL ? strtoul(strchr(at, '=') + 1, NULL, 10) : self->world;
}

static int all_gather(void *user, int axis, const void *part, void *parts, size_t bytes) {
    core_comm *self = user;
    return call(self, "all_gather", axis, part, bytes, parts, bytes * count_of(self, axis));
}

static int all_to_all(void *user, int axis, const void *parts, void *received, size_t bytes) {
    core_comm *self = user;
    const size_t all = bytes * count_of(self, axis);
    return call(self, "all_to_all", axis, parts, all, received, all);
}

static const char *words_of(void *user) { return ((core_comm *)user)->words; }

/* ---- the type ---- */

static int comm_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((core_comm *)object)->engine);
    return 0;
}

static void comm_dealloc(PyObject *object) {
    core_comm *self = (core_comm *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    dw_comm_destroy(self->comm);
    Py_XDECREF(self->engine);
    core_context_close(&self->own);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyObject *comm_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"rank", "world", "engine", "mesh", NULL};
    dw_comm_options options = {0};
    PyObject *engine;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "iiO|$z", names, &options.rank, &options.world, &engine, &options.mesh)) return NULL;
    core_comm *self = PyObject_GC_New(core_comm, type);
    if (self == NULL) return NULL;
    memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
    Py_INCREF(engine);
    self->engine = engine;
    self->world = options.world > 0 ? (size_t)options.world : 1;
    PyObject_GC_Track((PyObject *)self);
    const dw_collectives calls = {.all_gather = all_gather, .all_to_all = all_to_all, .words = words_of, .user = self};
    options.engine = &calls;
    if (core_context_open(&self->own, 1) && core_begin(&self->own) && core_end(&self->own, dw_comm_create(self->own.context, NULL, &options, &self->comm))) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

dw_comm *core_comm_of(PyObject *comm) { return ((core_comm *)comm)->comm; }

static PyObject *comm_rank(PyObject *object, void *none) {
    (void)none;
    return PyLong_FromLong(dw_comm_rank(((core_comm *)object)->comm));
}

static PyObject *comm_world(PyObject *object, void *none) {
    (void)none;
    return PyLong_FromLong(dw_comm_world(((core_comm *)object)->comm));
}

static PyObject *comm_mesh(PyObject *object, void *none) {
    (void)none;
    return PyUnicode_FromString(dw_comm_mesh(((core_comm *)object)->comm));
}

int core_add_comm(PyObject *module) {
    static PyGetSetDef properties[] = {{"rank", comm_rank, NULL, NULL, NULL}, {"world", comm_world, NULL, NULL, NULL}, {"mesh", comm_mesh, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};
    static PyType_Slot slots[] = {{Py_tp_new, comm_new}, {Py_tp_dealloc, comm_dealloc}, {Py_tp_traverse, comm_traverse}, {Py_tp_getset, properties}, {0, NULL}};
    static PyType_Spec spec = {"deepwell._core.Comm", sizeof(core_comm), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
    return core_add_type(module, &spec, &core_comm_type);
}
