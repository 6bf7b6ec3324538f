"""Tessera: graph/transforms."""
