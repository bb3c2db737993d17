"""A small encoder and reranker, tuned in batches of two groups: ``python tuned_folders.py HOME OUT THREADS STOP``.

The process kills itself after batch number STOP; started again, it continues. HOME has the models.
"""

import hashlib
import os
import sys
from pathlib import Path

import servers
import tiny_bert

import mp_core as mp
from mp_core.models import BertEncoder, Reranker

PAIRS = [("a b", "c d"), ("e", "f g h"), ("b c d", "a"), ("h g", "e f"), ("c", "c h a b e")] * 8
SCORED = [(*pair, place / 39) for place, pair in enumerate(PAIRS)]
KINDS = {"encoder": (BertEncoder, PAIRS), "reranker": (Reranker, SCORED)}


def write_models(home):
    """Write the models, and return the folder with them."""
    tiny_bert.write(home / "encoder")
    servers.scorer(home / "reranker", 1)
    return home


def tuned(kind, home, out, **options):
    """Tune a model, and return the bytes of the folder that it gives."""
    opens, data = KINDS[kind]
    model = opens.from_folder(home / kind, "float32")
    model.fit(data, epochs=3, batch_size=40, chunk=2, dropout=0.2, seed=3, verbose=0, **options)
    model.save(out)
    return contents(out)


def contents(folder):
    """Return the bytes of the files of a folder."""
    return {path.name: path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}


def digest_of(folder):
    """Return the SHA-256 of the paths and bytes of the files of a folder."""
    parts = [f"{path.relative_to(folder)}".encode() + path.read_bytes() for path in sorted(folder.rglob("*.*"))]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def main():
    """Tune both, as far as that is not done."""
    home, out, threads, stop = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    out.mkdir(exist_ok=True)
    batches = iter(range(1, sys.maxsize))

    def end(batch, logs):
        if next(batches) == stop:
            os._exit(9)

    with mp.config.num_threads(threads):
        for kind in KINDS:
            if not (out / kind).exists():
                restore = mp.callbacks.BackupAndRestore(out / f"{kind} state", save_freq=1)
                ending = mp.callbacks.LambdaCallback(on_train_batch_end=end)
                ending.runs_last = True  # after `restore`
                tuned(kind, home, out / kind, callbacks=[restore, ending])


if __name__ == "__main__":
    main()
