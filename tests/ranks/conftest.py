"""Tests of a file that share a launch run in one worker, by xdist's --dist loadgroup."""

import pytest


def pytest_itemcollected(item):
    """One group for the tests of a file that take a fixture of their module by name."""
    defined = item.session._fixturemanager.getfixturedefs
    scopes = {fixture.scope for name in item.fixturenames for fixture in (defined(name, item) or ())[-1:]
              if fixture.baseid == item.parent.nodeid and name != "no_profile"}
    if "module" in scopes:
        item.add_marker(pytest.mark.xdist_group(item.path.stem))
