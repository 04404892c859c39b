"""Drawing codes: against transformers' own processors, by counting, and torch against Triton."""

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
transformers = pytest.importorskip("transformers")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import Tensor  # noqa: E402
from transformers.generation import logits_process as theirs  # noqa: E402

from offhook.pipeline.engines.shared.qwen3 import (  # noqa: E402
    sampling,
    triton_sampling,
)
from offhook.pipeline.engines.shared.qwen3.sampling import MIN_FRAMES, RESERVED, Draw  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TALKER = 3072
END = 2150
ROWS = 400 if DEVICE == "cuda" else 8
"""Of what a kernel is given: the interpreter takes 50 ms for each."""
CODES = 2048


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def draw(rows: int, codes: int = TALKER, frame: int = 7, seed: int = 0, **changes: Tensor) -> Draw:
    fields = {
        "seeds": torch.arange(rows) * 1009 + seed,
        "frames": torch.full((rows,), frame),
        "temperature": torch.full((rows,), 0.9),
        "top_k": torch.full((rows,), 50),
        "penalty": torch.full((rows,), 1.05),
        "seen": torch.zeros(rows, codes, dtype=torch.bool),
        "predictor_temperature": torch.full((rows,), 0.9),
        "predictor_top_k": torch.full((rows,), 50),
    }
    return Draw(**(fields | changes))


def logits(rows: int, codes: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(rows, codes, generator=generator)).to(dtype)


# --- random numbers ---


def test_the_numbers_of_a_draw_never_change():
    """Streams sound the same from one version to the next, and on every machine."""
    numbers = sampling.uniform(ints(0, -1, 1 << 62), ints(0, 3, 4999), 15, 3) * 2**24
    assert numbers.tolist() == [
        [6782441.0, 9702813.0, 7578239.0],
        [3201881.0, 4670067.0, 9927527.0],
        [9936431.0, 499337.0, 403875.0],
    ]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 5000)), min_size=2))
def test_numbers_do_not_depend_on_the_batch(streams):
    seeds, frames = (ints(*column) for column in zip(*streams, strict=True))
    together = sampling.uniform(seeds, frames, 5, 40)
    alone = [sampling.uniform(seeds[i, None], frames[i, None], 5, 40) for i in range(len(seeds))]
    assert torch.equal(together, torch.cat(alone))
    assert 0 < together.min() <= together.max() < 1


def test_numbers_are_uniform_and_do_not_follow_each_other():
    """Over codes, frames, codebooks and seeds; small seeds and neighbours among them."""
    parts = [
        sampling.uniform(torch.arange(8) - 4, torch.full((8,), frame), codebook, 256)
        for frame in range(16)
        for codebook in range(16)
    ]
    numbers = torch.stack(parts).view(16, 16, 8, 256)
    cells = torch.histc(numbers, 256, 0, 1)
    expected = numbers.numel() / 256
    chi_square = ((cells - expected) ** 2 / expected).sum()
    assert abs(chi_square - 255) < 5 * math.sqrt(2 * 255)
    centred = numbers - 0.5
    for axis in range(4):
        pairs = centred * centred.roll(1, axis)
        assert abs(pairs.mean()) < 5 / 12 / math.sqrt(numbers.numel())


def test_the_logarithm():
    x = torch.cat([torch.logspace(-7, 2, 20_001), 1 - torch.arange(1, 200) * 2**-24])
    exact = x.double().log()
    error = (sampling.log(x) - exact).abs() / exact.abs().clamp(min=1e-30)
    assert error.max() < 4e-7
    assert sampling.gumbel(torch.tensor([2**-24, 1 - 2**-24])).isfinite().all()


# --- what is kept ---


def kept_by_transformers(values: Tensor, had: list[int], frame: int, top_k: int) -> Tensor:
    """The scores of one row after the processors of `generate`, in its order."""
    never = [i for i in range(TALKER - RESERVED, TALKER) if i != END]
    steps = [
        theirs.RepetitionPenaltyLogitsProcessor(1.3),
        theirs.MinNewTokensLengthLogitsProcessor(0, MIN_FRAMES, END),
        theirs.SuppressTokensLogitsProcessor(never),
        theirs.TemperatureLogitsWarper(0.7),
        theirs.TopKLogitsWarper(top_k),
    ]
    said = torch.tensor([had], dtype=torch.int64)
    assert said.shape[1] == frame
    scores = values[None].float()
    for step in steps:
        scores = step(said, scores)
    return scores[0]


@pytest.mark.parametrize("frame", [0, 1, 2, 9])
@pytest.mark.parametrize("top_k", [1, 4, 300])
def test_the_same_codes_are_kept_as_by_transformers(frame, top_k):
    """Drawn many times: what comes is what they keep, about as often as their softmax says."""
    values = logits(1, TALKER, seed=frame)[0].round(decimals=1)  # with equal ones
    values[END] = 30.0
    had = [int(values[:2000].argmax()), 5, 5, *range(900, 906)][:frame]
    scores = kept_by_transformers(values, had, frame, top_k)
    seen = torch.zeros(TALKER, dtype=torch.bool)
    seen[had] = True
    rows = 400
    of = draw(
        rows,
        frame=frame,
        temperature=torch.full((rows,), 0.7),
        top_k=torch.full((rows,), top_k),
        penalty=torch.full((rows,), 1.3),
        seen=seen.expand(rows, -1),
    )
    codes = sampling.sample_first_reference(values.expand(rows, -1), of, END)
    chances = scores.softmax(0)
    counted = torch.bincount(codes, minlength=TALKER)
    assert (counted[chances == 0] == 0).all()
    spread = (rows * chances * (1 - chances)).sqrt()
    assert ((counted - rows * chances).abs() <= 5 * spread + 2).all()
    assert (counted[END] > 0) == (frame >= MIN_FRAMES)


def test_every_row_has_its_own_settings():
    values = logits(1, CODES).expand(3, -1)
    many = draw(
        300,
        CODES,
        predictor_temperature=torch.tensor([0.1, 5.0, 1.0]).repeat(100),
        predictor_top_k=ints(0, 0, 1).repeat(100),
    )
    codes = sampling.sample_reference(values.repeat(100, 1), many, 3).view(100, 3)
    assert (codes[:, 2] == values[0].argmax()).all()
    assert len(codes[:, 1].unique()) > 60 > 3 * len(codes[:, 0].unique())


def test_another_frame_codebook_or_seed_draws_anew():
    values = torch.zeros(1, CODES).expand(64, -1)
    every = [
        sampling.sample_reference(values, draw(64, CODES, frame, seed), codebook)
        for frame, seed, codebook in ((0, 0, 1), (1, 0, 1), (0, 1, 1), (0, 0, 2))
    ]
    for i, codes in enumerate(every):
        assert all((codes != other).sum() > 60 for other in every[:i])


# --- torch and Triton ---


def on_device(of: Draw) -> Draw:
    return Draw(**{name: value.to(DEVICE) for name, value in vars(of).items()})


def assert_same_draws(values: Tensor, of: Draw, codebook: int) -> None:
    if codebook:
        want = sampling.sample_reference(values, of, codebook)
        got = triton_sampling.sample(values.to(DEVICE), on_device(of), codebook)
    else:
        want = sampling.sample_first_reference(values, of, END)
        got = triton_sampling.sample_first(values.to(DEVICE), on_device(of), END)
    assert got.tolist() == want.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("codebook", [0, 1, 15])
def test_triton_draws_what_torch_draws(dtype, codebook):
    rows = ROWS
    codes = CODES if codebook else TALKER
    generator = torch.Generator().manual_seed(codebook)
    top_k = ints(0, 1, 2, 50, 1000, 5000).repeat(rows)[:rows]
    temperature = torch.rand(rows, generator=generator) + 0.1
    of = draw(
        rows,
        seeds=torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator),
        frames=torch.arange(rows) % 5,
        temperature=temperature,
        top_k=top_k,
        penalty=1 + torch.rand(rows, generator=generator),
        seen=torch.rand(rows, TALKER, generator=generator) < 0.2,
        predictor_temperature=temperature,
        predictor_top_k=top_k,
    )
    values = logits(rows, codes, codebook, dtype)
    values[: rows // 2, END % codes] = 30.0
    assert_same_draws(values, of, codebook)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 6, 9])
def test_triton_keeps_what_is_as_large_as_the_kth(k):
    """Signed zeros, equal numbers, infinities, the smallest and the largest."""
    values = torch.tensor([[0.0, -0.0, 3e38, 1e-45, -3e38, -torch.inf, -1e-45, 3e38, -2.0]])
    values = values.repeat(ROWS, 3)[:, :20]
    of = draw(
        ROWS,
        20,
        predictor_top_k=torch.full((ROWS,), k),
        predictor_temperature=torch.full((ROWS,), 3e38),
    )
    assert_same_draws(values, of, 4)
    drawn = {float(v) for v in values[0, sampling.sample_reference(values, of, 4)]}
    largest = values[0].sort(descending=True).values[:k].tolist()
    assert drawn <= set(largest)


def test_triton_reads_rows_that_lie_apart():
    wide = logits(4, 2 * CODES)
    assert_same_draws(wide[:, :CODES], draw(4, CODES), 2)
