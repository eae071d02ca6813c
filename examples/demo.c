/* The main job on one model: what the hardware is, what was captured and fused, which kernel runs each layer and why, and what every
 * precision costs and gives. Usage: demo MODEL.pt2 HELDOUT.txt */
#include <deepwell/deepwell.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 512, SCORED = 4096, ERROR_TOKENS = 256, PROMPT = 128, NEW = 160, RUNS = 3, SAMPLE = 60 };
static const char *const precisions[] = {"fp32", "bf16", "fp8", "mxfp8", "mxfp4", "nvfp4"};
enum { PRECISIONS = sizeof precisions / sizeof precisions[0] };

typedef struct row { double perplexity, error, megabytes, prefill, decode; char sample[SAMPLE + 1]; } row;

static void print(void *user, const char *text, size_t length) {
    (void)user;
    fwrite(text, 1, length, stdout);
}

static int64_t *read_bytes(const char *path, int64_t *count) {
    FILE *file = fopen(path, "rb");
    int64_t *ids = malloc(SCORED * sizeof *ids);
    for (*count = 0; file != NULL && ids != NULL && *count < SCORED; ++*count) {
        int byte = getc(file);
        if (byte == EOF) break;
        ids[*count] = byte;
    }
    if (file != NULL) fclose(file);
    return ids;
}

/* Logits of the first ERROR_TOKENS ids; vocabulary is 256: a token is a byte. */
static dw_status logits_of(dw_context *context, const dw_model *model, int64_t *ids, float *logits) {
    dw_session *session;
    dw_named_tensor in = {dw_model_input(model, 0, NULL), {.format = DW_FORMAT_i64, .rank = 2, .dims = {1, ERROR_TOKENS}, .strides = {ERROR_TOKENS, 1}, .data = ids}}, out;
    char sizes[128];
    dw_status status = dw_model_sizes(model, 1, &in, sizes, sizeof sizes);
    if (status == DW_OK) status = dw_session_create(context, model, &(dw_session_options){.dims = sizes}, &session);
    if (status != DW_OK) return status;
    status = dw_session_shapes(session, 1, &in, &out);
    out.tensor.data = logits;
    if (status == DW_OK) status = dw_session_run(session, 1, &in, 1, &out);
    dw_session_destroy(session);
    return status;
}

static double relative_error(const float *x, const float *reference, int64_t count) {
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)x[i] - reference[i]) * ((double)x[i] - reference[i]);
        norm += (double)reference[i] * reference[i];
    }
    return sqrt(difference / norm);
}

static dw_status generate(dw_context *context, const dw_model *model, const int64_t *prompt, row *row) {
    dw_session *session;
    int64_t ids[NEW], made;
    dw_generate_options options = {.tokens = NEW, .temperature = 0.7, .top_k = 20, .seed = 1};
    dw_status status = dw_session_create(context, model, &(dw_session_options){.max_tokens = PROMPT + NEW}, &session);
    if (status != DW_OK) return status;
    row->prefill = row->decode = 1e30;
    for (int i = 0; i < RUNS && status == DW_OK; i++) {   /* the least of RUNS */
        dw_generate_times times;
        status = dw_session_generate(session, PROMPT, prompt, &options, ids, &made, &times);
        if (status != DW_OK) break;
        if (times.prefill_s < row->prefill) row->prefill = times.prefill_s;
        if (times.decode_s < row->decode) row->decode = times.decode_s;
    }
    for (int i = 0; i < SAMPLE && status == DW_OK; i++) row->sample[i] = ids[i] == '\n' ? ' ' : (char)ids[i];
    dw_session_destroy(session);
    return status;
}

static dw_status measure(dw_context *context, const char *file, const char *precision, int explain, int64_t count, int64_t *ids, const float *reference,
                         float *logits, row *row) {
    dw_model *model;
    dw_session *session = NULL;
    double nats = 0;
    dw_status status = dw_model_open(context, file, &(dw_model_options){.precision = precision, .dims = "b=1,s=128", .flags = DW_MODEL_GENERATE}, &model);
    if (status != DW_OK) return status;
    if (explain) status = dw_model_print(model, DW_PRINT_EXPLAIN, 0, print, NULL);
    if (explain && status == DW_OK) status = dw_model_print(model, DW_PRINT_MEMORY, 0, print, NULL);
    row->megabytes = (double)dw_model_weight_bytes(model) / 1e6;
    if (status == DW_OK) status = logits_of(context, model, ids, logits);
    row->error = reference ? relative_error(logits, reference, ERROR_TOKENS * 256) : 0;
    if (status == DW_OK) status = dw_session_create(context, model, &(dw_session_options){.dims = "b=1,s=512"}, &session);
    if (status == DW_OK) status = dw_session_score(session, count, ids, WINDOW, &nats);
    dw_session_destroy(session);
    row->perplexity = exp(nats);
    if (status == DW_OK) status = generate(context, model, ids, row);
    dw_model_destroy(model);
    return status;
}

/* The command lies in the folder above the examples. */
static void print_next(const char *program, const char *file) {
    static const struct { const char *command, *options, *meaning; } next[] = {
        {"generate", "--precision mxfp8 --prompt 'In the beginning' --tokens 80", "text, as it comes"},
        {"check", "--precision nvfp4", "the error of each layer, and of all up to the outputs"},
        {"explain", "--precision nvfp4 --chip b200", "the plan for a GPU, which need not be here"},
        {"bench", "--precision bf16", "times on this machine"},
        {"compile", "--precision mxfp4 --out kjv.dw", "one file with packed weights"},
    };
    const char *name = strrchr(program, '/');
    while (name != NULL && name > program && name[-1] != '/') name--;
    printf("\n== what to try next\n");
    for (size_t i = 0; i < sizeof next / sizeof next[0]; i++) {
        printf("# %s\n", next[i].meaning);
        printf("%.*sdeepwell %s %s %s\n", name != NULL ? (int)(name - program) : 0, program, next[i].command, file, next[i].options);
    }
    printf("# 'deepwell COMMAND --help' tells the rest; from Python: pip install . and examples/pytorch.py\n");
}

int main(int argc, char **argv) {
    dw_context *context;
    static float logits[PRECISIONS][ERROR_TOKENS * 256];
    row rows[PRECISIONS] = {0};
    int64_t count;
    if (argc != 3) return fprintf(stderr, "usage: demo MODEL.pt2 HELDOUT.txt\n"), 2;
    int64_t *ids = read_bytes(argv[2], &count);
    if (ids == NULL || count < WINDOW) return fprintf(stderr, "%s: too short\n", argv[2]), 1;
    if (dw_context_create(NULL, &context) != DW_OK) return 1;

    printf("== hardware\n");
    dw_status status = dw_probe(context, 0, print, NULL);
    printf("\n== pipeline, with mxfp8 as the example\n");
    for (int i = 0; i < PRECISIONS && status == DW_OK; i++)
        status = measure(context, argv[1], precisions[i], strcmp(precisions[i], "mxfp8") == 0, count, ids, i ? logits[0] : NULL, logits[i], &rows[i]);
    if (status != DW_OK) return fprintf(stderr, "demo: %s\n", dw_context_error(context)), 1;

    printf("\n== precisions, on %lld bytes of text that the model has not seen; prompt of %d bytes, %d new ones, %d threads\n", (long long)count, PROMPT, NEW,
           dw_context_threads(context));
    printf("%-6s %10s %12s %9s %14s %13s  %s\n", "", "perplexity", "logits error", "weights", "prefill tok/s", "decode tok/s", "sample");
    for (int i = 0; i < PRECISIONS; i++)
        printf("%-6s %10.4f %12.2e %6.2f MB %14.0f %13.0f  %s\n", precisions[i], rows[i].perplexity, rows[i].error, rows[i].megabytes, PROMPT / rows[i].prefill,
               (NEW - 1) / rows[i].decode, rows[i].sample);
    print_next(argv[0], argv[1]);
    free(ids);
    dw_context_destroy(context);
    return 0;
}
