"""The lab exercises of `pipeline` under attack: answers that readers would write, on real ranks.

A name that starts with a hyphen is of a right answer in another form. The others are wrong, and named by the slip that
the checker has to see in them, with a number where several end in one.
"""

import answers
import pytest
from answers import changed

from scaleout import exercises
from scaleout.exercises.pipeline.ranks import CHECK, SPLIT

STEP = answers.code_of(exercises.exercise("pipeline", "on-ranks-1f1b"))
HALVES = answers.code_of(exercises.exercise("pipeline", "on-ranks-split"))
DOWN = "sent.append(dist.isend(y.detach(), rank + 1))"
UP = "sent.append(dist.isend(x.grad, rank - 1))"


STEPPED = {
    "-given": STEP,
    **answers.restyled(STEP),
    "kept": changed(STEP, ("held.pop(i)", "held[i]")),
    "kept graphs": changed(STEP, ("y.backward(gradient)", "y.backward(gradient, retain_graph=True)"),
                           ("held, sent = {}, []", "held, sent, old = {}, [], []"),
                           ("            gradient = None\n",
                            "            old.append(y)\n            gradient = None\n")),
    "wrong-gradient by-rank": changed(STEP, (" / len(targets)", " / (len(targets) if i else 1)")),
    "-batched": changed(
        STEP, (DOWN, "sent += dist.batch_isend_irecv([dist.P2POp(dist.isend, y.detach(), rank + 1)])"),
        ("dist.recv(gradient, rank + 1)", "dist.irecv(gradient, rank + 1).wait()")),
    "-only-up-is-started": changed(STEP, (DOWN, "dist.send(y.detach(), rank + 1)")),
    "-whole-list": changed(STEP, ("x = inputs[i]", "x = inputs[0 if rank else i]"),
                           (" / len(targets)", " * (1 / len(inputs))"), ("held.pop(i)", "held.pop(next(iter(held)))")),
    "deadlock": changed(STEP, (DOWN, "dist.send(y.detach(), rank + 1)"), (UP, "dist.send(x.grad, rank - 1)")),
    "gradient-not-sent": changed(STEP, (UP, "pass")),
    "activations-not-sent": changed(STEP, (DOWN, "pass")),
    "held-too-many": changed(STEP, ("in order:", "in sorted(order, key=lambda one: one[0], reverse=True):")),
    "no-input-gradient": changed(STEP, ("                x.requires_grad_()\n", "")),
    "no-input-gradient2": changed(STEP, ("y = stage(x)", "y = stage(x.detach())")),
    "not-divided": changed(STEP, (" / len(targets)", "")),
    "divided-twice": changed(STEP, (" / len(targets)", " / len(targets) ** 2")),
    "wrong-gradient": changed(STEP, ("y.backward(gradient)", "y.sum().backward()")),
    "last-only": changed(STEP, ("y.backward(gradient)", "stage.zero_grad(); y.backward(gradient)")),
    "held-too-many2": STEP[: STEP.index("        else:\n            x, y = held")],
    "no-forward": changed(STEP, ("in order:", "in ():")),
    "bad-input": changed(STEP, ("y = stage(x)", "y = stage(x[0])")),
}  # fmt: skip
SPLITS = {
    "-given": HALVES,
    "-backward": """
def split_backward(stage, x, y, gradient):
    x.grad = None
    y.backward(gradient, inputs=[x], retain_graph=True)
    return x.grad, lambda: y.backward(gradient, inputs=list(stage.parameters()))
""",
    "weights-too-early": """
def split_backward(stage, x, y, gradient):
    y.backward(gradient)
    return x.grad, lambda: None
""",
    "weights-too-early2": """
import torch
def split_backward(stage, x, y, gradient):
    weights = list(stage.parameters())
    first, *rest = torch.autograd.grad(y, [x, *weights], gradient)
    def later():
        for weight, one in zip(weights, rest):
            weight.grad = one if weight.grad is None else weight.grad + one
    return first, later
""",
    "freed": changed(HALVES, (", retain_graph=True", "")),
    "replaced": changed(HALVES, ("one if held is None else held + one", "one")),
    "nothing-added": changed(HALVES, ("weight.grad = one if held is None else held + one", "pass")),
    "input-again": changed(HALVES, ("torch.autograd.grad(y, weights, gradient)",
                                    "torch.autograd.grad(y, [*weights, x], gradient)")),
    "wrong-weights": changed(HALVES, ("(y, weights, gradient)", "(y, weights, 2 * gradient)")),
    "wrong-input-gradient": changed(HALVES, ("(y, x, gradient,", "(y.sum(), x,")),
    "no-pair": changed(HALVES, ("return to_input, later", "return to_input")),
    "no-input-gradient": changed(HALVES, ("to_input, = ", "to_input = ")),
}  # fmt: skip

# Invented by somebody who had not seen the slips.
FRESH = {
    "wrong-weights first-round": changed(HALVES, ("one if held is None", "one if held is None or CALLS.append(1) or "
                                                                         "len(CALLS) < 9"),
                                         ("def split_backward", "CALLS = []\n\n\ndef split_backward")),
    "wrong-input-gradient of-y": changed(HALVES, ("return to_input, later", "return gradient, later")),
    "wrong-input-gradient mean": changed(HALVES, ("return to_input, later", "return to_input / len(x), later")),
    "wrong-weights no-biases": changed(HALVES, ("list(stage.parameters())",
                                                "[one for one in stage.parameters() if one.dim() > 1]")),
    "wrong-weights a-third": changed(HALVES, ("(y, weights, gradient)", "(y, weights, gradient / 3)")),
    "replaced by-zeros": changed(HALVES, ("    def later():\n", "    def later():\n        stage.zero_grad()\n")),
    "weights-too-early all-at-once": """
import torch
def split_backward(stage, x, y, gradient):
    torch.autograd.backward(y, gradient)
    return x.grad.clone(), lambda: None
""",
    "wrong-weights newest-for-all": """
import torch
NEWEST = {}
def split_backward(stage, x, y, gradient):
    first, = torch.autograd.grad(y, x, gradient, retain_graph=True)
    NEWEST.update(y=y, gradient=gradient)
    def later():
        torch.autograd.backward(NEWEST["y"], NEWEST["gradient"], inputs=list(stage.parameters()), retain_graph=True)
    return first, later
""",
    "no-pair at-once": changed(HALVES, ("return to_input, later", "return to_input, later()")),
    "nothing-added to-copies": """
import torch
def split_backward(stage, x, y, gradient):
    first, = torch.autograd.grad(y, x, gradient, retain_graph=True)
    weights = list(stage.parameters())
    def later():
        grads = [torch.zeros_like(one) if one.grad is None else one.grad for one in weights]
        for grad, more in zip(grads, torch.autograd.grad(y, weights, gradient)):
            grad += more
    return first, later
""",
}  # fmt: skip
SPLITS |= FRESH
SAYS = {
    "deadlock": "it waited in send()",
    "held-too-many": "this rank has at most",
    "held-too-many2": "no backward has come",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "right", "written"), [(CHECK, "right on 2 and 3 processes", STEPPED), (SPLIT, "right: 2 ranks", SPLITS)]
)
def test_what_readers_write_is_told_what_it_is(tmp_path, check, right, written):
    for slip, words in answers.told(check, right, written, tmp_path).items():
        assert SAYS.get(slip, "") in words
