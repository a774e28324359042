"""The fast graph decoder: top-K next tokens without the full softmax.

    layer = OutputLayer.load("model_folder")
    build_decoder(layer, "head.decoder", calibration=states)
    with open_decoder("head.decoder") as head:
        top = head.topk(hidden, k=10)

Open first: head.py, then walk.py and kernels/walk.py; build.py for how a decoder comes to be.
"""

from decoder.answers import Sampled, TopK
from decoder.build import build_decoder
from decoder.constraints import Constraints
from decoder.errors import (
    BadHiddenError,
    BadWeightsError,
    ConstraintError,
    CorruptDecoderError,
    DecoderClosedError,
    DecoderError,
    DecoderOptionsError,
    StaleDecoderError,
    UnknownDecoderError,
)
from decoder.exact import exact_logits, exact_topk
from decoder.head import OpenDecoder, open_decoder
from decoder.options import DecoderOptions
from decoder.output_layer import OutputLayer
from decoder.report import DecoderReport
from decoder.sampling import SamplingOptions

__all__ = [
    "BadHiddenError",
    "BadWeightsError",
    "ConstraintError",
    "Constraints",
    "CorruptDecoderError",
    "DecoderClosedError",
    "DecoderError",
    "DecoderOptions",
    "DecoderOptionsError",
    "DecoderReport",
    "OpenDecoder",
    "OutputLayer",
    "Sampled",
    "SamplingOptions",
    "StaleDecoderError",
    "TopK",
    "UnknownDecoderError",
    "build_decoder",
    "exact_logits",
    "exact_topk",
    "open_decoder",
]
