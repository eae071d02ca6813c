/* What a function is given in registers: special registers, and the addresses of its local and shared variables. */
#include "special.h"

static uint64_t special_value(const sim_warp *w, int what, int lane) {
    const sim_launch *l = w->launch;
    const sim_cta *c = w->cta;
    uint32_t thread = (uint32_t)(w->index * LANES + lane), bit = 1u << lane;
    uint64_t clock = w->executed + c->cluster->executed;
    switch (what) {
    case SPECIAL_tid_x: return thread % l->block[0];
    case SPECIAL_tid_y: return thread / l->block[0] % l->block[1];
    case SPECIAL_tid_z: return thread / l->block[0] / l->block[1];
    case SPECIAL_ntid_x: return l->block[0];
    case SPECIAL_ntid_y: return l->block[1];
    case SPECIAL_ntid_z: return l->block[2];
    case SPECIAL_ctaid_x: return c->id[0];
    case SPECIAL_ctaid_y: return c->id[1];
    case SPECIAL_ctaid_z: return c->id[2];
    case SPECIAL_nctaid_x: return l->grid[0];
    case SPECIAL_nctaid_y: return l->grid[1];
    case SPECIAL_nctaid_z: return l->grid[2];
    case SPECIAL_laneid: return (uint64_t)lane;
    case SPECIAL_warpid: return (uint64_t)w->index;
    case SPECIAL_nwarpid: return 64;
    case SPECIAL_smid: return c->linear % (uint64_t)l->options->sm_count;
    case SPECIAL_nsmid: return (uint64_t)l->options->sm_count;
    case SPECIAL_gridid: return l->epoch;
    case SPECIAL_lanemask_eq: return bit;
    case SPECIAL_lanemask_le: return bit | (bit - 1);
    case SPECIAL_lanemask_lt: return bit - 1;
    case SPECIAL_lanemask_ge: return ~(bit - 1);
    case SPECIAL_lanemask_gt: return ~(bit | (bit - 1));
    case SPECIAL_warp_size: return LANES;
    case SPECIAL_cluster_ctaid_x: return c->id[0] % c->cluster->size[0];
    case SPECIAL_cluster_ctaid_y: return c->id[1] % c->cluster->size[1];
    case SPECIAL_cluster_ctaid_z: return c->id[2] % c->cluster->size[2];
    case SPECIAL_cluster_nctaid_x: return c->cluster->size[0];
    case SPECIAL_cluster_nctaid_y: return c->cluster->size[1];
    case SPECIAL_cluster_nctaid_z: return c->cluster->size[2];
    case SPECIAL_cluster_ctarank: return (uint64_t)c->rank;
    case SPECIAL_cluster_nctarank: return (uint64_t)c->cluster->cta_count;
    case SPECIAL_clusterid_x: return c->id[0] / c->cluster->size[0];
    case SPECIAL_clusterid_y: return c->id[1] / c->cluster->size[1];
    case SPECIAL_clusterid_z: return c->id[2] / c->cluster->size[2];
    case SPECIAL_nclusterid_x: return l->grid[0] / c->cluster->size[0];
    case SPECIAL_nclusterid_y: return l->grid[1] / c->cluster->size[1];
    case SPECIAL_nclusterid_z: return l->grid[2] / c->cluster->size[2];
    case SPECIAL_explicit_cluster: return l->code->function->explicit_cluster || c->cluster->cta_count > 1;
    case SPECIAL_dynamic_smem: return l->dynamic_shared;
    case SPECIAL_total_smem: return base_align_up(c->shared_bytes - SIM_SHARED_RESERVED, 128);   /* the unit it is allocated in */
    case SPECIAL_aggr_smem: return c->shared_bytes;
    case SPECIAL_reserved_cap: return SIM_SHARED_RESERVED;
    case SPECIAL_reserved_end: return 0x120;   /* of an H200's driver (580.159.04) */
    case SPECIAL_reserved_begin: case SPECIAL_reserved_0: case SPECIAL_reserved_1: return 0;
    case SPECIAL_tid_w: case SPECIAL_ntid_w: case SPECIAL_ctaid_w: case SPECIAL_nctaid_w: return 0;
    case SPECIAL_cluster_ctaid_w: case SPECIAL_cluster_nctaid_w: case SPECIAL_clusterid_w: case SPECIAL_nclusterid_w: return 0;
    case SPECIAL_clock: case SPECIAL_clock64: case SPECIAL_globaltimer: return clock;
    case SPECIAL_envreg1: return l->grid_barrier >> 32;
    case SPECIAL_envreg2: return (uint32_t)l->grid_barrier;
    case SPECIAL_globaltimer_lo: return (uint32_t)clock;
    default: return clock >> 32;   /* clock_hi, globaltimer_hi */
    }
}

void sim_special_fill(sim_warp *w, int what, void *row, uint32_t bits) {
    uint32_t mask = 0;
    for (int lane = 0; lane < LANES; lane++) {
        uint64_t value = special_value(w, what, lane);
        if (bits == 1) mask |= (uint32_t)(value != 0) << lane;
        else memcpy((uint8_t *)row + (size_t)lane * (bits / 8), &value, bits / 8);
    }
    if (bits == 1) memcpy(row, &mask, sizeof mask);
}

void sim_given_fill(sim_warp *w, sim_frame *frame, uint32_t lanes) {
    (void)lanes;
    for (size_t i = 0; i < frame->code->given_count; i++) {
        const sim_given *g = &frame->code->given[i];
        if (g->what < GIVEN_LOCAL) {
            sim_special_fill(w, g->what, frame->registers + g->row, (uint32_t)g->value);
            continue;
        }
        for (int lane = 0; lane < LANES; lane++) {
            uint64_t base = g->what == GIVEN_LOCAL ? frame->local_base : (uint64_t)w->cta->rank << SIM_RANK_SHIFT, address = base + (uint64_t)g->value;
            size_t bytes = g->what == GIVEN_SHARED_32 ? 4 : 8;
            memcpy(frame->registers + g->row + (size_t)lane * bytes, &address, bytes);
        }
    }
}
