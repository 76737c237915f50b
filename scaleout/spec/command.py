"""The command line of whatever has one: a lab, a table of prices, a write-up, an exit check."""

import argparse
from typing import NoReturn


def text(value: str) -> str:
    """A value as it was given. Nothing but spaces is refused: `--folder "$RUN"` is that where RUN is not set."""
    if not value.strip():
        raise argparse.ArgumentTypeError("needs a value that is not empty")
    return value


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are ValueErrors, so that bad input is one line; it takes no flag's abbreviation,
    and no empty value.

    doc: the description, printed as it stands.
    """

    def __init__(self, doc: str, **options) -> None:
        super().__init__(
            description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options
        )
        self.register("type", None, text)

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (--help lists the options)")
