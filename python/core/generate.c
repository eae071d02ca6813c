/* Session.generate: prompts to token ids, through Deepwell's own cache. */
#include <stdlib.h>
#include <string.h>

#include "session.h"

typedef struct generation {
    core_session *session;
    PyObject *on_token;      /* or None */
    int count;               /* of prompts */
    dw_prompt *prompts;      /* their ids and made_ids are malloc memory */
    PyObject *inputs;        /* of each prompt its own tensors, a list; NULL: all have those of the options */
    core_tensors *own;       /* read from it, as many as there are prompts */
} generation;

/* Those of a tensor of int64 side by side in the CPU's memory, as one piece. false: it is none, or something was raised. */
static int copy_ids(PyObject *given, const char *what, int64_t **ids, int64_t *count) {
    dw_tensor tensor;
    PyObject *owner;
    if (!PyObject_HasAttrString(given, "data_ptr")) return 0;
    if (!core_tensor_read(given, what, CORE_HOST, &tensor, &owner)) {
        PyErr_Clear();      /* of another place or dtype: as a sequence */
        return 0;
    }
    if (tensor.format == DW_FORMAT_i64 && tensor.rank == 1 && (tensor.dims[0] < 2 || tensor.strides[0] == 1)) {
        *count = tensor.dims[0];
        *ids = malloc((size_t)*count * sizeof **ids + 1);
        if (*ids == NULL) PyErr_NoMemory();
        else if (*count > 0) memcpy(*ids, tensor.data, (size_t)*count * sizeof **ids);
    }
    Py_DECREF(owner);
    return *ids != NULL;
}

/* int64 numbers of a sequence, or of a tensor, in malloc memory; false: raised. */
static int read_ids(PyObject *given, const char *what, int64_t **ids, int64_t *count) {
    *ids = NULL;
    if (copy_ids(given, what, ids, count)) return 1;
    if (PyErr_Occurred()) return 0;
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
static int tell_token(void *user, int prompt, int64_t id) {
    generation *generation = user;
    core_context *own = &generation->session->own;
    int stop = 1;
    core_hold(own);
    PyObject *answer = PyObject_CallFunction(generation->on_token, "iL", prompt, (long long)id);
    if (answer != NULL) stop = PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    if (answer == NULL || stop < 0) core_keep_error(own);
    core_drop(own);
    return stop != 0;
}

static int is_list_of_prompts(PyObject *prompts) {
    if (!PyList_Check(prompts) || PyList_Size(prompts) == 0) return 0;
    PyObject *first = PyList_GetItem(prompts, 0);
    if (PyObject_HasAttrString(first, "data_ptr")) {      /* a tensor is no sequence, and one of one number no prompt */
        const int is_row = PyObject_Size(first) >= 0;
        PyErr_Clear();
        return is_row;
    }
    return PySequence_Check(first) && !PyUnicode_Check(first);
}

/* Tensors by name for each prompt, rather than for all? */
static int is_list_of_inputs(PyObject *inputs) {
    if (inputs == NULL || !PyList_Check(inputs) || PyList_Size(inputs) == 0) return 0;
    PyObject *first = PyList_GetItem(inputs, 0);
    return PyList_Check(first) || PyDict_Check(first);
}

/* Adds a prompt with room for what continues it; false: raised. */
static int add_prompt(generation *generation, PyObject *ids, const dw_generate_options *options) {
    dw_prompt *prompt = &generation->prompts[generation->count];
    int64_t *read;
    if (!read_ids(ids, "the prompt", &read, &prompt->count)) return 0;
    prompt->ids = read;
    prompt->seed = options->seed + (uint64_t)generation->count;
    prompt->made_ids = malloc((size_t)options->tokens * sizeof *prompt->made_ids + 1);
    const int row = generation->count++;
    if (prompt->made_ids == NULL) PyErr_NoMemory();
    if (prompt->made_ids == NULL || generation->inputs == NULL) return prompt->made_ids != NULL;
    PyObject *inputs = PyList_GetItem(generation->inputs, row);   /* NULL where the list has shrunk meanwhile */
    if (inputs == NULL || !core_tensors_read(inputs, &generation->own[row])) return 0;
    prompt->inputs = generation->own[row].rows;
    prompt->input_count = generation->own[row].count;
    return 1;
}

static int read_prompts(generation *generation, PyObject *given, int many, const dw_generate_options *options) {
    Py_ssize_t count = many ? PyList_Size(given) : 1;
    if (count > INT32_MAX || options->tokens < 0 || options->tokens > (1 << 30)) {
        core_fail(DW_INVALID, "tokens is %lld for %zd prompts; from 0 to 2^30 for less than 2^31 prompts", (long long)options->tokens, count);
        return 0;
    }
    if (generation->inputs != NULL && PyList_Size(generation->inputs) != count) {
        core_fail(DW_MISMATCH, "inputs is a list of %zd, for %zd prompts", PyList_Size(generation->inputs), count);
        return 0;
    }
    generation->prompts = calloc((size_t)count, sizeof *generation->prompts);
    generation->own = calloc((size_t)count, sizeof *generation->own);
    int done = generation->prompts != NULL && generation->own != NULL;
    if (!done) PyErr_NoMemory();
    for (Py_ssize_t i = 0; done && i < count; i++) {
        PyObject *ids = many ? PyList_GetItem(given, i) : given;   /* NULL where the list has shrunk meanwhile */
        done = ids != NULL && add_prompt(generation, ids, options);
    }
    return done;
}

static PyObject *made_of(const generation *generation, int many) {
    if (!many) return id_list(generation->prompts[0].made_ids, generation->prompts[0].made);
    PyObject *all = PyList_New(generation->count);
    for (int i = 0; all != NULL && i < generation->count; i++) {
        PyObject *made = id_list(generation->prompts[i].made_ids, generation->prompts[i].made);
        if (made == NULL || PyList_SetItem(all, i, made) < 0) Py_CLEAR(all);
    }
    return all;
}

/* One prompt, or a list of prompts, each from position 0. */
static PyObject *generate_all(generation *generation, PyObject *given, const dw_generate_options *options) {
    core_session *self = generation->session;
    int many = is_list_of_prompts(given), done = 0;
    dw_generate_times times;
    if (read_prompts(generation, given, many, options) && core_begin(&self->own)) {
        self->own.keep = (PyObject *)self;
        self->own.exports = &self->model->exports;
        done = core_end(&self->own, dw_session_generate_batch(self->session, generation->count, generation->prompts, options, &times));
        self->own.keep = NULL;
    }
    if (done) self->times = times;
    PyObject *made = done ? made_of(generation, many) : NULL;
    for (int i = 0; i < generation->count; i++) {
        free((void *)generation->prompts[i].ids);
        free(generation->prompts[i].made_ids);
        core_tensors_free(&generation->own[i]);
    }
    free(generation->prompts);
    free(generation->own);
    return made;
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
    if (is_list_of_inputs(inputs)) generation.inputs = inputs;
    if (!core_tensors_read(generation.inputs != NULL ? NULL : inputs, &tensors)) {
        free(stop_ids);
        return NULL;
    }
    options.tokens = tokens;
    options.seed = seed;
    options.stop_ids = stop_ids;
    options.stop_count = (int)stop_count;
    options.inputs = tensors.rows;
    options.input_count = tensors.count;
    options.on_prompt_token = on_token != Py_None ? tell_token : NULL;
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
