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

/* The ids of one prompt (malloc). */
typedef struct prompt {
    int64_t *ids, count;
} prompt;

static int read_bytes(const cli *cli, const dw_model *model, prompt *prompt) {
    const char *tokenizer = dw_model_note(model, "tokenizer");
    if (tokenizer == NULL) return cli_refuse("%s names no tokenizer: give the prompt as --ids", cli->file);
    if (strcmp(tokenizer, "bytes") != 0)
        return cli_refuse("%s names the tokenizer '%s', which is not built in ('bytes' is): give the prompt as --ids", cli->file, tokenizer);
    prompt->count = (int64_t)strlen(cli->prompt);
    prompt->ids = malloc((size_t)prompt->count * sizeof *prompt->ids + 1);
    for (int64_t i = 0; prompt->ids != NULL && i < prompt->count; i++) prompt->ids[i] = (unsigned char)cli->prompt[i];
    return prompt->ids ? -1 : cli_no_memory();
}

/* The prompts, from each --ids or from --prompt through the model's tokenizer. */
static int read_prompts(const cli *cli, const dw_model *model, prompt *prompts, int *count) {
    *count = 1;
    if (cli->prompt != NULL) return read_bytes(cli, model, prompts);
    for (*count = 0; *count < cli->ids_count; ++*count)
        if (!cli_ids("ids", cli->all_ids[*count], &prompts[*count].ids, &prompts[*count].count)) return CLI_USAGE;
    return -1;
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

static dw_status continue_prompt(const cli *cli, dw_session *session, const prompt *prompt, dw_generate_options *options, int64_t *ids) {
    int64_t made;
    dw_generate_times times;
    printing text = {.prompt = cli->prompt};
    if (cli->prompt != NULL) {
        options->on_token = print_byte;
        options->user = &text;
    }
    dw_status status = dw_session_generate(session, prompt->count, prompt->ids, options, ids, &made, &times);
    for (int64_t i = 0; status == DW_OK && cli->prompt == NULL && i < made; i++) printf("%s%lld", i ? "," : "", (long long)ids[i]);
    if (status == DW_OK && cli->prompt != NULL && !text.begun) fputs(cli->prompt, stdout);
    if (status == DW_OK || text.begun) putchar('\n');
    if (status == DW_OK && cli->verbose != NULL) report_times(&times);
    return status;
}

/* Prompts one after another, in one session with room for the longest. */
static dw_status generate(cli *cli, const dw_model *model, int count, const prompt *prompts, dw_generate_options *options, int64_t *ids) {
    dw_session *session;
    const char *reason;
    char dims[512] = "";
    int64_t longest = 0;
    dw_status status = DW_OK;
    for (int i = 0; i < count; i++) longest = prompts[i].count > longest ? prompts[i].count : longest;
    if (!dw_model_can_generate(model, &reason)) fprintf(stderr, "deepwell: no cached step (%s): every token recomputes the whole sequence\n", reason);
    if (options->input_count > 0) status = dw_model_sizes(model, options->input_count, options->inputs, dims, sizeof dims);
    if (status != DW_OK) return status;
    status = dw_session_create(cli->context, model, &(dw_session_options){.dims = dims, .max_tokens = longest + options->tokens}, &session);
    for (int i = 0; status == DW_OK && i < count; i++) status = continue_prompt(cli, session, &prompts[i], options, ids);
    dw_session_destroy(session);
    return status;
}

/* The inputs besides the prompt are those of --in. */
static dw_status generate_with_inputs(cli *cli, const dw_model *model, int count, const prompt *prompts, dw_generate_options *options, int64_t *ids) {
    dw_tensors *file;
    if (cli->in == NULL) return generate(cli, model, count, prompts, options, ids);
    dw_status status = dw_tensors_open(cli->context, cli->in, &file);
    if (status != DW_OK) return status;
    dw_named_tensor *inputs = cli_inputs(file, &options->input_count);
    options->inputs = inputs;
    status = inputs != NULL ? generate(cli, model, count, prompts, options, ids) : DW_NO_MEMORY;
    free(inputs);
    dw_tensors_close(file);
    return status;
}

int cli_generate(cli *cli) {
    dw_generate_options options = {.tokens = 64};
    prompt prompts[CLI_MOST_PROMPTS] = {{0}};
    int64_t *stop = NULL, *ids = NULL;
    int count = 0;
    dw_model *model = NULL;
    if ((cli->ids != NULL) == (cli->prompt != NULL)) return cli_refuse("generate needs either --prompt TEXT or --ids N,..");
    int code = read_sampling(cli, &options, &stop);
    if (code < 0) code = cli_open(cli, DW_MODEL_GENERATE | DW_MODEL_GENERATE_ONLY, &model);
    if (code < 0) code = read_prompts(cli, model, prompts, &count);
    if (code < 0 && (ids = malloc((size_t)options.tokens * sizeof *ids + 1)) == NULL) code = cli_no_memory();
    if (code < 0) code = generate_with_inputs(cli, model, count, prompts, &options, ids) == DW_OK ? CLI_DONE : cli_fail(cli);
    dw_model_destroy(model);
    for (int i = 0; i < CLI_MOST_PROMPTS; i++) free(prompts[i].ids);
    free(ids);
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
