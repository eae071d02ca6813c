/* What the host halves of the GPU attentions share. */
#ifndef KERNELS_ATTENTION_HOST_H
#define KERNELS_ATTENTION_HOST_H

#include "kernel/kernel.h"
#include "kernels/attention/attention_cuda.h"

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
/* Can the copy engine load q, k and v, and are there keys? */
bool attention_has_maps(const op_call *call);
/* What a row of such calls, named row, launches where it cannot, or not store its result. */
dw_status attention_without_maps(const kernel_run *run, kernel_launcher *launcher, const char *row);

/* The decoding attention, of calls that attention_sm90.c takes and whose operands have maps: how long it takes, and its launch. */
double attention_decode_seconds(const chip_caps *chip, const op_call *call);
dw_status attention_decode_launch(const kernel_run *run, kernel_launcher *launcher);

#endif
