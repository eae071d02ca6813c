/* The oracle that runs a graph by references; see evaluate.h. */
#include "support/evaluate.h"

#include <math.h>
#include <string.h>

enum { MAX_OPERANDS = 64, MAX_RESULTS = 48, MAX_RANKS = 16, SMALL_SIZE = 3 };

struct evaluation {
    dw_context *context;
    const ir_graph *graph;
    arena arena;                /* what lives as long as the evaluation */
    arena runs[2];              /* values of the last run and of the one before, by turns */
    int turn;
    map bound;                  /* name -> dw_tensor, what evaluation_bind got */
    map states;                 /* name -> dw_tensor, what the next run begins with; NULL: the beginning */
    map begun;                  /* name -> dw_tensor, what the last run began with */
    int64_t *set, *symbols;     /* of all symbols: as set by the caller, as used by the last run; -1: not known */
    int symbol_count;
    const dw_tensor **values;   /* by id of results, of the last run */
    uint64_t perturbed;            /* the seed of evaluation_perturb, */
    double places;                 /* and by how much; 0: nothing moves */
};

/* ---- making ---- */

static dw_status prepare(evaluation *made) {
    const ir_graph *graph = made->graph;
    made->symbol_count = dim_symbol_count(graph->dims);
    TRY_NEW(made->set, &made->arena, made->symbol_count);
    TRY_NEW(made->symbols, &made->arena, made->symbol_count);
    TRY_NEW(made->values, &made->arena, graph->next_id);
    for (int i = 0; i < made->symbol_count; i++) made->set[i] = made->symbols[i] = -1;
    return DW_OK;
}

dw_status evaluation_create(const ir_graph *graph, evaluation **evaluation) {
    *evaluation = NULL;
    void *memory;
    TRY(base_alloc(graph->context, sizeof **evaluation, _Alignof(struct evaluation), &memory));
    struct evaluation *made = memory;
    *made = (struct evaluation){.context = graph->context, .graph = graph};
    arena_init(&made->arena, graph->context);
    arena_init(&made->runs[0], graph->context);
    arena_init(&made->runs[1], graph->context);
    map_init(&made->bound, &made->arena);
    map_init(&made->states, &made->arena);
    map_init(&made->begun, &made->arena);
    dw_status status = prepare(made);
    if (status != DW_OK) {
        evaluation_destroy(made);
        return status;
    }
    *evaluation = made;
    return DW_OK;
}

void evaluation_destroy(evaluation *evaluation) {
    if (evaluation == NULL) return;
    arena_free(&evaluation->runs[0]);
    arena_free(&evaluation->runs[1]);
    arena_free(&evaluation->arena);
    base_release(evaluation->context, evaluation, sizeof *evaluation, _Alignof(struct evaluation));
}

/* A contiguous tensor of zeros in an arena. */
static dw_status new_tensor(dw_context *context, arena *arena, dw_format format, dw_scale_layout layout, int rank, const int64_t *dims, dw_tensor **tensor) {
    num_parts parts;
    TRY_NEW(*tensor, arena, 1);
    void *memory = NULL;
    if (num_layout(format, layout, rank, dims, &parts)) {
        memory = arena_new(arena, parts.total_bytes, 1);
        if (memory == NULL) return DW_NO_MEMORY;
    }
    if (memory == NULL || !op_tensor_init(*tensor, format, layout, rank, dims, memory)) {
        return base_fail(context, DW_LIMIT, "the size of a tensor to evaluate overflows");
    }
    return DW_OK;
}

static dw_status new_value(evaluation *evaluation, arena *arena, const op_type *type, dw_tensor **tensor) {
    int64_t dims[DW_MAX_RANK];
    for (int i = 0; i < type->rank; i++) TRY(dim_eval(evaluation->context, type->dims[i], evaluation->symbols, &dims[i]));
    return new_tensor(evaluation->context, arena, type->format, type->scale_layout, type->rank, dims, tensor);
}

/* ---- binding ---- */

dw_status evaluation_set_symbol(evaluation *evaluation, const char *name, int64_t value) {
    int index = dim_symbol_find(evaluation->graph->dims, name);
    if (index < 0) return base_fail(evaluation->context, DW_NOT_FOUND, "there is no symbol '%s'", name);
    evaluation->set[index] = value;
    return DW_OK;
}

dw_status evaluation_bind(evaluation *evaluation, const char *name, const dw_tensor *tensor) {
    if (map_find(&evaluation->graph->names, name) == NULL) {
        return base_fail(evaluation->context, DW_NOT_FOUND, "there is no input, param or state '%s'", name);
    }
    dw_tensor *copy;
    TRY_NEW(copy, &evaluation->arena, 1);
    *copy = *tensor;
    return map_set(&evaluation->bound, name, copy);
}

dw_status evaluation_bind_new(evaluation *evaluation, const char *name, int rank, const int64_t *dims, dw_tensor *tensor) {
    const ir_value *value = map_find(&evaluation->graph->names, name);
    if (value == NULL) return base_fail(evaluation->context, DW_NOT_FOUND, "there is no input, param or state '%s'", name);
    dw_tensor *made;
    TRY(new_tensor(evaluation->context, &evaluation->arena, value->type.format, value->type.scale_layout, rank, dims, &made));
    *tensor = *made;
    return evaluation_bind(evaluation, name, made);
}

static void fill_random(const dw_tensor *tensor, uint64_t seed) {
    num_class class = num_info(tensor->format)->class;
    int64_t index[DW_MAX_RANK] = {0};
    int64_t count = op_tensor_count(tensor);
    for (int64_t i = 0; i < count; i++) {
        if (class == NUM_FLOAT) op_tensor_store(tensor, index, num_random_normal(seed, (uint64_t)i));
        else if (class == NUM_SCALE) op_tensor_store(tensor, index, 1.0);
        else op_tensor_store_int(tensor, index, (int64_t)(num_random(seed, (uint64_t)i) & 1));
        op_tensor_next(tensor, index);
    }
}

static dw_status fill_random_blocks(evaluation *evaluation, const dw_tensor *tensor, uint64_t seed) {
    dw_tensor *source;
    TRY(new_tensor(evaluation->context, &evaluation->arena, DW_FORMAT_f32, DW_SCALE_plain, tensor->rank, tensor->dims, &source));
    fill_random(source, seed);
    op_attr to = op_set_format(OP_ATTR_to, tensor->format);
    op_attrs attrs = {1, &to};
    const dw_tensor *in = source;
    op_call call = {.context = evaluation->context, .op = op_get(OP_quantize), .attrs = &attrs, .n_in = 1, .in = &in, .n_out = 1, .out = &tensor};
    return call.op->reference(&call);
}

static dw_status bind_random(evaluation *evaluation, const ir_value *value, uint64_t seed) {
    if (value->weight != NULL || map_find(&evaluation->bound, value->name) != NULL) return DW_OK;
    dw_tensor *tensor;
    TRY(new_value(evaluation, &evaluation->arena, &value->type, &tensor));
    seed ^= base_hash(value->name, strlen(value->name), 0);
    if (dw_format_is_block(tensor->format)) TRY(fill_random_blocks(evaluation, tensor, seed));
    else fill_random(tensor, seed);
    return evaluation_bind(evaluation, value->name, tensor);
}

/* Symbols that the shape of a bound input tells. */
static void solve_symbols(evaluation *evaluation) {
    const ir_graph *graph = evaluation->graph;
    for (int i = 0; i < evaluation->symbol_count; i++) evaluation->symbols[i] = evaluation->set[i];
    for (size_t i = 0; i < graph->input_count; i++) {
        const op_type *type = &graph->inputs[i]->type;
        const dw_tensor *tensor = map_find(&evaluation->bound, graph->inputs[i]->name);
        for (int axis = 0; tensor != NULL && axis < type->rank && axis < tensor->rank; axis++) {
            int symbol;
            if (dim_is_symbol(type->dims[axis], &symbol) && evaluation->symbols[symbol] < 0) evaluation->symbols[symbol] = tensor->dims[axis];
        }
    }
}

dw_status evaluation_bind_random(evaluation *evaluation, uint64_t seed) {
    const ir_graph *graph = evaluation->graph;
    solve_symbols(evaluation);
    for (int i = 0; i < evaluation->symbol_count; i++) {
        if (evaluation->symbols[i] >= 0) continue;
        int64_t min, max, small = SMALL_SIZE + i;
        dim_symbol_range(graph->dims, i, &min, &max);
        evaluation->set[i] = evaluation->symbols[i] = small < min ? min : small > max ? max : small;
    }
    for (size_t i = 0; i < graph->input_count; i++) TRY(bind_random(evaluation, graph->inputs[i], seed));
    for (size_t i = 0; i < graph->param_count; i++) TRY(bind_random(evaluation, graph->params[i], seed));
    for (size_t i = 0; i < graph->state_count; i++)
        if (graph->states[i]->trained) TRY(bind_random(evaluation, graph->states[i], seed));
    return DW_OK;
}

/* ---- running ---- */

static dw_status check_fits(const evaluation *evaluation, const ir_value *value, const dw_tensor *tensor) {
    if (tensor->format != value->type.format || tensor->rank != value->type.rank) {
        return base_fail(evaluation->context, DW_MISMATCH, "'%s' is bound to %s of rank %d instead of %s of rank %d", value->name,
                         dw_format_name(tensor->format), tensor->rank, dw_format_name(value->type.format), value->type.rank);
    }
    for (int i = 0; i < tensor->rank; i++) {
        int64_t size;
        TRY(dim_eval(evaluation->context, value->type.dims[i], evaluation->symbols, &size));
        if (size != tensor->dims[i]) {
            return base_fail(evaluation->context, DW_MISMATCH, "axis %d of '%s' has size %lld instead of %lld", i, value->name, (long long)tensor->dims[i], (long long)size);
        }
    }
    return DW_OK;
}

static dw_status check_bound(const evaluation *evaluation, ir_value *const *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const dw_tensor *tensor = map_find(&evaluation->bound, values[i]->name);
        if (tensor == NULL && values[i]->kind != IR_STATE && values[i]->weight == NULL) {
            return base_fail(evaluation->context, DW_NOT_FOUND, "'%s' is not bound", values[i]->name);
        }
        if (tensor != NULL) TRY(check_fits(evaluation, values[i], tensor));
    }
    return DW_OK;
}

/* What every state has as the run begins. */
static dw_status begin_states(evaluation *evaluation, arena *arena) {
    for (size_t i = 0; i < evaluation->graph->state_count; i++) {
        const ir_value *state = evaluation->graph->states[i];
        dw_tensor *tensor = map_find(&evaluation->states, state->name);
        if (tensor == NULL) tensor = map_find(&evaluation->bound, state->name);
        if (tensor == NULL && state->weight != NULL) tensor = &state->weight->tensor;
        if (tensor == NULL) TRY(new_value(evaluation, arena, &state->type, &tensor));
        TRY(check_fits(evaluation, state, tensor));
        TRY(map_set(&evaluation->begun, state->name, tensor));
    }
    return DW_OK;
}

bool evaluation_keeps_elements(op_id op) { return op_has(op, OP_TRAIT_EXACT | OP_TRAIT_VIEW | OP_TRAIT_CREATE); }

static void perturb(const evaluation *evaluation, const ir_node *node, const dw_tensor *tensor) {
    const num_format *info = num_info(tensor->format);
    if (info->class != NUM_FLOAT || evaluation_keeps_elements(node->op)) return;
    const bool in_fp32 = node->op == OP_attention && node->in[0].value->type.format != DW_FORMAT_f64;   /* a score and its bias are added in fp32, whatever the result is */
    const double by = ldexp(evaluation->places, -(in_fp32 && info->mantissa_bits > 23 ? 23 : info->mantissa_bits)), least = by * ldexp(1, 1 - info->bias);   /* the last place of subnormal numbers */
    const bool by_parts = evaluation->perturbed % 2 == 1;
    const uint64_t seed = evaluation->perturbed ^ (uint64_t)node->out[0]->id * 0x9e3779b97f4a7c15u;
    int64_t index[DW_MAX_RANK] = {0};
    for (int64_t i = 0, count = op_tensor_count(tensor); i < count; i++, op_tensor_next(tensor, index)) {
        const double x = op_tensor_load(tensor, index), sign = num_random(seed, (uint64_t)i) & 1 ? 1 : -1;
        const double share = by_parts ? (double)num_random_uniform(~seed, (uint64_t)i) : 1;
        const double direction = fabs(x) > info->max / 4 ? (sign - 1) / 2 * copysign(1, x) : sign;   /* not to infinity */
        if (isfinite(x) && x != 0) op_tensor_store(tensor, index, x + direction * share * fmax(fabs(x) * by, least));
    }
}

void evaluation_perturb(evaluation *evaluation, uint64_t seed, double places) {
    evaluation->perturbed = seed;
    evaluation->places = places;
}

/* group: of a collective the ranks that take part; NULL: the rank is alone. */
static dw_status run_node(evaluation *evaluation, arena *arena, const ir_node *node, const op_group *group) {
    const dw_tensor *in[MAX_OPERANDS], *out[MAX_RESULTS];
    for (int i = 0; i < node->n_in; i++) in[i] = node->in[i].value != NULL ? evaluation_value(evaluation, node->in[i].value) : NULL;
    for (int i = 0; i < node->n_out; i++) {
        dw_tensor *tensor;
        TRY(new_value(evaluation, arena, &node->out[i]->type, &tensor));
        out[i] = evaluation->values[node->out[i]->id] = tensor;
    }
    const op_def *def = op_get(node->op);
    op_call call = {.context = evaluation->context, .op = def, .attrs = &node->attrs, .symbols = evaluation->symbols,
                    .n_in = node->n_in, .in = in, .n_out = node->n_out, .out = out, .group = group};
    dw_status status = def->reference(&call);
    for (int i = 0; status == DW_OK && evaluation->places > 0 && i < node->n_out; i++) perturb(evaluation, node, out[i]);
    if (status == DW_OK) return DW_OK;
    return base_fail_at(evaluation->context, status, "evaluating %s, which makes %%%d", def->name, node->out[0]->id);
}

/* The same elements in memory of that arena: a value of an older run would not live on. */
static dw_status keep(evaluation *evaluation, arena *arena, const ir_value *state, const dw_tensor *from, dw_tensor **kept) {
    TRY(new_value(evaluation, arena, &state->type, kept));
    int64_t index[DW_MAX_RANK] = {0};
    int64_t count = op_tensor_count(from);
    bool is_integer = num_info(from->format)->class != NUM_FLOAT && num_info(from->format)->class != NUM_SCALE;
    if (dw_format_is_block(from->format)) {
        num_parts parts;
        if (!num_layout(from->format, from->scale_layout, from->rank, from->dims, &parts)) return base_fail(evaluation->context, DW_LIMIT, "state '%s' overflows", state->name);
        memcpy((*kept)->data, from->data, parts.data_bytes);
        memcpy((*kept)->scales, from->scales, parts.scale_bytes);
        if (parts.second_bytes > 0) memcpy((*kept)->second, from->second, parts.second_bytes);
        return DW_OK;
    }
    for (int64_t i = 0; i < count; i++) {
        if (is_integer) op_tensor_store_int(*kept, index, op_tensor_load_int(from, index));
        else op_tensor_store(*kept, index, op_tensor_load(from, index));
        op_tensor_next(from, index);
    }
    return DW_OK;
}

static dw_status end_states(evaluation *evaluation, arena *arena) {
    for (size_t i = 0; i < evaluation->graph->state_count; i++) {
        const ir_value *state = evaluation->graph->states[i];
        dw_tensor *kept;
        TRY(keep(evaluation, arena, state, evaluation_value(evaluation, state->next), &kept));
        TRY(map_set(&evaluation->states, state->name, kept));
    }
    return DW_OK;
}

/* Everything before the first node. */
static dw_status begin(evaluation *evaluation) {
    const ir_graph *graph = evaluation->graph;
    solve_symbols(evaluation);
    for (int i = 0; i < evaluation->symbol_count; i++) {
        if (evaluation->symbols[i] >= 0) continue;
        return base_fail(evaluation->context, DW_INVALID, "symbol '%s' has no value; bind the inputs or set it", dim_symbol_name(graph->dims, i));
    }
    TRY(check_bound(evaluation, graph->inputs, graph->input_count));
    TRY(check_bound(evaluation, graph->params, graph->param_count));
    evaluation->turn = 1 - evaluation->turn;
    arena_free(&evaluation->runs[evaluation->turn]);
    return begin_states(evaluation, &evaluation->runs[evaluation->turn]);
}

dw_status evaluation_run(evaluation *evaluation) { return evaluation_run_ranks(1, &evaluation); }

dw_status evaluation_run_ranks(int count, evaluation *const *ranks) {
    dw_tensor operands[MAX_RANKS];
    if (count > MAX_RANKS) return base_fail(ranks[0]->context, DW_LIMIT, "%d ranks are evaluated, at most %d can be", count, MAX_RANKS);
    for (int i = 0; i < count; i++) TRY(begin(ranks[i]));
    for (const ir_node *node = ranks[0]->graph->first; node != NULL; node = node->next) {
        const bool meets = count > 1 && op_has(node->op, OP_TRAIT_COLLECTIVE);
        for (int i = 0; meets && i < count; i++) operands[i] = *evaluation_value(ranks[i], node->in[0].value);
        for (int i = 0; i < count; i++) TRY(run_node(ranks[i], &ranks[i]->runs[ranks[i]->turn], node, meets ? &(op_group){i, count, operands} : NULL));
    }
    for (int i = 0; i < count; i++) TRY(end_states(ranks[i], &ranks[i]->runs[ranks[i]->turn]));
    return DW_OK;
}

void evaluation_reset(evaluation *evaluation) {
    for (size_t i = 0; i < evaluation->states.count; i++) evaluation->states.entries[i].value = NULL;
}

/* ---- asking ---- */

const dw_tensor *evaluation_value(const evaluation *evaluation, const ir_value *value) {
    switch (value->kind) {
    case IR_RESULT: return evaluation->values[value->id];
    case IR_STATE: return map_find(&evaluation->begun, value->name);
    case IR_INPUT:
    case IR_PARAM: break;
    }
    const dw_tensor *bound = map_find(&evaluation->bound, value->name);
    return bound != NULL || value->weight == NULL ? bound : &value->weight->tensor;
}

const dw_tensor *evaluation_output(const evaluation *evaluation, const char *name) {
    for (size_t i = 0; i < evaluation->graph->output_count; i++) {
        const ir_output *output = &evaluation->graph->outputs[i];
        if (strcmp(output->name, name) == 0) return evaluation_value(evaluation, output->value);
    }
    return NULL;
}

const dw_tensor *evaluation_state(const evaluation *evaluation, const char *name) { return map_find(&evaluation->states, name); }

const int64_t *evaluation_symbols(const evaluation *evaluation) { return evaluation->symbols; }

/* ---- what may be lost ---- */

double evaluation_largest(const dw_tensor *t) {
    int64_t index[DW_MAX_RANK] = {0};
    double largest = 0;
    for (int64_t i = 0, count = op_tensor_count(t); i < count; i++, op_tensor_next(t, index)) {
        const double x = fabs(op_tensor_load(t, index));
        if (isfinite(x) && x > largest) largest = x;
    }
    return largest;
}

/* Of an operand in an MX format, the most that a row's elements below 2^-126 add up to. */
static double subnormal_sum(const dw_tensor *t) {
    int64_t index[DW_MAX_RANK] = {0};
    double most = 0, sum = 0;
    if (num_info(t->format)->class != NUM_BLOCK || num_info(t->format)->scale != DW_FORMAT_e8m0) return 0;
    for (int64_t i = 0, count = op_tensor_count(t); i < count; i++, op_tensor_next(t, index)) {
        const double x = fabs(op_tensor_load(t, index));
        if (i % t->dims[t->rank - 1] == 0) sum = 0;
        if (x < 0x1p-126) sum += x;
        most = fmax(most, sum);
    }
    return most;
}

double evaluation_lost(const op_call *call) {
    const dw_tensor *const *in = call->in;
    if (call->op->id == OP_attention) {
        const dw_tensor *table = op_operand(call, ATTENTION_TABLE);
        return ldexp((double)in[ATTENTION_K]->dims[2] * (double)(table != NULL ? table->dims[1] : 1), -126);
    }
    if (call->op->id != OP_matmul && call->op->id != OP_grouped_matmul) return 0;
    const double terms = (double)in[0]->dims[in[0]->rank - (op_attr_bool(call->attrs, OP_ATTR_at) ? 2 : 1)];
    const double a = subnormal_sum(in[0]), b = subnormal_sum(in[1]);
    return ldexp(terms, -126) + (a > 0 ? a * evaluation_largest(in[1]) : 0) + (b > 0 ? b * evaluation_largest(in[0]) : 0);
}

/* ---- comparing ---- */

static bool has_same_shape(const dw_tensor *a, const dw_tensor *b) {
    if (a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++) {
        if (a->dims[i] != b->dims[i]) return false;
    }
    return true;
}

bool tensor_is_same(const dw_tensor *a, const dw_tensor *b) {
    if (a->format != b->format || !has_same_shape(a, b)) return false;
    int64_t index[DW_MAX_RANK] = {0};
    int64_t count = op_tensor_count(a);
    num_class class = num_info(a->format)->class;
    bool is_integer = class == NUM_BOOL || class == NUM_SIGNED || class == NUM_UNSIGNED;
    for (int64_t i = 0; i < count; i++) {
        if (is_integer) {
            if (op_tensor_load_int(a, index) != op_tensor_load_int(b, index)) return false;
        } else {
            double x = op_tensor_load(a, index), y = op_tensor_load(b, index);
            bool same = isnan(x) || isnan(y) ? isnan(x) && isnan(y) : x == y && !signbit(x) == !signbit(y);
            if (!same) return false;
        }
        op_tensor_next(a, index);
    }
    return true;
}

double tensor_error(const dw_tensor *a, const dw_tensor *b) {
    if (!has_same_shape(a, b)) return INFINITY;
    int64_t index[DW_MAX_RANK] = {0};
    int64_t count = op_tensor_count(a);
    double difference = 0.0, size = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double x = op_tensor_load(a, index), y = op_tensor_load(b, index);
        op_tensor_next(a, index);
        if (isnan(x) && isnan(y)) continue;
        if (!isfinite(x) || !isfinite(y)) {
            if (x == y) continue;
            return INFINITY;
        }
        difference += (x - y) * (x - y);
        size += y * y;
    }
    if (difference == 0.0) return 0.0;
    return size == 0.0 ? INFINITY : sqrt(difference / size);
}
