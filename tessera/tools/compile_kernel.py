"""Implements the command `compile`, which compiles one kernel of a file, without a launch, to any stage."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from tessera.compiler import ASTSource
from tessera.compiler import compile as compile_for
from tessera.errors import InvalidArguments, TesseraError, suggestion
from tessera.language.callable import JITCallable, jitted_under
from tessera.runtime.driver import driver
from tessera.tools.programs import reason_of
from tessera.tools.targets import target_named

Signature = tuple[dict[str, str], dict[str, object], dict[tuple[int, ...], list[list[object]]]]


def compile_kernel(args: list[str]) -> int:
    """`compile SCRIPT:KERNEL --signature TYPES [--target T] [--stage S] [--option NAME=VALUE] [-o FILE]`."""
    parser = argparse.ArgumentParser(
        "tessera compile", description="compile a kernel without running it"
    )
    parser.add_argument(
        "kernel", metavar="SCRIPT:KERNEL", help="a file, whose `main` part does not run"
    )
    parser.add_argument(
        "--signature", required=True, metavar="NAME=TYPE,...",
        help="types: *fp32 (a pointer), i32, fp16, ..., with :16 if divisible by 16; a number, True, None or 'text' "
        "is a compile-time value",
    )  # fmt: skip
    parser.add_argument("--target", help="sm_90, cpu, avx2, ...; default: this machine's")
    parser.add_argument(
        "--stage", help="what is printed: tir, gir, llir, ptx, ...; default: the last text"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="as num_warps=8"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write it there")
    given = parser.parse_args(args)
    try:
        _write(_compiled(given), given.output)
    except BrokenPipeError:
        raise
    except (OSError, TesseraError) as error:
        print(f"tessera: {reason_of(error)}", file=sys.stderr)
        return 1
    return 0


def _compiled(given: argparse.Namespace) -> str | bytes:
    kernel = kernel_named(given.kernel)
    source = ASTSource(kernel, *signature_of(kernel, given.signature))
    options = dict(_pair(text) for text in given.option)
    values = {name: value_of(text) for name, text in options.items()}
    target = target_named(given.target) if given.target else driver.active.get_current_target()
    made = compile_for(source, target, values)
    texts = [name for name, value in made.asm.items() if isinstance(value, str)]
    stage = given.stage or texts[-1]
    if stage not in made.asm:
        near = suggestion(stage, made.asm) or f"there are {', '.join(made.asm)}"
        raise InvalidArguments(f"{target.backend} has no stage {stage!r}", help=near)
    return made.asm[stage]


def _write(text: str | bytes, path: str | None) -> None:
    if path is not None:
        Path(path).write_bytes(text.encode() if isinstance(text, str) else text)
    elif isinstance(text, bytes):
        sys.stdout.buffer.write(text)
    else:
        print(text)


def kernel_named(place: str) -> JITCallable:
    """Return the kernel that `SCRIPT:KERNEL` names; the script runs as a module does, not as a program."""
    path, _, name = place.rpartition(":")
    if not path:
        raise InvalidArguments(f"{place!r} names no kernel", help="write it as script.py:kernel")
    scope = runpy.run_path(path, run_name="__tessera_compile__")
    known = {n: jitted_under(x) for n, x in scope.items()}
    kernels = {n: x for n, x in known.items() if isinstance(x, JITCallable) and not x.is_library}
    if name not in kernels:
        near = suggestion(name, kernels) or f"there are {', '.join(kernels) or 'none'}"
        raise InvalidArguments(f"{path} has no kernel {name!r}", help=near)
    return kernels[name]


def signature_of(kernel: JITCallable, text: str) -> Signature:
    """Return types, compile-time values by parameter, and attributes, of a text `x=*fp32:16,n=i32,BLOCK=128`."""
    given = dict(_pair(part) for part in text.split(",") if part.strip())
    for name in given:
        if name not in kernel.arg_names:
            near = suggestion(name, kernel.arg_names) or f"there are {', '.join(kernel.arg_names)}"
            raise InvalidArguments(f"{kernel.__name__} has no parameter {name!r}", help=near)
    types: dict[str, str] = {}
    constants: dict[str, object] = {}
    attrs: dict[tuple[int, ...], list[list[object]]] = {}
    for p in kernel.params:
        if p.name in given and (p.is_constexpr or _is_value(given[p.name])):
            constants[p.name] = value_of(given[p.name])
        elif p.name in given:
            types[p.name], colon, multiple = given[p.name].partition(":")
            if colon:
                attrs[p.num,] = [["tt.divisibility", _multiple(p.name, multiple)]]
        elif p.has_default:
            constants[p.name] = p.default
        else:
            kind = "a value" if p.is_constexpr else "a type, as i32 or *fp32"
            raise InvalidArguments(
                f"the signature says nothing of {p.name}", help=f"give it {kind}"
            )
    return {**types, **dict.fromkeys(constants, "constexpr")}, constants, attrs


def _multiple(name: str, text: str) -> int:
    if not text.isdecimal() or (n := int(text)) == 0 or n & (n - 1):
        raise InvalidArguments(
            f"{name} cannot be a multiple of {text!r}", help="write a power of two: *fp32:16"
        )
    return n


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidArguments(f"{text!r} is no NAME=VALUE", help="write it as n=i32 or BLOCK=128")
    return name.strip(), value.strip()


def _is_value(text: str) -> bool:
    return text in ("True", "False", "None") or text[:1] in "'\"-.0123456789"


def value_of(text: str) -> object:
    """Return the number, bool, None or text that an argument of the command line means."""
    fixed = {"True": True, "False": False, "None": None}
    if text in fixed:
        return fixed[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("'\"")
