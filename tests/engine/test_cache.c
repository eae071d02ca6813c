/* cache_update has the bits of rotary and cache_write one after the other: graphs compiled as they are and with a kernel named for each of the two, which keeps them apart; on
 * each level of the CPU and on a simulated GPU. */
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "support/session.h"

typedef struct shape { const char *format; int head, width, value; const char *angles, *style; } shape;

/* Caches of 7 places, in which tokens meet. */
static void make_graph(text *text, const shape *c) {
    text_printf(text, "graph g\n  input q %s[1,8,6,%d]\n  input k %s[1,2,6,%d]\n  input v %s[1,2,6,%d]\n", c->format, c->head, c->format, c->head, c->format, c->value);
    text_printf(text, "  input cos %s[1,6,%d]\n  input sin %s[6,%d]\n", c->angles, c->width, c->angles, c->width);
    text_printf(text, "  input keys %s[3,2,7,%d]\n  input values %s[3,2,7,%d]\n", c->format, c->head, c->format, c->value);
    text_printf(text, "  const row i64[6] = 0, 2, 2, 0, 1, 2\n  const position i64[6] = 3, 4, 11, 4, 30, 5\n");
    text_printf(text, "  %%1 = rotary q, cos, sin {width=%d%s}\n  %%2 = rotary k, cos, sin {width=%d%s}\n", c->width, c->style, c->width, c->style);
    text_printf(text, "  %%3 = cache_write keys, %%2, row, position\n  %%4 = cache_write values, v, row, position\n");
    text_printf(text, "  %%5 = attention %%1, %%3, %%4, -, -, -, row, position {scale=0.125,causal=true}\n  output y %%5\n  output new_keys %%3\n  output new_values %%4\n");
}

static int count_updates(const dw_model *model) {
    int count = 0;
    for (const ir_node *node = model->full.plan->graph->first; node != NULL; node = node->next) count += node->op == OP_cache_update;
    return count;
}

static void run(dw_context *context, const dw_model *model, uint64_t seed, run_io *io) {
    dw_session *session = session_of(context, model, NULL);
    run_io_create(io, model->fused, NULL, RUN_ANY_NUMBERS, seed);
    run_io_add_outputs(io, session);
    assert_ok(context, dw_session_run(session, io->input_count, io->inputs, io->output_count, io->outputs));
    dw_session_destroy(session);
}

static void compare_ways(dw_context *context, const char *words, const char *device, const char *kernels) {
    dw_model *together = model_of_text(context, words, &(dw_model_options){.flags = DW_MODEL_VERIFY, .device = device});
    dw_model *apart = model_of_text(context, words, &(dw_model_options){.flags = DW_MODEL_VERIFY, .device = device, .kernels = kernels});
    assert_int_equal(count_updates(together), 1);
    assert_int_equal(count_updates(apart), 0);
    for (uint64_t seed = 0; seed < 3; seed++) {
        run_io a, b;
        run(context, together, seed, &a);
        run(context, apart, seed, &b);
        for (int i = 0; i < a.output_count; i++) {
            const dw_tensor *x = &a.outputs[i].tensor, *y = &b.outputs[i].tensor;
            const size_t bytes = (size_t)op_tensor_count(x) * (size_t)dw_format_bits(x->format) / 8;
            if (memcmp(x->data, y->data, bytes) != 0) fail_msg("%s: %s has other bits\n%s", device, a.outputs[i].name, words);
        }
        run_io_free(&a);
        run_io_free(&b);
    }
    dw_model_destroy(together);
    dw_model_destroy(apart);
}

/* In vectors and not, values that lie in words beside keys that do not, rests behind the width. */
static void compare_all(dw_context *context, const char *device, const char *kernels) {
    static const shape cases[] = {
        {"bf16", 64, 64, 64, "bf16", ""}, {"f16", 96, 64, 64, "f32", ""},        {"f32", 32, 32, 24, "f32", ",interleaved=true"},
        {"bf16", 36, 20, 64, "f32", ""},  {"bf16", 64, 64, 36, "bf16", ""},      {"f16", 16, 6, 16, "f16", ",interleaved=true"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        text words;
        text_init(&words, context);
        make_graph(&words, &cases[i]);
        compare_ways(context, text_string(&words), device, kernels);
        text_free(&words);
    }
}

static void cache_update_has_the_bits_of_its_parts(void **state) {
    static const char *const levels[] = {"cpu", "cpu:portable", "cpu:avx2"};
    for (size_t i = 0; i < COUNT_OF(levels); i++) compare_all(*state, levels[i], "rotary=rotary_rows,cache_write=cache_write");
}

/* DEEPWELL_SIM names another GPU. */
static void on_a_simulated_gpu_too(void **state) {
    char device[600];
    if (kernel_image_count() == 0) skip();   /* no GPU code */
    setenv("DEEPWELL_SIM", "h200", 0);
    snprintf(device, sizeof device, "cuda:0,driver=%s/libdeepwell-sim.so", TEST_BUILD_DIR);
    compare_all(*state, device, "rotary=cuda_rotary,cache_write=cuda_cache_write");
}

static int setup(void **state) { return dw_context_create(&(dw_context_options){.threads = 2}, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(cache_update_has_the_bits_of_its_parts, setup, teardown),
        cmocka_unit_test_setup_teardown(on_a_simulated_gpu_too, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
