/* Tensors across the border, never copied: torch's by their attributes, everybody else's by DLPack. */
#include "core.h"
#include "dlpack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Which dtype of torch holds which format. */
static const struct { dw_format format; const char *dtype; } dtypes[] = {
    {DW_FORMAT_f32, "float32"},       {DW_FORMAT_bf16, "bfloat16"},      {DW_FORMAT_f16, "float16"},
    {DW_FORMAT_f64, "float64"},       {DW_FORMAT_i64, "int64"},          {DW_FORMAT_i32, "int32"},
    {DW_FORMAT_i16, "int16"},         {DW_FORMAT_i8, "int8"},            {DW_FORMAT_u8, "uint8"},
    {DW_FORMAT_bool, "bool"},         {DW_FORMAT_e4m3, "float8_e4m3fn"}, {DW_FORMAT_e5m2, "float8_e5m2"},
    {DW_FORMAT_e8m0, "float8_e8m0fnu"},
};
enum { DTYPE_COUNT = sizeof dtypes / sizeof dtypes[0] };

/* ---- names of attributes, made once ---- */

static PyObject *name_data_ptr, *name_shape, *name_stride, *name_dtype, *name_is_cpu, *name_is_cuda, *name_get_device, *name_dlpack, *name_empty;
static PyObject *formats;                           /* dtype -> int */
static PyObject *torch_empty, *empty_options[DW_FORMAT_COUNT];   /* {"dtype": ..} */

static int prepare(void) {
    if (formats != NULL) return 1;
    name_data_ptr = PyUnicode_InternFromString("data_ptr");
    name_shape = PyUnicode_InternFromString("shape");
    name_stride = PyUnicode_InternFromString("stride");
    name_dtype = PyUnicode_InternFromString("dtype");
    name_is_cpu = PyUnicode_InternFromString("is_cpu");
    name_is_cuda = PyUnicode_InternFromString("is_cuda");
    name_get_device = PyUnicode_InternFromString("get_device");
    name_dlpack = PyUnicode_InternFromString("__dlpack__");
    name_empty = PyUnicode_InternFromString("empty");
    if (!name_data_ptr || !name_shape || !name_stride || !name_dtype || !name_is_cpu || !name_is_cuda || !name_get_device || !name_dlpack || !name_empty) return 0;
    formats = PyDict_New();
    return formats != NULL;
}

/* ---- torch ---- */

/* "torch.float32" -> f32 */
static int find_format(PyObject *dtype, const char *what, dw_format *format) {
    PyObject *known = PyDict_GetItemWithError(formats, dtype);
    if (known != NULL) {
        *format = (dw_format)PyLong_AsLong(known);
        return 1;
    }
    if (PyErr_Occurred()) return 0;
    PyObject *text = PyObject_Str(dtype), *bytes = text ? PyUnicode_AsUTF8String(text) : NULL;
    const char *name = bytes ? PyBytes_AsString(bytes) : NULL;
    int found = 0;
    for (int i = 0; name != NULL && i < DTYPE_COUNT && !found; i++) {
        if (strncmp(name, "torch.", 6) != 0 || strcmp(name + 6, dtypes[i].dtype) != 0) continue;
        PyObject *number = PyLong_FromLong(dtypes[i].format);
        *format = dtypes[i].format;
        found = number != NULL && PyDict_SetItem(formats, dtype, number) == 0;
        Py_XDECREF(number);
        if (!found) name = NULL;
    }
    if (!found && name != NULL) core_fail(DW_UNSUPPORTED, "%s has dtype %s, which has no format here", what, name);
    Py_XDECREF(bytes);
    Py_XDECREF(text);
    return found;
}

static int read_sizes(PyObject *tuple, const char *what, int rank, int64_t *sizes) {
    for (int i = 0; i < rank; i++) {
        PyObject *item = PyTuple_GetItem(tuple, i);
        sizes[i] = item ? PyLong_AsLongLong(item) : -1;
        if (sizes[i] == -1 && PyErr_Occurred()) return 0;
    }
    (void)what;
    return 1;
}

static int read_rank(PyObject *shape, const char *what, int *rank) {
    Py_ssize_t size = PyTuple_Check(shape) ? PyTuple_Size(shape) : -1;
    if (size < 0 || size > DW_MAX_RANK) {
        core_fail(DW_LIMIT, "%s has rank %zd; the largest is %d", what, size, DW_MAX_RANK);
        return 0;
    }
    *rank = (int)size;
    return 1;
}

static int has_memory(const dw_tensor *tensor, const char *what) {
    int64_t count = 1;
    for (int i = 0; i < tensor->rank; i++) count *= tensor->dims[i] != 0;
    if (tensor->data != NULL || count == 0) return 1;
    core_fail(DW_INVALID, "%s has no memory: it is a fake tensor or lies on the meta device", what);
    return 0;
}

/* Is object.name True? -1: raised. */
static int is_true(PyObject *object, PyObject *name) {
    PyObject *value = PyObject_GetAttr(object, name);
    int is = value == NULL ? -1 : value == Py_True;
    Py_XDECREF(value);
    return is;
}

static int is_on_gpu(PyObject *object, const char *what, int place) {
    int is_cuda = is_true(object, name_is_cuda);
    if (is_cuda < 0) return 0;
    if (is_cuda == 0) {
        core_fail(DW_MISMATCH, "%s is not in the memory of GPU %d, where the model is: move it by .to(\"cuda:%d\")", what, place, place);
        return 0;
    }
    PyObject *number = PyObject_CallMethodObjArgs(object, name_get_device, NULL);
    long index = number ? PyLong_AsLong(number) : -1;
    Py_XDECREF(number);
    if (PyErr_Occurred()) return 0;
    if (index == place) return 1;
    core_fail(DW_MISMATCH, "%s is in the memory of GPU %ld, the model in that of GPU %d: move it by .to(\"cuda:%d\")", what, index, place, place);
    return 0;
}

static int is_in_place(PyObject *object, const char *what, int place) {
    if (place != CORE_HOST) return is_on_gpu(object, what, place);
    int is_cpu = is_true(object, name_is_cpu);
    if (is_cpu == 0) core_fail(DW_UNSUPPORTED, "%s is not in the CPU's memory, where it is read: move it by .cpu()", what);
    return is_cpu > 0;
}

static int read_torch(PyObject *object, PyObject *data_ptr, const char *what, int place, dw_tensor *tensor) {
    PyObject *shape = NULL, *stride = NULL, *dtype = NULL, *address = NULL;
    int done = 0;
    if (!is_in_place(object, what, place)) return 0;
    shape = PyObject_GetAttr(object, name_shape);
    dtype = shape ? PyObject_GetAttr(object, name_dtype) : NULL;
    stride = dtype ? PyObject_CallMethodObjArgs(object, name_stride, NULL) : NULL;
    address = stride ? PyObject_CallObject(data_ptr, NULL) : NULL;
    if (address == NULL || !find_format(dtype, what, &tensor->format) || !read_rank(shape, what, &tensor->rank)) goto end;
    if (!PyTuple_Check(stride) || PyTuple_Size(stride) != tensor->rank) {
        core_fail(DW_MISMATCH, "%s has strides of another rank than its shape", what);
        goto end;
    }
    if (!read_sizes(shape, what, tensor->rank, tensor->dims) || !read_sizes(stride, what, tensor->rank, tensor->strides)) goto end;
    tensor->data = PyLong_AsVoidPtr(address);
    done = !PyErr_Occurred() && has_memory(tensor, what);
end:
    Py_XDECREF(address);
    Py_XDECREF(dtype);
    Py_XDECREF(stride);
    Py_XDECREF(shape);
    return done;
}

/* ---- DLPack ---- */

static const struct { uint8_t code, bits; dw_format format; } dl_formats[] = {
    {DL_FLOAT, 32, DW_FORMAT_f32}, {DL_FLOAT, 64, DW_FORMAT_f64}, {DL_FLOAT, 16, DW_FORMAT_f16}, {DL_BFLOAT, 16, DW_FORMAT_bf16},
    {DL_INT, 64, DW_FORMAT_i64},   {DL_INT, 32, DW_FORMAT_i32},   {DL_INT, 16, DW_FORMAT_i16},   {DL_INT, 8, DW_FORMAT_i8},
    {DL_UINT, 8, DW_FORMAT_u8},    {DL_BOOL, 8, DW_FORMAT_bool},
};

void core_dl_type(dw_format format, dl_type *type) {
    *type = (dl_type){DL_UINT, 8, 1};
    for (size_t i = 0; i < sizeof dl_formats / sizeof dl_formats[0]; i++)
        if (dl_formats[i].format == format) *type = (dl_type){dl_formats[i].code, dl_formats[i].bits, 1};
}

static int take_dl(const dl_tensor *from, const char *what, dw_tensor *tensor) {
    tensor->format = DW_FORMAT_COUNT;
    for (size_t i = 0; i < sizeof dl_formats / sizeof dl_formats[0]; i++)
        if (from->type.code == dl_formats[i].code && from->type.bits == dl_formats[i].bits && from->type.lanes == 1) tensor->format = dl_formats[i].format;
    if (tensor->format == DW_FORMAT_COUNT) {
        core_fail(DW_UNSUPPORTED, "%s has a type (DLPack code %d, %d bits) that has no format here", what, from->type.code, from->type.bits);
        return 0;
    }
    if (from->device.type != DL_CPU && from->device.type != DL_CUDA_HOST) {
        core_fail(DW_UNSUPPORTED, "%s is not in the CPU's memory, where it is read", what);
        return 0;
    }
    if (from->rank < 0 || from->rank > DW_MAX_RANK) {
        core_fail(DW_LIMIT, "%s has rank %d; the largest is %d", what, from->rank, DW_MAX_RANK);
        return 0;
    }
    tensor->rank = from->rank;
    int64_t stride = 1;
    for (int i = from->rank; i-- > 0;) {
        tensor->dims[i] = from->shape[i];
        tensor->strides[i] = from->strides ? from->strides[i] : stride;
        stride *= from->shape[i];
    }
    tensor->data = from->data ? (char *)from->data + from->offset : NULL;
    return has_memory(tensor, what);
}

static int read_dlpack(PyObject *object, const char *what, dw_tensor *tensor, PyObject **owner) {
    PyObject *capsule = PyObject_CallMethodObjArgs(object, name_dlpack, NULL);
    if (capsule == NULL) return 0;
    dl_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
    if (managed == NULL || !take_dl(&managed->tensor, what, tensor)) {
        Py_DECREF(capsule);
        return 0;
    }
    *owner = capsule;   /* whose destructor releases what nobody took */
    return 1;
}

int core_tensor_read(PyObject *object, const char *what, int place, dw_tensor *tensor, PyObject **owner) {
    *owner = NULL;
    *tensor = (dw_tensor){0};
    if (!prepare()) return 0;
    PyObject *data_ptr = PyObject_GetAttr(object, name_data_ptr);
    if (data_ptr != NULL) {
        int done = read_torch(object, data_ptr, what, place, tensor);
        Py_DECREF(data_ptr);
        if (!done) return 0;
        Py_INCREF(object);
        *owner = object;
        return 1;
    }
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return 0;
    PyErr_Clear();
    if (place == CORE_HOST && PyObject_HasAttr(object, name_dlpack)) return read_dlpack(object, what, tensor, owner);
    if (place != CORE_HOST) PyErr_Format(PyExc_TypeError, "%s is no tensor of a GPU that can be read: it has no data_ptr()", what);
    else PyErr_Format(PyExc_TypeError, "%s is no tensor: it has neither data_ptr() nor __dlpack__()", what);
    return 0;
}

/* ---- new tensors ---- */

PyObject *core_shape(const dw_tensor *tensor) {
    PyObject *shape = PyTuple_New(tensor->rank);
    for (int i = 0; shape != NULL && i < tensor->rank; i++) {
        PyObject *size = PyLong_FromLongLong(tensor->dims[i]);
        if (size == NULL || PyTuple_SetItem(shape, i, size) < 0) Py_CLEAR(shape);
    }
    return shape;
}

/* {"dtype": torch.<dtype>} */
static PyObject *make_options(PyObject *torch, dw_format format) {
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (dtypes[i].format != format) continue;
        PyObject *dtype = PyObject_GetAttrString(torch, dtypes[i].dtype), *options = dtype ? PyDict_New() : NULL;
        if (options != NULL && PyDict_SetItem(options, name_dtype, dtype) < 0) Py_CLEAR(options);
        Py_XDECREF(dtype);
        return options;
    }
    return core_fail(DW_UNSUPPORTED, "no dtype of torch holds format %s", dw_format_name(format));
}

static PyObject *empty_of_torch(PyObject *shape, dw_format format) {
    if (torch_empty == NULL || empty_options[format] == NULL) {
        PyObject *torch = PyImport_ImportModule("torch");
        if (torch == NULL) return NULL;
        if (torch_empty == NULL) torch_empty = PyObject_GetAttr(torch, name_empty);
        if (torch_empty != NULL) empty_options[format] = make_options(torch, format);
        Py_DECREF(torch);
        if (empty_options[format] == NULL) return NULL;
    }
    PyObject *arguments = PyTuple_Pack(1, shape);
    PyObject *made = arguments ? PyObject_Call(torch_empty, arguments, empty_options[format]) : NULL;
    Py_XDECREF(arguments);
    return made;
}

PyObject *core_tensor_make(PyObject *make, int place, dw_tensor *tensor) {
    PyObject *shape = prepare() ? core_shape(tensor) : NULL, *made = NULL, *owner;
    dw_tensor got;
    if (shape == NULL) return NULL;
    if (make == Py_None) {
        made = empty_of_torch(shape, tensor->format);
    } else {
        PyObject *name = PyUnicode_FromString(dw_format_name(tensor->format));
        if (name != NULL) made = PyObject_CallFunctionObjArgs(make, shape, name, NULL);
        Py_XDECREF(name);
    }
    Py_DECREF(shape);
    if (made == NULL) return NULL;
    if (!core_tensor_read(made, "a tensor from make", place, &got, &owner)) {
        Py_DECREF(made);
        return NULL;
    }
    Py_DECREF(owner);   /* made keeps it */
    int fits = got.format == tensor->format && got.rank == tensor->rank;
    for (int i = 0; fits && i < got.rank; i++) fits = got.dims[i] == tensor->dims[i];
    if (!fits) {
        Py_DECREF(made);
        return core_fail(DW_MISMATCH, "make gave a tensor of another shape or dtype than it was asked for");
    }
    *tensor = got;
    return made;
}

/* ---- named tensors ---- */

void core_tensors_free(core_tensors *tensors) {
    for (int i = 0; i < tensors->count; i++) Py_XDECREF(tensors->owners[i]);
    free(tensors->rows);
    free(tensors->owners);
    free(tensors->places);
    free(tensors->place_names);
    Py_CLEAR(tensors->names);
    *tensors = (core_tensors){0};
}

int core_tensors_visit(const core_tensors *tensors, visitproc visit, void *arg) {
    for (int i = 0; i < tensors->count; i++) Py_VISIT(tensors->owners[i]);
    return 0;
}

/* The GPU that a tensor of torch lies on; CORE_HOST: on none. -2: raised. */
static int gpu_of_tensor(PyObject *object) {
    if (!prepare()) return -2;
    if (!PyObject_HasAttr(object, name_is_cuda)) return CORE_HOST;
    const int is_cuda = is_true(object, name_is_cuda);
    if (is_cuda <= 0) return is_cuda < 0 ? -2 : CORE_HOST;
    PyObject *number = PyObject_CallMethodObjArgs(object, name_get_device, NULL);
    const long index = number ? PyLong_AsLong(number) : -1;
    Py_XDECREF(number);
    return PyErr_Occurred() ? -2 : (int)index;
}

static int read_pair(core_tensors *tensors, PyObject *pair, int anywhere) {
    PyObject *name = PyTuple_Check(pair) && PyTuple_Size(pair) == 2 ? PyTuple_GetItem(pair, 0) : NULL;
    if (name == NULL || !PyUnicode_Check(name)) {
        PyErr_SetString(PyExc_TypeError, "tensors is a list of (name, tensor)");
        return 0;
    }
    PyObject *bytes = PyUnicode_AsUTF8String(name);
    if (bytes == NULL || PyList_Append(tensors->names, bytes) < 0) {
        Py_XDECREF(bytes);
        return 0;
    }
    Py_DECREF(bytes);   /* the list has it */
    dw_named_tensor *row = &tensors->rows[tensors->count];
    row->name = PyBytes_AsString(bytes);
    const int place = anywhere ? gpu_of_tensor(PyTuple_GetItem(pair, 1)) : CORE_HOST;
    if (place < CORE_HOST || !core_tensor_read(PyTuple_GetItem(pair, 1), row->name, place, &row->tensor, &tensors->owners[tensors->count])) return 0;
    if (place != CORE_HOST) {
        core_place *name = &tensors->place_names[tensors->count];
        snprintf(name->name, sizeof name->name, "cuda:%d", place);
        tensors->places[tensors->count] = name->name;
    }
    tensors->count++;
    return 1;
}

static int read_all(PyObject *pairs, int anywhere, core_tensors *tensors) {
    *tensors = (core_tensors){.names = PyList_New(0)};
    if (tensors->names == NULL) return 0;
    PyObject *list = pairs == NULL || pairs == Py_None ? PyList_New(0) : PyDict_Check(pairs) ? PyDict_Items(pairs) : PySequence_List(pairs);
    Py_ssize_t count = list ? PyList_Size(list) : -1;
    int done = 0;
    if (count > INT32_MAX) PyErr_SetString(PyExc_OverflowError, "too many tensors");
    else if (count >= 0) {
        tensors->rows = calloc((size_t)count + 1, sizeof *tensors->rows);
        tensors->owners = calloc((size_t)count + 1, sizeof *tensors->owners);
        tensors->places = calloc((size_t)count + 1, sizeof *tensors->places);
        tensors->place_names = calloc((size_t)count + 1, sizeof *tensors->place_names);
        done = tensors->rows != NULL && tensors->owners != NULL && tensors->places != NULL && tensors->place_names != NULL;
        if (!done) PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; done && i < count; i++) done = read_pair(tensors, PyList_GetItem(list, i), anywhere);
    Py_XDECREF(list);
    if (!done) core_tensors_free(tensors);
    return done;
}

int core_tensors_read(PyObject *pairs, core_tensors *tensors) { return read_all(pairs, 0, tensors); }

int core_tensors_read_anywhere(PyObject *pairs, core_tensors *tensors) { return read_all(pairs, 1, tensors); }
