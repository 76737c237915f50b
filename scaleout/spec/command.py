"""The command line of whatever has one: a lab, a table of prices, a write-up, an exit check."""

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are ValueErrors, so that bad input is one line; it takes no flag's abbreviation.

    doc: the description, printed as it stands.
    """

    def __init__(self, doc: str, **more) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
                         **more)

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (--help lists the options)")
