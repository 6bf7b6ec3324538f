"""The namespace of the array API standard, 2024.12, written with ops of the Graph alone.

What is written so works on arrays and on tracers of any transform. Modules follow the chapters of
the standard; `operators` gives arrays their operators.
"""
