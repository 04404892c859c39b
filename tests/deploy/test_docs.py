"""Links, files and configuration in the documents are right, and the reference is current."""

import os
import re
import runpy
import shutil
import subprocess
import tomllib
from itertools import count
from pathlib import Path

import pytest

from deploy import llms
from deploy.reference_limits import ELSEWHERE, by_heading
from deploy.reference_limits import ROOMS as ROOMS_OF_LIMITS
from offhook.pipeline.speech.script.lexicon import Lexicon
from offhook.web.config.config import Config
from tests.deploy.servers import ROOT

DOCS = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS, *(ROOT / "deploy").rglob("*.md")]
README_LINES = 200
CODE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?:\]\(|(?:src|srcset)=\")([^)\"\s]+)")
ROOMS = "offhook|tests|benchmarks|deploy|docs|examples|media|signaling|telephony|pipeline|web"
FILE = re.compile(rf"(?<![\w/.-])((?:{ROOMS})/[\w./-]*\w)(?![\w/*…])")
TOML = re.compile(r"^( *)```toml\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
REFERENCE = runpy.run_path(str(ROOT / "deploy/reference.py"))


def anchors(text: str) -> set[str]:
    """Of the headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading.lower()).strip() for heading in headings)
    return {re.sub(r"\s", "-", heading) for heading in plain}


def test_the_readme_can_be_read_at_a_glance() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for link in LINK.findall(CODE.sub("", path.read_text())):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.is_file(), link
        assert not anchor or anchor in anchors(there.read_text()), link


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_are_there(path: Path) -> None:
    for name in set(FILE.findall(path.read_text())):
        assert (ROOT / name).exists() or (ROOT / "offhook" / name).exists(), name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_configuration_that_is_shown_is_valid(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    secrets = count()  # each another
    examples = [example for _, example in TOML.findall(path.read_text())]
    flows = [example for example in examples if "[nodes." in example]
    for flow in flows:
        (tmp_path / flow.split()[1]).write_text(flow)  # its name stands in the first line
    for example in (one for one in examples if one not in flows):
        text = re.sub('"…"', lambda _: f'"{next(secrets)}"', example)
        if text.startswith("# lexicon.toml\n"):
            Lexicon.of_table(tomllib.loads(text))
        else:
            Config.model_validate(tomllib.loads(text))


def test_all_pages_are_in_the_navigation() -> None:
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in DOCS)


@pytest.mark.parametrize("page", REFERENCE["PAGES"])
def test_the_reference_is_what_the_code_says(page: str) -> None:
    text = (ROOT / "docs/reference" / page).read_text()
    assert text == REFERENCE["PAGES"][page](), "run `make reference`"


def test_the_list_of_pages_is_what_the_pages_say() -> None:
    assert llms.FILE.read_text() == llms.text(), "run `make reference`"


def test_the_changelog_has_this_version() -> None:
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    newest = re.findall(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert newest == package["version"]


def test_every_limit_says_what_happens() -> None:
    listed = [limit for limits in by_heading().values() for limit in limits]
    assert len(listed) > 400
    assert not [f"{limit.file}: {limit.name}" for limit in listed if not limit.text]
    assert {"HEAD_S", "MAX_SSRCS", "FRAME_QUEUE_MS"} <= {limit.name for limit in listed}
    sherpa = {limit.name for limit in listed if "sherpa" in limit.file}
    assert sherpa == {"MAX_STREAMS", "MAX_FILES", "MAX_THREADS"}


def test_places_of_limits_are_there() -> None:
    for place in (*ROOMS_OF_LIMITS, *ELSEWHERE):
        assert (ROOT / "offhook" / place).exists(), place


def test_the_pictures_are_what_their_script_draws() -> None:
    script = runpy.run_path(str(ROOT / "docs/images/architecture.py"))
    for name, draw in script["PICTURES"].items():
        for look, ink in script["INK"].items():
            drawn = (ROOT / f"docs/images/{name}-{look}.svg").read_text()
            assert drawn == draw(ink)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mkdocs = shutil.which("mkdocs", path=f"{ROOT}/.venv-docs/bin:{os.environ['PATH']}")
    if mkdocs is None:
        pytest.skip("needs MkDocs: make docs")
    folder = tmp_path_factory.mktemp("site")
    command = [mkdocs, "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_has_the_pages(site: Path) -> None:
    assert (site / "reference/configuration.html").exists()
    listed = re.findall(r"\]\(([\w/-]+\.html)\)", (site / "llms.txt").read_text())
    assert listed
    for page in listed:
        assert (site / page).exists(), page


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = (
        r"<(?:script|img|iframe)[^>]* src=\"?https?:|<link[^>]* rel=\"?stylesheet\"?[^>]*https?:"
    )
    for page in site.rglob("*.html"):
        assert not re.search(loaded, page.read_text()), page


def test_the_site_can_be_searched_from_a_disk(site: Path, tmp_path: Path) -> None:
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("needs Chromium")
    page = f"{(site / 'index.html').as_uri()}?q=registrar"
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000"]
    command = [chromium, *options, f"--user-data-dir={tmp_path}", "--dump-dom", page]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    assert re.search(r"search-result__meta[^<]*>\d+ matching documents", shown)
    assert "<h1>Phones (SIP)</h1>" in shown
