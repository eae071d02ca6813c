/* Random graphs: inputs, params and sizes, and nodes by the rows of recipe.def, of which each draws its own operands and attributes. */
#include "tests/graphs/graphs.h"

#include <stdio.h>
#include <string.h>

static const maker_row rows[] = {
#define RECIPE(name, weight) {#name, weight, make_##name},
#include "tests/graphs/recipe.def"
#undef RECIPE
};

const maker_row *maker_row_at(int index) { return index >= 0 && index < (int)COUNT_OF(rows) ? &rows[index] : NULL; }

/* ---- draws ---- */

int draw(maker *m, int count) { return count > 0 ? (int)(num_random(m->seed, m->counter++) % (uint64_t)count) : 0; }
bool chance(maker *m, int percent) { return draw(m, 100) < percent; }
dim sized(maker *m, int64_t size) { return dim_constant(m->graph->dims, size); }

dw_format draw_float(maker *m) {
    static const dw_format formats[] = {DW_FORMAT_f32, DW_FORMAT_f32, DW_FORMAT_bf16, DW_FORMAT_bf16, DW_FORMAT_f16, DW_FORMAT_f64};
    return chance(m, 75) ? m->format : DRAW_OF(m, formats);
}

op_type type_of(dw_format format, int rank, const dim *dims) {
    op_type type = {.format = format, .rank = rank};
    for (int i = 0; i < rank; i++) type.dims[i] = dims[i];
    return type;
}

/* ---- values ---- */

void keep(maker *m, ir_value *value) {
    for (int i = 0; i < m->count; i++)
        if (m->values[i] == value) return;
    if (m->count < MAKER_VALUES) m->values[m->count++] = value;
}

/* What came late more often. */
ir_value *any_value(maker *m) {
    const int half = m->count / 2;
    return m->values[chance(m, 60) ? half + draw(m, m->count - half) : draw(m, m->count)];
}

ir_value *value_of_format(maker *m, dw_format format) {
    for (int tries = 0; tries < 12; tries++) {
        ir_value *value = any_value(m);
        if (value->type.format == format) return value;
    }
    return NULL;
}

ir_value *value_of_rank(maker *m, int least) {
    for (int tries = 0; tries < 12; tries++) {
        ir_value *value = any_value(m);
        if (value->type.rank >= least && num_info(value->type.format)->class == NUM_FLOAT) return value;
    }
    return NULL;
}

static bool has_constant_dims(const op_type *type) {
    for (int i = 0; i < type->rank; i++)
        if (!dim_is_constant(type->dims[i], NULL)) return false;
    return true;
}

dw_status new_source(maker *m, const char *role, const op_type *type, bool is_weight, ir_value **value) {
    char name[64];
    snprintf(name, sizeof name, "%s%s%d", role, role[0] != '\0' ? "." : is_weight ? "w" : "x", m->names++);
    return is_weight && has_constant_dims(type) ? ir_add_param(m->graph, name, type, NULL, value) : ir_add_input(m->graph, name, type, value);
}

/* One that is there, of the same role where it has one. */
static ir_value *find_source(maker *m, const char *role, const op_type *type, bool is_weight) {
    const size_t length = strlen(role);
    ir_value *found = NULL;
    int seen = 0;
    for (size_t i = 0; i < (is_weight ? m->graph->param_count : m->graph->input_count); i++) {
        ir_value *value = is_weight ? m->graph->params[i] : m->graph->inputs[i];
        const bool same_role = length > 0 ? strncmp(value->name, role, length) == 0 && value->name[length] == '.' : strchr(value->name, '.') == NULL;
        if (same_role && op_type_equal(&value->type, type) && draw(m, ++seen) == 0) found = value;
    }
    return found;
}

/* The same type as the view of a source of another shape. */
static dw_status source_through_view(maker *m, const char *role, const op_type *type, bool is_weight, ir_value **value) {
    op_type wide = *type;
    ir_value *base;
    const int axis = draw(m, type->rank), other = draw(m, type->rank);
    if (chance(m, 50)) {
        int64_t order[DW_MAX_RANK];
        for (int i = 0; i < type->rank; i++) order[i] = i;
        order[axis] = other;
        order[other] = axis;
        wide.dims[axis] = type->dims[other];
        wide.dims[other] = type->dims[axis];
        TRY(new_source(m, role, &wide, is_weight, &base));
        return ir_emit_transpose(m->graph, base, order, value);
    }
    const int64_t step = 1 + draw(m, 2), start = draw(m, 3);
    dim start_dim = sized(m, start), end;
    TRY_DIM(m->context, wide.dims[axis], dim_add(m->graph->dims, dim_mul(m->graph->dims, type->dims[axis], sized(m, step)), sized(m, start + draw(m, 3))));
    TRY_DIM(m->context, end, dim_add(m->graph->dims, dim_mul(m->graph->dims, type->dims[axis], sized(m, step)), start_dim));
    TRY(new_source(m, role, &wide, is_weight, &base));
    return ir_emit_slice(m->graph, base, axis, start_dim, end, step, value);
}

dw_status source(maker *m, const char *role, const op_type *type, bool is_weight, ir_value **value) {
    if (role[0] == '\0' && !is_weight && chance(m, 60)) {
        for (int tries = 0; tries < 8; tries++) {
            *value = any_value(m);
            if (op_type_equal(&(*value)->type, type)) return DW_OK;
        }
    }
    *value = chance(m, 45) ? find_source(m, role, type, is_weight) : NULL;
    if (*value != NULL) return DW_OK;
    const bool simple = dw_format_is_block(type->format) || strncmp(role, "ends", 4) == 0 || type->rank == 0;
    TRY(simple || !chance(m, 15) ? new_source(m, role, type, is_weight, value) : source_through_view(m, role, type, is_weight, value));
    if (role[0] == '\0') keep(m, *value);
    return DW_OK;
}

/* ---- nodes ---- */

dw_status emit(maker *m, op_id op, int n_in, ir_value *const *in, int n_attrs, const op_attr *attrs, ir_value **result) {
    static const char *const modules[] = {"h.0.attn", "h.0.mlp", "h.1.mlp.up"}, *const roles[] = {NULL, "attention", "mlp", "router"};
    TRY(ir_emit(m->graph, op, n_in, in, n_attrs, attrs, result));
    for (int i = 0; i < (*result)->node->n_out; i++) keep(m, (*result)->node->out[i]);
    if (op != OP_matmul || !chance(m, 30)) return DW_OK;
    (*result)->node->origin.module = DRAW_OF(m, modules);
    (*result)->node->origin.role = DRAW_OF(m, roles);
    return DW_OK;
}

dw_status emit_1(maker *m, op_id op, ir_value *x, ir_value **y) { return emit(m, op, 1, &x, 0, NULL, y); }
dw_status emit_2(maker *m, op_id op, ir_value *x, ir_value *z, ir_value **y) { return emit(m, op, 2, (ir_value *[]){x, z}, 0, NULL, y); }

dw_status emit_with_number(maker *m, op_id op, ir_value *x, double number, ir_value **y) {
    ir_value *scalar;
    TRY(ir_emit_scalar(m->graph, x->type.format, number, &scalar));
    const bool swapped = (op_get(op)->traits & OP_TRAIT_COMMUTES) != 0 && chance(m, 40);
    return swapped ? emit_2(m, op, scalar, x, y) : emit_2(m, op, x, scalar, y);
}

dw_status emit_transposed(maker *m, ir_value *x, ir_value **y) {
    int64_t order[DW_MAX_RANK];
    const int rank = x->type.rank;
    if (rank < 2) return DW_INVALID;
    for (int i = 0; i < rank; i++) order[i] = i;
    order[rank - 1] = rank - 2;
    order[rank - 2] = rank - 1;
    return ir_emit_transpose(m->graph, x, order, y);
}

dw_status emit_reduction(maker *m, op_id op, ir_value *x, ir_value **y) {
    const int64_t axis = x->type.rank - 1;
    if (axis < 0) return DW_INVALID;
    const op_attr attrs[] = {op_set_ints(OP_ATTR_axes, 1, &axis), op_set_bool(OP_ATTR_keep, true)};
    return emit(m, op, 1, &x, COUNT_OF(attrs), attrs, y);
}

/* ---- graphs ---- */

static dw_status draw_sizes(maker *m) {
    static const int64_t batches[] = {1, 1, 2, 3}, lengths[] = {1, 2, 3, 4, 5, 7, 8, 9, 17}, widths[] = {2, 4, 4, 6, 8, 8, 12, 16, 16, 16, 17, 24, 32, 32, 33, 48, 64, 130};
    m->sizes[0] = sized(m, DRAW_OF(m, batches));
    m->sizes[1] = sized(m, DRAW_OF(m, lengths));
    m->sizes[2] = sized(m, DRAW_OF(m, widths));
    m->sizes[3] = sized(m, DRAW_OF(m, widths));
    if (chance(m, 30)) TRY_DIM(m->context, m->sizes[1], dim_symbol(m->graph->dims, "s", 1, 12));
    if (chance(m, 10)) TRY_DIM(m->context, m->sizes[0], dim_symbol(m->graph->dims, "b", 1, 4));
    return DW_OK;
}

static dw_status begin(maker *m) {
    static const dw_format formats[] = {DW_FORMAT_f32, DW_FORMAT_f32, DW_FORMAT_f32, DW_FORMAT_bf16, DW_FORMAT_bf16, DW_FORMAT_f16};
    m->format = DRAW_OF(m, formats);
    TRY(draw_sizes(m));
    for (int i = 0, count = 1 + draw(m, 2); i < count; i++) {
        const bool flat = chance(m, 30);
        const dim dims[] = {m->sizes[0], m->sizes[1], m->sizes[2 + draw(m, 2)]};
        const op_type type = type_of(draw_float(m), flat ? 2 : 3, flat ? dims + 1 : dims);
        ir_value *value;
        TRY(new_source(m, "", &type, false, &value));
        keep(m, value);
    }
    return DW_OK;
}

static dw_status add_nodes(maker *m) {
    int total = 0, made = 0;
    for (size_t i = 0; i < COUNT_OF(rows); i++) total += rows[i].weight;
    const int wanted = 1 + draw(m, 8);
    for (int tries = 0; tries < 40 && made < wanted && m->count < MAKER_VALUES / 2; tries++) {
        size_t row = 0;
        for (int at = draw(m, total); at >= rows[row].weight; row++) at -= rows[row].weight;
        const dw_status status = m->only != OP_COUNT && tries % 2 == 0 ? make_any_of(m, m->only) : rows[row].run(m);
        if (status == DW_NO_MEMORY) return status;
        made += status == DW_OK;
    }
    return DW_OK;
}

static dw_status add_outputs(maker *m) {
    int outputs = 0;
    for (const ir_node *node = m->graph->first; node != NULL; node = node->next) {
        for (int i = 0; i < node->n_out; i++) {
            char name[16];
            snprintf(name, sizeof name, "y%d", outputs);
            if (node->out[i]->use_count > 0 && !chance(m, 8)) continue;
            if (outputs > 0 && node->next != NULL && chance(m, 15)) continue;   /* dead, or another result of a node that is used */
            TRY(ir_add_output(m->graph, name, node->out[i]));
            outputs++;
        }
    }
    return outputs > 0 ? DW_OK : base_fail(m->context, DW_INVALID, "no node fitted");
}

static dw_status drop_unused(ir_graph *graph) {
    for (size_t i = graph->input_count; i-- > 0;)
        if (ir_use_count(graph, graph->inputs[i]) == 0) TRY(ir_remove_input(graph, graph->inputs[i]));
    for (size_t i = graph->param_count; i-- > 0;)
        if (ir_use_count(graph, graph->params[i]) == 0) TRY(ir_remove_param(graph, graph->params[i]));
    return DW_OK;
}

dw_status graphs_make(dw_context *context, const graphs_corpus *corpus, uint64_t seed, op_id only, ir_graph **graph) {
    maker m = {.context = context, .corpus = corpus, .seed = seed, .only = only};
    arena_init(&m.arena, context);
    dw_status status = ir_graph_create(context, "random", graph);
    if (status != DW_OK) return status;
    m.graph = *graph;
    status = begin(&m);
    if (status == DW_OK) status = add_nodes(&m);
    if (status == DW_OK) status = add_outputs(&m);
    if (status == DW_OK) status = drop_unused(m.graph);
    if (status == DW_OK) ir_renumber(m.graph);
    arena_free(&m.arena);
    if (status == DW_OK) return DW_OK;
    ir_graph_destroy(*graph);
    *graph = NULL;
    return status;
}
