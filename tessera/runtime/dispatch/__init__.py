"""Calling programs by native code alone; `signatures` describes it."""
