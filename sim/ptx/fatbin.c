/* Reads fatbins: finds the PTX that suits a chip among their entries, and the machine code made of it, and unpacks them (clear, zstd or LZ4). Bytes may be hostile.
 *
 * A fatbin is a header of 16 bytes (u32 0xba55ed50, u16 version 1, u16 header bytes, u64 bytes that follow) and entries: u16 kind (1 PTX, 2 machine
 * code), u16 at 2, u32 header bytes, u64 payload bytes, u32 compressed bytes (0: clear), .., u32 architecture at 28, .., u64 flags at 40, .., u64
 * uncompressed bytes at 56; the next entry begins header bytes + payload bytes further. Learnt by looking at what nvcc 13.0 writes. */
#include "ptx.h"

#include <string.h>
#include <zstd.h>

enum {
    FATBIN_MAGIC = (int)0xba55ed50, WRAPPER_MAGIC = 0x466243b1, KIND_PTX = 1, KIND_MACHINE = 2, ENTRY_BYTES = 64,
    FLAG_LZ4 = 0x2000, FLAG_ZSTD = 0x8000, FLAG_ARCH_SPECIFIC = 0x100000, FLAG_FAMILY = 0x200000,
    MAX_UNPACKED_BYTES = 1 << 28,
};

typedef struct entry {
    const uint8_t *payload;
    size_t bytes, compressed, uncompressed;
    uint64_t flags;
    int kind, arch;
} entry;

static uint32_t get16(const uint8_t *at) { return (uint32_t)at[0] | (uint32_t)at[1] << 8; }
static uint32_t get32(const uint8_t *at) { return get16(at) | get16(at + 2) << 16; }
static uint64_t get64(const uint8_t *at) { return get32(at) | (uint64_t)get32(at + 4) << 32; }

/* A raw LZ4 block: a token's high nibble counts literals, its low nibble the match beyond 4 bytes; 15 goes on in bytes of 255. */
static bool unpack_lz4(const uint8_t *in, size_t in_bytes, uint8_t *out, size_t out_bytes) {
    size_t at = 0, done = 0;
    while (at < in_bytes) {
        uint8_t token = in[at++];
        size_t literals = token >> 4, match = token & 15;
        if (literals == 15) {
            uint8_t more;
            do {
                if (at >= in_bytes) return false;
                more = in[at++];
                literals += more;
            } while (more == 255);
        }
        if (literals > in_bytes - at || literals > out_bytes - done) return false;
        memcpy(out + done, in + at, literals);
        at += literals;
        done += literals;
        if (at == in_bytes) break;   /* the last sequence has no match */
        if (in_bytes - at < 2) return false;
        size_t distance = get16(in + at);
        at += 2;
        if (match == 15) {
            uint8_t more;
            do {
                if (at >= in_bytes) return false;
                more = in[at++];
                match += more;
            } while (more == 255);
        }
        match += 4;
        if (distance == 0 || distance > done || match > out_bytes - done) return false;
        for (size_t i = 0; i < match; i++, done++) out[done] = out[done - distance];
    }
    return done == out_bytes;
}

static dw_status read_entry(dw_context *context, const uint8_t *bytes, size_t left, entry *e, size_t *step) {
    if (left < ENTRY_BYTES) return base_fail(context, DW_CORRUPT, "fatbin: an entry of %zu bytes, where its header alone has %d", left, ENTRY_BYTES);
    size_t header = get32(bytes + 4);
    uint64_t payload = get64(bytes + 8);
    if (header < ENTRY_BYTES || header > left || payload > left - header) {
        return base_fail(context, DW_CORRUPT, "fatbin: an entry claims %zu + %llu bytes of the %zu that are left", header, (unsigned long long)payload, left);
    }
    *e = (entry){.payload = bytes + header, .bytes = (size_t)payload, .compressed = get32(bytes + 16), .flags = get64(bytes + 40), .kind = (int)get16(bytes),
                 .arch = (int)get32(bytes + 28)};
    uint64_t uncompressed = get64(bytes + 56);
    if (e->compressed > e->bytes || uncompressed > MAX_UNPACKED_BYTES) {
        return base_fail(context, DW_CORRUPT, "fatbin: an entry of %zu bytes claims %zu compressed and %llu uncompressed", e->bytes, e->compressed,
                         (unsigned long long)uncompressed);
    }
    e->uncompressed = (size_t)uncompressed;
    *step = header + (size_t)payload;
    if (*step % 8 != 0 && left - *step >= 8 - *step % 8) *step += 8 - *step % 8;
    return DW_OK;
}

/* 0: does not suit. Higher is better. Machine code runs within its major version alone. */
static int suits(const entry *e, int kind, int arch) {
    if (e->kind != kind || e->arch > arch) return 0;
    if ((e->flags & FLAG_ARCH_SPECIFIC) != 0) return e->arch == arch ? 4000 : 0;
    if ((e->flags & FLAG_FAMILY) != 0) return e->arch / 10 == arch / 10 ? 2000 + e->arch : 0;
    if (kind == KIND_MACHINE && e->arch / 10 != arch / 10) return 0;
    return 1000 * (e->arch == arch) + e->arch;
}

/* The entry's bytes, with a NUL behind them, in memory of their own: *room bytes from the context's allocator. */
static dw_status unpack(dw_context *context, const entry *e, uint8_t **out, size_t *length, size_t *room) {
    size_t bytes = e->compressed > 0 ? e->uncompressed : e->bytes;
    void *memory;
    TRY(base_alloc(context, bytes + 1, 16, &memory));
    uint8_t *unpacked = memory;
    bool whole = true;
    if (e->compressed == 0) memcpy(unpacked, e->payload, bytes);
    else if ((e->flags & FLAG_ZSTD) != 0) whole = ZSTD_decompress(unpacked, bytes, e->payload, e->compressed) == bytes;
    else if ((e->flags & FLAG_LZ4) != 0) whole = unpack_lz4(e->payload, e->compressed, unpacked, bytes);
    else whole = false;
    if (!whole) {
        base_release(context, unpacked, bytes + 1, 16);
        return base_fail(context, DW_CORRUPT, "fatbin: the %s for sm_%d does not unpack to its %zu bytes (flags %llx)", e->kind == KIND_PTX ? "PTX" : "machine code", e->arch, bytes,
                         (unsigned long long)e->flags);
    }
    unpacked[bytes] = '\0';
    *out = unpacked;
    *length = bytes;
    *room = bytes + 1;
    return DW_OK;
}

static dw_status take(dw_context *context, const entry *text, const entry *machine, fatbin_ptx *ptx) {
    uint8_t *bytes = NULL;
    TRY(unpack(context, text, &bytes, &ptx->length, &ptx->room));
    ptx->text = (char *)bytes;
    ptx->length = strlen(ptx->text);   /* clear text is padded with NUL */
    ptx->arch = text->arch;
    if (machine->kind != KIND_MACHINE) return DW_OK;
    dw_status status = unpack(context, machine, &ptx->machine, &ptx->machine_length, &ptx->machine_room);
    if (status != DW_OK) fatbin_release(context, ptx);
    return status;
}

static dw_status find_in_fatbin(dw_context *context, const uint8_t *bytes, size_t length, int arch, fatbin_ptx *ptx) {
    if (length < 16) return base_fail(context, DW_CORRUPT, "fatbin: %zu bytes, where the header alone has 16", length);
    size_t header = get16(bytes + 6);
    uint64_t body = get64(bytes + 8);
    if (get16(bytes + 4) != 1 || header < 16 || header > length || body > length - header) {
        return base_fail(context, DW_CORRUPT, "fatbin: version %u, a header of %zu bytes and %llu after it do not fit in %zu bytes", (unsigned)get16(bytes + 4), header,
                         (unsigned long long)body, length);
    }
    entry best = {0}, machine = {0};
    int rank = 0, machine_rank = 0;
    char there[256] = "";
    for (size_t at = 0; at < body;) {
        entry e;
        size_t step = 0, used = strlen(there);
        TRY(read_entry(context, bytes + header + at, (size_t)body - at, &e, &step));
        at += step;
        snprintf(there + used, sizeof there - used, "%s%s sm_%d%s", used > 0 ? ", " : "", e.kind == KIND_PTX ? "PTX" : "machine code", e.arch,
                 (e.flags & FLAG_ARCH_SPECIFIC) != 0 ? "a" : (e.flags & FLAG_FAMILY) != 0 ? "f" : "");
        if (suits(&e, KIND_PTX, arch) > rank) {
            best = e;
            rank = suits(&e, KIND_PTX, arch);
        }
        if (suits(&e, KIND_MACHINE, arch) > machine_rank) {
            machine = e;
            machine_rank = suits(&e, KIND_MACHINE, arch);
        }
    }
    if (rank == 0) {
        return base_fail(context, DW_NOT_FOUND, "fatbin: no PTX for sm_%d; it holds: %s. Build with -gencode arch=compute_%da,code=[sm_%da,compute_%da]", arch, there, arch, arch, arch);
    }
    return take(context, &best, &machine, ptx);
}

dw_status fatbin_find_ptx(dw_context *context, const void *image, size_t length, int arch, fatbin_ptx *ptx) {
    const uint8_t *bytes = image;
    *ptx = (fatbin_ptx){0};
    bool unknown = length == SIZE_MAX;
    if ((unknown || length >= 24) && get32(bytes) == WRAPPER_MAGIC && unknown) {   /* only a program's own memory holds pointers worth following */
        const uint8_t *data;
        memcpy(&data, bytes + 8, sizeof data);
        return fatbin_find_ptx(context, data, SIZE_MAX, arch, ptx);
    }
    if ((unknown || length >= 4) && get32(bytes) == (uint32_t)FATBIN_MAGIC) {
        if (unknown) length = get16(bytes + 6) + (size_t)get64(bytes + 8);
        return find_in_fatbin(context, bytes, length, arch, ptx);
    }
    if (unknown) {
        if (bytes[0] == 0x7f && bytes[1] == 'E') return base_fail(context, DW_UNSUPPORTED, "the image is machine code (ELF): the simulator needs PTX, as fatbins built with code=compute_NN hold");
        length = strlen(image);
    }
    void *memory;
    ptx->room = length + 1;
    TRY(base_alloc(context, ptx->room, 16, &memory));
    ptx->text = memory;
    memcpy(ptx->text, image, length);
    ptx->text[length] = '\0';
    ptx->length = strlen(ptx->text);
    return DW_OK;
}

void fatbin_release(dw_context *context, fatbin_ptx *ptx) {
    base_release(context, ptx->text, ptx->room, 16);
    base_release(context, ptx->machine, ptx->machine_room, 16);
    *ptx = (fatbin_ptx){0};
}
