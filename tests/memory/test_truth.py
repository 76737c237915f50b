"""The memory model against what torch allocates: the total and every kind at the peak, within 2%.

Of 64 random steps with a fixed seed (tools/bench_memory.py runs them all, and prints their errors). Three witnesses
agree on the truth: the book's ledger, torch's MemTracker on the same step, and the CPU allocator on the step with real
tensors.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cases import quicker_fake, refused

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from bench_memory import TOLERANCE, accelerate_estimate, cases, worst_kind

from scaleout.measure.memory import allocator_peak, measure
from scaleout.memory.accounts import KINDS, MOMENTS, Recipe, account
from scaleout.parallel.recipe import Training
from scaleout.spec.transformer import Shape

CASES = cases()
# Every change of one number, sign, comparison or branch in the formulas that one of the 64 sees (391 of 680), one of
# these sees too: they were chosen for it, the fewest that do.
TRIED = [CASES[i] for i in (0, 2, 13, 14, 15, 18, 22, 27, 34, 40, 44, 45, 46, 52, 53, 54, 61)]
TWICE = TRIED[2::3]  # also under torch's MemTracker, which takes twice as long: none of the largest

# Name of a case -> its worst error, for every case over 2%. Nothing is left out and nothing is widened: a case that
# goes over, or one that no longer does, fails the test until this list says so.
OVER: dict[str, float] = {}

# What checkpointing keeps for each block beside tensors of the model: the state of the CPU's random generator (5,056
# bytes in torch 2.13), so that dropout falls the same again; and one in flight.
GENERATOR = 5_120

SMALL = Shape(2, 64, 4, 300, max_seq=64)
LLAMA = Shape(
    2, 64, 4, 300, kv_heads=2, ff=160, gated_mlp=True, bias=False, norm="rmsnorm", positions="rotary", tied_head=False
)


def test_the_cases_cover_every_choice():
    assert len(CASES) >= 60
    seen = {name: {getattr(case.recipe, name) for case in CASES} for name in Recipe.__dataclass_fields__}
    assert seen["precision"] == {"fp32", "autocast-bf16", "bf16-master", "bf16"}
    assert seen["optimizer"] == {"sgd", "momentum", "adamw"}
    assert seen["attention"] == {"sdpa", "naive"}
    assert seen["checkpointing"] == {"none", "selective", "full"}
    assert seen["gradients"] == {"fresh", "kept"}
    assert seen["foreach"] == {True, False} and seen["dropout"] == {0.0, 0.1}
    assert {case.shape.norm for case in CASES} == {"layernorm", "rmsnorm"}
    assert {case.shape.tied_head for case in CASES} == {True, False}
    assert any(case.shape.kv < case.shape.heads for case in CASES)


def unseen(case, truth) -> int:
    """What MemTracker counts and the ledger does not: the loss, and a third table where autocast adds a tied head's
    gradient, which autograd does in place (measure/ledger.py)."""
    third = case.shape.tied_head and case.recipe.autocast and truth.peak_moment == "embedding"
    return 8 + (4 * case.shape.vocab * case.shape.hidden if third else 0)


@pytest.mark.parametrize("case", TRIED, ids=lambda case: case.name)
def test_peak_and_kinds(case):
    """The account against the ledger, and the ledger against torch's two other witnesses."""
    fake = quicker_fake(case.shape, case.batch, case.seq)
    truth = measure(case.shape, case.batch, case.seq, case.recipe, fake=fake, mem_tracker=case in TWICE)
    if case in TWICE:
        assert 0 <= truth.others["MemTracker"] - truth.peak_bytes <= unseen(case, truth)
    model = account(case.shape, case.batch, case.seq, case.recipe)
    total = model.peak_bytes / truth.peak_bytes - 1
    kind, off = worst_kind(model, truth)
    worst = max(total, off, key=abs)
    if case.name in OVER:
        assert abs(worst) > TOLERANCE and worst == pytest.approx(OVER[case.name], abs=0.001)
    else:
        assert abs(total) <= TOLERANCE, f"peak {total:+.2%}"
        assert abs(off) <= TOLERANCE, f"{kind} at the peak {off:+.2%}"
    for moment in truth.moments:
        there, here = sum(truth.moments[moment].values()), sum(model.moments[moment].values())
        assert abs(here - there) <= TOLERANCE * truth.peak_bytes, f"{moment}: {here:,} against {there:,}"
    the_cpu_allocator_agrees(case, truth.peak_bytes)


def the_cpu_allocator_agrees(case, peak_bytes):
    """The step again with real tensors: the peak of tensors, as the allocator reports it to torch's profiler.

    Judged without the scratch space of kernels, which no formula of tensors has: how much of it there is, the
    processor and the number of threads decide (36 of the 64 steps take more on 64 threads than on two, one of them four
    times as much). Without it, the bytes are the same on all: tools/another_cpu.py repeats this as other processors.
    """
    step = (case.shape, case.batch, case.seq, case.recipe)
    if "bf16" in case.recipe.precision and case.seq * case.shape.layers > 200:
        # Without instructions for bf16 a processor takes seven times as long: two blocks and a short text will do.
        step = (replace(case.shape, layers=min(2, case.shape.layers)), case.batch, min(96, case.seq), case.recipe)
        peak_bytes = measure(*step, fake=True).peak_bytes
    seen = allocator_peak(*step)
    if seen.tensors < peak_bytes:  # on a busy machine the profiler may miss an allocation; it never adds one
        seen = allocator_peak(*step)
    assert 0 <= seen.tensors - peak_bytes <= GENERATOR * (case.shape.layers + 2)
    assert seen.whole >= seen.tensors


def test_every_case_over_the_tolerance_is_one_of_the_cases():
    assert set(OVER) <= {case.name for case in CASES}
    assert all(abs(error) > TOLERANCE for error in OVER.values())


def test_scratch_of_threads_is_not_counted_as_tensors():
    """Attention takes a buffer for each thread: the whole peak moves with them, that of tensors does not."""
    import torch

    case, before, found = CASES[0], torch.get_num_threads(), {}
    try:
        for threads in (1, 16):
            torch.set_num_threads(threads)
            found[threads] = allocator_peak(case.shape, case.batch, case.seq, case.recipe)
    finally:
        torch.set_num_threads(before)
    assert found[16].tensors == found[1].tensors
    assert found[16].whole > 1.2 * found[1].whole
    assert found[16].whole > 1.2 * found[16].tensors


@pytest.mark.parametrize("shape", [SMALL, LLAMA], ids=["gpt", "llama"])
def test_fake_tensors_measure_what_real_ones_do(shape):
    fake, real = (measure(shape, 2, 32, Recipe(dropout=0.1), fake=fake) for fake in (True, False))
    assert fake.moments == real.moments and fake.states == real.states
    assert fake.loss is None and 4 < real.loss < 8


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize("precision", ["fp32", "autocast-bf16", "bf16-master", "bf16"])
@pytest.mark.parametrize("shape", [SMALL, LLAMA], ids=["gpt", "llama"])
def test_lora(shape, precision, checkpointing):
    """Adapters are priced in one piece a block: the peak within 3% on two layers, the states exactly."""
    recipe = Recipe(precision, adapter="lora", adapter_rank=4, checkpointing=checkpointing)
    truth, model = measure(shape, 4, 48, recipe, fake=False), account(shape, 4, 48, recipe)
    assert model.peak_bytes == pytest.approx(truth.peak_bytes, rel=0.03)
    counters = 4 * 2 * 7 * 2 if shape.gated_mlp else 4 * 2 * 6 * 2  # AdamW's step count of each adapter matrix
    assert truth.states == {**model.states, "optimizer": model.states["optimizer"] + counters}


def test_the_timeline_holds_every_moment_in_order():
    truth = measure(SMALL, 2, 32, timeline=True)
    order = list(dict.fromkeys(moment for moment, _, _ in truth.timeline))
    assert order == list(MOMENTS) == list(truth.moments)
    assert max(sum(kinds.values()) for _, _, kinds in truth.timeline) == truth.peak_bytes
    assert all(set(kinds) == set(KINDS) and min(kinds.values()) >= 0 for _, _, kinds in truth.timeline)


def test_private_parts_of_torch_are_there():
    """The smoke test of measure.memory: if a new torch moved them, this fails first and says where to look."""
    import scaleout.measure.memory as module

    with module.fake_tensors() as mode:
        import torch

        assert type(torch.ones(10**12)).__name__ == "FakeTensor" and mode is not None
    assert measure(SMALL, 1, 16, mem_tracker=True).others["MemTracker"] > 0
    assert allocator_peak(SMALL, 1, 16, Recipe("fp32")).tensors > 0


def test_a_training_step_learns():
    import torch

    torch.manual_seed(0)
    for recipe in (Recipe("fp32"), Recipe("bf16-master", "sgd"), Recipe("fp32", adapter="lora", gradients="kept")):
        training = Training(SMALL, recipe, rate=0.01)
        tokens, losses = torch.randint(SMALL.vocab, (2, 16)), []
        for _ in range(8):
            loss = training.loss(tokens, tokens)
            loss.backward()
            training.step()
            training.clear()
            losses.append(loss.item())
        assert losses[-1] < losses[0], recipe


def test_accelerate_estimates_states_of_adam_only():
    case = CASES[0]
    other = type(case)(case.shape, 64, case.seq, case.recipe)
    assert accelerate_estimate(case) == accelerate_estimate(other)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: measure(SMALL, 0, 8), "batch must be a whole number of at least 1"),
        (lambda: measure(SMALL, 1, 65), "seq 65 is longer than the position table: use at most 64"),
        (lambda: measure(SMALL, 1, 8, Recipe(optimizer="adamw-8bit")), "adamw-8bit runs in bitsandbytes"),
        (lambda: measure(SMALL, 1, 8, Recipe(adapter="qlora")), "qlora runs in bitsandbytes"),
        (lambda: measure(SMALL, 1, 8, Recipe("bf16-master", main_gradients="beside")), "main_gradients run in"),
        (lambda: measure(SMALL, 1, 8, device="cuda"), "fake tensors are measured on device cpu"),
    ],
)
def test_what_cannot_be_measured_says_so(call, says):
    refused(call, says)
