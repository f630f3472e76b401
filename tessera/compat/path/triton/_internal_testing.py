"""`triton._internal_testing`: random data, conversions and facts about the device, for test suites of kernels.

Lists hold names of dtypes. `numpy_random` makes data, `to_triton` turns it into a kernel's argument, and `to_numpy`
reads that back; `is_cuda()`, `is_hopper()` … ask the driver in use. Needs pytest, and torch to make tensors.
"""

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import triton
import triton.language as tl
from tessera import dtypes as _types
from tessera import knobs
from tessera.compat.absent import absent
from tessera.config import Group
from tessera.runtime.arguments import tensors as _tensors
from tessera.runtime.arguments.tensors import TensorWrapper, reinterpret

try:
    import torch  # pyright: ignore[reportMissingImports]
except ImportError:  # NumPy arrays serve as arguments
    torch: Any = None

int_dtypes = ["int8", "int16", "int32", "int64"]
uint_dtypes = ["u" + name for name in int_dtypes]
integral_dtypes = int_dtypes + uint_dtypes
float_dtypes = ["float16", "float32", "float64"]
float_dtypes_with_bfloat16 = [*float_dtypes, "bfloat16"]
dtypes = integral_dtypes + float_dtypes
dtypes_with_bfloat16 = [*dtypes, "bfloat16"]
torch_float8_dtypes = ["float8_e4m3fn", "float8_e5m2"]
torch_dtypes = ["bool", *int_dtypes, "uint8", *float_dtypes_with_bfloat16]
tma_dtypes = sorted({*dtypes_with_bfloat16} - {"int64", "uint64", "float64"})


def is_interpreter() -> bool:
    return bool(knobs.runtime.interpret)


def get_current_target() -> Any:
    """The GPUTarget of the driver in use; None on the interpreter."""
    return None if is_interpreter() else triton.runtime.driver.active.get_current_target()


def is_cuda() -> bool:
    target = get_current_target()
    return target is not None and target.backend == "cuda"


def _capability() -> tuple[int, int]:
    return divmod(int(get_current_target().arch), 10) if is_cuda() else (0, 0)


def is_ampere_or_newer() -> bool:
    return _capability()[0] >= 8


def is_hopper() -> bool:
    return _capability()[0] == 9


def is_hopper_or_newer() -> bool:
    return _capability()[0] >= 9


def is_blackwell() -> bool:
    return _capability()[0] == 10


def is_blackwell_ultra() -> bool:
    return _capability() == (10, 3)


def is_sm12x() -> bool:
    return _capability()[0] == 12


def _never() -> bool:
    """False, for devices that tessera has no back end for."""
    return False


is_hip = is_hip_cdna = is_hip_cdna2 = is_hip_cdna3 = is_hip_cdna3_or_newer = is_hip_cdna4 = _never
is_hip_rdna = is_hip_rdna3 = is_hip_rdna4 = is_hip_rdna4m = is_hip_gfx1250 = _never
is_xpu = is_rubin = is_compile_warmup = supports_clc = _never


def get_hip_lds_size() -> int:
    return 0


def supports_tma(byval_only: bool = False) -> bool:
    """Whether kernels may take and make tensor descriptors: on every target of tessera."""
    return True


def tma_skip_msg(byval_only: bool = False) -> str:
    return "Requires tensor descriptors"


def supports_ws() -> bool:
    """Whether `warp_specialize=True` is accepted; where it does not help, the loop runs unchanged."""
    return True


requires_tma = pytest.mark.skipif(not supports_tma(), reason=tma_skip_msg())


def _supports_cluster_size(device: object, num_ctas: int) -> bool:
    """Whether `num_ctas` is accepted: by GPUs with clusters, and by all targets that ignore it."""
    return num_ctas == 1 or not is_cuda() or is_hopper_or_newer()


def skip_if_unsupported_cluster_size(num_ctas: int) -> None:
    if not _supports_cluster_size(None, num_ctas):
        pytest.skip(f"clusters of {num_ctas} blocks need compute capability 9.0")


def random_int(low: int, high: int, *, warmup_value: object = None, **kwargs: Any) -> int:
    return int(np.random.default_rng(**kwargs).integers(low, high))


def random_float(*, warmup_value: float = 0.5, **kwargs: Any) -> float:
    return float(np.random.default_rng(**kwargs).random())


def numpy_random(
    shape: Any, dtype_str: str, rs: Any = None, low: int | None = None, high: int | None = None
) -> np.ndarray:
    """Return random data of `shape`. Floats are normal; integers are in [low, high), by default in their whole range,
    and never 0, so that they can divide. bfloat16 is float32 whose low bits are 0, fp8 is int8 with finite bits."""
    if isinstance(shape, int):
        shape = (shape,)
    rs = np.random.RandomState(17) if rs is None else rs
    if dtype_str in integral_dtypes:
        kind = np.dtype(dtype_str)
        bounds = np.iinfo(kind)
        lowest = bounds.min if low is None else max(low, bounds.min)
        highest = bounds.max if high is None else min(high, bounds.max)
        data = rs.randint(lowest, highest, shape, dtype=kind)
        data[data == 0] = 1
        return data
    if "float8" in dtype_str:
        return rs.randint(20, 40, shape, dtype=np.int8)
    if dtype_str in float_dtypes:
        return rs.normal(0, 1, shape).astype(dtype_str)
    if dtype_str == "bfloat16":
        bits = rs.normal(0, 1, shape).astype(np.float32).view(np.uint32)
        return (bits & np.uint32(0xFFFF0000)).view(np.float32)
    if dtype_str in ("bool", "int1", "bool_"):
        return rs.normal(0, 1, shape) > 0
    raise RuntimeError(f"no random data of type {dtype_str}")


def _tensor(x: np.ndarray, device: object) -> Any:
    return x.copy() if torch is None else torch.tensor(x, device=device)


def to_triton(x: np.ndarray, device: object, dst_type: str | None = None) -> Any:
    """Return a kernel's argument with the data of `x` on `device`; `dst_type`: bfloat16 (rounds), or an fp8 type whose
    bits `x` holds. Unsigned types that torch lacks are wrapped signed tensors."""
    name = x.dtype.name
    if name in uint_dtypes and name != "uint8" and torch is not None:
        return reinterpret(_tensor(x.view(name[1:]), device), getattr(tl, name))
    if dst_type is not None and "float8" in dst_type:
        return reinterpret(_tensor(x, device), getattr(tl, dst_type))
    if name == "float32" and dst_type == "bfloat16":
        if torch is not None:
            return _tensor(x, device).bfloat16()
        return reinterpret((x.view(np.uint32) >> np.uint32(16)).astype(np.uint16), tl.bfloat16)
    return _tensor(x, device)


def unwrap_tensor(t: object) -> Any:
    return t.base if isinstance(t, TensorWrapper) else t


def to_numpy(x: Any) -> np.ndarray:
    """Return the values of a kernel's argument; bfloat16 as float32, wrapped tensors as the type of the wrapper."""
    if isinstance(x, TensorWrapper):
        if torch_dtype_name(x.dtype) not in uint_dtypes:
            return _tensors.to_numpy(x)
        return to_numpy(x.base).view(torch_dtype_name(x.dtype))
    if isinstance(x, np.ndarray):
        return cast(np.ndarray, x)
    if torch is not None and isinstance(x, torch.Tensor):
        return (x.cpu().float() if x.dtype is torch.bfloat16 else x.cpu()).numpy()
    raise ValueError(f"neither a tensor nor a wrapped one: {x}")


def torch_dtype_name(dtype: object) -> str:
    """Return `int32` for tl.int32 and for torch.int32."""
    if isinstance(dtype, _types.dtype):
        names = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
        return names.get(dtype.name, dtype.name)
    if torch is not None and isinstance(dtype, torch.dtype):
        return str(dtype).removeprefix("torch.")
    raise TypeError(f"not a dtype of triton or torch: {type(dtype)}")


def str_to_triton_dtype(x: str) -> Any:
    """Return tl.float32 for "float32" or "fp32"."""
    name = str(x).removeprefix("torch.")
    names = {"bool": "int1", "float8_e4m3fn": "float8e4nv", "float8_e5m2": "float8e5"}
    found = getattr(tl, names.get(name, name), None)
    return found if isinstance(found, _types.dtype) else _tensors.element_type(name)


def default_alloc_fn(size: int, align: int, _: object) -> Any:
    """Return scratch memory for `triton.set_allocator`."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


def _fresh_knobs_impl(  # pyright: ignore[reportUnusedFunction]  Triton's tests import it
    skipped_attr: set[str] | None = None,
) -> tuple[Callable[[], Any], Callable[[], None]]:
    """Return functions that make all knobs fresh (no values, no variables) except those groups, and restore them."""
    saved = ExitStack()

    def fresh() -> Any:
        for name, group in vars(knobs).items():
            if isinstance(group, Group) and name not in (skipped_attr or ()):
                saved.enter_context(group.scope())
                group.reset()
                for variable in (v for k in group.knob_descriptors.values() for v in k.names):
                    os.environ.pop(variable, None)
        return knobs

    return fresh, saved.close


@dataclass
class ProcessResult:
    """The outcome of `run_in_process`: the exception that ended the function, and its output to standard error."""

    exc: BaseException | None
    driver_stderr_output: str


def _client(
    function: Callable[..., Any], args: Any, kwargs: Any, env: Any, errors: str, pipe: Any
) -> None:
    """Run in a process of its own: a failed kernel may end the CUDA context."""
    os.environ.update(env or {})
    descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 2)
    failure = None
    try:
        function(*args, **kwargs)
    except BaseException as e:  # the parent raises or examines it
        traceback.print_exc()
        failure = e
    try:
        pipe.send(failure)
    except Exception:  # an exception that cannot be pickled
        pipe.send(RuntimeError(repr(failure)))


def run_in_process(
    client_fn: Callable[..., object], args: object = (), kwargs: object = None, env: object = None
) -> ProcessResult:
    """Call `client_fn(*args, **kwargs)` in a new process with `env` added to its environment."""
    with tempfile.TemporaryDirectory() as folder:
        errors = os.path.join(folder, "stderr")
        context = multiprocessing.get_context("spawn")
        receive, send = context.Pipe(duplex=False)
        child = context.Process(
            target=_client, args=(client_fn, args, kwargs or {}, env, errors, send)
        )
        child.start()
        send.close()
        try:
            failure = receive.recv()
        except EOFError:
            child.join()
            failure = RuntimeError(f"the process ended with exit code {child.exitcode}")
        child.join()
        found = os.path.exists(errors)
        output = Path(errors).read_text(errors="replace") if found else ""
    return ProcessResult(failure, output)


@contextmanager
def use_process_pool(preload_module: object) -> Generator[None]:
    """Do nothing: each `run_in_process` starts its own process."""
    yield


__getattr__ = absent(__name__)
