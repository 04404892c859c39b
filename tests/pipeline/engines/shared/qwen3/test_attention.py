"""The plain torch operations against loops over single tokens in fp64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from offhook.pipeline.engines.shared.qwen3 import attention  # noqa: E402
from tests.pipeline.engines.shared.model.attention_cases import random_paged, random_windows  # noqa: E402

torch.set_num_threads(1)
SCALE = 0.3
EPS = 1e-6


def softmax_mean(query, keys, values):
    """[D], [n, D], [n, D] -> [D] in fp64."""
    scores = keys @ query * SCALE
    weights = np.exp(scores - scores.max())
    return weights @ values / weights.sum()


sequences = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 20)), max_size=4)


@settings(max_examples=60)
@given(
    sequences=sequences,
    padding=st.integers(0, 3),
    page_size=st.integers(1, 8),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_a_query_sees_the_cache_up_to_its_own_position(
    sequences, padding, page_size, kv_heads, group, seed
):
    torch.manual_seed(seed)
    case = random_paged(
        [own for own, _ in sequences],
        [own + before for own, before in sequences],
        padding=padding,
        page_size=page_size,
        kv_heads=kv_heads,
        group=group,
        channels=8,
    )
    out = attention.paged_attention(*case.tensors(), max_q=6, scale=SCALE)
    q, k_cache, v_cache = (x.double().numpy() for x in (case.q, case.k_cache, case.v_cache))
    row = 0
    for pages, (own, before) in zip(case.page_table.numpy(), sequences, strict=True):
        for position in range(before, before + own):
            keys = [(pages[n // page_size], n % page_size) for n in range(position + 1)]
            for head in range(kv_heads * group):
                k = np.array([k_cache[at][head // group] for at in keys])
                v = np.array([v_cache[at][head // group] for at in keys])
                want = softmax_mean(q[row, head], k, v)
                np.testing.assert_allclose(out[row, head], want, rtol=1e-4, atol=1e-5)
            row += 1
    assert len(out) == row + padding
    assert not out[row:].any()


def test_a_query_without_a_cache_gets_zeros():
    case = random_paged([1, 1], [0, 3])
    out = attention.paged_attention(*case.tensors(), max_q=1, scale=SCALE)
    assert not out[0].any()
    assert out[1].all()


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 9), max_size=4),
    padding=st.integers(0, 3),
    seed=st.integers(0, 2**31),
)
def test_a_token_sees_its_window_and_no_other(lengths, padding, seed):
    torch.manual_seed(seed)
    q, k, v, starts = random_windows(lengths, padding=padding)
    out = attention.window_attention(q, k, v, starts, max_len=9, scale=SCALE)
    q, k, v = (x.double().numpy() for x in (q, k, v))
    for start, length in zip(starts.tolist(), lengths, strict=False):
        window = slice(start, start + length)
        for row in range(start, start + length):
            for head in range(q.shape[1]):
                want = softmax_mean(q[row, head], k[window, head], v[window, head])
                np.testing.assert_allclose(out[row, head], want, rtol=1e-4, atol=1e-5)
    assert len(out) == sum(lengths) + padding
    assert not out[sum(lengths) :].any()


def test_write_kv_fills_the_slots_and_nothing_else():
    k, v = torch.randn(2, 3, 2, 8)
    k_cache, v_cache = torch.zeros(2, 4, 4, 2, 8)
    attention.write_kv(k, v, k_cache, v_cache, torch.tensor([7, 12, 4]))
    assert torch.equal(k_cache.view(16, 2, 8)[[7, 12, 4]], k)
    assert torch.equal(v_cache[1, 3], v[0])
    assert k_cache.count_nonzero() == v_cache.count_nonzero() == k.numel()


def test_rms_norm_makes_the_mean_square_one():
    x, weight = torch.randn(5, 24), torch.rand(24)
    out = attention.rms_norm(x, weight, EPS) / weight
    torch.testing.assert_close(out.square().mean(-1), torch.ones(5))
    torch.testing.assert_close(out / out[:, :1], x / x[:, :1])


def test_rotation_is_that_of_complex_numbers_after_the_norm():
    q, k = torch.randn(5, 4, 8), torch.randn(5, 2, 8)
    q_weight, k_weight = torch.rand(2, 8)
    angle = torch.rand(5, 4) * 6
    cos, sin = (torch.cat((x, x), -1) for x in (angle.cos(), angle.sin()))
    rotated = attention.qk_norm_rope(q, k, q_weight, k_weight, cos, sin, EPS)
    for x, weight, out in zip((q, k), (q_weight, k_weight), rotated, strict=True):
        y = x / x.square().mean(-1, keepdim=True).sqrt() * weight
        y = torch.complex(y[..., :4], y[..., 4:]) * torch.polar(torch.ones(5, 1, 4), angle[:, None])
        torch.testing.assert_close(out, torch.cat((y.real, y.imag), -1))


def test_silu_mul_gates_the_second_half_with_the_first():
    gate_up = torch.randn(5, 12)
    gate, up = gate_up[:, :6], gate_up[:, 6:]
    torch.testing.assert_close(attention.silu_mul(gate_up), gate / (1 + torch.exp(-gate)) * up)
