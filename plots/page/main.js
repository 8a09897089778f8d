// Puts the pictures into the page.

const PAGE = JSON.parse(document.getElementById("data").textContent);

function addMemory(traces, range) {
  const section = document.getElementById("memory");
  if (!section) return [];
  return traces.flatMap((trace) =>
    (trace.memory || []).filter((arena) => arena.steps > 0).map((arena) =>
      addCurve(section, {
        title: laneDevice(trace, arena.arena * PAGE.lanes_per_device).replace("CPU", "host") + (traces.length > 1 ? ", " + trace.name : ""),
        x: decodeSums(arena.time), y: decodeSums(arena.bytes), step: true, zero: true, text: bytesText, colour: "#2f8fd6",
      }, range, ticText)));
}

function addSteps() {
  const section = document.getElementById("steps");
  if (!section) return [];
  // one axis for all: a step of validation stands below the same step of training
  const first = Math.min(...PAGE.curves.map((curve) => curve.x[0]));
  const last = Math.max(...PAGE.curves.map((curve) => curve.x[curve.x.length - 1]));
  const range = () => [first, Math.max(last, first + 1)];
  return PAGE.curves.map((curve) =>
    addCurve(section, { title: curve.title, x: curve.x, y: curve.y, text: numberText, colour: "#d55e00" },
      range, (x) => "step " + numberText(x)));
}

function start() {
  const traces = PAGE.traces.map(decodeTrace);
  const section = document.getElementById("timeline");
  let curves = [];
  let timeline = null;
  if (section && traces.length > 0)
    timeline = makeTimeline(section, traces, () => curves.forEach((draw) => draw()));
  curves = addMemory(traces, () => [timeline.state.from, timeline.state.to]).concat(addSteps());
  const all = () => {
    if (timeline) timeline.redraw();
    curves.forEach((draw) => draw());
  };
  window.addEventListener("resize", () => {
    if (timeline) timeline.resize();
    all();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    all();
  });
  if (timeline) timeline.draw();
  all();
  return timeline;
}

// for scripts, as the test's
window.roundpipe = { timeline: start() };
