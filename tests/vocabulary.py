"""The words of vocabulary.h as functions, for test_vocabulary.py: compiled and loaded for each instruction set.

tests/vocabulary.c has each word as a function over memory. It is compiled with the flags of the kernels of that set.
With MP_CORE_CROSS, a build directory for another CPU, the sets of that build are compiled instead: tests/c/words.c
calls their functions, and MP_CORE_EMULATOR runs it.
"""

import ctypes
import json
import os
import re
import shlex
import struct
import subprocess
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import processes
import pytest
from test_guard_pages import PAGE

import mp_core as mp
from mp_core.core import cpu

ROOT = Path(mp.__file__).resolve().parents[1]
HEADER = ROOT / "mp_core/core/kernels/vocabulary.h"
CROSS = os.environ.get("MP_CORE_CROSS")
EMULATOR = shlex.split(os.environ.get("MP_CORE_EMULATOR", ""))


def table():
    """Word -> the condition of its part of the table, None where every set has it."""
    words, condition = {}, None
    for line in HEADER.read_text().partition("* constant")[0].splitlines():
        if found := re.match(r" \* if ((?:not )?\w+):", line):
            condition = found[1]
        elif found := re.match(r" \* ([a-z]\w+(?: [a-z]\w+)*) +\|", line):
            words |= dict.fromkeys(found[1].split(), condition)
    del words["word"]
    return words


def compile_commands():
    """Instruction set -> how the build compiled its kernels, without what is about their file; {} without a build."""
    found = {}
    builds = [Path(CROSS)] if CROSS else sorted(ROOT.glob("build/*"))
    for path in (build / "compile_commands.json" for build in builds if (build / "compile_commands.json").exists()):
        for entry in json.loads(path.read_text()):
            isa = re.search(r"libmp_kernels_(\w+)\.a\.p", entry["output"])
            if isa and isa[1] not in found:
                words = shlex.split(entry["command"])
                pairs = {i for flag in ("-o", "-c", "-MQ", "-MF") if flag in words for i in (words.index(flag),)}
                kept = [word for i, word in enumerate(words) if not {i, i - 1} & pairs and word != "-MD"]
                found[isa[1]] = (kept, entry["directory"])
    return found


COMMANDS = compile_commands()
HERE = [isa for isa in sorted(COMMANDS) if CROSS or isa in cpu.available_isas()]


class Emulated:
    """A library of functions for another CPU, as ctypes would give it; tests/c/words.c has the protocol."""

    def __init__(self, program, library):
        command = [*EMULATOR, program, library]
        self.process = processes.Process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=processes.LONG)
        self.conditions = self.process.stdout.read(256).rstrip(b"\0")

    def __getattr__(self, name):
        if not self.ask(name, 0, 0, [None] * 4):
            raise AttributeError(name)
        return lambda *operands: self.ask(name, 1, operands[3], [*operands[:3], operands[4]])

    def ask(self, name, wanted, n, arrays):
        """Whether there is such a function; if so and it is wanted, its last array is overwritten."""
        sizes = [-1 if x is None else x.nbytes for x in arrays]
        places = [0 if x is None else x.ctypes.data % PAGE for x in arrays]
        self.process.stdin.write(struct.pack("32s10q", name.encode(), wanted, n, *sizes, *places))
        if wanted:
            self.process.stdin.write(b"".join(x.tobytes() for x in arrays if x is not None))
        self.process.stdin.flush()
        found = self.process.stdout.read(1) == b"\1"
        if found and wanted:
            arrays[3].view(np.uint8).reshape(-1)[:] = np.frombuffer(self.process.stdout.read(sizes[3]), np.uint8)
        return found

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait() == 0


class Loaded:
    """A library of functions for this CPU."""

    def __init__(self, library):
        self.library = ctypes.CDLL(library)
        self.conditions = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(self.library, "conditions")))

    def __getattr__(self, name):
        function = getattr(self.library, name)
        function.argtypes, function.restype = [ctypes.c_void_p] * 3 + [ctypes.c_ssize_t, ctypes.c_void_p], None
        return lambda *operands: function(*(x.ctypes.data if isinstance(x, np.ndarray) else x for x in operands))

    def close(self):
        pass


class Words:
    """The functions of one instruction set."""

    def __init__(self, library):
        self.library, self.conditions = library, library.conditions.decode()

    def has(self, condition):
        if condition is None:
            return True
        name = condition.removeprefix("not ")
        return (name in self.conditions.split()) is not condition.startswith("not ")

    def __getitem__(self, word):
        """The function (operands..., n=0, out) -> out, over arrays; skips the test where the set has no such word."""
        if not self.has(table()[word]):
            pytest.skip(f"no {word} here")
        function = getattr(self.library, f"word_{word}")

        def call(*operands, out, n=0):
            function(*operands, *[None] * (3 - len(operands)), n, out)
            return out

        return call

    def each(self, word, operands, like, n=0):
        """The word of each row of the operands, as an array like that."""
        call, out = self[word], np.empty_like(like)
        for row in range(len(like)):
            call(*(x[row] for x in operands), out=out[row : row + 1], n=n)
        return out


@contextmanager
def words_of(isa, folder):
    """The functions of an instruction set, compiled in that folder."""
    shared = compiled(isa, folder / "words.so", "vocabulary.c", "-shared")
    library = Emulated(compiled(isa, folder / "words", "c/words.c", "-ldl"), shared) if CROSS else Loaded(shared)
    yield Words(library)
    library.close()


def compiled(isa, to, source, *more):
    """A program or library of one file of the tests, with the flags of that instruction set."""
    command, directory = COMMANDS[isa]
    quiet = ["-Wno-unused-parameter", "-Wno-unused-function", "-Wno-unused-variable"]
    whole = [*command, *quiet, Path(__file__).parent / source, "-o", to, *more]
    done = processes.run(whole, cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return to
