"""The batching policies, one per file, all implementing `Policy`, and their factory."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from scheduler.policies.adaptive.policy import AdaptiveOptions, AdaptivePolicy
from scheduler.policies.fixed import FixedPolicy, VllmPolicy
from scheduler.policies.interface import Policy
from scheduler.policies.multiplicative import MultiplicativeOptions, MultiplicativePolicy
from scheduler.policies.throttle import ThrottleOptions, ThrottlePolicy

PolicyName = Literal["fixed", "multiplicative", "vllm", "throttle", "adaptive"]
POLICY_NAMES: tuple[PolicyName, ...] = get_args(PolicyName)


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """The options of all policies; each policy uses its own.

    `max_step_tokens` is the budget of `fixed` and `vllm`.
    """

    max_step_tokens: int = 512
    multiplicative: MultiplicativeOptions = field(default_factory=MultiplicativeOptions)
    throttle: ThrottleOptions = field(default_factory=ThrottleOptions)
    adaptive: AdaptiveOptions = field(default_factory=AdaptiveOptions)


def make_policy(name: PolicyName, options: PolicyOptions) -> Policy:
    """A new policy of that name, for one replica."""
    match name:
        case "fixed":
            return FixedPolicy(options.max_step_tokens)
        case "multiplicative":
            return MultiplicativePolicy(options.multiplicative)
        case "vllm":
            return VllmPolicy(options.max_step_tokens)
        case "throttle":
            return ThrottlePolicy(options.throttle)
        case "adaptive":
            return AdaptivePolicy(options.adaptive, options.throttle)


__all__ = [
    "POLICY_NAMES",
    "AdaptiveOptions",
    "AdaptivePolicy",
    "FixedPolicy",
    "MultiplicativeOptions",
    "MultiplicativePolicy",
    "PolicyName",
    "PolicyOptions",
    "ThrottleOptions",
    "ThrottlePolicy",
    "VllmPolicy",
    "make_policy",
]
