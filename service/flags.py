"""The library's sentences in the words of the command line: --replace for replace=True, --queries for queries=."""

from __future__ import annotations

import re
from dataclasses import fields

from index.options import BuildOptions, OpenOptions, SearchOptions

_OPTIONS = {field.name for kind in (BuildOptions, OpenOptions, SearchOptions) for field in fields(kind)}
_OF_BUILDS_AND_QUERIES = {"replace", "queries", "vector", "ids", "payload", "first", "size_mb"}
_OF_DECODERS = {
    *("tensor", "dtype", "bias", "scale", "softcap", "vocab_size", "calibration"),
    *("normalize", "mode", "logit_bias", "allowed", "banned", "logprobs", "on_bad"),
}
_NAMES = sorted(_OPTIONS | _OF_BUILDS_AND_QUERIES | _OF_DECODERS, key=len, reverse=True)
_NAME = rf"(?<![\w/.\-])({'|'.join(_NAMES)})"
_WITH_VALUE = re.compile(_NAME + r"""=(?:True\b|["']([^"'\s]+)["']|([\w./]*[\w/]))?""")
_FIRST = re.compile(rf"^({'|'.join(_NAMES)})(?= (?:is|was|and \w+ were) )")
_LONG = re.compile(rf"(?<![\w/.\-])({'|'.join(name for name in _NAMES if '_' in name)})(?![\w/])")


def in_flags(sentence: str) -> str:
    """The sentence with each option named as its flag."""
    sentence = _WITH_VALUE.sub(lambda m: " ".join(filter(None, (_flag(m[1]), m[2] or m[3]))), sentence)
    sentence = _FIRST.sub(lambda m: _flag(m[1]), sentence)
    return _LONG.sub(lambda m: _flag(m[1]), sentence)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
