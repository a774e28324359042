"""How often a model with a decoder attached chooses the token that its whole output layer chooses, and how fast it is.

    python scripts/attach_agreement.py MODEL DECODER [--calibration STATES.npy] [--recall 0.999] [--threads 1]

MODEL: a folder that transformers reads, or a GGUF file. DECODER: built there first, from the model's own output layer, where
there is none. The model writes its own greedy text after each prompt; along it, at every step, the same hidden state is given
to the decoder. Then generate() runs with the decoder attached: greedy again, and with beams. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from decoder import DecoderOptions, build_decoder, open_decoder
from decoder.huggingface import attach, detach
from decoder.huggingface.weights import head_of, layer_of
from service.text.model import _from_gguf  # from_pretrained() wants another package for it

SUBJECTS = (
    "the sea",
    "a small town",
    "bread",
    "the moon",
    "winter",
    "an old clock",
    "music",
    "rivers",
    "a garden",
    "trains",
)
OPENINGS = ("Once there was a story about {}", "The history of {} begins", "How does {} work?", "My friend told me that {}",
            "Five facts about {}:\n1.")  # fmt: skip
PROMPTS = [opening.format(subject) for subject in SUBJECTS for opening in OPENINGS]


def load(path: Path) -> tuple[Any, Any]:
    """(model in eval mode, tokenizer)."""
    if path.suffix == ".gguf":
        tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        return _from_gguf(path).eval(), tokenizer
    return transformers.AutoModelForCausalLM.from_pretrained(path).eval(), transformers.AutoTokenizer.from_pretrained(
        path
    )


def run(model: Any, prompts: list[Any], **options: Any) -> tuple[list[list[int]], float]:
    """What generate() adds to each prompt, and tokens a second."""
    texts, spent = [], 0.0
    for ids in prompts:
        begun = time.perf_counter()
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **options)
        spent += time.perf_counter() - begun
        texts.append(out[0, ids.shape[1] :].tolist())
    return texts, sum(len(text) for text in texts) / spent


def watched(model: Any, work: Callable[[], Any]) -> tuple[list[Any], Any]:
    """The hidden state of each step of `work`, and what it returns."""
    states: list[Any] = []
    head = model.get_output_embeddings()
    watching = head.register_forward_pre_hook(lambda module, given: states.append(given[0][:, -1].clone()))
    try:
        return states, work()
    finally:
        watching.remove()


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("decoder", type=Path)
    parser.add_argument("--calibration", type=Path, default=None)
    parser.add_argument("--recall", type=float, default=0.999)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--tokens", type=int, default=32)
    said = parser.parse_args()
    torch.set_num_threads(said.threads)
    model, tokenizer = load(said.model)
    if not said.decoder.exists():
        states = None if said.calibration is None else np.load(said.calibration)
        options = DecoderOptions(recall=said.recall, threads=said.threads)
        build_decoder(layer_of(model, head_of(model)), said.decoder, calibration=states, options=options)
    length = {"max_new_tokens": said.tokens}
    prompts = [tokenizer(text, return_tensors="pt").input_ids for text in PROMPTS[: said.prompts]]
    run(model, prompts[:1], **length)
    states, (texts, plain_rate) = watched(model, lambda: run(model, prompts, **length))
    chosen = [token for text in texts for token in text]
    with open_decoder(said.decoder) as decoder:
        tops = [decoder.topk(state, k=10, threads=said.threads) for state in states]
    same = sum(int(top.token_ids[0, 0]) == token for top, token in zip(tops, chosen, strict=True))
    attached = attach(model, said.decoder)
    run(model, prompts[:1], **length)
    own, rate = run(model, prompts, **length)
    beams, beam_rate = run(model, prompts[:5], num_beams=4, **length)
    answered = dict(attached.steps)
    detach(model)
    plain_beams, plain_beam_rate = run(model, prompts[:5], num_beams=4, **length)
    print(
        json.dumps(
            {
                "steps": len(chosen),
                "same_next_token": same / len(chosen),
                "texts_equal": sum(a == b for a, b in zip(own, texts)) / len(texts),
                "beam_texts_equal": sum(a == b for a, b in zip(beams, plain_beams)) / len(beams),
                "tokens_per_second": {"plain": plain_rate, "attached": rate},
                "tokens_per_second_beams": {"plain": plain_beam_rate, "attached": beam_rate},
                "modes": sorted({top.mode for top in tops}),
                "rows_scored": float(np.mean([top.rows_scored[0] for top in tops])),
                "logprob_stderr": float(np.mean([top.logprob_stderr[0] for top in tops])),
                "forward_passes": answered,
                "threads": said.threads,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
