/* The string map: entries in order of insertion, found through a table of slots (open addressing, at most half full). */
#include "base/base.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define FIRST_SLOTS 16

uint64_t base_hash(const void *bytes, size_t length, uint64_t seed) { return XXH3_64bits_withSeed(bytes, length, seed); }

void base_hash_128(size_t head_length, const void *head, size_t length, const void *bytes, uint64_t *low, uint64_t *high) {
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, head, head_length);
    XXH3_128bits_update(&state, bytes, length);
    const XXH128_hash_t made = XXH3_128bits_digest(&state);
    *low = made.low64;
    *high = made.high64;
}

void map_init(map *map, arena *arena) {
    *map = (struct map){.arena = arena};
}

/* The slot of key, or the free slot where it belongs. */
static uint32_t *slot_of(const map *map, const char *key, uint64_t hash) {
    size_t mask = map->slot_count - 1;
    for (size_t at = (size_t)hash & mask;; at = (at + 1) & mask) {
        uint32_t *slot = &map->slots[at];
        if (*slot == 0) return slot;
        const map_entry *entry = &map->entries[*slot - 1];
        if (entry->hash == hash && strcmp(entry->key, key) == 0) return slot;
    }
}

void *map_find(const map *map, const char *key) {
    if (map->count == 0) return NULL;
    uint32_t slot = *slot_of(map, key, base_hash(key, strlen(key), 0));
    return slot == 0 ? NULL : map->entries[slot - 1].value;
}

static dw_status grow_slots(map *map) {
    uint32_t *slots;
    size_t slot_count = map->slot_count == 0 ? FIRST_SLOTS : 2 * map->slot_count;
    TRY_NEW(slots, map->arena, slot_count);
    map->slots = slots;
    map->slot_count = slot_count;
    for (size_t i = 0; i < map->count; i++) *slot_of(map, map->entries[i].key, map->entries[i].hash) = (uint32_t)i + 1;
    return DW_OK;
}

dw_status map_set(map *map, const char *key, void *value) {
    uint64_t hash = base_hash(key, strlen(key), 0);
    if (map->slot_count > 0) {
        uint32_t slot = *slot_of(map, key, hash);
        if (slot != 0) {
            map->entries[slot - 1].value = value;
            return DW_OK;
        }
    }
    if (map->count >= UINT32_MAX / 2) return base_fail(map->arena->context, DW_LIMIT, "a map of %zu keys is full", map->count);
    map_entry *entries = arena_grow(map->arena, map->entries, map->count, &map->capacity, sizeof *entries);
    if (entries == NULL) return DW_NO_MEMORY;
    map->entries = entries;
    if (2 * (map->count + 1) > map->slot_count) TRY(grow_slots(map));
    const char *copy = arena_text(map->arena, key);
    if (copy == NULL) return DW_NO_MEMORY;
    uint32_t *slot = slot_of(map, key, hash);
    map->entries[map->count] = (map_entry){copy, value, hash};
    map->count++;
    *slot = (uint32_t)map->count;
    return DW_OK;
}
