// Runs inside a page of `roundpipe report`: does what a reader does, and writes what came of it into the
// page, a line each, for test-report-page.c. What goes wrong before is in window.problems.
(() => {
  const lines = [];
  const say = (key, value) => lines.push(key + ": " + String(value).replace(/\n/g, " | "));
  const canvas = document.querySelector("#timeline canvas");
  const view = document.querySelector("#timeline .view");
  const { timeline } = window.roundpipe;
  const send = (type, Kind, x, y, more) => {
    const box = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new Kind(type, { clientX: box.left + x, clientY: box.top + y, bubbles: true, cancelable: true, ...more }));
  };
  const key = (name) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
  const tip = document.getElementById("tip");
  const detail = document.querySelector("#timeline .detail");
  try {
    timeline.draw();
    say("boxes", canvas.dataset.boxes);
    say("tasks", timeline.state.rows.reduce((sum, r) => sum + (r.row ? r.row.end - r.row.first : 0), 0));

    // the first task of the first row that begins late enough to be hit in its middle
    const row = timeline.state.rows[0];
    let task = row.row.first;
    const share = (t) => ((row.trace.start[t] + row.trace.end[t]) / 2 - timeline.state.from) / (timeline.state.to - timeline.state.from);
    const xOf = (t) => 190 + share(t) * (view.clientWidth - 190);
    send("pointermove", PointerEvent, xOf(task), row.y + 5);
    say("hover", tip.hidden ? "nothing" : tip.textContent);
    send("pointermove", PointerEvent, 20, 5);
    say("left", tip.hidden);

    key("ArrowRight");
    say("chosen", detail.textContent);
    key("ArrowRight");
    say("next", detail.textContent);
    key("ArrowDown");
    say("below", detail.textContent);
    key("w");
    say("waited for", detail.textContent);
    const before = timeline.state.to - timeline.state.from;
    key("+");
    say("zoomed", (before / (timeline.state.to - timeline.state.from)).toFixed(3));
    send("wheel", WheelEvent, 400, 100, { deltaY: -200, ctrlKey: true });
    say("wheel", timeline.state.to - timeline.state.from < before / 1.6);
    const from = timeline.state.from;
    send("pointerdown", PointerEvent, 500, 100);
    send("pointermove", PointerEvent, 300, 100);
    send("pointerup", PointerEvent, 300, 100);
    say("dragged", timeline.state.from > from);
    key("0");
    say("whole", timeline.state.from === timeline.whole.from && timeline.state.to === timeline.whole.to);
    key("n");
    say("iteration", timeline.state.to - timeline.state.from <= timeline.whole.to - timeline.whole.from);

    let longest = 0;
    let sum = 0;
    for (let i = 0; i < 40; i++) {
      const span = (timeline.whole.to - timeline.whole.from) / 1.2 ** i;
      timeline.show(timeline.whole.from + (timeline.whole.to - timeline.whole.from - span) / 3, timeline.whole.from + (timeline.whole.to - timeline.whole.from - span) / 3 + span);
      const begin = performance.now();
      timeline.draw();
      longest = Math.max(longest, performance.now() - begin);
      sum += performance.now() - begin;
    }
    say("mean draw ms", (sum / 40).toFixed(1));
    say("longest draw ms", Math.ceil(longest));

    document.querySelector('[data-lanes="1"]').click();
    timeline.draw();
    say("rows without copies", timeline.state.rows.length);
    document.getElementById("theme").click();
    say("theme", document.documentElement.dataset.theme);
    say("curves", document.querySelectorAll(".curve canvas").length);
    const curve = document.querySelector(".curve canvas");
    if (curve) {
      curve.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true, cancelable: true }));
      say("curve", curve.getAttribute("aria-label"));
    }
  } catch (problem) {
    window.problems.push(problem.stack);
  }
  say("elements from files", document.querySelectorAll("img, iframe, object, link").length);
  lines.unshift("problems: " + (window.problems.length === 0 ? "none" : window.problems.join(" | ")));
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = lines.join("\n") + "\n";
  document.body.append(result);
})();
