/* What a trainer makes of weights once for all micro-batches of a step: that it is made again whenever they change, and that bits are those of making it each time. And checkpoints and graphs that no
 * trainer takes. */
#include "train/regression.h"

#include "base/base.h"

static int setup(void **state) { return dw_context_create(&(dw_context_options){.threads = 2}, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

static const dw_trainer_options halves = {.accumulate = 3, .precision = "bf16"};

static void print(void *user, const char *text, size_t length) {
    text_add_n(user, text, length);
}

/* Writes back what is there, so that whatever was made of it has to be made again. */
static void touch(dw_trainer *trainer) {
    float w[WEIGHTS], c[OUT];
    weights_of(trainer, w, c);
    assert_int_equal(dw_trainer_write(trainer, "w", w, sizeof w), DW_OK);
    assert_int_equal(dw_trainer_write(trainer, "c", c, sizeof c), DW_OK);
}

static void plans_say_what_is_prepared(void **state) {
    dw_trainer *several = trainer_of(*state, &halves), *one = trainer_of(*state, &(dw_trainer_options){.precision = "bf16"});
    text words, plain;
    text_init(&words, *state);
    text_init(&plain, *state);
    assert_int_equal(dw_trainer_print(several, print, &words), DW_OK);
    assert_int_equal(dw_trainer_print(one, print, &plain), DW_OK);
    assert_non_null(strstr(text_string(&words), "\n  prepares\n"));
    assert_non_null(strstr(text_string(&words), "\n  prepare %"));
    assert_non_null(strstr(text_string(&words), "= accumulate "));
    assert_null(strstr(text_string(&plain), "prepare"));
    assert_null(strstr(text_string(&plain), "accumulate"));
    text_free(&words);
    text_free(&plain);
    dw_trainer_destroy(several);
    dw_trainer_destroy(one);
}

/* The gradient of w is a product's, which adds to the sum in its place; that of c is added by an op. Where the norm of each micro-batch is asked for, ops add both. */
static void products_add_to_sums_in_place(void **state) {
    static const unsigned flags[] = {0, DW_TRAINER_RAISE};
    for (int i = 0; i < 2; i++) {
        dw_trainer *trainer = trainer_of(*state, &(dw_trainer_options){.accumulate = 3, .flags = flags[i]});
        text words;
        text_init(&words, *state);
        assert_int_equal(dw_trainer_print(trainer, print, &words), DW_OK);
        const char *product = strstr(text_string(&words), ", grad.w {"), *added = product != NULL ? strstr(product, "post=\"add\"") : NULL;
        assert_int_equal(added != NULL, i == 0);
        assert_int_equal(strstr(text_string(&words), "accumulate grad.w") != NULL, i == 1);
        assert_non_null(strstr(text_string(&words), "grad.c, "));
        assert_null(strstr(text_string(&words), "= pad "));        /* which a sum that is not written in place would be copied by */
        text_free(&words);
        dw_trainer_destroy(trainer);
    }
}

static void explain_tells_what_is_prepared(void **state) {
    for (int several = 0; several < 2; several++) {
        const dw_trainer_options options = {.accumulate = several ? 3 : 1, .precision = "bf16"};
        text words;
        text_init(&words, *state);
        assert_int_equal(dw_trainer_explain(*state, graph_of(*state, regression), &options, "cpu-avx512bf16", 0, print, &words), DW_OK);
        assert_int_equal(strstr(text_string(&words), "prepared once after each update of weights") != NULL, several);
        assert_int_equal(strstr(text_string(&words), "\n  prepare ") != NULL, several);
        assert_int_equal(strstr(text_string(&words), "[prepare]") != NULL, several);
        text_free(&words);
    }
}

static void updates_prepare_again(void **state) {
    dw_trainer *trainer = trainer_of(*state, &halves), *fresh = trainer_of(*state, &halves);
    for (int i = 0; i < 12; i++) {
        const int64_t rows = i % 4 == 1 ? 5 : 8;   /* other sizes in between lie elsewhere */
        touch(fresh);
        const dw_train_result a = step(*state, trainer, 3 * i, rows, 0.05), b = step(*state, fresh, 3 * i, rows, 0.05);
        assert_true(a.loss == b.loss && a.updated == b.updated);
    }
    assert_same_weights(trainer, fresh);
    dw_trainer_destroy(trainer);
    dw_trainer_destroy(fresh);
}

static void written_parameters_are_those_of_the_next_run(void **state) {
    const dw_trainer_options callers = {.optimizer = "none", .precision = "bf16"};
    dw_trainer *trainer = trainer_of(*state, &callers), *other;
    float w[WEIGHTS], c[OUT];
    dw_named_tensor inputs[2];
    double before, loss, expected;
    at(0, 8, inputs);
    assert_int_equal(dw_trainer_loss(trainer, 2, inputs, &before), DW_OK);
    weights_of(trainer, w, c);
    for (int i = 0; i < WEIGHTS; i++) w[i] += 0.5f;
    assert_int_equal(dw_trainer_write(trainer, "w", w, sizeof w), DW_OK);
    assert_int_equal(dw_trainer_loss(trainer, 2, inputs, &loss), DW_OK);
    other = trainer_of(*state, &callers);
    assert_int_equal(dw_trainer_write(other, "w", w, sizeof w), DW_OK);
    assert_int_equal(dw_trainer_loss(other, 2, inputs, &expected), DW_OK);
    assert_true(loss == expected && loss != before);
    dw_trainer_destroy(trainer);
    dw_trainer_destroy(other);
}

static void a_resumed_trainer_prepares_again(void **state) {
    dw_trainer *trainer = trainer_of(*state, &halves), *other = trainer_of(*state, &halves);
    for (int i = 0; i < 6; i++) step(*state, trainer, i, 8, 0.1);
    for (int i = 0; i < 3; i++) step(*state, other, 20 + i, 8, 0.1);
    assert_int_equal(dw_trainer_save(trainer, in_scratch("p"), 0), DW_OK);
    assert_int_equal(dw_trainer_resume(other, in_scratch("p"), NULL), DW_OK);
    for (int i = 0; i < 3; i++) assert_true(step(*state, trainer, i, 8, 0.1).loss == step(*state, other, i, 8, 0.1).loss);
    assert_same_weights(trainer, other);
    remove(in_scratch("p"));
    dw_trainer_destroy(trainer);
    dw_trainer_destroy(other);
}

/* Of the same graph, so of the same hash; somebody has turned the tensor of that name. */
static void turn_shape(const char *path, const char *name) {
    static char bytes[1 << 14];
    char key[64];
    FILE *file = fopen(path, "rb");
    const size_t length = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_in_range(length, 100, sizeof bytes - 1);
    snprintf(key, sizeof key, "\"%s\"", name);
    char *at = NULL;
    for (size_t i = 8; at == NULL && i + strlen(key) < length; i++)
        if (memcmp(bytes + i, key, strlen(key)) == 0) at = bytes + i;
    assert_non_null(at);
    while (strncmp(at, "[5,3]", 5) != 0 && at < bytes + length) at++;
    memcpy(at, "[3,5]", 5);
    file = fopen(path, "wb");
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    fclose(file);
}

static void a_tensor_of_another_shape_is_named_with_both(void **state) {
    static const char *const names[] = {"w", "adamw.m.w"};
    dw_trainer *trainer = trainer_of(*state, &(dw_trainer_options){0}), *other = trainer_of(*state, &(dw_trainer_options){0});
    step(*state, trainer, 0, 8, 0.1);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char words[64];
        snprintf(words, sizeof words, "tensor %s is f32[3,5], the trainer's is f32[5,3]", names[i]);
        assert_int_equal(dw_trainer_save(trainer, in_scratch("s"), 0), DW_OK);
        turn_shape(in_scratch("s"), names[i]);
        assert_int_equal(dw_trainer_resume(other, in_scratch("s"), NULL), DW_MISMATCH);
        assert_says(*state, words);
    }
    step(*state, other, 0, 8, 0.1);   /* nothing was taken of them */
    assert_same_weights(trainer, other);
    remove(in_scratch("s"));
    dw_trainer_destroy(trainer);
    dw_trainer_destroy(other);
}

static void collectives_on_the_way_are_refused_by_name(void **state) {
    static const char text[] = "graph ranks\n  input x f32[8,5]\n  input t f32[8,3]\n  param w f32[5,3]\n  param c f32[3]\n  %1 = matmul x, w at \"mlp.up\"\n"
                               "  %2 = all_reduce %1 {over=\"tp\",ranks=2,by=\"sum\"} at \"mlp.gather\"\n  %3 = add %2, c\n  %4 = sub %3, t\n  %5 = mul %4, %4\n  %6 = mean %5 {axes=[0,1]}\n  output loss %6\n";
    dw_trainer *trainer;
    assert_int_equal(dw_trainer_create(*state, graph_of(*state, text), NULL, &trainer), DW_UNSUPPORTED);
    assert_null(trainer);
    assert_says(*state, "all_reduce");
    assert_says(*state, "mlp.gather");
    assert_says(*state, "a graph with collectives is run");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(plans_say_what_is_prepared, setup, teardown),
        cmocka_unit_test_setup_teardown(products_add_to_sums_in_place, setup, teardown),
        cmocka_unit_test_setup_teardown(explain_tells_what_is_prepared, setup, teardown),
        cmocka_unit_test_setup_teardown(updates_prepare_again, setup, teardown),
        cmocka_unit_test_setup_teardown(written_parameters_are_those_of_the_next_run, setup, teardown),
        cmocka_unit_test_setup_teardown(a_resumed_trainer_prepares_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_tensor_of_another_shape_is_named_with_both, setup, teardown),
        cmocka_unit_test_setup_teardown(collectives_on_the_way_are_refused_by_name, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
