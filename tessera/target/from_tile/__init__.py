"""Tessera: target/from_tile."""
