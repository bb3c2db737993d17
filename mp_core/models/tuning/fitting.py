"""Run ``fit`` of encoders: batches, optimizer and the training loop."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mp_core.arrays import Array
from mp_core.layers import Layer
from mp_core.layers.lora import AdaptableLayer, lora_variables
from mp_core.models.prompted import TextError
from mp_core.models.texts import Tokens
from mp_core.models.tuning.batches import GROUP, TextBatches
from mp_core.models.tuning.dropout import rates_of
from mp_core.models.tuning.examples import Examples, read_examples
from mp_core.models.tuning.schedule import WarmupLinear
from mp_core.models.tuning.training import TunedEncoder, TunedModel
from mp_core.training import optimizers
from mp_core.training.fitting import job_of
from mp_core.training.loop import FitOptions, run_evaluation, run_fit
from mp_core.training.losses.texts import CoSENT, TextLoss, get
from mp_core.training.measured import training_state
from mp_core.training.optimizers.rounding import is_narrow
from mp_core.training.order import order_of
from mp_core.utilities.arguments import boolean, integer, number, positive, positive_integer, share

__all__ = ["Recipe", "check_trainable", "fit_encoder", "rates", "run"]


class Recipe(NamedTuple):
    """The arguments of ``fit`` that encoders and rerankers share."""

    epochs: int
    batch_size: int
    learning_rate: float
    warmup: float
    weight_decay: float
    max_norm: float | None
    optimizer: Any
    dropout: float | None
    shuffle: bool
    seed: int | None
    callbacks: Any
    verbose: Any


def fit_encoder(
    encoder: Any, data: Any, loss: Any, recipe: Recipe, *, chunk: int | None, validation_data: Any,
    prompts: str | Mapping[str, str] | None, cluster: Any,
) -> Any:  # fmt: skip
    """Train an encoder: see :meth:`mp_core.models.TextEncoder.fit`."""
    check_trainable(encoder.model)
    text_loss = get(loss)
    size = positive_integer(recipe.batch_size, "batch_size")
    columns, labels = _read(encoder, data, text_loss, prompts, "data")
    if min(size, len(columns[0])) < text_loss.least_examples:
        raise ValueError(
            f"`data` and `batch_size` must have at least {text_loss.least_examples} examples for {text_loss!r}; "
            f"received {len(columns[0])} and {size}"
        )
    tuned = TunedEncoder(
        encoder.model, rates(encoder.model, recipe.dropout), recipe.seed, poolings=encoder.poolings,
        steps=encoder._modules.steps, skipped=columns[0].skipped, columns=len(columns), text_loss=text_loss,
    )  # fmt: skip
    validation_batches = None
    if validation_data is not None:
        held_columns, held_labels = _read(encoder, validation_data, text_loss, prompts, "validation_data")
        if len(held_columns) != len(columns):
            raise ValueError(f"`validation_data` must have {len(columns)} texts a row; received {len(held_columns)}")
        validation_batches = TextBatches(encoder.model, held_columns, held_labels, size)
    return run(tuned, TextBatches(encoder.model, columns, labels, size), validation_batches, recipe, chunk, cluster)


def run(
    tuned: TunedModel, batches: TextBatches, validation_batches: TextBatches | None, recipe: Recipe,
    chunk: int | None = None, cluster: Any = None,
) -> Any:  # fmt: skip
    """Run the training loop, and return its History; a `cluster` computes the groups of batches."""
    epochs = positive_integer(recipe.epochs, "epochs")
    tuned.cached.kept = None if chunk is None else -(-positive_integer(chunk, "chunk") // GROUP)
    if cluster is not None and batches.size <= GROUP:
        raise ValueError(
            f"with a `cluster`, `batch_size` must be above {GROUP}, the examples that one machine computes together; "
            f"received {batches.size}"
        )
    narrow = any(is_narrow(variable.true_dtype) for variable in tuned.trainable_variables)
    tuned.compile(_optimizer(recipe, epochs * (batches.steps or 1), narrow))
    state = training_state(tuned)
    state.workers = job_of(cluster, state)
    if recipe.seed is not None:
        state.seed = integer(recipe.seed, "seed")
    batches.order = order_of(lambda: state.seed) if boolean(recipe.shuffle, "shuffle") else None
    tuned.network.differs_from_files |= _trains_more_than_lora(tuned.network)
    validate = (
        None
        if validation_batches is None
        else lambda callbacks: run_evaluation(tuned, validation_batches, 0, None, callbacks)
    )
    return run_fit(tuned, batches, FitOptions(epochs, recipe.verbose, recipe.callbacks, 0, None, validate, 1))


def _trains_more_than_lora(network: Any) -> bool:
    thin = {id(v) for layer in network.flatten() if isinstance(layer, AdaptableLayer) for v in lora_variables(layer)}
    return any(id(variable) not in thin for variable in network.trainable_weights)


def _optimizer(recipe: Recipe, steps: int, narrow: bool) -> Any:
    """Return the given optimizer, or AdamW as in sentence-transformers: no decay of norms and biases.

    If weights have 16 bits (`narrow`), AdamW rounds stochastically, since rounding to nearest loses most of its steps.
    """
    if recipe.optimizer is not None:
        return optimizers.get(recipe.optimizer)
    warmup = number(recipe.warmup, "warmup")
    warmup = round(share(warmup, "warmup") * steps) if warmup < 1 else min(integer(recipe.warmup, "warmup"), steps)
    rate = positive(recipe.learning_rate, "learning_rate")
    found = optimizers.AdamW(
        WarmupLinear(rate, steps, warmup), weight_decay=number(recipe.weight_decay, "weight_decay"),
        epsilon=1e-8, global_clipnorm=recipe.max_norm,
        stochastic_rounding=narrow, seed=(recipe.seed or 0) % 2**32 if narrow else 0,
    )  # fmt: skip
    found.exclude_from_weight_decay(var_names=["bias", "norm", "gamma", "beta"])
    return found


def rates(network: Any, dropout: float | None) -> dict[str, float]:
    """Return place -> dropout rate: those of the configuration, or `dropout` for all places except the head."""
    found = rates_of(network.config)
    if dropout is None:
        return found
    rate = share(dropout, "dropout")
    return dict.fromkeys(("embeddings", "attention", "output", "weights"), rate) if rate else {}


def check_trainable(network: Any) -> None:
    """Raise ValueError if layers hold codes, unless the network has LoRA or quantization-aware training."""
    layers = [layer for layer in network.flatten() if isinstance(layer, Layer)]
    codes = [str(layer.path) for layer in layers if layer.quantized]
    adapted = (layer.lora_enabled or layer.form.is_trained for layer in layers if isinstance(layer, AdaptableLayer))
    if codes and not any(adapted):
        raise ValueError(
            f"{len(codes)} layers hold codes, which have no gradients, such as {codes[0]!r}: load the folder under "
            "policy='float32' or 'mixed_bfloat16', or call `enable_lora` or `prepare_qat`"
        )


# ---- examples


def _read(
    encoder: Any, data: Any, loss: TextLoss, prompts: str | Mapping[str, str] | None, argument: str
) -> tuple[list[Tokens], Array | None]:
    """Return the tokens of each text column, and the labels."""
    examples = read_examples(data, argument)
    least, most = loss.texts
    if not least <= len(examples.texts) <= (most or len(examples.texts)):
        allowed = f"{least}" if least == most else f"at least {least}" if most is None else f"{least} to {most}"
        raise ValueError(
            f"`{argument}` must have {allowed} texts a row for {loss!r}; received the columns "
            f"{', '.join(map(repr, examples.names))}"
        )
    labels = _labels(examples, loss, encoder._pooled_dim, argument)
    columns = [
        _tokens(encoder, texts, prefix, examples, argument)
        for texts, prefix in zip(examples.texts, _prefixes(prompts, examples.names), strict=True)
    ]
    if len({column.skipped for column in columns}) > 1:
        raise ValueError(
            "`prompts` must have the same number of tokens for all columns, because this encoder skips the tokens of "
            f"prompts when it pools; received {[column.skipped for column in columns]}"
        )
    return columns, labels


def _labels(examples: Examples, loss: TextLoss, width: int, argument: str) -> Array | None:
    allowed = loss.label_shapes(len(examples.texts), width)
    if loss.label is None:
        if examples.labels is not None:
            raise ValueError(f"`{argument}` must have no labels for {loss!r}, which are texts alone")
        return None
    if examples.labels is None:
        raise ValueError(f"`{argument}` must have a column 'label' or 'score' for {loss!r}: {loss.label}")
    labels = examples.numbers(argument)
    if labels.shape[1:] not in allowed:
        sizes = " or ".join(str(shape[0]) if shape else "1" for shape in sorted(allowed))
        raise ValueError(
            f"labels of `{argument}` must be {loss.label}; expected numbers per label: {sizes}; "
            f"received {labels[0].size}"
        )
    if isinstance(getattr(loss, "loss", loss), CoSENT) and (labels == labels[0]).all():
        raise ValueError(f"`{argument}` must have labels that differ, to order pairs by them; all are {labels[0]}")
    return labels


def _prefixes(prompts: str | Mapping[str, str] | None, names: Sequence[str]) -> list[str | None]:
    """Return the prompt of each column; None: the encoder's default."""
    if prompts is None or isinstance(prompts, str):
        return [prompts] * len(names)
    unknown = [name for name in prompts if name not in names]
    if unknown:
        raise ValueError(
            f"`prompts` must have names of columns, {', '.join(map(repr, names))}; received {unknown[0]!r}"
        )
    return [prompts.get(name) for name in names]


def _tokens(encoder: Any, texts: list[str], prompt: str | None, examples: Examples, argument: str) -> Tokens:
    """Return the tokens of a column; errors name the row."""
    try:
        found: Tokens = encoder.tokenize(texts, prompt=prompt)
    except TextError as error:
        raise ValueError(f"a text of {examples.where(error.position)} of `{argument}` {error.reason}") from None
    return found
