/* Launches: checks what is asked for, makes clusters of CTAs of warps, and runs them: clusters side by side on all cores when they cannot talk to
 * each other, else by turns in an order that the seed decides. The same bits in either case, at any number of threads. */
#include "sim/machine/call.h"
#include "sim/isa/decode.h"
#include "sim/machine/order.h"
#include "sim/machine/race.h"
#include "sim/isa/tmem.h"
#include "sim/machine/trace.h"

#include <stdlib.h>

enum { QUANTUM = 4096, TURN_PASSES = 64, QUIET_PASSES = 4096 };

/* ---- clusters ---- */

static void free_cluster(sim_cluster *cluster) {
    for (int i = 0; i < cluster->cta_count; i++) {
        sim_cta *cta = &cluster->ctas[i];
        for (int k = 0; k < cta->warp_count; k++) sim_warp_free(&cta->warps[k]);
        free(cta->warps);
        free(cta->shared);
        free(cta->shared_shadow);
        order_free(cta);
        race_free(cta);
        free(cta->tensor_reads);
        free(cta->awaited);
        free(cta->reached);
        tmem_free(cta);
    }
    sim_async_free(cluster);
    sim_tensor_free(cluster);
    free(cluster->ctas);
    free(cluster);
}

static bool start_warp(sim_cta *cta, int index, int threads) {
    sim_warp *w = &cta->warps[index];
    int left = threads - index * LANES;
    w->cta = cta;
    w->launch = cta->launch;
    w->index = index;
    w->registers = cta->launch->registers;
    w->lanes = left >= LANES ? SIM_ALL_LANES : (1u << left) - 1;
    w->local_bytes = base_align_up(cta->launch->code->stack_bytes, 16);
    if (w->local_bytes > 0) {
        w->local = calloc(LANES, w->local_bytes);
        w->local_shadow = calloc(LANES, w->local_bytes);
        if (w->local == NULL || w->local_shadow == NULL) return false;
    }
    sim_warp_start(w);
    const sim_trace *trace = cta->launch->trace;
    if (trace != NULL && trace->warp == index && memcmp(trace->cta, cta->id, sizeof cta->id) == 0) w->trace = cta->launch->trace;
    return w->live != 0;
}

static bool start_cta(sim_cluster *cluster, int rank, const uint32_t first[3]) {
    sim_launch *l = cluster->launch;
    sim_cta *cta = &cluster->ctas[rank];
    uint32_t r = (uint32_t)rank;
    int threads = (int)(l->block[0] * l->block[1] * l->block[2]);
    cta->launch = l;
    cta->cluster = cluster;
    cta->rank = rank;
    cta->id[0] = first[0] + r % cluster->size[0];
    cta->id[1] = first[1] + r / cluster->size[0] % cluster->size[1];
    cta->id[2] = first[2] + r / cluster->size[0] / cluster->size[1];
    cta->linear = cta->id[0] + (uint64_t)l->grid[0] * (cta->id[1] + (uint64_t)l->grid[1] * cta->id[2]);
    cta->shared_bytes = l->code->shared_bytes + l->dynamic_shared;
    cta->shared = malloc(cta->shared_bytes);
    cta->shared_shadow = calloc(cta->shared_bytes, 1);
    cta->warp_count = cta->warps_live = (threads + LANES - 1) / LANES;
    cta->warps = calloc((size_t)cta->warp_count, sizeof *cta->warps);
    if (cta->shared == NULL || cta->shared_shadow == NULL || cta->warps == NULL) {
        cta->warp_count = cta->warps != NULL ? cta->warp_count : 0;
        return false;
    }
    memset(cta->shared, 0xcd, cta->shared_bytes);
    order_start(cta);
    race_start(cta);
    for (int i = 0; i < SIM_BARRIERS; i++) cta->barriers[i].all = true;
    for (int i = 0; i < cta->warp_count; i++) {
        if (!start_warp(cta, i, threads)) return false;
    }
    return true;
}

static sim_cluster *start_cluster(sim_launch *l, const sim_cluster_place *place) {
    sim_cluster *cluster = calloc(1, sizeof *cluster);
    if (cluster == NULL) return NULL;
    cluster->launch = l;
    memcpy(cluster->size, place->size, sizeof cluster->size);
    cluster->index = place->index;
    cluster->order = l->options->seed * 0x9e3779b97f4a7c15ull + place->index;
    cluster->cta_count = (int)sim_ctas_of(place->size);
    cluster->ctas = calloc((size_t)cluster->cta_count, sizeof *cluster->ctas);
    bool started = cluster->ctas != NULL;
    for (int i = 0; i < cluster->cta_count && started; i++) started = start_cta(cluster, i, place->first);
    if (started) return cluster;
    if (cluster->ctas == NULL) cluster->cta_count = 0;
    free_cluster(cluster);
    return NULL;
}

/* Its last thread has left. */
static void warp_left(sim_warp *w) {
    sim_changed(w);
    sim_registers_at_end(w);
    if (--w->cta->warps_live == 0 && !w->cta->cluster->stopped) {
        sim_async_at_end(w);
        if (w->launch->code->mbarriers) sim_mbarriers_at_end(w);
        sim_reached_at_end(w);
        for (int i = 0; i < SIM_BARRIERS; i++) {
            const sim_barrier *b = &w->cta->barriers[i];
            if (b->arrived > 0 && !w->launch->options->exit_early) sim_find(w, NULL, -1, "the CTA ends while barrier %d still awaits %d of %d threads: a bar.sync or an arrival is missing (option exit=early allows it)", i, b->expected - b->arrived, b->expected);
        }
        if (tmem_leaked(w->cta) > 0) sim_find(w, NULL, -1, "the CTA ends with %d columns of tensor memory allocated: tcgen05.dealloc them", tmem_leaked(w->cta));
    }
    sim_barriers_after_exit(w->cta);
    sim_release_cluster(w->cta->cluster);
}

/* Who waits for what, when nobody can go on. */
static void report_deadlock(sim_cluster *cluster) {
    char text[900];
    size_t used = 0;
    sim_warp *first = NULL;
    const sim_op *first_op = NULL;
    text[0] = '\0';
    for (int i = 0; i < cluster->cta_count; i++) {
        for (int k = 0; k < cluster->ctas[i].warp_count; k++) {
            sim_warp *w = &cluster->ctas[i].warps[k];
            for (int f = 0; f < w->fragment_count && used + 100 < sizeof text; f++) {
                sim_fragment *fragment = &w->fragments[f];
                const sim_op *op = &fragment->frame->code->ops[fragment->pc];
                const ptx_function *function = fragment->frame->code->function;
                if (first == NULL) {
                    first = w;
                    first_op = op;
                    w->now = fragment;
                }
                used += (size_t)snprintf(text + used, sizeof text - used, "%sCTA %d warp %d lanes %08x at PTX line %d", used > 0 ? "; " : "", i, k, fragment->mask,
                                         op->instruction >= 0 ? function->instructions[op->instruction].line : 0);
                if (fragment->wait == SIM_WAIT_LANES) used += (size_t)snprintf(text + used, sizeof text - used, " for lanes %08x", fragment->wait_mask & w->live & ~fragment->mask);
                if (fragment->wait == SIM_WAIT_BARRIER) used += (size_t)snprintf(text + used, sizeof text - used, " at barrier %d", fragment->barrier);
                char polled[200] = "";
                if (fragment->polled != 0) sim_mbarrier_describe(cluster, fragment->polled, fragment->polled_phase, polled, sizeof polled);
                if (used + strlen(polled) < sizeof text) used += (size_t)snprintf(text + used, sizeof text - used, "%s", polled);
                char registers[200] = "";
                if (fragment->wait == SIM_WAIT_REGISTERS) sim_registers_describe(w, op, registers, sizeof registers);
                if (used + strlen(registers) < sizeof text) used += (size_t)snprintf(text + used, sizeof text - used, "%s", registers);
                if (fragment->wait == SIM_WAIT_CLUSTER) used += (size_t)snprintf(text + used, sizeof text - used, " at the cluster's barrier");
            }
        }
    }
    if (first != NULL) sim_find(first, first_op, -1, "deadlock: nobody in the cluster can go on: %s", text);
}

static bool finished(const sim_cluster *cluster) {
    for (int i = 0; i < cluster->cta_count; i++) {
        if (cluster->ctas[i].warps_live > 0) return false;
    }
    return true;
}

/* One turn of every warp, in an order that the seed changes. */
static bool run_pass(sim_cluster *cluster) {
    bool progress = sim_async_step(cluster, false);
    cluster->order = cluster->order * 6364136223846793005ull + 1442695040888963407ull;
    uint64_t shift = cluster->launch->options->seed == 0 ? 0 : cluster->order >> 33;
    for (int i = 0; i < cluster->cta_count && !cluster->stopped; i++) {
        sim_cta *cta = &cluster->ctas[(i + (int)(shift % (uint64_t)cluster->cta_count)) % cluster->cta_count];
        for (int k = 0; k < cta->warp_count && !cluster->stopped; k++) {
            sim_warp *w = &cta->warps[(k + (int)(shift % (uint64_t)cta->warp_count)) % cta->warp_count];
            if (w->live == 0) continue;
            uint64_t before = w->executed;
            progress |= sim_warp_run(w, QUANTUM);
            cluster->executed += w->executed - before;
            if (w->live == 0) warp_left(w);
        }
    }
    return progress;
}

/* Does everybody wait or poll, for something that has not changed for long, with nothing under way that could change it? */
static bool is_stuck(sim_cluster *cluster) {
    uint64_t changes = cluster->changes + cluster->launch->outside;
    if (changes != cluster->seen || cluster->async_count > 0) {
        cluster->seen = changes;
        cluster->quiet = 0;
        return false;
    }
    if (++cluster->quiet < QUIET_PASSES) return false;
    for (int i = 0; i < cluster->cta_count; i++) {
        for (int k = 0; k < cluster->ctas[i].warp_count; k++) {
            const sim_warp *w = &cluster->ctas[i].warps[k];
            for (int f = 0; f < w->fragment_count; f++) {
                if (w->fragments[f].wait == SIM_READY) return false;
            }
        }
    }
    return true;
}

/* True when it is over. A turn of so many passes ends with one that changes nothing: whoever polls lets other clusters go first. */
static bool run_turn(sim_cluster *cluster, uint64_t passes) {
    sim_launch *l = cluster->launch;
    for (uint64_t pass = 0; pass < passes; pass++) {
        const uint64_t before = cluster->executed, changes = cluster->changes + l->outside;
        if (atomic_load(&l->stop_at) < cluster->index) cluster->stopped = true;
        bool progress = run_pass(cluster);
        uint64_t total = atomic_fetch_add(&l->executed, cluster->executed - before) + cluster->executed - before;
        if (finished(cluster)) sim_async_step(cluster, true);   /* stores that nobody waited for */
        if (cluster->stopped || finished(cluster)) return true;
        if ((!progress && !sim_async_step(cluster, true)) || is_stuck(cluster)) {
            report_deadlock(cluster);
            return true;
        }
        if (total > l->options->budget) {
            sim_warp *w = &cluster->ctas[0].warps[0];
            for (int i = 0; i < cluster->ctas[0].warp_count && w->live == 0; i++) w = &cluster->ctas[0].warps[i];
            w->now = w->fragment_count > 0 ? &w->fragments[0] : NULL;
            sim_find(w, w->now != NULL ? &w->now->frame->code->ops[w->now->pc] : NULL, -1, "the launch has executed %llu warp instructions, and its budget is %llu: does it end? "
                     "(option budget=)", (unsigned long long)total, (unsigned long long)l->options->budget);
            return true;
        }
        if (passes < UINT64_MAX && cluster->changes + l->outside == changes) return false;
    }
    return false;
}

static void end_cluster(sim_cluster *cluster) {
    uint64_t threads = 0;
    for (int i = 0; i < cluster->cta_count; i++) {
        for (int k = 0; k < cluster->ctas[i].warp_count; k++) threads += cluster->ctas[i].warps[k].thread_instructions;
    }
    atomic_fetch_add(&cluster->launch->thread_instructions, threads);
    free_cluster(cluster);
}

static void out_of_memory(sim_launch *l, uint64_t index) {
    pthread_mutex_lock(&l->lock);
    if (!l->finding.made || index < l->finding.cluster) {
        l->finding = (sim_finding){.made = true, .cluster = index};
        snprintf(l->finding.text, sizeof l->finding.text, "kernel %s: no host memory to simulate cluster %llu", l->code->function->name, (unsigned long long)index);
    }
    atomic_store(&l->stop_at, 0);
    pthread_mutex_unlock(&l->lock);
}

static void run_cluster(sim_launch *l, const sim_cluster_place *place) {
    if (atomic_load(&l->stop_at) < place->index) return;
    sim_cluster *cluster = start_cluster(l, place);
    if (cluster == NULL) {
        out_of_memory(l, place->index);
        return;
    }
    run_turn(cluster, UINT64_MAX);
    end_cluster(cluster);
}

/* A task is a place. */
static void run_alone(void *argument, int64_t task, int worker) {
    (void)worker;
    sim_launch *l = argument;
    const bool whole = sim_launch_whole(l, (uint64_t)task, l->room);
    for (uint64_t part = 0; part < (whole ? 1 : l->parts); part++) {
        const sim_cluster_place place = sim_launch_place(l, (uint64_t)task, whole, part);
        run_cluster(l, &place);
    }
}

/* As many at a time as the chip would hold; another is started when those that run do not end within their turns. */
static dw_status run_by_turns(sim_launch *l) {
    const uint64_t fit = l->room / sim_ctas_of(l->cluster), most = fit < l->count * l->parts ? fit : l->count * l->parts;
    sim_cluster **running = calloc((size_t)most, sizeof *running);
    if (running == NULL) return base_fail(l->context, DW_NO_MEMORY, "no memory for %llu clusters at a time", (unsigned long long)most);
    size_t active = 0;
    uint64_t free_ctas = l->room;
    sim_cluster_place place;
    while ((active > 0 || sim_launch_pending(l)) && !l->finding.made) {
        if (sim_launch_next(l, free_ctas, &place)) {
            running[active] = start_cluster(l, &place);
            if (running[active] == NULL) {
                out_of_memory(l, place.index);
                break;
            }
            free_ctas -= (uint64_t)running[active++]->cta_count;
        }
        for (size_t i = 0; i < active;) {
            if (!run_turn(running[i], TURN_PASSES)) {
                i++;
                continue;
            }
            free_ctas += (uint64_t)running[i]->cta_count;
            end_cluster(running[i]);
            memmove(&running[i], &running[i + 1], (--active - i) * sizeof *running);
        }
    }
    while (active > 0) end_cluster(running[--active]);
    free(running);
    return DW_OK;
}

/* ---- launches ---- */

/* name: of the size, in messages. */
static dw_status check_clusters(const sim_launch *l, const uint32_t size[3], const char *name) {
    const ptx_function *f = l->code->function;
    for (int i = 0; i < 3; i++) {
        if (size[i] == 0 || l->grid[i] % size[i] != 0) {
            return base_fail(l->context, DW_INVALID, "%.160s: a grid of %ux%ux%u is no multiple of %s of %ux%ux%u", f->name, l->grid[0], l->grid[1], l->grid[2], name, size[0], size[1], size[2]);
        }
        if (size[i] % l->cluster[i] != 0) {
            return base_fail(l->context, DW_INVALID, "%.160s: %s of %ux%ux%u are no multiple of the others, %ux%ux%u", f->name, name, size[0], size[1], size[2], l->cluster[0], l->cluster[1],
                             l->cluster[2]);
        }
    }
    const uint64_t ctas = sim_ctas_of(size);
    if (ctas > SIM_MAX_CLUSTER) return base_fail(l->context, DW_INVALID, "%.160s: %s of %llu CTAs; %d is the limit", f->name, name, (unsigned long long)ctas, SIM_MAX_CLUSTER);
    if (f->max_cluster == 0 || ctas <= (uint64_t)f->max_cluster) return DW_OK;
    return base_fail(l->context, DW_INVALID, "%.160s: %s of %llu CTAs, and .maxclusterrank allows %d", f->name, name, (unsigned long long)ctas, f->max_cluster);
}

/* room: CTAs that the chip holds at a time, and one cluster at least. */
static dw_status check_launch(const sim_launch *l, uint64_t *room) {
    const ptx_function *f = l->code->function;
    uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2], ctas = sim_ctas_of(l->cluster);
    uint64_t most = (uint64_t)f->max_threads[0] * (uint64_t)f->max_threads[1] * (uint64_t)f->max_threads[2];
    if (threads == 0 || l->block[0] > 1024 || l->block[1] > 1024 || l->block[2] > 64 || threads > 1024) {
        return base_fail(l->context, DW_INVALID, "%.160s: a block of %ux%ux%u threads; 1 to 1024 are possible, z up to 64", f->name, l->block[0], l->block[1], l->block[2]);
    }
    if (l->grid[0] == 0 || l->grid[1] == 0 || l->grid[2] == 0 || l->grid[0] > INT32_MAX || l->grid[1] > 65535 || l->grid[2] > 65535) {
        return base_fail(l->context, DW_INVALID, "%.160s: a grid of %ux%ux%u; x is 1 to 2147483647, y and z 1 to 65535", f->name, l->grid[0], l->grid[1], l->grid[2]);
    }
    if (most > 0 && threads > most) return base_fail(l->context, DW_INVALID, "%.160s: %llu threads, and .maxntid allows %llu", f->name, (unsigned long long)threads, (unsigned long long)most);
    for (int i = 0; i < 3; i++) {
        if (f->required_threads[0] > 0 && l->block[i] != (uint32_t)f->required_threads[i]) {
            return base_fail(l->context, DW_INVALID, "%.160s: .reqntid asks for %dx%dx%d threads, not %ux%ux%u", f->name, f->required_threads[0], f->required_threads[1],
                             f->required_threads[2], l->block[0], l->block[1], l->block[2]);
        }
    }
    TRY(check_clusters(l, l->cluster, "clusters"));
    TRY(check_clusters(l, l->preferred, "preferred clusters"));
    size_t shared = l->code->shared_bytes - SIM_SHARED_RESERVED + l->dynamic_shared;
    if (shared > l->options->shared_limit) {
        return base_fail(l->context, DW_INVALID, "%.160s: %zu bytes of shared memory, and the chip has %zu for a block", f->name, shared, l->options->shared_limit);
    }
    const int by_registers = sim_blocks_by_registers(f, threads);
    if (by_registers == 0) {
        return base_fail(l->context, DW_INVALID, "%.160s: %llu threads of %d registers; a multiprocessor has 65536, and gives them to warps in fours", f->name, (unsigned long long)threads,
                         f->machine.count);
    }
    size_t per_sm = 2048 / threads, by_shared = (l->options->shared_limit + 1024) / (shared + 1024);
    if (by_shared < per_sm) per_sm = by_shared;
    if ((size_t)by_registers < per_sm) per_sm = (size_t)by_registers;
    *room = (per_sm > 0 ? per_sm : 1) * (uint64_t)l->options->sm_count;
    if (*room < ctas) *room = ctas;
    return DW_OK;
}

dw_status sim_run(sim_launch *l) {
    pool *workers;
    TRY(check_launch(l, &l->room));
    TRY(base_pool(l->context, &workers));
    l->registers = sim_registers_at_launch(l->code->function);
    atomic_store(&l->stop_at, UINT64_MAX);
    l->finding.made = false;
    pthread_mutex_init(&l->lock, NULL);
    dw_status status = DW_OK;
    l->next = l->requests = 0;
    l->count = sim_ctas_of(l->grid) / sim_ctas_of(l->preferred);
    l->split = l->parts = sim_ctas_of(l->preferred) / sim_ctas_of(l->cluster);
    if (l->code->talks || l->code->cancels) status = run_by_turns(l);
    else pool_run(workers, (int64_t)l->count, run_alone, l);
    if (status == DW_OK) sim_check_waited(l);
    pthread_mutex_destroy(&l->lock);
    race_end(l);
    free(l->maps);
    l->maps = NULL;
    if (status == DW_OK && l->finding.made) status = base_fail(l->context, DW_INVALID, "%s", l->finding.text);
    return status;
}
