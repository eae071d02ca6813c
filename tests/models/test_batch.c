/* Several prompts at once on exported models: every text gets the tokens, and at each of them the bits of the logits, that it gets alone; greedy
 * and drawn, with prompts of all lengths, read in small pieces, more of them than the session has rows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "lab/lab.h"
#include "support/support.h"

enum { PROMPTS = 5, ROWS = 3, LONGEST = 23, NEW = 9, ROOM = LONGEST + NEW, CHUNK = 7, MAX_INPUTS = 16 };

static const char *const models[] = {"gpt2", "opt", "llama", "qwen3", "bloom", "falcon_alibi", "gpt_neo", "gemma2", "gemma3", "gpt_oss", "mistral", "mixtral", "qwen3_moe",
                                     "deepseek_v3", "llama_padded", "llama_bf16", "tril_gpt", "t5", "bart", "marian", "whisper",
                                     "llama_static_cache", "pooled_gpt"};

/* What came of one prompt. */
typedef struct record {
    int64_t ids[NEW], made;
    uint64_t logits[NEW];                     /* hashes of their bits */
} record;

typedef struct observed {
    dw_session *session;
    dw_prompt *prompts;
    record *records;
} observed;

/* The logits that a token was chosen from, while they are there. */
static int observe(void *user, int prompt, int64_t id) {
    observed *seen = user;
    const generation *g = seen->session->generation;
    record *record = &seen->records[prompt];
    const size_t bytes = (size_t)g->vocabulary * (size_t)dw_format_bits(g->logits_format) / 8;
    for (int64_t i = 0; i < g->texts; i++) {
        if (g->text[i].serial != (uint64_t)prompt + 1 || g->text[i].picked < 0) continue;
        record->logits[record->made] = base_hash((const char *)g->results[g->output] + (size_t)g->text[i].picked * bytes, bytes, 0);
    }
    record->ids[record->made++] = id;
    return 0;
}

/* What the encoder reads, of other sizes for each prompt. */
static dw_status make_inputs(dw_session *session, arena *arena, int prompt, dw_prompt *result) {
    if (session->prelude.program == NULL) return DW_OK;
    const plan *plan = session->prelude.program->plan;
    dw_named_tensor *inputs;
    int64_t sizes[ENGINE_MAX_SYMBOLS], min, max;
    for (int i = 0; i < dim_symbol_count(plan->graph->dims); i++) {
        dim_symbol_range(plan->graph->dims, i, &min, &max);
        sizes[i] = session->prelude_most[i] - 3 * prompt > min ? session->prelude_most[i] - 3 * prompt : session->prelude_most[i] > 1 ? 2 : 1;
    }
    TRY_NEW(inputs, arena, plan->graph->input_count);
    TRY(lab_random_inputs(arena, plan, sizes, inputs));
    result->inputs = inputs;
    result->input_count = (int)plan->graph->input_count;
    return DW_OK;
}

static dw_status generate(dw_context *context, const dw_model *model, const char *dims, int rows, int64_t chunk, const dw_generate_options *how, int first, int count,
                          record *records) {
    static int64_t ids[PROMPTS][LONGEST], made[PROMPTS][NEW];
    dw_prompt prompts[PROMPTS] = {0};
    arena arena;
    dw_session *session;
    TRY(dw_session_create(context, model, &(dw_session_options){.dims = dims, .max_tokens = ROOM, .rows = rows, .chunk = chunk}, &session));
    arena_init(&arena, context);
    const generation *g = session->generation;
    const bool together = g->mode != GENERATION_STEP || g->texts == rows;
    dw_status status = together ? DW_OK : base_fail(context, DW_INTERNAL, "the step serves %lld texts, not %d", (long long)g->texts, rows);
    for (int i = 0; i < count && status == DW_OK; i++) {
        const int number = first + i;
        prompts[i] = (dw_prompt){.count = number == 0 ? LONGEST : 1 + number * 4, .ids = ids[i], .seed = (uint64_t)number, .made_ids = made[i]};
        for (int64_t k = 0; k < prompts[i].count; k++) ids[i][k] = (int64_t)(num_random((uint64_t)number, (uint64_t)k) % (uint64_t)g->vocabulary);
        status = make_inputs(session, &arena, number, &prompts[i]);
    }
    observed seen = {session, prompts, records};
    dw_generate_options options = *how;
    options.on_prompt_token = observe;
    options.user = &seen;
    if (status == DW_OK) status = dw_session_generate_batch(session, count, prompts, &options, NULL);
    arena_free(&arena);
    dw_session_destroy(session);
    return status;
}

static dw_status compare(dw_context *context, const char *name, const dw_model *model, const dw_generate_options *how) {
    record together[PROMPTS] = {0}, alone;
    const char *dims = NULL;
    TRY(generate(context, model, dims, ROWS, CHUNK, how, 0, PROMPTS, together));
    for (int i = 0; i < PROMPTS; i++) {
        alone = (record){.made = 0};
        TRY(generate(context, model, dims, 1, 0, how, i, 1, &alone));
        if (alone.made != NEW) return base_fail(context, DW_INTERNAL, "%s: prompt %d has %lld tokens", name, i, (long long)alone.made);
        if (memcmp(alone.ids, together[i].ids, sizeof alone.ids) != 0) return base_fail(context, DW_INTERNAL, "%s: prompt %d has other tokens among others", name, i);
        if (memcmp(alone.logits, together[i].logits, sizeof alone.logits) != 0)
            return base_fail(context, DW_INTERNAL, "%s: prompt %d has other logits among others", name, i);
    }
    return DW_OK;
}

static bool check(const char *name, const char *path, const char *precision) {
    test_memory memory = {0};
    dw_context *context = test_context_create(&memory, 2);
    dw_model *model = NULL;
    const dw_generate_options greedy = {.tokens = NEW}, drawn = {.tokens = NEW, .temperature = 1.5, .top_k = 40};
    dw_status status = dw_model_open(context, path, &(dw_model_options){.flags = DW_MODEL_GENERATE_ONLY, .precision = precision}, &model);
    if (status == DW_OK) status = compare(context, name, model, &greedy);
    if (status == DW_OK) status = compare(context, name, model, &drawn);
    if (status != DW_OK) fprintf(stderr, "FAILED %s %s: %s\n", name, precision ? precision : "", dw_context_error(context));
    else printf("%s%s%s: the same alone and among others\n", name, precision ? " " : "", precision ? precision : "");
    dw_model_destroy(model);
    dw_context_destroy(context);
    if (memory.live_count != 0) fprintf(stderr, "FAILED %s: %zu allocations stay live\n", name, memory.live_count);
    return status == DW_OK && memory.live_count == 0;
}

int main(void) {
    enum { SKIPPED = 77 };
    const char *named = getenv("DEEPWELL_FIXTURES"), *folder = named != NULL ? named : TEST_FIXTURES_DIR;
    int count = 0, failed = 0;
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s.pt2", folder, models[i]);
        if (access(path, R_OK) != 0) continue;
        count++;
        failed += !check(models[i], path, NULL);
        if (i < 3) failed += !check(models[i], path, "mxfp8") + !check(models[i], path, "nvfp4");
    }
    printf("%d models, %d failed\n", count, failed);
    if (count == 0) return SKIPPED;
    return failed > 0;
}
