"""A step of training (forward, backward, AdamW) of small networks and of MiniLM, compared with torch and Keras.

All contenders of a row begin with the same weights and use the same batch.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from timeit import Timer

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
import torch
from interleaved import Cell, show_ratio
from minilm_inputs import WIDTH, inputs
from minilm_torch import SentenceEncoder
from peers_minilm import turns

import mp_core as mp
from mp_core import ops
from mp_core.cli import demo
from mp_core.models import BertEncoder

RATE, DECAY, EPSILON = 1e-3, 4e-3, 1e-8
TUNING_RATE = 2e-5  # for an encoder that was trained before
STEPS = 5  # losses are compared after so many steps from the same weights
OURS = ("float32", "mixed_bfloat16", "mixed_float16")
CLOSE = 1e-3  # relative, for losses in float32: sums have another order, and torch adds epsilon at another place

HEADING = (
    "steps/s (* the loss after five steps is not that of torch in float32, within 1e-3 or, with 16 bits, 0.02);\n"
    "ratio: the fastest policy of mp_core to the best peer; float32: that policy to the best peer in float32"
)

Array = np.ndarray
Step = Callable[[], float]


@dataclass(frozen=True)
class Network:
    """A network of 3 x 3 convolutions and dense layers, and the size of a batch."""

    batch: int
    shape: tuple[int, ...]  # of an input
    filters: tuple[int, ...]  # of convolutions, each with ReLU and 2 x 2 maxima after it
    units: tuple[int, ...]  # of dense layers, with ReLU between them


NETWORKS = {
    "mlp": Network(128, (784,), (), (512, 512, 10)),
    "digits": Network(32, (64,), (), (64, 10)),
    "cnn": Network(32, (28, 28, 1), (16, 32), (10,)),
}
MINILM, DOCUMENTS, CLASSES = "MiniLM classification 16x64", "16x64", 10
SEED = 20261127


def add_options(parser: argparse.ArgumentParser) -> None:
    names = [*NETWORKS, MINILM]
    parser.add_argument("--networks", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--rounds", type=int, default=20, metavar="N")


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for name in options.networks:
        for threads in options.threads:
            mp.config.set_num_threads(threads)
            torch.set_num_threads(threads)
            with torch.inference_mode(False):
                steps = classifiers() if name == MINILM else contenders(NETWORKS[name], threads)
                yield cell(name, steps, threads, options.rounds)


def cell(name: str, steps: dict[str, Step], threads: int, rounds: int) -> Cell:
    losses = {label: [step() for _ in range(STEPS)][-1] for label, step in steps.items()}
    expected = losses["torch float32"]
    wrong = {label for label, loss in losses.items() if not abs(loss / expected - 1) <= allowed(label)}
    timers = {label: Timer(step) for label, step in steps.items()}
    peers = tuple(label for label in steps if label not in OURS)
    wide = tuple(label for label in peers if "bfloat16" not in label)
    return Cell(
        {"shape": name, "dtype": "", "threads": threads, "loss": losses},
        1,
        timers,
        {"best": (OURS, peers), "float32": (("float32",), wide)},
        {},
        wrong,
        unit=1.0,
        timing=partial(turns, rounds=rounds, pause=0.1 * (threads > 1)),
    )


def allowed(label: str) -> float:
    return 0.02 if "float16" in label else CLOSE


def shapes(network: Network) -> list[tuple[int, ...]]:
    """Return the shapes of the kernels, as Keras has them."""
    channels = (network.shape[-1], *network.filters)
    found = [(3, 3, before, after) for before, after in pairwise(channels)] if network.filters else []
    side = network.shape[0] >> len(network.filters)
    inputs = side * side * network.filters[-1] if network.filters else network.shape[0]
    return found + list(pairwise((inputs, *network.units)))


def initial(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return a kernel and a bias."""
    scale = np.sqrt(2 / np.prod(shape[:-1]))
    return (rng.standard_normal(shape) * scale).astype(np.float32), np.zeros(shape[-1], np.float32)


def built(network: Network, library: object) -> list:
    """Return the layers of mp_core or Keras (their names are equal); the last one is float32 whatever the policy."""
    found = [library.Input(network.shape)]
    layers = library.layers
    for filters in network.filters:
        found += [layers.Conv2D(filters, 3, padding="same", activation="relu"), layers.MaxPooling2D(2)]
    found += [layers.Flatten()] if network.filters else []
    found += [layers.Dense(units, "relu") for units in network.units[:-1]]
    return [*found, layers.Dense(network.units[-1], dtype="float32")]


def contenders(network: Network, threads: int) -> dict[str, Step]:
    """Return the training steps of all contenders, from the same weights, with the same batch."""
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((network.batch, *network.shape), np.float32)
    y = rng.integers(0, network.units[-1], network.batch).astype(np.int32)
    weights = [array for shape in shapes(network) for array in initial(rng, shape)]
    steps: dict[str, Step] = {}
    before = mp.config.dtype_policy()
    for policy in OURS:
        mp.config.set_dtype_policy(policy)
        steps[policy] = by_keras(network, weights, x, y, mp)
    mp.config.set_dtype_policy(before)
    images = np.ascontiguousarray(np.moveaxis(x, -1, 1)) if network.filters else x
    for label, options in TORCH.items():
        steps[label] = by_torch(torch_module(network, weights), [images], y, RATE, **options)
    if threads > 1 or (os.cpu_count() or 1) == 1:  # XLA uses all CPUs of the machine, whatever is set
        steps["Keras JAX"] = by_keras(network, weights, x, y, keras)
    return steps


def by_keras(network: Network, weights: list[Array], x: Array, y: Array, library: object) -> Step:
    model = library.Sequential(built(network, library))
    model.set_weights(weights)
    return compiled(model, x, y, RATE, library)


def compiled(model: object, x: Array, y: Array, rate: float, library: object) -> Step:
    """Return the training step of a model of Keras or mp_core: their names are equal."""
    loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(library.optimizers.AdamW(rate, weight_decay=DECAY, epsilon=EPSILON), loss)
    return lambda: float(model.train_on_batch(x, y))


def by_torch(
    model: torch.nn.Module, given: list[Array], y: Array, rate: float, *, half: bool = False, fused: bool = False
) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), rate, eps=EPSILON, weight_decay=DECAY, fused=True)
    loss = partial(torch.nn.functional.cross_entropy, target=torch.from_numpy(y).long())
    gradients = gradients_by_torch(model, given, loss, half=half, fused=fused)

    def step() -> float:
        loss = gradients()
        optimizer.step()
        return loss

    return step


def gradients_by_torch(
    model: torch.nn.Module, given: list[Array], loss: Callable[[torch.Tensor], torch.Tensor], *,
    half: bool = False, fused: bool = False,
) -> Step:  # fmt: skip
    """Return a function that computes the loss of float32 outputs and the gradients of the model's parameters."""
    forward, tensors = torch.compile(model) if fused else model, [*map(torch.from_numpy, given)]

    def step() -> float:
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            outputs = forward(*tensors)
        found = loss(outputs.float())
        found.backward()
        return float(found.detach())

    return step


TORCH = {
    "torch float32": {},
    "torch compile": {"fused": True},
    "torch bfloat16": {"half": True},
    "torch compile bfloat16": {"half": True, "fused": True},
}


def torch_module(network: Network, weights: list[Array]) -> torch.nn.Module:
    """Return the network with the same weights; the dense layer after the images has its rows in torch's order."""
    parts: list[torch.nn.Module] = []
    given = iter(weights)
    for filters in network.filters:
        kernel, bias = next(given), next(given)
        layer = torch.nn.Conv2d(kernel.shape[2], filters, 3, padding="same")
        parts += [filled(layer, np.transpose(kernel, (3, 2, 0, 1)), bias), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    side = network.shape[0] >> len(network.filters)
    for index, _ in enumerate(network.units):
        kernel, bias = next(given), next(given)
        if index == 0 and network.filters:
            parts.append(torch.nn.Flatten())
            kernel = kernel.reshape(side, side, network.filters[-1], -1).transpose(2, 0, 1, 3).reshape(kernel.shape)
        parts += [filled(torch.nn.Linear(*kernel.shape), kernel.T, bias), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1])


def filled(layer: torch.nn.Module, kernel: Array, bias: Array) -> torch.nn.Module:
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(kernel)))
        layer.bias.copy_(torch.from_numpy(bias))
    return layer


# ---- all-MiniLM-L6-v2 with a head: classes of documents from the means of their vectors


class Classifier(mp.Model):
    """An encoder, the mean of the vectors of a document's tokens, and the scores of classes."""

    def __init__(self, policy: str) -> None:
        super().__init__(dtype=policy)
        self.encoder = BertEncoder.from_folder(demo.model_folder(), policy=policy).model
        self.head = mp.layers.Dense(CLASSES, dtype="float32")

    def call(self, ids: Array) -> Array:
        return self.head(ops.mean(self.encoder(ids), axis=1, out_dtype="float32"))


class TorchClassifier(torch.nn.Module):
    """The same, by transformers."""

    def __init__(self, kernel: Array, bias: Array) -> None:
        super().__init__()
        self.encoder = SentenceEncoder(torch.float32)
        self.encoder.bert.embeddings.token_type_embeddings.requires_grad_(False)  # mp_core has the sum of both tables
        self.head = filled(torch.nn.Linear(WIDTH, CLASSES), kernel.T, bias)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(ids, mask))


def classifiers() -> dict[str, Step]:
    """Return the training steps of all contenders, from the same weights, with the same documents."""
    rng, (ids, mask) = np.random.default_rng(SEED), inputs(DOCUMENTS).batches[0]
    y, head = rng.integers(0, CLASSES, len(ids)).astype(np.int32), initial(rng, (WIDTH, CLASSES))
    steps: dict[str, Step] = {}
    for policy in OURS:
        model = Classifier(policy)
        model(ids)  # creates the weights of the head
        model.head.set_weights(head)
        steps[policy] = compiled(model, ids, y, TUNING_RATE, mp)
    for label, options in TORCH.items():
        steps[label] = by_torch(TorchClassifier(*head), [ids, mask], y, TUNING_RATE, **options)
    return steps


def unit(dtype: str) -> str:
    return "steps/s"


def line(row: dict) -> str:
    head = f"{row['shape']:7} x {row['threads']}"
    ratios = "".join(f"  {column}: {show_ratio(each)}" for column, each in row["ratios"].items())
    rates = "\n".join(
        f"{'':10}{name:24}{rate:10.2f}{'*' if name in row['wrong'] else ' '}  loss {row['loss'][name]:.5f}"
        for name, rate in row["rate"].items()
    )
    return f"{head}{ratios}\n{rates}"


def summary(rows: list[dict]) -> str:
    slow = [row for row in rows if any(ratio < 1 for ratio in row["ratios"]["best"].values())]
    return f"{len(rows)} rows, of which {len(slow)} are slower than the best peer"
