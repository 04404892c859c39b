"""Loads Qwen3-TTS from a checkpoint (see `hub_io.find`): configuration, talker and predictor.

Other parts are loaded elsewhere with `checkpoint.fill`: the codec in the folder `speech_tokenizer`
by `codec` and `speech_encoder`, and the `speaker_encoder.` of a base model by `speaker_encoder`.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offhook.pipeline.engines.hub.hub_io import Progress
from offhook.pipeline.engines.qwen3_tts.model.config import TtsConfig
from offhook.pipeline.engines.qwen3_tts.model.model import Qwen3Tts
from offhook.pipeline.engines.shared.model import checkpoint
from offhook.pipeline.engines.shared.qwen3.body import Body
from offhook.pipeline.engines.shared.qwen3.linear import Linear
from offhook.pipeline.speech.errors import EngineError

PREFIX = "talker."
TEXT = "talker.model.text_embedding.weight"
TEXT_ROWS = 4096
"""Text embeddings projected at a time."""


def read_config(folder: Path) -> TtsConfig:
    """Reads the configuration. Raises EngineError if a file is missing, damaged, or of another
    model."""
    generation = folder / "generation_config.json"
    return TtsConfig.from_json(
        checkpoint.read_json(folder / "config.json"),
        checkpoint.read_json(generation) if generation.is_file() else None,
    )


def load_model(
    folder: Path,
    device: torch.device | str,
    dtype: torch.dtype,
    progress: Progress = lambda done, total: None,
) -> Qwen3Tts:
    """Loads a model for inference. `progress` is called with (done, total) for the text embeddings,
    which take longest. Raises EngineError naming the tensors if the checkpoint is incomplete or
    does not match config.json."""
    config = read_config(folder)
    model = checkpoint.build(lambda: Qwen3Tts(config), device, dtype)
    text = checkpoint.build(lambda: TextProjection(config), device, dtype)
    places = dict([*_places(model), *_text_places(text)])
    checkpoint.fill(folder, places, lambda name: name.startswith(PREFIX) and name != TEXT)
    _project_text(folder, text, model.text, progress)
    model.project()
    return model


def random_model(
    config: TtsConfig, device: torch.device | str, dtype: torch.dtype, seed: int = 0
) -> Qwen3Tts:
    """Returns a model with random weights at the real cost, for benchmarks; its output is
    meaningless."""
    model = checkpoint.build(lambda: Qwen3Tts(config), device, dtype)
    checkpoint.randomise(model, device, seed)
    first, others = model.cut(model.embeddings)
    first[-1] = 0
    others[:, -1] = 0
    model.project()
    return model


class TextProjection(nn.Module):
    """Projects text embeddings to the talker's width; used only while loading."""

    def __init__(self, config: TtsConfig) -> None:
        super().__init__()
        self.fc1 = Linear(config.text_hidden, config.text_hidden)
        self.fc2 = Linear(config.text_hidden, config.talker.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [T, text_hidden] to [T, hidden_size]."""
        y: Tensor = self.fc2(F.silu(self.fc1(x)))
        return y


def _project_text(folder: Path, text: TextProjection, out: Tensor, progress: Progress) -> None:
    path = checkpoint.find_tensors(folder).get(TEXT)
    if path is None:
        raise EngineError(f"the checkpoint {folder} lacks tensors: {TEXT}")
    weight = text.fc1.weight
    with checkpoint.opened(path) as file:
        rows = file.get_slice(TEXT)
        wanted = (len(out), weight.shape[1])
        checkpoint.check_tensor(path, TEXT, rows.get_shape(), rows[:1].dtype, wanted)
        for start in range(0, len(out), TEXT_ROWS):
            some = rows[start : start + TEXT_ROWS].to(weight)
            out[start : start + TEXT_ROWS] = text(some)
            progress(min(start + TEXT_ROWS, len(out)), len(out))


def _places(model: Qwen3Tts) -> Iterator[tuple[str, Tensor]]:
    """Yields each tensor's destination."""
    first, others = model.cut(model.embeddings)
    yield "talker.model.codec_embedding.weight", first[:-1]
    yield from _body("talker.model", model.talker)
    yield "talker.codec_head.weight", model.head
    predictor = "talker.code_predictor"
    yield from _body(f"{predictor}.model", model.predictor)
    for i, (embedding, head) in enumerate(zip(others[:, :-1], model.heads, strict=True)):
        yield f"{predictor}.model.codec_embedding.{i}.weight", embedding
        yield f"{predictor}.lm_head.{i}.weight", head
    if model.projection is not None:
        yield from _both(f"{predictor}.small_to_mtp_projection", model.projection)


def _body(name: str, body: Body) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.norm.weight", body.norm
    for i, layer in enumerate(body.layers):
        yield from checkpoint.layer_places(f"{name}.layers.{i}", layer)


def _text_places(text: TextProjection) -> Iterator[tuple[str, Tensor]]:
    yield from _both("talker.text_projection.linear_fc1", text.fc1)
    yield from _both("talker.text_projection.linear_fc2", text.fc2)


def _both(name: str, layer: Linear) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.weight", layer.weight
    yield f"{name}.bias", layer.bias
