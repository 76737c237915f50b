"""FSDP's units in the model of its step against what torch's fully_shard does, and against published figures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from jobs import layers

from scaleout.memory.fsdp import collectives
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding, units
from scaleout.spec.topology import Cluster, Wire, wire
from scaleout.spec.transformer import PRESETS, Shape, total_parameters
from scaleout.timing.fsdp import Piece, fsdp_step, pieces, volume
from scaleout.timing.fsdp_plan import Plan
from scaleout.timing.job import step
from scaleout.timing.scaling import efficiency

FOLDER = Path(__file__).parents[1] / "published"
PUBLISHED = json.loads((FOLDER / "fsdp.json").read_text())
SCALING = json.loads((FOLDER / "fsdp_scaling.json").read_text())


# --- units, layers, torch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", ["model", "block", "layer", "size"])
@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b"])
def test_pieces_carry_all_seconds_and_all_bytes_once(name, wrap):
    shape, sharding = PRESETS[name], Sharding(ranks=8, wrap=wrap, parameter="bf16")
    rows, cut = layers(shape, 1, 64), units(PRESETS[name], sharding)
    work = pieces(rows, cut, sharding)
    assert sum(one.forward_seconds for one in work) == pytest.approx(sum(one.forward_seconds for one in rows))
    assert sum(one.backward_seconds for one in work) == pytest.approx(sum(one.backward_seconds for one in rows))
    assert {one.name for one in work} == {unit.name for unit in cut}
    assert sum(one.gather_bytes for one in work) == 2 * 8 * sum(unit.shard(8) for unit in cut)
    assert sum(one.reduce_bytes for one in work) == 8 * sum(one.shard_bytes for one in work)
    assert sum(one.host_bytes for one in work) == 4 * sum(unit.own(8) for unit in cut)
    if wrap == "block":
        ends = ["", *(f"blocks.{i}" for i in range(shape.layers)), ""]
        assert [one.name for one in work] == ends and work[-1].gather_bytes == 0
        assert work[-1].forward_seconds == pytest.approx(rows[-1].forward_seconds)


def test_a_unit_lies_around_others():
    work = (Piece("", 0, 0), Piece("tokens", 1, 1), Piece("blocks.0", 1, 1), Piece("blocks.0.mlp.up", 1, 1),
            Piece("blocks.1", 1, 1))  # fmt: skip
    plan = Plan(work)
    assert plan.names == ("", "tokens", "blocks.0", "blocks.0.mlp.up", "blocks.1")
    assert [(plan.first[u], plan.last[u]) for u in range(5)] == [(0, 4), (1, 1), (2, 3), (3, 3), (4, 4)]
    assert [plan.names[u] for u in plan.backward] == ["", "blocks.1", "blocks.0", "blocks.0.mlp.up", "tokens"]


def test_gradients_of_torch_s_own_model_arrive_in_the_order_of_the_layers():
    """Each weight's place in the backward, by hooks; q, k and v in any order, for nothing says which comes first."""
    torch = pytest.importorskip("torch")
    from scaleout.parallel.transformer import Transformer

    shape = Shape(2, 32, 4, 64, max_seq=16)
    model, arrived = Transformer(shape), []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: arrived.append(name))
    tokens = torch.zeros(1, 16, dtype=torch.long)
    torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    weights = [one.removesuffix(".weight").split(".") for one in arrived if one.endswith(".weight")]
    found = [f"block {one[1]} {one[-1]}" for one in weights if one[0] == "blocks" and "norm" not in one[-1]]
    wanted = [row.name for row in reversed(layers(shape, 1, 16)) if row.name.startswith("block")]
    assert {one[-1] for one in weights[-2:]} == {"tokens", "positions"}, "a tied embedding comes last"
    for i in range(0, len(wanted), 6):
        assert found[i : i + 3] == wanted[i : i + 3] and set(found[i : i + 6]) == set(wanted[i : i + 6])


INSTANT = lambda size: 1e-12  # noqa: E731
COUNTED = Shape(4, 16, 2, 32, max_seq=8, tied_head=False)
CASES = {
    f"{wrap} {reshard}{' all' * root}{' recompute' * (checkpointing == 'full')}": (
        Sharding(ranks=4, wrap=wrap, least_parameters=300, reshard=reshard), root, checkpointing)
    for wrap in ("model", "block", "layer", "size")
    for reshard in (True, False, 2)
    for root in (False, True)
    for checkpointing in ("none", "full")
    if reshard is True or not root
}  # fmt: skip


@pytest.fixture(scope="module")
def torch_calls():
    """By case, what torch's fully_shard asks of the process group in one step: [(collective, elements sent in)]. Four
    ranks, of which only this one exists: a fake process group counts and sends nothing."""
    torch = pytest.importorskip("torch")
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        yield {name: _calls(torch, *case) for name, case in CASES.items()}
    finally:
        dist.destroy_process_group()


def _calls(torch, sharding, root, checkpointing):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.utils._python_dispatch import TorchDispatchMode

    from scaleout.parallel.transformer import Transformer

    rows = []

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "c10d":
                out, given = [x[0] if isinstance(x, list) else x for x in args[:2]]
                name = {"_allgather_base_": "gather", "_reduce_scatter_base_": "reduce"}[func._opname]
                rows.append((name, given.numel() if name == "gather" else out.numel()))
            return func(*args, **(kwargs or {}))

    net, mesh = Transformer(COUNTED, checkpointing=checkpointing), init_device_mesh("cpu", (4,))
    for unit in sorted(units(COUNTED, sharding), key=lambda unit: -unit.name.count(".") if unit.name else 1):
        kept = {} if not (unit.name or root) else {"reshard_after_forward": sharding.reshard}
        fully_shard(net.get_submodule(unit.name), mesh=mesh, **kept)
    tokens = torch.zeros(2, 8, dtype=torch.long)
    with Calls():
        net(tokens, tokens).backward()
    return rows


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("case", CASES)
def test_collectives_in_the_order_of_torch(torch_calls, case):
    """Each collective of a step, in torch's order and with torch's number of elements."""
    sharding, root, checkpointing = CASES[case]
    cut = units(COUNTED, sharding)
    rows = layers(COUNTED, 2, checkpointing=checkpointing)
    work = pieces(rows, cut, sharding, checkpointing)
    seconds = sum(one.forward_seconds + one.backward_seconds + one.recompute_seconds for one in work)
    assert seconds == pytest.approx(sum(row.forward_seconds + row.backward_seconds for row in rows))
    found = fsdp_step(
        work, INSTANT, INSTANT, reshard=sharding.reshard, regather_seconds=INSTANT,
        reshard_root=root,
    )  # fmt: skip
    size = {Plan(work).names.index(unit.name): unit for unit in cut}
    rows = sorted((e for e in found.events if e.lane != "compute"), key=lambda e: (e.start, e.end))
    ranks = [sharding.kept_ranks if e.name.startswith("gather again") and size[e.bucket].name else 4 for e in rows]
    mine = [(e.lane, size[e.bucket].shard(p)) for e, p in zip(rows, ranks, strict=True)]
    assert mine == torch_calls[case]


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize(
    ("case", "gathers", "scatters"),
    [("block True all", 10, 5), ("block False", 5, 5), ("block True", 9, 5), ("model True all", 2, 1),
     ("layer True all", 54, 27), ("layer False", 27, 27)],
)  # fmt: skip
def test_counts_of_collectives(torch_calls, case, gathers, scatters):
    """Four blocks and the root are 5 units: 10 gathers if each is freed, 9 where the root is kept, 5 where all are."""
    sharding, root, _ = CASES[case]
    work = pieces(layers(COUNTED, 2), units(COUNTED, sharding), sharding)
    found = fsdp_step(work, INSTANT, INSTANT, reshard=sharding.reshard, reshard_root=root)
    assert (found.gathers, found.scatters) == (gathers, scatters)
    assert [name for name, _ in torch_calls[case]].count("gather") == gathers


@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("wrap", ["model", "block", "layer", "size"])
def test_time_and_memory_count_the_same_collectives(wrap, reshard):
    """`fsdp_memory.collectives` has what is allocated for messages; here they are events, and bytes that are sent."""
    shape, sharding = PRESETS["gpt2"], Sharding(4, 2, wrap, reshard=reshard, parameter="bf16")
    found = collectives(shape, sharding)
    work = pieces(layers(shape, 1, 64), units(shape, sharding), sharding)
    line = fsdp_step(work, INSTANT, INSTANT, reshard=reshard, reduce_across=INSTANT)
    assert (line.gathers, line.scatters) == (found["all_gather"]["count"], found["reduce_scatter"]["count"])
    sent = volume(shape, sharding)
    assert sent["gather"] + sent["gather again"] == found["all_gather"]["bytes"] * 3 / 4
    assert sent["reduce-scatter"] == found["reduce_scatter"]["bytes"] * 3 / 4
    assert sent["all-reduce"] == found["all_reduce"]["bytes"] * 2 / 2


def test_a_gather_in_a_smaller_group_brings_the_padding_back():
    """torch cuts the gathered tensor with its padding, not the rows anew: 77 rows on 12 ranks are 84 again on 4."""
    shape = Shape(2, 60, 5, 77)
    once, twice = (collectives(shape, Sharding(12, reshard=reshard))["all_gather"]["bytes"] for reshard in (False, 4))
    assert volume(shape, Sharding(12, reshard=4))["gather again"] == pytest.approx((twice - once) * 3 / 4)
    assert twice - once == 4 * sum(12 * unit.shard(12) for unit in units(shape, Sharding(12))[1:])


# --- published ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_bytes_sent_are_the_published_formulas(ranks):
    shape = replace(PRESETS["llama-2-7b"], vocab=32_000)  # every dimension is a multiple of 64: no padding
    m = 4 * total_parameters(shape)
    formulas = {how: words for how, words in PUBLISHED["bytes_sent"].items() if how != "note"}
    sent = {how: eval(words, {"M": m, "W": ranks, "G": 8}) for how, words in formulas.items()}
    found = volume(shape, Sharding(ranks=ranks), reshard_root=True)
    assert found["total"] == pytest.approx(sent["full_shard"]) and found["ddp"] == pytest.approx(sent["replicate"])
    assert found["gather"] == found["gather again"] == found["reduce-scatter"] == pytest.approx(found["total"] / 3)
    kept = volume(shape, Sharding(ranks=ranks, reshard=False))
    assert kept["total"] == pytest.approx(sent["replicate"]) and kept["gather again"] == 0, "what DDP sends"
    if ranks > 8:  # the paper counts (W - 1) / W of a shard; between r copies it is (r - 1) / r
        both = volume(shape, Sharding(8, ranks // 8))
        assert both["all-reduce"] == pytest.approx(sent["hybrid_across"] * (1 - 8 / ranks) / (1 - 1 / ranks))


def test_bytes_sent_with_replicas_a_small_group_and_bf16():
    shape, ranks = PRESETS["llama-2-7b"], 8
    m = 4 * total_parameters(shape)
    both = volume(shape, Sharding(ranks=ranks, replicas=16))
    assert both["all-reduce"] == pytest.approx(2 * m / ranks * 15 / 16)
    assert both["ddp"] == pytest.approx(2 * m * 127 / 128)
    few = volume(shape, Sharding(ranks=64, reshard=8), reshard_root=True)
    root = units(shape, Sharding(ranks=64))[0]
    assert few["gather again"] == pytest.approx((m - 4 * root.parameters) * 7 / 8 + 4 * root.parameters * 63 / 64)
    half = volume(shape, Sharding(ranks=ranks, parameter="bf16"))
    whole = volume(shape, Sharding(ranks=ranks))
    assert half["gather"] == whole["gather"] / 2 and half["reduce-scatter"] == whole["reduce-scatter"]
    shape = Shape(1, 6, 1, 10)
    padded = volume(shape, Sharding(ranks=4, wrap="model"))
    assert padded["gather"] > 3 * total_parameters(shape) * 4 / 4, "rows that 4 ranks cannot share evenly"


@pytest.fixture(scope="module")
def minigpt():
    """A step of GPT-175B by batch and GPUs, as section 5 of the paper ran it: minGPT, whose attention is naive and has
    dropout, in eager torch, gradients reduced in bf16."""
    run, size = PUBLISHED["gpt_175b"], PUBLISHED["gpus_per_node"]
    shape = replace(PRESETS["gpt-3-175b"], vocab=run["vocab"])
    adapter = Wire(4e-6, PUBLISHED["node_bits_per_s"] / 8 / size, "ib-hdr")  # a faster one of its kind
    recipe = Recipe("bf16-master", checkpointing="full", attention="naive", dropout=0.1)

    def job(batch, gpus):
        nodes = Cluster(gpus // size, size, wire("nvlink3"), adapter, size)
        return Job(shape, run["seq"], DEVICES[PUBLISHED["gpu"]], nodes, batch, Layout(dp=gpus, zero=3), recipe,
                   PROGRAMS["eager"])  # fmt: skip
    return job


@pytest.mark.parametrize(("batch", "off"), [(1, 0.02), (2, 0.06)])
def test_175b_on_128_to_512_gpus(minigpt, batch, off):
    """No constant was made from this run: 171 to 173 and 193 to 195 TFLOP/s a GPU, published 173 and 186. These count
    the recomputation, and hardly fall with the GPUs."""
    said = SCALING["gpt_175b"]
    found = {gpus: step(minigpt(batch, gpus)) for gpus in said["gpus"]}
    for one in found.values():
        assert abs(one.hfu * said["peak_tflops"] / said["tflops"][str(batch)] - 1) < off
    shares = efficiency({gpus: one.tokens_per_second for gpus, one in found.items()})
    assert all(abs(share - 1) < 0.02 for share in shares.values()), said["claim"]


@pytest.mark.parametrize(("batch", "gain"), [(1, 1.14), (2, 1.08)])
def test_backward_prefetch_gains_what_was_published(minigpt, batch, gain):
    """The gain was printed as one figure, about 18%, without the batch."""
    job = minigpt(batch, PUBLISHED["gpt_175b"]["gpus"])
    found = step(job.other(backward_prefetch=0)).seconds / step(job).seconds
    assert found == pytest.approx(gain, abs=0.01) and abs(found - PUBLISHED["backward_prefetch"]) < 0.11
