"""[s3]: what a bucket needs, and what a secret is not shown in."""

from pathlib import Path

import pytest

from offhook.web.config.config import Config, ConfigError, load
from offhook.web.config.s3 import S3


def loaded(folder: Path, text: str) -> Config:
    (folder / "offhook.toml").write_text(text)
    return load(folder / "offhook.toml", {})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('[records]\nurl = ""\n[s3]\nbucket = "calls"\n', "needs [records] url"),
        ('[s3]\nbucket = "calls"\naccess_key = "k"\n', "goes with its secret"),
        ('[s3]\nbucket = "calls"\nsecret_key = "of-nobody"\n', "goes with its secret"),
        (
            '[s3]\nbucket = "c-s"\naccess_key = "k"\nsecret_key = "s"\nsecret_key_file = "f"\n',
            "exclude each other",
        ),
        ('[s3]\nendpoint = "minio:9000"\n', "https://minio.example:9000"),
        ('[s3]\nbucket = "Not A Bucket"\n', "s3.bucket"),
        ('[s3]\nprefix = "/calls"\n', "s3.prefix"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, text)
    assert fault in str(error.value)
    assert "of-nobody" not in str(error.value)


def test_a_secret_is_read_from_its_file_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of-the-bucket\n")
    keys = f'access_key = "k"\nsecret_key_file = "{tmp_path}/secret"\n'
    s3 = loaded(tmp_path, f'[s3]\nbucket = "calls"\n{keys}').s3
    assert s3.settings.secret_key == "of-the-bucket"
    assert "of-the-bucket" not in repr(s3) + repr(s3.settings)
    (tmp_path / "secret").unlink()
    with pytest.raises(ValueError, match="No such file"):
        assert s3.settings


def test_the_environment_has_all_of_it() -> None:
    values = {"BUCKET": "calls", "ACCESS_KEY": "k", "SECRET_KEY": "s", "LINKS": "true"}
    s3 = load(None, {f"OFFHOOK_S3_{name}": value for name, value in values.items()}).s3
    assert (s3.bucket, s3.settings.secret_key, s3.links) == ("calls", "s", True)


@pytest.mark.parametrize(
    ("endpoint", "addressing", "in_path", "links_from"),
    [
        ("", "auto", False, "https://*.amazonaws.com"),
        ("https://s3.example/", "auto", True, "https://s3.example"),
        ("https://s3.example", "virtual", False, "https://calls.s3.example"),
        ("", "path", True, "https://*.amazonaws.com"),
    ],
)
def test_a_bucket_of_ones_own_is_in_the_path(
    endpoint: str, addressing: str, in_path: bool, links_from: str
) -> None:
    s3 = S3.model_validate(
        {"bucket": "calls", "endpoint": endpoint, "addressing": addressing, "links": True}
    )
    assert (s3.settings.path_style, s3.links_from) == (in_path, links_from)
    assert S3(bucket="calls", endpoint=endpoint).links_from == ""
