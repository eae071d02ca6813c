/* Session: a model at work. Inputs and outputs are used where they lie. */
#include "session.h"

#include <stdlib.h>
#include <string.h>

PyTypeObject *core_session_type;

static int session_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)((core_session *)object)->model);
    return 0;
}

static void session_dealloc(PyObject *object) {
    core_session *self = (core_session *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    dw_session_destroy(self->session);
    core_context_close(&self->own);
    Py_XDECREF((PyObject *)self->model);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* The number in "cuda:1", 0 where there is none. */
static int gpu_of(const char *device) {
    const char *colon = device != NULL ? strchr(device, ':') : NULL;
    return colon != NULL ? atoi(colon + 1) : 0;
}

static PyObject *session_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"model", "dims", "max_tokens", "rows", "chunk", "device_memory", NULL};
    PyObject *model;
    dw_session_options options = {0};
    long long most = 0, rows = 0, chunk = 0;
    int device_memory = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!|$zLLLp", names, core_model_type, &model, &options.dims, &most, &rows, &chunk, &device_memory))
        return NULL;
    options.max_tokens = most;
    options.rows = rows;
    options.chunk = chunk;
    options.flags = device_memory ? DW_SESSION_DEVICE_MEMORY : 0;
    core_session *self = PyObject_GC_New(core_session, type);
    if (self == NULL) return NULL;
    memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
    Py_INCREF(model);
    self->model = (core_model *)model;
    self->place = device_memory ? gpu_of(((core_model *)model)->options.device) : CORE_HOST;
    self->input_count = dw_model_input_count(self->model->model);
    self->output_count = dw_model_output_count(self->model->model);
    PyObject_GC_Track((PyObject *)self);
    if (core_model_settle(self->model) && core_context_open(&self->own, self->model->threads) && core_begin(&self->own) &&
        core_end(&self->own, dw_session_create(self->own.context, self->model->model, &options, &self->session)))
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

/* ---- runs ---- */

static int read_inputs(core_session *self, PyObject *given, dw_named_tensor *inputs, PyObject **owners) {
    if (PyTuple_Size(given) != self->input_count) {
        core_fail(DW_MISMATCH, "the model has %d inputs, %zd are given", self->input_count, PyTuple_Size(given));
        return 0;
    }
    for (int i = 0; i < self->input_count; i++) {
        inputs[i].name = dw_model_input(self->model->model, i, NULL);
        if (!core_tensor_read(PyTuple_GetItem(given, i), inputs[i].name, self->place, &inputs[i].tensor, &owners[i])) return 0;
    }
    return 1;
}

static PyObject *make_outputs(core_session *self, PyObject *make, dw_named_tensor *outputs) {
    PyObject *made = PyTuple_New(self->output_count);
    for (int i = 0; made != NULL && i < self->output_count; i++) {
        PyObject *tensor = core_tensor_make(make, self->place, &outputs[i].tensor);
        if (tensor == NULL || PyTuple_SetItem(made, i, tensor) < 0) Py_CLEAR(made);
    }
    return made;
}

/* One run: on the host's memory, or on the GPU's and in a stream. */
typedef struct core_run { dw_named_tensor *inputs, *outputs; void *stream; } core_run;

static dw_status run_once(core_session *self, const core_run *run) {
    if (self->place == CORE_HOST) return dw_session_run(self->session, self->input_count, run->inputs, self->output_count, run->outputs);
    return dw_session_enqueue(self->session, run->stream, self->input_count, run->inputs, self->output_count, run->outputs);
}

/* Without the GIL. What kernels have kept must not move. */
static dw_status run_or_grow(core_session *self, int may_grow, const core_run *run) {
    dw_status status = run_once(self, run);
    if (status != DW_LIMIT || !may_grow || dw_session_reserve(self->session, self->input_count, run->inputs) != DW_OK) return status;
    self->growths++;
    return run_once(self, run);
}

static PyObject *run(core_session *self, PyObject *given, PyObject *make, const core_run *to, PyObject **owners) {
    if (!read_inputs(self, given, to->inputs, owners)) return NULL;
    if (!core_begin(&self->own)) return NULL;
    if (!core_end(&self->own, dw_session_shapes(self->session, self->input_count, to->inputs, to->outputs))) return NULL;
    PyObject *made = make_outputs(self, make, to->outputs);
    if (made == NULL) return NULL;
    PyObject *keep = self->model->registry ? PyTuple_Pack(3, self, given, made) : NULL;
    int done = keep != NULL || self->model->registry == NULL, may_grow = self->model->exports == 0;
    if (done) done = core_begin(&self->own);
    if (done) {
        self->own.keep = keep;
        self->own.exports = &self->model->exports;
        done = core_end(&self->own, run_or_grow(self, may_grow, to));
        self->own.keep = NULL;
    }
    Py_XDECREF(keep);
    if (done) return made;
    Py_DECREF(made);
    return NULL;
}

static PyObject *session_run(PyObject *object, PyObject *arguments) {
    core_session *self = (core_session *)object;
    PyObject *given, *make = Py_None;
    unsigned long long stream = 0;
    if (!PyArg_ParseTuple(arguments, "O!|OK", &PyTuple_Type, &given, &make, &stream)) return NULL;
    size_t inputs = (size_t)self->input_count, outputs = (size_t)self->output_count;
    dw_named_tensor *rows = calloc(inputs + outputs + 1, sizeof *rows);
    PyObject **owners = calloc(inputs + 1, sizeof *owners);
    PyObject *made = NULL;
    if (rows == NULL || owners == NULL) {
        PyErr_NoMemory();
    } else if (core_model_enter(self->model)) {
        made = run(self, given, make, &(core_run){rows, rows + inputs, (void *)(uintptr_t)stream}, owners);
        core_model_leave(self->model);
    }
    for (size_t i = 0; owners != NULL && i < inputs; i++) Py_XDECREF(owners[i]);
    free(rows);
    free(owners);
    return made;
}

static PyObject *session_reset(PyObject *object, PyObject *none) {
    core_session *self = (core_session *)object;
    (void)none;
    if (!core_begin(&self->own) || !core_end(&self->own, dw_session_reset(self->session))) return NULL;
    Py_RETURN_NONE;
}

static PyObject *session_synchronize(PyObject *object, PyObject *none) {
    core_session *self = (core_session *)object;
    (void)none;
    if (!core_begin(&self->own) || !core_end(&self->own, dw_session_synchronize(self->session))) return NULL;
    Py_RETURN_NONE;
}

static PyObject *session_workspace_bytes(PyObject *object, void *none) {
    (void)none;
    return PyLong_FromUnsignedLongLong(dw_session_workspace_bytes(((core_session *)object)->session));
}

static PyObject *session_growths(PyObject *object, void *none) {
    (void)none;
    return PyLong_FromLongLong(((core_session *)object)->growths);
}

static PyObject *session_model(PyObject *object, void *none) {
    PyObject *model = (PyObject *)((core_session *)object)->model;
    (void)none;
    Py_INCREF(model);
    return model;
}

static PyMethodDef methods[] = {
    {"run", session_run, METH_VARARGS,
     "run(inputs, make=None, stream=0): a tuple of tensors in the order of model.inputs, contiguous, to a tuple of tensors in the order of model.outputs. make(shape, format) "
     "gives a new tensor; None: torch.empty. stream: of a session on device memory, the address of the CUDA stream that the run goes to; it is not waited for. "
     "The GIL is released meanwhile; a second thread waits."},
    {"generate", (PyCFunction)(void (*)(void))core_session_generate, METH_VARARGS | METH_KEYWORDS,
     "generate(ids, tokens, *, temperature=0, top_k=0, top_p=0, seed=0, stop_ids=(), on_token=None, inputs=()): the ids that continue a prompt, or a list of "
     "them for a list of prompts. on_token(row, id) is told each; what it gives ends that prompt's generation when it is true. inputs: (name, tensor) pairs of an encoder."},
    {"synchronize", session_synchronize, METH_NOARGS, "synchronize(): waits for all runs on streams, and raises what their kernels have met."},
    {"reset", session_reset, METH_NOARGS, "reset(): state as the export had it, position 0."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"workspace_bytes", session_workspace_bytes, NULL, "Bytes that are reserved for runs.", NULL},
    {"times", core_session_times, NULL, "Of the last generation: prefill_s, decode_s, prompt_tokens, new_tokens, cached.", NULL},
    {"model", session_model, NULL, "Whose session it is.", NULL},
    {"growths", session_growths, NULL, "How often a run asked for more room than had been reserved, and got it.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A model at work: its state, its workspace and its position."},
    {Py_tp_new, session_new},
    {Py_tp_dealloc, session_dealloc},
    {Py_tp_traverse, session_traverse},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

static PyType_Spec spec = {"deepwell._core.Session", sizeof(core_session), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int core_add_session(PyObject *module) { return core_add_type(module, &spec, &core_session_type); }
