"""Folders of tokenizers with random settings, compared with transformers: the same tokens, or an error."""

import json
import os

import pytest
import random_models
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from mp_core.models import tokenizer as module
from mp_core.models import tokenizer_opening as opening

pytest.importorskip("sentencepiece")
pytest.importorskip("google.protobuf")
import random_tokenizers  # it needs these

BATCHES, EACH = 12, 25
LONGEST = 40


class Modules:
    """What a folder says, for a tokenizer."""

    max_length, lower_case, special_tokens, markers = None, False, True, ()

    def __init__(self, network, config):
        self.network, self.config = network, config
        sizes = {"max_length": LONGEST, "vocab_size": 10**6, "is_relative": True, "num_hidden_layers": 1}
        self.settings = type("Settings", (), sizes)


def library():
    found = random_models.library()
    found.logging.set_verbosity_error()
    return found


def tried(make, *errors):
    try:
        return make(), None
    except errors as error:
        return None, error


def compare(folder, config):
    """Return whether a folder opens here; raise where transformers gives other tokens."""
    ours, refusal = tried(lambda: module.Tokenizer(Modules(folder, config)), ValueError)
    theirs, _ = tried(lambda: library().AutoTokenizer.from_pretrained(folder), Exception)
    if ours is None or theirs is None:
        return refusal is None
    limit = min(theirs.model_max_length, LONGEST)
    assert ours.max_length == limit
    for text in random_tokenizers.TEXTS:
        expected, error = tried(lambda text=text: theirs(text, truncation=True, max_length=limit), BaseException)
        found, refusal = tried(lambda text=text: ours([text])[0][0].tolist(), ValueError)
        assert (error is None) == (refusal is None), (text, error, refusal)
        assert error is not None or found == expected["input_ids"], text
    if not ours._frame or limit <= sum(len(ids) for place, ids, _ in ours._frame if place is None):
        return True
    for pair in random_tokenizers.PAIRS:
        expected, error = tried(
            lambda pair=pair: theirs(*pair, truncation="longest_first", max_length=limit), BaseException
        )
        found, refusal = tried(lambda pair=pair: ours.pairs([pair]), ValueError)
        assert (error is None) == (refusal is None), (pair, error, refusal)
        if error is not None:
            continue
        (row,), (types,), _ = found
        assert row.tolist() == expected["input_ids"], pair
        assert types.tolist() == expected.get("token_type_ids", [0] * len(row)), pair
    return True


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_folders_give_the_tokens_of_transformers(tmp_path, batch):
    opened = 0
    for seed in range(batch * EACH, (batch + 1) * EACH):
        folder = tmp_path / str(seed)
        folder.mkdir()
        opened += compare(folder, random_tokenizers.write(folder, seed))
    assert opened > EACH / 2


# ---- one setting after the other, with what it changes


def byte_level(folder, **said):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    known = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *alphabet, "\u0120a"]
    tokenizer = Tokenizer(models.BPE({word: place for place, word in enumerate(known)}, [("\u0120", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    return opened(folder, {"model_type": "roberta"}, said)


def opened(folder, config, said):
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    compare(folder, config)
    return module.Tokenizer(Modules(folder, config))


def words_of(tokenizer, text):
    return [tokenizer._tokenizer.id_to_token(index) for index in tokenizer([text])[0][0]]


def test_a_space_is_put_first(tmp_path):
    assert words_of(byte_level(tmp_path), "a") == ["<s>", "a", "</s>"]
    assert words_of(byte_level(tmp_path, add_prefix_space=True), "a") == ["<s>", "\u0120a", "</s>"]


def test_texts_lose_their_first_tokens_where_a_file_says_so(tmp_path):
    text = "b" * LONGEST + "c"
    assert words_of(byte_level(tmp_path), text)[-2] == "b"
    assert words_of(byte_level(tmp_path, truncation_side="left"), text)[-2] == "c"
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    content["truncation"] = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(content))
    assert words_of(opened(tmp_path, {"model_type": "roberta"}, {}), text)[-2] == "c"
    assert words_of(opened(tmp_path, {"model_type": "roberta"}, {"truncation_side": "right"}), text)[-2] == "b"


def test_tokens_that_files_add_are_tokens(tmp_path):
    added = {"content": "<x>", "lstrip": True, "rstrip": False, "normalized": False, "special": True}
    place = 5 + 256 + 1
    for said in ({"additional_special_tokens": ["<x>"]}, {"extra_special_tokens": {"x_token": "<x>"}},
                 {"added_tokens_decoder": {str(place): added}}):  # fmt: skip
        assert words_of(byte_level(tmp_path, **said), "a<x>b") == ["<s>", "a", "<x>", "b", "</s>"]
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<x>": place}))
    assert words_of(byte_level(tmp_path), "a<x>b") == ["<s>", "a", "<x>", "b", "</s>"]


def test_special_tokens_in_texts_are_text_where_a_file_says_so(tmp_path):
    assert words_of(byte_level(tmp_path), "<pad>") == ["<s>", "<pad>", "</s>"]
    assert words_of(byte_level(tmp_path, split_special_tokens=True), "<pad>") == ["<s>", *"<pad>", "</s>"]


def e5_mistral(folder, template, **said):
    known = ["<unk>", "<s>", "</s>", "\u2581a", "\u2581", "a"]
    model = models.BPE({word: place for place, word in enumerate(known)}, [("\u2581", "a")], unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    tokenizer.post_processor = processors.TemplateProcessing(template, None, [("<s>", 1), ("</s>", 2)])
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}
    return opened(folder, {"model_type": "mistral"}, named | said)


def test_ends_that_contradict_the_post_processor_are_refused(tmp_path):
    assert words_of(e5_mistral(tmp_path, "<s> $A </s>", add_eos_token=True, add_bos_token=True), "a")[-1] == "</s>"
    assert words_of(e5_mistral(tmp_path, "<s> $A", add_eos_token=False), "a") == ["<s>", "\u2581a"]
    for template, flag in (("<s> $A", {"add_eos_token": True}), ("<s> $A </s>", {"add_eos_token": False}),
                           ("$A </s>", {"add_bos_token": True}), ("<s> $A", {"add_bos_token": False})):  # fmt: skip
        ((name, value),) = flag.items()
        with pytest.raises(ValueError, match=rf"{name} is {value}, but the post_processor of tokenizer\.json adds"):
            e5_mistral(tmp_path, template, **flag)


REFUSED = (
    ({"tokenizer_class": "HerbertTokenizer"}, "'HerbertTokenizer', which rebuilds the tokenizer by rules of its own"),
    ({"tokenizer_class": "PhobertTokenizer"}, "'PhobertTokenizer', which is written in Python"),
    ({"tokenizer_class": "BertTokenizer"}, "the type of its model is 'BPE'; expected 'WordPiece', of which Bert"),
    ({"fast_tokenizer_files": ["tokenizer.4.json"]}, r"fast_tokenizer_files is \['tokenizer.4.json'\]; expected None"),
    ({"fix_mistral_regex": True}, "fix_mistral_regex is True; expected None or False"),
    ({"do_lower_case": 1}, "do_lower_case is 1; expected true or false"),
    ({"mask_token": {"content": "<mask>"}}, r"mask_token is \{.*\}; expected a token or null"),
    ({"added_tokens_decoder": {"9" * 5000: {"content": "a"}}}, "expected an object of indices"),
    ({"extra_special_tokens": [{"content": "\ud800"}]}, r"tokenizer_config\.json is not valid JSON: .*'\\ud800'"),
    ({"added_tokens_decoder": {"x": {"content": "a"}}}, "added_tokens_decoder is .*; expected an object of indices"),
    ({"added_tokens_decoder": {"9" * 5000: {"content": "a"}}}, "added_tokens_decoder is .*; expected an object of"),
)


@pytest.mark.parametrize(("said", "message"), REFUSED, ids=str)
def test_what_cannot_be_followed_is_refused_by_name(tmp_path, said, message):
    with pytest.raises(ValueError, match=message):
        byte_level(tmp_path, **said)


@pytest.mark.parametrize(
    ("entry", "value", "expected"),
    [
        ("extra_special_tokens", 5, "expected a list or an object of tokens, or null"),
        ("extra_special_tokens", "ab", "expected a list or an object of tokens, or null"),
        ("additional_special_tokens", {"a": "b"}, "expected a list of tokens or null"),
        ("pad_token", 5, "expected a token or null"),
        ("model_max_length", 5, "setting 'model_max_length' is unknown; expected"),
    ],
)
def test_a_map_of_special_tokens_has_nothing_else(tmp_path, entry, value, expected):
    byte_level(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({entry: value}))
    with pytest.raises(ValueError, match=rf"special_tokens_map\.json: .*{expected}"):
        module.Tokenizer(Modules(tmp_path, {"model_type": "roberta"}))


def test_an_unknown_entry_is_told(tmp_path):
    byte_level(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"brand_new": 1}')
    with pytest.warns(UserWarning, match=r"tokenizer_config\.json: 'brand_new' is unknown, and ignored"):
        module.Tokenizer(Modules(tmp_path, {"model_type": "roberta"}))


# ---- files that would take all memory


def hostile(folder, **parts):
    byte_level(folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
    return lambda: module.Tokenizer(Modules(folder, {"model_type": "roberta"}))


DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
EMPTY = {"type": "Replace", "pattern": {"Regex": "b*"}, "content": "a"}
BYTES = {"type": "ByteLevel"}
TEMPLATE = {
    "type": "TemplateProcessing", "pair": [], "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 9,
    "special_tokens": {},
}  # fmt: skip
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
LONG = {"<s>": {"id": "<s>", "ids": [0] * 1000, "tokens": ["<s>"] * 1000}}
GROWING = (
    ({"normalizer": {"type": "Sequence", "normalizers": [DOUBLE] * 12}}, "one may become is 128; expected at most 64"),
    ({"normalizer": {"type": "Sequence", "normalizers": [EMPTY] * 12}}, "one may become is 128; expected at most 64"),
    ({"normalizer": {"type": "Sequence", "normalizers": [BYTES] * 12}}, "one may become is 128; expected at most 64"),
    ({"normalizer": {"type": "Prepend", "prepend": "a" * 99}}, "one may become is 100; expected at most 64"),
    ({"decoder": {"type": "Sequence", "decoders": [DOUBLE] * 12}}, "of a token may become is 128; expected at most"),
    ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 999}}, "of its normalizer is 1000; ex"),
    ({"post_processor": {"type": "Sequence", "processors": [TEMPLATE] * 2}}, "repeats a text is 81; expected at most"),
    (
        {"post_processor": TEMPLATE | {"single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * 999,
                                       "special_tokens": LONG}},
        "special tokens of a text is 999000; expected at most 65536",
    ),
    ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.5}}, "dropout is 0.5; expected None or 0"),
)  # fmt: skip


MALFORMED = (
    ({"padding": {"pad_token": 3}}, "padding.pad_token is 3; expected a string"),
    ({"truncation": {"direction": "left"}}, "truncation.direction is 'left'; expected 'Left' or 'Right'"),
    ({"truncation": 3}, "truncation is 3; expected an object or null"),
    ({"model": ["BPE"]}, r"model is \['BPE'\]; expected an object or null"),
    ({"added_tokens": [{"id": "3"}]}, "added_tokens is .*; expected a list of objects"),
)


@pytest.mark.parametrize(("parts", "message"), MALFORMED, ids=range(len(MALFORMED)))
def test_parts_of_another_form_are_refused_by_name(tmp_path, parts, message):
    with pytest.raises(ValueError, match=message):
        hostile(tmp_path, **parts)()


@pytest.mark.parametrize(("parts", "message"), GROWING, ids=range(len(GROWING)))
def test_steps_that_make_texts_too_long_are_refused_before_they_run(tmp_path, parts, message):
    with pytest.raises(ValueError, match=message):
        hostile(tmp_path, **parts)()


SLOW = (
    "(a+)+$", "(a|a)*$", r"(\p{L}+)+\z", r"(?:[a[b]]*)*c", "(?:a+){2,}b", "a{1,9}+$", "a+*$", r"(\X+)+$", "(?=(a*)*b)",
    r"\p{L}*\p{L}*\p{L}*\p{L}*\p{L}*!", r"(?<x>a\g<x>?b)*", "(?:(?:a{1,99}){1,99}){1,99}b", "a" * 5000,
)  # fmt: skip
FAST = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'t|'re)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}]+[\p{Ll}\p{M}]*"
    r"(?i:'s|'t|'re)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
    r" ?[^(\s|[.,!?\u2026\u3002\uff0c])]+", r"(?=(\d{3})+(?!\d))", r"[^\r\n\p{L}]?+\p{L}++|\s++$", " {2,}",
    "[\u4e00-\u9fa5]+", r"[\x{4e00}-\x{9fff}]+", r"(?<!\n)^|(?<word>\w+)", r"\R|\h+",
)  # fmt: skip


@pytest.mark.parametrize("pattern", SLOW, ids=range(len(SLOW)))
@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer", "decoder"])
def test_patterns_that_may_take_for_ever_are_refused_before_they_run(tmp_path, pattern, part):
    word = {"id": 262, "content": ("a" * 22 + "!") * 4000, "normalized": True, "special": False, "lstrip": False,
            "rstrip": False, "single_word": False}  # fmt: skip
    step = SPLIT if part == "pre_tokenizer" else {"type": "Replace", "content": "b"}
    with pytest.raises(ValueError, match=r"tokenizer\.json: the pattern .* is refused: "):
        hostile(tmp_path, added_tokens=[word], **{part: step | {"pattern": {"Regex": pattern}}})()


@pytest.mark.parametrize("pattern", FAST, ids=range(len(FAST)))
def test_patterns_of_published_tokenizers_are_followed(tmp_path, pattern):
    plain = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    steps = [SPLIT | {"pattern": {"Regex": pattern}}, plain]
    ids = hostile(tmp_path, pre_tokenizer={"type": "Sequence", "pretokenizers": steps})()(["ab 12"])[0][0]
    assert ids.tolist() == Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("ab 12").ids


def test_long_words_of_a_vocabulary_are_not_tried(tmp_path):
    words = ["[UNK]", "a b " * 100, "b"]
    tried = []

    class Told:
        """A tokenizer that makes nothing of a word, and keeps it."""

        sequence_ids = type_ids = ids = ()

        def id_to_token(self, index):
            return words[index] if index < len(words) else None

        def encode(self, word, _):
            tried.append(word)
            return self

    assert not list(opening.layouts(Told(), False)) and tried == ["a", "[UNK]", "b"]


def test_padding_is_never_done(tmp_path):
    plain = {"direction": "Right", "pad_id": 1, "pad_type_id": 0, "pad_token": "<pad>", "pad_to_multiple_of": None}
    for padding in ({"strategy": {"Fixed": 10**9}}, {"strategy": "BatchLongest", "pad_to_multiple_of": 2**40}):
        (row,), _ = hostile(tmp_path, padding=plain | padding)()(["a"])
        assert len(row) == 1


def test_an_added_token_of_which_nothing_is_left_is_refused(tmp_path):
    gone = {"id": 262, "content": "  ", "normalized": True, "special": False, "lstrip": False, "rstrip": False,
            "single_word": False}  # fmt: skip
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    with pytest.raises(ValueError, match="the added token '  ' is empty after its normalization"):
        hostile(tmp_path, added_tokens=[gone], normalizer=strip)()


def test_nothing_was_asked_of_the_network():
    assert os.environ["HF_HUB_OFFLINE"] == "1"
