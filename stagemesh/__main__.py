"""Starts the command line; Ctrl-C exits without a traceback even while it is imported."""

import sys
from typing import NoReturn

EXIT_INTERRUPTED = 130


def main() -> NoReturn:
    """Runs the command line of this process, and exits."""
    try:
        from stagemesh.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
