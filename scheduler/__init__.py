"""Pure decisions of one replica: what runs in each microbatch, who gets memory, how layers split.

Owns the `Scheduler` state machine, its policies and the layer placement. It never does I/O, reads a
clock, an environment or a random source, and imports no asyncio, grpc, torch or metrics. Start
reading at scheduler.py; batching.py makes one step, policy.py is what a policy sees and answers.
"""

from scheduler.cost_model.feedback import SentStep, StageRecord, StepWork
from scheduler.cost_model.pipeline_model import StageEstimate
from scheduler.cost_model.roofline_priors import guess_costs
from scheduler.cost_model.stage_costs import StageCostModel
from scheduler.limits import SchedulerLimits
from scheduler.observability.queue_forecast import QueueForecast
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
