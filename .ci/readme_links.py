"""Make the description in wheels and source archives readable on its own: `.ci/readme_links.py [--base URL] FILE...`.

The description is README.md, whose links are relative to the repository; on a package index they would be dead. With
`--base`, the address of the repository's files, links become absolute; without it, links become plain paths. Pictures
are left out.
"""

import argparse
import base64
import hashlib
import io
import re
import tarfile
import zipfile
from pathlib import Path

LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!\w+:|#)([^)\s]+)\)")


def described(text, base=None):
    """Return a page without relative links and pictures."""

    def replaced(match):
        image, words, target = match.groups()
        if image:
            return ""
        if base:
            return f"[{words}]({base.rstrip('/')}/{target})"
        path = target.split("#")[0]
        return f"`{path}`" if words == path else f"{words} (`{path}`)"

    return re.sub(r"\n{3,}", "\n\n", LINK.sub(replaced, text))


def metadata(content, base):
    """Return core metadata with the description rewritten; it follows the first empty line."""
    headers, _, text = content.decode().partition("\n\n")
    return f"{headers}\n\n{described(text, base)}".encode()


def rewrite_wheel(path, base):
    """Rewrite METADATA of a wheel, and its digest in RECORD."""
    with zipfile.ZipFile(path) as archive:
        entries = {info.filename: (info, archive.read(info)) for info in archive.infolist()}
    (name,) = [name for name in entries if name.endswith(".dist-info/METADATA")]
    content = metadata(entries[name][1], base)
    entries[name] = entries[name][0], content
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    record = name.replace("METADATA", "RECORD")
    row = f"{name},sha256={digest},{len(content)}"
    lines = [row if line.startswith(f"{name},") else line for line in entries[record][1].decode().splitlines()]
    entries[record] = entries[record][0], ("\n".join(lines) + "\n").encode()
    with zipfile.ZipFile(path, "w") as archive:
        for info, content in entries.values():
            archive.writestr(info, content)


def rewrite_sdist(path, base):
    """Rewrite PKG-INFO of a source archive."""
    with tarfile.open(path) as archive:
        entries = [[info, archive.extractfile(info).read() if info.isfile() else b""] for info in archive]
    (entry,) = [entry for entry in entries if re.fullmatch(r"[^/]+/PKG-INFO", entry[0].name)]
    entry[1] = metadata(entry[1], base)
    entry[0].size = len(entry[1])
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content) if info.isfile() else None)


def main():
    """Rewrite the archives that the command names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", metavar="URL", help="where files of the repository are shown, such as .../blob/main/")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    for path in arguments.files:
        (rewrite_wheel if path.suffix == ".whl" else rewrite_sdist)(path, arguments.base)


if __name__ == "__main__":
    main()
