"""Mutated folders of models: ``python hostile_folders.py BASES LOG FIRST COUNT`` loads and runs them, by number.

Each must raise OSError or ValueError, or run; anything else is printed and ends the process with status 1. It is a
separate process so that its caller notices a crash; LOG has the number of the folder that was being read.
"""

import copy
import json
import random
import resource
import shutil
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

from mp_core.models import BertEncoder, Reranker
from mp_core.plans import eager

MEMORY = 12 << 30  # bytes of addresses: far more than a folder of some kilobytes may need
JSON = ("config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json", "sentence_bert_config.json",
        "tokenizer_config.json", "config_sentence_transformers.json")  # fmt: skip
VALUES = (0, -1, 1, 2, 3, 4, 8, 33, 4097, 2**20, 2**31 - 1, 2**31, 2**63, 10**30, 0.5, 1e-300, 1e300, float("nan"),
          float("inf"), "", "gelu", "a", "\ud800", "../..", None, True, False, [], {}, [[]], {"a": 1})  # fmt: skip
ENTRIES = {
    "config.json": (
        *("vocab_size", "hidden_size", "dim", "num_hidden_layers", "n_layers", "num_attention_heads", "n_heads"),
        *("intermediate_size", "hidden_dim", "max_position_embeddings", "type_vocab_size", "pad_token_id"),
        *("layer_norm_eps", "norm_eps", "hidden_act", "hidden_activation", "activation", "model_type"),
        *("num_labels", "id2label", "classifier_pooling", "local_attention", "layer_types", "rope_parameters"),
    ),
    "sentence_bert_config.json": ("max_seq_length", "do_lower_case"),
    "tokenizer_config.json": ("model_max_length", "tokenizer_class", "model_input_names", "strip_accents"),
    "config_sentence_transformers.json": ("prompts", "default_prompt_name", "truncate_dim", "similarity_fn_name"),
    "1_Pooling/config.json": ("pooling_mode", "include_prompt", "word_embedding_dimension", "pooling_mode_lasttoken"),
}
TEXTS = ["a b", "", "c", "a b c d e f g h " * 20, "x \u00e4 \U0001f600", *["d e"] * 40]


def places(value):
    """Yield every container in a JSON value, with each of its keys or positions."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def mutate_json(folder, path, draw):
    content = json.loads(path.read_text()) if path.exists() else {}
    known = ENTRIES.get(path.relative_to(folder).as_posix())
    found = list(places(content))
    if known and draw.random() < 0.7:
        content[draw.choice(known)] = draw.choice(VALUES)
    elif found:
        container, key = draw.choice(found)
        change = draw.randrange(4)
        if change == 0:
            del container[key]
        elif change == 1 and isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        elif change == 2:
            other, place = draw.choice(found)
            container[key] = copy.deepcopy(other[place])
        else:
            container[key] = draw.choice(VALUES)
    path.write_text(json.dumps(content))


def mutate_header(path, draw):
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    container, key = draw.choice(list(places(header)))
    container[key] = draw.choice(VALUES)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def mutate_bytes(path, draw):
    content = bytearray(path.read_bytes())
    if not content or draw.random() < 0.2:
        path.write_bytes(content[: draw.randrange(len(content) + 1)])
        return
    content[draw.randrange(min(len(content), 1 << 14))] = draw.randrange(256)
    path.write_bytes(content)


def mutate(folder, draw):
    """Change one to three things in a folder."""
    for _ in range(draw.randint(1, 3)):
        kind = draw.random()
        if kind < 0.7:
            mutate_json(folder, folder / draw.choice(JSON), draw)
        elif kind < 0.85:
            mutate_header(folder / "model.safetensors", draw)
        else:
            mutate_bytes(draw.choice([path for path in sorted(folder.rglob("*")) if path.is_file()]), draw)


def run(folder, draw):
    """Load and run what is in a folder; return whether all of it was refused."""
    refused = 0
    for kind, use in ((BertEncoder, embed), (Reranker, score)):
        if kind is Reranker:
            (folder / "modules.json").unlink(missing_ok=True)  # it lists a pooling, which no reranker has
        try:
            use(kind.from_folder(folder), draw)
        except (OSError, ValueError):
            refused += 1
    return refused == 2


def embed(encoder, draw):
    for calls in (TEXTS, TEXTS[2:4], draw.sample(TEXTS, 3)):
        try:
            encoder.encode(calls, prompt=draw.choice(["", "a "]))
        except ValueError:
            continue
    with eager():
        encoder.encode(TEXTS[2:3])
    encoder.embed_tokens([[1] * encoder.model.settings.max_length][:1] if encoder.max_length < 100 else [[1]])


def score(reranker, draw):
    reranker.predict([(a, b) for a in TEXTS[:5] for b in TEXTS[:5]])
    with eager():
        reranker.predict([("a", "b")])


def main(bases, log, first, count):
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    originals, refused, failed = sorted(Path(bases).iterdir()), 0, 0
    for number in range(first, first + count):
        Path(log).write_text(str(number))
        draw = random.Random(number)
        with tempfile.TemporaryDirectory() as room:
            folder = Path(shutil.copytree(draw.choice(originals), Path(room, "model")))
            try:
                mutate(folder, draw)
            except (ValueError, AttributeError, TypeError, IndexError, OSError):  # nothing left to mutate
                continue
            try:
                refused += run(folder, draw)
            except BaseException:
                print(f"folder {number}:", traceback.format_exc(), flush=True)
                failed += 1
    print(f"{refused} of {count} refused, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3], *map(int, sys.argv[3:])))
