"""The answers of `recompute`'s exercises, against arithmetic by hand and the book's models of bytes and seconds."""

import random
from functools import partial

import answers
import pytest
from cases import each

from scaleout import exercises, views
from scaleout.exercises.recompute import beside, choose, peaks, sizes
from scaleout.exercises.recompute import fits as fits_module
from scaleout.memory import recompute as memory
from scaleout.memory.accounts import account
from scaleout.memory.activations import Sizes
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS
from scaleout.timing import compute, knapsack, machine
from scaleout.timing import recompute as timing
from scaleout.timing.knapsack import Priced

LLAMA, BF16 = PRESETS["llama-3-8b"], Recipe("bf16-master")

value = partial(answers.value, "recompute")
right = partial(answers.right, "recompute")
solution = partial(answers.solution, "recompute")
texts = partial(answers.texts, "recompute")


def test_numbers_that_follow_from_one_line_of_arithmetic():
    x = 8192 * 4096 * 2
    assert x == sizes.X and sizes.BLOCK == 1_448_148_992
    assert value("logged-mfu") == pytest.approx(0.56 * 6 / 8) and "48 / 42 = 1.14" in texts("logged-mfu")
    assert value("frozen-again") == pytest.approx(1 / (1 + 1))
    assert value("in-flight-inputs") == 4 * 8 * x + sizes.BLOCK - x
    assert value("sent-away") == pytest.approx(50e9 * 7.35e-3 / 1.448e9, rel=1e-3)


def test_a_block_keeps_what_its_operations_read():
    """By hand: tokens times 16-bit widths, the log-sum-exp of each query, two norms' numbers, the angles of q and k."""
    tokens, h, f, kv = 8192, 4096, 14336, 1024
    matrices = 2 * tokens * (6 * h + 2 * kv + 4 * f)  # norms, q, attention, its copy, middle; input; k, v; the MLP's
    remaining = sizes.BLOCK - matrices - 2 * tokens * h
    assert remaining == 4 * tokens * 32 + 2 * 4 * tokens + 2 * 2 * tokens * 128


def test_the_peak_is_the_accounts_and_moves_to_the_update():
    z = Sizes(PRESETS["gpt2-medium"], 4, 1024, BF16, Layout())
    keeps, recomputes = (
        account(PRESETS["gpt2-medium"], 4, 1024, BF16, Layout(), policy) for policy in (memory.none(z), memory.full(z))
    )
    assert (keeps.peak_moment, recomputes.peak_moment) == ("loss", "optimizer")
    assert value("peak-falls") == keeps.peak_bytes - recomputes.peak_bytes
    assert max(sum(recomputes.moments[name].values()) for name in ("head", "block", "embedding")) < sum(
        recomputes.moments["loss"].values()
    )
    n = 354_823_168  # GPT-2 medium's parameters
    assert peaks.KEEPS.states["optimizer"] == 8 * n and recomputes.moments["optimizer"]["temporaries"] == 8 * n
    text = texts("peak-falls")
    assert all(f"**{figure} GB**" in text for figure in ("5.0", "3.2", "2.5", "0.7", "2.8", "0.2", "2.2"))


def test_a_first_stage_holds_what_the_pipelines_model_says():
    layout = Layout(pp=4, micro_batches=16, schedule="1f1b")
    z = Sizes(LLAMA, 1, 8192, BF16, layout)
    peak_bytes = {
        name: max(moment.held for moment in memory.moments(z, policy(z)))
        for name, policy in (("full", memory.full), ("none", memory.none))
    }
    assert peak_bytes["full"] == value("in-flight-inputs") and f"**{peak_bytes['full'] / 1e9:.2f} GB**" in texts(
        "in-flight-inputs"
    )
    none = next(
        slip.value
        for slip in exercises.exercise("recompute", "in-flight-inputs").slips
        if slip.name == "none-made-again"
    )
    assert peak_bytes["none"] == none


def items(tiles, blocks):
    return [Priced(str(i), size, ms, blocks) for i, (size, ms) in enumerate(tiles)]


def test_the_cheapest_bytes_are_the_models_greedy_choice():
    to_drop, draw = solution("cheapest-bytes"), random.Random(9)
    cases = list(exercises.exercise("recompute", "cheapest-bytes").cases)
    for _ in range(200):
        tiles = [[draw.randint(1, 90), draw.randint(1, 997) / 10] for _ in range(draw.randint(1, 5))]
        cases.append((tiles, draw.randint(1, 6), draw.randint(0, 600)))
    for tiles, blocks, free in cases:
        counts, all_bytes = to_drop(tiles, blocks, free), sum(size for size, _ in tiles) * blocks
        expected = knapsack.greedy(items(tiles, blocks), min(free, all_bytes)).counts
        assert counts == [expected.get(str(i), 0) for i in range(len(tiles))], (tiles, blocks, free)
        assert sum(n * size for n, (size, _) in zip(counts, tiles, strict=True)) >= min(free, all_bytes)


@each(exercises.exercise("recompute", "cheapest-bytes").cases)
def test_no_two_tiles_of_a_case_have_one_price(tiles, blocks, free):
    prices = [ms / size for size, ms in tiles]
    assert len(set(prices)) == len(prices)


def test_greedy_is_a_few_per_cent_from_the_best_and_mostly_less_than_one():
    job = sizes.job()
    priced = timing.priced(job, machine.from_datasheet(job))
    excess = sorted(
        knapsack.greedy(priced, free).seconds / knapsack.exact(priced, free).seconds - 1
        for free in range(5 * 10**9, 44 * 10**9, 3 * 10**9)
    )
    assert excess[len(excess) // 2] < 0.01 and excess[0] >= 0 and excess[-1] < 0.06


def test_cheap_tiles_are_half_the_bytes_and_products_cost_about_six_times_as_much():
    job = sizes.job()
    priced = {tile.name: tile for tile in timing.priced(job, machine.from_datasheet(job))}
    cheap = [tile.price for name, tile in priced.items() if name in sizes.CHEAP]
    dear = [tile.price for name, tile in priced.items() if name not in sizes.CHEAP]
    assert 4 < min(dear) / max(cheap) < sum(dear) / len(dear) / (sum(cheap) / len(cheap)) < 8
    assert max(priced.values(), key=lambda tile: tile.price).name == "attention"
    assert "46% of the bytes are recomputed in 10% of the forward time" in texts("cheapest-bytes")
    assert "68 of 1,448 MB, for 1.0 ms" in texts("old-setting") and "4.43 GB" in texts("old-setting")


def test_what_goes_over_the_link_is_hidden_by_attention_on_long_sequences_alone():
    """Batch for batch bytes and FLOPs grow alike; with the sequence attention's FLOPs grow faster."""
    jobs = [sizes.job(), sizes.job().other(batch=4)]
    seconds = [compute.block(job, machine.from_datasheet(job)).forward.seconds for job in jobs]
    saved = [sum(tile.bytes for tile in memory.tiles(timing.sizes(job))) for job in jobs]
    assert seconds[1] / seconds[0] == pytest.approx(saved[1] / saved[0], rel=0.05), "launches are no more"
    assert beside.LINK / sizes.leaves(16 * 8192) == pytest.approx(0.72, abs=0.005)
    assert beside.LINK / sizes.leaves(32 * 8192) > 1 and "72% can go at 131,072 tokens" in texts("sent-away")
    assert "671 MB are recomputed in 0.8 ms" in texts("sent-away")


def test_each_job_makes_again_as_little_as_makes_it_fit():
    z = sizes.sizes()
    peak_bytes = {
        way: max(moment.held for moment in memory.moments(z, policy))
        for way, policy in (
            ("none", memory.none(z)),
            ("cheap", memory.selective(z, sizes.CHEAP)),
            ("all", memory.full(z)),
        )
    }
    assert choose.FREES["all"] == peak_bytes["none"] - peak_bytes["all"]
    assert choose.FREES["cheap"] == peak_bytes["none"] - memory.kept(z, memory.selective(z, sizes.CHEAP))
    choices = [job.takes() for job in choose.JOBS.values()]
    assert choices == right("which-again").split("-") == ["none", "cheap", "all", "split"]
    assert [round(100 * choose.COSTS[way]) for way in ("cheap", "all")] == [3, 27]
    same = {"model": "llama-3-8b", "seq": "8192", "batch": 1, "dp": 8, "dropped": 100}
    longer = views.render("recompute", same, advise=False)["values"]["longer_percent"]
    assert longer == pytest.approx(100 * choose.COSTS["all"]), "as the widget says"
    assert "lacks 12 GB" in texts("which-again") and choose.JOBS["B"].forward - choose.USABLE == 12e9
    assert "lacks 28" in texts("which-again") and choose.JOBS["C"].forward - choose.USABLE == 28e9


def test_the_largest_batch_is_the_accounts_and_not_the_first_steps():
    def fits(batch, first):
        moments = account(fits_module.SHAPE, batch, fits_module.SEQ, Recipe(checkpointing="full")).moments
        moments["optimizer"]["optimizer"] *= not first
        return max(sum(kinds.values()) - first * kinds["optimizer"] for kinds in moments.values()) <= fits_module.USABLE

    largest = int(value("as-many-as-fit"))
    assert fits(largest, first=False) and not fits(largest + 1, first=False)
    slips = {slip.name: int(slip.value) for slip in fits_module.BATCH.slips}
    assert fits(slips["first-step"], first=True) and not fits(slips["first-step"] + 1, first=True)
    assert f"With {largest + 1} to {slips['first-step']} it prints a loss" in texts("as-many-as-fit")
    logits = fits_module.LOSS["logits"]
    assert logits / (logits + fits_module.LOSS["activations"]) == pytest.approx(3 / 4, abs=0.01)
    none = account(fits_module.SHAPE, slips["nothing-again"] + 1, fits_module.SEQ, Recipe()).peak_bytes
    assert none > fits_module.USABLE
