"""The policies that the replay compares: one file each, one interface (base.py)."""
