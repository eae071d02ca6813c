/* Post lists: the steps that matmul and grouped_matmul apply to their accumulator before the result is rounded. Fuses nothing. */
#include "op/family.h"

#include <string.h>

typedef struct post_row {
    const char *name;
    op_post_operand operand;
    bool halves;
    op_id op;                     /* of y and the operand; of g where the step halves */
} post_row;

enum {
#define OP_POST_AS(step, op) OP_##step = OP_##op,
#include "op/post_op.def"
#undef OP_POST_AS
};

static const post_row rows[] = {
#define OP_POST(name, operand, halves, meaning) {#name, OP_POST_##operand, halves, (op_id)OP_##name},
#include "op/post.def"
#undef OP_POST
};

static op_post post_find(const char *name, size_t length) {
    for (int i = 0; i < OP_POST_COUNT; i++)
        if (strlen(rows[i].name) == length && memcmp(rows[i].name, name, length) == 0) return (op_post)i;
    return OP_POST_COUNT;
}

const char *op_post_name(op_post step) { return rows[step].name; }

op_post_operand op_post_operand_of(op_post step) { return rows[step].operand; }

bool op_post_halves(op_post step) { return rows[step].halves; }

op_id op_post_op(op_post step) { return rows[step].op; }

op_post op_post_of(op_id op, bool halves) {
    for (int i = 0; i < OP_POST_COUNT; i++)
        if (rows[i].operand == OP_POST_NONE && rows[i].halves == halves && rows[i].op == op) return (op_post)i;
    return OP_POST_COUNT;
}

static double value_of(op_post step, double y, double x) {
    const double in[] = {y, x};
    double value = 0;
    op_pointwise_value(rows[step].op, rows[step].operand == OP_POST_NONE ? 1 : 2, in, &value);
    return rows[step].halves ? value * x : value;
}

/* The operand of a step at a column: rows of a COLUMN operand are groups, rows of a FULL one are rows of the result. */
static double operand_at(const op_post_run *run, int number, op_post step, int64_t row, int64_t group, int64_t col) {
    const walk *w = run->walk;
    int slot = run->first_slot + number;
    int64_t along_rows = rows[step].operand == OP_POST_COLUMN ? group : row;
    int64_t offset = w->offset[slot] + along_rows * w->stride[slot][w->rank - 2] + col * w->stride[slot][w->rank - 1];
    return op_load_at(run->call->in[run->first_operand + number], offset);
}

double op_post_run_at(const op_post_run *run, int64_t row, int64_t group, int64_t col, double y, double u) {
    bool halved = run->half == 0;
    for (int i = 0, number = 0; i < run->list.count; i++) {
        op_post step = run->list.steps[i];
        bool takes = rows[step].operand != OP_POST_NONE;
        if (rows[step].halves) {
            y = value_of(step, y, u);
            halved = true;
            continue;
        }
        y = value_of(step, y, takes ? operand_at(run, number, step, row, group, col) : 0);
        if (!halved) u = value_of(step, u, takes ? operand_at(run, number, step, row, group, col + run->half) : 0);
        number += takes;
    }
    return y;
}

dw_status op_post_run_start(const op_call *call, int first_operand, int64_t n, walk *walk, op_post_run *run) {
    *run = (op_post_run){.call = call, .first_operand = first_operand, .first_slot = walk->count, .walk = walk};
    TRY(op_post_parse(call->context, op_attr_text(call->attrs, OP_ATTR_post), &run->list));
    for (int i = 0; i < run->list.count; i++)
        if (rows[run->list.steps[i]].halves) run->half = n / 2;
    for (int i = first_operand; i < call->n_in; i++) walk_add(walk, call->in[i]);
    return DW_OK;
}

float op_post_apply(op_post step, float y, float x) { return (float)value_of(step, y, x); }

dw_status op_post_parse(dw_context *context, const char *text, op_post_list *list) {
    *list = (op_post_list){0};
    bool halved = false;
    for (const char *at = text; *at != '\0';) {
        size_t length = strcspn(at, ",");
        op_post step = post_find(at, length);
        if (step == OP_POST_COUNT)
            return base_fail(context, DW_INVALID, "post \"%s\": there is no step '%.*s'", text, (int)length, at);
        if (list->count == OP_MAX_POST)
            return base_fail(context, DW_LIMIT, "post \"%s\": more than %d steps", text, OP_MAX_POST);
        if (halved && rows[step].halves)
            return base_fail(context, DW_INVALID, "post \"%s\": at most one step may halve the columns, %s is the second", text, rows[step].name);
        halved |= rows[step].halves;
        list->steps[list->count++] = step;
        at += length;
        if (*at == ',' && *++at == '\0') return base_fail(context, DW_INVALID, "post \"%s\": a step is missing at the end", text);
    }
    return DW_OK;
}

/* The last dimension after a step that halves it. */
static dw_status halve(op_infer *infer, dim *n) {
    dim two, half;
    TRY_DIM(infer->context, two, dim_constant(infer->dims, 2));
    half = dim_divide_exact(infer->dims, *n, two);
    if (half == NULL) {
        text printed;
        text_init(&printed, infer->context);
        dim_print(&printed, infer->dims, *n);
        dw_status status = base_fail(infer->context, DW_MISMATCH, "%s: n is %s, which post cannot halve", infer->op->name, text_string(&printed));
        text_free(&printed);
        return status;
    }
    *n = half;
    return DW_OK;
}

/* A COLUMN operand: [n], or [groups,n]. */
static dw_status check_column(op_infer *infer, const char *name, const op_type *type, dim groups, dim n) {
    TRY(op_check_rank(infer, name, type, 1, groups != NULL ? 2 : 1));
    if (type->rank == 2) TRY(op_check_same(infer, "the number of groups", groups, "axis 0 of a post operand", type->dims[0]));
    return op_check_same(infer, "n of the result", n, "the last axis of a post operand", type->dims[type->rank - 1]);
}

dw_status op_post_infer(op_infer *infer, int first_operand, dim groups, op_type *result) {
    op_post_list list;
    TRY(op_post_parse(infer->context, op_attr_text(infer->attrs, OP_ATTR_post), &list));
    int next = first_operand;
    for (int i = 0; i < list.count; i++) {
        const post_row *row = &rows[list.steps[i]];
        if (row->halves) TRY(halve(infer, &result->dims[result->rank - 1]));
        if (row->operand == OP_POST_NONE) continue;
        if (next >= infer->n_in || infer->in[next] == NULL)
            return base_fail(infer->context, DW_INVALID, "%s: post step %s has no operand; add one as operand %d", infer->op->name, row->name, next);
        const op_type *type = infer->in[next++];
        TRY(op_check_float(infer, row->name, type));
        if (row->operand == OP_POST_COLUMN) TRY(check_column(infer, row->name, type, groups, result->dims[result->rank - 1]));
        else TRY(op_check_broadcasts_to(infer, "a post operand ", type, result->rank, result->dims));
    }
    if (next < infer->n_in)
        return base_fail(infer->context, DW_INVALID, "%s: operand %d is used by no step of post \"%s\"", infer->op->name, next,
                         op_attr_text(infer->attrs, OP_ATTR_post));
    return DW_OK;
}
