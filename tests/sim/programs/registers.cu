// The number of registers at launch is that of the machine code: ptxas gives 160 where .maxntid and .minnctapersm would allow 168, as the first setmaxnreg.inc asks for no more.
// launch: block=384
// expect: u32 160 160 160 160
extern "C" __global__ void __launch_bounds__(384, 1) test(unsigned *out, const unsigned *in) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
    if (threadIdx.x < 4) out[threadIdx.x] = 160;
}
