"""Files of a model's folder, each damaged while the others are good, and request bodies for a server of such models."""

import asyncio
import functools
import io
import json
import shutil

import numpy as np
import servers
import tiny_bert
from hostile_requests import GOOD

from fuzz import folders
from fuzz.reading import Reader
from mp_core.models import BertEncoder
from mp_core.serving.logs import Log
from mp_core.serving.models import open_models

__all__ = ["MODEL_FILES"]

TEXTS = ["a b", "", "a b c d e f g h a b c d"]


def one_of_a_folder(name):
    """Return the reader of one file of an encoder's folder, by loading the folder and encoding texts."""

    def write(folder):
        shutil.copyfile(tiny_bert.write(folder.parent / "model") / name, folder / "file")

    def read(path):
        folder = path.parents[1] / "model"
        shutil.copyfile(path, folder / name)
        BertEncoder.from_folder(folder).encode(TEXTS)

    return Reader(write, read, 32 << 20)


def _write_bodies(folder):
    for number, (route, body) in enumerate(GOOD.items()):
        (folder / str(number)).write_text(f"{route}\n{json.dumps(body)}")


@functools.cache
def _served(folder):
    """Return a model of each kind."""
    rng = np.random.default_rng(0)
    return open_models(
        {
            "encoder": tiny_bert.write(folder / "encoder"),
            **{name: servers.scorer(folder / name, labels) for name, labels in (("reranker", 1), ("classifier", 3))},
            **{kind: folders.write(folder / kind, "bert", kind, rng) for kind in ("sparse", "tokens")},
        }
    )


def _read_body(path):
    """Ask a route, the first line of the file, with the rest as the body: any status but that of an error of ours."""
    from mp_core.serving.front import create_app  # of the extra "serve"

    route, _, body = path.read_bytes().partition(b"\n")
    app = create_app(_served(path.parents[1]), log=Log(stream=io.StringIO()))

    async def answer():
        async with servers.running(app) as ask:
            return await ask(route.decode("latin1"), body)

    status, _, told = asyncio.run(answer())
    assert status == 200 or 400 <= status < 500, (status, told)


MODEL_FILES = {
    "config": one_of_a_folder("config.json"),
    "modules": one_of_a_folder("modules.json"),
    "pooling": one_of_a_folder("1_Pooling/config.json"),
    "tokenizer": one_of_a_folder("tokenizer.json"),
    "weights": one_of_a_folder("model.safetensors"),
    "requests": Reader(_write_bodies, _read_body, 64 << 20),
}
