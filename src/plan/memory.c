/* Places workspace values: those alive at the same time lie apart, others share. Largest first, each at the lowest place that is free
 * during its life (the greedy rule by size; within a few percent of optimal on real graphs and independent of allocation order). */
#include "plan/internal.h"

enum { ALIGN = 64 };

bool plan_needs_place(const plan_value *v) { return v->place == PLAN_WORKSPACE && v->base == NULL && v->first >= 0; }

static bool is_before(const size_t *bytes, int a, int b)
{
    if (bytes[a] != bytes[b]) return bytes[a] > bytes[b];
    return a < b;
}

/* Heap sort of value indices: qsort has no argument for the sizes, and this allocates nothing. */
static void sift(const size_t *bytes, int *items, int count, int root)
{
    for (;;) {
        int child = 2 * root + 1;
        if (child >= count) return;
        if (child + 1 < count && is_before(bytes, items[child], items[child + 1])) child++;
        if (!is_before(bytes, items[root], items[child])) return;
        int swap = items[root];
        items[root] = items[child];
        items[child] = swap;
        root = child;
    }
}

static void sort_by_size(const size_t *bytes, int *items, int count)
{
    for (int i = count / 2 - 1; i >= 0; i--) sift(bytes, items, count, i);
    for (int i = count - 1; i > 0; i--) {
        int swap = items[0];
        items[0] = items[i];
        items[i] = swap;
        sift(bytes, items, i, 0);
    }
}

void plan_place_values(const plan *plan, const size_t *bytes, int *order, size_t *offsets, size_t *value_bytes)
{
    int count = 0, placed = 0;
    for (int i = 0; i < plan->value_count; i++)
        if (plan_needs_place(&plan->values[i])) order[count++] = i;
    sort_by_size(bytes, order, count);

    /* order[0..placed) is kept sorted by offset */
    *value_bytes = 0;
    for (int k = 0; k < count; k++) {
        int index = order[k];
        const plan_value *v = &plan->values[index];
        size_t size = base_align_up(bytes[index], ALIGN), offset = 0;
        for (int i = 0; i < placed; i++) {
            const plan_value *other = &plan->values[order[i]];
            if (other->last < v->first || other->first > v->last) continue;
            size_t start = offsets[order[i]], end = start + base_align_up(bytes[order[i]], ALIGN);
            if (offset + size <= start) break;
            if (end > offset) offset = end;
        }
        offsets[index] = offset;
        if (offset + size > *value_bytes) *value_bytes = offset + size;
        int at = placed++;
        while (at > 0 && offsets[order[at - 1]] > offset) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = index;
    }
}
