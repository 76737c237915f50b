"""What tests of the search share: some jobs, and what it finds for them."""

from scaleout.spec.devices import DEVICES
from scaleout.spec.frameworks import RUNS
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing.search import search

H100 = DEVICES["h100-sxm"]


def job(model="llama-3-70b", gpus=64, program="megatron", seq=8192, nodes=None, **options):
    nodes = nodes or cluster(-(-gpus // 8), min(8, gpus))
    options = {"context": RUNS[program].context} | options
    return Job(PRESETS[model], seq, H100, nodes, 1, Layout(dp=gpus), program=PROGRAMS[program], **options)


ASKED = {"8B": (job("llama-3-8b", 8), 128), "70B": (job(), 128), "405B": (job("llama-3-405b", 16_384), 2048),
         "70B on 96": (job(gpus=96), 192), "70B compiled": (job(program="compiled"), 128)}  # fmt: skip


class Found(dict):
    """What the search finds for each of ASKED, once it is asked for: every worker imports this file."""

    def __missing__(self, name):
        return self.setdefault(name, search(*ASKED[name]))


FOUND = Found()


def key(plan):
    at = plan.layout
    return at.tp, at.cp, at.pp, at.dp, at.zero, plan.checkpointing
