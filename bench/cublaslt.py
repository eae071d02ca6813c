"""cuBLASLt through its C interface: all that it proposes for a product, not its first proposal alone, which is what PyTorch takes.

Loads the library by name (beside PyTorch: the one that PyTorch has loaded) and declares what is called of it; the numbers are those of kernels/library/cublaslt_abi.h.
"""
import ctypes

OK, NOT_SUPPORTED = 0, 15
F32, BF16, E4M3 = 0, 14, 28
COMPUTE_F32, TRANSPOSED = 68, 1
TRANSPOSE_A, SCALES_A, SCALES_B, SCALE_MODE_A, SCALE_MODE_B = 3, 17, 18, 31, 32
ONE, BY_1X128, BY_128X128 = 0, 4, 5
WORKSPACE_BYTES, REDUCTIONS, REDUCTION_F32 = 1, 3, 2
WORKSPACE = 64 << 20


class Candidate(ctypes.Structure):
    _fields_ = [("algorithm", ctypes.c_uint64 * 8), ("workspace_bytes", ctypes.c_size_t), ("state", ctypes.c_int), ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4)]


class Library:
    def __init__(self, path="libcublasLt.so.13"):
        self.calls = ctypes.CDLL(path)
        self.handle = ctypes.c_void_p()
        self.call("Create", ctypes.byref(self.handle))

    def call(self, name, *arguments):
        status = getattr(self.calls, "cublasLt" + name)(*arguments)
        if status != OK:
            raise RuntimeError(f"cublasLt{name}: status {status}")


def made(library, name, *arguments):
    pointer = ctypes.c_void_p()
    library.call(name, ctypes.byref(pointer), *arguments)
    return pointer


class Product:
    """out [m,n] bf16 = a [m,k] b [n,k]^T, sums in fp32 throughout. scales: None or the modes of b and of a, whose addresses come with each call. Lives as long as the process."""

    def __init__(self, library, m, n, k, format, scales=None):
        long = ctypes.c_int64
        self.library, self.scaled = library, scales is not None
        self.desc = made(library, "MatmulDescCreate", COMPUTE_F32, F32)
        self.set("MatmulDescSetAttribute", self.desc, TRANSPOSE_A, ctypes.c_int32(TRANSPOSED))
        if self.scaled:
            self.set("MatmulDescSetAttribute", self.desc, SCALE_MODE_A, ctypes.c_int32(scales[0]))
            self.set("MatmulDescSetAttribute", self.desc, SCALE_MODE_B, ctypes.c_int32(scales[1]))
        layouts = ((format, k, n), (format, k, m), (BF16, n, m))      # it counts matrices by columns, so b comes first
        self.b, self.a, self.out = (made(library, "MatrixLayoutCreate", t, ctypes.c_uint64(rows), ctypes.c_uint64(cols), long(rows)) for t, rows, cols in layouts)

    def set(self, call, to, attribute, value):
        self.library.call(call, to, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))

    def scale(self, b, a):
        if self.scaled:
            self.set("MatmulDescSetAttribute", self.desc, SCALES_A, ctypes.c_uint64(b))
            self.set("MatmulDescSetAttribute", self.desc, SCALES_B, ctypes.c_uint64(a))

    def candidates(self, asked):
        preference = made(self.library, "MatmulPreferenceCreate")
        self.set("MatmulPreferenceSetAttribute", preference, WORKSPACE_BYTES, ctypes.c_uint64(WORKSPACE))
        self.set("MatmulPreferenceSetAttribute", preference, REDUCTIONS, ctypes.c_uint32(REDUCTION_F32))
        found, array = ctypes.c_int(), (Candidate * asked)()
        try:
            self.library.call("MatmulAlgoGetHeuristic", self.library.handle, self.desc, self.b, self.a, self.out, self.out, preference, asked, array, ctypes.byref(found))
        finally:
            self.library.call("MatmulPreferenceDestroy", preference)
        return [c for c in array[:found.value] if c.state == OK and c.workspace_bytes <= WORKSPACE]

    def multiply(self, candidate, a, b, out, workspace, stream, scales=(0, 0)):
        """Addresses on the GPU; scales: of b and of a."""
        pointer, one, zero = ctypes.c_void_p, ctypes.c_float(1), ctypes.c_float(0)
        self.scale(*scales)
        self.library.call("Matmul", self.library.handle, self.desc, ctypes.byref(one), pointer(b), self.b, pointer(a), self.a, ctypes.byref(zero), pointer(out), self.out,
                          pointer(out), self.out, ctypes.byref(candidate.algorithm), pointer(workspace), ctypes.c_size_t(WORKSPACE), pointer(stream))
