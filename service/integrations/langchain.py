"""A vector store for LangChain: documents in a collection, with the ids that they were given.

FullviewVectorStore   from_texts(), add_texts(), similarity_search...(), max_marginal_relevance_search...(), delete(),
                      get_by_ids(); the async forms are LangChain's, which run these in threads

Unlike langchain-qdrant, which works with a server of ours too, it takes any string for an id and gives documents back as they
came. Filters are Qdrant's, over `metadata.` paths. Needs langchain-core (`pip install langchain-core`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from service.integrations.connection import Connection, RequestFailedError, pieces

_SCORED = list[tuple[Document, float]]


class FullviewVectorStore(VectorStore):  # type: ignore[misc]
    """Documents of one collection, which is made when the first are added. Threads: any.

    url: of the server; distance: Cosine, Dot or Euclid, where the collection is made here.
    """

    def __init__(
        self,
        embedding: Embeddings,
        *,
        url: str,
        collection: str,
        distance: str = "Cosine",
        api_key: str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self._embedding, self._collection, self._distance = embedding, collection, distance
        self._connection = Connection(url, api_key=api_key, timeout_s=timeout_s)

    @property
    def embeddings(self) -> Embeddings:
        """What texts are embedded with."""
        return self._embedding

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **options: Any,
    ) -> FullviewVectorStore:
        """A store with these texts in it; options: those of the class."""
        store = cls(embedding, **options)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Put texts in, in place of those of their ids; returns all ids, new ones where none was given."""
        texts = list(texts)
        known = [given or str(uuid.uuid4()) for given in (ids if ids is not None else [None] * len(texts))]
        described = metadatas if metadatas is not None else [{} for _ in texts]
        vectors = self._embedding.embed_documents(texts)
        points = [
            {"id": id_, "vector": vector, "payload": {"id": id_, "text": text, "metadata": metadata or {}}}
            for id_, vector, text, metadata in zip(known, vectors, texts, described, strict=True)
        ]
        for piece in pieces(points):
            self._put(piece)
        return known

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Take documents out; None: all of them. Ids that are not there are no error."""
        body: dict[str, Any] = {"filter": {}} if ids is None else {"points": list(ids)}
        self._ask("POST", "points", "delete", body=body)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Documents that are there, in the order of ids."""
        return [_document(record) for record in self._ask("POST", "points", body={"ids": list(ids)}) or []]

    # --- searching ------------------------------------------------------------

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """The k nearest. filter: Qdrant's; offset, score_threshold and params go to the query as they are."""
        return [document for document, _ in self.similarity_search_with_score(query, k, **kwargs)]

    def similarity_search_with_score(self, query: str, k: int = 4, **kwargs: Any) -> _SCORED:
        """The same with scores: larger is nearer, but not for Euclid, where it is the distance."""
        return self.similarity_search_with_score_by_vector(self._embedding.embed_query(query), k, **kwargs)

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> list[Document]:
        """The k nearest to a vector."""
        return [document for document, _ in self.similarity_search_with_score_by_vector(embedding, k, **kwargs)]

    def similarity_search_with_score_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> _SCORED:
        """The same with scores."""
        return self._search({"nearest": list(embedding)}, k, kwargs)

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """k of the fetch_k nearest that are unlike each other. lambda_mult: 1 only near, 0 only unlike."""
        vector = self._embedding.embed_query(query)
        return self.max_marginal_relevance_search_by_vector(vector, k, fetch_k, lambda_mult, **kwargs)

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """The same of a vector."""
        mmr = {"diversity": 1.0 - lambda_mult, "candidates_limit": max(fetch_k, k)}
        return [document for document, _ in self._search({"nearest": list(embedding), "mmr": mmr}, k, kwargs)]

    # --- inside ---------------------------------------------------------------

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        info = self._ask("GET")
        distance = self._distance if info is None else info["config"]["params"]["vectors"]["distance"]
        if distance == "Cosine":
            return lambda score: (score + 1.0) / 2.0
        found: Callable[[float], float] = (
            self._euclidean_relevance_score_fn if distance == "Euclid" else self._max_inner_product_relevance_score_fn
        )
        return found

    def _search(self, query: dict[str, Any], k: int, options: dict[str, Any]) -> _SCORED:
        body = {"query": query, "limit": k, "with_payload": True} | options
        found = self._ask("POST", "points", "query", body=body) or {"points": []}
        return [(_document(point), point["score"]) for point in found["points"]]

    def _ask(self, method: str, *path: str, body: Any = None) -> Any:
        """The result; None where the collection is not there: it has not been made yet."""
        try:
            return self._connection.request(method, "collections", self._collection, *path, body=body)
        except RequestFailedError as error:
            if error.status == 404:
                return None
            raise

    def _put(self, points: list[dict[str, Any]]) -> None:
        if self._ask("PUT", "points", body={"points": points}) is not None:
            return
        vectors = {"size": len(points[0]["vector"]), "distance": self._distance}
        try:
            self._connection.request("PUT", "collections", self._collection, body={"vectors": vectors})
        except RequestFailedError as error:
            if error.status != 409:  # Somebody else made it in the meantime.
                raise
        self._connection.request("PUT", "collections", self._collection, "points", body={"points": points})


def _document(point: dict[str, Any]) -> Document:
    payload = point["payload"]
    return Document(id=payload["id"], page_content=payload["text"], metadata=payload["metadata"])
