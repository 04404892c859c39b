"""The model against transformers' own Qwen3-ASR on a tiny random checkpoint, fp32 on the CPU."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from torch import Tensor  # noqa: E402

from offhook.media.pcm import Pcm  # noqa: E402
from offhook.pipeline.engines.qwen3_asr.model import checkpoint as asr_checkpoint  # noqa: E402
from offhook.pipeline.engines.qwen3_asr.model.model import Qwen3Asr  # noqa: E402
from offhook.pipeline.engines.shared.model import mel  # noqa: E402
from offhook.pipeline.engines.shared.qwen3.body import Batch, KVCache  # noqa: E402
from offhook.pipeline.engines.shared.qwen3.tokenizer import Tokenizer  # noqa: E402
from tests.pipeline.engines.shared.model import tiny  # noqa: E402
from tests.pipeline.engines.shared.model.test_mel import features, in_seconds, sound  # noqa: E402

torch.set_num_threads(1)
torch.set_grad_enabled(False)
CLOSE = {"atol": 2e-5, "rtol": 1e-5}
PAGE_SIZE = 16
WINDOW = tiny.CONFIG.encoder.window_tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_transformers(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Qwen3Asr:
    return asr_checkpoint.load_model(folder, "cpu", torch.float32)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    """Loaded from the same files; it must know every tensor in them and lack none."""
    kind = transformers.Qwen3ASRForConditionalGeneration
    model, loading = kind.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    assert not any(loading.values()), loading
    return model.eval()


def seconds(pcm: Pcm) -> tuple[Tensor, int]:
    """[N, 128, 100] as `convolve` takes them, clamped at the clip's maximum, and the frames."""
    log_mel = in_seconds(pcm)
    frames = log_mel.shape[1]
    scaled = mel.scale(log_mel[None], log_mel.max()[None])[0]
    padded = torch.nn.functional.pad(scaled, (0, -frames % 100))
    return padded.unflatten(1, (-1, 100)).transpose(0, 1), frames


def stem(model: Qwen3Asr, pcm: Pcm) -> Tensor:
    """[T, d_model]: the tokens of an utterance before the transformer."""
    mels, frames = seconds(mel.lengthen(pcm))
    return model.encoder.convolve(mels).flatten(0, 1)[: model.config.encoder.tokens(frames)]


def starts(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def windows(tokens: int) -> list[int]:
    return [min(WINDOW, tokens - at) for at in range(0, tokens, WINDOW)]


def hear(model: Qwen3Asr, pcm: Pcm) -> Tensor:
    x = stem(model, pcm)
    y: Tensor = model.encoder(x, starts(windows(len(x))), WINDOW)
    return y


# --- the encoder ---


@pytest.mark.parametrize(
    "length", [0.11, 0.5, 0.73, 1.0, 2.345, 7.999, 8.0, 8.01, 11.5, 16.0, 20.25]
)
def test_encoder_equals_the_reference(model: Qwen3Asr, reference: Any, length: float) -> None:
    pcm = sound(int(length * 16_000))
    inputs = features(pcm)
    theirs = reference.get_audio_features(inputs["input_features"], inputs["attention_mask"])
    torch.testing.assert_close(hear(model, pcm), theirs.pooler_output, **CLOSE)


def test_windows_of_several_clips_packed_equal_each_alone(model: Qwen3Asr) -> None:
    clips = [sound(int(s * 16_000), seed) for seed, s in enumerate((9.3, 0.6, 8.0, 3.21))]
    stems = [stem(model, pcm) for pcm in clips]
    lengths = [n for x in stems for n in windows(len(x))]
    padding = torch.full((7, stems[0].shape[1]), 3.0)
    together = model.encoder(torch.cat([*stems, padding]), starts(lengths), WINDOW)
    alone = torch.cat([hear(model, pcm) for pcm in clips])
    torch.testing.assert_close(together[: len(alone)], alone, **CLOSE)


def test_an_earlier_window_does_not_hear_a_later_one(model: Qwen3Asr) -> None:
    pcm = sound(200_000)
    quiet = pcm.copy()
    quiet[140_000:] = 0
    mels = (seconds(pcm)[0], seconds(quiet)[0])
    stems = [model.encoder.convolve(m).flatten(0, 1) for m in mels]
    a, b = (model.encoder(x, starts(windows(len(x))), WINDOW) for x in stems)
    assert torch.equal(a[:WINDOW], b[:WINDOW])
    assert not torch.allclose(a[WINDOW:], b[WINDOW:])


@settings(max_examples=15)
@given(samples=st.integers(8000, 60_000), data=st.data())
def test_any_split_gives_the_same_mel_and_stem(
    model: Qwen3Asr, samples: int, data: st.DataObject
) -> None:
    """Sound arrives in pieces; final seconds are kept, the rest is computed again each time."""
    pcm = sound(samples)
    ends = data.draw(st.sets(st.integers(8000, samples), max_size=4)) | {samples}
    maximum = in_seconds(pcm).max()[None]
    kept: list[Tensor] = []
    for end in sorted(ends):
        now = []
        for number in range(len(kept), -(-mel.frame_count(end) // 100)):
            segment, frames = mel.second(pcm[:end], number)
            log_mel = LOG_MEL(torch.from_numpy(segment / np.float32(32768))[None])
            scaled = mel.scale(log_mel, maximum)
            scaled[..., frames:] = 0
            now.append(model.encoder.convolve(scaled)[0])
        heard = [*kept, *now]
        kept = heard[: max(0, end - 40) // 16_000]
    tokens = model.config.encoder.tokens(mel.frame_count(samples))
    torch.testing.assert_close(torch.cat(heard)[:tokens], stem(model, pcm), atol=1e-4, rtol=0)


LOG_MEL = mel.LogMel()


def test_token_count_of_every_length(model: Qwen3Asr) -> None:
    from transformers.models.qwen3_asr.modeling_qwen3_asr import _get_feat_extract_output_lengths

    frames = torch.arange(1, 1700)
    ours = [model.config.encoder.tokens(n) for n in frames.tolist()]
    assert ours == _get_feat_extract_output_lengths(frames).tolist()


# --- the decoder ---


class Pages:
    """Sequences whose pages lie scattered in a cache."""

    def __init__(self, model: Qwen3Asr, sequences: int, length: int = 160, seed: int = 3) -> None:
        self.decoder = model.decoder
        per = -(-length // PAGE_SIZE)
        pages = 1 + sequences * per
        self.cache = KVCache(model.config.decoder, pages, PAGE_SIZE, "cpu", torch.float32)
        order = torch.randperm(pages - 1, generator=torch.Generator().manual_seed(seed)) + 1
        self.table = order.view(sequences, per).to(torch.int32)
        self.filled = [0] * sequences

    def forward(self, parts: Sequence[Tensor], padding: int = 0) -> list[Tensor]:
        """More tokens [n, hidden] of every sequence; what comes out for them."""
        counts = [len(x) for x in parts]
        at = [torch.arange(f, f + n) for f, n in zip(self.filled, counts, strict=True)]
        slots = [
            row[positions // PAGE_SIZE].long() * PAGE_SIZE + positions % PAGE_SIZE
            for row, positions in zip(self.table, at, strict=True)
        ]
        self.filled = [f + n for f, n in zip(self.filled, counts, strict=True)]
        scratch = torch.zeros(padding, dtype=torch.int64)
        batch = Batch(
            positions=torch.cat([*at, scratch]),
            slots=torch.cat([*slots, scratch]),
            page_table=self.table,
            q_starts=starts(counts),
            kv_lengths=torch.tensor(self.filled, dtype=torch.int32),
            max_q=max(counts),
        )
        x = torch.cat([*parts, torch.ones(padding, parts[0].shape[1])])
        out = self.decoder(x, batch, self.cache)
        return list(out[: sum(counts)].split(counts))


def ids_of(seed: int, count: int) -> Tensor:
    return torch.randint(
        0, tiny.VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)
    )


def test_logits_equal_the_reference(model: Qwen3Asr, reference: Any) -> None:
    ids = ids_of(0, 77)
    (hidden,) = Pages(model, 1).forward([model.decoder.embed(ids)])
    theirs = reference(input_ids=ids[None]).logits[0]
    torch.testing.assert_close(model.decoder.logits(hidden), theirs, atol=2e-4, rtol=1e-4)


def test_prefill_in_parts_equals_one(model: Qwen3Asr) -> None:
    x = model.decoder.embed(ids_of(1, 70))
    (whole,) = Pages(model, 1).forward([x])
    pages = Pages(model, 1)
    parts = [pages.forward([part])[0] for part in x.split([31, 1, 37, 1])]
    torch.testing.assert_close(torch.cat(parts), whole, **CLOSE)


def test_sequences_packed_equal_each_alone(model: Qwen3Asr) -> None:
    """Also where one has no tokens in a forward, and behind them there is padding."""
    xs = [model.decoder.embed(ids_of(seed, n)) for seed, n in enumerate((50, 20, 33))]
    alone = [Pages(model, 1).forward([x])[0] for x in xs]
    pages = Pages(model, 3)
    first = pages.forward([xs[0][:40], xs[1][:0], xs[2][:33]], padding=5)
    then = pages.forward([xs[0][40:], xs[1][:20], xs[2][:0]], padding=3)
    for x, a, b in zip(alone, first, then, strict=True):
        torch.testing.assert_close(torch.cat((a, b)), x, **CLOSE)


def test_positions_may_be_written_again(model: Qwen3Asr) -> None:
    """As an update does: what follows the window is thrown away and written over."""
    x, other = model.decoder.embed(ids_of(2, 60)), model.decoder.embed(ids_of(3, 25))
    pages = Pages(model, 1)
    pages.forward([x])
    pages.filled = [40]
    (again,) = pages.forward([other])
    (whole,) = Pages(model, 1).forward([torch.cat((x[:40], other))])
    torch.testing.assert_close(again, whole[40:], **CLOSE)


def test_classes_of_an_aligner_equal_the_reference(tmp_path: Path) -> None:
    config = replace(tiny.CONFIG, classes=50, decoder=replace(tiny.CONFIG.decoder, tied=False))
    tiny.write_transformers(tmp_path, config)
    ours = asr_checkpoint.load_model(tmp_path, "cpu", torch.float32)
    assert ours.config == config
    kind = transformers.Qwen3ASRForTokenClassification
    reference, loading = kind.from_pretrained(
        tmp_path, output_loading_info=True, dtype=torch.float32
    )
    assert not any(loading.values()), loading
    ids = ids_of(4, 30)
    (hidden,) = Pages(ours, 1).forward([ours.decoder.embed(ids)])
    theirs = reference.eval()(input_ids=ids[None]).logits[0]
    torch.testing.assert_close(ours.decoder.logits(hidden), theirs, atol=2e-4, rtol=1e-4)


# --- the whole of it ---


@pytest.mark.parametrize("length", [0.4, 3.3, 10.7])
def test_greedy_text_equals_the_reference(
    folder: Path, model: Qwen3Asr, reference: Any, length: float
) -> None:
    pcm = sound(int(length * 16_000))
    audio = hear(model, pcm)
    t = Tokenizer.load(folder)
    before = [t.im_start, *t.encode("system\n the mat"), t.im_end, *t.encode("\n"), t.im_start]
    before += [*t.encode("user\n"), t.audio_start]
    after = [t.audio_end, t.im_end, *t.encode("\n"), t.im_start, *t.encode("assistant\n")]
    inputs = features(pcm)
    prompt = torch.tensor([[*before, *[t.audio_pad] * len(audio), *after]])
    theirs = reference.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        input_features=inputs["input_features"],
        input_features_mask=inputs["attention_mask"],
        max_new_tokens=12,
        do_sample=False,
    )[0, prompt.shape[1] :].tolist()

    embed = model.decoder.embed
    pages = Pages(model, 1, length=240)
    x = torch.cat((embed(torch.tensor(before)), audio, embed(torch.tensor(after))))
    ours: list[int] = []
    while len(ours) < 12 and not (ours and ours[-1] in model.config.eos_ids):
        (hidden,) = pages.forward([x])
        token = model.decoder.logits(hidden[-1:]).argmax(-1)
        ours += token.tolist()
        x = embed(token)
    assert ours == theirs
    assert len(set(ours)) > 1
