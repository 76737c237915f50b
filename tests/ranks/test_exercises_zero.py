"""The lab exercises of `zero` under attack: answers that readers would write, on real ranks.

A name that starts with a hyphen is of a right answer in another form. The others are wrong, and named by the slip that
the checker has to see in them; after a blank, what else is in it.
"""

import answers
import pool
import pytest
import torch
from answers import changed

from scaleout import exercises
from scaleout.exercises.ranks import sure
from scaleout.exercises.ranks.count import counted
from scaleout.exercises.zero.ranks import CHECK, CLIP, step

STEP, CLIPPED = (exercises.exercise("zero", key) for key in ("zero-step", "clip-sharded"))
GIVEN, NORM = answers.code_of(STEP), answers.code_of(CLIPPED)


HEAD = GIVEN[: GIVEN.index("    rank, ranks")]
OF_TORCH = (
    HEAD
    + """\
    rank, ranks = dist.get_rank(), dist.get_world_size()
    each = -(-len(weights) // ranks)
    pad = lambda flat: torch.nn.functional.pad(flat, (0, ranks * each - len(flat)))
    if not state:
        part = torch.nn.Parameter(pad(weights).chunk(ranks)[rank].clone())
        state["part"], state["adamw"] = part, torch.optim.AdamW(
            [part], lr=lr, betas=BETAS, eps=EPS, weight_decay=DECAY)
    part = state["part"]
    part.grad = torch.empty(each)
    dist.reduce_scatter_tensor(part.grad, pad(gradient))
    part.grad /= ranks
    state["adamw"].step()
    whole = torch.empty(ranks * each)
    dist.all_gather_into_tensor(whole, part.detach())
    weights[:] = whole[:len(weights)]
"""
)
ROOTED = changed(
    GIVEN,
    (
        "    dist.reduce_scatter(mine, parts(gradient))\\n".replace("\\n", "\n"),
        "    for r, one in enumerate(parts(gradient)):\n"
        "        one = one.clone()\n        dist.reduce(one, r)\n        mine = one if r == rank else mine\n",
    ),
    (
        "    dist.all_gather(whole, part)\n",
        "    whole[rank] = part\n    for r in range(ranks):\n        dist.broadcast(whole[r], r)\n",
    ),
)
WHOLE_MOMENTS = changed(
    GIVEN,
    ("torch.zeros(each), v=torch.zeros(each)", "torch.zeros_like(weights), v=torch.zeros_like(weights)"),
    ('m, v = state["m"], state["v"]', "m, v = (parts(state[k])[rank] for k in 'mv')"),
    (
        "    down =",
        "    for k, one in (('m', m), ('v', v)):\n"
        "        held = torch.cat([one if r == rank else p for r, p in enumerate(parts(state[k]))])\n"
        "        state[k].copy_(held[:len(weights)])\n    down =",
    ),
)
REDUCED = changed(
    GIVEN,
    (
        "    dist.reduce_scatter(mine, parts(gradient))\n",
        "    gradient = gradient.clone()\n    dist.all_reduce(gradient)\n    mine = parts(gradient)[rank].clone()\n",
    ),
)
EVERYBODYS = changed(
    GIVEN,
    (
        "    dist.reduce_scatter(mine, parts(gradient))\n",
        "    every = [torch.empty_like(gradient) for _ in range(ranks)]\n"
        "    dist.all_gather(every, gradient)\n    mine = parts(sum(every))[rank].clone()\n",
    ),
)
SHORT = changed(
    GIVEN,
    ("-(-len(weights) // ranks)", "len(weights) // ranks"),
    ("        padding = ranks * each - len(flat)\n", ""),
    ("torch.nn.functional.pad(flat, (0, padding))", "flat[:ranks * each]"),
    ("weights.copy_(torch.cat(whole)[: len(weights)])", "weights[:ranks * each] = torch.cat(whole)"),
)
STEPS = {
    "-given": GIVEN,
    **answers.restyled(GIVEN),
    "-of-torch": OF_TORCH,
    "-objects": changed(GIVEN, ("    dist.all_gather(whole, part)\n", "    dist.all_gather_object(whole, part)\n")),
    "-all-to-all": changed(GIVEN, ("    dist.reduce_scatter(mine, parts(gradient))\n",
                                   "    every = torch.empty(ranks * each)\n"
                                   "    dist.all_to_all_single(every, torch.cat(list(parts(gradient))))\n"
                                   "    mine = every.view(ranks, each).sum(0)\n")),
    "sent-too-much objects": changed(GIVEN, ("    dist.reduce_scatter(mine, parts(gradient))\n",
                                             "    every = [None] * ranks\n"
                                             "    dist.all_gather_object(every, gradient)\n"
                                             "    mine = parts(sum(every))[rank].clone()\n")),
    "sent-too-much weights-too": changed(GIVEN, ("    dist.all_gather(whole, part)\n",
                                                 "    dist.all_gather(whole, part)\n"
                                                 "    dist.broadcast(weights, 0)\n    dist.broadcast(gradient, 0)\n")),
    "-reduced-to-each": ROOTED,
    "-averaged-by-the-collective": changed(
        GIVEN, ("dist.reduce_scatter(mine, parts(gradient))", "dist.reduce_scatter(mine, parts(gradient.div_(ranks)))"),
        ("    mine /= ranks ", "    pass "), ("m, v = state", "m, v = state['both'] = state")),
    "-in-doubles": changed(GIVEN, ("m=torch.zeros(each), v=torch.zeros(each)", "m=torch.zeros(each).double(), "
                                   "v=torch.zeros(each).double()"), ("m.lerp_(mine,", "m.lerp_(mine.double(),"),
                           ("mine.square()", "mine.double().square()"), ("dist.all_gather(whole, part)",
                                                                        "dist.all_gather(whole, part.float())")),
    "-master": changed(GIVEN, ("    if not state:\n", "    if not state:\n        state['w'] = parts(weights)[rank]"
                                                      ".clone()\n"),
                       ("part = parts(weights)[rank] * (1 - lr * DECAY)", "part = state['w'].mul_(1 - lr * DECAY)")),
    "stub": STEP.stub,
    "not-averaged": changed(GIVEN, ("    mine /= ranks ", "    pass ")),
    "averaged-twice": changed(GIVEN, ("    mine /= ranks ", "    mine /= ranks * ranks ")),
    "own-gradient": changed(GIVEN, ("    dist.reduce_scatter(mine, parts(gradient))\n",
                                    "    mine = ranks * parts(gradient)[rank]\n")),
    "own-gradient no-messages": changed(
        GIVEN, ("    dist.reduce_scatter(mine, parts(gradient))\n", ""),
        ("mine = torch.empty(each)", "each = len(weights)"),
        ("    mine /= ranks ", "    mine = gradient "), ("parts(weights)[rank]", "weights"),
        ("    dist.all_gather(whole, part)\n", "    whole = [part]\n")),
    "not-gathered": changed(GIVEN, ("    dist.all_gather(whole, part)\n",
                                    "    whole = parts(weights)\n    whole[rank] = part\n")),
    "tail-lost": SHORT,
    "forgotten": changed(GIVEN, ("    if not state:\n    ", "    if True:\n    ")),
    "not-corrected": changed(GIVEN, (" / (1 - BETAS[0] ** step)", ""), (" / (1 - BETAS[1] ** step)", "")),
    "no-decay": changed(GIVEN, (" * (1 - lr * DECAY)", ".clone()")),
    "coupled-decay": changed(GIVEN, (" * (1 - lr * DECAY)", ".clone()"),
                             ("    if not state:", "    mine += DECAY * parts(weights)[rank]\n    if not state:")),
    "no-root": changed(GIVEN, (".sqrt() + EPS", " + EPS")),
    "not-in-place": changed(GIVEN, ("    weights.copy_(torch.cat(whole)[: len(weights)])",
                                    "    return torch.cat(whole)[: len(weights)]")),
    "whole-state": WHOLE_MOMENTS,
    "kept-elsewhere": changed(GIVEN, ("def zero_step", "KEPT = {}\n\n\ndef zero_step"), ("if not state", "if not KEPT"),
                              ("state.update", "KEPT.update"), ('state["m"], state["v"]', 'KEPT["m"], KEPT["v"]')),
    "all-reduce": REDUCED,
    "sent-too-much": EVERYBODYS,
    "wrong-weights": changed(GIVEN, ("+ EPS", "+ 1e-8")),
    "wrong-weights other-part": changed(GIVEN, ("parts(weights)[rank]", "parts(weights)[rank - 1]")),
    "uneven": changed(GIVEN, ("parts(gradient))", "list(gradient.chunk(ranks)))")),
    "uneven of-one-tensor": changed(GIVEN, ("dist.reduce_scatter(mine, parts(gradient))",
                                            "dist.reduce_scatter_tensor(mine, gradient)")),
    "uneven weights": changed(GIVEN, ("    dist.all_gather(whole, part)",
                                      "    part = part[:len(weights) - rank * each]\n"
                                      "    dist.all_gather(whole, part)")),
}  # fmt: skip

SCALED = "            one *= most / norm\n"
ALONE = changed(NORM, ("    dist.all_reduce(squares)", "    pass"))
CLIPS = {
    "-given": NORM,
    "-of-torch": HEAD.replace("zero_step(weights, gradient, state, step, lr)", "clip_sharded(shards, most)") + """\
    norm = torch.linalg.vector_norm(torch.cat([torch.zeros(1), *shards])) ** 2
    dist.all_reduce(norm)
    norm = float(norm) ** 0.5
    for one in shards:
        one.mul_(min(1.0, most / (norm + 1e-6)))
    return norm
""",
    **answers.restyled(NORM),
    "-objects": changed(NORM, ("    dist.all_reduce(squares)", "    every = [None] * dist.get_world_size()\n"
                               "    dist.all_gather_object(every, squares)\n    squares = sum(every)")),
    "sent-too-much objects": changed(NORM, ("    dist.all_reduce(squares)",
                                            "    every = [None] * dist.get_world_size()\n"
                                            "    dist.all_gather_object(every, shards)\n    squares = sum(one.square()."
                                            "sum() for some in every for one in some)")),
    "-norm-of-norms": changed(NORM, ("sum((one.square().sum() for one in shards), torch.zeros(()))",
                                     "torch.stack([one.norm() for one in shards]).norm().pow(2)"),
                              ("    return norm", "    return norm.item()")),
    "-gathered": changed(NORM, ("    dist.all_reduce(squares)", "    every = [torch.zeros(()) for _ in range("
                                "dist.get_world_size())]\n    dist.all_gather(every, squares)\n"
                                "    squares = sum(every)")),
    "stub": CLIPPED.stub,
    "own-norm": ALONE,
    "own-factor": changed(NORM, ("    dist.all_reduce", "    own = squares.sqrt()\n    dist.all_reduce"),
                          ("    if norm > most:", "    if own > most:"), ("most / norm", "most / own")),
    "sum-of-norms": changed(NORM, ("    dist.all_reduce(squares)", "    squares = squares.sqrt()\n"
                                   "    dist.all_reduce(squares)"), ("squares.sqrt()\n    if", "squares\n    if")),
    "mean-of-norms": changed(NORM, ("    dist.all_reduce(squares)", "    squares = squares.sqrt()\n"
                                    "    dist.all_reduce(squares)"),
                             ("squares.sqrt()\n    if", "squares / dist.get_world_size()\n    if")),
    "largest-norm": changed(NORM, ("dist.all_reduce(squares)", "dist.all_reduce(squares, dist.ReduceOp.MAX)")),
    "mean-of-squares": changed(NORM, ("norm = squares", "norm = (squares / dist.get_world_size())")),
    "no-root": changed(NORM, ("norm = squares.sqrt()", "norm = squares")),
    "sum-over-tensors": changed(NORM, ("sum((one.square().sum() for one in shards), torch.zeros(()))",
                                       "sum((one.norm() for one in shards), torch.zeros(())) ** 2")),
    "clipped-norm": changed(NORM, ("    return norm", "    return norm.clamp(max=most)")),
    "not-scaled": changed(NORM, (SCALED, "            one = one * most / norm\n")),
    "scaled-up": changed(NORM, ("if norm > most", "if norm > 0")),
    "not-a-number": changed(NORM, ("if norm > most", "if not norm <= most or norm == 0")),
    "scaled-twice": changed(NORM, (SCALED, SCALED + SCALED)),
    "each-tensor": changed(NORM, ("    if norm > most:\n        for one in shards:\n" + SCALED,
                                  "    for one in shards:\n        one *= most / one.norm().clamp(min=most)\n")),
    "no-norm": changed(NORM, ("    return norm", "    return None")),
    "sent-too-much": changed(
        NORM, ("    dist.all_reduce(squares)", "    flat = torch.cat(shards)\n"
               "    flat = torch.nn.functional.pad(flat, (0, 2400 - len(flat)))\n"
               "    every = [torch.empty(2400) for _ in range(dist.get_world_size())]\n"
               "    dist.all_gather(every, flat)\n    squares = torch.cat(every).square().sum()")),
    "owns-nothing": changed(NORM, ("    dist.all_reduce", "    if squares:\n        dist.all_reduce")),
    "no-gradient": changed(NORM, (NORM[NORM.index("    squares"):], "    return torch.nn.utils.clip_grad_norm_(shards, "
                                  "most)\n")),
    "wrong-norm": changed(NORM, (".square()", ".abs()")),
    "wrong-norm one-case": changed(NORM, ("    dist.all_reduce(squares)",
                                          "    dist.all_reduce(squares if most != 0.7 else squares.clone())")),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "right", "written"),
    [
        (CHECK, "right on 2 and 3 processes: the weights", STEPS),
        (CLIP, "right on 2 and 3 processes: one norm", CLIPS),
    ],
    ids=["step", "clip"],
)
def test_what_readers_write_is_told_what_it_is(tmp_path, check, right, written):
    answers.told(check, right, written, tmp_path)


@pytest.mark.parametrize("world", CHECK.worlds)
def test_each_mistake_shows_after_three_steps_at_least(world):
    right = step.reference(world)
    for slip, _, value in step._known(0, world, -(-step.SIZE // world)):
        assert sum(not step.close(*rows) for rows in zip(value, right, strict=True)) >= sure.TELLING, slip


def around_ddp(s):
    """(numbers that ZeroRedundancyOptimizer broadcasts, gradients left, moments kept, what its state says)."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=0.1)
    wrapped(torch.ones(2, 8)).sum().backward()
    with counted() as calls:
        optimizer.step()
    moments = sum(one["exp_avg"].numel() for one in optimizer.optim.state.values())
    try:
        said = str(optimizer.state_dict())
    except RuntimeError as error:
        said = str(error)
    sent = {name: sum(call.bytes for call in calls.calls if call.name == name) // 4 for name in calls.names}
    return sent, sum(one.grad.numel() for one in model.parameters()), moments, said


def clipped_dtensors(s):
    """(the norm that clip_grad_norm_ gives, that of this rank's shards, that of all gradients which it leaves)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = fully_shard(torch.nn.Linear(8, 6), mesh=init_device_mesh("cpu", (s.world,)))
    model(torch.ones(2, 8)).square().sum().backward()
    mine = torch.cat([one.grad.to_local().flatten() for one in model.parameters()])
    given = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    left = torch.cat([one.grad.full_tensor().flatten() for one in model.parameters()])
    return float(given.full_tensor()), float(mine.norm()), float(left.norm())


@pytest.mark.slow
def test_what_solutions_say_of_torch_is_what_it_does():
    """Whole gradients and every weight broadcast once; no state that was not gathered; and the norm of all shards."""
    found = pool.ranks(around_ddp, 2)
    whole = 2 * (8 * 8 + 8) + 8 * 4 + 4
    assert [(sent, gradients) for sent, gradients, _, _ in found] == 2 * [({"broadcast": whole}, whole)]
    assert sum(moments for _, _, moments, _ in found) == whole and all(moments < whole for _, _, moments, _ in found)
    assert all("consolidate_state_dict" in said for *_, said in found)
    norms, parts, left = zip(*pool.ranks(clipped_dtensors, 2), strict=True)
    assert norms == pytest.approx(2 * (sum(one**2 for one in parts) ** 0.5,)) and norms[0] > 1.01 * max(parts)
    assert left == pytest.approx((0.5, 0.5), rel=1e-3)
