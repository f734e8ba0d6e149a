"""Data sets: what there is, fetch, verify (`papers data` is the same).

python -m scripts.data list
python -m scripts.data fetch NAME ...
python -m scripts.data verify [NAME ...]
"""

import sys

from common.data.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], "python -m scripts.data"))
