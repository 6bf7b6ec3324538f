"""Tessera: target/llvm."""
