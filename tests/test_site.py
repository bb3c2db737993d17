"""The published pages: the check of the site finds dead links, and the package's description is complete on its own."""

import email
import re
import shutil
import sys
import tarfile
import zipfile
from importlib import util
from pathlib import Path

import processes

ROOT = Path(__file__).parents[1]


def script(name):
    spec = util.spec_from_file_location(name, ROOT / f".ci/{name}.py")
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_site, readme_links = script("check_site"), script("readme_links")


def test_dead_links_are_found(tmp_path):
    (tmp_path / "other.html").write_text('<h1 id="here">')
    (tmp_path / "index.html").write_text(
        '<a href="other.html#here">\n<a href="other.html#gone">\n<a href="gone.html">\n<img src="gone.svg" alt="a">\n'
        '<a href="#top">\n<p id="top">\n<a href="https://example.org/gone">\n<img src="other.html">\n'
    )
    assert check_site.dead_links(tmp_path) == [
        "index.html:2: no such place in other.html#gone",
        "index.html:3: nothing at gone.html",
        "index.html:4: nothing at gone.svg",
        "index.html:8: nothing at an image without a text in its place",
    ]


def relative_links(text):
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"\w+:|#", target)]


def test_the_description_says_the_paths_of_its_links():
    page = "![A plot](docs/a.svg)\n\n[words](docs/a.md#b), [docs/a.md](docs/a.md), [far](https://example.org)\n"
    assert readme_links.described(page) == "\n\nwords (`docs/a.md`), `docs/a.md`, [far](https://example.org)\n"
    based = readme_links.described(page, "https://example.org/main/")
    assert relative_links(based) == [] and "[words](https://example.org/main/docs/a.md#b)" in based


def test_the_readme_is_readable_without_the_repository():
    readme = (ROOT / "README.md").read_text()
    assert relative_links(readme)
    assert not relative_links(readme_links.described(readme))


def test_a_rewritten_wheel_has_one_description_and_its_digest(wheel, tmp_path):
    path = Path(shutil.copy(wheel, tmp_path))
    readme_links.rewrite_wheel(path, None)
    archive = zipfile.ZipFile(path)
    (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
    told = email.message_from_bytes(archive.read(name))
    assert told["Name"] == "mp-core"
    assert not relative_links(told.get_payload())
    checked = processes.run([sys.executable, "-m", "pip", "install", "--no-deps", "--target", tmp_path / "t", path])
    assert checked.returncode == 0  # pip reads the digests in RECORD
    assert sorted(archive.namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


def test_a_rewritten_source_archive_keeps_its_files(tmp_path):
    (tmp_path / "mp-0").mkdir()
    (tmp_path / "mp-0/PKG-INFO").write_text("Name: mp\n\n[words](docs/a.md)\n")
    (tmp_path / "mp-0/README.md").write_text("[words](docs/a.md)\n")
    with tarfile.open(tmp_path / "mp-0.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "mp-0", "mp-0")
    readme_links.rewrite_sdist(tmp_path / "mp-0.tar.gz", None)
    with tarfile.open(tmp_path / "mp-0.tar.gz") as archive:
        texts = {info.name: archive.extractfile(info).read().decode() for info in archive if info.isfile()}
    assert texts == {"mp-0/PKG-INFO": "Name: mp\n\nwords (`docs/a.md`)\n", "mp-0/README.md": "[words](docs/a.md)\n"}
