"""Scripts of Keras' beginners run with mp_core in the place of Keras: only the import lines are others."""

import keras_examples
import pytest

import mp_core


@pytest.mark.parametrize("name", keras_examples.EXAMPLES)
def test_a_script_for_keras_runs_with_mp_core(name, tmp_path):
    pytest.importorskip("sklearn")
    mp_core.random.set_seed(0)
    assert keras_examples.EXAMPLES[name](mp_core, mp_core.load_model, tmp_path)
