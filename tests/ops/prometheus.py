"""A real Prometheus that scrapes a mesh with the configuration `deploy/prometheus.yml`."""

import json
import math
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagemesh.launcher.ports import reserve

DEPLOY = Path(__file__).parents[2] / "deploy"
_STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server."""

    address: str

    def get(self, path: str, **parameters: str) -> Any:
        """Calls its API; returns `data` of the response."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.load(response)["data"]

    def numbers(self, expression: str) -> list[float]:
        """The values of an instant query, without NaN."""
        series = self.get("query", query=expression)["result"]
        values = [float(one["value"][1]) for one in series]
        return [value for value in values if not math.isnan(value)]

    def series(self, expression: str, start: float, end: float) -> list[Any]:
        """A query's series between two Unix times, with one point per second."""
        found = self.get("query_range", query=expression, start=str(start), end=str(end), step="1s")
        return list(found["result"])

    def is_up(self) -> bool:
        """Whether it responds."""
        try:
            self.get("status/buildinfo")
        except OSError:
            return False
        return True


@contextmanager
def prometheus(http_api: str, folder: Path) -> Iterator[Prometheus]:
    """Scrapes the mesh at `http_api`, more often than in production; stores data in `folder`."""
    shutil.copy(DEPLOY / "alerts.yml", folder)
    config = (DEPLOY / "prometheus.yml").read_text()
    config = config.replace("coordinator:8000", http_api)
    config = config.replace("_interval: 15s", "_interval: 1s").replace(
        "_interval: 5s", "_interval: 1s"
    )
    (folder / "prometheus.yml").write_text(config)
    address = reserve("127.0.0.1:0")
    command = (
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    )
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            yield Prometheus(address)
        finally:
            process.terminate()
            process.wait(_STOP_SECONDS)
