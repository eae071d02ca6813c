/* Masks are conjunctions. Each part is compared with the forms that attention has; a table (the lower triangle kept as a buffer) is
 * compared element by element. A packed batch restarts its positions: there the position test inside a segment is the causal one. */
#include "analysis/mask.h"

#include <math.h>

typedef struct reader {
    value_analysis *analysis;
    int q, k;                 /* axes */
    mask *mask;
    bool full;                /* more parts than there is room for */
} reader;

bool mask_is_large(value_expr x, int rank) {
    const unsigned both = 1u << (rank - 2) | 1u << (rank - 1);
    return (x->axes & both) == both;
}

static void add_part(reader *reader, value_expr x) {
    if (reader->mask->part_count == MASK_MAX_PARTS) {
        reader->full = true;
    } else {
        reader->mask->parts[reader->mask->part_count++] = x;
    }
}

static void limit(int64_t *limit, int64_t value) {
    if (*limit == 0 || value < *limit) *limit = value;
}

/* ---- k - q + c <= 0 and q - k + c <= 0 --------------------------------------------------------------------------------- */

static bool read_limit(reader *reader, value_expr x) {
    const value_expr sum = x->kind == VALUE_LE ? x->args[0] : NULL;
    int64_t factor_k = 0, constant;
    if (sum == NULL || sum->kind != VALUE_AFFINE || sum->count != 2 || !dim_is_constant(sum->size, &constant)) return false;
    for (int i = 0; i < 2; i++) {
        int64_t factor;
        const value_expr atom = sum->args[i];
        if (atom->kind != VALUE_INDEX || !dim_is_constant(sum->factors[i], &factor) || (factor != 1 && factor != -1)) return false;
        if (atom->axis == reader->k) {
            factor_k += factor;
        } else if (atom->axis == reader->q) {
            factor_k -= factor;
        } else {
            return false;
        }
    }
    if (factor_k == 2 && constant == 0) {
        reader->mask->causal = true;
    } else if (factor_k == 2 && constant < 0) {
        limit(&reader->mask->ahead, 1 - constant);
    } else if (factor_k == -2 && constant <= 0) {
        limit(&reader->mask->window, 1 - constant);
    } else {
        return false;
    }
    return true;
}

/* ---- tables ------------------------------------------------------------------------------------------------------------ */

/* The one lookup through which x depends on its indices. false: there is none, or more than one. */
static bool find_lookup(value_expr x, value_expr *lookup) {
    if (x->kind == VALUE_LOOKUP) {
        if (*lookup != NULL && *lookup != x) return false;
        *lookup = x;
        return true;
    }
    if (x->kind == VALUE_INDEX || x->kind == VALUE_BOUND) return false;
    for (int i = 0; i < x->count; i++) {
        if (!find_lookup(x->args[i], lookup)) return false;
    }
    return true;
}

/* A truth as a function of one element of a table, computed once per distinct element. */
typedef struct table {
    value_analysis *analysis;
    value_expr x;
    const dw_tensor *tensor;
    int64_t index[DW_MAX_RANK];
    int q_axis, k_axis;              /* of the tensor */
    bool others[DW_MAX_RANK];        /* axes of the tensor that other indices run over: all must say the same */
    double element;                  /* what the lookup gives while x is evaluated */
    int known;
    double elements[2], truths[2];
} table;

static dw_status load_element(void *owner, const ir_value *source, const int64_t *index, double *number) {
    (void)source;
    (void)index;
    *number = ((const table *)owner)->element;
    return DW_OK;
}

static bool open_table(reader *reader, value_expr x, table *table) {
    value_expr lookup = NULL;
    if (!find_lookup(x, &lookup) || lookup == NULL) return false;
    const ir_value *source = lookup->source;
    if (source->kind != IR_PARAM || source->weight == NULL || source->weight->tensor.data == NULL) return false;
    ir_rely_on(source);
    *table = (struct table){.analysis = reader->analysis, .x = x, .tensor = &source->weight->tensor, .q_axis = -1, .k_axis = -1};
    for (int i = 0; i < lookup->count; i++) {
        const value_expr arg = lookup->args[i];
        double number;
        if (arg->kind == VALUE_INDEX && arg->axis == reader->q && table->q_axis < 0) {
            table->q_axis = i;
        } else if (arg->kind == VALUE_INDEX && arg->axis == reader->k && table->k_axis < 0) {
            table->k_axis = i;
        } else if (arg->kind == VALUE_INDEX && arg->axis != reader->q && arg->axis != reader->k) {
            table->others[i] = true;
        } else if (value_is_number(arg, &number) && number >= 0 && number < (double)table->tensor->dims[i]) {
            table->index[i] = (int64_t)number;
        } else {
            return false;
        }
    }
    return table->q_axis >= 0 && table->k_axis >= 0;
}

/* The next place along the other axes; false: back at the first. */
static bool next_other(table *table) {
    for (int i = table->tensor->rank - 1; i >= 0; i--) {
        if (!table->others[i]) continue;
        if (++table->index[i] < table->tensor->dims[i]) return true;
        table->index[i] = 0;
    }
    return false;
}

static dw_status table_truth(table *table, int64_t q, int64_t k, bool *truth) {
    table->index[table->q_axis] = q;
    table->index[table->k_axis] = k;
    table->element = op_tensor_load(table->tensor, table->index);
    for (int i = 0; i < table->known; i++) {
        if (table->elements[i] == table->element) {
            *truth = table->truths[i] != 0;
            return DW_OK;
        }
    }
    value_env env = {.load = load_element, .owner = table};
    double number;
    TRY(value_eval(table->analysis, table->x, &env, &number));
    *truth = number != 0;
    if (table->known < 2) {
        table->elements[table->known] = table->element;
        table->truths[table->known++] = number;
    }
    return DW_OK;
}

static bool has_symbols(value_expr x) {
    if (x->kind == VALUE_AFFINE) {
        if (!dim_is_constant(x->size, NULL)) return true;
        for (int i = 0; i < x->count; i++) {
            if (!dim_is_constant(x->factors[i], NULL)) return true;
        }
    }
    for (int i = 0; i < x->count; i++) {
        if (has_symbols(x->args[i])) return true;
    }
    return false;
}

/* Is the table true everywhere, or exactly where k <= q and, with a window, q - k < window? The last row proposes the window. */
static dw_status read_table(reader *reader, value_expr x, bool *known) {
    table table;
    *known = false;
    if (has_symbols(x) || !open_table(reader, x, &table)) return DW_OK;
    const int64_t rows = table.tensor->dims[table.q_axis], cols = table.tensor->dims[table.k_axis];
    if (rows != cols || rows == 0) return DW_OK;
    int64_t first = 0;
    bool truth = false;
    for (; first < cols; first++) {
        TRY(table_truth(&table, rows - 1, first, &truth));
        if (truth) break;
    }
    if (first == cols) return DW_OK;   /* the last row sees nothing */
    bool causal = true, always = true;
    const int64_t window = rows - first;
    do {
        for (int64_t q = 0; q < rows && (causal || always); q++) {
            for (int64_t k = 0; k < cols; k++) {
                TRY(table_truth(&table, q, k, &truth));
                causal = causal && truth == (k <= q && q - k < window);
                always = always && truth;
            }
        }
    } while (next_other(&table) && (causal || always));
    *known = causal || always;
    if (causal && !always) reader->mask->causal = true;
    if (causal && first > 0) limit(&reader->mask->window, window);
    return DW_OK;
}

/* ---- packed sequences ---------------------------------------------------------------------------------------------------- */

static value_expr at_key(const reader *reader, value_expr x, value_expr index) {
    value_expr map[DW_MAX_RANK] = {NULL};
    map[reader->k] = index;
    return value_substitute(reader->analysis, x, map);
}

static value_expr at_query(const reader *reader, value_expr x, value_expr index) {
    value_expr map[DW_MAX_RANK] = {NULL};
    map[reader->q] = index;
    return value_substitute(reader->analysis, x, map);
}

/* x = positive - negative, both atoms. */
static bool is_difference(value_expr x, value_expr *positive, value_expr *negative) {
    int64_t factors[2], constant;
    if (x->kind != VALUE_AFFINE || x->count != 2 || !dim_is_constant(x->size, &constant) || constant != 0) return false;
    for (int i = 0; i < 2; i++) {
        if (!dim_is_constant(x->factors[i], &factors[i])) return false;
    }
    if (factors[0] + factors[1] != 0 || (factors[0] != 1 && factors[0] != -1)) return false;
    *positive = x->args[factors[0] == 1 ? 0 : 1];
    *negative = x->args[factors[0] == 1 ? 1 : 0];
    return true;
}

/* Does part say that k and q lie in one segment, segments being counted where position p, a function of k, does not grow by 1? Inside a
 * segment p grows by 1 from token to token, so there p[k] <= p[q] is k <= q. */
static bool is_segment_of(reader *reader, value_expr part, value_expr p) {
    value_analysis *analysis = reader->analysis;
    value_expr a, b;
    if (part->kind != VALUE_EQ || !is_difference(part->args[0], &a, &b)) return false;
    if (a->axes & 1u << reader->q) {
        const value_expr swap = a;
        a = b;
        b = swap;
    }
    const value_expr key = value_index(analysis, reader->k);
    if (a->kind != VALUE_SCAN || a->args[1] != key || at_query(reader, b, key) != a) return false;
    value_expr condition = a->args[0]->kind == VALUE_SELECT ? a->args[0]->args[0] : NULL;
    double one, zero;
    if (condition == NULL || !value_is_number(a->args[0]->args[1], &one) || !value_is_number(a->args[0]->args[2], &zero)) return false;
    const value_expr t = value_bound(analysis, analysis->dims[reader->k]), unit = value_int(analysis, 1);
    const value_expr step = value_sum(analysis, at_key(reader, p, t), 1, at_key(reader, p, value_sum(analysis, t, 1, unit, -1)), -1);
    const value_expr breaks = value_not(analysis, value_eq_zero(analysis, value_sum(analysis, step, 1, unit, -1)));
    const value_expr later = value_le_zero(analysis, value_sum(analysis, unit, 1, t, -1));
    const value_expr expected = value_and(analysis, later, breaks);
    return expected != NULL && one == 1 && zero == 0 && (condition == expected || condition == breaks);
}

static void apply_segments(reader *reader) {
    mask *mask = reader->mask;
    for (int i = 0; i < mask->part_count; i++) {
        value_expr at_k, at_q;
        const value_expr x = mask->parts[i];
        if (x->kind != VALUE_LE || !is_difference(x->args[0], &at_k, &at_q)) continue;
        if (at_key(reader, at_k, value_index(reader->analysis, reader->q)) != at_q) continue;
        for (int j = 0; j < mask->part_count; j++) {
            if (!is_segment_of(reader, mask->parts[j], at_k)) continue;
            mask->causal = true;
            mask->parts[i] = mask->parts[--mask->part_count];
            i--;
            break;
        }
    }
}

/* ---- conjunctions and sums ----------------------------------------------------------------------------------------------- */

static dw_status read_truth(reader *reader, value_expr x) {
    bool known;
    if (x->kind == VALUE_AND) {
        TRY(read_truth(reader, x->args[0]));
        return read_truth(reader, x->args[1]);
    }
    if (x->kind == VALUE_CONSTANT) {
        reader->mask->never |= x->number == 0;
        return DW_OK;
    }
    if (read_limit(reader, x)) return DW_OK;
    TRY(read_table(reader, x, &known));
    if (!known) add_part(reader, x);
    return DW_OK;
}

/* Is a score with that number added so low that it vanishes in the softmax: -infinity, or the lowest of a format? The mask keeps which it is. */
static bool hides(reader *reader, double number) {
    if (!(number <= -1e30 || number == -65504)) return false;
    reader->mask->finite |= isfinite(number) != 0;
    reader->mask->weak |= number == -65504;
    return true;
}

static bool is_hiding(reader *reader, value_expr x) {
    double number;
    return value_is_number(x, &number) && hides(reader, number);
}

static dw_status read_hiding_table(reader *reader, value_expr x, bool *known) {
    value_analysis *analysis = reader->analysis;
    *known = false;
    if (x->kind != VALUE_LOOKUP) return DW_OK;
    table table;
    const value_expr args[2] = {x, value_real(analysis, 0)};
    const value_expr shown = value_point(analysis, OP_eq, DW_FORMAT_bool, 2, args);
    if (shown == NULL || !open_table(reader, shown, &table)) return value_status(analysis);
    do {
        for (int64_t q = 0; q < table.tensor->dims[table.q_axis]; q++) {
            for (int64_t k = 0; k < table.tensor->dims[table.k_axis]; k++) {
                table.index[table.q_axis] = q;
                table.index[table.k_axis] = k;
                const double number = op_tensor_load(table.tensor, table.index);
                if (number != 0 && !hides(reader, number)) return DW_OK;
            }
        }
    } while (next_other(&table));
    return read_table(reader, shown, known);
}

/* A table of zeros and hiding numbers over (q, k) is a mask. */
static dw_status read_real_table(reader *reader, value_expr x, bool *known) {
    const bool finite = reader->mask->finite, weak = reader->mask->weak;
    TRY(read_hiding_table(reader, x, known));
    if (*known) return DW_OK;
    reader->mask->finite = finite;
    reader->mask->weak = weak;
    return DW_OK;
}

static dw_status read_added(reader *reader, value_expr x) {
    value_analysis *analysis = reader->analysis;
    bool known;
    double number;
    if (x->kind == VALUE_POINT && x->op == OP_add) {
        TRY(read_added(reader, x->args[0]));
        return read_added(reader, x->args[1]);
    }
    if (x->kind == VALUE_SELECT && is_hiding(reader, x->args[2])) {
        TRY(read_truth(reader, x->args[0]));
        return read_added(reader, x->args[1]);
    }
    if (x->kind == VALUE_SELECT && is_hiding(reader, x->args[1])) {
        const value_expr shown = value_not(analysis, x->args[0]);
        if (shown == NULL) return value_status(analysis);
        TRY(read_truth(reader, shown));
        return read_added(reader, x->args[2]);
    }
    if (value_is_number(x, &number) && number == 0) return DW_OK;
    TRY(read_real_table(reader, x, &known));
    if (known) return DW_OK;
    if (reader->mask->bias == NULL) {
        reader->mask->bias = x;
        return DW_OK;
    }
    const value_expr args[2] = {reader->mask->bias, x};
    reader->mask->bias = value_point(analysis, OP_add, DW_FORMAT_f32, 2, args);
    if (reader->mask->bias == NULL) reader->full = true;
    return value_status(analysis);
}

dw_status mask_read(value_analysis *analysis, value_expr x, int rank, const dim *dims, mask *mask, bool *known) {
    *mask = (struct mask){.causal = false};
    reader reader = {.analysis = analysis, .q = rank - 2, .k = rank - 1, .mask = mask};
    value_set_scope(analysis, rank, dims);
    if (x->class == VALUE_REAL) {
        TRY(read_added(&reader, x));
    } else {
        TRY(read_truth(&reader, x));
    }
    apply_segments(&reader);
    TRY(value_status(analysis));
    if (mask->causal) mask->ahead = 0;
    *known = !reader.full;
    return DW_OK;
}
