"""`import triton` meaning tessera: the tree of modules, child processes, errors that help."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit import ROOT, needs_torch, python

from tests.compat_parts import REASONS, explain, folder_name

MODULES = [
    "triton",
    "triton.backends",
    "triton.backends.compiler",
    "triton.backends.driver",
    "triton.backends.nvidia.compiler",
    "triton.backends.nvidia.driver",
    "triton.compiler",
    "triton.compiler.code_generator",
    "triton.compiler.compiler",
    "triton.compiler.errors",
    "triton.errors",
    "triton.experimental",
    "triton.knobs",
    "triton.language",
    "triton.language.core",
    "triton.language.extra.cuda",
    "triton.language.extra.hip.libdevice",
    "triton.language.extra.libdevice",
    "triton.language.math",
    "triton.language.random",
    "triton.language.semantic",
    "triton.language.standard",
    "triton.runtime",
    "triton.runtime._allocation",
    "triton.runtime._async_compile",
    "triton.runtime.autotuner",
    "triton.runtime.cache",
    "triton.runtime.driver",
    "triton.runtime.errors",
    "triton.runtime.interpreter",
    "triton.runtime.jit",
    "triton.testing",
    "triton.tools.tensor_descriptor",
    "triton._C.libtriton.ir",
    "triton._utils",
    "triton._internal_testing",
]

KERNEL = """
import numpy as np
import triton
import triton.language as tl


@triton.jit
def double(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, 2 * tl.load(x + i, i < n), i < n)


def main():
    x = np.arange(100, dtype=np.float32)
    double[(triton.cdiv(100, 64),)](x, 100, BLOCK=64)
    assert (x == 2 * np.arange(100)).all()
    print("doubled by", triton.__file__)
"""


def ours(path: str) -> bool:
    return str(ROOT / "tessera" / "compat" / "path") in path


def test_the_tree_of_modules(tmp_path: Path):
    code = (
        "import importlib, tessera.compat\n"
        f"for m in {MODULES}: print(importlib.import_module(m).__spec__ is not None)"
    )
    assert python(tmp_path, "-c", code).split() == ["True"] * len(MODULES)


def test_a_module_that_is_not_there_says_its_name(tmp_path: Path):
    """Libraries tell an optional module that is missing from an error inside of it by the exception's `name`."""
    for name in (
        "triton.profiler.viewer",
        "triton.backends.amd",
        "triton.experimental.tle.language",
    ):
        code = (
            "import tessera.compat, importlib\n"
            f"try: importlib.import_module({name!r})\n"
            "except ModuleNotFoundError as error: print(error.name)\n"
        )
        missing = python(tmp_path, "-c", code).strip()
        assert missing and (name + ".").startswith(missing + "."), (name, missing)
    code = (
        "import tessera.compat\n"
        "try: from triton.runtime import build\n"
        "except ImportError as error: print(type(error).__name__, error.name)\n"
    )
    assert python(tmp_path, "-c", code).split() == ["ImportError", "triton.runtime"]


def test_names_are_the_same_objects(tmp_path: Path):
    pairs = {
        "triton.jit": "tessera.jit", "triton.language.load": "tessera.language.load", "triton.Config": "tessera.Config",
        "triton.runtime.driver": "tessera.runtime.driver", "triton.runtime.jit.JITFunction": "tessera.JITFunction",
        "triton.compiler.CompiledKernel": "tessera.compiler.CompiledKernel", "triton.knobs": "tessera.knobs",
        "triton.testing.do_bench": "tessera.testing.do_bench", "triton.TritonError": "tessera.TritonError",
        "triton.language.extra.libdevice.exp": "tessera.language.extra.libdevice.exp",
        "triton.runtime.driver.active": "tessera.runtime.driver.active",
    }  # fmt: skip
    checks = "\n".join(f"assert {a} is {b}, {a!r}" for a, b in pairs.items())
    imports = "import tessera.compat, triton, triton.runtime.driver, tessera.knobs, tessera.testing, tessera.compiler\n"
    python(tmp_path, "-c", imports + checks)


def test_tools_that_libraries_ask_for(tmp_path: Path):
    """vLLM asks which assembler there is, and wraps the function that describes specialisations, when it starts."""
    code = """
import tessera.compat, triton.runtime.jit, triton.backends.nvidia.compiler as nvidia
assert callable(triton.runtime.jit.serialize_specialization_data)
assert nvidia.GPUTarget("cuda", 90, 32).arch == 90
from tessera.backends.nvidia import ptxas
try:
    found = ptxas.find_tool("ptxas")
except ptxas.ToolNotFound:
    pass
else:
    tool = nvidia.get_ptxas(90)
    assert tool.path == found and f"V{tool.version}" in nvidia.get_ptxas_version(90)
"""
    python(tmp_path, "-c", code)


def test_what_contexts_hold(tmp_path: Path):
    """Libraries look whether there is an allocator, or take it away; and whether compilations are collected."""
    code = """
import tessera.compat, triton
from concurrent.futures import ThreadPoolExecutor
from triton.runtime._allocation import NullAllocator, _allocator
from triton.runtime._async_compile import AsyncCompileMode, active_mode
print(isinstance(_allocator.get(), NullAllocator))
triton.set_allocator(len)
print(_allocator.get() is len)
triton.set_allocator(NullAllocator())
print(isinstance(_allocator.get(), NullAllocator), active_mode.get())
with ThreadPoolExecutor() as pool, AsyncCompileMode(pool) as mode:
    print(active_mode.get() is mode)
print(active_mode.get(), triton.runtime.RedisRemoteCacheBackend.__name__)
"""
    lines = python(tmp_path, "-c", code).splitlines()
    assert lines == ["True", "True", "True None", "True", "None RedisRemoteCacheBackend"]


def test_the_version_is_that_of_the_interface(tmp_path: Path):
    """torch takes 3.6 and later; libraries avoid operations that older releases got wrong or did not have."""
    out = python(tmp_path, "-c", "import tessera.compat, triton; print(triton.__version__)")
    assert out.strip() == "3.8.0"


RELEASE = """
import importlib.metadata as metadata, triton
assert metadata.version("triton") == triton.__version__, metadata.version("triton")
assert metadata.packages_distributions()["triton"][0] == "triton"
"""


def test_the_release_as_packages_are_asked_for_it(tmp_path: Path):
    """Libraries ask the metadata of a distribution whether Triton is there, and which: in children, too."""
    other = tmp_path / "another" / "triton-2.1.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: triton\nVersion: 2.1.0\n")
    (tmp_path / "child.py").write_text(RELEASE)
    here = f"import sys; sys.path.append({str(other.parent)!r}); import tessera.compat\n{RELEASE}"
    child = f"import subprocess; subprocess.run([sys.executable, {str(tmp_path / 'child.py')!r}], check=True)"
    python(tmp_path, "-c", here + child)


def test_a_kernel_of_triton_in_this_process(tmp_path: Path):
    (tmp_path / "program.py").write_text("import tessera.compat\n" + KERNEL + "\nmain()\n")
    assert ours(python(tmp_path, str(tmp_path / "program.py")))


INNER_NAMES = """
import tessera.compat
import numpy as np
import triton
import triton.language as tl


@triton.jit
def one_and_index(x, out, i_out, N: tl.constexpr, order: tl.constexpr = tl.core.CONSTEXPR_0):
    i = tl.arange(0, N)
    v = tl.load(x + i) + tl.standard.zeros_like(i)
    total = tl.reduce(v, 0, tl.standard._sum_combine) + tl.standard._log2(N) + order
    largest = tl.reduce(v, 0, tl.standard._elementwise_max)
    _, first = tl.reduce((v, i), 0, tl.standard._argmax_combine_tie_break_left)
    tl.store(out, total + largest)
    tl.store(i_out, first)


x, out, where = np.array([3, 9, 1, 9], np.float32), np.zeros(1, np.float32), np.zeros(1, np.int32)
one_and_index[(1,)](x, out, where, N=4)
assert out == 22 + 2 + 9 and where == 1
for m in "core extra math random semantic standard target_info".split():
    assert getattr(tl, m).__name__ == "triton.language." + m
"""


def test_names_inside_of_modules_that_kernels_use(tmp_path: Path):
    (tmp_path / "program.py").write_text(INNER_NAMES)
    python(tmp_path, str(tmp_path / "program.py"))


def test_children_find_it(tmp_path: Path):
    (tmp_path / "child.py").write_text(KERNEL + "\nmain()\n")
    code = (
        "import subprocess, sys, tessera.compat\n"
        f"subprocess.run([sys.executable, {str(tmp_path / 'child.py')!r}], check=True)"
    )
    assert ours(python(tmp_path, "-c", code))


def test_run_a_program(tmp_path: Path):
    source = KERNEL + "\nimport sys\nassert __name__ == '__main__'\nmain()\nprint(sys.argv[1:])\n"
    (tmp_path / "program.py").write_text(source)
    out = python(tmp_path, "-m", "tessera", "run", "program.py", "a", "--b")
    assert ours(out)
    assert "['a', '--b']" in out


def test_run_a_module(tmp_path: Path):
    (tmp_path / "program.py").write_text(KERNEL + "\nimport sys\nmain()\nprint(sys.argv[1:])\n")
    out = python(tmp_path, "-m", "tessera", "run", "-m", "program", "a")
    assert ours(out)
    assert "['a']" in out


@pytest.mark.parametrize("command", [["run"], ["run", "-m"]])
def test_run_without_a_program(tmp_path: Path, command: list[str]):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tessera", *command], env=environment, cwd=tmp_path, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 2
    assert "usage:" in done.stderr


def test_another_triton_that_is_imported_already(tmp_path: Path):
    (tmp_path / "triton.py").write_text("__version__ = '0.0'\n")
    code = (
        "import triton\ntry:\n    import tessera.compat\nexcept ImportError as error:\n    print(error)\n"
        "print(triton.__version__)"
    )
    out = python(tmp_path, "-c", code)
    assert "error[triton-imported]" in out
    assert str(tmp_path / "triton.py") in out
    assert out.endswith("0.0\n")


def test_another_triton_that_is_installed_stays_and_is_not_used(tmp_path: Path):
    (tmp_path / "triton.py").write_text("raise AssertionError\n")
    out = python(tmp_path, "-c", "import tessera.compat, triton; print(triton.__file__)")
    assert ours(out)


def test_missing_names_say_why(tmp_path: Path):
    """Gluon is imported, as vLLM does on every machine; a search for it, by which others ask for it, finds nothing."""
    code = """
import tessera.compat, triton, triton.language as tl, importlib.util
found = importlib.util.find_spec("triton.experimental.gluon")
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
for use in (
    lambda: triton.ops,
    lambda: tl.laod,
    lambda: triton.runtime.build,
    lambda: triton.compiler.code_generator.CodeGenerator,
    lambda: gluon.jit,
    lambda: gl.arange,
):
    try:
        use()
    except AttributeError as error:
        print(error)
for use in (
    "from triton.runtime import build", "import triton.tools.link as linker",
    "import triton.experimental.gluon.amd", "from triton.experimental.gluon.language import nvidia",
    "from triton.tools.compile import main", "from triton.language import laod",
):
    try:
        exec(use)
    except ImportError as error:
        print(error)
print(importlib.util.find_spec("triton.tools.link"), hasattr(triton.tools, "link"), found)
"""
    lines = python(tmp_path, "-c", code).splitlines()
    assert lines[0].startswith(
        "tessera has no `triton.ops`: left Triton with release 3.0; the nearest is"
    )
    assert lines[1] == "tessera has no `triton.language.laod`; did you mean `load`?"
    assert "needs no C compiler" in lines[2]
    assert "tessera.frontend" in lines[3]
    assert lines[4].startswith("tessera has no `triton.experimental.gluon.jit`: layouts are")
    assert lines[5].startswith(
        "tessera has no `triton.experimental.gluon.language.arange`: layouts"
    )
    assert "needs no C compiler" in lines[6]
    assert "no C sources" in lines[7]
    assert "layouts are the compiler's business" in lines[8]
    assert "layouts are the compiler's business" in lines[9]
    assert "no C sources" in lines[10]
    assert lines[11].endswith("did you mean `load`?")
    assert lines[12] == "None False None"


@needs_torch
def test_block_scaled_numbers(tmp_path: Path):
    code = """
import tessera.compat, torch
from triton.tools.mxfp import MXFP4Tensor, MXScaleTensor
x = torch.tensor([[0.2, 0.25, 0.3, 2.5, 3.5, 5.0, -7.0], [-0.5, 1.25, 1.75, 0.75, 6.0, 4.9, -0.0]])
t = MXFP4Tensor(x)
print(t.to(torch.float32).tolist())
for dim in (0, 1):
    packed = t.to_packed_tensor(dim)
    print(tuple(packed.shape), torch.equal(t.unpack_packed_tensor(packed, dim, x.shape), t.data))
print(sorted(set(MXFP4Tensor(size=(64, 64)).random().data.flatten().tolist())) == list(range(16)))
s = MXScaleTensor(torch.tensor([1.0, 3.0, 0.3, 2.0**-127, 2.0**127, 0.0, float("inf")]))
print(s.data.tolist(), s.to(torch.float64)[:5].tolist())
r = MXScaleTensor(size=(1000,)).random(low=0.25, high=8).to(torch.float32)
print(r.min().item(), r.max().item())
"""
    lines = python(tmp_path, "-W", "ignore", "-c", code).splitlines()
    assert lines[0] == (
        "[[0.0, 0.0, 0.5, 2.0, 4.0, 4.0, -6.0], [-0.5, 1.0, 2.0, 1.0, 6.0, 4.0, -0.0]]"
    )
    assert lines[1:4] == ["(1, 7) True", "(2, 4) True", "True"]
    powers = [1.0, 2.0, 0.25, 2.0**-127, 2.0**127]
    assert lines[4] == f"[127, 128, 125, 0, 254, 255, 255] {powers}"
    assert lines[5] == "0.25 8.0"


def test_every_reason_is_complete():
    for name, (why, instead) in REASONS.items():
        assert instead, name
        module, _, last = name.rpartition(".")
        assert explain(module, last).startswith(f"tessera has no `{name}`")
        assert why != instead


def test_no_reason_for_a_name_that_is_there(tmp_path: Path):
    code = f"""
import importlib, tessera.compat
for name in {list(REASONS)}:
    module, last = name.rsplit(".", 1)
    try:
        found = importlib.import_module(module)
    except ImportError:
        continue
    assert not hasattr(found, last), name
"""
    python(tmp_path, "-c", code)


def test_folder_names():
    assert folder_name("00" * 32) == "A" * 52
    assert folder_name("ff" * 5) == "7" * 8


def test_builtins_of_another_library(tmp_path: Path):
    """Functions marked as builtins of Triton run while compiling and get the language's values."""
    (tmp_path / "program.py").write_text("""
import numpy as np
import tessera.compat
import triton
import triton.language as tl


def builtin(function):
    function.__triton_builtin__ = True
    return function


@builtin
def covering(n, *, _builder=None):
    assert isinstance(n, tl.constexpr)
    return tl.constexpr(triton.next_power_of_2(n.value))


@builtin
def if_masked(mask, value, *, _builder=None):
    return tl.constexpr(None) if isinstance(mask, tl.constexpr) and mask.value is None else value


@triton.jit
def double(x, out, N: tl.constexpr):
    i = tl.arange(0, covering(N))
    tl.store(out + i, 2 * tl.load(x + i, i < N, if_masked(i < N, 0.0)), i < N)


x = np.arange(50, dtype=np.float32)
out = np.zeros_like(x)
double[(1,)](x, out, N=50)
assert (out == 2 * x).all()
""")
    python(tmp_path, str(tmp_path / "program.py"))


@needs_torch
def test_what_libraries_ask_the_driver_for(tmp_path: Path):
    code = """
import tessera.compat, torch, triton
active = triton.runtime.driver.active
assert active.get_active_torch_device() == torch.device("cpu")
assert active.get_device_interface() is torch.cpu
cache = active.get_empty_cache_for_benchmark()
cache.fill_(1)
active.clear_cache(cache)
assert cache.max().item() == 0
assert min(active.get_benchmarker()(lambda: None, quantiles=(0.5, 0.2, 0.8))) >= 0
assert active.utils.get_device_properties(0) == {}
"""
    python(tmp_path, "-c", code, TESSERA_DEFAULT_BACKEND="cpu")


def test_files_kept_by_key(tmp_path: Path):
    code = f"""
import os, tessera.compat, triton
from triton.runtime.cache import FileCacheManager, get_cache_manager, get_dump_manager
triton.knobs.cache.dir, triton.knobs.cache.dump_dir = {str(tmp_path / "kept")!r}, {str(tmp_path / "dumped")!r}
files = get_cache_manager("ab" * 32)
assert isinstance(files, FileCacheManager) and files.get_file("x.so") is None
path = files.put(b"binary", "x.so")
assert path == files.get_file("x.so") and path.startswith({str(tmp_path / "kept")!r})
files.put("text", "x.txt", binary=False)
assert open(files.get_file("x.txt")).read() == "text" and len(os.listdir(files.cache_dir)) == 2
assert files.get_group("all.json") is None
files.put_group("all.json", {{"x.so": path, "gone": path + ".gone"}})
assert get_cache_manager("ab" * 32).get_group("all.json") == {{"x.so": path}}
assert not get_dump_manager("ab" * 32).has_file("x.so")
print("fine")
"""
    assert python(tmp_path, "-c", code).strip() == "fine"


def test_messages_name_triton(tmp_path: Path):
    code = """
import tessera.compat, triton, triton.language as tl
try:
    tl.arange(0, 4)
except ValueError as error:
    print(error)
"""
    assert "Did you forget to add @triton.jit ?" in python(tmp_path, "-c", code)
