"""A machine's profile: the lines through its messages, seconds of a step by hand, how its file is kept."""

import math

import pytest
import samples

from scaleout.lab import collectives
from scaleout.records import profiles
from scaleout.timing import profile as measured


def profile():
    line = measured.fit([(1000, 1e-3 + 1e-6), (1_000_000, 2e-3)])
    return samples.profile(matmul_flops_per_second={"fp32": 1e11}, collectives={"all_reduce": line})


def test_the_fit_finds_the_line_it_was_made_from():
    found = measured.fit([(size, 2e-3 + size * 5e-10) for size in (4096, 65_536, 1_048_576, 16_777_216)])
    assert found["alpha_seconds"] == pytest.approx(2e-3, rel=1e-9)
    assert found["seconds_per_byte"] == pytest.approx(5e-10, rel=1e-9)
    assert found["worst_relative_error"] < 1e-9


def test_two_lines_find_the_change_of_protocol():
    """A millisecond and 0.1 GB/s up to 64 kB, 5 ms and 2 GB/s beyond: one line misses by a third, two by nothing."""
    points = [(4**k, 1e-3 + 4**k / 1e8 if 4**k <= 65_536 else 5e-3 + 4**k / 2e9) for k in range(5, 13)]
    short, long = measured.pieces(points)
    assert [one["bytes"] for one in short["points"]] == [4**k for k in (5, 6, 7, 8)]
    assert [one["bytes"] for one in long["points"]] == [4**k for k in (9, 10, 11, 12)]
    assert (short["alpha_seconds"], long["alpha_seconds"]) == (pytest.approx(1e-3), pytest.approx(5e-3))
    assert (short["seconds_per_byte"], long["seconds_per_byte"]) == (pytest.approx(1e-8), pytest.approx(5e-10))
    assert measured.fit(points)["worst_relative_error"] > 0.3
    assert max(one["worst_relative_error"] for one in (short, long)) < 1e-9
    assert measured.pieces(points[:5]) == []
    text = collectives.line_text({"ring": measured.fit(points)}).splitlines()
    assert text[-1].split()[:3] == ["in", "two", "lines"] and text[-1].count("0%") == 8
    assert "in two lines" not in collectives.line_text({"ring": measured.fit(points[:4])})


def test_the_fit_shows_what_it_misses():
    found = measured.fit([(1000, 1e-3), (2000, 1e-3), (4_000_000, 5e-3), (8_000_000, 8e-3)])
    errors = [point["relative_error"] for point in found["points"]]
    assert max(map(abs, errors)) == found["worst_relative_error"] > 0.01
    assert sum(errors) == pytest.approx(-sum(e * e for e in errors)), "normal equations of the relative error"


@pytest.mark.parametrize(
    ("points", "alpha", "beta"),
    [
        ([(1000, 3e-3), (2000, 2e-3), (4000, 1e-3)], None, 0.0),  # faster when larger: no bandwidth to see
        ([(1000, 1e-6), (2000, 4e-6)], 0.0, None),  # the line would start below zero
    ],
)
def test_the_fit_is_never_below_zero(points, alpha, beta):
    found = measured.fit(points)
    assert found["alpha_seconds"] >= 0
    assert found["seconds_per_byte"] >= 0
    assert alpha is None or found["alpha_seconds"] == alpha
    assert beta is None or found["seconds_per_byte"] == beta


def test_one_size_is_no_line():
    with pytest.raises(ValueError, match="at least two sizes"):
        measured.fit([(1000, 1e-3), (1000, 2e-3)])


def test_what_a_profile_does_not_hold():
    assert measured.rate(profile(), "fp32") == 1e11
    assert measured.collective_seconds(profile(), "all_reduce", 1_000_000) == pytest.approx(2e-3)
    with pytest.raises(ValueError, match="no rate for bf16: it has fp32"):
        measured.rate(profile(), "bf16")
    with pytest.raises(ValueError, match="no broadcast"):
        measured.collective_seconds(profile(), "broadcast", 1)


def test_mfu_by_hand():
    """Two ranks do 2.5e10 operations each in half a second: 1e11 a second together, of 2 times 1e11."""
    share, peak = measured.mfu(profile(), 2.5e10, "fp32", 0.5)
    assert share == 0.5
    assert peak["flops_per_second"] == 2e11
    assert peak["source"] == "fp32 matmuls by labs/calibrate.py on 2 process(es), cpu"


def test_a_profile_comes_back_and_a_broken_one_is_refused(tmp_path):
    path = profiles.save(profile(), tmp_path / "deep" / "m.json")
    assert profiles.load(path) == profile()
    for change, words in [
        ({"schema": 9}, "schema is 9"),
        ({"world": 0}, "world must be a number from 1"),
        ({"device": None}, "device must be a text"),
        ({"matmul_flops_per_second": {"fp32": -1}}, "rates above 0"),
        ({"collectives": []}, "collectives must be a table"),
        ({"collectives": {"all_reduce": {}}}, "needs alpha_seconds"),
        ({"copy_bytes_per_second": math.inf}, "copy_bytes_per_second must be a number"),
    ]:
        with pytest.raises(ValueError, match=words):
            profiles.validate({**profile(), **change})
    with pytest.raises(ValueError, match=r"no such file \(python labs/calibrate.py makes one\)"):
        profiles.load(tmp_path / "gone.json")


def test_profiles_of_other_world_sizes_do_not_overwrite_each_other(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert profiles.default_path("cpu", 2) == tmp_path / "scaleout" / "machine-cpu-2.json"
    assert profiles.default_path("cpu", 2) != profiles.default_path("cpu", 4)
