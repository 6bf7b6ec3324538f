"""Tessera: graph/ops."""
