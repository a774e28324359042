"""Adapters to other people's programs. Each needs that program; nothing else in service/ imports them."""
