"""What a view says of a job is what the doors say of it, to the last digit."""

import pytest
from view_settings import by_chance

from scaleout import views
from scaleout.collectives.job import traffic
from scaleout.collectives.tensor import MEGATRON
from scaleout.draw import svg
from scaleout.memory.job import accounts, fullest_rank
from scaleout.timing import sent
from scaleout.timing.job import step
from scaleout.views import mesh, tensor
from scaleout.views.recompute.setting import setting_of

SEED = 31


def shown(stem, params):
    given = {**views.defaults(stem), **params}
    return given, views.render(stem, given, svg.NARROW, advise=False)["values"]


@pytest.mark.parametrize("params", [params | MEGATRON for params in by_chance("tensor", 25, SEED)])
def test_tensor(params):
    """The view has one block of the job's step: its seconds, and what each GPU sends for it."""
    given, values = shown("tensor", params)
    job = tensor._setting(given).job
    block = step(job).work[0]
    assert values["seconds"] == pytest.approx(block.forward_seconds + block.backward_seconds, rel=1e-12)
    assert values["exposed_seconds"] == block.exposed
    sent = [one for one in traffic(job)["tp"].sent if "activations" in one.carries]
    assert values["sent_mb"] * 1e6 == pytest.approx(sum(one.bytes for one in sent) / job.shape.layers)


@pytest.mark.parametrize("params", by_chance("recompute", 25, SEED))
def test_recompute(params):
    """With nothing dropped it is the job's own step, with everything dropped that of full recomputation."""
    given, values = shown("recompute", params | {"dropped": 0, "way": "rebuild"})
    job = setting_of(given).case.job
    plain, full = step(job).seconds, step(job.other(checkpointing="full")).seconds
    assert values["seconds"] == values["plain_seconds"] == plain
    assert sum(values["parts"].values()) == pytest.approx(plain, rel=1e-12)
    _, values = shown("recompute", params | {"dropped": 100, "way": "rebuild"})
    assert values["seconds"] == pytest.approx(full, rel=1e-12)
    assert values["all_percent"] == round(100 * (full / plain - 1), 1)


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
