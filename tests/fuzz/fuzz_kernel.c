/* Fuzzes kernels: the cases of tests/sim/ptx with instructions, operands and launches changed, executed within a small budget. However wrong they are, they end, and by a
 * message where not by themselves. A mutator that changes lines, words, registers and numbers keeps most of them decodable, which changed bytes do not. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/run_kernels.h"
#include "num/num.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t length, size_t room);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t length, size_t room, unsigned seed);

enum { BUDGET = 4000, BUFFER = 1 << 16, MAX_CHANGES = 4, SHARED_LIMIT = 1 << 17 };

/* ---- the mutator ---- */

typedef struct dice { uint64_t seed, counter; } dice;
typedef struct draft { uint8_t *bytes; size_t length, room; dice d; } draft;
typedef struct piece { size_t at, bytes; } piece;

static const char *const patterns[] = {
#define PTX(pattern, types, operands, family, evidence, section, meaning) pattern " " types,
#include "sim/isa/ptx.def"
#undef PTX
};

static size_t pick(draft *t, size_t count) { return count > 0 ? (size_t)(num_random(t->d.seed, t->d.counter++) % count) : 0; }

/* with in place of what stands there. */
static void replace(draft *t, piece old, const uint8_t *with, size_t bytes) {
    if (t->length - old.bytes + bytes > t->room) return;
    uint8_t *copy = malloc(bytes + 1);
    if (copy == NULL) return;
    memcpy(copy, with, bytes);
    memmove(t->bytes + old.at + bytes, t->bytes + old.at + old.bytes, t->length - old.at - old.bytes);
    memcpy(t->bytes + old.at, copy, bytes);
    t->length = t->length - old.bytes + bytes;
    free(copy);
}

/* Some line, its end with it. */
static piece some_line(draft *t) {
    size_t at = pick(t, t->length), end = at;
    while (at > 0 && t->bytes[at - 1] != '\n') at--;
    while (end < t->length && t->bytes[end] != '\n') end++;
    return (piece){at, end - at + (end < t->length)};
}

static bool in_word(uint8_t byte) { return isalnum(byte) || byte == '_' || byte == ':'; }

/* The first word from some place on that begins with the character, and is not the tail of another one; bytes 0: there is none. first '0': a number. */
static piece some_word(draft *t, char first) {
    const size_t begin = pick(t, t->length);
    for (size_t i = 0; i < t->length; i++) {
        const size_t at = (begin + i) % t->length;
        const bool starts = first == '0' ? isdigit(t->bytes[at]) && (at == 0 || (!in_word(t->bytes[at - 1]) && t->bytes[at - 1] != '%' && t->bytes[at - 1] != '.')) : t->bytes[at] == (uint8_t)first;
        if (!starts) continue;
        size_t end = at + 1;
        while (end < t->length && in_word(t->bytes[end])) end++;
        return (piece){at, end - at};
    }
    return (piece){0, 0};
}

static void change_number(draft *t) {
    static const char *const numbers[] = {"0", "1", "2", "3", "7", "8", "15", "16", "24", "31", "32", "33", "63", "64", "65", "96", "127", "128", "255", "256", "512", "1023", "1024", "1040", "4096",
                                          "65535", "65536", "2147483647", "4294967295", "4294967296", "9223372036854775807", "18446744073709551615"};
    const piece old = some_word(t, '0');
    char text[32];
    if (old.bytes == 0 || old.bytes >= sizeof text) return;
    memcpy(text, t->bytes + old.at, old.bytes);
    text[old.bytes] = '\0';
    const unsigned long long value = strtoull(text, NULL, 0);
    const size_t how = pick(t, 8);
    if (how < 4) snprintf(text, sizeof text, "%s", numbers[pick(t, sizeof numbers / sizeof *numbers)]);
    else snprintf(text, sizeof text, "%llu", how == 4 ? value + 1 : how == 5 ? value - 1 : how == 6 ? value ^ 1ull << pick(t, 64) : value * 2);
    replace(t, old, (const uint8_t *)text, strlen(text));
}

/* A register becomes another of its kind, which its first letter mostly tells. */
static void change_register(draft *t) {
    const piece old = some_word(t, '%');
    for (int i = 0; i < 20 && old.bytes > 1; i++) {
        const piece other = some_word(t, '%');
        if (other.bytes < 2 || t->bytes[other.at + 1] != t->bytes[old.at + 1] || other.at == old.at) continue;
        uint8_t name[64];
        if (other.bytes > sizeof name) continue;
        memcpy(name, t->bytes + other.at, other.bytes);
        replace(t, old, name, other.bytes);
        return;
    }
}

/* A modifier becomes another of the text, or of the instructions that there are. */
static void change_modifier(draft *t) {
    const piece old = some_word(t, '.');
    uint8_t word[64] = ".";
    size_t bytes = 1;
    if (old.bytes == 0) return;
    if (pick(t, 2) == 0) {
        const piece other = some_word(t, '.');
        bytes = other.bytes < sizeof word ? other.bytes : sizeof word;
        memcpy(word, t->bytes + other.at, bytes);
    } else {
        const char *pattern = patterns[pick(t, sizeof patterns / sizeof *patterns)];
        size_t at = pick(t, strlen(pattern));
        while (at > 0 && in_word((uint8_t)pattern[at - 1])) at--;
        for (; in_word((uint8_t)pattern[at]) && bytes < sizeof word; at++) word[bytes++] = (uint8_t)pattern[at];
    }
    replace(t, old, word, bytes);
}

static void change_lines(draft *t) {
    const piece line = some_line(t);
    uint8_t copy[512];
    const size_t how = pick(t, 3);
    if (line.bytes > sizeof copy) return;
    memcpy(copy, t->bytes + line.at, line.bytes);
    if (how != 0) replace(t, line, copy, 0);   /* it goes, or moves */
    if (how != 1) replace(t, (piece){some_line(t).at, 0}, copy, line.bytes);
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t length, size_t room, unsigned seed) {
    static void (*const changes[])(draft *t) = {change_number, change_number, change_register, change_modifier, change_lines};
    draft t = {bytes, length, room, {seed, 0}};
    if (length == 0 || pick(&t, 16) == 0) return LLVMFuzzerMutate(bytes, length, room);
    for (size_t left = 1 + pick(&t, MAX_CHANGES); left > 0 && t.length > 0; left--) changes[pick(&t, sizeof changes / sizeof *changes)](&t);
    return t.length;
}

/* ---- the target ---- */

/* Of the line "// launch: grid=2 block=64,2 cluster=2 shared=1024", as tests/sim/tool_ptx.c has it, in bounds that a run of a millisecond has. */
static void read_launch(const char *text, fuzz_launch *launch) {
    const char *line = strstr(text, "// launch:"), *end = line != NULL ? strchr(line, '\n') : NULL, *at;
    const struct { const char *name; uint32_t *values, most; } fields[] = {{"grid=", launch->grid, 4}, {"block=", launch->block, 1024}, {"cluster=", launch->cluster, 16}};
    if (end == NULL) return;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        at = strstr(line, fields[i].name);
        if (at == NULL || at > end) continue;
        unsigned values[3] = {1, 1, 1};
        (void)sscanf(at + strlen(fields[i].name), "%4u,%4u,%4u", &values[0], &values[1], &values[2]);
        for (int k = 0; k < 3; k++) fields[i].values[k] = values[k] <= fields[i].most ? values[k] : fields[i].most;
    }
    at = strstr(line, "shared=");
    if (at != NULL && at < end) launch->dynamic_shared = (size_t)atoi(at + strlen("shared=")) % SHARED_LIMIT;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    const bool strict = length % 3 != 0;   /* without some findings runs go on for longer */
    fuzz_launch launch = {.options = {.seed = length % 5, .budget = BUDGET, .races = strict, .uninitialised = strict, .exit_early = !strict, .phases_unseen = !strict, .loads_done = !strict,
                                      .stores_done = !strict, .lanes_routed = !strict, .registers_by_warp = !strict, .sm_count = 4, .shared_limit = SHARED_LIMIT},
                          .grid = {1, 1, 1}, .block = {32, 1, 1}, .cluster = {1, 1, 1}, .buffer_bytes = BUFFER};
    char *text = malloc(length + 1);
    if (text == NULL) return 0;
    memcpy(text, bytes, length);
    text[length] = '\0';
    read_launch(text, &launch);
    free(text);
    fuzz_run_kernels(bytes, length, &launch);
    return 0;
}
