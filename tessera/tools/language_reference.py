"""Writes docs/language.md: every operation of the language with signature, docstring, an example and its result.

    python3 -m tessera.tools.language_reference [--check] [docs/language.md]

`--check` exits with 1 if the file is not what would be written. Results come from the interpreter.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import tessera.language as tl
from tessera.runtime.driver import driver
from tessera.tools.language_examples import ACCURACY, EXAMPLES, HELPERS, SETUP, body

SECTIONS: dict[str, tuple[str, ...]] = {
    "Program model and creation": (
        "program_id", "num_programs", "arange", "full", "zeros", "zeros_like", "to_tensor", "cat", "cast",
    ),
    "Shapes": (
        "reshape", "view", "ravel", "expand_dims", "squeeze", "unsqueeze", "broadcast", "broadcast_to", "trans",
        "permute", "join", "split", "interleave", "flip", "item", "swizzle2d",
    ),
    "Products": ("dot", "dot_scaled"),
    "Memory": ("load", "store", "make_block_ptr", "advance"),
    "Tensor descriptors": (
        "make_tensor_descriptor", "load_tensor_descriptor", "store_tensor_descriptor", "descriptor_gather",
        "descriptor_scatter",
    ),
    "Atomics": (
        "atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor", "atomic_xchg", "atomic_cas",
        "atomic_load", "atomic_store", "atomic_poll",
    ),
    "Arithmetic": (
        "where", "add", "sub", "mul", "minimum", "maximum", "clamp", "cdiv", "expect_zero", "abs", "exp", "exp2", "log",
        "log2", "sin", "cos", "sqrt", "sqrt_rn", "rsqrt", "erf", "floor", "ceil", "fma", "fdiv", "div_rn", "umulhi",
        "sigmoid", "softmax",
    ),
    "Reductions and scans": (
        "reduce", "sum", "max", "min", "argmax", "argmin", "xor_sum", "reduce_or", "associative_scan", "cumsum",
        "cumprod",
    ),
    "Order": ("sort", "topk", "bitonic_merge", "histogram", "gather"),
    "Random numbers": (
        "philox", "philox_impl", "randint", "randint4x", "rand", "rand4x", "randn", "randn4x", "uint_to_uniform_float",
        "pair_uniform_to_normal",
    ),
    "Loops and hints": (
        "range", "static_range", "condition", "multiple_of", "max_contiguous", "max_constancy", "assume",
        "debug_barrier",
    ),
    "Debugging": ("device_print", "device_assert", "static_print", "static_assert"),
    "Functions of elements": ("map_elementwise", "inline_asm_elementwise"),
}  # fmt: skip
# They print, or need a GPU.
WITHOUT_EXAMPLE = (
    "device_print",
    "static_print",
    "inline_asm_elementwise",
)

_KERNEL = """\
import tessera
import tessera.language as tl


{helpers}

@tessera.jit
def kernel(X, N, A, Z, F, OUT):
{setup}{body}
    if len(r.shape) == 0:
        tl.store(OUT, r.to(tl.float64))
    else:
        tl.store(OUT + tl.arange(0, r.numel), tl.reshape(r, r.numel).to(tl.float64))
"""


def source(name: str) -> str:
    """The module text of an example's kernel, which stores the elements of `r` at OUT."""
    indent = "    "
    return _KERNEL.format(
        helpers=HELPERS,
        setup="".join(indent + line + "\n" for line in SETUP.splitlines()),
        body="\n".join(indent + line for line in body(name).splitlines()),
    )


def inputs() -> list[np.ndarray]:
    """X, N, A, Z, F and OUT of the examples."""
    rows = np.arange(16)
    return [
        np.array([-2, -1, -0.5, 0, 0.5, 1, 2, 3], np.float32),
        np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32),
        ((rows[:, None] + 2 * rows[None, :]) % 5).astype(np.float32),
        np.zeros(64, np.int32),
        np.zeros(256, np.float32),
        np.full(256, np.nan),
    ]


def run(name: str, target: str = "interpreter") -> np.ndarray:
    """The elements of the example's result, as fp64."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"example_{name}.py"
        path.write_text(source(name), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        args = inputs()
        driver.set_active(target)
        try:
            module.kernel[(1,)](*args)
        finally:
            driver.reset_active()
    out = args[-1]
    return (
        out[: int(np.flatnonzero(~np.isnan(out))[-1]) + 1] if not np.isnan(out).all() else out[:0]
    )


def operation(name: str) -> Any:
    """The object behind a name; methods of descriptors too."""
    found = getattr(tl, name, None)
    return found if found is not None else getattr(tl.core.memory, name)


def _shown(values: np.ndarray) -> str:
    texts = [f"{v:.6g}" for v in values[:16]]
    return ", ".join(texts) + (", …" if len(values) > 16 else "")


def entry(name: str) -> list[str]:
    """The lines of one operation."""
    fn = operation(name)
    title = name.replace("descriptor_", "descriptor.") if name.startswith("descriptor_") else name
    signature = str(getattr(fn, "signature", None) or inspect.signature(fn))
    signature = re.sub(r" -> '?Any'?$|: '?Any'?", "", signature).replace("'constexpr'", "constexpr")
    lines = [f"### {title}", "", f"`{title}{signature}`", "", inspect.getdoc(fn) or "", ""]
    if name in EXAMPLES:
        lines += ["```python", body(name), f"# r: {_shown(run(name))}", "```", ""]
    return lines


def libdevice() -> list[str]:
    """A table of the mathematical functions."""
    module = tl.extra.libdevice
    lines = ["| function | what it computes |", "|---|---|"]
    functions: dict[str, Any] = dict(sorted(vars(module).items()))
    for name, x in functions.items():
        public = not name.startswith("_") and callable(x) and hasattr(x, "signature")
        if public and name not in ("typed", "where", "library", "zeros_like"):
            function: Any = x
            names = ", ".join(function.signature.parameters)
            doc = " ".join((inspect.getdoc(x) or "").split())
            lines.append(f"| `{name}({names})` | {doc.replace('|', chr(92) + '|')} |")
    return lines


def accuracy() -> list[str]:
    """A table of measured errors."""
    lines = [
        "Largest measured error in ulp. Names without `tl.` are those of `tl.extra.libdevice`; `tl.exp` in fp32 is",
        "quick: on GPUs its error grows with |x|. GPU code was measured in a simulator whose hardware functions are",
        "exact: `ex2.approx`, `rsqrt.approx` and their like add up to 2 ulp in fp32.", "",
        "| function | fp32 CPU | fp32 GPU | fp64 CPU | fp64 GPU |", "|---|---|---|---|---|",
    ]  # fmt: skip
    return lines + ["| " + " | ".join(row.split()) + " |" for row in ACCURACY.splitlines()]


def document() -> str:
    """The text of docs/language.md."""
    lines = [
        "# The language", "",
        "Written by `python3 -m tessera.tools.language_reference` from the docstrings; results are the interpreter's.",
        "Every example runs in the tests on interpreter and CPU. It is the body of a kernel that begins with", "",
        "```python", *SETUP.splitlines(),
        "# x: -2, -1, -0.5, 0, 0.5, 1, 2, 3   n: 3, 1, 4, 1, 5, 9, 2, 6   a: (row + 2 column) % 5", "```", "",
        "and with these functions beside it:", "", "```python", HELPERS.rstrip(), "```", "",
    ]  # fmt: skip
    for title, names in SECTIONS.items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += entry(name)
    lines += ["## Accuracy", "", *accuracy(), ""]
    lines += ["## libdevice", "", inspect.getdoc(tl.extra.libdevice) or "", "", *libdevice(), ""]
    return "\n".join(lines)


def main(args: list[str]) -> int:
    check = "--check" in args
    paths = [a for a in args if not a.startswith("--")]
    path = Path(paths[0] if paths else "docs/language.md")
    text = document()
    if check:
        return 0 if path.exists() and path.read_text(encoding="utf-8") == text else 1
    path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
