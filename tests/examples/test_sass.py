"""What ptxas makes of the examples for Hopper: tensor-core and TMA instructions, nothing in local memory.

No GPU is needed: ptxas and nvdisasm come with the dev extra (wheels for Linux)."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tessera.backends.nvidia import ptxas
from tests.unit.specimens import compile_specimen

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import run_all  # noqa: E402

import common  # noqa: E402

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="NVIDIA publishes ptxas and nvdisasm for Linux and Windows only"
)
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_]+)", re.M)
LOCAL = ("LDL", "STL")
# What ptxas puts behind a copy that it thinks several threads make.
THREAD_LOOP = re.compile(r"UTMALDG(?:[^\n]*\n){1,10}[^\n]*BRA\.U\.ANY")


def example(number: str) -> Any:
    (path,) = EXAMPLES.glob(f"{number}-*.py")
    return run_all.load(path)


def products_through_pointers() -> list[Any]:
    """Aligned rows: the loads go by the TMA unit; so does the result of CTAs that are alone on an SM."""
    split = [made for made in example("15").specimens() if "a_ptr" in made.signature]
    found: list[Any] = []
    for index, made in enumerate([*example("03").specimens(), *split]):
        alone = (made.constants["BLOCK_M"], made.constants["BLOCK_N"]) == (128, 256)
        wanted = ("HGMMA", "UTMALDG", "UTMASTG" if alone else "STG|RED|REDG")
        found.append(pytest.param(made, wanted, id=f"{made.kernel.__name__}-{index}"))
    (stream,) = example("10").specimens()
    return [*found, pytest.param(stream, ("HGMMA", "UTMALDG", "ATOMG"), id="stream-k")]


def products_through_descriptors() -> list[Any]:
    """The persistent kernel on every kind of element that multiplies on tensor cores as fast as they can."""
    module = example("11")
    cases = {
        "fp16": ("fp16", "fp16", 64, "HGMMA"),
        "bf16": ("bf16", "bf16", 64, "HGMMA"),
        "fp8": ("fp8e4nv", "fp16", 128, "QGMMA"),
        "tf32": ("fp32", "fp32", 32, "HGMMA"),
    }
    found: list[Any] = []
    for name, (element, result, k, product) in cases.items():
        tile = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": k, "GROUP_M": 8}
        signature = {
            "a_desc": f"tensordesc<{element}[128, {k}]>", "b_desc": f"tensordesc<{element}[256, {k}]>",
            "c_desc": f"tensordesc<{result}[128, 256]>", **dict.fromkeys("MNK", "i32"),
        }  # fmt: skip
        options = {"num_warps": 8, "num_stages": 3}
        made = common.Specimen(module.persistent_kernel.fn, signature, tile, options)
        found.append(pytest.param(made, (product, "UTMALDG", "UTMASTG"), id=f"descriptors-{name}"))
    return found


def attention() -> list[Any]:
    """The configurations that are tried first."""
    module = example("06")
    kernels = {
        "forward": (module.forward_kernel, module.FORWARD),
        "keys": (module.key_gradient_kernel, module.KEYS),
        "queries": (module.query_gradient_kernel, module.QUERIES),
    }
    found: list[Any] = []
    for name, (kernel, table) in kernels.items():
        specimen = next(s for s in module.specimens() if s.kernel is kernel)
        for dim, causal in ((64, False), (64, True), (128, False), (128, True)):
            block_m, block_n, warps, stages = table[dim > 64][0]
            constants = {
                "CAUSAL": causal, "EVEN": True, "BLOCK_M": block_m, "BLOCK_N": block_n, "DIM": dim,
                "GROUP": 16,
            }  # fmt: skip
            options = {"num_warps": warps, "num_stages": stages}
            made = common.Specimen(kernel, specimen.signature, constants, options)
            label = f"attention-{name}-{dim}" + "-causal" * causal
            found.append(pytest.param(made, ("HGMMA",), id=label))
    return found


def attention_through_descriptors() -> list[Any]:
    """Large tiles hand the producer's registers over."""
    found: list[Any] = []
    for made in example("12").specimens():
        tile, warps = made.constants, made.options["num_warps"]
        wanted = ("HGMMA", "UTMALDG", "UTMASTG", *(["USETMAXREG"] if warps >= 8 else []))
        label = (
            f"descriptors-attention-{tile['DIM']}-{tile['BLOCK_M']}" + "-causal" * tile["CAUSAL"]
        )
        found.append(pytest.param(made, wanted, id=label))
    return found


def streams() -> list[Any]:
    """Kernels bound by memory: loads into registers, or copies that pass by them."""
    return [
        pytest.param(made, ("LDG|LDGSTS", "STG"), id=f"{number}-{made.kernel.__name__}-{index}")
        for number in ("02", "04", "05", "07", "08", "13")
        for index, made in enumerate(example(number).specimens())
    ]


@pytest.mark.parametrize(
    ("specimen", "wanted"),
    [
        *products_through_pointers(),
        *products_through_descriptors(),
        *attention(),
        *attention_through_descriptors(),
        *streams(),
    ],
)
def test_instructions(specimen: common.Specimen, wanted: tuple[str, ...]):
    kernel = compile_specimen(specimen, 90)
    assert kernel.metadata.spills == 0
    if "GMMA" in wanted[0]:  # no product waits for another one without need: C7510 to C7519
        assert ptxas.assemble(kernel.asm["ptx"], "sm_90a").warnings == ()
    counts = instructions(kernel.asm["cubin"])
    for names in wanted:
        assert any(counts[name] for name in names.split("|")), f"no {names} among {counts}"
    assert not any(counts[name] for name in LOCAL)
    assert not THREAD_LOOP.search(kernel.asm["sass"]), "copies in a loop over threads"


INDEXED = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p) {
  .reg .b64 %rd<5>;
  .reg .b32 %r<5>;
  .reg .pred %q;
  .local .align 4 .b8 table[1024];
  ld.param.u64 %rd1, [p];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u64 %rd3, table;
again:
  ld.volatile.global.u32 %r1, [%rd2];
  setp.gt.u32 %q, %r1, 255;
  @%q ret;
  mad.wide.u32 %rd4, %r1, 4, %rd3;
  ld.local.u32 %r2, [%rd4];
  add.u32 %r3, %r2, 1;
  st.local.u32 [%rd4], %r3;
  st.global.u32 [%rd2], %r2;
  bra again;
}
"""


def test_instructions_are_counted():
    """Of an array that a thread indexes; the first of two exits is predicated."""
    counts = instructions(ptxas.assemble(INDEXED, "sm_90a").cubin)
    assert [counts[name] for name in ("LDL", "STL", "STG", "EXIT")] == [1, 1, 1, 2]


def instructions(cubin: bytes) -> Counter[str]:
    """How often each instruction stands in the code, by its name without modifiers."""
    return Counter(INSTRUCTION.findall(ptxas.disassemble(cubin)))
