// Formats numbers with units.

/** Bytes with a binary unit. */
export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${count.toFixed(count >= 100 || unit === 0 ? 0 : 1)} ${units[unit]}`;
}

/** A duration in hours, minutes, seconds or milliseconds. */
export function seconds(count) {
  if (count >= 3600) return `${(count / 3600).toFixed(1)} h`;
  if (count >= 60) return `${(count / 60).toFixed(1)} min`;
  if (count >= 1) return `${count.toFixed(1)} s`;
  return `${(1000 * count).toFixed(count >= 0.01 ? 0 : 2)} ms`;
}

/** A number with thousands separators. */
export function number(count, digits = 0) {
  return count.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
