/* Attention that writes its own token (kernel_run.write) beside the write of caches and attention one after the other: the same bits of results and of caches. */
#include "conform/conform.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "op/op.h"

enum { TURNED_OF = 2, NORMED_OF = 4, INTERLEAVED_OF = 8, CENTRED_OF = 16, PARTLY_OF = 32, WAYS = 64 };   /* what a seed asks for, by bits of a count of lines */

/* A tensor with memory of its own. */
typedef struct own_tensor { dw_tensor tensor; block memory; } own_tensor;

static own_tensor own_create(dw_format format, int rank, const int64_t *dims) {
    own_tensor own;
    op_tensor_init(&own.tensor, format, DW_SCALE_plain, rank, dims, NULL);
    own.memory = block_create((size_t)op_tensor_count(&own.tensor) * (size_t)dw_format_bits(format) / 8, 0);
    own.tensor.data = own.memory.bytes;
    return own;
}

static own_tensor own_random(dw_format format, int rank, const int64_t *dims, uint64_t stream) {
    own_tensor own = own_create(format, rank, dims);
    for (int64_t i = 0; i < op_tensor_count(&own.tensor); i++) num_store(format, own.tensor.data, i, (double)num_random_normal(stream, (uint64_t)i), true);
    if (stream % 5 == 1) num_store(format, own.tensor.data, (int64_t)(stream / 5 % 8), stream % 2 == 0 ? INFINITY : (double)NAN, false);
    return own;
}

static own_tensor own_copy(const dw_tensor *of) {
    own_tensor own = own_create(of->format, of->rank, of->dims);
    memcpy(own.memory.bytes, of->data, own.memory.length);
    return own;
}

static const kernel_row *write_row(void) {
    for (int i = 0; i < kernel_count(); i++)
        if (kernel_at(i)->op == OP_cache_update && kernel_may_normalise_heads(kernel_at(i))) return kernel_at(i);
    return NULL;
}

/* What the write is given: keys, values and queries of the token, angles, and norms of keys and queries. */
enum { OWN_X, OWN_Y, OWN_KEYS, OWN_VALUES, OWN_COS, OWN_SIN, OWN_QUERIES, OWN_KEY_SCALE, OWN_QUERY_SCALE, OWN_SHIFT, OWN_TURNED, OWN_COUNT };

typedef struct written { own_tensor own[OWN_COUNT]; const dw_tensor *in[UPDATE_OPERANDS], *out[3]; op_attr items[2]; op_attrs attrs; kernel_norm heads[2]; kernel_run run; } written;

/* way: of turned queries and norms. Caches are the line's keys and values, copied. */
static void written_create(program *p, const kernel_case *c, const kernel_run *given, unsigned way, uint64_t seed, written *w) {
    const dw_tensor *const *in = given->call.in, *q = in[ATTENTION_Q], *k = in[ATTENTION_K], *v = in[ATTENTION_V];
    const int64_t width = q->dims[3], key[4] = {1, k->dims[1], 1, width}, value[4] = {1, v->dims[1], 1, v->dims[3]}, angle[2] = {1, width};
    memset(w, 0, sizeof *w);
    w->own[OWN_X] = own_copy(k);
    w->own[OWN_Y] = own_copy(v);
    w->own[OWN_KEYS] = own_random(k->format, 4, key, seed * 64 + 40);
    w->own[OWN_VALUES] = own_random(v->format, 4, value, seed * 64 + 41);
    w->own[OWN_QUERIES] = own_random(q->format, 4, q->dims, seed * 64 + 42);
    w->own[OWN_TURNED] = own_create(q->format, 4, q->dims);
    for (int i = 0; i < 2; i++) w->own[OWN_COS + i] = own_random(seed % 2 == 0 ? DW_FORMAT_f32 : q->format, 2, angle, seed * 64 + 43 + (uint64_t)i);
    for (int i = 0; i < 2; i++) w->own[OWN_KEY_SCALE + i] = own_random(i == 0 ? DW_FORMAT_f32 : q->format, 1, &width, seed * 64 + 45 + (uint64_t)i);
    for (int i = 0; i < 2; i++) w->in[UPDATE_X + i] = w->out[i] = &w->own[OWN_X + i].tensor;
    w->in[UPDATE_KEYS] = &w->own[OWN_KEYS].tensor;
    w->in[UPDATE_VALUES] = &w->own[OWN_VALUES].tensor;
    w->in[UPDATE_ROW] = in[ATTENTION_ROW];
    w->in[UPDATE_POSITION] = in[ATTENTION_POSITION];
    w->in[UPDATE_TABLE] = c->n_in > ATTENTION_TABLE ? in[ATTENTION_TABLE] : NULL;
    w->attrs = (op_attrs){0, w->items};
    int n_out = 2;
    if ((way & TURNED_OF) != 0) {
        for (int i = 0; i < 2; i++) w->in[UPDATE_COS + i] = &w->own[OWN_COS + i].tensor;
        w->in[UPDATE_QUERIES] = &w->own[OWN_QUERIES].tensor;
        w->out[n_out++] = &w->own[OWN_TURNED].tensor;
        if ((way & INTERLEAVED_OF) != 0) w->items[w->attrs.count++] = op_set_bool(OP_ATTR_interleaved, true);
        w->items[w->attrs.count++] = op_set_int(OP_ATTR_width, (way & PARTLY_OF) != 0 && width >= 32 ? width / 2 : width);
    }
    w->own[OWN_SHIFT] = own_random(q->format, 1, &width, seed * 64 + 47);
    for (int i = 0; i < 2; i++) w->heads[i] = (kernel_norm){{&w->own[OWN_KEY_SCALE + i].tensor, (way & CENTRED_OF) != 0 ? &w->own[OWN_SHIFT].tensor : NULL}, (way & CENTRED_OF) != 0, 1e-5};
    w->run = (kernel_run){.call = {p->context, op_get(OP_cache_update), &w->attrs, NULL, UPDATE_OPERANDS, w->in, n_out, w->out, 0, NULL}, .given_in = ~0u, .pool = p->pools[0], .chip = given->chip};
    if ((way & NORMED_OF) != 0) w->run.heads[0] = &w->heads[0];
    if ((way & NORMED_OF) != 0 && n_out > 2) w->run.heads[1] = &w->heads[1];
}

static void written_destroy(written *w) {
    for (int i = 0; i < OWN_COUNT; i++) free(w->own[i].memory.bytes);
}

/* The write by its own kernel, in place. */
static dw_status run_write(program *p, written *w) {
    operand operands[UPDATE_OPERANDS] = {0};
    result results[3] = {{w->own[OWN_X].tensor, w->own[OWN_X].memory}, {w->own[OWN_Y].tensor, w->own[OWN_Y].memory}, {w->own[OWN_TURNED].tensor, w->own[OWN_TURNED].memory}};
    block workspace = block_create(0, 0xff);
    const dw_tensor *in[UPDATE_OPERANDS] = {NULL};
    for (int i = 0; i < UPDATE_OPERANDS; i++) {
        if (w->in[i] == NULL) continue;
        operands[i].dense = *w->in[i];
        operands[i].memory = (block){w->in[i]->data, (size_t)op_tensor_count(w->in[i]) * (size_t)dw_format_bits(w->in[i]->format) / 8};
        in[i] = i < UPDATE_KEYS ? w->out[i] : &operands[i].dense;
    }
    kernel_run run = w->run;
    run.call.in = in;
    const dw_status status = run_there(p, write_row(), &run, UPDATE_OPERANDS, operands, results, &workspace);
    free(workspace.bytes);
    return status;
}

/* With the shared memory of a large chip, of widths that lanes share. */
static bool must_take(const kernel_run *given) {
    const dw_tensor *q = given->call.in[ATTENTION_Q], *k = given->call.in[ATTENTION_K], *v = given->call.in[ATTENTION_V];
    const int64_t width = q->dims[3];
    return given->chip->shared_bytes >= 200 << 10 && width >= 16 && (width & (width - 1)) == 0 && v->dims[3] % 8 == 0 && q->dims[1] <= 8 * k->dims[1] && given->call.in[ATTENTION_ROW]->format == DW_FORMAT_i64;
}

void run_writing(program *p, const kernel_case *c, const kernel_row *row, const kernel_run *given, const operand *operands, uint64_t seed) {
    const dw_tensor *q = given->call.in[ATTENTION_Q];
    result made[2];
    written w[2];
    if (p->device == NULL || p->way == NULL || !kernel_way_is(p->way, KERNEL_WAY_WRITES) || c->n_out != 1 || c->n_in <= ATTENTION_POSITION) return;
    if (given->call.in[ATTENTION_ROW] == NULL || given->call.in[ATTENTION_POSITION] == NULL || q->dims[0] != 1 || q->dims[2] != 1 || dw_format_is_block(given->call.in[ATTENTION_K]->format)) return;
    for (unsigned way = 0; way < WAYS; way += 2) {
        bool takes = true, done = true;
        dw_status status = DW_OK;
        if ((way & (INTERLEAVED_OF | PARTLY_OF)) != 0 && (way & TURNED_OF) == 0) continue;
        if ((way & CENTRED_OF) != 0 && (way & NORMED_OF) == 0) continue;
        for (int t = 0; t < 2; t++) {
            operand all[KERNEL_CASE_OPERANDS];
            const dw_tensor *in[KERNEL_CASE_OPERANDS], *out[1];
            kernel_run run = *given;
            written_create(p, c, given, way, seed + way, &w[t]);
            result_create(c, 0, 0, &made[t]);
            out[0] = &made[t].tensor;
            memcpy(all, operands, (size_t)c->n_in * sizeof *all);
            /* its own kernel may not do norms that attention does: then there is nothing to compare with */
            if (t == 0) done = kernel_normalises_heads(write_row(), &w[0].run);
            if (t == 0 && done) status = run_write(p, &w[0]);
            all[ATTENTION_Q] = (operand){.dense = w[t].own[(way & TURNED_OF) != 0 ? OWN_TURNED : OWN_QUERIES].tensor, .memory = w[t].own[(way & TURNED_OF) != 0 ? OWN_TURNED : OWN_QUERIES].memory};
            for (int i = 0; i < 2; i++) all[ATTENTION_K + i] = (operand){.dense = w[t].own[OWN_X + i].tensor, .memory = w[t].own[OWN_X + i].memory};
            for (int i = 0; i < c->n_in; i++) in[i] = given->call.in[i] != NULL ? &all[i].dense : NULL;
            run.call.in = in;
            run.call.out = out;
            run.given_in = ~0u;
            run.adds_tokens = true;
            if (t == 1) {
                kernel_run *write = &w[1].run;
                for (int i = 0; i < 2; i++) w[1].in[UPDATE_X + i] = w[1].out[i] = in[ATTENTION_K + i];
                w[1].in[UPDATE_ROW] = in[ATTENTION_ROW];
                w[1].in[UPDATE_POSITION] = in[ATTENTION_POSITION];
                w[1].in[UPDATE_TABLE] = c->n_in > ATTENTION_TABLE ? in[ATTENTION_TABLE] : NULL;
                takes = done && kernel_does_write(row, &run, write, 1);
                run.write = write;
            }
            block workspace = block_create(kernel_workspace(row, &run), 0xff);
            if (status == DW_OK && takes) status = run_there(p, row, &run, c->n_in, all, &made[t], &workspace);
            free(workspace.bytes);
        }
        if (!takes && done && must_take(given)) report(p, c, row, given->chip->name, seed, 1, "it does not write the token");
        if (status != DW_OK) report(p, c, row, given->chip->name, seed, 1, dw_context_error(p->context));
        else if (takes && memcmp(made[0].memory.bytes, made[1].memory.bytes, made[0].memory.length) != 0) report(p, c, row, given->chip->name, seed, 1, "other bits of a token that it writes itself");
        for (int i = 0; i < 2 && takes && status == DW_OK; i++)
            if (memcmp(w[0].own[OWN_X + i].memory.bytes, w[1].own[OWN_X + i].memory.bytes, w[0].own[OWN_X + i].memory.length) != 0) report(p, c, row, given->chip->name, seed, 1, i == 0 ? "other keys in the cache than the write of caches has" : "other values in the cache than the write of caches has");
        for (int t = 0; t < 2; t++) {
            written_destroy(&w[t]);
            free(made[t].memory.bytes);
        }
    }
}
