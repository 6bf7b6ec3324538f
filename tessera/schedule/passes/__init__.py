"""Tessera: schedule/passes."""
