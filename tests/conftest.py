"""What every run of tests needs."""

# Its plugin imports it when a run is over, and pytest parses what it imports. CPython 3.11 gives
# that up with a SystemError where the garbage collector, which has much to do by then, comes
# between (CPython issue 106905): a run whose tests had all passed failed so.
import hypothesis  # noqa: F401
