"""What is known of one provider stands in its folder, and nowhere else."""

import re
from pathlib import Path

import pytest

import offhook
from offhook.telephony.carriers.providers import OURS, provider_called, provider_names

PACKAGE = Path(offhook.__file__).parent
CARRIERS = PACKAGE / "telephony/carriers"
TABLE = CARRIERS / "providers.py"
CALLERS = PACKAGE / "web/app/callers"
"""Its folders have what a provider does for a caller."""
APART = {
    "web/app/evals/line_settings.py": "over which lines a scenario may be played",
    "web/app/evals/eval_line_io.py": "likewise",
    "web/app/cli/parser.py": "likewise",
}


@pytest.mark.parametrize("name", OURS)
def test_nobody_else_names_a_provider(name: str) -> None:
    apart = (CARRIERS / name, CALLERS / name, TABLE, *(PACKAGE / path for path in APART))
    for kind in ("py", "js", "html", "css", "c", "h"):
        for path in PACKAGE.rglob(f"*.{kind}"):
            if not any(path.is_relative_to(place) for place in apart):
                found = re.search(rf"{name}\w*", path.read_text(), re.IGNORECASE)
                assert found is None, f"{path.relative_to(PACKAGE)} names {found}"


def test_every_folder_is_in_the_table() -> None:
    folders = {path.parent.name for path in CARRIERS.glob("*/provider.py")}
    assert folders == set(OURS)


@pytest.mark.parametrize("name", provider_names())
def test_a_provider_is_found_by_its_name(name: str) -> None:
    assert provider_called(name).name == name
