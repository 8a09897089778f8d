// Tasks in words.

// "GPU 2", "CPU"; "compute".
function laneDevice(trace, lane) {
  const device = Math.floor(lane / PAGE.lanes_per_device);
  if (trace.devices) return trace.devices[device];
  return device < trace.gpus ? "GPU " + device : "CPU";
}

function laneKind(trace, lane) {
  const host = trace.gpus * PAGE.lanes_per_device;
  return lane < host ? lane % PAGE.lanes_per_device : PAGE.lanes_per_device + lane - host;
}

function laneText(trace, lane) {
  return laneDevice(trace, lane) + " " + PAGE.lane_names[laneKind(trace, lane)].replace(/-/g, " ");
}

function isOverlap(trace, task) {
  return PAGE.kinds[trace.kind[task]].name === "overlap";
}

// A box's, of at most so many letters.
function boxText(trace, task, most) {
  if (trace.names) return most > 2 ? trace.names[trace.label[task]].slice(0, most) : "";
  const stage = trace.stage[task] !== NONE ? String(trace.stage[task]) : "";
  const both = stage !== "" && trace.micro_batch[task] !== NONE ? stage + "·" + trace.micro_batch[task] : stage;
  return both.length < most ? both : stage.length < most ? stage : "";
}

// "forward of stage 3, micro-batch 5"
function taskText(trace, task) {
  if (trace.names) return trace.names[trace.label[task]] + (trace.count[task] > 1 ? `, and ${trace.count[task] - 1} beside it` : "");
  const parts = [];
  if (trace.stage[task] !== NONE) parts.push("stage " + trace.stage[task]);
  if (trace.micro_batch[task] !== NONE) parts.push("micro-batch " + trace.micro_batch[task]);
  if (isOverlap(trace, task))
    parts.push("backward of stage " + trace.layer[task], "micro-batch " + trace.chunk[task]);
  else if (trace.layer[task] !== NONE) parts.push("layer " + trace.layer[task]);
  const name = PAGE.kinds[trace.kind[task]].name.replace(/-/g, " ");
  return parts.length > 0 ? name + " of " + parts.join(", ") : name;
}

function waitText(trace, task, before) {
  const gate = trace.gate[task];
  const idle = before === NONE ? NONE : trace.start[task] - trace.end[before];
  if (trace.names) return idle === NONE ? "" : "idle for " + timeText(idle) + " before";
  const words = idle > 0 ? "lane idle for " + timeText(idle) + " before; " : "";
  if (gate === NONE) return words + "waits for nothing that the trace names";
  const where = trace.lane[gate] === trace.lane[task] ? "before it on its lane" : laneText(trace, trace.lane[gate]);
  return words + "waits for " + taskText(trace, gate) + " (" + where + ", done at " + timeText(trace.end[gate]) + ")";
}

// All of a task, a line each. @other: the other trace, or undefined
function describe(trace, other, task) {
  const row = trace.rows.find((r) => r.lane === trace.lane[task]);
  const lines = [
    taskText(trace, task) + (trace.names ? "" : ", iteration " + trace.iteration[task] + ", round " + trace.round[task]),
    laneText(trace, trace.lane[task]) + ", " + trace.name + ": " + timeText(trace.end[task] - trace.start[task]) +
      " from " + timeText(trace.start[task]) + " to " + timeText(trace.end[task]),
  ];
  if (trace.bytes[task] > 0) lines.push(bytesText(trace.bytes[task]));
  lines.push(waitText(trace, task, task > row.first ? task - 1 : NONE));
  const twin = other ? trace.pair[task] : NONE;
  if (twin !== NONE)
    lines.push(other.name + ": " + timeText(other.end[twin] - other.start[twin]) + " from " + timeText(other.start[twin]));
  return lines.join("\n");
}
