"""The lab exercise of `kernels` on two real ranks: right in other words, and what is said of what is wrong.

A name that starts with a hyphen is of a right answer in another form. The others are wrong, and named by the slip that
the checker has to see in them; after a blank, what else is in it.
"""

from functools import partial

import answers
import pytest

from scaleout import exercises
from scaleout.exercises.kernels import ranks

SPLIT = exercises.exercise("kernels", "keys-on-two-ranks")
GIVEN = answers.code_of(SPLIT)


changed = partial(answers.changed, GIVEN)


LSE = """\
import torch
import torch.distributed as dist


def split_keys(q, k, v):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    lse = scores.logsumexp(-1, keepdim=True)
    every = [torch.empty_like(lse) for _ in range(2)]
    dist.all_gather(every, lse)
    whole = torch.logsumexp(torch.stack(every), 0)
    out = scores.softmax(-1) @ v * (lse - whole).exp()
    dist.all_reduce(out)
    return out
"""
GATHERED = """\
import torch
import torch.distributed as dist


def split_keys(q, k, v):
    parts = []
    for one in (k, v):
        every = [torch.empty_like(one) for _ in range(2)]
        dist.all_gather(every, one)
        parts.append(torch.cat(every, 1))
    return (q @ parts[0].mT * q.shape[-1] ** -0.5).softmax(-1) @ parts[1]
"""
OWN = "import torch\n\n\ndef split_keys(q, k, v):\n    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v\n"
SUMMED = (
    OWN.replace("import torch\n", "import torch\nimport torch.distributed as dist\n").replace(
        "    return (q", "    out = (q"
    )
    + "    dist.all_reduce(out)\n    return out"
)
WRITTEN = {
    "-given": GIVEN,
    **answers.restyled(GIVEN),
    "-by-log-sum-exp": LSE,
    "stub": SPLIT.stub,
    "own-keys": OWN,
    "sum": SUMMED + "\n",
    "mean": SUMMED + " / 2\n",
    "own-maxima": changed(("    dist.all_reduce(peak, op=dist.ReduceOp.MAX)     # the common maximum\n", "")),
    "unscaled": changed((" * q.shape[-1] ** -0.5", "")),
    "overflow": changed(("(scores - peak).exp()", "scores.exp()")),
    "sent-too-much": GATHERED,
    "no-tensor": changed(("return mixed / total", "return [mixed, total]")),
    "wrong-shape": changed(("return mixed / total", "return (mixed / total)[0]")),
    "wrong-dtype": changed(("return mixed / total", "return (mixed / total).double()")),
    "wrong-output": changed(("return mixed / total", "return mixed / total + 1")),
}


@pytest.mark.slow
def test_what_readers_write_is_told_what_it_is(tmp_path):
    answers.told(ranks.CHECK, "right: 2 ranks", WRITTEN, tmp_path)
