/* Findings: what a launch is ended for, with the instruction, its line, and the thread. */
#include "machine.h"

#include <pthread.h>
#include <stdarg.h>

sim_flow sim_find(sim_warp *w, const sim_op *op, int lane, const char *format, ...) {
    char what[1100], place[300] = "", source[260] = "";
    sim_launch *launch = w->launch;
    sim_cta *cta = w->cta;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    const ptx_function *f = w->now != NULL && w->now->frame != NULL ? w->now->frame->code->function : launch->code->function;
    if (op != NULL && op->instruction >= 0) {
        const ptx_instruction *in = &f->instructions[op->instruction];
        const ptx_module *module = launch->code->module;
        if (in->file > 0 && (size_t)in->file < module->file_count && module->files[in->file] != NULL) {
            snprintf(source, sizeof source, " (%s:%d)", module->files[in->file], in->source_line);
        }
        snprintf(place, sizeof place, ", PTX line %d%s, %.60s", in->line, source, in->opcode);
    }
    uint32_t id[3] = {0};
    const char *name = launch->code->function->name;   /* those of C++ templates run to thousands of characters */
    if (lane >= 0) {
        uint32_t thread = (uint32_t)(w->index * LANES + lane);
        id[0] = thread % launch->block[0];
        id[1] = thread / launch->block[0] % launch->block[1];
        id[2] = thread / launch->block[0] / launch->block[1];
    }
    pthread_mutex_lock(&launch->lock);
    if (!launch->finding.made || cta->cluster->index < launch->finding.cluster) {
        char who[96] = "";
        if (lane >= 0) snprintf(who, sizeof who, ", lane %d (thread %u,%u,%u)", lane, id[0], id[1], id[2]);
        launch->finding.made = true;
        launch->finding.cluster = cta->cluster->index;
        snprintf(launch->finding.text, sizeof launch->finding.text, "kernel %.160s%s%s, CTA %u,%u,%u, warp %d%s: %s", name, strlen(name) > 160 ? ".." : "", place, cta->id[0],
                 cta->id[1], cta->id[2], w->index, who, what);
    }
    uint64_t stop = atomic_load(&launch->stop_at);
    if (cta->cluster->index < stop) atomic_store(&launch->stop_at, cta->cluster->index);
    pthread_mutex_unlock(&launch->lock);
    cta->cluster->stopped = true;
    return SIM_STOP;
}
