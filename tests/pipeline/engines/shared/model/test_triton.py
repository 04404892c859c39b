"""The Triton kernels against the plain torch operations: on a GPU, or else in the interpreter."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from offhook.pipeline.engines.shared.qwen3 import (  # noqa: E402
    attention,
    triton_attention,
    triton_fused,
    triton_step,
)
from offhook.pipeline.engines.shared.qwen3.triton_attention import Tile  # noqa: E402
from tests.pipeline.engines.shared.model.attention_cases import (  # noqa: E402
    Paged,
    random_paged,
    random_windows,
    starts_of,
)

GPU = torch.cuda.is_available()
EPS = 1e-6
SCALE = 128**-0.5
DEVICE = "cuda" if GPU else "cpu"
STREAM = torch.cuda.current_stream().cuda_stream if GPU else 0
DTYPE = torch.bfloat16 if GPU else torch.float32
NEAR = {"rtol": 1e-2, "atol": 2e-2} if GPU else {"rtol": 1e-5, "atol": 2e-6}
on_gpu = pytest.mark.skipif(not GPU, reason="needs a CUDA GPU")
HEADS = {"kv_heads": 8, "group": 2, "channels": 128, "page_size": 64, "dtype": DTYPE}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(1)
    torch.set_num_threads(1)


def poison(shape):
    """Leaves NaN in the memory that the next tensor of this shape is likely to get."""
    del [torch.full(shape, float("nan"), dtype=DTYPE, device=DEVICE)][:]


def assert_near(got, want):
    assert got.dtype == DTYPE
    torch.testing.assert_close(got.float(), want.float(), **NEAR)


def reference(case: Paged):
    return attention.paged_attention_reference(*case.floats().tensors(), SCALE)


def check_paged(case: Paged, max_q: int):
    want = reference(case)
    poison(case.q.shape)
    got = triton_attention.paged_attention(*case.tensors(), max_q, SCALE)
    assert_near(got, want)
    assert not triton_attention.arrivals(case.q.device, STREAM).any()


MIXED = {
    "prefill": ([3, 0, 12, 1], [30, 5, 40, 17]),
    "decode": ([1, 1, 0, 1], [33, 1, 7, 16]),
    "nothing cached": ([1, 1], [0, 2]),
    "no sequences": ([], []),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize(("rows", "splits"), [(16, 1), (16, 4), (64, 2)])
def test_paged_attention_with_any_tile_and_split(name, rows, splits):
    q_lengths, kv_lengths = MIXED[name]
    case = random_paged(
        q_lengths, kv_lengths, padding=5, page_size=16, dtype=DTYPE, device=DEVICE, channels=32
    )
    want = reference(case)
    poison(case.q.shape)
    got = triton_attention.launch_paged(*case.tensors(), SCALE, Tile(rows, 16, 4, 2), splits=splits)
    assert_near(got, want)
    assert not triton_attention.arrivals(case.q.device, STREAM).any()


@pytest.mark.parametrize("group", [1, 3])
def test_paged_attention_chooses_a_tile_itself(group):
    case = random_paged([2, 9], [20, 9], page_size=16, group=group, dtype=DTYPE, device=DEVICE)
    check_paged(case, max_q=9)


@pytest.mark.parametrize("lengths", [[5, 0, 40, 17], [3], []])
def test_window_attention(lengths):
    q, k, v, starts = random_windows(lengths, padding=7, channels=32, dtype=DTYPE, device=DEVICE)
    want = attention.window_attention_reference(q.float(), k.float(), v.float(), starts, SCALE)
    poison(q.shape)
    assert_near(triton_attention.window_attention(q, k, v, starts, 40, SCALE), want)


def test_every_shape_has_enough_programs():
    for tile in triton_attention.PAGED_TILES:
        for splits in (triton_attention.choose_splits(n) for n in range(1, 1000)):
            assert splits in (1, 2, 4, 8, 16)
        lengths = [1, 0, tile.rows, 5, tile.rows + 1, 3]
        starts = starts_of(lengths)
        block = tile.rows // 2
        first = starts // block + torch.arange(len(starts))
        needed = -(-torch.tensor(lengths) // block)
        assert ((first[1:] - first[:-1]) >= needed).all()
        for padding in (0, 1, block, block + 1):
            tokens = sum(lengths) + padding
            blocks = triton_attention.count_blocks(tile, tokens, len(lengths), 2)
            assert blocks - first[-1] >= -(-padding // block)


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("channels", [24, 1024])
def test_rms_norm(tokens, channels):
    x = torch.randn(tokens, channels + 8, device=DEVICE).to(DTYPE)[:, :channels]
    weight = torch.rand(channels, device=DEVICE).to(DTYPE)
    want = attention.rms_norm_reference(x, weight, EPS)
    poison(want.shape)
    assert_near(triton_fused.rms_norm(x, weight, EPS), want)


def check_norm_rope_write(tokens, padding, q_heads, kv_heads, channels):
    heads = q_heads + 2 * kv_heads
    fused = torch.randn(tokens + padding, heads, channels, device=DEVICE).to(DTYPE)
    q, k, v = fused.split((q_heads, kv_heads, kv_heads), 1)
    q_weight, k_weight = torch.rand(2, channels, device=DEVICE).to(DTYPE)
    angle = 6 * torch.rand(tokens + padding, channels, device=DEVICE)
    caches = torch.full((2, 2 + tokens // 16, 16, kv_heads, channels), 7.0, device=DEVICE).to(DTYPE)
    slots = 16 + torch.randperm(tokens + 1, device=DEVICE)[:tokens]
    slots = torch.cat((slots, torch.zeros(padding, dtype=torch.int64, device=DEVICE)))
    rest = (q_weight, k_weight, angle.cos(), angle.sin(), EPS)
    expected = caches.clone()
    want = attention.qk_norm_rope_write_reference(q, k, v, *rest, *expected, slots)
    poison(want.shape)
    assert_near(triton_fused.qk_norm_rope_write(q, k, v, *rest, *caches, slots), want)
    assert_near(caches[:, 1:], expected[:, 1:])  # Page 0 is scratch.
    assert torch.equal(caches[1, 1:], expected[1, 1:])


@pytest.mark.parametrize("tokens", [1, 20])
@pytest.mark.parametrize(("q_heads", "kv_heads"), [(4, 2), (3, 1)])
def test_qk_norm_rope_write(tokens, q_heads, kv_heads):
    check_norm_rope_write(tokens, 3, q_heads, kv_heads, 16)


def check_step(lengths, page_size, kv_heads, group, channels, width, tile=None):
    """One token each, `lengths` of its sequence with it; what lies behind it is NaN."""
    rows, heads = len(lengths), (group + 2) * kv_heads
    qkv = torch.randn(rows, (heads + 1) * channels, device=DEVICE).to(DTYPE)[:, :-channels]
    q_weight, k_weight = torch.rand(2, channels, device=DEVICE).to(DTYPE)
    q_weight *= 4  # few keys carry most of the weight
    angle = 6 * torch.rand(rows, channels, device=DEVICE)
    before = [n - 1 for n in lengths]
    case = random_paged(
        [0] * rows, before, padding=1, page_size=page_size, kv_heads=kv_heads, group=group,
        channels=channels, dtype=DTYPE, device=DEVICE,
    )  # fmt: skip
    pages = 1 + torch.randperm(rows * width, device=DEVICE).view(rows, width)
    old = [case.page_table[:, :width].long().cpu(), pages.cpu()]
    caches = torch.full((2, 1 + rows * width, page_size, kv_heads, channels), float("nan"))
    caches = caches.to(DEVICE, DTYPE)
    for row, count in enumerate(before):
        used = -(-count // page_size)
        for cache, full in zip(caches, (case.k_cache, case.v_cache), strict=True):
            cache[old[1][row, :used]] = full[old[0][row, :used]]
    kv_lengths = torch.tensor(lengths, device=DEVICE, dtype=torch.int32)
    last = torch.tensor(before, device=DEVICE)
    slots = pages.gather(1, (last // page_size)[:, None])[:, 0] * page_size + last % page_size
    rest = (q_weight, k_weight, angle.cos(), angle.sin(), EPS)
    expected = caches.clone()
    q, k, v = qkv.unflatten(1, (-1, channels)).split((group * kv_heads, kv_heads, kv_heads), 1)
    q = attention.qk_norm_rope_write_reference(q, k, v, *rest, *expected, slots)
    exact = [cache.float() for cache in expected]
    starts = torch.arange(rows + 1, device=DEVICE, dtype=torch.int32)
    want = attention.paged_attention_reference(
        q.float(), *exact, pages.int(), starts, kv_lengths, channels**-0.5
    )
    poison((rows, group * kv_heads * channels))
    got = triton_step.step_attention(
        qkv, *rest, *caches, slots, pages.int(), kv_lengths, channels**-0.5, tile
    )
    assert_near(got, want.flatten(1))
    for ours, theirs in zip(caches, expected, strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert_near(ours.nan_to_num(), theirs.nan_to_num())
    assert torch.equal(caches[1].nan_to_num(), expected[1].nan_to_num())


@pytest.mark.parametrize(
    ("lengths", "width", "tile"),
    [
        ([1, 7, 16, 3], 1, None),  # all keys in one iteration
        ([1, 17, 48, 33], 3, None),
        ([40, 2], 3, triton_step.StepTile(32, 2, 2)),
    ],
)
@pytest.mark.parametrize("group", [1, 3])
def test_step_attention(lengths, width, tile, group):
    check_step(lengths, 16 if tile is None else 32, 2, group, 16, width, tile)


def test_a_decode_step_equals_its_two_launches():
    """Row i is the token of sequence i; what is not a step attends by `q_starts`."""
    case = random_paged([1, 1], [3, 5], page_size=4)
    qkv = torch.randn(2, 8 * 16)
    rest = (*torch.rand(2, 16), *torch.rand(2, 2, 16), EPS)
    slots = torch.tensor([6, 13])
    want = case.k_cache.clone(), case.v_cache.clone()
    q, k, v = qkv.unflatten(1, (-1, 16)).split((4, 2, 2), 1)
    q = attention.qk_norm_rope_write_reference(q, k, v, *rest, *want, slots)
    of = case.tensors()[3:]
    heard = attention.paged_attention_reference(q, *want, *of, 0.25)
    caches = case.k_cache, case.v_cache
    got = attention.self_attention(qkv, *rest, *caches, slots, *of, 1, 0.25)
    assert torch.equal(got, heard.flatten(1))
    for ours, theirs in zip(caches, want, strict=True):
        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


@pytest.mark.parametrize("channels", [24, 1500])
def test_silu_mul(channels):
    gate_up = torch.randn(3, 2 * channels, device=DEVICE).to(DTYPE)
    want = attention.silu_mul_reference(gate_up)
    poison(want.shape)
    assert_near(triton_fused.silu_mul(gate_up), want)


def lengths_between(low, high, count):
    return torch.randint(low, high + 1, (count,)).tolist()


@on_gpu
@pytest.mark.parametrize("count", [1, 2, 8, 40, 256])
@pytest.mark.parametrize("longest", [20, 130, 512])
def test_prefill_at_production_size(count, longest):
    own = lengths_between(longest // 2, longest, count)
    own[count // 2] = longest
    before = lengths_between(0, 500, count)
    kv = [a + b for a, b in zip(own, before, strict=True)]
    check_paged(random_paged(own, kv, padding=77, device=DEVICE, **HEADS), longest)


@on_gpu
@pytest.mark.parametrize("count", [1, 2, 3, 8, 16, 31, 64, 512])
@pytest.mark.parametrize("longest", [64, 300, 1000])
def test_decode_at_production_size(count, longest):
    case = random_paged([1] * count, lengths_between(1, longest, count), device=DEVICE, **HEADS)
    check_paged(case, 1)
    first = triton_attention.paged_attention(*case.tensors(), 1, SCALE)
    for _ in range(200):  # Whichever program arrives last, the parts are added in one order.
        again = triton_attention.paged_attention(*case.tensors(), 1, SCALE)
        assert torch.equal(first, again)


@on_gpu
@pytest.mark.parametrize("count", [1, 2, 16, 64, 128, 512])
@pytest.mark.parametrize(("page_size", "width"), [(16, 1), (64, 2), (64, 16)])
def test_steps_at_production_size(count, page_size, width):
    check_step(lengths_between(1, page_size * width, count), page_size, 8, 2, 128, width)


@on_gpu
@pytest.mark.parametrize("heads", [14, 16])
@pytest.mark.parametrize("count", [1, 9, 256])
@pytest.mark.parametrize("longest", [13, 104])
def test_windows_at_production_size(heads, count, longest):
    lengths = lengths_between(1, longest, count)
    q, k, v, starts = random_windows(
        lengths, padding=50, heads=heads, channels=64, dtype=DTYPE, device=DEVICE
    )
    want = attention.window_attention_reference(q.float(), k.float(), v.float(), starts, 0.125)
    poison(q.shape)
    assert_near(triton_attention.window_attention(q, k, v, starts, longest, 0.125), want)


@on_gpu
@pytest.mark.parametrize("tokens", [1, 100, 25_000])
def test_fused_operations_at_production_size(tokens):
    check_norm_rope_write(tokens, 3, 16, 8, 128)
    test_rms_norm(tokens, 2048)
    gate_up = torch.randn(tokens, 2 * 3072, device=DEVICE).to(DTYPE)
    poison((tokens, 3072))
    got = triton_fused.silu_mul(gate_up)
    assert_near(got, attention.silu_mul_reference(gate_up))


@on_gpu
@pytest.mark.parametrize(("max_q", "tokens"), [(1, 4), (60, 256), (400, 1600)])
def test_one_captured_graph_serves_other_lengths(max_q, tokens):
    """Of four sequences of the graph some are empty in a replay, and the rest of q is padding."""

    def draw():
        own = [*lengths_between(1, max_q, 2), 0, max_q] if max_q > 1 else [1, 1, 0, 1]
        kv = [n + before for n, before in zip(own, lengths_between(0, 300, 4), strict=True)]
        kv[0] = own[0] + 300
        return random_paged(own, kv, padding=tokens - sum(own), device=DEVICE, **HEADS)

    pages, columns = 4 * 16 + 1, 16
    static = draw()
    caches = [static.q.new_full((pages, *static.k_cache.shape[1:]), float("nan")) for _ in "kv"]
    table = torch.zeros(4, columns, dtype=torch.int32, device=DEVICE)
    q = static.q.clone()
    inputs = (q, *caches, table, static.q_starts, static.kv_lengths)
    triton_attention.paged_attention(*inputs, max_q, SCALE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = triton_attention.paged_attention(*inputs, max_q, SCALE)
    for _ in range(5):
        case = draw()
        q.copy_(case.q)
        for cache, new in zip(caches, (case.k_cache, case.v_cache), strict=True):
            cache[: len(new)] = new
        table.zero_()
        table[:, : case.page_table.shape[1]] = case.page_table
        static.q_starts.copy_(case.q_starts)
        static.kv_lengths.copy_(case.kv_lengths)
        out.fill_(float("nan"))
        graph.replay()
        assert_near(out, reference(case))
