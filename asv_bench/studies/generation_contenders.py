"""The contenders of generation.py: functions of a request that return the generated tokens, (sequences, tokens).

A request is (first token, length, tokens, sequences): each sequence continues the prompt of this length, whose first
token is the given one, by so many tokens, always the most probable ones. All contenders keep the keys and values of the
last prompt, so that only the first request with another first token computes the prompt.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import peers_llama
from workers import Call

if TYPE_CHECKING:
    import torch

OURS = {"bfloat16": "bfloat16", "int8": "int8", "int4": "int4/dynamic/64", "float32": "float32"}


def contenders(precision: str, folder: Path, threads: int, sequences: int) -> dict[str, partial[Call]]:
    """Return the functions that create the contenders, mp_core first."""
    ways = {"mp_core": partial(by_mp_core, folder, OURS[precision], threads)}
    if peers_llama.INSTALLED:
        ways["llama.cpp"] = partial(peers_llama.Decoder, folder / f"{precision}.gguf", threads, sequences)
    if precision in ("float32", "bfloat16"):
        ways["torch"] = partial(by_torch, folder, precision, threads)
    return ways


def by_mp_core(folder: Path, policy: str, threads: int) -> Call:
    import mp_core as mp

    mp.config.set_num_threads(threads)
    generator = mp.models.Generator.from_folder(folder, policy, cache_tokens=16384)

    def call(request: np.ndarray) -> np.ndarray:
        first, length, tokens, sequences = request.tolist()
        prompt = " ".join(f"w{word}" for word in [first] + [1] * (length - 1))
        return np.array([each.tokens for each in generator.generate([prompt] * sequences, tokens)])

    return call


def by_torch(folder: Path, precision: str, threads: int) -> Call:
    """Return the network of transformers."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    return _Torch(model)


class _Torch:
    def __init__(self, model: "torch.nn.Module") -> None:
        self.model = model
        self.caches: dict[tuple[int, int, int], object] = {}

    def __call__(self, request: np.ndarray) -> np.ndarray:
        import torch

        first, length, tokens, sequences = request.tolist()
        prompt = torch.ones((sequences, length), dtype=torch.long)
        prompt[:, 0] = first
        key = first, length, sequences
        with torch.inference_mode():
            if key not in self.caches:
                self.caches = {key: self.model(prompt[:, :-1], use_cache=True, logits_to_keep=1).past_key_values}
            cache, words, found = self.caches[key], prompt[:, -1:], []
            for _ in range(tokens):
                words = self.model(words, past_key_values=cache).logits.argmax(-1)
                found.append(words)
            cache.crop(-tokens)
        return torch.cat(found, 1).numpy()
