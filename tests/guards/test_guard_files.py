"""The repository's own files: README, changelog, CI, and nothing that only exists on the machine it was written on."""

from __future__ import annotations

import os
import re

import pytest
from guarded import REPOSITORY, tracked_files

# Written in pieces, so that this file does not find itself.
MACHINE_PATHS = re.compile("|".join(["/" + "work/", "/" + "farm/", "/" + "root/", "/" + "home/", r"\." + "library"]))
SCRIPTS = (".ci/run", "scripts/setup.sh", "scripts/dev.sh", "scripts/try_image.sh")


def test_readme_is_short():
    assert (REPOSITORY / "README.md").read_text().count("\n") <= 200


def test_changelog_has_an_unreleased_section_first():
    headings = re.findall(r"^## (.+)$", (REPOSITORY / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == "Unreleased"


def test_no_paths_of_one_machine_in_tracked_files():
    found = []
    for path in tracked_files():
        raw = path.read_bytes()
        if b"\0" in raw[:8192]:
            continue
        for number, line in enumerate(raw.decode("utf-8", "replace").splitlines(), 1):
            if MACHINE_PATHS.search(line):
                found.append(f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()[:100]}")
    assert not found


def test_data_in_the_repository_stays_small():
    assert sum(path.stat().st_size for path in tracked_files()) < 25_000_000


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_can_be_run(name):
    path = REPOSITORY / name
    assert os.access(path, os.X_OK)
    text = path.read_text()
    assert text.startswith("#!/usr/bin/env bash\n") and "set -euo pipefail" in text


def test_every_target_of_the_makefile_is_one_of_the_script():
    makefile = (REPOSITORY / "Makefile").read_text()
    script = (REPOSITORY / "scripts" / "dev.sh").read_text()
    (targets,) = re.findall(r"^\.PHONY: help (.+)$", makefile, flags=re.MULTILINE)
    assert {target.replace("-", "_") for target in targets.split()} == set(re.findall(r"^target_(\w+)\(", script, re.M))


def test_ci_runs_every_target_but_the_demo():
    script = (REPOSITORY / "scripts" / "dev.sh").read_text()
    wanted = {name.replace("_", "-") for name in re.findall(r"^target_(\w+)\(", script, re.M)} - {"demo"}
    assert set(re.findall(r"^target ([\w-]+)$", (REPOSITORY / ".ci" / "run").read_text(), re.M)) == wanted


def test_decisions_follow_the_template():
    wanted = re.findall(r"^## (.+)$", (REPOSITORY / "docs/decisions/0000-template.md").read_text(), re.M)
    for page in sorted((REPOSITORY / "docs" / "decisions").glob("*.md")):
        text = page.read_text()
        assert re.match(r"# \d{4} .+\n", text) and page.name[:4] == text[2:6], page.name
        assert re.findall(r"^## (.+)$", text, re.M) == wanted, page.name


def test_local_links_in_documents_lead_somewhere():
    links = [
        (page, link)
        for page in tracked_files()
        if page.suffix == ".md"
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    ]
    broken = [(page.name, link) for page, link in links if "://" not in link and not (page.parent / link).exists()]
    assert not broken
