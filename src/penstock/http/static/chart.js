// Plots with uPlot, in the colours of the page. uPlot is a script of its own, and `window.uPlot` its name.

import { h } from "./dom.js";

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const COLOURS = ["--plot-1", "--plot-2", "--plot-3", "--plot-4", "--plot-5", "--plot-6"];

// series: [{label, points?: true}]; data: [[seconds…], [values…]…]; value: formats numbers of the axis and legend.
export class Chart {
  constructor(title, series, { value = (each) => (each ?? "–").toLocaleString("en"), height = 160, legend = true, whole = false } = {}) {
    this.title = title;
    this.series = series;
    this.value = value;
    this.height = height;
    this.legend = legend;
    this.whole = whole;
    this.data = null;
    this.plot = null;
    this.place = h("div", { class: "plot" });
    this.calm = h("p", { class: "calm" }, "The plot begins with the second sample.");
    this.element = h("figure", {}, h("figcaption", {}, title), this.place, this.calm);
    this.resized = new ResizeObserver(() => this.fit());
    this.resized.observe(this.place);
    this.themed = () => this.draw();
    addEventListener("themechange", this.themed);
  }

  update(data) {
    const had = this.data;
    this.data = data;
    this.calm.hidden = data[0].length > 1;
    if (this.plot && had && had.length === data.length) this.plot.setData(data);
    else this.draw();
  }

  draw() {
    this.plot?.destroy();
    this.plot = null;
    if (!this.data || this.data[0].length < 2 || !this.place.clientWidth) return;
    const axis = { stroke: colour("--calm"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    const options = {
      width: this.place.clientWidth,
      height: this.height,
      legend: { show: this.legend },
      cursor: { y: false },
      scales: { y: { range: (plot, low, high) => [Math.min(0, low ?? 0), Math.max(high ?? 0, 1) * 1.05] } },
      axes: [
        { ...axis, space: 90, size: 32, values: (plot, splits) => splits.map((each) => new Date(each * 1000).toLocaleTimeString("sv")) },
        { ...axis, size: 70, incrs: this.whole ? [1, 2, 5, 10, 20, 50, 100, 1000] : undefined, values: (plot, splits) => splits.map((each) => this.value(each)) },
      ],
      series: [{ label: "time", value: (plot, raw) => (raw === null ? "–" : new Date(raw * 1000).toLocaleTimeString("sv")) }, ...this.series.map((each, at) => this.one(each, at))],
    };
    this.plot = new window.uPlot(options, this.data, this.place);
  }

  one(series, at) {
    const stroke = colour(COLOURS[at % COLOURS.length]);
    const value = (plot, raw) => (raw === null || raw === undefined ? "–" : this.value(raw));
    if (series.points) return { label: series.label, stroke, value, paths: () => null, points: { show: true, size: 7, fill: stroke } };
    return { label: series.label, stroke, width: 2, fill: this.series.length === 1 ? `${stroke}22` : undefined, value, points: { show: false } };
  }

  fit() {
    if (!this.plot) this.draw();
    else if (this.place.clientWidth) this.plot.setSize({ width: this.place.clientWidth, height: this.height });
  }

  close() {
    this.resized.disconnect();
    removeEventListener("themechange", this.themed);
    this.plot?.destroy();
  }
}
