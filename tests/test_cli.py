"""The `mp-core` command: common parts, `info` and `completion`."""

import json
import os
import shlex
import shutil
import subprocess
import sys

import processes
import pytest
import tiny_bert
from command import mp_core, usage_error

from mp_core import cli
from mp_core.cli import completion
from mp_core.policies import config

# ---- info


def test_info_json_is_the_configuration(capsys):
    assert cli.main(["info", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads(json.dumps(config.show_config(as_dict=True)))
    assert {"version", "isa", "available_isas", "cpu_features", "kernels", "threads", "thread_reason"} <= report.keys()
    assert {"numpy", "ml_dtypes", "python", "platform"} <= report.keys()


def test_info_names_every_entry_on_a_line(capsys):
    assert cli.main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    report = config.show_config(as_dict=True)
    nested = [f"  {name}" for value in report.values() if isinstance(value, dict) for name in value]
    assert len(lines) == len(report) + len(nested)
    for name in [*report, *nested]:
        assert any(line == name or line.startswith(f"{name}  ") for line in lines), name


@pytest.mark.parametrize("isa", [name for name in ("avx512_bf16", "avx512", "avx2") if name in config.available_isas()])
def test_info_says_what_low_precision_gains_here(isa):
    done = mp_core("info", "--json", env=os.environ | {"MP_CORE_ISA": isa})
    gains = json.loads(done.stdout)["gains"]
    assert ("faster" in gains["bfloat16"]) == (isa == "avx512_bf16")
    assert "half the memory" in gains["bfloat16"] and "half the memory" in gains["float16"]
    assert "faster products" in gains["int8"]


# ---- streams


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="writes to a device that is full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["info", "--version", "--help", "embed --help"])
def test_a_full_disk_under_standard_output_is_named(command, unbuffered):
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        done = processes.run(
            [sys.executable, "-m", "mp_core", *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment,
            check=False,
        )
    assert (done.returncode, done.stderr) == (3, b"mp-core: error: standard output: No space left on device\n")


@pytest.mark.parametrize("command", ["info", "--version", "embed --help"])
def test_a_closed_standard_output_ends_quietly(command):
    shell = ["sh", "-c", f'"$0" -m mp_core {command} >&-', sys.executable]
    done = processes.run(shell, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="reads a file that fails at once")
def test_an_input_that_cannot_be_read_is_named_and_not_standard_output(young_process, capsys, tmp_path):
    named = "mp-core: error: /proc/self/mem: Input/output error\n"
    for arguments in (["inspect"], ["verify", "/proc/self/mem"], ["convert", "-o", tmp_path / "x", "--policy", "int8"]):
        assert cli.main([*map(str, arguments), "/proc/self/mem"]) == 3
        assert capsys.readouterr() == ("", named)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["embed", "", "f"], "MODEL"),
        (["embed", "", "f"], "MODEL"),
        (["embed", "m", ""], "FILE"),
        (["embed", "m", "--output", "", "f"], "-o/--output"),
        (["embed", "m", "--map", "", "f"], "--map"),
        (["choose", "", "--texts", "f", "--max-error", "1"], "MODEL"),
        (["choose", "m", "--texts", "f", "", "--max-error", "1"], "--texts"),
        (["choose", "m", "--texts", "f", "--max-error", "1", "--output", ""], "-o/--output"),
        (["profile", ""], "MODEL"),
        (["profile", "m", "--json", ""], "--json"),
        (["profile", "m", "--plot", ""], "--plot"),
        (["convert", "", "-o", "x", "--policy", "int8"], "MODEL"),
        (["convert", "x", "-o", "", "--policy", "int8"], "-o/--output"),
        (["convert", "x", "-o", "y", "--policy", "int8", "--json="], "--json"),
        (["convert", "x", "-o", "y", "--policy", "int8", "--calibrate", ""], "--calibrate"),
        (["inspect", ""], "MODEL"),
        (["verify", "", "x"], "MODEL"),
        (["verify", "x", ""], "OTHER"),
        (["demo", "--json", ""], "--json"),
        (["bench", "--json", ""], "--json"),
        (["bench", "--plot", ""], "--plot"),
    ],
)
def test_an_empty_path_is_not_the_working_directory(capsys, monkeypatch, tmp_path, arguments, name):
    monkeypatch.chdir(tiny_bert.write(tmp_path / "model"))  # where each of these would find something
    message = f"error: argument {name}: must not be empty; the working directory is ."
    assert usage_error(capsys, *arguments).endswith(message)


def test_an_interrupt_ends_quietly(capsys, monkeypatch):
    def interrupt(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(config, "show_config", interrupt)
    assert cli.main(["info"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["embed"], "required: MODEL"),
        (["embed", "m", "--policy", "float31"], "argument --policy: "),
        (["embed", "m", "--policy", "int8_from_int8"], "'int8_from_int8' computes in int8"),
        (["embed", "m", "--batch-size", "0"], "received '0'; it must be an integer of at least 1"),
        (
            ["embed", "m", "--format", "csv"],
            "argument --format: received 'csv'; did you mean tsv? It must be one of npy, jsonl, tsv, parquet",
        ),
        (["demo", "--threads", "two"], "received 'two'; it must be an integer of at least 1"),
        (["unknown"], "unknown command: received 'unknown'; it must be one of info, embed, generate, "),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(capsys, arguments, message):
    assert message in usage_error(capsys, *arguments)


@pytest.mark.parametrize("policy", ["int64", "bool", "string", "complex64"])
def test_a_policy_must_compute_in_floating_point(capsys, policy):
    message = f"must compute in a floating-point dtype; {policy!r} computes in {policy}"
    assert message in usage_error(capsys, "embed", "m", "--policy", policy)


def test_a_type_that_a_command_cannot_compute_is_wrong_usage(capsys, monkeypatch):
    def refuse(**_):
        raise TypeError("received string")

    monkeypatch.setattr(config, "show_config", refuse)
    assert "received string" in usage_error(capsys, "info")


def test_a_wrong_number_of_threads_is_wrong_usage():
    done = mp_core("info", env=os.environ | {"MP_CORE_NUM_THREADS": "garbage"})
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 2)
    assert b"`MP_CORE_NUM_THREADS` must be an integer from 1 to 1024; received 'garbage'" in done.stderr


def test_a_wrong_instruction_set_is_wrong_usage():
    done = mp_core("info", env=os.environ | {"MP_CORE_ISA": "turbo"})
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert done.stderr.startswith(b"mp-core: error: `MP_CORE_ISA` must be one of ")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [("KeyboardInterrupt", 130, b""), ("ImportError('no numpy')", 3, b"mp-core: error: no numpy\n")],
)
@pytest.mark.parametrize("module", ["numpy", "mp_core.core.cpu", "mp_core.models", "mp_core.cli"])
def test_what_fails_during_imports_is_no_traceback(module, error, code, said):
    program = f"""if True:
        import sys

        class Failing:
            def find_spec(self, name, path=None, target=None):
                if name == {module!r}:
                    raise {error}

        sys.meta_path.insert(0, Failing())
        from mp_core.__main__ import main
        sys.exit(main())
    """
    done = processes.run([sys.executable, "-c", program], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", said)


@pytest.mark.parametrize("error", ["ImportError('broken')", "SystemError('broken')", "KeyboardInterrupt"])
@pytest.mark.parametrize("module", ["numpy", "numpy.linalg", "mp_core.cli"])
def test_an_interrupt_that_an_import_makes_another_error_ends_quietly(module, error):
    program = f"""if True:
        import os, signal, sys, time

        class Interrupted:
            def find_spec(self, name, path=None, target=None):
                if name == {module!r}:
                    try:
                        os.kill(os.getpid(), signal.SIGINT)
                        time.sleep(60)
                    except KeyboardInterrupt:
                        raise {error} from None

        sys.meta_path.insert(0, Interrupted())
        from mp_core.__main__ import main
        sys.exit(main())
    """
    done = processes.run([sys.executable, "-c", program, "info"], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_the_version_is_the_packages(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    report = config.show_config(as_dict=True)
    assert capsys.readouterr().out == f"mp-core {report['version']} ({report['commit'] or 'commit unknown'})\n"


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_a_completion_script_names_commands_options_and_choices(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert all(name in out for name in ("mp-core", "convert", "verify", "max-error", "bfloat16"))


def test_bash_completes_commands_choices_and_files(tmp_path):
    bash = shutil.which("bash") or pytest.skip("bash is not installed")
    script = tmp_path / "script"
    script.write_text(mp_core("completion", "bash", text=True).stdout)
    (tmp_path / "weights.safetensors").touch()

    def completed(*words):
        line = f"source {script}; COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _shtab_mp_core"
        command = [bash, "-c", f'{line}; echo "${{COMPREPLY[@]}}"']
        return processes.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.split()

    assert completed("mp-core", "con") == ["convert"]
    assert completed("mp-core", "info", "--dtype", "bf") == ["bfloat16"]
    assert completed("mp-core", "embed", "--policy", "mixed_b") == ["mixed_bfloat16"]
    assert "int8/weight_only" in completed("mp-core", "convert", "--policy", "int8/")
    assert completed("mp-core", "help", "conv") == ["convert"]
    assert completed("mp-core", "inspect", "wei") == ["weights.safetensors"]


def test_completion_without_shtab_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 3
    assert "mp-core completion needs the package shtab: pip install shtab" in capsys.readouterr().err


def test_importing_mp_core_imports_no_model_and_no_reader():
    code = "import sys, mp_core; print(*sys.modules)"
    loaded = processes.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    assert not {"mp_core.models", "mp_core.cli", "tokenizers", "safetensors", "tqdm"} & set(loaded)
