"""Models from a hub, against a stand-in for it: what comes, what goes wrong, and what is said."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub", minversion="1.0")  # older ones resume at the next start only
constants = pytest.importorskip("huggingface_hub.constants")

from offhook.pipeline.engines.hub import (  # noqa: E402
    download_io,
    hub_io,
    modelscope_io,
)
from offhook.pipeline.engines.hub.hub_io import MODELSCOPE, check, find, usual_revision  # noqa: E402
from offhook.pipeline.speech.engine_spec import PublishedModel  # noqa: E402
from offhook.pipeline.speech.engines import all_specs  # noqa: E402
from offhook.pipeline.speech.errors import EngineError  # noqa: E402
from tests.attack.hub import LIES, TOKEN, lying_mirror  # noqa: E402
from tests.support import hub_stand_in  # noqa: E402
from tests.support.hub_stand_in import COMMIT, Hub, proxy_to, running  # noqa: E402
from tests.telephony.sip.phones import write_certificate  # noqa: E402

WEIGHTS = os.urandom(300_000)
FILES = {
    "config.json": b'{"model_type": "qwen3_asr"}',
    "model.safetensors": WEIGHTS,
    "speech_tokenizer/config.json": b"{}",
    "merges.txt": b"a b",
    "model.nemo": b"pickles" * 1000,
    "README.md": b"words",
}
LICENCE = "asks for its licence to be accepted: do so at http.*/org/model, and set HF_TOKEN"
HARMLESS = {"files led elsewhere", "a redirect without an end"}
"""What is done by honest hubs too, and what costs nothing: bodies of redirects are not read."""
NEEDED = {name for name in FILES if not name.endswith((".nemo", ".md"))}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(download_io, "CHUNK_BYTES", 50_000)
    monkeypatch.setattr(download_io, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "modelscope"))
    with running(Hub(dict(FILES))) as hub:
        monkeypatch.setattr(modelscope_io, "SITE", hub.url)
        yield hub


@pytest.fixture(params=["hugging face", MODELSCOPE])
def source(request: pytest.FixtureRequest, hub: Hub) -> str:
    """What `find` is told."""
    return MODELSCOPE if request.param == MODELSCOPE else hub.url


def come(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (modelscope_io.LISTING, modelscope_io.LOCK)
    }


def refusal(model: str, source: str) -> str:
    with pytest.raises(EngineError) as error:
        find(model, hub=source)
    return str(error.value)


def files_asked(hub: Hub) -> int:
    return sum("/resolve/" in path or path.endswith("/repo") for path, _ in hub.asked)


# --- what comes ---


def test_what_is_needed_comes_once(hub: Hub, source: str) -> None:
    told: list[tuple[int, int]] = []
    folder = find("org/model", lambda done, total: told.append((done, total)), source)
    assert come(folder) == {name: FILES[name] for name in NEEDED}
    size = sum(len(FILES[name]) for name in NEEDED)
    assert told[-1] == (size, size)
    hub.asked.clear()
    assert find("org/model", hub=source) == folder
    assert not any("resolve" in path or path.endswith("/repo") for path, _ in hub.asked)


def test_a_caller_names_the_files_it_wants(hub: Hub, source: str) -> None:
    hub.files |= {"languages/english/model.safetensors": b"en", "languages/german/a.onnx": b"de"}
    folder = find("org/model", hub=source, files=("languages/english/*",))
    assert come(folder) == {"languages/english/model.safetensors": b"en"}
    find("org/model", hub=source, files=("*.onnx", "merges.txt"))
    assert come(folder).keys() == {
        "languages/english/model.safetensors",
        "languages/german/a.onnx",
        "merges.txt",
    }


def test_a_download_that_broke_off_goes_on_where_it_was(hub: Hub, source: str) -> None:
    hub.cut["model.safetensors"] = 100_000
    assert come(find("org/model", hub=source))["model.safetensors"] == WEIGHTS
    assert [wanted for _, wanted in hub.asked if wanted] == ["bytes=100000-"]


def test_a_revision_is_a_branch_or_a_commit(hub: Hub, source: str) -> None:
    branch = "master" if source == MODELSCOPE else "main"
    for revision in (branch, COMMIT):
        assert come(find(f"org/model@{revision}", hub=source)).keys() == NEEDED
    assert "revision v9" in refusal("org/model@v9", source)


def pin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishes org/model."""
    licence, name = "Apache-2.0", "org/model"
    model = PublishedModel(name, "mine", "asr", (), licence, COMMIT, None, name)
    monkeypatch.setattr(hub_io, "catalogue", lambda: (model,))


def test_models_come_in_the_commit_they_were_tested_with(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model in (spec.model for spec in all_specs() if spec.model):
        assert "/" not in model or len(usual_revision(model)) == 40
    pin(monkeypatch)
    find("org/model", hub=hub.url)
    assert not any(path.endswith("/main") for path, _ in hub.asked)
    assert "has no revision v9" in refusal("org/model@v9", hub.url)


# --- what goes wrong ---


def test_a_damaged_file_is_removed_and_comes_anew(hub: Hub, source: str) -> None:
    hub.damaged = {"model.safetensors"}
    said = refusal("org/model", source)
    assert "model.safetensors of org/model came damaged" in said
    assert "by the next attempt" in said
    hub.damaged = set()
    assert come(find("org/model", hub=source))["model.safetensors"] == WEIGHTS


def test_a_small_file_is_looked_at_too(hub: Hub, source: str) -> None:
    hub.damaged = {"config.json"}
    assert "config.json of org/model came damaged" in refusal("org/model", source)


@pytest.mark.parametrize(
    ("status", "code", "files", "says"),
    [
        (401, "GatedRepo", False, LICENCE),
        (403, "GatedRepo", False, LICENCE),
        (403, "GatedRepo", True, LICENCE),
        (401, "RepoNotFound", False, "no model org/model.* a private one needs HF_TOKEN"),
        (403, "", False, "refuses org/model: .*/org/model .* HF_TOKEN to a valid"),
        (403, "", True, "refuses org/model: .*/org/model .* HF_TOKEN to a valid"),
        (500, "", False, "org/model is not on this machine.* hub answers with status 500"),
    ],
)
def test_what_the_hub_refuses_is_said(
    hub: Hub, status: int, code: str, files: bool, says: str
) -> None:
    hub.refuses, hub.refuses_files = (status, code), files
    with pytest.raises(EngineError, match=says):
        find("org/model", hub=hub.url)


@pytest.mark.parametrize(
    ("status", "says"),
    [(403, "does not give org/model to everybody"), (500, "has failed")],
)
def test_what_modelscope_refuses_is_said(hub: Hub, status: int, says: str) -> None:
    hub.refuses = (status, "")
    with pytest.raises(EngineError, match=says):
        find("org/model", hub=MODELSCOPE)


def test_a_model_that_is_not_there_is_named(source: str) -> None:
    assert "has no model org/other" in refusal("org/other", source)
    assert "has no model Org/other" in refusal("Org/other", source)


def test_a_file_that_comes_damaged_once_is_fetched_again(hub: Hub, source: str) -> None:
    hub.damaged_once = {"model.safetensors"}
    assert come(find("org/model", hub=source))["model.safetensors"] == WEIGHTS


def test_a_file_damaged_on_the_disk_is_fetched_again(hub: Hub, source: str) -> None:
    path = find("org/model", hub=source) / "model.safetensors"
    path.write_bytes(WEIGHTS[::-1])
    os.utime(path, (1, 1))
    assert come(find("org/model", hub=source))["model.safetensors"] == WEIGHTS
    path.write_bytes(WEIGHTS[:1000])
    assert come(find("org/model", hub=source))["model.safetensors"] == WEIGHTS


def test_what_was_checked_is_not_read_again(
    hub: Hub, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gigabytes would be, at each start."""
    find("org/model", hub=source)
    monkeypatch.setattr(download_io, "_has_hash", lambda *of: pytest.fail("it is read"))
    find("org/model", hub=source)


def test_a_pinned_model_that_is_here_asks_nothing(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin(monkeypatch)
    folder = find("org/model", hub=hub.url)
    hub.asked.clear()
    assert find("org/model", hub=hub.url) == folder
    assert not hub.asked


def test_what_another_program_has_cached_is_checked_once(hub: Hub) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    there = huggingface_hub.snapshot_download("org/model", endpoint=hub.url)
    blob = (Path(there) / "model.safetensors").resolve()
    blob.write_bytes(WEIGHTS[::-1])
    hub.asked.clear()
    folder = find("org/model", hub=hub.url)
    assert str(folder) == there
    assert come(folder)["model.safetensors"] == WEIGHTS
    fetched = [path for path, _ in hub.asked if "/resolve/" in path]
    assert fetched == [f"/org/model/resolve/{COMMIT}/model.safetensors"]


def test_a_busy_hub_is_asked_again(hub: Hub) -> None:
    hub.busy = [503, 429]
    hub.busy_files = [429, 500]
    assert come(find("org/model", hub=hub.url)).keys() == NEEDED


def test_a_hub_that_stays_busy_is_given_up(hub: Hub) -> None:
    hub.busy_files = [503] * 100
    said = refusal("org/model", hub.url)
    assert "could not be downloaded: the hub answers with status 503" in said
    assert "What has come is kept" in said
    assert len(hub.busy_files) == 100 - download_io.ATTEMPTS


def test_a_network_that_goes_in_the_middle_is_told_from_a_hub_that_fails(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_io, "FIRST_PAUSE_S", 0.001)
    hub.refuses, hub.refuses_files = (404, ""), True
    with pytest.raises(EngineError) as refused:
        find("org/model", hub=hub.url)
    assert refused.value.fault == "failed"
    with pytest.raises(EngineError) as gone:
        find("org/model", hub="http://127.0.0.1:9")
    assert gone.value.fault == "unreachable"
    hub.refuses_files = False
    hub.refuses = (0, "")
    hub.leads_files_to = "http://127.0.0.1:9"
    with pytest.raises(EngineError) as lost:
        find("org/model", hub=hub.url)
    assert lost.value.fault == "unreachable"


def test_a_hub_that_cannot_resume_sends_all_again(hub: Hub, source: str) -> None:
    hub.resumes = False
    hub.cut["model.safetensors"] = 100_000
    assert come(find("org/model", hub=source))["model.safetensors"] == WEIGHTS


def test_room_on_the_disk_is_looked_at_first(
    hub: Hub, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = namedtuple("space", "free")(64_200_000)
    monkeypatch.setattr(download_io.shutil, "disk_usage", lambda folder: space)
    said = refusal("org/model", source)
    assert "needs 300 kB on the disk, and 64 MB must stay free" in said
    assert f"the disk of {tmp_path}" in said
    assert "has 64 MB: make room, or set" in said
    assert not files_asked(hub)


def test_a_disk_that_becomes_full_keeps_what_has_come(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_io, "MARGIN_BYTES", 0)
    hub.files["model.safetensors"] = os.urandom(2_000_000)
    with small_disk(tmp_path / "small", 1_500_000) as disk:
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(disk))
        usage = download_io.shutil.disk_usage
        roomy = namedtuple("roomy", "free")(10**9)  # as it looked before others filled the disk
        monkeypatch.setattr(download_io.shutil, "disk_usage", lambda folder: roomy)
        said = refusal("org/model", hub.url)
        assert f"the disk of {disk}" in said
        assert "is full" in said
        assert "What has come is kept: make room and start again" in said
        monkeypatch.setattr(download_io.shutil, "disk_usage", usage)
        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        hub.asked.clear()
        assert come(find("org/model", hub=hub.url)).keys() == NEEDED
        begins = [int(r[6:-1]) for path, r in hub.asked if r and "model.safetensors" in path]
        assert begins
        assert begins[0] > 1_000_000


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root mounts a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


# --- several processes ---


@contextmanager
def finding(hub: Hub, cache: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that downloads the model."""
    script = "import sys; from offhook.pipeline.engines.hub.hub_io import find; find(sys.argv[1])"
    places = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache)}
    process = subprocess.Popen(
        [sys.executable, "-c", script, "org/model"], env={**os.environ, **places}
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for_part(cache: Path, size: int) -> Path:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for part in cache.rglob("*.incomplete"):
            with suppress(FileNotFoundError):  # a short file, which is complete by now
                if part.stat().st_size >= size:
                    return part
        time.sleep(0.02)
    pytest.fail("nothing came")


def test_a_download_goes_on_after_its_process_was_killed(hub: Hub, tmp_path: Path) -> None:
    weights = hub.files["model.safetensors"] = os.urandom(8 << 20)
    hub.stalls["model.safetensors"] = 4 << 20
    with finding(hub, tmp_path / "cache") as process:
        part = wait_for_part(tmp_path / "cache", 3 << 20)
        process.send_signal(signal.SIGKILL)
    have = part.stat().st_size
    hub.asked.clear()
    told: list[int] = []
    folder = find("org/model", lambda done, total: told.append(done), hub.url)
    assert come(folder)["model.safetensors"] == weights
    assert [wanted for path, wanted in hub.asked if path.endswith("model.safetensors")] == [
        f"bytes={have}-"
    ]
    assert have >= 3 << 20
    assert not list((tmp_path / "cache").rglob("*.incomplete"))


def test_two_processes_download_a_model_once(hub: Hub, tmp_path: Path) -> None:
    hub.files["model.safetensors"] = os.urandom(3 << 20)
    hub.bytes_per_second = 2 << 20
    told: list[int] = []
    with finding(hub, tmp_path / "cache") as process:
        wait_for_part(tmp_path / "cache", 1 << 20)
        folder = find("org/model", lambda done, total: told.append(done), hub.url)
        assert process.wait(60) == 0
    assert come(folder).keys() == NEEDED
    assert len([path for path, _ in hub.asked if path.endswith("model.safetensors")]) == 1
    assert told[0] >= 1 << 20  # of what the other process has


# --- mirrors, proxies, no network ---


def test_a_mirror_of_the_environment(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with finding(hub, tmp_path / "elsewhere") as process:  # by HF_ENDPOINT
        assert process.wait(60) == 0
    assert list((tmp_path / "elsewhere").rglob("model.safetensors"))


def test_a_proxy_is_used_and_left_aside(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    utils = pytest.importorskip("huggingface_hub.utils")
    with proxy_to(hub) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("NO_PROXY", "intern.example")
        monkeypatch.delenv("no_proxy", raising=False)
        utils.close_session()  # it has read the environment
        try:
            folder = find("org/model", hub="insecure+http://hub.example")
            assert come(folder).keys() == NEEDED
            assert proxy.asked
            assert set(proxy.asked) == {"hub.example"}
            proxy.asked.clear()
            with pytest.raises(EngineError, match=r"org/other.* cannot be reached"):
                find("org/other", hub="insecure+http://intern.example")
            assert not proxy.asked
        finally:
            utils.close_session()


def test_a_proxy_of_an_encrypted_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By CONNECT: as HTTPS_PROXY is used with every hub that is not of a test."""
    utils = pytest.importorskip("huggingface_hub.utils")
    certificate = write_certificate(tmp_path)
    with running(Hub(dict(FILES)), tls=certificate) as encrypted, proxy_to(encrypted) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        utils.close_session()
        try:
            assert come(find("org/model", hub=encrypted.url)).keys() == NEEDED
        finally:
            utils.close_session()
        assert set(proxy.asked) == {encrypted.url.removeprefix("https://")}


def test_a_proxy_that_is_not_there_is_said(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    utils = pytest.importorskip("huggingface_hub.utils")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setenv("http_proxy", nowhere)
    utils.close_session()
    try:
        assert "Connection refused" in refusal("org/model", "insecure+http://hub.example")
    finally:
        utils.close_session()


def test_without_the_hub_what_is_here_will_do(
    hub: Hub, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
    folder = find("org/model", hub=source)
    monkeypatch.setattr(modelscope_io, "SITE", nowhere)
    source = MODELSCOPE if source == MODELSCOPE else nowhere
    assert find("org/model", hub=source) == folder
    said = refusal("org/other", source)
    assert "org/other is not on this machine" in said
    assert "download it elsewhere and name its folder" in said


def test_without_the_hub_half_a_model_will_not_do(
    hub: Hub, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.damaged = {"model.safetensors"}
    refusal("org/model", source)
    hub.refuses = (500, "")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setattr(modelscope_io, "SITE", nowhere)
    source = MODELSCOPE if source == MODELSCOPE else nowhere
    assert "org/model is not on this machine, or not all of it" in refusal("org/model", source)


def test_offline_is_said(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    said = refusal("Qwen/Qwen3-ASR-0.6B", hub.url)
    assert "Qwen/Qwen3-ASR-0.6B is not on this machine" in said
    assert "HF_HUB_OFFLINE" in said


def test_offline_what_is_here_will_do(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files["languages/german/model.safetensors"] = b"de"
    folder = find("org/model", hub=hub.url, files=("*.json",))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.asked.clear()
    assert find("org/model", hub=hub.url, files=("*.json",)) == folder
    with pytest.raises(EngineError, match="or not all of it"):
        find("org/model", hub=hub.url, files=("languages/german/*",))
    assert not hub.asked


def test_a_hub_names_no_file_elsewhere(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files["../../escaped.json"] = b"{}"
    assert "outside of org/model" in refusal("org/model", hub.url)
    del hub.files["../../escaped.json"]
    monkeypatch.setattr(hub_stand_in, "digest_of", lambda data: "../../../escaped.json")
    assert "outside of org/model" in refusal("org/model", hub.url)
    assert not list(tmp_path.rglob("escaped.json"))


def test_a_mirror_writes_nothing_elsewhere(hub: Hub, tmp_path: Path) -> None:
    hub.files["../../escaped.json"] = b"{}"
    assert "outside of org/model" in refusal("org/model", MODELSCOPE)
    assert not list(tmp_path.rglob("escaped.json"))


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("source", ["hugging face", MODELSCOPE])
async def test_a_mirror_that_lies_gets_nothing(source: str, lie: str) -> None:
    got = await lying_mirror("", 60, lie=lie, hub=source)
    assert got == "the model came" or got.startswith("refused: ")
    for harm in ("written outside", "token went", "much memory", "were taken", "still busy"):
        assert harm not in got
    if source != MODELSCOPE:
        assert (got == "the model came") == (lie in HARMLESS)


def test_a_mirror_without_encryption_has_to_be_accepted(hub: Hub) -> None:
    for site in ("http://mirror.example", "http://127.0.0.1.example", "http://[::1]evil.example"):
        assert f'hub = "insecure+{site}"' in refusal("org/model", site)
    assert find("org/model", hub=f"insecure+{hub.url}").is_dir()


def test_a_token_goes_over_encrypted_ways_only(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    utils = pytest.importorskip("huggingface_hub.utils")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with proxy_to(hub) as proxy, monkeypatch.context() as proxied:
        proxied.setenv("http_proxy", proxy.url)
        utils.close_session()
        try:
            find("org/model", hub="insecure+http://hub.example")
        finally:
            utils.close_session()
    assert hub.tokens == {""}
    find(f"org/model@{COMMIT}", hub=hub.url, files=("README.md",))
    assert hub.tokens == {"", f"Bearer {TOKEN}"}


def test_a_list_that_goes_on_at_the_same_hub_is_read_on(hub: Hub) -> None:
    hub.page_files = 2
    assert come(find("org/model", hub=hub.url)).keys() == NEEDED
    assert sum("/tree/" in path for path, _ in hub.asked) == 3


def test_a_commit_kept_here_that_is_a_path_is_not_believed(hub: Hub, tmp_path: Path) -> None:
    ref = tmp_path / "cache" / "models--org--model" / "refs" / "main"
    ref.parent.mkdir(parents=True)
    ref.write_text("../../../../escaped")
    assert come(find("org/model", hub=hub.url)).keys() == NEEDED
    assert not list(tmp_path.parent.rglob("escaped*"))


def test_a_folder_is_found_as_it_is(tmp_path: Path) -> None:
    assert find(str(tmp_path)) == tmp_path
    with pytest.raises(EngineError, match="no folder"):
        find(str(tmp_path / "nowhere"))
    at = tmp_path / "model@home"
    at.mkdir()
    assert find(str(at)) == at


def test_what_modelscope_lists_badly_is_said(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "modelscope_listing", lambda self: json.loads('{"Code": 200}'))
    assert "no list of files" in refusal("org/model", MODELSCOPE)


def test_a_model_that_cannot_be_had_is_named_before_torch_is_imported(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
    for model, at, why in (
        ("org/model", nowhere, "cannot be reached"),
        ("org/none", hub.url, "the hub has no model org/none"),
        (str(tmp_path / "none"), hub.url, "there is no folder"),
    ):
        with pytest.raises(EngineError, match=why):
            check(model, at)
    check(str(tmp_path), nowhere)
    check("org/model", hub.url)
    find("org/model", hub=hub.url)
    check("org/model", nowhere)  # it is cached
