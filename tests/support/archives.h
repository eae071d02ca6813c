/* Archives as torch writes them, made from another one with changes: for tests of what is damaged. */
#ifndef SUPPORT_ARCHIVES_H
#define SUPPORT_ARCHIVES_H

#include "base/base.h"

/* What becomes of one entry. */
typedef struct archive_change {
    const char *name;           /* of the entry, without its root folder */
    bool remove;
    const char *rename;         /* or NULL */
    const char *find, *put;     /* the first find in its bytes becomes put; the test fails when there is none */
    const char *contents;       /* instead of its bytes, or NULL */
    int method;                 /* the zip method that the headers claim; 0 is stored */
    int64_t claim;              /* added to the size that the headers claim */
    int64_t move;               /* added to the offset that the directory claims */
    uint32_t checksum;          /* xor on the checksum that the headers claim */
} archive_change;

/* A zip archive, rebuilt with changes into *made: appended, so that it may be empty or hold something before. */
void archive_rebuild(dw_context *context, const void *bytes, size_t length, int count, const archive_change *changes, text *made);

#endif
