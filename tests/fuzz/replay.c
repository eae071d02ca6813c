/* Runs a fuzz target without a fuzzer: on every file of the folders named, and on mutants of each, the same ones in every run.
 *     replay_graph [--mutants N] tests/fuzz/corpus/graph .. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "num/num.h"

enum { MAX_BYTES = 1 << 20, DEFAULT_MUTANTS = 50, MAX_CHANGES = 6 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t length, size_t room);

typedef struct mutant {
    uint8_t *bytes;             /* room for MAX_BYTES */
    size_t length;
    uint64_t seed, counter;
} mutant;

static size_t pick(mutant *m, size_t count) { return count > 0 ? (size_t)(num_random(m->seed, m->counter++) % count) : 0; }

/* length bytes of its own from one place put in at another, in place of removed bytes there. */
static void splice(mutant *m, size_t from, size_t length, size_t to, size_t removed) {
    if (m->length - removed + length > MAX_BYTES) return;
    uint8_t *piece = malloc(length + 1);
    if (piece == NULL) return;
    memcpy(piece, m->bytes + from, length);
    memmove(m->bytes + to + length, m->bytes + to + removed, m->length - to - removed);
    memcpy(m->bytes + to, piece, length);
    m->length = m->length - removed + length;
    free(piece);
}

static void change(mutant *m) {
    static const char interesting[] = "0123456789%,=[]{}()-+*/\"\n .#\\x\xff";
    size_t at = pick(m, m->length);
    switch (pick(m, 5)) {
    case 0: m->bytes[at] = (uint8_t)interesting[pick(m, sizeof interesting - 1)]; break;
    case 1: m->bytes[at] ^= (uint8_t)(1u << pick(m, 8)); break;
    case 2: splice(m, 0, 0, at, 1 + pick(m, m->length - at < 16 ? m->length - at : 16)); break;
    default: {
        size_t from = pick(m, m->length), length = 1 + pick(m, m->length - from < 24 ? m->length - from : 24);
        splice(m, from, length, at, 0);
        break;
    }
    }
}

/* For targets with a mutator of their own, which only a fuzzer calls. */
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t length, size_t room) {
    (void)bytes;
    (void)room;
    return length;
}

static void run_mutants(const uint8_t *bytes, size_t length, int count) {
    mutant m = {.bytes = malloc(MAX_BYTES)};
    if (m.bytes == NULL) exit(1);
    for (int i = 0; i < count && length > 0; i++) {
        memcpy(m.bytes, bytes, length);
        m.length = length;
        m.seed = (uint64_t)i;
        m.counter = 0;
        for (size_t changes = 1 + pick(&m, MAX_CHANGES); changes > 0 && m.length > 0; changes--) change(&m);
        /* in memory of its own size, so that reading past the end is seen */
        uint8_t *exact = malloc(m.length + (m.length == 0));
        if (exact == NULL) exit(1);
        memcpy(exact, m.bytes, m.length);
        LLVMFuzzerTestOneInput(exact, m.length);
        free(exact);
    }
    free(m.bytes);
}

static int run_file(const char *path, int mutants) {
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = malloc(MAX_BYTES);
    if (file == NULL || bytes == NULL) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(1);
    }
    size_t length = fread(bytes, 1, MAX_BYTES, file);
    fclose(file);
    LLVMFuzzerTestOneInput(bytes, length);
    run_mutants(bytes, length, mutants);
    free(bytes);
    return 1;
}

static int run_folder(const char *folder, int mutants) {
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, alphasort), ran = 0;
    if (count < 0) {
        fprintf(stderr, "%s cannot be read\n", folder);
        exit(1);
    }
    for (int i = 0; i < count; i++) {
        char path[1024];
        if (entries[i]->d_name[0] != '.' && snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name) < (int)sizeof path) {
            ran += run_file(path, mutants);
        }
        free(entries[i]);
    }
    free(entries);
    return ran;
}

int main(int argc, char **argv) {
    int first = 1, mutants = DEFAULT_MUTANTS, ran = 0;
    if (argc > 2 && strcmp(argv[1], "--mutants") == 0) {
        mutants = atoi(argv[2]);
        first = 3;
    }
    for (int i = first; i < argc; i++) ran += run_folder(argv[i], mutants);
    printf("%d files, %d mutants of each\n", ran, mutants);
    return ran == 0;
}
