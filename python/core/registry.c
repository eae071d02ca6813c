/* Registry: kernels of the caller's, Python callables or C functions. A callable is called with the GIL held, in the thread that runs the model; what
 * it raises is what the run raises. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "operand.h"

PyTypeObject *core_registry_type;

typedef struct kernel {
    struct kernel *next;
    PyObject *callable;        /* NULL after the registry was cleared */
} kernel;

typedef struct core_registry {
    PyObject_HEAD
    core_context own;
    dw_registry *registry;
    kernel *kernels;
    int uses;                  /* models that are being made of it. With the GIL */
} core_registry;

static PyObject *json_loads;

dw_registry *core_registry_of(PyObject *registry) { return ((core_registry *)registry)->registry; }

void core_registry_use(PyObject *registry, int change) { ((core_registry *)registry)->uses += change; }

/* ---- calls ---- */

/* Memory of a copy, which DLPack exports keep alive. */
static void free_copy(PyObject *capsule) { free(PyCapsule_GetPointer(capsule, NULL)); }

/* The same tensor in memory of its own; *keep is a new reference to what holds it. */
static int copy_tensor(core_context *own, const dw_tensor *from, dw_tensor *copy, PyObject **keep) {
    uint64_t bytes;
    *copy = *from;
    if (dw_tensor_bytes(own->context, from, &bytes) != DW_OK) {
        core_raise(DW_LIMIT, dw_context_error(own->context));
        return 0;
    }
    void *memory = malloc(bytes + 1);
    *keep = memory ? PyCapsule_New(memory, NULL, free_copy) : NULL;
    if (*keep == NULL) {
        free(memory);
        if (!PyErr_Occurred()) PyErr_NoMemory();
        return 0;
    }
    if (dw_tensor_place(own->context, copy, memory) != DW_OK) {
        Py_CLEAR(*keep);
        core_raise(DW_LIMIT, dw_context_error(own->context));
        return 0;
    }
    core_tensor_copy(from, copy);
    return 1;
}

/* Operands as a tuple. In runs they are where they lie; while a model is loaded, where memory goes as soon as it can, they are copies. */
static PyObject *wrap(core_context *own, int count, const dw_tensor *const *tensors) {
    static long copies;
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple != NULL && i < count; i++) {
        PyObject *made = NULL, *keep;
        dw_tensor copy;
        if (tensors[i] == NULL) {
            Py_INCREF(Py_None);
            made = Py_None;
        } else if (own->keep != NULL) {
            made = core_operand_new(tensors[i], own->keep, own->exports);
        } else if (copy_tensor(own, tensors[i], &copy, &keep)) {
            made = core_operand_new(&copy, keep, &copies);
            Py_DECREF(keep);
        }
        if (made == NULL || PyTuple_SetItem(tuple, i, made) < 0) Py_CLEAR(tuple);
    }
    return tuple;
}

static void end_all(PyObject *tuple) {
    for (Py_ssize_t i = 0; tuple != NULL && i < PyTuple_Size(tuple); i++) core_operand_end(PyTuple_GetItem(tuple, i));
}

/* Results from copies to where they belong. */
static void give_back(core_context *own, PyObject *tuple, int count, const dw_tensor *const *tensors) {
    for (int i = 0; own->keep == NULL && i < count; i++) {
        if (tensors[i] != NULL) core_tensor_copy(core_operand_tensor(PyTuple_GetItem(tuple, i)), tensors[i]);
    }
}

/* ---- results that are returned ---- */

static int has_shape(const dw_tensor *a, const dw_tensor *b) {
    int same = a->format == b->format && a->rank == b->rank;
    for (int i = 0; same && i < a->rank; i++) same = a->dims[i] == b->dims[i];
    return same;
}

/* Elements one by one, whatever the strides of either are: of a format of whole bytes. */
static void copy_elements(const dw_tensor *from, const dw_tensor *to) {
    const int64_t size = dw_format_bits(to->format) / 8;
    int64_t count = 1, index[DW_MAX_RANK] = {0};
    for (int i = 0; i < to->rank; i++) count *= to->dims[i];
    for (int64_t k = 0; k < count; k++) {
        int64_t source = 0, target = 0;
        for (int i = 0; i < to->rank; i++) {
            source += index[i] * from->strides[i];
            target += index[i] * to->strides[i];
        }
        memcpy((char *)to->data + target * size, (const char *)from->data + source * size, (size_t)size);
        for (int i = to->rank; i-- > 0;) {
            if (++index[i] < to->dims[i]) break;
            index[i] = 0;
        }
    }
}

/* A tensor that a kernel returned, into its result: of the same shape and dtype. Where it is the result's own memory there is nothing to do. */
static int take_result(PyObject *returned, const dw_tensor *result, int number) {
    dw_tensor tensor;
    PyObject *owner;
    char what[64];
    snprintf(what, sizeof what, "result %d that the kernel returned", number);
    if (!core_tensor_read(returned, what, CORE_HOST, &tensor, &owner)) return 0;
    int fits = has_shape(&tensor, result);
    if (fits && tensor.data != result->data) copy_elements(&tensor, result);
    if (!fits) {
        PyObject *got = core_shape(&tensor), *wanted = core_shape(result);
        if (got != NULL && wanted != NULL)
            core_fail(DW_MISMATCH, "%s is %s %R, it should be %s %R", what, dw_format_name(tensor.format), got, dw_format_name(result->format), wanted);
        Py_XDECREF(got);
        Py_XDECREF(wanted);
    }
    Py_DECREF(owner);
    return fits;
}

/* None: outputs are filled. Else a tensor, or a tuple or list of one for each result. outputs: what the kernel was given. */
static int take_answer(PyObject *answer, PyObject *outputs, int count) {
    const int is_list = PyTuple_Check(answer) || PyList_Check(answer);
    if (answer == Py_None) return 1;
    if (is_list ? PySequence_Size(answer) != count : count != 1) {
        PyErr_Format(PyExc_TypeError, "a kernel fills outputs and returns None, or returns its %d results", count);
        return 0;
    }
    for (int i = 0; i < count; i++) {
        PyObject *output = PyTuple_GetItem(outputs, i), *one = is_list ? PySequence_GetItem(answer, i) : answer;
        if (one == NULL) return 0;
        const int done = output == Py_None || take_result(one, core_operand_tensor(output), i);
        if (is_list) Py_DECREF(one);
        if (!done) return 0;
    }
    return 1;
}

static PyObject *keywords_of(const dw_kernel_call *call, PyObject *outputs) {
    PyObject *attributes = PyObject_CallFunction(json_loads, "s", call->attributes);
    if (attributes == NULL) return NULL;
    return Py_BuildValue("{s:O,s:s,s:s,s:N,s:i}", "outputs", outputs, "op", call->op, "post", call->post, "attributes", attributes, "threads", call->threads);
}

static int call_with_gil(core_context *own, const kernel *kernel, const dw_kernel_call *call) {
    if (kernel->callable == NULL) {
        core_fail(DW_INVALID, "the registry that the kernel was in is gone");
        return 0;
    }
    PyObject *inputs = wrap(own, call->input_count, call->inputs), *outputs = inputs ? wrap(own, call->output_count, call->outputs) : NULL;
    PyObject *keywords = outputs ? keywords_of(call, outputs) : NULL;
    PyObject *answer = keywords ? PyObject_Call(kernel->callable, inputs, keywords) : NULL;
    if (answer != NULL && !take_answer(answer, outputs, call->output_count)) Py_CLEAR(answer);
    if (answer != NULL) give_back(own, outputs, call->output_count, call->outputs);
    end_all(inputs);
    end_all(outputs);
    int done = answer != NULL;
    Py_XDECREF(answer);
    Py_XDECREF(keywords);
    Py_XDECREF(outputs);
    Py_XDECREF(inputs);
    return done;
}

static dw_status call_python(const dw_kernel_call *call) {
    core_context *own = core_current();
    if (own == NULL) return DW_INTERNAL;
    core_hold(own);
    int done = call_with_gil(own, call->user, call);
    if (!done) core_keep_error(own);
    core_drop(own);
    return done ? DW_OK : DW_CANCELLED;
}

/* ---- the registry ---- */

static int registry_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    for (kernel *kernel = ((core_registry *)object)->kernels; kernel != NULL; kernel = kernel->next) Py_VISIT(kernel->callable);
    return 0;
}

static int registry_clear(PyObject *object) {
    for (kernel *kernel = ((core_registry *)object)->kernels; kernel != NULL; kernel = kernel->next) Py_CLEAR(kernel->callable);
    return 0;
}

static void registry_dealloc(PyObject *object) {
    core_registry *self = (core_registry *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    registry_clear(object);
    dw_registry_destroy(self->registry);
    while (self->kernels != NULL) {
        kernel *next = self->kernels->next;
        free(self->kernels);
        self->kernels = next;
    }
    core_context_close(&self->own);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyObject *registry_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "", names)) return NULL;
    core_registry *self = PyObject_GC_New(core_registry, type);
    if (self == NULL) return NULL;
    memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
    PyObject_GC_Track((PyObject *)self);
    if (core_context_open(&self->own, 1) && core_begin(&self->own) && core_end(&self->own, dw_registry_create(self->own.context, &self->registry)))
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

/* A function's address, or a callable, into options; *made is the callable's record. false: raised. */
static int read_function(PyObject *run, dw_kernel_options *options, kernel **made) {
    *made = NULL;
    if (PyLong_Check(run)) {
        void *address = PyLong_AsVoidPtr(run);
        if (address == NULL && !PyErr_Occurred()) core_fail(DW_INVALID, "the address of the kernel is 0");
        if (PyErr_Occurred()) return 0;
        memcpy(&options->run, &address, sizeof address);
        return 1;
    }
    if (!PyCallable_Check(run)) {
        PyErr_SetString(PyExc_TypeError, "run is a callable, or the address of a C function");
        return 0;
    }
    *made = calloc(1, sizeof **made);
    if (*made == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    Py_INCREF(run);
    (*made)->callable = run;
    options->run = call_python;
    options->user = *made;
    return 1;
}

static PyObject *registry_add(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"name", "op", "precision", "min_size", "can_post", "run", NULL};
    core_registry *self = (core_registry *)object;
    dw_kernel_options options = {0};
    long long min_size = 0;
    PyObject *run = NULL;
    kernel *made;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "s|$zzLpO", names, &options.name, &options.op, &options.precision, &min_size, &options.can_post, &run)) return NULL;
    if (run == NULL) {
        PyErr_SetString(PyExc_TypeError, "add: run is missing");
        return NULL;
    }
    if (self->uses > 0) return core_fail(DW_INVALID, "a model is being made of the registry: add kernels before");
    options.min_size = min_size;
    if (!read_function(run, &options, &made)) return NULL;
    dw_status status = dw_registry_add(self->registry, &options);
    if (status != DW_OK) {
        if (made != NULL) Py_DECREF(made->callable);
        free(made);
        return core_raise(status, dw_context_error(self->own.context));
    }
    if (made != NULL) {
        made->next = self->kernels;
        self->kernels = made;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"add", (PyCFunction)(void (*)(void))registry_add, METH_VARARGS | METH_KEYWORDS,
     "add(name, *, op=\"matmul\", precision=None, min_size=0, can_post=False, run): a kernel that is taken wherever it accepts, before Deepwell's own. run is the address of a "
     "C function as in deepwell/device.h, or a callable run(*operands, outputs, op, post, attributes, threads) that fills outputs, or returns its results."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Kernels of the caller's, for models that are made with it."},
    {Py_tp_new, registry_new},
    {Py_tp_dealloc, registry_dealloc},
    {Py_tp_traverse, registry_traverse},
    {Py_tp_clear, registry_clear},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {"deepwell._core.Registry", sizeof(core_registry), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int core_add_registry(PyObject *module) {
    PyObject *json = PyImport_ImportModule("json");
    json_loads = json ? PyObject_GetAttrString(json, "loads") : NULL;
    Py_XDECREF(json);
    return json_loads != NULL && core_add_operand(module) && core_add_type(module, &spec, &core_registry_type);
}
