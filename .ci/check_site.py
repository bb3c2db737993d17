"""Check the links of a built site: `python .ci/check_site.py docs/_build/html`. It opens no connection.

The pages, files and images of links must exist, and so must the anchors.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ATTRIBUTES = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src", "object": "data"}


class Page(HTMLParser):
    """The anchors and the links of a page, with line numbers."""

    def __init__(self, path):
        super().__init__()
        self.places, self.links = set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        """Store the anchor and the link of a tag."""
        attributes = dict(attrs)
        self.places |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        if link := attributes.get(ATTRIBUTES.get(tag)):
            self.links.append((self.getpos()[0], link))
        if tag == "img" and not attributes.get("alt"):
            self.links.append((self.getpos()[0], "an image without a text in its place"))


def dead_links(site):
    """Return a line for each dead link of the pages under a folder."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}
    lines = []
    for path, page in sorted(pages.items()):
        for number, link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = unquote(parts.fragment)
            if not target.is_file():
                lines.append(f"{path.relative_to(site.resolve())}:{number}: nothing at {link}")
            elif place and target in pages and place not in pages[target].places:
                lines.append(f"{path.relative_to(site.resolve())}:{number}: no such place in {link}")
    return lines


def main(site):
    """Print the dead links of a site and return 1 if there is one."""
    if not (site / "index.html").is_file():
        print(f"no site at {site}")
        return 1
    lines = dead_links(site)
    print(*lines, sep="\n", end="\n" if lines else "")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
