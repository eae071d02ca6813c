/* Questions about a graph: uses, definitions, constants, numbers, work. Changes nothing. */
#include "ir/internal.h"

#include <math.h>
#include <string.h>

int ir_use_count(const ir_graph *graph, const ir_value *value) {
    (void)graph;
    return value->use_count + value->output_count + value->next_count;
}

bool ir_is_output(const ir_graph *graph, const ir_value *value) {
    (void)graph;
    return value->output_count > 0;
}

ir_node *ir_def(const ir_value *value, op_id op) {
    return value != NULL && value->kind == IR_RESULT && value->node->op == op ? value->node : NULL;
}

bool ir_is_constant(const ir_value *value) { return value->rate == IR_RATE_LOAD; }

bool ir_is_weight(const ir_value *value) { return value->rate < IR_RATE_RUN; }

bool ir_is_again(const ir_node *node) { return node->origin.phase != NULL && strcmp(node->origin.phase, "again") == 0; }

/* What follows "const.<n>" in the name of a constant of our own making; NULL of any other name. */
static const char *behind_number(const char *name) {
    static const char made[] = "const.";
    const size_t length = strlen(made), digits = strncmp(name, made, length) == 0 ? strspn(name + length, "0123456789") : 0;
    const char *rest = name + length + digits;
    return digits > 0 && (*rest == '\0' || *rest == '.') ? rest : NULL;
}

bool ir_is_made(const ir_value *param) { return behind_number(param->name) != NULL; }

const char *ir_model_tensor(const ir_value *param) {
    const char *rest = behind_number(param->name);
    if (rest == NULL) return param->name;
    return *rest == '.' ? rest + 1 : NULL;
}

/* ---- the one number that a value holds ---- */

enum {
    MAX_CASTS = 16,                 /* in the chain from a number to its value */
    MAX_COMPARED = 1 << 20          /* elements of a param */
};

/* number in that format, as the cast op rounds it; false where it would overflow, which casts treat by their own rules. */
static bool round_to(dw_format format, double *number) {
    const num_format *info = num_info(format);
    bool is_integer = info->class == NUM_SIGNED || info->class == NUM_UNSIGNED;
    if (info->class == NUM_BOOL) *number = *number != 0.0;
    if (is_integer) *number = trunc(*number);
    if (is_integer && !(*number <= info->max && *number >= (info->class == NUM_SIGNED ? -info->max - 1 : 0))) return false;
    if (!is_integer && !info->has_infinity && !(fabs(*number) <= info->max)) return false;
    if (format == DW_FORMAT_i64) return fabs(*number) <= 0x1p53;
    *number = num_decode(format, num_encode(format, *number, false));
    return true;
}

static bool same_bits(double a, double b) { return a == b ? signbit(a) == signbit(b) : isnan(a) && isnan(b); }

static bool is_uniform(const dw_tensor *tensor, double *number) {
    int64_t count = op_tensor_count(tensor);
    if (tensor->data == NULL || count < 1 || count > MAX_COMPARED || dw_format_is_block(tensor->format)) return false;
    int64_t index[DW_MAX_RANK] = {0};
    *number = op_tensor_load(tensor, index);
    if (tensor->format == DW_FORMAT_i64 && fabs(*number) > 0x1p53) return false;
    if (op_tensor_is_contiguous(tensor) && dw_format_bits(tensor->format) >= 8) {
        size_t size = (size_t)dw_format_bits(tensor->format) / 8;   /* each element is the one before it */
        return memcmp(tensor->data, (const uint8_t *)tensor->data + size, ((size_t)count - 1) * size) == 0;
    }
    for (int64_t i = 1; i < count; i++) {
        op_tensor_next(tensor, index);
        if (!same_bits(*number, op_tensor_load(tensor, index))) return false;
    }
    return true;
}

void ir_rely_on(const ir_value *param) {
    if (param->weight != NULL) param->weight->decides = true;
}

bool ir_is_scalar(const ir_value *value, double *number) {
    dw_format casts[MAX_CASTS];
    int cast_count = 0;
    while (value->kind == IR_RESULT && value->node->n_in > 0) {
        const ir_node *node = value->node;
        if (node->op == OP_cast) {
            if (cast_count == MAX_CASTS) return false;
            casts[cast_count++] = value->type.format;
        } else if ((op_get(node->op)->traits & OP_TRAIT_VIEW) == 0) {
            return false;
        }
        value = node->in[0].value;
    }
    int64_t size;
    if (value->kind == IR_PARAM) {
        if (value->weight == NULL || !is_uniform(&value->weight->tensor, number)) return false;
        ir_rely_on(value);
    } else if (ir_def(value, OP_fill) != NULL) {
        *number = ir_real(value->node, OP_ATTR_value);
        if (!round_to(value->type.format, number)) return false;
    } else if (ir_def(value, OP_size) != NULL && dim_is_constant(op_attr_dim(&value->node->attrs, OP_ATTR_size), &size)) {
        if (size > INT64_C(1) << 53 || size < -(INT64_C(1) << 53)) return false;
        *number = (double)size;
    } else {
        return false;
    }
    while (cast_count > 0) {
        if (!round_to(casts[--cast_count], number)) return false;
    }
    return true;
}

/* ---- work ---- */

dw_status ir_work(const ir_graph *graph, const ir_node *node, const int64_t *symbols, op_work *work) {
    dw_tensor tensors[IR_MAX_IN + IR_MAX_OUT];
    const dw_tensor *in[IR_MAX_IN], *out[IR_MAX_OUT];
    for (int i = 0; i < node->n_in; i++) {
        const ir_value *value = node->in[i].value;
        in[i] = value != NULL ? &tensors[i] : NULL;
        if (value != NULL) TRY(op_tensor_bind(graph->context, &value->type, symbols, NULL, &tensors[i]));
    }
    for (int i = 0; i < node->n_out; i++) {
        out[i] = &tensors[IR_MAX_IN + i];
        TRY(op_tensor_bind(graph->context, &node->out[i]->type, symbols, NULL, &tensors[IR_MAX_IN + i]));
    }
    const op_def *def = op_get(node->op);
    op_call call = {.context = graph->context, .op = def, .attrs = &node->attrs, .symbols = symbols,
                    .n_in = node->n_in, .in = in, .n_out = node->n_out, .out = out};
    *work = (op_work){0};
    def->work(&call, work);
    return DW_OK;
}
