// Calls through a table of functions, one of them recursive, and virtual ones; lanes of a warp call different functions.
// launch: block=32
// in: u32 0 1 2 1
// out: 256
// expect: u32 10 10 14 30 14 50 22 70 18 90 30 110 22 130 38 150 26 170 46 190 30 210 54 230 34 250 62 270 38 290 70 310
// expect: u32 0 4001 12 4009 48 4025 108 4049 192 4081 300 4121 432 4169 588 4225 768 4289 972 4361 1200 4441 1452 4529 1728 4625 2028 4729 2352 4841 2700 4961
typedef int (*function)(int, int);

__device__ int plus(int a, int b) { return a + b; }
__device__ int times(int a, int b) { return a * b; }
__device__ __noinline__ int deep(int a, int b) { return a <= 0 ? b : deep(a - 1, b + 2); }
__device__ function table[3] = {plus, times, deep};

struct shape {
    __device__ virtual float area() const = 0;
    __device__ virtual int sides() const { return 0; }
};

struct square : shape {
    float side;
    __device__ square(float v) : side(v) {}
    __device__ float area() const override { return side * side; }
    __device__ int sides() const override { return 4; }
};

struct disc : shape {
    float radius;
    __device__ disc(float v) : radius(v) {}
    __device__ float area() const override { return 3 * radius * radius; }
};

extern "C" __global__ void test(unsigned *out, const unsigned *in) {
    int t = threadIdx.x;
    out[t] = table[in[t % 4] % 3](t, 10);
    square a(t);
    disc b(t);
    const shape *any = t & 1 ? (const shape *)&a : (const shape *)&b;
    out[32 + t] = (unsigned)any->area() + 1000 * any->sides();
}
