/* Which registers of a function share a row. PTX names a register for every value, tens of thousands in a large kernel, and a warp that had a row for each would clear and walk through
 * megabytes, which no cache holds. So registers of one size that never have a value at the same time lie in the same row, one after the other.
 *
 * A register has a value from the first to the last instruction, as they are written, between which some way through the function still reads it. That is as a thread sees it: lanes that
 * are elsewhere have their own part of the row, so that rows are shared by registers of one size alone. Rows of their own have those that an instruction may read before any wrote them
 * (they are 0), formals, and those of asynchronous products, which use them later than their instruction says (isa/wgmma.c). */
#include "sim/isa/decoder.h"

#include <stdlib.h>

enum { MAX_WORDS = 1 << 22, MAX_WORK = 1 << 29, SIZES = 5 };

#define NOWHERE UINT32_MAX

typedef struct block { uint32_t first, end; } block;   /* instructions */

/* By instruction, from first to last; first NOWHERE: nothing uses it. */
typedef struct span { uint32_t first, last; } span;

typedef struct sharing {
    sim_decoder *k;
    const ptx_function *f;
    arena arena;
    block *blocks;
    uint32_t *block_of;        /* of each instruction */
    size_t block_count;
    uint32_t *number;          /* of a register among those that some block reads and has not written; NOWHERE: none of them */
    uint32_t *named;           /* and back */
    size_t count, words;       /* so many there are; of 64 bits for all of them */
    uint64_t *in, *kept;       /* of each block, words of each: alive at its beginning; not written in it */
    span *spans;               /* of each register */
    bool *own;
    size_t work;               /* words and registers looked at: beyond MAX_WORK it takes too long, and those that blocks pass on share nothing */
} sharing;

/* ---- blocks ---- */

/* The op that decides where an instruction goes on: the last one of it. */
static const sim_op *last_op(const sharing *s, uint32_t instruction) { return &s->k->code->ops[s->k->first_op[instruction + 1] - 1]; }

static bool is_one(const char *opcode, const char *word) { return strncmp(opcode, word, strlen(word)) == 0 && (opcode[strlen(word)] == '\0' || opcode[strlen(word)] == '.'); }

static bool is_leaving(const ptx_instruction *in) { return is_one(in->opcode, "ret") || is_one(in->opcode, "exit"); }

static bool goes_on(const sharing *s, uint32_t instruction) {
    const ptx_instruction *in = &s->f->instructions[instruction];
    return in->guard >= 0 || (last_op(s, instruction)->target == SIM_NO_TARGET && !is_leaving(in));
}

/* The instructions that one may jump to. */
static size_t targets_of(const sharing *s, uint32_t instruction, const uint32_t **targets, uint32_t *one) {
    const sim_op *op = last_op(s, instruction);
    *one = (uint32_t)op->offset;
    *targets = op->target == SIM_TABLE_TARGET ? op->extra : one;
    return op->target == SIM_NO_TARGET ? 0 : op->target == SIM_ONE_TARGET ? 1 : (size_t)op->offset;
}

static dw_status find_blocks(sharing *s) {
    const uint32_t count = (uint32_t)s->f->instruction_count;
    bool *begins;
    TRY_NEW(begins, &s->arena, count + 1);
    TRY_NEW(s->block_of, &s->arena, count);
    begins[0] = true;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t *targets;
        uint32_t one;
        const size_t jumps = targets_of(s, i, &targets, &one);
        for (size_t t = 0; t < jumps; t++) begins[targets[t]] = true;
        if (jumps > 0 || is_leaving(&s->f->instructions[i])) begins[i + 1] = true;
    }
    for (uint32_t i = 0; i < count; i++) s->block_count += begins[i];
    TRY_NEW(s->blocks, &s->arena, s->block_count);
    size_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (begins[i]) s->blocks[at++] = (block){i, i};
        s->blocks[at - 1].end = i + 1;
        s->block_of[i] = (uint32_t)at - 1;
    }
    return DW_OK;
}

/* ---- what instructions read and write ---- */

typedef void visitor(sharing *s, uint32_t instruction, uint32_t reg, bool writes);

/* Operands that their family passes over, as policies of caches are: nobody reads the rows, but a trace prints them. */
static void walk_operand(sharing *s, visitor *visit, uint32_t instruction, const ptx_operand *o, const sim_use *uses, size_t count) {
    bool is_noted = o->kind != PTX_OPERAND_REGISTER;
    for (size_t u = 0; u < count && !is_noted; u++) is_noted = uses[u].reg == (uint32_t)o->reg;
    if (!is_noted) visit(s, instruction, (uint32_t)o->reg, false);
    for (int i = 0; i < o->count; i++) walk_operand(s, visit, instruction, &o->items[i], uses, count);
    if (o->second != NULL) walk_operand(s, visit, instruction, o->second, uses, count);
}

/* All uses in the order of the instructions, and of each what it reads before what it writes. A write under a guard may leave the old value, so that it ends nothing: it is no write here. */
static void walk_uses(sharing *s, visitor *visit) {
    const sim_use *uses = s->k->touched;
    size_t at = 0;
    for (uint32_t i = 0; i < s->f->instruction_count; i++) {
        const int guard = s->f->instructions[i].guard;
        const size_t first = at;
        if (guard >= 0) visit(s, i, (uint32_t)guard, false);
        for (; at < s->k->touched_count && uses[at].instruction == i; at++) {
            if (!uses[at].writes) visit(s, i, uses[at].reg, false);
        }
        const ptx_instruction *in = &s->f->instructions[i];
        for (int o = 0; o < in->count; o++) walk_operand(s, visit, i, &in->operands[o], uses + first, at - first);
        for (size_t u = first; u < at; u++) {
            if (uses[u].writes) visit(s, i, uses[u].reg, true);
        }
    }
}

static void extend(span *span, uint32_t instruction) {
    if (span->first == NOWHERE || instruction < span->first) span->first = instruction;
    if (span->last == NOWHERE || instruction > span->last) span->last = instruction;
}

static void note_span(sharing *s, uint32_t instruction, uint32_t reg, bool writes) {
    (void)writes;
    extend(&s->spans[reg], instruction);
}

static bool is_whole(const sharing *s, uint32_t instruction, bool writes) { return writes && s->f->instructions[instruction].guard < 0; }

/* kept serves as the block that last wrote the register, plus 1, until the registers are numbered. */
static void note_reads(sharing *s, uint32_t instruction, uint32_t reg, bool writes) {
    const uint64_t here = (uint64_t)s->block_of[instruction] + 1;
    if (is_whole(s, instruction, writes)) {
        s->kept[reg] = here;
    } else if (!writes && s->kept[reg] != here && s->number[reg] == NOWHERE) {
        s->named[s->count] = reg;
        s->number[reg] = (uint32_t)s->count++;
    }
}

static void note_alive(sharing *s, uint32_t instruction, uint32_t reg, bool writes) {
    const uint32_t number = s->number[reg];
    if (number == NOWHERE) return;
    const size_t at = s->block_of[instruction] * s->words + number / 64;
    const uint64_t bit = 1ull << number % 64;
    if (is_whole(s, instruction, writes)) s->kept[at] &= ~bit;
    else if (!writes && (s->kept[at] & bit) != 0) s->in[at] |= bit;
}

/* ---- where registers are alive ---- */

/* Adds what is alive at the beginning of the instruction's block to what is alive at the end of b; true: that was more than before. */
static bool join(sharing *s, size_t b, uint32_t instruction) {
    if (instruction >= s->f->instruction_count) return false;
    uint64_t *in = s->in + b * s->words;
    const uint64_t *next = s->in + s->block_of[instruction] * s->words, *kept = s->kept + b * s->words;
    bool more = false;
    s->work += s->words + 1;
    for (size_t i = 0; i < s->words; i++) {
        const uint64_t alive = in[i] | (next[i] & kept[i]);
        more |= alive != in[i];
        in[i] = alive;
    }
    return more;
}

static void flow_back(sharing *s) {
    bool more = true;
    while (more && s->work <= MAX_WORK) {
        more = false;
        for (size_t b = s->block_count; b-- > 0 && s->work <= MAX_WORK;) {
            const uint32_t last = s->blocks[b].end - 1, *targets;
            uint32_t one;
            const size_t jumps = targets_of(s, last, &targets, &one);
            if (goes_on(s, last)) more |= join(s, b, last + 1);
            for (size_t t = 0; t < jumps && s->work <= MAX_WORK; t++) more |= join(s, b, targets[t]);
        }
    }
}

/* Registers that are alive at the beginning of the instruction's block are so at this one, too: at that beginning, and where somebody jumps to it. */
static void extend_alive(sharing *s, uint32_t instruction, uint32_t at) {
    const uint64_t *in = s->in + s->block_of[instruction] * s->words;
    s->work += s->words + 1;
    for (size_t i = 0; i < s->words; i++) {
        s->work += (size_t)__builtin_popcountll(in[i]);
        for (uint64_t left = in[i]; left != 0; left &= left - 1) extend(&s->spans[s->named[i * 64 + (size_t)__builtin_ctzll(left)]], at);
    }
}

static void extend_spans(sharing *s) {
    for (size_t b = 0; b < s->block_count && s->work <= MAX_WORK; b++) {
        const uint32_t last = s->blocks[b].end - 1, *targets;
        uint32_t one;
        const size_t jumps = targets_of(s, last, &targets, &one);
        extend_alive(s, last, s->blocks[b].first);
        for (size_t t = 0; t < jumps && s->work <= MAX_WORK; t++) {
            if (targets[t] < s->f->instruction_count) extend_alive(s, targets[t], last);
        }
    }
}

/* ---- rows ---- */

static int size_of(ptx_type type) {
    const int bits = ptx_types[type].bits;
    return type == PTX_pred ? 0 : bits <= 16 ? 1 : bits == 32 ? 2 : bits == 64 ? 3 : 4;
}

/* Gives each register that shares a row the one that came free last, or a new one. */
static dw_status give_rows(sharing *s) {
    const size_t registers = s->f->register_count, instructions = s->f->instruction_count;
    uint32_t *free_rows[SIZES], *begin, *end, *after_begin, *after_end;   /* lists of registers by the instruction where they begin and end */
    size_t free_count[SIZES] = {0};
    for (int i = 0; i < SIZES; i++) TRY_NEW(free_rows[i], &s->arena, registers + 1);
    TRY_NEW(begin, &s->arena, instructions);
    TRY_NEW(end, &s->arena, instructions);
    TRY_NEW(after_begin, &s->arena, registers);
    TRY_NEW(after_end, &s->arena, registers);
    memset(begin, 0xff, instructions * sizeof *begin);
    memset(end, 0xff, instructions * sizeof *end);
    for (size_t r = registers; r-- > 0;) {
        if (s->own[r] || s->spans[r].first == NOWHERE) continue;
        after_begin[r] = begin[s->spans[r].first];
        begin[s->spans[r].first] = (uint32_t)r;
        after_end[r] = end[s->spans[r].last];
        end[s->spans[r].last] = (uint32_t)r;
    }
    for (size_t i = 0; i < instructions; i++) {
        for (uint32_t r = i > 0 ? end[i - 1] : NOWHERE; r != NOWHERE; r = after_end[r]) {
            const int size = size_of(s->f->registers[r].type);
            free_rows[size][free_count[size]++] = s->k->rows[r];
        }
        for (uint32_t r = begin[i]; r != NOWHERE; r = after_begin[r]) {
            const int size = size_of(s->f->registers[r].type);
            s->k->rows[r] = free_count[size] > 0 ? free_rows[size][--free_count[size]] : decoder_new_row(s->k, s->f->registers[r].type);
        }
    }
    return DW_OK;
}

/* It takes too long to find where registers are alive that blocks pass on: none of them shares. */
static void keep_apart(sharing *s) {
    for (size_t i = 0; i < s->count; i++) s->own[s->named[i]] = true;
}

static dw_status find_alive(sharing *s) {
    const size_t registers = s->f->register_count;
    TRY_NEW(s->spans, &s->arena, registers);
    TRY_NEW(s->number, &s->arena, registers);
    TRY_NEW(s->named, &s->arena, registers);
    TRY_NEW(s->kept, &s->arena, registers);
    memset(s->spans, 0xff, registers * sizeof *s->spans);
    memset(s->number, 0xff, registers * sizeof *s->number);
    walk_uses(s, note_span);
    walk_uses(s, note_reads);
    s->words = (s->count + 63) / 64;
    if (s->words * s->block_count > MAX_WORDS) {
        keep_apart(s);
        return DW_OK;
    }
    TRY_NEW(s->in, &s->arena, s->words * s->block_count + 1);
    TRY_NEW(s->kept, &s->arena, s->words * s->block_count + 1);
    memset(s->kept, 0xff, s->words * s->block_count * sizeof *s->kept);
    walk_uses(s, note_alive);
    flow_back(s);
    extend_spans(s);
    if (s->work > MAX_WORK) keep_apart(s);
    for (size_t i = 0; i < s->count; i++) {   /* read before it is written */
        if (s->in[i / 64] >> (i % 64) & 1) s->own[s->named[i]] = true;
    }
    return DW_OK;
}

static dw_status share(sharing *s) {
    sim_decoder *k = s->k;
    sim_code *code = k->code;
    const size_t registers = s->f->register_count;
    TRY_NEW(s->own, &s->arena, registers);
    for (int i = 0; i < s->f->param_count + s->f->return_count; i++) {
        const ptx_variable *v = i < s->f->param_count ? s->f->params[i] : s->f->returns[i - s->f->param_count];
        if (v->reg >= 0) s->own[v->reg] = true;
    }
    const size_t formals = k->formal_bytes;
    for (size_t r = 0; r < registers; r++) s->own[r] |= sim_watched(code, k->rows[r]) >= 0;
    TRY(find_blocks(s));
    TRY(find_alive(s));
    code->register_bytes = code->shared_rows_at = formals;
    TRY(give_rows(s));
    code->shared_rows_end = code->register_bytes;
    for (size_t r = 0; r < registers; r++) {
        if (s->spans[r].first == NOWHERE && k->rows[r] >= formals) k->rows[r] = SIM_NO_ROW;
        else if (s->own[r] && k->rows[r] >= formals) k->rows[r] = decoder_new_row(k, s->f->registers[r].type);
    }
    return DW_OK;
}

dw_status decoder_share_rows(sim_decoder *k) {
    if (k->function->instruction_count == 0) return DW_OK;
    sharing s = {.k = k, .f = k->function};
    arena_init(&s.arena, k->context);
    const dw_status status = share(&s);
    arena_free(&s.arena);
    return status;
}
