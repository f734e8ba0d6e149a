"""A paper that lives in the tests: `attach` makes it visible as papers.toy and configs.toy."""

import os
import sys
from pathlib import Path

HERE = Path(os.environ.get("TOY_FOLDER") or Path(__file__).parent)


def attach(here: Path = HERE) -> None:
    import configs
    import papers

    for package in (configs, papers):
        package.__path__.append(str(here / package.__name__))


def detach(here: Path = HERE) -> None:
    import configs
    import papers

    for package in (configs, papers):
        package.__path__.remove(str(here / package.__name__))
        for name in [name for name in sys.modules if name.startswith(f"{package.__name__}.toy")]:
            del sys.modules[name]
            package.__dict__.pop("toy", None)
