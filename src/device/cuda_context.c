/* The context in which all calls of one device happen: the GPU's primary one. */
#include "device/cuda.h"

dw_status cuda_enter(device *device) {
    cuda_state *state = cuda_state_of(device);
    CUDA_TRY(device->context, &state->driver, CtxPushCurrent_v2, state->primary);
    state->mode = CUDA_CAPTURE_RELAXED;
    state->driver.ThreadExchangeStreamCaptureMode(&state->mode);
    return DW_OK;
}

void cuda_leave(device *device) {
    cuda_context left;
    cuda_state *state = cuda_state_of(device);
    state->driver.ThreadExchangeStreamCaptureMode(&state->mode);
    state->driver.CtxPopCurrent_v2(&left);
}
