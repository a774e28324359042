"""The container files say what operators rely on. No engine is needed: the files are read."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path

import pytest
import yaml

from service.settings import load_settings

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = REPOSITORY / "docker" / "Dockerfile"


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    """(instruction, its words) in order, lines joined and comments left out."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def final_stage(instructions) -> list[tuple[str, str]]:
    """What stands after the last FROM."""
    start = max(i for i, (name, _) in enumerate(instructions) if name == "FROM")
    return instructions[start:]


@pytest.fixture(scope="module")
def compose() -> dict:
    return yaml.safe_load((REPOSITORY / "docker" / "compose.yaml").read_text())


def environment_of(stage: list[tuple[str, str]]) -> dict[str, str]:
    pairs = [pair for name, words in stage if name == "ENV" for pair in words.split()]
    return dict(pair.split("=", 1) for pair in pairs)


def test_the_image_is_slim_and_has_no_compiler(final_stage):
    assert final_stage[0] == ("FROM", "python:3.11-slim")
    assert not [words for name, words in final_stage if name == "RUN" and "apt-get" in words]


def test_the_server_does_not_run_as_root(final_stage):
    users = [words for name, words in final_stage if name == "USER"]
    assert users and users[-1].split(":")[0] not in ("root", "0")
    assert [name for name, _ in final_stage].index("USER") < [name for name, _ in final_stage].index("CMD")


def test_data_lies_on_a_volume_and_the_settings_know_it(final_stage):
    assert ("VOLUME", '["/data"]') in final_stage
    variables = {name: value for name, value in environment_of(final_stage).items() if name.startswith("FULLVIEW_")}
    settings = load_settings(environment=variables | {"FULLVIEW_API_KEY": "key"}).values
    assert settings.data_dir == Path("/data")
    assert settings.host == "0.0.0.0"


def test_hnswlib_is_compiled_for_any_processor_before_it_is_installed(instructions):
    build_stage = instructions[: [name for name, _ in instructions].index("FROM", 1)]
    assert environment_of(build_stage)["HNSWLIB_NO_NATIVE"] == "1"
    names = [(name, "pip install" in words) for name, words in build_stage]
    assert names.index(("ENV", False)) < names.index(("RUN", True))


def test_kernels_are_cached_where_the_user_may_write_and_compiled_while_building(final_stage):
    cache = environment_of(final_stage)["NUMBA_CACHE_DIR"]
    owned = [words for name, words in final_stage if name == "RUN" and "install -d -o fullview" in words]
    assert owned and cache in owned[0]
    warm = [i for i, (name, words) in enumerate(final_stage) if name == "RUN" and "try_install.py" in words]
    assert warm and warm[0] > [name for name, _ in final_stage].index("USER")


def test_the_health_check_asks_readyz_and_its_program_is_valid(final_stage):
    (words,) = [words for name, words in final_stage if name == "HEALTHCHECK"]
    command = json.loads(words[words.index("[") :])
    assert command[:2] == ["python", "-c"] and "/readyz" in command[2]
    ast.parse(command[2])


def test_every_copied_path_is_there_and_passes_dockerignore(instructions):
    allowed = [
        line[1:].rstrip("/") for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")
    ]
    for name, words in instructions:
        if name != "COPY" or words.startswith("--from"):
            continue
        for source in words.split()[:-1]:
            assert (REPOSITORY / source).exists(), source
            assert any(source == path or source.startswith(path + os.sep) for path in allowed), source


def test_compose_publishes_on_loopback_only(compose):
    (service,) = compose["services"].values()
    assert service["ports"] and all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_compose_demands_a_key_and_waits_for_the_drain(compose):
    (service,) = compose["services"].values()
    assert service["environment"]["FULLVIEW_API_KEY"].startswith("${FULLVIEW_API_KEY:?")
    assert float(service["stop_grace_period"].rstrip("s")) > load_settings(environment={}).values.drain_s


def test_compose_builds_this_dockerfile_and_names_its_volume(compose):
    (service,) = compose["services"].values()
    root = REPOSITORY / "docker" / service["build"]["context"]
    assert (root / service["build"]["dockerfile"]).resolve() == DOCKERFILE.resolve()
    assert service["volumes"] == ["data:/data"] and "data" in compose["volumes"]
