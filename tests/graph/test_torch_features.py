"""What programs do around a compiled model: export, autocast, custom operations, control flow, distribution."""

# pyright: reportInvalidTypeForm=false
# torch reads schemas of custom operations from annotations, which so name types of a module that may be missing.
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

import torch.nn.functional as F  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402

import tessera  # noqa: E402
import tessera.language as tl  # noqa: E402
from tests.graph.torch_kit import compare, difference, externs  # noqa: E402

# Operations end with their library, and torch may crash where a compiled function still calls one that ended.
LIBRARY = torch.library.Library("tessera_test", "FRAGMENT")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(1)


# --- modes of torch -----------------------------------------------------------------------------------------------
def test_inference_mode():
    with torch.inference_mode():
        compare(lambda x: x.softmax(-1) + 1, torch.randn(4, 5), fullgraph=True)


def test_autocast_around_training():
    linear = torch.nn.Linear(6, 5)

    def f(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return F.gelu(linear(x)).float().sum(-1)

    x = torch.randn(4, 6, requires_grad=True)
    compare(f, x, backward=True, fullgraph=True, options={"numerics": "eager"})
    # "fast" does not round what stays inside of a kernel to bf16, by up to 2^-9 of it.
    compare(f, x, backward=True, fullgraph=True, scale=200.0)


def test_marked_dimensions_are_compiled_once():
    counters.clear()
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x * 2).sum(1), backend="tessera")
    for n in (3, 8, 21):
        x = torch.randn(n, 6)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), (x * 2).sum(1))
    assert counters["stats"]["unique_graphs"] == 1


def test_exported_programs():
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)
    ).eval()
    x = torch.randn(4, 6)
    rows = torch.export.Dim("rows", min=2, max=64)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: rows},)).module()
    torch._dynamo.reset()
    compiled = torch.compile(exported, backend="tessera")
    with torch.no_grad():
        for n in (4, 9):
            y = torch.randn(n, 6)
            torch.testing.assert_close(compiled(y), model(y))


def test_seeds_give_the_same_numbers_again():
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: F.dropout(x, 0.5) + torch.rand(9, device=x.device), backend="tessera"
    )
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(compiled(torch.ones(9)))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_graphs_break_where_they_break_for_eager_backends():
    def f(x: Any) -> Any:
        y = x.exp()
        if y.sum() > 3:
            y = y * 2
        print("", end="")
        return y[y > 1].sum()

    found = []
    for backend in ("aot_eager", "tessera"):
        counters.clear()
        torch._dynamo.reset()
        torch.compile(f, backend=backend)(torch.randn(7))
        found.append(sum(counters["graph_break"].values()))
    assert found[1] <= found[0]
    compare(f, torch.randn(7))


# --- operations of users ------------------------------------------------------------------------------------------
def test_custom_operations_are_externs():
    @torch.library.custom_op("tessera_test::half", mutates_args=())
    def half(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    half.register_fake(torch.empty_like)
    half.register_autograd(lambda ctx, grad: grad / 2)
    graphs = compare(
        lambda x: half(x * 3).exp(),
        torch.randn(5, requires_grad=True),
        backward=True,
        fullgraph=True,
    )
    assert "tessera_test.half.default" in externs(graphs)


def test_custom_operations_that_change_an_argument():
    @torch.library.custom_op("tessera_test::raise_", mutates_args=("x",))
    def raise_(x: torch.Tensor, by: float) -> None:
        x.add_(by)

    def f(x: Any) -> Any:
        y = x * 2
        raise_(y, 1.5)
        raise_(x, 2.0)
        return y + x

    compare(f, torch.randn(5), fullgraph=True)


@tessera.jit
def doubling_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) * 2, i < n)


def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    doubling_kernel[(tessera.cdiv(x.numel(), 16),)](x, out, x.numel(), BLOCK=16)
    return out


@pytest.mark.filterwarnings("ignore:Dynamo")
def test_kernels_of_users():
    """Launched in a compiled function they break the graph; as a custom operation they do not."""
    operation = torch.library.custom_op("tessera_test::doubled", doubled, mutates_args=())
    operation.register_fake(torch.empty_like)
    compare(lambda x: doubled(x + 1).exp(), torch.randn(40))
    compare(lambda x: operation(x + 1).exp(), torch.randn(40), fullgraph=True)


# --- control flow -------------------------------------------------------------------------------------------------
def cond(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x,)) + 1


def while_loop(x: Any) -> Any:
    from torch._higher_order_ops.while_loop import while_loop as loop

    return loop(
        lambda n, y: n < 5,
        lambda n, y: (n + 1, y * 1.5 + 1),
        (torch.zeros((), dtype=torch.int64, device=x.device), x),
    )


def scan(x: Any) -> Any:
    from torch._higher_order_ops.scan import scan as scanned

    return scanned(lambda c, y: (c * 0.5 + y, c + 2 * y), x.new_zeros(6), x)


def kept_scan(x: Any) -> Any:
    """The state is the output too, and what the gradient of tanh keeps: three tensors that must not be one."""
    from torch._higher_order_ops.scan import scan as scanned

    def step(c: Any, y: Any) -> Any:
        following = (c + y).tanh()
        return following, following.clone()

    return scanned(step, x[0] * 0.5, x)


def associative_scan(x: Any) -> Any:
    from torch._higher_order_ops.associative_scan import associative_scan as scanned

    return scanned(lambda a, b: a * b + 1, x, dim=0, combine_mode="generic")


def flex(x: Any) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    q = x.expand(2, 3, 16, 6)
    return flex_attention(q, q * 2, q + 1, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1)


def checkpointed(x: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda x: (x.sin() * x).softmax(-1), x, use_reentrant=False)


FLOW: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "cond, true": (cond, lambda: torch.ones(4, 6)),
    "cond, false": (cond, lambda: -torch.ones(4, 6)),
    "while_loop": (while_loop, lambda: torch.randn(4, 6)),
    "scan": (scan, lambda: torch.randn(4, 6)),
    "associative_scan": (associative_scan, lambda: torch.randn(4, 6)),
    "flex_attention": (flex, lambda: torch.randn(2, 3, 16, 6)),
}


@pytest.mark.parametrize("name", FLOW)
def test_higher_order_operations(name: str):
    function, given = FLOW[name]
    compare(function, given(), fullgraph=True)


@pytest.mark.parametrize("function", [cond, checkpointed, kept_scan])
def test_gradients_of_higher_order_operations(function: Callable[..., Any]):
    """Torch has no gradients of flex_attention on CPUs."""
    compare(function, torch.randn(4, 6, requires_grad=True), backward=True)


# --- other transformations ----------------------------------------------------------------------------------------
def test_transforms_of_functions():
    def loss(w: Any, x: Any) -> Any:
        return ((x @ w).tanh() ** 2).sum()

    def f(w: Any, x: Any) -> Any:
        per_row = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, x)
        return per_row, torch.func.jvp(lambda w: loss(w, x), (w,), (torch.ones_like(w),))[1]

    compare(f, torch.randn(6), torch.randn(4, 6))


def test_distributed_wrappers(tmp_path: Any):
    """DDP and FSDP2 in a world of one process."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        x = torch.randn(3, 6)
        mesh = init_device_mesh(x.device.type, (1,))  # else of the machine's GPUs, if it has some
        sharded = partial(fully_shard, mesh=mesh)
        for wrap in (torch.nn.parallel.DistributedDataParallel, sharded):
            torch.manual_seed(0)
            plain = torch.nn.Sequential(
                torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)
            )
            twin = torch.nn.Sequential(
                torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)
            )
            twin.load_state_dict(plain.state_dict())
            torch._dynamo.reset()
            compiled = torch.compile(wrap(twin), backend="tessera")
            (plain(x) ** 2).sum().backward()
            (compiled(x) ** 2).sum().backward()
            found = [
                p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
                for p in twin.parameters()
            ]
            assert difference(found, [p.grad for p in plain.parameters()]) is None
    finally:
        torch.distributed.destroy_process_group()


def test_eager_may_give_more_tensors_than_tracing_foretells():
    """As attention of a GPU's library does; which ones count is known by their places."""
    LIBRARY.define("three(Tensor x) -> (Tensor, Tensor, Tensor)")
    LIBRARY.impl("three", lambda x: (x + 1, x.new_ones(3), x * 2), "CompositeExplicitAutograd")
    fake = lambda x: (torch.empty_like(x), None, torch.empty_like(x))
    torch.library.register_fake("tessera_test::three", fake, lib=LIBRARY)

    def f(x: Any) -> Any:
        first, _, last = torch.ops.tessera_test.three(x)
        return first.sin() + last

    compare(f, torch.randn(4))


@pytest.mark.parametrize("sums", [None, torch.ones(1, 1)])
def test_what_nobody_uses_need_not_be_as_tracing_foretells(sums: Any):
    """As the sums of cuDNN's attention where none were asked for; `sums`: what eager gives in their place."""
    name = "no_sums" if sums is None else "with_sums"
    LIBRARY.define(f"{name}(Tensor x) -> (Tensor, Tensor, Tensor)")
    LIBRARY.impl(name, lambda x: (x + 1, sums, x * 2), "CompositeExplicitAutograd")
    fake = lambda x: (torch.empty_like(x), x.new_empty(()), torch.empty_like(x))
    torch.library.register_fake(f"tessera_test::{name}", fake, lib=LIBRARY)
    operation = getattr(torch.ops.tessera_test, name)

    def f(x: Any) -> Any:
        first, _, last = operation(x)
        return first.sin() + last

    compare(f, torch.randn(4), fullgraph=True)


def test_eager_may_give_nothing_where_tracing_foretells_a_tensor():
    """As an attention does whose weights nobody asked for."""
    x, w, b = torch.randn(2, 3, 8), torch.randn(24, 8), torch.randn(24)

    def attention(x: Any, w: Any, b: Any, weighed: bool) -> Any:
        given = (x, x, x, 8, 2, w, b, w[:8], b[:8], None, weighed)
        found, weights = torch._native_multi_head_attention(*given)
        return found.sin(), weights

    for weighed in (False, True):
        found = compare(partial(attention, weighed=weighed), x, w, b)
        assert "aten._native_multi_head_attention.default" in externs(found)


def test_a_size_of_what_an_operation_reads_may_be_in_no_memory():
    """As that of a number that is read as a tensor of many elements."""
    LIBRARY.define("total(Tensor x) -> Tensor")
    LIBRARY.impl("total", lambda x: x.sum(), "CompositeExplicitAutograd")
    fake = lambda x: x.new_empty(())
    torch.library.register_fake("tessera_test::total", fake, lib=LIBRARY)
    counted = lambda x, n: torch.ops.tessera_test.total(x.sin().expand(n, 3)) * 2
    compiled = torch.compile(counted, backend="tessera", dynamic=True)
    for n in (2, 5, 600):
        x = torch.randn(())
        assert difference(compiled(x, n), counted(x, n)) is None


def test_memory_of_an_argument_may_be_freed():
    """What reads it before is not put off until it is gone."""

    def f(x: Any) -> Any:
        found = x.sin() + 1
        x.untyped_storage().resize_(0)
        return found.cos()

    torch._dynamo.reset()
    x = torch.randn(1000)
    wanted = torch.cos(torch.sin(x) + 1)
    found = torch.compile(f, backend="tessera", fullgraph=True)(x)
    assert difference(found, wanted) is None
    assert x.untyped_storage().size() == 0


@pytest.mark.parametrize("by_name", [False, True])
def test_places_in_memory_count_from_where_a_tensor_lies(by_name: bool):
    """Temporaries lie in one arena; torch traces each as if it were alone in its memory."""
    where = lambda at: {"storage_offset": at} if by_name else {}

    def put(base: Any, source: Any, at: int) -> Any:
        rest = () if by_name else (at,)
        return torch.as_strided_scatter(base, source, (4, 5), (8, 1), *rest, **where(at))

    def f(x: Any) -> Any:
        small = [g(x)[:4, :5] for g in (torch.sin, torch.cos, torch.tan)]
        wide = [g(x) for g in (torch.exp, torch.tanh, torch.sigmoid)]
        return [put(w, s, at) for at, w, s in zip((0, 3, 8), wide, small, strict=True)]

    compare(lambda x: sum(f(x)), torch.randn(6, 8))
    base = torch.randn(60)
    compare(lambda x: put(x, x[:20].reshape(4, 5).sin(), 12), base[10:])
