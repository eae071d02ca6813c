/* Collectives of a program that was parallel already (_c10d_functional): between the ranks along an axis of the mesh. A group of torch has no meaning outside its process, so whoever hands a program over names groups by
 * axis and size: "tp=2" (python/deepwell/ranks.py). */
#include "capture/program.h"

#include <stdio.h>
#include <string.h>

typedef struct group { char over[OP_MESH_NAME]; int64_t ranks; } group;

static dw_status read_group(capture_call *call, group *group) {
    const char *name;
    op_mesh mesh;
    TRY(capture_text_arg(call, "group_name", &name));
    if (strchr(name, '=') == NULL || op_mesh_parse(NULL, name, &mesh) != DW_OK || mesh.count != 1)
        return capture_fail(call, DW_UNSUPPORTED, "its process group is '%.40s', and a group has to be an axis of the mesh, as tp=2: give the mesh (optimize(.., mesh=)), of which the model's groups are axes", name);
    memcpy(group->over, mesh.axes[0].name, sizeof group->over);
    group->ranks = mesh.axes[0].size;
    return DW_OK;
}

/* Sizes that ranks do not divide are unsupported, so that a capture with fixed ones is tried. */
static dw_status emit_over(capture_call *call, op_id op, ir_value *x, const group *group, int count, const op_attr *more, ir_value **result) {
    op_attr attrs[5] = {op_set_text(OP_ATTR_over, group->over), op_set_int(OP_ATTR_ranks, group->ranks)};
    TRY(ir_set_note(call->graph, CAPTURE_PARALLEL, "it has collectives of its own"));
    memcpy(&attrs[2], more, (size_t)count * sizeof *more);
    const dw_status status = ir_emit(call->graph, op, 1, &x, 2 + count, attrs, result);
    if (status != DW_INVALID) return status;
    char words[512];
    snprintf(words, sizeof words, "%s", dw_context_error(call->graph->context));
    return base_fail(call->graph->context, DW_UNSUPPORTED, "%s", words);
}

/* "avg" is a sum of which each rank then takes its share. */
static dw_status emit_reduced(capture_call *call, op_id op, ir_value **x, group *group) {
    const char *by;
    TRY(read_group(call, group));
    TRY(capture_text_arg(call, "reduce_op", &by));
    const bool averages = strcmp(by, "avg") == 0;
    if (!averages && strcmp(by, "sum") != 0 && strcmp(by, "max") != 0) return capture_fail(call, DW_UNSUPPORTED, "it reduces by '%.20s'; sum, avg and max are read", by);
    const op_attr attrs[] = {op_set_text(OP_ATTR_by, averages ? "sum" : by), op_set_int(OP_ATTR_axis, 0)};
    TRY(emit_over(call, op, *x, group, op == OP_reduce_scatter ? 2 : 1, attrs, x));
    return averages ? capture_emit_number(call->graph, OP_div, *x, (double)group->ranks, x) : DW_OK;
}

dw_status capture_rule_all_reduce(capture_call *call) {
    group group;
    ir_value *x;
    TRY(capture_value_arg(call, "input", &x));
    TRY(emit_reduced(call, OP_all_reduce, &x, &group));
    return capture_result(call, 0, x);
}

/* Is the size that the program has for it the group's? */
static dw_status check_size(capture_call *call, const group *group) {
    int64_t size;
    TRY(capture_int_arg(call, "group_size", &size));
    return size == group->ranks ? DW_OK : capture_fail(call, DW_MISMATCH, "it is over a group of %lld ranks, and axis %s has %lld", (long long)size, group->over, (long long)group->ranks);
}

dw_status capture_rule_reduce_scatter(capture_call *call) {
    group group;
    ir_value *x;
    TRY(capture_value_arg(call, "input", &x));
    TRY(emit_reduced(call, OP_reduce_scatter, &x, &group));
    TRY(check_size(call, &group));
    return capture_result(call, 0, x);
}

dw_status capture_rule_all_gather(capture_call *call) {
    const op_attr axis = op_set_int(OP_ATTR_axis, 0);
    group group;
    ir_value *x;
    TRY(capture_value_arg(call, "input", &x));
    TRY(read_group(call, &group));
    TRY(check_size(call, &group));
    TRY(emit_over(call, OP_all_gather, x, &group, 1, &axis, &x));
    return capture_result(call, 0, x);
}

/* Parts of one size; others have no op. */
static dw_status check_parts(capture_call *call, const char *name, const group *group) {
    const dim *sizes;
    int count;
    if (!capture_has(call, name)) return DW_OK;
    TRY(capture_dims_arg(call, name, &count, &sizes));
    bool equal = count == 0 || count == group->ranks;
    for (int i = 1; i < count; i++) equal = equal && sizes[i] == sizes[0];
    return equal ? DW_OK : capture_fail(call, DW_UNSUPPORTED, "%s are of several sizes; parts of one size are exchanged", name);
}

dw_status capture_rule_all_to_all(capture_call *call) {
    const op_attr axes[] = {op_set_int(OP_ATTR_split, 0), op_set_int(OP_ATTR_concat, 0)};
    group group;
    ir_value *x;
    TRY(capture_value_arg(call, "input", &x));
    TRY(read_group(call, &group));
    TRY(check_parts(call, "output_split_sizes", &group));
    TRY(check_parts(call, "input_split_sizes", &group));
    TRY(emit_over(call, OP_all_to_all, x, &group, 2, axes, &x));
    return capture_result(call, 0, x);
}

/* All are brought, and one is taken. */
dw_status capture_rule_broadcast_ranks(capture_call *call) {
    const op_attr axis = op_set_int(OP_ATTR_axis, 0);
    dim_table *dims = call->graph->dims;
    group group;
    ir_value *x;
    int64_t from;
    TRY(capture_value_arg(call, "input", &x));
    TRY(read_group(call, &group));
    TRY(capture_int_arg(call, "src", &from));
    if (from < 0 || from >= group.ranks) return capture_fail(call, DW_INVALID, "src is %lld of %lld ranks", (long long)from, (long long)group.ranks);
    TRY(capture_emit_unsqueeze(call->graph, x, 0, &x));
    TRY(emit_over(call, OP_all_gather, x, &group, 1, &axis, &x));
    TRY(ir_emit_slice(call->graph, x, 0, dim_constant(dims, from), dim_constant(dims, from + 1), 1, &x));
    TRY(capture_emit_squeeze(call->graph, x, 0, &x));
    return capture_result(call, 0, x);
}

/* What comes is there when the op that brings it has run. */
dw_status capture_rule_wait(capture_call *call) {
    capture_tensor *x;
    TRY(capture_tensor_arg(call, "tensor", &x));
    return capture_result_tensor(call, 0, x);
}
