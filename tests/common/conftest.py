import pytest

from tests.common import toy


@pytest.fixture
def toy_paper():
    """papers.toy, for the length of a test."""
    from common.catalogue import catalogue

    catalogue.cache_clear()
    toy.attach()
    yield "toy"
    toy.detach()
    catalogue.cache_clear()
