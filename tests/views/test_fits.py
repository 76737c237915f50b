"""One usable capacity: whether a job fits is asked of one definition, by every view that says it."""

import pytest
from view_settings import by_chance, controls

from scaleout import views
from scaleout.draw import svg
from scaleout.memory import allocator
from scaleout.memory.job import fullest
from scaleout.spec.devices import DEVICES
from scaleout.views import capstone, finetune, fsdp, mesh, zero
from scaleout.views.planner.setting import Setting
from scaleout.views.recompute import setting as recompute

SEED = 40
PEAK = {"memory": "peak_gb", "fsdp": "peak_gb", "recompute": "held_gb", "mesh": "held_gb", "capstone": "peak_gb",
        "zero": "peak_gb", "finetune": "peak_gb"}  # fmt: skip


def shown(stem, params):
    given = {**views.defaults(stem), **params}
    return given, views.render(stem, given, svg.NARROW, advise=False)["values"]


@pytest.mark.parametrize("stem", PEAK)
def test_a_peak_fits_where_it_is_usable(stem):
    """On every kind of GPU, whatever else is chosen; what is offloaded has to fit the host."""
    seen = set()
    for params in ({}, *by_chance(stem, 14, SEED)):
        given, values = shown(stem, params)
        within = values[PEAK[stem]] * 1e9 <= allocator.usable(DEVICES[given["device"]].memory_bytes) + 0.5
        assert values["fits"] is (within and values.get("host_fits", True)), params
        seen.add(values["fits"])
    assert seen == {True, False}


@pytest.mark.parametrize("stem", ["ddp", "finetune", "fsdp", "memory", "mesh", "recompute", "zero", "planner"])
def test_views_name_the_same_capacity(stem):
    for key, _ in controls(stem)["device"].options:
        if stem == "planner" and key != "h100-sxm":
            continue
        _, values = shown(stem, {"device": key})
        named = values["usable_gb"] * 1e9 if "usable_gb" in values else values["usable_gib"] * 2**30
        assert named == pytest.approx(allocator.usable(DEVICES[key].memory_bytes), rel=1e-12)


JOBS = {"mesh": lambda given: mesh.Setting.of(given).job, "zero": lambda given: zero.Setting.of(given).job,
        "recompute": lambda given: recompute.Setting.of(given).case.job,
        "fsdp": lambda given: fsdp.Setting.of(given).job,
        "finetune": lambda given: finetune.Setting.of(given).job,
        "capstone": lambda given: capstone.Setting.of(given).job}  # fmt: skip
PLAIN = {"mesh": {}, "zero": {"offload": "none", "optimizer": "adamw"}, "recompute": {"dropped": 0}, "fsdp": {},
         "finetune": {"optimizer": "adamw"}, "capstone": {}}  # fmt: skip


@pytest.mark.parametrize("stem", JOBS)
def test_the_verdict_follows_from_the_job(stem):
    """So that two of these that show the same job agree, and with the search, whose plans are held to it below."""
    for params in ({}, *by_chance(stem, 25, SEED)):
        given, values = shown(stem, params | PLAIN[stem])
        job = JOBS[stem](given)
        account = fullest(job)
        within = allocator.fits(account.peak_bytes, job.device.memory_bytes)
        on_host = allocator.host_fits(sum(account.host.values()), job.cluster.gpus_per_node)
        assert values["fits"] is (within and on_host), params
        if stem == "capstone" and job.layout.dp < given["world"]:
            continue  # the job is of the GPUs that have a sequence
        if stem in ("fsdp", "capstone"):
            assert values["peak_gb"] == pytest.approx(account.peak_bytes / 1e9, rel=1e-12), params


def test_plans_of_the_search_fit_by_the_same_rule():
    found = Setting.of({**views.defaults("planner"), "gpus": 64, "model": "llama-3-70b"}).result
    some = [*found.plans[:6], *found.over[:6]]
    assert found.best in found.plans and len(some) == 12
    for plan in some:
        assert plan.fits is allocator.fits(fullest(plan.job).peak_bytes, plan.job.device.memory_bytes)


def test_what_is_offloaded_has_to_fit_the_host():
    """A node of 8 H100 has 2 TB: 250 GB for each of eight, and as much more for each of fewer."""
    assert allocator.host_fits(250e9, 8) and not allocator.host_fits(251e9, 8) and allocator.host_fits(251e9, 4)
    large = {"model": "llama-3-405b", "ranks": "8", "offload": True, "batch": 1, "checkpointing": "full"}
    _, values = shown("fsdp", large)
    assert not values["host_fits"] and not values["fits"] and values["host_gib"] * 8 * 2**30 > 2e12
    assert shown("fsdp", large | {"ranks": "32"})[1]["host_fits"]
