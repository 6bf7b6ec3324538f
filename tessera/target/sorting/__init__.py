"""Sorts of rows of words, as code of a program."""
