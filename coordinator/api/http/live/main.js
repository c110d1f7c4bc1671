// Polls the state once a second and updates the page.

import { fetchState, Unauthorized, useKey } from "./api.js";
import { startChat } from "./chat.js";
import { byId, figures } from "./dom.js";
import { pipelines } from "./pipelines.js";
import { rates } from "./rates.js";
import { schedulers } from "./schedulers.js";
import { number, seconds } from "./units.js";
import { joinCommand, recoveries, workerTiles } from "./workers.js";

const PERIOD_MS = 1000;
let last = null;

async function poll() {
  try {
    const state = await fetchState();
    show(state, rates(state, last));
    last = state;
    byId("lost").hidden = true;
    byId("login").hidden = true;
  } catch (error) {
    const isRefused = error instanceof Unauthorized;
    byId("login").hidden = !isRefused;
    byId("lost").hidden = isRefused;
    if (!isRefused) showDisconnected();
  }
  setTimeout(poll, PERIOD_MS);
}

function showDisconnected() {
  const text = last ? "Connection lost: the page shows old data. Reconnecting." : "The coordinator does not answer yet. Reconnecting.";
  if (byId("lost").textContent !== text) byId("lost").textContent = text;
}

function show(state, current) {
  document.title = `${state.model} - stagemesh`;
  byId("model").textContent = state.model;
  const phase = byId("phase");
  const text = state.ready ? "ready" : state.failure || state.phase;
  if (phase.textContent !== text) phase.textContent = text;
  phase.className = `badge ${state.ready ? "ready" : state.failure ? "failed" : "waiting"}`;
  byId("totals").replaceChildren(...figures([
    ["running", number(state.num_running)],
    ["waiting", number(state.num_waiting)],
    ["tokens/s", current ? number(current.tokens, 1) : "-"],
    ["up", seconds(state.uptime_seconds)],
  ]));
  byId("pipelines").replaceChildren(...pipelines(state, current));
  byId("workers").replaceChildren(...workerTiles(state));
  byId("schedulers").replaceChildren(...schedulers(state));
  byId("recoveries").replaceChildren(...recoveries(state));
  const { command, note } = joinCommand(state);
  if (byId("join").textContent !== command) byId("join").textContent = command;
  byId("join-note").textContent = note;
}

byId("copy").addEventListener("click", async () => {
  const command = byId("join");
  try {
    await navigator.clipboard.writeText(command.textContent);
    byId("copy").textContent = "Copied";
  } catch {
    // The clipboard needs HTTPS: without it, the text is selected for the user to copy.
    getSelection().selectAllChildren(command);
  }
});
byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value);
});
startChat(() => last?.model ?? "");
poll();
