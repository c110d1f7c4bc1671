// Rates between two snapshots of the state.

/** Rates per second since `before`; null without an earlier snapshot or after a restart. */
export function rates(now, before) {
  if (!before || before.coordinator_id !== now.coordinator_id) return null;
  const elapsed = now.uptime_seconds - before.uptime_seconds;
  if (elapsed <= 0) return null;
  const earlier = new Map(before.replicas.map((replica) => [replica.replica, replica]));
  let tokens = 0;
  const replicas = new Map();
  for (const replica of now.replicas) {
    const old = earlier.get(replica.replica);
    if (!old) continue;
    tokens += replica.num_generated_tokens - old.num_generated_tokens;
    if (replica.epoch.counter === old.epoch.counter && replica.stages.length === old.stages.length) {
      replicas.set(replica.replica, replica.stages.map((stage, i) => stageRates(stage, old.stages[i], elapsed)));
    }
  }
  return { tokens: tokens / elapsed, replicas };
}

function stageRates(now, before, elapsed) {
  const steps = now.num_steps - before.num_steps;
  const compute = now.compute_seconds - before.compute_seconds;
  const idle = now.idle_seconds - before.idle_seconds;
  return {
    steps: steps / elapsed,
    // A running step has not reported yet: a stage without reports counts as idle.
    busy: compute + idle > 0 ? compute / (compute + idle) : 0,
    stepSeconds: steps > 0 ? compute / steps : 0,
    sentBytes: (now.num_bytes_sent - before.num_bytes_sent) / elapsed,
    sendSeconds: steps > 0 ? (now.send_seconds - before.send_seconds) / steps : 0,
  };
}
