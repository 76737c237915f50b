"""Every Python that these tests start has torch already."""

import sys

import pytest
import ready


@pytest.fixture(scope="module", autouse=True)
def quick():
    """sys.executable of a test's own process, for as long as its file is tried."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", ready.python())
        yield
