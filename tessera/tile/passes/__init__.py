"""Tessera: tile/passes."""
