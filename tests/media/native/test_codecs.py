"""Compiled codecs give what the Python ones give, sample by sample."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media import native
from offhook.media.codecs.conceal import HISTORY, new_concealer
from offhook.media.codecs.g711 import PcmaDecoder, PcmaEncoder, PcmuDecoder, PcmuEncoder
from offhook.media.codecs.g722 import G722Decoder, G722Encoder
from offhook.media.codecs.resample import Resampler, _phases
from tests.media.native.paths import both, exact_resampling, needs_compiled

pytestmark = needs_compiled

RATES = [
    (8_000, 16_000),
    (24_000, 8_000),
    (16_000, 24_000),
    (24_000, 16_000),
    (44_100, 16_000),
    (16_000, 8_000),
]
SOUNDS = ("noise", "square", "constant", "silence")


def sound(kind: str, samples: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    match kind:
        case "noise":
            return random.integers(-32768, 32768, samples).astype(np.int16)
        case "square":
            levels = random.integers(-32768, 32768, 2)
            return levels[np.arange(samples) // (1 + seed % 40) % 2].astype(np.int16)
        case "constant":
            return np.full(samples, random.integers(-32768, 32768), np.int16)
    return np.zeros(samples, np.int16)


@pytest.mark.parametrize(("rate_in", "rate_out"), RATES)
@given(
    blocks=st.lists(
        st.tuples(
            st.integers(0, 200), st.integers(0, 5), st.sampled_from(SOUNDS), st.integers(0, 999)
        ),
        max_size=8,
    )
)
@settings(max_examples=settings.default.max_examples // 4)
def test_resampling_is_the_same(rate_in, rate_out, blocks):
    """Sums of floats in another order may round another way where they are half an integer."""
    python, compiled = both(lambda: Resampler(rate_in, rate_out))
    down = python._down
    exact = np.zeros(python._history)
    matrix, _ = _phases(python._up, down, rate_in)
    for periods, more, kind, seed in blocks:
        periods = min(periods, 20_000 // down)
        pcm = sound(kind, down * periods + more % down, seed)
        ours, theirs = python.process(pcm), compiled.process(pcm)
        assert theirs.dtype == np.int16
        assert len(theirs) == len(ours)
        exact = np.concatenate((exact, pcm))
        starts = range(0, down * periods, down)
        sums = np.ravel([exact[at : at + len(matrix)] @ matrix for at in starts])
        tie = np.abs(np.abs(sums - np.floor(sums)) - 0.5) < 1e-6
        np.testing.assert_array_equal(ours[~tie], theirs[~tie])
        assert np.abs(ours.astype(int) - theirs).max(initial=0) <= 1
        exact = exact[len(exact) - python._history :]


def test_only_pcm_is_resampled():
    _, compiled = both(lambda: Resampler(24_000, 8_000))
    with pytest.raises(TypeError):
        compiled.process(np.zeros(3, np.float64))


@pytest.mark.parametrize("make", [PcmuDecoder, PcmaDecoder, G722Decoder])
@given(
    packets=st.lists(
        st.one_of(
            st.binary(min_size=1, max_size=400),
            st.sampled_from([480, 481, 4000]).map(bytes),
            st.integers(0, 400).map(lambda seed: bytes(np.random.default_rng(seed).bytes(160))),
            st.tuples(st.integers(0, 255), st.integers(1, 300)).map(
                lambda code: bytes(code[:1]) * code[1]
            ),
            st.integers(1, 640),
        ),
        max_size=25,
    )
)
@settings(max_examples=60)
def test_telephone_codecs_decode_and_conceal_the_same(make, packets):
    """A number is that many samples lost."""
    python, compiled = both(make)
    for packet in packets:
        if isinstance(packet, int):
            pcm = [decoder.conceal(packet) for decoder in (python, compiled)]
        else:
            pcm = [decoder.decode(packet) for decoder in (python, compiled)]
        np.testing.assert_array_equal(*pcm)


@pytest.mark.parametrize("make", [PcmuEncoder, PcmaEncoder])
@given(
    packets=st.lists(
        st.tuples(
            st.sampled_from([10, 20, 30, 60, 200]), st.sampled_from(SOUNDS), st.integers(0, 999)
        ),
        max_size=20,
    )
)
@settings(max_examples=60)
def test_g711_encodes_the_same(make, packets):
    python, compiled = both(make)
    for ms, kind, seed in packets:
        pcm = sound(kind, 24 * ms, seed)
        assert python.encode(pcm) == compiled.encode(pcm)


@given(
    unit=st.sampled_from([10, 20]),
    packets=st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from(SOUNDS), st.integers(0, 999)), max_size=20
    ),
)
@settings(max_examples=60)
def test_g722_encodes_the_same(unit, packets):
    python, compiled = both(G722Encoder)
    exact_resampling(python)
    for units, kind, seed in [(1, "noise", 1), *packets]:
        pcm = sound(kind, 24 * unit * units, seed)
        assert python.encode(pcm) == compiled.encode(pcm)


@given(
    blocks=st.lists(
        st.tuples(st.booleans(), st.integers(1, 1000), st.sampled_from(SOUNDS)), max_size=25
    )
)
@settings(max_examples=60)
def test_losses_are_concealed_the_same(blocks):
    python, compiled = both(new_concealer)
    for number, (lost, samples, kind) in enumerate(blocks):
        pcm = sound(kind, samples, number)
        if lost:
            heard = [concealer.conceal(samples) for concealer in (python, compiled)]
        else:
            heard = [concealer.process(pcm) for concealer in (python, compiled)]
        np.testing.assert_array_equal(*heard)
    np.testing.assert_array_equal(python._history(), compiled._history())
    assert len(compiled._history()) == HISTORY


def test_what_does_not_fit_is_refused():
    """No object of another kind, and no table or payload of another size, is read or written."""
    fir = native.Fir(np.zeros((2, 30)), 2, 1)
    for taps, up, down in ((b"", 1, 1), (bytes(8), 0, 1), (bytes(24), 2, 1), (bytes(8), 1, 2)):
        with pytest.raises(ValueError, match="taps"):
            native.Fir(taps, up, down)
    with pytest.raises(TypeError):
        native.G711Decoder(PcmuDecoder.levels, object(), native.History())
    with pytest.raises(TypeError):
        native.G711Decoder(PcmuDecoder.levels[:5], fir, native.History())
    with pytest.raises(TypeError):
        native.G711Decoder(PcmuDecoder.levels, fir, object())
    with pytest.raises(TypeError):
        native.G711Encoder(bytes(65536), fir)
    with pytest.raises(TypeError):
        native.G722Decoder(object())
    with pytest.raises(TypeError):
        native.G722Encoder(fir)
    for make in (PcmuDecoder, G722Decoder):
        _, decoder = both(make)
        with pytest.raises(TypeError):
            decoder.compiled.decode("text")
    for make in (PcmuEncoder, G722Encoder):
        _, encoder = both(make)
        with pytest.raises(ValueError, match="periods"):
            encoder.encode(np.zeros(481, np.int16))
    g722 = native.G722Decoder, native.G722Encoder
    for made in (native.Fir, native.G711Decoder, native.G711Encoder, *g722):
        for use in ("process", "decode", "encode"):
            if hasattr(made, use):
                with pytest.raises(ValueError, match="not initialised"):
                    getattr(made.__new__(made), use)(b"" if use == "decode" else np.zeros(0, "h"))
