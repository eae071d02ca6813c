/* What the host halves of pointwise GPU kernels share. */
#ifndef POINTWISE_FUNCTIONS_H
#define POINTWISE_FUNCTIONS_H

#include "kernel/kernel.h"
#include "kernels/gpu/arguments.h"
#include "op/op.h"

/* The function of device code (pointwise_cuda.h) that the op is; POINTWISE_COUNT for cast and where. (functions.c) */
int pointwise_function_of(op_id id);
/* The same of an op on bools, which are 0 and 1: a function of real numbers. not is eq, with 0. (functions.c) */
int pointwise_function_on_bools(op_id id);

/* The launch of a chain of at most one function and one sum or product, all of one length side by side; false: it is another, or lies otherwise. nest: the result, then the operands. (chain_short.c) */
bool chain_short_launch(const kernel_run *run, const op_chain *chain, const cuda_nest *nest, kernel_launch *launch);
/* The launch of a chain of few elements of f32, bf16, f16 and bool, which may lie in any way; false: it has more, or others. nest: as above. (chain_few.c) */
bool chain_few_launch(const kernel_run *run, const op_chain *chain, const cuda_nest *nest, kernel_launch *launch);
/* The step as the code of such kernels; results begin at slot first. (chain_few.c) */
struct few_code;
void few_code_of(const op_chain_step *step, int first, struct few_code *code);
/* Are all operands and values of the chain f32, bf16, f16 or bool, and has the chip kernels of vectors? (chain_codes.c) */
bool chain_has_vectors(const kernel_run *run, const op_chain *chain);
/* The launch of a chain of which some operand is transposed: side by side along another axis than the last; false: none is, or its values have no such kernel. nest: as above. (chain_tiles.c) */
bool chain_tiles_launch(const kernel_run *run, const op_chain *chain, const cuda_nest *nest, kernel_launch *launch);
/* The same of an op alone; false, too: its elements are few, of which tiles were not measured, or it moves those of 16 bits, whose NaNs keep their payloads. (chain_tiles.c) */
bool chain_tiles_launch_op(const kernel_run *run, const cuda_nest *nest, kernel_launch *launch);
/* The same chain in steps of the format, bf16 or f16, and of bools, whose numbers may be in fp32 and are then not rounded; false: some value of it is another. (chain_narrow.c) */
bool chain_narrow(const op_chain *chain, dw_format format, op_chain *to);
/* How many elements are few. (chain_few.c) */
int64_t chain_few_most(const chip_caps *chip);

#endif
