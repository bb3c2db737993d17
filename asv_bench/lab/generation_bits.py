"""Continue 100 prompts by a small decoder under three policies, on every instruction set and some numbers of threads,
and print the SHA-256 of all tokens and logits: one for each policy, here and on every other machine."""

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import mp_core as mp
from mp_core.models.generation.batch import Batch, Proposer, Run
from mp_core.models.generation.cache import PagedCache
from mp_core.models.generation.network import CausalModel, Steps, heads_of
from mp_core.models.generation.sampling import Sampling
from mp_core.models.weights import read_model

POLICIES = ("float32", "mixed_bfloat16", "int8_from_mixed_bfloat16")
SIZES = {
    "model_type": "qwen3", "hidden_act": "silu", "vocab_size": 120, "hidden_size": 48, "intermediate_size": 80,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 2100, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": False,
}  # fmt: skip
LONGEST, NEW = 2000, 16  # the most tokens of a prompt, and after it
SAMPLINGS = (Sampling(), Sampling(0.7, top_p=0.9, seed=5), Sampling(0.3, top_k=20, repetition_penalty=1.1))


def main() -> int:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split()))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2, 16], metavar="N")
    options = parser.parse_args()
    found: dict[str, set[str]] = {policy: set() for policy in POLICIES}
    for isa in mp.config.available_isas():
        for threads in options.threads:
            for policy, digest in continued(isa, threads):
                found[policy].add(digest)
                print(f"{policy:28} {isa:16} {threads:3}  {digest}", flush=True)
    return any(len(digests) > 1 for digests in found.values())


def continued(isa: str, threads: int) -> Iterator[tuple[str, str]]:
    """Yield each policy and the SHA-256 with these settings."""
    before = mp.config.isa()
    mp.config.set_isa(isa)
    try:
        with tempfile.TemporaryDirectory() as folder, mp.config.num_threads(threads):
            write(Path(folder))
            for policy in POLICIES:
                yield policy, digest_of(answers(Decoder(Path(folder), policy), prompts()))
    finally:
        mp.config.set_isa(before)


def write(folder: Path, **sizes: int) -> None:
    """Write a decoder with random weights, the same on every machine."""
    config = SIZES | sizes
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(11)  # NumPy's normal deviates differ by C library
    tensors = {
        name: (rng.random(shape, np.float32) - np.float32(0.5)) * np.float32(1 if len(shape) > 1 else 0.2)
        + np.float32(len(shape) == 1)
        for name, shape in shapes(config)
    }
    mp.checkpoint.save_tensors(folder / "model.safetensors", tensors, policy="float32")


def shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the shape of each tensor of a decoder."""
    width, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = size * config["num_attention_heads"], size * config["num_key_value_heads"]
    yield "lm_head.weight", (config["vocab_size"], width)
    yield "model.embed_tokens.weight", (config["vocab_size"], width)
    yield "model.norm.weight", (width,)
    products = {"q": (queries, width), "k": (keys, width), "v": (keys, width), "o": (width, queries)}
    for index in range(config["num_hidden_layers"]):
        block = f"model.layers.{index}"
        yield from ((f"{block}.self_attn.{name}_proj.weight", shape) for name, shape in products.items())
        yield from ((f"{block}.self_attn.{name}_norm.weight", (size,)) for name in "qk")
        yield from ((f"{block}.mlp.{name}_proj.weight", (inner, width)) for name in ("gate", "up"))
        yield f"{block}.mlp.down_proj.weight", (width, inner)
        yield from ((f"{block}.{name}_layernorm.weight", (width,)) for name in ("input", "post_attention"))


class Decoder:
    """A network with a cache of keys and values."""

    def __init__(self, folder: Path, policy: str, pages: int = 128) -> None:
        config = json.loads((folder / "config.json").read_text())
        self.model, *_ = read_model(folder, config, mp.dtype_policies.get(policy), CausalModel)
        self.pages = pages
        self.cache = PagedCache(heads_of(self.model.settings), self.model.encoder.blocks[0].compute_dtype, pages)
        self.steps = Steps(self.model, self.cache)


class Witness(Run):
    """A run that hashes its logits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen = hashlib.sha256()

    def add(self, logits: np.ndarray) -> None:
        """Hash the logits, and choose the next token."""
        self.seen.update(np.ascontiguousarray(logits).tobytes())
        super().add(logits)


def prompts(count: int = 100, longest: int = LONGEST) -> list[list[int]]:
    """Return prompts of 1 to `longest` tokens. Every other one is the start of the same text."""
    rng = np.random.default_rng(12)
    lengths = [round(longest ** (index / (count - 1))) for index in range(count)]
    shared, size = rng.integers(0, SIZES["vocab_size"], longest), SIZES["vocab_size"]
    return [
        (rng.integers(0, size, length) if index % 2 else shared[:length]).tolist()
        for index, length in enumerate(lengths)
    ]


def answers(decoder: Decoder, texts: list[list[int]], group: int = 64, proposer: Proposer | None = None) -> list[str]:
    """Return for each prompt the SHA-256 of the tokens and logits after it; `group` prompts are computed together."""
    runs = [Witness(text, SAMPLINGS[number % len(SAMPLINGS)], number, NEW) for number, text in enumerate(texts)]
    for first in range(0, len(runs), group):
        batch = Batch(decoder.steps, decoder.cache, decoder.pages, proposer)
        for run in runs[first : first + group]:
            batch.add(run)
        while len(batch):
            for run in batch.step():
                if len(run.tokens) == run.most:
                    batch.leave(run)
    return [hashlib.sha256(run.seen.digest() + np.int32(run.tokens).tobytes()).hexdigest() for run in runs]


def digest_of(found: list[str]) -> str:
    """Return the SHA-256 of those of all prompts."""
    return hashlib.sha256("".join(found).encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
