"""attach(): from now on generate() asks a decoder where it asked the output layer; detach() undoes it.

attach      a model and a decoder -> Attached
Attached    what generate() did last; log-probabilities of given tokens
detach      the model as it was

Only calls of generate() are answered by the decoder, and of them only those for which candidates are enough (calls.py): each
step's row then holds the exact logits of the candidates and one constant for all other tokens, so that its log-softmax is
normalised by the estimated log Z (rows.py). Every other call, and every forward pass outside generate(), gets from the
model's own output layer what it would get without a decoder. Before a generation is answered by the decoder, the model's
weights are compared with those it was built for (weights.py): StaleDecoderError, never an answer of old weights.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decoder import option_checks as checks
from decoder.errors import DecoderError, DecoderOptionsError, StaleDecoderError
from decoder.head import OpenDecoder, open_decoder
from decoder.huggingface.calls import Call, call_for
from decoder.huggingface.rows import Best, full_rows
from decoder.huggingface.weights import LiveLayer, head_of, is_shared, layer_of, require_as_configured
from decoder.output_layer import OutputLayer
from decoder.planner import MODES
from index.errors import MissingExtraError, VectorIndexError
from index.manifest import read_manifest

CANDIDATES = 10
PLACE = "_fullview_attached"
"""Attribute of a model that holds its Attached."""


def attach(
    model: Any,
    decoder: OpenDecoder | str | os.PathLike[str],
    *,
    recall: float | None = None,
    k: int = CANDIDATES,
    mode: str = "auto",
) -> Attached:
    """Let the decoder answer for the output layer of a transformers model, causal or seq2seq, within generate().

    decoder: an open one, or the path of one: then it is opened over the model's own weights, and closed by detach().
    recall, mode: as for OpenDecoder.topk. k: the fewest candidates of a step; a call that needs more takes more.

    Raises StaleDecoderError where the model's weights are not those that the decoder was built for, and DecoderOptionsError
    for models that cannot be answered: in training mode, compiled, without a plain linear output layer.
    """
    _require_installed()
    checks.one_of("mode", mode, ("auto", *MODES))
    k = checks.whole("k", k, low=1)
    if recall is not None:
        recall = checks.number("recall", recall, low=0.0, high=1.0, above=True)
    _require_usable(model)
    if PLACE in model.__dict__:
        raise DecoderOptionsError(
            f"{type(model).__name__} has a decoder attached already. Call detach(model) before attaching another."
        )
    head = head_of(model)
    require_as_configured(model, head)
    opened, layer = _opened(model, head, decoder)
    try:
        live = LiveLayer(model, head, layer, opened)
    except BaseException:
        if opened is not decoder:
            opened.close()
        raise
    return Attached(live, opened, recall=recall, k=k, mode=mode, owned=opened is not decoder)


def detach(model: Any) -> None:
    """The model as it was before attach(). DecoderOptionsError where nothing is attached."""
    attached = getattr(model, "__dict__", {}).get(PLACE)
    if not isinstance(attached, Attached):
        raise DecoderOptionsError(f"no decoder is attached to this {type(model).__name__}: attach one first")
    attached.detach()


class Attached:
    """A model with a decoder in the place of its output layer. A context manager: detached at its end.

    Threads: generate() from any number at once, where the model itself allows it. A copy or a pickle of an attached model is
    refused, since its parts would go on asking for the original; detach first.
    """

    def __init__(
        self, live: LiveLayer, decoder: OpenDecoder, *, recall: float | None, k: int, mode: str, owned: bool
    ) -> None:
        self.model, self.decoder = live.model, decoder
        self.last: Call | None = None
        """Of the generation begun last: how many candidates a step, or why it looks at all rows."""
        self.steps = {"by_decoder": 0, "by_all_rows": 0}
        """Forward passes within generate(), by who answered them."""
        self._live, self._owned = live, owned
        self._recall, self._k, self._mode = recall, k, mode
        self._call: ContextVar[Call | _Capture | _Undecided | None] = ContextVar("call", default=None)
        self._generate = live.model.generate
        self._processors = live.model._get_logits_processor
        live.model.generate = self._generating
        live.model._get_logits_processor = self._processing
        live.head.forward = self._forward
        setattr(live.model, PLACE, self)

    def detach(self) -> None:
        """As detach(model). Does nothing the second time."""
        for owner, names in (
            (self.model, ("generate", "_get_logits_processor", PLACE)),
            (self._live.head, ("forward",)),
        ):
            for name in names:
                owner.__dict__.pop(name, None)
        if self._owned:
            self.decoder.close()

    def logprobs(self, input_ids: Any, attention_mask: Any = None, *, labels: Any = None, **inputs: Any) -> Any:
        """Exact log-probability of each token after the first, float32 tensor (batch, tokens - 1), given those before it.

        labels, for seq2seq models: the tokens (batch, tokens) whose log-probabilities are wanted, all of them. No table over
        all tokens is made. NaN stands at masked tokens, and at labels below 0. inputs: anything else for the model.
        """
        torch = sys.modules["torch"]
        self._require_attached()
        _require_usable(self.model)
        self._live.require_same()
        seq2seq = bool(self.model.config.is_encoder_decoder)
        if (labels is not None) != seq2seq:
            raise DecoderOptionsError(
                f"{type(self.model).__name__} {'needs' if seq2seq else 'takes no'} labels: the tokens to be weighed are "
                f"{'labels' if seq2seq else 'input_ids'}."
            )
        if seq2seq:
            inputs["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(labels=labels)
            wanted, real = labels, labels >= 0
        else:
            wanted = input_ids[:, 1:]
            real = torch.ones_like(wanted, dtype=torch.bool) if attention_mask is None else attention_mask[:, 1:] > 0
        if attention_mask is not None:
            inputs["attention_mask"] = attention_mask
        hidden = self._states(input_ids, inputs)[:, : wanted.shape[1]]
        out = torch.full(wanted.shape, torch.nan, device=wanted.device)
        found, _ = self.decoder.logprobs_of(
            hidden[real].cpu(), wanted[real].cpu().numpy(), threads=torch.get_num_threads()
        )
        out[real] = torch.from_numpy(found).to(out.device)
        return out

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise DecoderError(
            f"a {type(self.model).__name__} with a decoder attached cannot be copied or pickled: the copy would ask for the "
            "original's weights. Call detach(model) first, or save the model with save_pretrained()."
        )

    # --- what takes the place of the model's own ------------------------------------

    def _generating(self, *given: Any, **named: Any) -> Any:
        """generate(): which tokens a step may choose is known once the model has prepared its processors."""
        _require_usable(self.model)
        arguments = inspect.signature(self._generate).bind_partial(*given, **named).arguments
        own_loop = arguments.get("custom_generate") is not None
        self.last = Call(reason="custom_generate is not known" if own_loop else "nothing was prepared")
        undecided = _Undecided(assisted=arguments.get("assistant_model") is not None)
        before = self._call.set(self.last if own_loop else undecided)
        try:
            return self._generate(*given, **named)
        finally:
            self._call.reset(before)

    def _processing(self, *given: Any, **named: Any) -> Any:
        """_get_logits_processor(): the last thing that generate() prepares."""
        processors = self._processors(*given, **named)
        undecided = self._call.get()
        if isinstance(undecided, _Undecided):
            configuration = named["generation_config"] if "generation_config" in named else given[0]
            self.last = self._decided(configuration, processors, assisted=undecided.assisted)
            if self.last.by_decoder:
                self._live.require_same()
                # Where a static cache would have it compiled; the configuration is this call's own.
                configuration.disable_compile = True
            self._call.set(self.last)
        return processors

    def _decided(self, configuration: Any, processors: Any, *, assisted: bool) -> Call:
        head = self._live.head
        if head._forward_hooks or head.__dict__.get("forward") != self._forward:
            return Call(reason="something else changes what the output layer puts out")
        return call_for(configuration, processors, assisted=assisted, k=self._k, vocab_size=self.decoder.vocab_size)

    def _forward(self, hidden: Any) -> Any:
        """The output layer's forward."""
        torch = sys.modules["torch"]
        if torch.compiler.is_compiling():
            raise DecoderOptionsError(
                "the model is being compiled, but a decoder runs outside of torch's graphs. Call detach(model) first."
            )
        call, head = self._call.get(), self._live.head
        if isinstance(call, _Capture):
            call.states.append(hidden.detach())
            return hidden.new_empty((*hidden.shape[:-2], 0, head.out_features))
        if not isinstance(call, Call):
            return torch.nn.Linear.forward(head, hidden)
        if call.last_only and hidden.ndim == 3:
            hidden = hidden[:, -1:]
        self.steps["by_decoder" if call.by_decoder else "by_all_rows"] += 1
        if call.by_decoder:
            return self._by_decoder(hidden, call.candidates)
        rows = torch.nn.Linear.forward(head, hidden)
        if self._live.padded:
            rows[..., self.decoder.vocab_size :] = -torch.inf
        return rows

    def _by_decoder(self, hidden: Any, candidates: int) -> Any:
        """Rows float32 (..., all tokens) of states (..., d)."""
        live = self._live
        if not live.unchanged:
            live.require_same()
        states = hidden.detach().reshape(-1, hidden.shape[-1])
        threads = sys.modules["torch"].get_num_threads()
        top = self.decoder.topk(states, k=candidates, mode=self._mode, recall=self._recall, threads=threads)
        out = full_rows(Best.of(top), live.after, vocab_size=self.decoder.vocab_size, rows=live.head.out_features)
        return out.reshape(*hidden.shape[:-1], -1)

    # --- inside -------------------------------------------------------------------

    def _states(self, input_ids: Any, inputs: dict[str, Any]) -> Any:
        """What reaches the output layer, (batch, tokens, d), without its being asked."""
        torch = sys.modules["torch"]
        capture = _Capture()
        before = self._call.set(capture)
        try:
            with torch.no_grad():
                self.model(input_ids=input_ids, **inputs)
        finally:
            self._call.reset(before)
        if len(capture.states) != 1:
            raise StaleDecoderError(
                expected=self.decoder.parts.weights_hash, found="(unknown: the output layer is another module now)"
            )
        return capture.states[0]

    def _require_attached(self) -> None:
        if self.model.__dict__.get(PLACE) is not self:
            raise DecoderOptionsError("this decoder was detached from its model. Attach it again.")


@dataclass(slots=True)
class _Capture:
    """Stands for a call that wants the states themselves."""

    states: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Undecided:
    """Stands for a generation that has not prepared its processors yet."""

    assisted: bool


def _require_installed() -> None:
    for package in ("torch", "transformers"):
        try:
            importlib.import_module(package)
        except ImportError as missing:
            raise MissingExtraError(package=package, extra="hf", purpose="attaching a decoder to a model") from missing


def _require_usable(model: Any) -> None:
    """DecoderOptionsError for what no decoder can answer, now."""
    name = type(model).__name__
    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
        raise DecoderOptionsError(
            f"{name} is compiled, but a decoder runs outside of torch's graphs. Attach to the model before torch.compile() "
            "and leave it uncompiled, or detach(model)."
        )
    if not (hasattr(model, "generate") and hasattr(model, "_get_logits_processor") and hasattr(model, "config")):
        raise DecoderOptionsError(
            f"{name} is no transformers model that generates text, needed one for causal or seq2seq language modelling. "
            "Of a wrapper, such as an adapter's, give the model inside."
        )
    if model.training:
        raise DecoderOptionsError(
            f"{name} is in training mode, where weights and states are about to change. Call model.eval() first."
        )


def _opened(model: Any, head: Any, decoder: OpenDecoder | str | os.PathLike[str]) -> tuple[OpenDecoder, OutputLayer]:
    """An open decoder, and the model's own layer. Of a path: over the model's memory, where the layer lies there."""
    if isinstance(decoder, OpenDecoder):
        return decoder, layer_of(model, head, vocab_size=decoder.vocab_size)
    folder = Path(decoder)
    try:
        vocab_size = read_manifest(folder, sizes=False).n
    except VectorIndexError:
        open_decoder(folder).close()  # says what is wrong in the decoder's own words
        raise
    layer = layer_of(model, head, vocab_size=vocab_size)
    if not is_shared(layer, head.weight):
        return open_decoder(folder), layer
    try:
        return open_decoder(folder, layer=layer), layer
    except StaleDecoderError:
        return open_decoder(folder), layer  # LiveLayer raises it again, and says where the two differ
