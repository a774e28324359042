"""One open decoder: the head that many requests use, the words of its tokens, the model that completions run.

ServedDecoder.open()   a folder of the registry, opened
ServedDecoder.text     the model, loaded in the background (model_loader.py) or by the first request that needs it
ServedDecoder.words    the words, read by the first request that needs them

Its folder holds `head/`, the decoder itself, and `words.json` where the words of its tokens are known.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from index.errors import MissingExtraError, VectorIndexError
from service.catalogue import DecoderRecord
from service.decoder_words import read_words
from service.errors import MalformedError, NotFoundError, UnreadableModelError
from service.folders import remove_folder
from service.import_paths import resolve
from service.readers import Readers

if TYPE_CHECKING:
    from decoder.head import OpenDecoder
    from service.text.model import TextModel

log = logging.getLogger("fullview.decoders")

HEAD_FOLDER = "head"
WORDS_FILE = "words.json"

_REASON_MAX = 300
"""Characters of what a library says: transformers goes on for pages."""

DecoderOpener = Callable[[Path], "OpenDecoder"]


def open_with_decoder(path: Path) -> OpenDecoder:
    """The opener of production: decoder.open_decoder."""
    # Imported here: an import of the service must not compile or load kernels (`fullview config show`).
    from decoder import open_decoder

    return open_decoder(path)


class ServedDecoder(Readers):
    """An open decoder with a count of its users; retired, it takes its folder with it where it is told to."""

    def __init__(self, head: OpenDecoder, folder: Path, record: DecoderRecord, import_root: Path) -> None:
        super().__init__(close=lambda: self.head.close(), remove=lambda: remove_folder(self.folder))
        self.head, self.folder = head, folder
        self._record, self._import_root = record, import_root
        # Two locks: words are read in no time, and must not wait for a model.
        self._loading, self._reading = threading.Lock(), threading.Lock()
        self._text: TextModel | None = None
        self._words: Sequence[str] | None = None

    @classmethod
    def open(cls, opener: DecoderOpener, record: DecoderRecord, *, root: Path, import_root: Path) -> ServedDecoder:
        """Open the folder that a record names. Raises what the opener raises."""
        folder = root / record.folder
        return cls(opener(folder / HEAD_FOLDER), folder, record, import_root)

    @property
    def text(self) -> TextModel | None:
        """The model that completions run; None where the decoder has none. Blocks while it is loaded.

        Raises UnreadableModelError where it cannot be read now, MissingExtraError where a package is missing.
        """
        if self._text is None and self._record.serve is not None:
            with self._loading:
                if self._text is None:
                    self._text = self._load_text(self._record.serve)
        return self._text

    @property
    def name(self) -> str:
        """The decoder's."""
        return self._record.name

    @property
    def has_model(self) -> bool:
        """True where completions run a model."""
        return self._record.serve is not None

    @property
    def has_words(self) -> bool:
        """True where the words of the tokens are known."""
        return (self.folder / WORDS_FILE).exists()

    @property
    def words(self) -> Sequence[str] | None:
        """The word of each token; None where they are not known."""
        if self._words is None and self.has_words:
            with self._reading:
                if self._words is None:
                    self._words = read_words(self.folder / WORDS_FILE)
        return self._words

    def _load_text(self, serve: str) -> TextModel:
        from service.text.model import load_text_model

        log.info("decoder %s: loading the model %s", self._record.name, serve)
        try:
            return load_text_model(Path(resolve(self._import_root, serve, member="serve")))
        except MissingExtraError:
            raise
        except (MalformedError, NotFoundError, VectorIndexError, OSError, ValueError) as error:
            raise UnreadableModelError(
                f"Decoder {self._record.name!r} runs the model {serve!r}, which cannot be read as it lies there: "
                f"{self._in_a_line(error)} Mend the files, or build the decoder again with another model."
            ) from error

    def _in_a_line(self, error: Exception) -> str:
        """A library's error as others are said: paths relative to the import root, one line that ends, not too long."""
        text = str(error)
        for root in {str(self._import_root), os.path.realpath(self._import_root)}:
            text = text.replace(f"{root}/", "")
        text = " ".join(text.split())
        if len(text) > _REASON_MAX:
            text = text[:_REASON_MAX].rsplit(" ", 1)[0] + " ..."
        return text if text.endswith(".") else f"{text}."
