"""Perplexity of decoders: the recipe of transformers, the command, and calibration and choice of policies by it."""

import json

import numpy as np
import pytest
import random_models
from test_generation import written

from mp_core import calibrate, choose_policy
from mp_core.cli import main
from mp_core.models import Generator

TEXT = "the quick brown fox jumps over the lazy dog; \u00fcber alles was fliegt. " * 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("perplexity")
    written(made)
    return made


@pytest.mark.parametrize(("window", "stride"), [(64, 64), (100, 30), (599, 1), (48, 47)])
def test_the_number_is_that_of_the_recipe_of_transformers(folder, window, stride):
    import torch

    generator = Generator.from_folder(folder, "float32")
    found = generator.perplexity(TEXT, window=window, stride=stride)
    network = random_models.library().AutoModelForCausalLM.from_pretrained(folder).double()
    ids = torch.tensor(generator._tokenizer([TEXT])[0][0][np.newaxis].astype(np.int64))
    total, count, before = 0.0, 0, 0
    for begin in range(0, ids.shape[1], stride):  # huggingface.co/docs/transformers/perplexity
        end = min(begin + window, ids.shape[1])
        part, targets = ids[:, begin:end], ids[:, begin:end].clone()
        targets[:, : max(before - begin, 0)] = -100
        scored = int((targets[:, 1:] != -100).sum())
        if scored:
            with torch.no_grad():
                total += float(network(part, labels=targets).loss) * scored
            count += scored
        before = end
        if end == ids.shape[1]:
            break
    assert found.tokens == count
    np.testing.assert_allclose(found.value, np.exp(total / count), rtol=1e-5)
    np.testing.assert_allclose(found.log_probability, -total, rtol=1e-5)


def test_bad_windows_and_texts_are_refused(folder):
    generator = Generator.from_folder(folder, "float32")
    for arguments, message in (
        ({"window": 1}, "`window` must be from 2 to 599, what the network and the cache hold; received 1"),
        ({"window": 600}, "`window` must be from 2 to 599"),
        ({"window": 8, "stride": 9}, "`stride` must be at most `window`, 8; received 9"),
        ({"stride": 0}, "`stride` must be"),
        ({"text": "a"}, "`text` must have two tokens; the model's tokenizer gives it 1"),
    ):
        with pytest.raises(ValueError, match=message):
            generator.perplexity(**{"text": TEXT} | arguments)
    for tokens in ([1.5], [[1]], [-1, 2], [10**6]):
        with pytest.raises(ValueError, match=r"`texts\[0\]` must"):
            generator.log_probabilities([tokens])


def test_tokens_are_scored_as_their_text(folder):
    generator = Generator.from_folder(folder, "float32")
    ids = generator._tokenizer([TEXT])[0][0]
    (expected,), (found, best) = generator.log_probabilities([TEXT]), generator.likelihoods(["a", ids])[1]
    np.testing.assert_array_equal(found, expected)
    answer = generator.generate("the cat", 8)
    prompt = generator._tokenizer(["the cat"])[0][0].tolist()
    _, best = generator.likelihoods([prompt + answer.tokens])[0]
    assert best[len(prompt) - 1 :].all()


def test_the_command_prints_the_perplexity(folder, tmp_path, capsys):
    (tmp_path / "text.txt").write_text(TEXT)
    options = [str(folder), str(tmp_path / "text.txt"), "--policy", "float32", "--window", "100", "--json", "--quiet"]
    assert main(["perplexity", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = Generator.from_folder(folder, "float32").perplexity(TEXT, window=100)
    assert (found["perplexity"], found["stride"], found["tokens"]) == (expected.value, 50, len(TEXT.encode()) - 1)


def test_calibration_and_choice_read_a_generator(folder):
    generator = Generator.from_folder(folder, "float32")
    sample = [TEXT[i : i + 60] for i in range(0, 240, 20)]
    exact = generator(sample)
    errors = [
        np.abs(other(sample) - exact).mean()
        for other in (
            generator.with_policy("int4/64_from_float32"),
            calibrate(generator, sample, "int4/64_from_float32"),
        )
    ]
    assert errors[1] < 0.9 * errors[0]

    def increase(found, expected):
        return np.exp(expected.mean() - found.mean()) - 1

    few = sample[:2]
    choice = choose_policy(generator, few, max_error=0.02, metric=increase, policies=["bfloat16"])
    assert choice.nbytes < 0.6 * choice.reference_nbytes
    assert increase(generator.with_policy(choice.map)(few), generator(few)) <= 0.02
