"""Tessera: target/passes."""
