"""Small models with random weights, for a training step: each function gives a module and the arguments of its loss."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torchvision
import transformers
from torch import nn
from torchvision.models.convnext import CNBlockConfig

BATCH, TOKENS, WIDTH, VOCABULARY = 8, 256, 512, 4096
Made = tuple[nn.Module, dict[str, torch.Tensor]]


class Classifier(nn.Module):
    """Cross entropy of what `model` makes of images or vectors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(x).float(), labels)


def classifier(model: nn.Module, *shape: int) -> Made:
    return Classifier(model), {"x": torch.randn(BATCH, *shape), "labels": torch.arange(BATCH)}


def mlp() -> Made:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()]
    return classifier(nn.Sequential(*layers), WIDTH)


def convnext() -> Made:
    stages = [CNBlockConfig(64, 128, 1), CNBlockConfig(128, 256, 1), CNBlockConfig(256, None, 1)]
    model = torchvision.models.convnext.ConvNeXt(stages, num_classes=100)
    return classifier(model, 3, 128, 128)


def mobilenet() -> Made:
    row = torchvision.models.mobilenetv3.InvertedResidualConfig
    rows = [row(32, 3, 64, 64, True, "RE", 2, 1, 1.0), row(64, 5, 128, 64, True, "HS", 1, 1, 1.0)]
    return classifier(torchvision.models.MobileNetV3(rows, 256, dropout=0.0), 3, 128, 128)


def resnet() -> Made:
    kind = torchvision.models.resnet.BasicBlock
    return classifier(torchvision.models.ResNet(kind, [1, 1, 1, 1]), 3, 128, 128)


def ids(tokens: int = TOKENS) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, tokens))


SPECIAL: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def language(
    name: str, kind: str = "ForCausalLM", tokens: int = TOKENS, **settings: Any
) -> Callable[[], Made]:
    """A language model of the library `transformers`, by the names of its configuration and its head."""

    def make() -> Made:
        config = getattr(transformers, f"{name}Config")(
            vocab_size=VOCABULARY, **SPECIAL, **settings
        )
        x = ids(tokens)
        return getattr(transformers, name + kind)(config), {"input_ids": x, "labels": x}

    return make


COMMON: dict[str, Any] = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 8}
SIZES = {**COMMON, "intermediate_size": 4 * WIDTH}
GROUPED = {**SIZES, "num_key_value_heads": 2}
NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
START: dict[str, Any] = {"decoder_start_token_id": 0}


def t5() -> Made:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=64, d_ff=4 * WIDTH, num_layers=1, num_heads=8, dropout_rate=0.0,
        **START,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config), {"input_ids": ids(), "labels": ids(64)}


def vit() -> Made:
    config = transformers.ViTConfig(**SIZES, **NO_DROPOUT, image_size=128, patch_size=8)
    config.num_labels = 100
    inputs = {"pixel_values": torch.randn(BATCH, 3, 128, 128), "labels": torch.arange(BATCH)}
    return transformers.ViTForImageClassification(config), inputs


def whisper() -> Made:
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=1, decoder_layers=1, encoder_attention_heads=8,
        decoder_attention_heads=8, encoder_ffn_dim=4 * WIDTH, decoder_ffn_dim=4 * WIDTH, max_source_positions=200,
        dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    inputs = {"input_features": torch.randn(BATCH, 80, 400), "labels": ids(64)}
    return transformers.WhisperForConditionalGeneration(config), inputs


MODELS: dict[str, Callable[[], Made]] = {
    "mlp": mlp,
    "resnet": resnet,
    "densenet": lambda: classifier(torchvision.models.DenseNet(32, (2, 2, 2)), 3, 128, 128),
    "mobilenet": lambda: classifier(
        torchvision.models.mobilenet_v3_small(dropout=0.0), 3, 128, 128
    ),
    "convnext": convnext,
    "squeezenet": lambda: classifier(
        torchvision.models.SqueezeNet("1_1", dropout=0.0), 3, 128, 128
    ),
    "vit": vit,
    "bert": language("Bert", "ForMaskedLM", **SIZES, **NO_DROPOUT),
    "t5": t5,
    "whisper": whisper,
    "gpt2": language(
        "GPT2",
        "LMHeadModel",
        n_embd=WIDTH,
        n_layer=1,
        n_head=8,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
    "llama": language("Llama", **GROUPED),
    "qwen3": language("Qwen3", **GROUPED, head_dim=64),
    "gemma2": language("Gemma2", **GROUPED, head_dim=64),
    "mamba": language("Mamba", tokens=12, hidden_size=WIDTH, num_hidden_layers=1),
    "albert": language("Albert", "ForMaskedLM", **SIZES, **NO_DROPOUT, embedding_size=128),
    "opt": language("OPT", **COMMON, ffn_dim=4 * WIDTH, word_embed_proj_dim=WIDTH, dropout=0.0),
    "bloom": language("Bloom", hidden_size=WIDTH, n_layer=1, n_head=8),
    "gpt-neox": language("GPTNeoX", **SIZES),
    "olmo2": language("Olmo2", **GROUPED),
}
