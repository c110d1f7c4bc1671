"""Setup for every test run."""

# Its plugin imports it at the end of a run, and pytest parses imported modules. In CPython 3.11 a
# garbage collection during the parse raises SystemError (CPython issue 106905), which failed a run
# whose tests had all passed.
import hypothesis  # noqa: F401
