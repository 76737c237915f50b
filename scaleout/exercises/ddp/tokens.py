"""The exercise of `ddp` on means of means: micro-batches and ranks whose numbers of tokens differ."""

from __future__ import annotations

from scaleout.exercises.engine import Function, Mistake

_STUB = '''\
def factors(tokens):
    """What each micro-batch's mean loss is multiplied by.

    tokens: for each rank a list with the number of tokens that
        count in each micro-batch, such as [[40, 8], [8, 8]]
    Returns a list of the same shape.
    """
    return ...
'''

_SOLUTION = """\
def factors(tokens):
    ranks = len(tokens)
    total = sum(map(sum, tokens))
    return [[ranks * n / total for n in rank] for rank in tokens]
"""


def weighted(tokens: list) -> list:
    """The reference."""
    total = sum(map(sum, tokens))
    return [[len(tokens) * n / total for n in rank] for rank in tokens]


def _without_ranks(tokens: list) -> list:
    total = sum(map(sum, tokens))
    return [[n / total for n in rank] for rank in tokens]


def _passes_too(tokens: list) -> list:
    return [[n / len(rank) for n in row] for rank, row in zip(tokens, weighted(tokens), strict=True)]


def _of_sums(tokens: list) -> list:
    """For a loss that is a sum over tokens."""
    total = sum(map(sum, tokens))
    return [[len(tokens) / total for _ in rank] for rank in tokens]


def _ranks_alone(tokens: list) -> list:
    total = sum(map(sum, tokens))
    return [[len(tokens) * sum(rank) / total / len(rank) for _ in rank] for rank in tokens]


def _by_pass(tokens: list) -> list:
    """Each pass weighed among the ranks, and all passes alike."""
    passes = [sum(column) for column in zip(*tokens, strict=True)]
    return [
        [len(tokens) * n / all_ranks / len(rank) for n, all_ranks in zip(rank, passes, strict=True)] for rank in tokens
    ]


FACTORS = Function(
    key="token-factors",
    level=2,
    minutes=10,
    title="40 tokens here, 8 there",
    lists=True,
    prompt="Sequences are padded, so micro-batches have different numbers of tokens that count. Each rank runs several "
    "micro-batches, all but the last in `no_sync()`. For each it takes the **mean** loss over the tokens, multiplies "
    "it by a factor and calls `backward()`. Gradients accumulate, and DDP **averages** them over the ranks. Write "
    "`factors(tokens)` so that the result is the gradient of the mean over **all** tokens of the step. All ranks have "
    "equally many micro-batches. `factors([[40, 8], [8, 8]])` is `[[1.25, 0.25], [0.25, 0.25]]`.",
    hints=(
        "What would a factor be if every micro-batch had the same number of tokens?",
        "Write the mean over all tokens as a sum over micro-batches. What share of all tokens does one have?",
        "What does DDP divide by afterwards?",
    ),
    solution=f"```python\n{_SOLUTION}```\n\n"
    "Each micro-batch is weighted by its share of all tokens. DDP divides by the number of ranks, so you multiply by "
    "it. To know the total, the ranks all-reduce their token counts, one number, before the first backward pass. If "
    "the loss is a *sum* over tokens, every factor is ranks / total.\n\nThe plain mean of means, with the factor "
    "1/micro-batches, gives a token of a short micro-batch more weight than a token of a long one: five times as much "
    "with 40, 8, 8 and 8 tokens. Nothing fails, and the loss goes down. The Trainer of transformers did this until "
    "2024, so that training with accumulation was not the same as training with a large batch "
    "(huggingface/transformers, issue 24725 and pull request 34191). Across ranks it had to be fixed once more (pull "
    "request 34373, `average_tokens_across_devices`).",
    function="factors",
    stub=_STUB,
    reference=weighted,
    cases=(
        ([[40, 8], [8, 8]],),
        ([[12, 12], [12, 12]],),
        ([[100], [28]],),
        ([[7, 5, 3]],),
        ([[9, 1, 5], [20, 30, 4]],),
        ([[64, 16], [32, 8], [3, 100]],),
        ([[1]],),
        ([[10, 0], [5, 25]],),
        ([[6, 18, 2, 7], [6, 18, 2, 7]],),
        ([[11], [22], [33], [44], [55], [66], [77]],),
    ),
    mistakes=(
        Mistake(
            "mean-of-means",
            lambda tokens: [[1 / len(rank) for _ in rank] for rank in tokens],
            "You gave each micro-batch the same factor. Then a token of a short micro-batch has more weight than one "
            "of a long one.",
        ),
        Mistake(
            "forgot-average",
            _without_ranks,
            "Your factors are right for one rank. What does DDP do with the gradients of several ranks?",
        ),
        Mistake(
            "own-tokens",
            lambda tokens: [[n / sum(rank) for n in rank] for rank in tokens],
            "You weighted a rank's micro-batches among themselves. Then a rank with few tokens has as much weight as "
            "one with many.",
        ),
        Mistake(
            "passes-too",
            _passes_too,
            "You divided by the number of micro-batches as well. The numbers of tokens already weight them.",
        ),
        Mistake(
            "of-sums", _of_sums, "Those are the factors for a loss that is a sum over its tokens. This one is a mean."
        ),
        Mistake(
            "ranks-alone", _ranks_alone, "You weighted the ranks, and gave all micro-batches of a rank the same factor."
        ),
        Mistake(
            "by-pass",
            _by_pass,
            "You weighted the ranks within each micro-batch, and gave all micro-batches the same weight.",
        ),
        Mistake(
            "own-tokens-whole",
            lambda tokens: [[len(rank) * n / sum(rank) for n in rank] for rank in tokens],
            "You weighted a rank's micro-batches among themselves, with factors whose sum is their number. What "
            "happens to gradients from one micro-batch to the next?",
        ),
    ),
    right="Every token has the same weight, whatever its micro-batch and its rank.",
)

EXERCISES = (FACTORS,)
