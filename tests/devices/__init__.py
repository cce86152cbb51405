"""Devices, most by stand-ins: CUDA and NVML, ceilings, partitions, other accelerators; the checks of a real GPU."""
