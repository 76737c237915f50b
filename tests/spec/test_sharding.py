"""FSDP in words: units of the book's Transformer, shards, and values that cannot be."""

from math import prod

import pytest
from cases import refused

from scaleout.spec.sharding import Sharding, Unit, tensors, units
from scaleout.spec.transformer import PRESETS, Shape, preset, total_parameters

LLAMA = Shape(
    2, 64, 4, 300, kv_heads=2, ff=160, gated_mlp=True, bias=False, norm="rmsnorm", positions="rotary", tied_head=False
)
GPT = Shape(2, 64, 4, 300, max_seq=32)


@pytest.mark.parametrize("name", PRESETS)
def test_every_parameter_is_in_one_unit(name):
    shape = preset(name)
    for wrap in ("model", "block", "layer", "size"):
        parts = units(shape, Sharding(8, wrap=wrap, least_parameters=10**8))
        assert sum(unit.parameters for unit in parts) == total_parameters(shape)
        held = [tensor for unit in parts for tensor, _ in unit.tensors]
        assert len(held) == len(set(held)) and set(held) == set(tensors(shape))


@pytest.mark.parametrize("shape", [LLAMA, GPT], ids=["llama", "gpt"])
def test_tensors_are_the_models_own(shape):
    pytest.importorskip("torch")
    from scaleout.parallel.transformer import Transformer

    assert list(tensors(shape).items()) == [(n, tuple(p.shape)) for n, p in Transformer(shape).named_parameters()]


def test_units_of_each_wrapping():
    names = lambda shape, **how: [unit.name for unit in units(shape, Sharding(2, **how))]  # noqa: E731
    assert names(LLAMA, wrap="model") == [""]
    assert names(LLAMA, wrap="block") == ["", "blocks.0", "blocks.1"]
    block = [f"attention.{n}" for n in ("q", "k", "v", "out")] + [f"mlp.{n}" for n in ("gate", "up", "down")]
    assert names(LLAMA, wrap="layer") == ["", "tokens", *[f"blocks.{i}.{n}" for i in (0, 1) for n in block], "head"]
    assert names(GPT, wrap="layer")[1:3] == ["blocks.0.attention.q", "blocks.0.attention.k"]
    # 10,240 in each matrix of the MLP; q, out 4,096 and k, v 2,048 make 12,288 together
    whole = [f"blocks.{i}.{n}" for i in (0, 1) for n in ("attention", "mlp.gate", "mlp.up", "mlp.down")]
    assert names(LLAMA, wrap="size", least_parameters=10_000) == ["", "tokens", *whole, "head"]
    assert names(LLAMA, wrap="size", least_parameters=10**9) == [""]
    assert names(LLAMA, wrap="size", least_parameters=1)[0] == "", "the last norm stays, so that there is a root"


@pytest.mark.parametrize("how", [{"wrap": "layer"}, {"wrap": "size", "least_parameters": 4_000}], ids=["layer", "size"])
@pytest.mark.parametrize("shape", [LLAMA, GPT], ids=["llama", "gpt"])
def test_units_come_in_the_order_of_the_forward(shape, how):
    """Prefetching takes the next of the list, so a wrong order gathers units after they were needed."""
    torch = pytest.importorskip("torch")
    from scaleout.parallel.transformer import Transformer

    model, parts = Transformer(shape), units(shape, Sharding(2, **how))
    seen: list[str] = []
    for unit in parts:
        note = lambda module, inputs, name=unit.name: seen.append(name)  # noqa: E731
        model.get_submodule(unit.name).register_forward_pre_hook(note)
    model(torch.zeros(1, 8, dtype=torch.long))
    assert seen == [unit.name for unit in parts]


def test_shards_are_dealt_by_rows():
    """As torch's chunk: 10 rows on 4 ranks are 3, 3, 3 and 1; what is sent is padded to 3 each."""
    torch = pytest.importorskip("torch")

    unit = Unit("", (("a", (10, 5)), ("b", (3,))))
    assert unit.parameters == 53 and unit.shard(4) == 3 * 5 + 1
    assert [unit.own(4, rank) for rank in range(4)] == [16, 16, 16, 5]
    for ranks in (1, 2, 3, 4, 8, 64):
        chunks = [torch.chunk(torch.empty(size), ranks) for _, size in unit.tensors]
        own = [sum(c[rank].numel() for c in chunks if rank < len(c)) for rank in range(ranks)]
        assert [unit.own(ranks, rank) for rank in range(ranks)] == own
        assert unit.shard(ranks) == max(own) and sum(own) == sum(prod(size) for _, size in unit.tensors)


def test_worlds_and_what_is_kept():
    assert Sharding(8, 4).world == 32
    assert [Sharding(8, reshard=how).kept_ranks for how in (True, False, 4)] == [8, 1, 4]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"ranks": 0}, "ranks must be a whole number of at least 1, not 0"),
        ({"ranks": True}, "ranks must be a whole number"),
        ({"replicas": 1.5}, "replicas must be a whole number of at least 1, not 1.5"),
        ({"prefetch": -1}, "prefetch must be a whole number of at least 0"),
        ({"least_parameters": 0}, "least_parameters must be a whole number of at least 1"),
        ({"wrap": "blocks"}, "wrap must be one of model, block, layer, size, not 'blocks'"),
        ({"parameter": "fp8"}, "parameter must be one of fp32, bf16, fp16"),
        ({"reduce": None}, "reduce must be one of fp32, bf16"),
        ({"offload": 1}, "offload must be True or False, not 1"),
        ({"ranks": 8, "reshard": 3}, "reshard must be True, False or a divisor of 8 ranks"),
        ({"ranks": 8, "reshard": 8}, "between 1 and that, not 8"),
        ({"ranks": 8, "reshard": "half"}, "not 'half'"),
    ],
)
def test_one_line_says_what_is_wrong(how, said):
    refused(lambda: Sharding(**how), said)
