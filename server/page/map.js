// The block map: one cell a block, in its owner's colour, with the number of its holders if shared.

const CHANGED_MS = 900;

/** Fit a canvas to its box and the screen's pixels; return its context, in CSS pixels. */
export function contextOf(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const size = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Return the page's colours, which differ by light and dark. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
}

export class BlockMap {
  constructor(canvas, label, hueOf) {
    Object.assign(this, { canvas, label, hueOf, now: null, kinds: [], changed: [], at: null });
    canvas.addEventListener("keydown", (event) => this.move(event));
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerdown", (event) => this.point(event));
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  show(now) {
    const kinds = now.refs.map((refs, i) => {
      const owner = now.sequences[now.owners[i]];
      return refs ? `${owner?.name}/${owner?.choice}/${refs > 1}` : `${now.cached[i]}`;
    });
    const time = performance.now();
    kinds.forEach((kind, i) => {
      if (this.kinds.length && kind !== this.kinds[i]) this.changed[i] = time;
    });
    Object.assign(this, { now, kinds });
    this.draw();
    if (this.at !== null) this.tell();
  }

  /** Cells as large as let all of them be seen at a glance. */
  layout() {
    const width = this.canvas.clientWidth;
    const count = this.now.refs.length;
    const side = Math.max(6, Math.min(26, Math.floor(Math.sqrt((width * 240) / count))));
    const columns = Math.max(1, Math.floor(width / side));
    return { side, columns, rows: Math.ceil(count / columns) };
  }

  draw() {
    if (!this.now) return;
    const { side, columns, rows } = this.layout();
    this.canvas.style.height = `${rows * side}px`;
    const context = contextOf(this.canvas, rows * side);
    const colour = colours();
    const time = performance.now();
    context.font = `600 ${Math.round(side * 0.55)}px system-ui, "DejaVu Sans", sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let i = 0; i < this.now.refs.length; i++) {
      const x = (i % columns) * side;
      const y = Math.floor(i / columns) * side;
      this.drawCell(context, colour, i, x, y, side);
      if (time - (this.changed[i] ?? -Infinity) < CHANGED_MS) this.frame(context, colour("fresh"), x, y, side, 1.5);
      if (i === this.at && document.activeElement === this.canvas)
        this.frame(context, colour("accent"), x, y, side, 3);
    }
  }

  drawCell(context, colour, i, x, y, side) {
    const { refs, cached, owners, sequences } = this.now;
    const owner = sequences[owners[i]];
    const held = owner ? `hsl(${this.hueOf(owner)} 65% ${colour("light")})` : colour("soft");
    context.fillStyle = refs[i] ? held : colour(cached[i] ? "cached" : "free");
    context.fillRect(x + 1, y + 1, side - 2, side - 2);
    if (refs[i] < 2) return;
    this.frame(context, colour("mark"), x + 2, y + 2, side - 4, 1.5);
    context.fillStyle = colour("mark");
    if (side >= 13) context.fillText(refs[i], x + side / 2, y + side / 2 + 1);
  }

  frame(context, style, x, y, side, width) {
    context.strokeStyle = style;
    context.lineWidth = width;
    context.strokeRect(x + 1, y + 1, side - 2, side - 2);
  }

  move(event) {
    if (!this.now) return;
    const { columns } = this.layout();
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    const last = this.now.refs.length - 1;
    const places = { Home: 0, End: last };
    const step = steps[event.key];
    if (step === undefined && places[event.key] === undefined) return;
    event.preventDefault();
    const next = step === undefined ? places[event.key] : this.at === null ? 0 : this.at + step;
    this.at = Math.min(last, Math.max(0, next));
    this.draw();
    this.tell();
  }

  point(event) {
    if (!this.now) return;
    const { side, columns } = this.layout();
    const column = Math.min(columns - 1, Math.floor(event.offsetX / side));
    const at = Math.floor(event.offsetY / side) * columns + column;
    if (at >= this.now.refs.length || at < 0) return;
    this.at = at;
    this.tell();
  }

  tell() {
    const { refs, cached, owners, sequences, num_blocks: total } = this.now;
    const i = Math.min(this.at, refs.length - 1);
    const owner = sequences[owners[i]];
    const kept = cached[i] ? "its prefix can be found" : "not in the prefix cache";
    const name = owner ? ` by ${owner.name}${owner.choice ? `/${owner.choice}` : ""}` : "";
    const use = refs[i] ? `held${name}, ${refs[i]} ${refs[i] > 1 ? "holders" : "holder"}` : "free";
    const text = `Block ${i + 1} of ${total}: ${use}; ${kept}.`;
    if (this.label.textContent !== text) this.label.textContent = text;
  }
}
