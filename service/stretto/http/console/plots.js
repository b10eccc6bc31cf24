// Reads /metrics once a second and draws four plots of it, by hand, as SVG.

import { change, parsed, reading } from "./metrics.js";

const POINTS_MAX = 120;
const READ_MILLISECONDS = 1000;
// Quantiles and means of one second alone would be gone before they are seen.
const WINDOW_READINGS = 5;
const WIDTH = POINTS_MAX - 1;
const HEIGHT = 40;
const SVG = "http://www.w3.org/2000/svg";

// One figure: lines over the last readings, with the newest known value of each in words.
class Plot {
  #lines;
  #scale = document.createElement("span");
  #format;

  constructor(figure, names, format) {
    this.#format = format;
    const svg = figure.querySelector("svg");
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute("preserveAspectRatio", "none");
    const key = document.createElement("ul");
    this.#lines = names.map((name, at) => {
      const path = svg.appendChild(document.createElementNS(SVG, "path"));
      path.setAttribute("class", `line${at}`);
      const item = key.appendChild(document.createElement("li"));
      item.className = `line${at}`;
      const value = document.createElement("b");
      value.textContent = "–";
      item.append(name, value);
      return { path, value, points: [] };
    });
    this.#scale.className = "scale";
    figure.querySelector("figcaption").append(this.#scale);
    figure.append(key);
    this.add(names.map(() => null));
  }

  add(values) {
    values.forEach((value, at) => {
      const { points, value: shown } = this.#lines[at];
      points.push(value);
      if (points.length > POINTS_MAX) points.shift();
      if (value !== null) shown.textContent = this.#format(value);
    });
    const highest = Math.max(...this.#lines.flatMap(({ points }) => points));
    const top = highest > 0 ? rounded(highest) : 1;
    this.#scale.textContent = highest > 0 ? `0 – ${this.#format(top)}` : "";
    for (const { path, points } of this.#lines) path.setAttribute("d", drawn(points, top));
  }
}

// The next higher 1, 2 or 5 times a power of ten.
function rounded(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value) * power;
}

function drawn(points, top) {
  const from = POINTS_MAX - points.length;
  return points
    .map((value, at) => {
      if (value === null) return "";
      // A point without neighbours still shows: a line of no length has round ends.
      const isFirst = at === 0 || points[at - 1] === null;
      const y = HEIGHT - 1 - (value / top) * (HEIGHT - 2);
      const place = `${from + at} ${y.toFixed(2)}`;
      return isFirst ? `M${place}L${place}` : `L${place}`;
    })
    .join("");
}

const rate = (value) => value.toFixed(value < 10 ? 1 : 0);
const duration = (seconds) =>
  seconds < 1 ? `${+(seconds * 1000).toPrecision(2)} ms` : `${+seconds.toPrecision(2)} s`;

// The four plots, drawn while the page is seen. `eventLag` returns the longest lag of an event to
// this page since it was asked before, or null.
export class Plots {
  #readings = [];
  #plots;
  #problem;
  #eventLag;
  #isReading = false;

  constructor(place, problem, eventLag) {
    const figure = (name) => place.querySelector(`[data-plot=${name}]`);
    this.#problem = problem;
    this.#eventLag = eventLag;
    this.#plots = {
      rate: new Plot(figure("rate"), ["answered", "written"], rate),
      latency: new Plot(figure("latency"), ["p50", "p99"], duration),
      batch: new Plot(figure("batch"), ["mean"], rate),
      lag: new Plot(figure("lag"), ["to this page", "bus, webhook"], duration),
    };
    setInterval(() => this.#turn(), READ_MILLISECONDS);
  }

  async #turn() {
    if (document.hidden || this.#isReading) return;
    this.#isReading = true;
    try {
      const response = await fetch("metrics", { cache: "no-store" });
      if (!response.ok) throw new Error(`answered ${response.status}`);
      this.#add(reading(parsed(await response.text()), performance.now() / 1000));
      this.#problem.textContent = "";
    } catch (error) {
      this.#problem.textContent = `It cannot be read: ${error.message}`;
    } finally {
      this.#isReading = false;
    }
  }

  #add(newest) {
    this.#readings.push(newest);
    if (this.#readings.length > WINDOW_READINGS + 1) this.#readings.shift();
    const last = this.#readings.at(-2);
    if (!last) return;
    const now = change(last, newest);
    const lately = change(this.#readings[0], newest);
    this.#plots.rate.add([now?.answered ?? null, now?.wrote ?? null]);
    this.#plots.latency.add([lately?.p50 ?? null, lately?.p99 ?? null]);
    this.#plots.batch.add([lately?.batch ?? null]);
    this.#plots.lag.add([this.#eventLag(), newest.lagSeconds]);
  }
}
