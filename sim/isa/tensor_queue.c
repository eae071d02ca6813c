/* What tensor cores have been given and have not finished: mma, cp, shift, and the commits that complete mbarriers at their end. Done in the order of
 * issue, some turns later, as the seed has it (PTX ISA 9.7.16.6.2: more than it promises is an order that production kernels rely on). */
#include "async.h"
#include "tmem.h"
#include "sim/machine/order.h"

#include <stdlib.h>

struct sim_tensor_queue { tensor_task *tasks; size_t count, capacity; };

/* ---- shared memory that is read ---- */

void tensor_hold_chunk(sim_cta *cta, uint32_t offset, int change) {
    if (offset + 16 > cta->shared_bytes) return;
    if (cta->tensor_reads == NULL) cta->tensor_reads = calloc(cta->shared_bytes / 16 + 1, sizeof *cta->tensor_reads);
    if (cta->tensor_reads == NULL) return;
    cta->tensor_reads[offset / 16] = (uint16_t)(cta->tensor_reads[offset / 16] + change);
    const uint64_t each = 0x0101010101010101ull, held = cta->tensor_reads[offset / 16] != 0 ? SHADOW_TENSOR * each : 0;
    uint64_t shadows[2];
    memcpy(shadows, &cta->shared_shadow[offset], sizeof shadows);
    for (int i = 0; i < 2; i++) shadows[i] = (shadows[i] & ~(SHADOW_TENSOR * each)) | held;
    memcpy(&cta->shared_shadow[offset], shadows, sizeof shadows);
}

bool tensor_check_chunk(const tensor_task *task, const sim_cta *cta, uint32_t offset, const char *what) {
    if (offset < SIM_SHARED_RESERVED || offset + 16 > cta->shared_bytes) {
        sim_find(task->warp, task->op, task->lane, "%s lies at 0x%x of shared memory, and the CTA has 0x%x to 0x%zx: check the descriptor", what, offset, SIM_SHARED_RESERVED,
                 cta->shared_bytes);
        return false;
    }
    uint8_t any = sim_shadows_of(&cta->shared_shadow[offset], 16).any;
    const char *why = (any & SHADOW_FLIGHT) != 0 ? "an asynchronous copy still writes: wait for its mbarrier first"
                      : (any & SHADOW_GENERIC) != 0 && !task->warp->launch->options->proxies_one ? "ordinary stores wrote, with no fence.proxy.async behind them"
                      : !order_knows_copy(task->warp, cta, offset) ? "an asynchronous copy wrote, and the warp has not waited for its mbarrier: that it was done was luck" : NULL;
    const int writer = why == NULL && !task->warp->launch->options->proxies_one ? order_unfenced_store(task->warp, cta, offset, 16) : -1;
    if (writer >= 0) sim_find(task->warp, task->op, task->lane, "%s lies at 0x%x of CTA %d's shared memory, where warp %d stored, and what orders the two has no fence.proxy.async in it", what, offset, cta->rank, writer);
    if (why == NULL) return writer < 0;
    sim_find(task->warp, task->op, task->lane, "%s lies at 0x%x of CTA %d's shared memory, which %s", what, offset, cta->rank, why);
    return false;
}

/* ---- issuing ---- */

bool tensor_begin(sim_warp *w, const sim_op *op, int lane, tensor_task *task) {
    task->warp = w;
    task->op = op;
    task->lane = lane;
    task->ctas[0] = w->cta;
    if (!tmem_check_group(w, op, lane)) return false;
    if (!sim_has(&op->mods, SIM_MOD_cta_group_2)) return true;
    sim_cta *peer = tmem_peer(w, op, lane);
    if (peer == NULL) return false;
    task->ctas[0] = w->cta->rank < peer->rank ? w->cta : peer;
    task->ctas[1] = w->cta->rank < peer->rank ? peer : w->cta;
    if (peer->warps_live > 0) return true;
    sim_find(w, op, lane, "works on both CTAs of the pair, and CTA %d has ended: it may only end when nobody uses its memory any more", peer->rank);
    return false;
}

bool tensor_check_uses(const tensor_task *task) {
    for (int i = 0; i < 2 && task->ctas[i] != NULL; i++) {
        for (int k = 0; k < task->use_count; k++) {
            const tensor_use *use = &task->uses[k];
            if (!tmem_check_area(task->warp, task->op, task->lane, task->ctas[i], &use->area, "the operation")) return false;
            if (!tmem_check_accesses(task->warp, task->op, task->lane, task->ctas[i], &use->area, use->writes, "the operation")) return false;
            if (!tmem_check_order(task->warp, task->op, task->lane, task->ctas[i], &use->area, use->writes, true)) return false;
        }
    }
    return true;
}

/* ---- the queue ---- */

bool tensor_issue(const tensor_task *task) {
    sim_cluster *cluster = task->warp->cta->cluster;
    if (cluster->tensor == NULL) cluster->tensor = calloc(1, sizeof *cluster->tensor);
    struct sim_tensor_queue *q = cluster->tensor;
    if (q != NULL && q->count == q->capacity) {
        size_t capacity = q->capacity == 0 ? 64 : q->capacity * 2;
        tensor_task *larger = realloc(q->tasks, capacity * sizeof *larger);
        if (larger != NULL) {
            q->tasks = larger;
            q->capacity = capacity;
        }
    }
    if (q == NULL || q->count == q->capacity) {
        sim_find(task->warp, task->op, task->lane, "no memory for the list of tensor operations");
        return false;
    }
    tensor_task *t = &q->tasks[q->count++];
    *t = *task;
    cluster->order = cluster->order * 6364136223846793005ull + 1442695040888963407ull;
    t->delay = t->run == NULL ? 1 + (int)(cluster->order >> 61) : (int)(cluster->order >> 63);
    if (t->run == NULL) t->since = order_now(t->warp);
    if (t->hold != NULL) t->hold(t, 1);
    return true;
}

const tensor_task *tensor_conflict(const sim_cta *cta, const tmem_area *area, bool writes) {
    const struct sim_tensor_queue *q = cta->cluster->tensor;
    for (size_t i = 0; q != NULL && i < q->count; i++) {
        const tensor_task *t = &q->tasks[i];
        if (t->ctas[0] != cta && t->ctas[1] != cta) continue;
        for (int k = 0; k < t->use_count; k++) {
            if ((t->uses[k].writes || writes) && tmem_overlap(&t->uses[k].area, area)) return t;
        }
    }
    return NULL;
}

static void remove_task(struct sim_tensor_queue *q, size_t i) { memmove(&q->tasks[i], &q->tasks[i + 1], (--q->count - i) * sizeof *q->tasks); }

/* The commit is the first of its CTA that is not done: all before it of its thread may be relied upon where it arrives, at one CTA sooner than at another. */
static bool complete(sim_cluster *cluster, size_t commit) {
    struct sim_tensor_queue *q = cluster->tensor;
    tensor_task c = q->tasks[commit];
    for (size_t i = 0; i < commit;) {
        tensor_task *t = &q->tasks[i];
        if (t->warp != c.warp || t->lane != c.lane || !t->done) {
            i++;
            continue;
        }
        if (t->hold != NULL) t->hold(t, -1);
        for (int k = 0; k < 2 * t->use_count; k++) {
            if (t->ctas[k % 2] != NULL) tmem_finished(t->ctas[k % 2], &t->uses[k / 2].area, t->uses[k / 2].writes, c.warp, c.since != NULL ? c.since[c.warp->index] : 0);
        }
        remove_task(q, i);
        commit--;
    }
    remove_task(q, commit);
    bool good = true;
    for (int i = 0; i < cluster->cta_count && good; i++) {
        const bool told = c.multicast != 0 ? (c.multicast >> i & 1) != 0 : &cluster->ctas[i] == c.mbarrier_cta;
        if (!told) continue;
        const struct sim_async arrival = {.warp = c.warp, .op = c.op, .lane = c.lane, .commit = true, .since = order_copy(c.since), .mbarrier_cta = &cluster->ctas[i], .mbarrier = c.mbarrier};
        good = async_add(cluster, &arrival);
        if (!good) sim_find(c.warp, c.op, c.lane, "no memory for the list of arrivals");
    }
    free(c.since);
    return good;
}

/* Goes on with what is under way; all: to its end. true: something happened, or still can. */
static bool step(sim_cluster *cluster, bool all) {
    struct sim_tensor_queue *q = cluster->tensor;
    uint32_t blocked = 0;   /* CTAs with something unfinished that those behind it wait for */
    bool progress = false;
    for (size_t i = 0; q != NULL && i < q->count && !cluster->stopped;) {
        tensor_task *t = &q->tasks[i];
        uint32_t self = 1u << t->ctas[0]->rank;
        if (t->done) {
            i++;
            continue;
        }
        progress = true;
        cluster->changes++;
        if ((blocked & self) != 0 || (!all && t->delay-- > 0)) {
            blocked |= self;
            i++;
            continue;
        }
        if (t->run == NULL) {
            size_t before = q->count;
            complete(cluster, i);
            i = i + 1 - (before - q->count);
            continue;
        }
        t->done = true;
        t->run(t);
        i++;
    }
    return progress;
}

/* Tensor cores hand their commits on to the list of copies, so they stand behind it. */
bool sim_async_step(sim_cluster *cluster, bool all) {
    const bool copies = async_finish_some(cluster, all), products = step(cluster, all);
    return copies || products || (!all && cluster->async_count > 0);
}

void sim_tensor_free(sim_cluster *cluster) {
    for (size_t i = 0; cluster->tensor != NULL && i < cluster->tensor->count; i++) free(cluster->tensor->tasks[i].since);
    if (cluster->tensor != NULL) free(cluster->tensor->tasks);
    free(cluster->tensor);
    cluster->tensor = NULL;
}
