// Starts the two halves of the page: the chat, and the view of the engine.
import { startChat } from "./chat.js";
import { startEngine } from "./engine.js";

const state = document.getElementById("state");

/** Ask the server, with the key if one was typed in; rejects with the server's own words. */
async function ask(path, options = {}) {
  const key = document.getElementById("key").value.trim();
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  const response = await fetch(path, { ...options, headers });
  if (!response.ok) {
    if (response.status === 401) document.getElementById("key-box").open = true;
    const body = await response.json().catch(() => null);
    throw new Error(body?.error?.message ?? `${response.status} ${response.statusText}`);
  }
  return response;
}

/** Say how the connection is: "good", "bad" or neither. */
function tell(text, kind = "") {
  if (state.textContent !== text) state.textContent = text;
  state.className = kind;
}

async function nameModel() {
  const models = await (await ask("/v1/models")).json();
  document.getElementById("model").textContent = `${models.data[0].id}, up to ${models.data[0].max_model_len} tokens`;
}

const named = () => nameModel().catch((error) => tell(error.message, "bad"));
document.getElementById("key").addEventListener("change", named);
startChat(ask);
startEngine(ask, tell);
named();
