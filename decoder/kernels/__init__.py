"""Compiled loops of the decoder, and reference.py, their slow twins."""
