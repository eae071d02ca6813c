/* Chains have the bits of their ops one by one: random pointwise graphs of every format, compiled as they are and with a kernel named for each op, which keeps chains away; on
 * each level of the CPU and on a simulated GPU. */
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "support/session.h"

enum { STEPS = 20, ACROSS = 24, WIDE = 9000 };   /* WIDE: 40 rows are more elements than chain_few.cu takes */

/* ---- random graphs ---- */

typedef struct maker {
    text *text;
    uint64_t seed, drawn;
    int count;
    dw_format formats[STEPS + 64];    /* of values %1.. */
} maker;

static int draw(maker *m, int below) { return (int)(num_random(m->seed, m->drawn++) % (uint64_t)below); }

static const char *const real1[] = {"neg",  "abs",  "sign",    "exp", "log",  "sqrt", "rsqrt", "reciprocal", "sin",      "cos",   "atan", "tanh",
                                    "erf",  "relu", "sigmoid", "silu", "gelu", "gelu_tanh", "quick_gelu", "softplus", "floor", "ceil", "round"};
static const char *const real2[] = {"add", "sub", "mul", "div", "minimum", "maximum", "floordiv", "remainder", "pow"};
static const char *const compare[] = {"eq", "ne", "lt", "le", "gt", "ge"};
static const char *const int1[] = {"neg", "abs", "sign", "relu", "not", "floor"};
static const char *const int2[] = {"add", "sub", "mul", "minimum", "maximum", "and", "or", "xor", "pow"};
static const char *const bool2[] = {"and", "or", "xor", "add", "mul", "minimum", "maximum", "eq", "ne", "lt", "ge"};

#define PICK(m, names) names[draw(m, (int)COUNT_OF(names))]

static bool is_real(dw_format format) { return num_info(format)->class == NUM_FLOAT; }

/* A value of that format: an earlier one, a number, or a cast of the latest. */
static int value_of(maker *m, dw_format format) {
    int found[STEPS + 64], count = 0;
    for (int i = 1; i <= m->count; i++)
        if (m->formats[i] == format) found[count++] = i;
    if (count > 0 && draw(m, 4) > 0) return found[count - 1 - draw(m, count < 4 ? count : 4)];
    const bool is_number = count > 0 && draw(m, 2) == 0;
    m->formats[++m->count] = format;
    if (is_number) text_printf(m->text, "  %%%d = fill {shape=[],value=%d,to=%s}\n", m->count, format == DW_FORMAT_bool ? draw(m, 2) : draw(m, 7) - (format == DW_FORMAT_u8 ? 0 : 3), dw_format_name(format));
    else text_printf(m->text, "  %%%d = cast %%%d {to=%s}\n", m->count, m->count - 1, dw_format_name(format));
    return m->count;
}

static void add_step(maker *m, const dw_format *formats, int n) {
    const dw_format format = m->formats[m->count], to = formats[draw(m, n)];
    const int x = m->count, kind = draw(m, 8);
    if (kind == 0) {
        m->formats[++m->count] = to;
        text_printf(m->text, "  %%%d = cast %%%d {to=%s}\n", m->count, x, dw_format_name(to));
        return;
    }
    if (kind == 1) {
        const int y = value_of(m, format), c = value_of(m, DW_FORMAT_bool);
        m->formats[++m->count] = format;
        text_printf(m->text, "  %%%d = where %%%d, %%%d, %%%d\n", m->count, c, draw(m, 2) ? x : y, draw(m, 2) ? y : x);
        return;
    }
    if (kind == 2 && format != DW_FORMAT_bool) {
        const int y = value_of(m, format);
        m->formats[++m->count] = DW_FORMAT_bool;
        text_printf(m->text, "  %%%d = %s %%%d, %%%d\n", m->count, PICK(m, compare), x, y);
        return;
    }
    if (kind <= 4) {
        m->formats[++m->count] = format;
        text_printf(m->text, "  %%%d = %s %%%d\n", m->count, is_real(format) ? PICK(m, real1) : format == DW_FORMAT_bool ? "not" : PICK(m, int1), x);
        return;
    }
    const int y = value_of(m, format);
    const bool swapped = draw(m, 2);
    m->formats[++m->count] = format;
    text_printf(m->text, "  %%%d = %s %%%d, %%%d\n", m->count, is_real(format) ? PICK(m, real2) : format == DW_FORMAT_bool ? PICK(m, bool2) : PICK(m, int2), swapped ? y : x,
                swapped ? x : y);
}

/* Inputs of the formats, of the whole shape, a row, a column and a transposed one; then steps, the last of which is the output. */
static void make_graph(text *text, uint64_t seed, const dw_format *formats, int n, int across) {
    static const char *const shapes[] = {"[s,%d]", "[%d]", "[s,1]", "[%d,s]"};
    maker m = {.text = text, .seed = seed};
    text_add(text, "graph g\n  symbol s 1..64\n");
    for (int i = 0; i < 4; i++) {
        char shape[32];
        snprintf(shape, sizeof shape, shapes[i], across);
        text_printf(text, "  input x%d %s%s\n", i, dw_format_name(formats[i % n]), shape);
    }
    for (int i = 1; i < 4; i++) {
        m.formats[++m.count] = formats[i % n];
        if (i < 3) text_printf(text, "  %%%d = broadcast x%d {shape=[s,%d]}\n", m.count, i, across);
        else text_printf(text, "  %%%d = transpose x3 {order=[1,0]}\n", m.count);
    }
    m.formats[++m.count] = formats[0];
    text_printf(text, "  %%%d = cast x0 {to=%s}\n", m.count, dw_format_name(formats[0]));
    for (int i = 0; i < STEPS; i++) add_step(&m, formats, n);
    text_printf(text, "  output y %%%d\n", m.count);
}

/* ---- both ways ---- */

/* A kernel for each pointwise op. */
static void name_kernels(text *text, const char *family) {
    for (int i = 0; i < OP_COUNT; i++)
        if (op_get((op_id)i)->traits & OP_TRAIT_POINTWISE) text_printf(text, "%s%s=%s_%s", text->length > 0 ? "," : "", op_get((op_id)i)->name, family, op_get((op_id)i)->name);
}

static bool same_numbers(const dw_tensor *a, const dw_tensor *b, bool nans_alike) {
    const size_t size = (size_t)dw_format_bits(a->format) / 8;
    for (int64_t i = 0; i < op_tensor_count(a); i++) {
        const void *x = (const uint8_t *)a->data + (size_t)i * size, *y = (const uint8_t *)b->data + (size_t)i * size;
        if (memcmp(x, y, size) == 0) continue;
        if (!nans_alike || !is_real(a->format) || num_load(a->format, x, 0) == num_load(a->format, x, 0) || num_load(a->format, y, 0) == num_load(a->format, y, 0)) return false;
    }
    return true;
}

static void run(dw_context *context, const dw_model *model, int64_t size, uint64_t seed, run_io *io) {
    dw_session *session = session_of(context, model, "s=40");
    run_io_create(io, model->fused, &size, RUN_ANY_NUMBERS, seed);
    run_io_add_outputs(io, session);
    assert_ok(context, dw_session_run(session, io->input_count, io->inputs, io->output_count, io->outputs));
    dw_session_destroy(session);
}

static int count_chains(const dw_model *model) {
    int chains = 0;
    for (const ir_node *node = model->full.plan->graph->first; node != NULL; node = node->next) chains += node->op == OP_chain;
    return chains;
}

/* How many chains there were. */
static int compare_ways(dw_context *context, const char *graph, const char *device, const char *family, uint64_t seed) {
    static const int64_t sizes[] = {40, 1, 7};
    const bool is_gpu = strncmp(device, "cpu", 3) != 0;
    text kernels;
    text_init(&kernels, context);
    name_kernels(&kernels, family);
    dw_model *fused = model_of_text(context, graph, &(dw_model_options){.flags = DW_MODEL_VERIFY, .device = device});
    dw_model *alone = model_of_text(context, graph, &(dw_model_options){.flags = DW_MODEL_VERIFY, .device = device, .kernels = text_string(&kernels)});
    assert_int_equal(count_chains(alone), 0);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        run_io a, b;
        run(context, fused, sizes[i], seed + i, &a);
        run(context, alone, sizes[i], seed + i, &b);
        if (!same_numbers(&a.outputs[0].tensor, &b.outputs[0].tensor, is_gpu)) fail_msg("%s, s=%d: a chain has other bits than its ops\n%s", device, (int)sizes[i], graph);
        run_io_free(&a);
        run_io_free(&b);
    }
    const int chains = count_chains(fused);
    dw_model_destroy(fused);
    dw_model_destroy(alone);
    text_free(&kernels);
    return chains;
}

static void compare_random(dw_context *context, const char *device, const char *family, uint64_t graphs, int across) {
    static const dw_format sets[][4] = {
        {DW_FORMAT_f32, DW_FORMAT_f32, DW_FORMAT_bf16, DW_FORMAT_bool}, {DW_FORMAT_bf16, DW_FORMAT_bf16, DW_FORMAT_bf16, DW_FORMAT_bf16},
        {DW_FORMAT_f16, DW_FORMAT_f32, DW_FORMAT_f16, DW_FORMAT_bool},  {DW_FORMAT_i64, DW_FORMAT_i32, DW_FORMAT_bool, DW_FORMAT_u8},
        {DW_FORMAT_i8, DW_FORMAT_i16, DW_FORMAT_f32, DW_FORMAT_f64},    {DW_FORMAT_f64, DW_FORMAT_f64, DW_FORMAT_f32, DW_FORMAT_i64},
    };
    int chains = 0;
    for (uint64_t seed = 0; seed < graphs; seed++) {
        text graph;
        text_init(&graph, context);
        make_graph(&graph, seed, sets[seed % COUNT_OF(sets)], 4, across);
        assert_ok(context, text_status(&graph));
        chains += compare_ways(context, text_string(&graph), device, family, seed);
        text_free(&graph);
    }
    assert_true(chains > (int)graphs / 2);
}

static void chains_have_the_bits_of_their_ops(void **state) {
    static const char *const levels[] = {"cpu", "cpu:portable", "cpu:avx2"};
    for (size_t i = 0; i < COUNT_OF(levels); i++) compare_random(*state, levels[i], "pointwise", 36, ACROSS);
}

/* DEEPWELL_SIM names another GPU. */
static void on_a_simulated_gpu_too(void **state) {
    char device[600];
    if (kernel_image_count() == 0) skip();   /* no GPU code */
    setenv("DEEPWELL_SIM", "h200", 0);
    snprintf(device, sizeof device, "cuda:0,driver=%s/libdeepwell-sim.so", TEST_BUILD_DIR);
    compare_random(*state, device, "cuda", 18, ACROSS);
    compare_random(*state, device, "cuda", 3, WIDE);
    compare_random(*state, device, "cuda", 3, WIDE + 1);   /* rows that vectors cross */
}

/* A fault of a step is told as the op's own is. */
static void a_division_by_zero_is_told(void **state) {
    dw_context *context = *state;
    static const char graph[] = "graph g\n  input x i32[4]\n  input y i32[4]\n  %1 = add x, x\n  %2 = floordiv %1, y\n  %3 = neg %2\n  output z %3\n";
    dw_model *model = model_of_text(context, graph, &(dw_model_options){0});
    dw_session *session = session_of(context, model, NULL);
    int32_t x[4] = {1, 2, 3, 4}, y[4] = {1, 1, 0, 1}, z[4];
    dw_named_tensor in[] = {{"x", {.format = DW_FORMAT_i32, .rank = 1, .dims = {4}, .strides = {1}, .data = x}}, {"y", {.format = DW_FORMAT_i32, .rank = 1, .dims = {4}, .strides = {1}, .data = y}}};
    dw_named_tensor out[] = {{"z", {.format = DW_FORMAT_i32, .rank = 1, .dims = {4}, .strides = {1}, .data = z}}};
    assert_int_equal(count_chains(model), 1);
    test_assert_fails(context, dw_session_run(session, 2, in, 1, out), DW_INVALID, "floordiv: 6 is divided by 0");
    dw_session_destroy(session);
    dw_model_destroy(model);
}

static int setup(void **state) { return dw_context_create(&(dw_context_options){.threads = 2}, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(chains_have_the_bits_of_their_ops, setup, teardown),
        cmocka_unit_test_setup_teardown(on_a_simulated_gpu_too, setup, teardown),
        cmocka_unit_test_setup_teardown(a_division_by_zero_is_told, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
