/* Helpers of the host halves of plain GPU kernels: index spaces out of tensors, and launches with their slots. */
#ifndef KERNELS_GPU_HOST_HOST_H
#define KERNELS_GPU_HOST_HOST_H

#include "kernel/kernel.h"
#include "kernels/gpu/arguments.h"

/* Strides of an operand seen with rank dims: axes aligned at the end, those of size 1 and those that it lacks repeat. */
void cuda_broadcast(const dw_tensor *tensor, int rank, const int64_t *dims, int64_t *strides);
/* The index space dims with the operands' strides: axes of size 1 go, neighbours that lie as one become one. */
void cuda_nest_build(cuda_nest *nest, int rank, const int64_t *dims, int operands, const int64_t (*strides)[CUDA_RANK]);
/* The same, for tensors that broadcast to the first one's shape. */
void cuda_nest_tensors(cuda_nest *nest, int count, const dw_tensor *const *tensors);
/* That space in vectors of CUDA_VECTOR elements of the first tensor, which the others have side by side, too, or repeat (steps: 1 or 0): count and the last axis are of
 * vectors. false, and the space unchanged: they do not lie so, or not at multiples of 16 bytes. The last vector of a space of one axis may be short. */
bool cuda_nest_vectors(cuda_nest *nest, int count, const dw_tensor *const *tensors, int32_t *steps);
/* The space in words of 16 bytes, for kernels that move elements of so many bytes: the first moved operands have the last axis side by side, the others repeat along it.
 * Strides of the moved ones become those of words. false, and the space unchanged: not all of that, or not in whole words. Addresses are the caller's to check. */
bool cuda_nest_words(cuda_nest *nest, int moved, int count, int64_t bytes);
/* The same in words of so many bytes. */
bool cuda_nest_words_of(cuda_nest *nest, int moved, int count, int64_t bytes, int64_t word);
static inline bool cuda_lies_at_16(const void *data) { return (uintptr_t)data % 16 == 0; }
/* The space of the lines along axis: lines without that axis (in the nest), and each operand's step along it (0 where it repeats). */
void cuda_nest_lines(cuda_nest *nest, int axis, int count, const dw_tensor *const *tensors, int64_t *steps);

/* A launch of threads x blocks of arguments; the structure lies in launch->arguments, zeroed. image NULL: the call of a library, which the caller names. */
void *cuda_launch(kernel_launch *launch, const char *image, const char *entry, size_t argument_bytes);
void cuda_grid(kernel_launch *launch, int64_t x, int64_t y, int64_t z);
/* One thread each for count items, at most so many blocks that the kernel's loop takes the rest. */
void cuda_grid_items(kernel_launch *launch, int64_t count);
void cuda_slot(kernel_launch *launch, kernel_slot_kind kind, int index, const void *field, int64_t offset);
/* An array field is operand index of the run's call (or its result, KERNEL_RESULT + i). */
void cuda_take_array(kernel_launch *launch, const kernel_run *run, int index, cuda_array *field);
/* An array in the workspace, at an offset. */
void cuda_take_scratch(kernel_launch *launch, dw_format format, int64_t offset, cuda_array *field);
/* A rows field is an operand: its last two axes from batch offset 0 on, k last or not. */
void cuda_take_rows(kernel_launch *launch, const kernel_run *run, int index, bool k_is_last, cuda_rows *field);
void cuda_take_fault(kernel_launch *launch, cuda_fault_place *field);

/* A launcher that hands launches of a run within a run on with operands that lie elsewhere: at bytes behind the beginning of the workspace, or of themselves. */
typedef struct cuda_move { int operand; bool to_workspace; int64_t at; } cuda_move;   /* operand: as in kernel_slot */
typedef struct cuda_mover {
    kernel_launcher launcher;
    kernel_launcher *next;
    int count;
    cuda_move moves[4];
} cuda_mover;
cuda_mover cuda_mover_to(kernel_launcher *next, int count, const cuda_move *moves);

/* Elements of a byte or more. */
static inline bool cuda_is_plain(dw_format format) { return !dw_format_is_block(format) && dw_format_bits(format) >= 8; }
/* NULL, or "operand 1 is e2m1, whose elements have less than a byte": for rows that take plain elements only. */
const char *cuda_reject_packed(const kernel_problem *problem, text *why);
/* Of kernels that take an element a thread. */
static inline double cuda_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.1, 0.267); }
/* Of rows with a form in vectors, which takes elements of 16 and 32 bits that lie dense; that they do is assumed, as strides are not known yet. The share of the
 * bandwidth is an H200's of pointwise ops, rotary and transposes (0.42 to 0.79). */
double cuda_vector_cost(const kernel_problem *problem);

#endif
