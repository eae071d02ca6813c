/* A decoder with random weights; see decoder.h. */
#include "support/decoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/session.h"
#include "support/support.h"

enum { NAME = 24, OF_LAYER = 9, OF_MODEL = 3 };   /* tensors */

const decoder_sizes DECODER_SMALL = {.layers = 2, .width = 128, .heads = 2, .shared = 1, .head = 64, .hidden = 256, .vocabulary = 2048, .window = 40};
const decoder_sizes DECODER_LARGE = {.layers = 8, .width = 1024, .heads = 8, .shared = 2, .head = 128, .hidden = 3072, .vocabulary = 8192, .window = 200};

const decoder_format DECODER_FORMAT[DECODER_FORMATS] = {{"bf16", "bf16", 16}, {"fp8", "role:cache=fp8,bf16", 8}};

struct decoder {
    decoder_sizes sizes;
    int count;
    dw_named_tensor *tensors;
    char (*names)[NAME];
};

/* ---- weights ---- */

/* Of this deviation; deviation 0: all ones. */
static void fill(const decoder *d, dw_tensor *tensor, double deviation) {
    static uint16_t numbers[65536];   /* bits 16 at a time pick one */
    const int64_t count = tensor->dims[0] * (tensor->rank > 1 ? tensor->dims[1] : 1);
    uint16_t *to = malloc((size_t)(count + 3) * sizeof *to);
    assert_non_null(to);
    for (int64_t i = 0; i < 65536; i++) num_store(DW_FORMAT_bf16, numbers, i, deviation > 0 ? ((double)i / 32768 - 1) * sqrt(3) * deviation : 1, true);
    for (int64_t i = 0; i < count; i += 4) {
        const uint64_t random = num_random((uint64_t)d->count, (uint64_t)i);
        for (int k = 0; k < 4; k++) to[i + k] = numbers[random >> 16 * k & 0xffff];
    }
    tensor->data = to;
}

/* cols 0: a vector. */
static void add(decoder *d, const char *name, int64_t layer, int64_t rows, int64_t cols, double deviation) {
    dw_named_tensor *made = &d->tensors[d->count];
    snprintf(d->names[d->count], NAME, layer >= 0 ? "%s.%d" : "%s", name, (int)layer);
    *made = (dw_named_tensor){d->names[d->count], {.format = DW_FORMAT_bf16, .rank = cols > 0 ? 2 : 1, .dims = {rows, cols}, .strides = {cols > 0 ? cols : 1, cols > 0}}};
    fill(d, &made->tensor, deviation);
    d->count++;
}

decoder *decoder_create(const decoder_sizes *sizes) {
    const double deep = 1 / sqrt((double)sizes->width);
    decoder *d = calloc(1, sizeof *d);
    assert_non_null(d);
    d->sizes = *sizes;
    d->tensors = calloc((size_t)(sizes->layers * OF_LAYER + OF_MODEL), sizeof *d->tensors);
    d->names = calloc((size_t)(sizes->layers * OF_LAYER + OF_MODEL), sizeof *d->names);
    assert_true(d->tensors != NULL && d->names != NULL);
    add(d, "words", -1, sizes->vocabulary, sizes->width, 1);
    for (int64_t i = 0; i < sizes->layers; i++) {
        add(d, "before", i, sizes->width, 0, 0);
        add(d, "q", i, sizes->heads * sizes->head, sizes->width, deep);
        add(d, "k", i, sizes->shared * sizes->head, sizes->width, deep);
        add(d, "v", i, sizes->shared * sizes->head, sizes->width, deep);
        add(d, "o", i, sizes->width, sizes->heads * sizes->head, deep);
        add(d, "between", i, sizes->width, 0, 0);
        add(d, "gate", i, sizes->hidden, sizes->width, deep);
        add(d, "up", i, sizes->hidden, sizes->width, deep);
        add(d, "down", i, sizes->width, sizes->hidden, 1 / sqrt((double)sizes->hidden));
    }
    add(d, "last", -1, sizes->width, 0, 0);
    add(d, "logits", -1, sizes->vocabulary, sizes->width, 2 * deep);   /* so that several ids are likely */
    return d;
}

void decoder_destroy(decoder *d) {
    for (int i = 0; i < d->count; i++) free(d->tensors[i].tensor.data);
    free(d->tensors);
    free(d->names);
    free(d);
}

const decoder_sizes *decoder_sizes_of(const decoder *d) { return &d->sizes; }

/* ---- the graph ---- */

typedef struct writer { text *text; const decoder_sizes *sizes; int last; } writer;   /* last: the number of the newest value */

BASE_PRINTF(2, 3) static int op(writer *w, const char *format, ...) {
    char words[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    text_printf(w->text, "  %%%d = %s\n", w->last + 1, words);
    return ++w->last;
}

/* [b,s,heads*head] -> [b,heads,s,head] */
static int split_heads(writer *w, int from, int64_t heads) {
    const int split = op(w, "reshape %%%d {shape=[b,s,%lld,%lld]}", from, (long long)heads, (long long)w->sizes->head);
    return op(w, "transpose %%%d {order=[0,2,1,3]}", split);
}

static int turn(writer *w, int from, int cosine, int sine) { return op(w, "rotary %%%d, %%%d, %%%d {width=%lld}", from, cosine, sine, (long long)w->sizes->head); }

static int put_attention(writer *w, int layer, int x, int cosine, int sine) {
    const decoder_sizes *s = w->sizes;
    char window[40] = "";
    const int n = op(w, "rms_norm %%%d, before.%d {eps=1e-05}", x, layer);
    const int q = op(w, "matmul %%%d, q.%d {bt=true}", n, layer), k = op(w, "matmul %%%d, k.%d {bt=true}", n, layer), v = op(w, "matmul %%%d, v.%d {bt=true}", n, layer);
    const int qs = turn(w, split_heads(w, q, s->heads), cosine, sine), ks = turn(w, split_heads(w, k, s->shared), cosine, sine), vs = split_heads(w, v, s->shared);
    if (s->window > 0 && layer == s->layers - 1) snprintf(window, sizeof window, ",window=%lld", (long long)s->window);
    const int a = op(w, "attention %%%d, %%%d, %%%d {scale=%.9g,causal=true%s}", qs, ks, vs, 1 / sqrt((double)s->head), window);
    const int t = op(w, "transpose %%%d {order=[0,2,1,3]}", a), r = op(w, "reshape %%%d {shape=[b,s,%lld]}", t, (long long)(s->heads * s->head));
    const int o = op(w, "matmul %%%d, o.%d {bt=true}", r, layer);
    return op(w, "add %%%d, %%%d", x, o);
}

static int put_mlp(writer *w, int layer, int x) {
    const int n = op(w, "rms_norm %%%d, between.%d {eps=1e-05}", x, layer);
    const int gate = op(w, "matmul %%%d, gate.%d {bt=true}", n, layer), up = op(w, "matmul %%%d, up.%d {bt=true}", n, layer);
    const int gated = op(w, "mul %%%d, %%%d", op(w, "silu %%%d", gate), up);
    const int down = op(w, "matmul %%%d, down.%d {bt=true}", gated, layer);
    return op(w, "add %%%d, %%%d", x, down);
}

/* cos and sin of each place by each pair's frequency: [1,1,s,head]. */
static void put_angles(writer *w, int *cosine, int *sine) {
    const int place = op(w, "cast %%%d {to=f32}", op(w, "iota {length=s,start=0,step=1,to=i64}"));
    const int angle = op(w, "mul %%%d, pace", op(w, "reshape %%%d {shape=[s,1]}", place));
    const int both = op(w, "concat %%%d, %%%d {axis=1}", angle, angle);
    *cosine = op(w, "cast %%%d {to=bf16}", op(w, "cos %%%d", both));
    *sine = op(w, "cast %%%d {to=bf16}", op(w, "sin %%%d", both));
}

static void write_graph(const decoder *d, text *text) {
    writer w = {.text = text, .sizes = &d->sizes};
    int cosine, sine;
    text_printf(text, "graph decoder\n  symbol b 1..64\n  symbol s 1..8192\n  input ids i64[b,s]\n");
    for (int i = 0; i < d->count; i++) {
        const dw_tensor *tensor = &d->tensors[i].tensor;
        text_printf(text, "  param %s bf16[%lld", d->tensors[i].name, (long long)tensor->dims[0]);
        if (tensor->rank > 1) text_printf(text, ",%lld", (long long)tensor->dims[1]);
        text_printf(text, "]\n");
    }
    text_printf(text, "  const pace f32[%lld] = ", (long long)(d->sizes.head / 2));
    for (int64_t i = 0; i < d->sizes.head / 2; i++) text_printf(text, "%s%.9g", i > 0 ? ", " : "", pow(10000, -2.0 * (double)i / (double)d->sizes.head));
    text_printf(text, "\n");
    put_angles(&w, &cosine, &sine);
    int x = op(&w, "take words, ids {axis=0}");
    for (int i = 0; i < d->sizes.layers; i++) x = put_mlp(&w, i, put_attention(&w, i, x, cosine, sine));
    op(&w, "matmul %%%d, logits {bt=true,to=f32}", op(&w, "rms_norm %%%d, last {eps=1e-05}", x));
    text_printf(text, "  output out %%%d\n", w.last);
}

dw_model *decoder_open(dw_context *context, const decoder *d, const dw_model_options *options) {
    text words;
    dw_graph *graph;
    dw_model *model;
    text_init(&words, context);
    write_graph(d, &words);
    assert_ok(context, text_status(&words));
    assert_ok(context, dw_graph_parse(context, "decoder", text_string(&words), words.length, &graph));
    text_free(&words);
    assert_ok(context, dw_graph_bind(graph, d->count, d->tensors));
    assert_ok(context, dw_model_create(context, graph, options, &model));
    return model;
}

/* ---- what is asked ---- */

static int find_format(const char *name) {
    for (int i = 0; i < DECODER_FORMATS; i++)
        if (strcmp(DECODER_FORMAT[i].name, name) == 0) return i;
    return -2;
}

static bool read_one(const char *name, const char *value, const char *counted, decoder_options *o) {
    if (strcmp(name, "device") == 0) o->device = value;
    else if (strcmp(name, counted) == 0) o->count = strtoll(value, NULL, 10);
    else if (strcmp(name, "format") == 0) o->format = find_format(value);
    else if (strcmp(name, "seed") == 0) o->seed = strtoull(value, NULL, 10);
    else if (strcmp(name, "for") == 0) o->seconds = strtod(value, NULL);
    else return false;
    return o->format > -2 && o->count > 0;
}

bool decoder_read_options(int argc, char **argv, const char *counted, decoder_options *o) {
    bool understood = true;
    for (int i = 1; i < argc && understood; i++) {
        if (strcmp(argv[i], "--large") == 0) o->sizes = &DECODER_LARGE;
        else if (strncmp(argv[i], "--", 2) != 0 || i + 1 == argc) understood = false;
        else understood = read_one(argv[i] + 2, argv[i + 1], counted, o), i++;
    }
    if (understood && (argc == 1 || o->device != NULL)) return true;
    fprintf(stderr, "usage: %s [--device D [--%s N] [--large] [--format bf16|fp8] [--seed S] [--for SECONDS]]\n", argv[0], counted);
    return false;
}
