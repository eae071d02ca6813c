/* chain: pointwise ops one after another as one op. Its program in text, read and written; types and reference are those of the ops in it. */
#include "op/family.h"

#include <string.h>

/* ---- the program ---- */

bool op_chain_holds(dw_format format) { return dw_format_bits(format) >= 8 && !op_is_block(format) && num_info(format)->class != NUM_SCALE; }

typedef struct chain_reader {
    dw_context *context;
    const char *steps, *at;
    int n_in;
    const dw_format *formats;
    bool of_line;                     /* sum and softmax are steps, too */
    op_chain *chain;
} chain_reader;

static dw_status fail(const chain_reader *r, const char *what) {
    return base_fail(r->context, DW_SYNTAX, "steps \"%.200s\": step %d: %s, at '%.20s'", r->steps, r->chain->count, what, r->at);
}

static bool accept(chain_reader *r, char c) {
    if (*r->at != c) return false;
    r->at++;
    return true;
}

/* A small number behind x or t. */
static bool read_index(chain_reader *r, int limit, int *index) {
    *index = 0;
    const char *start = r->at;
    while (*r->at >= '0' && *r->at <= '9' && *index < limit) *index = *index * 10 + (*r->at++ - '0');
    return r->at > start && *index < limit;
}

static dw_status read_format(chain_reader *r, dw_format *format) {
    char name[16];
    size_t length = strcspn(r->at, ",:();");
    if (length >= sizeof name) return fail(r, "a number format is expected");
    memcpy(name, r->at, length);
    name[length] = '\0';
    *format = dw_format_find(name);
    if (*format == DW_FORMAT_COUNT) return fail(r, "a number format is expected");
    if (!op_chain_holds(*format)) return fail(r, "a format of elements of a byte or more is expected, bool, integers or floating-point");
    r->at += length;
    return DW_OK;
}

/* A number of an integer format is one of its integers. */
static bool is_of_format(dw_format format, double number) {
    if (!op_is_integer(format)) return true;
    if (format == DW_FORMAT_i64) return number >= -0x1p53 && number <= 0x1p53 && number == (double)(int64_t)number;
    return num_decode(format, num_encode(format, number, true)) == number;
}

static dw_status read_number(chain_reader *r, op_chain_read *read) {
    read->kind = OP_CHAIN_NUMBER;
    TRY(read_format(r, &read->format));
    if (!accept(r, ':')) return fail(r, "':' and a number are expected behind a format");
    size_t length = strcspn(r->at, ",()");
    bool is_word = (length == 3 && (memcmp(r->at, "inf", 3) == 0 || memcmp(r->at, "nan", 3) == 0)) || (length == 4 && memcmp(r->at, "-inf", 4) == 0);
    if (!is_word && strspn(r->at, "0123456789.eE+-") < length) return fail(r, "a number is expected");
    if (!text_read_real(r->at, length, &read->number)) return fail(r, "a number is expected");
    if (!is_of_format(read->format, read->number)) return fail(r, "the number is none of its format");
    r->at += length;
    return DW_OK;
}

static dw_status read_argument(chain_reader *r, op_chain_read *read) {
    *read = (op_chain_read){0};
    bool is_operand = *r->at == 'x', is_step = *r->at == 't';
    if (!is_operand && !is_step) return read_number(r, read);
    const char *start = r->at++;
    read->kind = is_operand ? OP_CHAIN_OPERAND : OP_CHAIN_STEP;
    if (!read_index(r, is_operand ? r->n_in : r->chain->count, &read->index)) {
        r->at = start;
        return fail(r, is_operand ? "there is no such operand" : "there is no such earlier step");
    }
    read->format = is_operand ? r->formats[read->index] : r->chain->steps[read->index].format;
    return DW_OK;
}

/* Pointwise ops have at most three operands. */
static op_id find_op(const char *name, size_t length, bool of_line) {
    for (int i = 0; i < OP_COUNT; i++) {
        const op_def *op = op_get((op_id)i);
        bool is_named = ((op->traits & OP_TRAIT_POINTWISE) || (of_line && (op->id == OP_sum || op->id == OP_softmax))) && strncmp(op->name, name, length) == 0 && op->name[length] == '\0';
        if (is_named) return op->id;
    }
    return OP_COUNT;
}

static dw_format result_format(const op_chain_step *step) {
    if (step->op == OP_cast) return step->to;
    if (op_get(step->op)->traits & OP_TRAIT_PREDICATE) return DW_FORMAT_bool;
    return step->in[step->op == OP_where ? 1 : 0].format;
}

static dw_status read_step(chain_reader *r) {
    if (r->chain->count == OP_CHAIN_STEPS) return base_fail(r->context, DW_LIMIT, "steps \"%.40s..\": more than %d steps", r->steps, OP_CHAIN_STEPS);
    op_chain_step *step = &r->chain->steps[r->chain->count];
    size_t length = strcspn(r->at, "(,);");
    *step = (op_chain_step){.op = find_op(r->at, length, r->of_line), .to = DW_FORMAT_COUNT};
    if (step->op == OP_COUNT) return fail(r, "there is no pointwise op of this name");
    r->at += length;
    if (!accept(r, '(')) return fail(r, "'(' is expected");
    const int wanted = op_get(step->op)->max_in;
    while (step->n_in < wanted) {
        if (step->n_in > 0 && !accept(r, ',')) return fail(r, "the op takes more operands");
        TRY(read_argument(r, &step->in[step->n_in]));
        step->n_in++;
    }
    if (step->op == OP_cast && !accept(r, ',')) return fail(r, "a format is expected, as in cast(x0,bf16)");
    if (step->op == OP_cast) TRY(read_format(r, &step->to));
    if (!accept(r, ')')) return fail(r, "')' is expected");
    step->format = result_format(step);
    r->chain->count++;
    return DW_OK;
}

static dw_status read_steps(chain_reader *r) {
    r->chain->count = 0;
    do TRY(read_step(r));
    while (accept(r, ';'));
    return *r->at == '\0' ? DW_OK : fail(r, "';' or the end is expected");
}

dw_status op_chain_parse(dw_context *context, const char *steps, int n_in, const dw_format *formats, op_chain *chain) {
    return read_steps(&(chain_reader){context, steps, steps, n_in, formats, false, chain});
}

dw_status op_line_parse(dw_context *context, const char *steps, dw_format values, op_chain *chain) {
    chain->count = 0;
    return *steps == '\0' ? DW_OK : read_steps(&(chain_reader){context, steps, steps, 1, &values, true, chain});
}

dw_status op_chain_of(const op_call *call, op_chain *chain) {
    dw_format formats[OP_CHAIN_OPERANDS];
    for (int i = 0; i < call->n_in; i++) formats[i] = call->in[i]->format;
    return op_chain_parse(call->context, op_attr_text(call->attrs, OP_ATTR_steps), call->n_in, formats, chain);
}

void op_chain_print(text *text, const op_chain *chain) {
    for (int i = 0; i < chain->count; i++) {
        const op_chain_step *step = &chain->steps[i];
        text_printf(text, "%s%s(", i > 0 ? ";" : "", op_get(step->op)->name);
        for (int k = 0; k < step->n_in; k++) {
            const op_chain_read *read = &step->in[k];
            if (k > 0) text_add(text, ",");
            if (read->kind == OP_CHAIN_OPERAND) text_printf(text, "x%d", read->index);
            if (read->kind == OP_CHAIN_STEP) text_printf(text, "t%d", read->index);
            if (read->kind != OP_CHAIN_NUMBER) continue;
            text_printf(text, "%s:", dw_format_name(read->format));
            op_number_print(text, read->format, read->number);
        }
        if (step->op == OP_cast) text_printf(text, ",%s", dw_format_name(step->to));
        text_add(text, ")");
    }
}

/* ---- inference ---- */

/* Every operand, and every step but the last, is read by a step: so each shape is one that the result's is broadcast from. */
dw_status op_check_reads(const op_infer *infer, const op_chain *chain) {
    unsigned operands = 0, steps = 0;
    for (int i = 0; i < chain->count; i++)
        for (int k = 0; k < chain->steps[i].n_in; k++) {
            const op_chain_read *read = &chain->steps[i].in[k];
            if (read->kind == OP_CHAIN_OPERAND) operands |= 1u << read->index;
            if (read->kind == OP_CHAIN_STEP) steps |= 1u << read->index;
        }
    for (int i = 0; i < (infer->op->id == OP_chain ? infer->n_in : 1); i++)
        if (!(operands >> i & 1)) return base_fail(infer->context, DW_INVALID, "%s: operand %d is read by no step", infer->op->name, i);
    for (int i = 0; i + 1 < chain->count; i++)
        if (!(steps >> i & 1)) return base_fail(infer->context, DW_INVALID, "%s: the result of step %d is read by no later step", infer->op->name, i);
    return DW_OK;
}

/* types: of the steps so far. */
static dw_status infer_step(const op_infer *infer, const op_chain *chain, int index, op_type *types) {
    const op_chain_step *step = &chain->steps[index];
    op_type numbers[OP_CHAIN_READS];
    const op_type *in[OP_CHAIN_READS];
    for (int k = 0; k < step->n_in; k++) {
        const op_chain_read *read = &step->in[k];
        numbers[k] = (op_type){.format = read->format};
        in[k] = read->kind == OP_CHAIN_OPERAND ? infer->in[read->index] : read->kind == OP_CHAIN_STEP ? &types[read->index] : &numbers[k];
    }
    op_attr to = op_set_format(OP_ATTR_to, step->to);
    op_attrs attrs = {step->op == OP_cast, &to};
    op_infer alone = {infer->context, infer->dims, op_get(step->op), &attrs, step->n_in, in, 1, &types[index]};
    dw_status status = op_infer_types(&alone);
    return status == DW_OK ? DW_OK : base_fail_at(infer->context, status, "chain: step %d", index);
}

dw_status chain_infer(op_infer *infer) {
    dw_format formats[OP_CHAIN_OPERANDS];
    op_type types[OP_CHAIN_STEPS];
    op_chain chain;
    for (int i = 0; i < infer->n_in; i++) {
        if (infer->in[i] == NULL) return base_fail(infer->context, DW_INVALID, "chain: operand %d is absent", i);
        formats[i] = infer->in[i]->format;
        if (!op_chain_holds(formats[i]))
            return base_fail(infer->context, DW_UNSUPPORTED, "chain: operand %d is %s; it must have elements of a byte or more, bool, integers or floating-point", i,
                             dw_format_name(formats[i]));
    }
    TRY(op_chain_parse(infer->context, op_attr_text(infer->attrs, OP_ATTR_steps), infer->n_in, formats, &chain));
    TRY(op_check_reads(infer, &chain));
    for (int i = 0; i < chain.count; i++) TRY(infer_step(infer, &chain, i, types));
    *infer->out = types[chain.count - 1];
    return DW_OK;
}

/* ---- reference ---- */

/* One element: the references of the ops, on scalars. */
typedef struct chain_scalars {
    dw_tensor operands[OP_CHAIN_OPERANDS], results[OP_CHAIN_STEPS], numbers[OP_CHAIN_STEPS][OP_CHAIN_READS];
    uint64_t bytes[OP_CHAIN_STEPS], number_bytes[OP_CHAIN_STEPS][OP_CHAIN_READS];
} chain_scalars;

static void start_scalars(const op_call *call, const op_chain *chain, chain_scalars *scalars) {
    for (int i = 0; i < call->n_in; i++) scalars->operands[i] = (dw_tensor){.format = call->in[i]->format};
    for (int i = 0; i < chain->count; i++) {
        const op_chain_step *step = &chain->steps[i];
        scalars->results[i] = (dw_tensor){.format = step->format, .data = &scalars->bytes[i]};
        for (int k = 0; k < step->n_in; k++) {
            if (step->in[k].kind != OP_CHAIN_NUMBER) continue;
            scalars->numbers[i][k] = (dw_tensor){.format = step->in[k].format, .data = &scalars->number_bytes[i][k]};
            op_tensor_store(&scalars->numbers[i][k], NULL, step->in[k].number);
        }
    }
}

static dw_status run_scalars(const op_call *call, const op_chain *chain, const chain_scalars *scalars) {
    for (int i = 0; i < chain->count; i++) {
        const op_chain_step *step = &chain->steps[i];
        const dw_tensor *in[OP_CHAIN_READS], *out[] = {&scalars->results[i]};
        for (int k = 0; k < step->n_in; k++) {
            const op_chain_read *read = &step->in[k];
            in[k] = read->kind == OP_CHAIN_OPERAND ? &scalars->operands[read->index]
                    : read->kind == OP_CHAIN_STEP  ? &scalars->results[read->index]
                                                   : &scalars->numbers[i][k];
        }
        op_attr to = op_set_format(OP_ATTR_to, step->to);
        op_attrs attrs = {step->op == OP_cast, &to};
        TRY(op_get(step->op)->reference(&(op_call){.context = call->context, .op = op_get(step->op), .attrs = &attrs, .symbols = call->symbols, .n_in = step->n_in, .in = in, .n_out = 1, .out = out}));
    }
    return DW_OK;
}

dw_status chain_reference(const op_call *call) {
    const dw_tensor *out = call->out[0];
    op_chain chain;
    chain_scalars scalars;
    walk w;
    TRY(op_chain_of(call, &chain));
    start_scalars(call, &chain, &scalars);
    walk_start(&w, out->rank, out->dims);
    int at_out = walk_add(&w, out);
    for (int i = 0; i < call->n_in; i++) walk_add(&w, call->in[i]);
    for (; w.left > 0; walk_next(&w)) {
        for (int i = 0; i < call->n_in; i++) {
            size_t bytes = (size_t)dw_format_bits(call->in[i]->format) / 8;
            scalars.operands[i].data = (uint8_t *)call->in[i]->data + w.offset[at_out + 1 + i] * (int64_t)bytes;
        }
        TRY(run_scalars(call, &chain, &scalars));
        op_copy_at(out, w.offset[at_out], &scalars.results[chain.count - 1], 0);
    }
    return DW_OK;
}

/* An operation for each step and element. */
void chain_work(const op_call *call, op_work *work) {
    double steps = 1;
    for (const char *at = op_attr_text(call->attrs, OP_ATTR_steps); *at != '\0'; at++) steps += *at == ';';
    op_work_each(call, steps, work);
}
