"""Owns nothing: `python -m stagemesh` is the command line of `stagemesh.cli`."""

from stagemesh.cli import main

if __name__ == "__main__":
    main()
