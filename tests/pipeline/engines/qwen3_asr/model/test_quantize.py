"""The decoder's weights in 8 bits: what they lose, and where they are used."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from offhook.pipeline.engines.qwen3_asr.model import quantize as q  # noqa: E402
from offhook.pipeline.engines.qwen3_asr.model.checkpoint import random_model  # noqa: E402
from offhook.pipeline.engines.qwen3_asr.model.model import Qwen3Asr  # noqa: E402
from offhook.pipeline.engines.shared.qwen3.body import Batch, KVCache  # noqa: E402
from offhook.pipeline.engines.shared.qwen3.linear import CODE_ROWS, Linear  # noqa: E402
from tests.pipeline.engines.shared.model import tiny  # noqa: E402

torch.set_grad_enabled(False)
BOUNDS = {"fp8-weights": 0.03, "int8-weights": 0.012}
SCHEMES = list(q.CODES)
TOKENS = max(CODE_ROWS.values()) + 1


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(1)
    torch.set_num_threads(1)


def error(got, want):
    return ((got - want).norm() / want.norm()).item()


def restored(weight, scheme):
    codes, scales = q.quantize_rows(weight, q.CODES[scheme])
    return codes.float() * scales[:, None]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_product_is_a_little_off(scheme):
    x, weight = torch.randn(20, 256), torch.randn(96, 256)
    assert 1e-3 < error(x @ restored(weight, scheme).T, x @ weight.T) < BOUNDS[scheme]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_loud_outputs_and_loud_inputs_cost_the_others_nothing(scheme):
    """As in language models: some activations are 100 times the others, their weights are not."""
    x, weight = torch.randn(20, 256), torch.randn(96, 256)
    weight[::10] *= 1000
    x[:, 7] *= 100
    lost = x @ (restored(weight, scheme) - weight).T
    quiet, loud = torch.arange(96) % 10 > 0, torch.arange(256) == 7
    assert error(lost[:, quiet] + (x @ weight.T)[:, quiet], (x @ weight.T)[:, quiet]) < 0.05
    rest = torch.where(loud, 0.0, x)
    got, want = rest @ restored(weight, scheme).T, rest @ weight.T
    assert error(got[:, quiet], want[:, quiet]) < BOUNDS[scheme]


@pytest.mark.parametrize("dtype", list(q.LARGEST))
def test_rows_of_zeros_and_extremes(dtype):
    x = torch.tensor([[0.0, 0.0, 0.0], [1e-30, 0.0, 0.0], [3e38, -3e38, 1.0], [-2.0, 1.0, 0.5]])
    codes, scales = q.quantize_rows(x, dtype)
    assert codes.dtype == dtype
    assert scales.shape == (4,)
    assert (scales > 0).all()
    back = codes.float() * scales[:, None]
    assert back.isfinite().all()
    half_step = 0.5 if dtype == torch.int8 else 16.0  # the latter at 256 and more
    assert ((back - x).abs() <= half_step * 1.001 * scales[:, None]).all()
    largest = q.LARGEST[dtype]
    assert codes[2:].float().abs().amax(1).tolist() == [largest, largest]


# --- the model ---


def hidden(model: Qwen3Asr, tokens: int):
    """What the decoder makes of the first tokens of a sequence, in one forward."""
    cache = KVCache(model.config.decoder, 2, 32, "cpu", torch.float32)
    positions = torch.arange(tokens)
    table, starts = torch.tensor([[1]]).int(), torch.tensor([0, tokens]).int()
    batch = Batch(positions, 32 + positions, table, starts, starts[1:], tokens)
    return model.decoder(model.decoder.embed(positions), batch, cache)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_few_rows_alone_are_rounded(scheme):
    model = random_model(tiny.CONFIG, "cpu", torch.float32)
    most = CODE_ROWS[q.CODES[scheme]]
    few, many = hidden(model, most), hidden(model, TOKENS)
    q.quantize(model, scheme)
    assert 1e-5 < error(hidden(model, most), few) < 0.1
    assert torch.equal(hidden(model, TOKENS), many)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_layers_of_the_decoder_and_nothing_else(scheme):
    model = random_model(tiny.CONFIG, "cpu", torch.float32)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    q.quantize(model, scheme)
    assert all(torch.equal(model.state_dict()[name], state[name]) for name in state)
    linears = {name: part for name, part in model.named_modules() if isinstance(part, Linear)}
    for name, part in linears.items():
        assert (part.codes is not None) == name.startswith("decoder.layers.")
    assert sum(part.codes is not None for part in linears.values()) == 3 * 4
