"""The page of knobs is what the knobs say; Triton's knobs are all there, or say why not."""

from __future__ import annotations

from pathlib import Path

import pytest

import tessera.knobs as module
from tessera.config import Knobs, knobs

PAGE = Path(__file__).resolve().parents[2] / "docs" / "knobs.md"
NAMES = """
runtime.interpret runtime.debug runtime.override_arch runtime.launch_enter_hook runtime.launch_exit_hook
runtime.kernel_load_start_hook runtime.kernel_load_end_hook runtime.kernel_unload_hook runtime.jit_cache_hook
runtime.jit_post_compile_hook runtime.add_stages_inspection_hook cache.dir cache.home_dir cache.dump_dir
cache.override_dir cache.manager_class cache.remote_manager_class compilation.always_compile compilation.dump_ir
compilation.override compilation.store_binary_only compilation.use_ir_loc compilation.enable_asan
compilation.disable_line_info compilation.front_end_debugging compilation.allow_non_constexpr_globals
compilation.instrumentation_mode compilation.dump_ir_extract_di_local_variables compilation.listener autotuning.print
autotuning.cache autotuning.listener language.fp32_default language.default_fp_fusion nvidia.ptxas
nvidia.ptxas_blackwell nvidia.cuobjdump nvidia.nvdisasm nvidia.ptxas_options nvidia.dump_nvptx
nvidia.disable_ptxas_opt nvidia.libdevice_path nvidia.libcuda_path nvidia.mock_ptx_version nvidia.dump_ptxas_log
redis.key_format redis.host redis.port build.cc build.cudacrt_path build.cudart_path build.impl build.backend_dirs
"""


@pytest.mark.parametrize("path", NAMES.split())
def test_knobs_of_triton(path: str):
    title, name = path.split(".")
    group = getattr(module, title)
    why = group.absent().get(name)
    if why is None:
        assert name in group.descriptors()
        getattr(group, name)
        return
    for use in (lambda: getattr(group, name), lambda: setattr(group, name, None)):
        with pytest.raises(AttributeError) as caught:
            use()
        assert str(caught.value) == f"tessera has no knob {path}: {why}"
    assert not hasattr(group, name)
    assert f"| `{path}` | {why} |" in PAGE.read_text()


def test_groups_that_are_not_there():
    for title, word in (("amd", "AMD"), ("proton", "profiler"), ("amdd", "no group")):
        with pytest.raises(AttributeError, match=word):
            getattr(module, title)
    assert not hasattr(module, "amd")


def test_the_module_has_every_group():
    assert all(getattr(module, g.title) is g for g in knobs.groups())
    assert {g.title for g in Knobs().groups()} <= set(module.__all__)


def test_what_has_no_effect_can_be_set():
    """Programs set these without asking what for: TorchInductor the path of libdevice."""
    with knobs.scope():
        before = knobs.cache_key_values()
        knobs.nvidia.libdevice_path = "/somewhere/libdevice.10.bc"
        knobs.build.cc = "clang"
        assert knobs.nvidia.libdevice_path == "/somewhere/libdevice.10.bc"
        assert knobs.cache_key_values() == before
