"""FastConformer's kernels against plain torch: on a GPU, or else in the interpreter."""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import torch.nn.functional as F  # noqa: E402

from offhook.pipeline.engines.nemotron.model import (  # noqa: E402
    fast_conformer,
    triton_conformer,
)
from offhook.pipeline.engines.nemotron.model.triton_ring_attention import split_past  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
EXACT = {"rtol": 1e-5, "atol": 1e-5}
NEAR = {"rtol": 2e-2, "atol": 2e-2}
EPS = 1e-5
on_gpu = pytest.mark.skipif(not GPU, reason="needs a CUDA GPU")
CHUNKS = pytest.mark.parametrize("frames", [1, 2, 7, 14])
# The interpreter multiplies no matrices in bf16, and does not round to it.
HALF = torch.bfloat16 if GPU else torch.float16
DTYPES = pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float32, EXACT), (HALF, NEAR)], ids=["fp32", "half"]
)
SOME = pytest.mark.parametrize(
    ("frames", "dtype", "near"),
    [(1, torch.float32, EXACT), (14, torch.float32, EXACT), (7, HALF, NEAR)]
    + [
        pytest.param(frames, dtype, near, marks=pytest.mark.slow)
        for frames, dtype, near in (
            (2, torch.float32, EXACT),
            (7, torch.float32, EXACT),
            (1, HALF, NEAR),
        )
    ],
)
MIXED = [0, 5, 69, 70, 200]


@pytest.fixture(autouse=True)
def _set_up():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield


def draw(*shape, dtype=torch.float32):
    return torch.randn(shape, device=DEVICE).to(dtype)


def ints(values):
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


def poison(shape, dtype):
    """Leaves NaN in the memory that the next tensor of this shape is likely to get."""
    del [torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)][:]


def assert_near(got, want, near):
    torch.testing.assert_close(got.float(), want.float(), **near)


# Attention


class Speech:
    """Queries, keys and values of every frame of some utterances, and what each is to hear."""

    def __init__(self, streams, length, heads, channels, left, dtype):
        self.qkv = draw(streams, length, 3, heads, channels, dtype=dtype)
        self.bias_u = draw(heads, channels, dtype=dtype)
        self.left = left

    def chunk(self, positions, frames):
        rows = [self.qkv[n, p : p + frames] for n, p in enumerate(positions)]
        return torch.stack(rows).contiguous()

    def distances(self, streams, frames):
        """What is added by distance: of a longer tensor, whose last columns belong to no key."""
        heads, count = len(self.bias_u), self.left + 2 * frames - 1
        whole = draw(heads, streams, frames, count + 5, dtype=self.qkv.dtype)
        whole[..., count:] = float("nan")
        return whole

    def fill(self, ring, part, slots, positions):
        """The rows that the frames before a chunk would have left."""
        for number, (slot, position) in enumerate(zip(slots, positions, strict=True)):
            for frame in range(max(0, position - ring.shape[1]), position):
                ring[slot, frame % ring.shape[1]] = self.qkv[number, frame, part]

    def hear(self, number, position, frames, by_distance):
        """The formula itself, without a ring: [T, H D]."""
        first = max(0, position - self.left)
        qkv = self.qkv[number].double()
        k, v = qkv[first : position + frames, 1], qkv[first : position + frames, 2]
        out = []
        for i in range(frames):
            q = qkv[position + i, 0] + self.bias_u.double()
            behind = [position + i - at + frames - 1 for at in range(first, position + frames)]
            scores = (k * q).sum(-1) + by_distance[:, number, i, behind].double().T
            weights = (scores / q.shape[-1] ** 0.5).softmax(0)
            out.append((weights[..., None] * v).sum(0).flatten())
        return torch.stack(out)


def empty_rings(slots, ring, heads, channels, dtype):
    """Keys and values of one layer in the middle of three."""
    shape = (3, slots, ring, heads, channels)
    return [torch.full(shape, float("nan"), device=DEVICE).to(dtype) for _ in range(2)]


def check_attention(frames, positions, heads, channels, left, ring, dtype, near):
    speech = Speech(len(positions), max(positions) + frames, heads, channels, left, dtype)
    slots = [len(positions) - n for n in range(len(positions))]
    rings = empty_rings(len(positions) + 1, ring, heads, channels, dtype)
    for part, whole in enumerate(rings, 1):
        speech.fill(whole[1], part, slots, positions)
    padding = 2
    scratch = draw(padding, frames, 3, heads, channels, dtype=dtype)
    qkv = torch.cat([speech.chunk(positions, frames), scratch])
    added = speech.distances(len(qkv), frames)
    expected = [whole.clone() for whole in rings]
    for part, whole in enumerate(expected, 1):
        after = [position + frames for position in positions]
        speech.fill(whole[1], part, slots, after)
    want = [speech.hear(n, p, frames, added) for n, p in enumerate(positions)]
    poison((len(qkv), frames, heads * channels), dtype)
    got = triton_conformer.ring_attention(
        qkv,
        speech.bias_u,
        added,
        *(whole[1] for whole in rings),
        ints([*slots, *[0] * padding]),
        ints([*positions, *[0] * padding]),
        left,
    )
    assert got.dtype == dtype
    assert_near(got[: len(positions)], torch.stack(want), near)
    assert got.isfinite().all()
    for whole, then in zip(rings, expected, strict=True):
        torch.testing.assert_close(whole[[0, 2]], then[[0, 2]], rtol=0, atol=0, equal_nan=True)
        kept = whole[1, 1:], then[1, 1:]  # Slot 0 is scratch.
        torch.testing.assert_close(*kept, rtol=0, atol=0, equal_nan=True)


@SOME
def test_a_chunk_hears_itself_and_what_lies_before_it(frames, dtype, near):
    check_attention(frames, MIXED, 2, 16, 70, 84, dtype, near)


@pytest.mark.parametrize(("frames", "left"), [(1, 3), (1, 64), (2, 16), (7, 64), (14, 3)])
def test_any_left_context_in_the_shortest_ring(frames, left):
    positions = [0, left, 5 * left + 1]
    check_attention(frames, positions, 3, 32, left, left + frames, torch.float32, EXACT)


@CHUNKS
def test_attention_is_that_of_the_reference(frames):
    slots, positions = ints([3, 1, 2]), ints([200, 0, 40])
    rings = [draw(4, 84, 2, 16) for _ in range(2)]
    expected = [ring.clone() for ring in rings]
    qkv, bias_u = draw(3, frames, 3, 2, 16), draw(2, 16)
    added = draw(2, 3, frames, 70 + 2 * frames - 1)
    want = fast_conformer.ring_attention_reference(
        qkv, bias_u, added, *expected, slots, positions, 70
    )
    got = triton_conformer.ring_attention(qkv, bias_u, added, *rings, slots, positions, 70)
    assert_near(got, want, EXACT)
    assert torch.equal(rings[0], expected[0])
    assert torch.equal(rings[1], expected[1])


@CHUNKS
def test_chunk_after_chunk_goes_round_the_ring(frames):
    heads, channels, left, chunks = 1, 16, 5, 21 // frames + 1
    speech = Speech(1, chunks * frames, heads, channels, left, torch.float32)
    rings = empty_rings(2, left + frames, heads, channels, torch.float32)
    for position in range(0, chunks * frames, frames):
        added = speech.distances(1, frames)
        got = triton_conformer.ring_attention(
            speech.chunk([position], frames),
            speech.bias_u,
            added,
            *(whole[1] for whole in rings),
            ints([1]),
            ints([position]),
            left,
        )
        assert_near(got[0], speech.hear(0, position, frames, added), EXACT)


@pytest.mark.parametrize("frames", [1, 7])
def test_a_stream_hears_the_same_alone(frames):
    qkv, bias_u = draw(5, frames, 3, 2, 16), draw(2, 16)
    rings, slots, positions = [draw(6, 84, 2, 16) for _ in range(2)], ints([4, 2, 1, 5, 3]), MIXED
    added = draw(2, 5, frames, 70 + 2 * frames - 1)

    def run(n):
        fresh = [ring.clone() for ring in rings]
        return triton_conformer.ring_attention(
            qkv[n], bias_u, added[:, n], *fresh, slots[n], ints(positions)[n], 70
        )

    together = run(slice(None))
    for n in (0, 3):
        assert torch.equal(run(slice(n, n + 1))[0], together[n])


def test_the_past_is_read_in_two_blocks_that_hold_it():
    for least in (1, 16):
        for left in range(1, 300):
            near, far = split_past(left, least)
            assert left <= near + far < max(2 * left + 1, 2 * least)
            assert all(n == 0 or (n >= least and n & (n - 1) == 0) for n in (near, far))
    assert split_past(70, 1) == (64, 8)
    assert split_past(70, 16) == (64, 16)


# Convolution


class Convolution:
    def __init__(self, channels, taps, with_bias, dtype):
        self.channels, self.taps, self.dtype = channels, taps, dtype
        self.weight = draw(channels, taps, dtype=dtype)
        self.bias = draw(channels, dtype=dtype) if with_bias else None
        self.norm = 1 + draw(channels, dtype=dtype), draw(channels, dtype=dtype)

    def parameters(self, tap_by_tap=False):
        weight = self.weight.t().contiguous().t() if tap_by_tap else self.weight
        return weight, self.bias, *self.norm, EPS

    def gate(self, x):
        """[..., 2 C] to [..., C], as it is remembered."""
        value, gate = x.double().chunk(2, -1)
        return (value * gate.sigmoid()).to(self.dtype)

    def hear(self, x):
        """A whole utterance at once: [T, 2 C] to [T, C]."""
        gated = F.pad(self.gate(x).double().T, (self.taps - 1, 0))
        bias = None if self.bias is None else self.bias.double()
        weight = self.weight.double()[:, None]
        y = F.conv1d(gated[None], weight, bias, groups=self.channels)[0].T
        weight, bias = (part.double() for part in self.norm)
        return F.silu(F.layer_norm(y, (self.channels,), weight, bias, EPS))


@SOME
@pytest.mark.parametrize(("taps", "with_bias"), [(9, False), (3, True)])
def test_chunk_after_chunk_is_one_long_convolution(frames, dtype, near, taps, with_bias):
    conv, slots, length = Convolution(24, taps, with_bias, dtype), [4, 1], 9 // frames + 2
    x = draw(len(slots), length * frames, 2 * conv.channels, dtype=dtype)
    want, gated = torch.stack([conv.hear(rows) for rows in x]), conv.gate(x)
    layers = torch.full((5, 3, taps - 1, conv.channels), float("nan"), device=DEVICE).to(dtype)
    cache = layers[:, 1]
    padding = draw(1, frames, 2 * conv.channels, dtype=dtype)
    for first in range(0, x.shape[1], frames):
        chunk = torch.cat([x[:, first : first + frames], padding])
        poison((len(chunk), frames, conv.channels), dtype)
        got = triton_conformer.glu_conv(
            chunk,
            cache,
            ints([*slots, 0]),
            ints([first] * len(slots) + [0]),
            *conv.parameters(),
        )
        assert got.dtype == dtype
        assert got.isfinite().all()
        assert_near(got[: len(slots)], want[:, first : first + frames], near)
        kept = F.pad(gated[:, : first + frames], (0, 0, taps - 1, 0))[:, 1 - taps :]
        assert_near(cache[slots], kept, {"rtol": 1e-2, "atol": 1e-6})
    assert layers[:, [0, 2]].isnan().all()
    assert cache[2:4].isnan().all()


def check_convolution(conv, frames, positions, near):
    slots = ints([*torch.randperm(len(positions)).add(1).tolist(), 0, 0])
    positions = ints([*positions, 0, 3])
    x = draw(len(slots), frames, 2 * conv.channels, dtype=conv.dtype)
    cache = draw(len(slots) + 1, conv.taps - 1, conv.channels, dtype=conv.dtype)
    expected = cache.clone()
    want = fast_conformer.glu_conv_reference(x, expected, slots, positions, *conv.parameters())
    for tap_by_tap in (False, True) if conv.dtype == torch.float32 or GPU else (True,):
        own, parameters = cache.clone(), conv.parameters(tap_by_tap)
        poison(want.shape, conv.dtype)
        got = triton_conformer.glu_conv(x, own, slots, positions, *parameters)
        assert_near(got[:-2], want[:-2], near)  # The others share a slot.
        assert_near(own[1:], expected[1:], {"rtol": 1e-2, "atol": 1e-6})


@pytest.mark.parametrize(("frames", "dtype", "near"), [(1, HALF, NEAR), (14, torch.float32, EXACT)])
def test_convolution_is_that_of_the_reference(frames, dtype, near):
    # In bf16 it rounds between its steps, and the norm spreads that.
    near = near if near is EXACT else {"rtol": 4e-2, "atol": 4e-2}
    check_convolution(Convolution(40, 9, True, dtype), frames, MIXED, near)


# The rest


def norms(channels, dtype):
    return [
        part
        for _ in range(2)
        for part in (1 + draw(channels, dtype=dtype), draw(channels, dtype=dtype))
    ]


def check_norms(shape, dtype, near):
    residual, y = 3 + draw(*shape, dtype=dtype), draw(*shape, dtype=dtype)
    weight, bias, next_weight, next_bias = norms(shape[-1], dtype)
    poison(shape, dtype)
    total, normed = triton_conformer.add_norm(residual, y, 0.5, weight, bias, EPS)
    assert total.dtype == normed.dtype == dtype
    assert total.shape == normed.shape == shape
    want = residual + 0.5 * y
    assert_near(total, want, {"rtol": 1e-2 if dtype == HALF else 1e-6, "atol": 1e-6})

    def norm(x, weight, bias):
        return F.layer_norm(x.double(), shape[-1:], weight.double(), bias.double(), EPS)

    assert_near(normed, norm(want, weight, bias), near)
    more = next_weight, next_bias, EPS
    poison(shape, dtype)
    first, second = triton_conformer.add_norm_norm(residual, y, 1.0, weight, bias, *more)
    assert first.dtype == second.dtype == dtype
    want = norm(residual + y, weight, bias)
    assert_near(first, want, near)
    assert_near(second, norm(want.to(dtype), next_weight, next_bias), near)
    reference = fast_conformer.add_norm_norm_reference(residual, y, 1.0, weight, bias, *more)
    assert_near(first, reference[0], near)
    assert_near(second, reference[1], near)


@DTYPES
@pytest.mark.parametrize("shape", [(5, 24), (2, 3, 1024)])
def test_sum_and_norms(shape, dtype, near):
    check_norms(shape, dtype, near)


COMPILE = """
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction
from offhook.pipeline.engines.nemotron.model import triton_conformer as kernels

class Hopper:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)

def compile(self, *args, warmup, **kwargs):
    kernel = run(self, *args, warmup=True, **kwargs)
    print(self.fn.__name__, kernel.metadata.shared, len(kernel.asm["cubin"]))

driver.set_active(Hopper())
run, JITFunction.run = JITFunction.run, compile
half = lambda *shape: torch.zeros(shape, dtype=torch.bfloat16)
slots = torch.zeros(2, dtype=torch.int64)
rings, conv, one = [half(2, 84, 8, 128) for _ in range(2)], half(2, 8, 1024), half(1024)
for frames in (1, 14):
    added = half(8, 2, frames, 70 + 2 * frames)
    qkv = half(2, frames, 3, 8, 128)
    kernels.ring_attention(qkv, half(8, 128), added, *rings, slots, slots, 70)
    weight = half(9, 1024).t()
    kernels.glu_conv(half(2, frames, 2048), conv, slots, slots, weight, None, one, one, 1e-5)
kernels.add_norm(half(2, 1024), half(2, 1024), 0.5, one, one, 1e-5)
kernels.add_norm_norm(half(2, 1024), half(2, 1024), 0.5, one, one, one, one, 1e-5)
"""


@pytest.mark.slow
@pytest.mark.skipif(GPU, reason="the other tests compile them")
def test_the_kernels_compile_for_an_h200(tmp_path):
    """At the model's size, without the GPU."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-W", "ignore", "-c", COMPILE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    compiled = [line.split() for line in done.stdout.splitlines()]
    assert [name for name, _, _ in compiled] == [
        *["_attend_one", "_glu_conv", "_attend", "_glu_conv"],
        *["_add_norm", "_add_norm"],
    ]
    # More than four of them fit on a processor at a time, which has 227 KiB.
    assert all(int(shared) < 50_000 and int(size) > 0 for _, shared, size in compiled)


@on_gpu
@CHUNKS
@pytest.mark.parametrize("streams", [1, 3, 300])
def test_attention_at_production_size(frames, streams):
    slots = ints([*torch.randperm(streams).add(1).tolist(), 0])
    positions = ints([*torch.randint(0, 200, (streams,)).tolist(), 0])
    rings = [draw(streams + 1, 84, 8, 128, dtype=HALF) for _ in range(2)]
    expected = [ring.clone() for ring in rings]
    qkv = draw(streams + 1, frames, 3, 8, 128, dtype=HALF)
    bias_u = draw(8, 128, dtype=HALF)
    added = draw(8, streams + 1, frames, 70 + 2 * frames, dtype=HALF)
    want = fast_conformer.ring_attention_reference(
        qkv, bias_u, added, *expected, slots, positions, 70
    )
    poison(want.shape, HALF)
    got = triton_conformer.ring_attention(qkv, bias_u, added, *rings, slots, positions, 70)
    assert_near(got, want, NEAR)
    assert torch.equal(rings[0], expected[0])
    assert torch.equal(rings[1], expected[1])


@on_gpu
@CHUNKS
@pytest.mark.parametrize("streams", [1, 300])
def test_the_rest_at_production_size(frames, streams):
    positions = torch.randint(0, 3, (streams,)).tolist()
    conv = Convolution(1024, 9, False, HALF)
    check_convolution(conv, frames, positions, {"rtol": 5e-2, "atol": 5e-2})
    check_norms((streams, frames, 1024), HALF, NEAR)


@on_gpu
@CHUNKS
def test_one_captured_graph_serves_other_slots_and_positions(frames):
    """The whole chunk stays in the graph: what it wrote, the next replay hears."""
    speech = Speech(4, 40 * frames, 8, 128, 70, HALF)
    rings = empty_rings(8, 84, 8, 128, HALF)
    added = speech.distances(4, frames)
    qkv = speech.chunk([0] * 4, frames)
    slots, positions = ints([0] * 4), ints([0] * 4)
    inputs = qkv, speech.bias_u, added, *(whole[1] for whole in rings), slots, positions, 70
    triton_conformer.ring_attention(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = triton_conformer.ring_attention(*inputs)
    slots.copy_(ints([5, 2, 7, 1]))
    for position in range(0, 40 * frames, frames):
        qkv.copy_(speech.chunk([position] * 4, frames))
        positions.fill_(position)
        out.fill_(float("nan"))
        graph.replay()
        for number in range(4):
            assert_near(out[number], speech.hear(number, position, frames, added), NEAR)
