/* What the host halves of the GPU attentions share. */
#ifndef KERNELS_ATTENTION_HOST_H
#define KERNELS_ATTENTION_HOST_H

#include "kernel/kernel.h"
#include "kernels/attention/arguments.h"

/* Operands, attributes and slots of a call; arguments lie in the launch's. MISMATCH when the heads of k do not divide those of q. */
dw_status attention_take(kernel_launch *launch, const kernel_run *run, attention_arguments *arguments);
/* Are scores more than products times a positive scale? */
bool attention_is_general(const op_call *call);

/* Can a tensor map describe a 16-bit operand: have rows neighbouring elements, and steps each axis by multiples of 16 bytes? */
bool attention_has_map(const dw_tensor *x);
/* The map of an operand in boxes of 64 columns x rows, at a field of the launch's arguments. */
void attention_take_map(kernel_launch *launch, const kernel_run *run, int index, int rows, const void *field);

/* Why a call is not one of 16-bit operands and results whose heads are multiples of 8 up to 256 wide; NULL: it is one. */
const char *attention_reject_halves(const kernel_problem *problem, text *why);
/* Why no tensor maps describe q, k, v and the result, or there are no keys; NULL: they do. */
const char *attention_lacks_maps(const op_call *call, text *why);

#endif
