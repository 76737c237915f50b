"""What feeds the training job: text split by file, batches from a thread."""

import pytest
import torch

from scaleout.lab import session
from scaleout.train import batches
from scaleout.train.options import TIERS
from scaleout.train.order import Order


def test_the_input_gives_each_step_its_windows_and_ends():
    text = torch.randint(256, (999,), dtype=torch.uint8)
    o = Order(999, 8, 1)
    with session.session("cpu") as s, batches.Batches(s, text, o, 6, first=3) as feed:
        for step in (3, 4, 5):
            window, wait = feed.take()
            assert window.shape == (6, 9)
            assert wait >= 0
            for row, start in zip(window, o.starts(step, 6), strict=True):
                assert torch.equal(row, text[start : start + 9])
        pairs = batches.inputs(window, s.device, 3)
    assert not feed.thread.is_alive()
    assert [tuple(tokens.shape) for tokens, _ in pairs] == [(2, 8)] * 3
    assert torch.equal(pairs[1][0][:, 1:], pairs[1][1][:, :-1])
    assert torch.equal(pairs[2][1], window[4:, 1:].long())


def test_an_error_of_the_input_reaches_who_trains():
    text = torch.zeros(8, dtype=torch.uint8)
    with session.session("cpu") as s, batches.Batches(s, text, Order(999, 8), 4) as feed, pytest.raises(IndexError):
        feed.take()


def test_the_text_is_split_by_file(tmp_path):
    for i in range(40):
        (tmp_path / f"f{i}.py").write_text(f"{i}:" + "x" * i)
    text = batches.read(str(tmp_path), 0.2)
    train_, held = (bytes(part.tolist()) for part in (text.train, text.validation))
    for i in range(40):
        inside = any(line == f"{i}:".encode() + b"x" * i for line in held.split(b"\n"))
        assert inside == (f"f{i}.py" in text.held_out)
        assert inside != any(line == f"{i}:".encode() + b"x" * i for line in train_.split(b"\n"))
    assert batches.read(str(tmp_path), 0.2).digest == text.digest
    (tmp_path / "f3.py").write_text("3:xxy")
    assert batches.read(str(tmp_path), 0.2).digest != text.digest


def test_one_file_is_cut_at_its_end(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 80 + "b" * 20)
    text = batches.read(str(tmp_path / "a.txt"), 0.2)
    assert batches.read(str(tmp_path / "a.txt"), 0.3).digest != text.digest, "another split is another run"
    assert bytes(text.validation.tolist()) == b"b" * 20
    assert len(text.train) == 80
    assert text.held_out == ("the end of a.txt",)


def test_the_words_name_the_text(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 8000)
    (tmp_path / "b.txt").write_text("b" * 2000)
    text = batches.read(str(tmp_path), 0.2)
    assert text.words == f"text {text.digest}: 0.01 MB in 2 file(s), 20.00% of it held out in 1"


@pytest.fixture(scope="module")
def texts():
    """{tier: (its options, its text)}, each text read once."""
    read = {
        o.dataset: batches.read(
            o.dataset, o.held_out, max(p.batch * p.seq + 1 for p in TIERS.values() if p.dataset == o.dataset)
        )
        for o in TIERS.values()
    }
    return {tier: (o, read[o.dataset]) for tier, o in TIERS.items()}


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("tier", list(TIERS))
def test_every_tier_has_a_validation_batch_on_every_rank(texts, tier, world):
    o, text = texts[tier]
    assert 0.05 <= len(text.validation) / (len(text.train) + len(text.validation)) < 0.1, "a share of the bytes"
    assert len(text.held_out) > 3
    assert len(text.validation) > o.batch * o.seq
    if o.batch % world:
        with pytest.raises(ValueError, match=f"{world} ranks do not divide a batch of {o.batch} sequences: use one of"):
            o.passes(world)
        return
    for rank in {0, world - 1}:
        found = batches.held_out(text, o.batch, o.seq, o.validation_batches, rank, world)
        assert 1 <= len(found) <= o.validation_batches
        assert {tuple(window.shape) for window in found} == {(o.batch // world, o.seq + 1)}


def test_no_tier_reads_its_text_over_and_over(texts):
    times = {tier: o.steps * o.batch / Order(len(text.train), o.seq).windows for tier, (o, text) in texts.items()}
    assert times["smoke"] < 0.3 and times["cpu"] < 2
    assert times["gpu"] < 5, "28 with the top-level modules alone"


def test_a_text_too_short_for_a_validation_batch_is_refused_before_the_model_is_made(tmp_path):
    (tmp_path / "short.txt").write_text("x" * 200_000)
    with pytest.raises(
        ValueError,
        match="the text has 200,000 bytes, and one validation batch takes 131,073, of which "
        "training wants as many: use a larger --dataset, or a smaller --batch",
    ):
        batches.read(str(tmp_path), 0.05, 64 * 2048 + 1)
