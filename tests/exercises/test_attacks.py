"""Answers invented without a look at the checkers: right ones in other forms, wrong ones as learners give them.

tests/attacks/STEM.json has for each exercise {"right": [answer, ...], "wrong": [{"answer", "why", "slip", "says",
"never"}, ...]}. An answer is what `exercises.check` takes: a number with its unit, an option's name, source text.
`why` is the misconception behind it, `slip` the expected name (null: any), `says` the words of which the message has
to have each ("a|b": one of the two), `never` those that would name a cause that is none.
"""

import json
from pathlib import Path

import answers
from cases import each

from scaleout import exercises

FILES = sorted((Path(__file__).parents[1] / "attacks").glob("*.json"))
ATTACKS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FILES}
KEYS = [(stem, key) for stem, attacks in ATTACKS.items() for key in attacks]


def fault(verdict, expected):
    """What is wrong with the verdict on a wrong answer, "" where it is as it should be."""
    message = verdict["message"].lower()
    unsaid = [word for word in expected["says"] if not any(part.lower() in message for part in word.split("|"))]
    blamed = [word for word in expected["never"] if word.lower() in message]
    if verdict["ok"]:
        return "accepted"
    if expected["slip"] not in (None, verdict["slip"]):
        return f"slip {verdict['slip']!r} for {expected['slip']!r}"
    return f"does not say {unsaid}" if unsaid else f"says {blamed}" if blamed else ""


def test_every_chapter_is_attacked():
    assert set(ATTACKS) == set(exercises.stems())


@each(ATTACKS)
def test_every_exercise_is_attacked(stem):
    kinds = {exercise.key: exercise.kind for exercise in exercises.catalogue(stem) if exercise.kind != "torch"}
    assert set(ATTACKS[stem]) == set(kinds)
    for key, attack in ATTACKS[stem].items():
        assert len(attack["wrong"]) >= 5, key
        assert len(attack["right"]) >= (1 if kinds[key] == "choice" else 4), key


@each(KEYS)
def test_right_answers_in_other_forms_are_right(stem, key):
    verdicts = [(answer, answers.verdict(stem, key, answer)) for answer in ATTACKS[stem][key]["right"]]
    assert [(answer, verdict["message"]) for answer, verdict in verdicts if not verdict["ok"]] == []


@each(KEYS)
def test_wrong_answers_are_told_what_is_known(stem, key):
    faults = []
    for expected in ATTACKS[stem][key]["wrong"]:
        verdict = answers.verdict(stem, key, expected["answer"])
        if words := fault(verdict, expected):
            faults.append(f"{expected['answer']!r} ({expected['why']}): {words}: {verdict['message']}")
    assert not faults, "\n".join(faults)
