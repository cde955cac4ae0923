"""The headings that ``kvplan sweep --help`` shows its options under, and the defaults that it names."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from kvplan.sweeps.options import SweepOptions

MODEL_PANEL: Final = "Model and device"
SETTINGS_PANEL: Final = "Engine settings"
WORKLOAD_PANEL: Final = "Workload"
GOAL_PANEL: Final = "Goal"
SPREAD_PANEL: Final = "Several machines"
OUTPUT_PANEL: Final = "Output"

DEFAULTS: Final = {option.name: option.default for option in fields(SweepOptions)}
