"""Adapters by task in the folder of jina-embeddings-v3 as published, with its formulas."""

import json

import numpy as np
import pytest
import random_models
from safetensors.numpy import load_file, save_file

from mp_core.models import BertEncoder

torch = pytest.importorskip("torch")
FLOAT32 = 1e-5
TASKS = ["retrieval.query", "retrieval.passage", "text-matching"]
TEXTS = ["a b c", "h g f e d c b a a b", "d"]
RANK = 4
TABLES = "word_embeddings", "token_type_embeddings"


def published(folder):
    """Write a random network as that folder has it; return for each task the network of transformers that it means."""
    network = random_models.made("jina_embeddings_v3")
    random_models.save(network, folder)
    rng, found, merged = np.random.default_rng(0), {}, {task: {} for task in TASKS}
    for name, tensor in load_file(folder / "model.safetensors").items():
        start, _, part = name.rpartition(".")
        if part != "weight" or tensor.ndim != 2:
            found[f"roberta.{name}"] = tensor
            continue
        table = start.endswith(TABLES)
        rows, columns = tensor.shape
        a = rng.normal(size=(3, *((rows, RANK) if table else (RANK, columns)))).astype(np.float32) * 0.3
        b = rng.normal(size=(3, *((RANK, columns) if table else (rows, RANK)))).astype(np.float32)
        found[f"roberta.{start}.parametrizations.weight.original"] = tensor
        found[f"roberta.{start}.parametrizations.weight.0.lora_A"] = a
        found[f"roberta.{start}.parametrizations.weight.0.lora_B"] = b
        for number, task in enumerate(TASKS):
            merged[task][name] = tensor + (a[number] @ b[number] if table else b[number] @ a[number]) * 2 / RANK
    save_file(found, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config = {name: value for name, value in config.items() if not name.startswith("rope")}
    config |= {"model_type": "xlm-roberta", "position_embedding_type": "rotary", "rotary_emb_base": 20000.0}
    config |= {
        "lora_adaptations": TASKS,
        "lora_rank": RANK,
        "lora_alpha": 2,
        "use_flash_attn": None,
        "emb_pooler": "mean",
    }
    config |= {"task_instructions": {TASKS[0]: "h g ", TASKS[1]: "", TASKS[2]: ""}, "auto_map": {"AutoModel": "x--y.Z"}}
    (folder / "config.json").write_text(json.dumps(config))
    modules = [("custom_st.Transformer", ""), ("sentence_transformers.models.Pooling", "1_Pooling")]
    modules += [("sentence_transformers.models.Normalize", "2_Normalize")]
    listed = [{"type": kind, "path": path} | ({} if path else {"kwargs": ["task"]}) for kind, path in modules]
    (folder / "modules.json").write_text(json.dumps(listed))
    return network, merged


def expected_of(network, texts):
    """Return the scaled means of the vectors of texts."""
    rows = []
    for text in texts:
        ids = np.array([[0, *(random_models.WORDS.index(word) for word in text.split()), 2]])
        mean = random_models.outputs(network, ids, np.ones_like(ids))[0].mean(axis=0)
        rows.append(mean / np.linalg.norm(mean))
    return np.array(rows)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "jina").mkdir()
    return tmp_path / "jina"


def changed(network, merged, folder):
    """Return the network of transformers with other weights."""
    again = type(network)(network.config).eval()
    tensors = load_file(folder / "model.safetensors")
    plain = {name.removeprefix("roberta."): value for name, value in tensors.items() if "parametrizations" not in name}
    from safetensors.torch import save_file as save_torch

    place = folder.parent / "merged"
    place.mkdir(exist_ok=True)
    save_torch({name: torch.from_numpy(value) for name, value in (plain | merged).items()}, place / "model.safetensors")
    (place / "config.json").write_text(network.config.to_json_string())
    again = type(network).from_pretrained(place)
    again.config._attn_implementation = "eager"
    return again.eval()


def test_each_task_has_the_vectors_of_its_merged_weights(folder):
    network, merged = published(folder)
    encoder = BertEncoder.from_folder(folder)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected_of(network, TEXTS), rtol=0, atol=FLOAT32)
    for task in TASKS:
        adapted = encoder.with_task(task)
        expected = expected_of(
            changed(network, merged[task], folder), [f"h g {text}" if task == TASKS[0] else text for text in TEXTS]
        )
        np.testing.assert_allclose(adapted.encode(TEXTS), expected, rtol=0, atol=FLOAT32)
        assert adapted.model.embeddings.word.form is not None
        shared = {id(variable) for variable in encoder.model.weights}
        assert sum(variable.nbytes for variable in adapted.model.weights if id(variable) not in shared) < 40_000
    np.testing.assert_allclose(encoder.encode(TEXTS), expected_of(network, TEXTS), rtol=0, atol=FLOAT32)


@pytest.mark.parametrize("policy", ["float32", "int8"])
def test_a_task_is_saved_and_opened_and_kept_under_another_policy(folder, policy):
    published(folder)
    encoder = BertEncoder.from_folder(folder, policy)
    adapted = encoder.with_task(TASKS[1])
    assert np.abs(adapted.encode(TEXTS) - encoder.encode(TEXTS)).max() > 0.01
    encoder.save(folder.parent / "again")
    again = BertEncoder.from_folder(folder.parent / "again")
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))
    np.testing.assert_array_equal(again.with_task(TASKS[1]).encode(TEXTS), adapted.encode(TEXTS))


def test_tasks_that_are_not_there_are_named(folder):
    published(folder)
    encoder = BertEncoder.from_folder(folder)
    with pytest.raises(ValueError, match=r"`task` must be 'retrieval\.query' or .*; received 'classification'"):
        encoder.with_task("classification")
    path = folder / "config.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"lora_rank": 5}))
    with pytest.raises(ValueError, match=r"the adapters of .* have the shape .*; expected \(tasks, "):
        BertEncoder.from_folder(folder).with_task(TASKS[0])
    path.write_text(json.dumps({name: value for name, value in said.items() if name != "lora_adaptations"}))
    with pytest.raises(ValueError, match=r"config\.json has no adapters by task: lora_adaptations is None"):
        BertEncoder.from_folder(folder).with_task(TASKS[0])


def test_the_module_of_another_network_with_code_of_its_own_is_refused(tmp_path):
    folder = random_models.save(random_models.made("bert"), tmp_path)
    (folder / "modules.json").write_text(json.dumps([{"type": "custom_st.Transformer", "path": ""}]))
    with pytest.raises(ValueError, match=r"module 0 is 'custom_st\.Transformer'; expected"):
        BertEncoder.from_folder(folder)
