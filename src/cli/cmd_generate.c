/* The command generate: prompts in, tokens out as they come. The one tokenizer known here is "bytes": a token is a byte. */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All that a call works with; the arrays are malloc's. */
typedef struct work {
    const cli *cli;
    int count;
    dw_prompt *prompts;
    int64_t **ids;                  /* each prompt's */
    dw_generate_options options;
    int64_t *stop, *made;           /* made: room for all new tokens */
    dw_named_tensor *inputs, *rows; /* of --in; and the row of each prompt, where it has one for each */
    int front;                      /* the prompt whose line is being printed: the others wait for it */
    int64_t printed;                /* how many of its tokens are out */
} work;

/* ---- prompts ---- */

static int read_bytes(const cli *cli, const dw_model *model, const char *text, int64_t **ids, int64_t *count) {
    const char *tokenizer = dw_model_note(model, "tokenizer");
    if (tokenizer == NULL) return cli_refuse("%s names no tokenizer: give the prompt as --ids", cli->file);
    if (strcmp(tokenizer, "bytes") != 0)
        return cli_refuse("%s names the tokenizer '%s', which is not built in ('bytes' is): give the prompt as --ids", cli->file, tokenizer);
    *count = (int64_t)strlen(text);
    *ids = malloc((size_t)*count * sizeof **ids + 1);
    for (int64_t i = 0; *ids != NULL && i < *count; i++) (*ids)[i] = (unsigned char)text[i];
    return *ids ? -1 : cli_no_memory();
}

/* The prompts, from each --ids or from each --prompt through the model's tokenizer; each has the seed of its number. */
static int read_prompts(const dw_model *model, work *work) {
    const cli *cli = work->cli;
    work->count = cli->prompt_count;
    work->prompts = calloc((size_t)work->count, sizeof *work->prompts);
    work->ids = calloc((size_t)work->count, sizeof *work->ids);
    if (work->prompts == NULL || work->ids == NULL) return cli_no_memory();
    for (int i = 0; i < work->count; i++) {
        dw_prompt *prompt = &work->prompts[i];
        int code = -1;
        if (cli->prompt != NULL) code = read_bytes(cli, model, cli->prompts[i], &work->ids[i], &prompt->count);
        else if (!cli_ids("ids", cli->prompts[i], &work->ids[i], &prompt->count)) code = CLI_USAGE;
        if (code >= 0) return code;
        prompt->ids = work->ids[i];
        prompt->seed = work->options.seed + (uint64_t)i;
    }
    if (work->options.tokens > 0 && (uint64_t)work->count > SIZE_MAX / sizeof *work->made / (uint64_t)work->options.tokens) return cli_no_memory();
    work->made = malloc((size_t)work->count * (size_t)work->options.tokens * sizeof *work->made + 1);
    if (work->made == NULL) return cli_no_memory();
    for (int i = 0; i < work->count; i++) work->prompts[i].made_ids = work->made + (size_t)i * (size_t)work->options.tokens;
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

/* ---- output ---- */

/* The tokens of the line that are there and not out yet. The text of a prompt is printed with its first token, so that a failure prints nothing. */
static void print_new(work *work) {
    const dw_prompt *prompt = &work->prompts[work->front];
    if (work->cli->prompt != NULL && work->printed == 0 && prompt->made > 0) fputs(work->cli->prompts[work->front], stdout);
    for (; work->printed < prompt->made; work->printed++) {
        const long long id = prompt->made_ids[work->printed];
        if (work->cli->prompt != NULL) putchar((int)(id & 0xff));
        else printf("%s%lld", work->printed > 0 ? "," : "", id);
    }
}

static int has_ended(const work *work, const dw_prompt *prompt) {
    if (prompt->made == work->options.tokens) return 1;
    for (int i = 0; i < work->options.stop_count && prompt->made > 0; i++)
        if (prompt->made_ids[prompt->made - 1] == work->options.stop_ids[i]) return 1;
    return 0;
}

static void end_line(work *work) {
    if (work->cli->prompt != NULL && work->printed == 0) fputs(work->cli->prompts[work->front], stdout);
    putchar('\n');
    work->front++;
    work->printed = 0;
}

/* Lines come in the order of the prompts, the first that has not ended token by token. */
static int print_token(void *user, int number, int64_t id) {
    work *work = user;
    if (work->cli->json != NULL) {
        printf("{\"prompt\": %d, \"index\": %lld, \"id\": %lld}\n", number, (long long)work->prompts[number].made - 1, (long long)id);
    } else if (number == work->front) {
        print_new(work);
        while (work->front < work->count && has_ended(work, &work->prompts[work->front])) {
            end_line(work);
            if (work->front < work->count) print_new(work);
        }
    }
    fflush(stdout);
    return ferror(stdout);
}

static void finish_output(work *work, dw_status status) {
    if (work->cli->json != NULL) return;
    if (status != DW_OK && work->front < work->count && work->printed > 0) putchar('\n');
    while (status == DW_OK && work->front < work->count) {
        print_new(work);
        end_line(work);
    }
}

static void report_times(const dw_generate_times *times) {
    fprintf(stderr, "deepwell: prefill %lld tokens in %.1f ms (%.0f tokens/s), %lld new in %.1f ms", (long long)times->prompt_tokens,
            times->prefill_s * 1e3, (double)times->prompt_tokens / times->prefill_s, (long long)times->new_tokens, times->decode_s * 1e3);
    if (times->new_tokens > 1 && times->decode_s > 0) fprintf(stderr, " (%.0f tokens/s)", (double)(times->new_tokens - 1) / times->decode_s);
    fprintf(stderr, "%s\n", times->cached ? "" : "; no cache: every token recomputed the whole sequence");
}

/* ---- generation ---- */

/* All prompts in one session with a row for each. */
static dw_status generate(work *work, cli *cli, const dw_model *model) {
    dw_session *session = NULL;
    dw_generate_times times;
    const char *reason;
    char dims[512] = "";
    int64_t longest = 0;
    dw_status status = DW_OK;
    for (int i = 0; i < work->count; i++) longest = work->prompts[i].count > longest ? work->prompts[i].count : longest;
    if (!dw_model_can_generate(model, &reason) && cli->rank == 0) fprintf(stderr, "deepwell: no cached step (%s): every token recomputes the whole sequence\n", reason);
    const dw_generate_options *options = &work->options;
    if (work->rows != NULL) status = dw_model_sizes(model, options->input_count, work->rows, dims, sizeof dims);
    else if (options->input_count > 0) status = dw_model_sizes(model, options->input_count, options->inputs, dims, sizeof dims);
    if (status != DW_OK) return status;
    status = dw_session_create(cli->context, model, &(dw_session_options){.dims = dims, .max_tokens = longest + options->tokens, .rows = work->count}, &session);
    if (status == DW_OK) status = dw_session_generate_batch(session, work->count, work->prompts, options, &times);
    if (cli->rank == 0) finish_output(work, status);
    if (status == DW_OK && cli->rank == 0 && cli->verbose != NULL) report_times(&times);
    dw_session_destroy(session);
    return status;
}

/* Inputs that have a row for each prompt are cut into them; others are all prompts'. */
static dw_status cut_inputs(work *work) {
    const int inputs = work->options.input_count;
    for (int i = 0; i < inputs; i++)
        if (work->inputs[i].tensor.rank < 1 || work->inputs[i].tensor.dims[0] != work->count) return DW_OK;
    if (work->count < 2) return DW_OK;
    work->rows = malloc((size_t)work->count * (size_t)inputs * sizeof *work->rows);
    if (work->rows == NULL) return DW_NO_MEMORY;
    for (int p = 0; p < work->count; p++) {
        for (int i = 0; i < inputs; i++) {
            dw_named_tensor *row = &work->rows[p * inputs + i];
            *row = work->inputs[i];
            row->tensor.dims[0] = 1;
            row->tensor.data = (char *)row->tensor.data + (size_t)p * (size_t)row->tensor.strides[0] * (size_t)dw_format_bits(row->tensor.format) / 8;
        }
        work->prompts[p].inputs = &work->rows[p * inputs];
        work->prompts[p].input_count = inputs;
    }
    return DW_OK;
}

/* The inputs besides the prompt are those of --in. */
static dw_status generate_with_inputs(work *work, cli *cli, const dw_model *model) {
    dw_tensors *file;
    if (cli->in == NULL) return generate(work, cli, model);
    dw_status status = dw_tensors_open(cli->context, cli->in, &file);
    if (status != DW_OK) return status;
    work->inputs = cli_inputs(file, &work->options.input_count);
    work->options.inputs = work->inputs;
    status = work->inputs != NULL ? cut_inputs(work) : DW_NO_MEMORY;
    if (status == DW_OK) status = generate(work, cli, model);
    dw_tensors_close(file);
    return status;
}

int cli_generate(cli *cli) {
    work work = {.cli = cli, .options = {.tokens = 64, .on_prompt_token = print_token, .user = &work}};
    dw_model *model = NULL;
    if ((cli->ids != NULL) == (cli->prompt != NULL)) return cli_refuse("generate needs either --prompt TEXT or --ids N,..");
    if (cli->rank > 0) work.options.on_prompt_token = NULL;
    int code = read_sampling(cli, &work.options, &work.stop);
    if (code < 0) code = cli_open(cli, DW_MODEL_GENERATE | DW_MODEL_GENERATE_ONLY, &model);
    if (code < 0) code = read_prompts(model, &work);
    if (code < 0) code = generate_with_inputs(&work, cli, model) == DW_OK ? CLI_DONE : cli_fail(cli);
    dw_model_destroy(model);
    for (int i = 0; i < work.count && work.ids != NULL; i++) free(work.ids[i]);
    free(work.ids);
    free(work.prompts);
    free(work.made);
    free(work.stop);
    free(work.inputs);
    free(work.rows);
    return code;
}
