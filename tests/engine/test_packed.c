/* One weight that several products read, each in its own way: however kernels share what they packed of it, each product has the bits that it has alone, in
 * the model, in its package, and after the weight changed. */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/device.h"
#include "support/session.h"

enum { BATCHES = 16, N = 6, K = 160, ROWS = 16, USES = 256, NAME = 48, TEXT = 1 << 17 };

/* A product with the weight w [16,6,160] of some format. */
typedef struct use {
    op_id op;
    dw_format a;
    bool bt;
    const char *post;     /* NULL: none */
    int groups;           /* of a convolution */
} use;

typedef struct uses { use items[USES]; int count; } uses;

static const char *const posts[] = {NULL, "swiglu"};

static void add_products(uses *all, op_id op, dw_format a, bool bt) {
    for (size_t i = 0; i < COUNT_OF(posts); i++) {
        assert_true(all->count < USES);
        all->items[all->count++] = (use){op, a, bt, posts[i], 0};
    }
}

/* Every way that the ops' meaning knows to multiply with a weight of this format. */
static void list_uses(uses *all, dw_format weight) {
    bool blocks = dw_format_is_block(weight);
    all->count = 0;
    for (int f = 0; f < DW_FORMAT_COUNT; f++) {
        dw_format a = (dw_format)f;
        bool plain = a == DW_FORMAT_f32 || a == DW_FORMAT_bf16 || a == DW_FORMAT_f16;
        if (!plain && !(blocks && dw_format_is_block(a))) continue;
        add_products(all, OP_matmul, a, true);
        add_products(all, OP_grouped_matmul, a, true);
        if (blocks) continue;
        add_products(all, OP_matmul, a, false);
        add_products(all, OP_grouped_matmul, a, false);
        if (a != weight) continue;
        all->items[all->count++] = (use){OP_conv, a, false, NULL, 1};
        all->items[all->count++] = (use){OP_conv, a, false, NULL, 2};
    }
}

/* ---- as text ---- */

/* The value of that number, or of w, in the format. */
static void print_as(text *words, int *number, const char *operand, dw_format format) {
    const char *how = format == DW_FORMAT_f32 ? NULL : dw_format_is_block(format) ? "quantize" : "cast";
    if (how == NULL) text_printf(words, "  %%%d = mul %s, one\n", ++*number, operand);
    else text_printf(words, "  %%%d = %s %s {to=%s}\n", ++*number, how, operand, dw_format_name(format));
}

/* A slice of x of this shape, another one for each use. */
static void print_a(text *words, int *number, int index, const char *shape, int elements, dw_format format) {
    char operand[NAME];
    text_printf(words, "  %%%d = slice x {axis=0,start=%d,end=%d,step=1}\n", *number + 1, index, index + elements);
    text_printf(words, "  %%%d = reshape %%%d {shape=%s}\n", *number + 2, *number + 1, shape);
    *number += 2;
    snprintf(operand, sizeof operand, "%%%d", *number);
    print_as(words, number, operand, format);
}

static void print_use(text *words, int *number, int weight, int index, const use *u) {
    char shape[NAME];
    if (u->op == OP_conv) {
        snprintf(shape, sizeof shape, "[1,%d,%d]", N * u->groups, K + 5);
        print_a(words, number, index, shape, N * u->groups * (K + 5), u->a);
        text_printf(words, "  %%%d = conv %%%d, %%%d {stride=[1],padding=[0],dilation=[1],groups=%d}\n", *number + 1, *number, weight, u->groups);
    } else {
        int k = u->bt ? K : N;
        snprintf(shape, sizeof shape, "[%d,%d]", ROWS, k);
        print_a(words, number, index, shape, ROWS * k, u->a);
        text_printf(words, "  %%%d = %s %%%d, %%%d%s {bt=%s%s%s%s}\n", *number + 1, op_get(u->op)->name, *number, weight,
                    u->op == OP_grouped_matmul ? ", ends" : "", u->bt ? "true" : "false", u->post ? ",post=\"" : "", u->post ? u->post : "", u->post ? "\"" : "");
    }
    ++*number;
    text_printf(words, "  output y%d %%%d\n", index, *number);
}

/* The graph of these uses; each keeps its index, so that it reads the same part of x among others and alone. */
static void print_graph(text *words, dw_context *context, dw_format format, const uses *all, const bool *taken) {
    int number = 0;
    text_free(words);
    text_init(words, context);
    text_printf(words, "graph shared\n  input x f32[4096]\n  param w f32[%d,%d,%d]\n  const one f32[] = 1\n  const ends i32[%d] = 1", BATCHES, N, K, BATCHES);
    for (int i = 1; i < BATCHES; i++) text_printf(words, ",%d", i + 1);
    text_add(words, "\n");
    print_as(words, &number, "w", format);
    const int weight = number;
    for (int i = 0; i < all->count; i++)
        if (taken[i]) print_use(words, &number, weight, i, &all->items[i]);
}

/* ---- as models ---- */

typedef struct shared { dw_context *context; float *w; text words; } shared;

static void fill(float *w, uint64_t seed) {
    for (int i = 0; i < BATCHES * N * K; i++) w[i] = num_random_normal(seed, (uint64_t)i);
}

static dw_named_tensor named(float *w) {
    dw_named_tensor tensor = {"w", {0}};
    assert_true(op_tensor_init(&tensor.tensor, DW_FORMAT_f32, DW_SCALE_plain, 3, (int64_t[]){BATCHES, N, K}, w));
    return tensor;
}

/* NULL: the kernels that are asked for refuse it. */
static dw_model *make(shared *s, const char *kernels) {
    dw_graph *graph;
    dw_model *model;
    dw_named_tensor weight = named(s->w);
    assert_ok(s->context, dw_graph_parse(s->context, "shared", text_string(&s->words), s->words.length, &graph));
    assert_ok(s->context, dw_graph_bind(graph, 1, &weight));
    dw_status status = dw_model_create(s->context, graph, &(dw_model_options){.kernels = kernels}, &model);
    if (status == DW_UNSUPPORTED) return NULL;
    assert_ok(s->context, status);
    return model;
}

static void run_model(shared *s, const dw_model *model, run_io *io) {
    dw_session *session = session_of(s->context, model, NULL);
    run_io_create(io, model->full.plan->graph, NULL, RUN_SMALL_INTEGERS, 3);
    run_io_add_outputs(io, session);
    assert_ok(s->context, dw_session_run(session, io->input_count, io->inputs, io->output_count, io->outputs));
    dw_session_destroy(session);
}

static void assert_same_outputs(const char *what, const run_io *found, const run_io *expected) {
    for (int i = 0; i < expected->output_count; i++) {
        const dw_tensor *a = run_io_output(found, expected->outputs[i].name), *b = &expected->outputs[i].tensor;
        if (!tensor_is_same(a, b)) fail_msg("%s: %s has a relative error of %g", what, expected->outputs[i].name, tensor_error(a, b));
    }
}

/* How many packed forms of the weight the row reads in the model. */
static int count_forms(const dw_model *model, const kernel_row *row) {
    const plan *plan = model->full.plan;
    int forms = 0;
    for (int i = plan->load_count; i < plan->step_count; i++) {
        if (plan->steps[i].node->op != row->op) continue;
        assert_ptr_equal(plan->steps[i].row, row);
        assert_non_null(plan->steps[i].pack_key);
        bool seen = false;
        for (int k = plan->load_count; k < i; k++) seen = seen || (plan->steps[k].row == row && strcmp(plan->steps[k].pack_key, plan->steps[i].pack_key) == 0);
        forms += !seen;
    }
    return forms;
}

static void through_a_package(shared *s, const char *what, dw_model *model, const run_io *expected) {
    char path[512];
    dw_model *package;
    run_io io;
    snprintf(path, sizeof path, "%s/tests/packed-%ld.dw", TEST_BUILD_DIR, (long)getpid());
    assert_ok(s->context, dw_model_save(model, path));
    assert_ok(s->context, dw_model_open(s->context, path, NULL, &package));
    run_model(s, package, &io);
    assert_same_outputs(what, &io, expected);
    run_io_free(&io);
    dw_model_destroy(package);
    unlink(path);
}

static void after_an_update(shared *s, const char *what, dw_model *model, const char *kernels) {
    static float other[BATCHES * N * K];
    run_io updated, fresh;
    float *before = s->w;
    fill(other, 11);
    dw_named_tensor weight = named(other);
    assert_ok(s->context, dw_model_update(model, 1, &weight));
    run_model(s, model, &updated);
    s->w = other;
    dw_model *anew = make(s, kernels);
    run_model(s, anew, &fresh);
    assert_same_outputs(what, &updated, &fresh);
    run_io_free(&updated);
    run_io_free(&fresh);
    dw_model_destroy(anew);
    s->w = before;
}

/* Each use alone, then all that the row accepts in one model. Returns how many packed forms that one has. */
static int share_among(shared *s, const kernel_row *row, dw_format format) {
    static uses all;
    static run_io alone[USES];
    dw_model *models[USES] = {NULL};   /* alone; names of outputs live in them */
    bool taken[USES] = {false}, only[USES] = {false};
    char kernels[2 * NAME], what[4 * NAME];
    int count = 0, forms = 0;
    list_uses(&all, format);
    snprintf(kernels, sizeof kernels, "%s=%s", op_get(row->op)->name, row->name);
    snprintf(what, sizeof what, "%s, w of %s", row->name, dw_format_name(format));
    for (int i = 0; i < all.count; i++) {
        if (row->op != OP_matmul && all.items[i].op != row->op) continue;   /* rows of different ops meet once */
        only[i] = true;
        print_graph(&s->words, s->context, format, &all, only);
        only[i] = false;
        models[i] = make(s, kernels);
        taken[i] = models[i] != NULL;
        if (!taken[i]) continue;
        count += all.items[i].op == row->op;
        run_model(s, models[i], &alone[i]);
    }
    if (count > 0) {
        run_io together;
        print_graph(&s->words, s->context, format, &all, taken);
        dw_model *model = make(s, kernels);
        forms = count_forms(model, row);
        run_model(s, model, &together);
        for (int i = 0; i < all.count; i++)
            if (taken[i]) assert_same_outputs(what, &together, &alone[i]);
        strcat(what, ", its package");
        through_a_package(s, what, model, &together);
        strcat(what, ", updated");
        after_an_update(s, what, model, kernels);
        run_io_free(&together);
        dw_model_destroy(model);
    }
    for (int i = 0; i < all.count; i++) {
        if (taken[i]) run_io_free(&alone[i]);
        dw_model_destroy(models[i]);
    }
    return forms;
}

static void each_packing_row_keeps_apart_what_it_packs_differently(void **state) {
    static float w[BATCHES * N * K];
    shared s = {.context = *state, .w = w};
    chip_caps here;
    int rows = 0;
    fill(w, 5);
    text_init(&s.words, s.context);
    assert_ok(s.context, device_probe_cpu(s.context, "", 2, &here));
    for (int i = 0; i < kernel_count(); i++) {
        const kernel_row *row = kernel_at(i);
        if (row->packs < 0 || (row->needs & ~here.features) != 0) continue;
        int formats = 0, most = 0;
        for (int f = 0; f < DW_FORMAT_COUNT; f++) {
            dw_format format = (dw_format)f;
            if (format != DW_FORMAT_f32 && format != DW_FORMAT_bf16 && format != DW_FORMAT_f16 && !dw_format_is_block(format)) continue;
            int forms = share_among(&s, row, format);
            formats += forms > 0;
            if (forms > most) most = forms;
        }
        print_message("%s: %d formats, up to %d packed forms of one weight\n", row->name, formats, most);
        if (most < 2) fail_msg("%s: no weight was packed in two ways", row->name);
        rows++;
    }
    assert_true(rows > 0);
    text_free(&s.words);
}

static int setup(void **state) { return dw_context_create(&(dw_context_options){.threads = 2}, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_packing_row_keeps_apart_what_it_packs_differently, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
