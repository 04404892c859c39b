"""Runs the ONNX models shipped with pipecat-ai, each on one CPU thread."""

import os
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import onnxruntime

# ONNX Runtime sends telemetry to Microsoft unless disabled before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


class OnnxModel:
    """The model in `file` of the Python package `package`, loaded by `load` or by its first run.
    Raises OSError if it is missing."""

    def __init__(self, package: str, file: str, **settings: str) -> None:
        import onnxruntime

        found = find_spec(package)
        folders = (found and found.submodule_search_locations) or [""]
        self._path = Path(folders[0], file)
        if not self._path.exists():
            raise OSError(f"{file} not found: it comes inside the package pipecat-ai")
        self._options = onnxruntime.SessionOptions()
        # More threads do not speed up such small models and take cores from the calls.
        self._options.intra_op_num_threads = 1
        self._options.inter_op_num_threads = 1
        # The arena would keep the most that was ever needed at once, in blocks that double: 29 MB
        # for Silero and Smart Turn. A run takes no longer without it.
        self._options.enable_cpu_mem_arena = False
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
                self._session = onnxruntime.InferenceSession(
                    self._path, self._options, providers=["CPUExecutionProvider"]
                )
        return self._session

    def run(self, inputs: Mapping[str, object]) -> list[npt.NDArray[np.float32]]:
        """Runs the model and returns its outputs in order."""
        outputs: list[npt.NDArray[np.float32]] = (self._session or self.load()).run(None, inputs)
        return outputs
