"""The view of a cut block: its numbers are the models', its picture what they say, its levers keep their promise."""

import json
import re
import xml.etree.ElementTree as ET

import pytest
from cases import refused
from drawn import SVG, marks
from view_settings import by_chance

from scaleout import views
from scaleout.collectives import tensor as cut
from scaleout.draw import svg
from scaleout.memory.activations import Sizes, block_kept
from scaleout.spec import topology
from scaleout.spec.devices import DEVICES
from scaleout.spec.job import Job
from scaleout.spec.layout import Layout
from scaleout.spec.recipe import Recipe
from scaleout.spec.transformer import PRESETS, linears
from scaleout.timing import job as timing
from scaleout.views import tensor
from scaleout.views.tensor import levers, record, scene


def shown(width=svg.WIDE, **params):
    return views.render("tensor", params, width)


def letters(picture):
    """Of the badges, those that have happened first: [(letters, whether it has)]."""
    badge = r'<g transform="[^"]*"( opacity="[^"]*")? data-mark="[^"]* (?:True|False) \d">.*?>(A[RGA]|RS)<'
    return [(one, not faint) for faint, one in re.findall(badge, picture)]


# --- numbers ------------------------------------------------------------------------------------------------------


def test_the_opening_is_four_all_reduces_of_75_mb():
    """GPT-3: x is 2,048 x 12,288 numbers of 2 bytes; a ring of 4 sends 2 * 3/4 of it; two forward, two backward."""
    found = shown()["values"]
    x = 2048 * 12_288 * 2
    assert found["one_mb"] == 1.5 * x / 1e6 == pytest.approx(75.5, abs=0.05)
    assert found["all_reduces"] == 4 and found["sent_mb"] == 4 * found["one_mb"] == pytest.approx(302, abs=0.05)
    assert found["forward"] == found["backward"] == {"all_reduce": 2} and found["legal"]
    assert found["weights_mb"] == 12 * 12_288**2 * 2 / 4 / 1e6 and found["flops_share"] == 1 / 4


WIRES = [("nvlink", 1, "nvlink4"), ("pcie", 1, "pcie5"), ("nodes", 2, "nvlink4")]


@pytest.mark.parametrize(("link", "nodes", "inside"), WIRES)
def test_seconds_and_bytes_are_those_of_the_models(link, nodes, inside):
    found = shown(model="llama-3-8b", tp=8, sequence=True, seq="4096", overlap="chunked", link=link)["values"]
    one = cut.block(PRESETS["llama-3-8b"], 1, 4096, 8, sequence_parallel=True)
    job = Job(
        PRESETS["llama-3-8b"],
        4096,
        DEVICES["h100-sxm"],
        topology.cluster(nodes, 8 // nodes, inside),
        layout=Layout(tp=8, sequence_parallel=True),
    )
    block = timing.step(job).work[0]
    assert found["seconds"] == pytest.approx(block.forward_seconds + block.backward_seconds, rel=1e-12)
    assert found["exposed_seconds"] == block.exposed == found["exposed_by_link"][link]
    assert found["overlap"] == ("backward" if nodes > 1 else "chunked"), "chunks stay inside a node"
    sizes = Sizes(PRESETS["llama-3-8b"], 1, 4096, Recipe("bf16-master"), Layout(tp=8, sequence_parallel=True))
    assert found["kept_mb"] == pytest.approx(sum(block_kept(sizes, "none").values()) / 1e6)
    assert found["sent_mb"] == (one.sent("forward") + one.sent("backward")) / 1e6
    assert found["tensors"]["heads"] == ["S(2)", 1, 4096, 512] and found["tensors"]["x"] == ["S(1)", 1, 512, 4096]


def test_tensor_parallelism_wants_the_fastest_wire():
    waits = shown(tp=8)["values"]["exposed_by_link"]
    assert waits["nvlink"] < waits["nodes"] < waits["pcie"]


def test_a_rank_s_heads_and_those_that_it_shares():
    assert shown(lit=2)["values"]["lit_heads"] == [[48, 72], [48, 72]]
    assert shown(model="llama-3-8b", lit=5, tp=8)["values"]["lit_heads"] == [[20, 24], [5, 6]]
    grouped = {"model": "llama-3-8b", "kv": "2", "tp": 8}
    shared = [shown(lit=rank, **grouped)["values"]["lit_heads"][1] for rank in (0, 3, 4, 7)]
    assert shared == [[0, 1], [0, 1], [1, 2], [1, 2]]
    assert "h×h/8 + 2 heads" in shown(**grouped)["svg"] and "heads" not in shown(tp=8)["svg"].replace("by heads", "")
    assert shown(qkv="rows", lit=2)["values"]["lit_heads"] == [[0, 96], [0, 96]]


# --- the picture --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_every_message_is_a_badge_and_a_cell(width):
    for params in ({}, {"sequence": True}, {"up": "rows"}, *by_chance("tensor", 25, 5)):
        result = shown(width, **params)
        found = result["values"]
        badges = letters(result["svg"])
        counts = {key: found["forward"].get(key, 0) + found["backward"].get(key, 0) for key in scene.LETTERS}
        assert {key: [one for one, _ in badges].count(short) for key, short in scene.LETTERS.items()} == counts, params
        cells = [one for name, one in marks(result["svg"]).items() if name.startswith("cell ")]
        assert len(cells) == sum(counts.values())
        filled = [one for one in cells if float(one.get("width")) > 0]
        assert len(filled) == found["messages_so_far"] == sum(done for _, done in badges)


def test_a_pass_fills_the_wire_and_makes_the_tensors():
    sent, faint = [], []
    for step in range(scene.LAST + 1):
        result = shown(step=step)
        sent.append(result["values"]["sent_so_far_mb"])
        faint.append(result["svg"].count('<g opacity="0.16">'))
        assert (marks(result["svg"])["pulse"].get("opacity") == "1") is (step < scene.LAST)
    assert sent == sorted(sent) and sent[0] == 0 and sent[-1] == shown()["values"]["sent_mb"]
    assert len({*sent}) == 5 and sent[scene.LAST // 2 + 1] == sent[-1] / 2, "half of it in the forward"
    assert faint == sorted(faint, reverse=True) and (faint[0], faint[-1]) == (9, 0)


def test_pressing_a_matrix_goes_through_its_cuts_and_what_moves_keeps_its_name():
    named = {"qkv": "attention-first", "out": "attention-second", "up": "mlp-first", "down": "mlp-second"}
    stays = {one for one in marks(shown()["svg"]) if one.endswith(("-lit", "-knife", "-knob"))} | {*named.values()}
    for control, mark in named.items():
        seen, params = [], {}
        for _ in range(3):
            drawn = marks(shown(**params)["svg"])
            name, value = drawn[mark].get("data-press").split("=")
            assert name == control and value in drawn[mark].get("data-label")
            seen.append(value)
            params = {control: value}
            assert stays <= {*marks(shown(**params)["svg"])}
        assert {*seen} == {*cut.CUTS} and seen[-1] == cut.MEGATRON[control]


def test_the_strips_of_the_first_product_are_what_the_second_matrix_needs():
    """From one rank's to the next it is as far along the columns as along the rows: 4h/4."""
    one, other = (marks(shown(lit=lit)["svg"]) for lit in (0, 1))
    for name, along in (("Wup", "x"), ("up", "x"), ("Wdown", "y")):
        first, second = (float(drawn[f"mlp-{name}-lit"].get(along)) for drawn in (one, other))
        assert second - first == pytest.approx(float(one["mlp-Wdown-lit"].get("width")))


WAITS = 'stroke="var(--accent, #b3261e)" stroke-width="1.5" stroke-opacity'  # hatching of the seconds
ILLEGAL = [
    ({"up": "rows"}, "mlp", "GeLU(a + b) ≠ GeLU(a) + GeLU(b)"),
    ({"up": "rows", "model": "llama-3-8b"}, "mlp", "SwiGLU(a + b) ≠ SwiGLU(a) + SwiGLU(b)"),
    ({"qkv": "rows"}, "attention", "the scores need the sum first"),
    ({"down": "columns"}, "mlp", "the next matrix reads all columns"),
    ({"qkv": "copies", "sequence": True, "out": "columns"}, "attention", "each query needs all keys and values"),
]


@pytest.mark.parametrize(("params", "half", "words"), ILLEGAL)
def test_an_illegal_join_lights_up_and_says_why(params, half, words):
    result = shown(**params)
    assert result["values"]["troubles"] == {half: words} and not result["values"]["legal"]
    assert words in result["svg"] and 'stroke="var(--accent' in result["svg"].replace(WAITS, "")
    block = tensor.Setting.of(views.defaults("tensor") | params).block
    reason = next(join.reason for join in block.joins if not join.legal)
    assert f"H100s: {reason}; each sends" in result["sentence"]
    mended = shown(**params | cut.MEGATRON)
    assert mended["values"]["legal"] and 'stroke="var(--accent' not in mended["svg"].replace(WAITS, "")


def test_copies_send_nothing_and_do_all_the_work():
    found = shown(**dict.fromkeys(cut.MEGATRON, "copies"))
    assert found["values"]["sent_mb"] == found["values"]["exposed_seconds"] == 0 and found["values"]["flops_share"] == 1
    assert found["values"]["held_mb"] == pytest.approx(found["values"]["alone_mb"], rel=1e-3)
    assert "nothing is sent" in found["sentence"]
    assert found["levers"]["link"] == {"off": "nothing is communicated"} and "off" in found["levers"]["overlap"]


def test_sequence_parallel_sends_no_less_and_holds_less():
    """Half-size messages, twice as many, and two gathers once more; activations outside the matrices are split."""
    plain, split = shown()["values"], shown(sequence=True)["values"]
    assert split["forward"] == {"all_gather": 2, "reduce_scatter": 2} and split["all_reduces"] == 5
    assert split["kept_mb"] < 0.6 * plain["kept_mb"] and split["weights_mb"] == plain["weights_mb"]
    assert "10 × (t − 1)/t × x = 377 MB" in shown(sequence=True)["law"]
    assert "4 × 2(t − 1)/t × x = 302 MB" in shown()["law"]


# --- the question and the levers ----------------------------------------------------------------------------------


def test_the_locked_picture_has_no_message_and_the_slips_count_something():
    for width in (svg.WIDE, svg.NARROW):
        locked = tensor.locked(views.defaults("tensor"), width)
        assert not letters(locked) and "data-press" not in locked and "75.5 MB" not in locked
        assert not any(name.startswith("cell") for name in marks(locked)) and "all-reduce in" not in locked
    said = {words: value for value, words in tensor.slips(views.defaults("tensor"))}
    assert said["one for each split matrix, forward and backward"] == 2 * len(cut.MEGATRON)
    every = len(linears(PRESETS["gpt-3-175b"]))
    assert said["one for each of six matrices, with Q, K and V apart"] == every
    assert said["one for each of six matrices, forward and backward"] == 2 * every
    forward = sum(shown()["values"]["forward"].values())
    assert said["those of the forward pass alone: the backward pass needs as many"] == forward
    assert views.question("tensor")["words"] == "4"


def test_the_lever_that_is_named_keeps_its_promise():
    seen = set()
    for params in (
        {},
        {"sequence": True},
        {"link": "pcie"},
        {"up": "rows"},
        {"qkv": "rows"},
        {"sequence": True, "down": "columns"},
        {"seq": "1024", "kv": "4", "out": "copies"},
        {"out": "columns"},  # where a lever would save less memory than is worth naming
        *by_chance("tensor", 60, 9),
    ):
        given = {**views.defaults("tensor"), **params}
        setting = tensor.Setting.of(given)
        found = levers.advice(setting)
        if found is None:
            assert "Nothing here saves another 3%" in shown(**given)["sentence"]
            continue
        now, then = (shown(**given | change)["values"] for change in ({}, found.change))
        key = "held_mb" if "needs" in found.gives else "seconds"
        assert then[key] < (1 - levers.WORTH) * now[key] and f"Try **{found.words}**" in shown(**given)["sentence"]
        seen |= {*found.change}
    assert seen == {*cut.MEGATRON, "link", "sequence", "overlap"}
    assert "**sequence parallelism**: each GPU needs" in shown()["sentence"]
    assert "**splitting the MLP's first matrix by columns**" in shown(up="rows")["sentence"]


# --- a reader's run -----------------------------------------------------------------------------------------------

RUN = {
    "stem": "tensor", "device_count": 2, "device": "2-core x86-64 CPU",
    "measurement": {
        "seconds per step, by hand": 0.5, "exposed seconds per step, by hand": 0.2,
        "bytes the blocks keep, by hand": 1010,
        "seconds per step, by hand, sequence": 0.6, "exposed seconds per step, by hand, sequence": 0.3,
    },
    "prediction": {"bytes the blocks keep, by hand": 1000},
}  # fmt: skip


@pytest.mark.parametrize(("sequence", "waits"), [(False, 0.4), (True, 0.5)])
@pytest.mark.parametrize("width", [svg.WIDE, svg.NARROW])
def test_a_run_lies_where_its_own_step_begins_to_wait(width, sequence, waits):
    own = views.measured("tensor", json.loads(json.dumps(RUN)))
    result = views.render("tensor", {"sequence": sequence, "link": "pcie"}, width, own)
    drawn = marks(result["svg"])
    start, *last = (
        float(drawn[mark].get(at))
        for mark, at in (("computes pcie", "x"), ("waits pcie", "x"), ("waits pcie", "width"))
    )
    circles = [one.attrib for one in ET.fromstring(result["svg"]).iter(f"{SVG}circle")]
    [ring] = [one for one in circles if (one["r"], one["fill"]) == ("7", "none")]
    assert (sum(last) - float(ring.get("cx"))) / (sum(last) - start) == pytest.approx(waits, abs=0.01)
    words = f"your run: {waits:.0%} exposed, saves 1.010 of the predicted, 2 ranks on 2-core x86-64 CPU"
    assert record.point(own, sequence)[1] == words and words in result["svg"]
    assert (f">{words}</text>" if width == svg.WIDE else f">your run: {waits:.0%} exposed, 2 ranks on") in result["svg"]
    assert result["values"] == shown(sequence=sequence, link="pcie")["values"]


def test_a_run_between_two_hosts_says_so():
    over = {"seconds per step": 1.5, "share of the step that computes": 0.25}
    own = views.measured("tensor", RUN | {"nodes": 2, "measurement": over})
    assert record.point(own, True)[::2] == (0.75, "your run: 75% exposed, 2 hosts, 2 ranks on 2-core x86-64 CPU")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stem": "ddp"}, "no Record of labs/tensor.py"),
        ({"device_count": 1}, "of one process, which communicates nothing"),
        ({"measurement": {}}, "has no 'seconds per step, by hand' above 0"),
        ({"measurement": 3}, "has no measurement"),
        ({"prediction": {}}, "has no 'bytes the blocks keep, by hand'"),
        (
            {"measurement": {"seconds per step, by hand": 1, "exposed seconds per step, by hand": 2}},
            "more exposed communication",
        ),
    ],
)
def test_another_record_is_refused_in_one_line(change, words):
    refused(lambda: views.measured("tensor", RUN | change), words)
