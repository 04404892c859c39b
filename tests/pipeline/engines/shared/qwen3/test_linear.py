"""The fused products against the plain torch operations: on a GPU, or else in the interpreter."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from offhook.pipeline.engines.qwen3_asr.model import quantize  # noqa: E402
from offhook.pipeline.engines.shared.qwen3 import (  # noqa: E402
    linear,
    triton_linear,
)
from offhook.pipeline.engines.shared.qwen3.linear import Linear  # noqa: E402

GPU = torch.cuda.is_available()
EPS = 1e-6
DEVICE = "cuda" if GPU else "cpu"
DTYPE = torch.bfloat16 if GPU else torch.float32
NEAR = {"rtol": 1.6e-2, "atol": 2e-2} if GPU else {"rtol": 1e-5, "atol": 1e-5}
on_gpu = pytest.mark.skipif(not GPU, reason="needs a CUDA GPU")
CODES = [None, torch.int8, torch.float8_e4m3fn]
SHAPES = [(1024, 4096), (2048, 1024), (1024, 6144), (3072, 1024)]
LARGE_SHAPES = [(2048, 4096), (2048, 2048), (2048, 12288), (6144, 2048)]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(1)
    torch.set_num_threads(1)


def draw(*shape, scale=1.0):
    return (scale * torch.randn(shape, device=DEVICE)).to(DTYPE)


def draw_integers(*shape):
    """Small ones: sums are exact in any order, and some are equal."""
    return torch.randint(-2, 3, shape, device=DEVICE).to(DTYPE)


def make_layer(inputs, outputs, codes=None):
    """With the weight in 8 bits as well when `codes` says which."""
    layer = Linear(inputs, outputs, bias=False, dtype=DTYPE, device=DEVICE).requires_grad_(False)
    layer.weight.copy_(draw(outputs, inputs, scale=inputs**-0.5))
    if codes is not None:
        layer.codes = quantize.quantize_rows(layer.weight, codes)
    return layer


def exact(layer, x):
    """x times the weight that a decode step uses, in fp32."""
    weight = layer.weight.float()
    if layer.codes is not None:
        codes, scales = layer.codes
        weight = codes.float() * scales[:, None]
    return x.float() @ weight.T


def normed(x, weight):
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + EPS) * weight.float()).to(DTYPE)


def gated(gates):
    gate, up = gates.to(DTYPE).float().chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def assert_near(got, want):
    assert got.dtype == DTYPE
    torch.testing.assert_close(got.float(), want, **NEAR)


def poison(*shape):
    """Leaves NaN in the memory that the next tensor of this shape is likely to get."""
    del [torch.full(shape, float("nan"), dtype=DTYPE, device=DEVICE)][:]


def check_one_row(inputs, outputs, codes):
    layer = make_layer(inputs, outputs, codes)
    x, norm, residual = draw(1, inputs) + 0.3, draw(inputs, scale=0.2) + 1, draw(1, outputs)
    of = layer.codes or (layer.weight, None)
    poison(1, outputs)
    got = triton_linear.linear(x, *of, norm=norm, eps=EPS)
    assert_near(got, exact(layer, normed(x, norm)))
    poison(1, outputs // 2)
    got = triton_linear.linear(x, *of, norm=norm, eps=EPS, gated=True)
    assert_near(got, gated(exact(layer, normed(x, norm))))
    want = residual.float() + exact(layer, x)
    assert triton_linear.linear(x, *of, add_to=residual) is residual
    assert_near(residual, want)


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize(("inputs", "outputs"), [(80, 48), (256, 32)])
def test_one_row(inputs, outputs, codes):
    check_one_row(inputs, outputs, codes)


def check_few_rows(rows, inputs, outputs):
    layer = make_layer(inputs, outputs, torch.int8)
    x, residual = draw(rows, inputs), draw(rows, outputs)
    poison(rows, outputs)
    assert_near(triton_linear.few_rows(x, *layer.codes), exact(layer, x))
    want = residual.float() + exact(layer, x)
    assert triton_linear.few_rows(x, *layer.codes, residual) is residual
    assert_near(residual, want)


@pytest.mark.parametrize("rows", [2, 16])
def test_few_rows(rows):
    check_few_rows(rows, 1024, 64)


@pytest.mark.parametrize("rows", [1, 2, 16, 17, 32])
def test_argmax_takes_the_first_of_equals(rows):
    x, weight = draw_integers(rows, 64), draw_integers(141, 64)
    for same in ((7, 33), (140, 5), (0, 1), (63, 64)):
        weight[list(same)] = 2 * x[0].sign()
        got = triton_linear.argmax_linear(x, weight)
        assert got.dtype == torch.int64
        assert torch.equal(got, torch.argmax(torch.nn.functional.linear(x, weight), -1))


# --- what is called ---


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("rows", [1, 2, 16, 17])
def test_any_number_of_rows(rows, codes):
    """Also which weight it is: 8 bits are for so many rows as they are faster for."""
    layer = make_layer(512, 64, codes)
    x, norm, residual = draw(rows, 512), draw(512, scale=0.2) + 1, draw(rows, 64)
    if rows > linear.CODE_ROWS.get(codes, 0):
        layer.codes, kept = None, layer.codes
        want = exact(layer, x), exact(layer, normed(x, norm))
        layer.codes = kept
    else:
        want = exact(layer, x), exact(layer, normed(x, norm))
    assert_near(linear.norm_linear(x, norm, EPS, layer), want[1])
    assert_near(linear.norm_silu_linear(x, norm, EPS, layer), gated(want[1]))
    added = residual.float() + want[0]
    assert linear.add_linear_(residual, x, layer) is residual
    assert_near(residual, added)


@pytest.mark.parametrize("rows", [1, 32, 33])
def test_argmax_of_any_number_of_rows(rows):
    x, weight = draw_integers(rows, 64), draw_integers(141, 64)
    want = torch.argmax(torch.nn.functional.linear(x, weight), -1)
    assert torch.equal(linear.argmax_linear(x, weight), want)


@on_gpu
@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("shape", SHAPES + LARGE_SHAPES)
def test_one_row_at_production_size(shape, codes):
    check_one_row(*shape, codes)


@on_gpu
@pytest.mark.parametrize("shape", SHAPES + LARGE_SHAPES)
@pytest.mark.parametrize("rows", [2, 8, 16])
def test_few_rows_at_production_size(rows, shape):
    check_few_rows(rows, *shape)


@on_gpu
@pytest.mark.parametrize("rows", [1, 2, 16, 17, 32])
@pytest.mark.parametrize("inputs", [1024, 2048])
def test_argmax_at_production_size(rows, inputs):
    x, weight = draw(rows, inputs), draw(151936, inputs, scale=0.03)
    logits = x.float() @ weight.float().T
    got = triton_linear.argmax_linear(x, weight)
    # The order of a sum may make one of two almost equal outputs the larger.
    reached = logits.gather(1, got[:, None])[:, 0]
    torch.testing.assert_close(reached, logits.amax(1), rtol=8e-3, atol=0)
    assert (got == logits.argmax(1)).float().mean() > 0.6
    for _ in range(20):
        assert torch.equal(triton_linear.argmax_linear(x, weight), got)


@on_gpu
@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("rows", [1, 8, 32])
def test_a_captured_chain(rows, codes):
    """Layers that each read what the one before has just written, replayed with other inputs."""
    layers = [make_layer(*shape, codes) for shape in ((1024, 6144), (3072, 1024)) * 8]
    norm = draw(1024, scale=0.2) + 1

    def chain(x):
        x = x.clone()
        for up, down in zip(layers[::2], layers[1::2], strict=True):
            linear.add_linear_(x, linear.norm_silu_linear(x, norm, EPS, up), down)
        return x, linear.argmax_linear(x, layers[0].weight)

    stream = torch.cuda.Stream()
    x = draw(rows, 1024)
    with torch.cuda.stream(stream):
        chain(x)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out, ids = chain(x)
    for _ in range(10):
        x.copy_(draw(rows, 1024))
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            out.fill_(float("nan"))
            graph.replay()
            want, want_ids = chain(x)
        stream.synchronize()
        assert torch.equal(out, want)
        assert torch.equal(ids, want_ids)
