"""Training on a cluster of processes: the weights of one process, for any number of workers, which may die."""

import os
import pickle
import signal
import sys

import numpy as np
import processes
import pytest
import tiny_bert
import tuned_folders
from test_training_passes import convolution, dense, digest, embedding, trained

import mp_core as mp
from mp_core import layers
from mp_core.models import BertEncoder

distributed = pytest.importorskip("distributed")
from mp_core.interop import training  # noqa: E402
from mp_core.interop.dask import Workers  # noqa: E402


@pytest.fixture(scope="module")
def client():
    with processes.cluster_client(4) as found:
        yield found


@pytest.mark.parametrize(
    ("make", "policy"),
    [(dense, "float32"), (dense, "mixed_bfloat16"), (convolution, "mixed_float16"), (embedding, "mixed_bfloat16")],
)
def test_workers_give_the_weights_of_one_process(make, policy, client):
    weights, history, _ = trained(make, policy, 1)
    found, logs, _ = trained(make, policy, 4, cluster=Workers(client))
    assert found == weights
    assert logs["accuracy"] == history["accuracy"]
    np.testing.assert_allclose(logs["loss"], history["loss"], rtol=1e-6)


def model_and_data():
    mp.random.set_seed(5)
    model = mp.Sequential([mp.Input((6,)), layers.Dense(8, "gelu"), layers.Dropout(0.2), layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).standard_normal((6000, 6)).astype(np.float32)
    return model, x, x[:, :1] * x[:, 1:2]


def weights_after(steps=3, **options):
    model, x, y = model_and_data()
    model.fit(x, y, batch_size=3000, epochs=steps, verbose=0, **options)
    return digest(model)


def test_a_killed_worker_costs_its_pass_only(client):
    expected, killed = weights_after(), []

    def kill(batch):
        if not killed:
            killed.append(next(iter(client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    callback = mp.callbacks.LambdaCallback(on_train_batch_begin=kill)
    assert weights_after(passes=3, cluster=Workers(client), callbacks=[callback]) == expected
    assert killed


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return tuned_folders.write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def folders(models, tmp_path_factory):
    """The folders of an encoder and a reranker that one process tunes with one thread."""
    home = tmp_path_factory.mktemp("tuned")
    with mp.config.num_threads(1):
        return {kind: tuned_folders.tuned(kind, models, home / kind) for kind in tuned_folders.KINDS}


@pytest.mark.slow
def test_weights_and_folders_are_those_of_one_process_for_1_2_and_4_workers(client, models, folders, tmp_path):
    expected, seen = weights_after(), set()
    for count in (4, 2, 1):
        client.cluster.scale(count)
        client.cluster.sync(client.cluster._correct_state)
        client.wait_for_workers(count)
        assert weights_after(passes=3, cluster=Workers(client)) == expected
        for kind, folder in folders.items():
            assert tuned_folders.tuned(kind, models, tmp_path / f"{kind}{count}", cluster=Workers(client)) == folder
        seen.add(len(client.scheduler_info(n_workers=-1)["workers"]))
    assert seen >= {1, 4}


@pytest.mark.slow
def test_folders_are_the_same_for_threads_and_sets_of_instructions_and_after_kills(models, folders, tmp_path):
    def run(name, threads, stop=0, isa=""):
        command = [sys.executable, tuned_folders.__file__, models, tmp_path / name, str(threads), str(stop)]
        return processes.run(command, env=os.environ | ({"MP_CORE_ISA": isa} if isa else {})).returncode

    assert run("other", 2, isa=mp.config.available_isas()[-1]) == 0
    codes = [run("killed", 1, stop=2)]
    while codes[-1] == 9 and len(codes) < 9:
        codes.append(run("killed", 2, stop=2))
    assert codes == [9, 9, 9, 0]
    for kind, folder in folders.items():
        for name in ("other", "killed"):
            assert tuned_folders.contents(tmp_path / name / kind) == folder


def test_the_only_worker_may_die(client):
    expected = weights_after()
    client.cluster.scale(1)

    def kill(batch):
        if batch == 1:
            for process in client.run(os.getpid).values():
                os.kill(process, signal.SIGKILL)

    callback = mp.callbacks.LambdaCallback(on_train_batch_begin=kill)
    cluster = Workers(client, retries=5)
    assert weights_after(1, passes=3, cluster=cluster, callbacks=[callback]) == weights_after(1) != expected


def test_training_goes_on_from_its_last_step(client, tmp_path):
    expected = weights_after()

    class Stop(Exception):
        pass

    def stop(batch, logs):
        raise Stop

    for _ in range(2):
        restore = mp.callbacks.BackupAndRestore(tmp_path / "state", save_freq=1)
        with pytest.raises(Stop):
            weights_after(passes=3, cluster=Workers(client),
                          callbacks=[restore, mp.callbacks.LambdaCallback(on_train_batch_end=stop)])  # fmt: skip
    restore = mp.callbacks.BackupAndRestore(tmp_path / "state", save_freq=1)
    assert weights_after(passes=3, cluster=Workers(client), callbacks=[restore]) == expected


def test_only_what_has_changed_is_sent_again(client):
    model, x, y = model_and_data()
    model.layers[0].trainable = False
    model.compile("sgd", "mse")
    sent = []

    class Noting(training.Job):
        def _scatter(self, value):
            sent.append(value)
            return super()._scatter(value)

    workers = Workers(client)
    workers.job = lambda compiled: Noting(compiled, client, 2)
    model.fit(x, y, batch_size=3000, verbose=0, passes=3, cluster=workers)
    setup, first, second = sent
    assert type(pickle.loads(setup.model)).__name__ == "TrainingState"
    assert not first.arrays
    assert sorted(x.shape for x in second.arrays.values()) == [(1,), (2,), (8, 1)]  # the last layer, and the seed


def test_what_fails_for_its_samples_is_raised_and_changes_nothing(client):
    mp.random.set_seed(1)
    model = mp.Sequential([mp.Input((2,), dtype="int32"), layers.Embedding(5, 3), layers.Flatten(), layers.Dense(1)])
    model.compile("sgd", "mse")
    before, ids = digest(model), np.zeros((3000, 2), np.int32)
    ids[1500] = 7
    with pytest.raises(IndexError, match="an index of the inputs is outside of the table"):
        model.fit(ids, np.zeros((3000, 1)), batch_size=3000, verbose=0, passes=3, cluster=Workers(client),
                  shuffle=False)  # fmt: skip
    assert digest(model) == before


def test_wrong_arguments_are_named(client, tmp_path):
    model, x, y = model_and_data()
    encoder = BertEncoder.from_folder(tiny_bert.write(tmp_path / "model"), "float32")
    with pytest.raises(ValueError, match=r"with a `cluster`, `batch_size` must be above 32, .*; received 2"):
        encoder.fit([("a", "b"), ("c", "d")], batch_size=2, cluster=Workers(client))
    with pytest.raises(ValueError, match="with a `cluster`, `passes` must be at least 2"):
        model.fit(x, y, verbose=0, cluster=Workers(client))
    with pytest.raises(
        TypeError, match=r"`cluster` must be mp_core\.interop\.dask\.Workers\(client\); received Client"
    ):
        model.fit(x, y, verbose=0, passes=2, cluster=client)
    with pytest.raises(TypeError, match=r"`client` must be a distributed\.Client; received str"):
        Workers("scheduler:8786")
    with pytest.raises(ValueError, match="`retries` must be at least 0"):
        Workers(client, retries=-1)
