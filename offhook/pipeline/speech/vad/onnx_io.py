"""Runs ONNX models, such as those shipped with pipecat-ai, each on one CPU thread."""

import os
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from offhook.pipeline.speech.vad.onnx_graph import unfused

if TYPE_CHECKING:
    import onnxruntime

# ONNX Runtime sends telemetry to Microsoft unless disabled before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

CPU_INFO = Path("/proc/cpuinfo")


def cpu_flags() -> frozenset[str] | None:
    """Returns Linux's names of the CPU's capabilities, such as "avx2"; None where the system does
    not list them."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return None
    found = (line.partition(":")[2].split() for line in lines if line.startswith("flags"))
    return frozenset(next(found, ())) or None


def package_file(package: str, path: str) -> Path:
    """Returns the file at `path` in a Python package, which is not imported if it is a top-level
    one. Raises OSError if it is missing."""
    found = find_spec(package)
    folders = (found and found.submodule_search_locations) or [""]
    file = Path(folders[0], path)
    if not file.exists():
        raise OSError(f"{file.name} not found: it comes inside the package pipecat-ai")
    return file


class OnnxModel:
    """The model in a file, loaded by `load` or by its first run.

    The operator `unfused` is not fused with the quantization around it."""

    def __init__(self, path: Path, unfused: str = "", **settings: str) -> None:
        import onnxruntime

        self._path = path
        self._unfused = unfused
        self._options = onnxruntime.SessionOptions()
        # More threads do not speed up such small models and take cores from the calls.
        self._options.intra_op_num_threads = 1
        self._options.inter_op_num_threads = 1
        # The arena would keep the most that was ever needed at once, in blocks that double: 29 MB
        # for Silero and Smart Turn. A run takes no longer without it.
        self._options.enable_cpu_mem_arena = False
        self._options.log_severity_level = 4  # errors are raised
        for name, value in settings.items():
            self._options.add_session_config_entry(f"session.{name}", value)
        self._session: onnxruntime.InferenceSession | None = None
        self._loading = threading.Lock()

    def load(self) -> "onnxruntime.InferenceSession":
        """Loads the model if needed, in up to a tenth of a second, during which other threads
        run."""
        import onnxruntime

        with self._loading:
            if self._session is None:
                model: Path | bytes = self._path
                if self._unfused:
                    model = unfused(self._path.read_bytes(), self._unfused)
                self._session = onnxruntime.InferenceSession(
                    model, self._options, providers=["CPUExecutionProvider"]
                )
        return self._session

    def run(
        self, inputs: Mapping[str, object], outputs: Sequence[str] | None = None
    ) -> list[npt.NDArray[np.float32]]:
        """Runs the model and returns these outputs, or all in order."""
        found: list[npt.NDArray[np.float32]] = (self._session or self.load()).run(outputs, inputs)
        return found
