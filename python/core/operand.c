/* What a kernel of the caller's is handed: an operand or a result where it lies, by DLPack, while the call lasts. */
#include "operand.h"

#include <stdlib.h>
#include <string.h>

#include "dlpack.h"

PyTypeObject *core_operand_type;

typedef struct core_operand {
    PyObject_HEAD
    dw_tensor tensor;
    PyObject *keep;            /* what the memory lives as long as */
    long *exports;             /* how many tensors over such memory others hold */
    PyObject *parent;          /* of data and scales: the operand whose they are */
    int over;                  /* the call has ended */
} core_operand;

static void operand_dealloc(PyObject *object) {
    core_operand *self = (core_operand *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(self->keep);
    Py_XDECREF(self->parent);
    PyObject_Free(object);
    Py_DECREF(type);
}

static core_operand *new_operand(const dw_tensor *tensor, PyObject *keep, long *exports, PyObject *parent) {
    core_operand *self = PyObject_New(core_operand, core_operand_type);
    if (self == NULL) return NULL;
    memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
    self->tensor = *tensor;
    self->keep = keep;
    self->exports = exports;
    self->parent = parent;
    Py_XINCREF(keep);
    Py_XINCREF(parent);
    return self;
}

PyObject *core_operand_new(const dw_tensor *tensor, PyObject *keep, long *exports) { return (PyObject *)new_operand(tensor, keep, exports, NULL); }

const dw_tensor *core_operand_tensor(PyObject *operand) { return &((core_operand *)operand)->tensor; }

void core_operand_end(PyObject *operand) {
    if (operand != Py_None) ((core_operand *)operand)->over = 1;
}

static int is_alive(const core_operand *self) {
    if (!self->over && (self->parent == NULL || !((core_operand *)self->parent)->over)) return 1;
    core_fail(DW_INVALID, "an operand is read after the call of the kernel that it was given to");
    return 0;
}

/* ---- DLPack ---- */

typedef struct export {
    dl_managed managed;
    int64_t shape[DW_MAX_RANK], strides[DW_MAX_RANK];
    PyObject *keep;
    long *exports;
} export;

/* From any thread, with or without the GIL. */
static void release_export(dl_managed *managed) {
    export *made = managed->manager;
    PyGILState_STATE state = PyGILState_Ensure();
    --*made->exports;
    Py_XDECREF(made->keep);
    PyGILState_Release(state);
    free(made);
}

static void release_capsule(PyObject *capsule) {
    if (!PyCapsule_IsValid(capsule, "dltensor")) return;   /* somebody took it */
    dl_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
    managed->release(managed);
}

static PyObject *operand_dlpack(PyObject *object, PyObject *arguments, PyObject *keywords) {
    core_operand *self = (core_operand *)object;
    const dw_tensor *tensor = &self->tensor;
    (void)arguments, (void)keywords;   /* stream, max_version, ..: this is the CPU's memory, and version 0.8 */
    if (!is_alive(self)) return NULL;
    if (dw_format_is_block(tensor->format)) return core_fail(DW_INVALID, "an operand in %s is no plain tensor: take its data and scales", dw_format_name(tensor->format));
    if (dw_format_bits(tensor->format) < 8) return core_fail(DW_INVALID, "an operand in %s has no whole bytes: take its data", dw_format_name(tensor->format));
    export *made = calloc(1, sizeof *made);
    if (made == NULL) return PyErr_NoMemory();
    made->managed = (dl_managed){.tensor = {.data = tensor->data, .device = {.type = DL_CPU}, .rank = tensor->rank, .shape = made->shape, .strides = made->strides},
                                 .manager = made, .release = release_export};
    core_dl_type(tensor->format, &made->managed.tensor.type);
    memcpy(made->shape, tensor->dims, sizeof made->shape);
    memcpy(made->strides, tensor->strides, sizeof made->strides);
    PyObject *capsule = PyCapsule_New(&made->managed, "dltensor", release_capsule);
    if (capsule == NULL) {
        free(made);
        return NULL;
    }
    made->keep = self->keep;
    made->exports = self->exports;
    Py_XINCREF(made->keep);
    ++*made->exports;
    return capsule;
}

static PyObject *operand_dlpack_device(PyObject *object, PyObject *none) {
    (void)object, (void)none;
    return Py_BuildValue("(ii)", DL_CPU, 0);
}

/* ---- parts ---- */

static const struct { int rows, cols, second; dw_format element, scale; } blocks[DW_FORMAT_COUNT] = {
#define DW_ELEMENT(name, bits, class, exponent, mantissa, bias, infinity, nan, max, doc)
#define DW_BLOCK(name, element_, scale_, rows_, cols_, second_, doc) \
    [DW_FORMAT_##name] = {.rows = rows_, .cols = cols_, .second = second_, .element = DW_FORMAT_##element_, .scale = DW_FORMAT_##scale_},
#include "deepwell/format.def"
#undef DW_ELEMENT
#undef DW_BLOCK
};

static dw_tensor plain(dw_format format, int rank, const int64_t *dims, void *data) {
    dw_tensor tensor = {.format = format, .rank = rank, .data = data};
    int64_t stride = 1;
    for (int i = rank; i-- > 0;) {
        tensor.dims[i] = dims[i];
        tensor.strides[i] = stride;
        stride *= dims[i];
    }
    return tensor;
}

/* The bytes of the elements: those of plain formats under their own type, packed ones row by row as u8. */
dw_tensor core_data_of(const dw_tensor *tensor) {
    int bits = dw_format_bits(tensor->format);
    int64_t dims[DW_MAX_RANK];
    if (!dw_format_is_block(tensor->format) && bits >= 8) return *tensor;
    dw_format element = dw_format_is_block(tensor->format) ? blocks[tensor->format].element : tensor->format;
    memcpy(dims, tensor->dims, sizeof dims);
    if (tensor->rank > 0) dims[tensor->rank - 1] = (dims[tensor->rank - 1] * bits + 7) / 8;
    return plain(bits == 8 ? element : DW_FORMAT_u8, tensor->rank, dims, tensor->data);
}

static int64_t ceil_div(int64_t a, int64_t b) { return b == 0 ? 1 : (a + b - 1) / b; }

/* [.., blocks of rows, blocks of columns]; in tiles as they lie, flat. */
dw_tensor core_scales_of(const dw_tensor *tensor) {
    int rank = tensor->rank;
    int64_t dims[DW_MAX_RANK];
    memcpy(dims, tensor->dims, sizeof dims);
    if (rank > 0) dims[rank - 1] = ceil_div(dims[rank - 1], blocks[tensor->format].cols);
    if (rank > 1) dims[rank - 2] = ceil_div(dims[rank - 2], blocks[tensor->format].rows);
    for (int i = 0; i < rank - 2 && blocks[tensor->format].rows == 0; i++) dims[i] = 1;   /* one scale for all */
    if (tensor->scale_layout == DW_SCALE_tile128x4) {
        int64_t rows = rank > 1 ? ceil_div(dims[rank - 2], 128) : 1, count = 512 * rows * (rank > 0 ? ceil_div(dims[rank - 1], 4) : 1);
        for (int i = 0; i < rank - 2; i++) count *= dims[i];
        rank = 1;
        dims[0] = count;
    }
    return plain(blocks[tensor->format].scale, rank, dims, tensor->scales);
}

/* One number, or one per row. */
dw_tensor core_second_of(const dw_tensor *tensor) {
    return plain(DW_FORMAT_f32, blocks[tensor->format].second == 2 && tensor->rank > 0 ? tensor->rank - 1 : 0, tensor->dims, tensor->second);
}

static PyObject *part_of(PyObject *object, const void *memory, dw_tensor (*part)(const dw_tensor *tensor)) {
    core_operand *self = (core_operand *)object;
    if (memory == NULL || !dw_format_is_block(self->tensor.format)) Py_RETURN_NONE;
    dw_tensor tensor = part(&self->tensor);
    return (PyObject *)new_operand(&tensor, self->keep, self->exports, object);
}

static PyObject *operand_data(PyObject *object, void *none) {
    (void)none;
    dw_tensor tensor = core_data_of(&((core_operand *)object)->tensor);
    return (PyObject *)new_operand(&tensor, ((core_operand *)object)->keep, ((core_operand *)object)->exports, object);
}

static PyObject *operand_scales(PyObject *object, void *none) {
    (void)none;
    return part_of(object, ((core_operand *)object)->tensor.scales, core_scales_of);
}

static PyObject *operand_second(PyObject *object, void *none) {
    (void)none;
    return part_of(object, ((core_operand *)object)->tensor.second, core_second_of);
}

static void copy_part(dw_tensor from, dw_tensor to) {
    size_t bytes = (size_t)dw_format_bits(from.format) / 8;
    for (int i = 0; i < from.rank; i++) bytes *= (size_t)from.dims[i];
    if (bytes > 0) memcpy(to.data, from.data, bytes);
}

int core_has_second(dw_format format) { return blocks[format].second != 0; }

void core_tensor_copy(const dw_tensor *from, const dw_tensor *to) {
    copy_part(core_data_of(from), core_data_of(to));
    if (!dw_format_is_block(from->format)) return;
    if (from->scales != NULL) copy_part(core_scales_of(from), core_scales_of(to));
    if (from->second != NULL) copy_part(core_second_of(from), core_second_of(to));
}

static PyObject *operand_shape(PyObject *object, void *none) {
    (void)none;
    return core_shape(&((core_operand *)object)->tensor);
}

static PyObject *operand_format(PyObject *object, void *none) {
    (void)none;
    return PyUnicode_FromString(dw_format_name(((core_operand *)object)->tensor.format));
}

static PyObject *operand_scale_layout(PyObject *object, void *none) {
    const dw_tensor *tensor = &((core_operand *)object)->tensor;
    (void)none;
    if (!dw_format_is_block(tensor->format)) Py_RETURN_NONE;
    return PyUnicode_FromString(tensor->scale_layout == DW_SCALE_tile128x4 ? "tile128x4" : "plain");
}

static PyMethodDef methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))operand_dlpack, METH_VARARGS | METH_KEYWORDS, "The tensor where it lies, for torch.from_dlpack and its like; writable."},
    {"__dlpack_device__", operand_dlpack_device, METH_NOARGS, "The CPU."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"shape", operand_shape, NULL, "Of the values, whatever their format.", NULL},
    {"format", operand_format, NULL, "\"f32\", \"mxfp8\", ..", NULL},
    {"data", operand_data, NULL, "The elements; packed ones (under 8 bits) as bytes, row by row.", NULL},
    {"scales", operand_scales, NULL, "Of a block format: one scale per block; else None.", NULL},
    {"second", operand_second, NULL, "Of NVFP4: the second-level scale, or one per row; else None.", NULL},
    {"scale_layout", operand_scale_layout, NULL, "Of a block format: \"plain\" or \"tile128x4\"; else None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "An operand or a result of a kernel, where it lies, while the kernel's call lasts."},
    {Py_tp_new, core_no_new},
    {Py_tp_dealloc, operand_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

static PyType_Spec spec = {"deepwell._core.Operand", sizeof(core_operand), 0, Py_TPFLAGS_DEFAULT, slots};

int core_add_operand(PyObject *module) { return core_add_type(module, &spec, &core_operand_type); }
