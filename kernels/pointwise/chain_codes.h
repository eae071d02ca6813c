/* Chains as instructions of the machine of chain_cuda.h. */
#ifndef KERNELS_CHAIN_CODES_H
#define KERNELS_CHAIN_CODES_H

#include "kernels/pointwise/chain_cuda.h"
#include "op/op.h"

/* The chain's instructions. held: of each operand the slot in which it lies from the start, or -1; slots of theirs are the first ones. How many slots there are in all. */
int chain_take_codes(const op_chain *chain, const int *held, chain_vector_arguments *arguments);

#endif
