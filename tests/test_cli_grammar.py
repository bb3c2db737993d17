"""The grammar of all commands: options, help, errors with suggestions, colour."""

import argparse
import json
import os
import pty
import re
import shlex
import sys

import processes
import pytest
import tiny_bert
from command import TEXTS, usage_error

from mp_core import cli, config
from mp_core.cli import options
from mp_core.cli.policies import WORDS

PARSER = cli._parser()
COMMANDS = PARSER.commands.choices


def printed(capsys, *arguments):
    """Run a command and return what it prints; argparse ends some with SystemExit."""
    try:
        assert cli.main(arguments) == 0
    except SystemExit as stopped:
        assert stopped.code == 0
    return capsys.readouterr().out


# ---- one meaning of each option


def test_options_of_one_name_have_one_meaning():
    shared = {flag: told for flags, told in options._TABLE.values() for flag in flags}
    for name, command in COMMANDS.items():
        for flag, argument in ((flag, each) for each in command.arguments for flag in each.option_strings):
            if flag in shared:
                told = shared[flag]
                assert argument.const == (True if told.get("action") else told.get("const")), (name, flag)
                assert argument.metavar == told.get("metavar"), (name, flag)
            assert flag.startswith("--") or flag in ("-o", "-h"), (name, flag)


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("json", set(COMMANDS) - {"embed", "serve", "completion", "help", "version"}),
        ("output", {"embed", "choose", "convert", "tune", "run"}),
        ("threads", set(COMMANDS) - {"completion", "help", "version"}),
        ("quiet", set(COMMANDS) - {"info", "verify-machine", "completion", "help", "version"}),
        ("no-progress", {"embed", "generate", "perplexity", "choose", "tune", "convert", "inspect", "verify", "demo"}),
        (
            "policy",
            {*["embed", "generate", "perplexity", "serve", "tune", "profile", "convert", "choose", "demo", "run"]},
        ),
        ("policies", {"choose", "demo"}),
        ("plot", {"profile", "bench", "tune"}),
    ],
)
def test_options_are_where_they_make_sense(name, commands):
    assert {command for command, parser in COMMANDS.items() if f"--{name}" in parser.options} == commands


def test_a_model_is_the_first_argument_of_every_command_that_has_one():
    positionals = {
        name: [action for action in parser.arguments if not action.option_strings] for name, parser in COMMANDS.items()
    }
    with_model = {
        name for name, (first, *_) in ((n, p) for n, p in positionals.items() if p) if first.metavar == "MODEL"
    }
    assert with_model == {
        "embed",
        "generate",
        "perplexity",
        "serve",
        "choose",
        "tune",
        "profile",
        "convert",
        "inspect",
        "verify",
        "run",
    }


def test_options_may_stand_between_files(capsys, model, texts):
    lines = printed(capsys, "embed", model, texts, "--policy", "int8", texts, "--quiet", "--", texts).splitlines()
    assert len(lines) == 3 * len(TEXTS)


def test_json_goes_to_standard_output_or_to_a_file(capsys, model, tmp_path):
    file, other = tmp_path / "report.json", tmp_path / "report"
    arguments = ["inspect", model]
    report = json.loads(printed(capsys, *arguments, "--json"))
    assert json.loads(printed(capsys, "inspect", "--json", model)) == report  # the model is not taken for a file
    assert json.loads(printed(capsys, *arguments, "--json", "-")) == report
    table = printed(capsys, *arguments)
    assert printed(capsys, *arguments, "--json", str(file)) == table
    assert printed(capsys, *arguments, f"--json={other}", "--quiet") == ""
    assert json.loads(file.read_text()) == json.loads(other.read_text()) == report


def test_a_file_of_json_that_does_not_end_so_needs_an_equals_sign(capsys, tmp_path):
    error = usage_error(capsys, "info", "--json", str(tmp_path / "report"))
    assert error.endswith("report; if it is the file of --json, write --json=FILE")


def test_json_never_replaces_a_file_of_the_model(capsys, tmp_path):
    model = tiny_bert.write(tmp_path / "model")
    before = {path: path.read_bytes() for path in model.rglob("*") if path.is_file()}
    index = model / "model.safetensors.index.json"
    for command in (
        ["inspect", str(model)],
        ["inspect", str(index)],
        ["verify", str(tmp_path / "x"), str(model)],
        ["profile", str(model)],
    ):
        error = usage_error(capsys, *command, "--json", str(model / "config.json"))
        assert "argument --json: " in error and "would overwrite" in error
    assert before == {path: path.read_bytes() for path in model.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", ["embed", "profile", "choose"])
def test_a_model_that_is_a_file_was_forgotten(capsys, texts, command):
    arguments = {"choose": ["--texts", texts, "--max-error", "1"]}.get(command, [])
    assert f"argument MODEL: {texts} is a file; must be a folder" in usage_error(capsys, command, texts, *arguments)


@pytest.mark.parametrize("command", ["embed", "inspect", "info"])
def test_threads_are_those_of_the_whole_command(capsys, model, texts, monkeypatch, command):
    seen = []
    arguments = {"embed": [model, texts], "inspect": [model], "info": []}[command]
    run = COMMANDS[command].get_default("run")
    monkeypatch.setattr(
        argparse.Namespace,
        "run",
        property(lambda _: lambda given: (seen.append(config.get_num_threads()), run(given))[1], lambda *_: None),
        raising=False,
    )
    before = config.get_num_threads()
    printed(capsys, command, *arguments, "--threads", "3")
    assert (seen, config.get_num_threads()) == ([3], before)
    assert "--threads: received '1025'; it must be an integer from 1 to 1024" in usage_error(
        capsys, command, *arguments, "--threads", "1025"
    )


@pytest.mark.parametrize("in_terminal", [True, False])
def test_progress_is_shown_unless_an_option_says_otherwise(monkeypatch, in_terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: in_terminal)
    shown = [
        options.shows_progress(argparse.Namespace(quiet=quiet, no_progress=no_progress))
        for quiet in (False, True)
        for no_progress in (False, True)
    ]
    assert shown == [True, False, False, False]


# ---- help


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_examples_that_are_understood_in_80_columns(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    text = printed(capsys, name, "--help")
    assert text == printed(capsys, "help", name)
    assert max(map(len, text.splitlines())) <= 80
    examples = re.findall(r"^  \$ mp-core (.*)$", text, re.MULTILINE)
    assert examples
    for line in examples:
        words = shlex.split(line.partition(" > ")[0])
        arguments, beyond = PARSER.parse_known_args(words)
        assert (words[0], beyond) == (name, []) and arguments.parser.prog == f"mp-core {name}"


def test_help_alone_lists_the_commands_and_no_arguments_do_so_on_standard_error(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = printed(capsys, "help")
    assert text == printed(capsys, "--help") and max(map(len, text.splitlines())) <= 80
    assert all(re.search(rf"^    {name}(?: |$)", text, re.MULTILINE) for name in COMMANDS)
    assert cli.main([]) == 2
    assert capsys.readouterr() == ("", text)


def test_help_lists_the_policies_one_a_line(capsys):
    text = printed(capsys, "help", "policies")
    head, _, *rows = text.partition("\n\n")[0].splitlines()
    assert head.split("  ")[0] == "policy"
    assert [row.split()[0] for row in rows] == list(WORDS)
    assert max(map(len, rows)) <= 80


@pytest.mark.parametrize("spelling", ["-V", "--version", "version"])
def test_the_version_has_three_spellings(capsys, spelling):
    assert printed(capsys, spelling) == printed(capsys, "--version")


# ---- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["conver"], "unknown command: received 'conver'; did you mean convert?"),
        (["help", "chose"], "received 'chose'; did you mean choose?"),
        (["convert", "--polcy", "int8"], "unknown option --polcy; did you mean --policy?"),
        (["embed", "m", "--treads=2"], "unknown option --treads; did you mean --threads?"),
        (["--verson"], "unknown option --verson; did you mean --version?"),
        (["info", "-x"], "unknown option -x"),
        (["info", "x"], "unexpected argument x"),
        (["info", "--dtype", "bf16"], "--dtype: received 'bf16'; did you mean bfloat16?"),
        (["embed", "m", "--format", "json"], "--format: received 'json'; did you mean jsonl?"),
    ],
)
def test_an_error_says_what_was_meant(capsys, arguments, message):
    assert message in usage_error(capsys, *arguments)


@pytest.mark.parametrize("command", ["embed", "serve", "profile", "convert", "choose", "demo"])
@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("bf16", "bfloat16"),
        ("fp16", "float16"),
        ("INT8", "int8"),
        ("mixed_bf16", "mixed_bfloat16"),
        ("int8-weight-only", "int8/weight_only"),
        ("int8/32", "int8/weight_only/32"),
        ("int4", "int4/64"),
        ("fp8", "float8_e4m3fn"),
        ("int8_from_bf16", "int8_from_bfloat16"),
        ("flaot16", "float16"),
    ],
)
def test_a_policy_of_another_spelling_is_named(capsys, command, word, other):
    shown = "--policies/--policy" if command in ("choose", "demo") else "--policy"
    before = [] if command == "demo" else ["m"]
    error = usage_error(capsys, command, *before, "--policy", word)
    assert f"argument {shown}: received {word!r}; did you mean {other}? It must be one of " in error


def test_only_what_is_required_is_missed(capsys):
    assert usage_error(capsys, "embed").endswith("error: the following arguments are required: MODEL")


def test_a_word_that_nothing_is_like_gets_no_guess(capsys):
    assert "received 'zebra'; it must be one of " in usage_error(capsys, "embed", "m", "--policy", "zebra")


def in_terminal(*arguments, **environment):
    """Run the program in a terminal of 80 columns and return what it shows."""
    parent, child = pty.openpty()
    try:
        known = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        processes.run(
            [sys.executable, "-m", "mp_core", *arguments],
            stdin=child,
            stdout=child,
            stderr=child,
            check=False,
            env=known | {"COLUMNS": "80", "TERM": "xterm"} | environment,
        )
        return os.read(parent, 1 << 16).decode().replace("\r\n", "\n")
    finally:
        os.close(parent)
        os.close(child)


def test_errors_wrap_in_a_terminal():
    lines = in_terminal("embed", "m", "--policy", "bf16", NO_COLOR="1").splitlines()
    assert len(lines) > 3 and max(map(len, lines)) <= 80
    assert lines[-1] == "Help: mp-core embed --help"
    assert "did you mean bfloat16?" in " ".join(lines[:2])


def test_a_terminal_has_colour_unless_somebody_objects(capsys):
    coloured = in_terminal("version", "--help")
    plain = in_terminal("version", "--help", NO_COLOR="1")
    assert "\x1b[1musage:" in coloured and "\x1b[36m--help\x1b[0m" in coloured
    assert "\x1b" not in plain and re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain
    assert "\x1b" not in in_terminal("version", "--help", TERM="dumb")
    assert "\x1b[1;31merror:\x1b[0m" in in_terminal("conver")
    assert "\x1b" not in printed(capsys, "version", "--help")


@pytest.mark.parametrize("words", [["verify", "a", "--", "--"], ["inspect", "--", "--"]])
def test_a_second_double_dash_is_the_name_of_a_file(words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    assert cli.main(words) == 3
    assert "mp-core: error: " in capsys.readouterr().err
