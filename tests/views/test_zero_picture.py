"""The picture of ZeRO's view: areas are bytes, lengths pieces and seconds, and what moves flies."""

import re

import pytest
from drawn import marks
from view_settings import by_chance

from scaleout import views
from scaleout.draw import ownership, svg
from scaleout.views import zero
from scaleout.views.zero import picture
from scaleout.views.zero.setting import MOMENTS

WIDTHS = [svg.WIDE, svg.NARROW]
N = 6_738_415_616  # parameters of Llama 2 7B


def shown(width=svg.WIDE, **params):
    return views.render("zero", params, width)


def setting(moment=0, **params):
    return zero.Setting.of(views.defaults("zero") | params)


# --- the picture --------------------------------------------------------------------------------------------------

BOX = re.compile(r"M(-?[\d.]+) (-?[\d.]+)h([\d.]+)v([\d.]+)h")


def area(drawn, fill, strong=""):
    """Of all boxes of the paths in a colour."""
    paths = re.findall(rf'<path d="([^"]+)" fill="var\(--{fill}, [^"]+"{strong}/>', drawn)
    return sum(float(wide) * float(high) for d in paths for _x, _y, wide, high in BOX.findall(d))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_areas_are_bytes(width, ranks):
    """On one scale, whatever the stage and the recipe."""
    scales = set()
    other = {"stage": 3, "optimizer": "momentum", "precision": "fp32"}
    for params in ({"stage": 0}, {"stage": 2}, {"stage": 3}, other):
        drawn = shown(width, ranks=ranks, **params)
        values, split = drawn["values"], drawn["values"]["split"]
        each = {kind: size / (ranks if split[kind] else 1) for kind, size in values["each"].items()}
        for fill, kinds in (("c1", ["weights"]), ("c6", ["gradients"]), ("c2", [*each][2:])):
            scales.add(round(area(drawn["svg"], fill) / sum(each[kind] for kind in kinds), 0))
    assert max(scales) <= 1.02 * min(scales), scales


@pytest.mark.parametrize("width", WIDTHS)
def test_lengths_are_bytes_pieces_and_seconds(width):
    for params in by_chance("zero", 25, 6):
        drawn = shown(width, **params)
        found, values = marks(drawn["svg"]), drawn["values"]
        size = {name: float(one.get("width") or 0) for name, one in found.items()}
        limit = float(found["limit"].get("x1")) - float(found["held weights"].get("x"))
        bar = sum(wide for name, wide in size.items() if name.startswith("held "))
        assert bar / limit == pytest.approx(values["moment_gb"] / values["usable_gb"], abs=0.02 * bar / limit + 0.001)
        over = max(0.0, bar - limit)
        assert size["over"] == pytest.approx(over, abs=0.1)
        parts = dict(zip(values["spent"], [size[name] for name in size if name.startswith("part ")], strict=True))
        assert sum(values["spent"].values()) == pytest.approx(values["seconds"])
        for name, seconds in values["spent"].items():
            assert parts[name] / sum(parts.values()) == pytest.approx(seconds / values["seconds"], abs=0.001)
        waited = sum(wide for name, wide in size.items() if name.startswith("stripes "))
        assert waited / sum(parts.values()) == pytest.approx(values["exposed_percent"] / 100, abs=0.001)
        cells = [one for one in found if one.startswith("cell ")]
        most = sum(size[one] for one in cells)
        if values["sent_so_far"] == values["pieces"]:
            assert len(cells) == len(picture.cells(setting(**params), 0, 0))
        assert (most > 0) is (values["sent_so_far"] > 0)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_guess_and_what_is_sent_share_a_scale(width):
    for params, end in (({}, 2), ({"stage": 3}, 3), ({"passes": 8}, 9)):
        drawn = shown(width, **params)["svg"]
        stops = [[*map(float, pair.split(":"))] for pair in re.search(r'data-stops="([^"]+)"', drawn)[1].split()]
        (low, left), (high, right) = stops
        cells = [one for name, one in marks(drawn).items() if name.startswith("cell ")]
        last = float(cells[-1].get("x")) + float(cells[-1].get("width")) + 1.5
        assert low + (last - left) / (right - left) * (high - low) == pytest.approx(end, abs=0.01)


def test_a_row_s_name_splits_it_or_copies_it_again():
    flips = {"optimizer": "master", "gradients": "gradients", "weights": "weights"}
    for stage in range(4):
        drawn = shown(stage=stage)
        for group, kind in flips.items():
            control, value = marks(drawn["svg"])[f"name {group}"].get("data-press").split("=")
            then = shown(**{control: int(value)})["values"]["split"]
            assert then[kind] is not drawn["values"]["split"][kind] and abs(int(value) - stage) <= 3
    assert "name optimizer" not in marks(shown(precision="fp32", optimizer="sgd")["svg"]), "it has no states"


def test_the_locked_picture_is_ddp_s():
    for width in WIDTHS:
        locked = zero.locked(views.defaults("zero"), width)
        assert "data-press" not in locked and ">stage 0<" in locked and "new weights" not in locked
        assert sum(name.startswith("cell ") for name in marks(locked)) == 2
        assert area(locked, "c2") == pytest.approx(area(shown(width, stage=0)["svg"], "c2"))


# --- a step -------------------------------------------------------------------------------------------------------


def flown(before, after):
    """Names of shards in both pictures, with how far each moves to the right."""
    one, other = (
        {name: mark for name, mark in marks(drawn).items() if re.match(r"\w+\d+-(in|out|host)", name)}
        for drawn in (before, after)
    )
    return {name: float(other[name].get("x")) - float(one[name].get("x")) for name in one.keys() & other.keys()}


@pytest.mark.parametrize("width", WIDTHS)
def test_what_moves_flies_from_its_owner_or_to_it(width):
    """A reduce-scatter brings a shard from each other rank, a gather takes it there, an all-reduce does both."""
    for stage in range(4):
        grid, seen = picture._grid(setting(stage=stage), width), set()
        for moment in range(MOMENTS - 1):
            now, then = (shown(width, stage=stage, moment=at)["svg"] for at in (moment, moment + 1))
            for name, way in flown(now, then).items():
                number, to = re.match(r"\D+(\d+)-(?:in|out)(\d)", name).groups()
                kind, shard, how = setting(stage=stage).frames[int(number)].move
                row = next(row for row in grid.rows if row.key == kind)
                far = grid.cell(row, int(to), shard)[0] - grid.cell(row, shard, shard)[0]
                assert abs(way) <= abs(far) + 0.01 and (way * far >= 0) is ("-out" in name)
                seen.add((kind, how))
        assert (
            seen
            == {
                0: {("gradients", "both")},
                1: {("gradients", "in"), ("weights", "out")},
                2: {("gradients", "in"), ("weights", "out")},
                3: {("gradients", "in"), ("weights", "out")},
            }[stage]
        )


def test_borrowed_weights_are_there_for_a_moment():
    blue = [area(shown(stage=3, moment=moment)["svg"], "c5") for moment in range(MOMENTS + 1)]
    kept = [area(shown(stage=3, keep=True, moment=moment)["svg"], "c5") for moment in range(MOMENTS + 1)]
    assert blue[0] == blue[-1] == kept[-1] == 0 < max(blue) < max(kept)
    assert not any(area(shown(stage=2, moment=moment)["svg"], "c5") for moment in range(MOMENTS + 1))
    most = [
        max(shown(stage=3, keep=keep, moment=at)["values"]["moment_gb"] for at in range(MOMENTS + 1))
        for keep in (False, True)
    ]
    assert most[0] < most[1] and shown(stage=3, keep=True)["values"]["fullest_gb"] > 27.0 + 2 * N / 1e9


def test_every_moment_says_what_happens():
    for params in ({}, {"stage": 3, "ranks": 8, "offload": "parameters"}, {"stage": 1, "offload": "optimizer"}):
        said = [re.search(r'data-mark="now">([^<]+)<', shown(moment=at, **params)["svg"])[1] for at in range(MOMENTS)]
        assert said[0] == "at rest" and said[-1] == "step done" and len({*said}) > 10
    assert re.search("<text[^>]*>3 of 4 micro-batches done<", shown(moment=0, passes=4)["svg"])


def test_what_is_offloaded_is_striped_and_lies_beneath():
    for to, words in (("host", "27.0 GB in CPU memory"), ("nvme", "27.0 GB on NVMe")):
        drawn = shown(stage=3, offload="parameters", to=to)
        assert (
            drawn["values"]["held_gb"] == 0
            and words in drawn["svg"]
            and "**no states** on the GPU" in drawn["sentence"]
        )
        assert area(drawn["svg"], "c1") == 0 and drawn["svg"].count("not on the GPU") == 5
    below = shown(offload="parameters")["values"]  # stage 2
    assert below["away"] == "optimizer" and below["held_gb"] == pytest.approx(2 * N / 1e9)


def test_marks_stay_few():
    for params in ({}, {"stage": 3, "passes": 8, "offload": "parameters"}, {"stage": 0}):
        for moment in range(0, MOMENTS + 1, 3):
            drawn = shown(moment=moment, ranks=8, **params)["svg"]
            assert drawn.count("<") - drawn.count("</") < 300


# --- the grid alone -----------------------------------------------------------------------------------------------


def test_a_shard_rises_on_its_way_and_comes_to_rest():
    grid = ownership.Grid((ownership.Row("weights", 2, "c1", "c5"),), 4, 50, 40, 400, 10, 8, 4)
    heights = []
    for done in (0.0, 0.5, 1.0):
        under, over = grid.flights([ownership.Flight("w", "weights", 1, "out", done, True)])
        assert (under == "") is (done > 0) and (over == "") is (done == 0)
        found = marks(svg.figure(500, 100, under + over, "a shard"))
        assert {*found} == {"w-out0", "w-out2", "w-out3"}
        heights.append([float(found[f"w-out{rank}"].get("y")) for rank in (0, 2, 3)])
    assert heights[0] == heights[2] == [40, 40, 40] and max(heights[1]) == 40 - ownership.LIFT
    assert grid.landed([ownership.Flight("w", "weights", 1, "out", 1.0, True)]) == {
        ("weights", rank, 1) for rank in (0, 2, 3)
    }
