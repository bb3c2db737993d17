"""Tokens per second of a decoder that generates, beside llama.cpp and torch.

    python generation.py --precisions int8 int4 bfloat16 --threads 1 2 --json report.json

The network has the sizes of Qwen3-0.6B and random weights. A row is a prompt of some tokens (new in each round), or
tokens of one sequence or of several after a prompt whose keys and values are stored. In each round every contender is
timed once; ratios are medians over the rounds, rates those of the fastest round. The limit of a token is a read of all
weights at the speed of memory, which is measured in the same rounds. llama.cpp computes in Q8_0, Q4_0 or BF16.
"""

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np
import peers_llama
from decoder_contenders import SIZES
from generation_contenders import OURS, contenders
from workers import Worker

import mp_core as mp
from mp_core.benchmark import Limit

BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "int4": 1 / 2 + 4 / 64}  # of a weight


def write(blocks: int, vocabulary: int, precisions: list[str], folder: Path) -> None:
    """Write the missing files of a random network whose head has the weights of the table of words."""
    import torch
    import transformers

    if not (folder / "config.json").exists():
        torch.manual_seed(0)
        config = transformers.Qwen3Config(
            num_hidden_layers=blocks, vocab_size=vocabulary, tie_word_embeddings=True, eos_token_id=None, **SIZES
        )
        transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
        words = {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(vocabulary)}, "unk_token": "w0"}
        tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": words}
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    if peers_llama.INSTALLED:
        network = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
        for precision in precisions:
            peers_llama.save(network, precision, vocabulary, folder / f"{precision}.gguf")


def measured(workers: dict[str, Worker], request: tuple[int, ...], rounds: int, read: Limit) -> dict[str, list[float]]:
    """Return the seconds of a request in each round, and those of a byte read from memory."""
    length, tokens, sequences = request
    for worker in workers.values():
        worker(np.array([2, length, max(tokens, 1), sequences]))
    found: dict[str, list[float]] = {name: [] for name in (*workers, "byte")}
    for number in range(rounds):
        first = 2 if tokens else 3 + number
        for name, worker in workers.items():
            found[name].append(worker.timer(np.array([first, length, max(tokens, 1), sequences])).timeit(1))
        found["byte"].append(read.timer.timeit(1) / read.work)
    return found


def row_of(seconds: dict[str, list[float]], request: tuple[int, ...], weight_bytes: float) -> dict[str, object]:
    """Return rates, ratios to mp_core and the share of the limit."""
    length, tokens, sequences = request
    byte, ours = min(seconds.pop("byte")), seconds["mp_core"]
    computed = tokens * sequences or length
    share = tokens * weight_bytes * byte / min(ours) if sequences == 1 and tokens else None
    return {
        "rates": {name: computed / min(each) for name, each in seconds.items()},
        "ratios": {
            name: median(their / our for their, our in zip(each, ours, strict=True)) for name, each in seconds.items()
        },
        "limit": 1 / (weight_bytes * byte),
        "share": share,
    }


def line(row: dict) -> str:
    cells = [f"{name} {rate:8.1f} ({row['ratios'][name]:.2f})" for name, rate in row["rates"].items()]
    share = "" if row["share"] is None else f"  limit {row['limit']:.1f}, {row['share']:.0%} of it"
    return f"{row['what']:34}{'  '.join(cells)}{share}"


def main() -> None:
    """Measure each row and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=28, help="of the network: 28 are the whole")
    parser.add_argument("--vocabulary", type=int, default=151936, metavar="N")
    parser.add_argument("--precisions", nargs="+", choices=OURS, default=["int8", "int4", "bfloat16"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--prompts", nargs="+", type=int, default=[16, 512], metavar="N", help="tokens of prompts")
    parser.add_argument("--tokens", type=int, default=16, metavar="N", help="generated in a round")
    parser.add_argument("--sequences", type=int, default=8, metavar="N", help="at once, beside one")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--folder", type=Path, help="where files are written and found again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    options = parser.parse_args()
    heads = (2 * SIZES["num_attention_heads"] + 2 * SIZES["num_key_value_heads"]) * SIZES["head_dim"]
    weights = options.blocks * (heads + 3 * SIZES["intermediate_size"]) + options.vocabulary
    rows, last = [], max(options.prompts)
    requests = [(last, 0, 1), *((length, options.tokens, 1) for length in options.prompts)]
    requests.append((last, options.tokens, options.sequences))
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        write(options.blocks, options.vocabulary, options.precisions, folder)
        for threads in options.threads:
            mp.config.set_num_threads(threads)
            read = Limit.read(1 << 30)
            for precision in options.precisions:
                ways = contenders(precision, folder, threads, options.sequences)
                workers = {name: Worker(make, realtime=False) for name, make in ways.items()}
                for request in requests:
                    seconds = measured(workers, request, options.rounds, read)
                    row = row_of(seconds, request, weights * SIZES["hidden_size"] * BYTES[precision])
                    length, tokens, sequences = request
                    what = f"{sequences} x {tokens} tokens after {length}" if tokens else f"prompt of {length}"
                    rows.append({"what": f"{precision} x {threads}: {what}", **row})
                    print(line(rows[-1]), flush=True)
                    if options.json:
                        options.json.write_text(json.dumps(rows, indent=1))
                for worker in workers.values():
                    worker.close()


if __name__ == "__main__":
    main()
