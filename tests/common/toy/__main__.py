"""`python -m tests.common.toy ...` is `python -m papers.toy.train ...`."""

import sys

from tests.common.toy import attach

attach()
from common import cli  # noqa: E402

sys.exit(cli.main(["run", "toy", *sys.argv[1:]]))
