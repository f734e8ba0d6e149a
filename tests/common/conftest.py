import pytest

from tests.common import toy


@pytest.fixture
def toy_paper():
    """papers.toy, for the length of a test."""
    from common import configs

    configs.declared_types.cache_clear()
    toy.attach()
    yield "toy"
    toy.detach()
    configs.declared_types.cache_clear()
