// Small charts in SVG, tables that sort, and the tip under the mouse. Text is set as text, never as markup.

function element(make, tag, attributes, children) {
  const node = make(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}
const html = (tag, attributes, ...children) => element((name) => document.createElement(name), tag, attributes, children);
const svg = (tag, attributes, ...children) =>
  element((name) => document.createElementNS("http://www.w3.org/2000/svg", name), tag, attributes, children);

// ---- numbers ------------------------------------------------------------------------------------------------------

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
const fixed = (value, digits = 4) => (known(value) ? value.toFixed(digits).replace("-", "−") : "–");
const signed = (value, digits = 4) => (known(value) ? (value > 0 ? "+" : "") + fixed(value, digits) : "–");
const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en") : "–");
const short = (value) => {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(1).replace("-", "−");
  return String(Number(value.toPrecision(3))).replace("-", "−");
};
const seconds = (value) =>
  !known(value) ? "–" : value < 120 ? `${value.toFixed(value < 10 ? 2 : 1)} s` : value < 7200 ? `${(value / 60).toFixed(1)} min` : `${(value / 3600).toFixed(1)} h`;
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
function spread(values) {
  if (values.length < 2) return null;
  const centre = mean(values);
  return Math.sqrt(values.reduce((sum, value) => sum + (value - centre) ** 2, 0) / (values.length - 1));
}
const pvalue = (value) => (!known(value) ? "–" : value < 0.0001 ? "p < 0.0001" : `p = ${value.toFixed(4)}`);
const plural = (count, word, more = `${word}s`) => `${whole(count)} ${count === 1 ? word : more}`;
const colour = (place) => `var(--c${place % 8})`;
const dot = (place) => html("span", { class: "dot", style: `color:${colour(place)}`, "aria-hidden": "true" });

// ---- the tip ------------------------------------------------------------------------------------------------------

function tell(event, title, lines) {
  const tip = document.getElementById("tip");
  tip.replaceChildren(html("b", {}, title), ...lines.map((line) => html("span", {}, line)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, window.innerWidth - width - 8);
  const above = event.clientY - height - 14;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${above > 8 ? above : event.clientY + 18}px`;
}
const hush = () => { document.getElementById("tip").hidden = true; };

// ---- axes ---------------------------------------------------------------------------------------------------------

function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= rough) || 10);
  const found = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + 1e-9 * step; place++) found.push(place * step);
  return found;
}
function logTicks(low, high) {
  const found = [], factors = high / low > 50 ? [1] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
    for (const factor of factors) found.push(factor * 10 ** power);
  const inside = found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  return inside.filter((_, place) => place % Math.ceil(inside.length / 8) === 0);
}
function padded([low, high], share = 0.05) {
  if (!(high > low)) return [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  return [low - (high - low) * share, high + (high - low) * share];
}
const range = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
function scale([low, high], [from, to], log) {
  const at = log ? Math.log10 : (value) => value;
  const turn = (value) => from + ((at(value) - at(low)) / (at(high) - at(low))) * (to - from);
  return turn;
}

/* A plot with axes: `x` and `y` are {range, log, label, ticks}; returns the node to draw in and the two scales. */
function plot(box, { height, left = 52, right = 12, top = 10, bottom = 42, x, y, title }) {
  const width = Math.max(260, box.clientWidth || 640);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": title });
  const sx = scale(x.range, [left, width - right], x.log), sy = scale(y.range, [height - bottom, top], y.log);
  const xticks = x.ticks || (x.log ? logTicks(...x.range) : ticks(...x.range, (width - left - right) / 70));
  const yticks = y.ticks || (y.log ? logTicks(...y.range) : ticks(...y.range, height / 55));
  for (const value of yticks) {
    root.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: sy(value), y2: sy(value) }));
    root.append(svg("text", { x: left - 8, y: sy(value) + 4, "text-anchor": "end" }, (y.text || short)(value)));
  }
  for (const value of xticks) {
    root.append(svg("line", { class: "grid", x1: sx(value), x2: sx(value), y1: top, y2: height - bottom }));
    root.append(svg("text", { x: sx(value), y: height - bottom + 17, "text-anchor": "middle" }, (x.text || short)(value)));
  }
  if (x.label) root.append(svg("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, clipped(x.label, (width - left) / 6.2)));
  if (y.label) root.append(svg("text", { x: 12, y: (top + height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(top + height - bottom) / 2})` }, clipped(y.label, (height - bottom) / 6.2)));
  box.replaceChildren(root);
  return { root, sx, sy, width, height, left, right, top, bottom };
}

function follow(root, find, describe) {
  const ring = svg("circle", { r: 6, fill: "none", stroke: "var(--ink)", "stroke-width": 2, visibility: "hidden" });
  root.append(ring);
  const move = (event) => {
    const box = root.getBoundingClientRect(), found = find(event.clientX - box.left, event.clientY - box.top);
    ring.setAttribute("visibility", found ? "visible" : "hidden");
    if (!found) return hush();
    ring.setAttribute("cx", found.x);
    ring.setAttribute("cy", found.y);
    const [title, ...lines] = describe(found);
    tell(event, title, lines);
  };
  root.addEventListener("pointermove", move);
  root.addEventListener("pointerdown", move);
  root.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "touch") return; // a finger that was lifted leaves the tip, until the next tap or scroll
    ring.setAttribute("visibility", "hidden");
    hush();
  });
}
function nearest(points, x, y, reach = 28) {
  let found = null, least = reach ** 2;
  for (const point of points) {
    const away = (point.x - x) ** 2 + (point.y - y) ** 2;
    if (away < least) { least = away; found = point; }
  }
  return found;
}
/* Many dots in one path: fast for tens of thousands of queries. */
const dots = (points, stroke, size) =>
  svg("path", { d: points.map((point) => `M${point.x.toFixed(1)} ${point.y.toFixed(1)}h0`).join(""), stroke, "stroke-width": size, "stroke-linecap": "round", opacity: points.length > 3000 ? 0.35 : 0.7, fill: "none" });

// ---- charts -------------------------------------------------------------------------------------------------------

/* Lines: [{label, place, x, y}]; the nearest point is told. */
function lineChart(box, lines, { xlabel, ylabel, log, height = 320 }) {
  const shown = lines.map((line) => ({ ...line, points: line.x.map((x, i) => ({ u: x, v: line.y[i], line })).filter((point) => known(point.v) && (!log || point.v > 0)) }));
  const all = shown.flatMap((line) => line.points);
  if (!all.length) return box.replaceChildren(html("p", { class: "quiet" }, "Nothing was logged under this name."));
  const reach = range(all.map((point) => point.u)), rise = range(all.map((point) => point.v));
  const far = reach[0] >= 1 && reach[1] > 40 && shown.some((line) => line.points.length && line.points.at(-1).u < reach[1] / 8);
  const xticks = far ? undefined : ticks(...padded(reach, 0), 8).filter(Number.isInteger);
  const chart = plot(box, { height, left: 58, x: { range: far ? [reach[0] / 1.1, reach[1] * 1.1] : padded(reach, 0.02), log: far, label: far ? `${xlabel} (log scale)` : xlabel, ticks: xticks }, y: { range: log ? [rise[0] * 0.8, rise[1] * 1.3] : padded(rise), log, label: ylabel }, title: `${ylabel} against ${xlabel}` });
  for (const line of shown) {
    for (const point of line.points) Object.assign(point, { x: chart.sx(point.u), y: chart.sy(point.v) });
    const path = line.points.map((point, i) => `${i ? "L" : "M"}${point.x.toFixed(1)} ${point.y.toFixed(1)}`).join("");
    chart.root.append(svg("path", { d: path, fill: "none", stroke: colour(line.place), "stroke-width": line.thin ? 1.2 : 2, "stroke-dasharray": line.dash, "stroke-linejoin": "round", opacity: line.thin ? 0.6 : 1 }));
    if (line.points.length < 40) chart.root.append(dots(line.points, colour(line.place), 5));
  }
  follow(chart.root, (x, y) => nearest(all, x, y, 40), (point) => [point.line.label, `${xlabel} ${short(point.u)}`, `${ylabel} ${short(point.v)}`]);
}

/* Values with intervals, one row each: [{label, place, value, low, high, lines}]; `zero` draws bars from 0. */
function intervalChart(box, rows, { xlabel, zero = false, digits = 4 }) {
  const height = rows.length * 34 + 54, wide = (box.clientWidth || 640) > 520;
  const left = Math.min(wide ? 190 : 142, 24 + 7.2 * Math.max(...rows.map((row) => row.label.length)));
  const ends = rows.flatMap((row) => [row.value, row.low, row.high]).filter(known).concat(zero ? [0] : []);
  const chart = plot(box, { height, left, top: 4, right: wide ? 92 : 66, x: { range: padded(range(ends), 0.06), label: xlabel }, y: { range: [0, rows.length], ticks: [] }, title: xlabel });
  const points = rows.map((row, place) => {
    const y = 4 + 34 * place + 17, x = chart.sx(row.value), tint = colour(row.place);
    chart.root.append(svg("text", { class: "strong", x: left - 10, y: y + 4, "text-anchor": "end" }, clipped(row.label, (left - 14) / 6.9)));
    if (zero) chart.root.append(svg("rect", { x: Math.min(x, chart.sx(0)), y: y - 8, width: Math.abs(x - chart.sx(0)), height: 16, fill: tint, opacity: 0.35, rx: 2 }));
    if (known(row.low)) chart.root.append(svg("line", { x1: chart.sx(row.low), x2: chart.sx(row.high), y1: y, y2: y, stroke: tint, "stroke-width": 2.5, "stroke-linecap": "round" }));
    chart.root.append(svg("circle", { cx: x, cy: y, r: zero ? 3.5 : 5, fill: tint }));
    chart.root.append(svg("text", { class: "strong", x: chart.width - 2, y: y + 4, "text-anchor": "end" }, (zero ? signed : fixed)(row.value, digits)));
    return { x, y, row };
  });
  if (zero) chart.root.append(svg("line", { x1: chart.sx(0), x2: chart.sx(0), y1: 4, y2: height - 42, stroke: "var(--quiet)" }));
  follow(chart.root, (_, y) => points.find((point) => Math.abs(point.y - y) < 17), (point) => [point.row.label, ...point.row.lines]);
}
const clipped = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text);

/* Bars of shares or weights: [{label, value, low, high}], longest first. */
function barChart(box, rows, { xlabel, place = 0 }) {
  const height = rows.length * 24 + 48, left = Math.min(150, 22 + 7.2 * Math.max(...rows.map((row) => row.label.length)));
  const ends = rows.flatMap((row) => [row.value, row.low, row.high]).filter(known).concat([0]);
  const chart = plot(box, { height, left, top: 2, right: 60, x: { range: padded(range(ends), 0.02), label: xlabel }, y: { range: [0, rows.length], ticks: [] }, title: xlabel });
  rows.forEach((row, number) => {
    const y = 2 + 24 * number, x = chart.sx(row.value), origin = chart.sx(0);
    chart.root.append(svg("text", { class: "strong", x: left - 8, y: y + 16, "text-anchor": "end" }, clipped(row.label, (left - 12) / 6.9)));
    chart.root.append(svg("rect", { x: Math.min(x, origin), y: y + 4, width: Math.max(1, Math.abs(x - origin)), height: 16, fill: colour(place), opacity: row.value < 0 ? 0.45 : 0.85, rx: 2 }));
    if (known(row.low)) chart.root.append(svg("line", { x1: chart.sx(row.low), x2: chart.sx(row.high), y1: y + 12, y2: y + 12, stroke: "var(--ink)", "stroke-width": 1.5 }));
    chart.root.append(svg("text", { class: "strong", x: chart.width - 2, y: y + 16, "text-anchor": "end" }, short(row.value)));
  });
}

/* One dot for each query: the second ranker across, the first one up. */
function scatterChart(box, points, { xlabel, ylabel, first, second, describe }) {
  const side = Math.min(460, Math.max(280, box.clientWidth || 460)), both = padded(range(points.flatMap((point) => [point.u, point.v])), 0.04);
  const chart = plot(box, { height: side, x: { range: both, label: xlabel }, y: { range: both, label: ylabel }, title: `${ylabel} against ${xlabel}, one dot for each query` });
  chart.root.append(svg("line", { x1: chart.sx(both[0]), x2: chart.sx(both[1]), y1: chart.sy(both[0]), y2: chart.sy(both[1]), stroke: "var(--quiet)", "stroke-dasharray": "4 4" }));
  for (const point of points) Object.assign(point, { x: chart.sx(point.u), y: chart.sy(point.v) });
  chart.root.append(dots(points.filter((point) => point.won === 0), "var(--quiet)", 6));
  chart.root.append(dots(points.filter((point) => point.won > 0), colour(first), 7), dots(points.filter((point) => point.won < 0), colour(second), 7));
  follow(chart.root, (x, y) => nearest(points, x, y), describe);
}

/* How often differences of each size occur, their mean and its interval. */
function histogram(box, values, { xlabel, centre, low, high, first, second, smaller }) {
  const most = Math.max(...range(values).map(Math.abs), 0.01), count = Math.max(9, Math.min(41, 2 * Math.round(Math.sqrt(values.length)) + 1)) | 1;
  const width = (2 * most) / count, bins = Array(count).fill(0);
  for (const value of values) bins[Math.min(count - 1, Math.floor((value + most) / width))]++;
  const chart = plot(box, { height: 300, left: 44, x: { range: [-most, most], label: xlabel }, y: { range: [0, Math.max(...bins) * 1.08], label: "queries" }, title: `Distribution of ${xlabel}` });
  bins.forEach((number, place) => {
    const from = -most + place * width, middle = from + width / 2, sign = Math.abs(middle) < width / 4 ? 0 : (smaller ? -1 : 1) * Math.sign(middle);
    chart.root.append(svg("rect", { x: chart.sx(from) + 0.5, width: Math.max(0.5, chart.sx(from + width) - chart.sx(from) - 1), y: chart.sy(number), height: chart.sy(0) - chart.sy(number), fill: sign > 0 ? colour(first) : sign < 0 ? colour(second) : "var(--quiet)", opacity: 0.55 }));
  });
  if (known(low)) chart.root.append(svg("rect", { x: chart.sx(low), width: Math.max(1, chart.sx(high) - chart.sx(low)), y: chart.top, height: chart.sy(0) - chart.top, fill: "var(--ink)", opacity: 0.12 }));
  chart.root.append(svg("line", { x1: chart.sx(0), x2: chart.sx(0), y1: chart.top, y2: chart.sy(0), stroke: "var(--quiet)", "stroke-dasharray": "4 4" }));
  chart.root.append(svg("line", { x1: chart.sx(centre), x2: chart.sx(centre), y1: chart.top, y2: chart.sy(0), stroke: "var(--ink)", "stroke-width": 2 }));
  follow(chart.root, (x) => {
    const place = Math.floor(((x - chart.sx(-most)) / (chart.sx(most) - chart.sx(-most))) * count);
    return bins[place] === undefined ? null : { place, x: chart.sx(-most + (place + 0.5) * width), y: chart.sy(bins[place]) };
  }, ({ place }) => [plural(bins[place], "query", "queries"), `difference ${signed(-most + place * width, 3)} to ${signed(-most + (place + 1) * width, 3)}`]);
}

/* Quality against cost: [{label, place, u, v, lines}]. */
function costChart(box, points, { xlabel, ylabel }) {
  const reach = range(points.map((point) => point.u)), rise = padded(range(points.map((point) => point.v)), 0.12);
  const chart = plot(box, { height: 320, left: 58, right: 30, top: 18, x: { range: [reach[0] / 1.6, reach[1] * 2.2], log: true, label: xlabel }, y: { range: rise, label: ylabel }, title: `${ylabel} against ${xlabel}` });
  for (const point of points) {
    Object.assign(point, { x: chart.sx(point.u), y: chart.sy(point.v) });
    const end = point.x > chart.width * 0.7;
    chart.root.append(svg("circle", { cx: point.x, cy: point.y, r: 6, fill: colour(point.place) }));
    chart.root.append(svg("text", { class: "strong", x: point.x + (end ? -10 : 10), y: point.y + 4, "text-anchor": end ? "end" : "start" }, clipped(point.label, 26)));
  }
  follow(chart.root, (x, y) => nearest(points, x, y, 40), (point) => [point.label, ...point.lines]);
}

// ---- tables -------------------------------------------------------------------------------------------------------

/* columns: [{label, title, number, value(row), cell(row)}]; a click on a header sorts, missing values last. */
function sortable(columns, rows, { caption, sorted, mark, low } = {}) {
  const body = html("tbody"), heads = [];
  let by = sorted ? sorted[0] : -1, down = sorted ? sorted[1] : false;
  const key = (column, row) => { const value = column.value(row); return typeof value === "number" && !Number.isFinite(value) ? null : value; };
  const compare = (a, b) => {
    const [x, y] = [key(columns[by], a), key(columns[by], b)];
    if (x === null || x === undefined || y === null || y === undefined) return (x ?? null) === (y ?? null) ? 0 : x === null || x === undefined ? 1 : -1;
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return down ? -order : order;
  };
  const fill = () => {
    const ordered = by < 0 ? rows : [...rows].sort(compare);
    body.replaceChildren(...ordered.map((row) => html("tr", { class: mark && mark(row) ? "differs" : null }, columns.map((column, place) => {
      const content = column.cell ? column.cell(row) : column.value(row);
      return html(place ? "td" : "th", { class: [column.number ? "num" : "", column.class ? column.class(row) : ""].join(" ").trim() || null, scope: place ? null : "row" }, content ?? "–");
    }))));
    heads.forEach((head, place) => head.setAttribute("aria-sort", place !== by ? "none" : down ? "descending" : "ascending"));
  };
  for (const [place, column] of columns.entries()) {
    const press = () => { down = by === place ? !down : Boolean(column.number && !column.rising); by = place; fill(); };
    heads.push(html("th", { scope: "col", class: column.number ? "num" : null, title: column.title }, html("button", { type: "button", onclick: press }, column.label)));
  }
  fill();
  const table = html("table", { "aria-label": caption }, html("thead", {}, html("tr", {}, heads)), body);
  return html("div", { class: "box" }, caption ? html("p", { class: "caption" }, caption) : null,
    html("div", { class: low ? "scroll low" : "scroll", tabindex: "0", role: "region", "aria-label": caption || "table" }, table));
}

function choice(label, options, value, change) {
  const node = html("select", { onchange: (event) => change(event.target.value) }, options.map(([key, text]) => html("option", { value: key, selected: String(key) === String(value) }, text)));
  return html("label", {}, label, node);
}
function segments(label, options, value, change) {
  const buttons = options.map(([key, text]) => html("button", { type: "button", "aria-pressed": String(key === value), onclick: () => {
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(options[place][0] === key)));
    change(key);
  } }, text));
  return html("div", { class: "segments", role: "group", "aria-label": label }, buttons);
}
