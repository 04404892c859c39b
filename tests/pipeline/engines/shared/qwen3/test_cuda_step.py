"""One row in one launch against the kernels of many rows, on a GPU."""

import pytest

torch = pytest.importorskip("torch")

from offhook.pipeline.engines.shared.qwen3 import (  # noqa: E402
    cuda_step,
    sampling,
)
from offhook.pipeline.engines.shared.qwen3.body import Batch, Body, KVCache  # noqa: E402
from offhook.pipeline.engines.shared.qwen3.config import DecoderConfig  # noqa: E402
from offhook.pipeline.engines.shared.qwen3.sampling import Draw  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SMALL = DecoderConfig(1024, 3072, 3, 16, 8, 128)
LARGE = DecoderConfig(2048, 6144, 3, 16, 8, 128)
PAGE = 64
NEARLY = 0.1
"""Logits in bf16 differ so much: what is nearly equal is kept, and drawn, either way."""


def make_body(config):
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            body = Body(config).requires_grad_(False)
    finally:
        torch.set_default_dtype(torch.float32)
    for parameter in body.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0, 0.05)
    return body


def make_cache(config, pages):
    cache = KVCache(config, pages, PAGE, "cuda", torch.bfloat16)
    cache.k.normal_()
    cache.v.normal_()
    return cache


def one_token(length, pages, page_size=PAGE):
    """The last of so many tokens of a sequence in these pages."""
    at = length - 1

    def on_gpu(values, dtype):
        return torch.tensor(values, dtype=dtype, device="cuda")

    return Batch(
        positions=on_gpu([at], torch.int64),
        slots=on_gpu([pages[at // page_size] * page_size + at % page_size], torch.int64),
        page_table=on_gpu([pages], torch.int32),
        q_starts=on_gpu([0, 1], torch.int32),
        kv_lengths=on_gpu([length], torch.int32),
        max_q=1,
    )


def near(got, wanted):
    error = (got.float() - wanted.float()).norm() / wanted.float().norm()
    return error.item() < 0.02


@pytest.mark.parametrize("config", [SMALL, LARGE])
@pytest.mark.parametrize("length", [1, 2, 64, 65, 200, 1025, 2000])
def test_a_row_alone_is_as_among_others(config, length):
    body = make_body(config)
    pages = torch.randperm(32)[:32].add(1).tolist()
    batch = one_token(length, pages)
    x = torch.randn(1, config.hidden_size, device="cuda").bfloat16()
    cache = make_cache(config, 33)
    wanted = body(x.clone(), batch, cache)
    k, v = cache.k.clone(), cache.v.clone()

    cuda_step.fuse_steps(body)
    assert body.alone is not None
    got = body(x.clone(), batch, cache)

    assert near(got, wanted)
    assert near(cache.k, k)
    assert near(cache.v, v)
    assert all(torch.equal(body(x.clone(), batch, cache), got) for _ in range(20))


@pytest.mark.parametrize("talker", [1024, 2048])
def test_the_codes_of_a_frame_are_those_of_the_kernels_of_many_rows(talker):
    config = DecoderConfig(1024, 3072, 5, 16, 8, 128)
    body = make_body(config)

    def random(*shape):
        return torch.randn(shape, device="cuda").bfloat16()

    projection = None
    if talker != 1024:
        projection = torch.nn.Linear(talker, 1024, device="cuda", dtype=torch.bfloat16)
        projection.requires_grad_(False)
    first_table, tables = random(3073, 1024), random(15, 2049, 1024)
    heads = random(15, 2048, 1024) * 0.02
    predictor = cuda_step.Predictor(body, projection, first_table, tables, heads)
    hidden = random(1, talker)
    seen = torch.zeros(1, 3072, dtype=torch.bool, device="cuda")

    code = torch.arange(2048, device="cuda")
    for seed in range(5):
        one = torch.ones(1, dtype=torch.int64, device="cuda")
        hot, k = 0.9 * one.float(), 50 * one
        draw = Draw(seed * one, (seed + 3) * one, hot, k, hot, seen, hot, k)
        codes = predictor(hidden, 7 * one, draw)
        cache = KVCache(config, 2, 16, "cuda", torch.bfloat16)
        x = projection(hidden) if projection else hidden
        for step in range(16):
            if step:
                said = codes[0, step - 1]
                x = (first_table if step == 1 else tables[step - 2])[said][None]
            # The same codes are said to both, so that a draw between equals does not spread.
            y = body(x.clone(), one_token(step + 1, [1], 16), cache)
            if step:
                logits = (y @ heads[step - 1].T).float()[0]
                noise = sampling.gumbel(sampling.uniform(seed * one, (seed + 3) * one, step, 2048))
                scores = logits / 0.9 + noise[0]
                least, own = logits.topk(50).values[-1], code == codes[0, step]
                assert logits[own].item() > least.item() - NEARLY
                surely = scores[logits > least + NEARLY]
                assert scores[own].item() > surely.max().item() - NEARLY
        assert all(torch.equal(predictor(hidden, 7 * one, draw), codes) for _ in range(20))
