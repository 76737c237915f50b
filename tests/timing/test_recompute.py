"""What is made again, in seconds: against published milliseconds, against every subset, and by what must hold."""

import json
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, pairwise, product
from pathlib import Path

import pytest
from jobs import jobs

from scaleout.memory import recompute as memory
from scaleout.memory.accounts import account
from scaleout.memory.allocator import usable
from scaleout.spec.devices import DEVICES
from scaleout.spec.hardware import link
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, Shape
from scaleout.timing import compute, knapsack, machine, recompute
from scaleout.timing import job as timing_job
from scaleout.timing.knapsack import Priced, exact, greedy

SAID = json.loads((Path(__file__).parents[1] / "published" / "tensor_parallel.json").read_text())["korthikanti"]
LLAMA, H100 = PRESETS["llama-2-7b"], DEVICES["h100-sxm"]
RECIPE = Recipe("bf16-master")


def job(shape=LLAMA, batch=1, seq=4096, recipe=RECIPE, layout=None, program="megatron"):
    layout = layout or Layout()
    return Job(shape, seq, H100, cluster(1, layout.ranks), batch, layout, recipe, PROGRAMS[program])


def priced(one):
    return recompute.priced(one, machine.from_datasheet(one))


def again(one, policy):
    return recompute.again_seconds(one, machine.from_datasheet(one), policy)


# --- a job's step under a policy ------------------------------------------------------------------------------------

KEPT = [found.other(checkpointing="none") for found in jobs(30, 9) if found.layout.cp == 1]


@pytest.mark.parametrize("one", KEPT, ids=[f"{i}" for i in range(len(KEPT))])
def test_none_and_full_are_the_job_s_own_step(one):
    """To the last bit, and by what the blocks make again as well as by the recipe; what lies between costs between."""
    z, rank = recompute.sizes(one), machine.from_datasheet(one)
    none, full = timing_job.step(one), timing_job.step(one.other(checkpointing="full"))
    assert recompute.step(one, memory.none(z)) == none and recompute.step(one, memory.full(z)) == full
    block = compute.block(one, rank)
    by_hand = timing_job.step_on(
        one, rank, recompute.longer(block, recompute.repeated(one, rank, memory.full(z)).times(1 / z.chunk_layers))
    )
    assert by_hand.seconds == pytest.approx(full.seconds, rel=1e-12)
    core = recompute.step(one, memory.selective(z, {"attention"})).seconds
    assert core == pytest.approx(timing_job.step(one.other(checkpointing="selective")).seconds, rel=2e-3)
    assert none.seconds * (1 - 1e-9) <= core <= full.seconds * (1 + 1e-9)
    assert recompute.rest_seconds(one, rank) > 0, "a last matrix multiplication at least"


FLAT = [one for one in KEPT if one.layout.pp == 1][:10]


@pytest.mark.parametrize("one", FLAT, ids=[f"{i}" for i in range(len(FLAT))])
def test_a_line_of_a_few_parts_is_the_step(one):
    """Its ends to the last bit, what lies between nearly."""
    rank, z = machine.from_datasheet(one), recompute.sizes(one)
    seconds = recompute.lengthened(timing_job.step(one), rank)
    most = one.shape.layers * compute.block(one, rank).forward.seconds
    assert seconds(0.0) == timing_job.step(one).seconds
    assert seconds(most) == pytest.approx(timing_job.step(one.other(checkpointing="full")).seconds, rel=1e-12)
    for chosen in (memory.selective(z, {"attention"}), memory.selective(z, {"up"}), memory.every_kth(z, 2)):
        found = recompute.step(one, chosen).seconds
        assert seconds(recompute.again_seconds(one, rank, chosen)) == pytest.approx(found, rel=0.01)


def test_a_layer_of_22b_makes_again_in_korthikantis_milliseconds():
    """Table 4: the core of attention adds 1.3 ms to a backward, the whole layer 7.6."""
    shape = Shape(SAID["layers"], SAID["hidden"], SAID["heads"], SAID["vocab"], max_seq=SAID["seq"])
    recipe = Recipe("bf16-master", attention="naive", dropout=0.1)
    one = Job(
        shape,
        SAID["seq"],
        DEVICES[SAID["device"]],
        cluster(1, 8, SAID["inside"]),
        SAID["micro_batch"],
        Layout(tp=SAID["tp"]),
        recipe,
        PROGRAMS["megatron-2021"],
    )
    z, base = recompute.sizes(one), SAID["milliseconds"]["base"]
    for name, drop, near in (("selective", memory.core(z), 0.2), ("full", memory.names(z), 0.1)):
        found = again(one, memory.selective(z, drop)) / SAID["layers"]
        assert 1e3 * found == pytest.approx(SAID["milliseconds"][name][1] - base[1], rel=near), name


def test_tiles_and_the_rest_are_a_forward():
    for shape, dropout in product((LLAMA, PRESETS["gpt2-xl"], PRESETS["llama-3-70b"]), (0.0, 0.1)):
        one = job(shape, 1, 1024, Recipe("bf16-master", dropout=dropout))
        rank = machine.from_datasheet(one)
        whole = compute.block(one, rank).forward.seconds
        found = sum(item.seconds for item in priced(one)) + recompute.rest_seconds(one, rank)
        assert found == pytest.approx(whole) == again(one, memory.full(recompute.sizes(one))) / shape.layers
        down = compute.operations(one, rank).products["down"]
        rest = recompute.rest_seconds(one, rank)
        assert rest > (-2e-3 * whole if dropout else 0.8 * down), "whose mask is a tile that needs the last product"


def test_communication_is_made_again_where_a_sum_is():
    plain = {item.name: item.seconds for item in priced(job(layout=Layout(tp=8)))}
    rank = machine.from_datasheet(job(layout=Layout(tp=8)))
    sent = rank.tensor("all_reduce", 4096 * LLAMA.hidden * 2)
    assert plain["middle"] > sent > plain["q"], "an all-reduce that nothing hides"
    parts = job(layout=Layout(tp=8, sequence_parallel=True))
    for name, kind in (("q", "all_gather"), ("middle", "reduce_scatter"), ("gate", "all_gather")):
        found = recompute.phases(parts, machine.from_datasheet(parts))[name].exposed
        assert 0 < found < machine.from_datasheet(parts).tensor(kind, 4096 * LLAMA.hidden * 2), "chunks hide a part"


def test_a_program_turns_queries_in_one_kernel_or_in_many():
    of = partial(job, LLAMA, 1, 4096, RECIPE, None)
    eager, fused = (recompute.phases(one, machine.from_datasheet(one)) for one in map(of, ("eager", "compiled")))
    x, rate = 4096 * LLAMA.hidden * 2, machine.from_datasheet(of("eager")).rates.memory_bytes_per_s
    assert eager["q"].moves == pytest.approx(PROGRAMS["eager"].moves * 9 * x / rate)
    assert fused["q"].moves == pytest.approx(PROGRAMS["compiled"].moves * 2 * x / rate)


# --- what to drop ---------------------------------------------------------------------------------------------------


def subsets(items):
    """(bytes, seconds) of every choice of tiles, each in as many blocks as it has."""
    for counts in product(*(range(item.count + 1) for item in items)):
        yield (
            sum(n * i.bytes for n, i in zip(counts, items, strict=True)),
            sum(n * i.seconds for n, i in zip(counts, items, strict=True)),
        )


ITEMS = [Priced("a", 7, 3.0, 3), Priced("b", 5, 2.5, 2), Priced("c", 5, 2.5, 2), Priced("d", 11, 4.0, 2),
         Priced("e", 2, 9.0, 1), Priced("f", 0, 1.0, 3)]  # fmt: skip


def test_exact_is_the_best_of_all_choices_and_greedy_never_better():
    every, worse = list(subsets(ITEMS)), 0
    most = max(size for size, _ in every)
    for free in range(most + 1):
        best = min(spent for size, spent in every if size >= free)
        found, quick = exact(ITEMS, free), greedy(ITEMS, free)
        assert found.freed >= free <= quick.freed
        assert found.seconds == pytest.approx(best)
        assert quick.seconds >= found.seconds - 1e-12
        assert found.seconds == pytest.approx(sum(i.seconds * found.counts.get(i.name, 0) for i in ITEMS))
        assert all(found.counts.get(i.name, 0) <= i.count for i in ITEMS)
        worse += quick.seconds > found.seconds + 1e-9
    assert worse > 10, "what tells the two apart"
    assert exact(ITEMS, 0).counts == greedy(ITEMS, -3).counts == {}
    assert "f" not in exact(ITEMS, most).counts, "it frees nothing"
    for best in (exact, greedy):
        with pytest.raises(ValueError, match=r"dropping all frees 0\.00 GB, and 1\.00 GB are asked for: ask for less"):
            best(ITEMS, 10**9)


def test_the_front_has_no_choice_that_another_beats_and_misses_none():
    items = priced(job())
    front = knapsack.pareto(items)
    assert (front[0].names, front[0].seconds) == ((), 0.0)
    assert front[-1].freed == sum(item.bytes for item in items)
    pairs = list(pairwise(front))
    assert all(a.freed < b.freed and a.seconds < b.seconds for a, b in pairs)
    for chosen in chain.from_iterable(combinations(items, n) for n in range(len(items) + 1)):
        freed, spent = sum(i.bytes for i in chosen), sum(i.seconds for i in chosen)
        assert any(p.freed >= freed and p.seconds <= spent + 1e-15 for p in front)


def test_the_curve_is_convex_cheapest_first_and_every_order_ends_the_same():
    items = priced(job())
    curves = {order: knapsack.curve(items, order) for order in knapsack.ORDERS}
    for points in curves.values():
        assert points[0] == knapsack.Point((), 0, 0.0)
        assert points[-1].freed == curves["cheapest"][-1].freed
        assert points[-1].seconds == pytest.approx(curves["cheapest"][-1].seconds)
    cheap = curves["cheapest"]
    slopes = [(b.seconds - a.seconds) / (b.freed - a.freed) for a, b in pairwise(cheap)]
    assert all(b > a * (1 - 1e-12) for a, b in pairwise(slopes)), "but for rounding, where two tiles cost the same"
    prices = {item.name: item.price for item in priced(job(replace(LLAMA, max_seq=16_384), seq=16_384))}
    assert max(prices, key=prices.get) == "attention", "a byte of fused attention is the dearer the longer the sequence"
    assert set(cheap[5].names) == {"norm 1", "norm 2", "copy", "SiLU", "product"}
    half = next(p for p in cheap if p.freed > 0.4 * cheap[-1].freed)
    assert half.seconds < 0.15 * cheap[-1].seconds, "what is no product comes for little"
    naive = knapsack.curve(priced(job(recipe=Recipe("bf16-master", attention="naive"))))
    assert naive[-1].names.index("scores") < 6, "the scores of a naive kernel were the bargain"
    with pytest.raises(ValueError, match="order must be one of cheapest, as it runs, dearest, not 'random'"):
        knapsack.curve(items, "random")


def test_budgets_keep_at_most_their_share_in_the_fewest_seconds():
    one, shares = job(), (1.0, 0.8, 0.55, 0.3, 0.0)
    z, found = recompute.sizes(one), recompute.budgets(one, machine.from_datasheet(one), shares)
    most, least = memory.kept(z, memory.none(z)), memory.kept(z, memory.full(z))
    for share, policy in zip(shares, found, strict=True):
        assert memory.kept(z, policy) <= least + share * (most - least)
        assert [len(drop) for drop in policy.drops] == sorted(map(len, policy.drops), reverse=True)
    assert (found[0], found[-1]) == (memory.none(z), memory.full(z))
    spent = [again(one, policy) for policy in found]
    assert spent == sorted(spent)
    assert memory.kept(z, found[2]) < 0.58 * most
    assert spent[2] < 0.15 * spent[-1], "nearly half of the bytes, not of the seconds"
    with pytest.raises(ValueError, match=r"share must be a finite number from 0 to 1, not 1\.5"):
        recompute.budgets(one, machine.from_datasheet(one), (1.5,))


def test_a_policy_for_a_card_fits_it_and_costs_no_more_than_it_must():
    one = job(PRESETS["gpt2-xl"], 4, 1024)
    shape, z, rank = one.shape, recompute.sizes(one), machine.from_datasheet(one)
    most = account(shape, 4, 1024, RECIPE).peak_bytes
    least = account(shape, 4, 1024, RECIPE, policy=memory.full(z)).peak_bytes
    spent = []
    for share in (1.0, 0.9, 0.6, 0.3, 0.02):
        there = int(least + share * (most - least))
        found = {best: recompute.for_memory(one, rank, there, best) for best in (exact, greedy)}
        for policy in found.values():
            assert account(shape, 4, 1024, RECIPE, policy=policy).peak_bytes <= there
        times = [again(one, policy) for policy in found.values()]
        assert times[0] <= times[1]
        spent.append(times[0])
    assert spent[0] == 0 and spent == sorted(spent)
    assert spent[-1] < again(one, memory.full(z))
    with pytest.raises(
        ValueError,
        match=r"^even with full recomputation a step takes \d+\.\d\d GB, and 20.00 GB are "
        "there: use a smaller batch, or split the states$",
    ):
        recompute.for_memory(one, rank, 20 * 10**9)


def test_eight_cards_hold_a_batch_by_dropping_what_costs_little():
    """Llama 2 7B under FSDP, four sequences of 4,096 tokens a card: too much by a third, and 5% of the step mend it."""
    one, there = job(batch=4, layout=Layout(dp=8, zero=3)), usable(H100.memory_bytes)
    of = LLAMA, 4, 4096, RECIPE, one.layout
    assert account(*of).peak_bytes > 1.3 * there
    found = recompute.for_memory(one, machine.from_datasheet(one), there)
    assert 0.97 * there < account(*of, found).peak_bytes <= there
    plain, some, full = (
        recompute.step(one, policy).seconds
        for policy in (memory.none(recompute.sizes(one)), found, memory.full(recompute.sizes(one)))
    )
    assert some < 1.05 * plain and full > 1.2 * plain


# --- beside the other techniques ------------------------------------------------------------------------------------


def test_a_step_is_longer_by_what_is_made_again_and_mfu_falls_while_hfu_may_rise():
    one = job()
    z = recompute.sizes(one)
    none, full = (recompute.step(one, policy(z)) for policy in (memory.none, memory.full))
    assert none.mfu == none.hfu and full.mfu < none.mfu < full.hfu
    assert full.seconds - none.seconds == pytest.approx(again(one, memory.full(z)))
    assert 0.2 < full.seconds / none.seconds - 1 < 1 / 3, "a forward more, beside an update: it doubles nothing"


def test_a_pipelines_stages_carry_what_they_make_again():
    one = job(layout=Layout(pp=4, micro_batches=8))
    z = recompute.sizes(one)
    plain, full = (timing_job.step(one.other(checkpointing=how)).costs for how in ("none", "full"))
    found = recompute.pipelined(plain, [again(one, memory.full(z))] * 4)
    assert found.forward == plain.forward and found.weight == plain.weight
    assert found.input == pytest.approx(full.input)


def test_offloading_is_free_while_the_link_keeps_up():
    rate = link("pcie5").one_way_bytes_per_s * link("pcie5").reached
    assert recompute.offload(rate, rate, 1.0, 2.0) == (0, 0)
    assert recompute.offload(3 * rate, rate, 1.0, 2.0) == pytest.approx((2.0, 1.0))
    gate = next(item for item in priced(job()) if item.name == "gate")
    assert recompute.offload(gate.bytes, rate, 0, 0)[0] > 2 * gate.seconds, "on its way alone"
    with pytest.raises(ValueError, match="link_bytes_per_s must be a finite number above 0, not 0"):
        recompute.offload(1, 0, 1, 1)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: recompute.offload(-1, 1, 1, 1), "size must be a finite number from 0 up, not -1"),
        (lambda: recompute.offload(1, 1, 1, float("nan")), "backward must be a finite number from 0 up, not nan"),
        (lambda: greedy(ITEMS, float("nan")), "free must be a number of bytes, not nan"),
        (lambda: exact(ITEMS, float("nan")), "free must be a number of bytes, not nan"),
        (
            lambda: recompute.sizes(job(layout=Layout(cp=2))),
            "tiles are priced without context parallelism: use cp 1, not 2",
        ),
        (
            lambda: recompute.for_memory(job(), machine.from_datasheet(job()), float("nan")),
            "memory must be a finite number from 0 up, not nan",
        ),
    ],
)
def test_what_is_no_size_is_said_in_a_line(ask, said):
    with pytest.raises(ValueError, match=f"^{said}$"):
        ask()
