"""What a view says of a job is what the doors say of it, to the last digit."""

import pytest
from view_settings import by_chance

from scaleout import views
from scaleout.collectives.job import traffic
from scaleout.draw import svg
from scaleout.memory.job import accounts, fullest_rank
from scaleout.timing import sent
from scaleout.timing.job import step
from scaleout.views import ddp, mesh

SEED = 31


def shown(stem, params):
    given = {**views.defaults(stem), **params}
    return given, views.render(stem, given, svg.NARROW, advise=False)["values"]


@pytest.mark.parametrize("params", [{}, *by_chance("mesh", 24, SEED)])
def test_mesh(params):
    given, values = shown("mesh", params)
    job = mesh._setting(given).job
    found, stage = step(job), values["coordinates"]["pp"]
    assert [values[name] for name in ("seconds", "parts", "mfu")] == [found.seconds, found.parts, found.mfu]
    assert values["gb"] == {axis: one.bytes / 1e9 for axis, one in traffic(job, stage).items()}
    assert values["ms"] == {axis: 1e3 * spent for axis, spent in sent.seconds(job, stage).items()}
    peaks = [one.peak_bytes for one in accounts(job)]
    assert values["held_gb"] == max(peaks) / 1e9 and values["fullest_stage"] == fullest_rank(job)
    assert peaks[fullest_rank(job)] == max(peaks)


@pytest.mark.parametrize("params", [{}, *by_chance("ddp", 40, SEED)])
def test_ddp(params):
    given, values = shown("ddp", params)
    found = step(ddp.setting_from(given).job)
    assert (values["step_seconds"], values["mfu"]) == (found.seconds, found.mfu)
    assert values["communication_seconds"] == found.communication and values["update_seconds"] == found.parts["update"]
    late = values["exposed_seconds"] + values["slowed_seconds"]
    assert late == pytest.approx(found.parts["exposed data"], rel=1e-9, abs=1e-12)
