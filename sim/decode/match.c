/* The rows of ptx.def, and which of them describes an instruction: its words, between the dots, against the row's pattern. */
#include "sim/isa/decode.h"

enum { MAX_WORDS = 24 };

#define SEMANTICS "weak|relaxed|acquire|release|acq_rel|volatile|mmio"
#define SCOPES "cta|cluster|gpu|sys"

static const struct { const char *text; size_t length; } modifier_words[] = {
#define SIM_MODIFIER(name, word) {word, sizeof word - 1},
#include "sim/ptx/modifier.def"
#undef SIM_MODIFIER
};

static const sim_form forms[] = {
#define PTX(pattern, types, operands, family, evidence, section, meaning) {pattern, types, operands, select_##family, evidence, section, meaning},
#include "sim/isa/ptx.def"
#undef PTX
};

const sim_form *sim_forms(size_t *count) {
    *count = COUNT_OF(forms);
    return forms;
}

typedef struct words { const char *at[MAX_WORDS]; size_t length[MAX_WORDS]; int count; } words;

static bool split(const char *opcode, words *w) {
    w->count = 0;
    for (const char *at = opcode; *at != '\0';) {
        const char *end = at;
        while (*end != '\0' && *end != '.') end++;
        if (w->count == MAX_WORDS) return false;
        w->at[w->count] = at;
        w->length[w->count++] = (size_t)(end - at);
        at = *end == '.' ? end + 1 : end;
    }
    return true;
}

static bool is_word(const words *w, int i, const char *text, size_t length) {
    return i < w->count && w->length[i] == length && memcmp(w->at[i], text, length) == 0;
}

static void note_modifier(sim_modifiers *mods, const char *text, size_t length) {
    for (size_t i = 0; i < COUNT_OF(modifier_words); i++) {
        if (modifier_words[i].length == length && memcmp(modifier_words[i].text, text, length) == 0) mods->bits[i / 64] |= 1ull << (i % 64);
    }
}

/* One of "a|b|c" at word *i. */
static bool match_choice(const char *choices, size_t length, const words *w, int *i, sim_modifiers *mods) {
    for (const char *at = choices, *end = choices + length; at < end;) {
        const char *stop = at;
        while (stop < end && *stop != '|') stop++;
        if (is_word(w, *i, at, (size_t)(stop - at))) {
            note_modifier(mods, at, (size_t)(stop - at));
            ++*i;
            return true;
        }
        at = stop + 1;
    }
    return false;
}

static bool is_cache_word(const char *at, size_t length) {
    static const char *const plain[] = {"ca", "cg", "cs", "lu", "cv", "wb", "wt", "unified", "L1", "L2"};
    if (length == 10 && memcmp(at, "cache_hint", 10) == 0) return true;
    if (length > 4 && (memcmp(at, "L1::", 4) == 0 || memcmp(at, "L2::", 4) == 0)) return true;
    for (size_t i = 0; i < COUNT_OF(plain); i++) {
        if (strlen(plain[i]) == length && memcmp(plain[i], at, length) == 0) return true;
    }
    return false;
}

static void match_space(const words *w, int *i, sim_op *op) {
    static const struct { const char *word; ptx_space space; } spaces[] = {
        {"global", PTX_GLOBAL}, {"shared", PTX_SHARED}, {"shared::cta", PTX_SHARED}, {"shared::cluster", PTX_SHARED}, {"local", PTX_LOCAL},
        {"param", PTX_PARAM}, {"param::entry", PTX_PARAM}, {"param::func", PTX_PARAM}, {"const", PTX_CONST},
    };
    for (size_t s = 0; s < COUNT_OF(spaces); s++) {
        if (is_word(w, *i, spaces[s].word, strlen(spaces[s].word))) {
            op->space = (uint8_t)spaces[s].space;
            op->of_cluster = strcmp(spaces[s].word, "shared::cluster") == 0;
            ++*i;
            return;
        }
    }
}

/* Is the type at the word in the n-th list of the row's types? */
static bool match_type(const char *types, int list, const words *w, int i, ptx_type *type) {
    for (; list > 0 && *types != '\0'; types++) list -= *types == ';';
    while (*types != '\0' && *types != ';') {
        while (*types == ' ') types++;
        size_t length = strcspn(types, " ;");
        if (length > 0 && is_word(w, i, types, length)) {
            *type = ptx_type_find(types, length);
            return *type != PTX_NO_TYPE;
        }
        types += length;
    }
    return false;
}

static bool match(const sim_form *form, const words *w, sim_decoding *d, sim_op *op) {
    int i = 0;
    *op = (sim_op){.count = 1};
    d->mods = (sim_modifiers){0};
    d->type = d->type2 = d->type3 = PTX_NO_TYPE;
    for (const char *at = form->pattern; *at != '\0';) {
        size_t length = strcspn(at, " ");
        if (*at == '{') {
            match_choice(at + 1, length - 2, w, &i, &d->mods);
        } else if (*at == '(') {
            if (!match_choice(at + 1, length - 2, w, &i, &d->mods)) return false;
        } else if (length == 1 && *at >= 'T' && *at <= 'V') {
            ptx_type *type = *at == 'T' ? &d->type : *at == 'U' ? &d->type2 : &d->type3;
            if (!match_type(form->types, *at - 'T', w, i, type)) return false;
            i++;
        } else if (strncmp(at, "space*", length) == 0 && length == 6) {
            match_space(w, &i, op);
        } else if (strncmp(at, "sem*", length) == 0 && length == 4) {
            match_choice(SEMANTICS, sizeof SEMANTICS - 1, w, &i, &d->mods);
        } else if (strncmp(at, "scope*", length) == 0 && length == 6) {
            match_choice(SCOPES, sizeof SCOPES - 1, w, &i, &d->mods);
        } else if (strncmp(at, "vec*", length) == 0 && length == 4) {
            if (i < w->count && w->length[i] == 2 && w->at[i][0] == 'v' && strchr("248", w->at[i][1]) != NULL) op->count = (uint8_t)(w->at[i++][1] - '0');
        } else if (strncmp(at, "shape*", length) == 0 && length == 6) {   /* m64n128k16: the columns */
            int m, n, k, used = 0;
            char word[16] = {0};
            if (i >= w->count || w->length[i] >= sizeof word) return false;
            memcpy(word, w->at[i], w->length[i]);
            i++;
            if (sscanf(word, "m%3dn%3dk%3d%n", &m, &n, &k, &used) != 3 || word[used] != '\0') return false;
            op->shape[0] = (uint16_t)m;
            op->shape[1] = (uint16_t)n;
            op->shape[2] = (uint16_t)k;
        } else if (strncmp(at, "cache*", length) == 0 && length == 6) {
            while (i < w->count && is_cache_word(w->at[i], w->length[i])) i++;
        } else {
            if (!is_word(w, i, at, length)) return false;
            note_modifier(&d->mods, at, length);
            i++;
        }
        at += length;
        while (*at == ' ') at++;
    }
    op->mods = d->mods;
    op->type = (uint8_t)d->type;
    op->type2 = (uint8_t)d->type2;
    op->bytes = (uint8_t)(ptx_types[d->type].bits / 8);
    return i == w->count;
}

/* ---- modifiers in another order, which the assembler takes, too ---- */

static bool is_one_of(const char *choices, const words *w, int i) {
    int next = i;
    sim_modifiers unused = {0};
    return match_choice(choices, strlen(choices), w, &next, &unused);
}

/* May this element of a pattern be the word? */
static bool accepts(const sim_form *form, const char *element, size_t length, const words *w, int i) {
    ptx_type type;
    sim_op op = {0};
    sim_modifiers unused = {0};
    int next = i;
    if (*element == '{' || *element == '(') return match_choice(element + 1, length - 2, w, &next, &unused);
    if (length == 1 && *element >= 'T' && *element <= 'V') return match_type(form->types, *element - 'T', w, i, &type);
    if (length == 6 && strncmp(element, "space*", 6) == 0) return match_space(w, &next, &op), next > i;
    if (length == 4 && strncmp(element, "sem*", 4) == 0) return is_one_of(SEMANTICS, w, i);
    if (length == 6 && strncmp(element, "scope*", 6) == 0) return is_one_of(SCOPES, w, i);
    if (length == 4 && strncmp(element, "vec*", 4) == 0) return is_one_of("v2|v4|v8", w, i);
    if (length == 6 && strncmp(element, "cache*", 6) == 0) return is_cache_word(w->at[i], w->length[i]);
    return is_word(w, i, element, length);
}

/* Where the order has a meaning: from and to; layouts of a and b. */
static bool is_strict(const words *w) {
    static const char *const names[] = {"cp", "mma", "wmma", "wgmma", "tensormap"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (is_word(w, 0, names[i], strlen(names[i]))) return true;
    }
    return false;
}

/* The words in the order of the row's pattern; false: some have no place in it. */
static bool in_order(const sim_form *form, const words *w, words *ordered) {
    bool used[MAX_WORDS] = {false};
    ordered->count = 0;
    for (const char *at = form->pattern; *at != '\0';) {
        const size_t length = strcspn(at, " ");
        const bool many = length == 6 && strncmp(at, "cache*", 6) == 0;
        bool found = false;
        for (int i = 0; i < w->count && (many || !found); i++) {
            if (used[i] || !accepts(form, at, length, w, i)) continue;
            found = used[i] = true;
            ordered->at[ordered->count] = w->at[i];
            ordered->length[ordered->count++] = w->length[i];
        }
        at += length;
        while (*at == ' ') at++;
    }
    return ordered->count == w->count;
}

const sim_form *sim_match(sim_decoding *d, const sim_form *after, sim_op *matched) {
    words w, ordered;
    if (!split(d->instruction->opcode, &w)) return NULL;
    if (after == NULL) d->any_order = false;
    for (const sim_form *begin = after == NULL ? forms : after + 1;; begin = forms) {
        for (const sim_form *form = begin; form < forms + COUNT_OF(forms); form++) {
            if (form->pattern[0] != w.at[0][0] || !is_word(&w, 0, form->pattern, strcspn(form->pattern, " "))) continue;
            if (d->any_order ? in_order(form, &w, &ordered) && match(form, &ordered, d, matched) : match(form, &w, d, matched)) return form;
        }
        if (d->any_order || after != NULL || is_strict(&w)) return NULL;
        d->any_order = true;
    }
}
