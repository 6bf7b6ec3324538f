"""Tessera: graph."""
