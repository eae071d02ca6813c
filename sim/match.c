/* The rows of ptx.def, and which of them describes an instruction: its words, between the dots, against the row's pattern. */
#include "decode.h"

enum { MAX_WORDS = 24 };

static const char *const modifier_words[] = {
#define SIM_MODIFIER(name, word) word,
#include "modifier.def"
#undef SIM_MODIFIER
};

static const sim_form forms[] = {
#define PTX(pattern, types, operands, family, evidence, section, meaning) {pattern, types, operands, select_##family, evidence, section, meaning},
#include "ptx.def"
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
        if (strlen(modifier_words[i]) == length && memcmp(modifier_words[i], text, length) == 0) mods->bits[i / 64] |= 1ull << (i % 64);
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
            match_choice("weak|relaxed|acquire|release|acq_rel|volatile|mmio", 50, w, &i, &d->mods);
        } else if (strncmp(at, "scope*", length) == 0 && length == 6) {
            match_choice("cta|cluster|gpu|sys", 19, w, &i, &d->mods);
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

const sim_form *sim_match(sim_decoding *d, const sim_form *after, sim_op *matched) {
    words w;
    if (!split(d->instruction->opcode, &w)) return NULL;
    for (const sim_form *form = after == NULL ? forms : after + 1; form < forms + COUNT_OF(forms); form++)
        if (is_word(&w, 0, form->pattern, strcspn(form->pattern, " ")) && match(form, &w, d, matched)) return form;
    return NULL;
}
