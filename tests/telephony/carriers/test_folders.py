"""What is known of one provider stands in its folder, and nowhere else."""

import re
from pathlib import Path

import pytest

import offhook
from offhook.telephony.carriers.providers import OURS, provider_called, provider_names

PACKAGE = Path(offhook.__file__).parent
CARRIERS = PACKAGE / "telephony/carriers"
TABLE = CARRIERS / "providers.py"


@pytest.mark.parametrize("name", OURS)
def test_nobody_else_names_a_provider(name: str) -> None:
    apart = (CARRIERS / name, TABLE)
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
