"""What `mesh`'s exercises say of layouts, bytes and faults: held against the book's models, and against torch."""

import pytest
import torch
from answers import right, solution, value

from scaleout.collectives.job import traffic
from scaleout.exercises.mesh import diagnose, layouts, stages, wires
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

RECIPE = Recipe("bf16-master", main_gradients="instead")


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


BAND = 0.07


def test_five_layouts_take_the_bytes_and_seconds_that_the_model_gives_them():
    rows, steps, jobs = columns(layouts.TABLE), {}, {}
    for column, (name, batch, chunks) in enumerate(zip("ABCDE", (4, 2, 1, 1, 1), (1, 1, 1, 2, 1), strict=True)):
        cells = {row: words[column] for row, words in rows.items()}
        jobs[name] = job = priced(int(cells["tp"]), int(cells["pp"]), batch, chunks)
        steps[name] = model = step(job)
        assert (job.layout.dp, job.layout.m) == (int(cells["dp"]), int(cells["micro-batches"]))
        assert f"{peak(job) / 1e9:.1f}" == cells["GB, fullest"] and f"{model.seconds:.2f}" == cells["seconds"]
        for row, part in (
            ("compute", "compute"),
            ("exposed tp", "exposed tensor"),
            ("uneven stages", "imbalance"),
            ("bubble", "bubble"),
        ):
            assert float(cells[row]) == pytest.approx(model.parts[part], abs=0.006), (name, row)
    capacity = usable(DEVICES["a100-80gb"].memory_bytes)
    assert round(capacity / 1e9, 1) == layouts.USABLE
    assert [name for name, job in jobs.items() if peak(job) > capacity] == ["C"]
    assert peak(jobs["C"]) - capacity == pytest.approx(2.3e9, abs=5e7)
    assert machine.from_datasheet(jobs["A"]).crossing == ("tp",)
    slowdown = {name: model.seconds / steps["B"].seconds - 1 for name, model in steps.items()}
    assert [round(slowdown[name], 2) for name in "ADE"] == [0.27, 0.0, 0.2] and slowdown["D"] < BAND < slowdown[
        "E"
    ] < slowdown["A"]
    assert all((1 - BAND) * steps[name].seconds > (1 + BAND) * steps["B"].seconds for name in "AE")


def test_the_band_is_that_of_published_steps_of_the_program():
    errors = [row["error"] for row in accuracy.rows() if row["program"] == "megatron"]
    assert round(accuracy.ninth(errors), 2) == BAND and f"{BAND:.0%}" == layouts.BAND


def peak(job):
    return fullest(job).peak_bytes


def test_the_model_finds_what_the_sketch_finds_for_the_table():
    jobs = [
        priced(tp, pp, batch)
        for tp in (1, 2, 4)
        for pp in (1, 2, 4, 8)
        for batch in (1, 2, 4)
        if tp * pp <= 8 and 32 * tp * pp // 8 // batch >= pp
    ]
    shape = jobs[0].shape
    memory_by_kind = memory.accounts(shape, 1, 4096, Recipe("bf16-master"), Layout())[0].moments["forward"]
    activations, total = memory_by_kind["activations"], 16 * memory.rank_parameters(shape, Layout(), 0)
    assert [round(size / 1e9) for size in (total, activations)] == [208, 33]
    best = min((job for job in jobs if peak(job) < layouts.USABLE * 1e9), key=lambda job: step(job).seconds).layout
    assert [best.pp, best.dp, best.tp] == solution("mesh", "sketch-a-layout")(8, 4, 32, 208, 33, 73, 0.03) == [1, 2, 4]


def test_bytes_by_axis_are_those_of_the_traffic_model():
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
    traffic_by_axis, turned_traffic = traffic(job), traffic(turned)
    mine = wires.sent(4, 2, 8, 64, 20, 8192 * job.shape.hidden * 2, 2 * job.rank_parameters(2))
    assert mine == pytest.approx([traffic_by_axis[axis].bytes for axis in ("pp", "dp", "tp")])
    assert {axis: sent_on_axis.bytes for axis, sent_on_axis in turned_traffic.items()} == {
        axis: sent_on_axis.bytes for axis, sent_on_axis in traffic_by_axis.items()
    }
    assert turned_traffic["tp"].crossing and not traffic_by_axis["tp"].crossing
    grows = sent.seconds(turned)["tp"] - sent.seconds(job)["tp"]  # with latencies, and what wires reach of their rates
    assert value("mesh", "order-seconds") == pytest.approx(grows, rel=0.12)
    assert round(step(job).parts["compute"]) == 14


def test_the_fullest_stage_and_the_others_hold_what_the_account_says():
    accounts = memory.accounts(stages.SHAPE, 1, 4096, RECIPE, Layout(pp=stages.PP, micro_batches=stages.M))
    expected = [stages.holds(), stages.holds(0, 3), stages.holds(0, 2), stages.holds(flying=1, extra=stages.LOGITS)]
    assert (
        expected == pytest.approx([account.peak_bytes for account in accounts], rel=0.01)
        and memory.fullest(accounts) == 0
    )
    assert value("mesh", "fullest-stage") == expected[0]


def test_gradients_are_parts_of_one_sum_along_the_axes_of_the_answer():
    """Of a norm over halves of the tokens, a matrix in columns, and a table that is used at both ends."""
    torch.manual_seed(0)
    tokens, table, norm = torch.randint(0, 7, (10,)), torch.randn(7, 4), torch.rand(4)
    matrix, targets = torch.randn(4, 4), torch.randint(0, 7, (10,))

    def grads(first, last, norms, columns):
        """Gradients by autograd of the loss of all tokens; a list of copies for what has several."""
        leaves = [tensor.clone().requires_grad_() for tensor in (first, last, *norms, *columns)]
        first, last, norms, columns = leaves[0], leaves[1], leaves[2 : 2 + len(norms)], leaves[2 + len(norms) :]
        halves = torch.cat([part * norm for part, norm in zip(first[tokens].chunk(len(norms)), norms, strict=True)])
        logits = torch.cat([halves @ column for column in columns], dim=1) @ last.T
        return torch.autograd.grad(torch.nn.functional.cross_entropy(logits, targets), leaves)

    two = grads(table, table, [norm, norm], matrix.chunk(2, dim=1))
    shared = torch.nn.Parameter(table.clone())
    full_norm, column = torch.nn.Parameter(norm.clone()), torch.nn.Parameter(matrix.clone())
    torch.nn.functional.cross_entropy(shared[tokens] * full_norm @ column @ shared.T, targets).backward()
    assert right("mesh", "which-axes") == "table-pp"
    assert torch.allclose(two[0] + two[1], shared.grad, atol=1e-6) and not torch.allclose(two[0], two[1], atol=1e-2)
    assert torch.allclose(two[2] + two[3], full_norm.grad, atol=1e-6) and not torch.allclose(two[2], two[3], atol=1e-2)
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
    targets = {card: torch.relu(x[card] * true[0] @ true[1]) @ true[2] for card in w}
    normed = {card: x[card] * w[card][0] for card in w}
    wide = {card: torch.relu(normed[card] @ w[card][1]) for card in w}
    part = {card: wide[card] @ w[card][2] for card in w}
    y = part if fault == "no tp" else {(d, k): part[d, 0] + part[d, 1] for d, k in w}
    dy = {card: 2 * (y[card] - targets[card]) / BATCH for card in w}
    dwide = {card: (dy[card] @ w[card][2].T) * (wide[card] > 0) for card in w}
    dnormed = {card: dwide[card] @ w[card][1].T for card in w}
    if fault not in ("no tp", "tp sum"):
        dnormed = {(d, k): dnormed[d, 0] + dnormed[d, 1] for d, k in w}
    loss = sum(float((y[card] - targets[card]).square().mean()) for card in w) / len(w)
    return loss, {
        card: [(dnormed[card] * x[card]).sum(0), normed[card].T @ dwide[card], wide[card].T @ dy[card]] for card in w
    }


def alone():
    """Losses of one process, by autograd, on the same samples."""
    start, true = begun()
    w, losses = [torch.nn.Parameter(tensor.clone()) for tensor in start], []
    for _ in range(STEPS):
        x = torch.randn(4, BATCH, DIM)[:2].flatten(0, 1)
        y, t = (torch.relu(x * a[0] @ a[1]) @ a[2] for a in (w, true))
        loss = (y - t).square().mean()
        losses.append(float(loss.detach()))
        for weight, gradient in zip(w, torch.autograd.grad(loss, w), strict=True):
            weight.data -= RATE * gradient
    return losses


def test_the_four_runs_are_what_training_with_each_fault_shows():
    table = columns(diagnose.TABLE)
    assert trained("")[0] == pytest.approx(alone(), rel=1e-4)
    runs = {"one": (alone(), None)} | {
        name: trained(fault) for name, fault in zip("ABCD", ("tp sum", "no tp", "dp sum", "samples"), strict=True)
    }
    for column, (losses, w) in enumerate(runs.values()):
        first, last = table["loss, step 1"][column], table["loss at the end"][column]
        assert f"{losses[0]:.3f}" == first and f"{sum(losses[-10:]) / 10:.3f}" == last
        if w is None:
            continue
        share = {"1": 1.0, "1/2": 0.5}[table["part of matrix"][column]]
        assert w[0, 0][1].numel() == share * DIM * WIDE
        for row, a, b, weight in (("apart along tp", (0, 0), (0, 1), 0), ("apart along dp", (0, 0), (1, 0), 1)):
            difference = float((w[a][weight] - w[b][weight]).abs().max())
            assert f"{difference:.2f}" == f"{float(table[row][column]):.2f}", (column, row)
    assert right("mesh", "four-layouts") == "samples-d"
