// Small line charts in SVG: one time axis, several lines, a reading under the pointer.
import { h, svg } from "./dom.js";

const WIDTH = 480, HEIGHT = 170, LEFT = 56, RIGHT = 8, TOP = 10, BOTTOM = 20;

// 1, 2 or 5 times a power of ten.
function niceStep(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return power * ([1, 2, 5, 10].find((factor) => factor * power >= most) ?? 10);
}

export class Chart {
  /** lines: [{label, className}]; format: a value's text */
  constructor(title, lines, format) {
    Object.assign(this, { lines, format, points: [] });
    this.plot = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
    this.readings = lines.map(() => h("b", {}, "–"));
    this.root = h("figure.chart", {}, h("figcaption", {}, title),
      h("ul.legend", {}, lines.map((line, i) => h(`li.${line.className}`, {}, line.label, " ", this.readings[i]))), this.plot);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => { this.at = null; this.draw(); });
  }

  /** values: one a line, null where there is none */
  add(seconds, values, keepSeconds) {
    this.points.push({ seconds, values });
    while (this.points[0].seconds < seconds - keepSeconds) this.points.shift();
    this.keep = keepSeconds;
    this.draw();
  }

  point(event) {
    const box = this.plot.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * WIDTH;
    const distance = (p) => Math.abs(this.x(p.seconds) - x);
    this.at = this.points.reduce((best, p) => (best === null || distance(p) < distance(best) ? p : best), null);
    this.draw();
  }

  x(seconds) {
    const last = this.points.at(-1).seconds;
    return LEFT + (WIDTH - LEFT - RIGHT) * (1 - (last - seconds) / this.keep);
  }

  draw() {
    if (!this.points.length) return;
    const values = this.points.flatMap((p) => p.values).filter((v) => v !== null);
    const most = Math.max(...values, 0) || 1;
    const step = niceStep(most / 3);
    const top = Math.ceil(most / step) * step;
    const y = (value) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top;
    const parts = [];
    for (let value = 0; value <= top + step / 2; value += step) {
      parts.push(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
                 svg("text", { class: "axis", x: LEFT - 6, y: y(value) + 3.5, "text-anchor": "end" }, this.format(value)));
    }
    for (let back = 0; back <= this.keep; back += this.keep / 5) {
      const at = this.points.at(-1).seconds - back;
      parts.push(svg("text", { class: "axis", x: this.x(at), y: HEIGHT - 5, "text-anchor": back === 0 ? "end" : back === this.keep ? "start" : "middle" },
                     back ? `−${back} s` : "now"));
    }
    this.lines.forEach((line, i) => {
      let path = "", pen = false;
      for (const p of this.points) {
        if (p.values[i] === null) { pen = false; continue; }
        path += `${pen ? "L" : "M"}${this.x(p.seconds).toFixed(1)} ${y(p.values[i]).toFixed(1)}`;
        pen = true;
      }
      parts.push(svg("path", { class: `line ${line.className}`, d: path || "M0 0" }));
    });
    const shown = this.at && this.points.includes(this.at) ? this.at : this.points.at(-1);
    if (shown === this.at) parts.push(svg("line", { class: "cursor", x1: this.x(shown.seconds), x2: this.x(shown.seconds), y1: TOP, y2: HEIGHT - BOTTOM }));
    this.readings.forEach((reading, i) => { reading.textContent = shown.values[i] === null ? "–" : this.format(shown.values[i]); });
    this.plot.replaceChildren(...parts);
  }
}
