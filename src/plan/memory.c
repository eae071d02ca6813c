/* Places workspace values: those alive at the same time lie apart, others share. Largest first, each at the lowest place that is free
 * during its life (the greedy rule by size; within a few percent of optimal on real graphs and independent of allocation order). */
#include "plan/internal.h"

enum { ALIGN = 64 };

static bool needs_place(const plan_value *v) { return v->place == PLAN_WORKSPACE && v->base == NULL && v->first >= 0; }

typedef struct placing { const plan_binding *binding; const size_t *bytes; } placing;

static bool is_before(const placing *p, int a, int b)
{
    if (p->bytes[a] != p->bytes[b]) return p->bytes[a] > p->bytes[b];
    return a < b;
}

/* Heap sort of value indices: qsort has no argument for the sizes, and this allocates nothing. */
static void sift(const placing *p, int *items, int count, int root)
{
    for (;;) {
        int child = 2 * root + 1;
        if (child >= count) return;
        if (child + 1 < count && is_before(p, items[child], items[child + 1])) child++;
        if (!is_before(p, items[root], items[child])) return;
        int swap = items[root];
        items[root] = items[child];
        items[child] = swap;
        root = child;
    }
}

static void sort_by_size(const placing *p, int *items, int count)
{
    for (int i = count / 2 - 1; i >= 0; i--) sift(p, items, count, i);
    for (int i = count - 1; i > 0; i--) {
        int swap = items[0];
        items[0] = items[i];
        items[i] = swap;
        sift(p, items, i, 0);
    }
}

void plan_place_values(plan_binding *binding, const size_t *bytes)
{
    const plan *plan = binding->plan;
    int *order = binding->order, count = 0, placed = 0;
    for (int i = 0; i < plan->value_count; i++)
        if (needs_place(&plan->values[i])) order[count++] = i;
    placing p = {binding, bytes};
    sort_by_size(&p, order, count);

    /* order[0..placed) is kept sorted by offset */
    size_t end_of_all = 0;
    for (int k = 0; k < count; k++) {
        int index = order[k];
        const plan_value *v = &plan->values[index];
        size_t size = base_align_up(bytes[index], ALIGN), offset = 0;
        for (int i = 0; i < placed; i++) {
            const plan_value *other = &plan->values[order[i]];
            if (other->last < v->first || other->first > v->last) continue;
            size_t start = binding->offsets[order[i]], end = start + base_align_up(bytes[order[i]], ALIGN);
            if (offset + size <= start) break;
            if (end > offset) offset = end;
        }
        binding->offsets[index] = offset;
        if (offset + size > end_of_all) end_of_all = offset + size;
        int at = placed++;
        while (at > 0 && binding->offsets[order[at - 1]] > offset) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = index;
    }
    binding->value_bytes = end_of_all;
}
