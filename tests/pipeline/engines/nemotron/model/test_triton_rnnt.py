"""The kernels of RNN-T decoding against plain torch: on a GPU, or else in the interpreter."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from offhook.pipeline.engines.nemotron.model import (  # noqa: E402
    rnnt,
    triton_rnnt,
)
from offhook.pipeline.engines.nemotron.model.model import NemotronConfig  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONFIG = NemotronConfig(vocab_size=31, blank=30, max_symbols=3)
SIZES = pytest.mark.parametrize("size", [24, 256, 640])


@pytest.fixture(autouse=True)
def _set_up():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield


def draw(*shape):
    return torch.randn(shape, device=DEVICE)


def ints(values):
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


@SIZES
def test_what_is_joined_is_the_frame_a_stream_stands_at(size):
    heard, predicted = draw(5, 7, size), draw(4, size)
    slots, at = ints([3, 0, 4, 1]), ints([0, 6, 7, 2])  # one is through
    got = triton_rnnt.joined(heard, predicted, slots, at)
    torch.testing.assert_close(got, rnnt.joined_reference(heard, predicted, slots, at))


def test_labels_advance_streams_as_in_plain_torch():
    count = 300
    label = torch.randint(25, 31, (count,), device=DEVICE)
    at, until = torch.randint(0, 4, (2, count), device=DEVICE)
    said = torch.randint(0, 3, (count,), device=DEVICE)
    found = []
    for function in (triton_rnnt.advance, rnnt.advance_reference):
        state = at.clone(), said.clone(), torch.full((count, 3), 7, device=DEVICE)
        new = function(label, state[0], state[1], until, CONFIG, state[2], 1)
        found.append((new, *state))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@SIZES
@pytest.mark.parametrize("labelled", [True, False])
def test_only_streams_that_said_something_take_a_step_of_the_lstm(size, labelled):
    gates, table = draw(6, 4 * size), draw(31, 4 * size) if labelled else None
    hidden, cell = draw(6, 2 * size), draw(6, 2 * size)
    label, new = ints([1, 2, 30, 4, 5, 0]), ints([1, 0, 1, 0, 1, 1])
    found = []
    for function in (triton_rnnt.lstm_step, rnnt.lstm_step_reference):
        state = hidden.clone(), cell.clone()
        function(gates, table, label, new, state[0][:, size:], state[1][:, size:])
        found.append(state)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert (found[0][0] != hidden).any(1).tolist() == [True, False, True, False, True, True]


def test_a_step_is_that_of_torchs_own_lstm():
    cell = torch.nn.LSTMCell(20, 20, device=DEVICE)
    x, h, c = draw(3, 20), draw(3, 20), draw(3, 20)
    gates = torch.addmm(cell.bias_ih, x, cell.weight_ih.T) + torch.addmm(
        cell.bias_hh, h, cell.weight_hh.T
    )
    want = cell(x, (h, c))
    triton_rnnt.lstm_step(gates, None, ints([0] * 3), ints([1] * 3), h, c)
    torch.testing.assert_close((h, c), want)
