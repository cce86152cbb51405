"""Tests, laid out by what a user holds. To find a test:

cli       options, help, gates, pipes, outputs, careless use, the commands of the docs, the MCP server
python    `opanatomy.*` in Python, its tables, what it leaves of a process; the docs, the walks of the code
pages     what a report shows: terminal, formats, HTML, terms, hostile names, secrets; `browser` opens pages
traces    reading, writing, damaged and foreign files, goldens; the recordings and what makes them
rules     one rule of the analysis a file: phases, classes, owners, idle, waiting, roofline, advice ...
cost      FLOPs and bytes: formulas by hand, next to torch's counter and to observed tensors
memory    snapshots, allocators, theory, live steps, out of memory; recordings in `snapshots`, `allocator`
models    what `profile` runs: sources, batches, texts, generation, training techniques
loops     `record`, the Trainer's callback, `run` (on `scripts`), the handler, long runs, lines of code
ranks     several ranks, launchers, clusters
compare   two sides or more, and runs in turns
predict   `estimate`, `--for`, `techniques`, suggestions, GPUs that are not here
devices   CUDA, NVML, ceilings, partitions, other accelerators, by stand-ins; `gpu` is for a machine with one
support   what several of them use; `golden` is what `--update-golden` writes
"""
