// The timeline: a row for each lane, of two traces one above the other. Only what is in sight is drawn;
// tasks of less than a pixel are drawn as the share of the pixel that they fill, so that the picture takes
// as long as it is wide, however many tasks there are.

const LEFT = 190;
const AXIS = 22;
const ROW = 18;
const GAP = 5;

function makeTimeline(section, traces, onView) {
  const view = section.querySelector(".view");
  const canvas = section.querySelector("canvas");
  const tall = section.querySelector(".tall");
  const detail = section.querySelector(".detail");
  const whole = {
    from: Math.min(0, ...traces.map((t) => t.rows.reduce((least, r) => Math.min(least, t.start[r.first]), 0))),
    to: Math.max(1, ...traces.map((t) => t.rows.reduce((most, r) => Math.max(most, t.end[r.end - 1]), 0))),
  };
  const state = { from: whole.from, to: whole.to, chosen: null, drag: null, boxes: 0, rows: [], kinds: [true, true, true] };
  const width = () => view.clientWidth || 1000;
  const xOf = (ns) => LEFT + ((ns - state.from) / (state.to - state.from)) * (width() - LEFT);
  const nsOf = (x) => state.from + ((x - LEFT) / (width() - LEFT)) * (state.to - state.from);

  // 0: compute, 1: copies, 2: the host
  const group = (trace, lane) => {
    const kind = laneKind(trace, lane);
    return kind === 0 ? 0 : kind < PAGE.lanes_per_device ? 1 : 2;
  };

  function layOut() {
    const lanes = [...new Set(traces.flatMap((t) => t.rows.map((r) => r.lane)))].sort((a, b) => a - b);
    let y = AXIS;
    state.rows = [];
    for (const lane of lanes) {
      const some = traces.some((t) => t.rows.some((r) => r.lane === lane) && state.kinds[group(t, lane)]);
      if (!some) continue;
      for (const trace of traces) {
        const row = trace.rows.find((r) => r.lane === lane);
        state.rows.push({ trace, lane, y, row, titled: trace === traces[0] });
        y += ROW;
      }
      y += GAP;
    }
    state.height = y;
    tall.style.height = y + "px";
    view.style.height = Math.min(y, 0.75 * window.innerHeight) + "px";
  }

  // First task of a row that ends behind @ns.
  function firstAt(trace, row, ns) {
    let low = row.first;
    let high = row.end;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (trace.end[middle] <= ns) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  const colours = PAGE.kinds.map((kind) => [0, 1, 2].map((number) => {
    const colour = shade(kind.colour, number);
    return { fill: `rgb(${colour.join()})`, ink: inkOn(colour) };
  }));
  const colourOf = (trace, task) => {
    const stage = trace.stage[task];
    const number = trace.names ? trace.label[task] : stage !== NONE ? stage + Math.floor(stage / 4) : Math.max(0, trace.layer[task]);
    return colours[trace.kind[task]][number % 3];
  };

  function drawBox(pen, trace, task, x, y, w) {
    const colour = colourOf(trace, task);
    pen.fillStyle = colour.fill;
    pen.fillRect(x, y, w > 4 ? w - 0.6 : w, ROW - 2);
    const label = boxText(trace, task, Math.floor((w - 4) / 7));
    if (label === "") return;
    pen.fillStyle = colour.ink;
    pen.fillText(label, Math.max(x, LEFT) + 3, y + ROW / 2 - 1);
  }

  // The boxes of a row that are in sight.
  function drawRow(pen, { trace, row }, y) {
    const pixel = (state.to - state.from) / (width() - LEFT);
    let task = firstAt(trace, row, state.from);
    while (task < row.end && trace.start[task] < state.to) {
      const duration = trace.end[task] - trace.start[task];
      if (duration >= pixel) {
        const x = Math.max(xOf(trace.start[task]), LEFT);
        drawBox(pen, trace, task, x, y, xOf(trace.end[task]) - x);
        state.boxes++;
        task++;
        continue;
      }
      const next = Math.max(task + 1, firstAt(trace, row, trace.start[task] + pixel));
      const share = (row.busy[next - row.first] - row.busy[task - row.first]) / pixel;
      pen.globalAlpha = Math.min(1, Math.max(0.15, share));
      pen.fillStyle = colourOf(trace, task).fill;
      pen.fillRect(Math.max(xOf(trace.start[task]), LEFT), y, 1, ROW - 2);
      pen.globalAlpha = 1;
      state.boxes++;
      task = next;
    }
  }

  function drawAxis(pen) {
    pen.fillStyle = themeColour("--back");
    pen.fillRect(0, 0, width(), AXIS);
    pen.fillStyle = themeColour("--soft");
    pen.textAlign = "center";
    for (const at of tics(state.from, state.to, width() - LEFT, 130)) {
      const x = xOf(at);
      pen.fillRect(x, AXIS - 5, 1, 5);
      if (x < width() - 40) pen.fillText(ticText(at), x, AXIS / 2 - 2);
    }
    pen.textAlign = "left";
  }

  // The chosen task, framed, and a line from what it waits for.
  function drawChosen(pen, top) {
    if (state.chosen === null) return;
    const { trace, task } = state.chosen;
    const at = (t) => state.rows.find((r) => r.trace === trace && r.lane === trace.lane[t]);
    const own = at(task);
    if (!own) return;
    const y = own.y - top;
    pen.strokeStyle = themeColour("--text");
    pen.lineWidth = 2;
    const x = Math.max(xOf(trace.start[task]), LEFT);
    pen.strokeRect(x, y, Math.max(2, xOf(trace.end[task]) - x), ROW - 2);
    const gate = trace.gate[task];
    const other = gate === NONE ? undefined : at(gate);
    if (!other) return;
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.moveTo(Math.max(LEFT, xOf(trace.end[gate])), other.y - top + ROW / 2);
    pen.lineTo(x, y + ROW / 2);
    pen.stroke();
  }

  function draw() {
    const height = view.clientHeight || 400;
    const top = view.scrollTop;
    const pen = openCanvas(canvas, width(), height);
    const ink = themeColour("--text");
    const soft = themeColour("--soft");
    state.boxes = 0;
    for (const row of state.rows) {
      const y = row.y - top;
      if (y + ROW < AXIS || y > height) continue;
      if (row.row) drawRow(pen, row, y);
      pen.clearRect(0, y, LEFT, ROW + GAP);
      pen.fillStyle = ink;
      if (row.titled) pen.fillText(laneText(row.trace, row.lane), 4, y + ROW / 2 - 1);
      pen.fillStyle = soft;
      if (traces.length > 1 && !row.titled) pen.fillText(row.trace.name, 16, y + ROW / 2 - 1);
    }
    drawChosen(pen, top);
    drawAxis(pen);
    canvas.dataset.boxes = state.boxes;
  }
  const redraw = later(draw);

  function show(from, to) {
    const least = 1000;
    const span = Math.min(Math.max(to - from, least), whole.to - whole.from);
    const begin = Math.min(Math.max(from, whole.from), whole.to - span);
    state.from = begin;
    state.to = begin + span;
    redraw();
    onView(state.from, state.to);
  }

  function zoom(factor, around) {
    show(around - (around - state.from) / factor, around + (state.to - around) / factor);
  }

  function choose(chosen, tell) {
    state.chosen = chosen;
    const other = chosen === null ? undefined : traces.find((t) => t !== chosen.trace);
    if (tell) detail.textContent = chosen === null ? "" : describe(chosen.trace, other, chosen.task);
    redraw();
    return chosen === null ? "" : describe(chosen.trace, other, chosen.task);
  }

  // Chosen by keys: into sight.
  function goTo(trace, task) {
    const span = state.to - state.from;
    if (trace.start[task] < state.from || trace.end[task] > state.to) {
      const middle = (trace.start[task] + trace.end[task]) / 2;
      show(middle - span / 2, middle + span / 2);
    }
    const row = state.rows.find((r) => r.trace === trace && r.lane === trace.lane[task]);
    if (row && row.y - AXIS < view.scrollTop) view.scrollTop = row.y - AXIS;
    if (row && row.y + ROW > view.scrollTop + view.clientHeight) view.scrollTop = row.y + ROW - view.clientHeight;
    choose({ trace, task }, true);
  }

  function taskAt(event) {
    const box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top + view.scrollTop;
    const row = state.rows.find((r) => y >= r.y && y < r.y + ROW);
    if (!row || !row.row || x < LEFT) return null;
    const slack = (2 * (state.to - state.from)) / (width() - LEFT);
    const task = firstAt(row.trace, row.row, nsOf(x));
    return task < row.row.end && row.trace.start[task] <= nsOf(x) + slack ? { trace: row.trace, task } : null;
  }

  // The task of another row that is there at the same time, or nearest before.
  function moveRow(step) {
    const { trace, task } = state.chosen;
    const rows = state.rows.filter((r) => r.row);
    const at = rows.findIndex((r) => r.trace === trace && r.lane === trace.lane[task]) + step;
    if (at < 0 || at >= rows.length) return;
    goTo(rows[at].trace, Math.min(firstAt(rows[at].trace, rows[at].row, trace.start[task]), rows[at].row.end - 1));
  }

  function moveTask(step) {
    const { trace, task } = state.chosen;
    const row = trace.rows.find((r) => r.lane === trace.lane[task]);
    if (task + step >= row.first && task + step < row.end) goTo(trace, task + step);
  }

  function showIteration(step) {
    const trace = traces[0];
    const middle = state.chosen ? state.chosen.trace.iteration[state.chosen.task] : showIteration.last === undefined ? NONE : showIteration.last;
    const wanted = Math.max(0, middle + step);
    let from = Infinity;
    let to = -Infinity;
    for (let task = 0; task < trace.tasks; task++)
      if (trace.iteration[task] === wanted && PAGE.kinds[trace.kind[task]].action) {
        from = Math.min(from, trace.start[task]);
        to = Math.max(to, trace.end[task]);
      }
    if (from > to) return;
    showIteration.last = wanted;
    state.chosen = null;
    show(from, to);
  }

  const middle = () => (state.chosen ? state.chosen.trace.start[state.chosen.task] : (state.from + state.to) / 2);
  const pan = (share) => show(state.from + share * (state.to - state.from), state.to + share * (state.to - state.from));
  const waitedFor = () => {
    const { trace, task } = state.chosen;
    if (trace.gate[task] !== NONE) goTo(trace, trace.gate[task]);
  };
  const needsChosen = { ArrowLeft: () => moveTask(-1), ArrowRight: () => moveTask(1), ArrowUp: () => moveRow(-1),
    ArrowDown: () => moveRow(1), w: waitedFor, Enter: () => {
      const { trace, task } = state.chosen;
      const span = trace.end[task] - trace.start[task];
      show(trace.start[task] - 2 * span, trace.end[task] + 2 * span);
    } };
  const keys = { "+": () => zoom(1.5, middle()), "=": () => zoom(1.5, middle()), "-": () => zoom(1 / 1.5, middle()),
    0: () => show(whole.from, whole.to), Home: () => show(whole.from, whole.to), PageUp: () => pan(-0.5), PageDown: () => pan(0.5),
    n: () => showIteration(1), p: () => showIteration(-1), Escape: () => choose(null, true) };

  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (Object.hasOwn(needsChosen, event.key)) {
      if (state.chosen === null) {
        const row = state.rows.find((r) => r.row);
        if (row) goTo(row.trace, Math.min(firstAt(row.trace, row.row, state.from), row.row.end - 1));
      } else needsChosen[event.key]();
    } else if (Object.hasOwn(keys, event.key)) keys[event.key]();
    else return;
    event.preventDefault();
  });
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(-0.0025 * event.deltaY), nsOf(event.clientX - canvas.getBoundingClientRect().left));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / width());
    else return;
    event.preventDefault();
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    state.drag = { x: event.clientX, from: state.from, to: state.to, moved: false };
    if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (state.drag !== null) {
      const by = ((state.drag.x - event.clientX) / (width() - LEFT)) * (state.drag.to - state.drag.from);
      if (Math.abs(state.drag.x - event.clientX) > 3) state.drag.moved = true;
      if (state.drag.moved) show(state.drag.from + by, state.drag.to + by);
      hideTip();
      return;
    }
    const found = taskAt(event);
    const text = choose(found, false);
    if (found === null) hideTip();
    else showTip(text, event);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (state.drag !== null && !state.drag.moved) choose(taskAt(event), true);
    state.drag = null;
  });
  canvas.addEventListener("pointercancel", () => (state.drag = null));
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("dblclick", (event) => zoom(3, nsOf(event.clientX - canvas.getBoundingClientRect().left)));
  view.addEventListener("scroll", redraw);

  section.querySelectorAll("[data-key]").forEach((button) =>
    button.addEventListener("click", () => keys[button.dataset.key]()));
  section.querySelectorAll("[data-lanes]").forEach((box) =>
    box.addEventListener("change", () => {
      state.kinds[box.dataset.lanes] = box.checked;
      layOut();
      redraw();
    }));
  layOut();
  return { draw, redraw, show, state, whole, resize: () => { layOut(); redraw(); } };
}
