"""``python -m headrace.flows``: the command line where no script is installed."""

import os
import sys

if not sys.flags.safe_path and sys.path[0] in {"", os.getcwd()}:  # noqa: PTH109 - before anything is imported
    del sys.path[0]  # a `tasks.py` or `config.py` of the working directory is none of ours

from headrace.flows.cli import main

if __name__ == "__main__":
    sys.exit(main())
