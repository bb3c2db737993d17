"""Pipelines of scikit-learn, written by skl2onnx."""

import numpy as np
import pytest

from mp_core.files.onnx.programs import read_program
from mp_core.programs import ProgramModel, RefusedError

skl2onnx = pytest.importorskip("skl2onnx")
ort = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("default")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 5)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(int) + (X[:, 2] > 1)


def pipelines():
    from sklearn import decomposition, ensemble, linear_model, neural_network, pipeline, preprocessing

    return {
        "logistic regression": pipeline.make_pipeline(
            preprocessing.StandardScaler(), linear_model.LogisticRegression()
        ),
        "perceptron": pipeline.make_pipeline(
            preprocessing.Normalizer(), neural_network.MLPClassifier((8,), max_iter=20, random_state=0)
        ),
        "regression of components": pipeline.make_pipeline(
            preprocessing.MinMaxScaler(), decomposition.PCA(3), linear_model.LinearRegression()
        ),
        "trees": ensemble.GradientBoostingClassifier(n_estimators=3),
    }


def file_of(name, folder, **options):
    estimator = pipelines()[name].fit(X, Y)
    versions = {"": 18, "ai.onnx.ml": 3}
    model = skl2onnx.to_onnx(estimator, X[:1], options={id(estimator): options} if options else None,
                             target_opset=versions)  # fmt: skip
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


@pytest.mark.parametrize("name", ["logistic regression", "perceptron", "regression of components"])
def test_a_pipeline_has_the_results_of_onnxruntime(name, tmp_path):
    path = file_of(name, tmp_path, **({} if "components" in name else {"zipmap": False}))
    found = ProgramModel(read_program(path))(X[:9])
    found = list(found.values()) if isinstance(found, dict) else [found]
    for y, wanted in zip(found, ort.InferenceSession(str(path)).run(None, {"X": X[:9]}), strict=True):
        assert y.dtype == wanted.dtype
        np.testing.assert_allclose(y, wanted, atol=1e-6)


def test_trees_and_lists_of_dicts_are_refused_by_name(tmp_path):
    with pytest.raises(RefusedError, match=r"(?s)TreeEnsembleClassifier.*ZipMap"):
        ProgramModel(read_program(file_of("trees", tmp_path)))
