"""Check that ``mp-core tune`` always writes the same bytes, by SHA-256 of its folder: the table of docs/finetuning.md.

``python asv_bench/studies/tune_bytes.py`` tunes the encoder of the demonstration (docs/demo.md) on a few pairs of
docstrings, those of tune_retrieval.py with the shortest documents: in float32, with trained int8 codes, and with LoRA
over int8. Each runs on one and two threads, with other instruction sets, killed and resumed, and on 1, 2 and 4 workers
of a dask cluster. The script prints a table, and ends with an error unless each recipe has one digest. For CPUs with
AMX it sets MP_CORE_REPRODUCIBLE.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from tune_retrieval import examples

from mp_core import config
from mp_core.cli import demo

RECIPES = {
    "float32": [],
    "int8 codes, trained": ["--policy", "int8", "--distill", "1"],
    "LoRA over int8": ["--policy", "int8", "--lora", "8"],
}
COMMON = ["--epochs", "2", "--batch-size", "36", "--quiet", "--force"]
LIMIT = 600  # seconds of one command


def ways():
    """Return name of each way to run a recipe -> its options, its environment, and its number of dask workers."""
    sets = [isa for isa in ("avx2", "scalar") if isa in config.available_isas()]
    return {
        "1 thread": (["--threads", "1"], {}, 0),
        "2 threads": (["--threads", "2"], {}, 0),
        "killed and resumed": (["--resume"], {}, 0),
        **{f"dask, {count} workers": (["--dask"], {}, count) for count in (1, 2, 4)},
        **{f"`MP_CORE_ISA={isa}`": ([], {"MP_CORE_ISA": isa}, 0) for isa in sets},
    }


def cluster(workers):
    """Return a context manager with a dask cluster of some processes, or without a cluster for none."""
    if not workers:
        return nullcontext()
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=workers, threads_per_worker=1, memory_limit=0, dashboard_address=":0", silence_logs=50
    )


def kill(command, environment, state):
    """Run the command until it has written the state of training, and kill it."""
    with subprocess.Popen(command, env=environment) as process:
        deadline = time.monotonic() + LIMIT
        while not state.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        if process.wait() == 0 or not state.exists():
            raise SystemExit("the command ended before it could be killed")


def digest_of(command, home, options, variables, workers):
    """Run the command in one way, and return the SHA-256 of the names and bytes of the files that it writes."""
    out, state = home / "out", home / "state"
    environment = os.environ | {"MP_CORE_REPRODUCIBLE": "1"} | variables
    with cluster(workers) as found:
        given = {"--resume": [str(state)], "--dask": [found.scheduler_address] if workers else []}
        command = [*command, *options, *given.get("".join(options[-1:]), []), "-o", str(out)]
        if "--resume" in options:
            kill(command, environment, state / "training.state")
        subprocess.run(command, env=environment, check=True, timeout=LIMIT)
    found = hashlib.sha256()
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        found.update(f"{path.relative_to(out)}\n{path.stat().st_size}\n".encode() + path.read_bytes())
    return found.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--pairs", type=int, default=36, help="above 32, so that there is work for two workers")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=[*RECIPES], metavar="RECIPE")
    parser.add_argument("--model", default=str(demo.model_folder()))
    chosen, differing = parser.parse_args(), []
    pairs = sorted(examples()["train"], key=lambda pair: len(pair[1]))[: chosen.pairs]
    print("| recipe | way | first digits of the SHA-256 |\n|---|---|---|", flush=True)
    with TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
        command = [sys.executable, "-m", "mp_core", "tune", chosen.model, str(home / "pairs.jsonl"), *COMMON]
        for recipe in chosen.recipes:
            options, digests = RECIPES[recipe], {}
            for way, how in ways().items():
                digests[way] = digest_of([*command, *options], home, *how)
                print(f"| {recipe} | {way} | `{digests[way][:16]}` |", flush=True)
            if len({*digests.values()}) > 1:
                differing.append(recipe)
    if differing:
        raise SystemExit(f"digests differ: {', '.join(differing)}")


if __name__ == "__main__":
    main()
