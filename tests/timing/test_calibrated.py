"""A machine from the seconds that calibrate measured: a made-up one comes out with the constants that it was made of.

Its linear layers, attention, norms, updates and host take exactly what a formula says; so the fit must find the
formula, and each of its constants must reach the seconds of a step.
"""

from dataclasses import replace
from itertools import product

import pytest
import samples

from scaleout.records import profiles
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import EAGER, MEASURED
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import Shape
from scaleout.timing import calibrated, job, machine, passes
from scaleout.timing.calibrated import fit, profile_rates

SHAPE = Shape(4, 160, 5, 256, max_seq=128)
KERNEL, THIN, FLOP, OPERAND, BYTE = 5e-6, 2e-11, 1e-11, 1e-10, 1e-10
LINEAR, TIMES, TENSOR, PARAMETER = 2e-5, 1.25, 3e-5, 4e-9
CALL, QUERY, NUMBER, SCORE, ATTEND = (3e-5, 9e-5), (5e-8, 1e-7), (2e-9, 1e-9), (2e-9, 4e-9), (2e-12, 1e-12)
BLOCK, ENDS = (2e-4, 3e-4), (4e-4, 1e-4)


def multiplied(m, n, k):
    return KERNEL + 2 * m * n * (THIN + k * FLOP) + 4 * (m * k + k * n + m * n) * OPERAND


def kernels(**other):
    """What calibrate would have measured of the machine of these constants."""
    matmul = [
        {
            "rows": m,
            "columns": n,
            "depth": k,
            "forward": multiplied(m, n, k),
            "backward": LINEAR + TIMES * (multiplied(m, k, n) + multiplied(k, n, m)),
        }
        for m, k in product((512, 64), (160, 64))
        for n in (k, 4 * k)
    ]
    attention = []
    for queries, seq, head in product((2560, 10240), (128, 32), (32, 8)):
        seconds = [
            CALL[i]
            + queries * (QUERY[i] + head * NUMBER[i] + seq * SCORE[i])
            + times * 2 * queries * seq * head * ATTEND[i]
            for i, times in enumerate((1, 2.5))
        ]
        attention.append({"queries": queries, "seq": seq, "head": head, "forward": seconds[0], "backward": seconds[1]})
    moved = [
        {"kernels": n, "bytes": size, "seconds": n * KERNEL + EAGER.moves * size * BYTE}
        for n, size in ((2, 10**6), (4, 10**5), (1, 10**7))
    ]
    update = [
        {"tensors": n, "parameters": size, "seconds": n * TENSOR + size * PARAMETER}
        for n, size in ((48, 3072), (12, 10**6))
    ]
    linear = KERNEL, LINEAR + 2 * TIMES * KERNEL
    host = [
        {"layers": n}
        | {
            name: n * (BLOCK[i] + 6 * linear[i] + CALL[i]) + ENDS[i] + linear[i]
            for i, name in enumerate(("forward", "backward"))
        }
        for n in (1, 8)
    ]
    return {
        "matmul": {"fp32": matmul},
        "attention": {"fp32": attention},
        "moved": moved,
        "update": {"foreach": update, "single": update},
        "host": host,
    } | other


def profile(**other):
    rates = {"copy_bytes_per_second": 2e10, "matmul_flops_per_second": {"fp32": 9e10}, "kernels": kernels()}
    return samples.profile(**rates | other)


def small(**other):
    return Job(
        SHAPE, 128, machine.device_of(profile()), cluster(1, 2), 4, Layout(dp=2), Recipe("fp32"), MEASURED
    ).other(**other)


def seconds(found, task=None):
    task = task or small()
    return job.step_on(task, machine.from_profiles(task, {task.layout.ranks: found}))


def test_the_constants_of_a_made_up_machine_come_out():
    rates = profile_rates(profile())
    assert rates.peak == 9e10
    assert rates.matmul_flop_per_s == pytest.approx(1 / FLOP, rel=1e-6)
    assert rates.depth == pytest.approx(THIN / FLOP, rel=1e-6)
    assert rates.kernel_seconds == pytest.approx(KERNEL, rel=1e-6)
    assert rates.operand_seconds == pytest.approx(OPERAND, rel=1e-6)
    assert rates.memory_bytes_per_s == pytest.approx(1 / BYTE, rel=1e-6)
    assert (rates.linear_seconds, rates.backward_times) == (pytest.approx(LINEAR), pytest.approx(TIMES))
    assert rates.block_seconds == pytest.approx(BLOCK, rel=1e-6)
    assert rates.ends_seconds == pytest.approx(ENDS, rel=1e-6)
    assert rates.tensor_seconds == pytest.approx(TENSOR)
    assert EAGER.update_passes * 28 / rates.update_bytes_per_s == pytest.approx(PARAMETER)
    for name, wanted in (("call", CALL), ("query", QUERY), ("number", NUMBER), ("score", SCORE)):
        assert getattr(rates.overhead, name) == pytest.approx(wanted, rel=1e-3)
    assert rates.attention_flop_per_s == pytest.approx([1 / one for one in ATTEND], rel=1e-2)


def test_what_was_measured_is_what_is_predicted():
    """Sizes that were not measured, too: the formula holds for all."""
    rates = profile_rates(profile())
    assert rates.matmul(300, 700, 90, 4) == pytest.approx(multiplied(300, 700, 90))
    back, weights = rates.backward(300, 700, 90, 4)
    assert weights == pytest.approx(TIMES * multiplied(90, 700, 300))
    assert back == pytest.approx(LINEAR + TIMES * multiplied(300, 90, 700) + weights)
    for phase, found in enumerate(rates.attention(4 * 20 * 64**2 * 16, 64, 16, 20)):
        queries, times = 20 * 64, (1, 2.5)[phase]
        wanted = CALL[phase] + queries * (QUERY[phase] + 16 * NUMBER[phase] + 64 * SCORE[phase])
        assert found == pytest.approx(wanted + times * 2 * queries * 64 * 16 * ATTEND[phase], rel=1e-6)


def test_a_step_by_hand():
    """Of one process: its blocks, its ends, its update, each by the made-up machine's constants."""
    alone = small(dp=1, cluster=cluster(1, 1))
    found = seconds(profile(world=1), alone)
    tokens, h, f, v = 512, 160, 640, 256
    forward = 4 * multiplied(tokens, h, h) + multiplied(tokens, f, h) + multiplied(tokens, h, f) + BLOCK[0]
    queries = 4 * 5 * 128
    forward += CALL[0] + queries * (QUERY[0] + 32 * NUMBER[0] + 128 * SCORE[0] + 2 * 128 * 32 * ATTEND[0])
    stream = 4 * tokens * h
    forward += EAGER.moves * BYTE * stream * (2 * passes.STREAM[0] + 4 * passes.GELU[0])
    assert found.work[0].forward_seconds == pytest.approx(forward, rel=1e-6)
    last = multiplied(tokens, v, h) + ENDS[0] + EAGER.moves * BYTE * 5 * 4 * tokens * v
    assert found.work[2].forward_seconds == pytest.approx(last, rel=1e-6)
    tensors = 4 * (4 + 6 * 2) + 2 + 2  # norms and linears with biases, norm, tables
    assert found.parts["update"] == pytest.approx(tensors * TENSOR + alone.rank_parameters() * PARAMETER, rel=1e-6)
    assert found.parts["launches"] == pytest.approx(4 * sum(BLOCK) + sum(ENDS))


@pytest.mark.parametrize(
    ("kind", "part"),
    [("matmul", "compute"), ("attention", "compute"), ("moved", "compute"), ("update", "update"), ("host", "launches")],
)
def test_each_measured_quantity_reaches_the_step(kind, part):
    """All that was measured of one kind twice as long: the step is longer, and in that part."""
    spans = ("forward", "backward", "seconds")

    def slower(found):
        if isinstance(found, list):
            return [{name: value * (1 + (name in spans)) for name, value in one.items()} for one in found]
        return {name: slower(one) for name, one in found.items()}

    usual, slow = seconds(profile()), seconds(profile(kernels=kernels(**{kind: slower(kernels()[kind])})))
    assert slow.seconds > usual.seconds
    assert slow.parts[part] > 1.05 * usual.parts[part]
    assert slow.parts["exposed data"] == pytest.approx(usual.parts["exposed data"])


def test_messages_come_on_top():
    usual = seconds(profile())
    line = {"alpha_seconds": 2e-3, "seconds_per_byte": 2e-9}
    slow = seconds(profile(collectives=dict.fromkeys(profiles.COLLECTIVES, line)))
    assert slow.parts["exposed data"] == pytest.approx(2 * usual.parts["exposed data"])
    assert slow.parts["compute"] == pytest.approx(usual.parts["compute"])


EXCHANGE = {"forward": (3e-4, 1e-10), "backward": (5e-4, 4e-10), "rest": (1e-4, 2e-10)}
STEPS = 4e-5, 5e-9  # seconds of a tensor and of a parameter


def measured_ways(*names):
    """What calibrate would have measured of ways to keep replicas that take exactly this."""
    points = []
    for n, size in ((5, 10**5), (5, 10**6), (9, 10**7)):
        point = {"units": n, "bytes": size, "tensors": 12 * n, "parameters": size / 4}
        point |= {phase: n * unit + size * byte for phase, (unit, byte) in EXCHANGE.items()}
        points.append(point | {"update": 12 * n * STEPS[0] + size / 4 * STEPS[1]})
    return profile(kernels=kernels(units=dict.fromkeys(names, points)))


@pytest.mark.parametrize(
    ("zero", "flat", "name", "forwards", "backwards"),
    [
        (0, False, "ddp", 3, 1),
        (1, False, "stage 1", 3, 1),
        (2, False, "stage 2", 3, 3),
        (3, True, "stage 3", 3, 3),
        (3, False, "fully_shard", 3, 3),
    ],
)
def test_a_way_that_was_measured_whole_is_what_is_exposed(zero, flat, name, forwards, backwards):
    """Per unit of weights and per byte of them, in each micro-batch that gathers or reduces; the optimizer's step is
    of the parameters that a rank owns, and other ways of the profile do not matter."""
    task = small(zero=zero, micro_batches=3, program=replace(MEASURED, flat=flat))
    found, size, n = seconds(measured_ways(name), task), 4 * task.rank_parameters(), SHAPE.layers + 1
    phases = {phase: n * unit + size * byte for phase, (unit, byte) in EXCHANGE.items()}
    wanted = forwards * phases["forward"] + backwards * phases["backward"] + phases["rest"]
    assert found.parts["exposed data"] == pytest.approx(wanted, rel=1e-6)
    owned = task.rank_parameters() / (2 if zero else 1)
    update = 68 * STEPS[0] + owned * STEPS[1]  # norms and linears with biases, norm, tables
    assert found.parts["update"] == pytest.approx(update, rel=1e-6)
    assert found.seconds == pytest.approx(sum(found.parts.values()))
    others = {"ddp", "stage 1", "stage 2", "stage 3", "fully_shard"} - {name}
    assert seconds(measured_ways(*others), task).parts["update"] != pytest.approx(update, rel=0.01)


def test_groups_that_are_not_all_ranks_were_not_measured_whole():
    known = measured_ways("ddp", "stage 1", "fully_shard")
    four = replace(SHAPE, heads=4)
    for task in (small(shape=four, dp=1, tp=2), small(shards=1, zero=3)):
        assert machine.from_profiles(task, {task.layout.ranks: known}).exchange is None
    assert machine.from_profiles(small(), {2: known}, share=0.5).exchange is None, "a share stands for everything"


def test_kernels_of_a_whole_model_take_longer_than_alone():
    """Forward and backward so many times as long, and nothing else."""
    usual, slow = seconds(profile()), seconds(profile(kernels=kernels(together=1.25)))
    for part in ("compute", "launches"):
        assert slow.parts[part] == pytest.approx(1.25 * usual.parts[part], rel=1e-6)
    for part in ("exposed data", "update"):
        assert slow.parts[part] == pytest.approx(usual.parts[part])


def test_the_optimizer_steps_tensors_one_by_one_or_at_once():
    each = [one | {"seconds": 3 * one["seconds"]} for one in kernels()["update"]["single"]]
    found = profile(kernels=kernels(update={"foreach": kernels()["update"]["foreach"], "single": each}))
    single = small(recipe=Recipe("fp32", foreach=False))
    assert seconds(found, single).parts["update"] == pytest.approx(3 * seconds(found).parts["update"])
    apart = small(recipe=Recipe("fp32"), zero=1)
    assert job.stepped(apart) == job.stepped(small()) / 2, "each rank steps its own tensors"


def test_an_older_profile_is_read_and_says_so():
    """One rate of matrix multiplications and one of copies stand for everything."""
    old = {name: value for name, value in profile().items() if name != "kernels"}
    profiles.validate(old)
    rates = profile_rates(old)
    assert (rates.matmul_flop_per_s, rates.memory_bytes_per_s, rates.kernel_seconds) == (9e10, 2e10, 0.0)
    assert rates.updated(2e10) == 1.0
    assert "an older one" in calibrated.lacking(old)[0] and not calibrated.lacking(profile())
    assert not calibrated.lacking(None)
    assert seconds(old).parts["launches"] == 0.0


def test_a_part_that_is_missing_falls_back():
    """A dtype that was too slow to be timed further has the rate of its large matrix multiplications."""
    found = profile(matmul_flops_per_second={"fp32": 9e10, "bf16": 1e9})
    rates = profile_rates(found, "bf16")
    assert (rates.peak, rates.matmul_flop_per_s) == (1e9, pytest.approx(1e9))
    assert rates.attention_flop_per_s == pytest.approx((1e9, 1e9))
    assert rates.memory_bytes_per_s == pytest.approx(1 / BYTE), "what moves bytes was measured in fp32"
    bare = profile_rates(profile(kernels={"moved": kernels()["moved"]}))
    assert bare.matmul_flop_per_s == pytest.approx(9e10)
    assert (bare.depth, bare.tensor_seconds, bare.block_seconds) == (0.0, 0.0, (0.0, 0.0))


def test_a_share_that_was_seen_stands_for_all_kernels():
    rates = profile_rates(profile(), "fp32", 0.5)
    assert rates.matmul_flop_per_s == 4.5e10 and rates.kernel_seconds == 0.0 and rates.overhead.call == (0.0, 0.0)
    with pytest.raises(ValueError, match="share"):
        profile_rates(profile(), "fp32", 0)


def test_ranks_that_share_cores_have_no_bubble():
    piped = Job(
        replace(SHAPE, layers=4),
        128,
        machine.device_of(profile()),
        cluster(1, 2),
        2,
        Layout(pp=2, micro_batches=4, schedule="1f1b"),
        Recipe("fp32"),
        MEASURED,
    )
    found = seconds(profile(), piped)
    assert found.parts["bubble"] > 0.0
    assert found.crowded == pytest.approx(found.seconds - found.parts["bubble"] - found.parts["imbalance"])
    assert seconds(profile()).crowded == seconds(profile()).seconds


def test_a_queue_hides_the_host_behind_kernels():
    """On a GPU the host launches ahead: it shows only where it takes longer than the kernels."""
    gpu = profile(device_kind="cuda")
    assert seconds(profile()).parts["launches"] > 0.0
    assert seconds(gpu).parts["launches"] == 0.0, "0.5 ms of host beside several of kernels"
    tiny = small(shape=Shape(4, 16, 2, 16, max_seq=8), seq=8, batch=1)
    found, cpu = seconds(gpu, tiny), seconds(profile(), tiny)
    assert found.parts["launches"] > 0.0
    assert found.seconds == pytest.approx(cpu.seconds, rel=0.15), "a model of no arithmetic is all host on either"


def test_the_fit_leaves_out_what_would_be_negative():
    rows = [(1, size) for size in (1e3, 1e6, 1e7)]
    assert fit(rows, [2e-3 + 1e-9 * size for _, size in rows], 2) == pytest.approx((2e-3, 1e-9))
    first, each = fit(rows, [4e-6, 1e-3, 3e-2], 2)
    assert first >= 0.0 and each > 0.0
    assert fit([], [], 3) == (0.0, 0.0, 0.0)
    assert fit([(1, 2)], [4.0], 2) in {(4.0, 0.0), (0.0, 2.0)}, "one measurement, one constant"


@pytest.mark.parametrize(
    "wrong", [{"moved": [{"seconds": 0.0}]}, {"host": [{"layers": -1}]}, {"update": "fast"}, [None]]
)
def test_what_is_no_measurement_is_refused(wrong):
    with pytest.raises(ValueError, match="kernels"):
        profiles.validate(profile(kernels=wrong))
