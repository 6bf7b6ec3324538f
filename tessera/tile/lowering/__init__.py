"""The parts of the lowering from Schedule IR; `tile/from_schedule.py` puts them together."""
