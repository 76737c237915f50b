"""The book's words are those of its field, and its chapters are short, as tools/plain.py and tools/length.py count."""

import length
import plain
import pytest
import repo

MOST_IN_A_FILE, MOST = 2, 25  # a word of the list can be right in its place


def words(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    return [found for _, found, _ in plain.found(page)]


def test_hardly_a_word_of_the_books_own_is_left():
    counts = {path: [*plain.found(path)] for path in plain.files()}
    assert len(counts) > 500 and any(path.name == "CONTRIBUTING.md" for path in counts)
    many = {str(path.relative_to(repo.ROOT)): found for path, found in counts.items() if len(found) > MOST_IN_A_FILE}
    assert not many, "tools/plain.py says what to write instead"
    assert sum(map(len, counts.values())) <= MOST, "tools/plain.py lists them"


@pytest.mark.parametrize(
    "text",
    [
        "half of them are told within 1.6%",
        "It is wrong of the paper.",
        "3.4 GB a step",
        "The mending takes one line.",
        "Half of the GPUs costs the double.",
        "The rate of matrix products falls.",
        "what is sent waits",
        "On its way down it meets nobody.",
    ],
)
def test_such_words_are_found(tmp_path, text):
    assert len(words(tmp_path, text)) >= 1


@pytest.mark.parametrize(
    "text",
    [
        "half of them are predicted within 1.6%",
        "3.4 GB per step",
        "A GPU of 80 GB holds it.",
        "dot products of queries and keys",
        "`what is sent` and [a link](what-is-sent.md)",
    ],
)
def test_the_fields_words_are_not(tmp_path, text):
    assert words(tmp_path, text) == []


@pytest.mark.parametrize("name", [name for name in repo.with_suffix(".ipynb") if name.startswith("notebooks/")])
def test_a_chapter_is_short(name):
    found = length.measured(repo.ROOT / name)
    assert 0 < found.page <= length.MOST, f"{found}: fold, move or cut {found.page - length.MOST} words"
