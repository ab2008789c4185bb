"""Public data sheet figures of accelerators, to test on measured pairs what datasheets alone can tell.

Only the backtest reads this table. A forecast for a job takes its facts from the job and knows no device by name.
"""

from __future__ import annotations

from tula_core.models.hardware.transfer import Device

# Peak TFLOP/s of dense 16-bit matrix units, and memory bandwidth in GB/s, as the vendor's data sheets have them.
_FIGURES = {
    "V100": (125.0, 900.0),
    "A100-SXM": (312.0, 1800.0),  # between the boards of 40 and of 80 GB
    "A100-PCIe": (312.0, 1745.0),  # likewise
    "A30": (165.0, 933.0),
    "A40": (149.7, 696.0),
    "A10G": (70.0, 600.0),
    "H100-SXM": (989.0, 3350.0),
    "H100-PCIe": (756.0, 2000.0),
    "H200": (989.0, 4800.0),
    "L4": (121.0, 300.0),
    "L40": (181.0, 864.0),
    "L40S": (362.0, 864.0),
    "RTX4090": (165.2, 1008.0),
}

DEVICES = {
    name: Device(flops_per_s=tera * 1e12, memory_bytes_per_s=giga * 1e9) for name, (tera, giga) in _FIGURES.items()
}
"""Rates of accelerators by the labels of the measured data."""
