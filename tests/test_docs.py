"""The documentation names files that exist."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md")
# Names of files that a user has or makes.
EXAMPLES = {"node.env", "prometheus.yml"}
SUFFIXES = "py|md|proto|yml|toml|sh|example"


@pytest.fixture(scope="module")
def tracked() -> frozenset[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True)
    return frozenset(listed.stdout.decode().splitlines())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_document_names_only_files_and_folders_that_exist(
    document: Path, tracked: frozenset[str]
) -> None:
    text = document.read_text()
    files = re.findall(rf"`((?:[\w-]+/)*[\w-]+\.(?:{SUFFIXES}))`", text)
    folders = re.findall(r"`((?:[\w-]+/)+)`", text)
    assert {
        name
        for name in set(files) - EXAMPLES
        if not any(path == name or path.endswith(f"/{name}") for path in tracked)
    } == set()
    assert {
        name
        for name in set(folders)
        if not any(path.startswith(name) or f"/{name}" in path for path in tracked)
    } == set()
