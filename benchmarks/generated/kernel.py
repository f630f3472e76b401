"""A kernel as TorchInductor wrote it, with the arguments and configurations of one launch; a file of them.

`parsed` needs a `triton` (tessera's will do) and no GPU: it lets Inductor's own decorators say which configurations
and grids it would try.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import ast
import hashlib
import json
import lzma
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FOUND = re.compile(r"async_compile\.triton\('(\w+)', '''(.*?)''', device_str='\w+'\)", re.S)
ZEROS = "zeros"
BOUND = re.compile(r"tmp\d+(?:, \[[^]]*\]\))? < (\d+)\)")  # of an assertion about an index
ASSERTION = re.compile(r"device_assert\(.*")
MOST_PROGRAMS = ((1 << 31) - 1, 65535, 65535)  # along each axis of a grid, of every GPU

# What a torch without CUDA lacks.
HOST_LINES = re.compile(r"^(triton_helpers\.set_driver_to_gpu\(\)|from torch\._C import .*)$", re.M)


@dataclass
class Config:
    """A launch: compile-time constants, warps, stages and the grid that they ask for."""

    constants: dict[str, Any]
    warps: int
    stages: int
    grid: list[int]

    def unlaunchable(self) -> str | None:
        """Why no GPU launches the grid: the driver answers CUDA_ERROR_INVALID_VALUE, whoever compiled the kernel."""
        if all(0 < n <= most for n, most in zip(self.grid, MOST_PROGRAMS)):
            return None
        return (
            f"a grid of {tuple(self.grid)} programs, of which a GPU launches 1 to {MOST_PROGRAMS}"
        )


@dataclass
class Kernel:
    """`arguments`: numbers, and [dtype, shape, strides] for tensors, with ZEROS as the fourth for a workspace of zeros;
    `below`: what indices must stay below, where the kernel asserts it; `whole`: whether the text imports what it names;
    `gigabytes` and `flops`: Inductor's own count of the work; `sources`: what it was written for."""

    name: str
    text: str
    signature: dict[str, str]
    constants: dict[str, Any]
    attributes: list[list[Any]]
    options: dict[str, Any]
    configs: list[Config]
    arguments: list[Any]
    gigabytes: float | None = None
    flops: float | None = None
    below: int | None = None
    whole: bool = False
    sources: list[str] = field(default_factory=list)

    @property
    def asserted(self) -> bool:
        """Whether the kernel asserts what it loads, for which random booleans would not do."""
        return bool(self.options.get("debug")) and ASSERTION.search(self.text) is not None

    @property
    def key(self) -> str:
        """The same for kernels that differ in their names only."""
        text = re.sub(rf"\b{self.name}\b", "kernel", self.text)
        facts = [text, self.signature, self.arguments]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def parsed(code: str) -> Iterator[Kernel]:
    """The kernels of a program that Inductor wrote with `benchmark_kernel`."""
    for name, text in FOUND.findall(code):
        yield _kernel(name, text)


def _kernel(name: str, text: str) -> Kernel:
    """By running the text: its decorators make an autotuner, and `get_args` says what the arguments are."""
    from torch._dynamo import testing
    from torch._inductor.runtime.triton_heuristics import GridExpr

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.py")  # Triton reads the source of what it decorates
        path.write_text(text)
        scope: dict[str, Any] = {"__name__": name, "__file__": str(path)}
        exec(compile(HOST_LINES.sub("", text), path, "exec"), scope)
    scope["rand_strided"] = _described
    scope["torch"] = _Torch()
    assert testing.rand_strided is not _described
    arguments = list(scope["get_args"]())
    tuner = scope[name]
    names = list(tuner.fn.arg_names)
    given = dict(zip(names, arguments))
    meta = tuner.triton_meta
    configs: list[Config] = []
    for config in tuner.configs:
        values = {k: v for k, v in given.items() if isinstance(v, int)}
        grid = GridExpr.from_meta(tuner.inductor_meta, config)
        launch = grid.eval_slow({**values, **config.kwargs})
        configs.append(Config(dict(config.kwargs), config.num_warps, config.num_stages, [*launch]))
    bounds = [int(b) for line in ASSERTION.findall(text) for b in BOUND.findall(line)]
    options = {"debug": tuner.inductor_meta.get("assert_indirect_indexing", True)}
    options |= {k: meta[k] for k in ("enable_fp_fusion",) if k in meta}
    options |= {"enable_reflect_ftz": False} if meta.get("disable_ftz") else {}
    return Kernel(
        name, _function(text), dict(meta["signature"]), dict(meta["constants"]),
        [[list(k), v] for k, v in meta["configs"][0].items()], options, configs, arguments,
        tuner.inductor_meta.get("kernel_num_gb"), tuner.inductor_meta.get("kernel_flop"), min(bounds, default=None),
    )  # fmt: skip


def _described(shape: Any, strides: Any, dtype: Any, device: Any = None) -> list[Any]:
    return [str(dtype).removeprefix("torch."), [int(n) for n in shape], [int(n) for n in strides]]


class _Torch:
    """What `get_args` asks of torch: dtypes, and zeroed workspaces."""

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch, name)

    def zeros(self, *shape: Any, dtype: Any, device: Any = None) -> list[Any]:
        sizes = shape[0] if isinstance(shape[0], (tuple, list)) else shape
        return [*_described(sizes, [1] * len(sizes), dtype), ZEROS]


def _function(text: str) -> str:
    """The kernel and the functions it calls, without Inductor's decorators and what follows."""
    body = ast.parse(text).body
    kept: list[str] = []
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            node.decorator_list = [d for d in node.decorator_list if ast.unparse(d) == "triton.jit"]
            first = min(d.lineno for d in node.decorator_list)
            kept.append("\n".join(text.splitlines()[first - 1 : node.end_lineno]))
    return "\n\n\n".join(kept) + "\n"


def helpers() -> str:
    """The source of the functions that kernels of this torch call."""
    from torch._inductor.runtime import triton_helpers

    return Path(triton_helpers.__file__).read_text()


def write(path: Path, kernels: Iterable[Kernel], facts: dict[str, Any]) -> None:
    """A line for `facts`, and a line for each kernel, compressed."""
    lines = [json.dumps(facts), *(json.dumps(asdict(k)) for k in kernels)]
    path.write_bytes(lzma.compress("\n".join(lines).encode()))


def read(path: Path) -> tuple[list[Kernel], dict[str, Any]]:
    first, *lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    return [from_json(line) for line in lines], json.loads(first)


def from_json(line: str) -> Kernel:
    facts = json.loads(line)
    return Kernel(**{**facts, "configs": [Config(**c) for c in facts["configs"]]})
