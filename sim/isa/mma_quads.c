/* mma.sync.m8n8k4 of halves (PTX ISA 9.7.14.5.1), Volta's shape: four products of a warp, each of four lanes and those 16 behind them. Later architectures have no such
 * unit: the sums are those of the code that ptxas 13.0 makes of it for sm_90, fp32 and rounded step by step. */
#include "decode.h"
#include "sim/math/real.h"

#include "num/num.h"

#include <math.h>

enum { QUADS = 4, M = 8, N = 8, K = 4 };

typedef struct quads_op { uint32_t d[8], a[2], b[2], c[8]; int c_count, d_count; bool a_by_columns, b_by_columns; } quads_op;
typedef struct quads { float a[QUADS][M][K], b[QUADS][K][N], c[QUADS][M][N]; } quads;

static int quad_of(int lane) { return lane % 16 / 4; }
/* The line of A or B that a lane holds when it holds one of eight. */
static int line_of(int lane) { return lane % 4 + lane / 16 * 4; }

static float half_of(sim_warp *w, const uint32_t *rows, int lane, int i) {
    return num_f16_to_f32((uint16_t)(((const uint32_t *)sim_row(w, rows[i / 2]))[lane] >> (16 * (i % 2))));
}

/* Element i of a lane's accumulator: of halves a row; of fp32 parts of two. */
static float *cell_of(quads *q, int lane, int i, bool half) {
    const int row = half ? line_of(lane) : (lane & 1) + (i & 2) + lane / 16 * 4, column = half ? i : (i & 4) + (lane & 2) + (i & 1);
    return &q->c[quad_of(lane)][row][column];
}

static void gather(sim_warp *w, const quads_op *p, quads *q) {
    for (int lane = 0; lane < LANES; lane++) {
        const int quad = quad_of(lane), high = lane / 16 * 4;
        for (int i = 0; i < 4; i++) {
            const float a = half_of(w, p->a, lane, i), b = half_of(w, p->b, lane, i);
            if (p->a_by_columns) q->a[quad][i + high][lane % 4] = a;
            else q->a[quad][line_of(lane)][i] = a;
            if (p->b_by_columns) q->b[quad][i][line_of(lane)] = b;
            else q->b[quad][lane % 4][i + high] = b;
        }
        for (int i = 0; i < 8; i++) {
            *cell_of(q, lane, i, p->c_count == 4) = p->c_count == 4 ? half_of(w, p->c, lane, i) : ((const float *)sim_row(w, p->c[i]))[lane];
        }
    }
}

/* A row times a column, whose elements lie N apart. Results in fp32 add c to the sum of the products; results in halves add the first two products to c, then the other two. */
static float sum_of(const float *a, const float *b, float c, bool half) {
    if (!half) {
        float sum = 0.0f;
        for (int k = 0; k < K; k++) sum = fmaf(a[k], b[k * N], sum);
        return c + sum;
    }
    return (c + fmaf(a[1], b[N], a[0] * b[0])) + fmaf(a[3], b[3 * N], a[2] * b[2 * N]);
}

static void scatter(sim_warp *w, const quads_op *p, quads *q) {
    for (int i = 0; i < p->d_count; i++) {
        uint32_t *d = sim_row(w, p->d[i]);
        for (int lane = 0; lane < LANES; lane++) {
            if (p->d_count == 8) {
                const float value = *cell_of(q, lane, i, false);
                d[lane] = isnan(value) ? F32_NAN : f32_bits(value);
                continue;
            }
            uint32_t halves[2];
            for (int e = 0; e < 2; e++) {
                const float value = *cell_of(q, lane, 2 * i + e, true);
                halves[e] = isnan(value) ? F16_NAN : (uint32_t)num_encode(DW_FORMAT_f16, value, false);
            }
            d[lane] = halves[0] | halves[1] << 16;
        }
    }
}

static sim_flow do_quads(sim_warp *w, const sim_op *op, uint32_t mask) {
    const quads_op *p = op->extra;
    quads q;
    if (!sim_together(w, w->live, mask)) return SIM_WAIT;
    if (mask != SIM_ALL_LANES) return sim_find(w, op, -1, "all 32 lanes execute this together, and only 0x%08x do", mask);
    gather(w, p, &q);
    for (int quad = 0; quad < QUADS; quad++) {
        for (int row = 0; row < M; row++) {
            float sums[N];
            for (int column = 0; column < N; column++) sums[column] = sum_of(q.a[quad][row], &q.b[quad][0][column], q.c[quad][row][column], p->d_count == 4);
            memcpy(q.c[quad][row], sums, sizeof sums);
        }
    }
    scatter(w, p, &q);
    return SIM_NEXT;
}

static bool decode_rows(sim_decoding *d, const ptx_operand *o, int count, bool target, uint32_t *rows) {
    if (o->kind != PTX_OPERAND_VECTOR || o->count != count) {
        d->why = "a and b have two registers, c and d eight of fp32 or four of halves";
        return false;
    }
    for (int i = 0; i < count; i++) {
        if ((target ? sim_decode_target(d, &o->items[i], PTX_b32, &rows[i]) : sim_decode_source(d, &o->items[i], PTX_b32, &rows[i])) != DW_OK) return false;
    }
    return true;
}

sim_handler select_mma_quads(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    quads_op *p = sim_decode_new(d, sizeof *p);
    if (p == NULL) return NULL;
    p->d_count = d->type == PTX_f16 ? 4 : 8;
    p->c_count = d->type2 == PTX_f16 ? 4 : 8;
    if (in->count != 4 || p->d_count < p->c_count) {
        d->why = in->count != 4 ? "d, a, b and c" : "a result in halves of a sum in fp32, which this shape does not have";
        return NULL;
    }
    const char *a_layout = strstr(in->opcode, ".m8n8k4.") + strlen(".m8n8k4.");
    p->a_by_columns = strncmp(a_layout, "col", 3) == 0;
    p->b_by_columns = strncmp(a_layout + strlen("row."), "col", 3) == 0;
    if (!decode_rows(d, &in->operands[0], p->d_count, true, p->d) || !decode_rows(d, &in->operands[1], 2, false, p->a) || !decode_rows(d, &in->operands[2], 2, false, p->b) ||
        !decode_rows(d, &in->operands[3], p->c_count, false, p->c)) {
        return NULL;
    }
    d->op->extra = p;
    return do_quads;
}
