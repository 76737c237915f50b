"""A lab exercise as a reader starts it, in a Python of its own: what torch does once in a process is not behind it."""

import answers
import lab_runs
import pytest
import ready

from scaleout import exercises


@pytest.mark.slow
def test_a_unit_ahead_is_right_where_torch_runs_its_first_collective(tmp_path):
    """The frame that torch leaves in a cycle there, with the first unit, is not the reader's."""
    (tmp_path / "ahead.py").write_text(answers.code_of(exercises.exercise("fsdp", "prefetch-by-hand")))
    done = lab_runs.bash("-c", f"{ready.REAL} -m scaleout.exercises.fsdp.ranks {tmp_path / 'ahead.py'}")
    assert "right: 2 ranks" in done.stdout, done.stdout + done.stderr
