/* Gradients against central differences: each line of gradients.txt is a call, in the language of conformance (kernel/kernel.h), whose sum of results, each times a number of its own, is the loss. The
 * gradient of every floating-point operand (but those of pack=I) is derived, run by the references in f64, and held to differences of the references of the call
 * itself: 1e-6 of the largest. Operands hold no two equal numbers and none near 0, so that no kink lies within a difference; at kinks the lines of kinks[] say what PyTorch has. Every
 * op whose gradient is not stopped or refused has a line.
 *
 * Then the derived graph is broken, one node at a time (support/mutate.h). What share of that the differences notice is held to 95 in a hundred. */
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"
#include "pass/gradient/gradient.h"
#include "support/evaluate.h"
#include "support/lines.h"
#include "support/mutate.h"

enum { MOST_MUTANTS = 1 << 14 };

static const double BOUND = 1e-6, STEP = 1e-3;

typedef struct difference { int64_t count; double *values, largest; } difference;

typedef struct checking {
    dw_context *context;
    bool reached[OP_COUNT];
    int lines;
    bool mutate;
    int mutant_count;
    struct mutant { op_id op, node; int place, nodes, kind; bool caught; char line[160]; } mutants[MOST_MUTANTS];
} checking;

/* ---- the graph of a line ---- */

typedef struct line_graph {
    const kernel_case *c;
    ir_graph *forward;                       /* operands are params x0, x1, ..; numbers of results inputs r0, r1, .. */
    dw_tensor operands[KERNEL_CASE_OPERANDS], numbers[KERNEL_CASE_RESULTS];
    difference differences[KERNEL_CASE_OPERANDS];
} line_graph;

static bool is_trained(const kernel_case *c, int i) { return c->in[i] != NULL && num_info(c->in[i]->format)->class == NUM_FLOAT && (c->constant >> i & 1) == 0; }

static void ok(checking *k, const line_graph *l, dw_status status) {
    if (status != DW_OK) fail_msg("%s:%d: %s\n    %s", l->c->source, l->c->number, l->c->line, dw_context_error(k->context));
}

static dw_status add_to_loss(ir_graph *graph, int index, ir_value *y, ir_value **loss) {
    const int64_t axes[DW_MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7};
    char name[16];
    ir_value *r, *part;
    snprintf(name, sizeof name, "r%d", index);
    TRY(ir_add_input(graph, name, &y->type, &r));
    TRY(ir_emit_2(graph, OP_mul, y, r, &part));
    TRY(ir_emit_cast(graph, part, DW_FORMAT_f64, &part));
    const op_attr over = op_set_ints(OP_ATTR_axes, y->type.rank, axes);
    if (y->type.rank > 0) TRY(ir_emit(graph, OP_sum, 1, (ir_value *[]){part}, 1, &over, &part));
    if (*loss == NULL) return *loss = part, DW_OK;
    return ir_emit_2(graph, OP_add, *loss, part, loss);
}

static dw_status build(const kernel_case *c, ir_graph *graph) {
    ir_value *in[KERNEL_CASE_OPERANDS] = {NULL}, *y, *loss = NULL;
    for (int i = 0; i < c->n_in; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", i);
        if (c->in[i] != NULL) TRY(ir_add_param(graph, name, c->in[i], NULL, &in[i]));
    }
    TRY(ir_emit(graph, c->op->id, c->n_in, in, c->attrs.count, c->attrs.items, &y));
    const ir_node *node = y->node;
    for (int i = 0; i < node->n_out; i++) {
        if (num_info(node->out[i]->type.format)->class == NUM_FLOAT) TRY(add_to_loss(graph, i, node->out[i], &loss));
    }
    return ir_add_output(graph, "loss", loss);
}

/* ---- data ---- */

/* Numbers of [low,high] that are all apart, in a random order, other ones for each operand. */
static void fill_apart(uint64_t seed, int operand, double low, double high, dw_tensor *t) {
    const int64_t count = op_tensor_count(t);
    int64_t *order = malloc((size_t)(count + 1) * sizeof *order);
    for (int64_t i = 0; i < count; i++) order[i] = i;
    for (int64_t i = count - 1; i > 0; i--) {
        const int64_t j = (int64_t)(num_random(seed + (uint64_t)operand, (uint64_t)i) % (uint64_t)(i + 1)), other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
    for (int64_t i = 0; i < count; i++) num_store(t->format, t->data, i, low + (high - low) * ((double)order[i] + 0.31 + 0.043 * operand) / (double)count, false);
    free(order);
}

static int by_value(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void fill(const kernel_case *c, int operand, dw_tensor *t) {
    const kernel_range *range = &c->ranges[operand];
    const bool is_float = num_info(t->format)->class == NUM_FLOAT;
    const double low = range->given ? range->low : is_float ? -2 : 0, high = range->given ? range->high : is_float ? 2 : 1;
    if (is_float) fill_apart((uint64_t)c->number * 64, operand, low, high, t);
    const int64_t count = op_tensor_count(t), cols = t->rank > 0 ? t->dims[t->rank - 1] : 1;
    for (int64_t i = 0; i < count; i++) {
        double value = is_float ? num_load(t->format, t->data, i) : floor(low + (double)num_random_uniform((uint64_t)(c->number * 64 + operand), (uint64_t)i) * (high - low + 1));
        kernel_case_element(c, operand, (uint64_t)c->number, i, cols, &value);
        num_store(t->format, t->data, i, value, false);
    }
    if ((c->ascending >> operand & 1) != 0 && t->format == DW_FORMAT_i32) qsort(t->data, (size_t)count, sizeof(int32_t), by_value);
}

static dw_status make_tensor(arena *arena, const op_type *type, dw_tensor *t) {
    int64_t dims[DW_MAX_RANK];
    num_parts parts;
    for (int i = 0; i < type->rank; i++) dim_is_constant(type->dims[i], &dims[i]);
    if (!num_layout(type->format, DW_SCALE_plain, type->rank, dims, &parts)) return DW_LIMIT;
    char *memory;
    TRY_NEW(memory, arena, parts.total_bytes + 64);
    return op_tensor_init(t, type->format, DW_SCALE_plain, type->rank, dims, memory) ? DW_OK : DW_LIMIT;
}

static dw_status make_data(line_graph *l, arena *arena) {
    const kernel_case *c = l->c;
    for (int i = 0; i < c->n_in; i++) {
        if (c->in[i] == NULL) continue;
        TRY(make_tensor(arena, c->in[i], &l->operands[i]));
        fill(c, i, &l->operands[i]);
    }
    for (size_t i = 0; i < l->forward->input_count; i++) {
        const ir_value *r = l->forward->inputs[i];
        const int index = atoi(r->name + 1);
        TRY(make_tensor(arena, &r->type, &l->numbers[index]));
        fill_apart((uint64_t)c->number * 64 + 32, index, -1, 1, &l->numbers[index]);
    }
    return DW_OK;
}

static dw_status start(const line_graph *l, const ir_graph *graph, evaluation **run) {
    TRY(evaluation_create(graph, run));
    for (size_t i = 0; i < graph->input_count; i++) TRY(evaluation_bind(*run, graph->inputs[i]->name, &l->numbers[atoi(graph->inputs[i]->name + 1)]));
    for (size_t i = 0; i < graph->param_count; i++) {
        if (graph->params[i]->name[0] == 'x') TRY(evaluation_bind(*run, graph->params[i]->name, &l->operands[atoi(graph->params[i]->name + 1)]));
    }
    for (size_t i = 0; i < graph->state_count; i++) TRY(evaluation_bind(*run, graph->states[i]->name, &l->operands[atoi(graph->states[i]->name + 1)]));
    return DW_OK;
}

/* ---- differences ---- */

static dw_status loss_at(evaluation *run, dw_tensor *t, int64_t i, double value, double *loss) {
    num_store(t->format, t->data, i, value, false);
    TRY(evaluation_run(run));
    *loss = num_load(DW_FORMAT_f64, evaluation_output(run, "loss")->data, 0);
    return DW_OK;
}

/* Of four points, so that what is left is of the fourth order in STEP. */
static dw_status differences_of(line_graph *l, arena *arena) {
    evaluation *run;
    dw_status status = start(l, l->forward, &run);
    for (int x = 0; status == DW_OK && x < l->c->n_in; x++) {
        if (!is_trained(l->c, x)) continue;
        dw_tensor *t = &l->operands[x];
        difference *d = &l->differences[x];
        d->count = op_tensor_count(t);
        TRY_NEW(d->values, arena, d->count + 1);
        for (int64_t i = 0; status == DW_OK && i < d->count; i++) {
            const double value = num_load(t->format, t->data, i);
            double at[4];
            static const double steps[] = {-2, -1, 1, 2};
            for (int s = 0; status == DW_OK && s < 4; s++) status = loss_at(run, t, i, value + steps[s] * STEP, &at[s]);
            num_store(t->format, t->data, i, value, false);
            d->values[i] = (at[0] - 8 * at[1] + 8 * at[2] - at[3]) / (12 * STEP);
            d->largest = fmax(d->largest, fabs(d->values[i]));
        }
    }
    evaluation_destroy(run);
    return status;
}

/* ---- the gradient ---- */

static dw_status derive(const line_graph *l, ir_graph **joint) {
    TRY(ir_graph_clone(l->forward, joint));
    for (int i = 0; i < l->c->n_in; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", i);
        if (is_trained(l->c, i)) TRY(ir_train(*joint, map_find(&(*joint)->names, name)));
    }
    ir_renumber(*joint);
    TRY(gradient_open(*joint));
    TRY(gradient_derive(*joint, &(*joint)->outputs[0], NULL));
    ir_renumber(*joint);
    return ir_check(*joint);
}

/* The largest difference of a gradient to the differences, beside the largest of these; of all operands. */
static dw_status error_of(const line_graph *l, const ir_graph *joint, double *error, int *operand) {
    evaluation *run;
    dw_status status = start(l, joint, &run);
    if (status == DW_OK) status = evaluation_run(run);
    *error = 0;
    for (int x = 0; status == DW_OK && x < l->c->n_in; x++) {
        if (!is_trained(l->c, x)) continue;
        char name[24];
        snprintf(name, sizeof name, "grad.x%d", x);
        const dw_tensor *made = evaluation_output(run, name);
        const difference *d = &l->differences[x];
        double worst = 0;
        for (int64_t i = 0; i < d->count; i++) {
            const double apart = fabs(num_load(made->format, made->data, i) - d->values[i]);
            worst = isfinite(apart) ? fmax(worst, apart) : INFINITY;
        }
        worst /= fmax(d->largest, 1e-3);
        if (worst > *error) *operand = x;
        *error = fmax(*error, worst);
    }
    evaluation_destroy(run);
    return status;
}

/* ---- mutants ---- */

/* The same place of a rule is broken in every line of its op: where one line notices it, it is noticed, as some show what others do not. */
static struct mutant *find_mutant(checking *k, const line_graph *l, op_id node, int place, int nodes, int kind) {
    for (int i = 0; i < k->mutant_count; i++) {
        struct mutant *m = &k->mutants[i];
        if (m->op == l->c->op->id && m->node == node && m->place == place && m->nodes == nodes && m->kind == kind) return m;
    }
    assert_true(k->mutant_count < MOST_MUTANTS);
    struct mutant *m = &k->mutants[k->mutant_count++];
    *m = (struct mutant){.op = l->c->op->id, .node = node, .place = place, .nodes = nodes, .kind = kind};
    snprintf(m->line, sizeof m->line, "%s:%d: %s", l->c->source, l->c->number, l->c->line);
    return m;
}

static void run_mutants(checking *k, const line_graph *l, const ir_graph *joint) {
    int nodes = 0, place = 0;
    for (const ir_node *node = joint->first; node != NULL; node = node->next) nodes += node->origin.phase != NULL;
    for (const ir_node *node = joint->first; node != NULL; node = node->next) {
        if (node->origin.phase == NULL) continue;
        place++;
        for (int kind = 0; kind < MUTATIONS; kind++) {
            ir_graph *mutant;
            double error = 0;
            int operand = 0;
            ok(k, l, ir_graph_clone(joint, &mutant));
            if (mutate(mutant, node->order, (mutation)kind)) {
                struct mutant *m = find_mutant(k, l, node->op, place, nodes, kind);
                if (!m->caught) m->caught = error_of(l, mutant, &error, &operand) != DW_OK || error > BOUND;
            }
            ir_graph_destroy(mutant);
        }
    }
}

/* ---- lines ---- */

/* Has an operand no elements, so that nothing can be noticed? */
static bool is_empty(const kernel_case *c) {
    int64_t size;
    bool empty = false;
    for (int i = 0; i < c->n_in; i++) {
        for (int axis = 0; c->in[i] != NULL && axis < c->in[i]->rank; axis++) empty = empty || (dim_is_constant(c->in[i]->dims[axis], &size) && size == 0);
    }
    return empty;
}

static void check_case(checking *k, line_graph *l, arena *arena) {
    const kernel_case *c = l->c;
    ir_graph *joint;
    double error;
    int operand = 0;
    ok(k, l, build(c, l->forward));
    ok(k, l, make_data(l, arena));
    ok(k, l, differences_of(l, arena));
    ok(k, l, derive(l, &joint));
    ok(k, l, error_of(l, joint, &error, &operand));
    if (!(error <= BOUND)) {
        text words;
        text_init(&words, k->context);
        ir_print(joint, &words);
        fail_msg("%s:%d: %s\n    the gradient of operand %d is %.3g off\n%s", c->source, c->number, c->line, operand, error, text_string(&words));
    }
    k->reached[c->op->id] = true;
    if (k->mutate && !is_empty(c)) run_mutants(k, l, joint);
    ir_graph_destroy(joint);
}

static dw_status check_line(void *argument, int number, const char *line) {
    checking *k = argument;
    arena arena;
    kernel_case c;
    line_graph l = {.c = &c};
    arena_init(&arena, k->context);
    assert_int_equal(ir_graph_create(k->context, "line", &l.forward), DW_OK);
    if (kernel_case_parse(&arena, l.forward->dims, "gradients.txt", number, line, &c) != DW_OK) fail_msg("%s", dw_context_error(k->context));
    k->lines++;
    check_case(k, &l, &arena);
    ir_graph_destroy(l.forward);
    arena_free(&arena);
    return DW_OK;
}

static void run_lines(checking *k) {
    static const char path[] = TEST_SOURCE_DIR "/tests/pass/gradients.txt";
    assert_int_equal(dw_context_create(NULL, &k->context), DW_OK);
    const dw_status status = lines_read_file(path, check_line, k);
    if (status != DW_OK) fail_msg("%s cannot be read", path);
}

static void gradients_are_what_differences_say(void **state) {
    static checking k;
    (void)state;
    run_lines(&k);
    for (op_id op = 0; op < OP_COUNT; op++) {
        const gradient_row *row = gradient_row_of(op);
        if (op == OP_quantize || op == OP_tile_scales || op == OP_dequantize) continue;      /* no derivatives: quantisers_are_passed_straight */
        if ((row->rule != NULL || row->text != NULL) && !k.reached[op]) fail_msg("no line of gradients.txt holds the gradient of op %s", op_get(op)->name);
    }
    print_message("%d lines\n", k.lines);
    dw_context_destroy(k.context);
}

static void broken_gradients_are_noticed(void **state) {
    static checking k;
    int caught = 0;
    (void)state;
    k.mutate = true;
    run_lines(&k);
    for (int i = 0; i < k.mutant_count; i++) {
        const struct mutant *m = &k.mutants[i];
        caught += m->caught;
        if (!m->caught) print_message("unnoticed: %s: %s, node %d of %d, %s\n", m->line, mutation_name((mutation)m->kind), m->place, m->nodes, op_get(m->node)->name);
    }
    print_message("%d of %d mutants were noticed\n", caught, k.mutant_count);
    assert_true(k.mutant_count > 100 && caught >= 0.95 * k.mutant_count);
    dw_context_destroy(k.context);
}

/* ---- kinks ---- */

enum { KINKS = 8 };

/* What torch.autograd gives for the sum of the results. */
typedef struct kink {
    const char *line;
    double x[2][KINKS], gradients[2][KINKS];
} kink;

static const kink kinks[] = {
    {"relu f64[5]", {{0, -0.0, NAN, -1, 1}}, {{0, 0, 1, 0, 1}}},
    {"abs f64[4]", {{0, -0.0, -1, 2}}, {{0, 0, -1, 1}}},
    {"maximum f64[4] f64[4]", {{1, 2, 3, NAN}, {1, 3, 2, 0}}, {{0.5, 0, 1, 1}, {0.5, 1, 0, 1}}},
    {"minimum f64[4] f64[4]", {{1, 2, 3, NAN}, {1, 3, 2, 0}}, {{0.5, 1, 0, 1}, {0.5, 0, 1, 1}}},
    {"pow f64[6] f64[6]", {{0, 0, 0, 2, -2, 0}, {0, 1, 2, 0, 3, 3}}, {{0, 1, 0, 0, 12, 0}, {0, 0, 0, 0.69314718055994530942, NAN, 0}}},
    {"amax f64[4] axes=0", {{1, 3, 3, 2}}, {{0, 0.5, 0.5, 0}}},
    {"amin f64[4] axes=0", {{1, 1, 1, 2}}, {{1 / 3.0, 1 / 3.0, 1 / 3.0, 0}}},
    {"prod f64[3] axes=0", {{0, 2, 3}}, {{6, 0, 0}}},
    {"prod f64[3] axes=0", {{0, 2, 0}}, {{0, 0, 0}}},
    {"sqrt f64[2]", {{0, 4}}, {{INFINITY, 0.25}}},
    {"remainder f64[3] f64[3]", {{6, -6, 5}, {3, 3, 3}}, {{1, 1, 1}, {-2, 2, -1}}},
    {"silu f64[4]", {{0, -800, 800, -0.0}}, {{0.5, 0, 1, 0.5}}},
    {"sigmoid f64[3]", {{0, -800, 800}}, {{0.25, 0, 0}}},
    {"softplus f64[3]", {{0, -800, 800}}, {{0.5, 0, 1}}},
    {"take f64[3] i64[4] axis=0 frozen=1 column=1:0:0 column=1:1:1 column=1:2:1 column=1:3:0", {{1, 2, 3}}, {{2, 0, 0}}},
    {"gelu f64[3]", {{0, -40, 40}}, {{0.5, 0, 1}}},
    {"gelu_tanh f64[4]", {{0, -40, 40, 1e4}}, {{0.5, 0, 1, 1}}},
    {"quick_gelu f64[4]", {{0, -800, 800, -0.0}}, {{0.5, 0, 1, 0.5}}},
};

static void check_kink(checking *k, const kink *of) {
    arena arena;
    kernel_case c;
    ir_graph *joint;
    evaluation *run;
    line_graph l = {.c = &c};
    arena_init(&arena, k->context);
    assert_int_equal(ir_graph_create(k->context, "line", &l.forward), DW_OK);
    assert_int_equal(kernel_case_parse(&arena, l.forward->dims, "kinks", 1, of->line, &c), DW_OK);
    ok(k, &l, build(&c, l.forward));
    ok(k, &l, make_data(&l, &arena));
    for (int x = 0; x < c.n_in; x++) {
        for (int64_t i = 0; is_trained(&c, x) && i < op_tensor_count(&l.operands[x]); i++) num_store(DW_FORMAT_f64, l.operands[x].data, i, of->x[x][i], false);
    }
    for (int64_t i = 0; i < op_tensor_count(&l.numbers[0]); i++) num_store(DW_FORMAT_f64, l.numbers[0].data, i, 1, false);
    ok(k, &l, derive(&l, &joint));
    ok(k, &l, start(&l, joint, &run));
    ok(k, &l, evaluation_run(run));
    for (int x = 0; x < c.n_in; x++) {
        char name[24];
        snprintf(name, sizeof name, "grad.x%d", x);
        for (int64_t i = 0; is_trained(&c, x) && i < op_tensor_count(&l.operands[x]); i++) {
            const double made = num_load(DW_FORMAT_f64, evaluation_output(run, name)->data, i), wanted = of->gradients[x][i];
            const bool same = isnan(wanted) ? isnan(made) : made == wanted || fabs(made - wanted) <= 1e-12 * fabs(wanted);
            if (!same) fail_msg("%s: element %d of the gradient of operand %d is %.17g, PyTorch has %.17g", of->line, (int)i, x, made, wanted);
        }
    }
    evaluation_destroy(run);
    ir_graph_destroy(joint);
    ir_graph_destroy(l.forward);
    arena_free(&arena);
}

static void at_kinks_they_are_as_in_pytorch(void **state) {
    static checking k;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &k.context), DW_OK);
    for (int i = 0; i < (int)COUNT_OF(kinks); i++) check_kink(&k, &kinks[i]);
    dw_context_destroy(k.context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_what_differences_say),
        cmocka_unit_test(at_kinks_they_are_as_in_pytorch),
        cmocka_unit_test(broken_gradients_are_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
