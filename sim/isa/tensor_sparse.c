/* A sparse A of tcgen05.mma (PTX ISA 9.7.16.10.8): the metadata in tensor memory, which lie as CuTe has them. */
#include "sim/math/product.h"
#include "tmem.h"
#include "umma_place.h"

/* The columns of tensor memory that hold the metadata, four bits of a row for the stored elements of each chunk: of tf32 one of two columns, of the others two of four, or (mxf4, mxf4nvf4)
 * two pairs of four. Of tf32 and f16 one column holds a product's, which the selector chooses of a pair; else two do. */
static int metadata_columns(const umma_product *p) { return p->kind == UMMA_F16 || p->kind == UMMA_TF32 ? 1 : 2; }
static int chunk_columns(const umma_product *p) { return p->kind == UMMA_TF32 ? 2 : umma_is_packed(p->kind) ? 8 : 4; }

tmem_area tensor_metadata_area(const tensor_task *t) { return tmem_columns(tmem_column(t->metadata) + t->product.selector, metadata_columns(&t->product)); }

/* Where chunk number `chunk` of a row has its four bits. f16 and tf32: a lane's word has the lower or upper half of the chunks of rows r and r + 8 of 16. */
static void metadata_place(const umma_product *p, int row, int chunk, int *lane, int *bit) {
    const int half = p->k / chunk_columns(p) / 2;
    *lane = metadata_columns(p) == 2 ? row : row / 16 * 16 + row % 8 + (chunk >= half ? 8 : 0);
    *bit = metadata_columns(p) == 2 ? 4 * chunk : row % 16 / 8 * 16 + chunk % half * 4;
}

/* With .ws the groups of lanes that compute parts of the columns have the metadata each, as CuTe lays them out. */
static bool check_copies(const tensor_task *t, const sim_cta *cta, int lane, int column) {
    const umma_product *p = &t->product;
    for (int part = 1; part < umma_parts(p); part++) {
        const int other = lane + part * umma_rows(p);
        const bool written = cta->tmem->written[other][column] || !t->warp->launch->options->uninitialised;
        if (written && cta->tmem->cells[other][column] == cta->tmem->cells[lane][column]) continue;
        sim_find(t->warp, t->op, t->lane, "the metadata of A in lane %d, column %d of tensor memory are not what lane %d has: every group of %d lanes holds the same", other, column, lane, umma_rows(p));
        return false;
    }
    return true;
}

bool tensor_place_sparse(const tensor_task *t, const sim_cta *cta, int row, const uint32_t *stored, uint32_t *code, uint64_t there[2]) {
    const umma_product *p = &t->product;
    const tmem_area area = tensor_metadata_area(t);
    const int width = chunk_columns(p), unit = width == 8 ? 2 : 1;   /* unit: elements that go together */
    memset(code, 0, (size_t)p->k * sizeof *code);
    there[0] = there[1] = 0;
    for (int chunk = 0; chunk < p->k / width; chunk++) {
        int lane, bit;
        metadata_place(p, row, chunk, &lane, &bit);
        const int column = area.first + bit / 32;
        if (!cta->tmem->written[lane][column] && t->warp->launch->options->uninitialised) {
            sim_find(t->warp, t->op, t->lane, "the metadata of A's row %d lie in lane %d, column %d of CTA %d's tensor memory, which nobody ever wrote", row, lane, column, cta->rank);
            return false;
        }
        if (!check_copies(t, cta, lane, column)) return false;
        const uint32_t bits = cta->tmem->cells[lane][column] >> (bit % 32) & 15, first = bits & 3, second = bits >> 2;
        const uint32_t *elements = &stored[chunk * width / 2];   /* of width 8, pairs of them */
        const uint32_t one = width == 8 ? elements[0] | elements[1] : elements[0], other = width == 8 ? elements[2] | elements[3] : elements[1];
        if (width == 2 ? bits != 4 && bits != 14 : bits != 6 && !product_names_places(bits, one, other)) {
            sim_find(t->warp, t->op, t->lane, "the metadata of A's row %d, columns %d to %d, is %u (lane %d, column %d, bit %d), which names no places", row, chunk * width, chunk * width + width - 1,
                     bits, lane, column, bit % 32);
            return false;
        }
        for (int i = 0; i < width / 2; i++) {
            const int at = chunk * width + (width == 2 ? bits == 14 : (int)(i / unit == 0 ? first : second) * unit + i % unit);
            code[at] = stored[chunk * width / 2 + i];
            there[at / 64] |= 1ull << (at % 64);
        }
    }
    return true;
}
