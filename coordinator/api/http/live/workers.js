// The workers: a tile for each, the command that adds one, and recoveries.

import { element, figures, meter } from "./dom.js";
import { bytes, seconds } from "./units.js";

/** One tile for each worker that joined. */
export function workerTiles(state) {
  if (state.workers.length === 0) return [element("p", "note", "No worker has joined.")];
  return state.workers.map(({ hello, state: name, usage }) => {
    const status = name.replace("WORKER_STATE_", "").toLowerCase();
    return element("article", "tile", [
      element("strong", "", hello.address),
      element("span", `badge ${status}`, status),
      element("dl", "figures", figures([
        ["node", hello.node],
        ["device", hello.device.kind],
        ["memory", bytes(hello.device.memory_bytes)],
        ["pid", String(hello.pid)],
        ...sensors(usage ?? {}),
      ])),
      ...load(hello, usage ?? {}),
    ]);
  });
}

// Figures that the device does not report are absent.
function sensors({ power_watts: power, temperature_celsius: temperature }) {
  return [
    ...(power === undefined ? [] : [["power", `${Math.round(power)} W`]]),
    ...(temperature === undefined ? [] : [["temperature", `${Math.round(temperature)} °C`]]),
  ];
}

function load(hello, usage) {
  const bars = [];
  if (usage.utilization !== undefined) {
    bars.push(bar("device busy", usage.utilization, hello));
  }
  if (usage.memory_total_bytes) {
    bars.push(bar("memory used", usage.memory_used_bytes / usage.memory_total_bytes, hello));
  }
  return bars;
}

function bar(name, share, hello) {
  return element("div", "labelled", [
    element("span", "", `${name} ${Math.round(100 * share)}%`),
    meter(share, `${hello.address}: ${name}`),
  ]);
}

/** The command that adds a worker from another terminal or machine, and a note. */
export function joinCommand(state) {
  const [, host, port] = state.mesh_address.match(/^(.*):(\d+)$/) ?? [null, "", ""];
  const everywhere = ["0.0.0.0", "[::]"].includes(host);
  const local = ["127.0.0.1", "[::1]", "localhost"].includes(host);
  return {
    command: `stagemesh worker --coordinator ${everywhere ? location.hostname : host}:${port}`,
    note: local ? "This mesh accepts workers of its own machine only." : "",
  };
}

/** The last ends of epochs, newest first. */
export function recoveries(state) {
  if (state.recoveries.length === 0) return [element("li", "note", "None since the coordinator started.")];
  return state.recoveries.map((one) => {
    const time = new Date(1000 * one.ended_unix_seconds);
    return element("li", "", [
      element("time", "", time.toLocaleTimeString(), { datetime: time.toISOString() }),
      ` replica ${one.replica}, epoch ${one.epoch}: `,
      element("strong", "", one.cause.replaceAll("_", " ")),
      ", ",
      one.seconds ? `served again after ${seconds(one.seconds)}` : "not served again yet",
      element("div", "note", one.detail),
    ]);
  });
}
