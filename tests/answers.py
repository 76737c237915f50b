"""The answers that exercises give of themselves, and what the checkers on real ranks say of files."""

import contextlib
import io
import re
import subprocess
import sys
from unittest import mock

import pool

from scaleout import exercises

STEM = {one.key: stem for stem in exercises.stems() for one in exercises.catalogue(stem)}


def value(stem, key):
    """The value of a number, in base units."""
    return exercises.exercise(stem, key).value


def right(stem, key):
    """The name of the right option of a choice."""
    return next(option.name for option in exercises.exercise(stem, key).options if option.right)


def solution(stem, key):
    """The function that the solution of a function exercise defines."""
    found = exercises.exercise(stem, key)
    space = {}
    exec(code_of(found), space)
    return space[found.function]


def texts(stem, key):
    """What an exercise says in words: its prompt, its solution, and of a choice why each option is right or wrong."""
    found = exercises.exercise(stem, key)
    return found.prompt + found.solution + "".join(option.reason for option in getattr(found, "options", ()))


def code_of(one):
    """The code in an exercise's solution."""
    return re.search(r"```python\n(.*?)```", one.solution, re.S).group(1)


def check(one, answer):
    """What an exercise says of an answer whose code, if it has any, may run in this process: it comes to its end."""
    return one.judge(answer).to_dict()


def verdict(stem, key, answer):
    """The same of the exercise with a key."""
    return check(exercises.exercise(stem, key), answer)


def changed(source, *pairs):
    """A program with some of its words replaced, each of which it has. pairs: (old words, new words)."""
    for old, new in pairs:
        assert old in source, old
        source = source.replace(old, new)
    return source


def restyled(source):
    """The same program as others would begin it: with the names imported, and with names of its own for them."""
    head, names = "import torch.distributed as dist\n", sorted(set(re.findall(r"\bdist\.(\w+)", source)))
    own = "".join(f"my_{name} = d.{name}\n" for name in names)
    ways = {
        "-from-imports": (f"from torch.distributed import {', '.join(names)}\n", r"\1"),
        "-aliases": (f"import torch.distributed as d\n{own}", r"my_\1"),
    }
    return {way: re.sub(r"\bdist\.(\w+)", name, source.replace(head, start)) for way, (start, name) in ways.items()}


def forked(check, *files):
    """A checker with its launcher in this process and its ranks forks of the pool: quick, however many are lost.

    check: the Check of a module that the ranks can run as their own.
    """
    from scaleout.exercises.ranks import check as checker
    from scaleout.exercises.ranks import launch

    with contextlib.ExitStack() as around:
        jobs = []

        def start(module, world, files, port, token):
            jobs.append(
                around.enter_context(
                    pool.Job(
                        ["-m", "specimen_impatient", *files],
                        world,
                        CHECKED=module,
                        MASTER_PORT=str(port),
                        PYTHONPATH=":".join(sys.path),
                        **{launch.TOKEN: token},
                    )
                )
            )
            return jobs[-1].processes

        out, errors = (
            around.enter_context(to(io.StringIO())) for to in (contextlib.redirect_stdout, contextlib.redirect_stderr)
        )
        around.enter_context(mock.patch.object(launch, "_start", start))
        around.enter_context(mock.patch.object(sys, "argv", [check.module, *map(str, files)]))
        try:
            checker.main(check)
        except SystemExit as end:
            said = "".join(job.read("err") for job in jobs)
            return subprocess.CompletedProcess(sys.argv, end.code, out.getvalue(), errors.getvalue() + said)


def told(check, right, written, folder):
    """{slip: what a checker says of the file written with it}, each as it should: of a right answer, whose name begins
    with a hyphen, words that begin with `right`; of a wrong one its slip, which is the first word of its name.

    written: {slip: source}. Of several that end in one slip, others have a number behind its name, or more words.
    """
    for slip, source in written.items():
        (folder / f"file{slip}.py").write_text(source, encoding="utf-8")
    assert len(set(written.values())) == len(written)
    result = forked(check, *(folder / f"file{slip}.py" for slip in written))
    assert (result.returncode, result.stderr) == (1, "")
    said = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    assert list(said) == [f"file{slip}.py" for slip in written]
    for slip in written:
        start = right if slip[0] == "-" else f"not yet ({slip.split()[0].rstrip('234')}): "
        assert said[f"file{slip}.py"].startswith(start), (slip, said[f"file{slip}.py"])
    return {slip: said[f"file{slip}.py"] for slip in written}
