/* What is asked of streams, put off (option late=N): copies, fills, launches and graphs are done some calls later or when the host waits, in the order in which they were asked for, which every program must
 * accept. So a program that reads a result, or writes over what a copy is to read, before it has waited gets what it would get of a slow device. Without the option all is done at once. */
#include "driver.h"

#include <stdlib.h>

typedef struct late_item {
    driver_work work;
    struct late_item *next;
} late_item;

static late_item *first, **last = &first;
static uint64_t asked, done;           /* of all so far */

static uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static cuda_result run(const driver_work *work) {
    const cuda_result result = work->run(work->data);
    if (work->drop != NULL) work->drop(work->data);
    return result;
}

/* Behind one that failed nothing is done any more, as on a device whose context is lost. */
static void run_first(void) {
    late_item *item = first;
    first = item->next;
    if (first == NULL) last = &first;
    done++;
    if (sim_driver.broken == CUDA_OK) {
        const cuda_result result = run(&item->work);
        if (sim_driver.broken == CUDA_OK) sim_driver.broken = result;
    } else if (item->work.drop != NULL) {
        item->work.drop(item->work.data);
    }
    free(item);
}

static cuda_result run_to(uint64_t ticket) {
    while (done < ticket && first != NULL) run_first();
    return sim_driver.broken;
}

cuda_result driver_ask(const driver_work *work) {
    if (!sim_driver.late) return run(work);
    late_item *item = malloc(sizeof *item);
    if (item == NULL) {
        if (work->drop != NULL) work->drop(work->data);
        return CUDA_OUT_OF_MEMORY;
    }
    *item = (late_item){.work = *work};
    *last = item;
    last = &item->next;
    asked++;
    driver_go_on();
    return CUDA_OK;
}

/* late=0 does nothing by itself; else one call in two does up to three of those that wait. */
void driver_go_on(void) {
    static uint64_t calls;
    const uint64_t random = mixed(sim_driver.late_seed * UINT64_C(0x9e3779b97f4a7c15) + ++calls);
    if (sim_driver.late_seed == 0 || random % 2 == 0) return;
    for (uint64_t i = random >> 8 & 3; i > 0 && first != NULL; i--) run_first();
}

uint64_t driver_ticket(void) { return asked; }
bool driver_is_done(uint64_t ticket) { return done >= ticket || first == NULL; }
cuda_result driver_wait(uint64_t ticket) { return run_to(ticket); }
cuda_result driver_finish(void) { return run_to(asked); }
