/* Complex numbers, as rotary embeddings of the first Llama spell them: a complex tensor is two real ones. What only moves elements is done to
 * both; products are spelled out; anything else is refused. No complex value is ever stored. */
#include <string.h>

#include "capture/program.h"

/* Rules that treat every element alike or only move them, so that they hold for the real and the imaginary part alone. */
static const char *const by_parts[] = {
    "aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.flatten.using_ints", "aten.unflatten.int", "aten.unsqueeze.default",
    "aten.squeeze.dim", "aten.transpose.int", "aten.permute.default", "aten.expand.default", "aten.slice.Tensor", "aten.select.int", "aten.narrow.default",
    "aten.index.Tensor", "aten.index_select.default", "aten.embedding.default", "aten.cat.default", "aten.stack.default", "aten.chunk.default",
    "aten.split.Tensor", "aten.unbind.int", "aten.contiguous.default", "aten.clone.default", "aten.alias.default", "aten.detach.default",
    "aten.to.dtype", "aten.to.device", "aten.to.dtype_layout", "aten._to_copy.default", "aten.repeat.default", "aten.lift_fresh_copy.default",
    "aten.add.Tensor", "aten.sub.Tensor", "aten.neg.default", "aten.resolve_conj.default", "aten.resolve_neg.default", "aten.sum.dim_IntList", "aten.mean.dim",
};

static bool is_complex(const capture_tensor *tensor) { return tensor != NULL && tensor->imaginary != NULL; }

/* abs * cos(angle), abs * sin(angle) */
dw_status capture_rule_polar(capture_call *call) {
    ir_value *abs, *angle, *parts[2];
    TRY(capture_value_arg(call, "abs", &abs));
    TRY(capture_value_arg(call, "angle", &angle));
    for (int i = 0; i < 2; i++) {
        TRY(ir_emit_1(call->graph, i == 0 ? OP_cos : OP_sin, angle, &parts[i]));
        TRY(ir_emit_2(call->graph, OP_mul, abs, parts[i], &parts[i]));
    }
    return capture_pair_result(call, parts[0], parts[1]);
}

dw_status capture_rule_complex(capture_call *call) {
    ir_value *real, *imaginary;
    TRY(capture_value_arg(call, "real", &real));
    TRY(capture_value_arg(call, "imag", &imaginary));
    return capture_pair_result(call, real, imaginary);
}

/* [..,2] -> pairs */
dw_status capture_rule_view_as_complex(capture_call *call) {
    ir_value *x, *parts[2];
    TRY(capture_value_arg(call, "self", &x));
    int axis = x->type.rank - 1;
    if (axis < 0 || !capture_dim_is(x->type.dims[axis], 2)) return capture_fail(call, DW_CORRUPT, "the last axis does not have size 2");
    for (int i = 0; i < 2; i++) {
        dim start, end;
        TRY_DIM(call->capture->context, start, dim_constant(call->dims, i));
        TRY_DIM(call->capture->context, end, dim_constant(call->dims, i + 1));
        TRY(ir_emit_slice(call->graph, x, axis, start, end, 1, &parts[i]));
        TRY(capture_emit_squeeze(call->graph, parts[i], axis, &parts[i]));
    }
    return capture_pair_result(call, parts[0], parts[1]);
}

/* pairs -> [..,2] */
dw_status capture_rule_view_as_real(capture_call *call) {
    ir_value *parts[2], *joined;
    TRY(capture_read_parts(call, "self", parts));
    if (parts[1] == NULL) return capture_fail(call, DW_CORRUPT, "the operand is not complex");
    int axis = parts[0]->type.rank;
    for (int i = 0; i < 2; i++) TRY(capture_emit_unsqueeze(call->graph, parts[i], axis, &parts[i]));
    op_attr attr = op_set_int(OP_ATTR_axis, axis);
    TRY(ir_emit(call->graph, OP_concat, 2, parts, 1, &attr, &joined));
    return capture_result(call, 0, joined);
}

dw_status capture_rule_complex_part(capture_call *call) {
    ir_value *parts[2];
    TRY(capture_read_parts(call, "self", parts));
    bool imaginary = strcmp(call->row->target, "aten.imag.default") == 0;
    if (parts[1] == NULL) return capture_fail(call, DW_UNSUPPORTED, "the operand is not complex");
    return capture_result(call, 0, parts[imaginary]);
}

/* sqrt(re^2 + im^2) */
dw_status capture_rule_complex_abs(capture_call *call) {
    ir_value *parts[2];
    TRY(capture_read_parts(call, "self", parts));
    for (int i = 0; i < 2; i++) TRY(ir_emit_2(call->graph, OP_mul, parts[i], parts[i], &parts[i]));
    TRY(ir_emit_2(call->graph, OP_add, parts[0], parts[1], &parts[0]));
    TRY(ir_emit_1(call->graph, OP_sqrt, parts[0], &parts[0]));
    return capture_result(call, 0, parts[0]);
}

dw_status capture_rule_conj(capture_call *call) {
    ir_value *parts[2];
    TRY(capture_read_parts(call, "self", parts));
    if (parts[1] == NULL) return capture_fail(call, DW_UNSUPPORTED, "the operand is not complex");
    TRY(ir_emit_1(call->graph, OP_neg, parts[1], &parts[1]));
    return capture_pair_result(call, parts[0], parts[1]);
}

/* (a + bi)(c + di) = ac - bd + (ad + bc)i */
static dw_status multiply(capture_call *call) {
    ir_value *x[2], *y[2], *real[2], *imaginary[2];
    TRY(capture_read_parts(call, "self", x));
    TRY(capture_read_parts(call, "other", y));
    for (int i = 0; i < 2; i++) {
        TRY(ir_emit_2(call->graph, OP_mul, x[i], y[i], &real[i]));
        TRY(ir_emit_2(call->graph, OP_mul, x[i], y[1 - i], &imaginary[i]));
    }
    TRY(ir_emit_2(call->graph, OP_sub, real[0], real[1], &real[0]));
    TRY(ir_emit_2(call->graph, OP_add, imaginary[0], imaginary[1], &imaginary[0]));
    return capture_pair_result(call, real[0], imaginary[0]);
}

/* The rule once for each part, complex arguments replaced by it. */
static dw_status run_parts(capture_call *call) {
    capture_arg given[CAPTURE_MAX_ARGS];
    capture_tensor **real;
    memcpy(given, call->args, sizeof given);
    TRY_NEW(real, &call->capture->arena, call->result_count);
    for (int part = 0; part < 2; part++) {
        for (int i = 0; i < call->arg_count; i++) {
            capture_arg *arg = &call->args[i];
            *arg = given[i];
            if (part == 0) continue;
            if (arg->kind == ARG_TENSOR && is_complex(arg->tensor)) arg->tensor = arg->tensor->imaginary;
            if (arg->kind != ARG_TENSORS) continue;
            TRY_NEW(arg->tensors, &call->capture->arena, arg->count);
            for (int t = 0; t < arg->count; t++) arg->tensors[t] = is_complex(given[i].tensors[t]) ? given[i].tensors[t]->imaginary : given[i].tensors[t];
        }
        TRY(call->row->rule(call));
        for (int i = 0; i < call->result_count; i++) {
            if (part == 0) real[i] = call->results[i];
            else if (real[i] != NULL) real[i]->imaginary = call->results[i];
        }
    }
    memcpy(call->args, given, sizeof given);
    memcpy(call->results, real, (size_t)call->result_count * sizeof *real);
    return DW_OK;
}

static int complex_count(const capture_call *call, int *tensors) {
    int count = 0;
    *tensors = 0;
    for (int i = 0; i < call->arg_count; i++) {
        const capture_arg *arg = &call->args[i];
        for (int t = 0; t < (arg->kind == ARG_TENSORS ? arg->count : arg->kind == ARG_TENSOR); t++) {
            const capture_tensor *tensor = arg->kind == ARG_TENSOR ? arg->tensor : arg->tensors[t];
            if (tensor == NULL || !capture_is_float(tensor->type.format)) continue;     /* indices are not meant */
            (*tensors)++;
            count += is_complex(tensor);
        }
    }
    return count;
}

dw_status capture_run_complex(capture_call *call) {
    int tensors, complex = complex_count(call, &tensors);
    const char *target = call->row->target;
    static dw_status (*const own[])(capture_call *) = {capture_rule_view_as_real, capture_rule_complex_part, capture_rule_conj,
                                                       capture_rule_fft, capture_rule_fft_internal};
    for (size_t i = 0; i < COUNT_OF(own); i++) {
        if (call->row->rule == own[i]) return own[i](call);
    }
    if (strcmp(target, "aten.abs.default") == 0) return capture_rule_complex_abs(call);
    for (int i = 0; i < call->result_count; i++) {
        if (call->types[i].format != DW_FORMAT_COUNT) return capture_fail(call, DW_UNSUPPORTED, "complex operands of a real result");
        call->types[i].format = DW_FORMAT_f32;      /* of a part; recorded is complex64 */
    }
    bool product = strcmp(target, "aten.mul.Tensor") == 0 || strcmp(target, "aten.mul.Scalar") == 0;
    if (product && complex == 2) {
        for (int i = 0; i < call->result_count; i++) call->types[i].format = DW_FORMAT_COUNT;
        return multiply(call);
    }
    bool known = product && complex == 1;
    for (size_t i = 0; !known && complex == tensors && i < COUNT_OF(by_parts); i++) known = strcmp(by_parts[i], target) == 0;
    return known ? run_parts(call) : capture_fail(call, DW_UNSUPPORTED, "complex operands");
}
