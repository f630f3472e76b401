"""Writes docs/language/: every operation of the language with signature, docstring, an example and its result, a page
for each kind of operation (`pages.py`). Results come from the interpreter.
"""

from __future__ import annotations

import inspect
import re
from operator import attrgetter
from typing import Any

import tessera.language as tl
from tessera.language.values import DESCRIPTOR_METHODS, METHODS
from tessera.tools.error_catalogue import catalogue
from tessera.tools.language_examples import HELPERS, SETUP, parsed

SECTIONS: dict[str, tuple[str, ...]] = {
    "Program model and creation": (
        "program_id", "num_programs", "arange", "full", "zeros", "zeros_like", "to_tensor", "cat", "cast",
    ),
    "Shapes": (
        "reshape", "view", "ravel", "expand_dims", "squeeze", "unsqueeze", "broadcast", "broadcast_to", "trans",
        "permute", "join", "split", "interleave", "flip", "item", "swizzle2d",
    ),
    "Matrix products": ("dot", "dot_scaled"),
    "Memory": ("load", "store", "make_block_ptr", "advance"),
    "Tensor descriptors": (
        "make_tensor_descriptor", "load_tensor_descriptor", "store_tensor_descriptor", "descriptor.gather",
        "descriptor.scatter", "descriptor.atomic_add", "descriptor.atomic_min", "descriptor.atomic_max",
        "descriptor.atomic_and", "descriptor.atomic_or", "descriptor.atomic_xor",
    ),
    "Atomics": (
        "atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor", "atomic_xchg", "atomic_cas",
        "atomic_load", "atomic_store", "atomic_poll",
    ),
    "Arithmetic": (
        "where", "add", "sub", "mul", "minimum", "maximum", "clamp", "cdiv", "expect_zero", "abs", "exp", "exp2", "log",
        "log2", "sin", "cos", "sqrt", "sqrt_rn", "rsqrt", "erf", "floor", "ceil", "fma", "fdiv", "div_rn", "umulhi",
        "sigmoid", "softmax", "tensor.logical_and", "tensor.logical_or",
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
    "The target": (
        "target_info.current_target", "target_info.is_cuda", "target_info.cuda_capability_geq", "target_info.is_hip",
        "target_info.is_hip_cdna3", "target_info.is_hip_cdna4", "target_info.is_hip_gfx1250", "extra.cuda.num_warps",
        "extra.cuda.num_threads", "extra.cuda.smid", "extra.cuda.globaltimer", "extra.cuda.gdc_wait",
        "extra.cuda.gdc_launch_dependents",
    ),
}  # fmt: skip
WITHOUT_EXAMPLE = ("inline_asm_elementwise",)  # needs a GPU


def operation(name: str) -> Any:
    """Return the object of a name: of `tl`, a method of tensors ("tensor.…") or of descriptors ("descriptor.…")."""
    owner, _, last = name.rpartition(".")
    methods = {"tensor": METHODS, "descriptor": DESCRIPTOR_METHODS}.get(owner)
    return methods[last] if methods is not None else attrgetter(name)(tl)


def entry(name: str) -> list[str]:
    """Return the lines of one operation."""
    fn = operation(name)
    signature = str(getattr(fn, "signature", None) or inspect.signature(fn))
    signature = re.sub(r" -> '[^']*'$|: '(?!constexpr')[^']*'", "", signature)
    signature = signature.replace("'constexpr'", "constexpr")
    return [f"## {name}", "", f"`{name}{signature}`", "", *parts(fn)]


def parts(documented: object) -> list[str]:
    """Return the lines of a docstring: its text, errors and example."""
    about = parsed(documented)
    lines = [about.text, ""]
    if about.raises:
        lines += ["**Raises**", ""]
        lines += [f"- {_linked(r.code)} where {r.reason}: `{r.statements}`" for r in about.raises]
        lines.append("")
    if about.statements:
        lines += ["```python", about.statements, f"# {about.result}", "```", ""]
    return lines


def _linked(code: str) -> str:
    """Return an error's code linked to its entry in the catalogue."""
    name = next(kind.__name__ for kind in catalogue() if kind.code == code)
    return f"[{code}](../errors.md#{code}-{name.lower()})"


def libdevice() -> list[str]:
    """Return a table of the math functions."""
    module = tl.extra.libdevice
    lines = ["| function | what it computes |", "|---|---|"]
    functions: dict[str, object] = dict(sorted(vars(module).items()))
    for name, x in functions.items():
        public = not name.startswith("_") and callable(x) and hasattr(x, "signature")
        if public and name not in ("typed", "where", "library", "zeros_like"):
            function: Any = x
            names = ", ".join(function.signature.parameters)
            doc = " ".join((inspect.getdoc(x) or "").split())
            lines.append(f"| `{name}({names})` | {doc.replace('|', chr(92) + '|')} |")
    return lines


def page_of(title: str) -> str:
    """Return the file name of a section, without `.md`."""
    return title.lower().replace(" ", "-")


def summary(name: str) -> str:
    """Return an operation in a table of contents: its name as a link, and its first sentence."""
    text = " ".join(parsed(operation(name)).text.partition("\n\n")[0].split())
    first = re.split(r"(?<=[^.]\.)\s", text)[0].rstrip(".")
    return f"[`{name}`]({{page}}#{anchor(name)}) | {first.replace('|', chr(92) + '|')} |"


def anchor(name: str) -> str:
    """Return the anchor of an operation's heading, as code hosts and the site make it."""
    return name.replace(".", "")


def contents(names: tuple[str, ...], page: str = "") -> list[str]:
    """Return a table of operations."""
    rows = [f"| {summary(name).format(page=page)}" for name in names]
    return ["| operation | what it gives |", "|---|---|", *rows, ""]


def overview() -> list[str]:
    """Return docs/language/README.md: how to read the pages, and all operations by kind."""
    lines = [
        "# The language: every operation", "",
        "Written by `python -m tessera.tools.pages language` from the docstrings. [basics.md](basics.md) introduces",
        "programs, tiles, masks and types. Every example runs in the tests",
        "on the interpreter and on the CPU, and what is said to raise an error raises it there. An example sets `r`,",
        "whose dtype, shape and elements the comment says. It is the body of a kernel that begins with", "",
        "```python", *SETUP.splitlines(),
        "# x: -2, -1, -0.5, 0, 0.5, 1, 2, 3   n: 3, 1, 4, 1, 5, 9, 2, 6   a: (row + 2 column) % 5", "```", "",
        "and with these functions beside it:", "", "```python", HELPERS.rstrip(), "```", "",
    ]  # fmt: skip
    for title, names in SECTIONS.items():
        page = page_of(title)
        lines += [f"## [{title}]({page}.md)", "", *contents(names, f"{page}.md")]
    lines += ["## Beside these", ""]
    lines += [
        "[Math functions of libdevice](libdevice.md), and how [accurate](accuracy.md) functions are.",
        "",
    ]
    return lines


def render() -> dict[str, str]:
    """Return the texts of docs/language/ by page."""
    pages = {"README": overview()}
    for title, names in SECTIONS.items():
        lines = [f"# {title}", "", *contents(names)]
        lines += ["How to read the examples: [the language](README.md).", ""]
        pages[page_of(title)] = lines + [line for name in names for line in entry(name)]
    pages["libdevice"] = ["# libdevice", "", *parts(tl.extra.libdevice), *libdevice(), ""]
    return {page: "\n".join(lines) for page, lines in pages.items()}
