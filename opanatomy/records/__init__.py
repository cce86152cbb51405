"""Hold what stages hand to each other and to the user.

Units are in the names (`_ns`, `_bytes`, `flops`), integers in base units. `None` means "not known", never 0.
Imports nothing of ours outside this folder.
"""
