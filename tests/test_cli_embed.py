"""`mp-core embed`: formats, files that are read and written, output streams."""

import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import processes
import pytest
import tiny_bert
from command import TEXTS, mp_core, usage_error
from safetensors.numpy import save_file

from mp_core import cli, dtype_policies
from mp_core.cli import embed
from mp_core.cli.common import BAD_INPUT
from mp_core.models import BertEncoder
from mp_core.models.precision import PRECISIONS, unit_codes


def test_where_embeddings_cannot_be_written_nothing_is_read(capsys):
    assert "argument --output: the folder /absent does not exist" in usage_error(
        capsys, "embed", "absent", "--output", "/absent/x"
    )


def test_jsonl_holds_text_and_embedding_exactly(capsys, model, texts):
    assert cli.main(["embed", model, texts]) == 0
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert err == ""
    assert [row["text"] for row in rows] == TEXTS
    embeddings = np.array([row["embedding"] for row in rows], np.float32)
    np.testing.assert_array_equal(embeddings, BertEncoder.from_folder(model).encode(TEXTS))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_codes_are_those_of_each_embedding_alone(capsys, model, texts, tmp_path, precision):
    expected = unit_codes(BertEncoder.from_folder(model).encode(TEXTS, normalize=True), precision)
    common = "embed", model, "--precision", precision, "--normalize"
    assert cli.main([*common, "-o", str(tmp_path / "codes.npy"), texts]) == 0
    found = np.load(tmp_path / "codes.npy")
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    assert cli.main([*common, texts]) == 0
    rows = [json.loads(line)["embedding"] for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_array_equal(np.array(rows, expected.dtype), expected)


def test_codes_need_embeddings_of_length_1_and_one_machine(capsys, model, texts):
    for words, message in (
        (["--precision", "int8", "--no-normalize"], "argument --no-normalize: not allowed with --precision int8"),
        (["--precision", "binary", "--dask", "tcp://a:1"], "argument --precision: not allowed with --dask"),
        (["--precision", "int4"], "int4"),
    ):
        assert message in usage_error(capsys, "embed", model, *words, texts)


def test_what_is_not_finite_is_an_error_that_names_line_and_layer(capsys, tmp_path, texts):
    model = tiny_bert.write(tmp_path / "model")
    tensors = tiny_bert.tensors()
    tensors["encoder.layer.1.output.LayerNorm.bias"][:2] = np.inf, np.nan
    save_file(tensors, model / "model.safetensors")
    out = tmp_path / "out.npy"
    assert cli.main(["embed", str(model), "--output", str(out), texts]) == BAD_INPUT
    assert not out.exists()
    layer = "layer 'encoder/layer_1/output_norm' under the policy 'float32' is the first to return Inf or NaN"
    told = capsys.readouterr().err
    assert f"{texts}, line " in told
    assert f"has an output that is not finite: {layer}: its weights hold some" in told


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "int8"])
@pytest.mark.parametrize("suffix", ["npy", "tsv"])
def test_the_suffix_of_the_output_chooses_the_format(model, texts, tmp_path, policy, suffix):
    path = tmp_path / f"embeddings.{suffix}"
    assert cli.main(["embed", model, "--policy", policy, "--output", str(path), texts]) == 0
    embeddings = np.load(path) if suffix == "npy" else np.loadtxt(path, dtype=np.float32, delimiter="\t")
    expected = BertEncoder.from_folder(model, dtype_policies.policy_of(policy)).encode(TEXTS)
    np.testing.assert_array_equal(embeddings, expected)


def test_npy_goes_through_a_pipe_from_standard_input(model):
    done = mp_core("embed", model, "--format", "npy", input=b"a b c\r\nd")
    assert (done.returncode, done.stderr) == (0, b"")
    expected = BertEncoder.from_folder(model).encode(["a b c", "d"])
    np.testing.assert_array_equal(np.load(io.BytesIO(done.stdout)), expected)


def test_files_and_standard_input_are_read_in_order(model, texts):
    done = mp_core("embed", model, texts, "-", texts, input=b"g\n")
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == [*TEXTS, "g", *TEXTS]


def test_a_line_ends_at_a_line_feed_and_a_byte_order_mark_is_no_text(capsys, model, tmp_path):
    path = tmp_path / "windows.txt"
    path.write_bytes(b"\xef\xbb\xbfa\rb\r\nc\r\r\n\r\nd")
    assert cli.main(["embed", model, str(path)]) == 0
    texts = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    assert texts == ["a\rb", "c\r", "", "d"]


def test_no_texts_are_an_empty_array(capsys, model, tmp_path):
    (tmp_path / "none.txt").write_text("")
    path = tmp_path / "none.npy"
    assert cli.main(["embed", model, "--output", str(path), str(tmp_path / "none.txt")]) == 0
    assert np.load(path).shape == (0, tiny_bert.WIDTH)


@pytest.mark.parametrize("suffix", ["npy", "jsonl", "tsv"])
def test_texts_are_embedded_piece_by_piece_in_their_order(capsys, model, tmp_path, monkeypatch, suffix):
    lines = [" ".join("abcdefgh"[: 1 + number % 8]) for number in range(50)]
    (tmp_path / "texts").write_text("\n".join(lines))
    whole, pieces = tmp_path / f"whole.{suffix}", tmp_path / f"pieces.{suffix}"
    assert cli.main(["embed", model, "--output", str(whole), str(tmp_path / "texts")]) == 0
    seen = []
    encode = BertEncoder.encode
    monkeypatch.setattr(
        BertEncoder, "encode", lambda self, texts, **rest: (seen.append(len(texts)), encode(self, texts, **rest))[1]
    )
    monkeypatch.setattr(embed, "_TEXTS", 7)
    monkeypatch.setattr(embed, "_CHARACTERS", 60)
    assert cli.main(["embed", model, "--output", str(pieces), str(tmp_path / "texts")]) == 0
    assert max(seen) <= 7 and sum(seen) == 50 and len(set(seen) - {0}) > 1
    assert pieces.read_bytes() == whole.read_bytes()


def test_an_output_is_replaced_with_force_only_and_at_once(capsys, model, texts, tmp_path):
    path = tmp_path / "out.tsv"
    path.write_text("before")
    arguments = ["embed", model, "--output", str(path)]
    assert "out.tsv exists; use force (--force) to replace it" in usage_error(capsys, *arguments, texts)
    assert cli.main([*arguments, "--force", texts, str(tmp_path / "absent")]) == 3
    assert path.read_text() == "before"
    assert cli.main([*arguments, "--force", texts]) == 0
    assert np.loadtxt(path, delimiter="\t").shape == (len(TEXTS), tiny_bert.WIDTH)
    assert sorted(os.listdir(tmp_path)) == ["out.tsv", "texts.txt"]


@pytest.mark.parametrize(
    ("command", "file"),
    [
        *((command, file) for command in ("embed", "choose") for file in ("sample.txt", "model/model.safetensors")),
        ("embed", "map.json"),
    ],
)
def test_no_file_that_a_command_reads_is_its_output(capsys, tmp_path, command, file):
    model = tiny_bert.write(tmp_path / "model")
    (tmp_path / "sample.txt").write_text("a")
    (tmp_path / "map.json").write_text(json.dumps(dtype_policies.serialize(dtype_policies.DTypePolicyMap("float32"))))
    before = (tmp_path / file).read_bytes()
    arguments = {
        "embed": ["--map", str(tmp_path / "map.json"), str(model), str(tmp_path / "sample.txt")],
        "choose": [str(model), "--max-error", "1", "--texts", str(tmp_path / "sample.txt")],
    }[command]
    options = ["--force", "--format", "npy"] if command == "embed" else ["--force"]
    error = usage_error(capsys, command, *arguments, *options, "--output", str(tmp_path / file))
    assert "it is not replaced" in error
    assert (tmp_path / file).read_bytes() == before


@pytest.mark.parametrize("case", ["itself", "hard link", "symlink", "standard input", "weights"])
def test_an_output_that_is_an_input_is_refused_even_with_force(capsys, tmp_path, texts, case):
    model = tiny_bert.write(tmp_path / "model")
    source = model / "model.safetensors" if case == "weights" else Path(texts)
    before, output = source.read_bytes(), tmp_path / "output"
    if case == "hard link":
        output.hardlink_to(source)
    elif case == "symlink":
        output.symlink_to(source)
    else:
        output = source
    arguments = ["embed", str(model), "--force", "--format", "tsv", "--output", str(output)]
    if case == "standard input":
        with open(source, "rb") as stream:
            done = mp_core(*arguments, stdin=stream)
        assert done.returncode == 2
        assert b"is the input /dev/stdin: it is not replaced" in done.stderr
    else:
        assert f"is the input {source}: it is not replaced" in usage_error(capsys, *arguments, texts)
    assert source.read_bytes() == before


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_an_ended_process_leaves_no_part_of_an_output(model, tmp_path, number):
    arguments = [sys.executable, "-m", "mp_core", "embed", model, "--output", str(tmp_path / "out.npy")]
    with processes.Process(arguments, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while not os.listdir(tmp_path):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait() == 128 + number
        assert process.stderr.read() == b""
    assert os.listdir(tmp_path) == []


def test_a_pipe_or_a_device_is_written_as_it_is(model, texts):
    done = mp_core("embed", model, "--format", "npy", "--output", "/dev/stdout", texts)
    assert (done.returncode, done.stderr) == (0, b"")
    assert np.load(io.BytesIO(done.stdout)).shape == (len(TEXTS), tiny_bert.WIDTH)


def test_texts_that_are_cut_off_are_counted_unless_quiet(capsys, model, tmp_path, texts):
    path = tmp_path / "long.txt"
    path.write_text("a\n" + "a b c d e f g h\n" + "a b c d e f g h a\n" * 2)
    assert cli.main(["embed", model, texts, str(path)]) == 0
    out, err = capsys.readouterr()
    assert err == f"mp-core: 2 of 8 texts were cut off at 10 tokens; the first is {path}, line 3\n"
    assert cli.main(["embed", model, "--quiet", texts, str(path)]) == 0
    assert capsys.readouterr() == (out, "")


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ([], {}),
        (["--prompt", "a b"], {"prompt": "a b"}),
        (["--prompt-name", "passage"], {"prompt_name": "passage"}),
        (["--normalize", "--truncate-dim", "5"], {"normalize": True, "truncate_dim": 5}),
        (["--no-normalize"], {"normalize": False}),
    ],
)
def test_what_the_folder_says_is_done_unless_an_option_says_otherwise(capsys, tmp_path, texts, options, arguments):
    model = tiny_bert.write(tmp_path / "model")
    settings = {"prompts": {"query": "h ", "passage": "g "}, "default_prompt_name": "query", "truncate_dim": 9}
    (model / "config_sentence_transformers.json").write_text(json.dumps(settings))
    path = tmp_path / "out.npy"
    assert cli.main(["embed", str(model), "--output", str(path), *options, texts]) == 0
    np.testing.assert_array_equal(np.load(path), BertEncoder.from_folder(model).encode(TEXTS, **arguments))
    unknown = usage_error(capsys, "embed", str(model), "--prompt-name", "q", texts)
    assert "--prompt-name: received 'q'; it must be one of query, document, passage" in unknown


@pytest.mark.parametrize("name", ["x.csv", "x.txt", "news.2026"])
def test_a_suffix_that_is_no_format_needs_one(capsys, model, texts, tmp_path, name):
    arguments = ["embed", model, texts, "--output", str(tmp_path / name)]
    assert "is none of npy, jsonl, tsv; use --format" in usage_error(capsys, *arguments)
    assert cli.main([*arguments, "--format", "tsv"]) == 0


def test_wrong_usage_names_the_help_of_the_command(capsys, model, texts):
    for arguments in (["--output", "/absent/x"], ["--batch-size", "0"]):
        err = usage_error(capsys, "embed", model, texts, *arguments)
        assert err.startswith("mp-core embed: error: ")


def test_a_folder_without_a_model_says_what_it_has(capsys, tmp_path, texts):
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    folder = tiny_bert.write(tmp_path / "model")
    lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n"
    (folder / "config.json").write_bytes(lfs)
    pointer, latin, bare = (tiny_bert.write(tmp_path / "models" / name) for name in ("pointer", "latin", "bare"))
    (pointer / "tokenizer.json").write_bytes(lfs)
    (latin / "tokenizer.json").write_bytes(b'{"caf\xe9": 1}')
    (bare / "tokenizer.json").unlink()
    for path, message in (
        (
            tmp_path,
            f"{tmp_path}/config.json is missing; the folder has only model, models, pytorch_model.bin, texts.txt",
        ),
        (folder, "config.json is a Git LFS pointer, not the file itself; run `git lfs pull`"),
        (tmp_path / "absent", "absent/config.json: No such file or directory"),
        (pointer, "tokenizer.json is a Git LFS pointer"),
        (latin, "tokenizer.json is not UTF-8 text: "),
        (
            bare,
            "tokenizer.json is missing; the folder has only 1_Pooling, config.json, model.safetensors, modules.json",
        ),
    ):
        assert cli.main(["embed", str(path), texts]) == 3
        err = capsys.readouterr().err
        assert message in err and "Errno" not in err and err.count("\n") == 1


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="reads a device without an end")
def test_a_line_without_an_end_is_refused(model, texts):
    done = mp_core("embed", model, "/dev/zero")
    message = b"mp-core: error: /dev/zero, line 1 has more than 67108864 bytes\n"
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", message)


def test_lines_from_a_pipe_are_embedded(model, texts, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with processes.Process(["cp", texts, tmp_path / "pipe"]) as writer:
        done = mp_core("embed", model, tmp_path / "pipe")
        assert writer.wait(60) == 0
    assert (done.returncode, done.stdout) == (0, mp_core("embed", model, texts).stdout)


def test_npy_on_a_terminal_is_refused(capsys, model, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "npy is binary" in usage_error(capsys, "embed", model, "--format", "npy")


def test_a_closed_pipe_ends_quietly(model, tmp_path):
    path = tmp_path / "many.txt"
    path.write_text("a b c\n" * 3000)
    with processes.Process(
        [sys.executable, "-m", "mp_core", "embed", model, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_an_empty_address_is_not_this_process(capsys, model, texts, tmp_path):
    arguments = ["embed", str(model), texts, "--output", str(tmp_path / "out")]
    err = usage_error(capsys, *arguments, "--dask", "")
    assert "argument --dask: must be the address of a scheduler; received ''" in err


def test_a_policy_without_an_implementation_is_wrong_usage(capsys, model, texts):
    assert "ternary" in usage_error(capsys, "embed", model, "--policy", "ternary_from_float32", texts)


@pytest.mark.parametrize("case", ["model", "text", "encoding", "corrupt", "no token"])
def test_bad_input_is_one_line_and_code_3(capsys, tmp_path, model, texts, case):
    broken = tiny_bert.write(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"\0" * 100)
    (tmp_path / "latin").write_bytes(b"tea\ncaf\xe9\n")
    bare = tiny_bert.write(tmp_path / "bare")
    tokenizer = json.loads((bare / "tokenizer.json").read_text())
    (bare / "tokenizer.json").write_text(json.dumps(tokenizer | {"post_processor": None}))
    folder, file, named = {
        "model": (str(tmp_path / "absent"), texts, "absent"),
        "text": (model, str(tmp_path / "absent.txt"), "absent.txt"),
        "encoding": (model, str(tmp_path / "latin"), "latin, line 2 is not UTF-8 text"),
        "corrupt": (str(broken), texts, "model.safetensors is not a valid safetensors file"),
        "no token": (str(bare), texts, "texts.txt, line 2 must have a token"),
    }[case]
    assert cli.main(["embed", folder, file]) == 3
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("mp-core: error: ")
    assert named in err


def in_terminal(folder, *arguments, typed=b""):
    """Run the program with standard input and error in a terminal, where `typed` is typed; return what that shows."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (24, 80))
    command = [sys.executable, "-m", "mp_core", *arguments]
    with processes.Process(command, stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL, cwd=folder) as process:
        os.close(theirs)
        os.write(ours, typed)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal is closed when the process ends
            while part := os.read(ours, 4096):
                shown += part
    os.close(ours)
    assert process.returncode == 0, shown
    return shown.decode()


def test_embed_says_that_it_reads_what_is_typed(model, tmp_path):
    shown = in_terminal(tmp_path, "embed", model, typed=b"a cat\n\x04")
    assert "reading texts from standard input, one per line; end with Ctrl-D" in shown


def test_embed_counts_the_texts_that_are_done_of_those_in_the_files(model, tmp_path):
    (tmp_path / "texts.txt").write_text("a cat\n" * 40)
    shown = in_terminal(tmp_path, "embed", model, "texts.txt", "texts.txt")
    assert "0/80" in shown and "reading" not in shown
    assert "?text" not in in_terminal(tmp_path, "embed", model, "--quiet", "texts.txt")
