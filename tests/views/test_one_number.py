"""What a view says of a job is what the doors say of it, to the last digit."""

import json

import pytest
from repo import ROOT
from view_settings import by_chance

from scaleout import views
from scaleout.collectives.job import traffic
from scaleout.collectives.tensor import MEGATRON
from scaleout.draw import svg
from scaleout.memory.job import accounts, fullest, fullest_rank
from scaleout.timing import sent
from scaleout.timing.job import step
from scaleout.views import capstone, ddp, fsdp, mesh, tensor, zero
from scaleout.views.planner.setting import Setting
from scaleout.views.recompute import setting as recompute

SEED = 31


def shown(stem, params):
    given = {**views.defaults(stem), **params}
    return given, views.render(stem, given, svg.NARROW, advise=False)["values"]


@pytest.mark.parametrize("params", [{}, *by_chance("fsdp", 24, SEED)])
def test_fsdp(params):
    given, values = shown("fsdp", params)
    job = fsdp.Setting.of(given).job
    found = step(job)
    said = ("step_seconds", "mfu", "tokens_per_second", "communication_seconds", "update_seconds", "exposed_seconds")
    assert [values[name] for name in said] == [
        found.seconds,
        found.mfu,
        found.tokens_per_second,
        found.communication,
        found.parts["update"],
        found.timeline.exposed_seconds,
    ]
    assert values["exposed_seconds"] + values["beside_seconds"] == pytest.approx(found.parts["exposed data"], abs=1e-12)


@pytest.mark.parametrize("params", [{}, *by_chance("capstone", 24, SEED)])
def test_capstone(params):
    """Strong scaling: the job of those GPUs that have a sequence, and of the sequences that there are."""
    given, values = shown("capstone", params)
    setting = capstone.Setting.of(given)
    job = setting.job
    found, real = step(job), setting.batch / job.sequences
    assert values["strong_seconds"] == found.seconds and values["strong_exposed"] == (
        found.parts["exposed data"] / found.seconds
    )
    assert values["strong_mfu"] * setting.world == pytest.approx(found.mfu * job.layout.dp * real, rel=1e-12)
    assert values["strong_tokens_per_second"] == pytest.approx(found.tokens_per_second * real, rel=1e-12)
    weak = step(setting.job_of(setting.world, *setting.passes(setting.world)))
    assert (values["weak_seconds"], values["weak_mfu"]) == (weak.seconds, weak.mfu)
    wire = values["weak_start_seconds"] + values["weak_byte_seconds"]
    assert wire == pytest.approx(weak.communication, abs=1e-12)


@pytest.mark.parametrize("params", [params | MEGATRON for params in by_chance("tensor", 25, SEED)])
def test_tensor(params):
    """The view has one block of the job's step: its seconds, and what each GPU sends for it."""
    given, values = shown("tensor", params)
    job = tensor.Setting.of(given).job
    block = step(job).work[0]
    assert values["seconds"] == pytest.approx(block.forward_seconds + block.backward_seconds, rel=1e-12)
    assert values["exposed_seconds"] == block.exposed
    sent = [one for one in traffic(job)["tp"].sent if "activations" in one.carries]
    assert values["sent_mb"] * 1e6 == pytest.approx(sum(one.bytes for one in sent) / job.shape.layers)


@pytest.mark.parametrize("params", by_chance("recompute", 25, SEED))
def test_recompute(params):
    """With nothing dropped it is the job's own step, with everything dropped that of full recomputation."""
    given, values = shown("recompute", params | {"dropped": 0, "way": "rebuild"})
    job = recompute.Setting.of(given).case.job
    plain, full = step(job).seconds, step(job.other(checkpointing="full")).seconds
    assert values["seconds"] == values["plain_seconds"] == plain
    assert sum(values["parts"].values()) == pytest.approx(plain, rel=1e-12)
    _, values = shown("recompute", params | {"dropped": 100, "way": "rebuild"})
    assert values["seconds"] == pytest.approx(full, rel=1e-12)
    assert values["all_percent"] == round(100 * (full / plain - 1), 1)


@pytest.mark.parametrize("params", [{}, *by_chance("mesh", 24, SEED)])
def test_mesh(params):
    given, values = shown("mesh", params)
    job = mesh.Setting.of(given).job
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
    found = step(ddp.Setting.of(given).job)
    assert (values["step_seconds"], values["mfu"]) == (found.seconds, found.mfu)
    assert values["communication_seconds"] == found.communication and values["update_seconds"] == found.parts["update"]
    late = values["exposed_seconds"] + values["slowed_seconds"]
    assert late == pytest.approx(found.parts["exposed data"], rel=1e-9, abs=1e-12)


MODELS = json.loads((ROOT / "tests/published/hugging_face_parameters.json").read_text(encoding="utf-8"))["models"]
PASTED = [
    {"config": json.dumps(MODELS[name]["config"]), "gpus": 8, "sequences": 16, "seq": seq, "program": program}
    for name, seq, program in (
        ("Gemma 2 9B", 8192, "megatron"),
        ("Mistral 7B v0.1", 8192, "huggingface"),
        ("Qwen3 8B", 4096, "compiled"),
        ("Falcon 7B", 2048, "megatron"),
    )
]


@pytest.mark.parametrize("params", [{}, *by_chance("planner", 8, SEED), *PASTED])
def test_planner(params):
    """The best layout and the reader's own; and no point has other seconds than its job."""
    given, values = shown("planner", params)
    setting = Setting.of(given)
    for name, plan in (("best", setting.best), ("smallest", setting.smallest), ("yours", setting.yours)):
        if plan is None or isinstance(plan, str) or not plan.exact:
            assert values[name] is None or "refused" in values[name] or name == "smallest"
            continue
        found = step(plan.job)
        assert [values[name][key] for key in ("seconds", "parts", "mfu")] == [found.seconds, found.parts, found.mfu]
        assert values[name]["gb"] == fullest(plan.job).peak_bytes / 1e9
    for plan in setting.plans:
        if plan.exact:
            assert plan.seconds == step(plan.job).seconds


@pytest.mark.parametrize("params", [{}, *by_chance("zero", 32, SEED)])
def test_zero(params):
    """Muon's own seconds come on top; and what autocast sends is counted as it is stored, in fp32."""
    given, values = shown("zero", params)
    job = zero.Setting.of(given).job
    found = step(job)
    if given["optimizer"] != "muon":
        assert [values[name] for name in ("seconds", "parts", "mfu", "wire_seconds")] == [
            found.seconds,
            found.parts,
            found.mfu,
            found.communication,
        ]
        if given["precision"] != "autocast-bf16":
            assert values["sent_gb"] == pytest.approx(traffic(job)["dp"].bytes / 1e9, rel=1e-12)
    else:
        beside = {name for name, seconds in found.parts.items() if values["parts"][name] != seconds}
        assert {"update"} <= beside <= {"update", "exposed data"}
        assert values["seconds"] == pytest.approx(sum(values["parts"].values()), rel=1e-12)
