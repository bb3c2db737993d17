"""Models of modules that torch exports: results, names, inputs, folders; and the backend of torch.compile."""

import importlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import processes
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_modules import MODULES, TORCH_WARNS, WHOLE, Images, Texts, arrays, assert_near, module, ready

import mp_core as mp
from mp_core.interop.torch import backend, explain, from_exported
from mp_core.programs import ProgramModel, RefusedError

pytestmark = TORCH_WARNS


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def exported(found: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.export.ExportedProgram:
    """Export a module for batches of any size."""
    shapes = {name: {0: torch.export.Dim("batch")} for name in inputs}
    with torch.no_grad():
        return torch.export.export(found, (), inputs, dynamic_shapes=shapes)


def images(batch: int = 4) -> torch.Tensor:
    return torch.randn(batch, 3, 17, 17)


def tokens(batch: int = 4) -> torch.Tensor:
    return torch.randint(0, 20, (batch, 7))


SMALL = {"images": (Images, images), "texts": (Texts, tokens)}

# ---- exported modules


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each in WHOLE else pytest.mark.slow) for each in MODULES]
)
def test_architectures_of_transformers_compute_what_torch_computes(name):
    found, make = module(name), MODULES[name][1]
    model = from_exported(exported(found, make()))
    for batch in (1, 7):
        inputs = make(batch)
        with torch.no_grad():
            expected = found(**inputs)
        given = {key: x.numpy() for key, x in inputs.items()}
        first = model(**given)
        assert_near(first, expected)
        for again in (model(given), model(given)):  # the second call records a plan, the third runs it
            for key, x in arrays(again).items():
                np.testing.assert_array_equal(x, arrays(first)[key])


@pytest.mark.parametrize("name", SMALL)
def test_each_sample_has_the_same_bits_in_every_batch(name):
    kind, make = SMALL[name]
    x = make(32)
    model = from_exported(torch.export.export(ready(kind()), (x,), dynamic_shapes=({0: torch.export.Dim("batch")},)))
    whole = model(x.numpy())
    for batch in (1, 7):
        for _ in range(2):
            np.testing.assert_array_equal(model(x[:batch].numpy()), whole[:batch])


def test_weights_of_an_exported_module_are_shared():
    found = nn.Linear(64, 32).eval()
    model = from_exported(torch.export.export(found, (torch.ones(2, 64),)))
    (layer,) = model.layers
    assert layer.name == "linear"
    assert np.shares_memory(layer.kernel.numpy(), found.weight.detach().numpy())


def test_policies_and_quantization_apply_to_the_layers_of_a_module():
    found, x = ready(Texts()), tokens()
    program = torch.export.export(found, (x,))
    expected = found(x).detach().numpy()
    assert from_exported(program, "mixed_bfloat16")(x.numpy()).dtype.name == "bfloat16"
    model = from_exported(program, "int8_from_float32")
    assert {layer.quantization_mode for layer in model.layers} == {"int8"}
    assert np.abs(model(x.numpy()) - expected).max() < 0.05 * np.abs(expected).max()


def test_a_module_that_assigns_buffers_is_refused():
    with pytest.raises(ValueError, match="call its method `eval`"):
        from_exported(torch.export.export(Images().train(), (images(),)))


def test_operators_that_mp_core_lacks_are_refused_by_name():
    class Two(nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x) + torch.special.bessel_j1(x)

    with pytest.raises(RefusedError, match=r"(?s)2 parts.*bessel_j0.*bessel_j1"):
        from_exported(torch.export.export(Two(), (torch.ones(2),)))


def test_inputs_are_checked_by_name_kind_and_shape():
    model = from_exported(exported(module("bert"), MODULES["bert"][1]()))
    ids = np.ones((2, 7), np.int64)
    with pytest.raises(TypeError, match="attention_mask is missing"):
        model(input_ids=ids)
    with pytest.raises(TypeError, match=r"'input_ids', 'attention_mask'; received .*'mask'"):
        model(ids, mask=ids)
    with pytest.raises(TypeError, match="'input_ids' must be of int64; received float32"):
        model(ids.astype(np.float32), ids)
    with pytest.raises(ValueError, match=r"'attention_mask' must have shape \(.*, 7\); received \(2, 5\)"):
        model(ids, ids[:, :5])


def test_predict_and_gradients_work_as_those_of_any_model():
    found, x = ready(Texts()), tokens(9)
    model = from_exported(torch.export.export(found, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},)))
    assert_near(model.predict(x.numpy(), batch_size=4, verbose=0), found(x))
    model.compile("sgd", "mse")
    losses = model.fit(x.numpy(), np.ones((9, 5), np.float32), epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


# ---- folders


@pytest.mark.parametrize("policy", [None, "mixed_bfloat16", "int8_from_float32"])
@pytest.mark.parametrize("name", SMALL)
def test_a_folder_has_the_bits_and_policies_of_the_model(tmp_path, name, policy):
    kind, make = SMALL[name]
    model = from_exported(torch.export.export(ready(kind()), (make(),)), policy)
    x = make().numpy()
    model.save(tmp_path / "model")
    other = ProgramModel.from_folder(tmp_path / "model")
    np.testing.assert_array_equal(other(x), model(x))
    assert [layer.dtype_policy for layer in other.layers] == [layer.dtype_policy for layer in model.layers]
    with pytest.raises(FileExistsError):
        model.save(tmp_path / "model")
    if policy is None:
        assert ProgramModel.from_folder(tmp_path / "model", "int8")(x).dtype.name == "bfloat16"
    other.save(tmp_path / "model", overwrite=True)
    np.testing.assert_array_equal(ProgramModel.from_folder(tmp_path / "model")(x), model(x))


_RUN = """
import sys
sys.modules.update(dict.fromkeys(("torch", "onnx", "transformers"))) # importing one of them fails
import numpy as np
from mp_core.programs import ProgramModel
folder, out = sys.argv[1:]
given = dict(np.load(folder + ".npz"))
model = ProgramModel.from_folder(folder)
found = {}
for batch in (1, 7, 32):
    part = {name: x[:batch] for name, x in given.items()}
    for call in range(2):
        y = model(part)
        y = y if isinstance(y, dict) else {"output": y}
        found.update({f"{batch} {call} {name}": x for name, x in y.items()})
np.savez(out, **found)
"""


@pytest.mark.parametrize("name", WHOLE)
def test_a_folder_runs_without_torch_and_onnx_with_the_same_bits_everywhere(tmp_path, name):
    found, make = module(name), MODULES[name][1]
    inputs = {key: x.numpy() for key, x in make(32).items()}
    model = from_exported(exported(found, make()))
    model.save(tmp_path / name)
    np.savez(tmp_path / f"{name}.npz", **inputs)
    expected = arrays(model(inputs))
    for isa in ("scalar", "avx2"):
        if isa not in mp.config.available_isas():
            continue
        for threads in ("1", "2"):
            settings = os.environ | {"MP_CORE_ISA": isa, "MP_CORE_NUM_THREADS": threads}
            out = tmp_path / "out.npz"
            processes.run([sys.executable, "-c", _RUN, str(tmp_path / name), str(out)], env=settings, check=True)
            for key, x in np.load(out).items():
                batch, _, output = key.split(" ", 2)
                np.testing.assert_array_equal(x, expected[output][: int(batch)])


def changed(folder: Path, change) -> Path:
    """Change the JSON of a folder."""
    path = folder / "program.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda c: c.update(format="other"), "must have the format"),
        (lambda c: c["steps"][0].update(call=["os.system", 0]), "not supported"),
        (lambda c: c["steps"][0].update(call="nothing"), "not the folder of a program"),
        (lambda c: c["steps"].reverse(), "before it is computed"),
        (lambda c: c["steps"][-1]["arguments"].append(["evil", 1]), "not the folder of a program"),
        (lambda c: c["steps"][-1]["arguments"].append(["array", "nothing"]), "not the folder of a program"),
        (lambda c: c.update(outputs=["nothing"]), "computed by no step"),
        (lambda c: c.pop("layers"), "not the folder of a program"),
        (lambda c: c["layers"]["head"]["class"].update(class_name="Lambda"), "not the folder of a program"),
        (lambda c: c["layers"]["head"]["class"]["config"].update(units=2**50), "not the folder of a program"),
        (lambda c: c["layers"]["head"].update(shape=[None, 3]), "not the folder of a program"),
    ],
)  # fmt: skip
def test_hostile_folders_are_refused(tmp_path, change, match):
    model = from_exported(torch.export.export(ready(Texts()), (tokens(),)))
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match=match):
        ProgramModel.from_folder(changed(tmp_path / "model", change))


# ---- torch.compile


@pytest.mark.parametrize("name", SMALL)
def test_a_compiled_module_has_the_bits_of_the_exported_one(name):
    kind, make = SMALL[name]
    found, x = ready(kind()), make()
    compiled = torch.compile(found, backend=backend)
    with torch.no_grad():
        results = [compiled(x) for _ in range(3)]
        assert_near(results[0], found(x))
    exact = from_exported(torch.export.export(found, (x,)))(x.numpy())
    for each in results:
        np.testing.assert_array_equal(each.numpy(), exact)


def test_changes_of_weights_in_place_are_seen():
    found, x = nn.Linear(8, 4), torch.randn(3, 8)
    compiled = torch.compile(found, backend=backend)
    with torch.no_grad():
        for _ in range(8):
            found.weight.mul_(1.5)
            assert_near(compiled(x), found(x))
            assert_near(compiled(x), found(x))
        found.weight.data = torch.ones(4, 8)
        assert_near(compiled(x), found(x))


def test_batches_of_many_sizes_need_few_plans():
    found = ready(Texts())
    compiled = torch.compile(found, backend=backend, dynamic=True)
    with torch.no_grad():
        for batch in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 3, 2):
            x = tokens(batch)
            assert_near(compiled(x), found(x))


def test_an_operator_that_mp_core_lacks_stays_with_torch():
    def function(x):
        return torch.special.bessel_j0(torch.relu(x) + 1) * 2

    x = torch.randn(5)
    assert explain(function, x) == {"aten.special_bessel_j0.default": 1}
    assert explain(torch.relu, x) == {}
    with pytest.warns(UserWarning, match="leaves these operators to torch: aten.special_bessel_j0.default"):
        found = torch.compile(function, backend=backend)(x)
    assert_near(found, function(x))


def test_explain_counts_the_operators_of_backward_passes():
    x = torch.randn(5, requires_grad=True)
    assert explain(lambda x: torch.special.i1(x), x) == {"aten.special_i1.default": 1, "aten.i0.default": 1}


def test_a_policy_is_an_option():
    found, x = ready(Texts()), tokens()
    with torch.no_grad():
        compiled = torch.compile(found, backend=backend, options={"policy": "mixed_bfloat16"})(x)
        assert compiled.dtype is torch.float32
        assert_near(compiled, found(x), 0.03)
        assert not torch.equal(compiled, found(x))
    with pytest.raises(Exception, match=r"`options` of the backend mp_core must be of \['policy'\]"):
        torch.compile(found, backend=backend, options={"speed": 1})(x)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", SMALL)
def test_gradients_of_a_compiled_module_are_those_of_torch(name, mode):
    kind, make = SMALL[name]
    found, x, targets = ready(kind()), make(), torch.tensor([1, 2, -100, 4])
    getattr(found, mode)()
    before = {key: value.clone() for key, value in found.state_dict().items()}

    def run(function):
        found.load_state_dict(before)
        found.zero_grad()
        loss = functional.cross_entropy(function(x), targets)
        loss.backward()
        return loss.detach(), {key: p.grad.clone() for key, p in found.named_parameters()}, dict(found.named_buffers())

    loss, expected, buffers = run(found)
    buffers = {key: value.clone() for key, value in buffers.items()}
    compiled = torch.compile(found, backend=backend)
    for _ in range(3):
        other, gradients, moved = run(compiled)
        assert_near(other, loss)
        for key, gradient in expected.items():
            assert (gradients[key] - gradient).abs().max() <= 1e-4 * max(gradient.abs().max(), 1e-3)
        for key, value in buffers.items():
            assert_near(moved[key], value)


@pytest.mark.parametrize("name", SMALL)
def test_a_training_loop_follows_the_losses_of_torch(name):
    kind, make = SMALL[name]
    batches = [(make(), torch.randint(0, 5, (4,))) for _ in range(50)]
    histories = []
    for is_compiled in (False, True):
        torch.manual_seed(1)
        found = ready(kind()).train()
        step = torch.compile(found, backend=backend) if is_compiled else found
        optimizer, losses = torch.optim.Adam(found.parameters(), 1e-2), []
        for x, targets in batches:
            optimizer.zero_grad()
            loss = functional.cross_entropy(step(x), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        histories.append(losses)
    np.testing.assert_allclose(histories[1], histories[0], 1e-3, 1e-3)


def test_the_page_of_operators_has_the_table_of_the_code(monkeypatch):
    docs = Path(__file__).resolve().parents[1] / "docs"
    monkeypatch.syspath_prepend(str(docs))
    rows = importlib.import_module("torch_table").rows()
    assert "\n".join(rows) in (docs / "torch_operators.md").read_text()


def test_torch_finds_the_backend_by_its_entry_point():
    text = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text()
    assert 'torch_dynamo_backends]\nmp_core = "mp_core.interop.torch.compiled:backend"' in text
