"""Owns the first moment of the command line: Ctrl-C ends it quietly while it is still imported.

What it does is in `stagemesh.cli`, whose imports take a while.
"""

import sys
from typing import NoReturn

EXIT_INTERRUPTED = 130


def main() -> NoReturn:
    """Runs this process's command line, and exits."""
    try:
        from stagemesh.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
