/* The trace of a warp. A line prints the instruction, from its tree (ptx.h), and values of its registers: addresses, and the sources of an instruction that writes no register, as they were
 * before it; results, as they are behind it. Results of products come later, so they are not printed. */
#include "trace.h"

#include "num/num.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

enum { MOST_REGISTERS = 16, INSTRUCTION_WIDTH = 56 };

/* ---- the request ---- */

static bool read_cta(const char *value, uint32_t cta[3]) {
    char *end;
    for (int i = 0; i < 3; i++) {
        if (*value < '0' || *value > '9') return false;
        unsigned long number = strtoul(value, &end, 10);
        if (number > INT32_MAX) return false;
        cta[i] = (uint32_t)number;
        if (*end == '\0') return true;   /* those left out are 0 */
        if (*end != ':') return false;
        value = end + 1;
    }
    return false;
}

static bool read_count(const char *value, uint64_t most, uint64_t *number) {
    char *end;
    errno = 0;
    *number = strtoull(value, &end, 10);
    return errno == 0 && end != value && *end == '\0' && value[0] != '-' && *number <= most;
}

/* "list", "7", "name", "name:2". */
static const char *read_launch(sim_trace *trace, const char *value) {
    const char *colon = strrchr(value, ':');
    size_t length = colon != NULL ? (size_t)(colon - value) : strlen(value);
    trace->wanted = true;
    trace->lists = strcmp(value, "list") == 0;
    trace->number = 1;
    trace->kernel[0] = '\0';
    if (trace->lists || (read_count(value, UINT64_MAX, &trace->number) && trace->number > 0)) return NULL;
    if (length == 0 || length >= sizeof trace->kernel || (colon != NULL && (!read_count(colon + 1, UINT64_MAX, &trace->number) || trace->number == 0))) {
        return "expected list, the number of a launch (from 1), a kernel's name or a part of it, or NAME:N for its N-th launch";
    }
    if (colon == NULL) trace->number = 1;
    memcpy(trace->kernel, value, length);
    trace->kernel[length] = '\0';
    return NULL;
}

const char *sim_trace_option(sim_trace *trace, const char *name, const char *value) {
    uint64_t number = 0;
    if (strcmp(name, "trace") == 0) return read_launch(trace, value);
    if (strcmp(name, "trace_cta") == 0) return read_cta(value, trace->cta) ? NULL : "expected X, X:Y or X:Y:Z, the numbers of a CTA";
    if (strcmp(name, "trace_warp") == 0) {
        if (!read_count(value, SIM_MAX_WARPS - 1, &number)) return "expected the number of a warp, 0 to 31";
        trace->warp = (int)number;
        return NULL;
    }
    if (strcmp(name, "trace_lines") == 0) {
        if (!read_count(value, UINT64_MAX, &trace->most) || trace->most == 0) return "expected how many instructions to print, from 1";
        return NULL;
    }
    if (strcmp(name, "trace_file") == 0) {
        if (strlen(value) >= sizeof trace->path) return "the path is too long";
        snprintf(trace->path, sizeof trace->path, "%s", value);
        return NULL;
    }
    return "there are trace, trace_cta, trace_warp, trace_lines and trace_file";
}

bool sim_trace_open(sim_trace *trace) {
    if (!trace->wanted) return true;
    if (trace->most == 0) trace->most = 1000;
    trace->to = trace->path[0] != '\0' ? fopen(trace->path, "w") : stdout;
    return trace->to != NULL;
}

void sim_trace_close(sim_trace *trace) {
    if (trace->to != NULL) fflush(trace->to);
    if (trace->to != NULL && trace->to != stdout) fclose(trace->to);
    free(trace->line);
    *trace = (sim_trace){0};
}

/* ---- launches ---- */

static void describe_launch(FILE *to, const sim_launch *l) {
    fprintf(to, "launch %" PRIu64 ": %s, grid %u,%u,%u, block %u,%u,%u, cluster %u,%u,%u, ", l->epoch, l->code->function->name, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1],
            l->block[2], l->cluster[0], l->cluster[1], l->cluster[2]);
    if (memcmp(l->cluster, l->preferred, sizeof l->cluster) != 0) fprintf(to, "preferred %u,%u,%u, ", l->preferred[0], l->preferred[1], l->preferred[2]);
    fprintf(to, "%zu bytes of dynamic shared memory", l->dynamic_shared);
}

dw_status sim_trace_launch(sim_trace *trace, const sim_launch *l, bool *is_it) {
    const uint32_t warps = (l->block[0] * l->block[1] * l->block[2] + LANES - 1) / LANES;
    *is_it = false;
    if (!trace->wanted || trace->lists || strstr(l->code->function->name, trace->kernel) == NULL || ++trace->seen != trace->number) return DW_OK;
    if (trace->cta[0] >= l->grid[0] || trace->cta[1] >= l->grid[1] || trace->cta[2] >= l->grid[2]) {
        return base_fail(l->context, DW_NOT_FOUND, "the trace asks for CTA %u,%u,%u, and launch %" PRIu64 " of %s has a grid of %u,%u,%u", trace->cta[0], trace->cta[1], trace->cta[2],
                         l->epoch, l->code->function->name, l->grid[0], l->grid[1], l->grid[2]);
    }
    if ((uint32_t)trace->warp >= warps) {
        return base_fail(l->context, DW_NOT_FOUND, "the trace asks for warp %d, and launch %" PRIu64 " of %s has CTAs of %u warps", trace->warp, l->epoch, l->code->function->name, warps);
    }
    describe_launch(trace->to, l);
    fprintf(trace->to, "; CTA %u,%u,%u, warp %d\n%8s %9s  %-24s %-8s  %-*s  %s\n", trace->cta[0], trace->cta[1], trace->cta[2], trace->warp, "n", "PTX line", "source", "lanes",
            INSTRUCTION_WIDTH, "instruction", "values of these lanes");
    *is_it = true;
    return DW_OK;
}

void sim_trace_launched(sim_trace *trace, const sim_launch *l) {
    if (!trace->wanted || (!trace->lists && l->trace == NULL)) return;
    if (trace->lists) {
        describe_launch(trace->to, l);
        fprintf(trace->to, ": %" PRIu64 " warp instructions\n", (uint64_t)atomic_load(&((sim_launch *)(uintptr_t)l)->executed));
    }
    fflush(trace->to);
}

/* ---- the line ---- */

static void add(sim_trace *t, const char *format, ...) BASE_PRINTF(2, 3);
static void add(sim_trace *t, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    const int more = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (more > 0 && t->length + (size_t)more + 1 > t->room) {
        const size_t room = 2 * (t->room + (size_t)more) + 256;
        char *larger = realloc(t->line, room);
        if (larger != NULL) {
            t->line = larger;
            t->room = room;
        }
    }
    if (more > 0 && t->length + (size_t)more + 1 <= t->room) t->length += (size_t)vsnprintf(t->line + t->length, t->room - t->length, format, again);
    va_end(again);
}

/* Those that were declared together, %r<9>, have one name and follow each other. */
static void add_register_name(sim_trace *t, const ptx_function *f, int reg) {
    const char *name = f->registers[reg].name;
    const bool of_many = (reg > 0 && f->registers[reg - 1].name == name) || ((size_t)reg + 1 < f->register_count && f->registers[reg + 1].name == name);
    int first = reg;
    while (first > 0 && f->registers[first - 1].name == name) first--;
    add(t, "%s", name);
    if (of_many) add(t, "%d", reg - first);
}

static void add_operand(sim_trace *t, const ptx_function *f, const ptx_operand *o);

static void add_items(sim_trace *t, const ptx_function *f, const ptx_operand *o, const char *around) {
    add(t, "%c", around[0]);
    for (int i = 0; i < o->count; i++) {
        if (i > 0) add(t, ", ");
        add_operand(t, f, &o->items[i]);
        if (i == 0 && o->kind == PTX_OPERAND_ADDRESS && o->value != 0) add(t, "%+" PRId64, o->value);
    }
    add(t, "%c", around[1]);
}

/* As it is written in PTX. */
static void add_operand(sim_trace *t, const ptx_function *f, const ptx_operand *o) {
    float narrow;
    double wide;
    if (o->negated) add(t, "!");
    switch (o->kind) {
    case PTX_OPERAND_REGISTER: add_register_name(t, f, o->reg); break;
    case PTX_OPERAND_INTEGER: add(t, "%" PRId64, o->value); break;
    case PTX_OPERAND_REAL:
        memcpy(&narrow, &o->value, sizeof narrow);
        memcpy(&wide, &o->value, sizeof wide);
        add(t, "%.17g", o->real_bits == 32 ? (double)narrow : wide);
        break;
    case PTX_OPERAND_SINK: add(t, "_"); break;
    case PTX_OPERAND_ADDRESS: add_items(t, f, o, "[]"); break;
    case PTX_OPERAND_VECTOR: add_items(t, f, o, "{}"); break;
    case PTX_OPERAND_LIST: add_items(t, f, o, "()"); break;
    case PTX_OPERAND_VARIABLE:
        add(t, "%s", o->name);
        if (o->value != 0) add(t, "%+" PRId64, o->value);
        break;
    default: add(t, "%s", o->name != NULL ? o->name : "?"); break;
    }
    if (o->second != NULL) {
        add(t, "|");
        add_operand(t, f, o->second);
    }
}

static const char *file_name(const char *path) { return strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path; }

/* All of the line before the values. */
static void add_instruction(sim_trace *t, const sim_warp *w, const ptx_instruction *in, uint32_t mask) {
    const ptx_function *f = w->now->frame->code->function;
    const ptx_module *module = w->launch->code->module;
    char source[64] = "";
    if (in->file > 0 && (size_t)in->file < module->file_count && module->files[in->file] != NULL)
        snprintf(source, sizeof source, "%.40s:%d", file_name(module->files[in->file]), in->source_line);
    add(t, "%8" PRIu64 " %9d  %-24s %08x  ", t->printed + 1, in->line, source, mask);
    const size_t begin = t->length;
    if (in->guard >= 0) {
        add(t, in->guard_negated ? "@!" : "@");
        add_register_name(t, f, in->guard);
        add(t, " ");
    }
    add(t, "%s", in->opcode);
    for (int i = 0; i < in->count; i++) {
        add(t, i == 0 ? " " : ", ");
        add_operand(t, f, &in->operands[i]);
    }
    if (t->length - begin < INSTRUCTION_WIDTH) add(t, "%*s", INSTRUCTION_WIDTH - (int)(t->length - begin), "");
}

/* ---- values ---- */

/* How a register's bits are read: by its own type, or, where that says nothing, by the first of the instruction's types that is as wide. */
static ptx_type reading_of(const ptx_instruction *in, ptx_type held) {
    if (ptx_types[held].class != PTX_BITS) return held;
    for (const char *at = strchr(in->opcode, '.'); at != NULL; at = strchr(at + 1, '.')) {
        const ptx_type type = ptx_type_find(at + 1, strcspn(at + 1, "."));
        if (type != PTX_NO_TYPE && type != PTX_pred && ptx_types[type].class != PTX_BITS && ptx_types[type].bits == ptx_types[held].bits) return type;
    }
    return held;
}

static void add_value(sim_trace *t, const uint8_t *at, ptx_type type) {
    const int bits = ptx_types[type].bits < 16 ? 16 : ptx_types[type].bits;
    uint64_t value[2] = {0};
    float narrow;
    double wide;
    memcpy(value, at, (size_t)bits / 8 < sizeof value ? (size_t)bits / 8 : sizeof value);
    switch (type) {
    case PTX_f32:
        memcpy(&narrow, at, sizeof narrow);
        add(t, "%.9g", (double)narrow);
        return;
    case PTX_f64:
        memcpy(&wide, at, sizeof wide);
        add(t, "%.17g", wide);
        return;
    case PTX_f16: add(t, "%.6g", num_load(DW_FORMAT_f16, at, 0)); return;
    case PTX_bf16: add(t, "%.6g", num_load(DW_FORMAT_bf16, at, 0)); return;
    case PTX_f16x2: add(t, "%.6g|%.6g", num_load(DW_FORMAT_f16, at, 0), num_load(DW_FORMAT_f16, at, 1)); return;
    case PTX_bf16x2: add(t, "%.6g|%.6g", num_load(DW_FORMAT_bf16, at, 0), num_load(DW_FORMAT_bf16, at, 1)); return;
    default: break;
    }
    if (ptx_types[type].class == PTX_SIGNED) add(t, "%" PRId64, (int64_t)(value[0] << (64 - bits)) >> (64 - bits));
    else if (ptx_types[type].class == PTX_UNSIGNED && value[0] <= UINT32_MAX) add(t, "%" PRIu64, value[0]);   /* above: an address, more often than not */
    else if (bits == 128) add(t, "0x%016" PRIx64 "%016" PRIx64, value[1], value[0]);
    else add(t, "0x%" PRIx64, value[0]);
}

/* The values of the lanes in mask: one where all are equal, the first two and the last where integers differ by the same step. */
static void add_lanes(sim_trace *t, const uint8_t *row, ptx_type type, uint32_t mask) {
    const size_t bytes = (size_t)(ptx_types[type].bits < 16 ? 16 : ptx_types[type].bits) / 8;
    const uint8_t *lanes[LANES];
    int count = 0;
    uint64_t step = 0;
    for (int lane = 0; lane < LANES; lane++)
        if (mask >> lane & 1) lanes[count++] = row + (size_t)lane * bytes;
    bool same = true, even = bytes <= 8 && count > 3 && ptx_types[type].class != PTX_FLOAT && ptx_types[type].class != PTX_PACKED;
    for (int i = 1; i < count; i++) {
        uint64_t now = 0, last = 0;
        same = same && memcmp(lanes[i], lanes[0], bytes) == 0;
        memcpy(&now, lanes[i], bytes <= 8 ? bytes : 8);
        memcpy(&last, lanes[i - 1], bytes <= 8 ? bytes : 8);
        if (i == 1) step = now - last;
        even = even && now - last == step;
    }
    for (int i = 0; i < (same ? 1 : count); i++) {
        if (even && !same && i == 2) {
            add(t, " ..");
            i = count - 1;
        }
        if (i > 0) add(t, " ");
        add_value(t, lanes[i], type);
    }
}

static void add_register(sim_trace *t, const ptx_instruction *in, int reg, uint32_t mask) {
    const ptx_register *r = &t->frame->code->function->registers[reg];
    const uint8_t *row = t->frame->registers + t->frame->code->rows[reg];
    uint32_t bits;
    memcpy(&bits, row, sizeof bits);
    add(t, "  ");
    add_register_name(t, t->frame->code->function, reg);
    add(t, " = ");
    if (r->type == PTX_pred) add(t, "%08x", bits & mask);
    else add_lanes(t, row, reading_of(in, r->type), mask);
}

static bool is_written(const sim_code *code, uint32_t instruction, int reg) {
    size_t low = 0, high = code->use_count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (code->uses[middle].instruction < instruction) low = middle + 1;
        else high = middle;
    }
    for (; low < code->use_count && code->uses[low].instruction == instruction; low++) {
        if (code->uses[low].reg == (uint32_t)reg && code->uses[low].writes) return true;
    }
    return false;
}

/* A walk over an instruction's registers, in the order of its operands. */
typedef struct walk {
    sim_trace *trace;
    const ptx_instruction *in;
    uint32_t instruction, mask;
    bool writes;                  /* those that it writes, or those that it reads */
    bool prints;
    int count, printed[MOST_REGISTERS];
} walk;

static bool is_printed(const walk *walk, int reg) {
    for (int i = 0; i < walk->count && i < MOST_REGISTERS; i++)
        if (walk->printed[i] == reg) return true;
    return false;
}

static void walk_operand(walk *walk, const ptx_operand *o) {
    const sim_code *code = walk->trace->frame->code;
    if (o->kind == PTX_OPERAND_REGISTER && is_written(code, walk->instruction, o->reg) == walk->writes && !is_printed(walk, o->reg)) {
        if (walk->prints && walk->count < MOST_REGISTERS) add_register(walk->trace, walk->in, o->reg, walk->mask);
        if (walk->count < MOST_REGISTERS) walk->printed[walk->count] = o->reg;
        walk->count++;
    }
    for (int i = 0; i < o->count && o->kind != PTX_OPERAND_ADDRESS; i++) walk_operand(walk, &o->items[i]);
    if (o->second != NULL) walk_operand(walk, o->second);
}

static int walk_registers(sim_trace *t, const ptx_instruction *in, uint32_t mask, bool writes, bool prints) {
    walk walk = {.trace = t, .in = in, .instruction = (uint32_t)(in - t->frame->code->function->instructions), .mask = mask, .writes = writes, .prints = prints};
    for (int i = 0; i < in->count; i++) walk_operand(&walk, &in->operands[i]);
    if (prints && walk.count > MOST_REGISTERS) add(t, "  .. %d registers more", walk.count - MOST_REGISTERS);
    return walk.count;
}

/* What stands behind an address's first register is of the instruction's, as coordinates are. */
static void add_addresses(sim_trace *t, const ptx_instruction *in, uint32_t mask) {
    const ptx_function *f = t->frame->code->function;
    for (int i = 0; i < in->count; i++) {
        const ptx_operand *o = &in->operands[i];
        for (int k = 0; k < o->count && o->kind == PTX_OPERAND_ADDRESS; k++) {
            walk walk = {.trace = t, .in = in, .instruction = (uint32_t)(in - f->instructions), .mask = mask, .prints = true};
            walk_operand(&walk, &o->items[k]);
        }
    }
}

static bool is_product(const ptx_instruction *in) { return strncmp(in->opcode, "wgmma.mma", 9) == 0; }

/* An instruction may be several operations; the last one is it. */
static bool is_last(const sim_code *code, const sim_op *op) {
    const sim_op *end = &code->ops[code->op_count - 1];   /* a return that nobody wrote */
    return op->instruction >= 0 && op != end && (op + 1 == end || op[1].instruction != op->instruction);
}

void sim_trace_before(sim_warp *w, const sim_op *op, uint32_t mask) {
    sim_trace *t = w->trace;
    t->op = NULL;
    if (!is_last(w->now->frame->code, op)) return;
    const ptx_instruction *in = &w->now->frame->code->function->instructions[op->instruction];
    t->op = op;
    t->frame = w->now->frame;
    t->length = 0;
    add_instruction(t, w, in, mask);
    if (mask == 0) return;
    add_addresses(t, in, mask);
    if (is_product(in) || walk_registers(t, in, mask, true, false) == 0) walk_registers(t, in, mask, false, true);
}

void sim_trace_after(sim_warp *w, const sim_op *op, uint32_t mask, sim_flow flow) {
    sim_trace *t = w->trace;
    if (t->op != op) return;
    const ptx_instruction *in = &t->frame->code->function->instructions[op->instruction];
    if (flow == SIM_WAIT && t->waits == op && t->waits_mask == mask) return;
    t->waits = flow == SIM_WAIT ? op : NULL;
    t->waits_mask = mask;
    if (flow == SIM_NEXT && mask != 0 && !is_product(in)) walk_registers(t, in, mask, true, true);
    while (t->length > 0 && t->line[t->length - 1] == ' ') t->length--;
    fprintf(t->to, "%.*s%s\n", (int)t->length, t->line, flow == SIM_WAIT ? "  waits" : flow == SIM_STOP ? "  ends the launch with a finding" : "");
    t->printed++;
    if (w->live == 0) fprintf(t->to, "the warp has ended, %" PRIu64 " instructions\n", t->printed);
    if (t->printed < t->most || w->live == 0) return;
    fprintf(t->to, "%" PRIu64 " instructions are printed, which is the limit; the warp goes on\n", t->printed);
    w->trace = NULL;
}
