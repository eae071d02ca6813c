/* Activations written out. What is compared is a polynomial, not a spelling: with s = sigmoid(z), every candidate y is read as
 * p(x) + q(x) * s and z as a polynomial of x (tanh(w) = 2 sigmoid(2w) - 1), so that
 *
 *     silu       y = x * s,              z = x
 *     gelu_tanh  y = x * s,              z = 2 sqrt(2 / pi) (x + 0.044715 x^3)
 *     quick_gelu y = x * s,              z = 1.702 x
 *     gelu       y = x/2 + x/2 * erf(z), z = x / sqrt 2
 *
 * in whatever order the sums, products, powers and quotients are written. Where they round to x's own format in between, as bf16 modules do, the one op does not: it is nearer to the function.
 * Other factors match nothing. */
#include "pass/fuse/fuse.h"

#include <math.h>

enum { DEGREE = 4, MAX_DEPTH = 12, MAX_CANDIDATES = 32, MAX_CLIMB = 24 };

/* p(x) + q(x) * atom */
typedef struct form { double p[DEGREE], q[DEGREE]; } form;

/* The value that stands for the atom; by_division: the atom is 1 / value. */
typedef struct atom { const ir_value *value; bool by_division; } atom;

static bool has_atom(const form *a) {
    for (int i = 0; i < DEGREE; i++) {
        if (a->q[i] != 0.0) return true;
    }
    return false;
}

static form form_constant(double number) { return (form){.p = {number}}; }

static form form_add(const form *a, const form *b, double factor) {
    form sum;
    for (int i = 0; i < DEGREE; i++) {
        sum.p[i] = a->p[i] + factor * b->p[i];
        sum.q[i] = a->q[i] + factor * b->q[i];
    }
    return sum;
}

static bool form_mul(const form *a, const form *b, form *product) {
    if (has_atom(a) && has_atom(b)) return false;
    *product = (form){0};
    for (int i = 0; i < DEGREE; i++) {
        for (int j = 0; j < DEGREE; j++) {
            double p = a->p[i] * b->p[j], q = a->p[i] * b->q[j] + a->q[i] * b->p[j];
            if (i + j >= DEGREE && (p != 0.0 || q != 0.0)) return false;
            if (i + j >= DEGREE) continue;
            product->p[i + j] += p;
            product->q[i + j] += q;
        }
    }
    return true;
}

static bool form_pow(const form *a, double exponent, form *power) {
    *power = form_constant(1.0);
    if (exponent != 1.0 && exponent != 2.0 && exponent != 3.0) return false;
    for (int i = 0; i < (int)exponent; i++) {
        form next;
        if (!form_mul(power, a, &next)) return false;
        *power = next;
    }
    return true;
}

static bool read_form(const ir_value *value, const ir_value *x, const atom *atom, int depth, form *read);

static bool read_quotient(const ir_node *node, const ir_value *x, const atom *atom, int depth, form *read) {
    const ir_value *divisor = ir_in(node, 1);
    form a, b = form_constant(1.0);
    double number;
    if (atom->by_division && divisor == atom->value) b = (form){.q = {1.0}};
    else if (ir_is_scalar(divisor, &number) && number != 0.0) b = form_constant(1.0 / number);
    else return false;
    return read_form(ir_in(node, 0), x, atom, depth, &a) && form_mul(&a, &b, read);
}

static bool read_form(const ir_value *value, const ir_value *x, const atom *atom, int depth, form *read) {
    double number;
    form a, b;
    *read = (form){0};
    if (fuse_skip_widening((ir_value *)value) == x) {
        read->p[1] = 1.0;
        return true;
    }
    if (value == atom->value) {
        read->q[0] = 1.0;
        return !atom->by_division;
    }
    if (ir_is_scalar(value, &number)) {
        *read = form_constant(number);
        return true;
    }
    if (value->kind != IR_RESULT || depth == 0) return false;
    const ir_node *node = value->node;
    depth--;
    switch (node->op) {
    case OP_cast:
        if (value->type.format == x->type.format && fuse_is_float(x->type.format)) return read_form(ir_in(node, 0), x, atom, depth, read);
        value = fuse_skip_widening((ir_value *)value);
        return value != ir_out(node) && read_form(value, x, atom, depth, read);
    case OP_reciprocal:
        read->q[0] = 1.0;
        return atom->by_division && ir_in(node, 0) == atom->value;
    case OP_div: return read_quotient(node, x, atom, depth, read);
    case OP_pow: return ir_is_scalar(ir_in(node, 1), &number) && read_form(ir_in(node, 0), x, atom, depth, &a) && form_pow(&a, number, read);
    case OP_neg:
        if (!read_form(ir_in(node, 0), x, atom, depth, &a)) return false;
        b = form_constant(0.0);
        *read = form_add(&b, &a, -1.0);
        return true;
    case OP_add:
    case OP_sub:
    case OP_mul: break;
    default: return false;
    }
    if (!read_form(ir_in(node, 0), x, atom, depth, &a) || !read_form(ir_in(node, 1), x, atom, depth, &b)) return false;
    if (node->op == OP_mul) return form_mul(&a, &b, read);
    *read = form_add(&a, &b, node->op == OP_add ? 1.0 : -1.0);
    return true;
}

/* ---- what is looked for ---- */

static bool is_near(double number, double expected) {
    return expected == 0.0 ? fabs(number) <= 1e-9 : fabs(number - expected) <= 1e-6 * fabs(expected);
}

static bool is_polynomial(const double *p, double p1, double p3) {
    return is_near(p[0], 0.0) && is_near(p[1], p1) && is_near(p[2], 0.0) && is_near(p[3], p3);
}

/* The activation whose argument is z = p(x) under the root or the exponent, its atom being made by that op; OP_COUNT: none. */
static op_id kind_of(op_id op, const double *z) {
    double scale = op == OP_tanh ? 2.0 : op == OP_exp ? -1.0 : 1.0, w[DEGREE];
    for (int i = 0; i < DEGREE; i++) w[i] = scale * z[i];
    if (op == OP_erf) return is_polynomial(w, sqrt(0.5), 0.0) ? OP_gelu : OP_COUNT;
    double c = 2.0 * 0.79788456080286535588;
    if (is_polynomial(w, 1.0, 0.0)) return OP_silu;
    if (is_polynomial(w, 1.702, 0.0)) return OP_quick_gelu;
    return is_polynomial(w, c, c * 0.044715) ? OP_gelu_tanh : OP_COUNT;
}

/* Is y that activation, the atom being made by op? */
static bool is_kind(op_id op, const form *y) {
    bool is_centred = op == OP_tanh || op == OP_erf;
    double half = is_centred ? 0.5 : 0.0;
    return is_polynomial(y->p, half, 0.0) && is_polynomial(y->q, is_centred ? 0.5 : 1.0, 0.0);
}

/* ---- candidates for x: what the argument is computed from ---- */

static void collect(ir_value *value, int depth, ir_value **found, int *count) {
    double number;
    value = fuse_skip_widening(value);
    if (*count == MAX_CANDIDATES || ir_is_scalar(value, &number)) return;
    for (int i = 0; i < *count; i++) {
        if (found[i] == value) return;
    }
    found[(*count)++] = value;
    if (value->kind != IR_RESULT || depth == 0) return;
    switch (value->node->op) {
    case OP_add:
    case OP_sub:
    case OP_mul:
    case OP_div:
    case OP_pow:
    case OP_neg:
    case OP_cast:
        for (int i = 0; i < value->node->n_in; i++) collect(ir_in(value->node, i), depth - 1, found, count);
        break;
    default: break;
    }
}

/* ---- from the atom to the root ---- */

static dw_status emit(ir_graph *graph, ir_value *root, op_id op, ir_value *x, bool *changed) {
    bool is_narrower = num_info(root->type.format)->bits < num_info(x->type.format)->bits;
    fuse_cursor(graph, root->node, root->node);
    if (!is_narrower) TRY(ir_emit_cast(graph, x, root->type.format, &x));
    TRY(ir_emit_1(graph, op, x, &x));
    TRY(ir_emit_cast(graph, x, root->type.format, &x));
    return fuse_replace(graph, root, x, changed);
}

/* Looks among what is computed from the atom for the activation of x. */
static ir_value *find_root(op_id op, const atom *atom, const ir_value *x) {
    ir_value *queue[MAX_CLIMB] = {(ir_value *)atom->value};
    int count = 1;
    for (int at = 0; at < count; at++) {
        for (ir_use *use = queue[at]->uses; use != NULL && count < MAX_CLIMB; use = use->next) {
            form y;
            ir_value *value = ir_out(use->node);
            if (use->node->n_out != 1 || !read_form(value, x, atom, MAX_DEPTH, &y)) continue;
            if (is_kind(op, &y)) return value;
            queue[count++] = value;
        }
    }
    return NULL;
}

/* 1 + exp(z), of which the quotient is the atom. */
static const ir_value *one_plus(const ir_node *exponential) {
    for (const ir_use *use = ir_out(exponential)->uses; use != NULL; use = use->next) {
        if (use->node->op == OP_add && fuse_is_number(ir_in(use->node, 1 - use->index), 1.0)) return ir_out(use->node);
    }
    return NULL;
}

dw_status fuse_activation(ir_graph *graph, ir_node *node, bool *changed) {
    if (node->op != OP_erf && node->op != OP_tanh && node->op != OP_sigmoid && node->op != OP_exp) return DW_OK;
    atom atom = {node->op == OP_exp ? one_plus(node) : ir_out(node), node->op == OP_exp};
    if (atom.value == NULL) return DW_OK;
    ir_value *candidates[MAX_CANDIDATES];
    int count = 0;
    collect(ir_in(node, 0), MAX_DEPTH, candidates, &count);
    for (int i = 0; i < count; i++) {
        form z;
        const struct atom none = {NULL, false};
        ir_value *x = candidates[i];
        if (!read_form(ir_in(node, 0), x, &none, MAX_DEPTH, &z)) continue;
        op_id kind = kind_of(node->op, z.p);
        ir_value *root = kind != OP_COUNT ? find_root(node->op, &atom, x) : NULL;
        if (root != NULL) return emit(graph, root, kind, x, changed);
    }
    return DW_OK;
}

dw_status fuse_activation_cast(ir_graph *graph, ir_node *node, bool *changed) {
    if (node->op != OP_cast || ir_in(node, 0)->kind != IR_RESULT || !fuse_is_single_use(graph, ir_in(node, 0))) return DW_OK;
    const ir_node *activation = ir_in(node, 0)->node;
    if (!op_has(activation->op, OP_TRAIT_ACTIVATION)) return DW_OK;
    ir_value *x = fuse_skip_widening(ir_in(activation, 0)), *made;
    if (x == ir_in(activation, 0) || x->type.format != ir_out(node)->type.format) return DW_OK;
    fuse_cursor(graph, node, activation);
    TRY(ir_emit_1(graph, activation->op, x, &made));
    return fuse_replace(graph, ir_out(node), made, changed);
}
