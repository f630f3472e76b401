"""torch's op_db through stock Inductor on tessera, case by case beside eager.

    python tests/compat/op_db.py [--part 10] [--only NAME] [--list]

A case is an operator, a dtype and that operator's first sample. Results: `equal`; `skipped` (eager does not take it, or
its result is not determined); `as cpp` (differs, and Inductor's own C++ back end differs as well); `differs`; `error`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

# isort: off
import tessera.compat  # noqa: F401  before torch._dynamo, which imports triton
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
import triton
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map
# isort: on

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool,
)  # fmt: skip
# Results that are whatever memory held.
UNDETERMINED = (
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
)
# Where Inductor's C++ back end differs from eager in the same way [measured], with its reason.
AS_CPP = {
    **{(name, "uint8"): "rounded where eager truncates" for name in (
        "nn.functional.interpolate.bilinear", "nn.functional.interpolate.bicubic", "nn.functional.upsample_bilinear",
    )},
    **{(name, dtype): "computed in fp32, eager rounds between steps" for name in (
        "nn.functional.grid_sample", "grid_sampler_2d",
    ) for dtype in ("float16", "bfloat16")},
    ("any", "uint8"): "Inductor gives bool, eager uint8",
    # Eager is off by 1e-7 near the zeros; tessera agrees with a computation in 50 digits.
    ("special.bessel_j0", "float64"): "eager is inexact", ("special.bessel_y1", "float64"): "eager is inexact",
}  # fmt: skip
TOLERANCES = {
    torch.float32: (2e-5, 2e-5), torch.float64: (1e-7, 1e-7), torch.float16: (2e-3, 2e-3), torch.bfloat16: (2e-2, 2e-2),
    torch.complex64: (2e-5, 2e-5), torch.complex128: (1e-7, 1e-7),
}  # fmt: skip


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def chosen(part: int) -> list[Any]:
    """One operator in `part`, by the hash of its name."""
    return [
        op for op in op_db
        if int(hashlib.sha256(full_name(op).encode()).hexdigest(), 16) % part == 0
        and not op.name.startswith("jiterator")
    ]  # fmt: skip


def cases(part: int, only: str | None = None) -> Iterator[tuple[Any, torch.dtype]]:
    for op in chosen(part if only is None else 1):
        if only is not None and full_name(op) != only:
            continue
        for dtype in DTYPES:
            if dtype in op.supported_dtypes("cpu"):
                yield op, dtype


def setup(backend: str = "triton") -> None:
    """Inductor's settings: kernels by `backend`, no timing of configurations, eager's random numbers."""
    inductor_config.cpu_backend = backend
    inductor_config.triton.autotune_pointwise = False
    inductor_config.fallback_random = True
    inductor_config.compile_threads = 1
    torch._dynamo.config.capture_scalar_outputs = False
    torch._dynamo.config.suppress_errors = False


class Watch:
    """Processor seconds spent in `triton.compile`."""

    def __init__(self) -> None:
        self.inner, self.spent = triton.compile, 0.0
        triton.compile = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start = time.thread_time()
        try:
            return self.inner(*args, **kwargs)
        finally:
            self.spent += time.thread_time() - start

    def take(self) -> float:
        spent, self.spent = self.spent, 0.0
        return spent


def copied(values: Any) -> Any:
    return tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, values)


def run_both(op: Any, sample: Any, backend: str) -> tuple[Any, Any]:
    """(compiled, eager) results on copies of the sample."""
    setup(backend)
    torch._dynamo.reset()

    def call(x: Any, args: Any, kwargs: Any) -> Any:
        return op(x, *args, **kwargs)

    values = (sample.input, sample.args, sample.kwargs)
    torch.manual_seed(0)
    expected = call(*copied(values))
    torch.manual_seed(0)
    return torch.compile(call, dynamic=False)(*copied(values)), expected


def difference(found: Any, expected: Any) -> str | None:
    """What is not equal, in a line; None when all is."""
    a, b = tree_flatten(found)[0], tree_flatten(expected)[0]
    if len(a) != len(b):
        return f"{len(a)} results instead of {len(b)}"
    for x, y in zip(a, b, strict=True):
        if not isinstance(y, torch.Tensor):
            if x != y and not (x != x and y != y):
                return f"{x} instead of {y}"
            continue
        rtol, atol = TOLERANCES.get(y.dtype, (0.0, 0.0))
        try:
            torch.testing.assert_close(
                x, y, rtol=rtol, atol=atol, equal_nan=True, check_stride=False
            )
        except AssertionError as error:
            return " ".join(str(error).split())[:200]
    return None


def first_sample(op: Any, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    return next(iter(op.sample_inputs("cpu", dtype, requires_grad=False)))


def judge(op: Any, dtype: torch.dtype, sample: Any, cpp: bool = True) -> tuple[str, str]:
    """(result, detail) of a case."""
    if op.name in UNDETERMINED:
        return "skipped", "undetermined"
    try:
        torch.manual_seed(0)
        op(copied(sample.input), *copied(sample.args), **copied(sample.kwargs))
    except Exception as error:
        return "skipped", f"eager: {type(error).__name__}"
    try:
        why = difference(*run_both(op, sample, "triton"))
        result = "differs"
    except Exception as error:
        why, result = f"{type(error).__name__}: {' '.join(str(error).split())[:600]}", "error"
    if why is None:
        return "equal", ""
    if (full_name(op), str(dtype)[6:]) in AS_CPP and result == "differs":
        return "as cpp", why
    if cpp:
        try:
            other = difference(*run_both(op, sample, "cpp"))
        except Exception as error:
            other = type(error).__name__
        if other is not None:
            return "as cpp", why
    return result, why


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", type=int, default=10)
    parser.add_argument("--slice", type=int, nargs=2, default=(0, 1), help="case number modulo")
    parser.add_argument("--only")
    parser.add_argument("--dtype")
    parser.add_argument("--no-cpp", action="store_true")
    parser.add_argument("--out")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    count: Counter[str] = Counter()
    slow, watch = (0.0, ""), Watch()
    out = open(options.out, "w") if options.out else None  # noqa: SIM115
    for number, (op, dtype) in enumerate(cases(options.part, options.only)):
        if number % options.slice[1] != options.slice[0]:
            continue
        if options.dtype and str(dtype) != f"torch.{options.dtype}":
            continue
        start = time.perf_counter()
        try:
            sample = first_sample(op, dtype)
        except Exception as error:
            result, why = "skipped", f"no sample: {type(error).__name__}"
        else:
            result, why = judge(op, dtype, sample, not options.no_cpp)
        seconds, spent = time.perf_counter() - start, watch.take()
        slow = max(slow, (spent, f"{full_name(op)} {str(dtype)[6:]}"))
        count[result] += 1
        if out:
            row = [full_name(op), str(dtype), result, why, round(seconds, 2), round(spent, 2)]
            out.write(json.dumps(row) + "\n")
            out.flush()
        if result in ("differs", "error"):
            print(f"{result:8} {full_name(op)} {str(dtype)[6:]}: {why}", flush=True)
    print(dict(count), f"slowest compile {slow[0]:.2f} s ({slow[1]})")
    return 1 if count["differs"] + count["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
