/* One line on one kernel: packed, in place, strided, on one and two threads; with operands that it quantises itself, and behind norms that it does itself. */
#include "conform/conform.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/gemm/skinny/skinny.h"

/* The operand whose memory may become result number's, of the row; -1: there is none in this call. */
static int taken_operand(const program *p, const kernel_case *c, const kernel_row *row, int number, const dw_tensor *made, const dw_tensor *const *in) {
    const int slot = kernel_in_place(row, p->ways, made->format, number);
    if (slot < 0 || slot >= c->n_in || in[slot] == NULL) return -1;
    const dw_tensor *operand = in[slot];
    if (operand->format != made->format || operand->rank != made->rank || !op_tensor_is_contiguous(operand) || dw_format_is_block(operand->format)) return -1;
    for (int i = 0; i < operand->rank; i++) {
        if (operand->dims[i] != made->dims[i]) return -1;
    }
    return slot;
}

static void take_over(const program *p, const kernel_case *c, const kernel_row *row, int number, result *r, const dw_tensor **in) {
    const int slot = taken_operand(p, c, row, number, &r->tensor, in);
    if (slot < 0 || !op_tensor_is_contiguous(&r->tensor)) return;
    memcpy(r->memory.bytes, in[slot]->data, r->memory.length);
    in[slot] = &r->tensor;
}

/* FNV-1a over the memory of all results. */
static void print_bits(const kernel_case *c, const kernel_row *row, const chip_caps *level, uint64_t seed, const result *results) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < c->n_out; i++)
        for (size_t k = 0; k < results[i].memory.length; k++) hash = (hash ^ results[i].memory.bytes[k]) * UINT64_C(0x100000001b3);
    printf("%s: %s, %s, seed %d: %016llx\n", c->line, row->name, level->name, (int)seed, (unsigned long long)hash);
}

void report(program *p, const kernel_case *c, const kernel_row *row, const char *level, uint64_t seed, int threads, const char *what) {
    p->failures++;
    print_error("%s:%d: %s\n    %s on %s, seed %d, %d threads: %s\n", c->source, c->number, c->line, p->way != NULL ? p->way->name : row->name, level, (int)seed, threads, what);
}

/* Chips with less shared memory have entries of half of the warps, which do not quantise: their products refuse such runs. */
static bool has_quantising(const chip_caps *chip) { return chip->shared_bytes >= SKINNY_ROOM; }

/* Does a way of the row do it? One leaves it to another: only that none does is an error, on a chip that has all of them. */
static bool is_done_by_some(const kernel_row *row, const kernel_problem *problem, const kernel_run *run, const kernel_plain *plain) {
    const uint32_t accepted = kernel_accepted_ways(row, problem);
    for (int i = 0; i < row->way_count; i++) {
        kernel_run own = *run;
        own.ways = UINT32_C(1) << i;
        if ((accepted & own.ways) != 0 && kernel_takes_plain(row, &own, plain)) return true;
    }
    return false;
}

/* Of a chip that lacks ways an H200 has: what the way does there it does here. */
static bool is_done_on_h200(program *p, const kernel_row *row, const kernel_run *run, const kernel_plain *plain) {
    chip_caps chip;
    kernel_run own = *run;
    assert_int_equal(chip_find(p->context, "h200", 0, &chip), DW_OK);
    own.chip = &chip;
    return kernel_takes_plain(row, &own, plain);
}

static void report_undone(program *p, const kernel_case *c, const kernel_row *row, const kernel_problem *problem, const kernel_run *run, const kernel_plain *plain, uint64_t seed, const char *what) {
    if (!has_quantising(run->chip)) return;
    if (chip_has(run->chip, CHIP_wgmma) ? !is_done_by_some(row, problem, run, plain) : is_done_on_h200(p, row, run, plain)) report(p, c, row, run->chip->name, seed, 1, what);
}

/* The same bits as with the quantised operand, of which made is the result: of a way that can. */
static void run_plain(program *p, const kernel_case *c, const kernel_row *row, const kernel_problem *problem, const kernel_run *blocks, operand *operands, const result *made, uint64_t seed) {
    const dw_tensor *in[KERNEL_CASE_OPERANDS], *out[] = {NULL};
    result own;
    kernel_run run = *blocks;
    if (c->plain == DW_FORMAT_COUNT || p->device == NULL || p->way == NULL || !kernel_way_is(p->way, KERNEL_WAY_QUANTISES)) return;
    memcpy(in, blocks->call.in, (size_t)c->n_in * sizeof *in);
    in[0] = &operands[0].plain;
    result_create(c, 0, 0, &own);
    out[0] = &own.tensor;
    run.call.in = in;
    run.call.out = out;
    run.quantises = true;
    run.quantised = c->types[0].format;
    run.searches = c->plain_searches;
    block workspace = block_create(kernel_workspace(row, &run), 0xff);
    if (!has_quantising(run.chip)) return;
    p->plain_runs++;
    const kernel_plain plain = {.operand = in[0], .quantises = true, .searches = c->plain_searches};
    if (!kernel_takes_plain(row, blocks, &plain)) report_undone(p, c, row, problem, blocks, &plain, seed, "nothing quantises the plain operand");
    else if (run_there(p, row, &run, c->n_in, operands, &own, &workspace) != DW_OK) report(p, c, row, run.chip->name, seed, 1, dw_context_error(p->context));
    else if (memcmp(own.memory.bytes, made->memory.bytes, own.memory.length) != 0) report(p, c, row, run.chip->name, seed, 1, "other bits of the operand that it quantises itself");
    free(workspace.bytes);
    free(own.memory.bytes);
}

/* ---- norms that products and writes of caches do ---- */

/* x, weight and, of layer_norm, bias, those in x's format, or in f32 where rows and pieces of 8 of a row are odd together. */
enum { NORM_OPERANDS = 3 };

static const kernel_row *norm_row(const kernel_case *c) {
    for (int i = 0; i < kernel_count(); i++)
        if (kernel_at(i)->op == c->norm && kernel_is_norm_of_products(kernel_at(i))) return kernel_at(i);
    return NULL;
}

static void make_norm_operands(const kernel_case *c, int index, uint64_t seed, operand *operands) {
    const op_type *shape = &c->types[index];
    for (int i = 0; i < NORM_OPERANDS; i++) {
        dw_tensor whole;
        assert_int_equal(op_tensor_bind(NULL, shape, NULL, NULL, &whole), DW_OK);
        const dw_format format = c->plain != DW_FORMAT_COUNT ? c->plain : shape->format;
        const int64_t cols = whole.dims[whole.rank - 1], count = i == 0 ? op_tensor_count(&whole) : cols;
        const dw_format own = i > 0 && (whole.dims[0] + cols / 8) % 2 != 0 ? DW_FORMAT_f32 : format;
        operands[i] = (operand){.memory = block_create((size_t)count * (size_t)dw_format_bits(own) / 8, 0)};
        op_tensor_init(&operands[i].dense, own, DW_SCALE_plain, i == 0 ? whole.rank : 1, i == 0 ? whole.dims : &cols, operands[i].memory.bytes);
        for (int64_t k = 0; k < count; k++) num_store(own, operands[i].memory.bytes, k, (double)num_random_normal(seed * 64 + 32 + (uint64_t)i, (uint64_t)k) + (i < 2), true);
    }
}

/* By the norm's own kernel, to a result that is created. */
static dw_status run_norm(program *p, const kernel_case *c, const chip_caps *chip, operand *operands, result *normed) {
    const dw_tensor *in[NORM_OPERANDS], *out[] = {&normed->tensor};
    op_attr items[3] = {op_set_real(OP_ATTR_eps, 1e-5)};
    int count = 1;
    if (dw_format_is_block(normed->tensor.format)) items[count++] = op_set_format(OP_ATTR_to, normed->tensor.format);
    if (c->plain_searches) items[count++] = op_set_bool(OP_ATTR_search, true);
    const op_attrs attrs = {count, items};
    block workspace = block_create(0, 0xff);
    for (int i = 0; i < NORM_OPERANDS; i++) in[i] = &operands[i].dense;
    kernel_run run = {.call = {p->context, op_get(c->norm), &attrs, NULL, c->norm == OP_layer_norm ? 3 : 2, in, 1, out, 0, NULL}, .pool = p->pools[0], .chip = chip};
    const dw_status status = run_on_device(p, norm_row(c), &run, run.call.n_in, operands, normed, &workspace);
    free(workspace.bytes);
    return status;
}

/* The same bits as behind the norm's kernel: of a way that does norms. */
static void run_normed(program *p, const kernel_case *c, const kernel_row *row, const kernel_problem *problem, const kernel_run *given, const operand *operands, uint64_t seed) {
    operand norms[NORM_OPERANDS], all[KERNEL_CASE_OPERANDS];
    const dw_tensor *in[KERNEL_CASE_OPERANDS], *out[1];
    result normed, made[2] = {0};
    bool takes = true;
    if (c->norm == OP_COUNT || p->device == NULL || p->way == NULL || !kernel_way_is(p->way, KERNEL_WAY_NORMALISES)) return;
    if (dw_format_is_block(c->types[0].format) && !has_quantising(given->chip)) return;
    make_norm_operands(c, 0, seed, norms);
    kernel_case source = *c;
    source.out[0] = &c->types[0];
    result_create(&source, 0, 0, &normed);
    dw_status status = run_norm(p, c, given->chip, norms, &normed);
    memcpy(in, given->call.in, (size_t)c->n_in * sizeof *in);
    memcpy(all, operands, (size_t)c->n_in * sizeof *all);
    const kernel_norm norm = {{&norms[1].dense, c->norm == OP_layer_norm ? &norms[2].dense : NULL}, c->norm == OP_layer_norm, 1e-5};
    for (int i = 0; i < 2 && status == DW_OK; i++) {
        kernel_run run = *given;
        result_create(c, 0, 0, &made[i]);
        all[0] = i == 0 ? (operand){.dense = normed.tensor, .memory = normed.memory} : norms[0];
        in[0] = &all[0].dense;
        out[0] = &made[i].tensor;
        run.call.in = in;
        run.call.out = out;
        run.constant_in = ~0u;
        if (i == 1) {
            const kernel_plain plain = {.operand = in[0], .quantises = dw_format_is_block(c->types[0].format), .searches = c->plain_searches, .norm = &norm, .saved = 1};
            kernel_run quantised = run;
            const dw_tensor *of_graph[KERNEL_CASE_OPERANDS];
            memcpy(of_graph, in, (size_t)c->n_in * sizeof *in);
            of_graph[0] = &normed.tensor;
            quantised.call.in = of_graph;
            if (!kernel_takes_plain(row, &quantised, &plain)) {       /* with less shared memory fewer rows find room */
                report_undone(p, c, row, problem, &quantised, &plain, seed, "nothing does the norm");
                takes = false;
                break;
            }
            run.norm = &norm;
            run.quantises = plain.quantises;
            run.quantised = c->types[0].format;
            run.searches = plain.searches;
        }
        block workspace = block_create(kernel_workspace(row, &run), 0xff);
        status = run_there(p, row, &run, c->n_in, all, &made[i], &workspace);
        free(workspace.bytes);
    }
    if (status != DW_OK) report(p, c, row, given->chip->name, seed, 1, dw_context_error(p->context));
    else if (takes && memcmp(made[0].memory.bytes, made[1].memory.bytes, made[0].memory.length) != 0) report(p, c, row, given->chip->name, seed, 1, "other bits than behind the norm");
    for (int i = 0; i < 2; i++) free(made[i].memory.bytes);
    free(normed.memory.bytes);
    for (int i = 0; i < NORM_OPERANDS; i++) operand_destroy(&norms[i]);
}

/* The same of a write of caches, whose keys and queries are each what a norm makes. */
static void run_heads(program *p, const kernel_case *c, const kernel_row *row, const kernel_run *given, const operand *operands, uint64_t seed) {
    static const int places[2] = {UPDATE_KEYS, UPDATE_QUERIES};
    operand norms[2][NORM_OPERANDS] = {0}, all[KERNEL_CASE_OPERANDS];
    const dw_tensor *in[KERNEL_CASE_OPERANDS], *out[KERNEL_CASE_RESULTS];
    result normed[2] = {0}, made[2][KERNEL_CASE_RESULTS] = {0};
    kernel_norm heads[2];
    dw_status status = DW_OK;
    if (c->norm == OP_COUNT || p->device == NULL || !kernel_may_normalise_heads(row) || !chip_has(given->chip, CHIP_tma)) return;
    memcpy(all, operands, (size_t)c->n_in * sizeof *all);
    for (int i = 0; i < c->n_in; i++) in[i] = given->call.in[i] != NULL ? &all[i].dense : NULL;
    kernel_run run = *given;
    run.call.in = in;
    run.call.out = out;
    for (int i = 0; i < 2 && status == DW_OK; i++) {
        if (places[i] >= c->n_in || in[places[i]] == NULL) continue;
        kernel_case source = *c;
        source.out[0] = &c->types[places[i]];
        make_norm_operands(c, places[i], seed + (uint64_t)i * 7, norms[i]);
        result_create(&source, 0, 0, &normed[i]);
        status = run_norm(p, c, given->chip, norms[i], &normed[i]);
        heads[i] = (kernel_norm){{&norms[i][1].dense, c->norm == OP_layer_norm ? &norms[i][2].dense : NULL}, c->norm == OP_layer_norm, 1e-5};
    }
    for (int t = 0; t < 2 && status == DW_OK; t++) {
        for (int i = 0; i < 2; i++) {
            if (normed[i].memory.bytes == NULL) continue;
            all[places[i]] = t == 0 ? (operand){.dense = normed[i].tensor, .memory = normed[i].memory} : norms[i][0];
            if (t == 1) run.heads[i] = &heads[i];
        }
        for (int i = 0; i < c->n_out; i++) {
            result_create(c, i, 0, &made[t][i]);
            out[i] = &made[t][i].tensor;
        }
        if (!kernel_normalises_heads(row, &run)) report(p, c, row, run.chip->name, seed, 1, "it does not do the norms of keys and queries");
        block workspace = block_create(kernel_workspace(row, &run), 0xff);
        status = run_there(p, row, &run, c->n_in, all, made[t], &workspace);
        free(workspace.bytes);
    }
    if (status != DW_OK) report(p, c, row, given->chip->name, seed, 1, dw_context_error(p->context));
    for (int i = 0; i < c->n_out && status == DW_OK; i++)
        if (memcmp(made[0][i].memory.bytes, made[1][i].memory.bytes, made[0][i].memory.length) != 0) report(p, c, row, given->chip->name, seed, 1, "other bits than behind norms of keys and queries");
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < c->n_out; k++) free(made[i][k].memory.bytes);
        free(normed[i].memory.bytes);
        for (int k = 0; k < NORM_OPERANDS; k++)
            if (norms[i][k].memory.bytes != NULL) operand_destroy(&norms[i][k]);
    }
}

/* The same bits of a token alone whose place is there and whose caches were written by earlier runs, so that they may be asked for before the launches in front have ended. */
static void run_early(program *p, const kernel_case *c, const kernel_row *row, const kernel_run *given, operand *operands, const result *made, uint64_t seed) {
    const dw_tensor *out[KERNEL_CASE_RESULTS] = {NULL};
    result own;
    kernel_run run = *given;
    if (p->device == NULL || c->op->id != OP_attention || c->n_out != 1 || c->n_in <= ATTENTION_POSITION || given->call.in[ATTENTION_ROW] == NULL || given->call.in[ATTENTION_POSITION] == NULL) return;
    if (given->call.in[ATTENTION_Q]->dims[0] != 1 || given->call.in[ATTENTION_Q]->dims[2] != 1) return;
    result_create(c, 0, 0, &own);
    out[0] = &own.tensor;
    run.call.out = out;
    run.given_in = ~0u;
    run.adds_tokens = true;
    block workspace = block_create(kernel_workspace(row, &run), 0xff);
    if (run_there(p, row, &run, c->n_in, operands, &own, &workspace) != DW_OK) report(p, c, row, run.chip->name, seed, 1, dw_context_error(p->context));
    else if (own.memory.length == made->memory.length && memcmp(own.memory.bytes, made->memory.bytes, own.memory.length) != 0) report(p, c, row, run.chip->name, seed, 1, "other bits where keys are asked for early");
    free(workspace.bytes);
    free(own.memory.bytes);
}

/* Lines of few rows have the bound of the skinny kernel, which adds in fp32; Hopper's tensor cores have shorter sums of 8-bit floats: of 128 of k in products of fp8, as the other lines of
 * such products say (1e-3), and of 32 where scales of MX are folded into sums. */
static double bound_of(const program *p, const kernel_case *c) {
    const num_format *a = num_info(c->types[0].format);
    const bool is_product = (c->op->id == OP_matmul || c->op->id == OP_grouped_matmul) && a->element == DW_FORMAT_e4m3;
    if (p->way == NULL || !is_product || (p->way->needs >> CHIP_wgmma & 1) == 0) return c->bound;
    const double short_sums = a->scale == DW_FORMAT_f32 ? 1e-3 : strcmp(p->way->name, "cuda_matmul_wgmma_folded") == 0 ? 1e-4 : 0;
    return c->bound < short_sums ? short_sums : c->bound;
}

void run_row(program *p, const kernel_case *given, const kernel_row *row, const chip_caps *level, const kernel_problem *problem, operand *operands,
                    const result *references, uint64_t seed) {
    const dw_tensor *in[KERNEL_CASE_OPERANDS] = {0}, *out[KERNEL_CASE_RESULTS];
    dw_tensor hidden;
    kernel_case bounded = *given;
    const kernel_case *c = &bounded;
    bounded.bound = bound_of(p, given);
    for (int i = 0; i < c->n_in; i++) {
        if (c->in[i] == NULL) continue;
        in[i] = operands[i].gaps.bytes != NULL && (row->strided_in >> i & 1) ? &operands[i].strided : &operands[i].dense;
    }
    char text[256];
    block packed = {0};
    bool packs = row->packs >= 0 && (c->constant >> row->packs & 1);
    if (packs) {
        kernel_packing packing;
        assert_true(row->packing(problem, in[row->packs], &packing));
        packed = block_create(packing.bytes, 0xff);
        assert_int_equal(packing.run(&packing, p->context, p->pools[1], in[row->packs], packed.bytes), DW_OK);
        if (!block_is_whole(&packed)) report(p, c, row, level->name, seed, 2, "packing wrote behind its end");
        hidden = *in[row->packs];
        hidden.data = NULL;
        hidden.scales = NULL;
        hidden.second = NULL;
        in[row->packs] = &hidden;
    }
    result results[THREADS][KERNEL_CASE_RESULTS], oracle = references[0];
    const int64_t gap = c->strided != 0 ? 3 : c->pitched != 0 ? 16 : 0;
    const int runs = taken_operand(p, c, row, 0, &references[0].tensor, in) < 0 && p->device != NULL && device_is_simulated(p->device) ? 1 : options.runs_each;
    if (is_quantised(c)) quantised_oracle(p, c, row, level, in, operands, packed.bytes, &oracle);
    for (int t = 0; t < runs; t++) {
        for (int i = 0; i < c->n_out; i++) {
            result_create(c, i, row->strided_out && i == 0 && !options.unwritten ? gap : 0, &results[t][i]);
            out[i] = &results[t][i].tensor;
        }
        /* the second run works in place where it may: it has to give the same bits, too */
        const dw_tensor *given[KERNEL_CASE_OPERANDS];
        unsigned taken = 0;
        memcpy(given, in, sizeof given);
        for (int i = 0; i < c->n_out; i++) {
            const int over = kernel_in_place(row, p->ways, out[i]->format, i);
            if (t > 0) take_over(p, c, row, i, &results[t][i], in);
            if (over >= 0) taken |= 1u << over;
        }
        const bool constant = runs > 1 ? t > 0 : seed % 2 == 0;
        kernel_run run = {
            .call = {p->context, c->op, &c->attrs, NULL, c->n_in, in, c->n_out, out, 0, NULL},
            .post = c->post,
            .constant_in = !constant ? 0 : ~taken,   /* nobody else writes any of them */
            .is_packed = packs,
            .packed = packed.bytes,
            .pool = p->pools[t],
            .chip = level,
            .ways = p->ways,
            .tuned = &p->tuned,
            .tuned_count = p->tuned.way != NULL,
            .user = row->user,
        };
        block workspace = block_create(kernel_workspace(row, &run), 0xff);
        run.workspace = workspace.bytes;
        p->runs++;
        dw_status status = p->device ? run_there(p, row, &run, c->n_in, operands, results[t], &workspace) : kernel_execute(row, &run);
        if (status != DW_OK && !is_refused(p, row, &run, status)) report(p, c, row, level->name, seed, t + 1, dw_context_error(p->context));
        if (!block_is_whole(&workspace)) report(p, c, row, level->name, seed, t + 1, "the workspace was overrun");
        for (int i = 0; i < c->n_out && status == DW_OK; i++) {
            if (!block_is_whole(&results[t][i].memory) || !gaps_are_whole(&results[t][i])) report(p, c, row, level->name, seed, t + 1, "wrote outside of its result");
            if (differs(p, c, &results[t][i], i == 0 ? &oracle : &references[i], text, sizeof text)) report(p, c, row, level->name, seed, t + 1, text);
            if (t > 0 && !options.unwritten && memcmp(results[t][i].memory.bytes, results[0][i].memory.bytes, results[0][i].memory.length) != 0) {
                report(p, c, row, level->name, seed, t + 1, "other bits than with one thread");
            }
        }
        if (t == 0 && status == DW_OK) run_normed(p, c, row, problem, &run, operands, seed);
        if (t == 0 && status == DW_OK) run_heads(p, c, row, &run, operands, seed);
        if (t == 0 && status == DW_OK) run_early(p, c, row, &run, operands, &results[0][0], seed);
        if (t == 0 && status == DW_OK) run_writing(p, c, row, &run, operands, seed);
        if (t == 0 && status == DW_OK) run_plain(p, c, row, problem, &run, operands, &results[0][0], seed);
        if (options.bits && t == 0 && status == DW_OK) print_bits(c, row, level, seed, results[0]);
        free(workspace.bytes);
        memcpy(in, given, sizeof given);
    }
    for (int t = 0; t < runs; t++) {
        for (int i = 0; i < c->n_out; i++) free(results[t][i].memory.bytes);
    }
    if (is_quantised(c)) free(oracle.memory.bytes);
    free(packed.bytes);
}
