"""Teams in kernels whose loops are inside of `while` loops, on a Hopper GPU, against torch in float64."""

# pyright: basic
from __future__ import annotations

import pytest

from tests.examples_kit import EXAMPLES, run_all
from tests.gpu.hopper import needs_hopper
from tests.unit.while_loops_kit import (
    counting,
    layers,
    own_layers,
    some_layers,
    strips,
)

torch = pytest.importorskip("torch")
pytestmark = needs_hopper


def halves(*shape: int):
    return torch.randn(*shape, device="cuda", dtype=torch.float16)


def close(found, want) -> None:
    assert (found.double() - want).abs().max() <= 3e-3 * want.abs().max()


@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize(("programs", "most"), [(1, 1000), (7, 9), (132, 1000)])
@pytest.mark.parametrize("mode", ["", "mask", "down"])
def test_loops_in_a_while_loop(mode: str, programs: int, most: int, warps: int):
    torch.manual_seed(0)
    m, n, k = 20000, 128, 136 if mode == "mask" else 192
    a, b = halves(m, k), halves(k, n)
    for _ in range(5):
        c = torch.full((m, n), 7.0, device="cuda", dtype=torch.float16)
        kernel = strips[(programs,)](
            a, b, c, m, n, k, -(-m // 128), most, mode == "mask", mode == "down", 128, 128, 64,
            num_warps=warps, num_stages=4,
        )  # fmt: skip
        assert kernel.metadata.tensor_maps
        want = c.double()
        for program in range(programs):
            tile, done = program, 0
            while tile < -(-m // 128) and done < most:
                steps = min(tile * 5 % 4, -(-k // 64))
                rows = slice(128 * tile, 128 * tile + 128)
                want[rows] = a[rows, : 64 * steps].double() @ b[: 64 * steps].double()
                tile, done = tile + programs, done + steps
        close(c, want)


@pytest.mark.parametrize("k", [192, 200])
def test_a_loop_that_counts(k: int):
    torch.manual_seed(0)
    a, b = halves(1000, k), halves(k, 128)
    c = torch.empty(1000, 128, device="cuda", dtype=torch.float16)
    counting[(8,)](a, b, c, 1000, 128, k, a, False, 128, 128, 64)
    close(c, a.double() @ b.double())


@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("mode", ["pointers", "own"])
def test_layers_in_place(mode: str, warps: int):
    """Each reads what the one before wrote: the TMA unit must see it."""
    torch.manual_seed(0)
    count, width = 30, 128
    w = torch.linalg.qr(torch.randn(count, width, width, device="cuda"))[0]
    w = (8 * w).half().contiguous()
    for _ in range(20):
        x = halves(width, width)
        want = x
        for matrix in w:
            want = (want.float() @ matrix.float() * 0.125).half()
        if mode == "pointers":
            layers[(1,)](
                x, w, x, width, count * width, count, "", width, 64, num_warps=warps, num_stages=4
            )
        else:
            own_layers[(1,)](
                x, w, width, count * width, count, "", width, 64, num_warps=warps, num_stages=4
            )
        assert (x.double() - want.double()).abs().max() <= 2e-2 * want.abs().max()


@pytest.mark.parametrize("mode", ["branch", "loop", "counted", "unknown"])
def test_layers_of_which_some_are_in_place(mode: str):
    torch.manual_seed(0)
    count, width = 30, 128
    w = torch.linalg.qr(torch.randn(count, width, width, device="cuda"))[0]
    w = (8 * w).half().contiguous()
    for _ in range(20):
        x, y = halves(width, width), halves(width, width)
        want = x
        for layer, matrix in enumerate(w):
            if layer % 3 > 0:
                want = (want.float() @ matrix.float() * 0.125).half()
        some_layers[(1,)](x, w, y, width, count * width, count, mode, width, 64, num_stages=4)
        assert (x.double() - want.double()).abs().max() <= 2e-2 * want.abs().max()


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1536, 1536, 1024), (1000, 1096, 520), (128, 128, 8192), (300, 200, 1000)]
)
def test_stream_k(m: int, n: int, k: int):
    torch.manual_seed(0)
    module = run_all.load(next(EXAMPLES.glob("10-*.py")))
    device = module.common.Device("cuda")
    call = module.StreamMatmul(device, m, n, k)
    a, b = halves(m, k), halves(k, n)
    for _ in range(50):
        call.c.fill_(float("nan"))
        call.run(a, b)
        close(call.c, a.double() @ b.double())
    assert not call.ready.any()
