"""Generators under hostile use: texts cut in characters, overlapping stops, limits, threads, forks, broken streams."""

import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from generating import LETTERS, PROMPTS, written
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mp_core.models.generation import Generator, batch
from mp_core.models.generation.cache import PAGE
from mp_core.models.generation.session import _Text

PIECES = ["a", "b", "ab", "\u00e9", "\u6f22", "\U0001f469\u200d\U0001f467", "\u0301", " "]


class Decoding:
    """The part of a tokenizer that reads tokens: of letters, or of single bytes with a space for each word."""

    def __init__(self, kind):
        if kind == "bytes":
            self.inner = Tokenizer(models.BPE({letter: index for index, letter in enumerate(LETTERS)}, []))
            self.inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            self.inner.decoder = decoders.ByteLevel()
        else:
            names = [f"<0x{index:02X}>" for index in range(256)] + ["\u2581", "\u2581a", "b"]
            self.inner = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, []))
            steps = decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
            self.inner.decoder = decoders.Sequence(list(steps))

    def encode(self, text):
        return self.inner.encode(text).ids if self.inner.pre_tokenizer else [*text.encode()]

    def decode(self, rows):
        return [self.inner.decode(list(row)) for row in rows]

    def knows(self, index):
        return self.inner.id_to_token(index) is not None


def read(tokenizer, tokens, stops=()):
    """Return the pieces of a text, and the number of tokens that were read before a stop."""
    text, pieces = _Text(tokenizer, list(stops), []), []
    for count in range(1, len(tokens) + 1):
        pieces.append(text.read(tokens[:count], count == len(tokens)))
        if text.stopped:
            break
    assert text.known == "".join(pieces)
    return pieces, count


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("hostile")
    written(made)
    return made


@pytest.mark.parametrize("kind", ["bytes", "words"])
def test_pieces_are_the_text_however_characters_are_cut(kind):
    tokenizer, rng = Decoding(kind), random.Random(1)
    for _ in range(300):
        text = tokenizer.encode("".join(rng.choices(PIECES, k=rng.randrange(1, 12))))
        tokens = [*text, *text]
        if kind == "bytes":  # the other decoder takes back a character if bytes after it are invalid
            noise = [rng.randrange(256) for _ in range(rng.choice([0, 0, 3]))]
            tokens = [*noise, *text[: rng.randrange(1, len(text) + 1)], *noise[:1]]
        pieces, _ = read(tokenizer, tokens)
        assert "".join(pieces) == tokenizer.decode([tokens])[0]


def test_texts_end_before_the_first_stop_that_is_complete():
    tokenizer, rng = Decoding("bytes"), random.Random(2)
    for _ in range(300):
        tokens = tokenizer.encode("".join(rng.choices("abc\u00e9", k=30)))
        stops = ["".join(rng.choices("abc\u00e9", k=rng.randrange(1, 5))) for _ in range(3)]
        pieces, count = read(tokenizer, tokens, stops)
        texts = (tokenizer.decode([tokens[:end]])[0] for end in range(1, len(tokens) + 1))
        end, whole = next(
            ((end, text) for end, text in enumerate(texts, 1) if any(stop in text for stop in stops)),
            (len(tokens), tokenizer.decode([tokens])[0]),
        )
        places = [whole.index(stop) for stop in stops if stop in whole]
        assert ("".join(pieces), count) == (whole[: min(places, default=None)], end)


def test_the_first_token_keeps_its_space():
    tokenizer = Decoding("spaces")
    word = tokenizer.inner.token_to_id("\u2581a")
    assert _Text(tokenizer, [], [word]).read([word], True) == " a"
    assert _Text(tokenizer, [], []).read([word], True) == "a"


def test_a_long_stop_is_compared_with_the_end_of_the_text_only():
    tokenizer = Decoding("spaces")
    text, letter = _Text(tokenizer, ["b" + "c" * 2_000_000], []), tokenizer.inner.token_to_id("b")
    assert [text.read([letter] * n, n == 200) for n in range(1, 201)] == [*[""] + ["b"] * 198, "bb"]


def test_threads_score_and_generate(folder):
    generator = Generator.from_folder(folder, "float32")
    texts = ["abc" * 40, "abc" * 40 + "d", "xyz" * 30]
    expected, answer = generator.log_probabilities(texts), generator.generate(PROMPTS, 9)

    def work(number):
        if number % 2:
            return generator.generate(PROMPTS, 9) == answer
        return all(np.array_equal(a, b) for a, b in zip(generator.log_probabilities(texts), expected, strict=True))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(24)))
    assert generator._cache.available == generator._cache._unreserved == generator._pages


def test_prompts_of_the_maximum_and_single_tokens(folder):
    generator = Generator.from_folder(folder, "float32", speculation="lookup")
    found = generator.generate(["a" * 599, "a"], 1)
    assert [len(each.tokens) for each in found] <= [1, 1]
    assert generator.generate("a" * 599, 50) == found[0]
    whole = Generator.from_folder(folder, "float32", cache_tokens=600).generate("a" * 560, 100)
    assert generator.generate("a" * 560, 100) == whole
    assert len(whole.tokens) <= 40
    for count in (0, -1, True, 1.5):
        with pytest.raises((ValueError, TypeError), match="max_tokens"):
            generator.generate("a", count)


def test_threads_share_generators_and_their_draft(folder):
    draft = Generator.from_folder(folder, "float32", cache_tokens=6 * PAGE)
    generators = [
        Generator.from_folder(folder, "mixed_bfloat16", speculation=each) for each in (draft, draft, "lookup")
    ]
    jobs = [(generator, prompt, seed) for generator in generators for prompt in PROMPTS for seed in (1, 2)]

    def generate(job):
        generator, prompt, seed = job
        return generator.generate(prompt, 30, temperature=0.4, seed=seed)

    plain = Generator.from_folder(folder, "mixed_bfloat16")
    expected = [generate((plain, prompt, seed)) for _, prompt, seed in jobs]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(generate, jobs)) == expected
    for each in (*generators, draft):
        assert each._cache.available == each._cache._unreserved == each._pages


def test_abandoned_streams_return_their_pages(folder):
    draft = Generator.from_folder(folder, "float32")
    generator = Generator.from_folder(folder, "mixed_bfloat16", speculation=draft)
    for count in (0, 1, 2, 5):
        pieces = generator.stream(PROMPTS[2], 60)
        for _ in range(count):
            next(pieces)
        del pieces
    broken = generator.stream(PROMPTS[2], 60)
    next(broken)
    with pytest.raises(KeyboardInterrupt):
        broken.throw(KeyboardInterrupt)
    for each in (generator, draft):
        assert each._cache.available == each._cache._unreserved == each._pages
    assert generator.generate(PROMPTS[2], 20) == Generator.from_folder(folder, "mixed_bfloat16").generate(
        PROMPTS[2], 20
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_generates_what_its_parent_does(folder):
    generator = Generator.from_folder(folder, "mixed_bfloat16", speculation="lookup")
    expected = generator.generate(PROMPTS, 20)
    pieces = generator.stream(PROMPTS[2], 100)
    next(pieces)
    with batch._locks[0]:  # as if another thread computed a step
        child = os.fork()
        if child == 0:
            signal.alarm(120)  # ends a child that hangs
            os._exit(generator.generate(PROMPTS, 20) != expected)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert generator.generate(PROMPTS, 20) == expected
    pieces.close()
