"""Damage bytes by some changes; also the values of JSON, and members of zip archives, with correct checksums."""

import io
import json
import zipfile
import zlib

import hostile_folders

__all__ = ["damaged", "mutated"]


def damaged(rng, content):
    """Return bytes with one to four changes."""
    for _ in range(int(rng.integers(1, 5))):
        content = _CHANGES[int(rng.integers(len(_CHANGES)))](rng, content) if content else content
    return content


def _place(rng, content):
    """A position, more often one near the beginning, where headers are."""
    return int(rng.integers(min(len(content), 4096) if rng.random() < 0.7 else len(content)))


def _set(rng, content):
    at, new = _place(rng, content), rng.bytes(int(rng.integers(1, 9)))
    return content[:at] + new + content[at + len(new) :]


def _insert(rng, content):
    at = _place(rng, content)
    return content[:at] + rng.bytes(int(rng.integers(1, 9))) + content[at:]


def _delete(rng, content):
    at = _place(rng, content)
    return content[:at] + content[at + int(rng.integers(1, 64)) :]


def _cut(rng, content):
    return content[: _place(rng, content)]


def _repeat(rng, content):
    at, length = _place(rng, content), int(rng.integers(1, 200))
    return content[: at + length] + content[at:]


def _digit(rng, content):
    digits = [i for i, byte in enumerate(content[:8192]) if 48 <= byte < 58]
    if not digits:
        return content
    at = int(rng.choice(digits))
    return content[:at] + str(int(rng.choice((0, 1, 7, 9, 99, 2**31, 2**63)))).encode() + content[at + 1 :]


def _value(rng, content):
    """Another value in the JSON that the bytes are, or hold between the first brace and the last."""
    start, end = content.find(b"{"), content.rfind(b"}") + 1
    try:
        tree = json.loads(content[start:end])
    except (ValueError, RecursionError):
        return content
    found = list(hostile_folders.places(tree))
    if not found:
        return content
    container, key = found[int(rng.integers(len(found)))]
    values = hostile_folders.VALUES
    container[key] = values[int(rng.integers(len(values)))]
    return content[:start] + json.dumps(tree).encode() + content[end:]


_CHANGES = (_set, _set, _insert, _delete, _cut, _repeat, _digit, _value, _value)


def mutated(rng, content):
    """Damage what a file holds: an archive as a whole, or one of its members."""
    members = _members(content)
    if not members or rng.random() < 0.2:
        return damaged(rng, content)
    chosen = int(rng.integers(len(members)))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for place, (name, member) in enumerate(members):
            archive.writestr(name, damaged(rng, member) if place == chosen else member)
    return stream.getvalue()


def _members(content):
    """Return the names and contents of the members of an archive; none if it is none, or a damaged one."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return [(name, archive.read(name)) for name in archive.namelist()]
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, RuntimeError, EOFError, zlib.error):
        return []
