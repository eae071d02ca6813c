/* Deepwell: PyTorch-exported transformers in low precision, with the fastest kernel for the hardware and the reason of every choice.
 * Begin with model.h; every call returns a dw_status, and dw_context_error returns the message. */
#ifndef DEEPWELL_DEEPWELL_H
#define DEEPWELL_DEEPWELL_H

#include "deepwell/status.h"
#include "deepwell/format.h"
#include "deepwell/graph.h"
#include "deepwell/device.h"
#include "deepwell/comm.h"
#include "deepwell/model.h"
#include "deepwell/serve.h"
#include "deepwell/train.h"
#include "deepwell/tensors.h"
#include "deepwell/ops.h"

#endif
