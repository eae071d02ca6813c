/* cuBLASLt: looked up when a device finds it, and asked for products. Which products it is asked for is the rows' business (gemm/library/cublaslt.c). */
#include "kernels/library/cublaslt.h"
#include "kernels/library/symbols.h"

#include <string.h>

/* Scales by row and by block came with it. */
enum { OLDEST = 120900 };

static const library_symbol symbols[] = {
#define CUBLASLT_CALL(returns, name, parameters) {"cublasLt" #name, offsetof(cublaslt, name)},
#include "kernels/library/cublaslt.def"
#undef CUBLASLT_CALL
};

/* ---- loading ---- */

static dw_status fail(dw_context *context, const cublaslt *lt, cublaslt_status status, const char *call) {
    const char *name = lt->GetStatusName(status);
    return base_fail(context, status == CUBLASLT_ALLOC_FAILED ? DW_NO_MEMORY : DW_UNSUPPORTED, "cublasLt%s failed: %s (%d)", call, name ? name : "a status without a name", (int)status);
}

#define LT_TRY(context, lt, call, ...)                                                  \
    do {                                                                                \
        cublaslt_status lt_try_ = (lt)->call(__VA_ARGS__);                              \
        if (lt_try_ != CUBLASLT_OK) return fail((context), (lt), lt_try_, #call);       \
    } while (0)

static void print_version(size_t version, char *words, size_t size) {
    snprintf(words, size, "cuBLASLt %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
}

static dw_status start(dw_context *context, void *loaded, cublaslt *lt) {
    char words[64];
    TRY(library_find_symbols(context, loaded, symbols, COUNT_OF(symbols), lt));
    print_version(lt->GetVersion(), words, sizeof words);
    if (lt->GetVersion() < OLDEST) return base_fail(context, DW_UNSUPPORTED, "it is %s; 12.9 is the oldest that has all scales", words);
    LT_TRY(context, lt, Create, &lt->handle);
    return DW_OK;
}

dw_status cublaslt_open(dw_context *context, void *loaded, void **own) {
    void *memory;
    *own = NULL;
    TRY(base_alloc(context, sizeof(cublaslt), _Alignof(cublaslt), &memory));
    cublaslt *lt = memory;
    *lt = (cublaslt){0};
    dw_status status = start(context, loaded, lt);
    if (status != DW_OK) {
        cublaslt_close(context, lt);
        return status;
    }
    *own = lt;
    return DW_OK;
}

void cublaslt_close(dw_context *context, void *own) {
    cublaslt *lt = own;
    if (lt->handle != NULL) lt->Destroy(lt->handle);
    base_release(context, lt, sizeof *lt, _Alignof(cublaslt));
}

void cublaslt_tell_version(const void *own, char *words, size_t size) { print_version(((const cublaslt *)own)->GetVersion(), words, size); }

/* ---- a product ---- */

/* What a call describes its operands by. */
typedef struct described {
    cublaslt_desc desc;
    cublaslt_layout a, b, d;
    cublaslt_preference preference;
} described;

static void forget(const cublaslt *lt, described *to) {
    if (to->preference != NULL) lt->MatmulPreferenceDestroy(to->preference);
    if (to->d != NULL) lt->MatrixLayoutDestroy(to->d);
    if (to->b != NULL) lt->MatrixLayoutDestroy(to->b);
    if (to->a != NULL) lt->MatrixLayoutDestroy(to->a);
    if (to->desc != NULL) lt->MatmulDescDestroy(to->desc);
}

static dw_status describe_matrix(dw_context *context, const cublaslt *lt, int32_t type, int64_t rows, int64_t cols, int64_t stride, int32_t batches, int64_t batch,
                                 cublaslt_layout *layout) {
    LT_TRY(context, lt, MatrixLayoutCreate, layout, (cublaslt_type)type, (uint64_t)rows, (uint64_t)cols, stride);
    if (batches == 1) return DW_OK;
    LT_TRY(context, lt, MatrixLayoutSetAttribute, *layout, CUBLASLT_LAYOUT_BATCHES, &batches, sizeof batches);
    LT_TRY(context, lt, MatrixLayoutSetAttribute, *layout, CUBLASLT_LAYOUT_BATCH_STRIDE, &batch, sizeof batch);
    return DW_OK;
}

#define SET(attribute, value) LT_TRY(context, lt, MatmulDescSetAttribute, to->desc, attribute, &(value), sizeof(value))

static dw_status describe_scales(dw_context *context, const cublaslt *lt, const cublaslt_product *p, described *to) {
    if (p->scales_a != 0) {
        SET(CUBLASLT_DESC_SCALES_A, p->scales_a);
        SET(CUBLASLT_DESC_SCALE_MODE_A, p->mode_a);
    }
    if (p->scales_b != 0) {
        SET(CUBLASLT_DESC_SCALES_B, p->scales_b);
        SET(CUBLASLT_DESC_SCALE_MODE_B, p->mode_b);
    }
    return DW_OK;
}

static dw_status describe(dw_context *context, const cublaslt *lt, const cublaslt_product *p, described *to) {
    const int64_t m = p->m, n = p->n, k = p->k;
    LT_TRY(context, lt, MatmulDescCreate, &to->desc, CUBLASLT_COMPUTE_F32, CUBLASLT_F32);
    SET(CUBLASLT_DESC_TRANSPOSE_A, p->transpose_a);
    SET(CUBLASLT_DESC_TRANSPOSE_B, p->transpose_b);
    SET(CUBLASLT_DESC_EPILOGUE, p->epilogue);
    if (p->bias != 0) {
        SET(CUBLASLT_DESC_BIAS, p->bias);
        SET(CUBLASLT_DESC_BIAS_TYPE, p->type_bias);
    }
    TRY(describe_scales(context, lt, p, to));
    TRY(describe_matrix(context, lt, p->type, p->transpose_a ? k : m, p->transpose_a ? m : k, p->stride_a, p->batches, p->batch_a, &to->a));
    TRY(describe_matrix(context, lt, p->type, p->transpose_b ? n : k, p->transpose_b ? k : n, p->stride_b, p->batches, p->batch_b, &to->b));
    return describe_matrix(context, lt, p->type_d, m, n, p->stride_d, p->batches, p->batch_d, &to->d);
}

/* The largest power of two, of 256 at most, that divides an address. */
static uint32_t alignment_of(uint64_t address) {
    uint32_t bytes = 256;
    while (address % bytes != 0) bytes /= 2;
    return bytes;
}

static dw_status prefer(dw_context *context, const cublaslt *lt, const cublaslt_product *p, described *to) {
    const uint64_t most = CUBLASLT_WORKSPACE;
    const uint32_t reductions = CUBLASLT_REDUCTION_F32;
    const uint32_t alignments[] = {alignment_of(p->a), alignment_of(p->b), alignment_of(p->c != 0 ? p->c : p->d), alignment_of(p->d)};
    LT_TRY(context, lt, MatmulPreferenceCreate, &to->preference);
    LT_TRY(context, lt, MatmulPreferenceSetAttribute, to->preference, CUBLASLT_PREFER_WORKSPACE_BYTES, &most, sizeof most);
    LT_TRY(context, lt, MatmulPreferenceSetAttribute, to->preference, CUBLASLT_PREFER_REDUCTIONS, &reductions, sizeof reductions);
    for (int i = 0; i < 4; i++)
        LT_TRY(context, lt, MatmulPreferenceSetAttribute, to->preference, (cublaslt_preference_attribute)(CUBLASLT_PREFER_ALIGNMENT_A + i), &alignments[i], sizeof alignments[i]);
    return DW_OK;
}

/* The candidate asked for, or the last: how many there are depends on sizes, and a choice is for a range of them. */
static dw_status find_candidate(dw_context *context, const cublaslt *lt, const cublaslt_product *p, const described *by, cublaslt_candidate *found) {
    cublaslt_candidate candidates[CUBLASLT_CANDIDATES];
    int count = 0, usable = 0;
    cublaslt_status status = lt->MatmulAlgoGetHeuristic(lt->handle, by->desc, by->a, by->b, by->d, by->d, by->preference, CUBLASLT_CANDIDATES, candidates, &count);
    if (status != CUBLASLT_OK && status != CUBLASLT_NOT_SUPPORTED) return fail(context, lt, status, "MatmulAlgoGetHeuristic");
    for (int i = 0; status == CUBLASLT_OK && i < count && i < CUBLASLT_CANDIDATES; i++)
        if (candidates[i].state == CUBLASLT_OK && candidates[i].workspace_bytes <= CUBLASLT_WORKSPACE) candidates[usable++] = candidates[i];
    if (usable == 0)
        return base_fail(context, DW_UNSUPPORTED,
                         "cuBLASLt has nothing for this product (its m, n, k are %lld, %lld, %lld; types %d to %d, epilogue %d): name another kernel, as in "
                         "--kernels matmul=cuda_matmul_plain, or open the device without libraries, cuda:0,libraries=none",
                         (long long)p->m, (long long)p->n, (long long)p->k, p->type, p->type_d, p->epilogue);
    *found = candidates[p->candidate < usable ? p->candidate : usable - 1];
    return DW_OK;
}

static cublaslt_key key_of(const cublaslt_product *p) {
    return (cublaslt_key){{p->m, p->n, p->k, p->stride_a, p->stride_b, p->stride_d, p->batch_a, p->batch_b, p->batch_d},
                          {p->batches, p->transpose_a, p->transpose_b, p->type, p->type_d, p->type_bias, p->mode_a, p->mode_b, p->epilogue, p->candidate},
                          {alignment_of(p->a), alignment_of(p->b), alignment_of(p->c != 0 ? p->c : p->d), alignment_of(p->d)},
                          (p->c != 0) | (uint32_t)(p->bias != 0) << 1 | (uint32_t)(p->scales_a != 0) << 2 | (uint32_t)(p->scales_b != 0) << 3,
                          0};
}

/* What was chosen for such a product before, or is now. */
static dw_status choose(dw_context *context, cublaslt *lt, const cublaslt_product *p, described *by, cublaslt_candidate *chosen) {
    const cublaslt_key key = key_of(p);
    cublaslt_kept *kept = &lt->kept[base_hash(&key, sizeof key, 0) % CUBLASLT_KEPT];
    if (!kept->is_there || memcmp(&kept->key, &key, sizeof key) != 0) {
        TRY(prefer(context, lt, p, by));
        TRY(find_candidate(context, lt, p, by, chosen));
        *kept = (cublaslt_kept){key, *chosen, true};
    }
    *chosen = kept->chosen;
    return DW_OK;
}

static void *at(uint64_t address) { return (void *)(uintptr_t)address; }

static uint64_t align(uint64_t address) { return (address + CUBLASLT_WORKSPACE_ALIGN - 1) / CUBLASLT_WORKSPACE_ALIGN * CUBLASLT_WORKSPACE_ALIGN; }

static dw_status multiply(const kernel_library_call *call, cublaslt *lt, const cublaslt_product *p, described *by) {
    const float alpha = 1, beta = p->c != 0 ? 1 : 0;
    cublaslt_candidate chosen;
    TRY(describe(call->context, lt, p, by));
    TRY(choose(call->context, lt, p, by, &chosen));
    LT_TRY(call->context, lt, Matmul, lt->handle, by->desc, &alpha, at(p->a), by->a, at(p->b), by->b, &beta, at(p->c != 0 ? p->c : p->d), by->d, at(p->d), by->d, &chosen.algorithm,
           at(align(p->workspace)), CUBLASLT_WORKSPACE, call->stream);
    return DW_OK;
}

dw_status cublaslt_enqueue(const kernel_library_call *call) {
    cublaslt *lt = call->own;
    described by = {0};
    dw_status status = multiply(call, lt, call->arguments, &by);
    forget(lt, &by);
    return status;
}
