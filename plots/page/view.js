// Shared by all pictures: units, words, colours of the theme, canvases of the screen's resolution.

const NONE = -1;

function timeText(ns) {
  const size = Math.abs(ns);
  if (size >= 1e10) return (ns / 1e9).toFixed(3) + " s";
  if (size >= 1e6 || ns === 0) return (ns / 1e6).toFixed(3) + " ms";
  return (ns / 1e3).toFixed(size >= 1e5 ? 1 : 3) + " µs";
}

// The same without zeros that an axis does not need.
function ticText(ns) {
  return timeText(ns).replace(/\.?0+ /, " ");
}

function bytesText(bytes) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit++;
  }
  return (unit === 0 ? bytes : bytes.toPrecision(bytes >= 1000 ? 4 : 3)) + " " + units[unit];
}

function numberText(value) {
  return Number.isInteger(value) ? String(value) : value.toPrecision(Math.abs(value) >= 1000 ? 6 : 4);
}

function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// One of three shades of a colour, 0 to 2.
function shade(colour, number) {
  const share = [0, 0.42, 0.22][number];
  const mix = (shift) => {
    const channel = (colour >> shift) & 255;
    return Math.round(channel + (255 - channel) * share);
  };
  return [mix(16), mix(8), mix(0)];
}

function inkOn([red, green, blue]) {
  return 0.299 * red + 0.587 * green + 0.114 * blue > 128 ? "#000000" : "#ffffff";
}

// Tics of an axis: [1, 2 or 5] x 10^n apart, about every @pixels.
function tics(from, to, width, pixels) {
  const rough = (to - from) / Math.max(1, width / pixels);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((k) => k * power >= rough) * power;
  const places = [];
  if (!(step > 0) || !Number.isFinite(step)) return places;
  for (let at = Math.ceil(from / step); at * step <= to; at++) places.push(at * step);
  return places;
}

// A canvas of so many pixels of the page, drawn in those of the screen.
function openCanvas(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = '12px system-ui, "DejaVu Sans", sans-serif';
  pen.textBaseline = "middle";
  return pen;
}

const tip = document.getElementById("tip");

function showTip(text, event) {
  tip.hidden = false;
  tip.textContent = text;
  const box = tip.getBoundingClientRect();
  const x = Math.min(event.clientX + 14, window.innerWidth - box.width - 8);
  const y = event.clientY + 18 + box.height > window.innerHeight ? event.clientY - box.height - 10 : event.clientY + 18;
  tip.style.left = Math.max(4, x) + "px";
  tip.style.top = Math.max(4, y) + "px";
}

function hideTip() {
  tip.hidden = true;
}

// Draws again, once, before the next picture of the screen.
function later(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}
