"""The kernels that registries hold, on tessera: natively on the CPU beside the interpreter, and built for Hopper.

    pip install torch --no-deps liger-kernel fla-core flag-gems torchao ...     # those that are to be tried
    python benchmarks/corpus.py [--only LIBRARY] [--jobs 2] [--limit 30] [--json FILE]
    python benchmarks/corpus.py --table FILE [FILE ...]      # of earlier runs

Every kernel of every module of the installed libraries gets arguments made up from its parameters' names and uses
(`published/arguments.py`). The interpreter must find the launch inside its arrays; then the native results must be its
results. Launches whose programs race are left out. What the libraries' functions compute is compared with their own
references by tests/compat/libraries.py.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import pkgutil
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TESSERA_VERIFY", "1")
os.environ.setdefault("TESSERA_STRICT", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# isort: off
import tessera.compat  # noqa: F401  before anything that imports triton
import torch

from tessera.runtime.launching.interface import KernelInterface
from tessera.runtime.jit import JITFunction
from published.judge import Verdict, judge
from published.roles import roles_of
from published.stand_ins import everything_there
# isort: on

LIBRARIES = (
    "liger_kernel", "fla", "flag_gems", "torchao", "conch", "gemlite", "bitsandbytes", "mlstm_kernels", "attn_gym",
    "adasplash", "sageattention", "cut_cross_entropy", "lightning_attn", "hqq", "mamba_ssm", "vllm", "sglang",
    "xformers", "unsloth", "attorch", "lightllm", "flash_attn", "lmdeploy",
)  # fmt: skip
# Tests, programs, which read the command line when they are imported, and what is written for accelerators that are no
# GPUs of NVIDIA, in the languages of their own Tritons.
NOT_TRIED = re.compile(
    r"test|benchmark|\.__main__$|_(ascend|cambricon|mthreads|kunlunxin|metax|iluvatar|hygon|aipu|arm|tsingmicro|sunrise|enflame|spacemit)\b"
)
FINISHED = ("equal", "different", "crashed")
CPU = (*FINISHED, "race", "no arguments", "refused")


def modules_of(library: str) -> Iterator[Any]:
    """Every module of a library that can be imported here."""
    try:
        root = importlib.import_module(library)
    except Exception as e:
        print(f"{library}: not imported: {type(e).__name__}: {e}", file=sys.stderr)
        return
    yield root
    for info in pkgutil.walk_packages(root.__path__, library + ".", onerror=lambda _: None):
        if NOT_TRIED.search(info.name):
            continue
        try:
            yield importlib.import_module(info.name)
        except BaseException as e:  # some end the process, or raise what no one expects
            if isinstance(e, KeyboardInterrupt):
                raise


def kernels_of(library: str) -> dict[str, tuple[Any, list[Any]]]:
    """Kernels by `module.name`, with the tuners and heuristics around them, outermost first."""
    found: dict[str, tuple[Any, list[Any]]] = {}
    seen: set[int] = set()
    for module in modules_of(library):
        for name, value in list(vars(module).items()):
            wrappers: list[Any] = []
            while isinstance(value, KernelInterface) and not isinstance(value, JITFunction):
                wrappers.append(value)
                value = getattr(value, "fn", None)
            if not isinstance(value, JITFunction) or id(value) in seen:
                continue
            seen.add(id(value))
            if not value.fn.__module__.startswith(library) or roles_of(value).returns:
                continue
            found[f"{value.fn.__module__}.{name}"] = (value, wrappers)
    return found


def _child(kernel: Any, wrappers: list[Any], pipe: Any) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for verdict in judge(kernel, wrappers):
        pipe.send((verdict, False))
    pipe.send((verdict, True))
    pipe.close()


def _start(kernel: Any, wrappers: list[Any]) -> Running:
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_child, args=(kernel, wrappers, there)
    )
    process.start()
    there.close()
    return Running(process, here, time.monotonic(), Verdict("no arguments"))


@dataclass
class Running:
    """A kernel's process, what it has said so far, and when it began."""

    process: Any
    pipe: Any
    began: float
    verdict: Verdict
    done: bool = False

    def listen(self) -> None:
        try:
            while not self.done and self.pipe.poll(0):
                self.verdict, self.done = self.pipe.recv()
        except EOFError:
            pass

    def finished(self, limit: float) -> bool:
        alive = self.process.is_alive()
        self.listen()
        if not self.done and alive and time.monotonic() - self.began > limit:
            self.process.kill()
            self.verdict.detail = f"longer than the limit; {self.verdict.detail}"
            return True
        if not self.done and not alive:
            self.verdict = Verdict("crashed", detail=f"exit status {self.process.exitcode}")
        return self.done or not alive


def run(
    kernels: dict[str, tuple[Any, list[Any]]], jobs: int, limit: float
) -> Iterator[tuple[str, Verdict]]:
    """Each kernel in a forked process, `jobs` at a time, each for `limit` seconds."""
    waiting = list(kernels.items())
    running: dict[str, Running] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name, (kernel, wrappers) = waiting.pop(0)
            running[name] = _start(kernel, wrappers)
        time.sleep(0.01)
        for name, one in list(running.items()):
            if one.finished(limit):
                del running[name]
                one.process.join(1)
                one.pipe.close()
                yield name, one.verdict


def table(rows: dict[str, dict[str, Verdict]]) -> str:
    """Markdown: a line a library."""
    names = ("library", "kernels", "run", *CPU, "built for sm_90a", "spilling")
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for library, verdicts in rows.items():
        cpu = Counter(v.cpu for v in verdicts.values())
        built = sum(v.gpu == "built" for v in verdicts.values())
        spilling = sum(v.spilled > 0 for v in verdicts.values())
        ran = sum(cpu[k] for k in FINISHED)
        cells = [library, len(verdicts), ran, *(cpu[k] for k in CPU), built, spilling]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="the kernels that registries hold, on tessera")
    parser.add_argument("--only", action="append", help="a library, or part of a kernel's name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=float, default=30, help="seconds a kernel")
    parser.add_argument("--json", type=Path, help="write every verdict there")
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of these files")
    args = parser.parse_args()
    rows: dict[str, dict[str, Verdict]] = {}
    for file in args.table or ():
        for library, verdicts in json.loads(file.read_text()).items():
            rows.setdefault(library, {}).update({n: Verdict(**v) for n, v in verdicts.items()})
    if not args.table:
        run_all(args, rows)
    print(table(rows))
    wrong = [v for r in rows.values() for v in r.values() if v.faulty]
    sys.exit(bool(wrong))


def run_all(args: argparse.Namespace, rows: dict[str, dict[str, Verdict]]) -> None:
    """Fill `rows`, by library and kernel."""
    parts = args.only or [""]
    for library in LIBRARIES:
        if not any(part.startswith(library) or library.startswith(part) for part in parts):
            continue
        with everything_there(library):
            kernels = kernels_of(library)
        chosen = {n: k for n, k in kernels.items() if any(part in n for part in parts)}
        for name, verdict in run(chosen, args.jobs, args.limit):
            rows.setdefault(library, {})[name] = verdict
            print(f"{name}: cpu {verdict.cpu}, gpu {verdict.gpu} {verdict.detail}", flush=True)
            if args.json:
                plain = {k: {n: asdict(x) for n, x in v.items()} for k, v in rows.items()}
                args.json.write_text(json.dumps(plain, indent=1))


if __name__ == "__main__":
    main()
