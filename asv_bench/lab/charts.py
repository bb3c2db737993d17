"""Open the published chart pages in a headless Chromium, and report the result: ``python charts.py``.

asv's pages load their libraries from other sites. We put copies of these libraries (npm packages) beside the pages, so
that the pages open without internet.
"""

import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parents[1]  # where asv is run
HTML, LIBRARIES = HERE / ".asv/html", HERE / ".asv/libraries"
# End of the address that asv's pages name -> the npm package, and the file in it.
SOURCES = {
    "jquery-3.3.1.min.js": ("jquery@3.3.1", "dist/jquery.min.js"),
    "jquery.flot.min.js": ("flot@0.8.3", "jquery.flot.js"),
    "jquery.flot.time.min.js": ("flot@0.8.3", "jquery.flot.time.js"),
    "jquery.flot.selection.min.js": ("flot@0.8.3", "jquery.flot.selection.js"),
    "jquery.flot.categories.min.js": ("flot@0.8.3", "jquery.flot.categories.js"),
    "jquery.flot.orderBars.js": ("flot-orderbars@1.0.0", "js/jquery.flot.orderBars.js"),
    "stupidtable.min.js": ("stupid-table-plugin@1.1.3", "stupidtable.min.js"),
    "md5.min.js": ("blueimp-md5@2.19.0", "js/md5.min.js"),
    "bootstrap.min.js": ("bootstrap@3.1.1", "dist/js/bootstrap.min.js"),
    "bootstrap.min.css": ("bootstrap@3.1.1", "dist/css/bootstrap.min.css"),
}
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"),
    *("--window-size=1280,900", "--virtual-time-budget=20000"),
)


class Page(NamedTuple):
    """A page in Chromium: its document after the scripts have run, and the messages on the console."""

    document: str
    console: tuple[str, ...]


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def libraries() -> Path:
    """Return a folder with the libraries of asv's pages, fetched by npm the first time."""
    LIBRARIES.mkdir(parents=True, exist_ok=True)
    for name, (package, file) in SOURCES.items():
        if not (LIBRARIES / name).exists():
            with tempfile.TemporaryDirectory() as folder:
                subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True, stdout=subprocess.DEVNULL)
                with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
                    (LIBRARIES / name).write_bytes(archive.extractfile(f"package/{file}").read())
    return LIBRARIES


def bring_libraries(html: Path) -> None:
    """Put the libraries beside the pages, which then open without the internet."""
    shutil.copytree(libraries(), html / "libraries", dirs_exist_ok=True)
    page = (html / "index.html").read_text()
    # npm's files of a library differ in bytes from those of the other sites, so integrity hashes are removed.
    page = re.sub(r' integrity="[^"]*"| crossorigin="[^"]*"', "", page)
    page = re.sub(r'"https://[^"]*/([^"/]+\.(?:js|css))"', r'"libraries/\1"', page)
    (html / "index.html").write_text(page)


@contextmanager
def served(html: Path) -> Iterator[str]:
    """Serve the pages and yield their address."""
    handler = functools.partial(Quiet, directory=str(html))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/index.html"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


def opened(address: str, *flags: str) -> Page:
    """Open a page, let its scripts run, and return the result."""
    with tempfile.TemporaryDirectory() as profile:
        command = [chromium(), *FLAGS, *flags, f"--user-data-dir={profile}", "--dump-dom", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = re.findall(r":CONSOLE[^ ]* (.*)$", done.stderr, re.MULTILINE)
    return Page(done.stdout, tuple(console))


def commits(html: Path) -> dict[str, int]:
    """Return the number of commits with a figure, for each benchmark, in the only line that its chart should have.

    asv draws a line for each set of parameters of an environment, in a folder of its own; the summary joins them.
    """
    counts: dict[str, int] = {}
    for file in html.glob("graphs/**/tracked.*.json"):
        found = len([value for _, value in json.loads(file.read_text()) if value is not None])
        counts[file.stem] = min(found, counts.get(file.stem, found))
    return counts


def main() -> None:
    names = sorted(commits(HTML))
    with served(HTML) as address:
        for route in ("", "#/summarylist", *(f"#{name}" for name in names)):
            page = opened(address + route)
            drawn = page.document.count("<canvas")
            print(f"{route or 'grid':44}{len(page.document):8} bytes {drawn:3} canvases  {' '.join(page.console)}")
            if page.console:
                sys.exit(1)
    for name, count in commits(HTML).items():
        print(f"{name:44}{count:4} commits")


if __name__ == "__main__":
    main()
