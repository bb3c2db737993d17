"""A decoder that embeds, in llama.cpp, if the packages llama-cpp-python and gguf are installed.

The wheels of llama.cpp do not use all instructions of the machine, so compile it there:

    CMAKE_ARGS=-DGGML_NATIVE=ON .venv-peers/bin/pip install llama-cpp-python gguf
"""

import ctypes
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import transformers

INSTALLED = all(importlib.util.find_spec(name) for name in ("llama_cpp", "gguf"))
TYPES = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}  # types of GGUF, by precision
TOKENS = 1024  # tokens per text, at most
NAMES = {
    "embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm", "mlp.up_proj": "ffn_up",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def save(network: "transformers.Qwen3Model", precision: str, words: int, path: Path) -> None:
    """Write the file of a Qwen3 network with its first `words` tokens, unless it exists."""
    import gguf

    if path.exists():
        return
    config = network.config
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(words)
    writer.add_tokenizer_model("none")
    for name, tensor in network.state_dict().items():
        numbers = tensor.numpy()[:words] if name.startswith("embed_tokens") else tensor.numpy()
        kind = gguf.GGMLQuantizationType[TYPES[precision] if numbers.ndim == 2 else "F32"]
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str:
    """Return the name in GGUF of a tensor of transformers."""
    name = name.removesuffix(".weight")
    if not name.startswith("layers."):
        return f"{NAMES[name]}.weight"
    _, block, rest = name.split(".", 2)
    return f"blk.{block}.{NAMES[rest]}.weight"


class _Model:
    """A network, and a batch of tokens for it."""

    def __init__(self, path: Path, threads: int, **changes: int | bool) -> None:
        import llama_cpp

        self.library = llama_cpp
        self.silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.silent, None)
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = TOKENS
        settings.n_threads = settings.n_threads_batch = threads
        for name, value in changes.items():
            setattr(settings, name, value)
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(TOKENS, 0, 1)

    def compute(self, tokens: list[tuple[int, int, int, bool]]) -> None:
        """Compute tokens: (word, position, sequence, whether its output is wanted)."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for place, (word, position, sequence, is_wanted) in enumerate(tokens):
            batch.token[place], batch.pos[place], batch.n_seq_id[place] = word, position, 1
            batch.seq_id[place][0], batch.logits[place] = sequence, is_wanted
        if self.library.llama_decode(self.context, batch):
            raise RuntimeError("llama.cpp did not compute the tokens")

    def __del__(self) -> None:
        self.library.llama_free(self.context)
        self.library.llama_model_free(self.model)


class Embedder(_Model):
    """The vector of the last token of one text."""

    def __init__(self, path: Path, threads: int) -> None:
        import llama_cpp

        super().__init__(path, threads, embeddings=True, pooling_type=llama_cpp.LLAMA_POOLING_TYPE_LAST)
        self.width = llama_cpp.llama_model_n_embd(self.model)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        llama = self.library
        llama.llama_memory_clear(self.memory, True)
        self.compute([(word, place, 0, place == ids.size - 1) for place, word in enumerate(ids.ravel().tolist())])
        vector = llama.llama_get_embeddings_seq(self.context, 0)
        return np.ctypeslib.as_array(ctypes.cast(vector, ctypes.POINTER(ctypes.c_float)), (self.width,)).copy()


class Decoder(_Model):
    """Continues sequences by the most probable tokens; see generation_contenders.py for the requests."""

    def __init__(self, path: Path, threads: int, sequences: int) -> None:
        super().__init__(path, threads, n_ctx=TOKENS * sequences, n_batch=TOKENS, n_seq_max=sequences)
        self.words = self.library.llama_vocab_n_tokens(self.library.llama_model_get_vocab(self.model))
        self.prompt: list[int] = []
        self.stored = 0  # sequences whose keys and values of the prompt are stored

    def __call__(self, request: np.ndarray) -> np.ndarray:
        first, length, tokens, sequences = request.tolist()
        prompt = [first] + [1] * (length - 1)
        if prompt != self.prompt:
            self.library.llama_memory_clear(self.memory, True)
            self.prompt, self.stored = prompt, 0
        for sequence in range(self.stored, sequences):
            places = enumerate(prompt[:-1])
            self.compute([(word, place, sequence, False) for place, word in places])
        self.stored = max(self.stored, sequences)
        found = [[prompt[-1]] for _ in range(sequences)]
        for place in range(length - 1, length - 1 + tokens):
            self.compute([(words[-1], place, sequence, True) for sequence, words in enumerate(found)])
            for sequence, words in enumerate(found):
                words.append(int(np.argmax(self._logits(sequence))))
        for sequence in range(sequences):
            self.library.llama_memory_seq_rm(self.memory, sequence, length - 1, -1)
        return np.array(found)[:, 1:]

    def _logits(self, place: int) -> np.ndarray:
        logits = self.library.llama_get_logits_ith(self.context, place)
        return np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (self.words,))
