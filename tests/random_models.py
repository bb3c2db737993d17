"""Small random networks, written by the transformers library, with its outputs."""

import json
import os
import warnings

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = ["<s>", "<pad>", "</s>", "<unk>", *"abcdefgh"]
SIZES = {
    "vocab_size": 40,
    "max_position_embeddings": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "initializer_range": 0.3,
}
_GEMMA = {
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 8,
    "query_pre_attn_scalar": 12,
    "layer_types": ["sliding_attention", "full_attention"],
    "pad_token_id": 1,
}
_EMBEDDING_GEMMA2 = {
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 12,
    "num_global_key_value_heads": 1,
    "sliding_window": 4,
    "hidden_size_per_layer_input": 6,
    "embedding_dim": 24,
    "layer_types": ["sliding_attention", "full_attention"],
    "pad_token_id": 1,
}
_DEBERTA = {
    "relative_attention": True,
    "share_att_key": True,
    "position_biased_input": False,
    "norm_rel_ebd": "layer_norm",
    "pos_att_type": ["p2c", "c2p"],
    "type_vocab_size": 0,
    "pad_token_id": 1,
}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "pad_token_id": 1}
ARCHITECTURES = {
    "bert": ("Bert", {}),
    "ernie": ("Ernie", {}),
    "ernie with tasks": ("Ernie", {"use_task_id": True}),
    "roberta": ("Roberta", {"pad_token_id": 1}),
    "roberta with another padding token": ("Roberta", {"pad_token_id": 5, "type_vocab_size": 1}),
    "xlm-roberta": ("XLMRoberta", {"type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "camembert": ("Camembert", {"type_vocab_size": 1}),
    "distilbert": ("DistilBert", {"hidden_dim": 48}),
    "distilbert with sinusoids": ("DistilBert", {"hidden_dim": 48, "sinusoidal_pos_embds": True, "activation": "relu"}),
    "mpnet": ("MPNet", {}),
    "modernbert": (
        "ModernBert",
        {"local_attention": 8, **{f"{token}_token_id": 1 for token in ("pad", "bos", "eos", "cls", "sep")}},
    ),
    "electra": ("Electra", {"embedding_size": 16}),
    "electra as wide everywhere": ("Electra", {"embedding_size": 32}),
    "albert": ("Albert", {"embedding_size": 16, "num_hidden_layers": 3}),
    "deberta-v3": ("DebertaV2", _DEBERTA | {"position_buckets": 16}),
    "deberta-v3 without buckets": ("DebertaV2", _DEBERTA),
    "eurobert": (
        "EuroBert",
        {"num_key_value_heads": 2, **{f"{token}_token_id": 1 for token in ("pad", "bos", "eos", "mask")}},
    ),
    "nomic_bert": ("NomicBert", {"pad_token_id": 1}),
    "gte": ("Gte", {}),
    "gte without types": ("Gte", {"type_vocab_size": 0}),
    "jina_embeddings_v3": ("JinaEmbeddingsV3", {"type_vocab_size": 1}),
    "t5": ("T5", _T5),
    "t5 with gates": ("T5", _T5 | {"feed_forward_proj": "gated-gelu"}),
    "mt5": ("MT5", _T5 | {"d_kv": 12}),
    "umt5": ("UMT5", _T5),
    "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 1}),
    "qwen2": ("Qwen2", {"num_key_value_heads": 2, "pad_token_id": 1}),
    "qwen2 both ways": ("Qwen2", {"num_key_value_heads": 2, "pad_token_id": 1, "is_causal": False}),
    "llama": ("Llama", {"num_key_value_heads": 1, "mlp_bias": True, "attention_bias": True, "pad_token_id": 1}),
    "mistral": ("Mistral", {"num_key_value_heads": 2, "sliding_window": 8, "pad_token_id": 1}),
    "phi3": ("Phi3", {"num_key_value_heads": 2, "pad_token_id": 1}),
    "phi3 that sees near tokens": ("Phi3", {"num_key_value_heads": 2, "sliding_window": 8, "pad_token_id": 1}),
    "gemma": ("Gemma", {"num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 1}),
    "gemma2": ("Gemma2", _GEMMA | {"attn_logit_softcapping": 1.5}),
    "gemma2 without caps": ("Gemma2", _GEMMA | {"attn_logit_softcapping": None}),
    "gemma3_text": ("Gemma3Text", _GEMMA),
    "embeddinggemma": ("Gemma3Text", _GEMMA | {"use_bidirectional_attention": True}),
    "embedding_gemma2_text": ("EmbeddingGemma2Text", _EMBEDDING_GEMMA2),
}
"""Name -> how the names of its classes begin, and settings beside the sizes."""

PLANNED = [name for name in ARCHITECTURES if not name.startswith("deberta")]
"""Those that have plans."""
UNSCORED = ("EmbeddingGemma2Text", "EuroBert", "NomicBert", "JinaEmbeddingsV3", "T5", "MT5", "UMT5")
SCORED = [name for name, (start, _) in ARCHITECTURES.items() if start not in UNSCORED]
"""Those whose heads for scores mp_core has."""


def library(name="transformers"):
    """Return a library, which must not ask the network."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def made(name, head="Model", seed=None, **settings):
    """Return a random network of the library, whose biases and norms are random too."""
    import torch

    transformers = library()
    start, own = ARCHITECTURES[name]
    torch.manual_seed(sum(map(ord, name)) if seed is None else seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = getattr(transformers, f"{start}Config")(**SIZES | own | settings)
        config._attn_implementation = "eager"
        head = "EncoderModel" if head == "Model" and start.endswith("T5") else head
        shorter = start.removesuffix("Text")  # Gemma 3 names the settings of its decoder so, not the decoder
        kind = getattr(transformers, start + head, None) or getattr(transformers, shorter + head)
        network = kind(config).eval()
    with torch.no_grad():
        for tensor in network.parameters():
            if tensor.ndim == 1:
                tensor += 0.3 * torch.randn_like(tensor)
        for name, tensor in network.named_buffers():
            if name.endswith("layer_scalar"):  # of EmbeddingGemma 2
                tensor += 0.3 * torch.randn_like(tensor)
    return network


def save(network, folder):
    """Save a network with a tokenizer, as a folder of sentence-transformers without modules.json."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network.save_pretrained(folder)
    return tokenizer_in(folder)


def tokenizer_in(folder):
    """Write a tokenizer and a pooling into a folder."""
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(word, WORDS.index(word)) for word in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def outputs(network, ids, mask):
    """Return the vectors of tokens."""
    import torch

    with torch.no_grad():
        return network(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask))[0].numpy()


def ragged(padding, lengths=(1, 7, 20, 33), seed=0):
    """Return random ids, padded on the right with this token, and their mask."""
    rng = np.random.default_rng(seed)
    mask = np.arange(max(lengths)) < np.array(lengths)[:, np.newaxis]
    ids = rng.integers(6, SIZES["vocab_size"], mask.shape)
    return np.where(mask, ids, padding), mask.astype(np.int64)


def _read_back(network, values, folder):
    """The variables of a model that is read from a network with such parameters: linear, plus constants."""
    from mp_core.models import BertEncoder

    names = [name for name, _ in network.named_parameters()]
    are_added = any("position_embeddings" in name for name in names)  # types and tasks, to the table of positions
    for name, parameter, value in zip(names, network.parameters(), values, strict=True):
        parameter.data = 0 * value if are_added and "_type_embeddings" in name else value
    folder.mkdir()
    model = BertEncoder.from_folder(save(network, folder)).model
    return [variable.numpy() for variable in model.trainable_variables]


def gradients(network, folder):
    """Return the gradients of a network as the trainable variables of a model of it have them; its weights are lost."""
    import torch

    zeros = [torch.zeros_like(each) for each in network.parameters()]  # also for the pooler, which has no gradient
    found = [zero if each.grad is None else each.grad for each, zero in zip(network.parameters(), zeros, strict=True)]
    pairs = zip(_read_back(network, found, folder / "gradients"), _read_back(network, zeros, folder / "zeros"),
                strict=True)  # fmt: skip
    return [gradient - zero for gradient, zero in pairs]
