"""The compile driver: sources, keys, the disk cache, stages, dumps, overrides, reproducers, kernels."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource, IRSource, TextSource, compile, get_cache_key, make_backend
from tessera.compiler import compile as compile_for
from tessera.config import knobs
from tessera.config.optimizations import OptimizationWarning
from tessera.errors import (
    CompilationError,
    InternalError,
    InvalidOption,
    LaunchError,
    OutOfResources,
)
from tessera.ir import parse_module, print_module
from tessera.ir.applications import apply
from tessera.runtime.cache.disk import DiskCache

CPU = GPUTarget("cpu", "avx2", 1)
CUDA = GPUTarget("cuda", 90, 32)


@pytest.fixture(autouse=True)
def clean(tmp_path: Path):
    with knobs.scope():
        knobs.cache.dir = str(tmp_path / "cache")
        knobs.cache.dump_dir = str(tmp_path / "dump")
        knobs.cache.override_dir = str(tmp_path / "override")
        knobs.runtime.default_backend = "cpu"
        yield


@tessera.jit
def shift(x, n, by, BLOCK: tl.constexpr = 8):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, i < n) + by, i < n)


SIGNATURE = {"x": "*fp32", "n": "i32", "by": "fp32"}


def source(**changes: Any) -> ASTSource:
    return ASTSource(shift, **{"signature": SIGNATURE, "constexprs": {"BLOCK": 16}, **changes})


def key(
    src: ASTSource | None = None, target: GPUTarget = CPU, toolchain: str = "", **options: Any
) -> str:
    backend = make_backend(target)
    return get_cache_key(src or source(), backend, backend.parse_options(options), toolchain)


def test_what_changes_the_key():
    base = key()
    assert key() == base
    others = [
        key(source(constexprs={"BLOCK": 32})), key(source(constexprs={"BLOCK": 16.0})),
        key(source(signature={**SIGNATURE, "x": "*fp16"})), key(source(attrs={(0,): [["tt.divisibility", 16]]})),
        key(num_warps=8), key(debug=True), key(target=GPUTarget("cpu", "avx512", 1)), key(toolchain="other"),
    ]  # fmt: skip
    knobs.language.fp32_default = "ieee"
    others.append(key())
    knobs.language.fp32_default = None
    assert key() == base
    assert len({base, *others}) == len(others) + 1


def test_the_source_changes_the_key():
    base = key()
    text = shift.src
    try:
        shift._unsafe_update_src(text.replace("+ by", "- by"))
        assert key() != base
    finally:
        shift._unsafe_update_src(text)
    assert key() == base


def test_defaults_and_names_of_sources():
    assert ASTSource(shift, SIGNATURE).constants == {(3,): 8}
    assert (
        source(constexprs={3: 4}).constants == source(constexprs={(3,): 4}).constants == {(3,): 4}
    )
    with pytest.raises(TypeError, match="Signature keys must be string"):
        ASTSource(shift, {0: "*fp32"})  # type: ignore[dict-item]
    named = tessera.jit(
        repr=lambda spec: f"shift_{spec.constants['BLOCK']}_{spec.signature['by']}"
    )(shift.fn)
    assert ASTSource(named, SIGNATURE, {"BLOCK": 16}).name == "shift_16_fp32"
    bad = tessera.jit(repr=lambda spec: "a-b")(shift.fn)
    with pytest.raises(tessera.CompilationError, match="not a valid name"):
        ASTSource(bad, SIGNATURE, {"BLOCK": 16})


def test_products_of_the_cpu():
    kernel = compile(source(), CPU)
    assert {"source", "tir", "llir", "object"} <= set(kernel.asm)
    assert kernel.asm["ttir"] == kernel.asm["tir"]
    assert kernel.kernel == kernel.asm["object"]
    assert kernel.metadata.num_warps == 4
    assert kernel.metadata.target == CPU
    assert kernel.packed_metadata == (4, 1, kernel.metadata.shared)
    assert list(kernel.metadata._fields) == sorted(kernel.metadata._fields)
    with pytest.raises(KeyError, match="Unknown key: 'sass'"):
        kernel.asm["sass"]


def test_ptx_needs_no_gpu():
    backend = make_backend(CUDA)
    stages = backend.stages(backend.parse_options({}))
    assert list(stages)[-1] == "cubin"


def test_targets_and_options():
    with pytest.raises(LaunchError, match="no back end for target"):
        make_backend(GPUTarget("quantum", 1, 1))
    with pytest.raises(KeyError, match="Keyword argument num_warp was specified but unrecognised"):
        compile(source(), CPU, {"num_warp": 4})
    with pytest.raises(LaunchError, match="power of 2"):
        compile(source(), CPU, {"num_warps": 6})
    with pytest.raises(InvalidOption, match="a target must be a GPUTarget, got 'cuda:90'"):
        make_backend("cuda:90")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "options",
    [
        {"maxnreg": -1}, {"ptx_version": 70}, {"ptx_options": 3}, {"arch": 8.5}, {"arch": "nope"}, {"num_stages": -1},
    ],
)  # fmt: skip
def test_options_that_cannot_be(options: dict[str, Any]):
    """LLVM would end the process for some of them."""
    with pytest.raises(InvalidOption, match=next(iter(options))):
        compile(source(), CUDA, options)


@pytest.mark.parametrize(("capability", "isa"), [(80, "8.6"), (90, "8.6"), (120, "8.7")])
def test_code_is_written_in_a_version_that_has_the_target(capability: int, isa: str):
    kernel = compile(source(), GPUTarget("cuda", capability, 32))
    assert f".version {isa}" in kernel.asm["ptx"]


def test_what_is_compiled():
    fn = source().fn
    with pytest.raises(CompilationError, match="the signature's q is no parameter of"):
        ASTSource(fn, {"q": "i32"})
    with pytest.raises(CompilationError, match="the constant Q is no parameter of"):
        ASTSource(fn, {}, {"Q": 1})
    with pytest.raises(CompilationError, match="must be an ASTSource or the path of an IR file"):
        compile(fn, CPU)


class Store:
    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Any]] = {}

    def get(self, key: str) -> dict[str, Any] | None:
        return self.entries.get(key)

    def put(self, key: str, parts: dict[str, Any]) -> None:
        self.entries[key] = parts


def never(*args: Any) -> Any:
    raise AssertionError("compiled although it was in the cache")


def test_the_store():
    store = Store()
    first = compile_for(source(), CPU, store=store)
    again = compile_for(source(), CPU, store=store, run_stages=never)
    assert again.asm["object"] == first.asm["object"]
    assert again.metadata == first.metadata
    knobs.compilation.always_compile = True
    with pytest.raises(AssertionError):
        compile_for(source(), CPU, store=store, run_stages=never)
    knobs.compilation.always_compile = False
    knobs.compilation.store_binary_only = True
    store.entries.clear()
    compile_for(source(), CPU, store=store)
    (entry,) = store.entries.values()
    assert {k for k in entry if k.startswith("asm.")} == {"asm.object"}


def test_metadata_survives_the_disk(tmp_path: Path):
    store = DiskCache(tmp_path / "disk")
    first = compile_for(source(), CPU, {"num_warps": 8}, store=store)
    again = compile_for(source(), CPU, {"num_warps": 8}, store=store, run_stages=never)
    assert again.metadata._fields == first.metadata._fields
    assert again.metadata.num_warps == 8
    assert list(again.metadata.args) == list(first.metadata.args)


def test_ir_files(tmp_path: Path):
    text = compile(source(), CPU).asm["tir"]
    path = tmp_path / "shift.tir"
    path.write_text(text)
    kernel = compile(str(path), CPU)
    assert kernel.name == "shift"
    assert IRSource(str(path)).hash() != ASTSource(shift, SIGNATURE).hash()
    (tmp_path / "empty.ptx").write_text("// nothing")
    with pytest.raises(LaunchError, match="holds no kernel"):
        IRSource(str(tmp_path / "empty.ptx"))


def test_dumps_and_overrides(tmp_path: Path):
    knobs.compilation.dump_ir = True
    plain = compile(source(), CPU)
    folder = tmp_path / "dump" / plain.hash
    assert {p.suffix for p in folder.iterdir()} >= {".tir", ".llir", ".object"}
    replaced = tmp_path / "override" / plain.hash
    replaced.mkdir(parents=True)
    (replaced / "shift.llir").write_text(plain.asm["llir"] + "\n; by hand\n")
    knobs.compilation.override = True
    assert "; by hand" in compile(source(), CPU).asm["llir"]


def test_failures_of_the_compiler_leave_a_reproducer(monkeypatch: pytest.MonkeyPatch):
    backend = type(make_backend(CPU))
    stages = backend.stages

    def broken(self: Any, options: Any) -> Any:
        def fail(module: Any, metadata: Any) -> Any:
            raise ZeroDivisionError("inside")

        return {**stages(self, options), "llir": fail}

    monkeypatch.setattr(backend, "stages", broken)
    with pytest.raises(
        InternalError, match=r"stage 'llir' of the cpu back end failed: ZeroDivisionError: inside"
    ) as e:
        compile(source(), CPU, {"num_warps": 8})
    (note,) = (n for n in e.value.notes if n.startswith("reproducer: "))
    folder = Path(note.removeprefix("reproducer: "))
    parse_module((folder / "input.tir").read_text())  # the last IR that was right
    command = (folder / "command.txt").read_text()
    found = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr  # the stage is whole in a new process


def test_failed_optimizations_leave_the_text_of_what_was_compiled(monkeypatch: pytest.MonkeyPatch):
    """Of IR that was handed over as text, too; its author's source may be unknown."""
    backend = type(make_backend(CPU))
    stages = backend.stages

    def broken(self: Any, options: Any) -> Any:
        whole = stages(self, options)

        def fail(module: Any, metadata: Any) -> Any:
            assert not apply("row-prefetch")
            return whole["llir"](module, metadata)

        return {**whole, "llir": fail}

    monkeypatch.setattr(backend, "stages", broken)
    knobs.compilation.strict = False
    ir = print_module(cast(Any, source()).make_ir(make_backend(CPU).parse_options({})))
    with pytest.warns(OptimizationWarning, match="row-prefetch failed") as told:
        compile(cast(Any, TextSource(ir, "shift", "")), CPU)
    (folder,) = re.findall(r"reproducer: (\S+)", str(told[0].message))
    assert (Path(folder) / "input.tir").read_text() == ir


def test_timings_are_printed(capsys: pytest.CaptureFixture[str]):
    knobs.compilation.time = True
    compile(source(), CPU)
    shown = capsys.readouterr().err
    assert "front end" in shown
    assert "llir" in shown


def test_resources():
    kernel = compile(source(), CPU)
    kernel.check_resources(1 << 20, 1024, 32)
    with pytest.raises(
        OutOfResources, match=r"out of resource: threads, Required: 128, Hardware limit: 64"
    ):
        kernel.check_resources(1 << 20, 64, 32)


def test_direct_launches():
    kernel = tessera.compile(source(), CPU)
    x = np.zeros(16, np.float32)
    kernel[(1, 1, 1)](x.ctypes.data, 16, 1.5, 16)
    np.testing.assert_array_equal(x, 1.5)
    kernel.run(
        1,
        1,
        1,
        0,
        kernel.function,
        kernel.packed_metadata,
        None,
        None,
        None,
        x.ctypes.data,
        16,
        1.0,
    )
    np.testing.assert_array_equal(x, 2.5)
    events: list[str] = []
    kernel.run(
        1, 1, 1, 0, kernel.function, kernel.packed_metadata, "meta", lambda m: events.append(f"enter {m}"),
        lambda m: events.append(f"exit {m}"), x.ctypes.data, 16, 1.0,
    )  # fmt: skip
    assert events == ["enter meta", "exit meta"]
    kernel[(0, 1, 1)](x.ctypes.data, 16, 1.0, 16)
    np.testing.assert_array_equal(x, 3.5)
    assert kernel.n_regs == 0
    data = kernel.launch_metadata((1, 1, 1), 0, x, 16, 1.0).get()
    assert data["name"] == "shift"


def test_the_listener_hears_of_each_kernel(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    knobs.compilation.listener = lambda **facts: heard.append(facts)
    store = DiskCache(tmp_path / "store")
    for _ in range(2):
        compile(source(), CPU, store=store)
    assert [h["cache_hit"] for h in heard] == [False, True]
    assert set(heard[0]["times"]) == {"front end", "tir", "llir", "object"}
    assert heard[1]["metadata"]["name"] == heard[0]["src"].name


def test_a_hook_may_replace_stages() -> None:
    seen: list[str] = []

    def inspect(*facts: Any) -> tuple[str, str] | None:
        if not facts:
            return "seen", "1"
        _backend, stages, _options, _language, target = facts
        kept = stages["llir"]
        assert target == CPU

        def llir(module: Any, metadata: dict[str, Any]) -> Any:
            seen.append(metadata["name"])
            return kept(module, metadata)

        stages["llir"] = llir
        return None

    plain = key()
    knobs.runtime.add_stages_inspection_hook = inspect
    assert key() != plain
    kernel = compile(source(), CPU)
    assert seen == [kernel.name]


def test_hooks_see_a_kernel_loaded_once() -> None:
    events: list[tuple[Any, ...]] = []
    knobs.runtime.kernel_load_start_hook.add(lambda *facts: events.append(("start", *facts)))
    knobs.runtime.kernel_load_end_hook.add(lambda *facts: events.append(("end", *facts)))
    x = np.ones(16, np.float32)
    kernel = shift[(1,)](x, 16, 1.0, BLOCK=16)
    shift[(1,)](x, 16, 1.0, BLOCK=16)
    assert [e[0] for e in events] == ["start", "end"]
    assert events[0][1:] == (None, None, kernel.name, kernel.metadata_group, kernel.hash)
    assert events[1][1:4] == (kernel.module, kernel.function, kernel.name)


def test_defaults_by_knob() -> None:
    cuda, cpu = make_backend(CUDA), make_backend(CPU)
    assert cuda.parse_options({}).default_dot_input_precision == "tf32"
    knobs.language.fp32_default = "tf32x3"
    knobs.runtime.override_arch = "sm80"
    for backend in (cuda, cpu):
        assert backend.parse_options({}).default_dot_input_precision == "tf32x3"
    assert cuda.parse_options({}).arch == "sm80"
    assert cuda.parse_options({"arch": "sm89"}).arch == "sm89"
    kernel = compile(source(), CUDA)
    assert ".target sm_80" in kernel.asm["ptx"]
