"""NVIDIA's compute-sanitizer over the examples' kernels, at sizes that it gets through in a minute.

    python benchmarks/sanitize.py [--tools memcheck,racecheck] [--only softmax,attention] [--log FILE]

Prints what each tool counts; exit status 1 if that is more than nothing, or if memcheck does not see a store beyond an
array. racecheck knows shared memory only, and not every way in which copies of the tensor engine and mbarriers order
accesses: read what it reports with that in mind.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import products
import sources

import common
import tessera
import tessera.language as tl

Program = Callable[[common.Device], None]
SUMMARY = re.compile(r"(ERROR SUMMARY|RACECHECK SUMMARY): (\d+)")
FUZZED = 70  # random kernels of each family
TOGETHER = 10  # of them in one program
CONTROLLED = ("memcheck",)  # the tools that must count something in `beyond`


@tessera.jit
def beyond_kernel(ptr, size):
    tl.store(ptr + size + tl.arange(0, 32), 1.0)


def beyond(device: common.Device) -> None:
    """A store beyond an array."""
    size = 1 << 16
    beyond_kernel[(1,)](device.empty(size), size)


def elementwise(device: common.Device) -> None:
    x, out = device.normal(3000), device.empty(3000)
    sources.example("01").add(x, x, out)
    sources.example("04").dropout(x, out, 0.3, 7)


def softmax(device: common.Device) -> None:
    for rows, cols in ((5, 1000), (3, 5000), (2, 20000)):
        x = device.normal(rows, cols)
        sources.example("02").softmax(x, device.empty(rows, cols))


def layer_norm(device: common.Device) -> None:
    rows, cols = 70, 1000
    x, w = device.normal(rows, cols), device.normal(cols)
    norm = sources.example("05").LayerNorm(device, rows, cols)
    norm.forward(x, w, w)
    norm.backward(x, x, w)
    sources.example("07").rms_norm(x, w, device.empty(rows, cols))


def cross_entropy(device: common.Device) -> None:
    rows, vocabulary = 3, 20000
    module = sources.example("08")
    logits, targets = device.normal(rows, vocabulary), device.array(device.random.integers(0, 9, 3))
    loss, lse = device.empty(rows), device.empty(rows)
    module.cross_entropy(logits, targets, loss, lse)
    module.cross_entropy_gradient(logits, targets, lse, device.empty(rows, vocabulary))


def halves(device: common.Device, *shape: int) -> Any:
    return device.normal(*shape, dtype=device.pick("float32", "float16"))


def small_products(device: common.Device) -> None:
    a, b = halves(device, 200, 600), halves(device, 600, 328)
    for atomic in (True, False):
        sources.example("15").SplitMatmul(device, 200, 328, 600, atomic).run(a, b)
    sources.example("10").StreamMatmul(device, 200, 328, 600).run(a, b)
    sources.example("13").gemv(
        a, b[:, 0].contiguous() if device.is_gpu else b[:, 0].copy(), device.empty(200)
    )


def matrix_products(device: common.Device) -> None:
    """Through pointers and through descriptors, on a GPU: fp16, tf32, fp8."""
    if not device.is_gpu:
        return
    import torch

    a, b, c = halves(device, 512, 512), halves(device, 512, 512), halves(device, 512, 512)
    products.pointer_call(a, b, c, (128, 256, 64, 8, 3))()
    products.pointer_call(a, b.T, c, (128, 128, 64, 4, 3))()
    products.descriptor_call(a, b.T, c, (128, 256, 64, 8, 4), 3)()
    products.descriptor_call(a.float(), b.float().T, c.float(), (128, 128, 32, 8, 3), 3)()
    bytes_a, bytes_b = (x.to(torch.float8_e4m3fn) for x in (a, b))
    products.descriptor_call(bytes_a, bytes_b.T, c, (128, 256, 128, 8, 3), 3)()


def attention(device: common.Device) -> None:
    for length, dim, causal in ((256, 64, False), (256, 128, True), (200, 64, True)):
        q, k, v, dout = (halves(device, 2, length, dim) for _ in range(4))
        for example in ("06", "12"):
            call = sources.example(example).Attention(device, 2, length, dim, causal)
            call.forward(q, k, v)
            call.backward(q, k, v, dout)


def decoding(device: common.Device) -> None:
    q, k = halves(device, 8, 128), halves(device, 2, 700, 128)
    sources.example("14").Decoding(device, 2, 4, 700, 128).run(q, k, k)


def fuzzed(family: str, first: int) -> Program:
    """TOGETHER random kernels of a family of tests/fuzz, a few launches each. What they leave is not looked at here."""

    def program(device: common.Device) -> None:
        if not device.is_gpu:
            return
        from tests.fuzz import cuda, families, outcome

        cuda.LAUNCHES = 2
        for seed in range(first, first + TOGETHER):
            case = families.built(family, families.drawn(family, seed), seed)
            if case.hosts_only:
                continue
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    cuda.run_cuda(case)
            except Exception as error:
                if outcome.failure(error)[0] != outcome.REFUSED:
                    raise
                print(f"{family} {seed}: {type(error).__name__}", flush=True)

    return program


PROGRAMS: dict[str, Program] = {
    "elementwise": elementwise,
    "softmax": softmax,
    "norms": layer_norm,
    "cross entropy": cross_entropy,
    "matrix products": matrix_products,
    "small products": small_products,
    "attention": attention,
    "decoding": decoding,
    **{
        f"fuzzed {family} {first}": fuzzed(family, first)
        for family in ("dots", "rows", "edges")
        for first in range(0, FUZZED, TOGETHER)
    },
}


def chosen(only: str) -> list[str]:
    """The program of that name, or those whose names have one of the words of `only`; all for none."""
    if only in PROGRAMS:
        return [only]
    words = [word for word in only.split(",") if word]
    return [name for name in PROGRAMS if not words or any(word in name for word in words)]


def run(device: common.Device, only: str) -> None:
    for name in chosen(only):
        print(name, flush=True)
        PROGRAMS[name](device)
    if device.is_gpu:
        import torch

        torch.cuda.synchronize()


def run_under(tool: str, log: Path | None, *arguments: str) -> tuple[int, str]:
    """Exit status and report of a process that runs programs under `tool`. The report is added to `log` while the
    programs run, so that one that is ended early has told what it saw. Arrays are allocations of their own: inside
    of one that PyTorch keeps for many, nothing is out of bounds."""
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(sanitizer):
        sys.exit("compute-sanitizer was found neither on PATH nor in /usr/local/cuda/bin")
    options = ["--tool", tool, "--target-processes", "application-only"]  # ptxas is none of it
    options += [
        "--kernel-name-exclude",
        "kernel_substring=at6native",
    ]  # PyTorch's own: racecheck reports its reductions
    command = [sanitizer, *options, sys.executable, __file__, *arguments]
    env = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    with log.open("a+b") if log else tempfile.TemporaryFile() as file:
        begin = file.seek(0, os.SEEK_END)
        status = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, check=False, env=env
        ).returncode
        file.seek(begin)
        return status, file.read().decode(errors="replace")


def counted(report: str) -> int:
    return sum(int(count) for _, count in SUMMARY.findall(report))


def sanitize(tool: str, only: str, log: Path | None) -> tuple[int, int]:
    """What `tool` counts in the programs, and how many of them did not run to their end; its reports go to `log`.
    Each program has a process of its own: one that the tool does not survive takes no other with it."""
    if tool in CONTROLLED and not counted(run_under(tool, None, "--run-beyond")[1]):
        sys.exit(f"{tool} counts nothing in a kernel that stores beyond an array")
    count = ended = 0
    for name in chosen(only):
        status, report = run_under(tool, log, "--run", "--only", name)
        count += counted(report)
        if status or not SUMMARY.search(report):
            ended += 1
            print(report[-4000:])
            print(f"{tool}: {name} did not run to its end: status {status}", flush=True)
        found = re.findall(r".*=+ .*(?:Error|Warning|hazard).*", report)
        for line in dict.fromkeys(found):
            print(f"{name}: {line}", flush=True)
    return count, ended


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", default="memcheck,racecheck")
    parser.add_argument("--only", default="", help="parts of names, comma-separated")
    parser.add_argument("--log", type=Path, help="file that the tools' reports are added to")
    parser.add_argument("--run", action="store_true", help="run the programs without a tool")
    parser.add_argument("--run-beyond", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    args = parser.parse_args()
    if args.run_beyond:
        beyond(common.Device(args.device))
        return 0
    if args.run:
        run(common.Device(args.device), args.only)
        return 0
    counts = {tool: sanitize(tool, args.only, args.log) for tool in args.tools.split(",")}
    for tool, (count, ended) in counts.items():
        print(
            f"{tool}: {count} in {len(chosen(args.only)) - ended} programs, {ended} did not run to their end"
        )
    return int(any(map(any, counts.values())))


if __name__ == "__main__":
    sys.exit(main())
