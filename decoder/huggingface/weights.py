"""The output layer that a model holds, and whether it is still the one that its decoder was built for.

head_of      the module that is a model's output layer, if it is one that can be answered
layer_of     its weight and bias, and what the model does to its output, as an OutputLayer over the model's own memory
LiveLayer    compares them with what the decoder was built for

What is caught when. At each step, in microseconds: another parameter, moved or reallocated memory, another shape or dtype,
and every edit that torch counts (optimisers, copy_, load_state_dict, `weight[7] *= 3` under no_grad). At each generation's
first step, by reading all weights (milliseconds for 100 MB): everything, edits through `weight.data` included, which torch
does not count, and a replaced or wrapped module. An edit through `.data` in the middle of a generation shows at the next.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder.errors import BadWeightsError, DecoderOptionsError, StaleDecoderError
from decoder.head import OpenDecoder
from decoder.huggingface.rows import AfterHead
from decoder.output_layer import OutputLayer
from decoder.readers.folder import scale_of, softcap_of
from decoder.store import differences, facts_of
from decoder.tensors import widened

DEVICE_ROWS = 4096
PROBED = 8.0
"""How many rounding errors of the model's dtype its logits may differ from what its configuration says."""


def head_of(model: Any) -> Any:
    """The module that is the model's output layer. DecoderOptionsError where it is none that can be answered."""
    torch = sys.modules["torch"]
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    what = _refused(head, torch)
    if what:
        raise DecoderOptionsError(
            f"the output layer of {type(model).__name__} is {what}, needed a plain torch.nn.Linear with weights in memory. "
            "Attach to the model itself, before adapters, quantisation or offloading wrap its layers."
        )
    return head


def _refused(head: Any, torch: Any) -> str:
    """What is wrong with an output layer, or nothing."""
    if head is None:
        return "not there"
    if type(head).forward is not torch.nn.Linear.forward or head._parameters.get("weight") is None:
        return f"a {type(head).__name__}"
    if "forward" in head.__dict__:
        return f"a {type(head).__name__} whose forward was replaced"
    if head.weight.device.type == "meta":
        return "without memory (on the meta device)"
    return "" if head.weight.is_floating_point() else f"of dtype {head.weight.dtype}"


def after_head(model: Any) -> AfterHead:
    """What the model does to its head's output, by its configuration."""
    configuration = model.config.to_dict()
    configuration |= {
        name: value
        for name, value in model.config.get_text_config(decoder=True).to_dict().items()
        if value is not None or name not in configuration
    }
    where = Path(type(model).__name__)
    bias = getattr(model, "final_logits_bias", None)
    return AfterHead(
        scale=scale_of(configuration, where),
        softcap=softcap_of(configuration, where),
        bias=None if bias is None else bias.detach().reshape(-1).float(),
    )


def layer_of(model: Any, head: Any, *, vocab_size: int | None = None) -> OutputLayer:
    """The model's output layer over its own memory, where dtype, device and strides allow."""
    after = after_head(model)
    # Of a model with fewer rows than a decoder has tokens, all are read: its hash then tells that it is another one.
    if vocab_size is not None:
        vocab_size = min(vocab_size, head.weight.shape[0])
    return OutputLayer(
        head.weight.detach().cpu(),
        _bias_of(head, after),
        scale=after.scale,
        softcap=after.softcap,
        vocab_size=vocab_size,
    )


def is_shared(layer: OutputLayer, weight: Any) -> bool:
    """Whether the layer lies over the tensor's memory."""
    return bool(weight.device.type == "cpu" and layer.weight.ctypes.data == weight.data_ptr())


def require_as_configured(model: Any, head: Any) -> None:
    """Ask the model for one token, and raise DecoderOptionsError where its logits are not made as its configuration says."""
    torch = sys.modules["torch"]
    seen: list[Any] = []
    token = next(id for id in (1, 2) if id != model.config.get_text_config(decoder=True).pad_token_id)
    inputs = {"input_ids": torch.tensor([[min(token, head.out_features - 1)]], device=model.device)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    watching = head.register_forward_hook(lambda module, given, output: seen.append(output.detach()))
    try:
        with torch.no_grad():
            found = model(**inputs).logits
    finally:
        watching.remove()
    if len(seen) != 1:
        raise DecoderOptionsError(
            f"{type(model).__name__} asks its output layer {len(seen)} times for one token, needed once. Models with several "
            "heads cannot be attached to."
        )
    output, found = seen[0].double().flatten(), found.detach().double().flatten()
    wanted = after_head(model).applied(output) if len(output) == len(found) else None
    precision = PROBED * torch.finfo(head.weight.dtype).eps
    if wanted is None or not torch.allclose(wanted, found, rtol=precision, atol=precision * float(output.abs().max())):
        raise DecoderOptionsError(
            f"the logits of {type(model).__name__} are not what its configuration says they are: output layer, bias, scale, "
            "soft-cap. A decoder would answer for other logits, so this model cannot be attached to."
        )


class LiveLayer:
    """A model's output layer as it is now. Threads: any number; two at once may both read the weights."""

    def __init__(self, model: Any, head: Any, layer: OutputLayer, decoder: OpenDecoder) -> None:
        """layer: the model's, made now. Raises StaleDecoderError unless it is the one that the decoder was built for."""
        self.model, self.head = model, head
        self.after = after_head(model)
        self._decoder = decoder
        self._expected = decoder.parts.weights_hash
        # Rows past the decoder's tokens are padding when it is attached; those that come later are new tokens.
        self._rows = head.weight.shape[0]
        self._require(layer)
        self._keep(layer)

    @property
    def unchanged(self) -> bool:
        """Whether nothing shows that costs no reading of weights."""
        return self._facts == _facts(self._tensors())

    @property
    def padded(self) -> bool:
        """Whether rows at and beyond the decoder's tokens are padding: they were there when it was attached."""
        return bool(self._decoder.vocab_size < self._rows == self.head.weight.shape[0])

    def require_same(self) -> None:
        """Raise StaleDecoderError unless the model's output layer, read now, is the one that the decoder was built for."""
        head = self.model.get_output_embeddings()
        if head is not self.head:
            raise self._stale(f"(unknown: the output layer is another module now, {_described(head)})")
        rows = head.weight.shape[0]
        if rows != self._rows:
            raise self._stale(f"(unknown: the output layer has {rows} rows now, {self._rows} when it was attached to)")
        after = after_head(self.model)
        same_facts = self.unchanged and (after.scale, after.softcap) == (self.after.scale, self.after.softcap)
        if same_facts and self._digest is not None and self._digest == _digest(self._tensors()):
            return
        if same_facts and self._layer is not None and np.array_equal(self._layer.bias, self._bias_now(after)):
            self._require(self._layer)
            return
        try:
            layer = layer_of(self.model, head, vocab_size=self._decoder.vocab_size)
        except BadWeightsError as error:
            raise self._stale(f"(none: {error})") from error
        self._require(layer)
        self._keep(layer)

    def _bias_now(self, after: AfterHead) -> NDArray[np.float32]:
        bias, real = _bias_of(self.head, after), self._decoder.vocab_size
        return np.zeros(real, np.float32) if bias is None else bias[:real]

    def _keep(self, layer: OutputLayer) -> None:
        """This layer is the one that was built for: what shows changes of it from now on."""
        tensors = self._tensors()
        weight = self.head.weight
        self.after = after_head(self.model)
        self._facts = _facts(tensors)
        # Held, so that no other tensor can come to lie at the same address.
        self._held = [tensor.detach() for tensor in tensors]
        # A layer over other memory would show nothing of what happens to the model's: then it is made anew each time.
        self._layer = layer if is_shared(layer, weight) else None
        self._digest = None if weight.device.type == "cpu" else _digest(tensors)

    def _tensors(self) -> list[Any]:
        tensors = [self.head.weight, self.head.bias, getattr(self.model, "final_logits_bias", None)]
        return [tensor for tensor in tensors if tensor is not None]

    def _require(self, layer: OutputLayer) -> None:
        found = layer.weights_hash()
        if found != self._expected:
            built = self._decoder.layer
            raise self._stale(found, differences(facts_of(built), built.bias, layer))

    def _stale(self, found: str, different: Sequence[str] = ()) -> StaleDecoderError:
        return StaleDecoderError(expected=self._expected, found=found, differences=different)


def _described(head: Any) -> str:
    return "or none" if head is None else f"a {type(head).__name__}"


def _bias_of(head: Any, after: AfterHead) -> NDArray[np.float32] | None:
    """What is added to W h by head and model together, float32 (rows,); None for nothing."""
    parts = [part.detach().float().cpu().numpy() for part in (head.bias, after.bias) if part is not None]
    if not parts:
        return None
    return widened(parts[0] if len(parts) == 1 else parts[0] + parts[1])


def _facts(tensors: list[Any]) -> list[tuple[Any, ...]]:
    """What may be compared without reading the tensors."""
    return [
        (id(t), t.data_ptr(), -1 if t.is_inference() else t._version, tuple(t.shape), t.stride(), t.dtype)
        for t in tensors
    ]


def _digest(tensors: list[Any]) -> list[int]:
    """A checksum of each tensor, computed where it lies: sums of its bits with odd multipliers, modulo 2**64."""
    torch = sys.modules["torch"]
    sums = []
    for tensor in tensors:
        table = tensor.detach().reshape(-1, tensor.shape[-1])
        bits = table.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[table.element_size()])
        columns = _multipliers(bits.shape[1], bits.device)
        rows = _multipliers(len(bits), bits.device)
        parts = [
            ((bits[at : at + DEVICE_ROWS].long() * columns).sum(1) * rows[at : at + DEVICE_ROWS]).sum()
            for at in range(0, len(bits), DEVICE_ROWS)
        ]
        sums.append(torch.stack(parts).sum())
    return [int(total) for total in torch.stack(sums).tolist()] if sums else []


def _multipliers(n: int, device: Any) -> Any:
    """n odd numbers, int64, always the same."""
    torch = sys.modules["torch"]
    drawn = np.random.default_rng(n).integers(-(2**62), 2**62, n) * 2 + 1
    return torch.from_numpy(drawn).to(device)
