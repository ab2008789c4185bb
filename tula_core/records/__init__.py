"""The nouns that cross stages: frozen records, each with one versioned file format.

`Profile` is what was measured, `Plan` holds the forecast's rows and the choice, `Outcome` is what a run really did,
`Corrections` is what was learnt from history. `save` and `load` write and read each of them as JSON.
"""

from tula_core.records.candidate import QUANTITIES, Candidate, ExpectedPoint, Interval, Row, Stage
from tula_core.records.codec import from_json, load, save, to_json
from tula_core.records.corrections import Correction, Corrections
from tula_core.records.learning_rate import LearningRateTest, RateTrial
from tula_core.records.mitigation import MitigationEffect
from tula_core.records.outcome import CurvePoint, MethodChange, Outcome
from tula_core.records.plan import Plan, PlanProbe
from tula_core.records.power import PowerUse
from tula_core.records.profile import (
    CommunicationTiming,
    ContentMemory,
    DataSample,
    EvaluationTiming,
    GradientNoise,
    Hardware,
    HostMemory,
    MemoryUse,
    Pilot,
    PilotPoint,
    PrecisionTiming,
    ProbeUse,
    Profile,
    StartUp,
    StepTiming,
    WorkloadFacts,
)
from tula_core.records.what_if import WhatIf

__all__ = [
    "QUANTITIES",
    "Candidate",
    "CommunicationTiming",
    "ContentMemory",
    "Correction",
    "Corrections",
    "CurvePoint",
    "DataSample",
    "EvaluationTiming",
    "ExpectedPoint",
    "GradientNoise",
    "Hardware",
    "HostMemory",
    "Interval",
    "LearningRateTest",
    "MemoryUse",
    "MethodChange",
    "MitigationEffect",
    "Outcome",
    "Pilot",
    "PilotPoint",
    "Plan",
    "PlanProbe",
    "PowerUse",
    "PrecisionTiming",
    "ProbeUse",
    "Profile",
    "RateTrial",
    "Row",
    "Stage",
    "StartUp",
    "StepTiming",
    "WhatIf",
    "WorkloadFacts",
    "from_json",
    "load",
    "save",
    "to_json",
]
