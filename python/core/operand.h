/* Operands and results of kernels as Python sees them. */
#ifndef OPERAND_H
#define OPERAND_H

#include "core.h"

extern PyTypeObject *core_operand_type;
int core_add_operand(PyObject *module);
/* keep: the object that the memory lives as long as; *exports is how many tensors over it are out, and outlives keep's last use. */
PyObject *core_operand_new(const dw_tensor *tensor, PyObject *keep, long *exports);
const dw_tensor *core_operand_tensor(PyObject *operand);
/* The parts of a tensor as tensors of their own, memory NULL where the tensor has none. Data: the elements; those under 8 bits, and those of block formats of such
 * elements, as bytes, row by row. Scales: [.., blocks of rows, blocks of columns], in tiles flat. Second: one number, or one per row. */
dw_tensor core_data_of(const dw_tensor *tensor);
dw_tensor core_scales_of(const dw_tensor *tensor);
dw_tensor core_second_of(const dw_tensor *tensor);
/* Does the format have second-level scales? */
int core_has_second(dw_format format);
/* All bytes of from, whose parts may lie apart, into those of to, of the same shape. */
void core_tensor_copy(const dw_tensor *from, const dw_tensor *to);
/* Ends the call that it was made for: nothing is read of it any more. None is allowed. */
void core_operand_end(PyObject *operand);

#endif
