/* The command bench, and its report. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* An option that may be missing: then *number stays. */
static int read_number(const char *name, const char *value, long long most, long long *number) { return value == NULL || cli_integer(name, value, 1, most, number); }

typedef struct gathered { char *bytes; size_t length, room; int failed; } gathered;

static void gather(void *user, const char *piece, size_t length) {
    gathered *g = user;
    if (g->length + length > g->room) {
        const size_t room = 2 * (g->length + length);
        char *grown = realloc(g->bytes, room);
        if (grown == NULL) g->failed = 1;
        if (grown == NULL) return;
        g->bytes = grown;
        g->room = room;
    }
    memcpy(g->bytes + g->length, piece, length);
    g->length += length;
}

static int print_report(cli *cli, const dw_model *model, const dw_report_options *options, const dw_report_words *words) {
    gathered facts = {0};
    dw_status status = dw_report(cli->context, model, options, 0, NULL, cli->json != NULL ? cli_print : gather, cli->json != NULL ? NULL : &facts);
    int code = status == DW_OK ? CLI_DONE : cli_fail(cli);
    if (code == CLI_DONE && facts.failed) code = cli_no_memory();
    if (code == CLI_DONE && cli->json == NULL && dw_report_print(cli->context, facts.bytes, facts.length, words, cli_print, NULL) != DW_OK) code = cli_fail(cli);
    free(facts.bytes);
    return code;
}

static int report(cli *cli, long long prefill, long long repeat) {
    dw_model *model;
    dw_report_words words = {.all = cli->all != NULL};
    long long texts = 0, keys = 0, lines = 0;
    if (!read_number("texts", cli->texts, 4096, &texts) || !read_number("keys", cli->keys, 1 << 24, &keys) || !read_number("lines", cli->lines, 100000, &lines)) return CLI_USAGE;
    words.lines = (int)lines;
    int code = cli_open(cli, DW_MODEL_GENERATE, &model);
    if (code >= 0) return code;
    const dw_report_options options = {.dims = cli->dim, .prefill = prefill, .keys = keys, .texts = texts, .repeat = (int)repeat};
    code = print_report(cli, model, &options, &words);
    dw_model_destroy(model);
    return code;
}

int cli_bench(cli *cli) {
    dw_model_options model_options;
    long long prefill = 0, tokens = 0, repeat = 0;
    char *policy;
    if (!read_number("prefill", cli->prefill, 1 << 24, &prefill) || !read_number("tokens", cli->tokens, 1 << 24, &tokens) || !read_number("repeat", cli->repeat, 100000, &repeat)) return CLI_USAGE;
    if (cli->report != NULL) return report(cli, prefill, repeat);
    if (cli->texts != NULL || cli->keys != NULL || cli->all != NULL || cli->lines != NULL) return cli_refuse("--texts, --keys, --all and --lines are for --report");
    int code = cli_model_options(cli, &model_options, &policy);
    if (code >= 0) return code;
    const dw_bench_options options = {.prefill = prefill, .tokens = tokens, .repeat = (int)repeat};
    dw_status status = dw_bench(cli->context, cli->file, &model_options, &options, cli->json != NULL, cli_print, NULL);
    free(policy);
    return status == DW_OK ? CLI_DONE : cli_fail(cli);
}
