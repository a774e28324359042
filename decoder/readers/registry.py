"""Which reader reads a path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from decoder.readers.folder import choose, read_folder
from decoder.readers.gguf_file import read_gguf
from decoder.readers.npy import read_array
from decoder.readers.parts import LayerParts
from decoder.readers.safetensors import read_tensors
from index.errors import SourceError

_READ = ".npy, .safetensors, .gguf, or a model's folder with config.json"


def read_layer(path: Path, *, tensor: str | None) -> LayerParts:
    """The output layer at a path: a .npy, .safetensors or .gguf file, or a transformers folder."""
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise SourceError(f"{path}: there is no config.json in this folder. What is read: {_READ}.")
        return read_folder(path, tensor=tensor)
    if not path.is_file():
        raise SourceError(f"{path}: there is no such file or folder.")
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        return choose(read_tensors(path), where=path, tensor=tensor)
    if tensor is not None:
        raise SourceError(
            f"{path}: tensor={tensor!r} was said, but only safetensors files have named tensors to choose from."
        )
    if suffix == ".npy":
        return LayerParts(read_array(path))
    if suffix == ".gguf":
        return read_gguf(path)
    raise SourceError(f"{path}: {suffix or 'a file without an ending'} is not read. What is: {_READ}.")


def read_bias(path: Path) -> NDArray[Any]:
    """The bias in a .npy file, or in a .safetensors file that holds one one-dimensional tensor."""
    if not path.is_file():
        raise SourceError(f"{path}: there is no such file.")
    if path.suffix.lower() == ".npy":
        return read_array(path)
    if path.suffix.lower() == ".safetensors":
        found = [tensor for tensor in read_tensors(path).values() if len(tensor.shape) == 1]
        if len(found) == 1:
            return found[0].array()
        raise SourceError(f"{path}: {len(found)} one-dimensional tensors, needed one. Save the bias alone, as .npy.")
    raise SourceError(f"{path}: a bias is read from .npy or .safetensors.")
