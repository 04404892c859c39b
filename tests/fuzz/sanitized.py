"""`python -m tests.fuzz.sanitized MODULE …`: a fuzzer, or pytest, with the compiled path of packets
built under AddressSanitizer and UndefinedBehaviorSanitizer. The process ends at a finding.

    python -m tests.fuzz.sanitized tests.fuzz.packets --packets 10000000
    python -m tests.fuzz.sanitized pytest tests/media/native
"""

import os
import runpy
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = "offhook.media.native._native"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")
ENVIRONMENT = {
    # Python itself frees little at its end; its own allocator would hide what is out of bounds.
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "PYTHONMALLOC": "malloc",
}


def build(folder: Path, compiler: str = "cc") -> Path:
    """Compiles the module into `folder`. Raises OSError or CalledProcessError if that cannot be
    done here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (module,) = project["tool"]["setuptools"]["ext-modules"]
    made = folder / "_native.abi3.so"
    subprocess.run(
        [
            compiler,
            *SANITIZERS,
            *(flag for flag in module["extra-compile-args"] if not flag.startswith("-O")),
            *(f"-D{name}={value}" for name, value in module["define-macros"]),
            *("-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", "-o", str(made)),
            *(str(ROOT / source) for source in module["sources"]),
            "-lm",
        ],
        check=True,
    )
    return made


def environment(compiler: str = "cc") -> dict[str, str]:
    """For Python, which is not built with the sanitizers, to load what is. Raises OSError."""
    query = [compiler, "-print-file-name=libasan.so"]
    library = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(library).is_absolute():
        raise OSError("no AddressSanitizer here")
    return {**os.environ, **ENVIRONMENT, "LD_PRELOAD": library}


def run(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        made = build(Path(folder))
        command = [sys.executable, "-m", "tests.fuzz.sanitized", "--inside", str(made), *arguments]
        return subprocess.run(command, env=environment(), check=False).returncode


def inside(made: str, module: str, *arguments: str) -> None:
    loader = ExtensionFileLoader(NAME, made)
    spec = spec_from_file_location(NAME, made, loader=loader)
    assert spec is not None
    sys.modules[NAME] = module_from_spec(spec)
    loader.exec_module(sys.modules[NAME])
    from offhook.media import native

    assert native.used
    assert native.Fir is sys.modules[NAME].Fir
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(*sys.argv[2:])
    else:
        sys.exit(run(sys.argv[1:]))
