/* Expressions for people (print) and for numbers (evaluation at one index). */
#include "analysis/value.h"

#include <math.h>

/* ---- print ----------------------------------------------------------------------------------------------------------- */

static void print_list(text *text, const value_analysis *analysis, int count, const value_expr *args) {
    for (int i = 0; i < count; i++) {
        if (i > 0) text_add(text, ", ");
        value_print(text, analysis, args[i]);
    }
}

static void print_affine(text *text, const value_analysis *analysis, value_expr x) {
    const dim_table *dims = analysis->graph->dims;
    for (int i = 0; i < x->count; i++) {
        int64_t factor;
        const bool constant = dim_is_constant(x->factors[i], &factor);
        if (constant && factor < 0) text_add(text, i == 0 ? "-" : " - ");
        if (i > 0 && !(constant && factor < 0)) text_add(text, " + ");
        if (constant && factor != 1 && factor != -1) text_printf(text, "%lld*", (long long)(factor < 0 ? -factor : factor));
        if (!constant) {
            text_add(text, "(");
            dim_print(text, dims, x->factors[i]);
            text_add(text, ")*");
        }
        value_print(text, analysis, x->args[i]);
    }
    int64_t size;
    const bool constant = dim_is_constant(x->size, &size);
    if (x->count > 0 && constant && size == 0) return;
    if (x->count > 0 && constant) {
        text_printf(text, size < 0 ? " - %lld" : " + %lld", (long long)(size < 0 ? -size : size));
        return;
    }
    if (x->count > 0) text_add(text, " + ");
    dim_print(text, dims, x->size);
}

void value_print(text *text, const value_analysis *analysis, value_expr x) {
    static const char *const words[] = {[VALUE_AND] = " and ", [VALUE_OR] = " or "};
    switch (x->kind) {
    case VALUE_CONSTANT:
        if (x->class == VALUE_BOOL) {
            text_add(text, x->number != 0 ? "true" : "false");
        } else {
            text_printf(text, "%.9g", x->number);
        }
        break;
    case VALUE_AFFINE: print_affine(text, analysis, x); break;
    case VALUE_INDEX: text_printf(text, "i%d", x->axis); break;
    case VALUE_BOUND: text_add(text, "t"); break;
    case VALUE_LE:
    case VALUE_EQ:
        value_print(text, analysis, x->args[0]);
        text_add(text, x->kind == VALUE_LE ? " <= 0" : " == 0");
        break;
    case VALUE_AND:
    case VALUE_OR:
        text_add(text, "(");
        value_print(text, analysis, x->args[0]);
        text_add(text, words[x->kind]);
        value_print(text, analysis, x->args[1]);
        text_add(text, ")");
        break;
    case VALUE_NOT:
        text_add(text, "not(");
        value_print(text, analysis, x->args[0]);
        text_add(text, ")");
        break;
    case VALUE_SELECT:
        text_add(text, "(");
        value_print(text, analysis, x->args[0]);
        text_add(text, " ? ");
        value_print(text, analysis, x->args[1]);
        text_add(text, " : ");
        value_print(text, analysis, x->args[2]);
        text_add(text, ")");
        break;
    case VALUE_LOOKUP:
        text_printf(text, "%s[", x->source->name);
        print_list(text, analysis, x->count, x->args);
        text_add(text, "]");
        break;
    case VALUE_SCAN:
        text_add(text, "sum(t <= ");
        value_print(text, analysis, x->args[1]);
        text_add(text, ": ");
        value_print(text, analysis, x->args[0]);
        text_add(text, ")");
        break;
    case VALUE_POINT:
        text_printf(text, "%s%s%s(", op_get(x->op)->name, x->op == OP_cast ? "_" : "", x->op == OP_cast ? dw_format_name(x->format) : "");
        print_list(text, analysis, x->count, x->args);
        text_add(text, ")");
        break;
    }
}

/* ---- evaluation -------------------------------------------------------------------------------------------------------- */

static dw_status eval_affine(const value_analysis *analysis, value_expr x, value_env *env, double *number) {
    dw_context *context = analysis->graph->context;
    int64_t sum, factor;
    TRY(dim_eval(context, x->size, env->symbols, &sum));
    *number = (double)sum;
    for (int i = 0; i < x->count; i++) {
        double atom;
        TRY(dim_eval(context, x->factors[i], env->symbols, &factor));
        TRY(value_eval(analysis, x->args[i], env, &atom));
        *number += (double)factor * atom;
    }
    return DW_OK;
}

static dw_status eval_lookup(const value_analysis *analysis, value_expr x, value_env *env, double *number) {
    dw_context *context = analysis->graph->context;
    const ir_value *source = x->source;
    int64_t index[DW_MAX_RANK];
    for (int i = 0; i < x->count; i++) {
        double at;
        TRY(value_eval(analysis, x->args[i], env, &at));
        index[i] = (int64_t)at;
    }
    if (env->load != NULL) return env->load(env->owner, source, index, number);
    if (source->weight == NULL || source->weight->tensor.data == NULL) {
        return base_fail(context, DW_INVALID, "'%s' has no data, so an element of it is not known; load the weights", source->name);
    }
    const dw_tensor *tensor = &source->weight->tensor;
    for (int i = 0; i < x->count; i++) {
        if (index[i] < 0 || index[i] >= tensor->dims[i]) {
            return base_fail(context, DW_INVALID, "index %lld is outside axis %d of '%s', whose size is %lld", (long long)index[i], i,
                             source->name, (long long)tensor->dims[i]);
        }
    }
    ir_rely_on(source);
    *number = x->class == VALUE_REAL ? op_tensor_load(tensor, index) : (double)op_tensor_load_int(tensor, index);
    return DW_OK;
}

static dw_status eval_scan(const value_analysis *analysis, value_expr x, value_env *env, double *number) {
    double last, element;
    TRY(value_eval(analysis, x->args[1], env, &last));
    value_env inner = *env;
    *number = 0;
    for (inner.bound = 0; inner.bound <= (int64_t)last; inner.bound++) {
        TRY(value_eval(analysis, x->args[0], &inner, &element));
        *number += element;
    }
    return DW_OK;
}

static dw_status eval_point(const value_analysis *analysis, value_expr x, value_env *env, double *number) {
    double args[2];
    if (x->count > 2) return base_fail(analysis->graph->context, DW_INTERNAL, "a formula holds %s with %d operands", op_get(x->op)->name, x->count);
    for (int i = 0; i < x->count; i++) TRY(value_eval(analysis, x->args[i], env, &args[i]));
    if (!value_point_number(x->op, x->count, args, number)) {
        return base_fail(analysis->graph->context, DW_UNSUPPORTED, "a formula holds %s, which has no value on numbers", op_get(x->op)->name);
    }
    if (x->class == VALUE_INT) *number = trunc(*number);
    if (x->class == VALUE_REAL && x->format != DW_FORMAT_f64) *number = num_decode(x->format, num_encode(x->format, *number, false));
    return DW_OK;
}

dw_status value_eval(const value_analysis *analysis, value_expr x, value_env *env, double *number) {
    double condition;
    switch (x->kind) {
    case VALUE_CONSTANT: *number = x->number; return DW_OK;
    case VALUE_INDEX: *number = (double)env->index[x->axis]; return DW_OK;
    case VALUE_BOUND: *number = (double)env->bound; return DW_OK;
    case VALUE_AFFINE: return eval_affine(analysis, x, env, number);
    case VALUE_LOOKUP: return eval_lookup(analysis, x, env, number);
    case VALUE_SCAN: return eval_scan(analysis, x, env, number);
    case VALUE_POINT: return eval_point(analysis, x, env, number);
    case VALUE_SELECT:
        TRY(value_eval(analysis, x->args[0], env, &condition));
        return value_eval(analysis, x->args[condition != 0 ? 1 : 2], env, number);
    default: break;
    }
    TRY(value_eval(analysis, x->args[0], env, number));
    if (x->kind == VALUE_LE) *number = *number <= 0;
    if (x->kind == VALUE_EQ || x->kind == VALUE_NOT) *number = *number == 0;
    if (x->kind == VALUE_AND && *number != 0) return value_eval(analysis, x->args[1], env, number);
    if (x->kind == VALUE_OR && *number == 0) return value_eval(analysis, x->args[1], env, number);
    return DW_OK;
}
