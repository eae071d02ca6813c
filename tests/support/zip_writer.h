/* Writes zip archives whose headers may lie: for tests and fuzz targets of what reads them. Everything is stored. */
#ifndef SUPPORT_ZIP_WRITER_H
#define SUPPORT_ZIP_WRITER_H

#include "base/base.h"

typedef struct zip_writer {
    text *out;          /* the archive so far */
    size_t base;        /* where in out it begins */
    text directory;
    int count;
} zip_writer;

/* What the headers of an entry say wrongly. */
typedef struct zip_lie {
    int method;         /* 0 is the truth */
    int64_t claim;      /* added to the sizes */
    int64_t move;       /* added to the offset that the directory says */
    uint32_t checksum;  /* xor */
} zip_lie;

void zip_writer_start(zip_writer *writer, text *out);
/* lie: or NULL. */
void zip_writer_add(zip_writer *writer, const char *name, const void *bytes, size_t length, const zip_lie *lie);
/* Writes the directory. The caller asks text_status(out) whether there was memory. */
void zip_writer_finish(zip_writer *writer);

#endif
