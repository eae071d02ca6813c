/* The two real tensors that a complex one is, as operands and as results of a call. What is computed of them is complex.c's and aten_fft.c's. */
#include "capture/program.h"

const char *const capture_part_names[2] = {".real", ".imag"};

static bool is_complex(const capture_tensor *tensor) { return tensor != NULL && tensor->imaginary != NULL; }

bool capture_has_complex(const capture_call *call) {
    for (int i = 0; i < call->arg_count; i++) {
        const capture_arg *arg = &call->args[i];
        if (arg->kind == ARG_TENSOR && is_complex(arg->tensor)) return true;
        for (int t = 0; arg->kind == ARG_TENSORS && t < arg->count; t++) {
            if (is_complex(arg->tensors[t])) return true;
        }
    }
    return false;
}

dw_status capture_pair_result(capture_call *call, ir_value *real, ir_value *imaginary) {
    if (call->result_count == 0) return DW_OK;
    TRY(capture_fresh(call->capture, real, &call->results[0]));
    return capture_fresh(call->capture, imaginary, &call->results[0]->imaginary);
}

dw_status capture_read_parts(capture_call *call, const char *name, ir_value *parts[2]) {
    capture_tensor *tensor;
    TRY(capture_tensor_arg(call, name, &tensor));
    parts[1] = NULL;
    TRY(capture_read(call->capture, tensor, &parts[0]));
    return is_complex(tensor) ? capture_read(call->capture, tensor->imaginary, &parts[1]) : DW_OK;
}
