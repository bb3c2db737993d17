"""Small random modules of torch, as transformers writes its architectures, and inputs for them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional

TORCH_WARNS = [  # of its own code, and of the weights of its LSTM
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in (":FutureWarning", ":DeprecationWarning", "The tensor attributes? .*_flat_weights:UserWarning")
]
"""The marks of a test file that exports or compiles modules."""
WHOLE = ("bert", "resnet")
"""The architectures that quick tests take; the others are slow tests."""
_TEXT = {
    "vocab_size": 40, "max_position_embeddings": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "hidden_size": 32, "intermediate_size": 48,
}  # fmt: skip
_IMAGE = {
    "image_size": 16, "patch_size": 4, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32,
    "intermediate_size": 48,
}  # fmt: skip
_TOKENS = {f"{token}_token_id": 1 for token in ("pad", "bos", "eos", "cls", "sep")}
_GATED = {"num_key_value_heads": 2, "use_cache": False, "head_dim": 8}


class Tagger(nn.Module):
    """Vectors of tokens, an LSTM in both directions, scores of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 12)
        self.lstm = nn.LSTM(12, 16, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return scores of shape (batch, tokens, classes)."""
        return self.head(self.lstm(self.table(ids))[0])


class Images(nn.Module):
    """A small residual network: convolutions with groups and dilation, batch norms, pooling, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.grouped, self.deep = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4), nn.Conv2d(8, 8, 3, 1, 1, 1, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of shape (batch, classes)."""
        x = functional.max_pool2d(functional.relu(self.norm(self.first(x))), 3, 2, 1)
        x = x + functional.gelu(self.deep(functional.silu(self.grouped(x))))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Texts(nn.Module):
    """Vectors of tokens, causal attention, a layer norm, scores of the last token."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(20, 16, padding_idx=0), nn.LayerNorm(16)
        self.project, self.head = nn.Linear(16, 48), nn.Linear(16, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return scores of shape (batch, classes)."""
        x = self.norm(self.table(ids))
        q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head((x + found.transpose(1, 2).flatten(2))[:, -1])


def _of(name: str, **settings: Any) -> Callable[[], nn.Module]:
    kind, config = name.split("/") if "/" in name else (name + "Model", name + "Config")
    return lambda: getattr(transformers, kind)(getattr(transformers, config)(**settings))


def texts(batch: int = 3, length: int = 7) -> dict[str, torch.Tensor]:
    """Return ids, and a mask that hides the last two tokens of the first text."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, -2:] = 0
    return {"input_ids": torch.randint(4, 40, (batch, length)), "attention_mask": mask}


def images(batch: int = 3, size: int = 16) -> dict[str, torch.Tensor]:
    """Return random images."""
    return {"pixel_values": torch.randn(batch, 3, size, size)}


def _waves(batch: int = 3) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(batch, 400)}


def _ids(batch: int = 3) -> dict[str, torch.Tensor]:
    return {"ids": torch.randint(0, 40, (batch, 7))}


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[..., dict[str, torch.Tensor]]]] = {
    "bert": (_of("Bert", **_TEXT), texts),
    "roberta": (_of("Roberta", **_TEXT, pad_token_id=1), texts),
    "distilbert": (_of("DistilBert", vocab_size=40, dim=32, hidden_dim=48, n_layers=2, n_heads=4), texts),
    "modernbert": (_of("ModernBert", **_TEXT, local_attention=8, **_TOKENS), texts),
    "mpnet": (_of("MPNet", **_TEXT), texts),
    "t5 encoder": (
        _of("T5EncoderModel/T5Config", vocab_size=40, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4), texts),
    "vit": (_of("ViT", **_IMAGE), images),
    "deit": (_of("DeiT", **_IMAGE), images),
    "clip text": (_of("CLIPTextModel/CLIPTextConfig", **_TEXT, **_TOKENS), texts),
    "clip vision": (_of("CLIPVisionModel/CLIPVisionConfig", **_IMAGE), images),
    "swin": (
        _of("Swin", image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4),
        lambda batch=3: images(batch, 32)),
    "resnet": (
        _of("ResNet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="bottleneck"),
        lambda batch=3: images(batch, 32)),
    "mobilenet v2": (
        _of("MobileNetV2", depth_multiplier=0.25, image_size=32), lambda batch=3: images(batch, 32)),
    "efficientnet": (
        _of("EfficientNet", width_coefficient=0.25, depth_coefficient=0.3, image_size=32, hidden_dim=320),
        lambda batch=3: images(batch, 32)),
    "convnext": (
        _of("ConvNext", hidden_sizes=[8, 16], depths=[1, 2], num_stages=2), lambda batch=3: images(batch, 32)),
    "whisper encoder": (
        lambda: _of("Whisper", num_mel_bins=8, d_model=32, encoder_layers=2, encoder_attention_heads=4,
                    decoder_layers=1, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48,
                    max_source_positions=20, vocab_size=40, pad_token_id=1)().get_encoder(),
        lambda batch=3: {"input_features": torch.randn(batch, 8, 40)}),
    "wav2vec2": (
        _of("Wav2Vec2", vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
            conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4), _waves),
    "patchtst": (
        _of("PatchTST", num_input_channels=2, context_length=32, patch_length=8, patch_stride=8, d_model=16,
            num_hidden_layers=2, num_attention_heads=2, ffn_dim=32), lambda batch=3: {
            "past_values": torch.randn(batch, 32, 2)}),
    "qwen3": (_of("Qwen3", **_TEXT, **_GATED), texts),
    "llama": (_of("Llama", **_TEXT, **_GATED), texts),
    "lstm": (Tagger, _ids),
}  # fmt: skip
"""Name -> (makes the module, makes inputs for a batch)."""


def module(name: str) -> nn.Module:
    """Return a module in inference mode with random weights from a fixed seed."""
    torch.manual_seed(67)
    return ready(MODULES[name][0]())


def ready(found: nn.Module) -> nn.Module:
    """Return a module in inference mode; its convolutions and batch norms keep the size of their inputs."""
    for part in found.modules():
        if isinstance(part, nn.Conv1d | nn.Conv2d) and "parametrizations" not in part._modules:
            nn.init.kaiming_normal_(part.weight)
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean, -0.2, 0.2)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
    return found.eval()


def arrays(tree: object) -> dict[str, np.ndarray]:
    """Return the outputs of a module, or of a model, by their names."""
    found = dict(tree) if hasattr(tree, "keys") else {"output": tree}
    return {name: np.asarray(x.detach() if hasattr(x, "detach") else x) for name, x in found.items() if x is not None}


def assert_near(found: object, expected: object, bound: float = 1e-5) -> None:
    """Compare outputs; the bound is relative to the largest element, or absolute if that is below 1."""
    one, other = arrays(found), arrays(expected)
    if len(one) == len(other) == 1:  # a model returns a single output without its name
        one = dict(zip(other, one.values(), strict=True))
    assert one.keys() == other.keys()
    for name, x in other.items():
        assert one[name].shape == x.shape
        np.testing.assert_allclose(one[name], x, 0, bound * max(1.0, float(np.abs(x).max())), err_msg=name)
