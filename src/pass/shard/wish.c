/* Looking ahead: may a value be split along an axis, so that every one of its readers goes on with its part until a product takes that along k? Then ranks tell each other nothing in between. */
#include "pass/shard/shard.h"

#include "pass/fuse/fuse.h"

static const shard_wish no = {false, 1, 1};

bool shard_is_weighted(const ir_node *node) {
    if (node->op != OP_matmul && node->op != OP_grouped_matmul) return false;
    const ir_value *a = ir_in(node, 0), *b = ir_in(node, 1);
    return !ir_bool(node, OP_ATTR_at) && ir_is_constant(b) && !ir_is_constant(a) && b->type.rank == (node->op == OP_matmul ? 2 : 3) && a->type.rank >= 1;
}

double shard_bytes(const ir_value *weight) {
    double bytes = (double)dw_format_bits(weight->type.format) / 8;
    int64_t size;
    for (int i = 0; i < weight->type.rank; i++) bytes *= dim_is_constant(weight->type.dims[i], &size) ? (double)size : 1;
    return bytes;
}

bool shard_is_large(const sharding *sharding, const ir_value *weight) {
    enum { SHARE = 32 };
    return shard_bytes(weight) * SHARE >= sharding->weight_bytes;
}

int shard_k_axis(const ir_node *product) { return ir_in(product, 1)->type.rank - (ir_bool(product, OP_ATTR_bt) ? 1 : 2); }
int shard_n_axis(const ir_node *product) { return ir_in(product, 1)->type.rank - (ir_bool(product, OP_ATTR_bt) ? 2 : 1); }

static int64_t unit_of(dw_format format, bool along_rows) {
    const num_format *info = num_info(format);
    const int64_t unit = info->class != NUM_BLOCK ? 1 : along_rows ? info->cols : info->rows;
    return unit > 1 ? unit : 1;
}

/* Blocks lie along k, whoever has them. */
int64_t shard_k_unit(const ir_node *product) {
    const int64_t a = unit_of(ir_in(product, 0)->type.format, true), b = unit_of(ir_in(product, 1)->type.format, true);
    return a > b ? a : b;   /* powers of two */
}

int64_t shard_n_unit(const sharding *sharding, const ir_node *product) {
    const int64_t unit = unit_of(ir_in(product, 1)->type.format, false);
    return unit > sharding->rows ? unit : sharding->rows;
}

static int64_t gcd(int64_t a, int64_t b) {
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static bool join_units(int64_t *unit, int64_t other) { return base_mul_i64(*unit / gcd(*unit, other), other, unit); }

/* Both: what suits a suits b. */
static shard_wish both(shard_wish a, shard_wish b) {
    if (!a.good || !b.good || a.repeat != b.repeat || !join_units(&a.unit, b.unit)) return no;
    return a;
}

/* Of an axis whose elements give times / per elements each of an axis of which so much is wished. */
static shard_wish before(shard_wish wish, shard_step step) {
    int64_t unit;
    if (!wish.good || !base_mul_i64(wish.unit, step.per, &unit) || !join_units(&unit, step.times)) return no;
    wish.unit = unit / step.times;
    return wish;
}

/* Keys and values of fewer heads than ranks: ranks beside each other have one, where all ranks then have as many heads of queries. */
static shard_wish wish_of_keys(const sharding *sharding, const ir_node *node, shard_wish heads, shard_step step) {
    int64_t of_keys, of_queries;
    if (!shard_constant_size(ir_in(node, ATTENTION_Q), 1, &of_queries) || !dim_is_constant(ir_in(node, ATTENTION_K)->type.dims[1], &of_keys)) return no;
    if (of_keys >= sharding->ranks || sharding->ranks % of_keys != 0) return before(heads, step);
    if (!heads.good || of_queries % sharding->ranks != 0 || of_queries / sharding->ranks % heads.unit != 0) return before(heads, step);
    return (shard_wish){true, 1, (int)(sharding->ranks / of_keys)};
}

/* Of queries: as many as go with whole heads of keys. */
static shard_wish wish_of_queries(const sharding *sharding, const ir_node *node, shard_wish heads) {
    int64_t of_keys, of_queries;
    if (!shard_constant_size(ir_in(node, ATTENTION_Q), 1, &of_queries) || !dim_is_constant(ir_in(node, ATTENTION_K)->type.dims[1], &of_keys) || of_queries % of_keys != 0) return no;
    if (of_keys == 1) return heads;   /* all ranks have it */
    const bool in_groups = of_keys < sharding->ranks && sharding->ranks % of_keys == 0 && of_queries % sharding->ranks == 0 && of_queries / sharding->ranks % heads.unit == 0;
    if (!in_groups && !join_units(&heads.unit, of_queries / of_keys)) return no;
    return heads;
}

/* Columns are cut between blocks of rows, where a format has those: so many heads, whatever reads them. */
static shard_wish with_rows(const sharding *sharding, const ir_node *node, shard_wish heads) {
    int64_t width;
    if (sharding->rows == 1) return heads;
    if (!dim_is_constant(ir_in(node, ATTENTION_Q)->type.dims[3], &width)) return no;
    return join_units(&heads.unit, sharding->rows / gcd(sharding->rows, width)) ? heads : no;
}

/* Whole blocks. Where a row has one scale the product takes its part of what is quantised with that (product.c). */
static shard_wish wish_of_quantised(sharding *sharding, const ir_node *node, int axis) {
    const num_format *info = num_info(ir_out(node)->type.format);
    shard_wish wish = shard_wish_of(sharding, ir_out(node), axis);
    if (info->rows != 1 || info->second == 1 || (info->cols > 0 && !join_units(&wish.unit, info->cols))) return no;
    return wish;
}

static shard_wish wish_of_use(sharding *sharding, const ir_use *use, int axis) {
    const ir_node *node = use->node;
    const ir_value *value = use->value;
    if (shard_is_weighted(node) && use->index == 0 && axis == value->type.rank - 1) return (shard_wish){true, shard_k_unit(node), 1};
    if (node->op == OP_quantize && axis == value->type.rank - 1) return wish_of_quantised(sharding, node, axis);
    const shard_step step = shard_follow(node, use->index, axis);
    if (step.axis < 0) return no;
    shard_wish wish = shard_wish_of(sharding, node->out[0], step.axis);
    for (int i = 1; i < node->n_out; i++)
        if (node->out[i]->uses != NULL) wish = both(wish, shard_wish_of(sharding, node->out[i], step.axis));
    if (node->op == OP_attention && wish.good) {
        wish = with_rows(sharding, node, wish);
        if (use->index == ATTENTION_K || use->index == ATTENTION_V) return wish_of_keys(sharding, node, wish, step);
        return wish_of_queries(sharding, node, wish);
    }
    return before(wish, step);
}

/* Asked from the graph's end on, so that it never goes deep (shard.c). */
shard_wish shard_wish_of(sharding *sharding, ir_value *value, int axis) {
    shard_record *record = value->mark;
    int64_t size;
    if (record == NULL || !shard_constant_size(value, axis, &size)) return no;
    if (record->known[axis]) return record->wishes[axis];
    record->known[axis] = true;
    shard_wish wish = no;
    if (value->output_count == 0 && (value->next_count == 0 || ir_def(value, OP_cache_write) != NULL)) {
        for (const ir_use *use = value->uses; use != NULL; use = use->next) {
            const shard_wish other = wish_of_use(sharding, use, axis);
            wish = use == value->uses ? other : both(wish, other);
        }
    }
    return record->wishes[axis] = wish;
}
