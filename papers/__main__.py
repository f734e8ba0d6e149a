"""The `papers` command; `python -m papers` is the same."""

import sys


def main() -> None:
    from common.cli import main as run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
