/* Bulk and tensor copies (PTX ISA 9.7.9.25): issued by one instruction, done later (async_copy.c), in an order that the seed decides. Until then their target may not
 * be read, nor their source in shared memory written. */
#include "async.h"
#include "sim/machine/order.h"
#include "tmem.h"

#include "device/cuda_abi.h"
#include "num/num.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct copy_op { sim_address shared, global, mbarrier; uint32_t at[5], offsets[3]; int rank, coordinates, offset_count; uint32_t mask, bytes, byte_mask; bool tensor, store, im2col; } copy_op;

/* ---- sources of stores: however early they were read, this is certain only when the lane that issued the store has waited for it ---- */

struct sim_source { const sim_op *op; sim_cta *cta; uint64_t shared; size_t bytes; uint32_t group; int lane; };

/* They may be written again, by whoever comes behind this. false: a finding. */
static bool release_source(sim_warp *w, const sim_op *op, sim_cta *cta, uint64_t shared, size_t bytes) {
    async_set_flags(cta, shared, bytes, SHADOW_SOURCE, 0);
    return cta != w->cta || order_read(w, op, -1, shared, bytes, false);
}

/* The store is done. */
static bool hold_source(const struct sim_async *a) {
    sim_warp *w = a->warp;
    if (a->read != NULL) return true;   /* it was released */
    if (w->source_count == w->source_capacity) {
        const size_t capacity = w->source_capacity == 0 ? 8 : 2 * w->source_capacity;
        struct sim_source *larger = realloc(w->sources, capacity * sizeof *larger);
        if (larger == NULL) {
            sim_find(w, a->op, a->lane, "no memory for the list of stores that nobody has waited for");
            return false;
        }
        w->sources = larger;
        w->source_capacity = capacity;
    }
    w->sources[w->source_count++] = (struct sim_source){a->op, a->cta, a->shared, a->bytes, a->group, a->lane};
    return true;
}

/* Lanes wait for all but so many of their groups. false: a finding. */
static bool release_sources(sim_warp *w, uint32_t mask, const uint32_t *pending) {
    size_t kept = 0;
    bool good = true;
    for (size_t i = 0; i < w->source_count; i++) {
        const struct sim_source s = w->sources[i];
        if ((mask >> s.lane & 1) != 0 && s.group + pending[s.lane] < w->bulk_group[s.lane]) good &= release_source(w, s.op, s.cta, s.shared, s.bytes);
        else w->sources[kept++] = s;
    }
    w->source_count = kept;
    return good;
}

/* The CTA of the cluster whose mbarrier counts what a copy brings to that one. */
static sim_cta *told_by(const struct sim_async *a, sim_cta *cta) {
    return a->multicast == 0 ? a->mbarrier_cta : a->pair ? &a->warp->cta->cluster->ctas[(cta->rank & ~1) | (a->mbarrier_cta->rank & 1)] : cta;
}

static bool must_wait(sim_cta *cta, sim_awaited awaited) {
    for (size_t i = 0; i < cta->awaited_count; i++) {
        if (cta->awaited[i].mbarrier != awaited.mbarrier) continue;
        cta->awaited[i] = awaited;
        return true;
    }
    if (cta->awaited_count == cta->awaited_capacity) {
        const size_t capacity = cta->awaited_capacity == 0 ? 16 : 2 * cta->awaited_capacity;
        sim_awaited *larger = realloc(cta->awaited, capacity * sizeof *larger);
        if (larger == NULL) return false;
        cta->awaited = larger;
        cta->awaited_capacity = capacity;
    }
    cta->awaited[cta->awaited_count++] = awaited;
    return true;
}

/* Somebody has to wait for this before the CTA ends. */
static bool note_wait(const struct sim_async *a, sim_cta *told) {
    if (must_wait(told, (sim_awaited){a->mbarrier, a->op, a->of_launch})) return true;
    sim_find(a->warp, a->op, a->lane, "no memory for the list of mbarriers that have to be waited for");
    return false;
}

static bool finish(struct sim_async *a) {
    sim_cluster *cluster = a->warp->cta->cluster;
    if (a->commit) {
        if (!sim_mbarrier_arrive(a->warp, a->op, a->lane, a->mbarrier_cta, a->mbarrier, a->since)) return false;
        return a->warp->cta == a->mbarrier_cta || note_wait(a, a->mbarrier_cta);   /* kernels of one CTA end without */
    }
    if (a->arrival) {
        sim_copies_finish(a->warp, a->lane, a->serial);
        return sim_mbarrier_arrive(a->warp, a->op, a->lane, a->mbarrier_cta, a->mbarrier, NULL);
    }
    if (a->store) return async_copy(a, a->cta) && hold_source(a);
    for (int i = 0; i < cluster->cta_count; i++) {
        sim_cta *cta = &cluster->ctas[i];
        if (a->multicast != 0 ? (a->multicast >> i & 1) == 0 : cta != a->cta) continue;
        if (!async_copy(a, cta)) return false;
        async_set_flags(cta, a->shared, a->bytes, SHADOW_FLIGHT | SHADOW_GENERIC | SHADOW_RESPONSE | SHADOW_READ, a->of_launch ? SHADOW_WRITTEN | SHADOW_RESPONSE : SHADOW_WRITTEN);
        sim_cta *told = told_by(a, cta);
        order_arrived(cta, a->shared, a->bytes, told, a->mbarrier);
        if (!sim_mbarrier_complete(a->warp, a->op, told, a->mbarrier, (uint32_t)a->arriving)) return false;
        if (a->of_launch && !note_wait(a, told)) return false;
    }
    return true;
}

static void finish_at(sim_cluster *cluster, size_t i) {
    struct sim_async done = cluster->async[i];
    memmove(&cluster->async[i], &cluster->async[i + 1], (--cluster->async_count - i) * sizeof *cluster->async);
    cluster->changes++;
    cluster->launch->outside += cluster->launch->code->talks;
    finish(&done);
    free(done.read);
    free(done.since);
}

bool async_finish_some(sim_cluster *cluster, bool all) {
    bool progress = false;
    for (size_t i = 0; i < cluster->async_count && !cluster->stopped;) {
        if (!all && --cluster->async[i].delay > 0) {
            i++;
            continue;
        }
        finish_at(cluster, i);
        progress = true;
    }
    return progress;
}

/* What came without anybody's waiting might have come when the CTA had ended. */
static bool awaited_at_end(sim_warp *w) {
    for (size_t i = 0; i < w->cta->awaited_count; i++) {
        const sim_awaited *a = &w->cta->awaited[i];
        if (!sim_mbarrier_unseen(w->cta, a->mbarrier) || (!a->of_launch && w->launch->options->exit_early)) continue;
        sim_find(w, a->by, -1, a->of_launch ? "the CTA of rank %d ends, and nobody has waited for this response of cluster launch control, which the mbarrier at 0x%" PRIx64 " counts: it might have been under way still, which ends a B300's "
                                           "context (Xid 43); wait for every response, a decline too"
                                         : "the CTA of rank %d ends, and nobody has waited for this commit of another CTA at its mbarrier at 0x%" PRIx64 ": it might have been under way still (option exit=early allows it)",
                 w->cta->rank, a->mbarrier);
        return false;
    }
    return true;
}

void sim_async_at_end(sim_warp *w) {
    if (!awaited_at_end(w)) return;
    sim_cluster *cluster = w->cta->cluster;
    for (size_t i = 0; i < cluster->async_count; i++) {
        const struct sim_async *a = &cluster->async[i];
        bool into = !a->store && (a->multicast != 0 ? (a->multicast >> w->cta->rank & 1) != 0 : (a->arrival || a->commit ? a->mbarrier_cta : a->cta) == w->cta) && !(a->commit && (a->warp->cta == w->cta || w->launch->options->exit_early));
        bool from = (a->store ? a->read == NULL && a->cta == w->cta : a->from == w->cta) && !w->launch->options->exit_early;
        if (!into && !from) continue;
        if (a->commit) {
            sim_find(a->warp, a->op, a->lane, "the CTA of rank %d ends while the arrival of this commit of another CTA is under way to it: wait for it first (option exit=early allows it)", w->cta->rank);
            return;
        }
        if (a->of_launch) {
            sim_find(a->warp, a->op, a->lane, "the CTA of rank %d ends while this request's response is under way to it, which ends a B300's context (Xid 43): wait for every response, a decline too", w->cta->rank);
            return;
        }
        sim_find(a->warp, a->op, a->lane, "the CTA of rank %d ends while this copy %s its shared memory: wait for it first%s", w->cta->rank, into ? "still writes" : "still reads",
                 from ? " (cp.async.bulk.wait_group.read)" : "");
        return;
    }
    for (int i = 0; i < w->cta->warp_count && !w->launch->options->exit_early; i++) {
        sim_warp *issuer = &w->cta->warps[i];
        if (issuer->source_count == 0) continue;
        sim_find(issuer, issuer->sources[0].op, issuer->sources[0].lane, "the CTA of rank %d ends, and nobody has waited until this copy has read its shared memory: cp.async.bulk.wait_group.read first", w->cta->rank);
        return;
    }
}

void sim_async_free(sim_cluster *cluster) {
    for (size_t i = 0; i < cluster->async_count; i++) {
        free(cluster->async[i].read);
        free(cluster->async[i].since);
    }
    free(cluster->async);
    cluster->async = NULL;
    cluster->async_count = 0;
}

/* ---- issuing ---- */

/* The shared side: in bounds, aligned, with a proxy fence behind what ordinary stores wrote there, and, of a source, written. */
static bool check_shared(sim_warp *w, const sim_op *op, int lane, const struct sim_async *a, sim_cta *cta, size_t align) {
    if (a->shared % align != 0) {
        sim_find(w, op, lane, "the address 0x%" PRIx64 " of shared memory is no multiple of %zu", a->shared, align);
        return false;
    }
    if (a->shared < SIM_SHARED_RESERVED || a->shared + a->bytes > cta->shared_bytes) {
        sim_find(w, op, lane, "copies %zu bytes at 0x%" PRIx64 " of shared memory, and the CTA has 0x%x to 0x%zx: out of bounds", a->bytes, a->shared, SIM_SHARED_RESERVED, cta->shared_bytes);
        return false;
    }
    const bool adds = a->reduces && !a->store;   /* others may be adding to the same place */
    for (size_t i = 0; i < a->bytes; i++) {
        uint8_t s = cta->shared_shadow[a->shared + i];
        const char *what = (s & SHADOW_FLIGHT) != 0 && !adds ? "another asynchronous copy still writes: wait for it first"
                           : adds && (s & SHADOW_WRITTEN) == 0 && w->launch->options->uninitialised ? "nobody ever wrote"
                           : !a->store && (s & SHADOW_SOURCE) != 0 ? "another asynchronous copy still reads: wait for it first"
                           : !a->store && (s & SHADOW_TENSOR) != 0 ? "a tensor core may still read: wait for its commit first"
                           : !adds && (s & SHADOW_GENERIC) != 0 && (s & SHADOW_MBARRIER) == 0 && !w->launch->options->proxies_one ? "ordinary stores wrote, with no fence.proxy.async behind them"
                           : a->store && (s & SHADOW_WRITTEN) == 0 && w->launch->options->uninitialised ? "nobody ever wrote"
                           : !a->store && (s & SHADOW_MBARRIER) != 0 ? "an mbarrier lies: invalidate it first" : NULL;
        if (what == NULL) continue;
        sim_find(w, op, lane, "the copy of %zu bytes at 0x%" PRIx64 " of shared memory touches byte %zu, which %s", a->bytes, a->shared, i, what);
        return false;
    }
    const int writer = !adds && !w->launch->options->proxies_one ? order_unfenced_store(w, cta, a->shared, a->bytes) : -1;
    if (writer >= 0) sim_find(w, op, lane, "the copy of %zu bytes at 0x%" PRIx64 " of shared memory touches what warp %d stored, and what orders the two has no fence.proxy.async in it", a->bytes, a->shared, writer);
    return writer < 0;
}

sim_cta *async_shared_side(sim_warp *w, const sim_op *op, int lane, uint64_t address, uint64_t *offset) {
    if (address >= SIM_SHARED_WINDOW && address - SIM_SHARED_WINDOW < SIM_WINDOW_BYTES) address -= SIM_SHARED_WINDOW;
    uint64_t rank = address >> SIM_RANK_SHIFT;
    *offset = address & ((1u << SIM_RANK_SHIFT) - 1);
    if (rank >= (uint64_t)w->cta->cluster->cta_count) {
        sim_find(w, op, lane, "0x%" PRIx64 " is no address of shared memory in a cluster of %d", address, w->cta->cluster->cta_count);
        return NULL;
    }
    return &w->cta->cluster->ctas[rank];
}

/* Copies reach mbarriers by the generic proxy (PTX ISA 9.7.9.25), so within a CTA ordinary order will do, which is looked at elsewhere. That an mbarrier was initialised is known to
 * other CTAs behind a fence, or an arrival at the cluster's barrier that releases. */
static bool check_mbarrier(const struct sim_async *a, sim_cta *cta) {
    const sim_cta *told = told_by(a, cta);
    if (!sim_mbarrier_known(a->warp, a->op, a->lane, told, a->mbarrier)) return false;
    if (told == a->warp->cta || a->warp->launch->options->inits_unfenced) return true;
    if (a->mbarrier + 8 > told->shared_bytes || (told->shared_shadow[a->mbarrier] & (SHADOW_MBARRIER | SHADOW_GENERIC)) != (SHADOW_MBARRIER | SHADOW_GENERIC)) return true;
    sim_find(a->warp, a->op, a->lane, "the mbarrier at 0x%" PRIx64 " of the CTA of rank %d was initialised with no fence behind it that tells other CTAs: fence.mbarrier_init, or barrier.cluster.arrive that is not .relaxed (option inits=unfenced: "
             "any barrier will do)", a->mbarrier, told->rank);
    return false;
}

static bool read_map(sim_warp *w, const sim_op *op, int lane, uint64_t address, int rank, sim_tensor_map *map) {
    sim_place place;
    if (!sim_reach(w, op, lane, PTX_GENERIC, address, 128, 64, SIM_READ, &place)) return false;
    memcpy(map, place.bytes, sizeof *map);
    if (map->magic != SIM_TENSOR_MAP) {
        sim_find(w, op, lane, "there is no tensor map at 0x%" PRIx64 ": encode one with cuTensorMapEncodeTiled", address);
        return false;
    }
    if (!sim_check_map(w, op, lane, address)) return false;
    if (map->rank != rank) {
        sim_find(w, op, lane, "the tensor map has %d dimensions, and the instruction %d", map->rank, rank);
        return false;
    }
    bool steps = true;
    for (int i = 1; i < rank; i++) steps &= map->steps[i] >= 1 && map->steps[i] <= 8;
    if (!steps || async_grain_of(map->type) == NULL || map->swizzle == CUDA_SWIZZLE_128_ATOM_32_FLIP_8 || map->swizzle > CUDA_SWIZZLE_128_ATOM_64 || map->fill > 1) {
        sim_find(w, op, lane, "a tensor map with element strides outside of 1 to 8, or with a swizzle that is not modelled: in atoms of 32 bytes that flips 8");
        return false;
    }
    return true;
}

/* The copy's offsets, and whether it begins inside of the map's bounding box; else a finding, and false. */
static bool begin_column(sim_warp *w, const sim_op *op, int lane, struct sim_async *a) {
    const copy_op *c = op->extra;
    const sim_tensor_map *m = &a->map;
    if ((m->im2col != 0) != c->im2col) {
        sim_find(w, op, lane, "the tensor map is %s, and the instruction %s", m->im2col != 0 ? "one of im2col" : "tiled", c->im2col ? "one of im2col" : "tiled");
        return false;
    }
    for (int i = 0; i < m->rank - 2 && c->im2col; i++) {
        const int most = m->rank == 3 ? UINT16_MAX : m->rank == 4 ? 255 : 31;
        const int64_t end = async_end_of_box(m, i + 1);
        if (c->store && (m->lower[i] < 0 || m->upper[i] > 0)) {
            sim_find(w, op, lane, "stores pixels by a map whose bounding box leaves the tensor along dimension %d (corners %d and %d): an H200 ends so with an illegal instruction", i + 1, m->lower[i], m->upper[i]);
            return false;
        }
        if (c->offset_count > 0) a->offsets[i] = ((const uint16_t *)sim_row(w, c->offsets[i]))[lane];
        if (a->offsets[i] <= most && a->at[i + 1] >= m->lower[i] && a->at[i + 1] < end) continue;
        sim_find(w, op, lane, "coordinate %d is %d, and the map's bounding box has %d to %" PRId64 "; or its offset %u is more than %d", i + 1, a->at[i + 1], m->lower[i], end - 1, a->offsets[i], most);
        return false;
    }
    return true;
}

/* The seed decides how long it takes. */
bool async_add(sim_cluster *cluster, const struct sim_async *a) {
    if (cluster->async_count == cluster->async_capacity) {
        size_t capacity = cluster->async_capacity == 0 ? 64 : cluster->async_capacity * 2;
        struct sim_async *larger = realloc(cluster->async, capacity * sizeof *larger);
        if (larger == NULL) return false;
        cluster->async = larger;
        cluster->async_capacity = capacity;
    }
    cluster->order = cluster->order * 6364136223846793005ull + 1442695040888963407ull;
    cluster->async[cluster->async_count] = *a;
    /* few of them long, most short; arrivals of commits alike */
    cluster->async[cluster->async_count++].delay = a->commit ? (int)(cluster->order >> 62) : (int)(cluster->order >> 40 & 31) << (cluster->order >> 61);
    return true;
}

/* Between CTAs: the source, as that of a store. */
static bool begin_source(struct sim_async *a, size_t align) {
    struct sim_async source = *a;
    source.store = true;
    source.shared = a->source;
    if (!check_shared(a->warp, a->op, a->lane, &source, a->from, align) || !order_read(a->warp, a->op, a->lane, a->source, a->bytes, true)) return false;
    async_set_flags(a->from, a->source, a->bytes, 0, SHADOW_SOURCE);
    return true;
}

/* Notes the copy for each of its targets, or its source. */
bool async_begin(struct sim_async *a, size_t align) {
    sim_cluster *cluster = a->warp->cta->cluster;
    a->early = a->warp->launch->early && (a->warp->waited >> a->lane & 1) == 0;
    if (a->from != NULL && !begin_source(a, align)) return false;
    for (int i = 0; i < cluster->cta_count; i++) {
        sim_cta *cta = &cluster->ctas[i];
        if (a->multicast != 0 ? (a->multicast >> i & 1) == 0 : cta != a->cta) continue;
        if (!check_shared(a->warp, a->op, a->lane, a, cta, align) || (a->mbarrier_cta != NULL && !check_mbarrier(a, cta))) return false;
        const int reader = a->of_launch ? order_unfenced(cta, a->shared, a->bytes) : -1;
        if (reader >= 0 || (a->of_launch && (sim_shadows_of(&cta->shared_shadow[a->shared], a->bytes).any & SHADOW_READ) != 0)) {
            sim_find(a->warp, a->op, a->lane, "a response will come to 0x%" PRIx64 " of shared memory of the CTA of rank %d, where ordinary loads read the one before, with no fence.proxy.async::generic.release (or "
                     "fence.proxy.async) behind them (warp %d)", a->shared, cta->rank, reader > 0 ? reader : 0);
            return false;
        }
        if (cta == a->warp->cta && !(a->store ? order_read : order_write)(a->warp, a->op, a->lane, a->shared, a->bytes, true)) return false;
        async_set_flags(cta, a->shared, a->bytes, 0, a->store ? SHADOW_SOURCE : SHADOW_FLIGHT);
    }
    if (async_add(cluster, a)) return true;
    sim_find(a->warp, a->op, a->lane, "no memory for the list of copies");
    return false;
}

bool sim_async_respond(sim_warp *w, const sim_op *op, int lane, uint64_t address, uint64_t mbarrier, const uint32_t words[4], bool all) {
    struct sim_async a = {.warp = w, .op = op, .lane = lane, .response = true, .of_launch = true, .bytes = 16, .arriving = 16};
    memcpy(a.words, words, sizeof a.words);
    if (all) a.multicast = (1u << w->cta->cluster->cta_count) - 1;
    a.cta = async_shared_side(w, op, lane, address, &a.shared);
    a.mbarrier_cta = async_shared_side(w, op, lane, mbarrier, &a.mbarrier);
    return a.cta != NULL && a.mbarrier_cta != NULL && async_begin(&a, 16);
}

static sim_flow do_copy(sim_warp *w, const sim_op *op, uint32_t mask) {
    const copy_op *c = op->extra;
    sim_cluster *cluster = w->cta->cluster;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left);
        struct sim_async a = {.warp = w, .op = op, .lane = lane, .store = c->store, .tensor = c->tensor, .group = w->bulk_group[lane],
                              .pair = sim_has(&op->mods, SIM_MOD_cta_group_2)};
        uint64_t global = sim_address_of(w, &c->global, lane);
        if (c->tensor) {
            if (!read_map(w, op, lane, global, c->rank, &a.map)) return SIM_STOP;
            for (int i = 0; i < c->coordinates; i++) a.at[i] = ((const int32_t *)sim_row(w, c->at[i]))[lane];
            if (!begin_column(w, op, lane, &a)) return SIM_STOP;
            a.four_rows = c->coordinates > c->rank;
            if (a.four_rows && a.map.box[1] != 1) return sim_find(w, op, lane, "four rows are copied by a tensor map whose box has one, not %u", a.map.box[1]);
            const async_grain *grain = async_grain_of(a.map.type);
            a.bytes = async_box_grains(&a.map) * grain->to * (a.four_rows ? 4 : 1);
            a.arriving = async_box_grains(&a.map) * grain->from * (a.four_rows ? 4 : 1);
            int step = grain->from == grain->to ? grain->elements : 128;
            a.reduces = sim_has(&op->mods, SIM_MOD_reduce);
            if (a.reduces && !async_can_combine(op, a.map.type)) return sim_find(w, op, lane, "tensors of that type (number %d of the driver's) are not combined so", a.map.type);
            if (a.at[0] % step != 0) return sim_find(w, op, lane, "the first coordinate %d of a tensor of small elements is no multiple of %d", a.at[0], step);
            if (a.map.im2col == 0 && a.at[0] * (int64_t)grain->from / grain->elements % 16 != 0)
                return sim_find(w, op, lane, "the first coordinate %d is at no multiple of 16 bytes: an H100 ends so with an illegal instruction", a.at[0]);
            if (a.map.im2col == 0 && c->store && a.at[0] < 0) return sim_find(w, op, lane, "stores begin at %d, in front of the tensor: an H100 ends so with an illegal instruction", a.at[0]);
        } else {
            a.global = global;
            a.bytes = a.arriving = ((const uint32_t *)sim_row(w, c->bytes))[lane];
            a.reduces = sim_has(&op->mods, SIM_MOD_reduce);
            if (c->byte_mask != SIM_NO_ROW) a.bytes_masked = (uint16_t)~((const uint16_t *)sim_row(w, c->byte_mask))[lane];
            if (a.bytes % 16 != 0 || global % 16 != 0) return sim_find(w, op, lane, "bulk copies move multiples of 16 bytes from and to multiples of 16, not %zu at 0x%" PRIx64, a.bytes, global);
        }
        a.cta = async_shared_side(w, op, lane, sim_address_of(w, &c->shared, lane), &a.shared);
        if (a.cta == NULL) return SIM_STOP;
        if (c->mask != SIM_NO_ROW) a.multicast = ((const uint16_t *)sim_row(w, c->mask))[lane];
        if (!c->store) {
            a.mbarrier_cta = async_shared_side(w, op, lane, sim_address_of(w, &c->mbarrier, lane), &a.mbarrier);
            if (a.mbarrier_cta == NULL) return SIM_STOP;
        }
        if (a.multicast >> cluster->cta_count != 0) return sim_find(w, op, lane, "the mask 0x%x names CTAs that a cluster of %d does not have", a.multicast, cluster->cta_count);
        if (!async_begin(&a, c->tensor ? 128 : 16)) return SIM_STOP;
    }
    return SIM_NEXT;
}

/* small: noinc, the arrival is one of those that the mbarrier was made for. */
static sim_flow do_arrival(sim_warp *w, const sim_op *op, uint32_t mask) {
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left);
        struct sim_async a = {.warp = w, .op = op, .lane = lane, .arrival = true, .serial = w->copy_serial};
        uint64_t address = op->address_wide ? ROW(uint64_t, 0)[lane] + (uint64_t)op->offset : (uint32_t)(ROW(uint32_t, 0)[lane] + (uint32_t)op->offset);
        a.mbarrier_cta = async_shared_side(w, op, lane, address, &a.mbarrier);
        if (a.mbarrier_cta == NULL || (op->small == 0 && !sim_mbarrier_await(w, op, lane, a.mbarrier_cta, a.mbarrier))) return SIM_STOP;
        if (!async_add(w->cta->cluster, &a)) return sim_find(w, op, lane, "no memory for the list of copies");
    }
    return SIM_NEXT;
}

sim_handler select_copies_arrive(sim_decoding *d) {
    d->op->small = sim_mod(d, SIM_MOD_noinc);
    return do_arrival;
}

/* ---- groups ---- */

static sim_flow do_commit(sim_warp *w, const sim_op *op, uint32_t mask) {
    (void)op;
    for (int lane = 0; lane < LANES; lane++) w->bulk_group[lane] += mask >> lane & 1;
    return SIM_NEXT;
}

static bool take_source(struct sim_async *a) {
    uint8_t *bytes = malloc(a->bytes + 1);
    if (bytes == NULL) {
        sim_find(a->warp, a->op, a->lane, "no memory for a copy of %zu bytes", a->bytes);
        return false;
    }
    memcpy(bytes, a->cta->shared + a->shared, a->bytes);
    a->read = bytes;
    return release_source(a->warp, a->op, a->cta, a->shared, a->bytes);
}

/* Copies that are waited for are done now, at the latest; with .read (small), their source is read, and the target is written later. */
static sim_flow do_wait(sim_warp *w, const sim_op *op, uint32_t mask) {
    sim_cluster *cluster = w->cta->cluster;
    for (size_t i = 0; i < cluster->async_count && !cluster->stopped;) {
        const struct sim_async *a = &cluster->async[i];
        bool mine = a->store && a->warp == w && (mask >> a->lane & 1) != 0;
        bool awaited = mine && a->group + ROW(uint32_t, 0)[a->lane] < w->bulk_group[a->lane];
        if (awaited && op->small != 0 && a->read == NULL && !take_source(&cluster->async[i])) return SIM_STOP;
        if (awaited && op->small == 0) finish_at(cluster, i);
        else i++;
    }
    if (cluster->stopped || !release_sources(w, mask, ROW(uint32_t, 0))) return SIM_STOP;
    return SIM_NEXT;
}

sim_handler select_bulk_commit(sim_decoding *d) {
    (void)d;
    return do_commit;
}

sim_handler select_bulk_wait(sim_decoding *d) {
    d->op->small = sim_mod(d, SIM_MOD_read);
    return do_wait;
}

/* ---- decoding ---- */

static dw_status decode_coordinates(sim_decoding *d, const ptx_operand *o, copy_op *c) {
    const bool four = sim_mod(d, SIM_MOD_gather4) || sim_mod(d, SIM_MOD_scatter4);
    if (four && c->rank != 2) return sim_decode_fail(d, DW_UNSUPPORTED, "four rows are those of a tensor of two dimensions");
    c->coordinates = four ? 5 : c->rank;
    if (o->kind != PTX_OPERAND_ADDRESS || o->count != 2 || o->items[1].kind != PTX_OPERAND_VECTOR || o->items[1].count != c->coordinates) {
        return sim_decode_fail(d, DW_SYNTAX, "expected [tensor map, {%d coordinates}]", c->coordinates);
    }
    for (int i = 0; i < c->coordinates; i++) TRY(sim_decode_source(d, &o->items[1].items[i], PTX_s32, &c->at[i]));
    return DW_OK;
}

/* Of .im2col: a vector of an offset for each dimension but the first and the last, which a load has. */
static dw_status decode_offsets(sim_decoding *d, copy_op *c, int *next) {
    const ptx_instruction *in = d->instruction;
    if (!c->im2col) return DW_OK;
    if (c->rank < 3) return sim_decode_fail(d, DW_SYNTAX, "im2col is of tensors of 3 to 5 dimensions");
    if (c->store) return DW_OK;
    const ptx_operand *o = *next < in->count ? &in->operands[(*next)++] : NULL;
    c->offset_count = c->rank - 2;
    if (o == NULL || o->kind != PTX_OPERAND_VECTOR || o->count != c->offset_count) return sim_decode_fail(d, DW_SYNTAX, "expected {%d offsets} behind the mbarrier", c->offset_count);
    for (int i = 0; i < o->count; i++) TRY(sim_decode_source(d, &o->items[i], PTX_u16, &c->offsets[i]));
    return DW_OK;
}

static sim_handler select_copy(sim_decoding *d, bool tensor, bool store) {
    const ptx_instruction *in = d->instruction;
    copy_op *c = sim_decode_new(d, sizeof *c);
    int next = 2;
    if (c == NULL) return NULL;
    *c = (copy_op){.tensor = tensor, .store = store, .im2col = sim_mod(d, SIM_MOD_im2col) || sim_mod(d, SIM_MOD_im2col_no_offs), .mask = SIM_NO_ROW, .bytes = SIM_NO_ROW, .byte_mask = SIM_NO_ROW};
    for (int i = 0; i < 5; i++) {
        if (sim_mod(d, (sim_modifier)(SIM_MOD_d1 + i))) c->rank = i + 1;
    }
    if (in->count < (tensor ? 2 : 3) + !store) {
        d->why = "too few operands";
        return NULL;
    }
    const ptx_operand *shared = &in->operands[store ? 1 : 0], *global = &in->operands[store ? 0 : 1];
    if (tensor && decode_coordinates(d, global, c) != DW_OK) return NULL;
    if (!tensor && sim_decode_source(d, &in->operands[next++], PTX_u32, &c->bytes) != DW_OK) return NULL;
    if (sim_decode_place(d, shared, PTX_SHARED, &c->shared) != DW_OK || sim_decode_place(d, global, tensor ? PTX_GENERIC : PTX_GLOBAL, &c->global) != DW_OK) return NULL;
    if (!store && sim_decode_place(d, &in->operands[next++], PTX_SHARED, &c->mbarrier) != DW_OK) return NULL;
    if (decode_offsets(d, c, &next) != DW_OK) return NULL;
    if (sim_mod(d, SIM_MOD_multicast_cluster) && (next >= in->count || sim_decode_source(d, &in->operands[next++], PTX_u16, &c->mask) != DW_OK)) return NULL;
    if (sim_mod(d, SIM_MOD_cp_mask) && (next >= in->count || sim_decode_source(d, &in->operands[in->count - 1], PTX_b16, &c->byte_mask) != DW_OK)) return NULL;
    if (in->count > next + 1 + (c->byte_mask != SIM_NO_ROW)) {   /* one more: a cache policy */
        d->why = "too many operands";
        return NULL;
    }
    d->op->extra = c;
    return do_copy;
}

sim_handler select_bulk_load(sim_decoding *d) { return select_copy(d, false, false); }
sim_handler select_bulk_store(sim_decoding *d) { return select_copy(d, false, true); }
sim_handler select_bulk_reduce(sim_decoding *d) {
    d->code->talks = true;   /* who adds first counts */
    return sim_decode_combination(d) ? select_copy(d, false, true) : NULL;
}
sim_handler select_tensor_load(sim_decoding *d) { return select_copy(d, true, false); }
sim_handler select_tensor_reduce(sim_decoding *d) {
    d->code->talks = true;   /* who adds first counts */
    return select_copy(d, true, true);
}
sim_handler select_tensor_store(sim_decoding *d) { return select_copy(d, true, true); }
