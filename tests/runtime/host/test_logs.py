"""Tests of the log format: one event a line, in this process's own voice."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from runtime.host.logs import configure_logging, get_logger


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Undoes what `configure_logging` did to this process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_json_line_carries_process_fields_and_event(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("worker", "info", json=True)

    get_logger(replica=0).info("epoch_opened", stage=1)

    line = json.loads(capsys.readouterr().err)
    assert (
        line.items()
        >= {
            "event": "epoch_opened",
            "level": "info",
            "process": "worker",
            "replica": 0,
            "stage": 1,
        }.items()
    )


def test_line_below_the_level_is_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("worker", "warning", json=True)

    get_logger().info("step_done")

    assert capsys.readouterr().err == ""


def test_line_of_another_library_looks_alike(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("coordinator", "info", json=True)

    logging.getLogger("asyncio").error("task failed: %s", "x")

    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["process"]) == ("task failed: x", "coordinator")


def test_console_line_of_a_failure_is_followed_by_its_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("coordinator", "info", json=False)

    get_logger().error("rpc_failed", exc_info=ValueError("secret"))

    text = capsys.readouterr().err
    assert "rpc_failed" in text
    assert "ValueError: secret" in text


@pytest.mark.parametrize("as_json", [True, False])
def test_line_of_a_failure_keeps_locals_to_itself(
    capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    configure_logging("coordinator", "info", json=as_json)

    try:
        prompt = "my " + "secret"
        raise ValueError(len(prompt))
    except ValueError as exc:
        get_logger().error("rpc_failed", exc_info=exc)

    assert "my secret" not in capsys.readouterr().err


def test_json_line_of_a_failure_holds_its_traceback_on_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("coordinator", "info", json=True)

    get_logger().error("rpc_failed", exc_info=ValueError("secret"))

    (text,) = capsys.readouterr().err.splitlines()
    assert json.loads(text)["exception"][0]["exc_value"] == "secret"
