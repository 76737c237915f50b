"""What tests of the view `planner` share: its opening and two other settings, what it shows and what it tells."""

from pathlib import Path

from scaleout import views
from scaleout.draw import svg
from scaleout.views.planner.setting import setting_of

BIG = {"model": "llama-3-405b", "gpus": 16_384, "sequences": 2048}
SMALL = {"model": "llama-3-8b", "gpus": 64}
PUBLISHED = Path(__file__).parent / "published"


def shown(params=None, width=svg.WIDE):
    return views.render("planner", params, width)


def setting(**params):
    return setting_of(views.defaults("planner") | params)


def told(name, **params):
    return views.beneath("planner", params, name)
