// The graph of the replicas: coordinator, stages and the links between them, with their load.

import { element, figures, meter } from "./dom.js";
import { bytes, number, seconds } from "./units.js";

const IDLE = { steps: 0, busy: 0, stepSeconds: 0, sentBytes: 0, sendSeconds: 0 };

/** One row of stages for each replica. */
export function pipelines(state, current) {
  const workers = new Map(state.workers.map((worker) => [worker.hello.worker_id, worker]));
  if (state.replicas.length === 0) return [element("p", "note", state.failure || state.phase)];
  return state.replicas.map((replica) => {
    const rates = current?.replicas.get(replica.replica) ?? [];
    return element("article", "replica", [
      title(replica),
      element("dl", "figures", figures(load(replica))),
      memory(replica),
      element("ol", "pipeline", path(replica, rates, workers)),
    ]);
  });
}

function title({ replica, serving, phase }) {
  return element("div", "title", [
    element("h3", "", `Replica ${replica}`),
    element("span", `badge ${serving ? "serving" : "waiting"}`, phase),
  ]);
}

function load(replica) {
  return [
    ["waiting", number(replica.num_waiting)],
    ["epoch", number(replica.epoch.counter)],
    ["sequences", `${replica.num_slots_used} of ${replica.max_sequences}`],
    ["steps in flight", number(replica.num_steps_in_flight)],
    ["steps", number(replica.num_steps)],
  ];
}

function memory(replica) {
  const { num_kv_blocks_used: used, num_kv_blocks: all } = replica;
  return element("div", "labelled", [
    element("span", "", `KV blocks ${number(used)} of ${number(all)}`),
    meter(all ? used / all : 0, `KV blocks of replica ${replica.replica} in use`),
  ]);
}

function path(replica, rates, workers) {
  const nodes = [element("li", "node coordinator", "coordinator")];
  replica.stages.forEach((stage, index) => {
    const rate = rates[index] ?? IDLE;
    nodes.push(index === 0 ? link(rate.steps, "steps") : hop(rates[index - 1] ?? IDLE));
    nodes.push(stageNode(stage, rate, workers));
  });
  return nodes;
}

function stageNode(stage, rate, workers) {
  const last = stage.first_layer + stage.num_layers - 1;
  const loading = stage.load_done_bytes < stage.load_total_bytes;
  return element("li", "node stage", [
    element("strong", "", `Stage ${stage.stage}`),
    element("span", "note", `layers ${stage.first_layer}-${last}`),
    loading
      ? meter(stage.load_done_bytes / stage.load_total_bytes, `Loading of stage ${stage.stage}`)
      : meter(rate.busy, `Stage ${stage.stage} busy`),
    element("span", "figure", loading
      ? `loading ${bytes(stage.load_done_bytes)} of ${bytes(stage.load_total_bytes)}`
      : `${Math.round(100 * rate.busy)}% busy, ${rate.stepSeconds ? seconds(rate.stepSeconds) : "-"} a step`),
    element("ul", "ranks", stage.ranks.map((rank) => rankLine(rank, stage, workers))),
  ]);
}

// A rank may have no worker yet, and its worker may have left.
function rankLine({ rank, worker_id: id, weights_bytes: weights }, { ranks }, workers) {
  const name = id ? workers.get(id)?.hello.address ?? "left" : "no worker yet";
  const place = ranks.length > 1 ? `rank ${rank}: ` : "";
  return element("li", "note", `${place}${name}${weights ? `, ${bytes(weights)}` : ""}`);
}

function hop(rate) {
  const time = rate.sendSeconds ? `, ${seconds(rate.sendSeconds)}` : "";
  return link(rate.steps, rate.sentBytes ? `${bytes(rate.sentBytes)}/s${time}` : "idle");
}

// The more steps per second, the thicker the line.
function link(steps, label) {
  const line = element("span", steps > 0 ? "line busy" : "line", [], { "aria-hidden": "true" });
  line.style.setProperty("--weight", `${1 + Math.min(5, Math.log2(1 + steps))}px`);
  const text = label === "steps" ? `${number(steps, steps < 10 ? 1 : 0)} steps/s` : label;
  return element("li", "link", [line, element("span", "figure", text)]);
}
