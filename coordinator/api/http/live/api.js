// Calls the HTTP API that serves this page, with the API key if the user entered one.

const KEY = "stagemesh-api-key";

/** Thrown when the API key is missing or not valid. */
export class Unauthorized extends Error {}

/** Stores the key until the tab is closed. */
export function useKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** The state of the mesh from `/state`; 64-bit integers, strings in protobuf's JSON, are numbers. */
export async function fetchState() {
  const response = await call("state", { signal: AbortSignal.timeout(5000) });
  return JSON.parse(await response.text(), (name, value) =>
    typeof value === "string" && /^(num|.*_bytes$|epoch$|counter$)/.test(name) ? Number(value) : value);
}

/** Yields the text of an answer as it is generated; throws the API's errors. */
export async function* chat(model, messages, signal) {
  const response = await call("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ model, messages, stream: true, max_tokens: 512, temperature: 0.3 }),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.error.message);
    const text = event.choices[0]?.delta?.content;
    if (text) yield text;
  }
  throw new Error("the connection ended before the answer was complete");
}

async function call(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
  const response = await fetch(path, { ...options, headers });
  if (response.status === 401) throw new Unauthorized();
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    throw new Error(body?.error?.message ?? `the API returned status ${response.status}`);
  }
  return response;
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}
