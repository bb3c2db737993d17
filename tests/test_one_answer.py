"""One answer: the bits of tokens and logits do not depend on how, beside what, or on what they were computed."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

import mp_core as mp
from mp_core.models.generation import batch
from mp_core.models.generation.cache import PAGE
from mp_core.models.generation.speculation import Draft, Lookup

LAB = Path(__file__).parents[1] / "asv_bench/lab"
POLICIES = ("float32", "mixed_bfloat16", "int8_from_mixed_bfloat16")
SHORT = 160  # the most tokens of a prompt in quick tests


@pytest.fixture(scope="module")
def lab():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(LAB)
        yield importlib.import_module("generation_bits")


@pytest.fixture(scope="module")
def folder(lab, tmp_path_factory):
    made = tmp_path_factory.mktemp("one answer")
    lab.write(made)
    return made


@pytest.fixture(scope="module")
def answers(lab, folder):
    """Return the answers to short prompts by policy: 64 at a time, in chunks of 512 tokens, on one thread."""
    with mp.config.num_threads(1):
        return {policy: lab.answers(lab.Decoder(folder, policy), lab.prompts(longest=SHORT)) for policy in POLICIES}


def draft(lab, folder, policy, pages=128):
    """Return a proposer and its decoder, which has the same weights under another policy."""
    decoder = lab.Decoder(folder, policy, pages)
    size = lab.SIZES["vocab_size"]
    return Draft(decoder.steps, decoder.cache, decoder.model.settings.max_length, (size, size)), decoder


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("tokens", [10**6, 64, 97, 1])
def test_chunks_of_prompts_change_no_bit(lab, folder, answers, monkeypatch, policy, tokens):
    count = 100 if tokens > 1 else 40
    monkeypatch.setattr(batch, "_CHUNK", tokens)
    assert lab.answers(lab.Decoder(folder, policy), lab.prompts(longest=SHORT)[:count]) == answers[policy][:count]


@pytest.mark.parametrize("policy", POLICIES)
def test_other_prompts_and_cached_prefixes_change_no_bit(lab, folder, answers, policy):
    decoder, small = lab.Decoder(folder, policy), lab.Decoder(folder, policy, -(-(SHORT + lab.NEW) // PAGE))
    for group in (1, 7, 100):
        assert lab.answers(decoder, lab.prompts(longest=SHORT), group) == answers[policy]
    assert lab.answers(small, lab.prompts(longest=SHORT)) == answers[policy]
    backwards = lab.prompts(longest=SHORT)
    numbers = [index for index in range(99, -1, -1) if index % len(lab.SAMPLINGS) == 0]  # greedy: no number of a prompt
    found = [lab.answers(decoder, [backwards[index]])[0] for index in numbers]
    assert found == [answers[policy][index] for index in numbers]


@pytest.mark.parametrize("policy", POLICIES)
def test_proposals_change_no_bit(lab, folder, answers, policy):
    decoder = lab.Decoder(folder, policy)
    assert lab.answers(decoder, lab.prompts(longest=SHORT), proposer=Lookup()) == answers[policy]
    for pages, group in ((128, 64), (9, 5)):
        proposer, other = draft(lab, folder, "float32", pages)
        assert lab.answers(decoder, lab.prompts(longest=SHORT), group, proposer) == answers[policy]
        assert other.cache.available == pages


@pytest.mark.parametrize("policy", POLICIES)
def test_threads_and_sets_change_no_bit(lab, folder, answers, policy, isa):
    for threads in (1, 2, 16):
        with mp.config.num_threads(threads):
            assert lab.answers(lab.Decoder(folder, policy), lab.prompts(longest=SHORT)) == answers[policy]


def test_answers_are_those_of_all_machines(lab, folder):
    known = json.loads((LAB / "known_bits.json").read_text())
    assert {name.removeprefix("generated ") for name in known if name.startswith("generated")} == set(lab.POLICIES)
    found = lab.digest_of(lab.answers(lab.Decoder(folder, POLICIES[1]), lab.prompts()))
    assert found[:16] == known[f"generated {POLICIES[1]}"]


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_long_prompts_have_one_answer(lab, folder, monkeypatch, policy, isa):
    known, texts = json.loads((LAB / "known_bits.json").read_text())[f"generated {policy}"], lab.prompts()
    decoder, large = lab.Decoder(folder, policy), lab.Decoder(folder, policy, 512)
    for threads, group, chunk, proposer in (
        (1, 1, 512, None),
        (2, 64, 10**6, Lookup()),
        (16, 64, 97, draft(lab, folder, "float32")[0]),
        (2, 13, 512, draft(lab, folder, "mixed_bfloat16", 40)[0]),
    ):
        monkeypatch.setattr(batch, "_CHUNK", chunk)
        with mp.config.num_threads(threads):
            for each in (decoder, large):
                assert lab.digest_of(lab.answers(each, texts, group, proposer))[:16] == known


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_the_longest_prompt_token_by_token_has_the_logits_of_the_whole(lab, folder, policy, isa):
    from mp_core.models.generation.cache import Sequence

    text = lab.prompts()[-1]
    found = []
    for counts in ([len(text)], [1] * len(text)):
        decoder, sequence = lab.Decoder(folder, policy), Sequence(list(text))
        for count in counts:
            decoder.cache.grow(sequence, sequence.stored + count)
            logits = decoder.steps([sequence], [count])
        found.append(logits.copy())
    assert np.array_equal(found[0].view(np.uint32), found[1].view(np.uint32))
