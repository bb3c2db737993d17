"""Proposed tokens: answers have the bits of those without proposals, in fewer steps."""

import pytest
from generating import PROMPTS, written

from mp_core.models.generation import Generator
from mp_core.models.generation.batch import Run
from mp_core.models.generation.cache import PAGE, PagedCache, Sequence
from mp_core.models.generation.sampling import Sampling
from mp_core.models.generation.speculation import Lookup

POLICY = "mixed_bfloat16"
REPEATED = [*PROMPTS, "abcabcabc" * 20, "x" * (PAGE - 1), "x" * PAGE]
SAMPLINGS = {
    "greedy": {},
    "random": {"temperature": 0.3, "top_p": 0.9, "seed": 3},
    "penalized": {"repetition_penalty": 1.2, "temperature": 0.2},
}
DRAFTS = {
    "of the same weights": {},
    "of fewer blocks": {"num_hidden_layers": 1},
    "with shorter texts": {"max_position_embeddings": 90},
    "with a larger vocabulary": {"vocab_size": 300},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("speculation")
    written(made)
    return made


@pytest.fixture(scope="module")
def expected(folder):
    generator = Generator.from_folder(folder, POLICY)
    return {name: generator.generate(REPEATED, 100, log_probabilities=2, **how) for name, how in SAMPLINGS.items()}


def assert_has_all_pages(generator):
    cache = generator._cache
    assert cache.available == cache._unreserved == len(cache._users)
    assert not any(cache._users)


def check(generator, expected):
    """Compare all answers with the expected ones; return the most tokens per step of an answer."""
    rates = []
    for name, how in SAMPLINGS.items():
        found = generator.generate(REPEATED, 100, log_probabilities=2, **how)
        assert found == expected[name]
        rates += [len(each.tokens) / each.steps for each in found]
        assert_has_all_pages(generator)
    return max(rates)


def test_tokens_that_are_looked_up_change_no_bit(folder, expected):
    generator = Generator.from_folder(folder, POLICY, speculation="lookup")
    assert check(generator, expected) > 4
    alone = [generator.generate(prompt, 100, log_probabilities=2) for prompt in REPEATED]
    assert alone == expected["greedy"]
    assert not generator._proposer._places


@pytest.mark.parametrize("name", DRAFTS)
def test_a_draft_changes_no_bit(folder, expected, tmp_path, name):
    written(tmp_path, **DRAFTS[name])
    draft = Generator.from_folder(tmp_path if DRAFTS[name] else folder, "float32", cache_tokens=1000)
    rate = check(Generator.from_folder(folder, POLICY, speculation=draft), expected)
    assert DRAFTS[name] or rate > 8
    assert_has_all_pages(draft)
    assert draft.generate("the cat", 5) == Generator.from_folder(draft._folder, "float32").generate("the cat", 5)


def test_a_network_takes_proposals_of_a_smaller_vocabulary(folder, tmp_path):
    written(tmp_path, vocab_size=300)
    wide = Generator.from_folder(tmp_path, "float32")
    found = Generator.from_folder(tmp_path, "float32", speculation=Generator.from_folder(folder, "float32"))
    assert found.generate(PROMPTS, 60, temperature=1.0) == wide.generate(PROMPTS, 60, temperature=1.0)


def test_texts_wait_for_pages_and_stop_within_a_step(folder):
    lone = Generator.from_folder(folder, POLICY)
    small = Generator.from_folder(folder, POLICY, cache_tokens=5 * PAGE, speculation="lookup")
    stop = lone.generate(REPEATED[5], 100).text[40:43]
    for stops in ((), stop):
        assert small.generate(REPEATED * 2, 100, stop=stops) == lone.generate(REPEATED * 2, 100, stop=stops)
        assert_has_all_pages(small)
    assert list(small.stream(REPEATED[5], 100)) == list(lone.stream(REPEATED[5], 100))
    pieces = small.stream(REPEATED[5], 100)
    next(pieces)
    pieces.close()
    assert_has_all_pages(small)
    assert not small._proposer._places


def test_what_is_looked_up_follows_the_last_tokens():
    def proposed(tokens, count):
        return Lookup().propose([Run(tokens, Sampling(), 0, 100)], [count])[0]

    assert proposed([1, 2, 3, 9, 8, 7, 1, 2, 3], 2) == [9, 8]
    assert proposed([5, 1, 2, 6, 9, 1, 2, 7, 5, 1, 2], 2) == [6, 9]  # three tokens before two, the last place of those
    assert proposed([1, 2, 6, 9, 1, 2, 7, 5, 1, 2], 2) == [7, 5]
    assert proposed([4, 1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]
    assert proposed([1, 2, 3], 4) == proposed([1], 4) == []


def test_a_page_with_other_tokens_is_not_written_again():
    cache = PagedCache([(1, 2)], "float32", 4)
    sequence = Sequence([1] * (PAGE + 3))
    cache.grow(sequence, PAGE + 3)
    cache.note(sequence, PAGE + 3)
    cache.rewind(sequence, PAGE + 1)
    assert (sequence.stored, len(sequence.pages)) == (PAGE + 1, 2)
    other = Sequence([1] * (PAGE + 1))
    cache.share(other)
    cache.rewind(sequence, PAGE - 1)
    assert (sequence.stored, sequence.pages, other.stored) == (0, [], PAGE)
    cache.release(other)
    assert cache.available == 4


def test_another_kind_of_speculation_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"`speculation` must be 'lookup', a Generator or None; received 'draft'"):
        Generator.from_folder(folder, speculation="draft")
    written(tmp_path)
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace("<end>", "<stop>"))
    with pytest.raises(ValueError, match="whose tokenizer has the same tokens"):
        Generator.from_folder(folder, speculation=Generator.from_folder(tmp_path))


@pytest.mark.parametrize("given", ["lookup", "the folder"])
def test_the_command_proposes_tokens(folder, capsys, tmp_path, given):
    from mp_core.cli import main

    (tmp_path / "prompts.txt").write_text("the cat\na dog\n")
    command = ["generate", str(folder), str(tmp_path / "prompts.txt"), "--max-tokens", "40", "--quiet"]
    assert main(command) == main([*command, "--speculation", given if given == "lookup" else str(folder)]) == 0
    lines = capsys.readouterr().out
    assert lines and lines[: len(lines) // 2] * 2 == lines
