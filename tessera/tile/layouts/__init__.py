"""Tessera: layouts of tiles in registers and in memory."""
