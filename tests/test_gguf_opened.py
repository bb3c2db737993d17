"""GGUF files that are opened as models: settings, tokenizers and answers, beside transformers and SentencePiece."""

import json
import unicodedata
import warnings

import numpy as np
import pytest
import random_models
from gguf_files import described, in_gguf, of_bytes, written
from test_generation import PROMPTS
from test_generation import written as folder_of

from mp_core.files.checkpoint.gguf_file import open_gguf
from mp_core.models import Generator, TextEncoder
from mp_core.models.gguf_settings import derived
from mp_core.models.tokenizer_opening import open_tokenizer

DECODERS = ["llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3_text"]
TEXTS = [
    "The capital of France is Paris, and 12345 apples cost $3.50!", "def f(x):\n    return x**2\n\n\nprint(f(3))",
    "Za\u017c\u00f3\u0142\u0107 g\u0119\u015bl\u0105 \u2014 \u201cquotes\u201d \U0001f642\U0001f469\u200d\U0001f467",
    "  leading   spaces\t\ttabs ", "\u0661\u0662\u0663 \u2177 \u00bd x\u00b2 don't I'LL we'\u017f e\u0301",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3002", "a<end>b <s> </s>  <end><end>", "<", " ", "\n",
    "\u0000\ufffd\u200b\u00a0\u3000", "\r\n\r\n \n", "x" * 300,
]  # fmt: skip


def opened(tmp_path, name, quantized=None, **settings):
    """Return the folder of a random decoder, and its GGUF file in another folder without anything else."""
    folder, other = tmp_path / "folder", tmp_path / "other"
    gemma = {"query_pre_attn_scalar": 16} if name.startswith("gemma") else {}  # GGUF files do not have it
    gemma |= {"layer_types": ["sliding_attention"] * 2} if name == "gemma3_text" else {}  # every sixth block is full
    network = folder_of(folder, name, **(gemma | settings))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "TokenizersBackend"}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network.save_pretrained(other)
    in_gguf(network, other, quantized, described(network.config, of_bytes))
    return folder, other / "model.gguf"


@pytest.mark.parametrize("name", DECODERS)
def test_a_file_alone_generates_as_the_folder_of_its_weights(tmp_path, name):
    linear = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}}
    folder, file = opened(tmp_path, name, **(linear if name == "qwen3" else {}))
    expected, found = (Generator.from_folder(place, "float32") for place in (folder, file))
    for alone, other in zip(found.log_probabilities(PROMPTS), expected.log_probabilities(PROMPTS), strict=True):
        np.testing.assert_allclose(alone, other, rtol=0, atol=2e-5)
    if not name.startswith("gemma"):  # the factors of its norms are rounded when 1 is added
        assert found.generate(PROMPTS, 12) == expected.generate(PROMPTS, 12)


def test_divisors_of_angles_are_read_from_their_tensor(tmp_path):
    divisors = np.array([1, 2, 4, 8], np.float32)
    scaled = {"rope_type": "longrope", "rope_theta": 10_000.0, "short_factor": divisors.tolist()}
    scaled |= {"long_factor": divisors.tolist(), "original_max_position_embeddings": 600, "attention_factor": 1.0}
    folder, other = tmp_path / "folder", tmp_path / "other"
    network = folder_of(folder, "llama", rope_parameters=scaled)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network.save_pretrained(other)

    def describe(writer):
        described(network.config, of_bytes)(writer)
        writer.add_tensor("rope_freqs.weight", divisors)

    in_gguf(network, other, None, describe)
    expected, found = (Generator.from_folder(x, "float32") for x in (folder, other / "model.gguf"))
    np.testing.assert_array_equal(found.log_probabilities(PROMPTS)[2], expected.log_probabilities(PROMPTS)[2])


@pytest.mark.parametrize(("kind", "policy"), [("Q4_0", "int4/32"), ("Q8_0", "int8/weight_only/32")])
def test_codes_of_a_decoder_have_the_logits_of_transformers(tmp_path, kind, policy):
    torch, gguf = pytest.importorskip("torch"), pytest.importorskip("gguf")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "mlp_bias": False}  # transformers does not look for biases
    _, file = opened(tmp_path, "llama", gguf.GGMLQuantizationType[kind], **sizes, attention_bias=False)
    generator = Generator.from_folder(file)
    query = generator.model.encoder.blocks[0].attention.query
    assert str(query.form.policy.scheme) == policy
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = random_models.library().AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    for text, found in zip(PROMPTS, generator.log_probabilities(PROMPTS), strict=True):
        ids = torch.tensor(generator._tokenizer([text])[0][0][None].astype(np.int64))
        with torch.no_grad():
            logs = torch.log_softmax(network.double()(ids).logits[0], -1)
        np.testing.assert_allclose(found, logs[range(ids.shape[1] - 1), ids[0, 1:]], atol=2e-5)


def words_of(tokens, types, **more):
    """Return the function that adds a tokenizer; `more` are method -> argument of the package's writer."""

    def describe(writer):
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        for method, value in more.items():
            getattr(writer, f"add_{method}")(value)

    return describe


def tokenizer_in(tmp_path, describe, size):
    """Return the tokenizer of a file without tensors."""
    file = written(tmp_path / "words.gguf", {"x": np.ones(1, np.float32)}, "llama", describe)
    return open_tokenizer(file, {"model_type": "llama"}, size, True).tokenizer, file


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "qwen2", "gpt-2", "tekken"])
def test_byte_pairs_are_those_of_transformers(tmp_path, pre):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learned.train_from_iterator(TEXTS * 3, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    content = json.loads(learned.to_str())["model"]
    words = sorted(content["vocab"], key=content["vocab"].get)
    tokens, types = [*words, "<end>", "<s>"], [1] * len(words) + [3, 3]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in content["merges"]]
    named = {"tokenizer_model": "gpt2", "tokenizer_pre": pre, "token_merges": merges, "bos_token_id": len(words) + 1}
    found, file = tokenizer_in(tmp_path, words_of(tokens, types, **named), len(tokens))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = random_models.library("transformers.integrations.gguf.gguf_tokenizer_mapping")
        _, described_words, _ = read.get_gguf_tokenizer(str(file))
        expected, _ = read.convert_gguf_tokenizer("llama", described_words)
    first = [tokens.index("<s>")] * (pre in ("llama-bpe", "tekken"))
    for text in TEXTS:
        ids = found.encode(text).ids
        composed = unicodedata.normalize("NFC", text) if pre == "qwen2" else text  # as the original model does
        if pre != "smollm" or not any(map(str.isnumeric, text)):  # transformers does not cut digits there
            assert ids == first + expected.encode(composed, add_special_tokens=False).ids, text
        assert found.decode(ids[len(first) :], skip_special_tokens=False) == composed
    if pre == "smollm":
        assert found.encode("12").ids == [tokens.index("1"), tokens.index("2")]


def test_pieces_are_those_of_sentencepiece(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "texts.txt").write_text("\n".join([text.replace("\n", " ").replace("\0", "") for text in TEXTS] * 3))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "texts.txt"), model_prefix=str(tmp_path / "m"), vocab_size=420, model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.98,
        split_digits=True, minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    expected = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    count = expected.get_piece_size()
    tokens, scores = zip(*[(expected.id_to_piece(i), expected.get_score(i)) for i in range(count)], strict=True)
    types = [
        2 if expected.is_unknown(i) else 3 if expected.is_control(i) else 6 if expected.is_byte(i) else 1
        for i in range(count)
    ]
    found, _ = tokenizer_in(
        tmp_path, words_of(list(tokens), types, tokenizer_model="llama", token_scores=list(scores)), count
    )
    for text in TEXTS:
        if "<s>" not in text and "\0" not in text:  # SentencePiece reads no special tokens, and ends texts at \0
            assert found.encode(text).ids == [1, *expected.encode(text)], text
            assert found.decode(expected.encode(text)) == text


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"architecture": "mamba"}, "general.architecture is 'mamba'; expected 'gemma3' or"),
        ({"uint32": ("llama.expert_count", 4)}, "llama.expert_count is unknown; it might change what"),
        ({"array": ("llama.attention.head_count_kv", [1, 2])}, "llama.attention.head_count_kv is 'an array'; expected"),
        ({"uint32": ("llama.rope.dimension_count", 4)}, "llama.rope.dimension_count is 4; expected 8"),
        ({"string": ("llama.rope.scaling.type", "su")}, "llama.rope.scaling.type is 'su'; expected 'none'"),
        ({"string": ("tokenizer.ggml.pre", "poro-chat")}, "tokenizer.ggml.pre is 'poro-chat'; expected 'default'"),
        ({"string": ("tokenizer.ggml.model", "rwkv")}, "tokenizer.ggml.model is 'rwkv'; expected 'gpt2' or 'llama'"),
        ({"array": ("tokenizer.ggml.token_type", [1])}, "tokenizer.ggml.token_type has 1 values; expected one for"),
        ({"uint32": ("tokenizer.ggml.merges", 3)}, "tokenizer.ggml.merges must be an array of str"),
        ({"bool": ("tokenizer.ggml.add_eos_token", True)}, "tokenizer.ggml.eos_token_id is None; expected an index"),
    ],
)
def test_metadata_that_are_not_known_are_refused_by_name(tmp_path, more, message):
    values = {
        "context_length": 64, "embedding_length": 32, "block_count": 1, "feed_forward_length": 48,
        "attention.head_count": 4, "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    pairs = {
        f"llama.{name}": ("float32" if isinstance(value, float) else "uint32", value) for name, value in values.items()
    }
    network = more.pop("architecture", "llama")
    pairs |= {name: (kind, value) for kind, (name, value) in more.items()}
    words = {"tokenizer.ggml.tokens": ("array", ["a", "b", "ab"]), "tokenizer.ggml.model": ("string", "gpt2")}
    words |= {"tokenizer.ggml.merges": ("array", ["a b"])}

    def describe(writer):
        for name, (kind, value) in (words | pairs).items():
            getattr(writer, f"add_{kind}")(name, value)

    tensors = {"token_embd.weight": np.ones((3, 32), np.float32)}
    file = written(tmp_path / "model.gguf", tensors, network, describe)
    with pytest.raises(ValueError, match=message):
        Generator.from_folder(file)


def test_a_file_with_a_pooling_is_an_encoder(tmp_path):
    folder, file = opened(tmp_path, "qwen3")
    with pytest.raises(ValueError, match=r"qwen3\.pooling_type is None; expected 1 or 2 or 3"):
        TextEncoder.from_folder(file)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "lasttoken"}))
    network = random_models.library().AutoModelForCausalLM.from_pretrained(folder)

    def describe(writer):
        described(network.config, of_bytes)(writer)
        writer.add_pooling_type(pytest.importorskip("gguf").PoolingType.LAST)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network.save_pretrained(file.parent)
    in_gguf(network, file.parent, None, describe)
    np.testing.assert_array_equal(
        TextEncoder.from_folder(file).encode(PROMPTS), TextEncoder.from_folder(folder).encode(PROMPTS)
    )


def test_arrays_are_read_if_they_are_named(tmp_path):
    file = written(tmp_path / "a.gguf", {"x": np.ones(1, np.float32)}, "llama", words_of(["a", "\u00e4"], [1, 3]))
    assert open_gguf(file)[1]["tokenizer.ggml.tokens"] == (2,)
    said = open_gguf(file, ["tokenizer.ggml.tokens", "tokenizer.ggml.token_type"])[1]
    assert (said["tokenizer.ggml.tokens"], said["tokenizer.ggml.token_type"]) == (["a", "\u00e4"], [1, 3])
    assert derived(file / "other.json") is None
