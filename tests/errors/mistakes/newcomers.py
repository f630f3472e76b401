"""Mistakes that newcomers made who tried the language: calls of operations, builtins of Python, host code."""

# ruff: noqa: E501  a mistake is one line
from __future__ import annotations

from tests.errors.mistakes.kit import Mistake, in_kernel, in_program
from tests.errors.mistakes.launches import launch

KERNELS = [
    in_kernel('a shape as separate numbers', 'y = «tl.zeros(16, 16, tl.float32)»', 'compilation', 'zeros(shape, dtype)'),
    in_kernel('full without a dtype', 'y = «tl.full((BLOCK,), 0)»', 'compilation', 'full(shape, value, dtype)'),
    in_kernel('the value of full in front of its shape', 'y = «tl.full(0.0, (BLOCK,), tl.float32)»', 'not-constexpr', '//'),
    in_kernel('mask and value of store exchanged', '«tl.store(out + i, i < n, t)»', 'type-mismatch', 'mask != 0'),
    in_kernel('view to another size', 'y = «t.view(4, 4, 4)»', 'shape-mismatch', '[4, 4, 4] has 64'),
    in_kernel('an axis in front of the first', 'y = t.sum(axis=«-2»)', 'invalid-argument', 'counted from 0'),
    in_kernel('half of torch', 'y = «t.half»()', 'unknown-name', '.to(tl.float16)'),
    in_kernel('an extent computed of a run-time number', 'y = «tl.arange(0, n // 2)»', 'not-constexpr', 'n: tl.constexpr'),
    in_kernel('dot of four tiles', 'a = tl.zeros((16, 16), tl.float32)\ny = «tl.dot(a, a, a, a)»', 'not-constexpr', 'compute it from'),
    in_kernel('dot with trans_b', 'a = tl.zeros((16, 16), tl.float32)\ny = «tl.dot(a, a, trans_b=True)»', 'compilation', 'its arguments are'),
    in_kernel('program_id of a name', "y = tl.program_id(«'x'»)", 'invalid-argument', '//'),
    in_kernel('program_id without an axis', 'y = «tl.program_id()»', 'compilation', 'program_id(axis)'),
    in_kernel('num_programs without an axis', 'y = «tl.num_programs()»', 'compilation', 'num_programs(axis)'),
    in_kernel('a sort along the first dimension', 'y = «tl.sort(t[:, None], 0)»', 'static-assert', 'tl.trans(x)'),
    in_kernel('cdiv of a float', 'y = «tl.cdiv(f, 2)»', 'type-mismatch', '//'),
    in_kernel('a range of a quotient', 'for j in «range(n / 4)»:\n    t += 1', 'type-mismatch', '.to(tl.int32)'),
    in_kernel('clamp with one bound', 'y = «tl.clamp(t, 0)»', 'compilation', 'clamp(x, min, max'),
    in_kernel('sigmoid of int', 'y = «tl.sigmoid(i)»', 'type-mismatch', 'x.to(tl.float32)'),
    in_kernel('softmax over no dimension', 'a = tl.zeros((16, 16), tl.float32)\ny = «tl.softmax(a, dim=3)»', 'invalid-argument', 'counted from 0'),
    in_kernel('a reduction over a third dimension', 'a = tl.zeros((16, 16), tl.float32)\ny = tl.sum(a, «2»)', 'invalid-argument', 'counted from 0'),
    in_kernel('where of one value', 'y = «tl.where(True, 1.0)»', 'compilation', 'where(condition, x, y)'),
    in_kernel('a mask by & without parentheses', '«y = tl.load(x + i, mask=i >= 0 & i < n)»', 'warning', 'parentheses around each'),
    in_kernel('a formatted string', "tl.device_print('x = %d', n); y = «'%d' % n»", 'type-mismatch', 'operands are tensors and numbers'),
    in_kernel('del', '«del t»', 'unsupported-syntax', 'remove the statement'),
    in_kernel('else of while with break', 'while n > 0:\n    n -= 1\n    break\nelse:\n    «pass»', 'unsupported-syntax', 'behind the loop'),
    in_kernel('a string for a pointer type', "y = x.to(«'*fp16'»)", 'invalid-argument', 'tl.float32'),
    in_kernel('compare-and-swap of an int among floats', '«tl.atomic_cas(out, 0.0, 1)»', 'type-mismatch', '.to(...)'),
    in_kernel('load of a tuple of pointers', 'y = tl.load(«(x + i, out + i)»)', 'type-mismatch', 'x + offsets'),
    in_kernel('a shift by a negative number', '«y = i >> -1»', 'warning', 'is undefined'),
    in_kernel('a shift by more than the width', '«y = i << 40»', 'warning', 'is undefined'),
    in_kernel('rand with a seed of float', 'y = «tl.rand(f, i)»', 'static-assert', 'rand(seed, offset'),
    in_kernel('rand without offsets', 'y = «tl.rand(3)»', 'compilation', 'rand(seed, offset'),
    in_kernel('randn with a tile for a seed', 'y = «tl.randn(t, i)»', 'static-assert', 'randn(seed, offset'),
    in_kernel('join of three', 'y = «tl.join(t, t, t)»', 'compilation', 'join(a, b)'),
    in_kernel('split into three', '«p, q, r» = tl.split(tl.join(t, t))', 'compilation', 'give 2 names'),
    in_kernel('interleave of different shapes', 'y = «tl.interleave(t, tl.zeros((8,), tl.float32))»', 'shape-mismatch', '[16] and [8]'),
    in_kernel('a transposed operand by an argument', 'a = tl.zeros((16, 16), tl.float32)\ny = «tl.dot(a, a, trans_b=True)»', 'compilation', 'tl.trans(b)'),
    in_kernel('flip over no dimension', 'a = tl.zeros((16, 16), tl.float32)\ny = «tl.flip(a, 5)»', 'invalid-argument', 'flip(x, dim=None)'),
    in_kernel('sort with a misspelt direction', 'y = «tl.sort(t, decending=True)»', 'compilation', 'descending'),
    in_kernel('cumsum with a misspelt direction', 'y = «tl.cumsum(t, 0, reversed=True)»', 'compilation', 'reverse'),
    in_kernel('a scan by a lambda', 'y = tl.associative_scan(t, 0, «lambda p, q: p + q»)', 'unsupported-syntax', '@tessera.jit'),
    in_kernel('a shape of constexpr(n)', 'y = «tl.zeros((tl.constexpr(n),), tl.float32)»', 'not-constexpr', 'annotate the parameter'),
    in_kernel('a dtype of 8 bits by half of its name', 'y = t.to(«tl.float8e4»)', 'unknown-name', 'tl.float8e4nv'),
    in_kernel("torch's name of a dtype of 8 bits", 'y = t.to(«tl.float8_e4m3fn»)', 'unknown-name', 'tl.float8e4nv'),
    in_kernel('bfloat16 by its short name', 'y = t.to(«tl.bf16»)', 'unknown-name', 'tl.bfloat16'),
    in_kernel('int32 by its short name', 'y = t.to(«tl.i32»)', 'unknown-name', 'tl.int32'),
    in_kernel('a descriptor of less than 16 bytes', 'd = tl.make_tensor_descriptor(out, (16,), (1,), «(1,)»)\nd.store([0], t)', 'shape-mismatch', '16 bytes'),
    in_kernel('divmod', 'y = «divmod»(n, 4)', 'unknown-name', 'x // y'),
    in_kernel('reversed', 'for j in «reversed»(range(4)):\n    t += 1', 'unknown-name', 'xs[::-1]'),
    in_kernel('map', 'y = «map»(double, (1, 2))', 'unknown-name', 'write a list comprehension'),
    in_kernel('type of a value', 'y = «type»(t)', 'unknown-name', 'x.dtype'),
    in_kernel('str of a value', 'y = «str»(n)', 'unknown-name', 'tl.device_print'),
    in_kernel('a row of a tile', 'a = tl.zeros((16, 16), tl.float32)\ny = «a[0, :]»', 'unsupported-syntax', 'tl.gather'),
    in_kernel('an index with an ellipsis', 'a = tl.zeros((16, 16), tl.float32)\ny = «a[..., None, 0]»', 'unsupported-syntax', 'tl.gather'),
    in_kernel('float32 of NumPy', 'y = «np.float32(n)»', 'not-constexpr', '.to(tl.float32)'),
    in_kernel('a text with a value', "y = f'{«n»}'", 'not-constexpr', 'tl.device_print'),
    in_kernel('a range of three arguments for a tile', 'y = «tl.arange(0, 16, 2)»', 'compilation', 'arange(start, end)'),
    in_kernel('a descriptor with a mask', 'd = tl.make_tensor_descriptor(x, (16,), (1,), (16,))\ny = «d.load([0], mask=i < n)»', 'compilation', 'pads what lies outside'),
    in_kernel('a descriptor with too many offsets', 'd = tl.make_tensor_descriptor(x, (16,), (1,), (16,))\ny = d.load(«[0, 0]»)', 'shape-mismatch', 'one offset'),
    in_kernel('a shape that is called', 'y = «t.shape(0)»', 'type-mismatch', 'only functions are called'),
    in_kernel('a step of 0', 'for j in «range(0, n, 0)»:\n    t += 1', 'type-mismatch', 'BLOCK'),
    in_kernel('a tile unpacked', '«a, b» = t', 'compilation', 'only tuples are unpacked'),
    in_kernel('the largest of more than there are', 'y = «tl.topk(t, 32)»', 'static-assert', 'topk(x, k'),
    in_kernel('a value in a tuple', 'y = «n in (1, 2)»', 'unsupported-syntax', 'compare with each element'),
    in_kernel('a semantic of atomics, misspelt', "tl.atomic_add(out, 1.0, sem=«'relax'»)", 'invalid-argument', 'relaxed'),
    in_kernel('print with the end of Python', "«print(t, end='')»", 'type-mismatch', 'print("x = ", x)'),
]  # fmt: skip

AGGREGATE = """\
@tessera.aggregate
class Pair:
    a: tl.tensor


@tessera.jit
def k(x):
    {body}
    tl.store(x, 1.0)


k[(1,)](x)"""


def in_aggregate(title: str, body: str, code: str, remedy: str) -> Mistake:
    return in_program(title, AGGREGATE.format(body=body), code, remedy)


HOST = [
    in_aggregate('an aggregate without a field', 'v = «Pair()»', 'compilation', 'each field'),
    in_aggregate('a number for a field that is a tensor', 'v = «Pair(3)»', 'compilation', 'tl.to_tensor'),
    in_aggregate('an aggregate that is changed', 'v = Pair(tl.load(x)); «v.a» = 3', 'compilation', '`Pair(...)`'),
    in_aggregate('an unknown field of an aggregate', 'v = Pair(tl.load(x)); y = «v.b»', 'unknown-name', 'there is a'),
    in_program('any number of arguments', '@tessera.jit\ndef k(*xs):\n    tl.store(xs[0], 1.0)\n\n\n«k[(1,)](x, out)»', 'unsupported-syntax', 'a tuple'),
    in_program('a kernel that is a method', 'class A:\n    @tessera.jit\n    def k(self, x):\n        tl.store(x, 1.0)\n\n\n«A().k[(1,)](x)»', 'launch-arguments', 'no method'),
    launch('a tracer of JAX', 'class DynamicJaxprTracer:\n    pass\n\n\n«add[(1,)](DynamicJaxprTracer(), out, 16, BLOCK=16)»', 'argument-type', 'jax.pure_callback'),
    launch('a sum on the host', '«tl.sum(x)»', 'host-only', 'is for kernels'),
    launch('a block of no elements', '«tessera.cdiv(16, 0)»', 'ZeroDivisionError', '1 or more'),
    launch('the next power of a quotient', '«tessera.next_power_of_2(17 / 2)»', 'TypeError', '//'),
    launch('a text for the type of a warmup', "«add.warmup('fp32', out, 16, BLOCK=16, grid=(1,))»", 'argument-type', 'pass a tensor'),
    launch('dates for an array', "«add[(1,)](np.zeros(3, 'datetime64[s]'), out, 16, BLOCK=16)»", 'argument-type', 'x.view'),
    launch('a kernel compiled without types', '«tessera.compile(add)»', 'compilation', 'ASTSource'),
    launch('a grid as a keyword', '«add[(1,)](x, out, 16, BLOCK=16, grid=(1,))»', 'unknown-option', 'kernel[grid]'),
    launch('threads of a block', '«add[(1,)](x, out, 16, BLOCK=16, threads=128)»', 'unknown-option', 'num_warps'),
    launch('a grid of four dimensions in an array', '«add[np.array([1, 2, 3, 4])](x, out, 16, BLOCK=16)»', 'launch', '1 to 3'),
    launch('a grid that is not a number', "«add[(float('nan'),)](x, out, 16, BLOCK=16)»", 'launch', 'tessera.cdiv'),
    launch('a grid function of two parameters', '«add[lambda a, b: (1,)](x, out, 16, BLOCK=16)»', 'TypeError', 'lambda args'),
    launch('a misspelt function of tessera', '«tessera.cdv(16, 4)»', 'AttributeError', '`cdiv`'),
    launch('warmup without a grid', '«add.warmup(x, out, 16, BLOCK=16)»', 'TypeError', 'grid=(8,)'),
    launch('explain without a grid', '«add.explain(x, out, 16, BLOCK=16)»', 'TypeError', 'grid=(8,)'),
    launch('bytes for an argument', "«add[(1,)](b'abc', out, 16, BLOCK=16)»", 'argument-type', 'tl.constexpr'),
    launch('a dtype of NumPy for an argument', '«add[(1,)](np.float32, out, 16, BLOCK=16)»', 'argument-type', 'tl.float32'),
    launch('a function for an argument', '«add[(1,)](len, out, 16, BLOCK=16)»', 'argument-type', 'tl.constexpr'),
    launch('stages as a string', "«add[(1,)](x, out, 16, BLOCK=16, num_stages='3')»", 'launch-option', 'give an int'),
    launch('negative registers', '«add[(1,)](x, out, 16, BLOCK=16, maxnreg=-5)»', 'launch-option', 'maxnreg'),
    launch('three CTAs of a cluster', '«add[(1,)](x, out, 16, BLOCK=16, num_ctas=3)»', 'launch-option', 'num_ctas'),
    launch('autotune without a key', "«tessera.autotune([tessera.Config({'BLOCK': 16})])(add)»", 'TypeError', 'configs, key'),
    launch('a config without a dictionary', '«tessera.Config(BLOCK=16)»', 'unknown-keyword', 'kwargs'),
    launch('a config with too many arguments', "«tessera.Config({'BLOCK': 16}, 4, 3, 1, None, None, None, 8)»", 'TypeError', 'num_warps, num_stages'),
    launch('a misspelt key of prune_configs_by', "«tessera.autotune([tessera.Config({'BLOCK': 16})], key=['n'], prune_configs_by={'early_prune': 1})(add)»", 'unknown-keyword', 'early_config_prune'),
    launch('a misspelt option of autotune', "«tessera.autotune([tessera.Config({'BLOCK': 16})], key=['n'], warmups=3)(add)»", 'unknown-keyword', '`warmup`'),
    launch('heuristics in a list', "«tessera.heuristics([('BLOCK', 16)])(add)»", 'tuning-arguments', 'lambda args'),
    launch('a heuristic without a parameter', "h = tessera.heuristics({'BLOCK': lambda: 16})(add)\n«h[(1,)](x, out, 16)»", 'TypeError', 'lambda args'),
    launch('do_bench of a result', '«tessera.testing.do_bench(3)»', 'TypeError', 'lambda: kernel[grid]'),
    launch('a misspelt level of asm', "kernel = add[(1,)](x, out, 16, BLOCK=16)\n«kernel.asm['lliir']»", 'KeyError', '`llir`'),
    launch('PTX of a kernel for the CPU', "kernel = add[(1,)](x, out, 16, BLOCK=16)\n«kernel.asm['ptx']»", 'KeyError', 'llir'),
]  # fmt: skip
