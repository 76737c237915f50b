"""What the lab of pipelines says: lanes, waits, refusals; what an older torch lacks."""

import re
from types import SimpleNamespace

import pytest
import torch
from repo import ROOT

from scaleout.lab import pipeline
from scaleout.measure import pipeline_sleep
from scaleout.measure.pipeline import Span
from scaleout.memory.pipeline import in_flight, most_held
from scaleout.parallel import pipeline_ways
from scaleout.records import results
from scaleout.spec.pipeline import SCHEDULES, orders, refuse


def span(kind, micro, start, end, begin=None, stage=0):
    return Span(kind, stage, micro, start if begin is None else begin, start, end)


def test_a_lane_is_read_from_left_to_right():
    rows = [[span("F", 0, 0, 1), span("I", 0, 2, 3), span("W", 0, 3, 4)], [span("F", 11, 1, 2)]]
    lanes = pipeline.lanes(rows, 4).splitlines()
    assert [lane[:8] for lane in lanes] == ["rank 0  ", "rank 1  "]
    assert {len(lane) for lane in lanes} == {8 + pipeline.WIDTH}
    quarters = [[lane[8:][round(n * pipeline.WIDTH / 4) + 2] for n in range(4)] for lane in lanes]
    assert quarters == [list("0.aA"), list(".1..")]


def test_a_trace_has_a_process_a_rank_and_its_waits_beside():
    events = pipeline.trace([[span("F", 0, 0.0, 1.0), span("B", 0, 2.5, 3.0, begin=1.0)]])["traceEvents"]
    runs = [(e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert runs == [
        (0, 1, "F0 stage 0", 0.0, 1e6),
        (0, 1, "B0 stage 0", 2.5e6, 5e5),
        (0, 2, "receive for B0 stage 0", 1e6, 1.5e6),
    ]


def test_who_waits_for_whom():
    found = [["send", "activations", 3, 1], ["send", "gradient", 0, 0], None]
    assert pipeline.hang(found, 4) == (
        "hang: ranks 0 and 1 both send, and neither receives (4 s): rank 0 waits to send activations 3 to rank 1; "
        "rank 1 waits to send gradient 0 to rank 0; rank 2 is done"
    )
    assert pipeline.hang(None, 4).startswith("no hang")


def test_the_receive_that_holds_up_the_rest():
    row = [span("F", 0, 0, 1), Span("R", 2, 0, 1, 3, 3), span("F", 1, 3, 4)]
    assert pipeline.longest_receive([row]) == (
        "rank 0 is blocked for 2,000.0 ms in a receive for F0 of stage 2, after F0 of stage 0: "
        "F1 of stage 0 waits behind it"
    )


def test_most_held_counts_what_the_schedules_hold():
    for schedule, v in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb1", 2), ("zbv", 2)):
        kept = [{"weights": 7, "input": 0}] * 4 * v
        assert most_held(orders(schedule, 4, 8, v), kept) == [7 * n for n in in_flight(schedule, 4, 8, v)], schedule


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        ((1, 1, "cpu", "both-send", 0, None), "--fault: one process is no pipeline"),
        ((4, 2, "cpu", "none", 5, None), "use one node"),
        ((4, 1, "cuda", "none", 5, None), "LAB_DEVICE=cpu"),
        ((4, 1, "cuda", "both-send", 0, None), "on NCCL small sends do not wait"),
        ((4, 1, "cpu", "receive", 5, None), "--fault receive has wires of its own"),
    ],
)
def test_what_a_launch_cannot_do_is_refused(launch, said):
    with pytest.raises(ValueError, match=said):
        pipeline.refuse(*launch)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (("1f1b", 4, 3), "1f1b needs a micro-batch for each of 4 ranks, not 3: use --micro-batches 4"),
        (("interleaved", 4, 9, 2), "takes micro-batches in equal rounds of at least 4, not 9: use --micro-batches 10"),
    ],
)
def test_a_refusal_names_the_flag_that_was_typed(ask, said):
    with pytest.raises(ValueError, match=re.escape(said)), pipeline.flags():
        refuse(*ask)


def test_the_recorded_runs_show_what_the_class_plan_says():
    found = [results.load(path) for path in (ROOT / "labs/results/pipeline").glob("*.json")]
    assert {(r.tier, r.device_count) for r in found} >= {("smoke", 2), ("smoke", 4), ("cpu", 2), ("cpu", 4)}
    for r in found:
        for figure, predicted in r.prediction.items():
            seen = r.measurement[figure]
            if figure.startswith("bubble"):
                whole = "v = " not in figure or "100 ms" in figure  # each stage is as long as 50 ms
                most = 0.025 if whole else 0.04
                low, high = (0.02, 0.07) if "10 ms" in figure else (-0.01, most if "by hand" in figure else 0.15)
                assert low < seen - predicted < high, figure
            elif figure.startswith("bytes"):
                assert seen == pytest.approx(predicted, rel=5e-4), figure


def test_what_the_bubbles_say_tells_short_stages_from_long_ones():
    def row(found, ms, via="hand", name="1F1B"):
        return {"name": name, "via": via, "ms": ms, "predicted": 1.0, "measured": 1.1, "bubble": 0.2, "found": found}

    rows = [row(0.21, 50), row(0.9, 50, "torch"), row(0.23, 50), row(0.3, 10), row(0.22, 100), row(0.215, 100)]
    first, short, long = pipeline.explain(rows)
    assert first == "bubbles of 50 ms stages, by hand: at most 0.030 of the step above the prediction"
    assert short.startswith("1F1B with 10 ms stages: 0.100 above it")
    assert long == "where each of a rank's stages is as long as 50 ms: at most 0.020 above it"
    assert pipeline.explain([row(0.3, 50)])[0].endswith("where a quiet machine stays within 0.04")
    assert pipeline.explain([row(0.3, 1)]) == [
        "bubbles of 1 ms stages, by hand: at most 0.100 of the step above the prediction"
    ]


def test_all_schedules_or_some():
    assert pipeline.schedules("1f1b,zb1") == [("1f1b", 1), ("zb1", 2)]
    assert len(pipeline.schedules("all")) == 7


# --- an older torch -------------------------------------------------------------------------------------------------


def test_a_stage_that_sleeps_can_be_asked_for_its_shape():
    """torch 2.11 runs each stage once without a graph before its first step."""
    stage = pipeline_sleep.Sleeper(0, pipeline_sleep.even(2, 1, 1.0))
    stage.awake = True
    x = torch.ones(pipeline_sleep.LIKE)
    with torch.no_grad():
        assert stage(x).shape == x.shape
    assert stage.edges == []
    stage(x)
    assert [weights for _, weights in stage.edges] == [[stage.table], [stage.weight]]


@pytest.mark.parametrize(
    ("version", "device", "lacks"),
    [
        ("2.11.0+cpu", "cpu", {"zbv", "dualpipev"}),
        ("2.12.1", "cpu", {"zbv", "dualpipev"}),
        ("2.13.0+cpu", "cpu", set()),
        ("2.11.0+cu130", "cuda", set()),
    ],
)
def test_what_an_older_torch_has_no_way_to_start_is_left_out(version, device, lacks, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    s = SimpleNamespace(world=2, device=SimpleNamespace(type=device))
    assert {name for name in SCHEDULES if not pipeline_ways.torch_has(s, name)} == lacks
