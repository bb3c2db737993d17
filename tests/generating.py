"""Small random decoders with a tokenizer of bytes, and prompts for them."""

import warnings

import random_models
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
END = len(LETTERS)
PROMPTS = ["the cat", "a", "the quick brown fox jumps over the lazy dog " * 4, "the cat sat", "\u00fcber"]


def written(folder, name="qwen3", **settings):
    """Write a random causal network with a tokenizer of bytes; return the network."""
    sizes = {"vocab_size": END + 1, "max_position_embeddings": 600, "eos_token_id": END, "bos_token_id": END}
    network = random_models.made(name, "ForCausalLM", **(sizes | settings))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network.save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(LETTERS)} | {"<end>": END}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return network
