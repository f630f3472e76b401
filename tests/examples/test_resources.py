"""The first look at resources: lower bounds for every example at many tile sizes; what the autotuner prunes by them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.specimens import source_of

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import run_all  # noqa: E402

import common  # noqa: E402
import tessera  # noqa: E402
import tessera.language as tl  # noqa: E402
from tessera.backends.compiler import GPUTarget  # noqa: E402
from tessera.backends.nvidia import backend as nvidia  # noqa: E402
from tessera.backends.nvidia.target import facts_for  # noqa: E402
from tessera.compiler import ASTSource, CompiledKernel, check_fit, compile, make_backend  # noqa: E402
from tessera.config import knobs  # noqa: E402
from tessera.errors import OutOfResources  # noqa: E402
from tessera.ir import PassManager, parse_module, print_module  # noqa: E402
from tessera.passes.checks.resources import MOST_SPILLED, check_resources, needs_of  # noqa: E402
from tessera.passes.gpu_pipeline import gpu_passes  # noqa: E402
from tessera.runtime.driver import Driver, driver  # noqa: E402

SHARED = "shared memory"


# --- never more than what is needed -----------------------------------------------------------------------------
def larger(specimen: common.Specimen, factor: int) -> common.Specimen:
    """With tiles of `factor` times as many elements along each side that a block parameter gives."""
    constants = {
        name: value * factor if name.startswith("B") and isinstance(value, int) else value
        for name, value in specimen.constants.items()
    }
    return common.Specimen(
        specimen.kernel, specimen.signature, constants, specimen.options, specimen.capabilities
    )


def cases() -> list[Any]:
    return [
        pytest.param(larger(specimen, factor), id=f"{path.stem}-{index}-{factor}x")
        for path in run_all.example_files()
        for index, specimen in enumerate(run_all.load(path).specimens())
        for factor in (1, 4)
    ]


def bytes_behind(text: str, passes: list[Any]) -> tuple[int, bool]:
    """Bytes of shared memory that the GPU passes give the kernel, and whether these fit."""
    module = parse_module(text)
    try:
        PassManager(passes).run(module)
    except OutOfResources as error:
        return (error.required if error.name == SHARED else 0), False
    return module.attrs["shared"], True


@pytest.mark.parametrize("specimen", cases())
@pytest.mark.parametrize(("arch", "num_warps"), [(80, 4), (89, 8), (90, 4), (90, 8)])
def test_bounds_are_lower_bounds(specimen: common.Specimen, arch: int, num_warps: int) -> None:
    """What is refused at first sight is refused by the passes, too; and no bound is above what they come to."""
    backend = make_backend(GPUTarget("cuda", arch, 32))
    options = backend.parse_options({**specimen.options, "num_warps": num_warps, "num_stages": 1})
    try:
        made = source_of(specimen).make_ir(options)
    except tessera.CompilationError:
        pytest.skip("no such tile")
    text = print_module(backend.stages(options)["tir"](made, {}))
    facts = facts_for(arch)
    needs = list(needs_of(parse_module(text), facts))
    first, *others = gpu_passes(facts)
    assert first.name == check_resources.name
    factors = {True: MOST_SPILLED, False: 1}
    if any(n.amount > n.limit * factors[n.spills] for n in needs if n.resource != SHARED):
        return  # what spills for the most part takes a long time to compile
    needed = max((n.amount for n in needs if n.resource == SHARED), default=0)
    given, fits = bytes_behind(text, others)
    assert needed <= given
    assert not (fits and needed > facts.max_shared_bytes)


# --- one bound each -----------------------------------------------------------------------------------------------
@tessera.jit
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    rows, cols, ks = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + rows[:, None] * K + ks[None, :])
    right = tl.load(b + ks[:, None] * N + cols[None, :])
    acc = tl.dot(left, right, input_precision=PRECISION)
    tl.store(c + rows[:, None] * N + cols[None, :], acc)


@tessera.jit
def counted(x, out, BINS: tl.constexpr):
    tl.store(out + tl.arange(0, BINS), tl.histogram(tl.load(x + tl.arange(0, 128)), BINS))


def fit(kernel: Any, signature: dict[str, str], constants: dict[str, Any], **options: Any) -> None:
    backend = make_backend(GPUTarget("cuda", 80, 32))
    src = ASTSource(kernel, signature, constants)
    parsed = backend.parse_options(options)
    backend.check_fit(lambda: src.make_ir(parsed), parsed)


def product_of(m: int, n: int, k: int, kind: str = "fp16", precision: str = "tf32", **options: Any):
    signature = {"a": f"*{kind}", "b": f"*{kind}", "c": "*fp32"}
    fit(product, signature, {"M": m, "N": n, "K": k, "PRECISION": precision}, **options)


def test_operands_of_a_product() -> None:
    product_of(128, 128, 256)
    with pytest.raises(OutOfResources, match="shared memory, Required: 262144") as e:
        product_of(128, 128, 512)
    assert "131072 bytes for load left at" in str(e.value)


def test_operands_of_a_product_by_ordinary_instructions() -> None:
    product_of(64, 64, 128, "fp32", "ieee")
    with pytest.raises(OutOfResources, match="shared memory, Required: 262144"):
        product_of(64, 64, 512, "fp32", "ieee")


def test_registers_of_a_result() -> None:
    product_of(256, 256, 32, num_warps=8)
    with pytest.raises(OutOfResources, match="registers of a thread, Required: 1024") as e:
        product_of(256, 256, 32, num_warps=2)
    assert "256x256, spread over 64 threads" in str(e.value)


@pytest.mark.parametrize(("m", "n", "warps"), [(256, 256, 4), (128, 128, 1), (256, 256, 16)])
def test_what_is_launched_by_itself_may_spill(m: int, n: int, warps: int) -> None:
    constants = {"M": m, "N": n, "K": 32, "PRECISION": "tf32"}
    source = ASTSource(product, {"a": "*fp16", "b": "*fp16", "c": "*fp32"}, constants)
    kernel = compile(source, GPUTarget("cuda", 90, 32), {"num_warps": warps})
    assert kernel.asm["cubin"]


@tessera.jit
def batch(a, b, c):
    n = tl.arange(0, 32)
    at = tl.arange(0, 8)[:, None, None] * 1024 + n[None, :, None] * 32 + n[None, None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@pytest.mark.parametrize("capability", [80, 90])
def test_a_batch_of_fp64_products_of_one_warp(capability: int) -> None:
    source = ASTSource(batch, dict.fromkeys("abc", "*fp64"), {})
    kernel = compile(source, GPUTarget("cuda", capability, 32), {"num_warps": 1})
    assert kernel.metadata.spills > 0


def test_threads() -> None:
    product_of(64, 64, 64, num_warps=32)
    with pytest.raises(OutOfResources, match="threads, Required: 2048, Hardware limit: 1024"):
        product_of(64, 64, 64, num_warps=64)


def test_bins() -> None:
    fit(counted, {"x": "*i32", "out": "*i32"}, {"BINS": 1 << 15})
    with pytest.raises(OutOfResources, match="shared memory, Required: 262144"):
        fit(counted, {"x": "*i32", "out": "*i32"}, {"BINS": 1 << 16})


# --- the autotuner ------------------------------------------------------------------------------------------------
class Gpu(Driver):
    """A GPU that loads all and runs nothing."""

    name = "stub"

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 80, 32)

    def load_kernel(self, kernel: CompiledKernel) -> None:
        kernel.n_regs = kernel.n_spills = 0
        kernel.n_max_threads = 1024
        kernel.launcher, kernel.function, kernel.module = lambda *args: None, 0, self


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """How often GPU passes ran, as a list of one entry each."""
    seen: list[int] = []
    original = nvidia.gpu_passes

    def counting(*args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(nvidia, "gpu_passes", counting)
    with knobs.scope():
        knobs.cache.dir = str(tmp_path)
        knobs.autotuning.processes = 0
        knobs.autotuning.cache = True
        driver.set_active(Gpu())
        yield seen
        driver.reset_active()


def configs(*depths: int) -> list[tessera.Config]:
    return [tessera.Config({"K": k}, num_warps=4) for k in depths]


def tuned(entries: list[tessera.Config]) -> Any:
    def watch(call: Any, quantiles: Any) -> list[float]:
        call()
        return [1.0] * 3

    ruled = tessera.heuristics({"PRECISION": lambda args: "tf32"})(product)
    return tessera.autotune(entries, key=[], do_bench=watch)(ruled)


def test_configs_that_cannot_fit_are_pruned_before_they_are_compiled(
    compiled: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, c = (
        np.zeros(1 << 16, np.float16),
        np.zeros(1 << 16, np.float16),
        np.zeros(1 << 14, np.float32),
    )
    knobs.autotuning.print = True
    kernel = tuned(configs(32, 512, 64, 1024))
    kernel[(1,)](a, b, c, M=128, N=128)
    assert len(compiled) == 2
    assert [config.kwargs["K"] for config in kernel.unfit_configs] == [512, 1024]
    reasons = list(kernel.unfit_configs.values())
    assert "shared memory, Required: 262144, Hardware limit: 166912" in reasons[0]
    shown = capsys.readouterr().out
    assert "K: 512, num_warps: 4, num_ctas: 1, num_stages: 3, maxnreg: None left out: " in shown
    inf = float("inf")
    assert [times[0] for times in kernel.configs_timings.values()] == [1.0, inf, 1.0, inf]
    again = tuned(configs(32, 512, 64, 1024))  # as another process: from disk
    again[(1,)](a, b, c, M=128, N=128)
    assert not again.unfit_configs
    assert again.configs_timings == kernel.configs_timings


def test_all_configs_pruned(compiled: list[int]) -> None:
    kernel = tuned(configs(512, 1024))
    a = np.zeros(1 << 16, np.float16)
    with pytest.raises(OutOfResources, match="shared memory"):
        kernel[(1,)](a, a, np.zeros(1 << 14, np.float32), M=128, N=128)
    assert len(kernel.unfit_configs) == 2
    with pytest.raises(OutOfResources, match="shared memory"):
        kernel.warmup(a, a, np.zeros(1 << 14, np.float32), M=128, N=128, grid=(1,))
    some = tuned(configs(512, 32)).warmup(
        a, a, np.zeros(1 << 14, np.float32), M=128, N=128, grid=(1,)
    )
    assert [k.src.constants[5,] for k in some] == [32]


def test_nothing_is_pruned_for_a_run_on_the_host(compiled: list[int]) -> None:
    driver.reset_active()
    knobs.runtime.default_backend = "cpu"
    kernel = tuned(configs(512, 1024))
    a = np.zeros(1 << 17, np.float16)
    kernel[(1,)](a, a, np.zeros(1 << 14, np.float32), M=128, N=128)
    assert not kernel.unfit_configs


def test_nothing_is_pruned_where_users_replace_stages(compiled: list[int]) -> None:
    def inspect(*about: Any) -> Any:
        return None if about else ("key", "hash")

    knobs.runtime.add_stages_inspection_hook = inspect
    check_fit(
        ASTSource(
            product,
            {"a": "*fp16", "b": "*fp16", "c": "*fp32"},
            {"M": 128, "N": 128, "K": 512, "PRECISION": "tf32"},
        ),
        GPUTarget("cuda", 80, 32),
        {},
    )
