/* cuDNN: looked up when a device finds it, started when a first plan is asked of it; and its plans. Which attentions it is asked for is the row's business (attention/library/cudnn.c), what
 * they look like to it cudnn_graph.c's. */
#include "kernels/library/cudnn.h"
#include "kernels/library/symbols.h"

#include <math.h>
#include <string.h>

/* Of the versions before, some have attentions that are wrong by the notes of their successors. */
enum { OLDEST = 91002, CONFIGS = 16 };

static const library_symbol symbols[] = {
#define CUDNN_CALL(returns, name, parameters) {"cudnn" #name, offsetof(cudnn, name)},
#include "kernels/library/cudnn.def"
#undef CUDNN_CALL
};

/* ---- loading ---- */

static void print_version(size_t version, char *words, size_t size) {
    snprintf(words, size, "cuDNN %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
}

dw_status cudnn_open(dw_context *context, void *loaded, void **own) {
    void *memory;
    *own = NULL;
    TRY(base_alloc(context, sizeof(cudnn), _Alignof(cudnn), &memory));
    cudnn *dnn = memory;
    *dnn = (cudnn){0};
    dw_status status = library_find_symbols(context, loaded, symbols, COUNT_OF(symbols), dnn);
    if (status != DW_OK) {
        base_release(context, dnn, sizeof *dnn, _Alignof(cudnn));
        return status;
    }
    *own = dnn;
    return DW_OK;
}

void cudnn_close(dw_context *context, void *own) {
    cudnn *dnn = own;
    while (dnn->built != NULL) {
        cudnn_built *built = dnn->built;
        dnn->built = built->next;
        dnn->BackendDestroyDescriptor(built->plan);
        base_release(context, built, sizeof *built, _Alignof(cudnn_built));
    }
    if (dnn->handle != NULL) dnn->Destroy(dnn->handle);
    base_release(context, dnn, sizeof *dnn, _Alignof(cudnn));
}

void cudnn_tell_version(const void *own, char *words, size_t size) { print_version(((const cudnn *)own)->GetVersion(), words, size); }

/* ---- plans ---- */

/* What it proposes for a graph, the best first: descriptors that the caller destroys. */
static dw_status propose(dw_context *context, const cudnn *dnn, cudnn_desc graph, cudnn_heuristic mode, cudnn_desc heuristics, cudnn_desc *configs, int *count) {
    static const char what[] = "proposals for an attention";
    int64_t found = 0;
    CUDNN_TRY(context, dnn, what, BackendSetAttribute, heuristics, CUDNN_HEURISTICS_GRAPH, CUDNN_AS_DESC, 1, &graph);
    CUDNN_TRY(context, dnn, what, BackendSetAttribute, heuristics, CUDNN_HEURISTICS_MODE, CUDNN_AS_HEURISTIC, 1, &mode);
    CUDNN_TRY(context, dnn, what, BackendFinalize, heuristics);
    for (; *count < CONFIGS; ++*count) CUDNN_TRY(context, dnn, what, BackendCreateDescriptor, CUDNN_ENGINE_CONFIG, &configs[*count]);
    CUDNN_TRY(context, dnn, what, BackendGetAttribute, heuristics, CUDNN_HEURISTICS_RESULTS, CUDNN_AS_DESC, CONFIGS, &found, configs);
    for (int i = found > 0 ? (int)found : 0; i < *count; i++) dnn->BackendDestroyDescriptor(configs[i]);
    if (found < *count) *count = found > 0 ? (int)found : 0;
    return DW_OK;
}

static dw_status finish_plan(dw_context *context, const cudnn *dnn, cudnn_desc config, cudnn_desc plan, int64_t *workspace_bytes) {
    static const char what[] = "a plan for an attention";
    int64_t count;
    CUDNN_TRY(context, dnn, what, BackendSetAttribute, plan, CUDNN_PLAN_HANDLE, CUDNN_AS_HANDLE, 1, &dnn->handle);
    CUDNN_TRY(context, dnn, what, BackendSetAttribute, plan, CUDNN_PLAN_CONFIG, CUDNN_AS_DESC, 1, &config);
    CUDNN_TRY(context, dnn, what, BackendFinalize, plan);
    CUDNN_TRY(context, dnn, what, BackendGetAttribute, plan, CUDNN_PLAN_WORKSPACE_BYTES, CUDNN_AS_INT64, 1, &count, workspace_bytes);
    if (*workspace_bytes > CUDNN_WORKSPACE)
        return base_fail(context, DW_UNSUPPORTED, "a plan for an attention wants %lld bytes to work in, and is given %d", (long long)*workspace_bytes, CUDNN_WORKSPACE);
    return DW_OK;
}

/* The first proposal that becomes a plan. UNSUPPORTED: none does, and why the last did not. */
static dw_status try_configs(dw_context *context, const cudnn *dnn, cudnn_desc *configs, int count, cudnn_desc *plan, int64_t *workspace_bytes) {
    dw_status status = base_fail(context, DW_UNSUPPORTED, "it proposes nothing");
    for (int i = 0; i < count && status == DW_UNSUPPORTED; i++) {
        CUDNN_TRY(context, dnn, "a plan", BackendCreateDescriptor, CUDNN_PLAN, plan);
        status = finish_plan(context, dnn, configs[i], *plan, workspace_bytes);
        if (status != DW_OK) {
            dnn->BackendDestroyDescriptor(*plan);
            *plan = NULL;
        }
    }
    return status;
}

static dw_status plan_by(dw_context *context, const cudnn *dnn, cudnn_desc graph, cudnn_heuristic mode, cudnn_desc *plan, int64_t *workspace_bytes) {
    cudnn_desc heuristics, configs[CONFIGS];
    int count = 0;
    CUDNN_TRY(context, dnn, "proposals", BackendCreateDescriptor, CUDNN_HEURISTICS, &heuristics);
    dw_status status = propose(context, dnn, graph, mode, heuristics, configs, &count);
    if (status == DW_OK) status = try_configs(context, dnn, configs, count, plan, workspace_bytes);
    for (int i = 0; i < count; i++) dnn->BackendDestroyDescriptor(configs[i]);
    dnn->BackendDestroyDescriptor(heuristics);
    return status;
}

static dw_status make_plan(dw_context *context, const cudnn *dnn, const cudnn_sizes *sizes, cudnn_desc *plan, int64_t *workspace_bytes) {
    cudnn_desc graph;
    *plan = NULL;
    TRY(cudnn_attention_graph(context, dnn, sizes, &graph));
    dw_status status = plan_by(context, dnn, graph, CUDNN_HEURISTIC_A, plan, workspace_bytes);
    if (status == DW_UNSUPPORTED) status = plan_by(context, dnn, graph, CUDNN_HEURISTIC_FALLBACK, plan, workspace_bytes);
    dnn->BackendDestroyDescriptor(graph);
    return status;
}

static cudnn_built *find_built(const cudnn *dnn, const cudnn_sizes *sizes) {
    for (cudnn_built *built = dnn->built; built != NULL; built = built->next)
        if (memcmp(&built->sizes, sizes, sizeof *sizes) == 0) return built;
    return NULL;
}

/* Its version and all else lie in files of hundreds of megabytes, that are loaded when the first call is made: not when a device is opened. */
static dw_status start(dw_context *context, cudnn *dnn) {
    char words[64];
    if (dnn->handle != NULL) return DW_OK;
    print_version(dnn->GetVersion(), words, sizeof words);
    if (dnn->GetVersion() < OLDEST) return base_fail(context, DW_UNSUPPORTED, "it is %s; 9.10.2 is the oldest that is taken", words);
    CUDNN_TRY(context, dnn, "this GPU", Create, &dnn->handle);
    return DW_OK;
}

static dw_status build(dw_context *context, cudnn *dnn, const cudnn_sizes *sizes) {
    void *memory;
    TRY(start(context, dnn));
    TRY(base_alloc(context, sizeof(cudnn_built), _Alignof(cudnn_built), &memory));
    cudnn_built *built = memory;
    *built = (cudnn_built){.next = dnn->built, .sizes = *sizes};
    dw_status status = make_plan(context, dnn, sizes, &built->plan, &built->workspace_bytes);
    if (status != DW_OK) base_release(context, built, sizeof *built, _Alignof(cudnn_built));
    else dnn->built = built;
    return status;
}

static const char *type_name(int32_t type) { return type == CUDNN_BF16 ? "bf16" : "f16"; }

dw_status cudnn_prepare(const kernel_library_call *call) {
    const cudnn_attention *a = call->arguments;
    const cudnn_sizes *z = &a->sizes;
    cudnn *dnn = call->own;
    if (find_built(dnn, z) != NULL) return DW_OK;
    dw_status status = build(call->context, dnn, z);
    if (status == DW_OK) return DW_OK;
    return base_fail_at(call->context, status,
                        "cuDNN %zu has no attention of q %s[%lld,%lld,%lld,%lld] with %lld keys for each of %lld heads, values %lld wide, %s (name another kernel, as in --kernels "
                        "attention=cuda_attention_plain)",
                        dnn->GetVersion(), type_name(z->type), (long long)z->batches, (long long)z->heads, (long long)z->queries, (long long)z->width, (long long)z->keys,
                        (long long)(z->heads / z->shared_heads), (long long)z->value_width, z->windowed ? "windowed" : z->bounded ? "causal" : "without masks");
}

/* ---- the call ---- */

static uint64_t align(uint64_t address) { return (address + CUDNN_ALIGN - 1) / CUDNN_ALIGN * CUDNN_ALIGN; }
static void *at(uint64_t address) { return (void *)(uintptr_t)address; }

static dw_status execute(const kernel_library_call *call, const cudnn_built *built, cudnn_desc pack) {
    static const char what[] = "an attention";
    const cudnn_attention *a = call->arguments;
    const cudnn_sizes *z = &a->sizes;
    const cudnn *dnn = call->own;
    float scale = a->scale, hidden = -INFINITY, window = (float)(z->window - z->shift);
    int32_t shift = (int32_t)z->shift;
    int64_t ids[8] = {CUDNN_ID_Q, CUDNN_ID_K, CUDNN_ID_V, CUDNN_ID_OUT, CUDNN_ID_SCALE};
    void *addresses[8] = {at(a->q), at(a->k), at(a->v), at(a->out), &scale}, *workspace = at(align(a->workspace));
    int count = 5;
    if (z->bounded || z->windowed) ids[count] = CUDNN_ID_HIDDEN, addresses[count++] = &hidden;
    if (z->bounded && z->shift != 0) ids[count] = CUDNN_ID_SHIFT, addresses[count++] = &shift;
    if (z->windowed) ids[count] = CUDNN_ID_WINDOW, addresses[count++] = &window;
    CUDNN_TRY(call->context, dnn, what, BackendSetAttribute, pack, CUDNN_PACK_IDS, CUDNN_AS_INT64, count, ids);
    CUDNN_TRY(call->context, dnn, what, BackendSetAttribute, pack, CUDNN_PACK_ADDRESSES, CUDNN_AS_ADDRESS, count, addresses);
    CUDNN_TRY(call->context, dnn, what, BackendSetAttribute, pack, CUDNN_PACK_WORKSPACE, CUDNN_AS_ADDRESS, 1, &workspace);
    CUDNN_TRY(call->context, dnn, what, BackendFinalize, pack);
    CUDNN_TRY(call->context, dnn, what, SetStream, dnn->handle, call->stream);
    CUDNN_TRY(call->context, dnn, what, BackendExecute, dnn->handle, built->plan, pack);
    return DW_OK;
}

dw_status cudnn_enqueue(const kernel_library_call *call) {
    const cudnn_attention *a = call->arguments;
    const cudnn *dnn = call->own;
    const uint64_t addresses = a->q | a->k | a->v | a->out;
    const cudnn_built *built = find_built(dnn, &a->sizes);
    cudnn_desc pack;
    if (built == NULL) return base_fail(call->context, DW_INTERNAL, "cuDNN: a call without a plan");
    if (addresses % CUDNN_OPERAND_ALIGN != 0)
        return base_fail(call->context, DW_UNSUPPORTED, "operands of cuDNN's attention lie at multiples of %d bytes, and these at %#llx, %#llx, %#llx and %#llx", CUDNN_OPERAND_ALIGN,
                         (unsigned long long)a->q, (unsigned long long)a->k, (unsigned long long)a->v, (unsigned long long)a->out);
    CUDNN_TRY(call->context, dnn, "an attention", BackendCreateDescriptor, CUDNN_VARIANT_PACK, &pack);
    dw_status status = execute(call, built, pack);
    dnn->BackendDestroyDescriptor(pack);
    return status;
}
