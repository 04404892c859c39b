"""The Dockerfile, as far as it can be known without building it, and what it puts beside us."""

import json
import os
import re
import runpy
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import pytest

from deploy import cpu_torch
from deploy.locked import locked
from offhook.pipeline.speech.engines import all_specs
from offhook.web.app.cli import main as cli
from tests.deploy.servers import DEPLOY, ROOT
from tests.support.waiting import HANGS_S

TEXT = (ROOT / "Dockerfile").read_text()
IMAGES = ("cpu", "cpu-engines", "cuda")
HEALTHY = DEPLOY / "container/healthy.py"


def instructions() -> Iterator[tuple[str, str, str]]:
    """Stage, instruction and arguments, in order."""
    lines = "\n".join(line for line in TEXT.splitlines() if not line.startswith("#"))
    stage = ""
    for line in lines.replace("\\\n", " ").splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "FROM":
            stage = rest.split(" AS ")[1]
        if instruction:
            yield stage, instruction, " ".join(rest.split())


STEPS = list(instructions())
BASES = {
    stage: rest.split(" AS ")[0] for stage, instruction, rest in STEPS if instruction == "FROM"
}


def line_of(stage: str) -> list[str]:
    """The stage and those it stands on."""
    return [stage, *line_of(BASES[stage])] if stage in BASES else []


def steps_of(stage: str, instruction: str) -> list[str]:
    return [rest for s, i, rest in STEPS if s in line_of(stage) and i == instruction]


def parts(image: str) -> dict[str, str]:
    """Entries of the lock that the image has."""
    (run,) = (rest for stage, i, rest in STEPS if (stage, i) == ("locks", "RUN"))
    (without, named) = re.findall(
        rf"locked.py (--without-torch )?([\w ]+) > /tmp/{image}\.lock", run
    )[0]
    return locked(*named.split(), torch=not without)


def test_what_is_copied_is_there_and_not_ignored() -> None:
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    for _, instruction, rest in STEPS:
        if instruction == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert any(source == path or source.startswith(f"{path}/") for path in kept)


@pytest.mark.parametrize("target", IMAGES)
def test_an_image_has_no_compiler_and_no_root(target: str) -> None:
    installed = " ".join(steps_of(target, "RUN"))
    assert not re.search(r"gcc|clang|-dev\b|build-essential|pip ", installed)
    assert steps_of(target, "USER") == ["10001:10001"]


@pytest.mark.parametrize("target", IMAGES)
def test_it_runs_as_process_one_and_is_asked_for_its_health(target: str) -> None:
    """Without a shell between, which would keep the signals to itself."""
    assert steps_of(target, "ENTRYPOINT") == ['["offhook"]']
    serves = {"cpu-engines": '["serve", "--engines", "auto"]'}.get(target, '["serve"]')
    assert steps_of(target, "CMD")[-1] == serves
    cli.parser().parse_args(json.loads(serves))
    (check,) = steps_of(target, "HEALTHCHECK")
    assert 'CMD ["python", "-m", "healthy", "http://localhost:7860/healthz"]' in check


def test_a_change_of_ours_leaves_the_packages_alone() -> None:
    """They come before the program, whose layer is the last."""
    for target in IMAGES:
        copies = steps_of(target, "COPY")
        own = [rest for rest in copies if rest.startswith("--from")]
        assert own[-1].startswith("--from=program")
    for stage in ("packages-cuda", "packages-cpu-engines"):
        packages = " ".join(steps_of(stage, "COPY"))
        assert "offhook" not in packages.replace("/opt/offhook", "")


def test_packages_are_locked_with_hashes_and_not_built() -> None:
    installs = [rest for _, i, rest in STEPS if i == "RUN" and " install --disable" in rest]
    assert len(installs) == 3
    for install in installs:
        assert "--no-deps --require-hashes --only-binary :all: -r /tmp/" in install
        assert "--mount=type=secret,id=pip,target=/etc/pip.conf" in install
    for entry in parts("cuda").values():
        assert re.match(r"\S+==\S+ .*\n    --hash=sha256:", entry)


def test_the_image_for_gpus_has_what_make_qwen_installs() -> None:
    """And the other one, and Redis; torch, too, of which `make qwen` takes another build."""
    assert locked("base", "qwen").items() <= parts("cuda").items()
    assert locked("base").items() <= parts("cpu").items() <= parts("cuda").items()
    assert {"redis", "torch", "triton", "nvidia-cublas"} <= parts("cuda").keys()
    assert "redis" in parts("cpu")


def test_the_image_with_engines_for_a_cpu_has_what_make_cpu_installs() -> None:
    """Its torch is one for CPUs, in the locked version, and all else is as locked."""
    there = parts("cpu-engines")
    assert locked("base", "qwen", torch=False).items() <= there.items()
    assert parts("cpu").items() <= there.items()
    assert {"sherpa-onnx", "sentencepiece", "tokenizers", "safetensors"} <= there.keys()
    assert not {"torch", "triton", "nvidia-cublas", "espeakng-loader"} & there.keys()
    needed = {spec.name: spec.packages for spec in all_specs()}
    for engine in ("sherpa", "nemotron", "pocket"):
        packages = {name.replace("_", "-") for name in needed[engine]} - {"torch"}
        assert packages <= there.keys()
    (install,) = (rest for s, i, rest in STEPS if (s, i) == ("packages-cpu-engines", "RUN"))
    assert "PIP_PYTHON=/opt/offhook/bin/python" in install
    assert "PIP_CONSTRAINT=/tmp/versions.txt" in install
    assert "cpu_torch.py && python3 -m pip" in install  # which stops a build with CUDA


def test_the_versions_of_what_torch_needs_are_the_locks(tmp_path: Path) -> None:
    (run,) = (rest for stage, i, rest in STEPS if (stage, i) == ("locks", "RUN"))
    (script,) = re.findall(r"sed -n '(.+)' /tmp/locks/deploy/requirements.lock", run)
    lock = str(DEPLOY / "requirements.lock")
    done = subprocess.run(["sed", "-n", script, lock], capture_output=True, text=True, check=True)
    versions = done.stdout.splitlines()
    assert {f"torch=={cpu_torch.locked_version()}"} <= set(versions)
    named = {re.split("[=@ ]", line)[0] for line in versions if not line.startswith(" ")}
    assert named == locked_names()


def locked_names() -> set[str]:
    return set(
        re.findall(r"^([\w.-]+)==", (DEPLOY / "requirements.lock").read_text(), re.MULTILINE)
    )


def test_pip_installs_into_the_environment_that_it_is_told(tmp_path: Path) -> None:
    """An environment without a pip of its own, as the image's, through PIP_PYTHON."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "v"], check=True)
    told = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "list", "--format=json"],
        env={**os.environ, "PIP_PYTHON": str(tmp_path / "v/bin/python"), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(told.stdout) == []


def test_no_engine_in_the_image_would_use_flash_attention() -> None:
    """Or it would have to be there. The packages of the models' authors would; they are not."""
    assert not {"qwen-asr", "qwen-tts", "transformers"} & parts("cuda").keys()
    for file in (ROOT / "offhook/pipeline").rglob("*.py"):
        if file.parent.name != "official":
            assert not re.search(r"import flash_attn|flash_attention_2", file.read_text()), file


def test_threads_and_allocator_are_set() -> None:
    environment = " ".join(steps_of("cuda", "ENV"))
    for name in ("OMP", "MKL", "OPENBLAS"):
        assert f"{name}_NUM_THREADS=1" in environment
    assert "LD_PRELOAD=libjemalloc.so.2" in environment
    assert "background_thread:true" in environment
    assert "libjemalloc2" in " ".join(steps_of("cuda", "RUN"))


def test_packets_are_compiled_as_a_package_would_be() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (module,) = project["tool"]["setuptools"]["ext-modules"]
    folder = ROOT / "offhook/media/native"
    assert {*module["sources"]} == {str(file.relative_to(ROOT)) for file in folder.glob("*.c")}
    (compile_,) = (rest for stage, _, rest in STEPS if stage == "native" and "-shared" in rest)
    macros = [f"-D{name}={value}" for name, value in module["define-macros"]]
    assert {*module["extra-compile-args"], *macros} <= {*compile_.split()}
    assert any("_native.abi3.so" in copy for copy in steps_of("program", "COPY"))


# --- healthy ---


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path in ("/readyz", "/healthz") else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def address_string(self) -> str:
        return ""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def healthy(url: str) -> tuple[int, str]:
    command = [sys.executable, "-S", str(HEALTHY), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S)
    return done.returncode, done.stderr


def test_healthy_says_yes_to_200_alone(port: int) -> None:
    assert healthy(f"http://127.0.0.1:{port}/readyz") == (0, "")
    assert healthy(f"http://127.0.0.1:{port}/other")[0] == 1


def test_healthy_says_why_not(port: int) -> None:
    assert "503" in healthy(f"http://127.0.0.1:{port}/other")[1]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        code, why = healthy(f"http://127.0.0.1:{taken.getsockname()[1]}/readyz")
    assert code == 1
    assert "refused" in why


def test_healthy_asks_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with ThreadingUnixStreamServer(str(path), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert healthy(f"unix:{path}") == (0, "")
        server.shutdown()
    assert healthy(f"unix:{path}")[0] == 1


def test_healthy_gives_up_on_a_server_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert healthy(f"http://127.0.0.1:{silent.getsockname()[1]}/readyz")[0] == 1


# --- Triton's module ---


def test_tritons_module_is_put_where_it_is_missing(tmp_path: Path) -> None:
    """In a new folder, and in one that another version's image has filled."""
    module, cache = tmp_path / "module", tmp_path / "cache"
    (module / "KEY").mkdir(parents=True)
    (module / "KEY/cuda_utils.so").write_bytes(b"new")
    (cache / "OTHER").mkdir(parents=True)
    (cache / "OTHER/cuda_utils.so").write_bytes(b"old")
    provide = runpy.run_path(str(DEPLOY / "container/offhook"))["provide"]
    for _ in range(2):
        provide(module, cache)
    found = {str(file.relative_to(cache)): file.read_bytes() for file in cache.rglob("*.*")}
    assert found == {"KEY/cuda_utils.so": b"new", "OTHER/cuda_utils.so": b"old"}
