"""What holds for every test on real ranks."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def quickly(quick):
    """A file that needs a Python as it starts by itself has a fixture of its own by this name."""
