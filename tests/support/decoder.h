/* A decoder with random weights in bf16, of any sizes: what services and calls of generation are tested with where a device takes the kernels that it takes for large models. And what a test program of it is asked by its
 * arguments. */
#ifndef SUPPORT_DECODER_H
#define SUPPORT_DECODER_H

#include <stdbool.h>

#include "deepwell/model.h"

/* Each layer: norm, heads that share keys (shared: how many keys and values there are), turned by their places; norm, two products of which one gates the other, hidden wide. window: keys that the last layer sees; 0: all. */
typedef struct decoder_sizes { int64_t layers, width, heads, shared, head, hidden, vocabulary, window; } decoder_sizes;
/* What a simulator does a few runs of in seconds, and what gives a GPU work. */
extern const decoder_sizes DECODER_SMALL, DECODER_LARGE;

typedef struct decoder decoder;
/* The weights, which models borrow. */
decoder *decoder_create(const decoder_sizes *sizes);
void decoder_destroy(decoder *decoder);
const decoder_sizes *decoder_sizes_of(const decoder *decoder);
dw_model *decoder_open(dw_context *context, const decoder *decoder, const dw_model_options *options);

/* What it is opened in: bf16, or its cache in fp8. */
typedef struct decoder_format { const char *name, *precision; int cache_bits; } decoder_format;
enum { DECODER_FORMATS = 2 };
extern const decoder_format DECODER_FORMAT[DECODER_FORMATS];

/* --device D, --large, --format NAME, --seed S, --for SECONDS, and --<counted> N. */
typedef struct decoder_options {
    const char *device;        /* NULL: nothing was asked, so the tests run as they do for each commit */
    const decoder_sizes *sizes;
    int format;                /* -1: all */
    int64_t count;
    uint64_t seed;
    double seconds;            /* 0: no limit */
} decoder_options;
/* false: the arguments are not understood, which was said. */
bool decoder_read_options(int argc, char **argv, const char *counted, decoder_options *options);

#endif
