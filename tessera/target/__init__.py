"""Tessera: target."""
