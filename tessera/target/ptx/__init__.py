"""Kernels as PTX text."""
