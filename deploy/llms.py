"""docs/llms.txt: the pages of the site with a sentence each, as llmstxt.org describes it.

`llms.py` writes the file, from the navigation in mkdocs.yml and the first sentence of each page.
"""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
FILE = ROOT / "docs/llms.txt"
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_NOT_PROSE = ("#", "|", "<", "-", "!", "1.")
"""Beginnings of blocks that are no sentences: headings, tables, comments, lists, pictures."""


def first_sentence(page: str) -> str:
    """Returns the first sentence of a page's first paragraph, without links and code marks."""
    blocks = re.split(r"\n\s*\n", _CODE.sub("", page))
    prose = next(
        block
        for block in map(str.strip, blocks)
        if block and block[:2].strip() and not block.startswith(_NOT_PROSE)
    )
    text = _LINK.sub(r"\1", " ".join(prose.split())).replace("`", "").replace("*", "")
    return re.split(r"(?<=[.:?])\s+(?=[A-Z])", text)[0].rstrip(":.") + "."


def text() -> str:
    """Returns the file's text."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    lines = [
        f"# {site['site_name']}",
        "",
        f"> {site['site_description']}",
        "",
        "Each page NAME.html is made from docs/NAME.md of the repository.",
    ]
    for entry in site["nav"]:
        [(title, pages)] = entry.items()
        if isinstance(pages, str):
            continue
        lines += ["", f"## {title}", ""]
        lines += [_line(page) for page in pages]
    return "\n".join(lines) + "\n"


def _line(page: dict[str, Any]) -> str:
    [(title, path)] = page.items()
    about = first_sentence((ROOT / "docs" / path).read_text())
    return f"- [{title}]({path.removesuffix('.md')}.html): {about}"


if __name__ == "__main__":
    FILE.write_text(text())
