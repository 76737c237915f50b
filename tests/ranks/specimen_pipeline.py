"""Many cases of a pipeline on the ranks of one group."""

import torch

from scaleout.parallel import parity, pipeline
from scaleout.parallel.transformer import Transformer
from scaleout.spec.transformer import Shape

B, M, S = 2, 4, 12


def model(tied=True, **more):
    torch.manual_seed(1)
    return Transformer(Shape(4, 24, 2, 37, max_seq=16, tied_head=tied, **more))


def batches(m):
    chance = torch.Generator().manual_seed(m)
    tokens = torch.randint(37, (m, B, S + 1), generator=chance)
    return list(tokens[:, :, :-1].contiguous()), list(tokens[:, :, 1:].contiguous())


def main(s):
    out = {}
    p = s.world
    for tied in (True, False):
        tokens, targets = batches(M)
        loss, wanted = parity.loss_and_gradients(model(tied), torch.cat(tokens), torch.cat(targets))
        for name, work in pipeline.WAYS.items():
            stages = pipeline.stages_of(model(tied), pipeline.cut(4, p), [s.rank], s.device)
            pipe = pipeline.HandPipeline(s, stages, tuple(range(p)), torch.empty(B, S, 24))
            got = pipe.step(tokens, targets, work)
            mine = {n: q.grad for n, q in stages[s.rank].named_parameters()}
            w = {n: wanted[n if n in wanted else "tokens.weight"] for n in mine}
            out[name, tied] = abs(got / loss - 1), s.largest(parity.relative_error(mine, w))
    return out
