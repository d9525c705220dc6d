"""Logs of agents become normalised traces: one reader per log format, each a small file.

command.py   the command `import`: files -> records -> reader -> trace file
turns.py     what every reader makes: turns, and the trace line of a turn
chains.py    a turn is complete when its session's next request is seen
"""
