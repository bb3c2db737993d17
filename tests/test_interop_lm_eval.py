"""Decoders in lm-evaluation-harness: the scores of its own model of transformers, whatever the batch."""

import warnings

import numpy as np
import pytest
from test_generation import written

from mp_core.models import Generator

PAIRS = [
    ("the cat", " sat on the mat"), ("", "the dog"), ("a question \u00fcber alles ", "yes"), ("the cat", "a" * 90),
    ("the quick brown fox " * 8, " jumps"),
]  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return the harness' own model of a random decoder, and that of mp_core."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("lm_eval")
        from lm_eval.models.huggingface import HFLM
        from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

        from mp_core.interop.lm_eval import HarnessModel

        folder = tmp_path_factory.mktemp("harness")
        written(folder)
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token="<end>")
        network = AutoModelForCausalLM.from_pretrained(folder).float()
        theirs = HFLM(network, tokenizer=tokenizer, max_length=100, batch_size=1, device="cpu")
    return theirs, HarnessModel(Generator.from_folder(folder, "float32"), max_length=100)


def requests(kind, arguments):
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, each, index) for index, each in enumerate(arguments)]


def test_likelihoods_are_those_of_the_model_of_transformers(models):
    theirs, ours = models
    asked = requests("loglikelihood", PAIRS)
    expected, found = theirs.loglikelihood(asked, disable_tqdm=True), ours.loglikelihood(asked, disable_tqdm=True)
    np.testing.assert_allclose([x for x, _ in found], [x for x, _ in expected], rtol=1e-5)
    assert [best for _, best in found] == [best for _, best in expected]
    assert found == [ours.loglikelihood([one], disable_tqdm=True)[0] for one in asked]  # bits, one by one
    assert found[::-1] == ours.loglikelihood(asked[::-1], disable_tqdm=True)
    texts = requests("loglikelihood_rolling", [("the cat sat on the mat. " * 9,), ("a",)])
    expected, found = (each.loglikelihood_rolling(texts, disable_tqdm=True) for each in models)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_answers_are_those_of_the_model_of_transformers(models):
    how = {"until": ["zz"], "max_gen_toks": 12, "do_sample": False}
    other = {"until": "e", "max_gen_toks": 20}
    asked = requests("generate_until", [("the cat", how), ("a dog sat", how), ("the fox " * 20, other)])
    expected, found = (each.generate_until(asked, disable_tqdm=True) for each in models)
    assert found == expected
    assert found == [models[1].generate_until([one])[0] for one in asked]


def test_a_task_of_local_data_runs(models, tmp_path):
    import json

    import lm_eval
    from lm_eval.tasks import TaskManager

    rows = [{"question": f"{i} is", "choices": ["even", "odd"], "answer": i % 2} for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = {
        "task": "parity", "dataset_path": "json", "dataset_kwargs": {"data_files": str(tmp_path / "rows.jsonl")},
        "test_split": "train", "output_type": "multiple_choice", "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}", "doc_to_target": "{{answer}}", "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = [
            lm_eval.simple_evaluate(each, tasks=[task], task_manager=TaskManager(), bootstrap_iters=0, limit=8)
            for each in models
        ]
    found, expected = ([sample["filtered_resps"] for sample in each["samples"]["parity"]] for each in scores[::-1])
    np.testing.assert_allclose(np.array(found, float), np.array(expected, float), rtol=1e-5)
    assert scores[0]["results"] == scores[1]["results"]


def test_bad_arguments_are_refused(models):
    kind, generator = type(models[1]), models[1].generator
    with pytest.raises(ValueError, match="`device` must be 'cpu' or None; received 'cuda'"):
        kind(generator, device="cuda")
    with pytest.raises(ValueError, match="`max_length` must be at most 598"):
        kind(generator, max_length=599)
    with pytest.raises(ValueError, match="max_gen_toks must be from 1 to 99; received 100"):
        models[1].generate_until(requests("generate_until", [("a", {"max_gen_toks": 100})]))
