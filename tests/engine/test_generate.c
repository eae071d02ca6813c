/* Generation: with a cached step and without one, greedy and drawn, its ends and what it refuses; and the likelihood of a text. */
#include "support/support.h"

#include <math.h>
#include <string.h>

#include "support/session.h"

#define TABLE "const t f32[8,4] = 1,2,-1,3, -2,1,0.5,1, 3,-1,2,-2, 0.25,1,-3,1, -1,-1,2,1, 2,0.5,1,-2, -3,1,1,0.5, 0.5,-2,1,2"
/* Each token's logits depend on it alone. */
static const char LOCAL[] = "graph g\n  symbol b 1..4\n  symbol s 1..64\n  input ids i64[b,s]\n  " TABLE
                            "\n  %1 = take t, ids {axis=0}\n  %2 = sin %1\n  %3 = matmul %2, t {bt=true}\n  output logits %3\n";
/* Every token sees all others: no cache can be. */
static const char MIXED[] = "graph g\n  symbol b 1..4\n  symbol s 1..64\n  input ids i64[b,s]\n  " TABLE
                            "\n  %1 = take t, ids {axis=0}\n  %2 = mean %1 {axes=[1],keep=true}\n  %3 = add %1, %2\n  %4 = sin %3\n  %5 = matmul %4, t {bt=true}\n"
                            "  output logits %5\n";
enum { VOCABULARY = 8, NEW = 20, ROOM = 48 };

static dw_session *generating(dw_context *context, const dw_model *model) {
    dw_session *session;
    assert_ok(context, dw_session_create(context, model, &(dw_session_options){.dims = model->full.plan ? "b=1,s=48" : NULL, .max_tokens = ROOM}, &session));
    return session;
}

/* The logits of the last of count tokens, by a whole run. */
static void last_logits(dw_context *context, dw_session *session, int64_t *ids, int64_t count, float *logits) {
    float all[ROOM * VOCABULARY];
    dw_named_tensor in = {.name = "ids"}, out = {.name = "logits"};
    assert_true(op_tensor_init(&in.tensor, DW_FORMAT_i64, DW_SCALE_plain, 2, (int64_t[]){1, count}, ids));
    assert_true(op_tensor_init(&out.tensor, DW_FORMAT_f32, DW_SCALE_plain, 3, (int64_t[]){1, count, VOCABULARY}, all));
    assert_ok(context, dw_session_run(session, 1, &in, 1, &out));
    memcpy(logits, all + (count - 1) * VOCABULARY, VOCABULARY * sizeof *logits);
}

static int64_t likeliest(const float *logits) {
    int64_t best = 0;
    for (int64_t i = 1; i < VOCABULARY; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static void greedy_takes_the_likeliest(void **state) {
    dw_context *context = *state;
    static const char *const texts[] = {LOCAL, MIXED};
    for (int i = 0; i < 2; i++) {
        dw_model *model = model_of_text(context, texts[i], &(dw_model_options){.flags = DW_MODEL_GENERATE});
        dw_session *session = generating(context, model);
        const char *reason;
        assert_int_equal(dw_model_can_generate(model, &reason), i == 0);
        if (i == 1) assert_non_null(strstr(reason, "mean"));   /* the op that prevents it is named */
        int64_t sequence[ROOM] = {3, 1, 4}, ids[NEW], made;
        dw_generate_times times;
        assert_ok(context, dw_session_generate(session, 3, sequence, &(dw_generate_options){.tokens = NEW}, ids, &made, &times));
        assert_int_equal(made, NEW);
        assert_int_equal(times.cached, i == 0);
        assert_int_equal(times.prompt_tokens, 3);
        assert_int_equal(times.new_tokens, NEW);
        for (int64_t k = 0; k < NEW; k++) {
            float logits[VOCABULARY];
            last_logits(context, session, sequence, 3 + k, logits);
            assert_int_equal(ids[k], likeliest(logits));
            sequence[3 + k] = ids[k];
        }
        dw_session_destroy(session);
        dw_model_destroy(model);
    }
}

typedef struct draw { double temperature; int top_k; double top_p; } draw;

/* The probabilities that a draw of the first token should have. */
static void expected_of(const float *logits, const draw *how, double *p) {
    int order[VOCABULARY];
    double sum = 0, kept = 0, mass = 0;
    for (int i = 0; i < VOCABULARY; i++) {
        int at = i;
        for (; at > 0 && logits[order[at - 1]] < logits[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    int k = how->top_k > 0 ? how->top_k : VOCABULARY;
    for (int i = 0; i < VOCABULARY; i++) p[i] = 0;
    for (int i = 0; i < k; i++) sum += exp((double)logits[order[i]] / how->temperature);
    for (int i = 0; i < k && (how->top_p == 0 || mass < how->top_p); i++) {
        p[order[i]] = exp((double)logits[order[i]] / how->temperature) / sum;
        mass += p[order[i]];
    }
    for (int i = 0; i < VOCABULARY; i++) kept += p[i];
    for (int i = 0; i < VOCABULARY; i++) p[i] /= kept;
}

/* Frequencies over many seeds lie within five standard deviations; what is cut off never comes. */
static void draws_have_their_probabilities(void **state) {
    dw_context *context = *state;
    static const draw draws[] = {{1, 0, 0}, {3, 0, 0}, {0.5, 0, 0}, {4, 3, 0}, {4, 0, 0.6}, {4, 5, 0.7}, {2, 1, 0}};
    enum { TIMES = 3000 };
    dw_model *model = model_of_text(context, LOCAL, &(dw_model_options){.flags = DW_MODEL_GENERATE});
    dw_session *session = generating(context, model);
    int64_t prompt[1] = {5}, id, again, made;
    float logits[VOCABULARY];
    last_logits(context, session, prompt, 1, logits);
    for (size_t i = 0; i < COUNT_OF(draws); i++) {
        double p[VOCABULARY];
        int counts[VOCABULARY] = {0};
        expected_of(logits, &draws[i], p);
        for (uint64_t seed = 0; seed < TIMES; seed++) {
            dw_generate_options options = {.tokens = 1, .temperature = draws[i].temperature, .top_k = draws[i].top_k, .top_p = draws[i].top_p, .seed = seed};
            assert_ok(context, dw_session_generate(session, 1, prompt, &options, &id, &made, NULL));
            counts[id]++;
            if (seed % 500 != 0) continue;
            assert_ok(context, dw_session_generate(session, 1, prompt, &options, &again, &made, NULL));
            assert_int_equal(id, again);
        }
        for (int k = 0; k < VOCABULARY; k++) {
            double deviation = sqrt(TIMES * p[k] * (1 - p[k]));
            if (p[k] == 0) assert_int_equal(counts[k], 0);
            else if (fabs(counts[k] - TIMES * p[k]) > 5 * deviation + 1e-9) fail_msg("draw %zu: id %d came %d times, expected %.1f", i, k, counts[k], TIMES * p[k]);
        }
    }
    dw_session_destroy(session);
    dw_model_destroy(model);
}

static int stop_at_third(void *user, int64_t id) {
    (void)id;
    return ++*(int *)user == 3;
}

static void generation_ends_where_it_is_told(void **state) {
    dw_context *context = *state;
    dw_model *model = model_of_text(context, LOCAL, &(dw_model_options){.flags = DW_MODEL_GENERATE_ONLY});
    dw_session *session = generating(context, model);
    int64_t prompt[2] = {1, 2}, ids[ROOM], stopped[ROOM], made;
    int calls = 0;
    dw_generate_options options = {.tokens = 10, .temperature = 2, .seed = 9};
    assert_ok(context, dw_session_generate(session, 2, prompt, &options, ids, &made, NULL));
    assert_int_equal(made, 10);
    options.stop_ids = (int64_t[]){99, ids[4]};
    options.stop_count = 2;
    int64_t first = 0;
    while (ids[first] != ids[4]) first++;
    assert_ok(context, dw_session_generate(session, 2, prompt, &options, stopped, &made, NULL));
    assert_int_equal(made, first + 1);
    assert_memory_equal(ids, stopped, (size_t)made * sizeof *ids);
    options = (dw_generate_options){.tokens = 10, .on_token = stop_at_third, .user = &calls};
    assert_ok(context, dw_session_generate(session, 2, prompt, &options, stopped, &made, NULL));
    assert_int_equal(made, 3);
    assert_ok(context, dw_session_generate(session, 2, prompt, &(dw_generate_options){.tokens = ROOM - 2}, ids, &made, NULL));   /* all the room there is */
    assert_int_equal(made, ROOM - 2);
    dw_session_destroy(session);
    dw_model_destroy(model);
}

/* One layer sees the last five tokens, the other all; each has keys of its own. */
static const char WINDOWED[] = "graph g\n  symbol b 1..4\n  symbol s 1..8192\n  input ids i64[b,s]\n  " TABLE
                               "\n  %1 = take t, ids {axis=0}\n  %2 = reshape %1 {shape=[b,s,2,2]}\n  %3 = transpose %2 {order=[0,2,1,3]}\n  %4 = sin %3\n"
                               "  %5 = attention %3, %4, %4 {scale=1.5,causal=true,window=5}\n  %6 = cos %3\n  %7 = attention %5, %6, %6 {scale=0.5,causal=true}\n"
                               "  %8 = transpose %7 {order=[0,2,1,3]}\n  %9 = reshape %8 {shape=[b,s,4]}\n  %10 = matmul %9, t {bt=true}\n  output logits %10\n";

static size_t bytes_of_state(const dw_session *session, size_t index) { return session->step.state_bytes[index]; }

/* The cache of a window has pages for the window and one run, whatever the length of the text; the tokens are those of a cache that holds all. */
static void caches_of_windows_are_bounded(void **state) {
    dw_context *context = *state;
    enum { PROMPT = 21, MADE = 200, CHUNK = 8, WINDOW = 5, TOKEN_BYTES = 2 * 2 * sizeof(float) };
    dw_model *model = model_of_text(context, WINDOWED, &(dw_model_options){.flags = DW_MODEL_GENERATE_ONLY});
    int64_t prompt[PROMPT], ids[3][MADE], made;
    uint64_t workspace = 0;
    for (int i = 0; i < PROMPT; i++) prompt[i] = (int64_t)(num_random(8, (uint64_t)i) % VOCABULARY);
    const dw_session_options options[] = {{.max_tokens = 8000, .chunk = CHUNK}, {.max_tokens = PROMPT + MADE, .chunk = CHUNK}, {.max_tokens = PROMPT + MADE, .chunk = 500}};
    for (int i = 0; i < 3; i++) {
        dw_session *session;
        assert_ok(context, dw_session_create(context, model, &options[i], &session));
        assert_int_equal(session->step.program->plan->graph->state_count, 2);   /* keys are values too */
        const int64_t all = (options[i].max_tokens + ENGINE_PAGE - 1) / ENGINE_PAGE, seen = (WINDOW - 1 + CHUNK + ENGINE_PAGE - 1) / ENGINE_PAGE + 1;
        assert_int_equal(bytes_of_state(session, 0), (i < 2 ? seen : all) * ENGINE_PAGE * TOKEN_BYTES);
        assert_int_equal(bytes_of_state(session, 1), all * ENGINE_PAGE * TOKEN_BYTES);
        if (i == 0) workspace = dw_session_workspace_bytes(session);
        if (i == 1) assert_int_equal(dw_session_workspace_bytes(session), workspace);   /* it does not grow with the texts either */
        const dw_generate_options how = {.tokens = MADE, .temperature = 3, .seed = 5};
        assert_ok(context, dw_session_generate(session, PROMPT, prompt, &how, ids[i], &made, NULL));
        assert_int_equal(made, MADE);
        if (i > 0) assert_memory_equal(ids[i], ids[0], sizeof ids[0]);
        dw_session_destroy(session);
    }
    dw_model_destroy(model);
}

typedef struct stream { int count[4], most; int64_t last[4]; } stream;

static int follow(void *user, int prompt, int64_t id) {
    stream *seen = user;
    seen->last[prompt] = id;
    return ++seen->count[prompt] == seen->most && prompt == 1;
}

/* Each prompt ends by its own stop ids, those of all, its callback or its tokens; more prompts than rows wait. */
static void prompts_end_on_their_own(void **state) {
    dw_context *context = *state;
    enum { COUNT = 4, MADE = 10 };
    static const char *const texts[] = {WINDOWED, MIXED};
    for (int t = 0; t < 2; t++) {
        dw_model *model = model_of_text(context, texts[t], &(dw_model_options){.flags = DW_MODEL_GENERATE_ONLY});
        dw_session *session;
        const dw_session_options sizes = {.dims = t == 0 ? NULL : "s=24", .max_tokens = 24, .rows = 2, .chunk = 4};
        const int64_t starts[COUNT][6] = {{1, 2, 3, 4, 5, 6}, {7}, {0, 0, 1}, {2, 6}}, counts[COUNT] = {6, 1, 3, 2};
        int64_t alone[COUNT][MADE], ids[COUNT][MADE], made;
        assert_ok(context, dw_session_create(context, model, &sizes, &session));
        for (int i = 0; i < COUNT; i++) {
            const dw_generate_options how = {.tokens = MADE, .temperature = 2, .seed = (uint64_t)i};
            assert_ok(context, dw_session_generate(session, counts[i], starts[i], &how, alone[i], &made, NULL));
        }
        dw_prompt prompts[COUNT];
        for (int i = 0; i < COUNT; i++) prompts[i] = (dw_prompt){.count = counts[i], .ids = starts[i], .seed = (uint64_t)i, .made_ids = ids[i]};
        prompts[2].stop_ids = &alone[2][3];
        prompts[2].stop_count = 1;
        stream seen = {.most = 5};
        dw_generate_times times;
        const dw_generate_options how = {.tokens = MADE, .temperature = 2, .on_prompt_token = follow, .user = &seen};
        assert_ok(context, dw_session_generate_batch(session, COUNT, prompts, &how, &times));
        int64_t first = 0;
        while (alone[2][first] != alone[2][3]) first++;
        const int64_t expected[COUNT] = {MADE, 5, first + 1, MADE};
        for (int i = 0; i < COUNT; i++) {
            assert_int_equal(prompts[i].made, expected[i]);
            assert_int_equal(seen.count[i], expected[i]);
            assert_int_equal(seen.last[i], ids[i][expected[i] - 1]);
            assert_memory_equal(ids[i], alone[i], (size_t)expected[i] * sizeof(int64_t));
        }
        assert_int_equal(times.prompt_tokens, 12);
        assert_int_equal(times.new_tokens, 2 * MADE + 5 + first + 1);
        assert_int_equal(times.cached, t == 0);
        prompts[3].count = 20;
        test_assert_fails(context, dw_session_generate_batch(session, COUNT, prompts, &how, NULL), DW_LIMIT, "20 prompt tokens and 10 new ones");
        assert_int_equal(prompts[0].made, 0);
        assert_ok(context, dw_session_generate_batch(session, 0, NULL, &how, &times));
        dw_session_destroy(session);
        dw_model_destroy(model);
    }
}

static void requests_that_make_no_sense_are_refused(void **state) {
    dw_context *context = *state;
    dw_model *model = model_of_text(context, LOCAL, &(dw_model_options){.flags = DW_MODEL_GENERATE});
    dw_session *session = generating(context, model), *plain = session_of(context, model, NULL);
    int64_t prompt[2] = {1, 8}, ids[4], made;
    static const struct { int64_t count; dw_generate_options options; dw_status status; const char *message; } cases[] = {
        {2, {.tokens = 1}, DW_INVALID, "prompt id 8 at 1 is outside the vocabulary of 8"},
        {0, {.tokens = 1}, DW_INVALID, "at least one token"},
        {1, {.tokens = ROOM}, DW_LIMIT, "exceed the session's max_tokens of 48"},
        {1, {.tokens = -1}, DW_LIMIT, "exceed"},
        {1, {.tokens = 1, .temperature = -1}, DW_INVALID, "temperature -1"},
        {1, {.tokens = 1, .temperature = NAN}, DW_INVALID, "temperature"},
        {1, {.tokens = 1, .top_p = 1.5}, DW_INVALID, "top_p 1.5"},
        {1, {.tokens = 1, .top_k = -2}, DW_INVALID, "top_k -2"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        test_assert_fails(context, dw_session_generate(session, cases[i].count, prompt, &cases[i].options, ids, &made, NULL), cases[i].status, cases[i].message);
        assert_int_equal(made, 0);
    }
    test_assert_fails(context, dw_session_generate(plain, 1, prompt, &(dw_generate_options){.tokens = 1}, ids, &made, NULL), DW_INVALID, "set max_tokens");
    dw_session_destroy(plain);
    dw_session_destroy(session);
    dw_model_destroy(model);
}

static void logits_that_are_no_numbers_are_an_error(void **state) {
    dw_context *context = *state;
    static const struct { const char *number, *message; } cases[] = {{"nan", "a logit is NaN or infinite"}, {"inf", "a logit is NaN or infinite"}, {"-inf", "no id is left"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[1024];
        snprintf(text, sizeof text, "graph g\n  symbol b 1..4\n  symbol s 1..64\n  input ids i64[b,s]\n  %s\n  %%1 = take t, ids {axis=0}\n  %%2 = sin %%1\n  %%3 = matmul %%2, t {bt=true}\n"
                 "  %%4 = fill {shape=[],value=%s,to=f32}\n  %%5 = add %%3, %%4\n  output logits %%5\n", TABLE, cases[i].number);
        for (int temperature = 0; temperature < 2; temperature++) {
            int64_t prompt[1] = {5}, ids[2], made;
            dw_model *model = model_of_text(context, text, &(dw_model_options){.flags = DW_MODEL_GENERATE_ONLY});
            dw_session *session = generating(context, model);
            test_assert_fails(context, dw_session_generate(session, 1, prompt, &(dw_generate_options){.tokens = 2, .temperature = temperature}, ids, &made, NULL), DW_INVALID, cases[i].message);
            dw_session_destroy(session);
            dw_model_destroy(model);
        }
    }
}

static void models_that_cannot_generate_say_why(void **state) {
    dw_context *context = *state;
    static const struct { const char *text, *message; } cases[] = {
        {"graph g\n  symbol s 1..9\n  input x f32[1,s]\n  %1 = neg x\n  output y %1\n", "does not know what to feed input x"},
        {"graph g\n  symbol s 1..9\n  input a i64[1,s]\n  input b i64[1,s]\n  %1 = add a, b\n  output y %1\n", "one input of token ids, this model has a and b"},
        {"graph g\n  input a i64[1,7]\n  %1 = neg a\n  output y %1\n", "exported with a dynamic number of tokens; a has a fixed one"},
        {"graph g\n  symbol s 1..9\n  input a i64[2,s]\n  %1 = neg a\n  output y %1\n", "a has 2 rows"},
        {"graph g\n  symbol s 1..9\n  input a i64[1,s]\n  input mask bool[1,1,s,s]\n  %1 = neg a\n  %2 = not mask\n  output y %1\n  output z %2\n",
         "does not know what to feed input mask"},
        {"graph g\n  symbol s 1..9\n  input a i64[1,s]\n  %1 = neg a\n  output y %1\n", "an output of logits"},
        {"graph g\n  symbol s 1..9\n  const c f32[2] = 1, 2\n  input mask i64[1,s]\n  %1 = neg mask\n  output y %1\n", "an input of token ids"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        dw_session *session;
        dw_model *model = model_of_text(context, cases[i].text, &(dw_model_options){.flags = DW_MODEL_GENERATE});
        dw_status status = dw_session_create(context, model, &(dw_session_options){.max_tokens = 8}, &session);
        test_assert_fails(context, status, DW_UNSUPPORTED, cases[i].message);
        assert_null(session);
        dw_model_destroy(model);
    }
}

static void a_text_is_as_likely_as_its_logits_say(void **state) {
    dw_context *context = *state;
    enum { COUNT = 23, WINDOW = 9 };
    dw_model *model = model_of_text(context, MIXED, NULL);
    dw_session *session = session_of(context, model, "s=9");
    int64_t ids[COUNT];
    double nats, expected = 0;
    for (int i = 0; i < COUNT; i++) ids[i] = (int64_t)(num_random(4, (uint64_t)i) % VOCABULARY);
    for (int64_t at = 0; at + 1 < COUNT; at += WINDOW - 1) {
        int64_t length = COUNT - at < WINDOW ? COUNT - at : WINDOW;
        float all[WINDOW * VOCABULARY];
        dw_named_tensor in = {.name = "ids"}, out = {.name = "logits"};
        assert_true(op_tensor_init(&in.tensor, DW_FORMAT_i64, DW_SCALE_plain, 2, (int64_t[]){1, length}, ids + at));
        assert_true(op_tensor_init(&out.tensor, DW_FORMAT_f32, DW_SCALE_plain, 3, (int64_t[]){1, length, VOCABULARY}, all));
        assert_ok(context, dw_session_run(session, 1, &in, 1, &out));
        for (int64_t i = 0; i + 1 < length; i++) {
            double sum = 0;
            for (int k = 0; k < VOCABULARY; k++) sum += exp((double)all[i * VOCABULARY + k]);
            expected += log(sum) - (double)all[i * VOCABULARY + ids[at + i + 1]];
        }
    }
    assert_ok(context, dw_session_score(session, COUNT, ids, WINDOW, &nats));
    assert_true(fabs(nats - expected / (COUNT - 1)) < 1e-9);   /* both sum in double */
    ids[20] = VOCABULARY;
    test_assert_fails(context, dw_session_score(session, COUNT, ids, WINDOW, &nats), DW_INVALID, "id 8 is outside the vocabulary");
    test_assert_fails(context, dw_session_score(session, 1, ids, WINDOW, &nats), DW_INVALID, "at least two ids");
    dw_session_destroy(session);
    dw_model_destroy(model);
}

static int setup(void **state) { return dw_context_create(&(dw_context_options){.threads = 1}, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(greedy_takes_the_likeliest, setup, teardown),
        cmocka_unit_test_setup_teardown(draws_have_their_probabilities, setup, teardown),
        cmocka_unit_test_setup_teardown(generation_ends_where_it_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(caches_of_windows_are_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(prompts_end_on_their_own, setup, teardown),
        cmocka_unit_test_setup_teardown(requests_that_make_no_sense_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(logits_that_are_no_numbers_are_an_error, setup, teardown),
        cmocka_unit_test_setup_teardown(models_that_cannot_generate_say_why, setup, teardown),
        cmocka_unit_test_setup_teardown(a_text_is_as_likely_as_its_logits_say, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
