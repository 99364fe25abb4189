// The chat: one conversation, streamed, with its sampling controls. Texts are only ever set as text.

const byId = (id) => document.getElementById(id);
const log = byId("log");
let turns = [];
let running = null;

function show(kind, name, text) {
  const turn = document.createElement("div");
  turn.className = `turn ${kind}`;
  const title = document.createElement("b");
  title.textContent = name;
  const body = document.createElement("span");
  body.textContent = text;
  turn.append(title, body);
  log.append(turn);
  follow();
  return body;
}

function follow() {
  log.scrollTop = log.scrollHeight;
}

function note(text) {
  const line = document.createElement("p");
  line.className = "note";
  line.textContent = text;
  log.append(line);
  follow();
}

/** Return the request's body; fields that are empty are left out. */
function bodyOf(form) {
  const read = (name) => form.elements[name].value.trim();
  const body = { stream: true, return_metrics: true, stream_options: { include_usage: true } };
  for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "n", "repetition_penalty", "seed"])
    if (read(name) !== "") body[name] = Number(read(name));
  if (read("stop") !== "") body.stop = read("stop");
  const system = read("system") === "" ? [] : [{ role: "system", content: read("system") }];
  return { ...body, messages: [...system, ...turns] };
}

/** Yield the JSON of each server-sent event. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events)
      if (event.startsWith("data: ") && event !== "data: [DONE]") yield JSON.parse(event.slice(6));
  }
}

async function answer(ask, body) {
  const bodies = [];
  const place = (index) => (bodies[index] ??= show("answer", body.n > 1 ? `Answer ${index + 1}` : "Answer", ""));
  const response = await ask("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal: running.signal,
  });
  let last = {};
  for await (const event of eventsOf(response)) {
    if (event.error) throw new Error(event.error.message);
    for (const choice of event.choices) place(choice.index).append(choice.delta.content ?? choice.delta.reasoning ?? "");
    if (event.metrics) last = event;
    follow();
  }
  return { text: bodies[0]?.textContent ?? "", last };
}

function summary({ usage, metrics }) {
  const speed = metrics.tokens_per_second ? `${metrics.tokens_per_second.toFixed(1)} tokens/s` : "";
  const parts = [
    `${usage.prompt_tokens} + ${usage.completion_tokens} tokens`,
    `${metrics.cached_tokens} cached`,
    `queue ${Math.round(metrics.queue_time_ms ?? 0)} ms`,
    `first token ${Math.round(metrics.time_to_first_token_ms ?? 0)} ms`,
    speed,
  ];
  return parts.filter(Boolean).join(" · ");
}

async function send(ask, form) {
  const text = byId("prompt").value.trim();
  if (text === "" || running) return;
  log.querySelector(".hint")?.remove();
  byId("prompt").value = "";
  turns.push({ role: "user", content: text });
  show("user", "You", text);
  running = new AbortController();
  byId("send").disabled = !(byId("stop").disabled = false);
  try {
    const { text: said, last } = await answer(ask, bodyOf(form));
    turns.push({ role: "assistant", content: said });
    if (last.metrics) note(summary(last));
  } catch (error) {
    turns.pop();
    if (error.name === "AbortError") note("Stopped.");
    else show("error", "Error", error.message);
  } finally {
    running = null;
    byId("stop").disabled = !(byId("send").disabled = false);
  }
}

/** Make the form work. */
export function startChat(ask) {
  const form = byId("ask");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(ask, form);
  });
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  const stop = () => running?.abort();
  byId("stop").addEventListener("click", stop);
  document.addEventListener("keydown", (event) => event.key === "Escape" && stop());
  byId("clear").addEventListener("click", () => {
    stop();
    turns = [];
    log.replaceChildren();
    byId("prompt").focus();
  });
}
