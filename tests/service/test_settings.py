"""Settings: where values come from, what is refused, and that the table in the documentation is the one in the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.settings import Settings, SettingsError, load_settings, origins

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def load(flags=None, environment=None, config_file=None):
    return load_settings(flags, environment=environment or {}, config_file=config_file)


def test_flags_beat_environment_beats_file_beats_defaults(tmp_path):
    file = tmp_path / "fullview.toml"
    file.write_text("port = 1\nhost = '127.0.0.2'\nthreads = 3\n")
    environment = {"FULLVIEW_PORT": "2", "FULLVIEW_HOST": "127.0.0.3", "PATH": "/bin"}
    loaded = load({"port": 3, "threads": None}, environment, file)
    assert (loaded.values.port, loaded.values.host, loaded.values.threads) == (3, "127.0.0.3", 3)
    assert loaded.values.drain_s == 60.0
    assert loaded.origin["port"] == "flag"
    assert loaded.origin["host"] == "environment"
    assert loaded.origin["threads"] == str(file)
    assert loaded.origin["drain_s"] == "default"


@pytest.mark.parametrize(
    ("flags", "environment", "text", "words"),
    [
        ({}, {"FULLVIEW_PRT": "1"}, "", ["FULLVIEW_PRT", "port"]),
        ({}, {}, "prt = 1", ["prt", "port", "fullview.toml"]),
        ({}, {}, "[server]\nport = 1", ["server"]),
        ({}, {}, "port = ", ["TOML"]),
        ({"port": 70000}, {}, "", ["port", "70000", "flag"]),
        ({}, {"FULLVIEW_PORT": "x"}, "", ["port", "environment"]),
        ({"io_mode": "magic"}, {}, "", ["io_mode", "magic"]),
        ({"threads": 0}, {}, "", ["threads"]),
        ({"host": "0.0.0.0"}, {}, "", ["0.0.0.0", "api_key"]),
        ({"host": "::"}, {}, "", ["api_key"]),
        ({"host": "example.org"}, {}, "", ["api_key"]),
        ({"api_key": ""}, {}, "", ["api_key"]),
    ],
)
def test_what_is_refused_is_named(tmp_path, flags, environment, text, words):
    file = tmp_path / "fullview.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(flags, environment, file)
    for word in words:
        assert word in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SettingsError, match=r"none\.toml"):
        load(config_file=tmp_path / "none.toml")
    with pytest.raises(SettingsError, match=r"none\.toml"):
        load(environment={"FULLVIEW_CONFIG": str(tmp_path / "none.toml")})


def test_loopback_needs_no_key():
    for host in ("127.0.0.1", "127.1.2.3", "localhost", "::1"):
        assert load({"host": host}).values.host == host
    assert load({"host": "0.0.0.0", "api_key": "k"}).values.host == "0.0.0.0"


def test_secrets_are_masked_everywhere():
    loaded = load({"api_key": "very-secret"})
    assert "very-secret" not in str(origins(loaded)) + repr(loaded) + str(loaded.values)
    assert {row["name"]: row["value"] for row in origins(loaded)}["api_key"] == "********"


def test_a_wrong_key_is_not_shown_in_the_error():
    with pytest.raises(SettingsError) as caught:
        load({"api_key": ["very-secret"]})
    assert "very-secret" not in str(caught.value)


def test_the_table_in_the_documentation_is_the_one_in_the_code():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", PAGE.read_text(), flags=re.MULTILINE)
    documented = {name: (default, text) for name, default, text in rows}
    expected = {
        name: ("" if field.default is None else f"`{field.default}`", field.description)
        for name, field in Settings.model_fields.items()
    }
    assert documented == expected
