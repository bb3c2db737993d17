"""GGUF files of random networks, written by the package `gguf` with the changes of llama.cpp's conversion."""

import numpy as np
import pytest
from safetensors.numpy import load_file


def written(path, tensors, network="qwen3", describe=None, **said):
    """Write a file by the package: tensors by name, arrays or pairs of the number of a type and its blocks.

    `describe` is called with the writer, and adds other metadata.
    """
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, network)
    for name, value in said.items():
        writer.add_uint32(name, value)
    if describe is not None:
        describe(writer)
    for name, value in tensors.items():
        if isinstance(value, tuple):
            writer.add_tensor(name, value[1], raw_dtype=gguf.GGMLQuantizationType(value[0]))
        else:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


NETWORKS = {
    "bert": ("BERT", {}), "xlm-roberta": ("BERT", {}), "nomic_bert": ("NOMIC_BERT", {}), "qwen2": ("QWEN2", {}),
    "qwen3": ("QWEN3", {}), "phi3": ("PHI3", {}), "llama": ("LLAMA", {}), "mistral": ("LLAMA", {}),
    "gemma": ("GEMMA", {}),
    "gemma2": ("GEMMA2", {}), "gemma3_text": ("GEMMA3", {}),
}  # fmt: skip


def as_llama_cpp(kind, config, name, tensor):
    """Return a tensor as the conversion of llama.cpp changes it."""
    if kind in ("llama", "mistral") and name.split(".")[-2] in ("q_proj", "k_proj"):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        tensor = (
            tensor.reshape(heads, 2, len(tensor) // heads // 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
        )
    if kind.startswith("gemma") and name.endswith("norm.weight"):
        tensor = tensor + 1
    if kind == "xlm-roberta" and "position_embeddings" in name:
        tensor = tensor[config.pad_token_id + 1 :]
    return np.ascontiguousarray(tensor)


def in_gguf(network, folder, quantized=None, describe=None):
    """Turn a saved folder into one with a GGUF file: by the package's map of names and the changes of llama.cpp."""
    gguf = pytest.importorskip("gguf")
    kind = network.config.model_type
    arch = getattr(gguf.MODEL_ARCH, NETWORKS[kind][0])
    names = gguf.get_tensor_name_map(arch, network.config.num_hidden_layers)
    path, tensors = folder / "model.safetensors", {}
    for name, tensor in load_file(path).items():
        if "pooler" in name:
            continue
        found = names.get_name(name, try_suffixes=(".weight", ".bias")) or names.get_name(
            "model." + name, (".weight", ".bias")
        )
        assert found is not None, name
        tensor = as_llama_cpp(kind, network.config, name, tensor)
        if (
            quantized is not None
            and tensor.ndim == 2
            and tensor.shape[1] % 32 == 0
            and "position" not in name
            and "type" not in name
        ):
            tensors[found] = int(quantized), gguf.quants.quantize(tensor, quantized)
        else:
            tensors[found] = tensor
    written(folder / "model.gguf", tensors, gguf.MODEL_ARCH_NAMES[arch], describe)
    path.unlink()
    return folder


def described(config, add_tokenizer):
    """Return the function that adds the metadata of a decoder's configuration, by the names of the package."""

    def describe(writer):
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        writer.add_key_length(size)
        writer.add_value_length(size)
        writer.add_rope_dimension_count(size)
        ropes = config.rope_parameters
        full = ropes.get("full_attention", ropes)
        writer.add_rope_freq_base(full["rope_theta"])
        if full.get("rope_type") == "linear":
            writer.add_rope_scaling_type(pytest.importorskip("gguf").RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(full["factor"])
        for name in ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping"):
            value = getattr(config, name, None)
            if value is not None and (name != "sliding_window" or config.model_type != "qwen2"):
                getattr(writer, f"add_{name}")(value)
        add_tokenizer(writer)

    return describe


def of_bytes(writer):
    """Add the tokenizer of test_generation: a token for each byte, and an end."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*letters, "<end>"])
    writer.add_token_types([1] * len(letters) + [3])
    writer.add_token_merges([])
    writer.add_eos_token_id(len(letters))
