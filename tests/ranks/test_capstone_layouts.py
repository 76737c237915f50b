"""The training job by layouts: the same steps as one process, checkpoints from any layout to any other, under kills."""

import json
import re

import pool
import pytest
import specimen_layouts as specimen
from bench_faults import TINY

from scaleout.records import results
from scaleout.spec import pipeline

TOLERANCE = {"rel": 1e-5}  # of losses: fp32, sums in other orders, and AdamW, over a dozen steps
CLOSE = {"rel": 1e-4}  # over the steps of the job
STEPS = 12
WORDS = [
    "--layers",
    "2",
    "--heads",
    "4",
    "--batch",
    "8",
    "--steps",
    str(STEPS),
    "--checkpoint-every",
    "3",
    "--validate-every",
    "6",
]
pytestmark = pytest.mark.usefixtures("no_profile")


@pytest.fixture(scope="module")
def chains(tmp_path_factory):
    found = [pool.ranks(specimen.main, world, tmp_path_factory.mktemp("chain"))[0] for world in (8, 4)]
    return found[0] | found[1]


@pytest.mark.parametrize("form", specimen.SHAPES)
def test_each_layout_goes_on_where_another_stopped_as_one_process_that_never_did(form, chains):
    found, alone = chains[form]
    assert min(alone["norms"]) < specimen.CLIP[form] < max(alone["norms"]), "clipping acts in some steps only"
    for i, name in enumerate(specimen.CHAINS[form]):
        row = found[name]
        assert row["loaded"], f"{name}: bit for bit, for nothing is added when a checkpoint is read"
        assert row["losses"] == pytest.approx(alone["losses"][2 * i : 2 * i + 2], **TOLERANCE), name
        assert row["norms"] == pytest.approx(alone["norms"][2 * i : 2 * i + 2], rel=1e-3), name
        assert row["validation"] == pytest.approx(alone["validations"][i], **TOLERANCE), name
        assert row["sample"] == alone["samples"][i], name


def test_what_was_built_is_what_was_asked_for(chains):
    found = chains["llama"][0]
    assert "pp 2 x dp 2 x tp 2: stage(s) 0 of 2, Schedule1F1B of 2" in found["2x2x2"]["built"]
    assert "mesh {'shard': 8}" in found["shards"]["built"]
    assert "pp 4 x dp 1 x tp 2: stage(s) 0 of 4" in found["1x2x4"]["built"]
    found = chains["gpt"][0]
    assert "pp 2 x dp 2 x shard 1 x tp 1: stage(s) 0, 2 of 4, ScheduleInterleaved1F1B" in found["replicas"]["built"]
    assert "mesh {'shard': 4}" in found["shards"]["built"]


def test_every_rank_holds_at_its_peak_what_was_predicted(chains):
    """Of a vocabulary that is large beside the model: whole logits, and a table whose gradient DTensor keeps whole. Of
    ranks that receive, up to 1.7% are the buffers that torch's schedule receives into: the ledger does not see them."""
    for world, layouts in specimen.HELD.items():
        for layout, ranks in zip(layouts, chains[f"bytes on {world}"], strict=True):
            for measured, predicted in ranks:
                assert predicted == pytest.approx(measured, rel=0.02), layout
    stages = chains["bytes on 8"][1]
    first, third = stages[0][0], stages[-3][0]
    assert first > 1.4 * third, "the first stage has more in flight"


@pytest.mark.parametrize("schedule", pipeline.SCHEDULES)
def test_validation_works_under_every_schedule_and_training_goes_on_after_it(schedule, chains):
    found, alone = chains["looks"][schedule], chains["looks"]["alone"]
    assert found == pytest.approx(alone, **TOLERANCE)
    assert len(set(found)) == 3, "each step has changed the weights"


def test_products_in_bf16_train_as_fp32_does_but_for_their_rounding(chains):
    losses, kept = chains["half"]
    assert losses == pytest.approx(chains["llama"][1]["losses"][:3], rel=0.01)
    assert losses != pytest.approx(chains["llama"][1]["losses"][:3], **TOLERANCE), "of fp32 there would be no rounding"
    assert all(dtypes == {"torch.float32"} for dtypes in kept), "weights and optimizer stay in fp32"


# --- the job --------------------------------------------------------------------------------------------------------


def job(folder, ranks, *words):
    return pool.lab(["labs/capstone.py", *TINY, *WORDS, "--folder", folder, *words], ranks)


def rows(folder):
    """({step: loss}, {step: validation}, [events]) of a run; of a step that was made again, the last."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return (
        {row["step"]: row["loss"] for row in lines if "loss" in row},
        {row["step"]: row["validation"] for row in lines if "validation" in row},
        [row["event"] for row in lines if "event" in row],
    )


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """A run on two ranks without a layout that nobody disturbs."""
    folder = tmp_path_factory.mktemp("quiet")
    assert job(folder, 2).returncode == 0
    return folder


def test_killed_at_a_step_and_while_saving_it_goes_on_in_other_layouts(quiet, tmp_path):
    folder = tmp_path / "run"
    assert job(folder, 8, "--layout", "tp=2,pp=2", "--inject", "kill:5:5").returncode != 0
    assert job(folder, 8, "--inject", "kill:3:saving:9").returncode != 0
    last = job(folder, 4, "--layout", "tp=2,pp=2,m=4", "--save", str(tmp_path / "record.json"))
    assert last.returncode == 0, last.stderr
    losses, validations, events = rows(folder)
    wanted, judged, _ = rows(quiet)
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert [losses[n] for n in sorted(losses)] == pytest.approx([wanted[n] for n in sorted(losses)], **CLOSE)
    assert [*validations.values()][-1] == pytest.approx([*judged.values()][-1], **CLOSE)
    assert losses != wanted, "other ranks round differently: equal losses would be a copy"
    begun = [re.sub(r"; \d+ logged.*", "", event) for event in events if event.startswith("started")]
    assert begun == [
        "started again: resumes after step 3 on 8 process(es)",
        "started again: resumes after step 6 on 4 process(es)",
    ]
    assert [event for event in events if event.startswith("--strategy")] == [
        "--strategy mesh pp=2,dp=2,tp=2,zero=3,m=2,schedule=1f1b -> fsdp from step 4 on",
        "--strategy fsdp -> mesh pp=2,dp=1,tp=2,zero=3,m=4,schedule=1f1b from step 7 on",
    ]
    record = results.load(tmp_path / "record.json")
    assert (record.recipe["strategy"], record.recipe["tp"], record.recipe["pp"]) == ("mesh", 2, 2)
    assert record.prediction["peak bytes of pipeline rank 1"] == pytest.approx(
        record.measurement["peak bytes of pipeline rank 1"], rel=0.1
    ), "a model of 32 wide: small tensors count"
