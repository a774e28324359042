"""Fullview: the file of full vectors on the SSD, its pages, and reading them."""

from index.fullview.layout import PAGE_BYTES, PageLayout
from index.fullview.page_reader import PageReader, aligned_pages
from index.fullview.vector_file import VectorFile
from index.fullview.writer import VectorFileWriter

__all__ = ["PAGE_BYTES", "PageLayout", "PageReader", "VectorFile", "VectorFileWriter", "aligned_pages"]
