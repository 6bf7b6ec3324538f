"""Tessera: graph/passes."""
