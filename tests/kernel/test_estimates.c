/* What the choice of kernels expects of an H200, held against what one took (bench/results/h200 says with which driver and when): within a fifth, a library's products within 15 %, steps between products within a
 * third. */
#include "support/support.h"

#include <math.h>
#include <string.h>

#include "kernel/kernel.h"

typedef struct measured_line { const char *line; double us; } measured_line;

static const measured_line attentions[] = {
    {"attention bf16[32,12,512,64] bf16[32,12,512,64] bf16[32,12,512,64] causal=true scale=0.125", 46.8},
    {"attention bf16[16,12,1024,64] bf16[16,12,1024,64] bf16[16,12,1024,64] causal=true scale=0.125", 72.2},
    {"attention bf16[32,16,512,64] bf16[32,16,512,64] bf16[32,16,512,64] scale=0.125", 99.8},
    {"attention bf16[4,32,2048,64] bf16[4,32,2048,64] bf16[4,32,2048,64] scale=0.125", 289.3},
    {"attention bf16[2,16,4096,64] bf16[2,16,4096,64] bf16[2,16,4096,64] scale=0.125", 304.6},
    {"attention bf16[64,16,197,64] bf16[64,16,197,64] bf16[64,16,197,64] scale=0.125", 56.1},
    {"attention bf16[32,16,257,64] bf16[32,16,257,64] bf16[32,16,257,64] scale=0.125", 42.1},
    {"attention bf16[8,16,257,64] bf16[8,16,257,64] bf16[8,16,257,64] scale=0.125", 14.7},
    {"attention bf16[32,16,729,72] bf16[32,16,729,72] bf16[32,16,729,72] scale=0.118", 218.3},
    {"attention bf16[8,16,729,72] bf16[8,16,729,72] bf16[8,16,729,72] scale=0.118", 59.2},
    {"attention bf16[4,16,4096,72] bf16[4,16,4096,72] bf16[4,16,4096,72] scale=0.118", 614.0},
    {"attention bf16[32,16,257,80] bf16[32,16,257,80] bf16[32,16,257,80] scale=0.112", 54.1},
    {"attention bf16[4,32,2048,80] bf16[4,32,2048,80] bf16[4,32,2048,80] causal=true scale=0.112", 184.1},
    {"attention bf16[32,16,512,64] bf16[32,16,512,64] bf16[32,16,512,64] bool[32,1,1,512] scale=0.125", 104.4},
    {"attention bf16[4,32,2048,64] bf16[4,32,2048,64] bf16[4,32,2048,64] bool[4,1,1,2048] scale=0.125", 300.8},
    {"attention bf16[32,16,512,64] bf16[32,16,512,64] bf16[32,16,512,64] bool[32,1,1,512] bf16[1,16,512,512] scale=0.125", 152.5},
    {"attention bf16[4,16,2048,64] bf16[4,16,2048,64] bf16[4,16,2048,64] - bf16[1,16,2048,2048] scale=0.125", 275.5},
    {"attention bf16[8,16,512,128] bf16[8,16,512,128] bf16[8,16,512,128] - bf16[1,16,512,512] scale=0.0884", 68.9},
    {"attention bf16[8,16,512,128] bf16[8,16,512,128] bf16[8,16,512,128] bool[8,1,1,512] scale=0.0884", 45.2},
    {"attention bf16[32,16,512,64] bf16[32,16,512,64] bf16[32,16,512,64] bool[32,1,1,512] f32[1,16,512,512] scale=0.125", 566},
    {"attention bf16[8,32,2048,64] bf16[8,32,2048,64] bf16[8,32,2048,64] causal=true scale=0.125", 362},
    {"attention bf16[4,32,2048,128] bf16[4,32,2048,128] bf16[4,32,2048,128] causal=true scale=0.0884", 271.6},
    {"attention bf16[1,32,2048,128] bf16[1,8,2048,128] bf16[1,8,2048,128] causal=true scale=0.0884", 72.6},
    {"attention bf16[8,32,512,128] bf16[8,32,512,128] bf16[8,32,512,128] causal=true scale=0.0884", 50.5},
    {"attention bf16[2,16,8192,128] bf16[2,16,8192,128] bf16[2,16,8192,128] causal=true scale=0.0884", 841.5},
    {"attention bf16[2,16,8192,128] bf16[2,16,8192,128] bf16[2,16,8192,128] scale=0.0884", 1677.6},
    {"attention bf16[4,8,2048,256] bf16[4,8,2048,256] bf16[4,8,2048,256] causal=true scale=0.0625", 136.9},
    {"attention bf16[64,32,1,128] bf16[64,32,4096,128] bf16[64,32,4096,128] scale=0.0884", 1055},
    {"attention bf16[16,32,1,128] bf16[16,8,4096,128] bf16[16,8,4096,128] scale=0.0884", 70.6},
};

/* Of more rows than the skinny kernels take; by themselves, from which kernel_in_step says what a run takes. */
static const measured_line products[] = {
    {"matmul bf16[4096,4096] bf16[4096,4096] bt=true", 175.1},
    {"matmul bf16[4096,7168] bf16[4096,7168] bt=true", 300.4},
    {"matmul bf16[512,7168] bf16[2112,7168] bt=true", 25.8},
    {"matmul bf16[128,7168] bf16[4096,7168] bt=true", 21.1},
    {"matmul fp8_1x128[4096,7168] fp8_128x128[4096,7168] bt=true to=bf16", 183.4},
    {"matmul fp8_1x128[512,7168] fp8_128x128[4096,7168] bt=true to=bf16", 27.2},
    {"matmul mxfp8[4096,4096] mxfp8[4096,4096] bt=true to=bf16", 209},
    {"matmul mxfp8[512,4096] mxfp8[4096,4096] bt=true to=bf16", 46.6},
};

/* Of up to 128 rows by weights that are decoded where they are multiplied, in a graph of such calls (bench/results/h200/decoded.md). */
static const measured_line decoded_products[] = {
    {"matmul mxfp8[16,4096] mxfp8[28672,4096] bt=true post=swiglu to=bf16", 44.2},
    {"matmul mxfp8[32,4096] mxfp8[28672,4096] bt=true post=swiglu to=bf16", 46.4},
    {"matmul nvfp4_row[16,2048] nvfp4[3072,2048] bt=true to=bf16", 7.1},
    {"matmul nvfp4_row[16,2048] nvfp4[16384,2048] bt=true post=swiglu to=bf16", 13.5},
    {"matmul nvfp4_row[16,8192] nvfp4[2048,8192] bt=true to=bf16", 12.6},
    {"matmul nvfp4_row[16,4096] nvfp4[28672,4096] bt=true post=swiglu to=bf16", 31.0},
    {"matmul nvfp4_row[32,2048] nvfp4[16384,2048] bt=true post=swiglu to=bf16", 15.4},
    {"matmul nvfp4_row[32,4096] nvfp4[28672,4096] bt=true post=swiglu to=bf16", 34.2},
    {"matmul nvfp4_row[32,14336] nvfp4[4096,14336] bt=true to=bf16", 24.0},
    {"matmul nvfp4_row[64,2048] nvfp4[16384,2048] bt=true post=swiglu to=bf16", 19.0},
    {"matmul nvfp4_row[64,4096] nvfp4[28672,4096] bt=true post=swiglu to=bf16", 42.8},
    {"matmul nvfp4_row[64,14336] nvfp4[4096,14336] bt=true to=bf16", 26.5},
    {"matmul mxfp4[16,2048] mxfp4[16384,2048] bt=true post=swiglu to=bf16", 13.9},
    {"matmul mxfp4[16,8192] mxfp4[2048,8192] bt=true to=bf16", 13.8},
    {"matmul mxfp4[64,2048] mxfp4[16384,2048] bt=true post=swiglu to=bf16", 19.5},
    {"matmul mxfp8[16,2048] mxfp8[16384,2048] bt=true post=swiglu to=bf16", 17.0},
    {"matmul mxfp8[32,14336] mxfp8[4096,14336] bt=true to=bf16", 29.8},
    {"matmul mxfp8[32,4096] mxfp8[6144,4096] bt=true to=bf16", 19.2},
    {"matmul mxfp8[32,4096] mxfp8[4096,4096] bt=true to=bf16", 18.2},
    {"matmul mxfp8[64,14336] mxfp8[4096,14336] bt=true to=bf16", 34.0},
    {"matmul mxfp8[64,8192] mxfp8[2048,8192] bt=true to=bf16", 19.8},
    {"matmul mxfp8[128,4096] mxfp8[28672,4096] bt=true post=swiglu to=bf16", 72.6},
    {"matmul mxfp8[128,14336] mxfp8[4096,14336] bt=true to=bf16", 40.3},
    {"matmul mxfp8[128,4096] mxfp8[4096,4096] bt=true to=bf16", 20.7},
    {"matmul mxfp8[128,1024] mxfp8[1024,1024] bt=true to=bf16", 8.75},
    {"matmul mxfp8[128,2048] mxfp8[2048,2048] bt=true to=bf16", 12.85},
    {"matmul mxfp8[128,8192] mxfp8[2048,8192] bt=true to=bf16", 23.9},
    {"matmul fp8_row[128,1024] fp8_row[4096,1024] bt=true to=bf16", 12.4},
    {"matmul fp8_row[128,4096] fp8_row[1024,4096] bt=true to=bf16", 13.7},
};

/* Of codes of 8 bits that are multiplied as they are, up to 64 rows, and of mxfp8 up to 128 (the same). */
static const measured_line folded_products[] = {
    {"matmul mxfp8[16,4096] mxfp8[28672,4096] bt=true post=swiglu to=bf16", 34.5},
    {"matmul mxfp8[16,14336] mxfp8[4096,14336] bt=true to=bf16", 20.8},
    {"matmul mxfp8[16,2048] mxfp8[16384,2048] bt=true post=swiglu to=bf16", 11.9},
    {"matmul mxfp8[16,2048] mxfp8[2048,2048] bt=true to=bf16", 5.8},
    {"matmul mxfp8[16,8192] mxfp8[2048,8192] bt=true to=bf16", 10.1},
    {"matmul mxfp8[32,4096] mxfp8[28672,4096] bt=true post=swiglu to=bf16", 36.2},
    {"matmul mxfp8[32,14336] mxfp8[4096,14336] bt=true to=bf16", 23.7},
    {"matmul mxfp8[32,4096] mxfp8[6144,4096] bt=true to=bf16", 15.4},
    {"matmul mxfp8[32,2048] mxfp8[16384,2048] bt=true post=swiglu to=bf16", 13.2},
    {"matmul mxfp8[64,2048] mxfp8[16384,2048] bt=true post=swiglu to=bf16", 19.5},
    {"matmul mxfp8[32,2048] mxfp8[2048,2048] bt=true to=bf16", 6.15},
    {"matmul mxfp8[64,2048] mxfp8[3072,2048] bt=true to=bf16", 7.98},
    {"matmul mxfp8[64,2048] mxfp8[2048,2048] bt=true to=bf16", 6.69},
    {"matmul mxfp8[64,8192] mxfp8[2048,8192] bt=true to=bf16", 14.2},
    {"matmul mxfp8[128,1024] mxfp8[1024,1024] bt=true to=bf16", 5.16},
    {"matmul mxfp8[128,1024] mxfp8[4096,1024] bt=true to=bf16", 7.5},
    {"matmul mxfp8[128,4096] mxfp8[1024,4096] bt=true to=bf16", 9.13},
    {"matmul mxfp8[128,2048] mxfp8[3072,2048] bt=true to=bf16", 10.8},
    {"matmul mxfp8[128,2048] mxfp8[2048,2048] bt=true to=bf16", 8.13},
    {"matmul mxfp8[128,8192] mxfp8[2048,8192] bt=true to=bf16", 20.5},
    {"matmul mxfp8[128,2048] mxfp8[16384,2048] bt=true post=swiglu to=bf16", 41.3},
    {"matmul fp8_1x128[16,8192] fp8_128x128[2048,8192] bt=true to=bf16", 9.5},
    {"matmul fp8_1x128[32,8192] fp8_128x128[2048,8192] bt=true to=bf16", 10.2},
    {"matmul fp8_1x128[32,14336] fp8_128x128[4096,14336] bt=true to=bf16", 22.9},
    {"matmul fp8_1x128[64,14336] fp8_128x128[4096,14336] bt=true to=bf16", 26.5},
    {"matmul fp8_1x128[64,2048] fp8_128x128[3072,2048] bt=true to=bf16", 9.05},
    {"matmul fp8_1x128[64,2048] fp8_128x128[2048,2048] bt=true to=bf16", 6.6},
    {"matmul fp8_1x128[64,2048] fp8_128x128[16384,2048] bt=true post=swiglu to=bf16", 13.9},
    {"matmul fp8_1x128[64,8192] fp8_128x128[2048,8192] bt=true to=bf16", 13.2},
    {"matmul fp8_row[16,4096] fp8_row[28672,4096] bt=true post=swiglu to=bf16", 32.7},
};

/* Of more rows, in such graphs, too, but estimated as what lies in a run between others, as the tiles that could take their place are. */
static const measured_line folded_tall_products[] = {
    {"matmul mxfp8[512,1024] mxfp8[1024,1024] bt=true to=bf16", 6.79},
    {"matmul mxfp8[512,1024] mxfp8[4096,1024] bt=true to=bf16", 25.6},
    {"matmul mxfp8[512,4096] mxfp8[1024,4096] bt=true to=bf16", 18.4},
    {"matmul mxfp8[512,2048] mxfp8[2048,2048] bt=true to=bf16", 20.7},
    {"matmul mxfp8[512,8192] mxfp8[2048,8192] bt=true to=bf16", 66.1},
};

/* By tiles, in runs of BERT-large, ViT-large, Llama-1B and Llama-8B, as their reports told (bench/results/h200/models.md has the largest of them). */
static const measured_line run_products[] = {
    {"matmul bf16[16384,1024] bf16[3072,1024] bf16[3072] bt=true post=bias", 157.5},
    {"matmul bf16[16384,1024] bf16[4096,1024] bf16[4096] bt=true post=bias,gelu", 250.5},
    {"matmul bf16[16384,1024] bf16[1024,1024] bf16[1024] bf16[16384,1024] bt=true post=bias,add", 80.8},
    {"matmul bf16[16384,4096] bf16[1024,4096] bf16[1024] bf16[16384,1024] bt=true post=bias,add", 203},
    {"matmul bf16[12608,1024] bf16[4096,1024] bf16[4096] bt=true post=bias,gelu", 194.1},
    {"matmul bf16[8192,2048] bf16[16384,2048] bt=true post=swiglu", 763.1},
    {"matmul bf16[8192,8192] bf16[2048,8192] bf16[8192,2048] bt=true post=add", 416.5},
    {"matmul bf16[8192,2048] bf16[3072,2048] bt=true", 169.5},
    {"matmul bf16[8192,2048] bf16[2048,2048] bf16[8192,2048] bt=true post=add", 117.2},
    {"matmul bf16[512,4096] bf16[28672,4096] bt=true post=swiglu", 175.7},
    {"matmul bf16[512,14336] bf16[4096,14336] bf16[512,4096] bt=true post=add", 91.4},
    {"matmul bf16[512,4096] bf16[6144,4096] bt=true", 43.4},
    {"matmul bf16[128,1024] bf16[4096,1024] bf16[4096] bt=true post=bias,gelu", 7.86},
    {"matmul bf16[16,2048] bf16[16384,2048] bt=true post=swiglu", 23.3},
    {"matmul bf16[128,768] bf16[2304,768] bf16[2304] bt=true post=bias", 5.88},
    {"matmul bf16[128,768] bf16[768,768] bf16[768] bf16[128,768] bt=true post=bias,add", 5.77},
    {"matmul bf16[128,768] bf16[3072,768] bf16[3072] bt=true post=bias,gelu", 6.67},
    {"matmul bf16[128,3072] bf16[768,3072] bf16[768] bf16[128,768] bt=true post=bias,add", 7.98},
    {"matmul bf16[128,1024] bf16[3072,1024] bf16[3072] bt=true post=bias", 6.42},
    {"matmul bf16[128,1024] bf16[1024,1024] bf16[1024] bf16[128,1024] bt=true post=bias,add", 6.31},
    {"matmul bf16[128,4096] bf16[1024,4096] bf16[1024] bf16[128,1024] bt=true post=bias,add", 8.88},
    {"matmul bf16[197,1024] bf16[1024,1024] bf16[1024] bf16[197,1024] bt=true post=bias,add", 8.33},
    {"matmul bf16[197,1024] bf16[4096,1024] bf16[4096] bt=true post=bias,gelu", 9.45},
    {"matmul bf16[16,768] bf16[2304,768] bf16[2304] bt=true post=bias", 3.58},
    {"matmul bf16[16,768] bf16[3072,768] bf16[3072] bt=true post=bias,gelu_tanh", 4.10},
    {"matmul bf16[16,768] bf16[768,768] bf16[768] bf16[16,768] bt=true post=bias,add", 4.29},
    {"matmul bf16[16,3072] bf16[768,3072] bf16[768] bf16[16,768] bt=true post=bias,add", 7.55},
    {"matmul bf16[64,768] bf16[2304,768] bf16[2304] bt=true post=bias", 5.71},
    {"matmul bf16[64,768] bf16[3072,768] bf16[3072] bt=true post=bias,gelu_tanh", 5.80},
    {"matmul bf16[64,768] bf16[768,768] bf16[768] bf16[64,768] bt=true post=bias,add", 5.72},
    {"matmul bf16[64,3072] bf16[768,3072] bf16[768] bf16[64,768] bt=true post=bias,add", 7.96},
    {"matmul fp8_1x128[16384,1024] fp8_128x128[3072,1024] bf16[3072] bt=true post=bias to=bf16", 115.8},
    {"matmul fp8_1x128[16384,1024] fp8_128x128[1024,1024] bf16[1024] bf16[16384,1024] bt=true post=bias,add to=bf16", 65.1},
    {"matmul fp8_1x128[16384,4096] fp8_128x128[1024,4096] bf16[1024] bf16[16384,1024] bt=true post=bias,add to=bf16", 134.7},
    {"matmul fp8_1x128[8192,2048] fp8_128x128[16384,2048] bt=true post=swiglu to=fp8_1x128", 571.3},
    {"matmul fp8_1x128[8192,8192] fp8_128x128[2048,8192] bf16[8192,2048] bt=true post=add to=bf16", 238.3},
    {"matmul fp8_1x128[8192,2048] fp8_128x128[3072,2048] bt=true to=bf16", 99.4},
    {"matmul fp8_1x128[512,4096] fp8_128x128[28672,4096] bt=true post=swiglu to=fp8_1x128", 128.7},
    {"matmul fp8_1x128[512,4096] fp8_128x128[6144,4096] bt=true to=bf16", 27.7},
    {"matmul fp8_1x128[128,1024] fp8_128x128[3072,1024] bf16[3072] bt=true post=bias to=bf16", 6.57},
    {"matmul fp8_1x128[128,768] fp8_128x128[2304,768] bf16[2304] bt=true post=bias to=bf16", 5.77},
    {"matmul fp8_1x128[128,3072] fp8_128x128[768,3072] bf16[768] bf16[128,768] bt=true post=bias,add to=bf16", 7.65},
};

/* Of ops between products, in a step of a model (bench/results/h200/models.md): 8 layers of Qwen3-30B-A3B, Llama-1B, BERT-large. Within a third, as such a step takes a tenth more in one run than in
 * the next. */
static const measured_line between[] = {
    {"dispatch i64[16,8] length=128", 4.65},
    {"dispatch i64[512,8] length=128", 9.8},
    {"dispatch i64[8192,8] length=128", 17.8},
    {"combine bf16[8,2048] i64[1,8] bf16[1,8]", 6.5},
    {"combine bf16[128,2048] i64[16,8] bf16[16,8]", 7.85},
    {"combine bf16[4096,2048] i64[512,8] bf16[512,8]", 17.0},
    {"combine bf16[65536,2048] i64[8192,8] bf16[8192,8]", 182.3},
    {"argmax bf16[1,1,128256] axis=2", 14.4},
    {"argmax bf16[1,16,128256] axis=2", 18.1},
    {"sum f32[64,8] axes=1 keep=true", 2.8},
    {"topk f32[64,32] axis=1 length=8 largest=true", 2.5},
    {"choose f32[64,32] axis=1 length=8 largest=true softmax=true steps=sum(x0);div(x0,t0);cast(t1,bf16)", 6.4},
    {"chain f32[64,8] f32[64,1] steps=div(x0,x1);cast(t0,bf16)", 2.7},
    {"chain f32[64,64] steps=cos(x0);cast(t0,bf16)", 2.2},
    {"chain bf16[128,768] bf16[128,768] steps=add(x0,x1);mul(t0,x1)", 2.7},
    {"chain bf16[128,2048] steps=mul(x0,x0);mul(t0,x0);add(t1,x0);tanh(t2);mul(t3,x0)", 4.3},
    {"chain f32[128,2048] f32[128,2048] steps=mul(x0,x1);add(t0,x1);div(t1,x0)", 3.8},
    {"chain bf16[16,3072] steps=mul(x0,x0);mul(t0,x0);add(t1,x0);tanh(t2);mul(t3,x0)", 2.7},
    {"gather i64[1,512] i64[1,512] axis=1", 8.8},
    {"take bf16[1,32,16,64] i64[16] axis=2", 10.5},
    {"take bf16[8192,2048] i64[65536] axis=0", 114.4},
    {"attention bf16[1,32,1,64] bf16[1,8,521,64] bf16[1,8,521,64] - - - i64[1] i64[1] causal=true scale=0.125", 7.0},
    {"attention bf16[1,32,16,64] bf16[16,8,521,64] bf16[16,8,521,64] - - - i64[16] i64[16] causal=true scale=0.125", 12.45},
    {"attention bf16[1,32,1,128] bf16[1,4,521,128] bf16[1,4,521,128] - - - i64[1] i64[1] causal=true scale=0.0884", 8.2},
    {"attention bf16[1,32,16,128] bf16[16,4,521,128] bf16[16,4,521,128] - - - i64[16] i64[16] causal=true scale=0.0884", 14.2},
    {"attention bf16[1,32,512,64] bf16[1,8,521,64] bf16[1,8,521,64] - - - i64[512] i64[512] causal=true scale=0.125", 10.9},
    {"grouped_matmul bf16[8,2048] bf16[128,1536,2048] i32[128] bt=true post=swiglu", 21.3},
    {"grouped_matmul bf16[8,768] bf16[128,2048,768] i32[128] bt=true", 11.85},
};

/* Into caches in place, in a graph of such calls (bench/results/h200/move.md); norms of heads in front of them, 0.3 to 6.5 us, are in no estimate. */
static const measured_line cache_writes[] = {
    {"cache_update bf16[16,12,640,64] bf16[16,12,640,64] bf16[1,12,8192,64] bf16[1,12,8192,64] i64[8192] i64[8192]", 20.25},
    {"cache_update bf16[1,12,640,64] bf16[1,12,640,64] bf16[1,12,512,64] bf16[1,12,512,64] i64[512] i64[512]", 5.18},
    {"cache_update bf16[1,8,2560,128] bf16[1,8,2560,128] bf16[1,8,2048,128] bf16[1,8,2048,128] i64[2048] i64[2048] bf16[2048,128] bf16[2048,128] bf16[1,16,2048,128] width=128", 16.14},
    {"cache_update bf16[40,8,64,128] bf16[40,8,64,128] bf16[1,8,2048,128] bf16[1,8,2048,128] i64[2048] i64[2048] bf16[2048,128] bf16[2048,128] bf16[1,16,2048,128] i32[1,40] width=128", 16.88},
    {"cache_update fp8_1x128[40,8,64,128] fp8_1x128[40,8,64,128] bf16[1,8,2048,128] bf16[1,8,2048,128] i64[2048] i64[2048] bf16[2048,128] bf16[2048,128] bf16[1,16,2048,128] i32[1,40] width=128", 23.55},
    {"cache_update mxfp8[40,8,64,128] mxfp8[40,8,64,128] bf16[1,8,2048,128] bf16[1,8,2048,128] i64[2048] i64[2048] bf16[2048,128] bf16[2048,128] bf16[1,16,2048,128] i32[1,40] width=128", 23.2},
    {"cache_update nvfp4[1,8,2560,128] nvfp4[1,8,2560,128] bf16[1,8,2048,128] bf16[1,8,2048,128] i64[2048] i64[2048] bf16[2048,128] bf16[2048,128] bf16[1,16,2048,128] width=128", 27.43},
    {"cache_update bf16[16,8,640,64] bf16[16,8,640,64] bf16[1,8,8192,64] bf16[1,8,8192,64] i64[8192] i64[8192] bf16[8192,64] bf16[8192,64] bf16[1,32,8192,64] width=64", 40.25},
    {"cache_update bf16[64,8,64,64] bf16[64,8,64,64] bf16[1,8,4096,64] bf16[1,8,4096,64] i64[4096] i64[4096] bf16[4096,64] bf16[4096,64] bf16[1,32,4096,64] i32[1,64] width=64", 23.36},
    {"cache_update bf16[1,8,640,128] bf16[1,8,640,128] bf16[1,8,512,128] bf16[1,8,512,128] i64[512] i64[512] bf16[512,128] bf16[512,128] bf16[1,32,512,128] width=128", 9.25},
    {"cache_write bf16[16,8,2048,128] bf16[1,8,8192,128] i64[8192] i64[8192]", 15.4},
    {"cache_update bf16[64,12,640,64] bf16[64,12,640,64] bf16[1,12,64,64] bf16[1,12,64,64] i64[64] i64[64]", 1.49},
    {"cache_update bf16[16,12,640,64] bf16[16,12,640,64] bf16[1,12,16,64] bf16[1,12,16,64] i64[16] i64[16]", 1.29},
    {"cache_update bf16[1,12,640,64] bf16[1,12,640,64] bf16[1,12,1,64] bf16[1,12,1,64] i64[1] i64[1]", 1.24},
    {"cache_update bf16[16,8,640,64] bf16[16,8,640,64] bf16[1,8,16,64] bf16[1,8,16,64] i64[16] i64[16] bf16[16,64] bf16[16,64] bf16[1,32,16,64] width=64", 1.81},
    {"cache_update bf16[640,8,64,128] bf16[640,8,64,128] bf16[1,8,64,128] bf16[1,8,64,128] i64[64] i64[64] bf16[64,128] bf16[64,128] bf16[1,16,64,128] i32[64,10] width=128", 2.44},
    {"cache_update bf16[40,8,64,128] bf16[40,8,64,128] bf16[1,8,4,128] bf16[1,8,4,128] i64[4] i64[4] bf16[4,128] bf16[4,128] bf16[1,16,4,128] i32[4,10] width=128", 1.81},
    {"cache_update bf16[10,8,64,128] bf16[10,8,64,128] bf16[1,8,1,128] bf16[1,8,1,128] i64[1] i64[1] bf16[1,128] bf16[1,128] bf16[1,16,1,128] i32[1,10] width=128", 1.71},
    {"cache_update fp8_1x128[640,8,64,128] fp8_1x128[640,8,64,128] bf16[1,8,64,128] bf16[1,8,64,128] i64[64] i64[64] bf16[64,128] bf16[64,128] bf16[1,16,64,128] i32[64,10] width=128", 3.74},
    {"cache_update fp8_1x128[10,8,64,128] fp8_1x128[10,8,64,128] bf16[1,8,1,128] bf16[1,8,1,128] i64[1] i64[1] bf16[1,128] bf16[1,128] bf16[1,16,1,128] i32[1,10] width=128", 2.43},
};

/* By cuBLASLt, in a step of BERT-base, BERT-large, ViT-large, GPT-2 and Llama-1B (bench/results/h200/models.md). What the launch behind each takes longer, as it cannot begin early, is in the estimate besides. */
#define BEHIND_LIBRARY_US 1.3
static const measured_line library_products[] = {
    {"matmul bf16[16384,1024] bf16[3072,1024] bf16[3072] bt=true post=bias", 149.7},
    {"matmul bf16[12608,1024] bf16[3072,1024] bf16[3072] bt=true post=bias", 118.9},
    {"matmul bf16[16384,1024] bf16[1024,1024] bf16[1024] bf16[16384,1024] bt=true post=bias,add", 61.8},
    {"matmul bf16[12608,1024] bf16[1024,1024] bf16[1024] bf16[12608,1024] bt=true post=bias,add", 49.1},
    {"matmul bf16[12608,4096] bf16[1024,4096] bf16[1024] bf16[12608,1024] bt=true post=bias,add", 146.5},
    {"matmul bf16[512,2048] bf16[3072,2048] bt=true", 11.9},
    {"matmul bf16[512,2048] bf16[2048,2048] bf16[512,2048] bt=true post=add", 10.5},
    {"matmul bf16[512,8192] bf16[2048,8192] bf16[512,2048] bt=true post=add", 29.7},
    {"matmul bf16[128,768] bf16[2304,768] bf16[2304] bt=true post=bias", 5.39},
    {"matmul bf16[128,768] bf16[768,768] bf16[768] bf16[128,768] bt=true post=bias,add", 5.32},
    {"matmul bf16[128,3072] bf16[768,3072] bf16[768] bf16[128,768] bt=true post=bias,add", 9.09},
    {"matmul bf16[128,4096] bf16[1024,4096] bf16[1024] bf16[128,1024] bt=true post=bias,add", 9.59},
    {"matmul bf16[16,3072] bf16[768,3072] bf16[768] bf16[16,768] bt=true post=bias,add", 8.03},
    {"matmul bf16[64,3072] bf16[768,3072] bf16[768] bf16[64,768] bt=true post=bias,add", 8.28},
    {"matmul bf16[197,1024] bf16[1024,1024] bf16[1024] bf16[197,1024] bt=true post=bias,add", 5.92},
    {"matmul bf16[197,1024] bf16[3072,1024] bf16[3072] bt=true post=bias", 6.50},
    {"matmul bf16[197,4096] bf16[1024,4096] bf16[1024] bf16[197,1024] bt=true post=bias,add", 10.74},
    {"matmul bf16[512,768] bf16[2304,768] bf16[2304] bt=true post=bias", 7.0},
    {"matmul bf16[512,768] bf16[3072,768] bf16[3072] bt=true post=bias,gelu_tanh", 9.0},
    {"matmul bf16[512,768] bf16[768,768] bf16[768] bf16[512,768] bt=true post=bias,add", 5.3},
    {"matmul bf16[512,3072] bf16[768,3072] bf16[768] bf16[512,768] bt=true post=bias,add", 9.0},
};

/* Which way took the shorter run on an H200 that has the library: BERT-base, BERT-large, GPT-2 with 16 texts by tiles, Llama-1B with 4 and 16 texts by panels one after another, ViT-large with one image by cuBLASLt; of weights of 8 bits in graphs of such
 * calls (bench/results/h200/decoded.md). */
typedef struct picked_line { const char *line, *way; } picked_line;

static const picked_line picks[] = {
    {"matmul bf16[128,768] bf16[2304,768] bf16[2304] bt=true post=bias", "cuda_matmul_wgmma"},
    {"matmul bf16[128,768] bf16[768,768] bf16[768] bf16[128,768] bt=true post=bias,add", "cuda_matmul_wgmma"},
    {"matmul bf16[128,3072] bf16[768,3072] bf16[768] bf16[128,768] bt=true post=bias,add", "cuda_matmul_wgmma"},
    {"matmul bf16[128,1024] bf16[3072,1024] bf16[3072] bt=true post=bias", "cuda_matmul_wgmma"},
    {"matmul bf16[128,1024] bf16[1024,1024] bf16[1024] bf16[128,1024] bt=true post=bias,add", "cuda_matmul_wgmma"},
    {"matmul bf16[128,4096] bf16[1024,4096] bf16[1024] bf16[128,1024] bt=true post=bias,add", "cuda_matmul_wgmma"},
    {"matmul bf16[16,768] bf16[2304,768] bf16[2304] bt=true post=bias", "cuda_matmul_skinny"},
    {"matmul bf16[16,3072] bf16[768,3072] bf16[768] bf16[16,768] bt=true post=bias,add", "cuda_matmul_skinny"},
    {"matmul bf16[16,2048] bf16[16384,2048] bt=true post=swiglu to=bf16", "cuda_matmul_skinny"},
    {"matmul bf16[8,2048] bf16[16384,2048] bt=true post=swiglu to=bf16", "cuda_matmul_skinny"},
    {"matmul bf16[4,8192] bf16[2048,8192] bf16[4,2048] bt=true post=add to=bf16", "cuda_matmul_skinny"},
    {"matmul bf16[16,8192] bf16[2048,8192] bf16[16,2048] bt=true post=add to=bf16", "cuda_matmul_skinny"},
    {"matmul bf16[16,4096] bf16[6144,4096] bt=true to=bf16", "cuda_matmul_cublaslt"},
    {"matmul bf16[16,4096] bf16[28672,4096] bt=true post=swiglu to=bf16", "cuda_matmul_wgmma"},
    {"matmul bf16[197,1024] bf16[1024,1024] bf16[1024] bf16[197,1024] bt=true post=bias,add", "cuda_matmul_cublaslt"},
    {"matmul bf16[197,4096] bf16[1024,4096] bf16[1024] bf16[197,1024] bt=true post=bias,add", "cuda_matmul_cublaslt"},
    {"matmul fp8_row[128,1024] fp8_row[1024,1024] bt=true to=bf16", "cuda_matmul_wgmma"},
    {"matmul fp8_row[128,4096] fp8_row[1024,4096] bt=true to=bf16", "cuda_matmul_wgmma"},
    {"matmul fp8_1x128[64,2048] fp8_128x128[3072,2048] bt=true to=bf16", "cuda_matmul_wgmma"},
    {"matmul fp8_1x128[64,8192] fp8_128x128[2048,8192] bt=true to=bf16", "cuda_matmul_wgmma_folded"},
    {"matmul mxfp8[128,1024] mxfp8[4096,1024] bt=true to=bf16", "cuda_matmul_wgmma_folded"},
    {"matmul mxfp8[128,2048] mxfp8[16384,2048] bt=true post=swiglu to=bf16", "cuda_matmul_wgmma_decoded"},
};

/* only: the way that is asked for; NULL: the one of least estimate. has_library: cuBLASLt is there. */
static double estimate_us(dw_context *context, const char *line, const char *only, bool has_library, const char **way) {
    static const int64_t no_symbols[1] = {0};
    arena arena;
    dim_table *dims;
    kernel_case c;
    kernel_choice choice;
    chip_caps chip;
    arena_init(&arena, context);
    assert_int_equal(dim_table_create(context, &dims), DW_OK);
    assert_int_equal(chip_find(context, "h200", 0, &chip), DW_OK);
    chip.features |= (uint64_t)has_library << CHIP_cublaslt;
    assert_int_equal(kernel_case_parse(&arena, dims, "line", 1, line, &c), DW_OK);
    const kernel_problem problem = {.context = context, .op = c.op, .attrs = &c.attrs, .post = c.post, .n_in = c.n_in, .n_out = c.n_out, .in = c.in, .out = c.out,
                                    .constant_in = c.constant, .dims = c.dims, .symbols = no_symbols, .chip = &chip};
    assert_int_equal(kernel_choose(&arena, &problem, NULL, only, &choice), DW_OK);
    const double us = choice.seconds * 1e6;
    *way = choice.way != NULL ? choice.way->name : choice.row->name;
    dim_table_destroy(dims);
    arena_free(&arena);
    return us;
}

static void check_lines(const measured_line *lines, size_t count, const char *only, bool in_step, double apart) {
    dw_context *context;
    const bool of_library = only != NULL && strstr(only, "cublaslt") != NULL;
    int wrong = 0;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    for (size_t i = 0; i < count; i++) {
        const char *way;
        const double us = estimate_us(context, lines[i].line, only, of_library, &way), measured = in_step ? lines[i].us + (of_library ? BEHIND_LIBRARY_US : 0) : 1e6 * kernel_in_step(1e-6 * lines[i].us);
        if (fabs(us / measured - 1) <= apart) continue;
        print_error("%s: %.1f us expected of %s, %.1f measured\n", lines[i].line, us, way, measured);
        wrong++;
    }
    assert_int_equal(wrong, 0);
    dw_context_destroy(context);
}

static void attention_is_estimated_as_an_h200_took(void **state) {
    (void)state;
    check_lines(attentions, COUNT_OF(attentions), NULL, true, 0.2);
}

static void products_are_estimated_as_an_h200_took(void **state) {
    (void)state;
    check_lines(products, COUNT_OF(products), NULL, false, 0.2);
    check_lines(run_products, COUNT_OF(run_products), NULL, true, 0.2);
    check_lines(decoded_products, COUNT_OF(decoded_products), "cuda_matmul_wgmma_decoded", true, 0.2);
    check_lines(folded_products, COUNT_OF(folded_products), "cuda_matmul_wgmma_folded", true, 0.2);
    check_lines(folded_tall_products, COUNT_OF(folded_tall_products), "cuda_matmul_wgmma_folded", false, 0.2);
}

static void products_of_a_library_are_estimated_as_an_h200_took(void **state) {
    (void)state;
    check_lines(library_products, COUNT_OF(library_products), "cuda_matmul_cublaslt", true, 0.15);
}

static void few_rows_go_by_what_took_the_shorter_run(void **state) {
    (void)state;
    dw_context *context;
    int wrong = 0;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    for (size_t i = 0; i < COUNT_OF(picks); i++) {
        const char *way;
        estimate_us(context, picks[i].line, NULL, true, &way);
        if (strcmp(way, picks[i].way) == 0) continue;
        print_error("%s: by %s, %s took the shorter run\n", picks[i].line, way, picks[i].way);
        wrong++;
    }
    assert_int_equal(wrong, 0);
    dw_context_destroy(context);
}

static void steps_between_products_are_estimated_as_an_h200_took(void **state) {
    (void)state;
    check_lines(between, COUNT_OF(between), NULL, true, 1.0 / 3);
}

static void writes_of_caches_are_estimated_as_an_h200_took(void **state) {
    (void)state;
    check_lines(cache_writes, COUNT_OF(cache_writes), NULL, true, 0.2);
}

/* The plain kernel adds rows one after another: 0.9 us each. */
static void gradients_of_norms_take_the_kernel_of_rows(void **state) {
    (void)state;
    static const picked_line lines[] = {
        {"layer_norm_backward bf16[64,768] bf16[64,768] f32[768] eps=1e-5", "cuda_layer_norm_backward_rows"},
        {"layer_norm_backward bf16[400,768] bf16[400,768] f32[768] eps=1e-5", "cuda_layer_norm_backward_rows"},
        {"rms_norm_backward f32[128,2048] f32[128,2048] f32[2048] eps=1e-5", "cuda_rms_norm_backward_rows"},
        {"rms_norm_backward bf16[8192,4096] bf16[8192,4096] f32[4096] eps=1e-5", "cuda_rms_norm_backward_rows"},
    };
    dw_context *context;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        const char *way;
        estimate_us(context, lines[i].line, NULL, false, &way);
        if (strcmp(way, lines[i].way) != 0) fail_msg("%s: by %s", lines[i].line, way);
    }
    dw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(attention_is_estimated_as_an_h200_took), cmocka_unit_test(products_are_estimated_as_an_h200_took),
                                       cmocka_unit_test(products_of_a_library_are_estimated_as_an_h200_took), cmocka_unit_test(few_rows_go_by_what_took_the_shorter_run),
                                       cmocka_unit_test(steps_between_products_are_estimated_as_an_h200_took), cmocka_unit_test(writes_of_caches_are_estimated_as_an_h200_took),
                                       cmocka_unit_test(gradients_of_norms_take_the_kernel_of_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
