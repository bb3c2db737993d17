"""Decoders that generate: one answer for a prompt, whatever else is computed, and the answers of transformers."""

import json

import numpy as np
import pytest
import random_models
from generating import END, PROMPTS, written
from oracles import assert_same_bits

from mp_core import config
from mp_core.models.generation import Generator
from mp_core.models.generation.cache import PAGE, NoPageError, PagedCache, Sequence
from mp_core.models.generation.network import Steps, heads_of
from mp_core.models.generation.sampling import Sampling

NAMES = ["qwen3", "qwen2", "llama", "mistral", "phi3", "gemma", "gemma2", "gemma3_text"]
POLICIES = ["float32", "mixed_bfloat16", "float16", "int8_from_mixed_bfloat16", "int4/64_from_float32"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("generation")
    written(made)
    return made


def logits_of(generator, ids, counts):
    """Return the logits after each piece of a sequence, in a cache of its own."""
    cache = PagedCache(heads_of(generator.model.settings), generator._cache.keys[0].dtype, 1 + -(-len(ids) // PAGE))
    steps, sequence, found = Steps(generator.model, cache), Sequence(list(ids)), []
    for count in counts:
        cache.grow(sequence, sequence.stored + count)
        found.append(steps([sequence], [count])[0].copy())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(tmp_path, name):
    import torch

    network, ids = written(tmp_path, name), np.random.default_rng(1).integers(0, END, 150)
    with torch.no_grad():
        expected = network.double()(torch.tensor(ids[None])).logits[0].numpy()
    found = logits_of(Generator.from_folder(tmp_path, "float32"), ids.tolist(), [100, 1, 1, 48])
    for row, place in zip(found, (99, 100, 101, 149), strict=True):
        np.testing.assert_allclose(row, expected[place], atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("policy", POLICIES)
def test_prompts_in_one_piece_in_several_and_token_by_token_have_the_same_bits(folder, policy, isa):
    generator, ids = Generator.from_folder(folder, policy), np.random.default_rng(2).integers(0, END, 200).tolist()
    whole = logits_of(generator, ids, [200])[0]
    for counts in ([1] * 200, [64, 64, 72], [3, 130, 1, 66]):
        with config.num_threads(2):
            assert_same_bits(logits_of(generator, ids, counts)[-1], whole)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.5, "top_p": 0.9, "seed": 3}])
def test_an_answer_does_not_depend_on_other_prompts(folder, sampling):
    generator = Generator.from_folder(folder, "mixed_bfloat16")
    together = generator.generate(PROMPTS, 40, log_probabilities=2, **sampling)
    again = Generator.from_folder(folder, "mixed_bfloat16").generate(PROMPTS[:3], 40, log_probabilities=2, **sampling)
    assert together[:3] == again
    if not sampling:
        alone = [generator.generate(prompt, 40, log_probabilities=2) for prompt in PROMPTS]
        assert together == alone
    assert generator._cache.available == generator._pages


def test_greedy_tokens_are_those_of_transformers(folder):
    import torch

    network = random_models.library().AutoModelForCausalLM.from_pretrained(folder).double()
    generator = Generator.from_folder(folder, "float32")
    ids = generator._tokenizer([PROMPTS[0]])[0][0].tolist()
    with torch.no_grad():
        expected = network.generate(torch.tensor([ids]), max_new_tokens=30, do_sample=False)[0, len(ids) :].tolist()
    found = generator.generate(PROMPTS[0], 30)
    assert found.tokens == expected[: len(found.tokens)]
    assert len(found.tokens) == 30 or expected[len(found.tokens)] == END


def test_streamed_pieces_are_the_text(folder):
    generator = Generator.from_folder(folder, "float32")
    for prompt in PROMPTS:
        assert "".join(generator.stream(prompt, 30)) == generator.generate(prompt, 30).text


def test_a_text_ends_before_a_stop(folder):
    generator = Generator.from_folder(folder, "float32")
    whole = generator.generate(PROMPTS[0], 30, temperature=2.0).text
    stop = whole[5:8]
    found = generator.generate(PROMPTS[0], 30, temperature=2.0, stop=stop)
    assert (found.text, found.reason) == (whole[: whole.index(stop)], "stop")
    assert "".join(generator.stream(PROMPTS[0], 30, temperature=2.0, stop=[stop])) == found.text


def test_a_small_cache_lets_prompts_wait(folder):
    small = Generator.from_folder(folder, "float32", cache_tokens=5 * PAGE)
    large = Generator.from_folder(folder, "float32")
    assert small.generate(PROMPTS * 3, 20) == large.generate(PROMPTS * 3, 20)
    assert small.cache_bytes < large.cache_bytes
    with pytest.raises(ValueError, match=r"more than the 320 tokens of the cache: pass a larger `cache_tokens`"):
        small.generate("a" * 300, 100)


def test_prefixes_are_computed_once(folder):
    generator = Generator.from_folder(folder, "float32")
    prompt = "b" * (3 * PAGE)
    first = generator.generate(prompt + "c", 5)
    sequence = Sequence(generator._tokenizer([prompt + "c"])[0][0].tolist())
    generator._cache.share(sequence)
    assert sequence.stored == 3 * PAGE
    generator._cache.release(sequence)
    assert generator.generate(prompt + "c", 5) == first


def test_pages_are_taken_from_the_least_recently_used(folder):
    cache = PagedCache([(1, 2)], "float32", 3)
    first, second = Sequence([1] * 2 * PAGE), Sequence([2] * PAGE)
    for sequence in (first, second):
        cache.grow(sequence, len(sequence.tokens))
        cache.note(sequence, len(sequence.tokens))
        cache.release(sequence)
    other = Sequence([3] * PAGE)
    cache.grow(other, PAGE)
    again = Sequence([2] * PAGE + [0])
    cache.share(again)
    assert again.stored == PAGE
    with pytest.raises(NoPageError, match=r"1 free pages of 64 tokens; 2 are needed"):
        cache.grow(again, 3 * PAGE)


def test_sampling_follows_the_probabilities():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))

    def drawn(sampling, count):
        return [sampling.token(logits, [], prompt=index) for index in range(count)]

    counts = np.bincount(drawn(Sampling(1.0), 3000), minlength=4) / 3000
    np.testing.assert_allclose(counts, np.exp(logits), atol=0.03)
    assert set(drawn(Sampling(1.0, top_p=0.79), 300)) == {0, 1}
    assert set(drawn(Sampling(1.0, top_k=3), 300)) == {0, 1, 2}
    assert set(drawn(Sampling(1.0, min_p=0.25), 300)) == {0, 1, 2}
    assert Sampling(repetition_penalty=3.0).token(np.array([2, 1, -1], np.float32), [0]) == 1


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"presence_penalty": 0.75}, [0.25, 3.25, 4, -5]),
        ({"frequency_penalty": 0.25}, [0.5, 3.75, 4, -5]),
        ({"presence_penalty": -0.5, "frequency_penalty": 1.0}, [-0.5, 3.5, 4, -5]),
        ({"logit_bias": {3: 100, 1: -1.5}}, [1, 2.5, 4, 95]),
        ({"logit_bias": {2: -6}, "repetition_penalty": 2.0, "presence_penalty": 1.0}, [-0.5, 1, -4, -10]),
    ],
)
def test_logits_change_in_the_stated_order(how, expected):
    logits, prompt = np.array([1, 4, 4, -5], np.float32), [2, 3, 2]
    assert Sampling(**how)._changed(logits, [*prompt, 0, 1, 0], len(prompt)).tolist() == expected
    assert logits.tolist() == [1, 4, 4, -5]


def test_penalties_and_biases_reach_the_tokens(folder):
    generator = Generator.from_folder(folder, "float32")
    plain = generator.generate(PROMPTS[0], 30)
    banned = generator.generate(PROMPTS[0], 30, logit_bias={plain.tokens[0]: -1000})
    assert plain.tokens[0] not in banned.tokens
    varied = generator.generate(PROMPTS[0], 30, presence_penalty=1000.0)
    assert len(set(varied.tokens)) == 30
    assert generator.generate(PROMPTS[0], 30, frequency_penalty=1000.0).tokens == varied.tokens
    with pytest.raises(ValueError, match=r"`logit_bias` must have tokens from 0 to 256; received 257"):
        generator.generate(PROMPTS[0], logit_bias={257: 1.0})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -1}, "`temperature` must be"),
        ({"top_p": 2}, "`top_p`"),
        ({"top_k": 0}, "`top_k`"),
        ({"seed": -1}, "`seed` must be"),
        ({"repetition_penalty": 0}, "`repetition_penalty` must be"),
        ({"presence_penalty": np.inf}, "`presence_penalty` must be"),
        ({"frequency_penalty": np.nan}, "`frequency_penalty` must be"),
        ({"logit_bias": {-1: 1.0}}, "`logit_bias` must have tokens from 0 on; received -1"),
        ({"logit_bias": {1: np.inf}}, r"`logit_bias\[1\]` must be"),
        ({"stop": [""]}, "`stop` must be"),
        ({"max_tokens": 0}, "`max_tokens`"),
        ({"log_probabilities": -1}, "`log_probabilities` must be"),
        ({"prompts": ["a", ""]}, r"`prompts\[1\]` must have a token"),
        ({"prompts": "a" * 700}, r"`prompts\[0\]` must have fewer than 600 tokens"),
    ],
)
def test_bad_arguments_are_refused(folder, arguments, message):
    with pytest.raises(ValueError, match=message):
        Generator.from_folder(folder).generate(**{"prompts": "a"} | arguments)


@pytest.mark.parametrize("longest", [PAGE // 2, PAGE, PAGE + 1, PAGE + 30])
def test_networks_of_short_texts_generate(tmp_path, longest):
    written(tmp_path, max_position_embeddings=longest)
    generator = Generator.from_folder(tmp_path, "float32")
    found = generator.generate(["ab", "a", "abc"], 200)
    assert found == [generator.generate(prompt, 200) for prompt in ("ab", "a", "abc")]
    assert max(len(each.tokens) for each in found) == longest - 1
    assert generator.generate("a" * (longest - 1)).reason in ("length", "stop")


def test_networks_that_cannot_generate_are_refused(tmp_path):
    written(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"is_causal": False}))
    with pytest.raises(ValueError, match="does not generate texts here"):
        Generator.from_folder(tmp_path)


def test_the_command_writes_what_the_generator_generates(folder, tmp_path, capsys):
    from mp_core.cli import main

    (tmp_path / "prompts.txt").write_text("the cat\na dog\n")
    options = ["--max-tokens", "6", "--temperature", "1.5", "--seed", "3", "--format", "jsonl"]
    assert main(["generate", str(folder), str(tmp_path / "prompts.txt"), *options]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = Generator.from_folder(folder).generate(["the cat", "a dog"], 6, temperature=1.5, seed=3)
    assert [line["text"] for line in found] == [each.text for each in expected]
    assert main(["generate", str(folder), str(tmp_path / "prompts.txt"), "--max-tokens", "2", "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("the cat")


def test_log_probabilities_are_those_of_transformers(folder):
    import torch

    network = random_models.library().AutoModelForCausalLM.from_pretrained(folder).double()
    generator = Generator.from_folder(folder, "float32")
    for text, found in zip(PROMPTS[:3], generator.log_probabilities(PROMPTS[:3]), strict=True):
        ids = torch.tensor(generator._tokenizer([text])[0][0][None].astype(np.int64))
        with torch.no_grad():
            logs = torch.log_softmax(network(ids).logits[0], -1)
        expected = logs[range(ids.shape[1] - 1), ids[0, 1:]].numpy()
        np.testing.assert_allclose(found, expected, atol=2e-5)
    noted = generator.generate(PROMPTS[0], 5, log_probabilities=1)
    again = generator.log_probabilities([PROMPTS[0] + noted.text])[0][-len(noted.tokens) :]
    assert not noted.text.isascii() or np.array_equal([each for each, _ in noted.log_probabilities], again)
    with pytest.raises(ValueError, match=r"`texts\[0\]` must have fewer than 600 tokens"):
        generator.log_probabilities(["a" * 700])


def test_threads_may_generate_at_once(folder):
    from concurrent.futures import ThreadPoolExecutor

    generator = Generator.from_folder(folder, "float32")
    alone = [generator.generate(prompt, 20) for prompt in PROMPTS]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda prompt: generator.generate(prompt, 20), PROMPTS * 3))
    assert found == alone * 3
    assert generator._cache.available == generator._cache._unreserved == generator._pages


def test_a_stream_that_is_not_read_keeps_its_pages(folder):
    generator = Generator.from_folder(folder, "float32", cache_tokens=2 * PAGE)
    pieces = generator.stream(PROMPTS[0], 100)
    next(pieces)
    with pytest.raises(NoPageError, match=r"other texts that are being generated hold the pages"):
        generator.generate(PROMPTS[1], 100)
    pieces.close()
    assert generator.generate(PROMPTS[1], 100).tokens
