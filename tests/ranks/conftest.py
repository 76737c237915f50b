"""What holds for every test on real ranks."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def always_forked(forked_python):
    """A file that needs a Python as it starts by itself has a fixture of its own by this name."""


@pytest.fixture(scope="module")
def no_profile(tmp_path_factory):
    """What this machine was calibrated to is of no concern here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
