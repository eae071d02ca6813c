/* Parses declarations: registers, variables with their initialisers, parameters (PTX ISA 5.1, 5.4). */
#include "parse_internal.h"

#include <string.h>

ptx_space parse_space_of(const ptx_token *token) {
    static const struct { const char *word; ptx_space space; } words[] = {
        {".reg", PTX_REG}, {".param", PTX_PARAM}, {".local", PTX_LOCAL}, {".shared", PTX_SHARED}, {".global", PTX_GLOBAL}, {".const", PTX_CONST},
    };
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (token->kind == PTX_WORD && token->length == strlen(words[i].word) && memcmp(token->text, words[i].word, token->length) == 0) return words[i].space;
    }
    return PTX_GENERIC;
}

dw_status parse_declare(parser *p, const char *name, parse_name **made) {
    parse_name *older = map_find(&p->names, name);
    TRY_NEW(*made, p->arena, 1);
    **made = (parse_name){.older = older, .scope = p->scope, .reg = -1, .label = -1};
    return map_set(&p->names, name, *made);
}

dw_status parse_add_register(parser *p, const char *name, ptx_type type, int *reg) {
    ptx_function *f = p->function;
    if (f->register_count >= PARSE_MAX_REGISTERS) return parse_fail(p, "more than %d registers in a function", PARSE_MAX_REGISTERS);
    f->registers = arena_grow(p->arena, f->registers, f->register_count, &f->register_capacity, sizeof *f->registers);
    if (f->registers == NULL) return DW_NO_MEMORY;
    *reg = (int)f->register_count;
    f->registers[f->register_count++] = (ptx_register){name, type};
    return DW_OK;
}

/* name, or name<count>, each with commas. */
static dw_status parse_registers(parser *p, ptx_type type, int vector, const char *name) {
    for (;;) {
        parse_name *made;
        bool range, more;
        int64_t count = vector;
        TRY(parse_declare(p, name, &made));
        made->vector = vector;
        TRY(parse_accept(p, "<", &range));
        if (range && vector > 1) return parse_fail(p, "ranges of vector registers are not supported: declare them one by one");
        if (range) {
            TRY(parse_integer(p, &count));
            TRY(parse_expect(p, ">"));
            if (count < 1 || count > PARSE_MAX_REGISTERS) return parse_fail(p, "%s<%lld>: 1 to %d registers", name, (long long)count, PARSE_MAX_REGISTERS);
            made->range = (int)count;
        }
        made->reg = (int)p->function->register_count;
        for (int64_t i = 0; i < count; i++) {
            int reg;
            TRY(parse_add_register(p, name, type, &reg));
        }
        TRY(parse_accept(p, ",", &more));
        if (!more) return DW_OK;
        TRY(parse_take_name(p, &name));
    }
}

/* ---- initialisers ---- */

static dw_status add_relocation(parser *p, ptx_variable *v, size_t *capacity, ptx_relocation relocation) {
    v->relocations = arena_grow(p->arena, v->relocations, v->relocation_count, capacity, sizeof *v->relocations);
    if (v->relocations == NULL) return DW_NO_MEMORY;
    v->relocations[v->relocation_count++] = relocation;
    return DW_OK;
}

/* symbol, symbol+4, generic(symbol)+4, 0xff00(symbol) */
static dw_status parse_symbol(parser *p, ptx_variable *v, size_t at, int size, int64_t mask, size_t *capacity) {
    ptx_relocation r = {.offset = at, .size = size, .line = p->token.line};
    bool open, plus;
    TRY(parse_take_name(p, &r.name));
    if (strcmp(r.name, "generic") == 0) {
        r.generic = true;
        TRY(parse_expect(p, "("));
        TRY(parse_take_name(p, &r.name));
        TRY(parse_expect(p, ")"));
    }
    TRY(parse_accept(p, "(", &open));
    if (open) return parse_fail(p, "an initialiser that is not understood");
    TRY(parse_accept(p, "+", &plus));
    if (plus || parse_is(p, "-")) TRY(parse_integer(p, &r.addend));
    if (mask != 0) {
        while (r.shift < 64 && (uint64_t)mask >> r.shift != 0xff) r.shift += 8;
        if (r.shift == 64) return parse_fail(p, "a mask of an address is one byte of it");
        r.size = 1;
    }
    return add_relocation(p, v, capacity, r);
}

static dw_status parse_values(parser *p, ptx_variable *v, uint8_t *bytes, size_t *at, size_t *capacity) {
    bool open, more;
    size_t size = (size_t)ptx_types[v->type].bits / 8;
    TRY(parse_accept(p, "{", &open));
    if (open) {
        if (++p->depth > PARSE_MAX_DEPTH) return parse_fail(p, "more than %d levels of braces", PARSE_MAX_DEPTH);
        if (!parse_is(p, "}")) {
            do {
                TRY(parse_values(p, v, bytes, at, capacity));
                TRY(parse_accept(p, ",", &more));
            } while (more);
        }
        p->depth--;
        return parse_expect(p, "}");
    }
    if (size == 0 || size > v->bytes - *at) return parse_fail(p, "more values than %s has room for", v->name);
    if (p->token.kind == PTX_NAME) {
        TRY(parse_symbol(p, v, *at, (int)size, 0, capacity));
    } else {
        uint64_t bits;
        TRY(parse_constant_bits(p, v->type, &bits));
        TRY(parse_accept(p, "(", &open));
        if (open) {
            TRY(parse_symbol(p, v, *at, 1, (int64_t)bits, capacity));
            TRY(parse_expect(p, ")"));
        } else {
            memcpy(bytes + *at, &bits, size < 8 ? size : 8);
        }
    }
    *at += size;
    return DW_OK;
}

static dw_status parse_initialiser(parser *p, ptx_variable *v, bool unsized) {
    size_t at = 0, capacity = 0;
    uint8_t *bytes;
    if (unsized) return parse_fail(p, "%s has values and no size", v->name);
    if (v->bytes > PARSE_MAX_INITIALISED_BYTES) return parse_fail(p, "%s has values and more than %d bytes", v->name, PARSE_MAX_INITIALISED_BYTES);
    TRY_NEW(bytes, p->arena, v->bytes);
    TRY(parse_values(p, v, bytes, &at, &capacity));
    v->init = bytes;
    return DW_OK;
}

/* ---- variables ---- */

/* [n][m].. after a name; unsized for []. */
static dw_status parse_array(parser *p, ptx_variable *v, bool *unsized) {
    bool open;
    TRY(parse_accept(p, "[", &open));
    while (open) {
        int64_t count = 0;
        if (parse_is(p, "]")) *unsized = true;
        else TRY(parse_integer(p, &count));
        TRY(parse_expect(p, "]"));
        if (count < 0 || (count > 0 && v->bytes > (size_t)(PARSE_MAX_VARIABLE_BYTES / count))) {
            return parse_fail(p, "%s is larger than %d bytes", v->name, PARSE_MAX_VARIABLE_BYTES);
        }
        v->bytes = *unsized ? 0 : v->bytes * (size_t)count;
        TRY(parse_accept(p, "[", &open));
    }
    return DW_OK;
}

/* ".attribute(.managed)", ".attribute(.unified(1, 2))": the latter is a name for tools. */
static dw_status parse_attributes(parser *p, bool *managed) {
    bool given, more, unified;
    *managed = false;
    TRY(parse_accept(p, ".attribute", &given));
    if (!given) return DW_OK;
    TRY(parse_expect(p, "("));
    do {
        TRY(parse_accept(p, ".unified", &unified));
        if (unified) {
            int64_t number;
            TRY(parse_expect(p, "("));
            TRY(parse_integer(p, &number));
            TRY(parse_expect(p, ","));
            TRY(parse_integer(p, &number));
            TRY(parse_expect(p, ")"));
        } else {
            TRY(parse_expect(p, ".managed"));
            *managed = true;
        }
        TRY(parse_accept(p, ",", &more));
    } while (more);
    return parse_expect(p, ")");
}

static dw_status parse_type(parser *p, ptx_type *type, size_t *align, int *vector) {
    *type = PTX_NO_TYPE;
    *align = 0;
    *vector = 1;
    while (p->token.kind == PTX_WORD) {
        bool aligned, pointer;
        TRY(parse_accept(p, ".align", &aligned));
        TRY(parse_accept(p, ".ptr", &pointer));
        if (aligned) {
            int64_t value;
            TRY(parse_integer(p, &value));
            if (value < 1 || value > 4096 || (value & (value - 1)) != 0) return parse_fail(p, ".align is a power of two up to 4096, not %lld", (long long)value);
            if (*type == PTX_NO_TYPE) *align = (size_t)value;   /* after .ptr it speaks of what is pointed to */
            continue;
        }
        if (pointer) continue;
        if (parse_is(p, ".v2") || parse_is(p, ".v4") || parse_is(p, ".v8")) {
            *vector = p->token.text[2] - '0';
        } else if (*type == PTX_NO_TYPE) {
            *type = ptx_type_find(p->token.text + 1, p->token.length - 1);
            if (*type == PTX_NO_TYPE) return parse_fail(p, "expected a type");
        } else if (parse_space_of(&p->token) == PTX_GENERIC) {
            return parse_fail(p, "expected a name");
        }
        TRY(parse_next(p));
    }
    return *type == PTX_NO_TYPE ? parse_fail(p, "expected a type") : DW_OK;
}

static dw_status add_variable(parser *p, ptx_variable *v) {
    if (p->function != NULL) {
        parse_name *made;
        ptx_function *f = p->function;
        TRY(parse_declare(p, v->name, &made));
        made->variable = v;
        f->variables = arena_grow(p->arena, f->variables, f->variable_count, &f->variable_capacity, sizeof *f->variables);
        if (f->variables == NULL) return DW_NO_MEMORY;
        f->variables[f->variable_count++] = v;
        return DW_OK;
    }
    ptx_module *m = p->module;
    ptx_symbol *symbol = map_find(&m->names, v->name);
    if (symbol != NULL && (symbol->variable == NULL || !symbol->variable->external)) return parse_fail(p, "%s is declared twice", v->name);
    if (symbol == NULL) TRY_NEW(symbol, p->arena, 1);
    if (symbol->variable != NULL) {   /* what an .extern spoke of: those who used it keep their pointer */
        *symbol->variable = *v;
        return DW_OK;
    }
    symbol->variable = v;
    TRY(map_set(&m->names, v->name, symbol));
    m->variables = arena_grow(p->arena, m->variables, m->variable_count, &m->variable_capacity, sizeof *m->variables);
    if (m->variables == NULL) return DW_NO_MEMORY;
    m->variables[m->variable_count++] = v;
    return DW_OK;
}

static dw_status new_variable(parser *p, ptx_space space, ptx_type type, size_t align, int vector, ptx_variable **variable) {
    TRY_NEW(*variable, p->arena, 1);
    size_t size = ptx_types[type].bits < 8 ? 1 : (size_t)ptx_types[type].bits / 8 * (size_t)vector;
    **variable = (ptx_variable){.space = space, .type = type, .align = align > 0 ? align : size, .bytes = size, .reg = -1, .line = p->token.line};
    return DW_OK;
}

dw_status parse_variables(parser *p, ptx_space space, bool external, bool visible) {
    ptx_type type;
    size_t align;
    int vector;
    bool more, equals, managed;
    const char *name;
    TRY(parse_attributes(p, &managed));
    if (managed && space != PTX_GLOBAL) return parse_fail(p, "only variables of .global are managed");
    TRY(parse_type(p, &type, &align, &vector));
    TRY(parse_take_name(p, &name));
    if (space == PTX_REG) {
        TRY(parse_registers(p, type, vector, name));
        return parse_expect(p, ";");
    }
    for (;;) {
        ptx_variable *v;
        bool unsized = false;
        TRY(new_variable(p, space, type, align, vector, &v));
        v->name = name;
        v->external = external;
        v->visible = visible;
        v->managed = managed;
        TRY(parse_array(p, v, &unsized));
        TRY(parse_accept(p, "=", &equals));
        if (equals) TRY(parse_initialiser(p, v, unsized));
        TRY(add_variable(p, v));
        TRY(parse_accept(p, ",", &more));
        if (!more) return parse_expect(p, ";");
        TRY(parse_take_name(p, &name));
    }
}

dw_status parse_parameters(parser *p, ptx_variable ***params, int *count) {
    size_t used = 0, capacity = 0;
    bool more;
    *params = NULL;
    TRY(parse_expect(p, "("));
    if (!parse_is(p, ")")) {
        do {
            ptx_space space = parse_space_of(&p->token);
            ptx_type type;
            size_t align;
            int vector;
            ptx_variable *v;
            parse_name *made;
            bool unsized = false;
            if (space != PTX_PARAM && space != PTX_REG) return parse_fail(p, "expected .param or .reg");
            TRY(parse_next(p));
            TRY(parse_type(p, &type, &align, &vector));
            TRY(new_variable(p, space, type, align, vector, &v));
            if (p->token.kind == PTX_NAME) TRY(parse_take_name(p, &v->name));
            else v->name = "_";
            TRY(parse_array(p, v, &unsized));
            TRY(parse_declare(p, v->name, &made));
            if (space == PTX_REG) {
                TRY(parse_add_register(p, v->name, type, &v->reg));
                made->reg = v->reg;
            } else {
                made->variable = v;
            }
            if (used >= PARSE_MAX_OPERANDS) return parse_fail(p, "more than %d parameters", PARSE_MAX_OPERANDS);
            *params = arena_grow(p->arena, *params, used, &capacity, sizeof **params);
            if (*params == NULL) return DW_NO_MEMORY;
            (*params)[used++] = v;
            TRY(parse_accept(p, ",", &more));
        } while (more);
    }
    *count = (int)used;
    return parse_expect(p, ")");
}
