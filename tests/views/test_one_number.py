"""What a view says of a job is what the doors say of it, to the last digit."""

import pytest
from view_settings import by_chance

from scaleout import views
from scaleout.draw import svg
from scaleout.timing.step import step
from scaleout.views import fsdp

SEED = 31


def shown(stem, params):
    given = {**views.defaults(stem), **params}
    return given, views.render(stem, given, svg.NARROW, advise=False)["values"]


@pytest.mark.parametrize("params", [{}, *by_chance("fsdp", 24, SEED)])
def test_fsdp(params):
    given, values = shown("fsdp", params)
    job = fsdp._setting(given).job
    found = step(job)
    said = ("step_seconds", "mfu", "tokens_per_second", "communication_seconds", "update_seconds", "exposed_seconds")
    assert [values[name] for name in said] == [
        found.seconds, found.mfu, found.tokens_per_second, found.communication, found.parts["update"],
        found.timeline.exposed_seconds,
    ]  # fmt: skip
    assert values["exposed_seconds"] + values["beside_seconds"] == pytest.approx(found.parts["exposed data"], abs=1e-12)
