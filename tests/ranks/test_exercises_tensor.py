"""The lab exercises of `tensor` on two real ranks: right in other words, and what is said of what is wrong.

A name that starts with a hyphen is of a right answer in another form. The others are wrong, and named by the slip that
the checker has to see in them; after a blank, what else is in it.
"""

import re

import answers
import pool
import pytest
import torch

from scaleout import exercises
from scaleout.exercises.tensor import ranks

MLP, TOKENS = (answers.code_of(exercises.exercise("tensor", key)) for key in ("on-ranks-mlp", "on-ranks-sequence"))
COPIED = """\
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient
"""
G = "    return Sum.apply(middle @ down) + bias"
HEAD = """\
import torch
import torch.distributed as dist
from torch.distributed.nn import functional as dnn
from torch.nn.functional import gelu

def split_mlp(x, up, down, bias):
"""
HOOKED = """\
    x = x.view_as(x)
    def added(gradient):
        out = gradient.clone()
        dist.all_reduce(out)
        return out
    x.register_hook(added)
"""
WHOLE = """\
    def gathered(part, dim):
        parts = [torch.empty_like(part) for _ in range(2)]
        dist.all_gather(parts, part.detach().contiguous())
        parts[dist.get_rank()] = part
        return torch.cat(parts, dim)
    return gelu(x @ gathered(up, 1)) @ gathered(down, 0) + bias
"""
HALVES = """\
        parts = [one.contiguous() for one in part.chunk(2)]
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts)
        dist.all_gather(parts, mine)
        return torch.cat(parts)
"""
SUMMED = """\
        whole = part.clone()
        dist.all_reduce(whole)
        return whole
"""
SPLIT_MLP = {
    "-given": MLP,
    **answers.restyled(MLP),
    "-functional": HEAD + """\
    from torch.distributed import _functional_collectives as fc
    x = x.view_as(x)
    x.register_hook(lambda gradient: fc.wait_tensor(fc.all_reduce(gradient, "sum", dist.group.WORLD)))
""" + "    y = gelu(x @ up) @ down\n    dist.all_reduce(y)\n    return y + bias\n",
    "-hooked": HEAD + HOOKED + "    y = gelu(x @ up) @ down\n    dist.all_reduce(y)\n    return y + bias\n",
    "-in-halves": MLP.replace(SUMMED, HALVES),
    "-half-a-bias": MLP.replace(G, "    return Sum.apply(middle @ down + bias.detach() / 2) + bias - bias.detach()"),
    "stub": exercises.exercise("tensor", "on-ranks-mlp").stub,
    "no-forward-sum": MLP.replace("dist.all_reduce(whole)", "pass"),
    "wrong-output first-inputs": MLP.replace("dist.all_reduce(whole)", "CALLS.append(1)\n        dist.all_reduce("
                                             "whole if len(CALLS) > 1 else whole.clone())").replace(
        "class Copy", "CALLS = []\n\n\nclass Copy"),
    "no-backward-sum": MLP.replace("dist.all_reduce(gradient)", "pass"),
    "no-backward-sum alone": HEAD + "    y = gelu(x @ up) @ down\n    dist.all_reduce(y)\n    return y + bias\n",
    "both-ways": MLP.replace("        return gradient\n\n\ndef", COPIED + "\n\ndef"),
    "both-ways of-torch": HEAD + HOOKED + "    return dnn.all_reduce(gelu(x @ up) @ down) + bias\n",
    "bias-twice": MLP.replace(G, "    return Sum.apply(middle @ down + bias)"),
    "no-bias": MLP.replace(G, G[:-7]),
    "mean": MLP.replace("        return whole", "        return whole / 2"),
    "mean-of-all": MLP.replace(G, "    return Sum.apply(middle @ down / 2 + bias / 4)"),
    "mean-gradient": MLP.replace("        dist.all_reduce(gradient)\n", "        dist.all_reduce(gradient)\n"
                                 "        gradient /= 2\n"),
    "weights-added": MLP.replace("    middle", "    for one in (up, down):\n"
                                 "        one.register_hook(lambda g: Sum.apply(g.contiguous()))\n    middle"),
    "bias-added": MLP.replace("    middle", "    bias = Copy.apply(bias)\n    middle"),
    "added-twice": MLP.replace("Copy.apply(x)", "Copy.apply(Copy.apply(x))"),
    "no-graph": MLP.replace(G, "    return (Sum.apply(middle @ down) + bias).detach()"),
    "no-gradient": MLP.replace("Copy.apply(x)", "x.detach()"),
    "sent-too-much weights": HEAD + WHOLE,
    "sent-too-much objects": HEAD + """\
    every = [None] * 2
    dist.all_gather_object(every, (up.detach(), down.detach()))
    mine = dist.get_rank()
    up = torch.cat([up if r == mine else one[0] for r, one in enumerate(every)], 1)
    down = torch.cat([down if r == mine else one[1] for r, one in enumerate(every)])
    return gelu(x @ up) @ down + bias
""",
    "sent-too-much middle": HEAD + HOOKED + """\
    part = gelu(x @ up)
    every = [torch.empty_like(part) for _ in range(2)]
    dist.all_gather(every, part.detach())
    y = part @ down
    dist.all_reduce(y)
    return y + bias
""",
    "no-tensor": MLP.replace(G, "    return [0.0]"),
    "wrong-output": MLP.replace("gelu(Copy", "torch.relu(Copy"),
    "wrong-shape": MLP.replace(G, "    return (Sum.apply(middle @ down) + bias)[:3]"),
    "exception": MLP.replace("middle @ down", "middle @ dow"),
}  # fmt: skip

LAST = "    return Scatter.apply(gelu(Gather.apply(x) @ up) @ down)"
OF_TORCH = """\
    parts = dnn.all_gather(x)
    y = gelu(torch.cat(parts) @ up) @ down
    return dnn.reduce_scatter(torch.empty_like(x), [one.contiguous() for one in y.chunk(2)])
"""
REDUCED = """\
def scattered(x):
    x = x.clone()
    dist.all_reduce(x)
    return x.chunk(2)[dist.get_rank()].contiguous()
"""
PADDED = """\
        out = torch.zeros(2 * len(gradient), *gradient.shape[1:])
        out.chunk(2)[dist.get_rank()].copy_(gradient)
        return out
"""
SPLIT_TOKENS = {
    "-given": TOKENS,
    **answers.restyled(TOKENS),
    "-of-torch": HEAD.replace("split_mlp(x, up, down, bias)", "split_tokens(x, up, down)") + OF_TORCH,
    "-of-one-tensor": TOKENS.replace("    dist.reduce_scatter(mine, parts)", "    dist.reduce_scatter_tensor(mine, "
                                     "torch.cat(parts))"),
    "stub": exercises.exercise("tensor", "on-ranks-sequence").stub,
    "not-scattered": TOKENS.replace(LAST, """\
    y = gelu(Gather.apply(x) @ up) @ down
    dist.all_reduce(y)
    return y"""),
    "no-forward-sum": TOKENS.replace(LAST, LAST.replace("Scatter.apply(", "(")[:-1]
                                     + ").chunk(2)[dist.get_rank()]"),
    "neither": TOKENS.replace("Scatter.apply(", "("),
    "no-forward-sum nor-gathered": TOKENS.replace(LAST, "    return gelu(x @ up) @ down"),
    "other-tokens": TOKENS.replace("x.chunk(ranks)]", "x.chunk(ranks)[::-1]]"),
    "mean": TOKENS.replace(LAST, LAST + " / 2"),
    "wrong-output first-inputs": TOKENS.replace(LAST, "    CALLS.append(1)\n" + LAST + " / (1 if len(CALLS) > 1 else 2)"
                                                ).replace("class Gather", "CALLS = []\n\n\nclass Gather"),
    "no-backward-sum": TOKENS.replace("        return scattered(gradient)",
                                      "        return gradient.chunk(2)[dist.get_rank()].contiguous()"),
    "own-tokens": TOKENS.replace("        return gathered(gradient)\n", PADDED),
    "too-large": TOKENS.replace("        return gathered(gradient)", "        return 2 * gathered(gradient)"),
    "all-reduce": re.sub(r"def scattered.*?return mine\n", REDUCED, TOKENS, flags=re.S),
    "mean-gradient": TOKENS.replace("        return scattered(gradient)", "        return scattered(gradient) / 2"),
    "no-gradient": TOKENS.replace("Gather.apply(x)", "gathered(x.detach())"),
    "sent-too-much": TOKENS.replace(LAST, "    gathered(up.detach())\n    gathered(down.detach())\n" + LAST),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "written"), [(ranks.CHECK, SPLIT_MLP), (ranks.SEQUENCE, SPLIT_TOKENS)], ids=["mlp", "tokens"]
)
def test_what_readers_write_is_told_what_it_is(tmp_path, check, written):
    answers.told(check, "right: 2 ranks", written, tmp_path)


def seen_by_a_norm(s):
    """The shapes inside a norm that is given all tokens: as a plain tensor, by other dimensions, and cut before it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import PrepareModuleInput, RowwiseParallel, SequenceParallel
    from torch.distributed.tensor.parallel import parallelize_module as cut

    mesh, tokens, found = init_device_mesh("cpu", (s.world,)), torch.zeros(2, 6, dtype=torch.long), []
    row = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    prepared = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1))
    for plan in (
        {"1.0": SequenceParallel()},
        {"1.0": SequenceParallel(sequence_dim=0)},
        {"0": row, "1.0": SequenceParallel()},
        {"1": prepared, "1.0": SequenceParallel()},
    ):
        model = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Sequential(torch.nn.LayerNorm(4)))
        found.append(tuple(cut(model, mesh, plan)(tokens).shape))
    return found


@pytest.mark.slow
def test_whole_tokens_are_taken_for_a_part_unless_they_are_cut():
    whole = (2, 6, 4)
    assert pool.ranks(seen_by_a_norm, 2) == 2 * [[(2, 12, 4), (4, 6, 4), whole, whole]]
