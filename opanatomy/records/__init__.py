"""Define the records that stages exchange and users receive.

Units are in the names (`_ns`, `_bytes`, `flops`), integers in base units. `None` means unknown, never 0. These modules
import nothing from opanatomy outside this folder.
"""
