"""One example for each operation of the language: shown in docs/language.md with its result, run by the tests.

An example is the right side of `r = …` in a kernel that has set up

    i = tl.arange(0, 8)
    x = tl.load(X + i)              # -2, -1, -0.5, 0, 0.5, 1, 2, 3      (fp32)
    n = tl.load(N + i)              # 3, 1, 4, 1, 5, 9, 2, 6             (int32)
    a = tl.load(A + …)              # 16 x 16: (row + 2 column) % 5      (fp32)

or several lines whose last one sets r. `X`, `N`, `A` and the zeroed `Z` (int32) and `F` (fp32) are pointers.
"""

from __future__ import annotations

SETUP = """\
i = tl.arange(0, 8)
x = tl.load(X + i)
n = tl.load(N + i)
i16 = tl.arange(0, 16)
a = tl.load(A + i16[:, None] * 16 + i16[None, :])
"""

HELPERS = """\
@tessera.jit
def add(u, v):
    return u + v


@tessera.jit
def first_larger(value1, index1, value2, index2):
    take = (value1 > value2) | ((value1 == value2) & (index1 < index2))
    return tl.where(take, value1, value2), tl.where(take, index1, index2)


@tessera.jit
def root_or_zero(v):
    if v > 0:
        return tl.sqrt_rn(v)
    return 0.0
"""

_DESC = "d = tl.make_tensor_descriptor(A, [16, 16], [16, 1], [2, 8])\n"
_ROWS = "d = tl.make_tensor_descriptor(A, [16, 16], [16, 1], [1, 8])\n"

EXAMPLES: dict[str, str] = {
    # program model and creation
    "program_id": "tl.program_id(0)",
    "num_programs": "tl.num_programs(0)",
    "arange": "tl.arange(4, 8)",
    "full": "tl.full([2, 2], 7, tl.int32)",
    "zeros": "tl.zeros([4], tl.float32)",
    "zeros_like": "tl.zeros_like(x)",
    "to_tensor": "tl.to_tensor(5)",
    "cat": "tl.cat(i, n)",
    "cast": "tl.cast(x, tl.int32)",
    # shapes
    "reshape": "tl.reshape(i, 2, 4)",
    "view": "tl.view(tl.zeros([8], tl.int32), 2, 4)",
    "ravel": "tl.ravel(tl.reshape(i, 2, 4))",
    "expand_dims": "tl.expand_dims(i, 0)",
    "squeeze": "tl.squeeze(tl.reshape(i, 1, 8), 0)",
    "unsqueeze": "tl.unsqueeze(i, 1)",
    "broadcast": "u, v = tl.broadcast(i[:, None], tl.arange(0, 2)[None, :])\nr = u * 10 + v",
    "broadcast_to": "tl.broadcast_to(tl.arange(0, 2)[:, None], 2, 4)",
    "trans": "tl.trans(tl.reshape(i, 2, 4))",
    "permute": "tl.permute(tl.reshape(i, 2, 2, 2), 2, 0, 1)",
    "join": "tl.join(i, n)",
    "split": "u, v = tl.split(tl.reshape(i, 4, 2))\nr = u * v",
    "interleave": "tl.interleave(tl.arange(0, 4), tl.arange(4, 8))",
    "flip": "tl.flip(n, 0)",
    "item": "tl.item(tl.full([1], 3, tl.int32))",
    "swizzle2d": "u, v = tl.swizzle2d(i // 4, i % 4, 2, 4, 2)\nr = u * 10 + v",
    # products
    "dot": 'tl.sum(tl.dot(a, a, input_precision="ieee"), 1)',
    "dot_scaled": "one = tl.full([16, 32], 0x38, tl.uint8)\n"
    "s = tl.full([16, 1], 128, tl.uint8)\n"
    'r = tl.max(tl.dot_scaled(one, s, "e4m3", tl.trans(one), None, "e4m3"), 1)',
    # memory
    "load": "tl.load(X + i, mask=i < 6, other=-1.0)",
    "store": "tl.store(Z + i, n, mask=i > 3)\nr = tl.load(Z + i)",
    "make_block_ptr": "p = tl.make_block_ptr(A, [16, 16], [16, 1], [14, 0], [4, 4], [1, 0])\n"
    'r = tl.load(p, boundary_check=(0,), padding_option="zero")',
    "advance": "p = tl.make_block_ptr(A, [16, 16], [16, 1], [0, 0], [2, 4], [1, 0])\n"
    "r = tl.load(tl.advance(p, [3, 4]))",
    "make_tensor_descriptor": _DESC + "r = d.load([14, 12])",
    "load_tensor_descriptor": _DESC + "r = tl.load_tensor_descriptor(d, [1, 2])",
    "store_tensor_descriptor": "d = tl.make_tensor_descriptor(Z, [2, 4], [4, 1], [2, 4])\n"
    "tl.store_tensor_descriptor(d, [0, 1], tl.reshape(n, 2, 4))\nr = d.load([0, 0])",
    "descriptor_gather": _ROWS + "r = d.gather(n, 0)",
    "descriptor_scatter": "d = tl.make_tensor_descriptor(F, [16, 8], [8, 1], [1, 8])\n"
    "d.scatter(tl.broadcast_to(x[:, None], 8, 8), i * 2, 0)\nr = tl.load(F + i * 16)",
    "atomic_add": "old = tl.atomic_add(Z + i % 2, n)\nr = tl.load(Z + i)",
    "atomic_max": "tl.atomic_max(Z + i, n - 3)\nr = tl.load(Z + i)",
    "atomic_min": "tl.atomic_min(Z + i, n - 3)\nr = tl.load(Z + i)",
    "atomic_and": "tl.store(Z + i, i)\ntl.atomic_and(Z + i, n)\nr = tl.load(Z + i)",
    "atomic_or": "tl.atomic_or(Z + i, n)\nr = tl.load(Z + i)",
    "atomic_xor": "tl.store(Z + i, i)\ntl.atomic_xor(Z + i, n)\nr = tl.load(Z + i)",
    "atomic_xchg": "r = tl.atomic_xchg(Z + i, n) + tl.load(Z + i)",
    "atomic_cas": "tl.atomic_cas(Z + i, i % 2, n)\nr = tl.load(Z + i)",
    "atomic_load": "tl.atomic_load(N + i)",
    "atomic_store": "tl.atomic_store(Z + i, n)\nr = tl.load(Z + i)",
    "atomic_poll": "tl.atomic_poll(N, 3, timeout_ns=1000)",
    # arithmetic
    "where": "tl.where(x > 0, x, 0.0)",
    "add": "tl.add(x, n)",
    "sub": "tl.sub(x, 1)",
    "mul": "tl.mul(x, x)",
    "minimum": "tl.minimum(x, 1.0)",
    "maximum": "tl.maximum(x, 0.0)",
    "clamp": "tl.clamp(x, -1.0, 1.0)",
    "cdiv": "tl.cdiv(n, 4)",
    "expect_zero": "tl.expect_zero(x - x, i < 8)",
    "abs": "tl.abs(x)",
    "exp": "tl.exp(x)",
    "exp2": "tl.exp2(x)",
    "log": "tl.log(n.to(tl.float32))",
    "log2": "tl.log2(n.to(tl.float32))",
    "sin": "tl.sin(x)",
    "cos": "tl.cos(x)",
    "sqrt": "tl.sqrt(n.to(tl.float32))",
    "sqrt_rn": "tl.sqrt_rn(n.to(tl.float32))",
    "rsqrt": "tl.rsqrt(n.to(tl.float32))",
    "erf": "tl.erf(x)",
    "floor": "tl.floor(x)",
    "ceil": "tl.ceil(x)",
    "fma": "tl.fma(x, x, 1.0)",
    "fdiv": "tl.fdiv(x, 3.0, ieee_rounding=True)",
    "div_rn": "tl.div_rn(x, 3.0)",
    "umulhi": "tl.umulhi(n << 30, 8)",
    "sigmoid": "tl.sigmoid(x)",
    "softmax": "tl.softmax(x)",
    # reductions, scans, order
    "reduce": "tl.reduce(n, 0, add)",
    "sum": "tl.sum(tl.reshape(n, 2, 4), axis=1)",
    "max": "tl.max(x)",
    "min": "tl.min(x)",
    "argmax": "tl.argmax(n, 0)",
    "argmin": "tl.argmin(n, 0)",
    "xor_sum": "tl.xor_sum(n)",
    "reduce_or": "tl.reduce_or(n, 0)",
    "associative_scan": "tl.associative_scan((n, i), 0, first_larger)[1]",
    "cumsum": "tl.cumsum(n)",
    "cumprod": "tl.cumprod(n)",
    "sort": "tl.sort(n)",
    "topk": "tl.topk(n, 4)",
    "bitonic_merge": "tl.bitonic_merge(tl.where(i < 4, i * 2, 15 - i * 2))",
    "histogram": "tl.histogram(n, 8)",
    "gather": "tl.gather(n, 7 - i, 0)",
    # random
    "philox": "z = tl.zeros([8], tl.uint32)\nr = tl.philox(42, i.to(tl.uint32), z, z, z)[0] % 1000",
    "philox_impl": "z = tl.zeros([8], tl.uint32)\nr = tl.philox_impl(i.to(tl.uint32), z, z, z, z, z)[0] % 1000",
    "randint": "tl.randint(42, i) % 1000",
    "randint4x": "tl.randint4x(42, i)[3] % 1000",
    "rand": "tl.rand(42, i)",
    "rand4x": "tl.rand4x(42, i)[1]",
    "randn": "tl.randn(42, i)",
    "randn4x": "tl.randn4x(42, i)[1]",
    "uint_to_uniform_float": "tl.uint_to_uniform_float(n.to(tl.uint32) << 28)",
    "pair_uniform_to_normal": "u = tl.rand(42, i)\nr = tl.pair_uniform_to_normal(u, u)[0]",
    # hints, debugging, mapping
    "multiple_of": "tl.multiple_of(i, 8)",
    "max_contiguous": "tl.max_contiguous(i, 8)",
    "max_constancy": "tl.max_constancy(i // 4, 4)",
    "assume": "tl.assume(tl.num_programs(0) > 0)\nr = i",
    "debug_barrier": "tl.store(Z + i, i)\ntl.debug_barrier()\nr = tl.load(Z + 7 - i)",
    "device_assert": 'tl.device_assert(n > 0, "positive")\nr = n',
    "static_assert": "tl.static_assert(x.dtype == tl.float32)\nr = x",
    "range": "r = 0\nfor k in tl.range(0, 10, num_stages=2):\n    r += k",
    "static_range": "r = tl.zeros_like(n)\nfor k in tl.static_range(3):\n    r += n << k",
    "condition": "r = 1\nwhile tl.condition(r < 100):\n    r *= 3",
    "map_elementwise": "tl.map_elementwise(root_or_zero, x)",
}


def body(name: str) -> str:
    """The statements of an example, which set `r`."""
    text = EXAMPLES[name]
    return text if "\n" in text or text.startswith("r = ") else f"r = {text}"


# Largest error in ulp, as measured with tests/lang/test_libdevice.py on 1024 arguments each (the tests hold the bounds
# of the docstrings): fp32 on CPU and GPU, fp64 on CPU and GPU. GPU code ran in the simulator, whose hardware functions
# are exact: ex2.approx, rsqrt.approx and the like add up to 2 ulp in fp32.
ACCURACY = """\
exp 0.99 1.15 0.50 0.72
exp2 0.89 0.95 0.50 0.80
log 0.77 0.77 0.50 1.01
log2 0.85 0.85 0.52 1.21
sin 1.15 1.17 0.50 1.19
cos 1.18 1.18 0.50 1.20
tan 0.65 0.50 0.50 2.14
tanh 0.83 0.85 1.86 2.45
erf 0.67 2.08 0.82 1.31
rsqrt 1.25 1.25 1.28 1.28
sqrt_rn 0.50 0.50 0.50 0.50
exp10 0.50 0.50 1.54 0.89
expm1 0.71 0.50 0.73 1.36
log10 1.59 0.85 1.46 1.46
log1p 0.74 0.50 0.68 1.78
asin 0.72 0.50 0.50 1.99
acos 0.77 0.50 0.50 2.08
atan 0.71 0.50 0.50 1.43
sinh 1.05 0.50 0.98 1.97
cosh 0.88 0.50 0.89 2.24
erfc 0.50 0.50 2.55 2.81
erfcx 0.50 0.50 1.65 1.65
erfinv 0.50 0.50 1.73 1.73
erfcinv 0.50 0.50 1.89 1.77
normcdf 0.50 0.50 2.52 2.52
normcdfinv 0.50 0.50 3.47 3.47
lgamma 0.50 0.50 3.82 3.82
tgamma 0.50 0.50 4.07 4.40
cbrt 0.50 0.50 0.50 0.50
rcbrt 0.50 0.50 1.40 1.40
asinh 0.50 0.50 1.11 2.19
acosh 0.50 0.50 0.94 2.00
atanh 0.50 0.50 1.08 2.00
sinpi 0.50 0.50 0.97 1.44
cospi 0.50 0.50 0.94 1.34
cyl_bessel_i0 0.50 0.50 3.61 3.61
cyl_bessel_i1 0.50 0.50 2.57 2.86
tl.exp 0.77 57 0.50 0.72
"""
