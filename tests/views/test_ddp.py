"""The widget of `ddp` shows what the step model says, at the edges of every control."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from cases import over

from scaleout import views
from scaleout.draw import lanes, svg
from scaleout.spec import topology
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.program import PROGRAMS
from scaleout.spec.recipe import Recipe
from scaleout.spec.replicas import Replicas, powersgd_ratio
from scaleout.spec.transformer import PRESETS
from scaleout.timing.ddp import MIB, buckets
from scaleout.timing.intervals import length
from scaleout.timing.job import step
from scaleout.views import ddp
from scaleout.views.ddp import gauge, picture

SVG = "{http://www.w3.org/2000/svg}"


def marks(svg):
    """[(title, x, width, y, fill)] of the lanes' rectangles, in the order of drawing."""
    return [
        (rect.find(f"{SVG}title").text, *(float(rect.get(key)) for key in ("x", "width", "y")), rect.get("fill"))
        for rect in ET.fromstring(svg).iter(f"{SVG}rect")
        if rect.find(f"{SVG}title") is not None
    ]


def wide(rows, start):
    return sum(width for title, _, width, *_ in rows if title.startswith(start))


def test_values_are_the_step():
    given = {"model": "gpt2", "device": "h100-sxm", "ranks": 8, "batch": 4, "link": "ib"}
    values = views.render("ddp", {**given, "accumulation": 2, "bucket": 10})["values"]
    nodes = topology.cluster(8, 1, inside="nvlink4", across="ib-ndr", nics=1)
    job = Job(
        PRESETS["gpt2"],
        1024,
        DEVICES["h100-sxm"],
        nodes,
        4,
        Layout(dp=8, micro_batches=2),
        Recipe(buckets="beside"),
        PROGRAMS["compiled"],
        Replicas(bucket_bytes=10 * MIB),
    )
    time = step(job)
    assert values["step_seconds"] == time.seconds and values["mfu"] == time.mfu
    assert values["exposed_seconds"] == time.timeline.exposed_seconds
    assert values["exposed_seconds"] + values["slowed_seconds"] == pytest.approx(time.parts["exposed data"])
    assert values["slowed_seconds"] == pytest.approx(
        PROGRAMS["compiled"].contention * (values["communication_seconds"] - values["exposed_seconds"])
    )
    assert values["exposed_percent"] == 100 * values["exposed_seconds"] / values["step_seconds"]
    assert values["tokens_per_second"] == time.tokens_per_second
    assert values["buckets"] == len(time.timeline.buckets)
    lost = time.parts["exposed data"] + time.parts["stragglers"]
    assert values["efficiency"] == pytest.approx(1 - lost / time.seconds)
    assert values["speed_up"] == pytest.approx(8 * values["efficiency"])


def test_the_default_bucket_is_torch_s_default():
    """25 MiB with a first bucket of 1 MiB; any other cap holds for the first bucket too."""
    for bucket, caps in ((25, (25 * MIB, MIB)), (50, (50 * MIB, 50 * MIB))):
        line = ddp.Setting.of({**views.defaults("ddp"), "bucket": bucket}).step.timeline
        assert line.buckets == tuple(map(tuple, buckets(line.layers, *caps)))


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
@pytest.mark.parametrize("params", [{}, {"model": "gpt2", "link": "ethernet-10g"}, {"overlap": False}])
def test_lanes_are_to_scale(params, width):
    result = views.render("ddp", params, width)
    rows, values = marks(result["svg"]), result["values"]
    until = max(values["step_seconds"], 2 * values["alone_seconds"])
    scale = (width - 2 * picture.LEFT) / until
    work = wide(rows, "forward of") + wide(rows, "backward of")
    assert work == pytest.approx(values["compute_seconds"] * scale, abs=0.5)
    assert wide(rows, "all-reduce") == pytest.approx(values["communication_seconds"] * scale, abs=0.5)
    assert wide(rows, "exposed") == pytest.approx(values["exposed_seconds"] * scale, abs=0.02)
    end = picture.LEFT + values["step_seconds"] * scale
    assert max(x + long for _, x, long, *_ in rows) == pytest.approx(end, abs=0.02)
    for y in {y for *_, y, _ in rows}:
        lane = [(x, x + long) for _, x, long, at, _ in rows if at == y]
        assert length(lane) == pytest.approx(sum(end - start for start, end in lane), abs=0.5), "marks overlap"


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
@pytest.mark.parametrize("params", [{"model": "gpt2", "bucket": 80}, {}, {"overlap": False}])
def test_a_bucket_falls_from_its_backward_to_its_message(params, width):
    """Its upper corners are those of the mark in the compute lane, its lower ones those of the message; it is in the
    accent's colour where the message ends after backward."""
    result = views.render("ddp", params, width)
    root, busy = ET.fromstring(result["svg"]), result["values"]["compute_seconds"]
    spans = {
        one.get("data-mark"): (float(one.get("x")), float(one.get("x")) + float(one.get("width")))
        for one in root.iter(f"{SVG}rect")
        if one.get("data-mark")
    }
    falls = {one.get("data-mark"): one for one in root.iter(f"{SVG}polygon") if one.get("data-mark", "")[0] == "v"}
    scale = (width - 2 * picture.LEFT) / max(result["values"]["step_seconds"], 2 * result["values"]["alone_seconds"])
    assert len(falls) == sum(1 for name in spans if name[:2] == "w0") > 2
    late = 0
    for name, one in falls.items():
        (a, top), (b, _), (c, low), (d, _) = (map(float, pair.split(",")) for pair in one.get("points").split())
        if "b" + name[1:] in spans:  # the token table computes nothing
            assert (a, b) == pytest.approx(spans["b" + name[1:]], abs=0.02)
        assert (d, c) == pytest.approx(spans["w" + name[1:]], abs=0.02) and c > b - 0.02 and low > top
        late += (after := c > picture.LEFT + busy * scale + 0.02)
        assert after == ("--accent" in one.get("fill"))
    assert late


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
@pytest.mark.parametrize(
    "params", [{}, {"model": "gpt2", "bucket": 80}, {"bucket": 400, "accumulation": 3, "no_sync": False}]
)
def test_blocks_are_numbered_where_backward_makes_them_and_where_they_are_sent(params, width):
    """At the middle of what each falls from and onto, in both lanes; one number never touches the next."""
    root = ET.fromstring(views.render("ddp", params, width)["svg"])
    falls = [one for one in root.iter(f"{SVG}polygon") if one.get("data-mark", "")[0] == "v"]
    corners = [[tuple(map(float, pair.split(","))) for pair in one.get("points").split()] for one in falls]
    numbers = {}
    for one in root.iter(f"{SVG}text"):
        if (one.text or "").isdigit() and one.get("text-anchor") == "middle" and one.get("fill") == svg.colour("ink"):
            numbers.setdefault(float(one.get("y")), []).append((float(one.get("x")), int(one.text)))
    assert len(numbers) == 2
    for ends, row in zip(((0, 1), (2, 3)), (numbers[y] for y in sorted(numbers)), strict=True):
        middles = {
            (int(one.get("data-mark").split(".")[1]) + 1, round(sum(points[k][0] for k in ends) / 2))
            for one, points in zip(falls, corners, strict=True)
        }
        assert {(number, round(x)) for x, number in row} <= {
            (number, x + shift) for number, x in middles for shift in (-1, 0, 1)
        }
        assert {1, max(number for number, _ in middles)} <= {number for _, number in row}
        for (x, number), (after, following) in pairwise(sorted(row)):
            assert after - x > (svg.measure(str(number), 11) + svg.measure(str(following), 11)) / 2
    words = "bucket" if params.get("model") else "block"
    count = sum(one.text == words for one in root.iter(f"{SVG}text"))
    assert count == 2 or (params.get("accumulation") and count < 2)  # of three passes the first may leave it no room


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_what_is_exposed_is_hatched_in_both_lanes(width):
    result = views.render("ddp", {}, width)
    found = {one.get("data-mark"): one for one in ET.fromstring(result["svg"]).iter(f"{SVG}rect")}
    waits, late = found["waits"], found["late"]
    assert (late.get("x"), late.get("width")) == (waits.get("x"), waits.get("width"))
    assert float(late.get("y")) == float(found["w0.9"].get("y")) > float(waits.get("y"))
    end = float(found["w0.9"].get("x")) + float(found["w0.9"].get("width"))
    assert float(late.get("x")) + float(late.get("width")) == pytest.approx(end, abs=0.02)
    assert 'data-mark="late"' not in views.render("ddp", {"ranks": 1}, width)["svg"]


@over(count=(1, 2, 11, 12, 13, 145, 1000), passes=(1, 3, 16))
def test_groups_of_buckets(count, passes):
    found = lanes.groups(count, passes)
    assert [bucket for group in found for bucket in group] == list(range(count)) and all(found), "none is empty"
    assert len(found) == min(count, lanes.GROUPS, max(1, lanes.MARKS // (3 * passes)))
    assert max(map(len, found)) <= min(map(len, found)) + 1


def test_the_squares_are_the_work_that_is_done():
    """At most sixteen; what is filled is the efficiency's share of them."""
    for ranks in (1, 2, 5, 16, 20, 512):
        result = views.render("ddp", {"ranks": ranks})
        filled = [
            float(one.get("width"))
            for one in ET.fromstring(result["svg"]).iter(f"{SVG}rect")
            if one.get("data-mark", "").startswith("crew")
        ]
        squares = min(ranks, gauge.CREW)
        assert sum(filled) / gauge.SIDE / squares == pytest.approx(result["values"]["efficiency"], abs=1e-3)
        assert f">{ranks} GPU{'s do' if ranks > 1 else ' does'} the work of " in result["svg"]


@over(params=[{}, {"batch": 64}, {"compression": "bf16"}, {"link": "ethernet-10g"}, {"ranks": 1}])
def test_the_gauge_is_to_scale_and_says_what_is_lacking(params):
    result = views.render("ddp", params)
    root, values = ET.fromstring(result["svg"]), result["values"]
    have = next(float(one.get("width")) for one in root.iter(f"{SVG}rect") if one.get("data-mark") == "have")
    need = [float(one.get("x1")) - picture.LEFT for one in root.iter(f"{SVG}line") if one.get("data-mark") == "need"]
    assert len(need) == (params != {"ranks": 1})
    for at in need:
        assert at / have == pytest.approx(values["tokens_needed"] / values["tokens_per_gpu"], rel=1e-3)
        assert max(at, have) <= svg.WIDE - 2 * picture.LEFT
    assert f"Tokens per GPU and pass: {values['tokens_per_gpu']:,}<" in result["svg"]


def test_a_moment_of_the_step_shows_the_pile_then():
    """Nothing before backward, the most of it when a bucket is complete, nothing at the end; what comes later is
    faded from the moment on."""
    seen = [views.render("ddp", {"moment": n}) for n in range(ddp.MOMENTS + 1)]
    piles = [one["values"]["pile_gb"] for one in seen]
    most = seen[0]["values"]["pile_most_gb"]
    assert piles[0] == piles[5] == piles[-1] == 0 and 0.8 * most < max(piles) <= most
    assert "waiting for the link: 1.80 GB at most, of 6.23 GB" in seen[-1]["svg"]
    for n in (0, 7, ddp.MOMENTS - 1):
        later = next(one for one in ET.fromstring(seen[n]["svg"]).iter(f"{SVG}rect") if one.get("data-mark") == "later")
        values = seen[n]["values"]
        scale = (svg.WIDE - 2 * picture.LEFT) / (2 * values["alone_seconds"])
        assert float(later.get("x")) == pytest.approx(picture.LEFT + values["moment_seconds"] * scale, abs=0.01)
    assert 'data-mark="later"' not in seen[-1]["svg"]


def test_sentence_names_the_exposed_part_and_a_lever_that_works():
    result = views.render("ddp", {})
    assert re.search(r"with [\d.,]+ ms \(\d\d\.\d%\) of exposed communication", result["sentence"])
    assert "Try **bf16, which rounds gradients" in result["sentence"]
    promised = int(re.search(r"rounds gradients\*\*: (\d+)%", result["sentence"]).group(1))
    kept = views.render("ddp", {"compression": "bf16"})["values"]["efficiency"]
    assert promised == round(100 * kept)
    fast = views.render("ddp", {"link": "node-ib", "compression": "bf16"})
    assert "No single change here adds" in fast["sentence"] and fast["values"]["efficiency"] > 0.98


def test_sentence_knows_one_rank_the_last_bucket_and_a_model_too_large():
    alone = views.render("ddp", {"ranks": 1})
    assert "One GPU has nothing to exchange" in alone["sentence"] and alone["values"]["exposed_seconds"] == 0
    whole = views.render("ddp", {"bucket": 10_000})
    assert whole["values"]["buckets"] == 1 and "The last bucket is 100% of that" in whole["sentence"]
    assert whole["values"]["last_message_seconds"] == pytest.approx(whole["values"]["exposed_seconds"])
    large = views.render("ddp", {"model": "llama-2-7b"})
    assert not large["values"]["states_fit"] and large["values"]["states_gb"] == pytest.approx(20 * 6.738415616)
    assert "the states need 135 GB with DDP's buckets, and one A100 SXM 80 GB has 73.7 usable GB" in large["sentence"]
    assert "ZeRO" not in views.render("ddp", {})["sentence"]


def test_powersgd_says_what_it_leaves_out():
    found = views.render("ddp", {"compression": "powersgd"})
    assert found["values"]["compression_ratio"] == powersgd_ratio(PRESETS["gpt2-xl"])
    assert "PowerSGD's own arithmetic is left out" in found["law"][2]
    assert "PowerSGD" not in " ".join(views.render("ddp", {"compression": "bf16"})["law"])


def test_accumulation_communicates_once_unless_told_otherwise():
    one, four, every = (
        views.render("ddp", rest)["values"] for rest in ({}, {"accumulation": 4}, {"accumulation": 4, "no_sync": False})
    )
    assert four["communication_seconds"] == pytest.approx(one["communication_seconds"])
    assert every["communication_seconds"] == pytest.approx(4 * one["communication_seconds"])
    assert every["efficiency"] < one["efficiency"] + 0.01 < four["efficiency"]


# --- the law, the question ----------------------------------------------------------------------------------------


@over(params=[{}, {"compression": "bf16"}, {"link": "ib"}, {"ranks": 3, "accumulation": 4, "no_sync": False}])
def test_the_law_has_the_tokens_that_hide_all_but_the_last_bucket(params):
    """With as many tokens backward takes as long as the messages; the figures printed give the product printed."""
    found = views.render("ddp", params)
    tokens = found["values"]["tokens_needed"]
    formula, rest = found["law"][1:]
    assert float(formula.split("= ")[1].replace(",", "")) == pytest.approx(tokens, rel=0.01)
    p = int(re.search(r"W = (\d+)", rest)[1])
    done, rate = (float(re.search(rf"{name} = ([\d.,]+) ", rest)[1].replace(",", "")) for name in ("R", "1/β"))
    moved = found["values"]["communication_seconds"] / found["values"]["byte_seconds"]  # starts take the rest
    alone = float(re.search(r"\(([\d.]+) without latency\)", rest)[1])
    assert alone == pytest.approx(rate * moved, rel=0.01) and alone > rate
    half = 2 if params.get("compression") else 1
    assert 2 * done * 1e3 * (p - 1) / p / rate / half == pytest.approx(tokens, rel=0.01)
    batch = tokens / found["values"]["tokens_per_gpu"] * views.defaults("ddp")["batch"]
    waits = [views.render("ddp", {**params, "batch": max(1, round(batch * more))})["values"] for more in (0.8, 1.1)]
    left = [
        one["exposed_seconds"] - one["last_message_seconds"] * (4 if params.get("accumulation") else 1) for one in waits
    ]
    assert left[0] > 5 * max(0.0, left[1]) and waits[1]["exposed_percent"] < 10


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_the_locked_picture_shows_what_computes_and_nothing_of_the_wire(width):
    """Its one difference from wire to wire is by how much hidden communication slows the compute."""
    base = views.defaults("ddp")
    for change in ({}, {"link": "node-ib"}, {"ranks": 512}, {"compression": "bf16"}, {"overlap": False}):
        asked, values = ddp.locked({**base, **change}, width), views.render("ddp", change)["values"]
        rows = marks(asked)
        assert {title for title, *_ in rows} == {"forward", "backward"}
        scale = (width - 2 * picture.LEFT) / (2 * values["alone_seconds"])
        assert wide(rows, "") == pytest.approx(values["compute_seconds"] * scale, abs=0.02)
        assert 'class="live-mark"' in asked and "all-reduce" not in asked and "exposed:" not in asked


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_a_right_guess_stands_at_the_end_of_the_step(width):
    result = views.render("ddp", {}, width)
    pairs = re.search(r'data-stops="([^"]+)"', result["svg"])[1].split()
    stops = [tuple(map(float, pair.split(":"))) for pair in pairs]
    share, end = result["values"]["exposed_percent"], max(x + w for _, x, w, *_ in marks(result["svg"]))
    (a, at), (b, then) = next((one, two) for one, two in pairwise(stops) if one[0] <= share <= two[0])
    assert at + (then - at) * (share - a) / (b - a) == pytest.approx(end, abs=0.5)


def test_slips_are_what_they_say():
    values = views.render("ddp", {})["values"]
    slips = {words: value for value, words in ddp.slips(views.defaults("ddp"))}
    after = views.render("ddp", {"overlap": False})["values"]
    assert slips["as if none of it were hidden"] == pytest.approx(after["exposed_percent"])
    hidden = slips["a share of the communication, not of the step"]
    assert hidden == pytest.approx(100 * (1 - values["overlap_fraction"]))
    assert all(abs(value / values["exposed_percent"] - 1) > 0.05 for value in slips.values())
