/* Reads from machine code (an ELF file) how many registers its kernels have, which PTX does not say. Nothing else in it is read. Bytes may be hostile.
 *
 * Section .nv.info is a list of records: u8 form, u8 attribute, u16 value or, in form 4, bytes that follow. Its attribute 2f pairs a symbol's number with its
 * registers; attribute 1b (form 3) of section .nv.info.<kernel> is the most that ptxas was to use. Both were held against what `ptxas -v` of CUDA 13.0 says. */
#include "ptx.h"

#include <string.h>

enum {
    ELF_HEADER_BYTES = 64, SECTION_BYTES = 64, SYMBOL_BYTES = 24, SECTION_SYMBOLS = 2,
    FORM_VALUE = 3, FORM_BYTES = 4, ATTRIBUTE_LIMIT = 0x1b, ATTRIBUTE_COUNT = 0x2f, MAX_REGISTERS = 255,
};

typedef struct span { const uint8_t *at; size_t bytes; } span;
typedef struct section { span name, body; uint32_t kind, link; } section;
typedef struct elf { const uint8_t *bytes; size_t length, sections, table, names; } elf;

static uint32_t get16(const uint8_t *at) { return (uint32_t)at[0] | (uint32_t)at[1] << 8; }
static uint32_t get32(const uint8_t *at) { return get16(at) | get16(at + 2) << 16; }
static uint64_t get64(const uint8_t *at) { return get32(at) | (uint64_t)get32(at + 4) << 32; }

/* Empty when it does not lie in the file. */
static span inside(const elf *e, uint64_t offset, uint64_t bytes) {
    if (offset > e->length || bytes > e->length - offset) return (span){e->bytes, 0};
    return (span){e->bytes + offset, (size_t)bytes};
}

/* The terminated name at an offset of a table of names; empty when it does not end there. */
static span name_at(span table, uint32_t offset) {
    if (offset >= table.bytes) return (span){table.at, 0};
    const uint8_t *end = memchr(table.at + offset, 0, table.bytes - offset);
    return (span){table.at + offset, end != NULL ? (size_t)(end - table.at) - offset : 0};
}

static bool is_named(span name, const char *first, const char *second) {
    const size_t before = strlen(first), behind = strlen(second);
    return name.bytes == before + behind && memcmp(name.at, first, before) == 0 && memcmp(name.at + before, second, behind) == 0;
}

static span section_body(const elf *e, size_t index) {
    if (index >= e->sections) return (span){e->bytes, 0};
    const uint8_t *header = e->bytes + e->table + index * SECTION_BYTES;
    return inside(e, get64(header + 24), get64(header + 32));
}

static section section_at(const elf *e, size_t index) {
    const uint8_t *header = e->bytes + e->table + index * SECTION_BYTES;
    return (section){.name = name_at(section_body(e, e->names), get32(header)), .body = section_body(e, index), .kind = get32(header + 4), .link = get32(header + 40)};
}

static bool open_elf(const uint8_t *bytes, size_t length, elf *e) {
    static const uint8_t magic[] = {0x7f, 'E', 'L', 'F', 2, 1};   /* of 64 bits, the lowest byte first */
    if (length < ELF_HEADER_BYTES || memcmp(bytes, magic, sizeof magic) != 0 || get16(bytes + 58) != SECTION_BYTES) return false;
    const uint64_t table = get64(bytes + 40), count = get16(bytes + 60);
    if (table > length || count > (length - table) / SECTION_BYTES) return false;
    *e = (elf){bytes, length, (size_t)count, (size_t)table, get16(bytes + 62)};
    return true;
}

/* Is the symbol of that number the kernel? */
static bool is_symbol(const elf *e, uint32_t number, const char *kernel) {
    for (size_t i = 0; i < e->sections; i++) {
        const section s = section_at(e, i);
        if (s.kind != SECTION_SYMBOLS || number >= s.body.bytes / SYMBOL_BYTES) continue;
        return is_named(name_at(section_body(e, s.link), get32(s.body.at + (size_t)number * SYMBOL_BYTES)), kernel, "");
    }
    return false;
}

/* Looks for the records about the kernel in a list. */
static void read_records(const elf *e, span list, const char *kernel, bool own, cubin_registers *found) {
    for (size_t at = 0; at + 4 <= list.bytes;) {
        const uint8_t *record = list.at + at;
        const size_t value = get16(record + 2), follows = record[0] == FORM_BYTES ? value : 0;
        if (follows > list.bytes - at - 4) return;
        if (own && record[0] == FORM_VALUE && record[1] == ATTRIBUTE_LIMIT && value >= 1 && value <= MAX_REGISTERS) found->limit = (int)value;
        if (!own && record[1] == ATTRIBUTE_COUNT && follows == 8) {
            const uint32_t count = get32(record + 8);
            if (count >= 1 && count <= MAX_REGISTERS && is_symbol(e, get32(record + 4), kernel)) found->count = (int)count;
        }
        at += 4 + follows;
    }
}

cubin_registers cubin_find_registers(const uint8_t *bytes, size_t length, const char *kernel) {
    cubin_registers found = {0};
    elf e;
    if (!open_elf(bytes, length, &e)) return found;
    for (size_t i = 0; i < e.sections; i++) {
        const section s = section_at(&e, i);
        const bool own = is_named(s.name, ".nv.info.", kernel);
        if (own || is_named(s.name, ".nv.info", "")) read_records(&e, s.body, kernel, own, &found);
    }
    return found;
}
