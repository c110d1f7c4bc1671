// The batching policies: their targets, their results and the causes of idle time.

import { element, figures, meter } from "./dom.js";
import { number, seconds } from "./units.js";

const CAUSES = ["starved", "fill", "imbalance", "exposed_send", "coordinator"];
const LIMITS = ["throughput", "occupancy", "tpot", "ttft"];

/** One card for each replica. */
export function schedulers(state) {
  if (state.replicas.length === 0) return [element("p", "note", "No replica yet.")];
  return state.replicas.map((replica) => {
    const { scheduler } = replica;
    return element("article", "replica scheduler", [
      element("h3", "", `Replica ${replica.replica}: ${scheduler?.policy || "no policy yet"}`),
      ...(scheduler?.policy ? view(replica, scheduler) : []),
    ]);
  });
}

function view(replica, scheduler) {
  return [
    element("dl", "figures", figures([
      ["microbatches", `${replica.num_steps_in_flight} of ${scheduler.steps_in_flight_target}`],
      ["target", target(scheduler)],
      ["planned", measured(scheduler.planned_seconds)],
      ["actual", measured(scheduler.actual_seconds)],
      ["predictions", predictions(scheduler)],
    ])),
    element("div", "bars", [...limits(replica, scheduler), ...bubbles(replica, scheduler)]),
  ];
}

function target({ target_tokens: tokens, target_seconds: time }) {
  const parts = [tokens ? `${number(tokens)} tokens` : "", time ? seconds(time) : ""];
  return parts.filter(Boolean).join(", ") || "-";
}

function measured(time) {
  return time ? seconds(time) : "-";
}

function predictions({ stages, error, warmup, fallback }) {
  if (!stages?.length) return "none";
  const trust = fallback ? "fallback" : warmup ? "warming up" : "trusted";
  return `${trust}, off by ${Math.round(100 * error)}%`;
}

function limits(replica, { ratios }) {
  return LIMITS.filter((name) => ratios?.[name]).map((name) =>
    bar(`${name} of the upper bound`, ratios[name], replica));
}

// Shares of the epoch's idle time.
function bubbles(replica, { bubbles: idle }) {
  const total = CAUSES.reduce((sum, cause) => sum + (idle?.[cause] ?? 0), 0);
  if (!total) return [];
  return CAUSES.map((cause) => bar(`idle: ${cause.replace("_", " ")}`, idle[cause] / total, replica));
}

function bar(name, share, replica) {
  return element("div", "labelled", [
    element("span", "", `${name} ${Math.round(100 * share)}%`),
    meter(share, `${name}, replica ${replica.replica}`),
  ]);
}
