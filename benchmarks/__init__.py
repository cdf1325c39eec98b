"""How fast tensorpost is beside what else there is, in one run on this machine: `python -m benchmarks --help`.

Absolute figures say more about the machine than about the program. So whatever is compared is called in turn within one
run, each side is asked for the same work, and what it gives back is compared with what must come back.
"""
