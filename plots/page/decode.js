// The numbers of a page: columns of whole numbers, each a base64 text of varints (seven bits a byte, the
// lowest first), zigzag: 0, -1, 1, -2 ... Larger than 2^31 they are made without bit operations.

function decodeNumbers(text) {
  const bytes = atob(text);
  const numbers = [];
  for (let i = 0; i < bytes.length;) {
    let value = 0;
    let weight = 1;
    let byte;
    do {
      byte = bytes.charCodeAt(i++);
      value += (byte & 127) * weight;
      weight *= 128;
    } while (byte > 127);
    numbers.push(value % 2 === 0 ? value / 2 : -(value + 1) / 2);
  }
  return numbers;
}

// Sums from the first on: what was stored are differences.
function decodeSums(text) {
  const numbers = decodeNumbers(text);
  for (let i = 1; i < numbers.length; i++) numbers[i] += numbers[i - 1];
  return numbers;
}

// A trace: its tasks lie lane by lane, within a lane in the order of time. Of each task `gate` is the task
// that it waited for, and `pair` the same task of the other trace; -1: none. A recording has names of kernels instead
// (`label`), kinds of its own, and none of what else a task has.
function decodeTrace(stored) {
  const n = stored.tasks;
  const trace = Object.assign({}, stored, {
    start: new Float64Array(n), end: new Float64Array(n), lane: new Uint32Array(n),
    gate: new Int32Array(n), pair: new Int32Array(n), rows: [],
  });
  const columns = {};
  for (const key of ["gap", "duration"]) columns[key] = decodeNumbers(stored[key]);
  columns.gate = stored.gate ? decodeNumbers(stored.gate) : new Uint8Array(n);
  columns.pair = stored.pair ? decodeSums(stored.pair) : null;
  for (const key of ["kind", "stage", "micro_batch", "iteration", "round", "layer", "chunk", "bytes"])
    trace[key] = stored[key] ? decodeSums(stored[key]) : new Int8Array(n).fill(-1);
  if (stored.work) trace.kind = decodeNumbers(stored.work);
  if (stored.label) trace.label = decodeNumbers(stored.label);
  if (stored.count) trace.count = decodeNumbers(stored.count);
  let task = 0;
  stored.lanes.forEach(([lane, count]) => {
    const row = { lane, first: task, end: task + count, busy: new Float64Array(count + 1) };
    let before = 0;
    let duration = 0;
    for (let k = 0; k < count; k++, task++) {
      duration += columns.duration[task];
      trace.lane[task] = lane;
      trace.start[task] = before + columns.gap[task];
      before = trace.end[task] = trace.start[task] + duration;
      trace.gate[task] = columns.gate[task] === 0 ? -1 : task - columns.gate[task];
      trace.pair[task] = columns.pair ? columns.pair[task] - 1 : -1;
      row.busy[k + 1] = row.busy[k] + duration;
    }
    trace.rows.push(row);
  });
  return trace;
}
