/* Model: a compiled graph. */
#include "core.h"

#include <string.h>

PyTypeObject *core_model_type;

/* Strings of the options, which the caller's arguments hold for the call alone, in memory of the model's. */
static int keep_options(core_model *self, const dw_model_options *given) {
    const char *const from[] = {given->precision, given->policy, given->device, given->chip, given->dims, given->kernels, given->tuning, given->tuning_name, given->mesh, given->shard};
    const char **const to[] = {&self->options.precision, &self->options.policy, &self->options.device, &self->options.chip, &self->options.dims, &self->options.kernels,
                               &self->options.tuning, &self->options.tuning_name, &self->options.mesh, &self->options.shard};
    self->options = *given;
    self->strings = PyList_New(0);
    for (size_t i = 0; self->strings != NULL && i < sizeof from / sizeof from[0]; i++) {
        PyObject *bytes = from[i] ? PyBytes_FromString(from[i]) : NULL;
        *to[i] = bytes ? PyBytes_AsString(bytes) : NULL;
        int failed = from[i] != NULL && (bytes == NULL || PyList_Append(self->strings, bytes) < 0);
        Py_XDECREF(bytes);
        if (failed) return 0;
    }
    return self->strings != NULL;
}

static dw_status make(core_model *self, const dw_model_options *options) {
    const char *path = core_graph_path(self->source);
    dw_graph *graph;
    if (path != NULL) return dw_model_open(self->own.context, path, options, &self->model);
    dw_status status = core_graph_make(self->source, self->own.context, &graph);
    return status == DW_OK ? dw_model_create(self->own.context, graph, options, &self->model) : status;
}

static int model_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((core_model *)object)->source);
    Py_VISIT(((core_model *)object)->registry);
    Py_VISIT(((core_model *)object)->comm);
    Py_VISIT(((core_model *)object)->replaced);
    return 0;
}

static void model_dealloc(PyObject *object) {
    core_model *self = (core_model *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    dw_model_destroy(self->model);
    Py_XDECREF(self->source);
    Py_XDECREF(self->registry);
    Py_XDECREF(self->comm);
    Py_XDECREF(self->strings);
    Py_XDECREF(self->replaced);
    core_context_close(&self->own);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* A path becomes a Graph that stands for the file, without reading it: packages are no graphs. */
static PyObject *source_of(PyObject *given) {
    if (!PyObject_TypeCheck(given, core_graph_type)) return core_graph_of_file(given);
    Py_INCREF(given);
    return given;
}

static PyObject *model_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"source", "precision", "policy", "chip", "device", "dims", "kernels", "tuning", "tuning_name", "registry", "generate", "plan_only", "threads", "invariant", "comm", "mesh", "shard", NULL};
    PyObject *source, *registry = Py_None, *comm = Py_None;
    int generate = 0, plan_only = 0, threads = 0, invariant = 0;
    dw_model_options given = {0}, *options = &given;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|$zzzzzzzzOppipOzz", names, &source, &options->precision, &options->policy, &options->chip,
                                     &options->device, &options->dims, &options->kernels, &options->tuning, &options->tuning_name, &registry, &generate, &plan_only, &threads, &invariant, &comm, &options->mesh, &options->shard))
        return NULL;
    options->flags = (generate ? DW_MODEL_GENERATE : 0u) | (plan_only ? DW_MODEL_PLAN_ONLY : 0u) | (invariant ? DW_MODEL_INVARIANT : 0u);
    if (registry != Py_None && !PyObject_TypeCheck(registry, core_registry_type)) {
        PyErr_SetString(PyExc_TypeError, "registry is a Registry or None");
        return NULL;
    }
    if (comm != Py_None && !PyObject_TypeCheck(comm, core_comm_type)) {
        PyErr_SetString(PyExc_TypeError, "comm is a Comm or None");
        return NULL;
    }
    if (comm != Py_None) options->comm = core_comm_of(comm);
    if (registry != Py_None) options->registry = core_registry_of(registry);
    source = source_of(source);
    core_model *self = source ? PyObject_GC_New(core_model, type) : NULL;
    if (self == NULL) {
        Py_XDECREF(source);
        return NULL;
    }
    memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
    self->source = source;
    if (registry != Py_None) {
        Py_INCREF(registry);
        self->registry = registry;
    }
    if (comm != Py_None) {
        Py_INCREF(comm);
        self->comm = comm;
    }
    self->threads = threads;
    PyObject_GC_Track((PyObject *)self);
    if (!keep_options(self, options)) {
        Py_DECREF(self);
        return NULL;
    }
    if (self->registry != NULL) core_registry_use(self->registry, 1);
    int made = core_context_open(&self->own, threads) && core_begin(&self->own) && core_end(&self->own, make(self, &self->options));
    if (self->registry != NULL) core_registry_use(self->registry, -1);
    if (made) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

/* ---- asking ---- */

typedef const char *(*row_at)(const dw_model *model, int index, const char **shape);

static PyObject *list_of(const core_model *self, int count, row_at at) {
    PyObject *list = PyList_New(count);
    for (int i = 0; list != NULL && i < count; i++) {
        const char *shape, *name = at(self->model, i, &shape);
        PyObject *row = Py_BuildValue("(ss)", name, shape);
        if (row == NULL || PyList_SetItem(list, i, row) < 0) Py_CLEAR(list);
    }
    return list;
}

static PyObject *model_inputs(PyObject *object, void *none) {
    core_model *self = (core_model *)object;
    (void)none;
    return list_of(self, dw_model_input_count(self->model), dw_model_input);
}

static PyObject *model_outputs(PyObject *object, void *none) {
    core_model *self = (core_model *)object;
    (void)none;
    return list_of(self, dw_model_output_count(self->model), dw_model_output);
}

static PyObject *model_generate_reason(PyObject *object, void *none) {
    const char *reason;
    (void)none;
    if (dw_model_can_generate(((core_model *)object)->model, &reason)) Py_RETURN_NONE;
    return PyUnicode_FromString(reason);
}

static PyObject *model_weight_bytes(PyObject *object, void *none) {
    core_model *self = (core_model *)object;
    (void)none;
    if (!core_begin(&self->own)) return NULL;
    uint64_t bytes = dw_model_weight_bytes(self->model);
    return core_end(&self->own, DW_OK) ? PyLong_FromUnsignedLongLong(bytes) : NULL;
}

static PyObject *model_source(PyObject *object, void *none) {
    PyObject *source = ((core_model *)object)->source;
    (void)none;
    Py_INCREF(source);
    return source;
}

static PyObject *model_note(PyObject *object, PyObject *arguments) {
    const char *name;
    if (!PyArg_ParseTuple(arguments, "s", &name)) return NULL;
    const char *note = dw_model_note(((core_model *)object)->model, name);
    if (note == NULL) Py_RETURN_NONE;
    return PyUnicode_FromString(note);
}

static const struct { const char *name; dw_print what; } prints[] = {
    {"summary", DW_PRINT_SUMMARY}, {"captured", DW_PRINT_CAPTURED}, {"fused", DW_PRINT_FUSED},     {"graph", DW_PRINT_GRAPH},
    {"step", DW_PRINT_STEP},       {"plan", DW_PRINT_PLAN},         {"explain", DW_PRINT_EXPLAIN}, {"memory", DW_PRINT_MEMORY},
};

static PyObject *model_print(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"what", "json", NULL};
    core_model *self = (core_model *)object;
    const char *what = "summary";
    int json = 0;
    core_text text = {0};
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|sp", names, &what, &json)) return NULL;
    for (size_t i = 0; i < sizeof prints / sizeof prints[0]; i++) {
        if (strcmp(prints[i].name, what) != 0) continue;
        if (!core_begin(&self->own)) return NULL;
        if (core_end(&self->own, dw_model_print(self->model, prints[i].what, json, core_gather, &text))) return core_text_take(&text);
        core_text_free(&text);
        return NULL;
    }
    return core_fail(DW_INVALID, "print(\"%s\"): it is summary, captured, fused, graph, step, plan, explain or memory", what);
}

static PyObject *model_save(PyObject *object, PyObject *arguments) {
    core_model *self = (core_model *)object;
    PyObject *path;
    if (!PyArg_ParseTuple(arguments, "O&", PyUnicode_FSConverter, &path)) return NULL;
    int done = core_begin(&self->own) && core_end(&self->own, dw_model_save(self->model, PyBytes_AsString(path)));
    Py_DECREF(path);
    if (!done) return NULL;
    Py_RETURN_NONE;
}

/* ---- new values of weights ---- */

int core_model_enter(core_model *model) {
    while (model->updating)
        if (!core_begin(&model->own) || !core_end(&model->own, DW_OK)) return 0;   /* which update holds until it is done */
    model->running++;
    return 1;
}

void core_model_leave(core_model *model) { model->running--; }

int core_model_settle(core_model *model) {
    while (model->updating || model->adding)
        if (!core_begin(&model->own) || !core_end(&model->own, DW_OK)) return 0;
    return 1;
}

/* ---- generation, added later ---- */

static PyObject *model_add_generation(PyObject *object, PyObject *none) {
    core_model *self = (core_model *)object;
    (void)none;
    if (self->registry != NULL) core_registry_use(self->registry, 1);
    self->adding++;
    const int done = core_begin(&self->own) && core_end(&self->own, dw_model_add_generation(self->model));
    self->adding--;
    if (self->registry != NULL) core_registry_use(self->registry, -1);
    if (!done) return NULL;
    self->options.flags |= DW_MODEL_GENERATE;
    Py_RETURN_NONE;
}

/* The model borrows their memory from now on. */
static int keep_tensors(core_model *self, const core_tensors *tensors) {
    if (self->replaced == NULL) self->replaced = PyDict_New();
    int kept = self->replaced != NULL;
    for (int i = 0; kept && i < tensors->count; i++) kept = PyDict_SetItem(self->replaced, PyList_GetItem(tensors->names, i), tensors->owners[i]) == 0;
    return kept;
}

/* Weights stay where they were when the model was made: in the host's memory, or in that GPU's. */
static int are_in_place(const core_model *self, const core_tensors *tensors) {
    for (int i = 0; i < tensors->count; i++) {
        const char *name = tensors->rows[i].name, *is = tensors->places[i], *was = core_graph_place(self->source, name);
        if ((is == NULL && was == NULL) || (is != NULL && was != NULL && strcmp(is, was) == 0)) continue;
        core_fail(DW_MISMATCH, "weight '%s' is on %s, the model was made of one on %s: move it there", name, is ? is : "the CPU", was ? was : "the CPU");
        return 0;
    }
    return 1;
}

static int update(core_model *self, const core_tensors *tensors) {
    if (!are_in_place(self, tensors)) return 0;
    PyObject *before = self->replaced ? PyDict_Copy(self->replaced) : NULL;   /* lives until the old memory is not read any more */
    int done = before != NULL || self->replaced == NULL;
    self->updating = 1;
    if (done) done = core_begin(&self->own) && core_end(&self->own, dw_model_update(self->model, tensors->count, tensors->rows));
    if (done) done = keep_tensors(self, tensors);
    self->updating = 0;
    Py_XDECREF(before);
    return done;
}

/* (name, tensor) for a name alone: the tensor that the model has by it. A new reference, or NULL: raised. */
static PyObject *pair_of(core_model *self, PyObject *item) {
    if (!PyUnicode_Check(item)) {
        Py_INCREF(item);
        return item;
    }
    PyObject *bytes = PyUnicode_AsUTF8String(item), *tensor = bytes && self->replaced ? PyDict_GetItemWithError(self->replaced, bytes) : NULL;
    Py_XDECREF(bytes);
    if (tensor == NULL && !PyErr_Occurred()) tensor = core_graph_tensor(self->source, item);
    return tensor ? PyTuple_Pack(2, item, tensor) : NULL;
}

static PyObject *pairs_of(core_model *self, PyObject *given) {
    PyObject *list = PyDict_Check(given) ? PyDict_Items(given) : PySequence_List(given), *pairs = list ? PyList_New(0) : NULL;
    for (Py_ssize_t i = 0; pairs != NULL && i < PyList_Size(list); i++) {
        PyObject *pair = pair_of(self, PyList_GetItem(list, i));
        if (pair == NULL || PyList_Append(pairs, pair) < 0) Py_CLEAR(pairs);
        Py_XDECREF(pair);
    }
    Py_XDECREF(list);
    return pairs;
}

static PyObject *model_update(PyObject *object, PyObject *given) {
    core_model *self = (core_model *)object;
    core_tensors tensors;
    if (self->running > 0 || self->updating) return core_fail(DW_INVALID, "a session of the model is running: weights are updated between runs");
    if (self->exports > 0) return core_fail(DW_INVALID, "a kernel has kept %ld tensors of its operands, so weights cannot move; copy what must outlive the call", self->exports);
    PyObject *pairs = pairs_of(self, given);
    int done = pairs != NULL && core_tensors_read_anywhere(pairs, &tensors);
    Py_XDECREF(pairs);
    if (!done) return NULL;
    done = update(self, &tensors);
    core_tensors_free(&tensors);
    if (!done) return NULL;
    Py_RETURN_NONE;
}

/* ---- accuracy and speed: of the source, compiled anew ---- */

typedef struct report { int json; core_text text; core_tensors inputs; dw_bench_options bench; } report;

static dw_status check(core_model *self, report *report) {
    const char *path = core_graph_path(self->source);
    dw_graph *graph;
    if (path != NULL)
        return dw_check(self->own.context, path, &self->options, report->inputs.count, report->inputs.rows, report->json, core_gather, &report->text);
    dw_status status = core_graph_make(self->source, self->own.context, &graph);
    if (status != DW_OK) return status;
    return dw_check_graph(self->own.context, graph, &self->options, report->inputs.count, report->inputs.rows, report->json, core_gather, &report->text);
}

static dw_status bench(core_model *self, report *report) {
    const char *path = core_graph_path(self->source);
    dw_graph *graph;
    if (path != NULL) return dw_bench(self->own.context, path, &self->options, &report->bench, report->json, core_gather, &report->text);
    dw_status status = core_graph_make(self->source, self->own.context, &graph);
    return status == DW_OK ? dw_bench_graph(self->own.context, graph, &self->options, &report->bench, report->json, core_gather, &report->text) : status;
}

static PyObject *run_report(core_model *self, report *report, dw_status (*make)(core_model *self, struct report *report)) {
    PyObject *told = NULL;
    if (self->registry != NULL) core_registry_use(self->registry, 1);
    if (core_begin(&self->own) && core_end(&self->own, make(self, report))) told = core_text_take(&report->text);
    if (self->registry != NULL) core_registry_use(self->registry, -1);
    core_text_free(&report->text);
    return told;
}

static PyObject *model_check(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"inputs", "json", NULL};
    report report = {0};
    PyObject *inputs = NULL;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|Op", names, &inputs, &report.json) || !core_tensors_read(inputs, &report.inputs)) return NULL;
    PyObject *told = run_report((core_model *)object, &report, check);
    core_tensors_free(&report.inputs);
    return told;
}

static PyObject *model_bench(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"json", "prefill", "tokens", "repeat", NULL};
    report report = {0};
    long long prefill = 0, tokens = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|pLLi", names, &report.json, &prefill, &tokens, &report.bench.repeat)) return NULL;
    report.bench.prefill = prefill;
    report.bench.tokens = tokens;
    return run_report((core_model *)object, &report, bench);
}

/* ---- the report: of the model as it is ---- */

static PyObject *model_report(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"inputs", "dims", "prefill", "keys", "texts", "repeat", "whole", NULL};
    core_model *self = (core_model *)object;
    PyObject *inputs = NULL, *told = NULL;
    core_tensors tensors = {0};
    core_text text = {0};
    dw_report_options options = {0};
    long long prefill = 0, keys = 0, texts = 0;
    int whole = 1;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|OzLLLip", names, &inputs, &options.dims, &prefill, &keys, &texts, &options.repeat, &whole)) return NULL;
    if (!core_tensors_read(inputs, &tensors)) return NULL;
    options.prefill = prefill;
    options.keys = keys;
    options.texts = texts;
    options.flags = whole ? 0 : DW_REPORT_NO_WHOLE;
    if (core_model_enter(self)) {
        if (core_begin(&self->own) && core_end(&self->own, dw_report(self->own.context, self->model, &options, tensors.count, tensors.rows, core_gather, &text))) told = core_text_take(&text);
        core_model_leave(self);
    }
    core_text_free(&text);
    core_tensors_free(&tensors);
    return told;
}

PyObject *core_report_table(PyObject *module, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"facts", "all", "lines", NULL};
    const char *facts;
    Py_ssize_t length;
    dw_report_words words = {0};
    core_context own = {0};
    core_text text = {0};
    PyObject *told = NULL;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "s#|pi", names, &facts, &length, &words.all, &words.lines)) return NULL;
    if (core_context_open(&own, 1) && core_begin(&own) && core_end(&own, dw_report_print(own.context, facts, (size_t)length, &words, core_gather, &text))) told = core_text_take(&text);
    core_text_free(&text);
    core_context_close(&own);
    return told;
}

static PyMethodDef methods[] = {
    {"report", (PyCFunction)(void (*)(void))model_report, METH_VARARGS | METH_KEYWORDS,
     "report(inputs=(), dims=None, prefill=0, keys=0, texts=0, repeat=0, whole=True): each step of runs beside its bound, as JSON."},
    {"print", (PyCFunction)(void (*)(void))model_print, METH_VARARGS | METH_KEYWORDS,
     "print(what=\"summary\", json=False): summary, captured, fused, graph, step, plan, explain or memory; json is for summary and explain."},
    {"update", model_update, METH_O,
     "update(tensors): these weights, by name, have new values, or lie elsewhere where (name, tensor) pairs say so: what was computed from them is computed again. Mismatch for a weight whose "
     "values decided how the model was compiled: make another Model. No session of the model runs meanwhile."},
    {"add_generation", model_add_generation, METH_NOARGS,
     "add_generation(): what generate=True would have added: the cached step, and of its weights what runs do not have there already."},
    {"save", model_save, METH_VARARGS, "save(path): graph, plans and packed weights in one file."},
    {"check", (PyCFunction)(void (*)(void))model_check, METH_VARARGS | METH_KEYWORDS,
     "check(inputs=(), json=False): the source in fp32 beside the model's precision, on (name, tensor) pairs or on random inputs: errors per layer and at the outputs."},
    {"bench", (PyCFunction)(void (*)(void))model_bench, METH_VARARGS | METH_KEYWORDS,
     "bench(json=False, prefill=0, tokens=0, repeat=0): the source compiled and timed: a run at the sizes of dims, prefill and decode where it generates."},
    {"note", model_note, METH_VARARGS, "note(name): a fact that the file states, such as \"tokenizer\", or None."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"inputs", model_inputs, NULL, "[(name, \"f32[b,s,64]\"), ..]", NULL},
    {"outputs", model_outputs, NULL, "[(name, \"f32[b,s,64]\"), ..]", NULL},
    {"generate_reason", model_generate_reason, NULL, "Why it cannot generate with a cache; None when it can.", NULL},
    {"weight_bytes", model_weight_bytes, NULL, "Bytes that the weights take in the form that runs.", NULL},
    {"source", model_source, NULL, "The Graph that it was made of.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A compiled graph: immutable, shared by its sessions."},
    {Py_tp_new, model_new},
    {Py_tp_dealloc, model_dealloc},
    {Py_tp_traverse, model_traverse},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

static PyType_Spec spec = {"deepwell._core.Model", sizeof(core_model), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int core_add_model(PyObject *module) { return core_add_type(module, &spec, &core_model_type); }
