/* What inputs and weights hold, told by their names, so that a graph's text and a seed are all of a case. What stands in front of the first '.' is a role:
 *     (none)         normal numbers, of one scale for each name; integers 0 and 1; random truths
 *     fromAtoB       uniform numbers or integers from A to B; a negative one has an m in front
 *     endsN          integers from 0 to N that ascend
 *     small          integers from -3 to 3
 *     special        normal numbers with NaN, infinities and zeros among them
 *     bias           what is added to scores: one of the patterns below, by name
 *     open           truths, or integers 0 and 1, of which the first of each row is 1: a mask of keys that hides no text whole
 *     positive       from 0.1 upwards */
#include "tests/graphs/graphs.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct numbers {
    uint64_t seed;
    double low, high, scale;
    bool is_float;
    dw_format format;
    int64_t last;                 /* the size of the last axis */
} numbers;

typedef double (*number_at)(const numbers *n, int64_t i);

static double normal(const numbers *n, int64_t i) { return n->is_float ? n->scale * (double)num_random_normal(n->seed, (uint64_t)i) : (double)(num_random(n->seed, (uint64_t)i) & 1); }

static double uniform(const numbers *n, int64_t i) {
    const double share = (double)num_random_uniform(n->seed, (uint64_t)i);
    if (n->is_float) return n->low + share * (n->high - n->low);
    const double number = floor(n->low + share * (n->high - n->low + 1));
    return number < n->high ? number : n->high;
}

static double special(const numbers *n, int64_t i) {
    static const double specials[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0};
    const uint64_t drawn = num_random(~n->seed, (uint64_t)i);
    return drawn % 11 == 3 ? specials[drawn / 11 % COUNT_OF(specials)] : normal(n, i);
}

static double positive(const numbers *n, int64_t i) { return fabs(normal(n, i)) + 0.1; }

static double open(const numbers *n, int64_t i) { return n->last > 0 && i % n->last == 0 ? 1 : (double)(num_random(n->seed, (uint64_t)i) & 1); }

/* ---- biases of scores ---- */

static double lowest(const numbers *n) { return n->format == DW_FORMAT_f16 ? -65504.0 : n->format == DW_FORMAT_bf16 ? -0x1.fep127 : -(double)FLT_MAX; }
static bool is_one(const numbers *n, int64_t i, int of) { return num_random(n->seed + 77, (uint64_t)i) % (uint64_t)of == 0; }
static int64_t row_of(const numbers *n, int64_t i) { return n->last > 0 ? i / n->last : 0; }
static bool is_row(const numbers *n, int64_t i) { return is_one(n, 1000003 + row_of(n, i), 3); }

static double bias_hides(const numbers *n, int64_t i) { return is_one(n, i, 3) ? -INFINITY : normal(n, i); }
static double bias_lowers(const numbers *n, int64_t i) { return is_one(n, i, 2) ? lowest(n) : 0; }
static double bias_lowers_rows(const numbers *n, int64_t i) { return is_row(n, i) || is_one(n, i, 3) ? lowest(n) : normal(n, i); }
static double bias_hides_rows(const numbers *n, int64_t i) { return is_row(n, i) || is_one(n, i, 3) ? -INFINITY : normal(n, i); }
static double bias_both(const numbers *n, int64_t i) { return is_row(n, i) ? is_one(n, i, 2) ? -INFINITY : lowest(n) : is_one(n, i, 4) ? lowest(n) : normal(n, i); }
static double bias_moderate(const numbers *n, int64_t i) { return is_row(n, i) || is_one(n, i, 2) ? -10000 : normal(n, i); }
static double bias_huge(const numbers *n, int64_t i) { return is_row(n, i) ? (is_one(n, i, 2) ? 1 : 2) * (n->format == DW_FORMAT_f16 ? 256 : 1e30) : normal(n, i); }
static double bias_equal(const numbers *n, int64_t i) { return n->scale * (double)num_random_normal(n->seed, (uint64_t)row_of(n, i)); }

static const number_at biases[] = {normal, bias_hides, bias_lowers, bias_lowers_rows, bias_hides_rows, bias_both, bias_moderate, bias_huge, bias_equal};

/* ---- by name ---- */

static bool begins(const char *name, const char *role, size_t length) { return strncmp(name, role, strlen(role)) == 0 && length >= strlen(role); }

static double bound_at(const char **at) {
    const bool negative = **at == 'm';
    char *end;
    const double number = (double)strtoll(*at + negative, &end, 10);
    *at = end;
    return negative ? -number : number;
}

/* How numbers of that name are drawn; *ascends: they are to be sorted. */
static number_at rule_of(const char *name, numbers *n, bool *ascends) {
    const char *dot = strchr(name, '.');
    const size_t length = dot != NULL ? (size_t)(dot - name) : 0;
    *ascends = begins(name, "ends", length);
    if (begins(name, "from", length)) {
        const char *at = name + strlen("from");
        n->low = bound_at(&at);
        at += strlen("to");
        n->high = bound_at(&at);
        return uniform;
    }
    if (*ascends) {
        const char *at = name + strlen("ends");
        n->high = bound_at(&at);
        return uniform;
    }
    if (begins(name, "small", length)) {
        n->low = -3;
        n->high = 3;
        return uniform;
    }
    if (begins(name, "special", length)) return special;
    if (begins(name, "positive", length)) return positive;
    if (begins(name, "open", length)) return open;
    if (begins(name, "bias", length)) return biases[num_random(n->seed, 1) % COUNT_OF(biases)];
    return normal;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static dw_status fill_blocks(dw_context *context, const dw_tensor *tensor, const double *values, int64_t count) {
    arena memory;
    dw_tensor plain;
    arena_init(&memory, context);
    dw_status status = graphs_tensor(&memory, DW_FORMAT_f32, DW_SCALE_plain, tensor->rank, tensor->dims, &plain);
    for (int64_t i = 0; status == DW_OK && i < count; i++) num_store(DW_FORMAT_f32, plain.data, i, values[i], false);
    const op_attr to = op_set_format(OP_ATTR_to, tensor->format);
    const op_attrs attrs = {1, &to};
    const dw_tensor *in = &plain;
    const op_call call = {.context = context, .op = op_get(OP_quantize), .attrs = &attrs, .n_in = 1, .in = &in, .n_out = 1, .out = &tensor};
    if (status == DW_OK) status = call.op->reference(&call);
    arena_free(&memory);
    return status;
}

dw_status graphs_fill(dw_context *context, const dw_tensor *tensor, const char *name, uint64_t seed) {
    static const double scales[] = {1, 1, 0.25, 0.1, 3};
    const num_class class = num_info(tensor->format)->class;
    numbers n = {.seed = seed ^ base_hash(name, strlen(name), 0), .is_float = is_number(tensor->format), .format = tensor->format, .last = tensor->rank > 0 ? tensor->dims[tensor->rank - 1] : 1};
    n.scale = scales[num_random(n.seed, 2) % COUNT_OF(scales)];
    bool ascends;
    const number_at rule = rule_of(name, &n, &ascends);
    const int64_t count = op_tensor_count(tensor);
    double *values = malloc((size_t)(count + 1) * sizeof *values);
    if (values == NULL) return base_fail(context, DW_NO_MEMORY, "%lld numbers", (long long)count);
    for (int64_t i = 0; i < count; i++) values[i] = rule(&n, i);
    if (ascends) qsort(values, (size_t)count, sizeof *values, by_size);
    dw_status status = DW_OK;
    if (dw_format_is_block(tensor->format)) status = fill_blocks(context, tensor, values, count);
    else for (int64_t i = 0; i < count; i++) num_store(tensor->format, tensor->data, i, class == NUM_SCALE ? 1 : values[i], false);
    free(values);
    return status;
}

dw_status graphs_give_weights(ir_graph *graph, uint64_t seed) {
    if (graph->own_weights == NULL) TRY(ir_weights_create(graph->context, &graph->own_weights));
    for (size_t i = 0; i < graph->param_count; i++) {
        ir_value *param = graph->params[i];
        int64_t dims[DW_MAX_RANK];
        if (param->weight != NULL) continue;
        for (int d = 0; d < param->type.rank; d++)
            if (!dim_is_constant(param->type.dims[d], &dims[d])) return base_fail(graph->context, DW_INVALID, "param %s has no constant shape", param->name);
        TRY(ir_weights_new(graph->own_weights, param->name, param->type.format, param->type.rank, dims, &param->weight));
        TRY(graphs_fill(graph->context, &param->weight->tensor, param->name, seed));
    }
    return DW_OK;
}

/* Does the shape of an input tell it? Other sizes are a session's for all its runs. */
static bool is_told(const ir_graph *graph, int symbol) {
    for (size_t i = 0; i < graph->input_count; i++) {
        const op_type *type = &graph->inputs[i]->type;
        for (int d = 0; d < type->rank; d++) {
            int found;
            if (dim_is_symbol(type->dims[d], &found) && found == symbol) return true;
        }
    }
    return false;
}

void graphs_sizes(const ir_graph *graph, uint64_t seed, int turn, int64_t *symbols) {
    for (int i = 0; i < dim_symbol_count(graph->dims); i++) {
        const char *name = dim_symbol_name(graph->dims, i);
        int64_t min, max;
        dim_symbol_range(graph->dims, i, &min, &max);
        if (max > min + 40) max = min + 40;
        symbols[i] = min + (int64_t)(num_random(seed ^ base_hash(name, strlen(name), 0), (uint64_t)(is_told(graph, i) ? turn : 0)) % (uint64_t)(max - min + 1));
    }
}

dw_status graphs_tensor(arena *arena, dw_format format, dw_scale_layout layout, int rank, const int64_t *dims, dw_tensor *tensor) {
    enum { ALIGN = 64 };
    num_parts parts;
    if (!num_layout(format, layout, rank, dims, &parts)) return base_fail(arena->context, DW_LIMIT, "the size of a tensor overflows");
    uint8_t *memory = arena_new(arena, parts.total_bytes + ALIGN, 1);
    if (memory == NULL) return DW_NO_MEMORY;
    memory += (ALIGN - (uintptr_t)memory % ALIGN) % ALIGN;
    return op_tensor_init(tensor, format, layout, rank, dims, memory) ? DW_OK : base_fail(arena->context, DW_LIMIT, "the size of a tensor overflows");
}

bool is_number(dw_format format) {
    const num_class class = num_info(format)->class;
    return class == NUM_FLOAT || class == NUM_SCALE || class == NUM_BLOCK;
}
