"""What `mesh`'s exercises say of layouts, bytes and faults: held against the book's models, and against torch."""

import pytest
import torch
from answers import right, solution, value

from scaleout.collectives.job import traffic
from scaleout.exercises.mesh import diagnose, layouts, stages
from scaleout.memory import mesh as memory
from scaleout.memory.allocator import usable
from scaleout.memory.job import fullest
from scaleout.page import accuracy
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing import machine, sent
from scaleout.timing.job import step

KEPT = Recipe("bf16-master", main_gradients="instead")


def columns(table):
    """{name of a row: its words} of a table of five columns."""
    return {" ".join(line.split()[:-5]): line.split()[-5:] for line in table.splitlines()}


def priced(tp, pp, batch, chunks=1):
    """A layout of the table's job."""
    dp = 8 // tp // pp
    layout = Layout(
        dp,
        tp,
        pp,
        zero=1 if dp > 1 else 0,
        sequence_parallel=tp > 1,
        micro_batches=32 // dp // batch,
        chunks=chunks,
        schedule="interleaved" if chunks > 1 else "1f1b",
    )
    return Job(PRESETS["llama-2-13b"], 4096, DEVICES["a100-80gb"], cluster(2, 4, "nvlink3"), batch, layout)


BAND = 0.09


def test_five_layouts_take_the_bytes_and_seconds_that_the_model_gives_them():
    rows, took, jobs = columns(layouts.TABLE), {}, {}
    for column, (name, batch, chunks) in enumerate(zip("ABCDE", (4, 2, 1, 1, 1), (1, 1, 1, 2, 1), strict=True)):
        said = {row: words[column] for row, words in rows.items()}
        jobs[name] = job = priced(int(said["tp"]), int(said["pp"]), batch, chunks)
        took[name] = found = step(job)
        assert (job.layout.dp, job.layout.m) == (int(said["dp"]), int(said["micro-batches"]))
        assert f"{peak(job) / 1e9:.1f}" == said["GB, fullest"] and f"{found.seconds:.2f}" == said["seconds"]
        for row, part in (
            ("compute", "compute"),
            ("exposed tp", "exposed tensor"),
            ("uneven stages", "imbalance"),
            ("bubble", "bubble"),
        ):
            assert float(said[row]) == pytest.approx(found.parts[part], abs=0.006), (name, row)
    most = usable(DEVICES["a100-80gb"].memory_bytes)
    assert round(most / 1e9, 1) == layouts.USABLE
    assert [name for name, job in jobs.items() if peak(job) > most] == ["C"]
    assert peak(jobs["C"]) - most == pytest.approx(2.3e9, abs=5e7)
    assert machine.from_datasheet(jobs["A"]).crossing == ("tp",)
    off = {name: found.seconds / took["B"].seconds - 1 for name, found in took.items()}
    assert [round(off[name], 2) for name in "ADE"] == [0.27, 0.01, 0.21] and off["D"] < BAND < off["E"] < off["A"]
    assert all((1 - BAND) * took[name].seconds > (1 + BAND) * took["B"].seconds for name in "AE")


def test_the_band_is_that_of_published_steps_of_the_program():
    errors = [row["error"] for row in accuracy.rows() if row["program"] == "megatron"]
    assert round(accuracy.ninth(errors), 2) == BAND and f"{BAND:.0%}" == layouts.BAND


def peak(job):
    return fullest(job).peak_bytes


def test_the_model_finds_what_the_sketch_finds_for_the_table():
    some = [
        priced(tp, pp, batch)
        for tp in (1, 2, 4)
        for pp in (1, 2, 4, 8)
        for batch in (1, 2, 4)
        if tp * pp <= 8 and 32 * tp * pp // 8 // batch >= pp
    ]
    shape = some[0].shape
    whole = memory.accounts(shape, 1, 4096, Recipe("bf16-master"), Layout())[0].moments["forward"]
    kept, total = whole["activations"], 16 * memory.rank_parameters(shape, Layout(), 0)
    assert [round(size / 1e9) for size in (total, kept)] == [208, 33]
    best = min((job for job in some if peak(job) < layouts.USABLE * 1e9), key=lambda job: step(job).seconds).layout
    assert [best.pp, best.dp, best.tp] == solution("mesh", "sketch-a-layout")(8, 4, 32, 208, 33, 73, 0.03) == [1, 2, 4]


def test_bytes_by_axis_are_those_of_the_traffic_model():
    exercise = solution("mesh", "bytes-by-axis")
    job = Job(
        PRESETS["llama-3-70b"],
        8192,
        DEVICES["h100-sxm"],
        cluster(8, 8),
        1,
        Layout(dp=2, tp=8, pp=4, micro_batches=64),
        Recipe("bf16-master"),
    )
    turned = job.other(order=("tp", "pp", "dp", "cp"))
    found, there = traffic(job), traffic(turned)
    mine = exercise(4, 2, 8, 64, 20, 8192 * job.shape.hidden * 2, 2 * job.rank_parameters(2))
    assert mine == pytest.approx([found[axis].bytes for axis in ("pp", "dp", "tp")])
    assert {axis: one.bytes for axis, one in there.items()} == {axis: one.bytes for axis, one in found.items()}
    assert there["tp"].crossing and not found["tp"].crossing
    grows = sent.seconds(turned)["tp"] - sent.seconds(job)["tp"]  # with latencies, and what wires reach of their rates
    assert value("mesh", "order-seconds") == pytest.approx(grows, rel=0.12)
    assert round(step(job).parts["compute"]) == 14


def test_the_fullest_stage_and_the_others_hold_what_the_account_says():
    found = memory.accounts(stages.SHAPE, 1, 4096, KEPT, Layout(pp=stages.PP, micro_batches=stages.M))
    said = [stages.holds(), stages.holds(0, 3), stages.holds(0, 2), stages.holds(flying=1, extra=stages.LOGITS)]
    assert said == pytest.approx([one.peak_bytes for one in found], rel=0.01) and memory.fullest(found) == 0
    assert value("mesh", "fullest-stage") == said[0]


def test_gradients_are_parts_of_one_sum_along_the_axes_of_the_answer():
    """Of a norm over halves of the tokens, a matrix in columns, and a table that is used at both ends."""
    torch.manual_seed(0)
    tokens, table, norm = torch.randint(0, 7, (10,)), torch.randn(7, 4), torch.rand(4)
    matrix, targets = torch.randn(4, 4), torch.randint(0, 7, (10,))

    def grads(first, last, norms, columns):
        """Gradients by autograd of the loss of all tokens; a list of copies for what has several."""
        leaves = [one.clone().requires_grad_() for one in (first, last, *norms, *columns)]
        first, last, norms, columns = leaves[0], leaves[1], leaves[2 : 2 + len(norms)], leaves[2 + len(norms) :]
        halves = torch.cat([part * norm for part, norm in zip(first[tokens].chunk(len(norms)), norms, strict=True)])
        out = torch.cat([halves @ column for column in columns], dim=1) @ last.T
        return torch.autograd.grad(torch.nn.functional.cross_entropy(out, targets), leaves)

    two = grads(table, table, [norm, norm], matrix.chunk(2, dim=1))
    one = torch.nn.Parameter(table.clone())
    whole, column = torch.nn.Parameter(norm.clone()), torch.nn.Parameter(matrix.clone())
    torch.nn.functional.cross_entropy(one[tokens] * whole @ column @ one.T, targets).backward()
    assert right("mesh", "which-axes") == "table-pp"
    assert torch.allclose(two[0] + two[1], one.grad, atol=1e-6) and not torch.allclose(two[0], two[1], atol=1e-2)
    assert torch.allclose(two[2] + two[3], whole.grad, atol=1e-6) and not torch.allclose(two[2], two[3], atol=1e-2)
    assert torch.allclose(torch.cat(two[4:], dim=1), column.grad, atol=1e-6)


DIM, WIDE, BATCH, STEPS, RATE = 8, 16, 16, 60, 0.05


def begun():
    """(weights to begin with, those that made the targets): of a norm and of two matrices."""
    torch.manual_seed(3)

    def two():
        return torch.randn(DIM, WIDE) / DIM**0.5, torch.randn(WIDE, 1) / WIDE**0.5

    return (torch.ones(DIM), *two()), (1 + 0.5 * torch.randn(DIM), *two())


def trained(fault):
    """(losses, weights by rank) of dp 2 x tp 2 in one process, with a fault."""
    start, true = begun()
    share = WIDE if fault == "no tp" else WIDE // 2
    cut_at = {k: slice(0, WIDE) if fault == "no tp" else slice(k * share, (k + 1) * share) for k in (0, 1)}
    w = {
        (d, k): [start[0].clone(), start[1][:, cut_at[k]].clone(), start[2][cut_at[k]].clone()]
        for d in (0, 1)
        for k in (0, 1)
    }
    losses = []
    for _ in range(STEPS):
        drawn = torch.randn(4, BATCH, DIM)
        x = {(d, k): drawn[2 * d + k] if fault == "samples" else drawn[d] for d, k in w}
        loss, gradients = passed(w, x, true, fault)
        losses.append(loss)
        for d, k in w:
            for i, weight in enumerate(w[d, k]):
                mean = (gradients[0, k][i] + gradients[1, k][i]) / 2
                weight -= RATE * (gradients[d, k][i] if fault == "dp sum" else mean)
    return losses, w


def passed(w, x, true, fault):
    """A forward and a backward of all ranks: (mean loss, gradients by rank before the mean along dp)."""
    targets = {at: torch.relu(x[at] * true[0] @ true[1]) @ true[2] for at in w}
    normed = {at: x[at] * w[at][0] for at in w}
    wide = {at: torch.relu(normed[at] @ w[at][1]) for at in w}
    part = {at: wide[at] @ w[at][2] for at in w}
    y = part if fault == "no tp" else {(d, k): part[d, 0] + part[d, 1] for d, k in w}
    dy = {at: 2 * (y[at] - targets[at]) / BATCH for at in w}
    dwide = {at: (dy[at] @ w[at][2].T) * (wide[at] > 0) for at in w}
    back = {at: dwide[at] @ w[at][1].T for at in w}
    if fault not in ("no tp", "tp sum"):
        back = {(d, k): back[d, 0] + back[d, 1] for d, k in w}
    loss = sum(float((y[at] - targets[at]).square().mean()) for at in w) / len(w)
    return loss, {at: [(back[at] * x[at]).sum(0), normed[at].T @ dwide[at], wide[at].T @ dy[at]] for at in w}


def alone():
    """Losses of one process, by autograd, on the same samples."""
    start, true = begun()
    w, losses = [torch.nn.Parameter(one.clone()) for one in start], []
    for _ in range(STEPS):
        x = torch.randn(4, BATCH, DIM)[:2].flatten(0, 1)
        y, t = (torch.relu(x * a[0] @ a[1]) @ a[2] for a in (w, true))
        loss = (y - t).square().mean()
        losses.append(float(loss.detach()))
        for weight, gradient in zip(w, torch.autograd.grad(loss, w), strict=True):
            weight.data -= RATE * gradient
    return losses


def test_the_four_runs_are_what_training_with_each_fault_shows():
    said = columns(diagnose.TABLE)
    assert trained("")[0] == pytest.approx(alone(), rel=1e-4)
    runs = {"one": (alone(), None)} | {
        name: trained(fault) for name, fault in zip("ABCD", ("tp sum", "no tp", "dp sum", "samples"), strict=True)
    }
    for column, (losses, w) in enumerate(runs.values()):
        first, last = said["loss, step 1"][column], said["loss at the end"][column]
        assert f"{losses[0]:.3f}" == first and f"{sum(losses[-10:]) / 10:.3f}" == last
        if w is None:
            continue
        held = {"1": 1.0, "1/2": 0.5}[said["part of matrix"][column]]
        assert w[0, 0][1].numel() == held * DIM * WIDE
        for row, a, b, weight in (("apart along tp", (0, 0), (0, 1), 0), ("apart along dp", (0, 0), (1, 0), 1)):
            apart = float((w[a][weight] - w[b][weight]).abs().max())
            assert f"{apart:.2f}" == f"{float(said[row][column]):.2f}", (column, row)
    assert right("mesh", "four-layouts") == "samples-d"
