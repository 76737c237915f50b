"""What tests of the view `planner` share: its opening and two other settings, what it shows and what it tells."""

from functools import cache
from pathlib import Path

from scaleout import views
from scaleout.draw import svg
from scaleout.spec.hardware import DEVICES
from scaleout.spec.topology import cluster
from scaleout.spec.transformer import PRESETS
from scaleout.timing.mesh_search import Job, plans
from scaleout.views.planner.setting import setting_of

BIG = {"model": "llama-3-405b", "gpus": 16_384, "sequences": 2048}
SMALL = {"model": "llama-3-8b", "gpus": 64}
PUBLISHED = Path(__file__).parent / "published"


@cache
def opening():
    """(job, what the search finds) of the view's first setting."""
    job = Job(PRESETS["llama-3-70b"], 8192, 1024, DEVICES["h100-sxm"], cluster(64, 8))
    return job, plans(job)


def shown(params=None, width=svg.WIDE):
    return views.render("planner", params, width)


def setting(**params):
    return setting_of(views.defaults("planner") | params)


def told(name, **params):
    return views.beneath("planner", params, name)
