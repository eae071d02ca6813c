/* op: one op at once, without a graph. Tensors in block formats travel as (format, shape, data, scales, second). */
#include <string.h>

#include "operand.h"

enum { MOST_OPERANDS = 64, MOST_RESULTS = 4, PARTS = 3 };

typedef struct call {
    dw_tensor in[MOST_OPERANDS], out[MOST_RESULTS];
    const dw_tensor *inputs[MOST_OPERANDS], *outputs[MOST_RESULTS];
    PyObject *owners[MOST_OPERANDS * PARTS];   /* of the operands' memory */
    int input_count, output_count, owner_count;
} call;

/* ---- operands ---- */

static int read_tensor(call *call, PyObject *object, dw_tensor *tensor) {
    char what[32];
    PyOS_snprintf(what, sizeof what, "operand %d", call->input_count);
    if (!core_tensor_read(object, what, CORE_HOST, tensor, &call->owners[call->owner_count])) return 0;
    call->owner_count++;
    return 1;
}

/* One part of a block operand: as many bytes as it must have, without gaps. */
static int read_part(call *call, PyObject *object, const char *name, const dw_tensor *wanted, void **memory) {
    dw_tensor part;
    if (!read_tensor(call, object, &part)) return 0;
    int64_t stride = 1, expected = dw_format_bits(wanted->format) / 8, bytes = dw_format_bits(part.format) / 8;
    int gaps = 0;
    for (int i = 0; i < wanted->rank; i++) expected *= wanted->dims[i];
    for (int i = part.rank; i-- > 0; stride *= part.dims[i]) gaps |= part.dims[i] > 1 && part.strides[i] != stride;
    for (int i = 0; i < part.rank; i++) bytes *= part.dims[i];
    *memory = part.data;
    if (bytes == expected && !gaps) return 1;
    core_fail(DW_MISMATCH, "operand %d: %s has %lld bytes%s, the format and shape ask for %lld without gaps", call->input_count, name, (long long)bytes, gaps ? " and gaps" : "", (long long)expected);
    return 0;
}

static int read_shape(call *call, PyObject *shape, dw_tensor *tensor) {
    Py_ssize_t rank = PySequence_Size(shape);
    if (rank < 0 || rank > DW_MAX_RANK) {
        if (rank > 0) core_fail(DW_LIMIT, "operand %d has rank %zd; the largest is %d", call->input_count, rank, DW_MAX_RANK);
        return 0;
    }
    tensor->rank = (int)rank;
    int64_t stride = 1;
    for (int i = (int)rank; i-- > 0;) {
        PyObject *size = PySequence_GetItem(shape, i);
        tensor->dims[i] = size ? PyLong_AsLongLong(size) : -1;
        Py_XDECREF(size);
        if (tensor->dims[i] < 0 || tensor->dims[i] > ((int64_t)1 << 40)) {
            if (!PyErr_Occurred()) core_fail(DW_INVALID, "operand %d: size %lld of axis %d", call->input_count, (long long)tensor->dims[i], i);
            return 0;
        }
        tensor->strides[i] = stride;
        stride *= tensor->dims[i] > 0 ? tensor->dims[i] : 1;
        if (stride > ((int64_t)1 << 40)) {
            core_fail(DW_LIMIT, "operand %d has more than 2^40 elements", call->input_count);
            return 0;
        }
    }
    return 1;
}

static int read_block(call *call, PyObject *parts, dw_tensor *tensor) {
    const char *format;
    PyObject *shape, *data, *scales, *second = Py_None;
    if (!PyArg_ParseTuple(parts, "sOOO|O;a tensor in a block format is (format, shape, data, scales, second)", &format, &shape, &data, &scales, &second)) return 0;
    *tensor = (dw_tensor){.format = dw_format_find(format)};
    if (tensor->format == DW_FORMAT_COUNT || !dw_format_is_block(tensor->format)) {
        core_fail(DW_NOT_FOUND, "operand %d: %s is no block format", call->input_count, format);
        return 0;
    }
    if (!read_shape(call, shape, tensor)) return 0;
    dw_tensor data_part = core_data_of(tensor), scale_part = core_scales_of(tensor), second_part = core_second_of(tensor);
    void *memory;
    if (!read_part(call, data, "data", &data_part, &tensor->data) || !read_part(call, scales, "scales", &scale_part, &tensor->scales)) return 0;
    if (!core_has_second(tensor->format)) return 1;
    if (!read_part(call, second, "second", &second_part, &memory)) return 0;
    tensor->second = memory;
    return 1;
}

static int read_operands(call *call, PyObject *list) {
    Py_ssize_t count = PyList_Size(list);
    if (count > MOST_OPERANDS) {
        core_fail(DW_LIMIT, "%zd operands; at most %d", count, MOST_OPERANDS);
        return 0;
    }
    for (; call->input_count < count; call->input_count++) {
        PyObject *item = PyList_GetItem(list, call->input_count);
        dw_tensor *tensor = &call->in[call->input_count];
        if (item == NULL) return 0;
        if (item == Py_None) continue;
        if (PyTuple_Check(item) ? !read_block(call, item, tensor) : !read_tensor(call, item, tensor)) return 0;
        call->inputs[call->input_count] = tensor;
    }
    return 1;
}

/* ---- results ---- */

static PyObject *make_part(PyObject *make, dw_tensor part, void **memory) {
    PyObject *made = core_tensor_make(make, CORE_HOST, &part);
    *memory = made ? part.data : NULL;
    return made;
}

/* (format, shape, data, scales, second) with memory in tensor. */
static PyObject *make_block(PyObject *make, dw_tensor *tensor) {
    void *memory;
    PyObject *data = make_part(make, core_data_of(tensor), &tensor->data), *scales = data ? make_part(make, core_scales_of(tensor), &tensor->scales) : NULL;
    PyObject *second = Py_None;
    if (scales != NULL && core_has_second(tensor->format)) {
        second = make_part(make, core_second_of(tensor), &memory);
        tensor->second = memory;
    } else {
        Py_INCREF(second);
    }
    PyObject *shape = scales && second ? core_shape(tensor) : NULL;
    PyObject *made = shape ? Py_BuildValue("(sOOOO)", dw_format_name(tensor->format), shape, data, scales, second) : NULL;
    Py_XDECREF(shape);
    Py_XDECREF(second);
    Py_XDECREF(scales);
    Py_XDECREF(data);
    return made;
}

static PyObject *make_results(call *call, PyObject *make) {
    PyObject *results = PyTuple_New(call->output_count);
    for (int i = 0; results != NULL && i < call->output_count; i++) {
        dw_tensor *tensor = &call->out[i];
        PyObject *made = dw_format_is_block(tensor->format) ? make_block(make, tensor) : core_tensor_make(make, CORE_HOST, tensor);
        call->outputs[i] = tensor;
        if (made == NULL || PyTuple_SetItem(results, i, made) < 0) Py_CLEAR(results);
    }
    return results;
}

static PyObject *run(core_context *own, call *call, const char *op, const char *attributes, PyObject *make) {
    if (!core_begin(own) ||
        !core_end(own, dw_op_shapes(own->context, op, attributes, call->input_count, call->inputs, call->output_count, call->out)))
        return NULL;
    PyObject *results = make_results(call, make);
    if (results == NULL) return NULL;
    if (core_begin(own) && core_end(own, dw_op_run(own->context, op, attributes, NULL, call->input_count, call->inputs, call->output_count, call->outputs))) return results;
    Py_DECREF(results);
    return NULL;
}

PyObject *core_op(PyObject *module, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"name", "attributes", "inputs", "results", "make", "threads", NULL};
    const char *op, *attributes;
    PyObject *inputs, *make = Py_None, *results = NULL;
    call call = {.output_count = 1};
    core_context own = {0};
    int threads = 0;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "ssO|iOi", names, &op, &attributes, &inputs, &call.output_count, &make, &threads)) return NULL;
    if (call.output_count < 1 || call.output_count > MOST_RESULTS) return core_fail(DW_INVALID, "%d results; from 1 to %d", call.output_count, MOST_RESULTS);
    PyObject *list = PySequence_List(inputs);
    if (list != NULL && read_operands(&call, list) && core_context_open(&own, threads)) results = run(&own, &call, op, attributes, make);
    core_context_close(&own);
    for (int i = 0; i < call.owner_count; i++) Py_DECREF(call.owners[i]);
    Py_XDECREF(list);
    return results;
}
