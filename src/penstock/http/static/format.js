// Formats numbers, times and bytes for people.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const NOTHING = "–";

export function number(value) {
  return value === null || value === undefined ? NOTHING : Number(value).toLocaleString("en");
}

export function bytes(value) {
  if (value === null || value === undefined || value < 0) return NOTHING;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? value.toFixed(1) : value} ${UNITS[unit]}`;
}

export function rate(value) {
  return value === null || value === undefined ? NOTHING : `${number(Math.round(value))}/s`;
}

export function byteRate(value) {
  return value === null || value === undefined ? NOTHING : `${bytes(Math.round(value))}/s`;
}

export function time(ms) {
  if (ms === null || ms === undefined || ms < 0) return NOTHING;
  const at = new Date(ms);
  return `${at.toLocaleDateString("sv")} ${at.toLocaleTimeString("sv")}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return NOTHING;
  const seconds = ms / 1000;
  if (seconds < 1) return `${Math.round(ms)} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export function list(values) {
  return (values || []).join(", ") || NOTHING;
}

export function plural(count, word) {
  return `${number(count)} ${word}${count === 1 ? "" : "s"}`;
}
