// The view of the engine: asks four times a second while the page is seen, and draws what it hears.
import { BlockMap } from "./map.js";
import { drawSteps } from "./steps.js";

const PERIOD_MS = 250;
const WINDOW_S = 2; // over which tokens per second are taken
const byId = (id) => document.getElementById(id);
const history = [];

/** The colour of a sequence: hues far apart for neighbours, the same as long as it lives. */
const hues = new Map();
function hueOf(sequence) {
  const key = `${sequence.name}/${sequence.choice}`;
  if (!hues.has(key)) hues.set(key, (hues.size * 137.508) % 360);
  return hues.get(key);
}

function ratesOf(now) {
  history.push(now);
  while (now.now_s - history[0].now_s > WINDOW_S) history.shift();
  const first = history[0];
  const seconds = now.now_s - first.now_s;
  const rate = (name) => (seconds > 0 ? (now.counts[name] - first.counts[name]) / seconds : 0);
  return { generated: rate("generated_tokens"), prompt: rate("prompt_tokens") };
}

function tilesOf(now) {
  const { counts } = now;
  const rates = ratesOf(now);
  const percent = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(0)} %` : "–");
  return {
    Running: counts.running,
    Waiting: counts.waiting,
    "Tokens/s": rates.generated.toFixed(1),
    "Prompt tokens/s": rates.prompt.toFixed(1),
    "Blocks held": `${counts.used_blocks} / ${now.num_blocks}`,
    "Prefix hits": percent(counts.prefix_hits, counts.prefix_queries),
    Evictions: counts.evictions,
    Copies: counts.copies,
    Preemptions: counts.preemptions,
  };
}

function showTiles(tiles) {
  const list = byId("tiles");
  for (const [name, value] of Object.entries(tiles)) {
    let field = list.querySelector(`[data-name="${name}"]`);
    if (!field) {
      const box = document.createElement("div");
      const title = document.createElement("dt");
      field = document.createElement("dd");
      title.textContent = name;
      field.dataset.name = name;
      box.append(title, field);
      list.append(box);
    }
    field.textContent = value;
  }
}

function rowOf(sequence) {
  const row = document.createElement("tr");
  const texts = [
    `${sequence.name}${sequence.choice ? `/${sequence.choice}` : ""}`,
    sequence.preemptions ? `${sequence.status} (${sequence.preemptions}×)` : sequence.status,
    sequence.computed < sequence.prompt ? `${sequence.computed} of ${sequence.prompt}` : sequence.prompt,
    sequence.cached,
    sequence.output,
    sequence.blocks,
  ];
  for (const text of texts) row.insertCell().textContent = text;
  const swatch = document.createElement("i");
  swatch.style.background = `hsl(${hueOf(sequence)} 65% var(--light))`;
  row.cells[0].prepend(swatch);
  return row;
}

/** Ask for ever; slower while the server does not answer, not at all while nobody looks. */
export async function startEngine(ask, tell) {
  const map = new BlockMap(byId("map"), byId("cell"), hueOf);
  for (;;) {
    const start = performance.now();
    let pause = PERIOD_MS;
    try {
      if (!document.hidden) {
        const now = await (await ask("/v1/engine/blocks")).json();
        showTiles(tilesOf(now));
        map.show(now);
        drawSteps(byId("steps"), byId("step"), now);
        byId("sequences").replaceChildren(...now.sequences.map(rowOf));
        tell("live", "good");
      }
    } catch (error) {
      history.length = 0;
      tell(error.message, "bad");
      pause = 2000;
    }
    const taken = performance.now() - start;
    await new Promise((resolve) => setTimeout(resolve, Math.max(50, pause - taken)));
  }
}
