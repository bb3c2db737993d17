"""`mp-core serve`: the meaning of its arguments, and its errors."""

import socket
import sys

import pytest
import tiny_bert
from command import usage_error

from mp_core import cli
from mp_core.cli import serve


@pytest.fixture
def folder(tmp_path):
    return str(tiny_bert.write(tmp_path / "encoder"))


def test_models_go_by_the_name_of_their_folder_or_by_a_given_one(tmp_path, monkeypatch):
    (tmp_path / "a=b").mkdir()
    monkeypatch.chdir(tmp_path)
    words = ["encoder/", "some/folder", "org/name=some/folder", "a=b", "x=y=folder", "../."]
    found = serve._folders(words, "MODEL")
    assert list(found) == ["encoder", "folder", "org/name", "a=b", "x=y", tmp_path.parent.name]
    assert [str(path) for path in found.values()] == ["encoder", "some/folder", "some/folder", "a=b", "folder", ".."]


def test_origins_are_written_as_browsers_write_them():
    words = ["https://Page.Example", "https://a:443", "http://a:80", "https://a:80", "http://[::1]:3000", "*"]
    expected = ["https://page.example", "https://a", "http://a", "https://a:80", "http://[::1]:3000", "*"]
    assert [serve._origin(word) for word in words] == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a", "b/a"], "two have the name a; use NAME=FOLDER"),
        (["=folder"], "received '=folder'; it must be FOLDER or NAME=FOLDER"),
        (["name="], "must be FOLDER or NAME=FOLDER"),
        (["a\nb=folder"], "must be FOLDER or NAME=FOLDER"),
        (["a", "--port", "65536"], "argument --port: received '65536'; it must be an integer from 0 to 65535"),
        (["a", "--port", "http"], "argument --port: received 'http'; it must be an integer from 0 to 65535"),
        (["a", "--unix-socket", "s", "--port", "1"], "argument --unix-socket: not allowed with --host or --port"),
        (["a", "--max-texts", "0"], "argument --max-texts: received '0'; it must be an integer of at least 1"),
        (["a", "--log-format", "xml"], "--log-format"),
        (["a", "--host", "192.0.2.1"], "argument --host: 192.0.2.1: Cannot assign requested address"),
        (["a", "--unix-socket", "absent/s"], "argument --unix-socket: absent/s: No such file"),
        (["a", "b", "--adapter", "c=d"], "argument --adapter: needs one MODEL; received 2"),
        (["a", "--adapter", "a=d"], "argument --adapter: a is the name of the model"),
        (["a", "--adapter", "c=d", "--adapter", "c=e"], "argument --adapter: two have the name c"),
        (
            ["a", "--cors-allow-origin", "page.example"],
            "received 'page.example'; it must be * or an origin such as https:",
        ),
        (["a", "--cors-allow-origin", "https://page.example/"], "argument --cors-allow-origin: received"),
        (["a", "--cors-allow-origin", "https://b\xfccher.example"], "in ASCII and without a path"),
        (["a", "--cors-allow-origin", "null"], "argument --cors-allow-origin: received 'null'"),
        (
            ["a", "--cors-allow-origin", "*", "--cors-allow-origin", "http://a"],
            "* allows all origins; remove the others",
        ),
        ([], "MODEL"),
    ],
)
def test_wrong_arguments_are_named(capsys, arguments, words):
    pytest.importorskip("uvicorn")
    assert words in usage_error(capsys, "serve", *arguments)


def test_a_port_that_is_taken_is_named_before_any_model_is_read(capsys):
    pytest.importorskip("uvicorn")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}: Address already in use" in usage_error(capsys, "serve", "a", "--port", str(port))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent"], "absent/config.json: No such file"),
        (["a", "--api-key-file", "absent"], "absent: No such file or directory"),
        (["a", "--api-key-file", "/dev/zero"], "/dev/zero"),
    ],
)
def test_what_cannot_be_read_is_named(capsys, tmp_path, monkeypatch, arguments, words):
    pytest.importorskip("uvicorn")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["serve", *arguments, "--port", "0"]) == 3
    assert words in capsys.readouterr().err


def test_of_a_model_that_cannot_be_read_no_socket_is_left(tmp_path, monkeypatch, capsys):
    pytest.importorskip("uvicorn")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["serve", "absent", "--unix-socket", "socket"]) == 3
    assert not (tmp_path / "socket").exists()


@pytest.mark.parametrize("content", ["", "\n \n", "a b\n", "schl\u00fcssel\n", "a\x00\n"])
def test_a_file_of_keys_must_hold_keys(capsys, tmp_path, folder, content):
    pytest.importorskip("uvicorn")
    (tmp_path / "keys").write_text(content)
    assert cli.main(["serve", folder, "--port", "0", "--api-key-file", str(tmp_path / "keys")]) == 3
    assert "must hold a key in each line" in capsys.readouterr().err


@pytest.mark.parametrize("missing", [("starlette",), ("starlette", "uvicorn")])
def test_a_missing_package_is_told_with_the_command_that_installs_it(capsys, monkeypatch, missing):
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    found = serve.find_spec
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name in missing else found(name))
    assert cli.main(["serve", "a"]) == 3
    told = "mp-core serve needs the package starlette: pip install starlette uvicorn"
    assert capsys.readouterr().err == f"mp-core: error: {told}\n"


def test_the_command_line_needs_none_of_these_packages_for_other_commands(monkeypatch, capsys):
    for name in ("starlette", "uvicorn"):
        monkeypatch.setitem(sys.modules, name, None)
    assert cli.main(["info", "--json"]) == 0
