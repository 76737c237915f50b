"""A run of a lab from its options to its Record, on one process: what it refuses, checks, predicts and keeps."""

from dataclasses import dataclass

import pytest
import torch

from scaleout.lab import options, runner
from scaleout.lab.session import Session
from scaleout.records import results


@dataclass(frozen=True)
class Options(options.Model):
    """As small as a lab's are."""

    layers: int = options.number(1, "blocks")
    hidden: int = options.number(8, "width")
    heads: int = options.number(2, "heads")
    seq: int = options.number(64, "tokens per sequence")
    seed: int = options.seed()
    micro_batch: int = options.number(4, "sequences")
    precision: str = options.choice("autocast-bf16", ("fp32", "autocast-bf16"), "dtypes")
    via: str = options.choice("torch", ("torch", "hand"), "the way that is recorded")
    fault: str | None = options.choice(None, ("clip",), "what is wrong")
    machine: str | None = options.word(None, "profile")
    trace: str | None = options.word(None, "a file")
    dataset: str | None = options.dataset()
    save: str | None = options.save("zero")


NAMES = {"torch": "by torch", "hand": "by hand"}


def made(*words, **more):
    """A Lab of these words, of a script that would be labs/zero.py."""
    s = Session(torch.device("cpu"), "none", 0, 1, 0, 1, 1)
    return runner.Lab(s, "/book/labs/zero.py", "", {"smoke": Options()}, [*words], names=NAMES, **more)


def test_a_lab_knows_its_stem_its_options_and_where_its_records_are(tmp_path):
    lab = made("--via", "hand", "--save")
    assert (lab.stem, lab.tier, lab.o.via, str(lab.results)) == ("zero", "smoke", "hand", "/book/labs/results/zero")
    assert lab.folder == lab.results
    assert (made().folder, made("--save", str(tmp_path)).folder) == (None, tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fault", "clip", "--save"], "--save: a run with a fault makes no Record"),
        (["--layers", "1e7", "--hidden", "1e6"], "the weights alone take"),
        (["--save", "record.txt"], "the name must end in .json"),
        (["--trace", "trace.txt"], "the name must end in .json"),
        (["--machine", "gone.json"], "gone.json"),
    ],
)
def test_what_no_run_could_do_or_keep_is_refused(words, said):
    with pytest.raises(ValueError, match=said):
        made(*words).refuse()


def test_an_option_beside_a_flag_that_has_no_use_for_it_is_refused():
    made("--fault", "clip").refuse_idle("--fault", "via")
    with pytest.raises(ValueError, match="--fault runs by itself: leave out --via"):
        made("--fault", "clip", "--via", "hand").refuse_idle("--fault", "via")


def test_the_options_of_a_comparison_are_short_and_in_fp32():
    o = made().short(16, heads=4)
    assert (o.seq, o.micro_batch, o.precision, o.heads) == (16, 1, "fp32", 4)
    assert made().short(1000).seq == 64


def test_each_way_is_checked_against_one_process():
    weights = {"one": 4.0, "torch": 4.0, "hand": 5.0}
    trained = lambda way: {"loss": [2.0], "weights": {"w": torch.tensor([weights[way]])}}  # noqa: E731
    lab = made()
    assert lab.equality(trained, ["torch", "hand"])["hand"] == {"loss": 0.0, "weights": 0.25}
    assert {name: check["passed"] for name, check in lab.checks.items()} == {
        "by torch: loss equals one process": True,
        "by torch: weights equal one process": True,
        "by hand: loss equals one process": True,
        "by hand: weights equal one process": False,
    }


def test_a_prediction_is_checked_by_its_part_of_what_was_measured():
    lab = made()
    lab.check_prediction("bytes", 103, 100)
    lab.check_prediction("of each rank", [99, 100], [100, 100])
    lab.check_prediction("nothing sent", 3, 0)
    found = {name: (round(check["value"], 9), check["passed"]) for name, check in lab.checks.items()}
    assert found == {"bytes": (0.03, False), "of each rank": (0.01, True), "nothing sent": (3, False)}


def test_without_a_profile_no_seconds_are_predicted_and_the_run_says_so():
    lab = made()
    lab.profile = None
    assert lab.by_profile(lambda *_: pytest.fail("there is no profile"), ["hand"]) == {}
    assert lab.skipped == [runner.NO_PROFILE]
    lab.skip(False, "", "for a reason")
    assert lab.skipped[1:] == ["for a reason"]


def test_what_a_run_has_gathered_is_printed_and_kept_and_a_failed_check_ends_it(tmp_path, capsys):
    lab = made("--via", "hand", "--save", str(tmp_path / "r.json"), warmup=1)
    assert lab.batches(0)[0][0].shape == (4, 64)
    lab.check("right", 0.0)
    lab.predict("peak bytes", 10, 11)
    rows = {"hand": {"predicted": {"seconds": 2.0}, "measured": {"seconds": 1.0}}}
    lab.predict_ways(rows, {"seconds": "seconds per step"})
    lab.stall([9.0, 1.0, 1.0, 4.0], "step")
    lab.skip("a part")
    seconds = {"torch": [1.0, 1.0], "hand": [9.0, 2.0]}
    r = lab.record(seconds, {"torch": [3.0, 3.0], "hand": [3.0, 2.0]}, {"optimizer": "adamw"}, 4, precision="fp32")
    lab.report(r, "first", way="hand")
    lab.end()
    kept = results.load(tmp_path / "r.json")
    assert (kept.stem, kept.step_seconds, kept.losses, kept.precision) == ("zero", [9.0, 2.0], [3.0, 2.0], "fp32")
    assert (kept.effective_batch, kept.sequence_length, kept.tokens_per_second) == (4, 64, 128.0)
    assert kept.prediction == {"peak bytes": 10, "seconds per step, by hand": 2.0}
    assert kept.measurement == {"peak bytes": 11, "seconds per step, by hand": 1.0}
    assert kept.series == {"seconds per step, by torch": [1.0, 1.0], "seconds per step, by hand": [9.0, 2.0]}
    assert kept.stalls == ["step 3 took 4 s, the median is 1 s"]
    assert capsys.readouterr().out.splitlines() == [
        "first",
        "ok     right: 0 (at most 1e-05)",
        "skipped a part",
        "stall: step 3 took 4 s, the median is 1 s",
        "record saved: r.json",
    ]
    lab.check("wrong", 1.0)
    with pytest.raises(SystemExit) as caught:
        lab.end()
    assert caught.value.code == 1
