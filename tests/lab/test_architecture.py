"""What the lab of architecture prints: which run has which fault, counters, judgements, scores, and files of traces."""

import json
from itertools import pairwise

import pytest
from cases import each, refused

from scaleout.lab import architecture, architecture_modes
from scaleout.records import trace as records_trace
from scaleout.records.files import write_json
from scaleout.timing import stragglers
from scaleout.timing.diagnosis import FAULTS, HEAT, LENGTHS, NAMES, NAN, SLOW_DISK, SLOW_LINK, SLOW_RANK

NUMBER = {fault: number for number, fault in architecture.sealed().items()}


def row(rank, step, start, spans, **values):
    """A row whose spans follow one another; what a name of "" takes is covered by no span."""
    clock, listed = start, []
    for name, seconds in spans:
        if name:
            listed.append([name, round(clock, 6), round(clock + seconds, 6)])
        clock += seconds
    return {"rank": rank, "step": step, "start": start, "end": round(clock, 6), "spans": listed,
            "values": {"loss": 5.25, "tokens": 16} | values}  # fmt: skip


def two_steps(**values):
    """Two ranks by two steps: rank 1 reads for 100 ms, and rank 0 waits; then rank 0 saves. Rank 1 has the values."""
    work, slow = [("input", 0.002), ("forward", 0.01), ("backward", 0.02)], [("input", 0.1), ("forward", 0.032)]
    return [
        row(0, 0, 0.0, [*work, ("all_reduce", 0.102), ("update", 0.001)]),
        row(1, 0, 0.0, [*slow, ("all_reduce", 0.002), ("update", 0.001)]),
        row(0, 1, 0.135, [*work, ("all_reduce", 0.102), ("update", 0.001), ("save", 0.06), ("", 0.005)]),
        row(1, 1, 0.135, [*slow, ("all_reduce", 0.002), ("update", 0.001)], **values),
    ]


def read(**values):
    return stragglers.read(two_steps(**values))


# --- which run has which fault ------------------------------------------------------------------------------


def test_each_fault_has_one_number_and_the_order_is_another_than_the_faults():
    sealed = architecture.sealed()
    assert list(sealed) == list(range(1, 11)) and sorted(sealed.values()) == sorted(FAULTS)
    assert architecture.sealed() == sealed
    assert len([number for number, name in sealed.items() if FAULTS[number - 1] == name]) < 3, (
        "the number tells nothing"
    )


@each([2, 4, 8])
def test_the_ranks_where_faults_begin_differ_and_are_there(ranks):
    origin = architecture.culprits(ranks)
    assert set(origin) == set(FAULTS) - {SLOW_LINK, LENGTHS, "collections"}
    assert set(origin.values()) <= set(range(ranks)) and len(set(origin.values())) > 1
    assert origin["checkpoint"] == origin["evaluator"] == 0, "one rank saves and evaluates"


def test_a_verdict_is_read_with_its_number_and_rank():
    for fault in (*FAULTS, "unknown"):
        assert architecture.read(f"3={fault}") == architecture.Verdict(3, fault)
        assert architecture.read(f" 10 = {fault}:2") == architecture.Verdict(10, fault, 2)


@each(["", "nan", "0=nan", "11=nan", "-1=nan", "3.5=nan", "=nan", "²=nan"])
def test_a_verdict_without_a_number_is_refused(words):
    refused(lambda: architecture.read(words), "runs are numbered 1 to 10: write 3=slow-disk or 3=slow-disk:1")


@each(["3", "3=", "3=disk", "3=NaN", "3=:1"])
def test_a_verdict_of_no_fault_is_refused(words):
    refused(lambda: architecture.read(words), "a verdict is one of slow-rank, slow-disk, slow-link, collections,")


@each(["3=nan:", "3=nan:x", "3=nan:-1", "3=nan:1.5", "3=nan:²"])
def test_a_verdict_on_no_rank_is_refused(words):
    refused(lambda: architecture.read(words), "write the rank as a number, as in 3=nan:1")


# --- verdicts of any tool -----------------------------------------------------------------------------------


def perfect(ranks):
    """Verdicts that are all right, with their ranks."""
    origin = architecture.culprits(ranks)
    return {number: fault + (f":{origin[fault]}" if fault in origin else "") for number, fault in
            architecture.sealed().items()}  # fmt: skip


def test_lines_and_json_are_the_same_verdicts(tmp_path):
    lines, data = tmp_path / "lines.txt", tmp_path / "data.json"
    lines.write_text("# a tool\n" + "\n\n".join(f"{n}={words}  # sure" for n, words in perfect(4).items()))
    data.write_text(json.dumps(perfect(4)))
    assert architecture.verdicts(str(lines)) == architecture.verdicts(str(data))
    assert [said.number for said in architecture.verdicts(str(data))] == list(range(1, 11))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no verdict"),
        ("# nothing\n", "holds no verdict"),
        ("3=nan\n3=heat", "run 3 has two verdicts"),
        ('{"3": "nan"', "not JSON (line 1:"),
        ('{"3": 7}', "a verdict is one of"),
        ('{"3": "nan", "3": "heat"}', "run 3 has two verdicts"),
        ('{"3":' * 9999, "not an object such as"),
        ("3=nan\n" * 20_000, "has more than 100,000 characters"),
        ("9" * 5000 + "=nan", "9" * 60 + "...: runs are numbered 1 to 10"),
        ("3=nan:" + "9" * 5000, "write the rank as a number"),
        ("b'\\xff'", "runs are numbered 1 to 10"),
    ],
)
def test_a_file_without_verdicts_is_refused(text, said, tmp_path):
    (tmp_path / "f").write_text(text)
    refused(lambda: architecture.verdicts(str(tmp_path / "f")), said)


def test_files_from_windows_and_spaces_are_read(tmp_path):
    said = [architecture.Verdict(3, "nan", 1)]
    for number, text in enumerate((b"\xef\xbb\xbf3=nan:1\r\n", b'\xef\xbb\xbf{"3": "nan:1"}', b"3 = nan : 1\n")):
        (tmp_path / str(number)).write_bytes(text)
        assert architecture.verdicts(str(tmp_path / str(number))) == said
    (tmp_path / "wide").write_bytes("3=nan".encode("utf-16"))
    refused(lambda: architecture.verdicts(str(tmp_path / "wide")), "is not text in UTF-8")


def test_a_perfect_tool_has_all_ten_and_all_seven_ranks():
    found = [architecture.read(f"{number}={words}") for number, words in perfect(4).items()]
    assert architecture.score(found, 4).splitlines()[-1] == (
        "10 of 10 right, 0 wrong, 0 abstained; 100% of what was named; rank right in 7 of 7"
    )


def test_a_tool_is_not_paid_for_guessing_nor_charged_for_abstaining():
    origin = architecture.culprits(4)[SLOW_RANK]
    said = [f"{NUMBER[SLOW_RANK]}=slow-rank:{(origin + 1) % 4}", f"{NUMBER[HEAT]}=slow-rank", f"{NUMBER[NAN]}=unknown"]
    lines = architecture.score([architecture.read(one) for one in said], 4).splitlines()
    assert lines[-1] == "1 of 10 right, 1 wrong, 8 abstained; 50% of what was named; rank right in 0 of 1"
    rows = {line.split()[0]: line.split() for line in lines[2:12]}
    assert rows[str(NUMBER[SLOW_RANK])][1:] == ["slow-rank", "slow-rank", "right", "wrong:", "it", "is", str(origin)]
    assert rows[str(NUMBER[HEAT])][1:] == ["heat", "slow-rank", "wrong", "-"]
    assert rows[str(NUMBER[NAN])][1:4] == ["nan", "unknown", "abstained"]
    only_unknown = architecture.score([architecture.read(f"{NUMBER[NAN]}=unknown")], 4)
    assert "0 of 10 right, 0 wrong, 10 abstained; nothing was named" in only_unknown


# --- judgements ---------------------------------------------------------------------------------------------


def judged(words, fault, ranks=2, **values):
    """What is said of a verdict on the run of this fault; the trace is that of a slow disk on rank 1."""
    return architecture.judged(architecture.read(f"{NUMBER[fault]}={words}"), read(**values))


def test_a_right_verdict_has_its_evidence_and_both_ends():
    first, evidence, ends = judged("slow-disk", SLOW_DISK).splitlines()[:3]
    assert first == f"Right. Run {NUMBER[SLOW_DISK]} has a rank whose disk is slow."
    assert evidence == "Evidence: 0.10 of 0.34 s are lost to input, 0.03 s to save, by rank 1."
    assert ends.startswith("Initiating: a rank whose disk is slow (rank ")
    assert ends.endswith("Cascade: the others are in collectives for 102 ms per step, rank 1 for 2.")


def test_a_link_that_is_blamed_for_waiting_is_the_cascade():
    said = "Not a slow link: the all-reduce is long because ranks wait in it, which is the cascade."
    assert judged("slow-link", SLOW_DISK).startswith(said)
    assert judged("heat", SLOW_DISK).startswith(f"Not {NAMES[HEAT]}. Run ")
    assert judged("unknown", SLOW_DISK).startswith("You abstain. Run ")


def test_the_wrong_rank_is_a_victim_and_a_nan_comes_through_the_all_reduce():
    origin = architecture.culprits(2)
    wrong = 1 - origin[SLOW_DISK]
    assert judged(f"slow-disk:{origin[SLOW_DISK]}", SLOW_DISK).startswith("Right. ")
    assert judged(f"slow-disk:{wrong}", SLOW_DISK).startswith(f"The right fault, the wrong rank: rank {wrong} waits")
    other = 1 - origin[NAN]
    assert f"rank {other} got its NaN through the all-reduce" in judged(f"nan:{other}", NAN)
    assert judged("lengths:0", LENGTHS).startswith("Right, but it is no single rank's: rank 0 is one of several.")


def test_a_run_that_the_rule_does_not_name_says_so():
    assert judged("heat", HEAT).splitlines()[-1].startswith("The book's rule does not name it in this run")
    assert "does not name it" not in judged("slow-disk", SLOW_DISK)


# --- counters and files -------------------------------------------------------------------------------------


def test_counters_have_means_by_rank_and_every_step_with_its_tags():
    text = architecture.counters(read(), emulated=True)
    means, steps, values = (part.splitlines() for part in text.split("\n\n"))
    assert means[0].split() == ["mean", "ms", *architecture.COLUMNS]
    assert means[2].split() == ["rank", "0", "2.0", "0.0", "30.0", "102.0", "1.0", "30.0", "0.0", "2.5"]
    assert means[3].split() == ["rank", "1*", "100.0", "0.0", "32.0", "2.0", "1.0", "0.0", "0.0", "0.0"]
    assert [line.split() for line in steps[3:]] == [
        ["0", "-", "135.0", "33", "133", "102", "2"],
        ["1", "save(0)", "200.0", "98", "133", "102", "2"],
    ]
    assert means[4] == "* emulated: rank 0 waits for it"
    assert values[-1].split() == ["1", "16", "16", "5.25", "5.25"]
    assert not any(fault in text for fault in FAULTS if fault != "late"), "the counters do not name a fault"
    assert max(map(len, text.splitlines())) <= 80


def test_losses_that_are_not_numbers_are_shown():
    assert architecture.counters(read(loss=float("nan")), False).splitlines()[-1].split()[-1] == "nan"


def test_events_are_a_chrome_trace_with_ranks_steps_and_collectives(tmp_path):
    events = architecture.events(read(loss=float("nan")))
    write_json({"displayTimeUnit": "ms", "traceEvents": events}, tmp_path / "run.json")  # refuses what is no JSON
    loaded = records_trace.load(tmp_path / "run.json")
    assert loaded.ranks == [0, 1]
    assert loaded.steps(0) == [(0.0, 0.135), (0.135, 0.335)] and loaded.steps(1)[1] == (0.135, 0.27)
    complete = [e for e in events if e["ph"] == "X"]
    assert {e["tid"] for e in complete if e["name"] == "all_reduce"} == {2}
    assert {e["tid"] for e in complete if e["name"] != "all_reduce"} == {1}
    waits = [(e["pid"], e["ts"], e["dur"], e["args"]) for e in complete if e["name"] == "all_reduce"]
    assert waits[0] == (0, 32000.0, 102000.0, {"step": 0}) and waits[2] == (1, 132000.0, 2000.0, {"step": 0})
    names = {(e["pid"], e["tid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert names == {(rank, tid, name) for rank in (0, 1) for tid, name in ((1, "local work"), (2, "collectives"))}
    assert [e["args"]["loss"] for e in events if e["ph"] == "C"] == [5.25, 5.25, 5.25]
    assert [(e["pid"], e["ts"]) for e in events if e["ph"] == "i"] == [(1, 270000.0)]


def test_spans_lie_inside_their_step_and_do_not_overlap():
    for rank in (0, 1):
        own = [e for e in architecture.events(read()) if e["ph"] == "X" and e["pid"] == rank]
        steps = [e for e in own if e["name"] == "step"]
        spans = sorted((e for e in own if e["name"] != "step"), key=lambda e: e["ts"])
        assert all(
            any(s["ts"] <= e["ts"] and e["ts"] + e["dur"] <= s["ts"] + s["dur"] + 0.2 for s in steps) for e in spans
        )
        assert all(a["ts"] + a["dur"] <= b["ts"] + 0.2 for a, b in pairwise(spans))


def test_rows_come_back_from_their_files():
    rows = two_steps()
    assert [json.loads(line) for line in architecture.lines(rows).splitlines()] == rows
    stored = json.loads(architecture.stored(rows, 'made "here"'))
    assert stored == {"made": 'made "here"', "rows": rows}


def test_how_a_trace_was_made_counts_emulated_ranks():
    assert "on 8 ranks (backend gloo), 20 steps" in architecture.made(8, 8, "gloo", 20, "x")
    assert "on 2 ranks, of which one is emulated (backend none)" in architecture.made(2, 1, "none", 8, "x")


def test_what_costs_less_than_a_hundredth_is_left_out():
    lines = architecture.lost({"input": 0.5, "save": 0.009, "compute": 0.02}, 1.0).splitlines()
    assert [line.split() for line in lines[2:]] == [["input", "0.50", "50%"], ["compute", "0.02", "2%"]]


# --- the other modes ----------------------------------------------------------------------------------------


def test_loaders_have_tokens_per_second():
    *_, one, last = architecture_modes.speeds({1: (0.05, 0.04), 2: (0.02, 0.025)}, 2048).splitlines()
    assert one.startswith("1 worker ")
    assert last.split() == ["2", "workers", "20.0", "25.0", "0.800", "81,920"]


PLAN = {"device": 0.04, "activations": 2**20, "calls": 8, "gradients": 2**20}


def test_a_bad_placement_sends_the_activations_over_the_link():
    well, badly = (architecture_modes.crossing(PLAN, name, 2) for name in ("well", "badly"))
    assert well == [("all_reduce", 2 * 2**20, 1)] and badly == [("all_reduce", 2 * 2**20, 8)]
