"""Pure scheduling decisions: the contents of each microbatch, memory, routing, the layer split.

It does no I/O, reads no clock, environment or random source, and imports no asyncio, grpc, torch or
metrics. Start reading at `scheduler.py`; `batching/batcher.py` makes one step, and
`policies/interface.py` is the interface of a batching policy.
"""

from scheduler.cost_model.feedback import SentStep, StageRecord, StepWork
from scheduler.cost_model.pipeline_model import StageEstimate
from scheduler.cost_model.roofline_priors import guess_costs
from scheduler.cost_model.stage_costs import StageCostModel
from scheduler.limits import SchedulerLimits
from scheduler.observability.snapshot import (
    BubbleSeconds,
    DecisionCounts,
    EfficiencyRatios,
    PolicySnapshot,
)
from scheduler.observability.stall_detector import NO_PROGRESS, Activity, Alarm, Watchdog
from scheduler.policies import POLICY_NAMES, FixedPolicy, PolicyName, PolicyOptions, make_policy
from scheduler.policies.interface import Policy
from scheduler.routing.layer_split import Plan, StagePlan, check_layers, make_plan, split_layers
from scheduler.routing.replica_router import (
    PrefixMemory,
    ReplicaLoad,
    choose_replica,
    make_load,
    work_of,
)
from scheduler.scheduler import Scheduler
from scheduler.sequences.sequence import ScoreEvent, SequenceRequest, TokenEvent
from scheduler.sequences.waiting_queue import QueueForecast

__all__ = [
    "NO_PROGRESS",
    "POLICY_NAMES",
    "Activity",
    "Alarm",
    "BubbleSeconds",
    "DecisionCounts",
    "EfficiencyRatios",
    "FixedPolicy",
    "Plan",
    "Policy",
    "PolicyName",
    "PolicyOptions",
    "PolicySnapshot",
    "PrefixMemory",
    "QueueForecast",
    "ReplicaLoad",
    "Scheduler",
    "SchedulerLimits",
    "ScoreEvent",
    "SentStep",
    "SequenceRequest",
    "StageCostModel",
    "StageEstimate",
    "StagePlan",
    "StageRecord",
    "StepWork",
    "TokenEvent",
    "Watchdog",
    "check_layers",
    "choose_replica",
    "guess_costs",
    "make_load",
    "make_plan",
    "make_policy",
    "split_layers",
    "work_of",
]
