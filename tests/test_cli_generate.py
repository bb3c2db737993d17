"""`mp-core generate`: prompts and chats as lines, reports, and interrupts that leave what was written."""

import json
import signal
import subprocess
import sys

import processes
import pytest
from chat_templates import TEMPLATES
from generating import written

from mp_core.cli import main
from mp_core.models.generation import Generator

pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("generate")
    written(made)
    (made / "chat_template.jinja").write_text(TEMPLATES["phi"])
    return made


def run(folder, tmp_path, text, *options):
    """Run the command on the lines of a file."""
    (tmp_path / "lines.txt").write_text(text)
    return main(["generate", str(folder), str(tmp_path / "lines.txt"), "--max-tokens", "6", *options])


def test_turns_are_one_chat_and_json_lines_are_chats_of_their_own(folder, tmp_path, capsys):
    alone = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    text = f"one\n{json.dumps(alone)}\n{json.dumps({'messages': alone})}\ntwo\n"
    assert run(folder, tmp_path, text, "--chat", "--format", "jsonl", "--temperature", "1.5") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    generator, turns = Generator.from_folder(folder), [{"role": "user", "content": "one"}]
    assert found[0]["text"] == generator.chat(turns, 6, temperature=1.5).text
    assert [line["messages"] for line in found[1:3]] == [alone, alone]
    tokens = generator.chat_tokens(alone)
    expected = generator.generate(["", tokens, tokens, ""][1:3] * 2, 6, temperature=1.5)[1].text
    assert found[1]["text"] == expected  # the second line has the random numbers of index 1
    turns += [{"role": "assistant", "content": found[0]["text"]}, {"role": "user", "content": "two"}]
    assert found[3]["messages"] == turns


def test_a_chat_is_written_as_it_grows(folder, tmp_path, capsys):
    assert run(folder, tmp_path, "one\n", "--chat", "--quiet") == 0
    expected = Generator.from_folder(folder).chat([{"role": "user", "content": "one"}], 6).text
    assert capsys.readouterr().out == f"{expected}\n"


def test_a_report_has_all_answers_and_the_speed(folder, tmp_path, capsys):
    for options in (["--json"], ["--json", str(tmp_path / "report.json"), "--quiet"]):
        assert run(folder, tmp_path, "one\ntwo\n", *options) == 0
        printed = capsys.readouterr().out
        text = printed if len(options) == 1 else (tmp_path / "report.json").read_text()
        report = json.loads(text)
        assert [line["prompt"] for line in report["results"]] == ["one", "two"]
        assert report["tokens"] == sum(len(line["tokens"]) for line in report["results"]) == 12
        assert report["tokens_per_second"] > 0
    assert printed.count("one") == 1  # a report in a file leaves the text on standard output


def test_the_numbers_of_a_line_are_those_of_its_index(folder, tmp_path, capsys):
    lines = [f"prompt {index}" for index in range(70)]
    assert (
        run(folder, tmp_path, "\n".join(lines), "--format", "jsonl", "--temperature", "2", "--cache-tokens", "512") == 0
    )
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = Generator.from_folder(folder).generate(lines, 6, temperature=2.0)
    assert [line["tokens"] for line in found] == [each.tokens for each in expected]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("[1]\n", ["--chat"], r"line 1: `messages[0]` must be a mapping; received int; a line that starts with ["),
        ("one\n{\n", ["--chat"], "line 2: "),
        ("a\n" + "b" * 700, [], "line 2: `prompts[0]` must have fewer than 600 tokens"),
        ("a" * 700, ["--chat"], "line 1: `messages` must have fewer than 600 tokens"),
    ],
)
def test_errors_name_the_line(folder, tmp_path, capsys, text, options, message):
    assert run(folder, tmp_path, text, *options) == 3
    assert message in capsys.readouterr().err


def test_an_interrupt_leaves_what_was_written(folder, tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "mp_core", "generate", str(folder), "--format", "jsonl", "--json", str(report)]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = processes.Process([*command, "--max-tokens", "3"], limit=processes.LONG, **streams)
    process.stdin.write(b"one\n" * 64)
    process.stdin.flush()
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate()
    assert process.returncode == 130
    lines = [json.loads(line) for line in (first + rest).splitlines()]
    assert json.loads(report.read_text())["results"] == lines
    assert len({line["text"] for line in lines}) == 1
