// The sections of the report. `content` is what collect.py wrote.

const content = JSON.parse(document.getElementById("content").textContent);
let drawings = []; // functions that draw a chart again at its new width

const SHORT = { overview: "Overview", results: "Results", curves: "Curves", queries: "Queries", losses: "Losses", costs: "Time and memory", spectra: "Spectra", importances: "Importances", configuration: "Configuration" };

const tested = (section) => section.methods.filter((method) => method.test);
const isSmaller = (section, measure) => section.smaller.includes(measure);
const bodyOf = (measure) => (measure || "").split("/").pop();
const placeOf = (section, name) => section.methods.findIndex((method) => method.name === name);
const named = (section, method) => html("span", { class: "named" }, dot(section.methods.indexOf(method)), method.name);
const found = (method, convention, measure) => (((method.test || {})[convention] || {}).measures || {})[measure] || null;
const validated = (method, convention, measure) => (((method.val || {})[convention] || {}).measures || {})[measure] ?? null;

function figure(title, caption, draw) {
  const box = html("div");
  drawings.push(() => draw(box));
  return html("figure", {}, title ? html("h3", {}, title) : null, box, caption ? html("figcaption", {}, caption) : null);
}
function part(id, title, ...children) {
  return html("section", { id, "aria-labelledby": `${id}-title` }, html("h2", { id: `${id}-title` }, title), children);
}
/* A place whose content is made again when a choice changes. */
function live(make) {
  const box = html("div");
  const renew = () => {
    const before = drawings;
    drawings = [];
    box.replaceChildren(...[make()].flat());
    const own = drawings;
    drawings = before.filter((draw) => !(box.own || []).includes(draw)).concat(own);
    box.own = own;
    if (box.isConnected) own.forEach((draw) => draw());
  };
  renew();
  box.renew = renew;
  return box;
}

// ---- overview -----------------------------------------------------------------------------------------------------

function overview(section, state) {
  const measure = bodyOf(section.test_measure || section.selection), convention = state.convention;
  const [best, second] = section.methods, split = section.tested ? "test" : "validation";
  const value = section.tested ? (found(best, convention, measure) || {}).mean : validated(best, convention, measure);
  const part = section.tested ? best.test[convention] : best.val[convention];
  const cards = [[`Best by ${split} ${measure}`, best.name, `${fixed(value)}${interval(found(best, convention, measure))}`]];
  const gap = section.tested && second && second.test && pairOf(section, convention, measure, 0, 1);
  if (gap) cards.push([`Ahead of ${second.name} by`, signed(gap.difference), `95% interval ${signed(gap.low)} to ${signed(gap.high)}`]);
  if (part) cards.push([`${section.tested ? "Test" : "Validation"} queries`, whole(part.lists), `${whole(part.empty)} without relevant documents`]);
  cards.push([`Fit of ${best.name}`, seconds(best.seconds.fit), known(best.memory) ? `${whole(best.memory)} MB peak memory` : ""]);
  return html("section", { id: "overview", "aria-labelledby": "overview-title" },
    html("h1", { id: "overview-title" }, `${plural(section.methods.length, "ranker")} on ${section.data}`),
    html("p", { class: "lead" }, summary(section)),
    warnings(section).map((text) => html("p", { class: "notice" }, text)),
    html("dl", { class: "cards" }, cards.map(([term, main, more]) => html("div", { class: "card" }, html("dt", {}, term), html("dd", {}, main, html("small", {}, more))))));
}
const interval = (value) => (value && known(value.low) ? `, 95% interval ${fixed(value.low)} to ${fixed(value.high)}` : "");
function summary(section) {
  const lists = section.num_lists || {}, parts = [];
  if (lists.train) parts.push(`Fitted on ${plural(lists.train, "training query", "training queries")}`);
  if (section.folds.length > 1) parts.push(`${section.folds.length} folds`);
  const runs = section.methods.reduce((sum, method) => sum + method.candidates, 0);
  const how = section.selection || "each ranker's own validation measure";
  parts.push(section.swept ? `settings chosen by ${how} among ${runs} runs` : `best rounds chosen by ${how}`);
  const end = section.tested ? "Test numbers had no influence on any choice." : "";
  return `${parts.join(", ")}. ${end}`;
}
function warnings(section) {
  const told = [];
  if (!section.tested) told.push("These are validation numbers, and no run has a test part. Rounds and settings were chosen on the same queries, so the numbers are optimistic. Measure the chosen ranker on test queries before you quote it.");
  const missing = section.methods.filter((method) => method.missing_folds.length);
  if (missing.length) told.push(`Folds are missing: ${missing.map((method) => `${method.name} (${method.missing_folds.join(", ")})`).join("; ")}. Their means are over other queries.`);
  for (const method of section.methods)
    if (method.chosen.some((run) => run.proved === false)) told.push(`${method.name} stopped before its certificate was reached.`);
  return told;
}

// ---- results ------------------------------------------------------------------------------------------------------

function results(section, state) {
  const split = section.tested ? "test" : "val", measures = section.measures[split];
  const conventions = Object.keys(measures);
  const box = live(() => [
    figure(null, null, (chart) => overviewChart(chart, section, state, split)),
    resultTable(section, state, split),
    html("p", { class: "small" }, html("b", {}, `Convention ${state.convention}: `), `${section.texts[state.convention]}.`),
    html("p", { class: "small" }, legendOf(section, split)),
  ]);
  const controls = html("div", { class: "controls" },
    conventions.length > 1 ? html("label", {}, "Convention", segments("Convention", conventions.map((name) => [name, name]), state.convention, (name) => { state.convention = name; keepMeasure(section, state); box.renew(); state.changed(); })) : null,
    choice("Measure of the figure", measures[state.convention].map((name) => [name, name]), state.measure, (name) => { state.measure = name; box.renew(); state.changed(); }));
  return part("results", section.tested ? "Test results" : "Validation results", controls, box);
}
function keepMeasure(section, state) {
  const names = section.measures[section.tested ? "test" : "val"][state.convention];
  if (!names.includes(state.measure)) state.measure = names[0];
}
function overviewChart(box, section, state, split) {
  const rows = section.methods.map((method, place) => {
    const value = split === "test" ? found(method, state.convention, state.measure) : { mean: validated(method, state.convention, state.measure) };
    if (!value || !known(value.mean)) return null;
    return { label: method.name, place, value: value.mean, low: value.low, high: value.high, lines: [`${split} ${state.measure} ${fixed(value.mean)}`, known(value.low) ? `95% interval ${fixed(value.low)} to ${fixed(value.high)}` : "", known(value.queries) ? plural(value.queries, "query", "queries") : ""].filter(Boolean) };
  });
  const shown = rows.filter(Boolean);
  if (shown.length) intervalChart(box, shown, { xlabel: `${split === "test" ? "test" : "validation"} ${state.measure}, convention ${state.convention}` });
}
function resultTable(section, state, split) {
  const convention = state.convention, names = section.measures[split][convention], best = (section.best || {})[convention] || {};
  const value = (method, name) => (split === "test" ? (found(method, convention, name) || {}).mean ?? null : validated(method, convention, name));
  const tops = Object.fromEntries(names.map((name) => [name, split === "test" && best[name] ? best[name].name : null]));
  const columns = [{ label: "ranker", value: (method) => method.name, cell: (method) => [named(section, method), method.missing_folds.length ? html("small", {}, `${method.folds.length} of ${section.folds.length} folds`) : null] }];
  for (const name of names)
    columns.push({ label: name, number: true, rising: isSmaller(section, name), title: isSmaller(section, name) ? "smaller is better" : "larger is better", value: (method) => value(method, name), class: (method) => (tops[name] === method.name ? "best" : ""), cell: (method) => resultCell(section, method, convention, name, split, best[name]) });
  if (split === "test" && section.selection) columns.push({ label: section.selection, title: "the measure of selection, on validation queries", number: true, value: (method) => mean(method.chosen.map((run) => run.validation)), cell: (method) => fixed(mean(method.chosen.map((run) => run.validation))) });
  columns.push({ label: "fit", number: true, rising: true, value: (method) => method.seconds.fit, cell: (method) => seconds(method.seconds.fit) });
  const start = names.indexOf(bodyOf(section.test_measure || section.selection)) + 1;
  return sortable(columns, split === "test" ? tested(section) : section.methods, { caption: `${split === "test" ? "Test" : "Validation"} measures on ${section.data}, convention ${convention}`, sorted: start > 0 ? [start, !isSmaller(section, names[start - 1])] : undefined });
}
function resultCell(section, method, convention, name, split, best) {
  if (split === "val") return fixed(validated(method, convention, name));
  const value = found(method, convention, name);
  if (!value) return "–";
  const level = best && best.not_different.includes(method.name) ? " ≈" : "";
  const more = known(value.deviation) ? `±${fixed(value.deviation)} ` : "";
  return [fixed(value.mean) + level, html("small", {}, `${more}[${fixed(value.low, 3)}, ${fixed(value.high, 3)}]`)];
}
function legendOf(section, split) {
  if (split === "val") return "Means over the validation queries, on which rounds and settings were also chosen.";
  const method = tested(section)[0], parts = Object.values(method.test).filter(Boolean), repeated = section.folds.length > 1 || section.methods.some((each) => each.seeds.length > 1);
  const counts = parts.length ? `${plural(parts[0].lists, "query", "queries")}, ${whole(parts[0].empty)} of them without relevant documents. ` : "";
  const numbers = section.folds.length > 1 ? "Numbers are means of the fold means" : repeated ? "Numbers are means over the seeds" : "Numbers are means over the queries";
  const deviation = repeated ? "; ± is the standard deviation over the folds (over the seeds, if there is one fold)" : "";
  const level = section.test_measure ? ` Bold: best. ≈: ${section.test_measure} not significantly different from the best (randomisation test, Holm-adjusted p ≥ 0.05).` : "";
  return `${counts}${numbers}${deviation}; brackets hold 95% bootstrap intervals of the mean over all queries.${level}`;
}

// ---- learning curves ----------------------------------------------------------------------------------------------

function curves(section) {
  const names = [...new Set(section.methods.flatMap((method) => method.curves.flatMap((run) => Object.keys(run.values))))].sort();
  if (!names.length) return null;
  let name = names.includes(section.selection) ? section.selection : names.find((each) => each.startsWith("val/")) || names[0];
  const lines = () => section.methods.flatMap((method, place) => method.curves.filter((run) => run.values[name]).map((run) => ({
    label: method.curves.length > 1 ? `${method.name}, fold ${run.fold}, seed ${run.seed}` : method.name, place, thin: method.curves.length > 1, x: run.values[name][0], y: run.values[name][1] })));
  const box = live(() => [
    figure(null, null, (chart) => lineChart(chart, lines(), { xlabel: "round", ylabel: name })),
    html("ul", { class: "legend" }, section.methods.map((method, place) => (lines().some((line) => line.place === place) ? html("li", {}, dot(place), method.name) : null))),
  ]);
  const controls = html("div", { class: "controls" }, choice("Logged value", names.map((each) => [each, each]), name, (value) => { name = value; box.renew(); }));
  return part("curves", "Learning curves", html("p", { class: "quiet" }, "What every fit logged in its rounds or epochs. Validation measures are means over the validation queries."), controls, box);
}

// ---- query by query -----------------------------------------------------------------------------------------------

function pairOf(section, convention, measure, a, b) {
  const pairs = ((section.pairs || {})[convention] || {})[measure] || [];
  const pair = pairs.find((each) => each.a === Math.min(a, b) && each.b === Math.max(a, b));
  if (!pair || a <= b) return pair;
  return { ...pair, a, b, difference: -pair.difference, low: -pair.high, high: -pair.low, wins: pair.losses, losses: pair.wins };
}
/* The queries that both rankers have; a query of several folds is one point, with its means. */
function points(section, state) {
  const columns = section.values[state.convention][state.measure], rows = new Map(), facts = section.queries;
  const one = columns[state.a], other = columns[state.b], sign = isSmaller(section, state.measure) ? -1 : 1;
  for (let row = 0; row < facts.id.length; row++) {
    if (!known(one[row]) || !known(other[row])) continue;
    const key = facts.id[row], point = rows.get(key) || { id: key, row, count: 0, v: 0, u: 0 };
    rows.set(key, Object.assign(point, { count: point.count + 1, v: point.v + one[row], u: point.u + other[row] }));
  }
  return [...rows.values()].map((point) => {
    const v = point.v / point.count, u = point.u / point.count, gap = v - u;
    return { ...point, v, u, gap, won: sign * (Math.abs(gap) < 1e-5 ? 0 : Math.sign(gap)) };
  });
}
function factsOf(section, row) {
  const { length, relevant, groups, fold } = section.queries, lines = [];
  if (section.folds.length > 1) lines.push(`fold ${fold[row]}`);
  if (length && known(length[row])) lines.push(plural(length[row], "document"));
  if (relevant && known(relevant[row])) lines.push(`${whole(relevant[row])} relevant`);
  for (const [name, group] of Object.entries(groups || {})) if (known(group[row])) lines.push(`group ${group[row]} of ${name}`);
  return lines;
}
function queries(section, state) {
  const methods = tested(section);
  if (methods.length < 2 || !section.queries.id.length) return null;
  const box = live(() => compared(section, state));
  state.renewals.push(box.renew);
  return part("queries", "Query by query", html("p", { class: "quiet" }, "Choose two rankers. Each dot is a test query; point at it or tap it."), pairControls(section, state), box);
}
function pairControls(section, state) {
  const methods = tested(section).map((method, place) => [place, method.name]), bar = html("div", { class: "controls" });
  const renew = () => bar.replaceChildren(
    choice("Ranker A", methods, state.a, (place) => { state.a = Number(place); state.changed(); }),
    choice("Ranker B", methods, state.b, (place) => { state.b = Number(place); state.changed(); }),
    html("button", { class: "plain", type: "button", onclick: () => { [state.a, state.b] = [state.b, state.a]; state.changed(); } }, "Swap"),
    choice("Measure", section.measures.test[state.convention].map((name) => [name, name]), state.measure, (name) => { state.measure = name; state.changed(); }));
  renew();
  state.renewals.push(renew);
  return bar;
}
function compared(section, state) {
  const shown = points(section, state), [a, b] = [section.methods[state.a], section.methods[state.b]];
  if (!shown.length) return html("p", { class: "quiet" }, `No query has ${state.measure} for both rankers.`);
  const pair = pairOf(section, state.convention, state.measure, state.a, state.b), gaps = shown.map((point) => point.gap);
  const gap = pair || { difference: mean(gaps), wins: 0, ties: gaps.length, losses: 0, queries: gaps.length };
  const describe = (point) => [`Query ${point.id}`, `${a.name}: ${fixed(point.v)}`, `${b.name}: ${fixed(point.u)}`, `difference ${signed(point.gap)}`, ...factsOf(section, point.row)];
  const scatter = figure(`${a.name} against ${b.name}`, `Above the diagonal ${isSmaller(section, state.measure) ? b.name : a.name} is better. ${verdict(gap, a, b)}`, (chart) => scatterChart(chart, shown, { xlabel: `${b.name}: ${state.measure}`, ylabel: `${a.name}: ${state.measure}`, first: state.a, second: state.b, describe }));
  const spreadOf = figure("Distribution of the differences", evidence(section, state, gap), (chart) => histogram(chart, gaps, { xlabel: `${a.name} minus ${b.name}, ${state.measure}`, centre: gap.difference, low: gap.low, high: gap.high, first: state.a, second: state.b, smaller: isSmaller(section, state.measure) }));
  return [html("div", { class: "charts two" }, scatter, spreadOf), html("h3", {}, `Queries on which ${a.name} and ${b.name} differ most`), queryTable(section, state, shown, a, b)];
}
const verdict = (gap, a, b) => `${a.name} is better on ${plural(gap.wins, "query", "queries")}, ${b.name} on ${whole(gap.losses)}, and ${whole(gap.ties)} are level.`;
function evidence(section, state, gap) {
  const test = ((section.comparisons || {})[state.convention] || []).find((each) => [each.a, each.b].every((name) => [section.methods[state.a].name, section.methods[state.b].name].includes(name)));
  const holm = test && state.a !== state.b && state.measure === section.test_measure ? `; randomisation test, Holm-adjusted over all pairs: ${pvalue(test.randomisation_holm)}` : "";
  const t = known(gap.t) ? ` Paired t test: ${pvalue(gap.t)}${holm}.` : "";
  const band = known(gap.low) ? `, 95% bootstrap interval ${signed(gap.low)} to ${signed(gap.high)} (shaded)` : "";
  return `Mean ${signed(gap.difference)}${band}, over ${plural(gap.queries, "query", "queries")}, convention ${state.convention}.${t}`;
}
function queryTable(section, state, shown, a, b) {
  const extreme = [...shown].sort((x, y) => x.gap - y.gap), rows = shown.length > 60 ? [...extreme.slice(0, 30), ...extreme.slice(-30)] : extreme;
  const { length, relevant, groups } = section.queries;
  const columns = [
    { label: "query", value: (point) => point.id, cell: (point) => html("span", { class: "mono" }, point.id) },
    { label: "difference", number: true, value: (point) => point.gap, cell: (point) => signed(point.gap) },
    { label: a.name, number: true, value: (point) => point.v, cell: (point) => fixed(point.v) },
    { label: b.name, number: true, value: (point) => point.u, cell: (point) => fixed(point.u) },
  ];
  if (length) columns.push({ label: "documents", number: true, value: (point) => length[point.row] });
  if (relevant) columns.push({ label: "relevant", number: true, value: (point) => relevant[point.row] });
  for (const [name, group] of Object.entries(groups || {})) columns.push({ label: `group of ${name}`, number: true, value: (point) => group[point.row] });
  const what = shown.length > 60 ? `The 30 queries with the largest difference on each side, of ${whole(shown.length)}` : `All ${whole(shown.length)} queries`;
  return sortable(columns, rows, { caption: `${what}: ${state.measure}, convention ${state.convention}`, sorted: [1, false], low: true });
}

// ---- where a ranker loses -----------------------------------------------------------------------------------------

function losses(section, state) {
  const facts = section.queries, methods = tested(section);
  if (methods.length < 2 || !facts.id.length || !(facts.length || facts.relevant)) return null;
  const box = live(() => {
    const shown = points(section, state), [a, b] = [section.methods[state.a], section.methods[state.b]], charts = [];
    if (facts.length) charts.push(binned(section, state, shown, "By number of documents", quantileBins(shown, facts.length)));
    if (facts.relevant) charts.push(binned(section, state, shown, "By number of relevant documents", quantileBins(shown, facts.relevant)));
    if (facts.length && facts.relevant) charts.push(binned(section, state, shown, "By share of relevant documents", shareBins(shown, facts)));
    for (const [name, group] of Object.entries(facts.groups || {})) charts.push(binned(section, state, shown, `By group of ${name}`, groupBins(shown, group)));
    return [html("p", { class: "quiet" }, `Mean of ${a.name} minus ${b.name} in ${state.measure}, with its 95% interval (±1.96 standard errors); in brackets the number of queries. ${isSmaller(section, state.measure) ? "Right" : "Left"} of zero ${a.name} loses.`), html("div", { class: "charts two" }, charts)];
  });
  state.renewals.push(box.renew);
  return part("losses", "Where a ranker loses", pairControls(section, state), box);
}
function quantileBins(shown, column) {
  const values = shown.map((point) => column[point.row]).filter(known).sort((x, y) => x - y);
  const edges = [...new Set([0.2, 0.4, 0.6, 0.8].map((share) => values[Math.floor(share * (values.length - 1))]))];
  const cells = new Map();
  for (const point of shown) {
    const value = column[point.row];
    if (!known(value)) continue;
    const place = edges.filter((edge) => value > edge).length, cell = cells.get(place) || { points: [], low: value, high: value };
    cell.points.push(point);
    cells.set(place, Object.assign(cell, { low: Math.min(cell.low, value), high: Math.max(cell.high, value) }));
  }
  return [...cells.entries()].sort(([x], [y]) => x - y).map(([, cell]) => ({ label: cell.low === cell.high ? whole(cell.low) : `${whole(cell.low)} to ${whole(cell.high)}`, points: cell.points }));
}
function shareBins(shown, facts) {
  const share = facts.length.map((length, row) => (known(length) && length > 0 && known(facts.relevant[row]) ? (100 * facts.relevant[row]) / length : null));
  return quantileBins(shown, share).map((cell) => ({ ...cell, label: `${cell.label} %` }));
}
function groupBins(shown, group) {
  const numbers = [...new Set(shown.map((point) => group[point.row]).filter(known))].sort((x, y) => x - y);
  return numbers.map((number) => ({ label: number < 0 ? "none" : `group ${number}`, points: shown.filter((point) => group[point.row] === number) }));
}
function binned(section, state, shown, title, bins) {
  const [a, b] = [section.methods[state.a], section.methods[state.b]];
  const rows = bins.map((bin) => {
    const gaps = bin.points.map((point) => point.gap), centre = mean(gaps), deviation = spread(gaps);
    const error = deviation === null ? null : (1.96 * deviation) / Math.sqrt(gaps.length), won = (isSmaller(section, state.measure) ? -1 : 1) * centre >= 0;
    return { label: `${bin.label} (${gaps.length})`, place: won ? state.a : state.b, value: centre, low: error === null ? null : centre - error, high: error === null ? null : centre + error,
      lines: [`${a.name}: ${fixed(mean(bin.points.map((point) => point.v)))}`, `${b.name}: ${fixed(mean(bin.points.map((point) => point.u)))}`, `difference ${signed(centre)}${error === null ? "" : ` ± ${fixed(error)}`}`, plural(gaps.length, "query", "queries")] };
  });
  return figure(title, null, (chart) => (rows.length ? intervalChart(chart, rows, { xlabel: `${a.name} minus ${b.name}, ${state.measure}`, zero: true }) : chart.replaceChildren()));
}

// ---- time, memory, what was learned -------------------------------------------------------------------------------

function costs(section, state) {
  const measure = () => state.measure, split = section.tested ? "test" : "val";
  const value = (method) => (section.tested ? (found(method, state.convention, measure()) || {}).mean ?? null : validated(method, state.convention, measure()));
  const dots = () => section.methods.map((method, place) => ({ label: method.name, place, u: method.seconds.fit, v: value(method), lines: [`fit ${seconds(method.seconds.fit)}`, `${split === "test" ? "test" : "validation"} ${measure()} ${fixed(value(method))}`] })).filter((point) => known(point.u) && point.u > 0 && known(point.v));
  const box = live(() => (dots().length > 1 ? figure(null, `${section.tested ? "Test" : "Validation"} ${measure()}, convention ${state.convention}, against the time of a fit.`, (chart) => costChart(chart, dots(), { xlabel: "seconds of the fit", ylabel: measure() })) : html("span")));
  state.renewals.push(box.renew);
  const columns = [
    { label: "ranker", value: (method) => method.name, cell: (method) => named(section, method) },
    { label: "fit", number: true, rising: true, value: (method) => method.seconds.fit, cell: (method) => seconds(method.seconds.fit) },
    { label: "reading", title: "reading the data", number: true, rising: true, value: (method) => method.seconds.data, cell: (method) => seconds(method.seconds.data) },
    { label: "validating and testing", number: true, rising: true, value: (method) => method.seconds.test, cell: (method) => seconds(method.seconds.test) },
    { label: "all fits", title: "of all runs that the settings were chosen from", number: true, rising: true, value: (method) => method.all_seconds, cell: (method) => [seconds(method.all_seconds), html("small", {}, plural(method.candidates, "run"))] },
    { label: "peak memory", title: "of the whole process, torch included", number: true, rising: true, value: (method) => method.memory, cell: (method) => (known(method.memory) ? `${whole(method.memory)} MB` : "–") },
    { label: "steps", title: "optimizer steps, or rounds of a ranker that learns by rounds", number: true, value: (method) => method.steps, cell: (method) => whole(method.steps) },
  ];
  if (section.methods.some((method) => known(method.density))) columns.push({ label: "density", title: "share of non-zero weights", number: true, value: (method) => method.density, cell: (method) => fixed(method.density) });
  return part("costs", "Time and memory", sortable(columns, section.methods, { caption: "Means over the chosen runs, on the machine of each run; memory is the largest of them", sorted: [1, false] }), box);
}
function spectra(section) {
  const methods = section.methods.filter((method) => (method.spectra || []).length);
  if (!methods.length) return null;
  let chosen = methods[0];
  const box = live(() => {
    const lines = chosen.spectra.map((metric, place) => ({ label: metric.label, place, dash: place > 7 ? "5 3" : null, x: metric.shares.map((_, i) => i + 1), y: metric.shares }));
    return [figure(null, `Eigenvalues of each learned metric as shares of their sum, largest first. A steep line ranks by few directions; the Euclidean metric would be level at ${short(1 / chosen.spectra[0].size)}.`, (chart) => lineChart(chart, lines, { xlabel: "component", ylabel: "share of the trace", log: true })),
      html("ul", { class: "legend" }, lines.slice(0, 16).map((line) => html("li", {}, dot(line.place), line.label)))];
  });
  const controls = html("div", { class: "controls" }, choice("Ranker", methods.map((method) => [method.name, method.name]), chosen.name, (name) => { chosen = methods.find((method) => method.name === name); box.renew(); }));
  return part("spectra", "Metric spectra", controls, box);
}
function importances(section) {
  const methods = section.methods.filter((method) => method.importances);
  if (!methods.length) return null;
  let chosen = methods[0];
  const box = live(() => {
    const { features, values, errors, kind, total } = chosen.importances;
    const rows = values.map((value, place) => ({ label: features[place], value, low: errors ? value - errors[place] : null, high: errors ? value + errors[place] : null }));
    return figure(null, `${kind}. ${total > rows.length ? `The ${rows.length} largest of ${total} features.` : ""}`, (chart) => barChart(chart, rows, { xlabel: chosen.importances.unit, place: section.methods.indexOf(chosen) }));
  });
  const controls = html("div", { class: "controls" }, choice("Ranker", methods.map((method) => [method.name, method.name]), chosen.name, (name) => { chosen = methods.find((method) => method.name === name); box.renew(); }));
  return part("importances", "Importances", controls, box);
}

// ---- configuration ------------------------------------------------------------------------------------------------

const shownValue = (value) => (value === undefined ? "" : value === null ? "null" : typeof value === "object" ? JSON.stringify(value) : String(value));
function configuration(section) {
  const keys = [...new Set(section.methods.flatMap((method) => Object.keys(method.config)))];
  const differs = (key) => new Set(section.methods.map((method) => shownValue(method.config[key]))).size > 1;
  let only = section.methods.length > 1 && keys.some(differs), filter = "";
  const box = live(() => {
    const rows = keys.filter((key) => (!only || differs(key)) && key.toLowerCase().includes(filter.toLowerCase()));
    const columns = [{ label: "option", value: (key) => key, cell: (key) => html("span", { class: "mono" }, key) }];
    section.methods.forEach((method) => columns.push({ label: method.name, value: (key) => shownValue(method.config[key]), cell: (key) => html("code", {}, shownValue(method.config[key])) }));
    return rows.length ? sortable(columns, rows, { caption: `${plural(rows.length, "option")} of ${keys.length}${only ? ", those in which the rankers differ" : ""}`, mark: only ? null : differs }) : html("p", { class: "quiet" }, "No option has this name.");
  });
  const controls = html("div", { class: "controls" },
    segments("Options", [[true, "Differences"], [false, "All options"]], only, (value) => { only = value; box.renew(); }),
    html("label", {}, "Filter", html("input", { type: "search", placeholder: "model.", oninput: (event) => { filter = event.target.value; box.renew(); } })));
  return part("configuration", "Configuration", chosenTable(section), findings(section), html("h3", {}, "Options of the runs"), controls, box);
}
function chosenTable(section) {
  const rows = section.methods.flatMap((method) => method.chosen.map((run) => ({ method, run })));
  if (!section.swept && section.folds.length < 2) return null;
  const settings = ({ method, run }) => method.varied.map((key) => `${key}=${shownValue(run.settings[key])}`).join("  ") || "–";
  const columns = [
    { label: "ranker", value: (row) => row.method.name, cell: (row) => named(section, row.method) },
    { label: "fold", number: true, rising: true, value: (row) => row.run.fold, cell: (row) => shownValue(row.run.fold) },
    { label: "seed", number: true, rising: true, value: (row) => row.run.seed, cell: (row) => shownValue(row.run.seed) },
    { label: section.selection || "validation", number: true, value: (row) => row.run.validation, cell: (row) => fixed(row.run.validation) },
    { label: "chosen from", number: true, value: (row) => row.run.candidates, cell: (row) => plural(row.run.candidates, "run") },
    { label: "chosen settings", value: settings, cell: (row) => html("code", {}, settings(row)) },
  ];
  return [html("h3", {}, "Chosen by validation"), sortable(columns, rows, { caption: "The run of each ranker, fold and seed with the best validation measure" })];
}
function findings(section) {
  const rows = section.methods.flatMap((method) => Object.entries(method.findings || {}).map(([name, value]) => ({ method, name, value })));
  if (!rows.length) return null;
  const text = (value) => (value && typeof value === "object" && !Array.isArray(value) ? Object.entries(value).map(([key, each]) => `${key}=${shownValue(each)}`).join(", ") : shownValue(value));
  const columns = [{ label: "ranker", value: (row) => row.method.name, cell: (row) => named(section, row.method) }, { label: "finding", value: (row) => row.name }, { label: "value", value: (row) => text(row.value) }];
  return [html("h3", {}, "What the fits report"), sortable(columns, rows, { caption: "Findings of the first chosen run of each ranker" })];
}

// ---- the page -----------------------------------------------------------------------------------------------------

function show(section) {
  drawings = [];
  const split = section.tested ? "test" : "val", conventions = Object.keys(section.measures[split]);
  const state = { convention: conventions[0], a: 0, b: Math.min(1, Math.max(0, tested(section).length - 1)), renewals: [] };
  const wanted = bodyOf(section.test_measure || section.selection), names = section.measures[split][state.convention];
  state.measure = names.includes(wanted) ? wanted : names[0];
  state.changed = () => state.renewals.forEach((renew) => renew());
  const parts = [overview(section, state), results(section, state), curves(section), queries(section, state), losses(section, state), costs(section, state), spectra(section), importances(section), configuration(section)].filter(Boolean);
  document.getElementById("main").replaceChildren(...parts);
  drawings.forEach((draw) => draw());
  navigate(parts);
}
function navigate(parts) {
  const links = parts.map((node) => html("a", { href: `#${node.id}` }, SHORT[node.id]));
  document.getElementById("nav").replaceChildren(...links.map((link) => html("li", {}, link)));
  const mark = () => {
    const passed = parts.filter((node) => node.getBoundingClientRect().top < 160).length;
    links.forEach((link, place) => (place === Math.max(0, passed - 1) ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current")));
  };
  window.onscroll = mark;
  mark();
}
function chooseTheme() {
  const themes = { auto: ["light", "◐ Auto"], light: ["dark", "☀ Light"], dark: ["auto", "☾ Dark"] };
  const button = document.getElementById("theme"), root = document.documentElement;
  const apply = (theme) => {
    root.dataset.theme = theme;
    button.textContent = themes[theme][1];
    button.setAttribute("aria-label", `Colours: ${theme === "auto" ? "as the system" : theme}`);
    try { localStorage.setItem("torchrank-theme", theme); } catch { /* a page in a sandbox has no storage */ }
  };
  button.addEventListener("click", () => apply(themes[root.dataset.theme][0]));
  let kept = null;
  try { kept = localStorage.getItem("torchrank-theme"); } catch { /* as above */ }
  apply(themes[kept] ? kept : "auto");
}
function start() {
  chooseTheme();
  const select = document.getElementById("data");
  select.append(...content.sections.map((section, place) => html("option", { value: place }, section.tested ? section.data : `${section.data} (validation only)`)));
  select.addEventListener("change", () => { show(content.sections[Number(select.value)]); window.scrollTo(0, 0); });
  document.getElementById("data-choice").hidden = content.sections.length < 2;
  const left = content.unfinished.length ? ` ${plural(content.unfinished.length, "unfinished run")} left out: ${content.unfinished.join(", ")}.` : "";
  document.getElementById("foot").textContent = `Made by torchrank ${content.version} on ${content.created} from ${plural(content.runs, "run")}.${left} This page is one file and loads nothing.`;
  show(content.sections[0]);
  let timer = null, width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(timer);
    timer = setTimeout(() => drawings.forEach((draw) => draw()), 120);
  });
  document.addEventListener("scroll", hush, { passive: true });
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest("svg")) hush(); });
}
start();
