/* What the files of Session share. */
#ifndef SESSION_H
#define SESSION_H

#include "core.h"

typedef struct core_session {
    PyObject_HEAD
    core_context own;
    dw_session *session;
    core_model *model;
    int input_count, output_count;
    int place;                 /* where inputs and outputs of runs are: CORE_HOST or a GPU's number */
    long long growths;         /* how often runs asked for more room than there was */
    dw_generate_times times;   /* of the last generation */
} core_session;

/* generate.c */
PyObject *core_session_generate(PyObject *object, PyObject *arguments, PyObject *keywords);
PyObject *core_session_times(PyObject *object, void *none);

#endif
