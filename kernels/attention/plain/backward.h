/* The tiles of the plain gradients of attention. */
#ifndef KERNELS_ATTENTION_PLAIN_BACKWARD_H
#define KERNELS_ATTENTION_PLAIN_BACKWARD_H

#include "kernels/attention/backward.h"

enum { ATTENTION_BACKWARD_TILE = 64, ATTENTION_BACKWARD_COLUMNS = 128 };   /* queries and keys; columns of a result that a block makes */

#endif
