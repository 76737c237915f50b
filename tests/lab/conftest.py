"""How a lab refuses what it cannot do, on any number of processes: before any work, with one line."""

import importlib
from dataclasses import replace

import pytest
from refused import WORK, lab_session


@pytest.fixture
def refusal(tmp_path, monkeypatch, capsys):
    """refusal(name, words, world): the line with which labs/NAME.py refuses these words on so many processes.

    Its work has not begun then, and nothing was printed or written. In its folder are a file, f.txt, and two links that
    lead to themselves, loop and loop.svg.
    """

    def line(name, words, world=1):
        lab = importlib.import_module(name)
        monkeypatch.setattr(lab, WORK[name], lambda *_, **__: pytest.fail("the work has begun"))
        monkeypatch.chdir(tmp_path)
        (tmp_path / "f.txt").write_text("a file")
        for link in ("loop", "loop.svg"):
            (tmp_path / link).symlink_to(link)
        before = sorted(tmp_path.iterdir())
        with lab_session() as s, pytest.raises(ValueError) as caught:
            lab.main(words) if name == "slow_link" else lab.main(replace(s, world=world), words)
        assert sorted(tmp_path.iterdir()) == before and capsys.readouterr().out == ""
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return line
