"""What only a GPU has: CUDA graphs, Inductor's own launcher, templates on tensor cores, flex attention."""

from __future__ import annotations

# isort: off
import tessera.compat  # noqa: F401  before torch._dynamo, which imports triton
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch.nn.attention.flex_attention import flex_attention
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

    def step(call: torch.nn.Module) -> list[torch.Tensor]:
        model.zero_grad()
        call(x).square().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    pairs = zip(step(model), step(torch.compile(model)), strict=True)
    error = max((a - b).abs().max().item() for a, b in pairs)
    assert error < 1e-4, error
    return error


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
