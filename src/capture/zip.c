/* Reads the directory of a zip archive (PKWARE APPNOTE 6.3.10, sections 4.3 and 4.5.3) out of memory; data offsets come from the local headers,
 * whose padding differs from the directory's. Does not inflate: what torch saves is stored. */
#include "capture/zip.h"

#include <stdlib.h>
#include <string.h>
#include <libdeflate.h>

enum {
    END_BYTES = 22, END64_BYTES = 56, LOCATOR64_BYTES = 20, CENTRAL_BYTES = 46, LOCAL_BYTES = 30, COMMENT_MAX = 65535,
    FLAG_ENCRYPTED = 1, EXTRA_ZIP64 = 1
};
static const uint32_t end_mark = 0x06054b50, end64_mark = 0x06064b50, locator64_mark = 0x07064b50, central_mark = 0x02014b50, local_mark = 0x04034b50;

typedef struct reader {
    dw_context *context;
    const char *source;
    const uint8_t *bytes;
    size_t length;
    arena *arena;
} reader;

/* Where the directory lies, and how many entries it claims. */
typedef struct directory { uint64_t offset, bytes, count; } directory;

/* An entry of the directory before its local header was read. */
typedef struct central { uint64_t local, packed, unpacked; unsigned method, flags; uint32_t checksum; } central;

static uint64_t get(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

/* Are count bytes at offset within the file? */
static bool fits(const reader *r, uint64_t offset, uint64_t count) { return offset <= r->length && count <= r->length - offset; }

static dw_status find_end64(const reader *r, size_t end, directory *found) {
    uint64_t at = 0;
    bool there = end >= LOCATOR64_BYTES && get(r->bytes + end - LOCATOR64_BYTES, 4) == locator64_mark;
    if (there) at = get(r->bytes + end - LOCATOR64_BYTES + 8, 8);
    if (!there || !fits(r, at, END64_BYTES) || get(r->bytes + at, 4) != end64_mark) {
        return base_fail(r->context, DW_CORRUPT, "%s: the zip64 end record is missing; the archive is truncated or damaged", r->source);
    }
    *found = (directory){.offset = get(r->bytes + at + 48, 8), .bytes = get(r->bytes + at + 40, 8), .count = get(r->bytes + at + 32, 8)};
    return DW_OK;
}

static dw_status find_directory(const reader *r, directory *found) {
    if (r->length < END_BYTES) return base_fail(r->context, DW_CORRUPT, "%s: %zu bytes are too few for a zip archive; the file is truncated", r->source, r->length);
    size_t last = r->length - END_BYTES, lowest = last > COMMENT_MAX ? last - COMMENT_MAX : 0, end = last;
    while (end > lowest && get(r->bytes + end, 4) != end_mark) end--;
    if (get(r->bytes + end, 4) != end_mark) {
        bool zip = get(r->bytes, 4) == local_mark;
        return base_fail(r->context, DW_CORRUPT, zip ? "%s: the end of the zip archive is missing; the file is truncated"
                                                     : "%s: this is not a zip archive; a .pt2 file of torch.export.save is expected", r->source);
    }
    *found = (directory){.offset = get(r->bytes + end + 16, 4), .bytes = get(r->bytes + end + 12, 4), .count = get(r->bytes + end + 10, 2)};
    if (found->offset == UINT32_MAX || found->bytes == UINT32_MAX || found->count == UINT16_MAX) TRY(find_end64(r, end, found));
    if (!fits(r, found->offset, found->bytes)) {
        return base_fail(r->context, DW_CORRUPT, "%s: the zip directory claims bytes %llu to %llu of a file of %zu; the archive is truncated or damaged",
                         r->source, (unsigned long long)found->offset, (unsigned long long)(found->offset + found->bytes), r->length);
    }
    if (found->count <= found->bytes / CENTRAL_BYTES) return DW_OK;
    return base_fail(r->context, DW_CORRUPT, "%s: the zip directory claims %llu entries in %llu bytes; the archive is damaged", r->source,
                     (unsigned long long)found->count, (unsigned long long)found->bytes);
}

/* Sizes and offset that did not fit in 32 bits stand in an extra field, in this order, only those that are saturated. */
static bool read_zip64(const uint8_t *extra, size_t length, central *entry) {
    uint64_t *wide[] = {&entry->unpacked, &entry->packed, &entry->local};
    bool wanted = false;
    for (size_t i = 0; i < COUNT_OF(wide); i++) wanted = wanted || *wide[i] == UINT32_MAX;
    for (size_t at = 0; wanted && length - at >= 4;) {
        size_t id = get(extra + at, 2), bytes = get(extra + at + 2, 2), taken = 0;
        if (bytes > length - at - 4) return false;
        if (id == EXTRA_ZIP64) {
            for (size_t i = 0; i < COUNT_OF(wide); i++) {
                if (*wide[i] != UINT32_MAX) continue;
                if (bytes - taken < 8) return false;
                *wide[i] = get(extra + at + 4 + taken, 8);
                taken += 8;
            }
            return true;
        }
        at += 4 + bytes;
    }
    return !wanted;
}

static dw_status open_entry(const reader *r, const central *from, zip_entry *entry) {
    if (from->flags & FLAG_ENCRYPTED) return base_fail(r->context, DW_UNSUPPORTED, "%s: entry '%s' is encrypted", r->source, entry->name);
    if (from->method != 0) {
        return base_fail(r->context, DW_UNSUPPORTED, "%s: entry '%s' is compressed (zip method %u), so it cannot be mapped; re-save it with torch.export.save or zip -0",
                         r->source, entry->name, from->method);
    }
    if (from->packed != from->unpacked) {
        return base_fail(r->context, DW_CORRUPT, "%s: entry '%s' is stored but claims %llu bytes packed and %llu unpacked", r->source, entry->name,
                         (unsigned long long)from->packed, (unsigned long long)from->unpacked);
    }
    uint64_t local = from->local;
    if (!fits(r, local, LOCAL_BYTES) || get(r->bytes + local, 4) != local_mark) {
        return base_fail(r->context, DW_CORRUPT, "%s: entry '%s' has no header at byte %llu of %zu; the archive is truncated or damaged", r->source,
                         entry->name, (unsigned long long)local, r->length);
    }
    size_t name_bytes = get(r->bytes + local + 26, 2), extra_bytes = get(r->bytes + local + 28, 2);
    uint64_t data = local + LOCAL_BYTES + name_bytes + extra_bytes;
    if (!fits(r, data, from->packed)) {
        return base_fail(r->context, DW_CORRUPT, "%s: entry '%s' claims bytes %llu to %llu of a file of %zu; the archive is truncated or damaged",
                         r->source, entry->name, (unsigned long long)data, (unsigned long long)(data + from->packed), r->length);
    }
    if (name_bytes != strlen(entry->name) || memcmp(r->bytes + local + LOCAL_BYTES, entry->name, name_bytes) != 0) {
        return base_fail(r->context, DW_CORRUPT, "%s: entry '%s' has another name in its own header; the archive is damaged", r->source, entry->name);
    }
    entry->bytes = r->bytes + data;
    entry->length = (size_t)from->packed;
    entry->checksum = from->checksum;
    return DW_OK;
}

/* The entry of the directory at *at, which moves past it. */
static dw_status read_entry(const reader *r, const directory *found, uint64_t *at, zip_entry *entry) {
    uint64_t end = found->offset + found->bytes;
    const uint8_t *from = r->bytes + *at;
    if (end - *at < CENTRAL_BYTES || get(from, 4) != central_mark) {
        return base_fail(r->context, DW_CORRUPT, "%s: the zip directory has no entry at byte %llu; the archive is damaged", r->source, (unsigned long long)*at);
    }
    size_t name_bytes = get(from + 28, 2), extra_bytes = get(from + 30, 2), comment_bytes = get(from + 32, 2);
    if (end - *at - CENTRAL_BYTES < name_bytes + extra_bytes + comment_bytes || memchr(from + CENTRAL_BYTES, 0, name_bytes) != NULL) {
        return base_fail(r->context, DW_CORRUPT, "%s: the zip directory's entry at byte %llu has a bad name; the archive is damaged", r->source,
                         (unsigned long long)*at);
    }
    entry->name = arena_text_n(r->arena, (const char *)from + CENTRAL_BYTES, name_bytes);
    if (entry->name == NULL) return DW_NO_MEMORY;
    central claimed = {.flags = (unsigned)get(from + 8, 2), .method = (unsigned)get(from + 10, 2), .checksum = (uint32_t)get(from + 16, 4), .packed = get(from + 20, 4),
                       .unpacked = get(from + 24, 4), .local = get(from + 42, 4)};
    if (!read_zip64(from + CENTRAL_BYTES + name_bytes, extra_bytes, &claimed)) {
        return base_fail(r->context, DW_CORRUPT, "%s: entry '%s' lacks its 64-bit sizes; the archive is damaged", r->source, entry->name);
    }
    *at += CENTRAL_BYTES + name_bytes + extra_bytes + comment_bytes;
    return open_entry(r, &claimed, entry);
}

static int compare_places(const void *a, const void *b) {
    const zip_entry *x = *(zip_entry *const *)a, *y = *(zip_entry *const *)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return x->length < y->length ? -1 : x->length > y->length;
}

static dw_status check_overlap(const reader *r, const zip_archive *archive) {
    zip_entry **sorted;
    TRY_NEW(sorted, r->arena, archive->count);
    for (size_t i = 0; i < archive->count; i++) sorted[i] = &archive->entries[i];
    if (archive->count > 1) qsort(sorted, archive->count, sizeof *sorted, compare_places);
    for (size_t i = 1; i < archive->count; i++) {
        if (sorted[i - 1]->bytes + sorted[i - 1]->length > sorted[i]->bytes) {
            return base_fail(r->context, DW_CORRUPT, "%s: entries '%s' and '%s' overlap; the archive is damaged", r->source, sorted[i - 1]->name,
                             sorted[i]->name);
        }
    }
    return DW_OK;
}

dw_status zip_open(dw_context *context, const char *source, const uint8_t *bytes, size_t length, arena *arena, zip_archive *archive) {
    reader r = {.context = context, .source = source, .bytes = bytes, .length = length, .arena = arena};
    directory found = {0};
    TRY(find_directory(&r, &found));
    *archive = (zip_archive){.count = (size_t)found.count};
    map_init(&archive->by_name, arena);
    TRY_NEW(archive->entries, arena, archive->count);
    uint64_t at = found.offset;
    for (size_t i = 0; i < archive->count; i++) {
        zip_entry *entry = &archive->entries[i];
        TRY(read_entry(&r, &found, &at, entry));
        if (zip_find(archive, entry->name) != NULL) {
            return base_fail(context, DW_CORRUPT, "%s: two entries are named '%s'; the archive is damaged", source, entry->name);
        }
        TRY(map_set(&archive->by_name, entry->name, entry));
    }
    return check_overlap(&r, archive);
}

uint64_t zip_sum_of(const void *bytes, size_t length) { return libdeflate_crc32(0, bytes, length); }

dw_status zip_check(dw_context *context, const char *source, const zip_entry *entry) {
    uint32_t found = (uint32_t)zip_sum_of(entry->bytes, entry->length);
    if (found == entry->checksum) return DW_OK;
    return base_fail(context, DW_CORRUPT, "%s: the bytes of entry '%s' have the checksum %08x, the zip directory says %08x; the archive is damaged", source, entry->name,
                     (unsigned)found, (unsigned)entry->checksum);
}

const zip_entry *zip_find(const zip_archive *archive, const char *name) { return map_find(&archive->by_name, name); }
