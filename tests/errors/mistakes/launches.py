"""Mistakes of host code: launches, arguments, grids, options, decorators and tuning."""

# ruff: noqa: E501  a mistake is one line
from __future__ import annotations

from tests.errors.mistakes.kit import Mistake, in_program

ADD = """
@tessera.jit
def add(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


"""


def launch(title: str, text: str, code: str, remedy: str) -> Mistake:
    return in_program(title, ADD + text, code, remedy)


def inside(title: str, place: str, text: str, code: str, remedy: str) -> Mistake:
    """A mistake of a launch that shows in the kernel, at `place`."""
    before, _, behind = ADD.partition(place)
    return in_program(title, f"{before}«{place}»{behind}{text}", code, remedy)


def tuned(title: str, arguments: str, launch: str, code: str, remedy: str) -> Mistake:
    """A mistake of tuning, at the decorator unless `launch` is marked."""
    decorated = f"tuned = tessera.autotune({arguments})(add)"
    decorated = decorated if "«" in launch else f"«{decorated}»"
    return in_program(title, f"{ADD}{decorated}\n{launch}", code, remedy)


CONFIGS = "[tessera.Config({'BLOCK': 8}), tessera.Config({'BLOCK': 16})], key=['n']"
RUN = "tuned[(1,)](x, out, 16)"

CASES = [
    launch("a call without a grid", "«add(x, out, 16, BLOCK=16)»", "host-only", "add[grid]"),
    launch("run without a grid", "«add.run(x, out, 16, BLOCK=16)»", "TypeError", "`kernel[(8,)](...)`"),
    launch("a trace without a grid", "«add.trace(x, out, 16, BLOCK=16)»", "TypeError", "`kernel.trace[(8,)](...)`"),
    launch("an operation on the host", "«tl.zeros((16,), tl.float32)»", "kernel-only", "@tessera.jit"),
    launch("a load on the host", "«tl.load(x)»", "kernel-only", "@tessera.jit"),
    launch("a misspelt meta-parameter", "«add[(1,)](x, out, 16, BLOKC=16)»", "launch-arguments", "`BLOCK`"),
    launch("a misspelt option", "«add[(1,)](x, out, 16, BLOCK=16, num_wraps=4)»", "unknown-option", "`num_warps`"),
    launch("an option that there is none", "«add[(1,)](x, out, 16, BLOCK=16, foo=4)»", "unknown-option", "num_warps"),
    launch("an option of AMD's back end", "«add[(1,)](x, out, 16, BLOCK=16, waves_per_eu=2)»", "unknown-option", "leave it out"),
    launch("a misspelt argument", "«add[(1,)](x, outt=out, n=16, BLOCK=16)»", "launch-arguments", "`out`"),
    launch("a missing argument", "«add[(1,)](x, out, BLOCK=16)»", "launch-arguments", "n"),
    launch("a missing meta-parameter", "«add[(1,)](x, out, 16)»", "launch-arguments", "BLOCK"),
    launch("too many arguments", "«add[(1,)](x, out, 16, 16, 3)»", "launch-arguments", "x, out, n, BLOCK"),
    launch("an argument given twice", "«add[(1,)](x, out, 16, n=16, BLOCK=16)»", "launch-arguments", "n"),
    launch("an empty grid", "«add[()](x, out, 16, BLOCK=16)»", "launch", "1 to 3"),
    launch("a grid of four dimensions", "«add[(1, 1, 1, 1)](x, out, 16, BLOCK=16)»", "launch", "1 to 3"),
    launch("a negative grid", "«add[(-1,)](x, out, 16, BLOCK=16)»", "launch", "tessera.cdiv"),
    launch("a float grid", "«add[(16 / 16,)](x, out, 16, BLOCK=16)»", "launch", "tessera.cdiv"),
    launch("no grid", "«add[None](x, out, 16, BLOCK=16)»", "launch", "tuple"),
    launch("a string for a grid", "«add['1'](x, out, 16, BLOCK=16)»", "launch", "tessera.cdiv"),
    launch("a grid function that returns nothing", "«add[lambda args: None](x, out, 16, BLOCK=16)»", "launch", "tuple"),
    launch("a grid function that returns a float", "«add[lambda args: (args['n'] / args['BLOCK'],)](x, out, 16, BLOCK=16)»", "launch", "tessera.cdiv"),
    launch("a grid function with a misspelt key", "«add[lambda args: (args['BLOKC'],)](x, out, 16, BLOCK=16)»", "KeyError", "`BLOCK`"),
    launch("a grid function without a parameter", "«add[lambda: (1,)](x, out, 16, BLOCK=16)»", "TypeError", "lambda args"),
    launch("a list of numbers for an array", "«add[(1,)]([1.0, 2.0], out, 16, BLOCK=16)»", "argument-type", "np.asarray"),
    launch("a string for an argument", "«add[(1,)]('x', out, 16, BLOCK=16)»", "argument-type", "constexpr"),
    launch("an object for an argument", "«add[(1,)](object(), out, 16, BLOCK=16)»", "argument-type", "constexpr"),
    launch("a dictionary for an argument", "«add[(1,)](x, out, {}, BLOCK=16)»", "argument-type", "constexpr"),
    launch("a complex number", "«add[(1,)](x, out, 1j, BLOCK=16)»", "argument-type", "float"),
    launch("an int beyond 64 bits", "«add[(1,)](x, out, 2**64, BLOCK=16)»", "argument-overflow", "n"),
    launch("a NumPy scalar beyond 64 bits, as a Python int", "«add[(1,)](x, out, -(2**63) - 1, BLOCK=16)»", "argument-overflow", "n"),
    inside("a kernel for an array", "x + i", "add[(1,)](add, out, 16, BLOCK=16)", "type-mismatch", "pass an array"),
    launch("a file of IR that does not exist", "«tessera.compile('none.tir')»", "FileNotFoundError", "TESSERA_KERNEL_DUMP=1"),
    launch("a string for a target", "«add.explain(x, out, 16, BLOCK=16, grid=(1,), target='sm_80')»", "launch-option", 'GPUTarget("cuda", 80, 32)'),
    in_program("an argument of 1, converted", "@tessera.jit\ndef k(out, step):\n    tl.store(out, «step.to»(tl.float32))\n\n\nk[(1,)](out, 1)\n", "unknown-name", "do_not_specialize=['step']"),
    inside("None for an array", "x + i", "add[(1,)](None, out, 16, BLOCK=16)", "type-mismatch", "`x`"),
    launch("an array of objects", "«add[(1,)](np.array([None] * 16), out, 16, BLOCK=16)»", "argument-type", "astype"),
    launch("an array of strings", "«add[(1,)](np.array(['a'] * 16), out, 16, BLOCK=16)»", "argument-type", "astype"),
    launch("an array of complex numbers", "«add[(1,)](np.zeros(16, np.complex64), out, 16, BLOCK=16)»", "argument-type", "view"),
    launch("an array of another machine's bytes", "«add[(1,)](x.astype('>f4'), out, 16, BLOCK=16)»", "argument-type", "newbyteorder"),
    launch("an array of dates", "«add[(1,)](np.zeros(16, 'datetime64[s]'), out, 16, BLOCK=16)»", "argument-type", "view"),
    launch("an array of another byte order", "«add[(1,)](np.zeros(16, '>f4'), out, 16, BLOCK=16)»", "argument-type", "astype"),
    launch("a transposed array", "«add[(1,)](np.zeros((4, 4), np.float32).T, out, 16, BLOCK=16)»", "warning", "ascontiguousarray"),
    launch("every second element", ADD.replace("+ 1", "+ 2") + "«add[(1,)](np.zeros(32, np.float32)[::2], out, 16, BLOCK=16)»", "warning", "ascontiguousarray"),
    launch("a reversed array", "«add[(1,)](x[::-1], out, 16, BLOCK=16)»", "strided-argument", "ascontiguousarray"),
    launch("a read-only array", "out.flags.writeable = False\n«add[(1,)](x, out, 16, BLOCK=16)»", "read-only-argument", "copy"),
    inside("an array of no dimension for a number", "i < n", "add[(1,)](x, out, np.array(16), BLOCK=16)", "type-mismatch", "int(x)"),
    inside("an array for a meta-parameter", "tl.program_id(0) * BLOCK", "add[(1,)](x, out, 16, BLOCK=np.array([16]))", "type-mismatch", "`BLOCK`"),
    inside("a string for a meta-parameter", "tl.program_id(0) * BLOCK", "add[(1,)](x, out, 16, BLOCK='16')", "type-mismatch", "`BLOCK`"),
    inside("None for a meta-parameter", "tl.program_id(0) * BLOCK", "add[(1,)](x, out, 16, BLOCK=None)", "type-mismatch", "`BLOCK`"),
    launch("warps that are no power of two", "«add[(1,)](x, out, 16, BLOCK=16, num_warps=3)»", "launch-option", "power of 2"),
    launch("warps as a float", "«add[(1,)](x, out, 16, BLOCK=16, num_warps=4.0)»", "launch-option", "int"),
    launch("no warps", "«add[(1,)](x, out, 16, BLOCK=16, num_warps=0)»", "launch-option", "power of 2"),
    launch("negative stages", "«add[(1,)](x, out, 16, BLOCK=16, num_stages=-1)»", "launch-option", "num_stages"),
    launch("a misspelt debug mode", "«add[(1,)](x, out, 16, BLOCK=16, debug='chekc')»", "launch-option", "check"),
    launch("the option stream", "«add[(1,)](x, out, 16, BLOCK=16, stream=0)»", "launch-option", "stream"),
    launch("compile of a kernel, not a source", "«tessera.compile(add)»", "compilation", "ASTSource"),
    launch("compile with an incomplete signature", "from tessera.compiler import ASTSource\n«tessera.compile(ASTSource(add, {'x': '*fp32'}))»", "compilation", "out"),
    launch("compile with a misspelt type", "from tessera.compiler import ASTSource\n«tessera.compile(ASTSource(add, {'x': '*fp33', 'out': '*fp32', 'n': 'i32'}, {'BLOCK': 16}))»", "compilation", "fp32"),
    launch("reinterpret of a number", "«tessera.reinterpret(3, tl.float16)»", "argument-type", "array"),
    launch("an unknown optimisation", "«tessera.knobs.compilation.disable = 'prefecth'»", "unknown-optimization", "prefetch"),
    launch("a kernel of a lambda", "«tessera.jit(lambda x: x)»", "no-source", "def"),
    launch("a kernel of a builtin", "«tessera.jit(len)»", "not-a-function", "def"),
    launch("a kernel of a class", "class K:\n    pass\n\n\n«tessera.jit(K)»", "not-a-function", "def"),
    launch("jit twice", "«tessera.jit(add)»", "not-a-function", "@jit"),
    launch("a misspelt option of jit", "«tessera.jit(do_not_specialise=['n'])»(add.fn)", "unknown-keyword", "do_not_specialize"),
    launch("an unknown name in do_not_specialize", "«tessera.jit(do_not_specialize=['m'])(add.fn)»", "warning", "n"),
    in_program("autotune below jit", "@tessera.jit\n«@tessera.autotune([], key=[])»\ndef k(x):\n    tl.store(x, 1.0)", "not-a-function", "@autotune, @heuristics, @jit"),
    in_program("heuristics of a function", "«@tessera.heuristics({'A': lambda args: 1})»\ndef k(x, A: tl.constexpr):\n    tl.store(x, 1.0)", "not-a-function", "@jit"),
    tuned("a config with an unknown key", "[tessera.Config({'BLOKC': 8}), tessera.Config({'BLOCK': 16})], key=['n']", f"«{RUN}»", "tuning-arguments", "`BLOCK`"),
    tuned("a dictionary for a config", "[{'BLOCK': 8}], key=['n']", RUN, "tuning-arguments", "tessera.Config"),
    tuned("a string for a key", "[tessera.Config({'BLOCK': 16})], key='size'", RUN, "tuning-arguments", "key=['size']"),
    tuned("a misspelt key", "[tessera.Config({'BLOCK': 16})], key=['m']", RUN, "warning", "n"),
    tuned("an argument that a config sets, too", CONFIGS, "«tuned[(1,)](x, out, 16, BLOCK=16)»", "tuning-arguments", "BLOCK"),
    tuned("a missing argument of a tuned kernel", CONFIGS, "«tuned[(1,)](x, out)»", "launch-arguments", "n"),
    tuned("a misspelt array to restore", CONFIGS + ", restore_value=['ouut']", RUN, "tuning-arguments", "out"),
    tuned("a misspelt argument of autotune", CONFIGS + ", restore_vale=['out']", RUN, "unknown-keyword", "restore_value"),
    in_program(
        "configs of which none works",
        ADD.replace("(0, BLOCK)", "(0, «BLOCK»)")
        + "tuned = tessera.autotune([tessera.Config({'BLOCK': 12}), tessera.Config({'BLOCK': 24})], key=['n'])(add)\n"
        + RUN,
        "invalid-argument", "next_power_of_2",
    ),
    tuned("a misspelt option of a config", "[tessera.Config({'BLOCK': 8}, num_wraps=4)], key=['n']", RUN, "unknown-keyword", "num_warps"),
    tuned("a prune function that leaves nothing", CONFIGS + ", prune_configs_by={'early_config_prune': lambda c, a, **k: []}", f"«{RUN}»", "autotuner", "at least one"),
    launch("a heuristic for a parameter that there is none", "«h = tessera.heuristics({'BLOKC': lambda args: 16})(add)»\nh[(1,)](x, out, 16)", "tuning-arguments", "`BLOCK`"),
    launch("a heuristic that reads a name that there is none", "«h = tessera.heuristics({'BLOCK': lambda args: args['m']})(add)»\nh[(1,)](x, out, 16)", "KeyError", "there are x, out, n"),
    launch("a heuristic that is no function", "«h = tessera.heuristics({'BLOCK': 16})(add)»\nh[(1,)](x, out, 16)", "tuning-arguments", "lambda args"),
    launch("an active device that there is none", "from tessera.runtime.driver import driver\n«driver.set_active('gpu')»", "launch", "cuda"),
    launch("a descriptor whose block is no power of two", "from tessera.tools.tensor_descriptor import TensorDescriptor\n«TensorDescriptor.from_tensor(x, [12])»", "descriptor", "the next one"),
    launch("a descriptor of a transposed array", "from tessera.tools.tensor_descriptor import TensorDescriptor\n«TensorDescriptor.from_tensor(np.zeros((16, 16), np.float32).T, [8, 8])»", "descriptor", "contiguous"),
    launch("a descriptor with a block of another rank", "from tessera.tools.tensor_descriptor import TensorDescriptor\n«TensorDescriptor.from_tensor(np.zeros((16, 16), np.float32), [8])»", "descriptor", "rank"),
]  # fmt: skip
