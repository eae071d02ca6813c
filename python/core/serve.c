/* Service: requests in, events out. The runs are in a thread of the library's own, which takes the GIL for masks alone: once for each token of a request that has one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

enum { EVENTS = 1024, WRITABLE = 0x200 };   /* PyBUF_WRITE, which the limited interface names from 3.11 on */

/* What a request asks which ids may be next. */
typedef struct core_mask {
    PyObject *callable;
    int64_t words;               /* of the mask's bits */
    uint64_t request;
    struct core_mask *next;
} core_mask;

typedef struct core_service {
    PyObject_HEAD
    core_context own;            /* of calls, one at a time */
    core_model *model;
    dw_service *service;
    core_mask *masks;            /* of requests whose end was not polled */
    int runs;
} core_service;

static int service_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)((core_service *)object)->model);
    for (const core_mask *mask = ((core_service *)object)->masks; mask != NULL; mask = mask->next) Py_VISIT(mask->callable);
    return 0;
}

/* ---- masks ---- */

static void drop_mask(core_mask *mask) {
    Py_DECREF(mask->callable);
    free(mask);
}

/* The request has ended, and asks no more. */
static void forget_mask(core_service *self, uint64_t request) {
    core_mask **at = &self->masks;
    while (*at != NULL && (*at)->request != request) at = &(*at)->next;
    core_mask *mask = *at;
    if (mask == NULL) return;
    *at = mask->next;
    drop_mask(mask);
}

/* In the service's loop. What the callable raises ends the text, and goes to sys.unraisablehook. */
static int ask_mask(void *user, int64_t last_id, uint32_t *bits) {
    const core_mask *mask = user;
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *words = PyMemoryView_FromMemory((char *)bits, mask->words * (int64_t)sizeof *bits, WRITABLE);
    PyObject *typed = words != NULL ? PyObject_CallMethod(words, "cast", "s", "I") : NULL;
    PyObject *answer = typed == NULL ? NULL : last_id >= 0 ? PyObject_CallFunction(mask->callable, "LO", (long long)last_id, typed) : PyObject_CallFunction(mask->callable, "OO", Py_None, typed);
    const int ends = answer == NULL ? 1 : PyObject_IsTrue(answer);
    if (answer == NULL || ends < 0) PyErr_WriteUnraisable(mask->callable);
    for (int i = 0; i < 2; i++) {   /* the memory is not the callable's to keep */
        PyObject *view = i == 0 ? typed : words, *released = view != NULL ? PyObject_CallMethod(view, "release", NULL) : NULL;
        if (view != NULL && released == NULL) PyErr_WriteUnraisable(mask->callable);
        Py_XDECREF(released);
        Py_XDECREF(view);
    }
    Py_XDECREF(answer);
    PyGILState_Release(state);
    return ends != 0;
}

/* Of a request that is about to be submitted; NULL: raised. */
static core_mask *make_mask(core_service *self, PyObject *callable, dw_request *request) {
    dw_service_facts facts;
    core_mask *mask = PyCallable_Check(callable) ? malloc(sizeof *mask) : NULL;
    if (mask == NULL) {
        if (PyCallable_Check(callable)) PyErr_NoMemory();
        else PyErr_SetString(PyExc_TypeError, "mask is no callable of (last_id, bits)");
        return NULL;
    }
    dw_service_measure(self->service, &facts);
    Py_INCREF(callable);
    *mask = (core_mask){.callable = callable, .words = (facts.vocabulary + 31) / 32};
    request->mask = ask_mask;
    request->user = mask;
    return mask;
}

static void service_dealloc(PyObject *object) {
    core_service *self = (core_service *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_BEGIN_ALLOW_THREADS
    dw_service_destroy(self->service);
    Py_END_ALLOW_THREADS
    for (core_mask *mask; (mask = self->masks) != NULL; drop_mask(mask)) self->masks = mask->next;
    if (self->runs) core_model_leave(self->model);
    core_context_close(&self->own);
    Py_XDECREF((PyObject *)self->model);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyObject *service_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"model", "rows", "run_tokens", "context", "page_tokens", "cache_bytes", "queue", "dims", "share", "lookahead", "times_device", NULL};
    PyObject *model;
    dw_service_options options = {0};
    long long rows = 0, run_tokens = 0, context = 0, page_tokens = 0;
    unsigned long long cache_bytes = 0;
    int share = 1, lookahead = 1, times_device = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!|$LLLLKizppp", names, core_model_type, &model, &rows, &run_tokens, &context, &page_tokens, &cache_bytes, &options.queue,
                                     &options.dims, &share, &lookahead, &times_device))
        return NULL;
    options.rows = rows;
    options.run_tokens = run_tokens;
    options.context = context;
    options.page_tokens = page_tokens;
    options.cache_bytes = cache_bytes;
    options.flags = (share ? 0 : DW_SERVICE_NO_SHARING) | (lookahead ? 0 : DW_SERVICE_NO_LOOKAHEAD) | (times_device ? DW_SERVICE_TIMES_DEVICE : 0);
    core_service *self = PyObject_GC_New(core_service, type);
    if (self == NULL) return NULL;
    memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
    Py_INCREF(model);
    self->model = (core_model *)model;
    PyObject_GC_Track((PyObject *)self);
    if (core_model_settle(self->model) && core_context_open(&self->own, self->model->threads) && core_begin(&self->own) &&
        core_end(&self->own, dw_service_create(self->own.context, self->model->model, &options, &self->service)))
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

/* ---- the loop ---- */

static PyObject *service_start(PyObject *object, PyObject *none) {
    core_service *self = (core_service *)object;
    (void)none;
    if (!self->runs && !core_model_enter(self->model)) return NULL;   /* weights are not updated meanwhile */
    const int ran = self->runs;
    self->runs = 1;
    if (core_begin(&self->own) && core_end(&self->own, dw_service_start(self->own.context, self->service))) Py_RETURN_NONE;
    if (!ran) {
        self->runs = 0;
        core_model_leave(self->model);
    }
    return NULL;
}

static PyObject *service_stop(PyObject *object, PyObject *arguments) {
    core_service *self = (core_service *)object;
    double drain_s = 0;
    if (!PyArg_ParseTuple(arguments, "|d", &drain_s)) return NULL;
    if (!core_begin(&self->own)) return NULL;
    const int done = core_end(&self->own, dw_service_stop(self->own.context, self->service, drain_s));
    if (self->runs) core_model_leave(self->model);
    self->runs = 0;
    if (!done) return NULL;
    Py_RETURN_NONE;
}

/* On a rank that does not lead: until the one that does stops. */
static PyObject *service_follow(PyObject *object, PyObject *none) {
    core_service *self = (core_service *)object;
    (void)none;
    if (!core_model_enter(self->model)) return NULL;
    const int done = core_begin(&self->own) && core_end(&self->own, dw_service_follow(self->own.context, self->service));
    core_model_leave(self->model);
    if (!done) return NULL;
    Py_RETURN_NONE;
}

/* ---- requests ---- */

/* Numbers of a sequence in malloc memory: as int64, or as float. false: raised. */
static int read_numbers(PyObject *given, int64_t **ids, float **numbers, int64_t *count) {
    PyObject *list = given != NULL && PyObject_HasAttrString(given, "tolist") ? PyObject_CallMethod(given, "tolist", NULL) : given != NULL ? PySequence_List(given) : PyList_New(0);
    if (list == NULL || !PyList_Check(list)) {
        Py_XDECREF(list);
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "ids are a sequence of integers");
        return 0;
    }
    *count = PyList_Size(list);
    void *memory = malloc((size_t)*count * (ids != NULL ? sizeof(int64_t) : sizeof(float)) + 1);
    if (memory == NULL) PyErr_NoMemory();
    for (int64_t i = 0; memory != NULL && i < *count && !PyErr_Occurred(); i++) {
        if (ids != NULL) ((int64_t *)memory)[i] = PyLong_AsLongLong(PyList_GetItem(list, i));
        else ((float *)memory)[i] = (float)PyFloat_AsDouble(PyList_GetItem(list, i));
    }
    Py_DECREF(list);
    if (ids != NULL) *ids = memory;
    else *numbers = memory;
    return !PyErr_Occurred();
}

/* What a request points to while it is submitted. */
typedef struct asked { int64_t *ids, *stop_ids, *bias_ids; float *bias; core_tensors inputs; } asked;

static PyObject *submit(core_service *self, dw_request *request, asked *asked, PyObject *ids, PyObject *stop_ids, PyObject *bias, PyObject *inputs) {
    int64_t stops, biases = 0, values = 0;
    uint64_t id;
    if (!read_numbers(ids, &asked->ids, NULL, &request->count) || !read_numbers(stop_ids, &asked->stop_ids, NULL, &stops)) return NULL;
    PyObject *keys = bias != NULL ? PyMapping_Keys(bias) : NULL, *numbers = bias != NULL ? PyMapping_Values(bias) : NULL;
    const int read = bias == NULL || (keys != NULL && numbers != NULL && read_numbers(keys, &asked->bias_ids, NULL, &biases) && read_numbers(numbers, NULL, &asked->bias, &values));
    Py_XDECREF(keys);
    Py_XDECREF(numbers);
    if (!read || (inputs != NULL && !core_tensors_read(inputs, &asked->inputs))) return NULL;
    request->ids = asked->ids;
    request->stop_ids = asked->stop_ids;
    request->stop_count = (int)stops;
    request->bias_ids = asked->bias_ids;
    request->bias = asked->bias;
    request->bias_count = (int)biases;
    request->inputs = asked->inputs.rows;
    request->input_count = asked->inputs.count;
    if (!core_begin(&self->own) || !core_end(&self->own, dw_service_submit(self->own.context, self->service, request, &id))) return NULL;
    return PyLong_FromUnsignedLongLong(id);
}

static PyObject *service_submit(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"ids", "tokens", "temperature", "top_k", "top_p", "min_p", "repetition", "presence", "frequency", "seed", "stop_ids", "bias", "logprobs", "top_logprobs", "priority",
                            "deadline_s", "salt", "inputs", "mask", NULL};
    PyObject *ids, *stop_ids = NULL, *bias = NULL, *inputs = NULL, *mask = NULL;
    core_service *self = (core_service *)object;
    core_mask *asking = NULL;
    dw_request request = {0};
    asked asked = {0};
    long long tokens;
    unsigned long long seed = 0, salt = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OL|$didddddKOOpiidKOO", names, &ids, &tokens, &request.temperature, &request.top_k, &request.top_p, &request.min_p, &request.repetition,
                                     &request.presence, &request.frequency, &seed, &stop_ids, &bias, &request.logprobs, &request.top_logprobs, &request.priority, &request.deadline_s, &salt,
                                     &inputs, &mask))
        return NULL;
    if (mask != NULL && mask != Py_None && (asking = make_mask(self, mask, &request)) == NULL) return NULL;
    request.tokens = tokens;
    request.seed = seed;
    request.salt = salt;
    PyObject *made = submit(self, &request, &asked, ids, stop_ids, bias, inputs);
    if (made == NULL && asking != NULL) drop_mask(asking);
    if (made != NULL && asking != NULL) {
        asking->request = PyLong_AsUnsignedLongLong(made);
        asking->next = self->masks;
        self->masks = asking;
    }
    core_tensors_free(&asked.inputs);
    free(asked.ids);
    free(asked.stop_ids);
    free(asked.bias_ids);
    free(asked.bias);
    return made;
}

static PyObject *service_cancel(PyObject *object, PyObject *arguments) {
    core_service *self = (core_service *)object;
    unsigned long long id;
    if (!PyArg_ParseTuple(arguments, "K", &id)) return NULL;
    if (!core_begin(&self->own) || !core_end(&self->own, dw_service_cancel(self->own.context, self->service, id))) return NULL;
    Py_RETURN_NONE;
}

/* ---- events ---- */

static PyObject *top_of(const dw_event *event) {
    PyObject *list = PyList_New(event->top_count);
    for (int i = 0; list != NULL && i < event->top_count; i++) {
        PyObject *pair = Py_BuildValue("(Ld)", (long long)event->top_ids[i], (double)event->top_logprobs[i]);
        if (pair == NULL || PyList_SetItem(list, i, pair) < 0) Py_CLEAR(list);
    }
    return list;
}

static PyObject *tuple_of(const dw_event *event) {
    PyObject *top = top_of(event), *id = event->id < 0 ? (Py_INCREF(Py_None), Py_None) : PyLong_FromLongLong(event->id);
    PyObject *logprob = isnan(event->logprob) ? (Py_INCREF(Py_None), Py_None) : PyFloat_FromDouble((double)event->logprob);
    if (top == NULL || id == NULL || logprob == NULL) return NULL;
    return Py_BuildValue("(KNLzNNLz)", (unsigned long long)event->request, id, (long long)event->index, event->end == DW_END_NONE ? NULL : dw_end_name(event->end), logprob, top,
                         (long long)event->cached, event->message);
}

static PyObject *service_poll(PyObject *object, PyObject *none) {
    static dw_event events[EVENTS];   /* with the GIL */
    const int count = dw_service_poll(((core_service *)object)->service, events, EVENTS);
    PyObject *list = PyList_New(count);
    (void)none;
    for (int i = 0; list != NULL && i < count; i++) {
        PyObject *event = tuple_of(&events[i]);
        if (events[i].end != DW_END_NONE) forget_mask((core_service *)object, events[i].request);
        if (event == NULL || PyList_SetItem(list, i, event) < 0) Py_CLEAR(list);
    }
    return list;
}

static PyObject *service_fileno(PyObject *object, PyObject *none) {
    (void)none;
    return PyLong_FromLong(dw_service_fd(((core_service *)object)->service));
}

static PyObject *service_facts(PyObject *object, PyObject *none) {
    core_service *self = (core_service *)object;
    core_text text = {0};
    (void)none;
    if (core_begin(&self->own) && core_end(&self->own, dw_service_print(self->own.context, self->service, core_gather, &text))) return core_text_take(&text);
    core_text_free(&text);
    return NULL;
}

static PyObject *service_leads(PyObject *object, void *none) {
    (void)none;
    return PyBool_FromLong(dw_service_leads(((core_service *)object)->service));
}

static PyGetSetDef properties[] = {{"leads", service_leads, NULL, "Does this rank take requests?", NULL}, {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef methods[] = {
    {"start", service_start, METH_NOARGS, "start(): runs in a thread of its own, without the GIL."},
    {"stop", service_stop, METH_VARARGS, "stop(drain_s=0): no more requests; those that are there get so many seconds."},
    {"follow", service_follow, METH_NOARGS, "follow(): on a rank that does not lead, what the one that does orders, until it stops."},
    {"submit", (PyCFunction)(void (*)(void))service_submit, METH_VARARGS | METH_KEYWORDS,
     "submit(ids, tokens, *, temperature=0, top_k=0, top_p=0, min_p=0, repetition=0, presence=0, frequency=0, seed=0, stop_ids=(), bias={}, logprobs=False, top_logprobs=0, priority=0, "
     "deadline_s=0, salt=0, inputs=(), mask=None): the request's number."},
    {"cancel", service_cancel, METH_VARARGS, "cancel(request): its pages are free before the next run."},
    {"poll", service_poll, METH_NOARGS,
     "poll(): a list of events (request, id or None, index, end or None, logprob or None, [(id, logprob), ..], cached, message or None), those that there are."},
    {"fileno", service_fileno, METH_NOARGS, "fileno(): readable while there are events."},
    {"facts", service_facts, METH_NOARGS, "facts(): counters, as JSON."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Requests in, events out."},
    {Py_tp_new, service_new},
    {Py_tp_dealloc, service_dealloc},
    {Py_tp_traverse, service_traverse},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, NULL},
};

static PyType_Spec spec = {"deepwell._core.Service", sizeof(core_service), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int core_add_service(PyObject *module) {
    PyTypeObject *type;
    return core_add_type(module, &spec, &type);
}
