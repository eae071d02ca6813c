/* Session.generate: prompts to token ids, through Deepwell's own cache. */
#include <stdlib.h>

#include "session.h"

typedef struct generation {
    core_session *session;
    PyObject *on_token;      /* or None */
    int row;                 /* of the prompt under way */
} generation;

/* int64 numbers of a sequence, or of a tensor, in malloc memory; false: raised. */
static int read_ids(PyObject *given, const char *what, int64_t **ids, int64_t *count) {
    *ids = NULL;
    PyObject *source = PyObject_HasAttrString(given, "tolist") ? PyObject_CallMethod(given, "tolist", NULL) : PySequence_List(given);
    PyObject *list = source && PyList_Check(source) ? source : NULL;
    if (list == NULL) {
        if (!PyErr_Occurred()) PyErr_Format(PyExc_TypeError, "%s is no sequence of integers", what);
        Py_XDECREF(source);
        return 0;
    }
    *count = PyList_Size(list);
    *ids = malloc((size_t)*count * sizeof **ids + 1);
    if (*ids == NULL) PyErr_NoMemory();
    for (int64_t i = 0; *ids != NULL && i < *count; i++) {
        (*ids)[i] = PyLong_AsLongLong(PyList_GetItem(list, i));
        if ((*ids)[i] == -1 && PyErr_Occurred()) {
            free(*ids);
            *ids = NULL;
        }
    }
    Py_DECREF(list);
    return *ids != NULL;
}

static PyObject *id_list(const int64_t *ids, int64_t count) {
    PyObject *list = PyList_New(count);
    for (int64_t i = 0; list != NULL && i < count; i++) {
        PyObject *id = PyLong_FromLongLong(ids[i]);
        if (id == NULL || PyList_SetItem(list, i, id) < 0) Py_CLEAR(list);
    }
    return list;
}

/* Non-zero ends the generation: the callable gave something true, or raised. */
static int tell_token(void *user, int64_t id) {
    generation *generation = user;
    core_context *own = &generation->session->own;
    int stop = 1;
    core_hold(own);
    PyObject *answer = PyObject_CallFunction(generation->on_token, "iL", generation->row, (long long)id);
    if (answer != NULL) stop = PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    if (answer == NULL || stop < 0) core_keep_error(own);
    core_drop(own);
    return stop != 0;
}

static PyObject *generate_one(generation *generation, PyObject *prompt, dw_generate_options *options) {
    core_session *self = generation->session;
    int64_t *ids, count, made = 0;
    PyObject *list = NULL;
    dw_generate_times times;
    if (options->tokens < 0 || options->tokens > (1 << 30)) return core_fail(DW_INVALID, "tokens is %lld; from 0 to 2^30", (long long)options->tokens);
    if (!read_ids(prompt, "the prompt", &ids, &count)) return NULL;
    int64_t *room = malloc((size_t)options->tokens * sizeof *room + 1);
    if (room == NULL) {
        PyErr_NoMemory();
    } else if (core_begin(&self->own)) {
        self->own.keep = (PyObject *)self;
        self->own.exports = &self->model->exports;
        int done = core_end(&self->own, dw_session_generate(self->session, count, ids, options, room, &made, &times));
        self->own.keep = NULL;
        if (done) {
            self->times = times;
            list = id_list(room, made);
        }
    }
    free(room);
    free(ids);
    return list;
}

static int is_list_of_prompts(PyObject *prompts) {
    if (!PyList_Check(prompts) || PyList_Size(prompts) == 0) return 0;
    PyObject *first = PyList_GetItem(prompts, 0);
    return PySequence_Check(first) && !PyUnicode_Check(first);
}

/* One prompt, or a list of prompts, each from position 0. */
static PyObject *generate_all(generation *generation, PyObject *prompts, dw_generate_options *options) {
    if (!is_list_of_prompts(prompts)) return generate_one(generation, prompts, options);
    Py_ssize_t count = PyList_Size(prompts);
    PyObject *all = PyList_New(0);
    for (Py_ssize_t i = 0; all != NULL && i < count; i++) {
        generation->row = (int)i;
        PyObject *prompt = PyList_GetItem(prompts, i), *made = prompt ? generate_one(generation, prompt, options) : NULL;
        if (made == NULL || PyList_Append(all, made) < 0) Py_CLEAR(all);
        Py_XDECREF(made);
    }
    return all;
}

PyObject *core_session_generate(PyObject *object, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"ids", "tokens", "temperature", "top_k", "top_p", "seed", "stop_ids", "on_token", "inputs", NULL};
    PyObject *prompts, *stop = NULL, *on_token = Py_None, *inputs = NULL;
    long long tokens;
    unsigned long long seed = 0;
    int64_t *stop_ids = NULL, stop_count = 0;
    dw_generate_options options = {0};
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OL|$didKOOO", names, &prompts, &tokens, &options.temperature, &options.top_k, &options.top_p, &seed, &stop,
                                     &on_token, &inputs))
        return NULL;
    generation generation = {.session = (core_session *)object, .on_token = on_token};
    core_tensors tensors;
    if (stop != NULL && stop != Py_None && !read_ids(stop, "stop_ids", &stop_ids, &stop_count)) return NULL;
    if (!core_tensors_read(inputs, &tensors)) {
        free(stop_ids);
        return NULL;
    }
    options.tokens = tokens;
    options.seed = seed;
    options.stop_ids = stop_ids;
    options.stop_count = (int)stop_count;
    options.inputs = tensors.rows;
    options.input_count = tensors.count;
    options.on_token = on_token != Py_None ? tell_token : NULL;
    options.user = &generation;
    PyObject *made = NULL;
    if (core_model_enter(generation.session->model)) {
        made = generate_all(&generation, prompts, &options);
        core_model_leave(generation.session->model);
    }
    core_tensors_free(&tensors);
    free(stop_ids);
    return made;
}

PyObject *core_session_times(PyObject *object, void *none) {
    const dw_generate_times *times = &((core_session *)object)->times;
    (void)none;
    return Py_BuildValue("{s:d,s:d,s:L,s:L,s:O}", "prefill_s", times->prefill_s, "decode_s", times->decode_s, "prompt_tokens", (long long)times->prompt_tokens,
                         "new_tokens", (long long)times->new_tokens, "cached", times->cached ? Py_True : Py_False);
}
