/* The commands that make tokens: generate and bench. The one tokenizer known here is "bytes": a token is a byte. */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Text that goes on: the prompt is printed when the first token is there, so that a failure prints nothing. */
typedef struct printing {
    const char *prompt;
    int begun;
} printing;

static int print_byte(void *user, int64_t id) {
    printing *text = user;
    if (!text->begun) fputs(text->prompt, stdout);
    text->begun = 1;
    putchar((int)(id & 0xff));
    fflush(stdout);
    return ferror(stdout);
}

/* The prompt as ids (malloc), from --ids or from --prompt through the model's tokenizer. */
static int read_prompt(const cli *cli, const dw_model *model, int64_t **ids, int64_t *count) {
    if (cli->ids != NULL) return cli_ids("ids", cli->ids, ids, count) ? -1 : CLI_USAGE;
    const char *tokenizer = dw_model_note(model, "tokenizer");
    if (tokenizer == NULL) return cli_refuse("%s names no tokenizer: give the prompt as --ids", cli->file);
    if (strcmp(tokenizer, "bytes") != 0)
        return cli_refuse("%s names the tokenizer '%s', which is not built in ('bytes' is): give the prompt as --ids", cli->file, tokenizer);
    *count = (int64_t)strlen(cli->prompt);
    *ids = malloc((size_t)*count * sizeof **ids + 1);
    for (int64_t i = 0; *ids != NULL && i < *count; i++) (*ids)[i] = (unsigned char)cli->prompt[i];
    return *ids ? -1 : cli_no_memory();
}

static int read_sampling(const cli *cli, dw_generate_options *options, int64_t **stop) {
    long long number;
    int64_t stop_count = 0;
    if (cli->tokens != NULL) {
        if (!cli_integer("tokens", cli->tokens, 0, 1 << 24, &number)) return CLI_USAGE;
        options->tokens = number;
    }
    if (cli->temperature != NULL && !cli_real("temperature", cli->temperature, 1e30, &options->temperature)) return CLI_USAGE;
    if (cli->top_p != NULL && !cli_real("top-p", cli->top_p, 1, &options->top_p)) return CLI_USAGE;
    if (cli->top_k != NULL) {
        if (!cli_integer("top-k", cli->top_k, 0, 1 << 30, &number)) return CLI_USAGE;
        options->top_k = (int)number;
    }
    if (cli->seed != NULL) {
        if (!cli_integer("seed", cli->seed, 0, INT64_MAX, &number)) return CLI_USAGE;
        options->seed = (uint64_t)number;
    }
    if (cli->stop != NULL && !cli_ids("stop", cli->stop, stop, &stop_count)) return CLI_USAGE;
    options->stop_ids = *stop;
    options->stop_count = (int)stop_count;
    return -1;
}

static void report_times(const dw_generate_times *times) {
    fprintf(stderr, "deepwell: prefill %lld tokens in %.1f ms (%.0f tokens/s), %lld new in %.1f ms", (long long)times->prompt_tokens,
            times->prefill_s * 1e3, (double)times->prompt_tokens / times->prefill_s, (long long)times->new_tokens, times->decode_s * 1e3);
    if (times->new_tokens > 1) fprintf(stderr, " (%.0f tokens/s)", (double)(times->new_tokens - 1) / times->decode_s);
    fprintf(stderr, "%s\n", times->cached ? "" : "; no cache: every token recomputed the whole sequence");
}

static dw_status generate(cli *cli, const dw_model *model, int64_t count, const int64_t *prompt, dw_generate_options *options, int64_t *ids) {
    dw_session *session;
    const char *reason;
    int64_t made;
    dw_generate_times times;
    printing text = {.prompt = cli->prompt};
    if (!dw_model_can_generate(model, &reason)) fprintf(stderr, "deepwell: no cached step (%s): every token recomputes the whole sequence\n", reason);
    dw_status status = dw_session_create(cli->context, model, &(dw_session_options){.max_tokens = count + options->tokens}, &session);
    if (status != DW_OK) return status;
    if (cli->prompt != NULL) {
        options->on_token = print_byte;
        options->user = &text;
    }
    status = dw_session_generate(session, count, prompt, options, ids, &made, &times);
    for (int64_t i = 0; status == DW_OK && cli->prompt == NULL && i < made; i++) printf("%s%lld", i ? "," : "", (long long)ids[i]);
    if (status == DW_OK && cli->prompt != NULL && !text.begun) fputs(cli->prompt, stdout);
    if (status == DW_OK || text.begun) putchar('\n');
    if (status == DW_OK && cli->verbose != NULL) report_times(&times);
    dw_session_destroy(session);
    return status;
}

int cli_generate(cli *cli) {
    dw_generate_options options = {.tokens = 64};
    int64_t *prompt = NULL, *stop = NULL, *ids = NULL, count = 0;
    dw_model *model = NULL;
    if ((cli->ids != NULL) == (cli->prompt != NULL)) return cli_refuse("generate needs either --prompt TEXT or --ids N,..");
    int code = read_sampling(cli, &options, &stop);
    if (code < 0) code = cli_open(cli, DW_MODEL_GENERATE | DW_MODEL_GENERATE_ONLY, &model);
    if (code < 0) code = read_prompt(cli, model, &prompt, &count);
    if (code < 0 && (ids = malloc((size_t)options.tokens * sizeof *ids + 1)) == NULL) code = cli_no_memory();
    if (code < 0) code = generate(cli, model, count, prompt, &options, ids) == DW_OK ? CLI_DONE : cli_fail(cli);
    dw_model_destroy(model);
    free(ids);
    free(prompt);
    free(stop);
    return code;
}

int cli_bench(cli *cli) {
    dw_bench_options options = {0};
    dw_model_options model_options;
    long long number;
    char *policy;
    if (cli->prefill != NULL) {
        if (!cli_integer("prefill", cli->prefill, 1, 1 << 24, &number)) return CLI_USAGE;
        options.prefill = number;
    }
    if (cli->tokens != NULL) {
        if (!cli_integer("tokens", cli->tokens, 1, 1 << 24, &number)) return CLI_USAGE;
        options.tokens = number;
    }
    if (cli->repeat != NULL) {
        if (!cli_integer("repeat", cli->repeat, 1, 100000, &number)) return CLI_USAGE;
        options.repeat = (int)number;
    }
    int code = cli_model_options(cli, &model_options, &policy);
    if (code >= 0) return code;
    dw_status status = dw_bench(cli->context, cli->file, &model_options, &options, cli->json != NULL, cli_print, NULL);
    free(policy);
    return status == DW_OK ? CLI_DONE : cli_fail(cli);
}
