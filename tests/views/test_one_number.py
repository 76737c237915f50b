"""What a view says of a job is what the doors say of it, to the last digit."""

import pytest
from view_settings import by_chance

from scaleout import views
from scaleout.collectives.job import traffic
from scaleout.draw import svg
from scaleout.memory.job import accounts, fullest_rank
from scaleout.timing import sent
from scaleout.timing.job import step
from scaleout.views import mesh, zero

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
