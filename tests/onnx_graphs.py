"""Small networks with random weights as ONNX files, as torch's and scikit-learn's exporters write them."""

import warnings
from pathlib import Path

import numpy as np

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXTS = SMALL | {"vocab_size": 97, "max_position_embeddings": 40, "pad_token_id": 0}
IMAGES = SMALL | {"image_size": 32, "patch_size": 8}


def _of(name, config, **options):
    """Return a function that builds a network of transformers from its class, the class of its settings, and these."""

    def network():
        import transformers

        made = getattr(transformers, config)(**options)
        made._attn_implementation = "eager"
        return getattr(transformers, name)(made)

    return network


def _tagger():
    import torch

    class Tagger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(97, 24)
            self.recurrent = torch.nn.LSTM(24, 16, num_layers=2, bidirectional=True, batch_first=True)
            self.head = torch.nn.Linear(32, 5)

        def forward(self, ids):
            return self.head(self.recurrent(self.table(ids))[0])

    return Tagger()


def texts(batch, rng):
    """Return token ids and a mask of texts of different lengths."""
    lengths = 16 - np.arange(batch) % 11
    mask = (np.arange(16) < lengths[:, np.newaxis]).astype(np.int64)
    return {"input_ids": rng.integers(1, 97, (batch, 16)) * mask, "attention_mask": mask}


def _arrays(name, *shape):
    return lambda batch, rng: {name: rng.standard_normal((batch, *shape)).astype(np.float32)}


PIXELS = _arrays("pixel_values", 3, 32, 32)
PIXELS64 = _arrays("pixel_values", 3, 64, 64)
WAVE = _arrays("input_values", 800)

NETWORKS = {
    "bert": (_of("BertModel", "BertConfig", **TEXTS), texts),
    "roberta": (_of("RobertaModel", "RobertaConfig", **TEXTS), texts),
    "distilbert": (_of("DistilBertModel", "DistilBertConfig", vocab_size=97, max_position_embeddings=40, dim=32,
                       n_layers=2, n_heads=4, hidden_dim=64), texts),
    "modernbert": (_of("ModernBertModel", "ModernBertConfig", global_attn_every_n_layers=2, local_attention=8,
                       **TEXTS), texts),
    "vit": (_of("ViTModel", "ViTConfig", **IMAGES), PIXELS),
    "clip_text": (_of("CLIPTextModel", "CLIPTextConfig", eos_token_id=96, **TEXTS), texts),
    "clip_image": (_of("CLIPVisionModel", "CLIPVisionConfig", **IMAGES), PIXELS),
    "swin": (_of("SwinModel", "SwinConfig", image_size=32, patch_size=2, embed_dim=16, depths=[2, 2],
                 num_heads=[2, 4], window_size=4), PIXELS),
    "resnet": (_of("ResNetForImageClassification", "ResNetConfig", embedding_size=16, hidden_sizes=[32, 64],
                   depths=[2, 2], num_labels=7), PIXELS),
    "mobilenet": (_of("MobileNetV2ForImageClassification", "MobileNetV2Config", image_size=32, depth_multiplier=0.25,
                      num_labels=7), PIXELS),
    "efficientnet": (_of("EfficientNetForImageClassification", "EfficientNetConfig", image_size=64, hidden_dim=320,
                         width_coefficient=0.25, depth_coefficient=0.4, num_labels=7), PIXELS64),
    "convnext": (_of("ConvNextForImageClassification", "ConvNextConfig", hidden_sizes=[16, 32], depths=[2, 2],
                     num_stages=2, num_labels=7), PIXELS),
    "whisper": (lambda: _of("WhisperModel", "WhisperConfig", d_model=32, encoder_layers=2, encoder_attention_heads=4,
                            encoder_ffn_dim=64, num_mel_bins=20, max_source_positions=30, vocab_size=97,
                            decoder_layers=1, decoder_attention_heads=4, decoder_ffn_dim=64, pad_token_id=0,
                            bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)().encoder,
                _arrays("input_features", 20, 60)),
    "wav2vec2": (_of("Wav2Vec2Model", "Wav2Vec2Config", conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3),
                     num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4,
                     **{**SMALL, "vocab_size": 32}), WAVE),
    "patchtst": (_of("PatchTSTForPrediction", "PatchTSTConfig", context_length=32, patch_length=8, patch_stride=8,
                     num_input_channels=3, d_model=32, num_attention_heads=4, num_hidden_layers=2, ffn_dim=64,
                     prediction_length=8), _arrays("past_values", 32, 3)),
    "tagger": (_tagger, lambda batch, rng: {"ids": rng.integers(0, 97, (batch, 12))}),
}  # fmt: skip
"""Name -> (function that returns the module, function of (batch, rng) that returns its inputs)."""


def export(name, path, dynamo=False, half=False):
    """Write a network of `NETWORKS` as an ONNX file whose batch is dynamic; `half`: in float16."""
    import torch

    network, inputs = NETWORKS[name]
    torch.manual_seed(67)
    module = network().eval()
    with torch.no_grad():  # vectors that are all zeros or ones would be one initializer
        for vector in (*module.parameters(), *module.buffers()):
            if vector.ndim == 1 and vector.is_floating_point():
                vector += 0.1 * torch.rand_like(vector)
    given = {key: torch.tensor(x) for key, x in inputs(2, np.random.default_rng(1)).items()}
    if half:
        module = module.half()
        given = {key: x.half() if x.is_floating_point() else x for key, x in given.items()}

    class Outputs(torch.nn.Module):
        """Returns tensors only: the classes of transformers are not for exporters."""

        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self, *args):
            out = self.module(**dict(zip(given, args, strict=True)))
            return out if isinstance(out, torch.Tensor) else next(x for x in out.to_tuple() if x is not None)

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        options = {"dynamo": dynamo, "input_names": list(given), "output_names": ["y"]}
        if dynamo:
            options["dynamic_shapes"] = ({0: torch.export.Dim("batch", min=1, max=1024)},) * len(given)
            options["dynamic_shapes"] = (options["dynamic_shapes"],)
            options["verbose"] = False
        else:
            options["dynamic_axes"] = {key: {0: "batch"} for key in (*given, "y")}
            options["opset_version"] = 17
        torch.onnx.export(Outputs(), tuple(given.values()), str(path), **options)
    return Path(path)
