"""The files of docs/examples/serve that deploy the server: every line has a meaning for the program that reads it."""

import json
import re
import shlex
import shutil
import signal
import sys
import tomllib
from pathlib import Path

import processes
import pytest
import tiny_bert

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from servers import Server

from mp_core import cli

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "examples" / "serve"
INSTRUCTIONS = {"FROM", "COPY", "RUN", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


def arguments_of(words):
    """Return what the command line makes of `mp-core serve` and what follows."""
    assert [Path(words[0]).name, words[1]] == ["mp-core", "serve"]
    return cli._parser().parse_args(words[1:])


@pytest.fixture(scope="module")
def instructions():
    text = re.sub(r"\\\n\s*", "", (FOLDER / "Containerfile").read_text())
    lines = [line.partition(" ")[::2] for line in text.splitlines() if line and not line.startswith("#")]
    assert {name for name, _ in lines} == INSTRUCTIONS
    return lines


def only(instructions, name):
    (found,) = (value for each, value in instructions if each == name)
    return found


def test_the_container_installs_the_extra_from_the_wheel_and_runs_as_a_user(instructions):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    runs = [value for name, value in instructions if name == "RUN"]
    assert '"$(echo /wheels/*.whl)[serve]"' in runs[0]  # by its path: no index is asked for that name
    assert "serve" in extras
    assert only(instructions, "COPY").split() == ["dist/*.whl", "/wheels/"]  # where `make wheel` writes
    assert f" {only(instructions, 'USER')}" in runs[1]
    for run in runs:
        processes.run(["sh", "-n", "-c", run], check=True, timeout=10)
    assert getattr(signal, only(instructions, "STOPSIGNAL")) == signal.SIGTERM


def test_the_container_starts_a_server_on_the_port_that_it_exposes(instructions):
    start = json.loads(only(instructions, "ENTRYPOINT"))
    found = arguments_of([*start, "/models/a"])
    assert (found.host, found.port, found.log_format) == ("0.0.0.0", int(only(instructions, "EXPOSE")), "json")
    with pytest.raises(SystemExit) as stopped:
        arguments_of([*start, *json.loads(only(instructions, "CMD"))])
    assert stopped.value.code == 0


def test_the_health_check_of_the_container_asks_a_server(instructions, tmp_path):
    options, _, command = only(instructions, "HEALTHCHECK").partition("CMD ")
    assert all(re.fullmatch(r"--(interval|timeout|start-period)=\d+s", word) for word in options.split())
    python, flag, code = json.loads(command)
    assert (python, flag) == ("python", "-c")
    running = Server(tiny_bert.write(tmp_path / "encoder"), log=tmp_path / "log")
    code = code.replace(":8000/", f":{running.port}/")
    healthy = processes.run([sys.executable, "-c", code], timeout=60)
    running.stop()
    gone = processes.run([sys.executable, "-c", code], timeout=60, capture_output=True)
    assert (healthy.returncode, gone.returncode) == (0, 1)


def test_compose_runs_the_container_with_a_command_that_the_command_line_takes(instructions):
    yaml = pytest.importorskip("yaml")
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    service = compose["services"]["serve"]
    known = "build command ports volumes secrets read_only tmpfs cap_drop security_opt cpus mem_limit pids_limit"
    assert set(service) == {*known.split(), "stop_grace_period", "restart"}
    context = FOLDER / service["build"]["context"]
    assert (context / service["build"]["dockerfile"]).samefile(FOLDER / "Containerfile")
    found = arguments_of([*json.loads(only(instructions, "ENTRYPOINT")), *service["command"]])
    (volume,) = service["volumes"]
    assert all(model.startswith(volume.split(":")[1]) for model in found.models)
    assert found.api_key_file == f"/run/secrets/{service['secrets'][0]}"
    assert compose["secrets"].keys() == set(service["secrets"])
    assert int(service["stop_grace_period"][:-1]) > found.grace_seconds
    assert service["ports"] == [f"127.0.0.1:{found.port}:{found.port}"]


@pytest.fixture(scope="module")
def unit():
    lines = [line for line in (FOLDER / "mp-core-serve.service").read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines if "=" in line)


def test_the_unit_starts_a_server_by_a_command_that_the_command_line_takes(unit):
    found = arguments_of(shlex.split(unit["ExecStart"]))
    assert found.api_key_file == "${CREDENTIALS_DIRECTORY}/" + unit["LoadCredential"].split(":")[0]
    assert int(unit["TimeoutStopSec"]) > found.grace_seconds


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="without systemd-analyze")
def test_systemd_knows_every_line_of_the_unit(tmp_path, unit):
    program = shlex.split(unit["ExecStart"])[0]
    text = (FOLDER / "mp-core-serve.service").read_text().replace(program, sys.executable)
    (tmp_path / "mp-core-serve.service").write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", tmp_path / "mp-core-serve.service"]
    done = processes.run(command, capture_output=True, text=True, timeout=60)
    told = [line for line in done.stderr.splitlines() if "mp-core-serve" in line]
    assert not told, told
