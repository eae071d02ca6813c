/* The arena: memory that grows by blocks and is freed all at once; and size arithmetic that notices overflow. */
#include "base/base.h"

#include <string.h>

#define ARENA_ALIGN 16
#define FIRST_BLOCK_BYTES 4096
#define LAST_BLOCK_BYTES (1 << 20)

struct arena_block {
    arena_block *next;
    size_t bytes;               /* of the whole block, this header included */
};

#define HEADER_BYTES ((sizeof(arena_block) + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN)

bool base_mul_size(size_t a, size_t b, size_t *product) {
    if (b != 0 && a > SIZE_MAX / b) return false;
    *product = a * b;
    return true;
}

bool base_add_size(size_t a, size_t b, size_t *sum) {
    if (a > SIZE_MAX - b) return false;
    *sum = a + b;
    return true;
}

bool base_mul_i64(int64_t a, int64_t b, int64_t *product) {
    bool fits = true;
    if (a > 0) {
        fits = b > 0 ? a <= INT64_MAX / b : b >= INT64_MIN / a;
    } else if (a < 0) {
        fits = b > 0 ? a >= INT64_MIN / b : b == 0 || b >= INT64_MAX / a;
    }
    if (fits) *product = a * b;
    return fits;
}

bool base_add_i64(int64_t a, int64_t b, int64_t *sum) {
    if (b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b) return false;
    *sum = a + b;
    return true;
}

void arena_init(arena *arena, dw_context *context) {
    *arena = (struct arena){.context = context};
}

void arena_free(arena *arena) {
    for (arena_block *block = arena->blocks; block != NULL;) {
        arena_block *next = block->next;
        base_release(arena->context, block, block->bytes, ARENA_ALIGN);
        block = next;
    }
    arena_init(arena, arena->context);
}

static arena_block *block_create(arena *arena, size_t bytes) {
    void *memory;
    if (base_alloc(arena->context, bytes, ARENA_ALIGN, &memory) != DW_OK) return NULL;
    arena_block *block = memory;
    *block = (arena_block){.bytes = bytes};
    return block;
}

/* bytes (a multiple of ARENA_ALIGN) that do not fit the newest block. */
static char *arena_new_block(arena *arena, size_t bytes) {
    size_t block_bytes = FIRST_BLOCK_BYTES;
    if (arena->blocks != NULL) {
        block_bytes = HEADER_BYTES + arena->room;
        block_bytes = block_bytes < LAST_BLOCK_BYTES / 2 ? 2 * block_bytes : LAST_BLOCK_BYTES;
    }
    bool is_alone = bytes > (block_bytes - HEADER_BYTES) / 4;
    size_t total;
    if (!base_add_size(is_alone ? bytes : block_bytes - HEADER_BYTES, HEADER_BYTES, &total)) {
        base_fail(arena->context, DW_NO_MEMORY, "%zu bytes do not fit the address space", bytes);
        return NULL;
    }
    arena_block *block = block_create(arena, total);
    if (block == NULL) return NULL;
    if (is_alone && arena->blocks != NULL) {   /* the newest block keeps its room for small things */
        block->next = arena->blocks->next;
        arena->blocks->next = block;
    } else {
        block->next = arena->blocks;
        arena->blocks = block;
        arena->room = total - HEADER_BYTES;
        arena->used = bytes;
    }
    return (char *)block + HEADER_BYTES;
}

void *arena_new(arena *arena, size_t count, size_t size) {
    size_t bytes;
    if (!base_mul_size(count, size, &bytes) || bytes > SIZE_MAX - ARENA_ALIGN) {
        base_fail(arena->context, DW_NO_MEMORY, "%zu objects of %zu bytes do not fit the address space", count, size);
        return NULL;
    }
    bytes = bytes == 0 ? ARENA_ALIGN : base_align_up(bytes, ARENA_ALIGN);
    char *memory;
    if (arena->blocks != NULL && bytes <= arena->room - arena->used) {
        memory = (char *)arena->blocks + HEADER_BYTES + arena->used;
        arena->used += bytes;
    } else {
        memory = arena_new_block(arena, bytes);
        if (memory == NULL) return NULL;
    }
    return memset(memory, 0, bytes);
}

char *arena_text(arena *arena, const char *text) { return arena_text_n(arena, text, strlen(text)); }

char *arena_text_n(arena *arena, const char *text, size_t length) {
    size_t bytes;
    if (!base_add_size(length, 1, &bytes)) return NULL;
    char *copy = arena_new(arena, bytes, 1);
    if (copy != NULL && length > 0) memcpy(copy, text, length);
    return copy;
}

char *arena_printf(arena *arena, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    char *made = NULL;
    if (length < 0) {
        base_fail(arena->context, DW_INTERNAL, "text could not be formatted by \"%s\"", format);
    } else {
        made = arena_new(arena, (size_t)length + 1, 1);
        if (made != NULL) vsnprintf(made, (size_t)length + 1, format, again);
    }
    va_end(again);
    return made;
}

void *arena_grow(arena *arena, void *array, size_t count, size_t *capacity, size_t size) {
    if (count < *capacity) return array;
    size_t doubled;
    if (!base_mul_size(*capacity == 0 ? 4 : *capacity, 2, &doubled)) {
        base_fail(arena->context, DW_NO_MEMORY, "an array of %zu objects cannot grow", *capacity);
        return NULL;
    }
    void *moved = arena_new(arena, doubled, size);
    if (moved == NULL) return NULL;
    if (count > 0) memcpy(moved, array, count * size);
    *capacity = doubled;
    return moved;
}
