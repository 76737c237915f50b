"""The lab exercises of `recompute` under attack: answers that readers would write, on real ranks.

A name that starts with a hyphen is of a right answer in another form. The others are wrong, and named by the slip that
the checker has to see in them; after a blank, what else is in it.
"""

import answers
import pool
import pytest
import torch
from answers import changed

from scaleout import exercises
from scaleout.exercises.recompute.ranks import CHECK, ROUTED

HAND, LAYER = (exercises.exercise("recompute", key) for key in ("again-by-hand", "kept-choice"))
GIVEN, KEPT = answers.code_of(HAND), answers.code_of(LAYER)


FORWARD = GIVEN[: GIVEN.index("    @staticmethod\n    def backward")]
LAST = "\n\ndef again(run, *inputs):\n    return Again.apply(run, *inputs)\n"
IN_HOOKS = """\
import torch


def again(run, *inputs):
    state, kept, whole = torch.get_rng_state(), [], []

    def pack(tensor):
        kept.append(None)
        return len(kept) - 1

    def unpack(place):
        if not whole:
            with torch.random.fork_rng(), torch.enable_grad():
                torch.set_rng_state(state)
                with torch.autograd.graph.saved_tensors_hooks(lambda one: whole.append(one.detach()) or one,
                                                              lambda one: one):
                    run(*(one.detach().requires_grad_(one.requires_grad) for one in inputs))
        return whole[place]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return run(*inputs)
"""
BY_GRAD = changed(
    GIVEN,
    (
        "        torch.autograd.backward(out, gradient)  # for the weights too\n"
        "        return None, *(one.grad for one in inputs)\n",
        "        wanted = [one for one in inputs if one.requires_grad]\n"
        "        given = iter(torch.autograd.grad(out, wanted, gradient))\n"
        "        return None, *(next(given) if one.requires_grad else None for one in inputs)\n",
    ),
)
OWN_STATE = changed(
    GIVEN,
    (
        "        with torch.random.fork_rng(devices=[]), torch.enable_grad():\n"
        "            torch.set_rng_state(ctx.random)",
        "        before = torch.get_rng_state()\n        torch.set_rng_state(ctx.random)\n"
        "        with torch.enable_grad():\n            pass",
    ),
    (
        "            out = ctx.run(*inputs)\n",
        "            out = ctx.run(*inputs)\n        torch.set_rng_state(before)\n",
    ),
)
BESIDE = changed(
    GIVEN,
    (
        "        return run(*inputs)                     # no graph is recorded here\n",
        "        with torch.no_grad():\n            return run(*inputs)\n",
    ),
    ("ctx.save_for_backward(*inputs)", "ctx.inputs = inputs"),
    ("ctx.saved_tensors", "ctx.inputs"),
)
HANDS = {
    "-given": GIVEN,
    "-own-state": OWN_STATE,
    "-beside-autograd": BESIDE,
    "-summed": changed(GIVEN, ("        torch.autograd.backward(out, gradient)",
                               "            (out * gradient).sum().backward()")),
    "-in-hooks": IN_HOOKS,
    "kept copies": """\
import torch


def again(run, *inputs):
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda one: one):
        return run(*inputs)
""",
    "kept on-the-cpu": """\
import torch


def again(run, *inputs):
    with torch.autograd.graph.save_on_cpu():
        return run(*inputs)
""",
    "wrong-gradient twice": changed(GIVEN, ("torch.autograd.backward(out, gradient)",
                                            "torch.autograd.backward(out, 2 * gradient)")),
    "wrong-gradient first-row": changed(GIVEN, ("torch.autograd.backward(out, gradient)",
                                                "torch.autograd.backward(out, gradient[:1].expand_as(out))")),
    "stub": HAND.stub,
    "of-torch": "from torch.utils.checkpoint import checkpoint\n\n\ndef again(run, *inputs):\n"
                "    return checkpoint(run, *inputs, use_reentrant=False)\n",
    "of-torch by-path": "import torch.utils.checkpoint\n\n\ndef again(run, *inputs):\n"
                        "    return torch.utils.checkpoint.checkpoint(run, *inputs, use_reentrant=True)\n",
    "kept": "def again(run, *inputs):\n    return run(*inputs)\n",
    "kept recorded": changed(
        GIVEN, ("        return run(*inputs)                     # no graph is recorded here\n",
                "        with torch.enable_grad():\n"
                "            ctx.out = run(*(one.detach().requires_grad_(one.requires_grad) for one in inputs))\n"
                "        return ctx.out.detach()\n")),
    "not-recorded": changed(GIVEN, (", torch.enable_grad()", "")),
    "second-time": changed(GIVEN, ("one.detach().requires_grad_(one.requires_grad)", "one")),
    "no-weight": BY_GRAD,
    "no-input": changed(GIVEN, ("None, *(one.grad for one in inputs)", "None, *(None for one in inputs)")),
    "not-recorded sum": changed(GIVEN, ("torch.autograd.backward(out, gradient)", "out.sum().backward()")),
    "gradient-ignored": changed(GIVEN, ("backward(out, gradient)", "backward(out, torch.ones_like(out))")),
    "other-elements": changed(GIVEN, ("            torch.set_rng_state(ctx.random)", "            pass")),
    "other-elements by-seed": changed(GIVEN, ("            torch.set_rng_state(ctx.random)",
                                              "            torch.manual_seed(0)")),
    "trace": changed(GIVEN, ("torch.random.fork_rng(devices=[]), ", "")),
    "number-of-gradients": changed(GIVEN, ("return None, *(one.grad", "return tuple(one.grad")),
    "mask-gradient": changed(GIVEN, ("requires_grad_(one.requires_grad)", "requires_grad_()")),
    "order": changed(GIVEN, ("return None, *(one.grad for one in inputs)",
                             "x, y, *rest = (one.grad for one in inputs)\n        return None, y, x, *rest")),
    "runs": changed(GIVEN, ("        return run(*inputs) ", "        run(*inputs)\n"
                            "        torch.set_rng_state(ctx.random)\n        return run(*inputs) ")),
    "other-output": changed(GIVEN, ("        return run(*inputs) ", "        torch.rand(1)\n"
                                    "        return run(*inputs).relu() ")),
    "no-tensor": changed(GIVEN, ("return Again.apply(run, *inputs)", "return [Again.apply(run, *inputs)]")),
    "wrong-gradient": changed(GIVEN, ("torch.autograd.backward(out, gradient)",
                                      "torch.autograd.backward(out, gradient / 3)")),
}  # fmt: skip

INSIDE = changed(
    KEPT,
    ("    share, chosen = gate(x).softmax(-1).max(-1)     # once, and saved\n\n", ""),
    ("    def run(x, share):\n", "    def run(x):\n        share, chosen = gate(x).softmax(-1).max(-1)\n"),
    ("checkpoint(run, x, share,", "checkpoint(run, x,"),
)
LAYERS = {
    "-given": KEPT,
    "-only-the-choice": changed(
        KEPT, ("share, chosen = gate(x).softmax(-1).max(-1) ", "chosen = gate(x).argmax(-1) "),
        ("    def run(x, share):\n", "    def run(x):\n"
         "        share = gate(x).softmax(-1).gather(-1, chosen[:, None])[:, 0]\n"),
        ("checkpoint(run, x, share,", "checkpoint(run, x,")),
    "-each-expert": changed(
        KEPT, ("share[mine, None] * expert(x[mine])",
               "share[mine, None] * checkpoint(expert, x[mine], use_reentrant=False)"),
        ("    return checkpoint(run, x, share, use_reentrant=False)", "    return run(x, share)")),
    "-summed": changed(KEPT, ("            out[mine] = share[mine, None] * expert(x[mine])\n",
                              "            rows = mine.nonzero()[:, 0]\n"
                              "            out = out.index_add(0, rows, share[rows, None] * expert(x[rows]))\n")),
    "-topk": changed(KEPT, ("share, chosen = gate(x).softmax(-1).max(-1) ",
                            "share, chosen = (one[:, 0] for one in gate(x).softmax(-1).topk(1)) ")),
    "more-tokens": changed(
        KEPT, ("            mine = chosen == i\n            out[mine] = share[mine, None] * expert(x[mine])\n",
               "            out = out + torch.where((chosen == i)[:, None], share[:, None] * expert(x), 0)\n")),
    "more-tokens all-then-chosen": changed(
        KEPT, ("        out = torch.zeros_like(x)\n", "        out = torch.zeros_like(x)\n"
               "        every = [expert(x) for expert in experts]\n"), ("expert(x[mine])", "every[i][mine]")),
    "kept copies": changed(KEPT, ("    return checkpoint(run, x, share, use_reentrant=False)",
                                  "    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda one: one):\n"
                                  "        return run(x, share)")),
    "stub": LAYER.stub,
    "changed": INSIDE,
    "asked-twice inside": changed(KEPT, ("    def run(x, share):\n", "    def run(x, share):\n"
                                           "        chosen = gate(x).argmax(-1)\n"), ("share, chosen =", "share, _ =")),
    "kept": changed(KEPT, ("checkpoint(run, x, share, use_reentrant=False)", "run(x, share)")),
    "no-gate": changed(KEPT, ("gate(x).softmax(-1).max(-1)", "(one.detach() for one in gate(x).softmax(-1).max(-1))")),
    "other-output one-case": changed(KEPT, ("share[mine, None] * expert",
                                            "(share[mine, None] if len(CALLS) > 1 else 1) * expert"),
                                     ("def routed(x, gate, experts):\n",
                                      "CALLS = []\n\n\ndef routed(x, gate, experts):\n    CALLS.append(1)\n")),
    "unweighted": changed(KEPT, ("share[mine, None] * expert", "expert")),
    "all-experts": changed(
        KEPT, ("share, chosen = gate(x).softmax(-1).max(-1) ", "share = gate(x).softmax(-1) "),
        ("            mine = chosen == i\n            out[mine] = share[mine, None] * expert(x[mine])\n",
         "            out = out + share[:, i, None] * expert(x)\n")),
    "asked-twice": changed(KEPT, ("    share, chosen", "    gate(x)\n    share, chosen")),
    "no-tensor": changed(KEPT, ("use_reentrant=False)", "use_reentrant=False), chosen")),
    "no-way-back": changed(KEPT, ("    return checkpoint(run, x, share, use_reentrant=False)",
                                  "    with torch.no_grad():\n        return run(x, share)")),
    "other-output": changed(KEPT, (".max(-1) ", ".min(-1) ")),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "right", "written"),
    [
        (CHECK, "right on 1 and 2 processes: the gradients", HANDS),
        (ROUTED, "right on 2 processes: each token", LAYERS),
    ],
    ids=["again", "routed"],
)
def test_what_readers_write_is_told_what_it_is(tmp_path, check, right, written):
    answers.told(check, right, written, tmp_path)


class Block(torch.nn.Module):
    """Two products, checkpointed from without: `reentrant` says how, None for not at all."""

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Around(torch.nn.Module):
    def __init__(self, block, reentrant):
        super().__init__()
        self.block, self.reentrant = block, reentrant

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=self.reentrant)


def gathers(s):
    """{(way, where the checkpoint is, reentrant): all-gathers a block in one step}."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor.debug import CommDebugMode

    from scaleout.exercises.ranks.count import counted

    mesh, cpu, found = init_device_mesh("cpu", (s.world,)), torch.device("cpu"), {}
    units = {
        "fully_shard": lambda one: fully_shard(one, mesh=mesh),
        "older": lambda one: FullyShardedDataParallel(one, device_id=cpu),
    }
    for way, unit in units.items():
        for place in ("inside", "outside"):
            for reentrant in (False, True):
                blocks = [
                    unit(Around(Block(), reentrant)) if place == "inside" else Around(unit(Block()), reentrant)
                    for _ in range(4)
                ]
                model = unit(torch.nn.Sequential(*blocks))
                with CommDebugMode() as debug, counted() as calls:
                    model(torch.ones(2, 8, requires_grad=True)).sum().backward()
                seen = sum(n for name, n in debug.get_comm_counts().items() if "allgather" in str(name))
                seen = seen if way == "fully_shard" else sum("all_gather" in name for name in calls.names)
                found[way, place, reentrant] = seen / 4
    return found


@pytest.mark.slow
def test_a_third_gather_is_the_older_wrappers_inside_a_reentrant_checkpoint():
    for found in pool.ranks(gathers, 2):
        assert found.pop(("older", "outside", True)) == 3
        assert set(found.values()) == {2} and len(found) == 7
