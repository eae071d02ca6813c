/* Memory: device allocations with their shadow, the windows of generic addresses, and the checks of every access: bounds, alignment, whether what is
 * read was ever written, and whether two CTAs touch the same bytes without order between them. */
#include "race.h"

#include <inttypes.h>
#include <stdlib.h>

enum { ALLOCATION_ALIGN = 512, ALLOCATION_GAP = 4096 };

/* ---- allocations ---- */

void sim_memory_init(sim_memory *m, dw_context *context, size_t limit) { *m = (sim_memory){.context = context, .next = SIM_GLOBAL_BASE, .limit = limit}; }

static void free_allocation(sim_allocation *a) {
    free(a->owned);
    free(a->shadow);
    race_clear(a);
    free((void *)a->writers);
    free(a);
}

void sim_memory_free(sim_memory *m) {
    for (size_t i = 0; i < m->count; i++) free_allocation(m->allocations[i]);
    free(m->allocations);
    sim_memory_init(m, m->context, m->limit);
}

static size_t position(const sim_memory *m, uint64_t address) {
    size_t low = 0, high = m->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (m->allocations[middle]->address <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* One with room in the table, without an address; of the host's bytes, or of its own. */
static dw_status new_allocation(sim_memory *m, size_t bytes, sim_origin origin, void *host, sim_allocation **made) {
    *made = NULL;
    if (m->count == m->capacity) {
        size_t capacity = m->capacity == 0 ? 64 : m->capacity * 2;
        sim_allocation **larger = realloc(m->allocations, capacity * sizeof *larger);
        if (larger == NULL) return base_fail(m->context, DW_NO_MEMORY, "no host memory for a table of %zu allocations", capacity);
        m->allocations = larger;
        m->capacity = capacity;
    }
    sim_allocation *a = calloc(1, sizeof *a);
    if (a != NULL && host == NULL && bytes <= SIZE_MAX - ALLOCATION_ALIGN) {
        a->owned = calloc(bytes + ALLOCATION_ALIGN, 1);   /* zeros that take no memory until they are touched */
        host = a->owned != NULL ? (void *)base_align_up((uintptr_t)a->owned, ALLOCATION_ALIGN) : NULL;
    }
    if (a != NULL && host != NULL) a->shadow = calloc(bytes + 1, 1);
    if (a == NULL || host == NULL || a->shadow == NULL) {
        if (a != NULL) free_allocation(a);
        return base_fail(m->context, DW_NO_MEMORY, "no host memory for %zu bytes of device memory and their shadow", bytes);
    }
    a->bytes = bytes;
    a->origin = origin;
    a->host = host;
    *made = a;
    return DW_OK;
}

static void insert(sim_memory *m, sim_allocation *a) {
    size_t at = position(m, a->address);
    memmove(&m->allocations[at + 1], &m->allocations[at], (m->count++ - at) * sizeof *m->allocations);
    m->allocations[at] = a;
}

dw_status sim_memory_alloc(sim_memory *m, size_t bytes, uint64_t *address) {
    sim_allocation *a;
    *address = 0;
    if (bytes > m->limit - m->used) {
        return base_fail(m->context, DW_NO_MEMORY, "%zu bytes of device memory asked for, and %zu of %zu are left", bytes, m->limit - m->used, m->limit);
    }
    TRY(new_allocation(m, bytes, SIM_OF_DEVICE, NULL, &a));
    a->address = m->next;
    m->next = base_align_up(m->next + bytes + ALLOCATION_GAP, ALLOCATION_ALIGN);
    m->used += bytes;
    if (m->used > m->used_most) m->used_most = m->used;
    insert(m, a);
    *address = a->address;
    return DW_OK;
}

/* At the host's own address. */
static dw_status add_of_host(sim_memory *m, size_t bytes, sim_origin origin, void *host, sim_allocation **made) {
    TRY(new_allocation(m, bytes, origin, host, made));
    (*made)->address = (uint64_t)(uintptr_t)(*made)->host;
    memset((*made)->shadow, SHADOW_WRITTEN, bytes);
    insert(m, *made);
    return DW_OK;
}

dw_status sim_memory_alloc_host(sim_memory *m, size_t bytes, sim_origin origin, void **host) {
    sim_allocation *a;
    *host = NULL;
    TRY(add_of_host(m, bytes, origin, NULL, &a));
    *host = a->host;
    return DW_OK;
}

dw_status sim_memory_register(sim_memory *m, void *host, size_t bytes) {
    const uint64_t address = (uint64_t)(uintptr_t)host;
    size_t at = position(m, address);
    sim_allocation *a;
    if ((at > 0 && address - m->allocations[at - 1]->address < m->allocations[at - 1]->bytes) || (at < m->count && m->allocations[at]->address - address < bytes)) {
        return base_fail(m->context, DW_INVALID, "%zu bytes of the host at 0x%" PRIx64 " are registered, and some of them are known already", bytes, address);
    }
    return add_of_host(m, bytes, SIM_REGISTERED, host, &a);
}

sim_allocation *sim_memory_find(const sim_memory *m, uint64_t address) {
    size_t at = position(m, address);
    if (at == 0) return NULL;
    sim_allocation *a = m->allocations[at - 1];
    return address - a->address < a->bytes || (a->bytes == 0 && address == a->address) ? a : NULL;
}

sim_allocation *sim_memory_range(const sim_memory *m, uint64_t address, size_t bytes) {
    sim_allocation *a = sim_memory_find(m, address);
    return a != NULL && bytes <= a->bytes - (size_t)(address - a->address) ? a : NULL;
}

bool sim_memory_release(sim_memory *m, uint64_t address) {
    size_t at = position(m, address);
    if (at == 0 || m->allocations[at - 1]->address != address || m->allocations[at - 1]->name[0] != '\0') return false;
    if (m->allocations[at - 1]->origin == SIM_OF_DEVICE) m->used -= m->allocations[at - 1]->bytes;
    free_allocation(m->allocations[at - 1]);
    memmove(&m->allocations[at - 1], &m->allocations[at], (--m->count - at + 1) * sizeof *m->allocations);
    return true;
}

/* ---- accesses ---- */

static const char *verb(sim_access access) { return access == SIM_READ ? "reads" : access == SIM_WRITE ? "writes" : "changes"; }

static bool find_misaligned(sim_warp *w, const sim_op *op, int lane, uint64_t address, size_t align, sim_access access) {
    sim_find(w, op, lane, "%s %zu bytes at 0x%" PRIx64 ", which is no multiple of %zu: align the address or access smaller pieces", verb(access), align, address, align);
    return false;
}

static bool reach_global(sim_warp *w, const sim_op *op, int lane, uint64_t address, size_t bytes, sim_access access, sim_place *place) {
    sim_allocation *a = w->last;
    if (a == NULL || address - a->address >= a->bytes) a = w->last = sim_memory_find(w->launch->memory, address);
    if (a == NULL || bytes > a->bytes - (size_t)(address - a->address)) {
        sim_allocation *near = a;
        size_t at = position(w->launch->memory, address);
        if (near == NULL && at > 0) near = w->launch->memory->allocations[at - 1];
        bool behind = near != NULL && (near->origin == SIM_OF_DEVICE || address - near->address < near->bytes + ALLOCATION_GAP);
        if (!behind || address < SIM_GLOBAL_BASE) {
            sim_find(w, op, lane, "%s %zu bytes at 0x%" PRIx64 ", which is no address of device memory%s", verb(access), bytes, address,
                     address < 4096 ? ": a null pointer?" : ": a host pointer, or an address of another space?");
        } else {
            sim_find(w, op, lane, "%s %zu bytes at 0x%" PRIx64 ", %" PRIu64 " bytes into an allocation of %zu%s%s: out of bounds", verb(access), bytes, address, address - near->address,
                     near->bytes, near->name[0] != '\0' ? " of variable " : "", near->name);
        }
        return false;
    }
    if (access != SIM_READ && a->read_only) {
        sim_find(w, op, lane, "%s the constant variable %s", verb(access), a->name);
        return false;
    }
    place->allocation = a;
    place->offset = address - a->address;
    place->bytes = a->host + place->offset;
    place->shadow = a->shadow + place->offset;
    place->space = PTX_GLOBAL;
    const sim_launch *l = w->launch;
    return l->chain == 0 || sim_check_early(w, op, lane, place, bytes, address, access, l->early && (w->waited >> (lane < 0 ? 0 : lane) & 1) == 0);
}

static bool reach_shared(sim_warp *w, const sim_op *op, int lane, uint64_t address, size_t bytes, sim_access access, sim_place *place) {
    uint64_t rank = address >> SIM_RANK_SHIFT, at = address & ((1u << SIM_RANK_SHIFT) - 1);
    sim_cluster *cluster = w->cta->cluster;
    if (rank >= (uint64_t)cluster->cta_count) {
        sim_find(w, op, lane, "%s shared memory at 0x%" PRIx64 ", which would be CTA %" PRIu64 " of a cluster of %d", verb(access), address, rank, cluster->cta_count);
        return false;
    }
    /* What .shared::cta reaches without a rank, as by a number, is the CTA's own. */
    sim_cta *cta = rank == 0 && op->space == PTX_SHARED && !op->of_cluster ? w->cta : &cluster->ctas[rank];
    if (at < SIM_SHARED_RESERVED || at > cta->shared_bytes || bytes > cta->shared_bytes - at) {
        sim_find(w, op, lane, "%s %zu bytes at 0x%" PRIx64 " of shared memory, and the CTA has 0x%x to 0x%zx: out of bounds", verb(access), bytes, at, SIM_SHARED_RESERVED,
                 cta->shared_bytes);
        return false;
    }
    if (cta->warps_live == 0) {
        sim_find(w, op, lane, "%s shared memory of CTA %d of the cluster, whose threads have all ended: let it wait for its peers (barrier.cluster) before it ends", verb(access), cta->rank);
        return false;
    }
    place->offset = at;
    place->cta = cta;
    place->bytes = cta->shared + at;
    place->shadow = cta->shared_shadow + at;
    place->space = PTX_SHARED;
    place->allocation = NULL;
    return true;
}

static bool reach_local(sim_warp *w, const sim_op *op, int lane, uint64_t address, size_t bytes, sim_access access, sim_place *place) {
    if (address > w->local_bytes || bytes > w->local_bytes - address) {
        sim_find(w, op, lane, "%s %zu bytes at 0x%" PRIx64 " of local memory, and a thread has %zu: out of bounds", verb(access), bytes, address, w->local_bytes);
        return false;
    }
    place->offset = address;
    place->bytes = w->local + (size_t)lane * w->local_bytes + address;
    place->shadow = w->local_shadow + (size_t)lane * w->local_bytes + address;
    place->space = PTX_LOCAL;
    place->allocation = NULL;
    return true;
}

static bool reach_param(sim_warp *w, const sim_op *op, int lane, uint64_t address, size_t bytes, sim_access access, sim_place *place) {
    size_t size = w->launch->code->param_bytes;
    if (access != SIM_READ || address > size || bytes > size - address) {
        sim_find(w, op, lane, "%s %zu bytes at 0x%" PRIx64 " of the kernel's parameters, which are %zu bytes and read only", verb(access), bytes, address, size);
        return false;
    }
    place->offset = address;
    place->bytes = (uint8_t *)(uintptr_t)w->launch->params + address;
    place->shadow = NULL;
    place->space = PTX_PARAM;
    place->allocation = NULL;
    return true;
}

bool sim_reach(sim_warp *w, const sim_op *op, int lane, ptx_space space, uint64_t address, size_t bytes, size_t align, sim_access access, sim_place *place) {
    if ((address & (align - 1)) != 0) return find_misaligned(w, op, lane, address, align, access);
    switch (space) {
    case PTX_SHARED: return reach_shared(w, op, lane, (uint32_t)address, bytes, access, place);
    case PTX_LOCAL: return reach_local(w, op, lane, address, bytes, access, place);
    case PTX_PARAM: return reach_param(w, op, lane, address, bytes, access, place);
    case PTX_GENERIC:
        if (address >= SIM_SHARED_WINDOW && address - SIM_SHARED_WINDOW < SIM_WINDOW_BYTES) return reach_shared(w, op, lane, address - SIM_SHARED_WINDOW, bytes, access, place);
        if (address >= SIM_LOCAL_WINDOW && address - SIM_LOCAL_WINDOW < SIM_WINDOW_BYTES) return reach_local(w, op, lane, address - SIM_LOCAL_WINDOW, bytes, access, place);
        if (address >= SIM_PARAM_WINDOW && address - SIM_PARAM_WINDOW < SIM_WINDOW_BYTES) return reach_param(w, op, lane, address - SIM_PARAM_WINDOW, bytes, access, place);
        return reach_global(w, op, lane, address, bytes, access, place);
    default: return reach_global(w, op, lane, address, bytes, access, place);
    }
}

bool sim_check_written(sim_warp *w, const sim_op *op, int lane, const sim_place *place, size_t bytes, uint64_t address) {
    if (place->shadow == NULL || !w->launch->options->uninitialised) return true;
    sim_shadows s = sim_shadows_of(place->shadow, bytes);
    if ((s.all & SHADOW_WRITTEN) != 0 && (s.any & SHADOW_FLIGHT) == 0) return true;
    for (size_t i = 0; i < bytes; i++) {
        if ((place->shadow[i] & (SHADOW_WRITTEN | SHADOW_FLIGHT)) == SHADOW_WRITTEN) continue;
        if ((place->shadow[i] & SHADOW_FLIGHT) != 0) {
            sim_find(w, op, lane, "reads %zu bytes of %s memory at 0x%" PRIx64 ", into which an asynchronous copy may still write: wait for it first", bytes,
                     ptx_space_names[place->space], address);
            return false;
        }
        const char *hint = place->space == PTX_GLOBAL ? "initialise the buffer, or mask the access off" : place->space == PTX_SHARED ? "store, and wait at a barrier, before the load" : "store before the load";
        sim_find(w, op, lane, "reads %zu bytes of %s memory at 0x%" PRIx64 ", where byte %zu was never written%s%s: %s", bytes, ptx_space_names[place->space], address, i,
                 place->allocation != NULL && place->allocation->name[0] != '\0' ? ", of variable " : "", place->allocation != NULL ? place->allocation->name : "", hint);
        return false;
    }
    return true;
}

/* ---- variables of a module ---- */

static dw_status write_variable(dw_context *context, ptx_module *module, sim_memory *memory, ptx_variable *v) {
    sim_allocation *a = sim_memory_find(memory, v->address);
    if (a == NULL) return DW_OK;
    memset(a->host, 0, a->bytes);
    if (v->init != NULL) memcpy(a->host, v->init, v->bytes);
    memset(a->shadow, SHADOW_WRITTEN, a->bytes);
    for (size_t i = 0; i < v->relocation_count; i++) {
        const ptx_relocation *r = &v->relocations[i];
        ptx_variable *to = ptx_find_variable(module, r->name);
        ptx_function *function = to == NULL ? ptx_find_function(module, r->name) : NULL;
        if (function != NULL && !function->entry) {
            function->address_taken = true;
            const uint64_t code = (sim_function_address(module, function) + (uint64_t)r->addend) >> r->shift;
            memcpy(a->host + r->offset, &code, r->size < 8 ? (size_t)r->size : 8);
            continue;
        }
        if (to == NULL || to->space == PTX_SHARED) {
            return base_fail(context, DW_UNSUPPORTED, "%s:%d: the initialiser of %s names %s, which is no global or constant variable, nor a function", module->source, r->line, v->name, r->name);
        }
        uint64_t value = (to->address + (uint64_t)r->addend) >> r->shift;
        memcpy(a->host + r->offset, &value, r->size < 8 ? (size_t)r->size : 8);
    }
    return DW_OK;
}

dw_status sim_place_variables(dw_context *context, ptx_module *module, sim_memory *memory) {
    for (int pass = 0; pass < 2; pass++) {
        for (size_t f = 0; f <= module->function_count; f++) {
            size_t count = f == 0 ? module->variable_count : module->functions[f - 1]->variable_count;
            ptx_variable **variables = f == 0 ? module->variables : module->functions[f - 1]->variables;
            for (size_t i = 0; i < count; i++) {
                ptx_variable *v = variables[i];
                if (v->space != PTX_GLOBAL && v->space != PTX_CONST) continue;
                if (v->external) return base_fail(context, DW_NOT_FOUND, "%s:%d: %s is declared .extern and nowhere defined", module->source, v->line, v->name);
                if (pass == 1) {
                    TRY(write_variable(context, module, memory, v));
                    continue;
                }
                if (v->managed) {
                    void *host;
                    TRY(sim_memory_alloc_host(memory, v->bytes, SIM_MANAGED, &host));
                    v->address = (uint64_t)(uintptr_t)host;
                } else {
                    TRY(sim_memory_alloc(memory, v->bytes, &v->address));
                }
                sim_allocation *a = sim_memory_find(memory, v->address);
                a->read_only = v->space == PTX_CONST;
                snprintf(a->name, sizeof a->name, "%s", v->name);
            }
        }
    }
    return DW_OK;
}
