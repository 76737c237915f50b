"""Seconds of a step on a mesh, held against published runs: 50 steps on H100 and A100.

Two constants were made from the five steps of 8B (`hardware.PRODUCT_SHARES`, `mesh.STRAGGLE`), one from a layer of
another paper (`hardware.PRODUCT_SHARE`). What judges is the other 45 rows: 30 on H100, 15 on A100. How messages of
tensor parallelism overlap is what each run's configuration says. When 405B with fewer blocks, the four of 2022 and
BLOOM were first looked at, all else stood.
"""

from math import fsum, log, sqrt
from statistics import median, quantiles

import pytest
from mesh_rows import H100, PUBLISHED, a100, a100_of_2022, bloom, errors, h100, judged, run

from scaleout.memory.mesh import accounts, fullest
from scaleout.spec.hardware import DEVICES, product_share
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import flops
from scaleout.timing.mesh import BAND, PARTS, STRAGGLE, straggling
from scaleout.timing.mesh_machine import machine


def test_one_model_on_rows_that_did_not_make_it():
    """Goal: median 10%, nine of ten within 20%. Reached: 1.6% and 5.2%; the worst is 1T on A100, 16% too slow."""
    found = [abs(error) for error in judged()]
    assert len(found) == 45
    assert median(found) < 0.025 and BAND - 0.01 < quantiles(found, n=10)[-1] < BAND and max(found) < 0.16


@pytest.mark.parametrize(("name", "low", "high"), [
    ("70B", -0.02, -0.01), ("15B", -0.035, -0.015), ("405B", -0.005, 0.015), ("405B of 7 blocks", -0.02, 0.0),
    ("405B of 21 blocks", -0.01, 0.005), ("405B of 42 blocks", 0.0, 0.015), ("340B", -0.055, -0.01),
    ("175B", -0.005, 0.01),
])  # fmt: skip
def test_how_far_off_each_model_is(name, low, high):
    """15B and 340B are told too quick, and more so on large clusters. 340B ran FlashAttention 2 (NVTE_FUSED_ATTN=0),
    which is slower than the share of fused attention stands for, and selective recomputation runs it once more."""
    found = errors(name)
    assert low < min(found) and max(found) < high


def test_2021s_table_on_a100():
    """From 1.7 to 1,008 billion parameters, each with the degrees that its authors chose."""
    found = [said / ours - 1 for _, ours, said in a100()]
    assert len(found) == 10 and median(map(abs, found)) < 0.035 and max(map(abs, found)) < 0.06


def test_2022s_largest_models_are_told_too_slow():
    """One share stands for products of all sizes. A100's is of a layer 6,144 wide in eight parts; those of 530B and 1T
    are three and four times as wide, and reach more of the peak: told 8% and 16% too slow, 22B 7% too quick."""
    found = {size: said / ours - 1 for size, ours, said in a100_of_2022()}
    assert list(found.values()) == sorted(found.values())
    assert -0.07 < found[22] < -0.06 and 0.01 < found[175] < 0.02 and 0.07 < found[530] < 0.08 < found[1000] < 0.16


def test_bloom_on_another_program_and_network():
    time, said = bloom()
    assert time.blocks == tuple(PUBLISHED["bloom"]["blocks"]), "the ends have a block less, as its authors had it"
    assert time.seconds == pytest.approx(said, rel=0.015)
    assert 0.05 < time.parts["bubble"] / time.seconds < 0.09


def fit(name, shares):
    """(share, straggle) by least squares of the relative errors of a model's rows."""
    found = []
    for share in shares:
        rows = [(sqrt(2 * log(gpus)), seconds / (time.seconds - time.parts["stragglers"]) - 1)
                for gpus, time, seconds in h100(name, share)]  # fmt: skip
        straggle = max(0.0, fsum(k * y for k, y in rows) / fsum(k * k for k, _ in rows))
        found.append((fsum((straggle * k - y) ** 2 for k, y in rows), share, straggle))
    return min(found)[1:]


def test_the_two_constants_are_those_of_8b():
    assert PUBLISHED["h100"]["fitted"] == "8B" and max(map(abs, errors("8B"))) < 0.003
    share, straggle = fit("8B", [x / 1000 for x in range(570, 602, 2)])
    assert share == product_share(DEVICES["h100-sxm"]) and straggle == pytest.approx(STRAGGLE, abs=5e-5)


@pytest.mark.parametrize("name", ["70B", "15B"])
def test_any_other_model_would_have_made_constants_as_good(name):
    share, straggle = fit(name, [x / 100 for x in range(56, 64)])
    found = [abs((time.seconds - time.parts["stragglers"]) * (1 + straggle * sqrt(2 * log(gpus))) / seconds - 1)
             for other in H100 if other != name for gpus, time, seconds in h100(other, share)]  # fmt: skip
    assert median(found) < 0.025 and quantiles(found, n=10)[-1] < BAND


def lost(name):
    """(predicted, published) MFU that goes from the fewest GPUs to the most, both by the book's FLOPs."""
    ours, theirs = [], []
    for gpus, time, seconds in h100(name):
        shape, batch, seq, layout, _ = run(name, gpus)
        work = flops(shape, batch * layout.m * layout.dp, seq)
        ours.append(time.mfu)
        theirs.append((work["forward"] + work["backward"]) / seconds / gpus / 989.4e12)
    return ours[0] - ours[-1], theirs[0] - theirs[-1]


@pytest.mark.parametrize("name", ["8B", "70B", "15B", "405B", "175B"])
def test_what_a_larger_cluster_loses(name):
    """Within 1.5 points of MFU; of 340B, which loses 2.2, the model tells 0.6."""
    predicted, published = lost(name)
    assert 0 < predicted < published + 0.005
    assert predicted == pytest.approx(published, abs=0.015)


def test_340b_loses_more_than_is_told():
    predicted, published = lost("340B")
    assert 0.015 < published - predicted < 0.022


def test_parts_add_up_and_show_where_the_layouts_differ():
    found = {name: h100(name)[0][1] for name in H100}
    for time in found.values():
        assert tuple(time.parts) == PARTS and sum(time.parts.values()) == pytest.approx(time.seconds)
        assert all(part >= -1e-9 for part in time.parts.values())
    share = {name: {part: spent / time.seconds for part, spent in time.parts.items()} for name, time in found.items()}
    assert share["8B"]["bubble"] == share["8B"]["exposed tensor"] == share["15B"]["bubble"] == 0
    assert share["340B"]["imbalance"] > share["70B"]["imbalance"] > 0.03, "vocabularies of 256,000 and 128,256"
    assert share["405B"]["bubble"] > share["70B"]["bubble"] > 0
    assert share["340B"]["recompute"] > 0 == share["405B"]["recompute"]


def test_no_layout_has_a_constant_of_its_own():
    """The machine of each row differs in groups only."""
    rates = set()
    for name in H100:
        gpus = h100(name)[0][0]
        on = machine(DEVICES["h100-sxm"], cluster(gpus // 8, 8), run(name, gpus)[3])
        rates.add((on.rank.flop_per_s, on.rank.fused_flop_per_s, on.rank.memory_bytes_per_s))
    assert len(rates) == 1
    assert straggling(1) == 0 < straggling(8) < straggling(2048)


def test_what_ran_fits_but_one():
    """Of nine layouts that ran on cards of 85.5 GB eight are told to fit, with gradients in 16 bits, as 175B and 340B
    had them (of 8B, 70B and 405B the configurations say nothing), and in fp32 for 15B. 340B on two replicas is told to
    need 1% more: fused kernels keep less than torch's own operations, of which the account is."""
    card, peaks = DEVICES["h100-sxm"].memory_bytes, {}
    for name in H100:
        *job, layout, recipe = run(name, h100(name)[0][0])
        found = accounts(*job, recipe, layout)
        peaks[name] = found[fullest(found)].peak_bytes / card
    over = {name for name, share in peaks.items() if share > 1}
    assert over == {"340B"} and peaks["340B"] < 1.02
