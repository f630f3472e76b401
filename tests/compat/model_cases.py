"""Small models with random weights: a training step by stock Inductor on tessera beside the same in eager."""

from __future__ import annotations

from typing import Any

# isort: off
import tessera.compat  # noqa: F401  before torch._dynamo, which imports triton
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
import transformers
import report
# isort: on

inductor_config.cpu_backend = "triton"
inductor_config.triton.autotune_pointwise = False
inductor_config.fallback_random = True
inductor_config.compile_threads = 1

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
START: dict[str, Any] = {"decoder_start_token_id": 0}


def gradient_error(model: Any, inputs: dict[str, Any]) -> float:
    """The largest difference of a gradient, relative to the largest gradient of its parameter if that is above 1."""

    def step(call: Any) -> dict[str, torch.Tensor]:
        model.zero_grad()
        loss = call(**inputs).loss
        loss.backward()
        found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        return {**found, "loss": loss.detach()}

    torch._dynamo.reset()
    model.train()
    expected, found = step(model), step(torch.compile(model))
    assert expected.keys() == found.keys()
    return max(
        ((found[n] - e).abs().max() / e.abs().max().clamp(min=1)).item()
        for n, e in expected.items()
    )


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 300, shape)


def case_bert() -> float:
    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL, **NO_DROPOUT, vocab_size=300)
    model = transformers.BertForSequenceClassification(config)
    return gradient_error(model, {"input_ids": tokens(2, 16), "labels": torch.tensor([0, 1])})


def case_llama() -> float:
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SMALL, num_key_value_heads=2, vocab_size=300)
    )
    ids = tokens(2, 16)
    return gradient_error(model, {"input_ids": ids, "labels": ids, "use_cache": False})


def case_vit() -> float:
    torch.manual_seed(0)
    config = transformers.ViTConfig(**SMALL, **NO_DROPOUT, image_size=32, patch_size=8)
    model = transformers.ViTForImageClassification(config)
    return gradient_error(
        model, {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])}
    )


def case_mamba() -> float:
    torch.manual_seed(0)
    model = transformers.MambaForCausalLM(
        transformers.MambaConfig(hidden_size=32, state_size=8, num_hidden_layers=1, vocab_size=300)
    )
    ids = tokens(2, 8)
    return gradient_error(model, {"input_ids": ids, "labels": ids, "use_cache": False})


def case_t5() -> float:
    torch.manual_seed(0)
    config = transformers.T5Config(
        d_model=64, d_kv=16, d_ff=128, num_layers=1, num_heads=4, vocab_size=300, dropout_rate=0.0,
        **START,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    return gradient_error(
        model, {"input_ids": tokens(2, 16), "labels": tokens(2, 8), "use_cache": False}
    )


if __name__ == "__main__":
    report.main(globals())
