/* Runs number format functions on binary data, for test_oracle.py, which holds the results against numpy and ml_dtypes.
 * Numbers come from stdin and go to stdout, in the machine's byte order:
 *   encode FORMAT sat|plain       floats -> a 16-bit code each
 *   decode FORMAT                 nothing -> a double for every code
 *   quantize FORMAT LAYOUT up|floor|search computed|given BATCHES ROWS COLS
 *     floats of the matrices, and, given, those of the second level -> data, scales, second level, dequantized floats, dequantized bf16 codes,
 *     one byte: whether they are exact. The fast quantiser and the reference must agree: if not, exit 1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "num/num.h"

static int fail(const char *what) {
    fprintf(stderr, "tool_codec: %s\n", what);
    return 1;
}

static int encode(dw_format format, bool saturate) {
    enum { CHUNK = 65536 };
    static float x[CHUNK];
    static uint16_t codes[CHUNK];
    size_t count;
    while ((count = fread(x, sizeof *x, CHUNK, stdin)) > 0) {
        for (size_t i = 0; i < count; i++) codes[i] = (uint16_t)num_encode(format, (double)x[i], saturate);
        if (fwrite(codes, sizeof *codes, count, stdout) != count) return fail("cannot write");
    }
    return 0;
}

static int decode(dw_format format) {
    for (uint64_t code = 0; code < UINT64_C(1) << dw_format_bits(format); code++) {
        double value = num_decode(format, code);
        if (fwrite(&value, sizeof value, 1, stdout) != 1) return fail("cannot write");
    }
    return 0;
}

static bool read_floats(float *x, size_t count) { return fread(x, sizeof *x, count, stdin) == count; }

static int quantize(dw_format format, dw_scale_layout layout, num_round round, bool has_second, int64_t batches, int64_t rows, int64_t cols) {
    num_parts parts;
    if (!num_layout(format, layout, 3, (int64_t[]){batches, rows, cols}, &parts)) return fail("no such layout");
    size_t count = (size_t)(batches * rows * cols);
    float *x = malloc(count * sizeof *x + 1);
    uint16_t *bf16 = malloc(count * sizeof *bf16 + 1);
    uint8_t *memory[2] = {malloc(parts.total_bytes + 1), malloc(parts.total_bytes + 1)};
    num_matrix matrix[2];
    if (x == NULL || bf16 == NULL || memory[0] == NULL || memory[1] == NULL) return fail("no memory");
    if (!read_floats(x, count)) return fail("too little input");
    for (int i = 0; i < 2; i++) {
        memset(memory[i], i == 0 ? 0x55 : 0xaa, parts.total_bytes);
        matrix[i] = (num_matrix){.format = format, .layout = layout, .rows = rows, .cols = cols, .batches = batches, .data = memory[i],
                                 .scales = memory[i] + parts.scale_offset, .second = (float *)(void *)(memory[i] + parts.second_offset)};
    }
    if (has_second) {
        if (!read_floats(matrix[0].second, parts.second_bytes / sizeof(float))) return fail("too little input");
        memcpy(matrix[1].second, matrix[0].second, parts.second_bytes);
    }
    num_quantize(x, cols, round, has_second, &matrix[0]);
    num_quantize_reference(x, cols, round, has_second, &matrix[1]);
    if (memcmp(matrix[0].data, matrix[1].data, parts.data_bytes) != 0) return fail("fast and reference quantiser differ in the data");
    if (memcmp(matrix[0].scales, matrix[1].scales, parts.scale_bytes) != 0) return fail("fast and reference quantiser differ in the scales");
    if (memcmp(matrix[0].second, matrix[1].second, parts.second_bytes) != 0) return fail("fast and reference quantiser differ in the second level");
    num_dequantize(&matrix[0], x, cols);
    num_dequantize_bf16(&matrix[0], bf16, cols);
    uint8_t exact = num_is_bf16_exact(&matrix[0]);
    fwrite(matrix[0].data, 1, parts.data_bytes, stdout);
    fwrite(matrix[0].scales, 1, parts.scale_bytes, stdout);
    fwrite(matrix[0].second, 1, parts.second_bytes, stdout);
    fwrite(x, sizeof *x, count, stdout);
    fwrite(bf16, sizeof *bf16, count, stdout);
    fwrite(&exact, 1, 1, stdout);
    free(x);
    free(bf16);
    free(memory[0]);
    free(memory[1]);
    return ferror(stdout) ? fail("cannot write") : 0;
}

static num_round round_named(const char *name) {
    return strcmp(name, "search") == 0 ? NUM_ROUND_SEARCH : strcmp(name, "floor") == 0 ? NUM_ROUND_FLOOR : NUM_ROUND_UP;
}

int main(int count, char **arguments) {
    dw_format format = count > 2 ? dw_format_find(arguments[2]) : DW_FORMAT_COUNT;
    if (format == DW_FORMAT_COUNT) return fail("no such format");
    if (count == 4 && strcmp(arguments[1], "encode") == 0) return encode(format, strcmp(arguments[3], "sat") == 0);
    if (count == 3 && strcmp(arguments[1], "decode") == 0) return decode(format);
    if (count == 9 && strcmp(arguments[1], "quantize") == 0)
        return quantize(format, strcmp(arguments[3], "tile128x4") == 0 ? DW_SCALE_tile128x4 : DW_SCALE_plain,
                        round_named(arguments[4]), strcmp(arguments[5], "given") == 0,
                        atoll(arguments[6]), atoll(arguments[7]), atoll(arguments[8]));
    return fail("see the head of tool_codec.c for how to call it");
}
