// Curves: memory over time, beside the timeline's window; numbers of steps. A panel each.

const CURVE = 92;

// @panel: {title, x, y, step: drawn as steps, text(y), color}; @range: () => [from, to] of x
function makeCurve(canvas, panel, range, xText) {
  const finite = panel.y.filter((v) => v !== null);
  const low = panel.zero ? 0 : finite.reduce((a, b) => Math.min(a, b), Infinity);
  const high = finite.reduce((a, b) => Math.max(a, b), -Infinity);
  const span = high > low ? high - low : Math.abs(high) || 1;
  const width = () => canvas.clientWidth || 1000;
  let marked = NONE;
  const yOf = (v) => CURVE - 20 - ((v - low) / span) * (CURVE - 34);
  const xOf = (v) => {
    const [from, to] = range();
    return LEFT + ((v - from) / (to - from || 1)) * (width() - LEFT - 8);
  };

  function draw() {
    const pen = openCanvas(canvas, width(), CURVE);
    const [from, to] = range();
    pen.fillStyle = themeColour("--text");
    pen.fillText(panel.title, 4, CURVE / 2 - 8);
    pen.fillStyle = themeColour("--soft");
    pen.textAlign = "right";
    pen.fillText(panel.text(high), LEFT - 8, yOf(high));
    if (high > low) pen.fillText(panel.text(low), LEFT - 8, yOf(low));
    pen.textAlign = "center";
    for (const at of tics(from, to, width() - LEFT, 130)) if (xOf(at) < width() - 30) pen.fillText(xText(at), xOf(at), CURVE - 8);
    pen.textAlign = "left";
    pen.strokeStyle = themeColour("--line");
    pen.strokeRect(LEFT, 8, width() - LEFT - 8, CURVE - 26);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, width() - LEFT - 8, CURVE);
    pen.clip();
    pen.strokeStyle = panel.colour;
    pen.lineWidth = 1.4;
    pen.beginPath();
    let open = false;
    for (let i = 0; i < panel.x.length; i++) {
      if (panel.y[i] === null) {
        open = false;
        continue;
      }
      const x = xOf(panel.x[i]);
      const y = yOf(panel.y[i]);
      if (!open) pen.moveTo(x, y);
      else if (panel.step) {
        pen.lineTo(x, yOf(panel.y[i - 1]));
        pen.lineTo(x, y);
      } else pen.lineTo(x, y);
      open = true;
    }
    pen.stroke();
    if (finite.length === 1) pen.fillRect(xOf(panel.x[panel.y.indexOf(finite[0])]) - 2, yOf(finite[0]) - 2, 4, 4);
    if (marked !== NONE && panel.y[marked] !== null) {
      pen.fillStyle = themeColour("--text");
      pen.fillRect(xOf(panel.x[marked]) - 3, yOf(panel.y[marked]) - 3, 6, 6);
    }
    pen.restore();
  }

  const tell = () => `${panel.title}: ${panel.y[marked] === null ? "-" : panel.text(panel.y[marked])} at ${xText(panel.x[marked])}`;
  // The last point at or before it.
  function mark(x) {
    marked = 0;
    for (let low_ = 0, high_ = panel.x.length; low_ < high_;) {
      const middle = (low_ + high_) >> 1;
      if (panel.x[middle] <= x) {
        marked = middle;
        low_ = middle + 1;
      } else high_ = middle;
    }
  }
  canvas.addEventListener("pointermove", (event) => {
    const [from, to] = range();
    const share = (event.clientX - canvas.getBoundingClientRect().left - LEFT) / (width() - LEFT - 8);
    mark(from + share * (to - from));
    draw();
    showTip(tell(), event);
  });
  canvas.addEventListener("pointerleave", () => {
    marked = NONE;
    hideTip();
    draw();
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    marked = Math.min(Math.max(marked + step, 0), panel.x.length - 1);
    canvas.setAttribute("aria-label", tell());
    const box = canvas.getBoundingClientRect();
    showTip(tell(), { clientX: xOf(panel.x[marked]) + box.left, clientY: box.top + CURVE / 2 });
    draw();
    event.preventDefault();
  });
  canvas.addEventListener("blur", hideTip);
  return later(draw);
}

function addCurve(section, panel, range, xText) {
  const holder = document.createElement("div");
  const canvas = document.createElement("canvas");
  holder.className = "curve";
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", panel.title);
  holder.append(canvas);
  section.append(holder);
  return makeCurve(canvas, panel, range, xText);
}
