"""The seconds of a job: properties that any machine has, and published steps."""

import random
from dataclasses import replace
from math import fsum, isclose
from statistics import median

import measured
import pytest
from jobs import jobs, variants

from scaleout.collectives.job import hop_bytes
from scaleout.memory.job import fullest
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS, flops
from scaleout.timing import machine
from scaleout.timing.job import PARTS, step, step_on

SEED = 31
JOBS = jobs(200, SEED)
VARIANTS = variants(200, SEED)
SEVEN = Job(PRESETS["llama-2-7b"], 4096, DEVICES["h100-sxm"], cluster(1, 8), 1, Layout(dp=8, zero=1))


@pytest.mark.parametrize("job", JOBS, ids=[f"{i}" for i in range(len(JOBS))])
def test_a_random_job(job):
    """Parts add up; none is below 0; MFU stays below what any published run reaches, and below HFU."""
    found = step(job)
    assert tuple(found.parts) == PARTS and isclose(fsum(found.parts.values()), found.seconds, rel_tol=1e-12)
    assert min(found.parts.values()) > -1e-9 * found.seconds, (job, found.parts)
    assert 0 < found.mfu <= found.hfu < 0.75, job
    assert isclose(found.tokens_per_second * found.seconds, job.tokens_per_step)


def test_a_micro_batch_is_the_same_in_any_cluster():
    """A GPU that has its blocks whole is priced once for all numbers of them: what a job of its own says, to the
    digit."""
    several = [job for job in JOBS if job.layout.tp == job.layout.cp == 1]
    assert len({job.sharded for job in several}) == 2 and len(several) > 20
    for job in several:
        assert step(job).parts == step_on(job, machine.from_datasheet(job)).parts, job


@pytest.mark.parametrize(
    "job",
    [
        one
        for base in (
            SEVEN,
            SEVEN.other(program="eager", zero=3),
            SEVEN.other(pp=2, micro_batches=8),
            SEVEN.other(tp=2, sequence_parallel=True, program="eager"),
            SEVEN.other(cp=2),
        )
        for one in (base.other(checkpointing=how) for how in ("none", "selective", "full"))
    ],
    ids=str,
)
def test_parts_are_what_compute_says(job):
    """Matrix multiplications, attention and moved bytes are compute, gaps between kernels launches, each of what is
    computed for the first time; recomputation is the rest of the backward, but for its communication."""
    found = step(job)
    times = [job.layout.m / job.layout.pp * n for n in (job.shape.layers, 1, 1)]

    def whole(value):
        return fsum(n * value(one) for n, one in zip(times, found.work, strict=True))

    plain = step(job.other(checkpointing="none"))
    computes = {
        kind: whole(lambda one, kind=kind: sum(getattr(phase, kind) for phase in (one.forward, one.backward)))
        for kind in ("matmul", "attention", "moves", "launches")
    }
    again = {kind: whole(lambda one, kind=kind: getattr(one.repeated, kind)) for kind in computes}
    assert found.parts["launches"] == pytest.approx(computes.pop("launches") - again["launches"], rel=1e-12)
    assert found.parts["recompute"] == pytest.approx(fsum(again.values()), rel=1e-12)
    again.pop("launches")
    assert found.parts["compute"] == pytest.approx(fsum(computes.values()) - fsum(again.values()), rel=1e-12)
    for part in ("compute", "launches"):
        assert found.parts[part] == pytest.approx(plain.parts[part], rel=1e-12)


@pytest.mark.parametrize("job", VARIANTS, ids=[f"{i}" for i in range(len(VARIANTS))])
def test_a_random_job_of_another_kind(job):
    """The same of experts, windows, adapters: parts add up; no part is below 0; what a token passes through takes at
    least its time at the peak."""
    found = step(job)
    assert tuple(found.parts) == PARTS and isclose(fsum(found.parts.values()), found.seconds, rel_tol=1e-12)
    assert min(found.parts.values()) > -1e-9 * found.seconds, (job, found.parts)
    scores = 3 * flops(job.shape, job.sequences, job.seq, "selective")["recompute"]  # of which a window leaves some out
    rest = found.mfu - scores / found.seconds / job.peak_flop_per_s / job.layout.ranks
    assert 0 < found.mfu <= found.hfu and 0 < rest < 0.75, job
    assert Job.from_json(job.to_json()) == job
    for phase in (found.work[0].forward, found.work[0].backward):
        assert min(phase.values) >= 0


def faster(job, **changes):
    return step(job.other(**changes)).seconds <= step(job).seconds * (1 + 1e-9)


def changed(seed):
    """A random job, with its replicas exchanging and offloading otherwise; every third one offloads its optimizer, and
    every third one reduces at each micro-batch of a pipeline: there two things hide behind one backward."""
    draw = random.Random(seed)
    always = ({}, {"pp": 1, "chunks": 1, "offload": "optimizer"}, {"pp": 4, "every_pass": True, "chunks": 2})[seed % 3]
    always |= {"schedule": "interleaved", "micro_batches": 8} if "pp" in always else {}
    options = {"zero": (0, 1, 2, 3), "offload": ("none", "optimizer", "parameters"), "offload_to": ("host", "nvme"),
               "every_pass": (None, True, False), "overlap": (None, True, False), "context": ("ring", "gather"),
               "prefetch": (0, 1, 2), "compression": (1, 2), "reshard": (True, False)}  # fmt: skip
    while True:
        job = draw.choice(VARIANTS if seed >= KNOWN else JOBS)
        try:
            drawn = {name: draw.choice(values) for name, values in options.items() if draw.random() < 0.6}
            return job.other(**drawn | always)
        except ValueError:
            continue


KNOWN = 60  # seeds from here on are of other kinds of models


@pytest.mark.parametrize("seed", range(KNOWN + 40))
@pytest.mark.parametrize("times", [1.3, 10])
def test_faster_hardware_is_never_slower(seed, times):
    """Arithmetic, memory, links within a node and between nodes, and latencies, each alone and arithmetic with memory;
    whatever hides behind one another, twice or not at all."""
    job = changed(seed)
    device, nodes = job.device, job.cluster
    wires = {name: replace(getattr(nodes, name), link="") for name in ("inside", "across")}
    job = job.other(cluster=replace(nodes, **wires))
    rates = {name: times * getattr(device, name) for name in ("fp16_flop_per_s", "bf16_flop_per_s", "fp32_flop_per_s")}
    memory = {"memory_bytes_per_s": times * device.memory_bytes_per_s}
    links = [{name: replace(wire, bytes_per_s=times * wire.bytes_per_s)} for name, wire in wires.items()]
    links += [{name: replace(wire, alpha_seconds=wire.alpha_seconds / times) for name, wire in wires.items()}]
    swift = [{"device": replace(device, **parts)} for parts in (rates, memory, rates | memory)]
    swift += [{"cluster": replace(job.cluster, **parts)} for parts in links]
    before = step(job).seconds
    for changes in swift:
        assert step(job.other(**changes)).seconds <= before * (1 + 1e-12), (str(job), job.replicas, changes)


@pytest.mark.parametrize("job", JOBS[:30], ids=[f"{i}" for i in range(30)])
def test_more_is_never_slower(job):
    """Links, memory and arithmetic twice as fast; a program without gaps and without jitter."""
    wires = {
        name: replace(wire, bytes_per_s=2 * wire.bytes_per_s, link="")
        for name, wire in (("inside", job.cluster.inside), ("across", job.cluster.across))
    }
    base = job.other(
        cluster=replace(
            job.cluster, **{name: replace(wire, bytes_per_s=wire.bytes_per_s / 2) for name, wire in wires.items()}
        )
    )
    assert faster(base, cluster=replace(job.cluster, **wires))
    device = job.device
    assert faster(job, device=replace(device, memory_bytes_per_s=2 * device.memory_bytes_per_s))
    twice = {name: 2 * getattr(device, name) for name in ("fp16_flop_per_s", "bf16_flop_per_s", "fp32_flop_per_s")}
    assert faster(job, device=replace(device, **twice))
    assert faster(job, program=replace(job.program, kernel_seconds=0.0, jitter=0.0, contention=0.0))


@pytest.mark.parametrize("device", ["a100-80gb", "h100-sxm", "b200"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("seq", [8192, 131_072, 1_048_576])
def test_no_more_is_computed_than_any_published_run_does(device, program, seq):
    """MFU counts all scores, and comes near 1; without the masked half it stays below 0.75 of the peak."""
    job = Job(PRESETS["llama-3-8b"], seq, DEVICES[device], cluster(1, 8), 1, Layout(tp=8), program=PROGRAMS[program])
    masked = 3 * 2 * job.shape.d * job.sequences * seq**2 * job.shape.heads * job.shape.layers
    found = step(job)
    assert found.mfu - masked / found.seconds / job.peak_flop_per_s / 8 < 0.75 and found.mfu < 1


def test_one_gpu_has_no_communication():
    alone = step(Job(PRESETS["gpt2-xl"], 1024, DEVICES["h100-sxm"], cluster(1, 1), 4))
    assert alone.communication == 0 and alone.parts["exposed data"] == alone.parts["exposed tensor"] == 0
    assert alone.parts["stragglers"] == alone.parts["bubble"] == 0


def test_a_program_is_a_parameter():
    """Eager torch takes longer than compiled for the same model: more kernels, each reading and writing again."""
    eager, compiled = (step(SEVEN.other(program=name, zero=3)) for name in ("eager", "compiled"))
    assert eager.parts["compute"] > compiled.parts["compute"] and eager.parts["launches"] > compiled.parts["launches"]


def test_attention_has_a_share_of_its_own():
    """At 65,536 tokens nearly all is attention: FlashAttention 2 reaches little more than a third of an H100."""
    long = replace(SEVEN, seq=65_536)
    slow, fast = (
        step(replace(long, program=replace(PROGRAMS["megatron"], attention=name))) for name in ("flash-2", "cudnn")
    )
    assert 1.2 < slow.seconds / fast.seconds < 1.6 and slow.mfu < 0.65


def test_sharding_by_units_and_hybrid():
    """`fully_shard` over 8 nodes of 8 gathers over the network; shards within a node only reduce over it."""
    wide = SEVEN.other(cluster=cluster(8, 8, across="ethernet-100g", nics=1), zero=3)
    hybrid = wide.other(shards=8)
    assert step(hybrid).parts["exposed data"] < step(wide).parts["exposed data"]
    assert hybrid.sharding.ranks == 8 and hybrid.sharding.replicas == 8


def test_a_hop_is_the_residual_stream_over_the_slowest_wire():
    """Batch x seq x hidden of 16 bits (arXiv 2104.04473, section 3.2), over the network where some neighbours cross."""
    four = Job(PRESETS["llama-3-8b"], 2048, DEVICES["h100-sxm"], cluster(2, 2, nics=2), 1, Layout(pp=4))
    wire = four.cluster.across
    assert hop_bytes(four) == 2048 * 4096 * 2
    assert step(four).costs.hop == pytest.approx(wire.alpha_seconds + hop_bytes(four) / (wire.bytes_per_s * 0.94))


def test_accumulation_without_synchronisation_sends_less():
    every = SEVEN.other(zero=3, micro_batches=4)
    last = every.other(every_pass=False)
    assert step(last).communication < step(every).communication and step(last).seconds < step(every).seconds


# --- published steps ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def errors():
    """[(row, predicted / measured - 1)] of every published step."""
    return [(row, measured.seconds(row) / row.seconds - 1) for row in measured.rows()]


def test_published_steps_by_whom(errors):
    """The constants were fitted to these rows: what a fit without a series says of it is on the page of errors."""
    size = sorted(abs(error) for _, error in errors)
    assert len(size) == 227 and median(size) < 0.045 and size[int(0.9 * len(size))] < 0.15
    nvidia = sorted(abs(error) for row, error in errors if row.series.startswith("dgxc"))
    assert len(nvidia) == 18 and median(nvidia) < 0.03 and nvidia[-3] < 0.06
    slow = sum(error > 0 for _, error in errors) / len(errors)
    assert 0.35 < slow < 0.65, "no more too fast than too slow"


def test_measured_memory_on_b200():
    """The largest of what 8 B200 held, as SimuMax measured it: 24 runs within 3.5%."""
    rows = [row for row in measured.rows() if row.gib]
    off = sorted(abs(fullest(row.job).peak_bytes / 2**30 / row.gib - 1) for row in rows)
    assert len(off) == 24 and off[-1] < 0.035 and median(off) < 0.025


def test_loss_with_scale(errors):
    """Weak scaling: from the fewest GPUs of a series to the most, within two points of what was measured."""
    for model, few, many in (
        ("15B", 16, 2048),
        ("340B", 128, 2048),
        ("175B", 128, 2048),
    ):
        rows = {row.job.layout.ranks: row for row, _ in errors if row.name.startswith(f"nvidia {model},")}
        real = rows[many].seconds / rows[few].seconds
        assert measured.seconds(rows[many]) / measured.seconds(rows[few]) == pytest.approx(real, abs=0.02), model


def test_a_step_on_a_machine_of_ones_own():
    """A calibrated machine makes the same machine as a datasheet does."""
    line = {"alpha_seconds": 1e-5, "seconds_per_byte": 1e-9}
    profile = {
        "world": 2,
        "matmul_flops_per_second": {"fp32": 5e10},
        "copy_bytes_per_second": 5e9,
        "collectives": dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "broadcast"), line),
    }
    small = SEVEN.other(
        shape="gpt2",
        seq=128,
        cluster=cluster(1, 2),
        precision="fp32",
        main_gradients="none",
        zero=0,
        program=replace(PROGRAMS["eager"], kernel_seconds=0.0, step_seconds=0.0),
    )
    own = machine.from_profiles(small, {2: profile})
    assert own.copied(1e9) == 0.2 and own.data("all_reduce", 1e6) == pytest.approx(1e-5 + 1e-3)
    found = step_on(small, own)
    work = 6 * 124e6 * 128 / 5e10
    assert work < found.seconds < 3 * work and found.communication > 0.4
