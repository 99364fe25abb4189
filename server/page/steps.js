// The time line of steps: as wide as they took, as high as the tokens they computed (logarithmic).
import { colours, contextOf } from "./map.js";

const SPAN_S = 10;
const HEIGHT = 90;

export function drawSteps(canvas, label, now) {
  const context = contextOf(canvas, HEIGHT);
  const colour = colours();
  const width = canvas.clientWidth;
  const steps = now.steps.filter(([start, duration]) => start + duration > now.now_s - SPAN_S);
  const most = Math.max(8, ...steps.map(([, , prompt, generated]) => prompt + generated));
  const high = (tokens) => ((HEIGHT - 16) * Math.log2(1 + tokens)) / Math.log2(1 + most);
  const at = (seconds) => width * (1 - (now.now_s - seconds) / SPAN_S);
  for (const [start, duration, prompt, generated] of steps) {
    const wide = Math.max(1, (width * duration) / SPAN_S - 0.5);
    const whole = high(prompt + generated);
    const share = prompt / Math.max(1, prompt + generated);
    context.fillStyle = colour("prompt");
    context.fillRect(at(start), HEIGHT - whole, wide, whole * share);
    context.fillStyle = colour("generated");
    context.fillRect(at(start), HEIGHT - whole * (1 - share), wide, whole * (1 - share));
  }
  context.fillStyle = colour("soft");
  context.font = '11px system-ui, "DejaVu Sans", sans-serif';
  context.fillText(`last ${SPAN_S} s, up to ${most} tokens: blue prompt, orange generated`, 4, 11);
  const last = now.steps.at(-1);
  const text = last
    ? `Last step: ${(1000 * last[1]).toFixed(1)} ms, ${last[2]} prompt and ${last[3]} generated tokens.`
    : "No step yet.";
  if (label.textContent !== text) label.textContent = text;
}
