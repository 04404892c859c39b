"""Pocket TTS against the package of its authors: the same weights, noise and text make the same
latents and sound."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
pocket_tts = pytest.importorskip("pocket_tts")
pytest.importorskip("sentencepiece")

import yaml  # noqa: E402

from offhook.pipeline.engines.pocket.model.checkpoint import load_model  # noqa: E402
from offhook.pipeline.engines.pocket.model.config import CONFIGS  # noqa: E402
from offhook.pipeline.engines.pocket.runner import LOUDEST, PocketRunner  # noqa: E402
from tests.support import pocket_checkpoint  # noqa: E402
from tests.support.pocket_checkpoint import LATENT, PIECES, RATIOS, tiny_of  # noqa: E402

torch.set_num_threads(1)

PUBLISHED = Path(pocket_tts.__file__).parent / "config"
TEXTS = {None: "hello there, how are you today", -10.0: "hello"}
"""By the logit of the end: clauses that end, and that are cut."""
CLOSE = 2e-4
"""Difference of latents and samples around 1, after some thirty frames of float errors."""


def published(name: str) -> dict[str, Any]:
    settings: dict[str, Any] = yaml.safe_load((PUBLISHED / f"{name}.yaml").read_text("utf-8"))
    return settings


def config(name: str, folder: Path, path: Path) -> Path:
    """Writes the package's configuration of a tiny checkpoint: that of the published one with
    other sizes."""
    tiny, c = tiny_of(name), published(name)
    lm, mimi = c["flow_lm"], c["mimi"]
    c["weights_path"] = str(folder / "model.safetensors")
    c.pop("weights_path_without_voice_cloning")
    lm["flow"].update(dim=tiny.flow, depth=tiny.depth)
    lm["transformer"].update(
        d_model=tiny.width,
        num_heads=tiny.queries // 64,
        num_kv_heads=tiny.kv // 64,
        attn_dim=tiny.queries,
        num_layers=tiny.layers,
        dim_feedforward=tiny.ffn,
    )
    files = [folder / "tokenizer.json", folder / "tokenizer.model"]
    lm["lookup_table"].update(
        dim=tiny.width,
        n_bins=PIECES,
        rank=tiny.rank or None,
        tokenizer_path=str(next(file for file in files if file.exists())),
    )
    if tiny.bottleneck:
        lm["z_dim"] = tiny.bottleneck
    mimi.update(inner_dim=LATENT, outer_dim=tiny.decoder)
    mimi["quantizer"]["output_dimension"] = tiny.decoder
    sizes = {"input_dimension": tiny.decoder, "output_dimensions": [tiny.decoder]}
    sizes |= {"d_model": tiny.decoder, "dim_feedforward": 2 * tiny.decoder}
    encoder = mimi["transformer"] | sizes | {"num_layers": 1, "num_heads": 1}
    decoder = (mimi.get("decoder_transformer") or mimi["transformer"]) | sizes
    decoder |= {"num_layers": tiny.decoder_layers}
    decoder["num_heads"] = tiny.decoder // CONFIGS[name].decoder_head_size
    of_sound = {"dimension": tiny.decoder, "n_filters": tiny.filters}
    mimi["decoder_seanet"] = (mimi.get("decoder_seanet") or mimi["seanet"]) | of_sound
    mimi["seanet"] |= of_sound | {"ratios": list(RATIOS)}
    mimi["transformer"], mimi["decoder_transformer"] = encoder, decoder
    path.write_text(yaml.safe_dump(c), "utf-8")
    return path


def drawn(noise: Any) -> Callable[..., Any]:
    """Returns a stand-in for torch.nn.init.normal_ that gives the noise a frame at a time; the
    package draws once more while it reads the text."""
    rows = iter([torch.zeros(LATENT), *noise])

    def normal_(tensor: Any, mean: float = 0.0, std: float = 1.0) -> Any:
        return tensor.copy_(next(rows) * std)

    return normal_


def theirs(
    path: Path, voice: Path, text: str, noise: Any, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, np.ndarray]:
    """Returns the package's latents and samples of a text."""
    model = pocket_tts.TTSModel.load_model(config=path)
    model.max_decoder_frames_per_call = 1
    latents = []
    decode = model.mimi.decode_from_latent

    def listening(latent: Any, state: Any) -> Any:
        latents.append(latent[0, 0])
        return decode(latent, state)

    monkeypatch.setattr(model.mimi, "decode_from_latent", listening)
    monkeypatch.setattr(torch.nn.init, "normal_", drawn(noise))
    state = model.get_state_for_audio_prompt(voice)
    sound = model.generate_audio(state, text).numpy()
    deviation, mean = model.flow_lm.emb_std, model.flow_lm.emb_mean
    return (torch.stack(latents) - mean) / deviation, sound


@pytest.mark.parametrize(
    "name",
    [
        "english",
        "english_7m_2026-10",
        "english_2m_refl_2026-10",
        pytest.param("english_18m_refl_2026-10", marks=pytest.mark.slow),
        pytest.param("french_24l", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("end_logit", TEXTS, ids=["ends", "is cut"])
def test_latents_and_sound_are_those_of_the_package(
    tmp_path: Path, name: str, end_logit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pocket_checkpoint.write(tmp_path, name, end_logit=end_logit)
    model = load_model(folder)
    runner = PocketRunner(model, rows=2)
    tokens = model.tokenizer.encode(TEXTS[end_logit])
    runner.begin(1, model.voice("marius"), tokens, seed=7)
    noise = runner._noise[1] / CONFIGS[name].temperature ** 0.5
    latents, sound = [], []
    ended = False
    while not ended:
        ((pcm, ended),) = runner.step([1])
        latents.append(runner._latents[1].clone())
        sound.append(pcm)
    voice = folder / "embeddings/marius.safetensors"
    path = config(name, folder, tmp_path / "config.yaml")
    wanted, samples = theirs(path, voice, TEXTS[end_logit], noise, monkeypatch)
    assert len(latents) == len(wanted)
    rings = len(wanted) / runner._decoder.ring_frames
    assert end_logit is None or rings > 2  # keys and values are written over
    assert (torch.stack(latents) - wanted).abs().max() < CLOSE
    expected = np.clip(samples, -1, 1) * LOUDEST
    assert np.abs(np.concatenate(sound) - expected).max() < 1 + CLOSE * LOUDEST
