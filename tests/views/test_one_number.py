"""What a view says of a job is what the doors say of it, to the last digit."""

import pytest
from view_settings import by_chance

from scaleout import views
from scaleout.collectives.job import traffic
from scaleout.draw import svg
from scaleout.timing.job import step
from scaleout.views import zero

SEED = 31


def shown(stem, params):
    given = {**views.defaults(stem), **params}
    return given, views.render(stem, given, svg.NARROW, advise=False)["values"]


@pytest.mark.parametrize("params", [{}, *by_chance("zero", 32, SEED)])
def test_zero(params):
    """Muon's own seconds come on top; and what autocast sends is counted as it is stored, in fp32."""
    given, values = shown("zero", params)
    job = zero._setting(given).job
    found = step(job)
    if given["optimizer"] != "muon":
        assert [values[name] for name in ("seconds", "parts", "mfu", "wire_seconds")] == [
            found.seconds, found.parts, found.mfu, found.communication,
        ]  # fmt: skip
        if given["precision"] != "autocast-bf16":
            assert values["sent_gb"] == pytest.approx(traffic(job)["dp"].bytes / 1e9, rel=1e-12)
    else:
        beside = {name for name, seconds in found.parts.items() if values["parts"][name] != seconds}
        assert {"update"} <= beside <= {"update", "exposed data"}
        assert values["seconds"] == pytest.approx(sum(values["parts"].values()), rel=1e-12)
