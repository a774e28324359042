"""A decoder's folder: written whole or not at all, and believed only where every file is what the manifest says.

write_decoder     the parts -> a folder under construction, its manifest last
read_decoder      a folder -> the parts, every byte compared with the manifest

    manifest.json                format version, sizes and xxh3 of all files; operating points, the hash of the weights
    weights.npy bias.npy         the output layer as it was given; uint16 holds bfloat16
    codes.npy scalars.npy        the preview; lead_codes.npy lead_scalars.npy: its leading coordinates
    links.npy                    the graph; centroids.npy entries.npy: where walks begin
    mean.npy centre.npy projection.npy    the frame of states; samples.npy: a few states, for timing
    report.json                  what the build did
Not here: how a folder comes to its place (index.publication), timings of this machine (planner.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from decoder.entries import Entries
from decoder.errors import CorruptDecoderError, StaleDecoderError, UnknownDecoderError
from decoder.operating_points import DecoderPoint
from decoder.output_layer import OutputLayer
from decoder.preview import Preview
from decoder.transform import Frame
from index.disk import save_array
from index.errors import CorruptIndexError, UnknownIndexError
from index.manifest import FileEntry, Manifest, read_manifest, write_manifest
from index.publication import Kind
from index.resident import load_resident

ARRAYS = (
    "weights", "bias", "codes", "scalars", "lead_codes", "lead_scalars", "links", "centroids", "entries", "mean", "centre",
    "projection", "samples",
)  # fmt: skip
WEIGHTS = "weights.npy"
REPORT = "report.json"
TIMINGS = "timings.json"
"""Of modes on this machine (planner.py): not listed in the manifest, since another machine measures again."""
DECODER = Kind("decoder", "a decoder", WEIGHTS, (*(f"{name}.npy" for name in ARRAYS), REPORT), (TIMINGS,))
_KIND = "decoder"
_BLOCK_BYTES = 1 << 22
ATTEMPTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderParts:
    """What a decoder consists of. promise, report: JSON; seed: of log Z's samples."""

    layer: OutputLayer
    frame: Frame
    preview: Preview
    links: NDArray[np.int32]
    entries: Entries
    points: tuple[DecoderPoint, ...]
    promise: dict[str, Any]
    report: dict[str, Any]
    seed: int
    weights_hash: str
    samples: NDArray[np.float32]
    """A few states (m, d) like those to come: what modes are timed with."""

    @property
    def resident_bytes(self) -> dict[str, int]:
        """Memory by part; `layer` may be shared with the model or the page cache."""
        return {
            "layer": self.layer.weight.nbytes + self.layer.bias.nbytes,
            "codes": self.preview.codes.nbytes + self.preview.scalars.nbytes,
            "lead_codes": self.preview.lead_codes.nbytes + self.preview.lead_scalars.nbytes,
            "links": self.links.nbytes,
            "entries": self.entries.centroids.nbytes + self.entries.table.nbytes,
            "frame": self.frame.projection.nbytes + self.frame.mean.nbytes + self.frame.centre.nbytes,
        }


def write_decoder(folder: Path, parts: DecoderParts) -> Manifest:
    """Write every file of a decoder into an empty folder."""
    layer, frame, preview, entries = parts.layer, parts.frame, parts.preview, parts.entries
    arrays: dict[str, NDArray[Any]] = {
        "weights": layer.weight[: layer.vocab_size],
        "bias": layer.bias,
        "codes": preview.codes,
        "scalars": preview.scalars,
        "lead_codes": preview.lead_codes,
        "lead_scalars": preview.lead_scalars,
        "links": parts.links,
        "centroids": entries.centroids,
        "entries": entries.table,
        "mean": frame.mean,
        "centre": frame.centre,
        "projection": frame.projection,
        "samples": parts.samples,
    }
    for name in ARRAYS:
        save_array(folder / f"{name}.npy", arrays[name])
    (folder / REPORT).write_text(json.dumps(parts.report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return write_manifest(
        folder,
        n=layer.vocab_size,
        dim=layer.dim,
        dtype=layer.dtype,
        metric="logit",
        preview=_KIND,
        preview_parameters={"width": preview.width, "lead": preview.lead, "degree": int(parts.links.shape[1])},
        operating_points=[point.to_dict() for point in parts.points],
        promise=parts.promise,
        extras={
            "scale": layer.scale,
            "softcap": layer.softcap,
            "seed": parts.seed,
            "weights_hash": parts.weights_hash,
        },
    )


def read_decoder(folder: Path, *, layer: OutputLayer | None = None) -> tuple[DecoderParts, Manifest]:
    """The parts of the decoder in `folder`. layer: used in place of the folder's copy, if it has the hash of the built one.

    Where another decoder takes the folder's place meanwhile, that one is read. Raises UnknownDecoderError,
    CorruptDecoderError, StaleDecoderError; index.errors.UnsupportedFormatError.
    """
    for _ in range(ATTEMPTS):
        before = _which(folder)
        try:
            found = _read_all(folder, layer)
        except Exception:
            if _which(folder) == before:
                raise
            continue
        if _which(folder) == before:
            return found
    raise CorruptDecoderError(
        path=folder, expected="a decoder that stays there while it is read", found=f"another one, {ATTEMPTS} times"
    )


def _which(folder: Path) -> tuple[int, int, int] | None:
    """What tells a folder from the one that takes its place by a rename, which leaves its mark on the folder moved."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _read_all(folder: Path, layer: OutputLayer | None) -> tuple[DecoderParts, Manifest]:
    manifest = _manifest(folder)
    for name, entry in manifest.files.items():
        if name != REPORT and not (name == WEIGHTS and layer is not None):
            _verify(folder / name, entry)
    extras = manifest.extras
    if layer is None:
        # A private mapping shares the page cache, and kernels need no second version for read-only memory.
        layer = OutputLayer(
            np.asarray(np.load(folder / WEIGHTS, mmap_mode="c", allow_pickle=False)),
            np.load(folder / "bias.npy", allow_pickle=False),
            scale=extras["scale"],
            softcap=extras["softcap"],
            dtype=manifest.dtype,
        )
    else:
        facts = Facts(
            tokens=manifest.n, dim=manifest.dim, dtype=manifest.dtype, scale=extras["scale"], softcap=extras["softcap"]
        )
        bias = np.load(folder / "bias.npy", allow_pickle=False)
        require_same_weights(layer, extras["weights_hash"], differences(facts, bias, layer))

    def load(name: str) -> Any:
        return load_resident(folder / f"{name}.npy", huge_pages=True)

    lead_codes = load("lead_codes")
    preview = Preview.of(load("codes"), load("scalars"), lead_codes, load("lead_scalars"))
    parts = DecoderParts(
        layer=layer,
        frame=Frame(load("mean"), load("centre"), load("projection")),
        preview=preview,
        links=load("links"),
        entries=Entries.of(load("centroids"), load("entries")),
        points=tuple(DecoderPoint(**point) for point in manifest.operating_points),
        promise=manifest.promise,
        report=_report(folder),
        seed=extras["seed"],
        weights_hash=extras["weights_hash"],
        samples=load("samples"),
    )
    return parts, manifest


def require_same_weights(layer: OutputLayer, expected: str, different: Sequence[str] = ()) -> None:
    """Raise StaleDecoderError, which names what is different, unless the layer's hash, computed now, is the expected one."""
    found = layer.weights_hash()
    if found != expected:
        raise StaleDecoderError(expected=expected, found=found, differences=different)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What tells layers apart beside the numbers in weight and bias."""

    tokens: int
    dim: int
    dtype: str
    scale: float
    softcap: float | None


def facts_of(layer: OutputLayer) -> Facts:
    """Those of a layer."""
    return Facts(tokens=layer.vocab_size, dim=layer.dim, dtype=layer.dtype, scale=layer.scale, softcap=layer.softcap)


def differences(built: Facts, bias: NDArray[np.float32], now: OutputLayer) -> list[str]:
    """Where a layer differs from the one built for, which had these facts and this bias; not its weights' numbers."""
    found = facts_of(now)
    lines = [
        f"{name}: {was} in the decoder, {is_now} in the model"
        for name, was, is_now in (
            ("tokens", built.tokens, found.tokens),
            ("components of a state", built.dim, found.dim),
            ("dtype", built.dtype, found.dtype),
            ("scale", built.scale, found.scale),
            ("soft-cap", built.softcap, found.softcap),
        )
        if was != is_now
    ]
    if bias.shape == now.bias.shape and not np.array_equal(bias, now.bias):
        lines.append("bias: not the same numbers in the decoder and in the model")
    return lines


def _manifest(folder: Path) -> Manifest:
    try:
        manifest = read_manifest(folder)
    except UnknownIndexError:
        raise UnknownDecoderError(folder) from None
    except CorruptIndexError as error:
        raise CorruptDecoderError(path=error.path, expected=str(error.expected), found=str(error.found)) from None
    if manifest.preview != _KIND:
        raise UnknownDecoderError(folder)
    return manifest


def _verify(path: Path, entry: FileEntry) -> None:
    digest = xxhash.xxh3_64()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    if digest.hexdigest() != entry.xxh3:
        raise CorruptDecoderError(path=path, expected=f"xxh3 {entry.xxh3}", found=f"xxh3 {digest.hexdigest()}")


def _report(folder: Path) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return report
