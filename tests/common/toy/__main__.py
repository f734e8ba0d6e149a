"""`python -m tests.common.toy` is `papers`, with the toy paper in sight."""

import sys

from tests.common.toy import attach

attach()
from common import cli  # noqa: E402

sys.exit(cli.main(sys.argv[1:]))
