// The chat box: one conversation, one answer at a time, which can be stopped.

import { chat } from "./api.js";
import { byId, element } from "./dom.js";

/** Attaches the form's handlers; `model` returns the name of the served model. */
export function startChat(model) {
  const messages = [];
  let running = null;
  byId("halt").addEventListener("click", () => running?.abort());
  byId("question").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      byId("ask").requestSubmit();
    }
  });
  byId("ask").addEventListener("submit", async (event) => {
    event.preventDefault();
    const content = byId("question").value.trim();
    if (!content || running) return;
    byId("question").value = "";
    messages.push({ role: "user", content });
    addBubble("user", content);
    running = new AbortController();
    setRunning(true);
    await answer(model(), messages, running.signal);
    running = null;
    setRunning(false);
  });
}

async function answer(model, messages, signal) {
  const bubble = addBubble("assistant", "");
  try {
    for await (const text of chat(model, messages, signal)) {
      bubble.append(text);
      scrollToEnd();
    }
  } catch (error) {
    if (!signal.aborted) addBubble("error", error.message || "the API requires an API key");
  }
  if (bubble.textContent) messages.push({ role: "assistant", content: bubble.textContent });
  else {
    bubble.remove();
    messages.pop();
  }
}

function addBubble(role, text) {
  const bubble = element("p", `bubble ${role}`, text);
  byId("conversation").append(bubble);
  scrollToEnd();
  return bubble;
}

function scrollToEnd() {
  const log = byId("conversation");
  log.scrollTop = log.scrollHeight;
}

function setRunning(isRunning) {
  byId("send").hidden = isRunning;
  byId("halt").hidden = !isRunning;
}
