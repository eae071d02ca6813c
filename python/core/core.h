/* What the files of the extension share. It speaks the limited API of Python 3.9 and Deepwell's public interface, and knows torch by the attributes of
 * its objects alone. Module state is in statics: one interpreter per process, as torch has it.
 *
 * Locks: each Graph, Model and Session has a core_context. core_begin takes it and lets go of the GIL, core_end the other way round; the second
 * thread waits. Nothing else is locked. */
#ifndef CORE_H
#define CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>

#include "deepwell/deepwell.h"

/* ---- errors.c ---- */

/* Error and one subclass per status, in the module. */
int core_add_errors(PyObject *module);
/* Raises the exception of the status; message NULL: what the status means. Returns NULL. */
PyObject *core_raise(dw_status status, const char *message);
int core_warn(const char *text);                /* as DeepwellWarning; false: raised */
PyObject *core_fail(dw_status status, const char *format, ...);   /* format as of PyUnicode_FromFormat */

/* ---- context.c: a context, who uses it, and what was raised meanwhile ---- */

typedef struct core_context {
    dw_context *context;
    pthread_mutex_t mutex;
    unsigned long owner;                        /* the thread inside; 0: none. Changed with the mutex, read by whoever has the GIL */
    PyThreadState *thread;                      /* of the owner, while it is without the GIL */
    PyObject *type, *value, *traceback;         /* raised by a callback: goes on when the call returns */
    double polled_at;
    struct core_context *outer;                 /* that this thread was inside of before */
    PyObject *keep;                             /* borrowed: what the operands of the run under way live as long as; NULL: they do not */
    long *exports;                              /* with keep: how many tensors over them are out */
    int made;                                   /* the mutex exists */
} core_context;

/* false: raised. */
int core_context_open(core_context *own, int threads);
void core_context_close(core_context *own);
/* Takes the context, waiting for another thread, and lets go of the GIL; false: raised (a signal came, or this thread is inside already). */
int core_begin(core_context *own);
/* Takes the GIL and gives the context back; raises what a callback raised, or the status with the context's message. true: status is OK. */
int core_end(core_context *own, dw_status status);
/* The one that this thread is inside of; NULL: none. */
core_context *core_current(void);
/* For callbacks inside: with the GIL from core_hold to core_drop. */
void core_hold(core_context *own);
void core_drop(core_context *own);
/* With the GIL: what is raised now goes on when the call returns. */
void core_keep_error(core_context *own);

/* ---- text.c: a dw_sink that gathers ---- */

typedef struct core_text { char *bytes; size_t length, room; int failed; } core_text;
void core_gather(void *text, const char *piece, size_t length);
PyObject *core_text_take(core_text *text);      /* as str; frees the text. NULL: raised */
void core_text_free(core_text *text);

/* ---- tensor.c: tensors of torch, or of anybody who speaks DLPack, without a copy ---- */

/* Where a tensor's memory has to be: the host's, or that of the GPU of this number. */
enum { CORE_HOST = -1 };
/* Fills tensor; *owner (a new reference) keeps its memory alive. false: raised, also where it lies elsewhere. what names it in messages. */
int core_tensor_read(PyObject *object, const char *what, int place, dw_tensor *tensor, PyObject **owner);
/* A new tensor of this shape from make(shape, format's name), torch.empty when make is None, and its memory; tensor has format, rank and dims. NULL: raised. */
PyObject *core_tensor_make(PyObject *make, int place, dw_tensor *tensor);
PyObject *core_shape(const dw_tensor *tensor);

/* Tensors by name: a list of (name, tensor) or a dict. Freed by core_tensors_free. */
typedef struct core_place { char name[16]; } core_place;
typedef struct core_tensors {
    int count;
    dw_named_tensor *rows;
    const char **places;       /* "cuda:0", NULL for the host's memory; those are in place_names */
    core_place *place_names;
    PyObject **owners;
    PyObject *names;
} core_tensors;
int core_tensors_read(PyObject *pairs, core_tensors *tensors);
/* The same, in the memory of the host or of GPUs. */
int core_tensors_read_anywhere(PyObject *pairs, core_tensors *tensors);
void core_tensors_free(core_tensors *tensors);
int core_tensors_visit(const core_tensors *tensors, visitproc visit, void *arg);

/* ---- graph.c ---- */

extern PyTypeObject *core_graph_type, *core_model_type, *core_session_type;
int core_add_graph(PyObject *module);
int core_add_model(PyObject *module);
int core_add_session(PyObject *module);
int core_add_service(PyObject *module);   /* serve.c */

/* The graph anew in that context, or NULL with the status of it. Without the GIL. */
dw_status core_graph_make(PyObject *graph, dw_context *context, dw_graph **made);
PyObject *core_graph_of_file(PyObject *path);   /* one that stands for the file at this path, not read yet */
/* The tensor that it was given under this name, borrowed; NULL: raised. */
PyObject *core_graph_tensor(PyObject *graph, PyObject *name);
/* The GPU that the graph's tensor of that name was given on, "cuda:0"; NULL: the host, or there is none. */
const char *core_graph_place(PyObject *graph, const char *name);
const char *core_graph_path(PyObject *graph);   /* of one that stands for a file; else NULL */

/* ---- model.c ---- */

typedef struct core_model {
    PyObject_HEAD
    core_context own;
    dw_model *model;
    PyObject *source;          /* the Graph */
    PyObject *strings;         /* list of bytes: those of options */
    PyObject *registry, *comm; /* or NULL */
    long exports;              /* tensors over its sessions' memory that kernels have kept. With the GIL */
    PyObject *replaced;        /* dict: weights given by update, which the model borrows instead of the source's; NULL: none */
    int running, updating;     /* how many sessions are inside a run; whether update, */
    int adding;                /* or add_generation, is under way. With the GIL */
    dw_model_options options;
    int threads;
} core_model;

/* Around runs of sessions: waits while the weights are being updated. false: raised. */
int core_model_enter(core_model *model);
void core_model_leave(core_model *model);
/* Before a session is made: waits while weights are updated or generation is added. false: raised. */
int core_model_settle(core_model *model);
/* report_table(facts, all=False, lines=0) of the module. */
PyObject *core_report_table(PyObject *module, PyObject *arguments, PyObject *keywords);

/* ---- registry.c ---- */

extern PyTypeObject *core_registry_type;
int core_add_registry(PyObject *module);
dw_registry *core_registry_of(PyObject *registry);
/* While a model is made of it nothing is added. */
void core_registry_use(PyObject *registry, int change);

/* ---- comm.c ---- */

extern PyTypeObject *core_comm_type;
int core_add_comm(PyObject *module);
dw_comm *core_comm_of(PyObject *comm);

/* ---- op.c ---- */

PyObject *core_op(PyObject *module, PyObject *arguments, PyObject *keywords);

/* ---- session.c and module.c ---- */

/* The type of spec in *type and under its name in the module. */
int core_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type);
/* tp_new of types that are made by calls alone. */
PyObject *core_no_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords);

#endif
