"""The byte model that writes: its sampler against the pure one, what it writes, and what counts as a right answer."""

import dataclasses

import pytest
import torch

from scaleout.lab import session
from scaleout.measure import budget
from scaleout.numerics.decoding import decoded
from scaleout.parallel.transformer import Transformer
from scaleout.spec.transformer import Shape

SHAPE = Shape(1, 32, 2, 256, max_seq=32)


@dataclasses.dataclass(frozen=True)
class Options:
    shape = SHAPE
    seq: int = 32
    batch: int = 4
    steps: int = 3
    lr: float = 1e-3
    prompt: int = 8
    written: int = 8
    tune_steps: int = 2
    tune_lr: float = 1e-3
    windows: int = 4
    seed: int = 0
    via: str = "hand"


@pytest.fixture(scope="module", name="study")
def a_study():
    s = session._join("cpu")[0]
    text = torch.randint(0, 256, (4000,), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    return budget.Study(s, Options(), text, text[:500])


@pytest.mark.parametrize(("temperature", "top_p"), [(0.9, 0.85), (2.0, 0.8), (0.3, 0.5), (1.0, 1.0)])
def test_truncation_is_that_of_the_pure_sampler(temperature, top_p):
    logits = torch.randn(20, 31, generator=torch.Generator().manual_seed(2))
    found = budget.truncated(logits, temperature, top_p)
    for row, p in zip(found, logits.double().softmax(-1), strict=True):
        assert row.tolist() == pytest.approx(decoded(p.tolist(), temperature, top_p), abs=1e-5)


def test_what_is_written_begins_with_its_prompt_and_holds_likely_bytes_only():
    torch.manual_seed(3)
    model = Transformer(SHAPE)
    prompts, chances = torch.randint(0, 256, (6, 8)), torch.rand(6, 10)
    text = budget.write(model, prompts, chances, 0.7, 0.3)
    assert text.shape == (6, 18) and (text[:, :8] == prompts).all()
    with torch.no_grad():
        for i in range(8, 18):
            allowed = budget.truncated(model(text[:, :i])[:, -1], 0.7, 0.3)
            assert (allowed.gather(1, text[:, i : i + 1]) > 0).all()
    again = torch.cat([budget.write(model, prompts[i : i + 1], chances[i : i + 1], 0.7, 0.3) for i in range(6)])
    assert (again == text).float().mean() > 0.9, "each sequence has its own random numbers, whoever writes it"


def test_an_answer_is_right_with_the_product_of_its_bytes():
    logits = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(4))
    targets = torch.randint(0, 5, (2, 7), generator=torch.Generator().manual_seed(5))
    found = budget.accuracies(logits, targets, 1.0).view(2, -1)
    hit = budget.truncated(logits, 1.0, budget.TOP_P)
    for row in range(2):
        for at in range(7 - budget.BYTES + 1):
            wanted = 1.0
            for i in range(at, at + budget.BYTES):
                wanted *= hit[row, i, targets[row, i]].item()
            assert found[row, at].item() == pytest.approx(wanted, rel=1e-4, abs=1e-9)


def test_nothing_held_out_is_trained_on(study):
    assert len(study.text) + len(study.held) == 4000 and len(study.held) == 400


def test_training_starts_from_the_base_and_leaves_it_as_it_is(study):
    base, seconds, losses = study.base()
    before = {name: p.detach().clone() for name, p in base.model.named_parameters()}
    assert len(seconds) == len(losses) == 3
    text, _ = study.written(base, 0, 0.9, 0.85)
    assert text.shape == (8, 33) and (text[:, :8] == study.prompts(0)[:, :8]).all()
    trained, _ = study.trained(base, text, 0)
    assert all(torch.equal(p, before[name]) for name, p in base.model.named_parameters())
    assert any(not torch.equal(p, before[name]) for name, p in trained.model.named_parameters())


def test_what_is_trained_on_are_the_continuations_and_not_the_prompts(study, monkeypatch):
    base, *_ = study.base()
    rows, seen = study.prompts(0), []
    loss = budget.F.cross_entropy
    monkeypatch.setattr(
        budget.F, "cross_entropy", lambda logits, targets: seen.append(targets) or loss(logits, targets)
    )
    study.trained(base, rows, 0)
    wanted = {tuple(row) for row in rows[:, Options.prompt :].tolist()}
    assert len(seen) == Options.tune_steps
    for targets in seen:
        assert {tuple(row) for row in targets.view(Options.batch, -1).tolist()} <= wanted


def test_the_base_is_surer_where_it_is_surest(study):
    base, *_ = study.base()
    seen, accuracies = study.seen(base, base)
    assert 0 < len(accuracies) <= Options.windows * (Options.seq - budget.BYTES + 1)
    assert seen.best(1)[1] == max(seen.right[1].values()) <= seen.best(16)[1]
    among = sum(1 - (1 - p) ** 16 for p in accuracies) / len(accuracies)
    assert seen.best(16)[1] == pytest.approx(among, rel=1e-4)
    assert 0 <= seen.tail <= 1 and seen.sure < seen.open
