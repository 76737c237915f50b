"""Numbers of few bits in torch against `numerics`, number by number, and linear layers of them against products written
out; the ways of `precision` against what they say they are."""

import json
import math
from pathlib import Path

import pytest
import torch

from scaleout.lab import session
from scaleout.numerics import blocks
from scaleout.numerics.blocks import BLOCKS, RULES
from scaleout.numerics.formats import FORMATS
from scaleout.numerics.rounding import rounded, ulp
from scaleout.parallel import low, parity
from scaleout.parallel.precision import WAYS, PrecisionWay, refused
from scaleout.parallel.transformer import Transformer
from scaleout.spec.transformer import Shape

SHAPE = Shape(1, 32, 2, 64, max_seq=16)
CHANCE = torch.Generator().manual_seed(0)
WIDE = torch.randn(4, 96, generator=CHANCE) * torch.exp2(torch.randint(-20, 6, (4, 96), generator=CHANCE))
BATCH = torch.randint(64, (2, 2, 16), generator=CHANCE)


@pytest.mark.parametrize("name", [name for name, f in FORMATS.items() if f.signed and name != "tf32"])
def test_rounding_is_that_of_numerics(name):
    f = FORMATS[name]
    x = WIDE[WIDE.abs() < f.largest]
    assert low.rounded(x, f).tolist() == [rounded(value, f) for value in x.tolist()]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_those_of_numerics(name, rule):
    x = torch.cat([WIDE.flatten(), torch.zeros(32)]).view(-1, 32)
    wanted = blocks.quantized(x.flatten().tolist(), BLOCKS[name], rule).values
    assert torch.equal(low.quantized(x, BLOCKS[name], rule).flatten(), torch.tensor(wanted, dtype=torch.float32))


def test_by_chance_the_mean_stays_and_neighbours_are_met():
    torch.manual_seed(0)
    x = torch.tensor([1 + 2.0**-10, -0.3, 1.0, 1e-30]).repeat(40_000, 1)
    found = low.by_chance(x).float()
    assert found.mean(0).tolist() == pytest.approx(x[0].tolist(), rel=1e-4)
    f = FORMATS["bf16"]
    for column, value in zip(found.T, x[0].tolist(), strict=True):
        step = ulp(value, f)
        assert set(column.tolist()) == {end(value / step) * step for end in (math.floor, math.ceil)}


def test_blocks_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="mxfp8 has blocks of 32, which do not divide 33 numbers: pad them"):
        low.quantized(torch.ones(2, 33), BLOCKS["mxfp8"])
    with pytest.raises(ValueError, match="rule must be one of floor, up"):
        low.quantized(torch.ones(2, 32), BLOCKS["mxfp8"], "ceil")


def test_a_layer_makes_three_products_of_rounded_operands():
    """Each along what its product sums over: inputs, outputs, tokens."""
    layer = torch.nn.Linear(32, 64)
    made = low.LowLinear(layer, "mxfp8", "mxfp8-e5m2")
    x = torch.randn(2, 16, 32, generator=CHANCE, requires_grad=True)
    g = torch.randn(2, 16, 64, generator=CHANCE)
    y = made(x)
    y.backward(g)
    q, r = (lambda t: low.quantized(t, BLOCKS["mxfp8"])), (lambda t: low.quantized(t, BLOCKS["mxfp8-e5m2"]))
    flat, back = x.detach().flatten(0, 1), g.flatten(0, 1)
    assert torch.allclose(y, (q(flat) @ q(layer.weight).T).view(2, 16, 64) + layer.bias, atol=1e-6)
    assert torch.allclose(x.grad.flatten(0, 1), r(back) @ q(layer.weight.T.contiguous()).T, atol=1e-5)
    assert torch.allclose(layer.weight.grad, r(back.T.contiguous()) @ q(flat.T.contiguous()).T, atol=1e-5)
    assert torch.allclose(layer.bias.grad, back.sum(0), atol=1e-5)


def test_a_model_keeps_its_names_and_its_head():
    torch.manual_seed(0)
    model = Transformer(SHAPE)
    names = [name for name, _ in model.named_parameters()]
    low.convert(model, "fp8-tensor", "fp8-tensor-e5m2")
    assert [name for name, _ in model.named_parameters()] == names
    assert type(model.head) is torch.nn.Linear
    assert all(type(layer) is low.LowLinear for layer in (model.blocks[0].attention.q, model.blocks[0].mlp.down))


# --- attention in FP8 -------------------------------------------------------------------------------------------------

ATTENTION = json.loads((Path(__file__).parents[1] / "published" / "fp8.json").read_text())["attention"]
WIDTH, TOKENS = 128, 1024


def entries(chance):
    """N(0, 1) + N(0, 100) Bernoulli(0.001), as the paper has them."""
    normal = torch.randn(2, TOKENS, WIDTH, generator=chance, dtype=torch.float64)
    return normal[0] + 10 * normal[1] * (torch.rand(TOKENS, WIDTH, generator=chance) < 0.001)


def rotation(chance):
    """Random signs, then a Hadamard matrix over the root of its side: orthogonal, so q k does not change."""
    found = torch.ones(1, 1, dtype=torch.float64)
    while len(found) < WIDTH:
        found = torch.cat([torch.cat([found, found], 1), torch.cat([found, -found], 1)])
    return (torch.randint(0, 2, (WIDTH, 1), generator=chance) * 2 - 1) * found / WIDTH**0.5


def attention(q, k, v):
    return (q @ k.T / WIDTH**0.5).softmax(-1) @ v


def fp8(x, rows=TOKENS):
    return torch.cat([low.quantized(part, BLOCKS["fp8-tensor"]).double() for part in x.split(rows)])


def test_attention_in_fp8_is_off_by_what_flash_attention_3_has():
    """The order of each error, what a rotation is worth, and that blocks alone are worth nothing."""
    chance, errors = torch.Generator().manual_seed(0), {}
    for _ in range(4):
        q, k, v = (entries(chance) for _ in range(3))
        turn, wanted = rotation(chance), attention(q, k, v)
        tried = {
            "fp16, softmax in fp32": [x.half().double() for x in (q, k, v)],
            "fp8, a scale a tensor": [fp8(x) for x in (q, k, v)],
            "fp8, a scale a tensor, rotated": [fp8(q @ turn), fp8(k @ turn), fp8(v)],
            "fp8, scales a block": [fp8(x, 128) for x in (q, k, v)],
        }
        for name, parts in tried.items():
            errors.setdefault(name, []).append((attention(*parts) - wanted).square().mean())
    found = {name: torch.stack(rows).mean().sqrt().item() for name, rows in errors.items()}
    for name, error in found.items():
        assert ATTENTION[name] / 2.5 < error < ATTENTION[name] * 1.5, (name, error)
    plain, turned, blocks_alone = (
        found[f"fp8, {name}"] for name in ("a scale a tensor", "a scale a tensor, rotated", "scales a block")
    )
    assert 1.4 < plain / turned < ATTENTION["fp8, a scale a tensor"] / ATTENTION["fp8, a scale a tensor, rotated"] * 1.2
    assert blocks_alone == pytest.approx(plain, rel=0.2)


# --- ways -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s():
    with session.session("cpu") as place:
        yield place


@pytest.fixture(scope="module")
def ways(s):
    """{way: (losses of three steps, gradients of the first, what was built)} of those that run here."""
    found = {}
    for name in WAYS:
        if not refused(s, name):
            way = PrecisionWay(s, SHAPE, name, 1e-3)
            losses = [way.gradients(tuple(BATCH))]
            gradients = {key: g.float() for key, g in parity.gradients(way.model).items()}
            way.update()
            found[name] = losses + [way.step(tuple(BATCH)) for _ in range(2)], gradients, way.built
    return found


# Relative error of the first gradients, root mean square of all: a few times what a number of the format is off by.
NEAR = {
    "fp16": 2e-3,
    "fp16-scaled": 2e-3,
    "bf16": 2e-2,
    "accelerate-bf16": 2e-2,
    "bf16-weights": 2e-2,
    "bf16-master": 2e-2,
    "bf16-chance": 2e-2,
    "fp8": 0.1,
    "mxfp8": 0.1,
    "nvfp4": 0.3,
}


@pytest.mark.parametrize("name", NEAR)
def test_gradients_are_fp32s_as_far_as_the_format_goes(ways, name):
    wanted, found = ways["fp32"][1], ways[name][1]
    off = torch.cat([(found[key] - w).flatten() for key, w in wanted.items()]).norm()
    error = (off / torch.cat([w.flatten() for w in wanted.values()]).norm()).item()
    assert NEAR[name] / 200 < error < NEAR[name], "an error of zero would say that nothing was rounded"
    assert ways[name][0] == pytest.approx(ways["fp32"][0], rel=0.01)


def test_accelerate_does_what_torch_amp_does(ways):
    assert ways["accelerate-bf16"][0] == ways["bf16"][0]


def test_each_says_what_it_is(ways):
    assert ways["bf16"][2] == ("Transformer by torch: weights float32, Linear, matmuls in bf16, no loss scale")
    assert "weights bfloat16, Linear, no autocast" in ways["bf16-weights"][2]
    assert "LowLinear, no autocast" in ways["nvfp4"][2]
    assert ways["fp16-scaled"][2].endswith("matmuls in fp16, loss scale 65,536")
    assert ways["accelerate-bf16"][2].startswith("Transformer by accelerate: weights float32")


def test_small_updates_vanish_in_bf16_but_not_by_chance_or_with_copies(s):
    """Twenty steps of a rate that moves few weights by more than half a step of bf16."""
    losses = {}
    for name in ("fp32", "bf16-weights", "bf16-master", "bf16-chance"):
        way = PrecisionWay(s, SHAPE, name, 1e-5)
        for _ in range(20):
            way.step(tuple(BATCH))
        losses[name] = way.loss(*BATCH).item()
    start = PrecisionWay(s, SHAPE, "fp32").loss(*BATCH).item()
    learned = {name: start - loss for name, loss in losses.items()}
    assert learned["bf16-weights"] < 0.5 * learned["fp32"]
    assert learned["bf16-master"] == pytest.approx(learned["fp32"], rel=0.5)
    assert learned["bf16-chance"] == pytest.approx(learned["fp32"], rel=0.5)


def test_a_scaler_leaves_out_a_step_that_overflows(s):
    way = PrecisionWay(s, SHAPE, "fp16-scaled", scaler={"init_scale": 2.0**40})
    before = [p.detach().clone() for p in way.training.trained]
    way.gradients(tuple(BATCH))
    way.update()
    assert way.skipped
    assert way.scale == 2.0**39
    assert all(torch.equal(p, old) for p, old in zip(way.training.trained, before, strict=True))


def test_what_cannot_run_here_says_why(s):
    with pytest.raises(ValueError, match="Accelerate accepts mixed_precision fp16 on a CPU and silently trains"):
        PrecisionWay(s, SHAPE, "accelerate-fp16")
    with pytest.raises(ValueError, match="way 'fp4' is unknown: use one of fp32, bf16"):
        PrecisionWay(s, SHAPE, "fp4")


def test_accelerate_trains_in_fp32_where_fp16_was_asked_for_on_a_cpu():
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    found = Accelerator(cpu=True, mixed_precision="fp16")
    assert (found.mixed_precision, found.native_amp, found.scaler) == ("fp16", False, None)
    assert found.prepare(torch.nn.Linear(2, 2))(torch.ones(1, 2)).dtype is torch.float32
    AcceleratorState._reset_state(reset_partial_state=True)


def test_another_precision_than_asked_for_is_an_error(s):
    way = PrecisionWay(s, SHAPE, "fp32")
    way.model.to(torch.bfloat16)
    with pytest.raises(RuntimeError, match=r"asked for weights in torch\.float32, and got .*: weights bfloat16"):
        way.assert_built()
