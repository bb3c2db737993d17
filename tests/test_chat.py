"""Chat templates: the text of transformers for the same messages, and limits for templates that are hostile."""

import enum
import json
import shutil
import time

import numpy as np
import pytest
from chat_templates import CHATS, HOSTILE, TEMPLATES
from generating import written

from mp_core.models.generation import Generator

pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("chat")
    written(made)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<end>", "eos_token": "<end>"}
    (made / "tokenizer_config.json").write_text(json.dumps(settings))
    return made


@pytest.fixture(scope="module")
def generator(folder):
    return Generator.from_folder(folder, "float32")


@pytest.fixture(scope="module")
def expected(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder).apply_chat_template


def copied(folder, tmp_path, **settings):
    """Return a copy of the folder whose tokenizer_config.json has further settings."""
    made = tmp_path / "copy"
    shutil.copytree(folder, made)
    path = made / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return made


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_and_tokens_are_those_of_transformers(generator, expected, name, chat):
    from jinja2 import TemplateError

    template, messages = TEMPLATES[name], CHATS[chat]
    for settings in ({}, {"add_generation_prompt": False}, {"enable_thinking": False, "tools": [{"a": "<\u00fc>"}]}):
        how = {"chat_template": template, "add_generation_prompt": True, **settings}
        try:
            text = expected(messages, tokenize=False, **how)
        except TemplateError as error:
            with pytest.raises(ValueError, match=str(error)):
                generator.apply_template(messages, template=template, **settings)
            continue
        assert generator.apply_template(messages, template=template, **settings) == text
        ids = expected(messages, return_dict=False, **how)
        assert generator.chat_tokens(messages, template=template, **settings) == ids


def test_a_template_that_transformers_contains(generator, expected):
    from transformers.models.llama4.processing_llama4 import chat_template

    for messages in CHATS.values():
        text = expected(messages, chat_template=chat_template, tokenize=False, add_generation_prompt=True)
        assert generator.apply_template(messages, template=chat_template) == text


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_refused_in_bounded_time(generator, name):
    start = time.monotonic()
    template, reason = HOSTILE[name]
    with pytest.raises(ValueError, match=f"the chat template of .*: {reason}"):
        generator.apply_template(CHATS["one"], template=template)
    assert time.monotonic() - start < 60  # a minute for 2 seconds of work on a busy machine


def test_templates_are_read_where_transformers_reads_them(folder, tmp_path):
    messages = CHATS["one"]

    def text(path, **settings):
        return Generator.from_folder(path, "float32").apply_template(messages, **settings)

    given = copied(folder, tmp_path / "1", chat_template="one {{ eos_token }}")
    assert text(given) == "one <end>"
    listed = [
        {"name": "default", "template": "d"},
        {"name": "tool_use", "template": "t"},
        {"name": "r", "template": "r"},
    ]
    named = copied(folder, tmp_path / "2", chat_template=listed)
    assert [text(named), text(named, tools=[]), text(named, template="r")] == ["d", "t", "r"]
    (named / "chat_template.jinja").write_text("file")
    (named / "additional_chat_templates").mkdir()
    (named / "additional_chat_templates" / "other.jinja").write_text("other")
    assert [text(named), text(named, template="other")] == ["file", "other"]
    without = copied(folder, tmp_path / "3", chat_template=listed[1:])
    with pytest.raises(ValueError, match=r"`template` must be 'tool_use' or 'r'"):
        text(without)
    with pytest.raises(ValueError, match="has no chat template: give `template`"):
        text(folder)
    with pytest.raises(ValueError, match=r"chat_template is .*; expected a string, or a list"):
        text(copied(folder, tmp_path / "4", chat_template=[{"name": 1}]))


@pytest.mark.parametrize(
    ("messages", "error", "match"),
    [
        ("hi", TypeError, "`messages` must be a list of mappings; received str"),
        ([], ValueError, "`messages` must have at least one message"),
        (["hi"], TypeError, r"`messages\[0\]` must be a mapping; received str"),
        ([{"content": "a"}], ValueError, r'`messages\[0\]` must have a "role"'),
        ([{"role": "user", "content": np.zeros(2)}], TypeError, "JSON's types; received ndarray"),
        ([{"role": "user", "content": "a" * 700}], ValueError, "`messages` must have fewer than 600 tokens"),
    ],
)
def test_bad_messages_are_refused(generator, messages, error, match):
    with pytest.raises(error, match=match):
        generator.chat_tokens(messages, template=TEMPLATES["phi"])


def test_values_of_subclasses_become_plain(generator):
    class Role(enum.StrEnum):
        USER = "user"

    message = {"role": Role.USER, "content": np.str_("a"), "n": np.float64(1.5)}
    assert generator.apply_template([message], template="{{ messages }}") == (
        "[{'role': 'user', 'content': 'a', 'n': 1.5}]"
    )
    with pytest.raises(ValueError, match="a chat template of 300000 characters is too long"):
        generator.apply_template([message], template="a" * 300_000)
    with pytest.raises(TypeError, match="`template` must be a str or None; received int"):
        generator.apply_template([message], template=1)


def test_a_chat_is_the_generation_after_its_tokens(generator):
    messages, template = CHATS["three"], TEMPLATES["qwen"]
    found = generator.chat(messages, 12, template=template, temperature=1.5, seed=4, log_probabilities=1)
    text = generator.apply_template(messages, template=template)
    assert found == generator.generate(text, 12, temperature=1.5, seed=4, log_probabilities=1)
    assert generator.chat_tokens(messages, template=template) == generator._tokenizer([text])[0][0].tolist()
    ids = generator.chat_tokens(messages, template=template)
    assert generator.generate([np.array(ids), text], 5)[0] == generator.generate(text, 5)
    assert "".join(generator.stream(ids, 12)) == generator.generate(text, 12).text


@pytest.mark.parametrize("ids", [[257], [-1], [0.5], [[1]], [True, None], ["a"]])
def test_prompts_of_bad_tokens_are_refused(generator, ids):
    with pytest.raises(ValueError, match=r"`prompts\[0\]` must be a str, or tokens from 0 to 256"):
        generator.generate([ids])


def test_logits_that_are_not_finite_are_an_error(folder):
    from mp_core.utilities.nonfinite import NonFiniteError

    generator = Generator.from_folder(folder, "float32")
    generator.model.lm_head.kernel.assign(np.full_like(generator.model.lm_head.kernel.numpy(), np.nan))
    with pytest.raises(NonFiniteError, match="the logits of the next token have Inf or NaN"):
        generator.generate("a")
    assert generator._cache.available == generator._pages


def test_tokens_that_the_tokenizer_lacks_have_no_text(tmp_path):
    written(tmp_path, vocab_size=900)
    generator = Generator.from_folder(tmp_path, "float32")
    found = generator.generate("a", 30, temperature=9.0)
    assert max(found.tokens) > 256
    known = [token for token in found.tokens if token < 257]
    assert found.text == generator._tokenizer.decode([known])[0]
