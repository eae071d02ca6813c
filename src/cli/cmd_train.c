/* The command train: batches drawn from data, steps, a line of progress, checkpoints. Batch number n is a function of the seed and n, so a run that was resumed draws what it would have drawn. */
#include "cli.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 8, LENGTH = 128, AXES = DW_MAX_RANK, NAME = 128 };

/* An input of the model: its name and type. */
typedef struct input {
    char name[NAME], format[16];
    int rank;
    int64_t dims[AXES];          /* -1: a symbol, */
    char symbols[AXES][NAME];    /* which has this name, where it is one alone */
} input;

typedef enum source { SOURCE_BYTES, SOURCE_IDS, SOURCE_EXAMPLES } source;

/* Where batches come from, and the batch of now. All arrays are malloc's. */
typedef struct feed {
    const cli *cli;
    source source;
    unsigned char *bytes;        /* of a text */
    dw_tensors *tensors;
    dw_tensor ids;               /* one axis of integers */
    int64_t count;               /* of bytes, ids or examples */
    int input_count, ids_input, labels_input;   /* labels_input -1: none */
    input *inputs;
    int shifted;                 /* labels are one further than ids */
    int64_t batch, length;
    uint64_t seed;
    dw_named_tensor *given;      /* the batch, by input */
    int given_count;
    char dims[1024];             /* its sizes, "b=8,s=256" */
} feed;

typedef struct plan {
    long long steps, warmup, save_every, accumulate;
    double rate;
    enum { CONSTANT, LINEAR, COSINE } schedule;
} plan;

/* ---- draws ---- */

/* A number below count, the same for the same seed and place: splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014). */
static int64_t draw(uint64_t seed, uint64_t place, int64_t count) {
    uint64_t z = seed * UINT64_C(0xd1342543de82ef95) + (place + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (int64_t)((z ^ z >> 31) % (uint64_t)count);
}

/* ---- inputs of the model ---- */

/* "i64[b,128]" */
static int read_type(const char *type, input *in) {
    const char *at = strchr(type, '[');
    if (at == NULL || at - type >= (long)sizeof in->format) return 0;
    memcpy(in->format, type, (size_t)(at - type));
    in->format[at - type] = '\0';
    for (at++; *at != ']' && *at != '\0';) {
        char *end;
        if (in->rank == AXES) return 0;
        const long long size = strtoll(at, &end, 10);
        const int is_number = end != at && (*end == ',' || *end == ']');
        const size_t length = strcspn(at, ",]");
        if (!is_number && length < NAME && strcspn(at, "+-*/%()") >= length) memcpy(in->symbols[in->rank], at, length);
        in->dims[in->rank++] = is_number ? size : -1;
        at += length;
        if (*at == ',') at++;
    }
    return 1;
}

/* Those that data are for: what a graph draws by is the trainer's. */
static int read_inputs(feed *feed, const dw_graph *graph) {
    const int count = dw_graph_input_count(graph);
    feed->inputs = calloc((size_t)count + 1, sizeof *feed->inputs);
    if (feed->inputs == NULL) return cli_no_memory();
    for (int i = 0; i < count; i++) {
        const char *name;
        char type[512];
        input *in = &feed->inputs[feed->input_count];
        if (dw_graph_input_at(graph, i, &name, type, sizeof type) != DW_OK) return cli_fail(feed->cli);
        if (strcmp(name, DW_RANDOM_DRAW) == 0) continue;
        if (strlen(name) >= NAME || !read_type(type, in)) return cli_refuse("input %s of type %s is not one that batches are made for", name, type);
        snprintf(in->name, NAME, "%s", name);
        feed->input_count++;
    }
    return -1;
}

static int is_integer(const char *format) { return strcmp(format, "i64") == 0 || strcmp(format, "i32") == 0; }

static int is_for_labels(const char *name) {
    static const char *const names[] = {"labels", "label", "targets", "target"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) return 1;
    return 0;
}

/* Of a model of token ids: the input for them, and that for labels. */
static int find_ids(feed *feed) {
    const cli *cli = feed->cli;
    feed->ids_input = feed->labels_input = -1;
    for (int i = 0; i < feed->input_count; i++) {
        const input *in = &feed->inputs[i];
        if (!is_integer(in->format) || in->rank != 2) return cli_refuse("input %s is not made of text: give --data as safetensors with a tensor for each input, examples along axis 0", in->name);
        int *const role = is_for_labels(in->name) ? &feed->labels_input : &feed->ids_input;
        if (*role >= 0) return cli_refuse("inputs %s and %s: which of them has the ids is not known; give --data as safetensors with a tensor for each input", feed->inputs[*role].name, in->name);
        *role = i;
    }
    if (feed->ids_input < 0) return cli_refuse("%s has no input for token ids [batch,length]", cli->file);
    const int next_token = cli->loss != NULL && strcmp(cli->loss, "next-token") == 0;
    if (feed->labels_input >= 0 && cli->labels == NULL && !next_token)
        return cli_refuse("the model reads %s beside %s: --labels same if it shifts them itself, as models of transformers do, or --labels next if the label of a token is the one behind it",
                          feed->inputs[feed->labels_input].name, feed->inputs[feed->ids_input].name);
    if (cli->labels != NULL && strcmp(cli->labels, "same") != 0 && strcmp(cli->labels, "next") != 0) return cli_refuse("--labels %s: expected same or next", cli->labels);
    if (cli->labels != NULL && feed->labels_input < 0) return cli_refuse("--labels: the model has no input for labels");
    feed->shifted = feed->labels_input < 0 || cli->labels == NULL || strcmp(cli->labels, "next") == 0;
    return -1;
}

/* ---- data ---- */

static int read_bytes(feed *feed, const char *path) {
    FILE *file = fopen(path, "rb");
    size_t room = 1 << 16, used = 0, got;
    if (file == NULL) return cli_refuse("--data %s: cannot be opened", path);
    feed->bytes = malloc(room);
    while (feed->bytes != NULL && (got = fread(feed->bytes + used, 1, room - used, file)) > 0) {
        used += got;
        if (used < room) continue;
        unsigned char *grown = room < SIZE_MAX / 2 ? realloc(feed->bytes, room * 2) : NULL;
        if (grown == NULL) {
            fclose(file);
            return cli_no_memory();
        }
        feed->bytes = grown;
        room *= 2;
    }
    const int failed = ferror(file);
    fclose(file);
    if (feed->bytes == NULL) return cli_no_memory();
    if (failed) return cli_refuse("--data %s: cannot be read", path);
    feed->count = (int64_t)used;
    feed->source = SOURCE_BYTES;
    return -1;
}

/* Safetensors begin with the length of a JSON object, and that. */
static int is_tensors(const char *path) {
    unsigned char first[9];
    FILE *file = fopen(path, "rb");
    const int is = file != NULL && fread(first, 1, sizeof first, file) == sizeof first && first[8] == '{' && first[7] == 0 && first[6] == 0 && first[5] == 0;
    if (file != NULL) fclose(file);
    return is;
}

static int is_id_format(dw_format format) { return is_integer(dw_format_name(format)) || format == dw_format_find("i16") || format == dw_format_find("u8"); }

/* The tensor for an input: the batch is made of its rows. */
static int check_examples(feed *feed) {
    feed->source = SOURCE_EXAMPLES;
    feed->count = -1;
    for (int i = 0; i < feed->input_count; i++) {
        const input *in = &feed->inputs[i];
        int at = -1;
        for (int k = 0; k < dw_tensors_count(feed->tensors); k++)
            if (strcmp(dw_tensors_at(feed->tensors, k).name, in->name) == 0) at = k;
        if (at < 0) return cli_refuse("--data %s: has no tensor for input %s", feed->cli->data, in->name);
        const dw_tensor tensor = dw_tensors_at(feed->tensors, at).tensor;
        if (strcmp(dw_format_name(tensor.format), in->format) != 0) return cli_refuse("--data %s: tensor %s is %s, the input is %s", feed->cli->data, in->name, dw_format_name(tensor.format), in->format);
        if (tensor.rank != in->rank) return cli_refuse("--data %s: tensor %s has %d axes, the input has %d", feed->cli->data, in->name, tensor.rank, in->rank);
        for (int axis = 1; axis < in->rank; axis++)
            if (in->dims[axis] >= 0 && in->dims[axis] != tensor.dims[axis])
                return cli_refuse("--data %s: axis %d of tensor %s is %lld, of the input it is %lld", feed->cli->data, axis, in->name, (long long)tensor.dims[axis], (long long)in->dims[axis]);
        if (in->rank == 0) continue;
        if (feed->count >= 0 && feed->count != tensor.dims[0]) return cli_refuse("--data %s: tensor %s has %lld examples along axis 0, another has %lld", feed->cli->data, in->name, (long long)tensor.dims[0], (long long)feed->count);
        feed->count = tensor.dims[0];
    }
    if (feed->count < 1) return cli_refuse("--data %s: there is no example", feed->cli->data);
    return -1;
}

static int read_tensors(feed *feed, const char *path) {
    if (dw_tensors_open(feed->cli->context, path, &feed->tensors) != DW_OK) return cli_fail(feed->cli);
    if (dw_tensors_count(feed->tensors) == 1) {
        const dw_named_tensor only = dw_tensors_at(feed->tensors, 0);
        if (only.tensor.rank == 1 && is_id_format(only.tensor.format) && (feed->input_count != 1 || feed->inputs[0].rank != 1)) {
            feed->source = SOURCE_IDS;
            feed->ids = only.tensor;
            feed->count = only.tensor.dims[0];
            return -1;
        }
    }
    return check_examples(feed);
}

/* A size that the model has, or that was asked for. */
static int take_size(const char *option, const char *value, int64_t own, int64_t usual, int64_t *size) {
    long long asked;
    *size = own >= 0 ? own : usual;
    if (value == NULL) return -1;
    if (!cli_integer(option, value, 1, INT32_MAX, &asked)) return CLI_USAGE;
    if (own >= 0 && asked != own) return cli_refuse("--%s %s: the model was exported for %lld", option, value, (long long)own);
    *size = asked;
    return -1;
}

static int make_batch(feed *feed) {
    feed->given = calloc((size_t)feed->input_count + 2, sizeof *feed->given);
    if (feed->given == NULL) return cli_no_memory();
    feed->given_count = feed->input_count;
    for (int i = 0; i < feed->input_count; i++) {
        const input *in = &feed->inputs[i];
        dw_tensor *to = &feed->given[i].tensor;
        feed->given[i].name = in->name;
        to->format = dw_format_find(in->format);
        to->rank = in->rank;
        for (int axis = 0; axis < in->rank; axis++) to->dims[axis] = in->dims[axis];
    }
    if (feed->source != SOURCE_EXAMPLES && feed->labels_input < 0 && feed->cli->loss != NULL && strcmp(feed->cli->loss, "next-token") == 0) {
        feed->labels_input = feed->given_count++;
        feed->given[feed->labels_input] = (dw_named_tensor){"labels", {.format = dw_format_find("i64"), .rank = 2}};
    }
    for (int i = 0; i < feed->given_count; i++) {
        dw_tensor *to = &feed->given[i].tensor;
        uint64_t bytes = 0;
        for (int k = 0; feed->source == SOURCE_EXAMPLES && k < dw_tensors_count(feed->tensors); k++) {
            const dw_named_tensor from = dw_tensors_at(feed->tensors, k);
            if (strcmp(from.name, feed->given[i].name) == 0) *to = from.tensor;
        }
        if (to->rank > 0) to->dims[0] = feed->batch;
        if (feed->source != SOURCE_EXAMPLES) to->dims[1] = feed->length;
        int64_t stride = 1;
        for (int axis = to->rank - 1; axis >= 0; axis--) {
            to->strides[axis] = stride;
            stride *= to->dims[axis];
        }
        if (dw_tensor_bytes(feed->cli->context, to, &bytes) != DW_OK) return cli_fail(feed->cli);
        to->data = malloc((size_t)bytes + 1);
        if (to->data == NULL) return cli_no_memory();
    }
    return -1;
}

/* What the trainer plans for. A size whose name is none alone, or that does not fit, keeps its usual one. */
static void name_sizes(feed *feed) {
    size_t used = 0;
    for (int i = 0; i < feed->input_count; i++)
        for (int axis = 0; axis < feed->inputs[i].rank; axis++) {
            char words[NAME + 32];
            const char *symbol = feed->inputs[i].symbols[axis];
            if (feed->inputs[i].dims[axis] >= 0 || symbol[0] == '\0') continue;
            snprintf(words, sizeof words, "%s%s=%lld", used > 0 ? "," : "", symbol, (long long)feed->given[i].tensor.dims[axis]);
            if (used + strlen(words) >= sizeof feed->dims) return;
            used += (size_t)snprintf(feed->dims + used, sizeof feed->dims - used, "%s", words);
        }
}

static int open_feed(feed *feed, const dw_graph *graph) {
    const cli *cli = feed->cli;
    int code = read_inputs(feed, graph);
    if (code < 0) code = is_tensors(cli->data) ? read_tensors(feed, cli->data) : read_bytes(feed, cli->data);
    if (code < 0 && feed->source != SOURCE_EXAMPLES) code = find_ids(feed);
    if (code >= 0) return code;
    const input *first = &feed->inputs[feed->source == SOURCE_EXAMPLES ? 0 : feed->ids_input];
    code = take_size("batch", cli->batch, first->rank > 0 ? first->dims[0] : -1, BATCH, &feed->batch);
    if (code < 0 && feed->source != SOURCE_EXAMPLES) code = take_size("length", cli->length, first->dims[1], LENGTH, &feed->length);
    if (code < 0 && feed->source == SOURCE_EXAMPLES && cli->length != NULL) code = cli_refuse("--length is for text and ids; the examples of --data have theirs");
    if (code < 0 && feed->source != SOURCE_EXAMPLES && feed->count < feed->length + 1)
        code = cli_refuse("--data %s: has %lld tokens, a row needs %lld and the one behind them", cli->data, (long long)feed->count, (long long)feed->length);
    if (code < 0) code = make_batch(feed);
    if (code < 0) name_sizes(feed);
    return code;
}

static void close_feed(feed *feed) {
    for (int i = 0; feed->given != NULL && i < feed->given_count; i++) free(feed->given[i].tensor.data);
    free(feed->given);
    free(feed->inputs);
    free(feed->bytes);
    dw_tensors_close(feed->tensors);
}

static int64_t token_at(const feed *feed, int64_t at) {
    if (feed->source == SOURCE_BYTES) return feed->bytes[at];
    const void *data = feed->ids.data;
    switch (dw_format_bits(feed->ids.format)) {
    case 8: return ((const uint8_t *)data)[at];
    case 16: return ((const int16_t *)data)[at];
    case 32: return ((const int32_t *)data)[at];
    default: return ((const int64_t *)data)[at];
    }
}

static void put_token(const dw_tensor *to, int64_t at, int64_t id) {
    if (dw_format_bits(to->format) == 32) ((int32_t *)to->data)[at] = (int32_t)id;
    else ((int64_t *)to->data)[at] = id;
}

/* Rows of tokens from anywhere in the stream. */
static void fill_tokens(feed *feed, uint64_t number) {
    const dw_tensor *ids = &feed->given[feed->ids_input].tensor, *labels = feed->labels_input >= 0 ? &feed->given[feed->labels_input].tensor : NULL;
    for (int64_t row = 0; row < feed->batch; row++) {
        const int64_t from = draw(feed->seed, number * (uint64_t)feed->batch + (uint64_t)row, feed->count - feed->length);
        for (int64_t i = 0; i < feed->length; i++) {
            put_token(ids, row * feed->length + i, token_at(feed, from + i));
            if (labels != NULL) put_token(labels, row * feed->length + i, token_at(feed, from + i + feed->shifted));
        }
    }
}

/* Examples from anywhere in the tensors: the same ones of each input. */
static void fill_examples(feed *feed, uint64_t number) {
    for (int i = 0; i < feed->given_count; i++) {
        const dw_tensor *to = &feed->given[i].tensor;
        dw_tensor from = {0};
        size_t bytes = (size_t)dw_format_bits(to->format) / 8;
        for (int k = 0; k < dw_tensors_count(feed->tensors); k++)
            if (strcmp(dw_tensors_at(feed->tensors, k).name, feed->given[i].name) == 0) from = dw_tensors_at(feed->tensors, k).tensor;
        for (int axis = 1; axis < to->rank; axis++) bytes *= (size_t)to->dims[axis];
        for (int64_t row = 0; row < (to->rank > 0 ? feed->batch : 1); row++) {
            const int64_t example = to->rank > 0 ? draw(feed->seed, number * (uint64_t)feed->batch + (uint64_t)row, feed->count) : 0;
            memcpy((char *)to->data + (size_t)row * bytes, (const char *)from.data + (size_t)example * bytes, bytes);
        }
    }
}

static void fill(feed *feed, int64_t number) {
    if (feed->source == SOURCE_EXAMPLES) fill_examples(feed, (uint64_t)number);
    else fill_tokens(feed, (uint64_t)number);
}

/* ---- rates ---- */

static int read_plan(const cli *cli, plan *plan) {
    *plan = (struct plan){.accumulate = 1};
    if (cli->data == NULL || cli->steps == NULL || cli->rate == NULL) return cli_refuse("train needs --data FILE, --steps N and --rate R");
    if (!cli_integer("steps", cli->steps, 1, INT64_MAX / 4, &plan->steps) || !cli_real("rate", cli->rate, 1e6, &plan->rate)) return CLI_USAGE;
    if (cli->warmup != NULL && !cli_integer("warmup", cli->warmup, 0, plan->steps, &plan->warmup)) return CLI_USAGE;
    if (cli->accumulate != NULL && !cli_integer("accumulate", cli->accumulate, 1, 1 << 20, &plan->accumulate)) return CLI_USAGE;
    if (cli->save_every != NULL && !cli_integer("save-every", cli->save_every, 1, INT64_MAX / 4, &plan->save_every)) return CLI_USAGE;
    if (cli->save_every != NULL && cli->save == NULL) return cli_refuse("--save-every needs --save FILE");
    if (cli->schedule == NULL || strcmp(cli->schedule, "constant") == 0) return -1;
    if (strcmp(cli->schedule, "linear") == 0) plan->schedule = LINEAR;
    else if (strcmp(cli->schedule, "cosine") == 0) plan->schedule = COSINE;
    else return cli_refuse("--schedule %s: expected constant, linear or cosine", cli->schedule);
    return -1;
}

/* Of the step behind so many. */
static double rate_at(const plan *plan, int64_t done) {
    static const double pi = 3.14159265358979323846, least = 0.01;
    if (done < plan->warmup) return plan->rate * (double)(done + 1) / (double)plan->warmup;
    const double left = plan->steps > plan->warmup ? (double)(plan->steps - done) / (double)(plan->steps - plan->warmup) : 1;
    if (plan->schedule == LINEAR) return plan->rate * left;
    return plan->schedule == COSINE ? plan->rate * (least + (1 - least) * 0.5 * (1 - cos(pi * left))) : plan->rate;
}

/* ---- the run ---- */

typedef struct progress {
    const cli *cli;
    int terminal;
    double start, shown;         /* seconds */
    int64_t from;                /* steps that were done before */
    double sum;                  /* of losses since the last line, */
    int64_t counted, skipped;
} progress;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void print_number(const char *name, double value) {
    if (isfinite(value)) printf(", \"%s\": %.9g", name, value);
    else printf(", \"%s\": null", name);
}

/* A line for each step as JSON; on a terminal one line that changes; else twenty lines. */
static void show(progress *p, const plan *plan, int64_t done, const dw_train_result *result, double rate) {
    const double now = seconds();
    if (p->cli->json != NULL) {
        printf("{\"step\": %lld", (long long)done);
        print_number("loss", result->mean_loss);
        print_number("norm", result->norm);
        print_number("rate", rate);
        printf(", \"skipped\": %s, \"seconds\": %.3f}\n", result->skipped ? "true" : "false", now - p->start);
        fflush(stdout);
        return;
    }
    p->sum += result->mean_loss;
    p->counted++;
    p->skipped += result->skipped;
    const long long every = plan->steps >= 20 ? plan->steps / 20 : 1;
    const int ends = done == plan->steps || (!p->terminal && done % every == 0);
    if (!ends && !(p->terminal && now - p->shown > 0.2)) return;
    const double left = (now - p->start) / (double)(done - p->from) * (double)(plan->steps - done);
    printf("%sstep %lld/%lld  loss %.4f  norm %.3g  rate %.3g  %.3g s a step%s", p->terminal ? "\r\033[K" : "", (long long)done, plan->steps, p->sum / (double)p->counted, result->norm, rate,
           (now - p->start) / (double)(done - p->from), p->skipped > 0 ? "  skipped" : "");
    if (p->skipped > 0) printf(" %lld", (long long)p->skipped);
    if (p->terminal && done < plan->steps) printf("  %.0f s left", left);
    if (!p->terminal || done == plan->steps) putchar('\n');
    fflush(stdout);
    p->shown = now;
    p->sum = 0;
    p->counted = 0;
}

static int save(const cli *cli, dw_trainer *trainer, int64_t place) { return cli->save == NULL || dw_trainer_save(trainer, cli->save, place) == DW_OK ? -1 : cli_fail(cli); }

/* place counts micro-batches. What was skipped is no update, but a step of the plan. */
static int run(const cli *cli, dw_trainer *trainer, feed *feed, const plan *plan, int64_t place) {
    progress progress = {.cli = cli, .terminal = isatty(STDOUT_FILENO), .start = seconds(), .from = place / plan->accumulate};
    int64_t done = progress.from, saved = -1;
    while (done < plan->steps && cli_interrupts() == 0) {
        const double rate = rate_at(plan, done);
        dw_train_result result;
        for (long long i = 0; i < plan->accumulate; i++, place++) {
            fill(feed, place);
            if (dw_trainer_step(trainer, feed->given_count, feed->given, rate, &result) != DW_OK) return cli_fail(cli);
        }
        done++;
        show(&progress, plan, done, &result, rate);
        if (plan->save_every == 0 || done % plan->save_every != 0) continue;
        const int code = save(cli, trainer, place);
        if (code >= 0) return code;
        saved = done;
    }
    int code = saved != done ? save(cli, trainer, place) : -1;
    if (code < 0 && cli->out != NULL && dw_trainer_export(trainer, cli->out) != DW_OK) code = cli_fail(cli);
    if (code >= 0) return code;
    if (done >= plan->steps) return CLI_DONE;
    fprintf(stderr, "%sdeepwell: interrupted after step %lld of %lld%s%s\n", progress.terminal ? "\n" : "", (long long)done, plan->steps, cli->save != NULL ? "; go on with --resume " : "", cli->save != NULL ? cli->save : "");
    return CLI_FAILED;
}

/* ---- the trainer ---- */

int cli_trainer_options(const cli *cli, const dw_model_options *model, dw_trainer_options *options) {
    dw_gradient_options gradients;
    long long accumulate = 1;
    if (cli->accumulate != NULL && !cli_integer("accumulate", cli->accumulate, 1, 1 << 20, &accumulate)) return CLI_USAGE;
    const int code = cli_gradient_options(cli, &gradients);
    if (code >= 0) return code;
    *options = (dw_trainer_options){.loss = cli->loss, .trained = cli->trained, .optimizer = cli->optimizer, .decayed = cli->decayed, .accumulate = (int)accumulate, .recompute = gradients.recompute,
                                    .chunks = gradients.chunks, .precision = model->precision, .policy = model->policy, .device = model->device, .dims = model->dims, .kernels = model->kernels};
    if (cli->clip != NULL && !cli_real("clip", cli->clip, 1e30, &options->clip)) return CLI_USAGE;
    if (cli->not_finite == NULL || strcmp(cli->not_finite, "skip") == 0) return -1;
    if (strcmp(cli->not_finite, "raise") != 0) return cli_refuse("--not-finite %s: expected skip or raise", cli->not_finite);
    options->flags |= DW_TRAINER_RAISE;
    return -1;
}

static int train(cli *cli, const plan *plan, dw_graph *graph, feed *feed) {
    dw_model_options model;
    dw_trainer_options options;
    dw_trainer *trainer = NULL;
    char *policy = NULL;
    int64_t place = 0;
    int code = cli_model_options(cli, &model, &policy);
    if (code < 0 && model.dims == NULL && feed->dims[0] != '\0') model.dims = feed->dims;
    if (code < 0) code = cli_trainer_options(cli, &model, &options);
    if (code < 0) options.seed = feed->seed;
    if (code >= 0) dw_graph_destroy(graph);
    else if (dw_trainer_create(cli->context, graph, &options, &trainer) != DW_OK) code = cli_fail(cli);
    free(policy);
    if (code < 0 && cli->resume != NULL && dw_trainer_resume(trainer, cli->resume, &place) != DW_OK) code = cli_fail(cli);
    if (code < 0 && cli->seed != NULL && dw_trainer_seed(trainer) != feed->seed) code = cli_refuse("--seed %s: the checkpoint's is %" PRIu64 "; leave it out to go on", cli->seed, dw_trainer_seed(trainer));
    feed->seed = code < 0 ? dw_trainer_seed(trainer) : 0;
    if (code < 0 && place % plan->accumulate != 0) code = cli_refuse("--resume %s: was saved behind %lld micro-batches, which are no whole steps of %lld", cli->resume, (long long)place, plan->accumulate);
    if (code < 0) {
        cli_set_patient(1);
        code = run(cli, trainer, feed, plan, place);
    }
    dw_trainer_destroy(trainer);
    return code;
}

int cli_train(cli *cli) {
    plan plan;
    feed feed = {.cli = cli};
    dw_graph *graph = NULL;
    dw_tensors *weights = NULL;
    long long seed = 0;
    int code = read_plan(cli, &plan);
    if (code < 0 && cli->seed != NULL && !cli_integer("seed", cli->seed, 0, INT64_MAX, &seed)) code = CLI_USAGE;
    feed.seed = (uint64_t)seed;
    if (code < 0 && dw_graph_open(cli->context, cli->file, &graph) != DW_OK) code = cli_fail(cli);
    if (code < 0) code = open_feed(&feed, graph);
    if (code < 0 && cli_bind_weights(cli, graph, &weights) != DW_OK) code = cli_fail(cli);
    if (code < 0) code = train(cli, &plan, graph, &feed);   /* which takes the graph over */
    else dw_graph_destroy(graph);
    close_feed(&feed);
    dw_tensors_close(weights);
    return code;
}
