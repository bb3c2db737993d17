"""Fine-tune on a retrieval task made of docstrings; compare with sentence-transformers with the same hyperparameters.

    python tune_retrieval.py run --train 256 --eval 256 --epochs 1 --seeds 0 1 2 3 4
    python tune_retrieval.py data FOLDER

The task is made of the installed SciPy and NumPy, which are read and never imported. Each function, class and method
with a docstring of at least two paragraphs gives one example: the query is the first paragraph, the document is the
following paragraphs up to the first section with a heading, both with single spaces. Examples are left out if the query
has less than 4 words, the document less than 12, or one of them was seen before. The SHA-256 of the query decides the
split: a first byte below 51 means evaluation. Each part takes the examples with the smallest digests, so a smaller task
is a subset of a larger one.

Every contender runs in a separate process with one thread; the contenders alternate, seed by seed. The table has
recall@10 before (for the first seed) and after training, CPU seconds and wall seconds of training alone, examples per
CPU second, and the peak memory. "int8" is float32 whose codes are then trained, as `mp-core tune --policy int8` does:
it also has the recall of the codes that are only rounded, and for both codes the lowest cosine of a document with its
vector in the trained floats.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

PACKAGES = ("numpy", "scipy")
HELD, RATE, LONGEST = 51, 5e-5, 64  # of 256; learning rate; tokens of a text
CODED, CODED_EPOCHS = 128, 2  # texts and epochs for training int8 codes
CONTENDERS = ("float32", "mixed_bfloat16", "lora int8", "int8", "sentence-transformers", "sentence-transformers bf16")
SECTION = re.compile(r"^\s*\S[^\n]*\n\s*[-=]{3,}\s*$", re.MULTILINE)


def docstrings() -> Iterator[str]:
    """Yield the docstrings of the packages in the order of their files."""
    for package in PACKAGES:
        for path in sorted(Path(find_spec(package).submodule_search_locations[0]).rglob("*.py")):
            if "tests" in path.parts or "_vendored" in str(path):
                continue
            try:
                tree = ast.parse(path.read_text(encoding="utf-8"))
            except (SyntaxError, UnicodeDecodeError):
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                    found = ast.get_docstring(node)
                    if found:
                        yield found


def examples() -> dict[str, list[tuple[str, str]]]:
    """Return the parts of the task: pairs of a query and its document, those with the smallest digests first."""
    seen, parts = set(), {"train": [], "eval": []}
    for text in docstrings():
        body = SECTION.split(text)[0]
        first, _, rest = body.strip().partition("\n\n")
        query, document = (" ".join(part.split()) for part in (first, rest))
        short = len(query.split()) < 4 or len(document.split()) < 12
        if short or query in seen or document in seen or query in document:
            continue
        seen |= {query, document}
        digest = hashlib.sha256(query.encode()).digest()
        parts["eval" if digest[0] < HELD else "train"].append((digest, query, document))
    return {name: [(query, document) for _, query, document in sorted(part)] for name, part in parts.items()}


def shuffled(count: int, seed: int, epoch: int) -> list[int]:
    """Return the order of the examples in an epoch, the same for all contenders."""
    from mp_core.training.order import order_of

    return order_of(lambda: seed)(count, epoch).tolist()


# ---- contenders


def recall(encode: Any, pairs: list[tuple[str, str]]) -> float:
    from mp_core.models.tuning.evaluation import retrieval

    class Encoder:
        @staticmethod
        def encode(texts: list[str], batch_size: int, normalize: bool) -> Any:
            return encode(texts)

    return retrieval(Encoder, *map(list, zip(*pairs, strict=True)))["recall@10"]


def ours(options: argparse.Namespace, train: Any, held: Any) -> dict[str, Any]:
    import mp_core as mp
    from mp_core.cli import demo

    policies = {"lora int8": "int8_from_mixed_bfloat16", "int8": "float32"}
    policy = policies.get(options.contender, options.contender)
    encoder = mp.models.BertEncoder.from_folder(demo.model_folder(), policy)
    encoder.max_seq_length = LONGEST
    row = before(options, encoder.encode, held)
    rate = RATE
    if options.contender == "lora int8":
        encoder.enable_lora(8, 16, targets=["query", "key", "value", "attention_output"])
        rate = 20 * RATE
    with mp.config.num_threads(1):
        clock, cpu = time.perf_counter(), time.process_time()
        encoder.fit(
            train, epochs=options.epochs, batch_size=options.batch, learning_rate=rate, seed=options.seed, verbose=0
        )
        taken = {"seconds": time.perf_counter() - clock, "cpu": time.process_time() - cpu}
        is_coded = options.contender == "int8"
        found = coded(encoder, train, held, options.seed) if is_coded else {"after": recall(encoder.encode, held)}
    return row | taken | found


def coded(encoder: Any, train: Any, held: Any, seed: int) -> dict[str, Any]:
    """Return recall in int8 and lowest cosine with the floats, for codes that are only rounded and for trained ones."""
    import mp_core as mp
    from mp_core.models.tuning.evaluation import cosines

    texts = list(dict.fromkeys(text for pair in train for text in pair))
    chosen = [texts[place] for place in shuffled(len(texts), seed, 0)][:CODED]
    with TemporaryDirectory() as home:
        encoder.save(f"{home}/floats")
        floats = mp.models.BertEncoder.from_folder(f"{home}/floats")
        floats.max_seq_length = LONGEST
        cpu = time.process_time()
        trained = mp.distill(floats, chosen, "int8", epochs=CODED_EPOCHS, seed=seed, verbose=0)
        found: dict[str, Any] = {"cpu of codes": time.process_time() - cpu}
        documents = [document for _, document in held]
        vectors = floats.encode(documents)
        for name, student in {"rounded": floats.with_policy("int8"), "after": trained}.items():
            found[name] = recall(student.encode, held)
            found[f"cosine {name}"] = cosines(student.encode(documents), vectors)["least"]
    return found


def before(options: argparse.Namespace, encode: Any, held: Any) -> dict[str, Any]:
    """Return the recall before training, which is the same for every seed."""
    return {"before": recall(encode, held)} if options.seed == options.seeds[0] else {}


def theirs(options: argparse.Namespace, train: Any, held: Any) -> dict[str, Any]:
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    from mp_core.cli import demo

    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    model = SentenceTransformer(str(demo.model_folder()), device="cpu")
    model.max_seq_length = LONGEST
    encode = partial(model.encode, show_progress_bar=False)
    row = before(options, encode, held)
    loss, count = MultipleNegativesRankingLoss(model), -(-len(train) // options.batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    steps = count * options.epochs
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(0.1 * steps), steps)
    model.train()
    clock, cpu = time.perf_counter(), time.process_time()
    for epoch in range(options.epochs):
        order = shuffled(len(train), options.seed, epoch)
        for start in range(0, len(order), options.batch):
            chosen = [train[index] for index in order[start : start + options.batch]]
            features = [model.preprocess(list(texts)) for texts in zip(*chosen, strict=True)]
            with torch.autocast("cpu", torch.bfloat16, enabled=options.contender.endswith("bf16")):
                value = loss(features, None)
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    taken = {"seconds": time.perf_counter() - clock, "cpu": time.process_time() - cpu}
    model.eval()
    return row | {"after": recall(encode, held)} | taken


def one(options: argparse.Namespace) -> None:
    """Run one contender and print its row."""
    parts = examples()
    train, held = parts["train"][: options.train], parts["eval"][: options.eval]
    row = (theirs if options.contender.startswith("sentence") else ours)(options, train, held)
    row["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(json.dumps(row | {"contender": options.contender, "seed": options.seed}))


def run(options: argparse.Namespace) -> None:
    """Run all contenders in turn, and print a table."""
    parts = examples()
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    held = len(parts["eval"])
    used = f"{min(options.train, len(parts['train']))} + {min(options.eval, held)}"
    print(f"{versions}: {len(parts['train'])} + {held} examples, SHA-256 {digest}; used: {used}", flush=True)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in options.contenders}
    told = [f"--{name}={getattr(options, name)}" for name in ("train", "eval", "epochs", "batch")]
    seeds = ["--seeds", *map(str, options.seeds)]
    single = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for seed in options.seeds:
        for name in options.contenders:
            command = [sys.executable, __file__, "one", *told, f"--contender={name}", f"--seed={seed}", *seeds]
            done = subprocess.run(command, env=single, stdout=subprocess.PIPE, text=True, check=True)
            rows[name].append(json.loads(done.stdout.splitlines()[-1]))
            print(json.dumps(rows[name][-1]), flush=True)
    print(f"{'':28}{'recall@10 before':>18}{'after':>9}{'spread':>9}{'examples/CPU s':>16}{'peak MB':>9}")
    for name, found in rows.items():
        after = [row["after"] for row in found]
        rate = options.epochs * min(options.train, len(parts["train"])) / min(row["cpu"] for row in found)
        print(f"{name:28}{found[0]['before']:18.3f}{mean(after):9.3f}{stdev(after) if len(after) > 1 else 0:9.3f}"
              f"{rate:16.2f}{max(row['memory'] for row in found):9.0f}")  # fmt: skip
        for extra in sorted({key for row in found for key in row} & {"rounded", "cosine rounded", "cosine after"}):
            values = [row[extra] for row in found]
            print(f"  {extra:26}{mean(values):27.4f}, least {min(values):.4f}")


def data(options: argparse.Namespace) -> None:
    """Write the parts as files for `mp-core tune`."""
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in examples().items():
        lines = (json.dumps({"query": query, "document": document}) for query, document in pairs)
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        print(f"{folder / name}.jsonl: {len(pairs)} examples")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for function in (run, one):
        command = commands.add_parser(function.__name__)
        command.set_defaults(run=function)
        for name, default in (("train", 2000), ("eval", 1000), ("epochs", 1), ("batch", 32)):
            command.add_argument(f"--{name}", type=int, default=default)
        command.add_argument("--seeds", type=int, nargs="+", default=[0])
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
        command.add_argument("--contender", choices=CONTENDERS)
    written = commands.add_parser("data")
    written.add_argument("folder")
    written.set_defaults(run=data)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
