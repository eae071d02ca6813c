/* The trainer on small graphs: steps beside the formulas of optimisers, micro-batches, clipping, numbers that are not finite, checkpoints, bits. */
#include "train/regression.h"

/* ---- the same in double, by hand ---- */

typedef struct model { double w[WEIGHTS], c[OUT], m[WEIGHTS + OUT], v[WEIGHTS + OUT], g[WEIGHTS + OUT]; } model;

static void start(model *model) {
    memset(model, 0, sizeof *model);
    for (int i = 0; i < WEIGHTS; i++) model->w[i] = w_begin[i];
    for (int i = 0; i < OUT; i++) model->c[i] = c_begin[i];
}

/* The gradients of the loss, and their norm. */
static double gradients(model *m, int first, int rows, double *loss) {
    double norm = 0;
    memset(m->g, 0, sizeof m->g);
    *loss = 0;
    for (int r = first; r < first + rows; r++) {
        for (int o = 0; o < OUT; o++) {
            double y = m->c[o];
            for (int i = 0; i < IN; i++) y += x_data[r * IN + i] * m->w[i * OUT + o];
            const double d = y - t_data[r * OUT + o], share = 2 * d / (rows * OUT);
            *loss += d * d / (rows * OUT);
            for (int i = 0; i < IN; i++) m->g[i * OUT + o] += share * x_data[r * IN + i];
            m->g[WEIGHTS + o] += share;
        }
    }
    for (int i = 0; i < WEIGHTS + OUT; i++) norm += m->g[i] * m->g[i];
    return sqrt(norm);
}

static double *param(model *m, int i) { return i < WEIGHTS ? &m->w[i] : &m->c[i - WEIGHTS]; }

static void adamw(model *m, double scale, double rate, int t, double decay) {
    for (int i = 0; i < WEIGHTS + OUT; i++) {
        const double g = m->g[i] * scale;
        m->m[i] = 0.9 * m->m[i] + 0.1 * g;
        m->v[i] = 0.95 * m->v[i] + 0.05 * g * g;
        *param(m, i) = *param(m, i) * (1 - rate * (i < WEIGHTS ? decay : 0)) - rate * (m->m[i] / (1 - pow(0.9, t))) / (sqrt(m->v[i] / (1 - pow(0.95, t))) + 1e-8);
    }
}

static void momentum(model *m, double rate, double decay, bool nesterov) {
    for (int i = 0; i < WEIGHTS + OUT; i++) {
        const double g = m->g[i] + (i < WEIGHTS ? decay : 0) * *param(m, i);
        m->m[i] = 0.8 * m->m[i] + g;
        *param(m, i) -= rate * (nesterov ? g + 0.8 * m->m[i] : m->m[i]);
    }
}

static void assert_near(dw_trainer *trainer, model *m, double bound) {
    float w[WEIGHTS], c[OUT];
    weights_of(trainer, w, c);
    for (int i = 0; i < WEIGHTS; i++) assert_true(fabs(w[i] - m->w[i]) <= bound);
    for (int i = 0; i < OUT; i++) assert_true(fabs(c[i] - m->c[i]) <= bound);
}

/* ---- claims ---- */

/* fp32 beside double over 40 steps: 1e-5 is a hundred last places of numbers near 1. */
static void adamw_follows_its_formula(void **state) {
    dw_trainer *trainer = trainer_of(*state, &(dw_trainer_options){.optimizer = "adamw(beta1=0.9, beta2=0.95, decay=0.2)"});
    model m;
    start(&m);
    for (int t = 1; t <= 40; t++) {
        double loss;
        const double norm = gradients(&m, 0, ROWS, &loss);
        adamw(&m, 1, 0.01, t, 0.2);
        const dw_train_result made = step(*state, trainer, 0, ROWS, 0.01);
        assert_true(made.updated && !made.skipped && made.step == t);
        assert_true(fabs(made.loss - loss) <= 1e-5 * (1 + loss) && fabs(made.norm - norm) <= 1e-5 * (1 + norm));
    }
    assert_near(trainer, &m, 1e-5);
    dw_trainer_destroy(trainer);
}

static void sgd_follows_its_formula(void **state) {
    for (int nesterov = 0; nesterov < 2; nesterov++) {
        dw_trainer *trainer = trainer_of(*state, &(dw_trainer_options){.optimizer = nesterov ? "sgd(momentum=0.8,decay=0.1,nesterov=true)" : "sgd(momentum=0.8,decay=0.1)"});
        model m;
        start(&m);
        for (int t = 1; t <= 20; t++) {
            double loss;
            gradients(&m, 0, ROWS, &loss);
            momentum(&m, 0.05, 0.1, nesterov);
            step(*state, trainer, 0, ROWS, 0.05);
        }
        assert_near(trainer, &m, 1e-5);
        dw_trainer_destroy(trainer);
    }
}

static void gradients_are_clipped_by_their_norm(void **state) {
    dw_trainer *trainer = trainer_of(*state, &(dw_trainer_options){.optimizer = "sgd", .clip = 0.25});
    model m;
    double loss;
    float w[WEIGHTS], c[OUT];
    start(&m);
    const double norm = gradients(&m, 0, ROWS, &loss), scale = 0.25 / (norm + 1e-6);
    assert_true(norm > 0.25);
    step(*state, trainer, 0, ROWS, 0.1);
    weights_of(trainer, w, c);
    for (int i = 0; i < WEIGHTS; i++) assert_true(fabs(w[i] - (m.w[i] - 0.1 * scale * m.g[i])) < 1e-6);
    dw_trainer_destroy(trainer);
}

/* Sums of four parts beside one: another order of fp32 sums. */
static void micro_batches_make_one_step(void **state) {
    dw_trainer *whole = trainer_of(*state, &(dw_trainer_options){.clip = 1}), *parts = trainer_of(*state, &(dw_trainer_options){.clip = 1, .accumulate = 4});
    float w[2][WEIGHTS], c[2][OUT];
    for (int t = 0; t < 10; t++) {
        const dw_train_result one = step(*state, whole, 0, 32, 0.02);
        dw_train_result four = {0};
        for (int i = 0; i < 4; i++) {
            four = step(*state, parts, 8 * i, 8, 0.02);
            assert_int_equal(four.updated, i == 3);
        }
        assert_true(fabs(four.mean_loss - one.loss) <= 1e-6 * (1 + one.loss) && fabs(four.norm - one.norm) <= 1e-5 * (1 + one.norm));
    }
    weights_of(whole, w[0], c[0]);
    weights_of(parts, w[1], c[1]);
    for (int i = 0; i < WEIGHTS; i++) assert_true(fabs(w[0][i] - w[1][i]) < 2e-6);
    dw_trainer_destroy(whole);
    dw_trainer_destroy(parts);
}

static void bits_are_the_same_at_any_number_of_threads(void **state) {
    static const int threads[] = {1, 2, 8};
    dw_trainer *trainers[3];
    dw_context *contexts[3];
    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(dw_context_create(&(dw_context_options){.threads = threads[i]}, &contexts[i]), DW_OK);
        trainers[i] = trainer_of(contexts[i], &(dw_trainer_options){.optimizer = "adamw; muon for w", .clip = 0.5});
        for (int t = 0; t < 12; t++) step(contexts[i], trainers[i], t, 32, 0.02);
        if (i > 0) assert_same_weights(trainers[0], trainers[i]);
    }
    for (int i = 0; i < 3; i++) {
        dw_trainer_destroy(trainers[i]);
        dw_context_destroy(contexts[i]);
    }
}

static void a_resumed_run_has_the_same_bits(void **state) {
    static const char *const optimizers[] = {"adamw", "sgd(momentum=0.9)", "adamw;muon for w"};
    for (int k = 0; k < 6; k++) {
        const dw_trainer_options options = {.optimizer = optimizers[k % 3], .accumulate = 1 + k / 3, .clip = 1, .seed = 5};
        dw_trainer *through = trainer_of(*state, &options), *before = trainer_of(*state, &options), *after = trainer_of(*state, &options);
        int64_t place = 0;
        for (int t = 0; t < 12; t++) step(*state, through, t, 8, 0.05);
        for (int t = 0; t < 6; t++) step(*state, before, t, 8, 0.05);
        assert_int_equal(dw_trainer_save(before, in_scratch("a"), 6), DW_OK);
        assert_int_equal(dw_trainer_resume(after, in_scratch("a"), &place), DW_OK);
        assert_int_equal(place, 6);
        assert_same_weights(before, after);
        for (int64_t t = place; t < 12; t++) step(*state, after, t, 8, 0.05);
        assert_same_weights(through, after);
        dw_trainer_destroy(through);
        dw_trainer_destroy(before);
        dw_trainer_destroy(after);
    }
    remove(in_scratch("a"));
}

static void what_is_not_finite_is_skipped(void **state) {
    for (int accumulate = 1; accumulate <= 2; accumulate++) {
        dw_trainer *trainer = trainer_of(*state, &(dw_trainer_options){.accumulate = accumulate}), *clean = trainer_of(*state, &(dw_trainer_options){.accumulate = accumulate});
        for (int t = 0; t < 2 * accumulate; t++) step(*state, trainer, t, 8, 0.05), step(*state, clean, t, 8, 0.05);
        const float kept = x_data[3];
        x_data[3] = NAN;
        dw_train_result made = {0};
        for (int i = 0; i < accumulate; i++) made = step(*state, trainer, i == 0 ? 0 : 8, 8, 0.05);
        x_data[3] = kept;
        assert_true(made.updated && made.skipped && made.step == 2 && !isfinite(made.norm));
        assert_same_weights(trainer, clean);
        for (int t = 0; t < 2 * accumulate; t++) step(*state, trainer, t, 8, 0.05), step(*state, clean, t, 8, 0.05);
        assert_same_weights(trainer, clean);   /* moments and counts are what they would have been */
        dw_trainer_destroy(trainer);
        dw_trainer_destroy(clean);
    }
}

static void what_is_not_finite_is_raised_by_name(void **state) {
    for (int accumulate = 1; accumulate <= 2; accumulate++) {
        const dw_trainer_options options = {.accumulate = accumulate, .flags = DW_TRAINER_RAISE};
        dw_trainer *trainer = trainer_of(*state, &options), *clean = trainer_of(*state, &options);
        dw_named_tensor inputs[2];
        at(0, 8, inputs);
        const float kept = x_data[3];
        x_data[3] = NAN;
        assert_int_equal(dw_trainer_step(trainer, 2, inputs, 0.1, NULL), DW_INVALID);
        assert_says(*state, "input x has nan at [0,3]");
        x_data[3] = 3e38f;   /* an overflow in the graph */
        t_data[0] = -3e38f;
        assert_int_equal(dw_trainer_step(trainer, 2, inputs, 0.1, NULL), DW_INVALID);
        assert_says(*state, "the first result that is not finite is that of op ");
        fill();
        x_data[3] = kept;
        assert_same_weights(trainer, clean);
        for (int t = 0; t < 2 * accumulate; t++) step(*state, trainer, t, 8, 0.05), step(*state, clean, t, 8, 0.05);
        assert_same_weights(trainer, clean);
        dw_trainer_destroy(trainer);
        dw_trainer_destroy(clean);
    }
}

static void gradients_go_to_the_caller(void **state) {
    for (int accumulate = 1; accumulate <= 2; accumulate++) {
        dw_trainer *trainer = trainer_of(*state, &(dw_trainer_options){.optimizer = "none", .accumulate = accumulate});
        model m;
        float g[WEIGHTS], w[WEIGHTS];
        double loss;
        start(&m);
        for (int t = 0; t < 3; t++) {
            const double norm = gradients(&m, 0, 8 * accumulate, &loss);
            dw_train_result made = {0};
            for (int i = 0; i < accumulate; i++) made = step(*state, trainer, 8 * i, 8, 0);
            dw_named_tensor inputs[2];
            at(3, 8, inputs);
            assert_int_equal(dw_trainer_loss(trainer, 2, inputs, &(double){0}), DW_OK);   /* which leaves gradients as they are */
            assert_int_equal(dw_trainer_read(trainer, "grad.w", g, sizeof g), DW_OK);
            assert_true(made.updated && fabs(made.norm - norm) < 1e-5 * (1 + norm) && fabs(made.mean_loss - loss) < 1e-5 * (1 + loss));
            for (int i = 0; i < WEIGHTS; i++) {
                assert_true(fabs(g[i] - m.g[i]) < 1e-6);
                w[i] = (float)(m.w[i] -= 0.1 * m.g[i]);
                m.w[i] = w[i];
            }
            assert_int_equal(dw_trainer_write(trainer, "w", w, sizeof w), DW_OK);
        }
        dw_trainer_destroy(trainer);
    }
}

static void a_checkpoint_of_something_else_is_refused(void **state) {
    dw_trainer *trainer = trainer_of(*state, &(dw_trainer_options){0}), *other = trainer_of(*state, &(dw_trainer_options){.optimizer = "sgd(momentum=0.5)"}), *third = trainer_of(*state, &(dw_trainer_options){0});
    static const char text[] = "graph other\n  input x f32[8,5]\n  input t f32[8,3]\n  param w f32[5,3]\n  param c f32[3]\n  %1 = matmul x, w\n  %2 = sub %1, t\n  %3 = add %2, c\n  %4 = mul %3, %3\n  %5 = mean %4 {axes=[0,1]}\n  output loss %5\n";
    step(*state, trainer, 0, 8, 0.1);
    step(*state, third, 0, 8, 0.1);
    assert_int_equal(dw_trainer_save(other, in_scratch("b"), 0), DW_OK);
    assert_int_equal(dw_trainer_resume(trainer, in_scratch("b"), NULL), DW_MISMATCH);
    assert_says(*state, "it is of another optimiser");
    dw_trainer_destroy(other);
    assert_int_equal(dw_trainer_create(*state, graph_of(*state, text), NULL, &other), DW_OK);
    assert_int_equal(dw_trainer_save(other, in_scratch("b"), 0), DW_OK);
    assert_int_equal(dw_trainer_resume(trainer, in_scratch("b"), NULL), DW_MISMATCH);
    assert_says(*state, "is a checkpoint of another graph");
    assert_int_equal(dw_trainer_export(other, in_scratch("b")), DW_OK);
    assert_int_equal(dw_trainer_resume(trainer, in_scratch("b"), NULL), DW_MISMATCH);
    assert_says(*state, "is no checkpoint of a trainer");
    FILE *file = fopen(in_scratch("b"), "wb");
    fputs("nothing", file);
    fclose(file);
    assert_int_equal(dw_trainer_resume(trainer, in_scratch("b"), NULL), DW_CORRUPT);
    assert_same_weights(trainer, third);
    step(*state, trainer, 3, 8, 0.1);
    step(*state, third, 3, 8, 0.1);
    assert_same_weights(trainer, third);
    remove(in_scratch("b"));
    dw_trainer_destroy(trainer);
    dw_trainer_destroy(other);
    dw_trainer_destroy(third);
}

static void within_a_step_nothing_is_saved(void **state) {
    dw_trainer *trainer = trainer_of(*state, &(dw_trainer_options){.accumulate = 2});
    double loss;
    dw_named_tensor inputs[2];
    step(*state, trainer, 0, 8, 0.1);
    at(0, 8, inputs);
    assert_int_equal(dw_trainer_save(trainer, in_scratch("c"), 0), DW_INVALID);
    assert_says(*state, "1 of 2 micro-batches");
    assert_int_equal(dw_trainer_loss(trainer, 2, inputs, &loss), DW_INVALID);
    dw_trainer_destroy(trainer);
}

static void a_loss_changes_nothing(void **state) {
    for (int accumulate = 1; accumulate <= 2; accumulate++) {
        dw_trainer *trainer = trainer_of(*state, &(dw_trainer_options){.accumulate = accumulate}), *clean = trainer_of(*state, &(dw_trainer_options){.accumulate = accumulate});
        dw_named_tensor inputs[2];
        double loss, by_hand;
        model m;
        start(&m);
        gradients(&m, 0, 8, &by_hand);
        at(0, 8, inputs);
        for (int t = 0; t < 2 * accumulate; t++) {
            if (t % accumulate == 0) assert_int_equal(dw_trainer_loss(trainer, 2, inputs, &loss), DW_OK);
            if (t == 0) assert_true(fabs(loss - by_hand) < 1e-5 * (1 + by_hand));
            step(*state, trainer, t, 8, 0.1);
            step(*state, clean, t, 8, 0.1);
        }
        assert_same_weights(trainer, clean);
        dw_trainer_destroy(trainer);
        dw_trainer_destroy(clean);
    }
}

static void a_model_has_what_was_trained(void **state) {
    dw_trainer *trainer = trainer_of(*state, &(dw_trainer_options){0});
    dw_model *model;
    dw_session *session;
    float y[ROWS * OUT], w[WEIGHTS], c[OUT], loss;
    dw_named_tensor inputs[2], outputs[2] = {{"y", matrix(ROWS, OUT, y)}, {"loss", {.format = DW_FORMAT_f32, .data = &loss}}};
    for (int t = 0; t < 5; t++) step(*state, trainer, t, 8, 0.1);
    weights_of(trainer, w, c);
    assert_int_equal(dw_trainer_model(trainer, NULL, &model), DW_OK);
    assert_int_equal(dw_session_create(*state, model, &(dw_session_options){.dims = "b=8"}, &session), DW_OK);
    at(0, ROWS, inputs);
    assert_int_equal(dw_session_run(session, 2, inputs, 2, outputs), DW_OK);
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < OUT; o++) {
            double sum = c[o];
            for (int i = 0; i < IN; i++) sum += x_data[r * IN + i] * w[i * OUT + o];
            assert_true(fabs(y[r * OUT + o] - sum) < 1e-5);
        }
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_tensors *file;
    assert_int_equal(dw_trainer_export(trainer, in_scratch("d")), DW_OK);
    assert_int_equal(dw_tensors_open(*state, in_scratch("d"), &file), DW_OK);
    assert_int_equal(dw_tensors_count(file), 2);
    for (int i = 0; i < 2; i++) {
        const dw_named_tensor tensor = dw_tensors_at(file, i);
        if (strcmp(tensor.name, "w") == 0) assert_memory_equal(tensor.tensor.data, w, sizeof w);
        else assert_memory_equal(tensor.tensor.data, c, sizeof c);
    }
    dw_tensors_close(file);
    remove(in_scratch("d"));
    dw_trainer_destroy(trainer);
}

static void batches_may_have_any_size(void **state) {
    dw_trainer *trainer = trainer_of(*state, &(dw_trainer_options){.dims = "b=4"});
    const int64_t rows[] = {4, 1, 64, 3, 32};
    for (int i = 0; i < 5; i++) step(*state, trainer, 0, rows[i], 0.01);
    dw_trainer_destroy(trainer);
}

static void parameters_are_updated_where_they_lie(void **state) {
    dw_trainer *trainer = trainer_of(*state, &(dw_trainer_options){0});
    uint64_t kept, workspace;
    dw_trainer_bytes(trainer, &kept, &workspace);
    assert_int_equal(kept, 3 * (WEIGHTS + OUT) * sizeof(float));
    dw_trainer_destroy(trainer);
}

/* The same with a parameter in 16 bits. */
static dw_trainer *halves_of(dw_context *context, dw_format format, const dw_trainer_options *options) {
    static uint16_t w[WEIGHTS];
    char text[1024];
    dw_graph *graph;
    dw_trainer *trainer;
    const char *name = dw_format_name(format);
    fill();
    for (int i = 0; i < WEIGHTS; i++) w[i] = format == DW_FORMAT_bf16 ? 0x3e80 : 0x3400;   /* 0.25 */
    snprintf(text, sizeof text, "graph halves\n  symbol b 1..64\n  input x f32[b,5]\n  input t f32[b,3]\n  param w %s[5,3]\n  %%1 = cast x {to=%s}\n  %%2 = matmul %%1, w\n  %%3 = cast %%2 {to=f32}\n"
             "  %%4 = sub %%3, t\n  %%5 = mul %%4, %%4\n  %%6 = mean %%5 {axes=[0,1]}\n  output loss %%6\n", name, name);
    const dw_named_tensor weight = {"w", {.format = format, .rank = 2, .dims = {IN, OUT}, .strides = {OUT, 1}, .data = w}};
    assert_int_equal(dw_graph_parse(context, "halves", text, strlen(text), &graph), DW_OK);
    assert_int_equal(dw_graph_bind(graph, 1, &weight), DW_OK);
    assert_int_equal(dw_trainer_create(context, graph, options, &trainer), DW_OK);
    return trainer;
}

/* Steps of 1e-5 are below half a place of 0.25 in either format. */
static void small_steps_add_up_in_masters(void **state) {
    static const dw_format formats[] = {DW_FORMAT_bf16, DW_FORMAT_f16};
    for (int k = 0; k < 2; k++) {
        dw_trainer *trainer = halves_of(*state, formats[k], &(dw_trainer_options){.optimizer = "adamw(decay=0)"});
        float w[WEIGHTS];
        dw_named_tensor kept;
        dw_tensors *file;
        int moved = 0;
        for (int t = 0; t < 200; t++) assert_false(step(*state, trainer, 0, ROWS, 1e-5).skipped);
        assert_int_equal(dw_trainer_tensor_at(trainer, 0, &kept), DW_OK);
        assert_int_equal(kept.tensor.format, DW_FORMAT_f32);
        assert_int_equal(dw_trainer_read(trainer, "w", w, sizeof w), DW_OK);
        for (int i = 0; i < WEIGHTS; i++) moved += fabs(w[i] - 0.25) > 1e-3;
        assert_true(moved > WEIGHTS / 2);
        assert_int_equal(dw_trainer_export(trainer, in_scratch("e")), DW_OK);
        assert_int_equal(dw_tensors_open(*state, in_scratch("e"), &file), DW_OK);
        assert_int_equal(dw_tensors_at(file, 0).tensor.format, formats[k]);
        dw_tensors_close(file);
        dw_trainer_destroy(trainer);
    }
    remove(in_scratch("e"));
}

/* A factor that is far too large is halved until gradients are finite, and from then on nothing is skipped; the scale is in the checkpoint. */
static void a_loss_scale_finds_its_size(void **state) {
    const dw_trainer_options options = {.loss_scale = 1e12};
    dw_trainer *trainer = halves_of(*state, DW_FORMAT_f16, &options), *after = halves_of(*state, DW_FORMAT_f16, &options);
    float w[2][WEIGHTS];
    int skipped = 0;
    dw_train_result made;
    for (int t = 0; t < 60; t++) {
        made = step(*state, trainer, 0, ROWS, 1e-3);
        assert_true(isfinite(made.loss));
        if (made.skipped) assert_int_equal(skipped++, t);
    }
    assert_true(skipped > 5 && skipped < 40 && made.step == 60 - skipped && made.norm > 0 && made.norm < 100);
    assert_int_equal(dw_trainer_save(trainer, in_scratch("f"), 0), DW_OK);
    assert_int_equal(dw_trainer_resume(after, in_scratch("f"), NULL), DW_OK);
    assert_false(step(*state, after, 0, ROWS, 1e-3).skipped);
    step(*state, trainer, 0, ROWS, 1e-3);
    assert_int_equal(dw_trainer_read(trainer, "w", w[0], sizeof w[0]), DW_OK);
    assert_int_equal(dw_trainer_read(after, "w", w[1], sizeof w[1]), DW_OK);
    assert_memory_equal(w[0], w[1], sizeof w[0]);
    remove(in_scratch("f"));
    dw_trainer_destroy(trainer);
    dw_trainer_destroy(after);
}

/* All memory is taken when a trainer is made: a step borrows a list of its inputs, and nothing stays. */
static void steps_take_no_memory(void **state) {
    for (int accumulate = 1; accumulate <= 2; accumulate++) {
        test_memory memory = {0};
        dw_context *context = test_context_create(&memory, 2);
        dw_trainer *trainer = trainer_of(context, &(dw_trainer_options){.dims = "b=32", .accumulate = accumulate, .clip = 1});
        step(context, trainer, 0, 32, 0.01);
        const size_t live = memory.live_bytes;
        memory.peak_bytes = live;
        for (int t = 0; t < 9; t++) step(context, trainer, 0, t % 2 ? 32 : 8, 0.01);
        assert_int_equal(memory.live_bytes, live);
        assert_true(memory.peak_bytes <= live + 16384);
        dw_trainer_destroy(trainer);
        dw_context_destroy(context);
        assert_int_equal(memory.live_bytes, 0);
    }
    (void)state;
}

static void a_bad_option_is_refused(void **state) {
    static const struct { dw_trainer_options options; dw_status status; const char *words; } bad[] = {
        {{.optimizer = "adam"}, DW_NOT_FOUND, "there is no optimiser 'adam'; there are sgd, adamw, muon, and none"},
        {{.optimizer = "adamw(beta3=1)"}, DW_NOT_FOUND, "adamw has no setting 'beta3'"},
        {{.optimizer = "adamw(beta1=1)"}, DW_INVALID, "beta1 is 1, it must be below 1"},
        {{.optimizer = "adamw(beta1)"}, DW_SYNTAX, "a setting is name=number"},
        {{.optimizer = "adamw(beta1=0.9"}, DW_SYNTAX, "expected settings in parentheses"},
        {{.optimizer = "adamw(beta1=x)"}, DW_SYNTAX, "'x' is no number"},
        {{.optimizer = "adamw decay"}, DW_SYNTAX, "found 'decay'"},
        {{.optimizer = "muon"}, DW_NOT_FOUND, "no optimiser takes the parameter c"},
        {{.optimizer = "none; adamw"}, DW_INVALID, "give no other beside it"},
        {{.optimizer = "sgd(nesterov=true)"}, DW_INVALID, "nesterov needs a momentum"},
        {{.optimizer = ""}, DW_NOT_FOUND, "there is no optimiser ''"},
        {{.loss = "y"}, DW_INVALID, "more than one number"},
        {{.loss = "z"}, DW_NOT_FOUND, "has no output of the name"},
        {{.trained = "q*"}, DW_NOT_FOUND, "q*"},
        {{.clip = -1}, DW_INVALID, "clip is -1"},
        {{.accumulate = -1}, DW_INVALID, "accumulate is -1"},
        {{.loss_scale = NAN}, DW_INVALID, "loss_scale"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        dw_trainer *trainer;
        assert_int_equal(dw_trainer_create(*state, graph_of(*state, regression), &bad[i].options, &trainer), bad[i].status);
        assert_null(trainer);
        assert_says(*state, bad[i].words);
    }
}

static void a_bad_step_is_refused_and_changes_nothing(void **state) {
    dw_trainer *trainer = trainer_of(*state, &(dw_trainer_options){0}), *clean = trainer_of(*state, &(dw_trainer_options){0});
    dw_named_tensor inputs[2];
    step(*state, trainer, 0, 8, 0.1);
    step(*state, clean, 0, 8, 0.1);
    at(0, 8, inputs);
    assert_int_equal(dw_trainer_step(trainer, 1, inputs, 0.1, NULL), DW_MISMATCH);
    assert_int_equal(dw_trainer_step(trainer, 2, inputs, -1, NULL), DW_INVALID);
    assert_int_equal(dw_trainer_step(trainer, 2, inputs, NAN, NULL), DW_INVALID);
    inputs[0].tensor.dims[1] = 4;
    assert_int_equal(dw_trainer_step(trainer, 2, inputs, 0.1, NULL), DW_MISMATCH);
    inputs[0].tensor.dims[1] = 5;
    inputs[0].tensor.format = DW_FORMAT_bf16;
    assert_int_equal(dw_trainer_step(trainer, 2, inputs, 0.1, NULL), DW_MISMATCH);
    step(*state, trainer, 3, 8, 0.1);
    step(*state, clean, 3, 8, 0.1);
    assert_same_weights(trainer, clean);
    assert_int_equal(dw_trainer_read(trainer, "nothing", inputs, 4), DW_NOT_FOUND);
    assert_int_equal(dw_trainer_read(trainer, "w", inputs, 4), DW_MISMATCH);
    dw_trainer_destroy(trainer);
    dw_trainer_destroy(clean);
}

static int setup(void **state) { return dw_context_create(&(dw_context_options){.threads = 2}, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(adamw_follows_its_formula, setup, teardown),
        cmocka_unit_test_setup_teardown(sgd_follows_its_formula, setup, teardown),
        cmocka_unit_test_setup_teardown(gradients_are_clipped_by_their_norm, setup, teardown),
        cmocka_unit_test_setup_teardown(micro_batches_make_one_step, setup, teardown),
        cmocka_unit_test(bits_are_the_same_at_any_number_of_threads),
        cmocka_unit_test_setup_teardown(a_resumed_run_has_the_same_bits, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_not_finite_is_skipped, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_not_finite_is_raised_by_name, setup, teardown),
        cmocka_unit_test_setup_teardown(gradients_go_to_the_caller, setup, teardown),
        cmocka_unit_test_setup_teardown(a_checkpoint_of_something_else_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(within_a_step_nothing_is_saved, setup, teardown),
        cmocka_unit_test_setup_teardown(a_loss_changes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_model_has_what_was_trained, setup, teardown),
        cmocka_unit_test_setup_teardown(batches_may_have_any_size, setup, teardown),
        cmocka_unit_test_setup_teardown(parameters_are_updated_where_they_lie, setup, teardown),
        cmocka_unit_test_setup_teardown(small_steps_add_up_in_masters, setup, teardown),
        cmocka_unit_test_setup_teardown(a_loss_scale_finds_its_size, setup, teardown),
        cmocka_unit_test(steps_take_no_memory),
        cmocka_unit_test_setup_teardown(a_bad_option_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_bad_step_is_refused_and_changes_nothing, setup, teardown),
    };
    return cmocka_run_group_tests_name("train", tests, NULL, NULL);
}
