/* The entries of a zip archive in memory, as torch writes it: everything stored, nothing compressed, zip64 where needed. */
#ifndef CAPTURE_ZIP_H
#define CAPTURE_ZIP_H

#include "base/base.h"

typedef struct zip_entry {
    const char *name;
    const uint8_t *bytes;   /* in the archive's memory */
    size_t length;
} zip_entry;

typedef struct zip_archive {
    size_t count;
    zip_entry *entries;     /* in the order of the central directory */
    map by_name;            /* name -> zip_entry */
} zip_archive;

/* Entries live in the arena, their bytes in the archive's memory. Every offset and size is checked; entries that are compressed, encrypted,
 * doubly named or overlapping are refused. Checksums are not: weights are read when they are used. */
dw_status zip_open(dw_context *context, const char *source, const uint8_t *bytes, size_t length, arena *arena, zip_archive *archive);
/* NULL when there is none of that name. */
const zip_entry *zip_find(const zip_archive *archive, const char *name);

#endif
