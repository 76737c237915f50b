"""The lab exercises of `precision` under attack: answers that readers would write, on real ranks.

A name that starts with a hyphen is of a right answer in another form. The others are wrong, and named by the slip that
the checker has to see in them; after a blank, what else is in it.
"""

import answers
import pool
import pytest
import torch
from answers import changed

from scaleout import exercises
from scaleout.exercises.precision.ranks import CHECK, MASTER, master
from scaleout.exercises.ranks import sure

SCALED, COPY = (exercises.exercise("precision", key) for key in ("scaled-step", "master-copy"))
GIVEN, KEPT = answers.code_of(SCALED), answers.code_of(COPY)


HEAD = GIVEN[: GIVEN.index("    own = gradient")]
FLAG = (
    HEAD
    + """\
    bad = torch.tensor(float(not gradient.isfinite().all()))
    dist.all_reduce(bad, dist.ReduceOp.MAX)
    if bad:
        scaler["scale"] *= 0.5
        scaler["good"] = 0
        return False
    own = gradient.to(torch.float32).div_(scaler["scale"])
    norm = torch.linalg.vector_norm(own) ** 2
    dist.all_reduce(norm)
    own.mul_((most / (norm.sqrt() + 1e-6)).clamp(max=1.0))
    weights.add_(own, alpha=-lr)
    scaler["good"] += 1
    if scaler["good"] >= scaler["interval"]:
        scaler["scale"], scaler["good"] = scaler["scale"] * 2.0, 0
    return True
"""
)
OF_TORCH = (
    HEAD
    + """\
    own = gradient.float() / scaler["scale"]
    every = [torch.zeros(2) for _ in range(dist.get_world_size())]
    dist.all_gather(every, torch.stack([own.square().sum(), (~own.isfinite()).any().float()]))
    squares, bad = torch.stack(every).sum(0)
    if bad:
        scaler["good"] = 0
        scaler["scale"] /= 2
        return
    part = torch.nn.Parameter(weights)
    part.grad = own * min(1.0, most / max(float(squares) ** 0.5, 1e-12))
    torch.optim.SGD([part], lr=lr).step()
    good = scaler["good"] + 1
    scaler.update({"scale": scaler["scale"] * 2, "good": 0} if good == scaler["interval"] else {"good": good})
"""
)
SKIP = "    if not norm.isfinite():                               # the same on every rank\n"
OWN_FLAG = changed(
    FLAG,
    ("    dist.all_reduce(bad, dist.ReduceOp.MAX)\n", ""),
    ("    own = gradient.to", "    gradient = gradient.nan_to_num(0, 0, 0)\n    own = gradient.to"),
    ("        return False\n", "        dist.all_reduce(bad * 0)\n        return False\n"),
)
STEPS = {
    "-given": GIVEN,
    **answers.restyled(GIVEN),
    "-a-flag": FLAG,
    "-objects": changed(GIVEN, ("    dist.all_reduce(squares)  ", "    every = [None] * dist.get_world_size()\n"
                                "    dist.all_gather_object(every, squares)\n    squares = sum(every)  ")),
    "sent-too-much objects": changed(GIVEN, ("    dist.all_reduce(squares)  ",
                                             "    every = [None] * dist.get_world_size()\n"
                                             "    dist.all_gather_object(every, own)\n"
                                             "    squares = sum(one.square().sum() for one in every)  ")),
    "wrong-weights half": changed(GIVEN, ("weights -= lr * own", "weights -= lr * own / 2")),
    "wrong-weights clipped-by-number": changed(GIVEN, ("own *= most / norm ", "own.clamp_(-most / 9, most / 9) ")),
    "-gathered": OF_TORCH,
    "stub": SCALED.stub,
    "own-flag": OWN_FLAG,
    "told-nobody": changed(FLAG, ("    dist.all_reduce(bad, dist.ReduceOp.MAX)\n", "")),
    "counted-as-good": changed(GIVEN, (SKIP, "    if False:\n")),
    "stepped-on-it": changed(GIVEN, (SKIP,
                                     SKIP + "        if not own.isfinite().all():\n            weights += own\n")),
    "own-flag zeros": changed(GIVEN, ('gradient.float() / scaler["scale"]',
                                     '(gradient.float() / scaler["scale"]).nan_to_num(0, 0, 0)')),
    "in-fp16": changed(GIVEN, ('gradient.float() / scaler["scale"]', '(gradient / scaler["scale"]).float()')),
    "clip-before-unscale": changed(
        GIVEN, ('gradient.float() / scaler["scale"]', "gradient.float()"),
        ("    weights -= lr * own", '    own /= scaler["scale"]\n    weights -= lr * own')),
    "own-norm": changed(GIVEN, ("    norm = squares.sqrt()\n",
                                "    norm = squares.sqrt()\n    mine = own.norm()\n"),
                        ("if norm > most", "if mine > most"), ("most / norm", "most / mine")),
    "own-flag alone": changed(GIVEN, ("    dist.all_reduce(squares)", "    dist.all_reduce(squares.clone())")),
    "not-unscaled": changed(GIVEN, (' / scaler["scale"]  ', "  ")),
    "not-unscaled not-clipped": changed(GIVEN, (' / scaler["scale"]  ', "  "), ("if norm > most", "if False")),
    "not-clipped": changed(GIVEN, ("if norm > most", "if norm > 1e9")),
    "uphill": changed(GIVEN, ("weights -= lr", "weights += lr")),
    "not-in-place": changed(GIVEN, ("weights -= lr * own", "weights = weights - lr * own")),
    "zeroed": changed(FLAG, ("        return False\n", "        if not gradient.isfinite().all():\n"
                             "            weights -= gradient.float().nan_to_num(0, 0, 0)\n        return False\n")),
    "not-halved": changed(GIVEN, ('scale=scaler["scale"] / 2, good=0', "good=0")),
    "good-goes-on": changed(GIVEN, (" / 2, good=0", " / 2")),
    "not-doubled": changed(GIVEN, ('scale=scaler["scale"] * 2, good=0', "good=0")),
    "count-goes-on": changed(GIVEN, (" * 2, good=0", " * 2")),
    "not-counted": changed(GIVEN, ('    scaler["good"] += 1\n', "")),
    "wrong-scale": changed(GIVEN, ('scaler["scale"] / 2', 'scaler["scale"] / 10')),
    "wrong-weights": changed(GIVEN, ("lr * own", "lr * own.sign() * 1e-3")),
    "sent-too-much": changed(
        GIVEN, ("    squares = own.square().sum()\n    dist.all_reduce(squares)  ",
                "    flat = torch.nn.functional.pad(own, (0, 2400 - len(own)))\n"
                "    every = [torch.empty(2400) for _ in range(dist.get_world_size())]\n"
                "    dist.all_gather(every, flat)\n    squares = torch.cat(every).square().sum()  ")),
    "exception": changed(GIVEN, ("own *= most / norm", "own *= most / nrom")),
    "replaced": GIVEN + "\n\ntorch.Tensor.isfinite = lambda one: one == one\n",
}  # fmt: skip

OPTIMIZER = (
    KEPT[: KEPT.index("    if not state:")]
    + """\
    if not state:
        copy = torch.nn.Parameter(weights.float())
        state["adamw"] = torch.optim.AdamW([copy], lr=lr, betas=BETAS, eps=EPS, weight_decay=DECAY)
        state["copy"] = copy
    copy = state["copy"]
    copy.grad = gradient.float()
    state["adamw"].step()
    copy.grad = None
    with torch.no_grad():
        weights[:] = copy.bfloat16()
"""
)
COPIES = {
    "-given": KEPT,
    "-of-torch": OPTIMIZER,
    "-spelt-out": changed(KEPT, ("m.lerp_(g, 1 - BETAS[0])", "m.mul_(BETAS[0]).add_(g, alpha=1 - BETAS[0])"),
                          ("v.lerp_(g.square(), 1 - BETAS[1])",
                           "v.mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])"),
                          ("weights.copy_(copy) ", "weights.copy_(copy.bfloat16()) ")),
    "stub": COPY.stub,
    "no-copy": changed(KEPT, ('copy, m, v = state["copy"], state["m"], state["v"]',
                              'copy, m, v = weights.float(), state["m"], state["v"]')),
    "no-copy bf16-adamw": KEPT[: KEPT.index("    if not state:")] + """\
    if not state:
        part = torch.nn.Parameter(weights)
        state["adamw"] = torch.optim.AdamW([part], lr=lr, betas=BETAS, eps=EPS, weight_decay=DECAY)
        state["part"] = part
    state["part"].grad = gradient
    state["adamw"].step()
""",
    "not-in-place": changed(KEPT, ("weights.copy_(copy)  ", "return copy.bfloat16()  ")),
    "other-tensor": changed(KEPT, ("weights.copy_(copy)  ", "weights.data = copy.bfloat16()  ")),
    "other-tensor fp32": changed(KEPT, ("weights.copy_(copy)  ", "weights.data = copy.clone()  ")),
    "no-decay": changed(KEPT, ("    copy *= 1 - lr * DECAY\n", "")),
    "coupled-decay": changed(KEPT, ("    copy *= 1 - lr * DECAY\n", ""),
                             ("g = gradient.float() ", "g = gradient.float() + DECAY * copy ")),
    "not-corrected": changed(KEPT, (" / (1 - BETAS[1] ** step)", ""), (" / (1 - BETAS[0] ** step)", "")),
    "no-root": changed(KEPT, (".sqrt() + EPS", " + EPS")),
    "forgotten": changed(KEPT, ('    copy, m, v = state["copy"], state["m"], state["v"]\n',
                                '    copy, m, v = state["copy"], state["m"].zero_(), state["v"].zero_()\n')),
    "state-in-bf16": changed(KEPT, ("torch.zeros(len(weights))", "torch.zeros_like(weights)"),
                             ("m.lerp_(g, 1 - BETAS[0])", "m.lerp_(g.bfloat16(), 1 - BETAS[0])"),
                             ("v.lerp_(g.square(), 1", "v.lerp_(g.square().bfloat16(), 1")),
    "too-much": changed(KEPT, ("    copy *= 1", '    state["g"] = g\n    copy *= 1')),
    "kept-elsewhere": changed(KEPT, ("def master_step", "KEPT = {}\n\n\ndef master_step"),
                              ("if not state", "if not KEPT"),
                              ("state.update", "KEPT.update"),
                              ('state["copy"], state["m"], state["v"]', 'KEPT["copy"], KEPT["m"], KEPT["v"]')),
    "wrong-weights": changed(KEPT, ("copy -= lr", "copy += lr")),
    "not-a-number": changed(KEPT, ("+ EPS", "* float('nan')")),
    "exception": changed(KEPT, ("gradient.float()", "gradient.flota()")),
    "replaced": KEPT + "\n\ntorch.equal = lambda *pair: True\n",
}  # fmt: skip
# Invented by somebody who had not seen the slips.
FRESH = {
    "no-copy rounded-each-time": changed(KEPT, ("weights.copy_(copy)  ", "copy.copy_(weights.copy_(copy))  ")),
    "no-copy momentum-alone": changed(KEPT, (" / (1 - BETAS[0] ** step) / down", "")),
    "wrong-weights betas-turned": changed(KEPT, ("m.lerp_(g, 1 - BETAS[0])", "m.lerp_(g, 1 - BETAS[1])"),
                                          ("v.lerp_(g.square(), 1 - BETAS[1])", "v.lerp_(g.square(), 1 - BETAS[0])")),
    "not-a-number counted-from-0": changed(KEPT, ("    g = gradient", "    step -= 1\n    g = gradient")),
    "too-much doubles": changed(KEPT, ("torch.zeros(len(weights))", "torch.zeros(len(weights)).double()"),
                                ("gradient.float()", "gradient.double()"), ("copy -= lr", "copy -= (lr"),
                                (" / down\n", " / down).float()\n")),
    "wrong-weights decay-twice": changed(KEPT, ("    copy *= 1 - lr * DECAY\n", "    copy *= (1 - lr * DECAY) ** 2\n")),
    "other-tensor set": changed(KEPT, ("weights.copy_(copy)  ", "weights.set_(copy.bfloat16())  ")),
}  # fmt: skip
COPIES |= FRESH


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "right", "written"),
    [
        (CHECK, "right on 2 and 3 processes: all ranks skip two steps", STEPS),
        (MASTER, "right on 2 processes: after 60 steps", COPIES),
    ],
    ids=["scaled", "master"],
)
def test_what_readers_write_is_told_what_it_is(tmp_path, check, right, written):
    answers.told(check, right, written, tmp_path)


def test_each_mistake_shows_at_three_looks_at_least():
    right = master.reference(0).bfloat16()
    for slip, _, value in master._known(0):
        assert sum(not master.close(*rows) for rows in zip(value.bfloat16(), right, strict=True)) >= sure.TELLING, slip


def averaged(s):
    """(whether rank 0's gradient is finite after averaging with an infinity of rank 1's, the scale after the step)."""
    model = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=8.0), torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(2, 4) * (float("inf") if s.rank == 1 else 1.0)
    scaler.scale(wrapped(x).sum()).backward()
    finite = bool(model.weight.grad.isfinite().all())
    scaler.step(optimizer)
    scaler.update()
    return finite, scaler.get_scale(), float(model.weight.detach().sum())


@pytest.mark.slow
def test_under_ddp_an_infinity_is_averaged_to_all_ranks_and_all_leave_the_step_out():
    assert pool.ranks(averaged, 2) == 2 * [(False, 4.0, 4.0)]
