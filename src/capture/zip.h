/* The entries of a zip archive in memory, as torch writes it: everything stored, nothing compressed, zip64 where needed.
 * Read by ourselves rather than by minizip, since weights are used where they lie: what is wanted is each entry's place in the mapped file, checked against the
 * file and the other entries, and nothing to be opened, read or inflated. */
#ifndef CAPTURE_ZIP_H
#define CAPTURE_ZIP_H

#include "base/base.h"

typedef struct zip_entry {
    const char *name;
    const uint8_t *bytes;   /* in the archive's memory */
    size_t length;
    uint32_t checksum;      /* what the directory says that the CRC-32 of the bytes is */
} zip_entry;

typedef struct zip_archive {
    size_t count;
    zip_entry *entries;     /* in the order of the central directory */
    map by_name;            /* name -> zip_entry */
} zip_archive;

/* Entries live in the arena, their bytes in the archive's memory. Every offset and size is checked; entries that are compressed, encrypted,
 * doubly named or overlapping are refused. Bytes are not read: zip_check compares an entry's with its checksum, which is for texts; entries of weights are sealed (ir_weights_seal), and held to
 * it when they are about to be computed with. */
dw_status zip_open(dw_context *context, const char *source, const uint8_t *bytes, size_t length, arena *arena, zip_archive *archive);
/* DW_CORRUPT when the entry's bytes are not those that were written. */
dw_status zip_check(dw_context *context, const char *source, const zip_entry *entry);
/* The CRC-32 of bytes. */
uint64_t zip_sum_of(const void *bytes, size_t length);
/* NULL when there is none of that name. */
const zip_entry *zip_find(const zip_archive *archive, const char *name);

#endif
