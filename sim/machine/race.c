/* Races between CTAs in global memory. Each CTA has a clock, which advances when it releases what it did; and, for every other CTA, the time up to which all that one did came before. A
 * word has its last writer, its last reader and the reader before that, each with its time. Two accesses by different CTAs, one of them a write, must be ordered: by a release and an acquire at
 * one place, by relaxed or volatile accesses with fences around them, or by the cluster. Threads of a CTA count as one: what one of them has released or acquired, all have. Of three
 * and more readers, two are remembered. Ordered and volatile loads, and stores of what is there already, are no race. */
#include "race.h"

#include <inttypes.h>
#include <stdlib.h>

/* A stamp: launch, time, CTA + 1, whether it was atomic, and which of the 4 bytes. */
enum { MASK_BITS = 4, CTA_BITS = 21, TIME_BITS = 20, LAUNCH_BITS = 64 - TIME_BITS - CTA_BITS - 1 - MASK_BITS, MAX_TIME = (1 << TIME_BITS) - 1 };
enum { CTA_SHIFT = MASK_BITS + 1, TIME_SHIFT = CTA_SHIFT + CTA_BITS, LAUNCH_SHIFT = TIME_SHIFT + TIME_BITS };
#define STAMP_MASK 15ull
#define STAMP_ATOMIC 16ull
#define CLOCK_ROOM ((size_t)1 << 29)   /* bytes of clocks in a launch; beyond, nothing is watched any more */

/* What ordered accesses to some 16 bytes hand on: times of all CTAs, by number. */
typedef struct sim_handed { uint64_t key; uint32_t *clock; } sim_handed;
struct sim_race { sim_handed *places; size_t count, capacity, bytes; bool full; };

/* known, seen: of all CTAs of the grid, made when the first order comes; seen becomes known by a fence. */
struct sim_cta_race { uint32_t time, fenced; bool dirty; uint32_t *known, *seen; uint32_t cluster[SIM_MAX_CLUSTER]; };

static uint64_t stamp_cta(uint64_t stamp) { return stamp >> CTA_SHIFT & ((1u << CTA_BITS) - 1); }
static uint32_t stamp_time(uint64_t stamp) { return (uint32_t)(stamp >> TIME_SHIFT & MAX_TIME); }
static uint64_t launch_bits(const sim_launch *l) { return l->epoch & ((1ull << LAUNCH_BITS) - 1); }

void race_watch(sim_allocation *a) {
    if (a->cells == NULL && !a->read_only) a->cells = calloc(a->bytes / 4 + 1, sizeof *a->cells);
}

bool race_must_clear(uint64_t epoch) { return (epoch & ((1ull << LAUNCH_BITS) - 1)) == 0; }

void race_clear(sim_allocation *a) {
    free((void *)a->cells);
    a->cells = NULL;
}

/* ---- clocks ---- */

static size_t cta_count(const sim_launch *l) { return (size_t)l->grid[0] * l->grid[1] * l->grid[2]; }

void race_start(sim_cta *cta) {
    if (!cta->launch->options->races || cta_count(cta->launch) < 2) return;
    cta->race = calloc(1, sizeof *cta->race);
    if (cta->race != NULL) cta->race->time = 1;
}

static void release_clock(sim_launch *l, uint32_t *clock) {
    if (clock != NULL) l->race->bytes -= cta_count(l) * sizeof *clock;
    free(clock);
}

void race_free(sim_cta *cta) {
    struct sim_cta_race *r = cta->race;
    if (r == NULL) return;
    release_clock(cta->launch, r->known);
    release_clock(cta->launch, r->seen);
    free(r);
    cta->race = NULL;
}

void race_end(sim_launch *l) {
    for (size_t i = 0; l->race != NULL && i < l->race->capacity; i++) free(l->race->places[i].clock);
    if (l->race != NULL) free(l->race->places);
    free(l->race);
    l->race = NULL;
}

/* Only launches whose CTAs run in one thread have clocks of the whole grid. NULL: no room, and nothing is watched from here on. */
static uint32_t *new_clock(sim_launch *l) {
    const size_t bytes = cta_count(l) * sizeof(uint32_t);
    if (l->race == NULL) l->race = calloc(1, sizeof *l->race);
    if (l->race == NULL || l->race->full) return NULL;
    uint32_t *clock = l->race->bytes + bytes <= CLOCK_ROOM ? calloc(cta_count(l), sizeof *clock) : NULL;
    l->race->full = clock == NULL;
    l->race->bytes += clock != NULL ? bytes : 0;
    return clock;
}

static bool is_off(const sim_launch *l) { return l->race != NULL && l->race->full; }

static void join(uint32_t *to, const uint32_t *from, size_t count) {
    for (size_t i = 0; i < count; i++) to[i] = to[i] > from[i] ? to[i] : from[i];
}

/* The place's slot, new ones empty; NULL: no room. */
static sim_handed *slot_of(struct sim_race *race, uint64_t key) {
    if (race->count * 2 >= race->capacity) {
        struct sim_race larger = {.capacity = race->capacity == 0 ? 64 : race->capacity * 2};
        larger.places = calloc(larger.capacity, sizeof *larger.places);
        if (larger.places == NULL) return NULL;
        for (size_t i = 0; i < race->capacity; i++) {
            if (race->places[i].clock != NULL) *slot_of(&larger, race->places[i].key) = race->places[i];
        }
        free(race->places);
        race->places = larger.places;
        race->capacity = larger.capacity;
    }
    size_t at = (size_t)((key * 0x9e3779b97f4a7c15ull) >> 32) & (race->capacity - 1);
    while (race->places[at].clock != NULL && race->places[at].key != key) at = (at + 1) & (race->capacity - 1);
    return &race->places[at];
}

static sim_handed *find_handed(sim_launch *l, uint64_t address) {
    if (l->race == NULL || l->race->capacity == 0) return NULL;
    sim_handed *found = slot_of(l->race, address >> 4);
    return found != NULL && found->clock != NULL ? found : NULL;
}

static sim_handed *make_handed(sim_launch *l, uint64_t address) {
    uint32_t *clock = NULL;
    sim_handed *found = find_handed(l, address);
    if (found != NULL || (clock = new_clock(l)) == NULL) return found;
    found = slot_of(l->race, address >> 4);
    if (found == NULL) {
        release_clock(l, clock);
        l->race->full = true;
        return NULL;
    }
    *found = (sim_handed){address >> 4, clock};
    l->race->count++;
    return found;
}

/* What was done so far has the time that is returned; what comes now has the next one. */
static uint32_t tick(sim_cta *cta) {
    struct sim_cta_race *r = cta->race;
    const uint32_t now = r->time;
    if (!r->dirty) return now > 1 ? now - 1 : 0;
    r->dirty = false;
    if (r->time < MAX_TIME) r->time++;
    return now;
}

/* ---- what hands order on ---- */

void race_strong_write(sim_warp *w, uint64_t address, bool releases) {
    struct sim_cta_race *r = w->cta->race;
    sim_launch *l = w->launch;
    if (r == NULL || is_off(l)) return;
    const uint32_t time = releases ? tick(w->cta) : r->fenced;
    if (time == 0 && (r->known == NULL || !releases)) return;
    sim_handed *place = make_handed(l, address);
    if (place == NULL) return;
    if (r->known != NULL) join(place->clock, r->known, cta_count(l));
    if (place->clock[w->cta->linear] < time) place->clock[w->cta->linear] = time;
}

void race_strong_read(sim_warp *w, uint64_t address, bool acquires) {
    struct sim_cta_race *r = w->cta->race;
    sim_launch *l = w->launch;
    const sim_handed *place = r != NULL && !is_off(l) ? find_handed(l, address) : NULL;
    if (place == NULL) return;
    uint32_t **to = acquires ? &r->known : &r->seen;
    if (*to == NULL) *to = new_clock(l);
    if (*to != NULL) join(*to, place->clock, cta_count(l));
}

void race_fence(sim_warp *w) {
    struct sim_cta_race *r = w->cta->race;
    sim_launch *l = w->launch;
    if (r == NULL || is_off(l)) return;
    r->fenced = tick(w->cta);
    if (r->seen == NULL) return;
    if (r->known == NULL) r->known = new_clock(l);
    if (r->known != NULL) join(r->known, r->seen, cta_count(l));
}

void race_cluster_release(sim_warp *w) {
    if (w->cta->race == NULL || w->cta->cluster->cta_count < 2) return;
    const uint32_t time = tick(w->cta);
    sim_cluster *cluster = w->cta->cluster;
    if (cluster->released[w->cta->rank] < time) cluster->released[w->cta->rank] = time;
}

void race_cluster_acquire(sim_warp *w) {
    if (w->cta->race != NULL && w->cta->cluster->cta_count > 1) join(w->cta->race->cluster, w->cta->cluster->released, SIM_MAX_CLUSTER);
}

/* ---- accesses ---- */

/* Does what another CTA did then come before what this one does now? */
static bool is_known(const sim_cta *cta, uint64_t stamp) {
    const struct sim_cta_race *r = cta->race;
    const uint64_t other = stamp_cta(stamp) - 1;
    const uint32_t time = stamp_time(stamp);
    if (r->known != NULL && r->known[other] >= time) return true;
    for (int i = 0; i < cta->cluster->cta_count && cta->cluster->cta_count > 1; i++) {
        if (cta->cluster->ctas[i].linear == other) return r->cluster[i] >= time;
    }
    return false;
}

/* stamp: without the bytes. alone: its CTAs run in one thread. unordered: nothing but a cluster orders CTAs of the launch. */
typedef struct toucher { uint64_t launch, self, stamp; bool alone, unordered; } toucher;

static bool toucher_of(const sim_warp *w, toucher *t) {
    const struct sim_cta_race *r = w->cta->race;
    if (r == NULL || w->cta->linear + 1 >= 1ull << CTA_BITS || is_off(w->launch)) return false;
    t->launch = launch_bits(w->launch) << LAUNCH_SHIFT;
    t->self = w->cta->linear + 1;
    t->stamp = t->launch | (uint64_t)r->time << TIME_SHIFT | t->self << CTA_SHIFT;
    t->unordered = !w->launch->code->talks && w->cta->cluster->cta_count == 1;
    t->alone = w->launch->code->talks || w->launch->options->threads == 1;
    return true;
}

/* Is the stamp of another CTA, in this launch, of one of these bytes, with nothing that orders the two? */
static bool conflicts(const sim_cta *cta, const toucher *t, uint64_t stamp, uint64_t bytes) {
    return stamp >> LAUNCH_SHIFT == t->launch >> LAUNCH_SHIFT && (stamp & STAMP_MASK & bytes) != 0 && stamp_cta(stamp) != t->self && !is_known(cta, stamp);
}

/* The bytes of a cell that an access covers. */
static uint64_t bytes_of_cell(uint64_t cell, uint64_t begin, size_t bytes) {
    uint64_t mask = STAMP_MASK;
    if (cell * 4 < begin) mask &= STAMP_MASK << (begin - cell * 4);
    if (cell * 4 + 4 > begin + bytes) mask &= STAMP_MASK >> (cell * 4 + 4 - begin - bytes);
    return mask;
}

/* Did the CTA itself leave the stamp, in this launch? */
static bool is_own(const toucher *t, uint64_t stamp) { return stamp >> LAUNCH_SHIFT == t->launch >> LAUNCH_SHIFT && stamp_cta(stamp) == t->self; }

/* false: another CTA was faster. */
static bool replace(const toucher *t, _Atomic uint64_t *at, uint64_t old, uint64_t fresh) {
    if (old == fresh) return true;
    if (!t->alone) return atomic_compare_exchange_strong_explicit(at, &old, fresh, memory_order_seq_cst, memory_order_relaxed);
    atomic_store_explicit(at, fresh, memory_order_relaxed);
    return true;
}

/* Notes a reader: in its own place, in that of one that came before, or in the second. Where nothing is ordered, two readers stand for all. */
static void note_reader(sim_cta *cta, const toucher *t, sim_cell *cell, uint64_t bytes) {
    for (bool noted = false; !noted;) {
        const uint64_t old[2] = {atomic_load_explicit(&cell->readers[0], memory_order_relaxed), atomic_load_explicit(&cell->readers[1], memory_order_relaxed)};
        if (t->unordered && (old[0] & old[1] & bytes) == bytes && old[0] >> LAUNCH_SHIFT == t->launch >> LAUNCH_SHIFT && old[1] >> LAUNCH_SHIFT == t->launch >> LAUNCH_SHIFT) return;
        const int at = is_own(t, old[0]) ? 0 : is_own(t, old[1]) ? 1 : conflicts(cta, t, old[0], STAMP_MASK);
        noted = replace(t, &cell->readers[at], old[at], t->stamp | bytes | (is_own(t, old[at]) ? old[at] & STAMP_MASK : 0));
    }
}

static bool find_race(sim_warp *w, const sim_op *op, int lane, uint64_t address, sim_access access, uint64_t stamp, const char *did) {
    static const char *const does[] = {[SIM_READ] = "reads", [SIM_WRITE] = "writes", [SIM_ATOMIC] = "changes"};
    sim_find(w, op, lane, "%s global memory at 0x%" PRIx64 ", which CTA %" PRIu64 " (linear) %s in the same launch, with nothing that orders them: a race", does[access], address,
             stamp_cta(stamp) - 1, did);
    return false;
}

bool sim_may_read(sim_warp *w, const sim_place *place, size_t bytes) {
    toucher t;
    if (place->allocation == NULL || place->allocation->cells == NULL || !toucher_of(w, &t)) return true;
    w->cta->race->dirty = true;
    for (uint64_t at = place->offset / 4; at <= (place->offset + bytes - 1) / 4; at++) {
        sim_cell *cell = &place->allocation->cells[at];
        const uint64_t mask = bytes_of_cell(at, place->offset, bytes);
        if (atomic_load_explicit(&cell->readers[0], memory_order_relaxed) != (t.stamp | STAMP_MASK)) note_reader(w->cta, &t, cell, mask);
        if (conflicts(w->cta, &t, atomic_load_explicit(&cell->writer, memory_order_seq_cst), mask)) return false;
    }
    return true;
}

static bool check_read(sim_warp *w, const sim_op *op, int lane, uint64_t address, const toucher *t, sim_cell *cell, uint64_t mask) {
    note_reader(w->cta, t, cell, mask);
    const uint64_t writer = atomic_load_explicit(&cell->writer, memory_order_seq_cst);
    return !conflicts(w->cta, t, writer, mask) || find_race(w, op, lane, address, SIM_READ, writer, "wrote");
}

/* Atomic operations do not disturb each other; what the CTA has done in another way stays so. */
static bool check_write(sim_warp *w, const sim_op *op, int lane, uint64_t address, const toucher *t, sim_cell *cell, uint64_t mask, sim_access access) {
    const uint64_t atomic = access == SIM_ATOMIC ? STAMP_ATOMIC : 0;
    for (bool noted = false; !noted;) {
        const uint64_t old = atomic_load_explicit(&cell->writer, memory_order_relaxed), kept = is_own(t, old) ? old : atomic;
        if ((old & atomic) == 0 && conflicts(w->cta, t, old, mask)) return find_race(w, op, lane, address, access, old, (old & STAMP_ATOMIC) != 0 ? "changed" : "wrote");
        noted = replace(t, &cell->writer, old, t->stamp | mask | (kept & STAMP_MASK) | (kept & atomic));
    }
    for (int i = 0; i < 2; i++) {
        const uint64_t reader = atomic_load_explicit(&cell->readers[i], memory_order_seq_cst);
        if (conflicts(w->cta, t, reader, mask)) return find_race(w, op, lane, address, access, reader, "read");
    }
    return true;
}

bool sim_check_race(sim_warp *w, const sim_op *op, int lane, const sim_place *place, size_t bytes, uint64_t address, sim_access access, bool same_value) {
    toucher t;
    if (place->allocation == NULL || place->allocation->cells == NULL || same_value || !toucher_of(w, &t)) return true;
    w->cta->race->dirty = true;
    for (uint64_t at = place->offset / 4; at <= (place->offset + bytes - 1) / 4; at++) {
        sim_cell *cell = &place->allocation->cells[at];
        const uint64_t mask = bytes_of_cell(at, place->offset, bytes);
        if (!(access == SIM_READ ? check_read(w, op, lane, address, &t, cell, mask) : check_write(w, op, lane, address, &t, cell, mask, access))) return false;
    }
    return true;
}
