"""A paper that lives in the tests: `attach` makes it visible as papers.toy and configs.toy."""

from pathlib import Path

HERE = Path(__file__).parent


def attach() -> None:
    import configs
    import papers

    for package in (configs, papers):
        folder = str(HERE / package.__name__)
        if folder not in package.__path__:
            package.__path__.append(folder)


def detach() -> None:
    import configs
    import papers

    for package in (configs, papers):
        folder = str(HERE / package.__name__)
        if folder in package.__path__:
            package.__path__.remove(folder)
