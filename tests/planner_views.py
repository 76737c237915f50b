"""What tests of the view `planner` share: its opening and two other settings, what it shows and what it tells."""

from functools import cache
from pathlib import Path

from scaleout import views
from scaleout.draw import svg
from scaleout.spec.devices import DEVICES
from scaleout.spec.frameworks import RUNS, trained
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing.search import search
from scaleout.views.planner.setting import Setting

BIG = {"model": "llama-3-405b", "gpus": 16_384, "sequences": 2048}
SMALL = {"model": "llama-3-8b", "gpus": 64}
PUBLISHED = Path(__file__).parent / "published"


def job_of(shape="llama-3-70b", gpus=512, program="megatron", device="h100-sxm", seq=8192):
    """What a setting of the view trains, by no layout of its own."""
    shape = PRESETS[shape] if isinstance(shape, str) else shape
    nodes, context = cluster(-(-gpus // 8), min(8, gpus)), RUNS[program].context
    recipe = trained(PROGRAMS[program], Layout(dp=gpus), Recipe("bf16-master", main_gradients="instead"))
    return Job(shape, seq, DEVICES[device], nodes, 1, Layout(dp=gpus), recipe, PROGRAMS[program], context=context)


@cache
def opening():
    """(job, what the search finds) of the view's first setting."""
    job = job_of()
    return job, search(job, 1024)


def shown(params=None, width=svg.WIDE):
    return views.render("planner", params, width)


def setting(**params):
    return Setting.of(views.defaults("planner") | params)


def told(name, **params):
    return views.beneath("planner", params, name)
