"""What only a GPU has: CUDA graphs, Inductor's own launcher, templates on tensor cores, flex attention."""

# pyright: reportIndexIssue=false
from __future__ import annotations

from typing import Any

# isort: off
import tessera.compat  # noqa: F401  before torch._dynamo, which imports triton
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
import triton
import triton.language as tl
from torch._inductor.utils import run_and_get_code
from torch.nn.attention.flex_attention import flex_attention
from triton.tools.tensor_descriptor import TensorDescriptor
import report
# isort: on

inductor_config.compile_threads = 1
inductor_config.fallback_random = True
inductor_config.strict_static_triton_launcher = True
inductor_config.static_launch_user_defined_triton_kernels = True
torch.set_default_device("cuda")


def block(width: int = 256) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)


def case_cuda_graphs() -> None:
    torch._dynamo.reset()
    model = block().eval()
    compiled = torch.compile(model, mode="reduce-overhead")
    x = torch.randn(4, 64, 256)
    with torch.no_grad():
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            found = compiled(x).clone()
        torch.testing.assert_close(found, model(x), rtol=2e-3, atol=2e-3)


def case_training_step() -> float:
    torch._dynamo.reset()
    model = block()
    x = torch.randn(4, 64, 256)

    def step(call: Any) -> list[torch.Tensor]:
        model.zero_grad()
        call(x).square().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    pairs = zip(step(model), step(torch.compile(model)), strict=True)
    error = max((a - b).abs().max().item() for a, b in pairs)
    assert error < 1e-4, error
    return error


def case_every_device() -> None:
    """The same model on each device, in turn; Inductor's launcher loads the kernels on each."""
    torch._dynamo.reset()
    devices = range(torch.cuda.device_count())
    places = [(torch.device("cuda", i), block().to(torch.device("cuda", i))) for i in devices]
    for _ in range(2):
        for device, model in places:
            x = torch.randn(4, 64, 256, device=device)
            found = torch.compile(model)(x)
            found.square().mean().backward()
            assert found.device == device
            torch.testing.assert_close(found, model(x), rtol=2e-3, atol=2e-3)


def case_matmul_templates() -> list[float]:
    """Largest errors of fp16 and bf16 products with an epilogue, beside eager in fp32."""
    errors = []
    for dtype in (torch.float16, torch.bfloat16):
        torch._dynamo.reset()
        a, b = (torch.randn(512, 512).to(dtype) for _ in range(2))
        with inductor_config.patch(max_autotune=True, max_autotune_gemm_backends="TRITON"):
            found = torch.compile(lambda a, b: (a @ b).relu() + 1)(a, b)
        expected = (a.float() @ b.float()).relu() + 1
        errors.append(
            ((found.float() - expected).abs() / expected.abs().clamp(min=16)).max().item()
        )
    assert max(errors) < 1e-2, errors
    return errors


TEMPLATES = {
    "max_autotune": True, "max_autotune_gemm_backends": "TRITON", "max_autotune_conv_backends": "TRITON",
}  # fmt: skip


def same(function: Any, *args: torch.Tensor, close: float = 2e-2) -> str:
    """Compile `function`, compare with eager in fp32, return the generated code."""
    torch._dynamo.reset()
    found, code = run_and_get_code(torch.compile(function), *args)
    expected = function(*(a.float() for a in args))
    torch.testing.assert_close(found.float(), expected, rtol=close, atol=close)
    return "\n".join(code)


def case_other_templates() -> None:
    """Batched products, convolutions and sums of products and biases."""
    torch.manual_seed(0)
    a, b, c = (torch.randn(n).bfloat16() for n in ((8, 256, 128), (8, 128, 192), (192,)))
    x, w = (torch.randn(n).bfloat16() / 8 for n in ((4, 32, 28, 28), (64, 32, 3, 3)))
    with inductor_config.patch(TEMPLATES):
        assert "tl.dot(" in same(lambda a, b: torch.bmm(a, b).relu() / 8, a, b)
        assert "tl.dot(" in same(lambda a, b, c: torch.addmm(c, a, b).sigmoid(), a[0], b[0], c)
        same(lambda x, w: torch.nn.functional.conv2d(x, w, padding=1).relu(), x, w)


def case_persistent_templates_with_descriptors() -> None:
    torch.manual_seed(0)
    a, b = (torch.randn(1024, 1024).half() / 8 for _ in range(2))
    with inductor_config.patch({**TEMPLATES, "triton.enable_persistent_tma_matmul": True}):
        same(lambda a, b: (a @ b).relu() + 1, a, b)


def case_max_autotune_mode() -> None:
    torch._dynamo.reset()
    model = block(512).bfloat16().eval()
    compiled = torch.compile(model, mode="max-autotune")
    x = torch.randn(8, 128, 512).bfloat16()
    with torch.no_grad():
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            found = compiled(x).clone()
        torch.testing.assert_close(found, model(x), rtol=5e-2, atol=5e-2)


@triton.jit
def copy_kernel(source, target, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.program_id(0) * M, tl.program_id(1) * N
    target.store([i, j], source.load([i, j]) * 2)


def case_descriptors_of_the_host() -> None:
    """Inductor's own launcher takes no tensor maps, whoever compiled the kernel."""

    def doubled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        a, b = (TensorDescriptor.from_tensor(t, [32, 64]) for t in (x, out))
        copy_kernel[(4, 4)](a, b, 32, 64)
        return out + 1

    torch._dynamo.reset()
    x = torch.randn(128, 256)
    with inductor_config.patch(strict_static_triton_launcher=False):
        torch.testing.assert_close(torch.compile(doubled, fullgraph=True)(x), 2 * x + 1)


def case_flex_attention() -> None:
    torch._dynamo.reset()
    q, k, v = (torch.randn(2, 4, 256, 64) for _ in range(3))

    def bias(score, b, h, i, j):
        return score - 0.1 * (i - j).abs()

    found = torch.compile(flex_attention)(q, k, v, score_mod=bias)
    i = torch.arange(256)
    mask = -0.1 * (i[:, None] - i[None, :]).abs()
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(found, expected, rtol=5e-3, atol=5e-3)


if __name__ == "__main__":
    report.main(globals())
