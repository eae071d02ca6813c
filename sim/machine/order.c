/* Races between warps of a CTA in its shared memory. Each warp has a vector of clocks, which barriers and mbarriers pass on. A word has its last writer, and each warp's last
 * read. The copies that an
 * mbarrier counts are as one more warp: who has waited for it knows what they wrote. Among one warp's lanes, a read after another lane's write is followed up to the next place where lanes meet. Words of other CTAs and accesses of less than 4
 * bytes are not followed. */
#include "order.h"
#include "race.h"

#include <stdlib.h>

/* readers: [warps][words]. lanes: which lane wrote a word last (less than 32), and in which of its warp's turns (above): one ends where its lanes meet, or order is made. tensor: when each warp used a unit of tensor memory last. through: what ordered accesses and atomics hand on, and what goes by other CTAs of the cluster. */
/* arrived: of each 16 bytes, which copy brought them last, by the number of the mbarrier that counts it and its time, and told: the rank of that mbarrier's CTA. copies: of each mbarrier, how many were done.
 * fenced: of each warp, up to when a proxy fence stands behind what it did, and fenced_stores behind its stores. fences: of each warp, of tensor memory. */
struct sim_order {
    int warps;
    size_t words;
    uint32_t (*now)[ORDER_CLOCKS];
    uint32_t barriers[SIM_BARRIERS][ORDER_CLOCKS];
    uint32_t through[ORDER_CLOCKS];
    struct handed { uint64_t offset; bool remote; uint32_t clock[ORDER_CLOCKS]; } *mbarriers;
    size_t mbarrier_count, mbarrier_capacity;
    uint32_t *writers, *readers, *arrived, copies[ORDER_COPIES];
    uint8_t *told;
    uint32_t *lanes, turns[SIM_MAX_WARPS], fenced[ORDER_CLOCKS], fenced_stores[ORDER_CLOCKS];
    uint32_t tensor[ORDER_TENSOR_UNITS][ORDER_CLOCKS];
    struct tensor_order *fences;
};

/* Numbers in their order. */
typedef struct marks { uint32_t *numbers; size_t count, capacity; bool lost; } marks;

/* A warp's waits for loads and for stores of tensor memory, its fences in front of what it tells others, and what it knew when it last executed one behind what others told. */
struct tensor_order { marks waits[2], before; uint32_t after[ORDER_CLOCKS]; };

void order_start(sim_cta *cta) {
    const sim_launch *l = cta->launch;
    if (!l->options->races || cta->warp_count < 2 || cta->shared_bytes <= SIM_SHARED_RESERVED) return;
    struct sim_order *o = calloc(1, sizeof *o);
    size_t words = cta->shared_bytes / 4 + 1;
    if (o == NULL) return;   /* no room to watch: nothing is reported */
    o->warps = cta->warp_count;
    o->words = words;
    o->now = calloc((size_t)o->warps, sizeof *o->now);
    o->writers = calloc(words, sizeof *o->writers);
    o->readers = calloc(words * (size_t)o->warps, sizeof *o->readers);
    o->lanes = calloc(words, sizeof *o->lanes);
    o->arrived = calloc(words / 4 + 1, sizeof *o->arrived);
    o->told = calloc(words / 4 + 1, sizeof *o->told);
    o->fences = calloc((size_t)o->warps, sizeof *o->fences);
    if (o->fences == NULL || o->now == NULL || o->writers == NULL || o->readers == NULL || o->lanes == NULL || o->arrived == NULL || o->told == NULL) {
        cta->order = o;
        order_free(cta);
        return;
    }
    for (int i = 0; i < o->warps; i++) o->now[i][i] = o->turns[i] = 1;
    cta->order = o;
}

void order_free(sim_cta *cta) {
    struct sim_order *o = cta->order;
    if (o == NULL) return;
    free(o->now);
    free(o->writers);
    free(o->readers);
    free(o->lanes);
    free(o->arrived);
    free(o->told);
    for (int i = 0; i < o->warps && o->fences != NULL; i++) {
        free(o->fences[i].waits[0].numbers);
        free(o->fences[i].waits[1].numbers);
        free(o->fences[i].before.numbers);
    }
    free(o->fences);
    free(o->mbarriers);
    free(o);
    cta->order = NULL;
}

static void join(uint32_t *to, const uint32_t *from) {
    for (int i = 0; i < ORDER_CLOCKS; i++) to[i] = to[i] > from[i] ? to[i] : from[i];
}

static void release(struct sim_order *o, int warp, uint32_t *clock) {
    o->turns[warp]++;
    join(clock, o->now[warp]);
    o->now[warp][warp]++;
}

/* ---- what hands order on ---- */

void order_lanes_meet(sim_warp *w) {
    if (w->cta->order != NULL) w->cta->order->turns[w->index]++;
}

void order_release(sim_warp *w, uint32_t clock[ORDER_CLOCKS]) {
    if (w->cta->order != NULL) release(w->cta->order, w->index, clock);
}

void order_join(uint32_t to[ORDER_CLOCKS], const uint32_t from[ORDER_CLOCKS]) { join(to, from); }

void order_acquire(sim_warp *w, const uint32_t clock[ORDER_CLOCKS]) {
    if (w->cta->order != NULL) join(w->cta->order->now[w->index], clock);
}

void order_barrier_arrive(sim_warp *w, int barrier) {
    if (w->cta->order != NULL) release(w->cta->order, w->index, w->cta->order->barriers[barrier]);
}

void order_barrier_pass(sim_warp *w, int barrier) {
    if (w->cta->order != NULL) join(w->cta->order->now[w->index], w->cta->order->barriers[barrier]);
}

static struct handed *of_mbarrier(struct sim_order *o, uint64_t offset) {
    for (size_t i = 0; i < o->mbarrier_count; i++) {
        if (o->mbarriers[i].offset == offset) return &o->mbarriers[i];
    }
    if (o->mbarrier_count == o->mbarrier_capacity) {
        size_t capacity = o->mbarrier_capacity == 0 ? 32 : o->mbarrier_capacity * 2;
        struct handed *larger = realloc(o->mbarriers, capacity * sizeof *larger);
        if (larger == NULL) return NULL;
        o->mbarriers = larger;
        o->mbarrier_capacity = capacity;
    }
    o->mbarriers[o->mbarrier_count] = (struct handed){.offset = offset};
    return &o->mbarriers[o->mbarrier_count++];
}

uint32_t *order_now(sim_warp *w) {
    struct sim_order *o = w->cta->order;
    uint32_t *clock = o != NULL ? calloc(ORDER_CLOCKS, sizeof *clock) : NULL;
    if (clock != NULL) release(o, w->index, clock);
    return clock;
}

uint32_t *order_copy(const uint32_t *clock) {
    uint32_t *copy = clock != NULL ? malloc(ORDER_CLOCKS * sizeof *copy) : NULL;
    if (copy != NULL) memcpy(copy, clock, ORDER_CLOCKS * sizeof *copy);
    return copy;
}

void order_mbarrier_arrive(sim_warp *w, sim_cta *cta, uint64_t offset, const uint32_t *since) {
    if (w->cta != cta) race_cluster_release(w);
    struct handed *m = cta->order != NULL ? of_mbarrier(cta->order, offset) : NULL;
    if (m == NULL) return;
    if (w->cta == cta) {
        if (since != NULL) join(m->clock, since);
        else release(cta->order, w->index, m->clock);
        return;
    }
    m->remote = true;
    if (since != NULL) join(w->cta->order->through, since);
    else order_through(w);
}

void order_mbarrier_pass(sim_warp *w, sim_cta *cta, uint64_t offset) {
    race_cluster_acquire(w);
    struct sim_order *o = w->cta->order;
    if (o == NULL) return;
    o->turns[w->index]++;
    struct handed *m = cta == w->cta ? of_mbarrier(o, offset) : NULL;
    if (m != NULL) join(o->now[w->index], m->clock);
    if (m == NULL || m->remote) join(o->now[w->index], o->through);
}

void order_through(sim_warp *w) {
    struct sim_order *o = w->cta->order;
    if (o == NULL) return;
    join(o->now[w->index], o->through);
    release(o, w->index, o->through);
}

void order_arrived(sim_cta *cta, uint64_t offset, size_t bytes, const sim_cta *told, uint64_t mbarrier) {
    struct sim_order *o = cta->order, *other = told->order;
    struct handed *m = o != NULL && other != NULL ? of_mbarrier(other, mbarrier) : NULL;
    const size_t number = m != NULL ? (size_t)(m - other->mbarriers) : ORDER_COPIES;
    uint32_t stamp = 0;   /* of more mbarriers copies are not followed */
    if (o == NULL) return;
    if (number < ORDER_COPIES) {
        const uint32_t writer = SIM_MAX_WARPS + (uint32_t)number;
        m->clock[writer] = ++other->copies[number];
        stamp = other->copies[number] << ORDER_WARP_BITS | writer;
    }
    for (size_t word = offset / 4; word < (offset + bytes) / 4; word++) o->writers[word] = told == cta ? stamp : 0;
    for (size_t chunk = offset / 16; chunk < (offset + bytes) / 16; chunk++) {
        o->arrived[chunk] = stamp;
        o->told[chunk] = (uint8_t)told->rank;
    }
}

bool order_knows_copy(const sim_warp *w, const sim_cta *cta, uint64_t offset) {
    const struct sim_order *mine = w->cta->order, *theirs = cta->order;
    if (mine == NULL || theirs == NULL || theirs->told[offset / 16] != w->cta->rank) return true;
    const uint32_t stamp = theirs->arrived[offset / 16];
    return mine->now[w->index][stamp & ORDER_WRITER_MASK] >= stamp >> ORDER_WARP_BITS;
}

void order_fence(sim_warp *w, bool stores) {
    struct sim_order *o = w->cta->order;
    if (o == NULL) return;
    join(o->fenced, o->now[w->index]);
    for (int i = 0; i < SIM_MAX_WARPS && stores; i++) o->now[w->index][ORDER_FENCED + i] = o->now[w->index][i];
    if (stores) join(o->fenced_stores, o->now[w->index]);
    o->now[w->index][w->index]++;
}

int order_unfenced(const sim_cta *cta, uint64_t offset, size_t bytes) {
    const struct sim_order *o = cta->order;
    for (size_t word = offset / 4; o != NULL && word < (offset + bytes) / 4; word++) {
        for (int i = 0; i < o->warps; i++) {
            if (o->readers[(size_t)i * o->words + word] > o->fenced[i]) return i;
        }
    }
    return -1;
}

int order_unfenced_store(const sim_warp *w, const sim_cta *cta, uint64_t offset, size_t bytes) {
    const struct sim_order *o = cta->order;
    const uint32_t *fenced = o == NULL ? NULL : cta == w->cta ? o->now[w->index] + ORDER_FENCED : o->fenced_stores;
    for (size_t word = offset / 4; o != NULL && word < (offset + bytes) / 4; word++) {
        const uint32_t writer = o->writers[word] & ORDER_WRITER_MASK;
        if (writer < SIM_MAX_WARPS && o->writers[word] >> ORDER_WARP_BITS > fenced[writer]) return (int)writer;
    }
    return -1;
}

void order_forget(sim_cta *cta, uint64_t offset, size_t bytes) {
    struct sim_order *o = cta->order;
    for (size_t word = offset / 4; o != NULL && word < (offset + bytes + 3) / 4; word++) o->writers[word] = 0;
}

/* ---- accesses ---- */

static bool find(sim_warp *w, const sim_op *op, int lane, uint64_t offset, const char *does, int other, const char *did) {
    if (other >= SIM_MAX_WARPS) sim_find(w, op, lane, "%s shared memory at 0x%llx, which an asynchronous copy wrote, and has not waited for its mbarrier: that it was done was luck", does, (unsigned long long)offset);
    else sim_find(w, op, lane, "%s shared memory at 0x%llx, which warp %d %s with nothing that orders the two: a race; a barrier must stand between", does, (unsigned long long)offset, other, did);
    return false;
}

static bool is_before(const struct sim_order *o, int warp, uint32_t writer) {
    int other = (int)(writer & ORDER_WRITER_MASK);
    return writer == 0 || other == warp || o->now[warp][other] >= writer >> ORDER_WARP_BITS;
}

/* Did another lane of the warp write the word in this turn? */
static bool is_lane_race(const struct sim_order *o, int warp, int lane, size_t word) {
    return lane >= 0 && o->writers[word] != 0 && (int)(o->writers[word] & ORDER_WRITER_MASK) == warp && o->lanes[word] >> ORDER_WARP_BITS == (o->turns[warp] & (UINT32_MAX >> ORDER_WARP_BITS)) &&
           (int)(o->lanes[word] & (LANES - 1)) != lane;
}

bool order_may_read(sim_warp *w, int lane, int lanes, uint64_t offset, size_t bytes) {
    struct sim_order *o = w->cta->order;
    if (o == NULL) return true;
    size_t each = bytes / (size_t)lanes;
    uint32_t *readers = &o->readers[(size_t)w->index * o->words], now = o->now[w->index][w->index];
    for (size_t word = offset / 4; word < (offset + bytes) / 4; word++) {
        if (!is_before(o, w->index, o->writers[word]) || is_lane_race(o, w->index, lane + (int)((word * 4 - offset) / each), word)) return false;
        readers[word] = now;
    }
    return true;
}

bool order_read(sim_warp *w, const sim_op *op, int lane, uint64_t offset, size_t bytes, bool asynchronous) {
    struct sim_order *o = w->cta->order;
    if (o == NULL || bytes < 4) return true;
    const uint32_t now = o->now[w->index][w->index];
    uint32_t *readers = &o->readers[(size_t)w->index * o->words], known = 0;   /* known: a writer that came before */
    for (size_t word = offset / 4; word < (offset + bytes) / 4; word++) {
        const uint32_t writer = o->writers[word];
        if (writer != known && !is_before(o, w->index, writer)) return find(w, op, lane, word * 4, asynchronous ? "copies from" : "reads", (int)(writer & ORDER_WRITER_MASK), "wrote");
        known = writer;
        if (asynchronous) continue;
        if (is_lane_race(o, w->index, lane, word)) {
            sim_find(w, op, lane, "reads shared memory at 0x%llx, which lane %u of its warp wrote with nothing between: a race, since lanes need not go on together; bar.warp.sync or a barrier must stand between",
                     (unsigned long long)(word * 4), o->lanes[word] & (LANES - 1));
            return false;
        }
        readers[word] = now;
    }
    return true;
}

order_reader order_reader_of(sim_warp *w) {
    struct sim_order *o = w->cta->order;
    if (o == NULL) return (order_reader){0};
    return (order_reader){o->writers, o->now[w->index], &o->readers[(size_t)w->index * o->words]};
}

bool order_tensor(sim_warp *w, const sim_op *op, int first, int count, bool frees) {
    struct sim_order *o = w->cta->order;
    for (int unit = first; o != NULL && unit < first + count && unit < ORDER_TENSOR_UNITS; unit++) {
        o->tensor[unit][w->index] = o->now[w->index][w->index];
        for (int i = 0; i < o->warps && frees; i++) {
            if (i == w->index || o->tensor[unit][i] <= o->now[w->index][i]) continue;
            sim_find(w, op, -1, "gives back column %d of tensor memory, which warp %d loads or stores with nothing that orders the two: a barrier must stand between", unit * 32, i);
            return false;
        }
    }
    return true;
}

/* ---- tensor memory between threads ---- */

uint32_t order_tensor_touch(sim_warp *w) {
    struct sim_order *o = w->cta->order;
    return o != NULL ? o->now[w->index][w->index]++ : 0;
}

static void mark(marks *m, uint32_t number) {
    if (m->count == m->capacity) {
        const size_t capacity = m->capacity == 0 ? 64 : m->capacity * 2;
        uint32_t *larger = realloc(m->numbers, capacity * sizeof *larger);
        m->lost = m->lost || larger == NULL;
        if (larger == NULL) return;
        m->numbers = larger;
        m->capacity = capacity;
    }
    m->numbers[m->count++] = number;
}

void order_tensor_wait(sim_warp *w, bool stores) {
    struct sim_order *o = w->cta->order;
    if (o != NULL) mark(&o->fences[w->index].waits[stores], order_tensor_touch(w));
}

void order_tensor_fence(sim_warp *w, bool after) {
    struct sim_order *o = w->cta->order;
    if (o == NULL) return;
    if (after) memcpy(o->fences[w->index].after, o->now[w->index], sizeof o->fences[w->index].after);
    else mark(&o->fences[w->index].before, order_tensor_touch(w));
}

/* The first number beyond another; UINT32_MAX: there is none. */
static uint32_t first_beyond(const marks *m, uint32_t number) {
    size_t low = 0, high = m->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (m->numbers[middle] > number) high = middle;
        else low = middle + 1;
    }
    return low < m->count ? m->numbers[low] : UINT32_MAX;
}

order_gap order_tensor_gap(const sim_warp *w, const sim_warp *other, uint32_t number, bool stored, bool waits) {
    const struct sim_order *o = w->cta->order;
    if (o == NULL || number == 0) return ORDER_WHOLE;
    const struct tensor_order *theirs = &o->fences[other->index];
    const uint32_t known = o->now[w->index][other->index], waited = waits ? first_beyond(&theirs->waits[stored], number) : number, fenced = waited == UINT32_MAX ? waited : first_beyond(&theirs->before, waited);
    if (theirs->waits[stored].lost || theirs->before.lost || o->fences[w->index].after[other->index] >= fenced) return ORDER_WHOLE;
    return known < waited ? ORDER_NO_WAIT : known < fenced ? ORDER_NO_BEFORE : ORDER_NO_AFTER;
}

bool order_tensor_knows(const sim_warp *w, const sim_warp *other, uint32_t time) {
    const struct sim_order *o = w->cta->order;
    return o == NULL || other == w || other->cta != w->cta || o->fences[w->index].after[other->index] >= time;
}

bool order_write(sim_warp *w, const sim_op *op, int lane, uint64_t offset, size_t bytes, bool asynchronous) {
    struct sim_order *o = w->cta->order;
    if (o == NULL || bytes < 4) return true;
    for (size_t word = offset / 4; word < (offset + bytes) / 4; word++) {
        const uint32_t *readers = &o->readers[word];
        const char *does = asynchronous ? "copies to" : "writes";
        if (!is_before(o, w->index, o->writers[word])) return find(w, op, lane, word * 4, does, (int)(o->writers[word] & ORDER_WRITER_MASK), "wrote");
        for (int i = 0; i < o->warps; i++) {
            if (i != w->index && readers[(size_t)i * o->words] > o->now[w->index][i]) return find(w, op, lane, word * 4, does, i, "read");
        }
        o->lanes[word] = lane < 0 ? 0 : o->turns[w->index] << ORDER_WARP_BITS | (uint32_t)lane;
        o->writers[word] = asynchronous ? 0 : o->now[w->index][w->index] << ORDER_WARP_BITS | (uint32_t)w->index;
    }
    return true;
}
