"""Smart Turn for batches on a GPU: the probability that a caller's turn ends with its audio.

It computes the graph that `speech.vad.smart_turn_io` runs in ONNX Runtime, with the roundings to 8
bits of that file: without them it decides otherwise about one recorded sentence in ten
(`offhook bench recorded_turns --compare`).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.shared.model.mel import WINDOW, LogMel, scale
from offhook.pipeline.engines.shared.model.onnx_program import OnnxProgram
from offhook.pipeline.speech.vad.smart_turn_io import FRAMES, MELS, SAMPLES, model_file


class SmartTurnModel:
    """The model on a device. Raises OSError if its file is missing, ValueError if it holds another
    network."""

    def __init__(self, device: torch.device) -> None:
        ends = ("input_features", "logits")
        self._program = OnnxProgram(model_file().read_bytes(), ends, device, torch.float32)
        self._mel = LogMel(device, MELS)

    def probabilities(self, pcm: Tensor) -> Tensor:
        """Returns fp32 [N] for int16 [N, SAMPLES], both on the device."""
        return self._program(self.features(pcm))[:, 0]

    def features(self, pcm: Tensor) -> Tensor:
        """Returns what `smart_turn_io.log_mel` does, fp32 [N, MELS, FRAMES]."""
        sound = pcm.float() / 32768
        variance, mean = torch.var_mean(sound, 1, correction=0, keepdim=True)
        sound = (sound - mean) * (variance + 1e-7).rsqrt()
        half = WINDOW // 2
        padded = F.pad(sound[:, None], (half, half), mode="reflect")[:, 0]
        mel = self._mel(padded)[:, :, :FRAMES]
        return scale(mel, mel.amax((1, 2)))


def fill(rows: npt.NDArray[np.int16], questions: Sequence[Pcm]) -> None:
    """Puts the last SAMPLES of each audio into a row of zeros."""
    for row, pcm in zip(rows, questions, strict=False):
        heard = pcm[-SAMPLES:]
        row[SAMPLES - len(heard) :] = heard
