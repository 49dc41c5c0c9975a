"use strict";
// tokens[p][t][l]: tokens a sentence of language l at the p-th parity and the t-th size.
// contents[l]: what such a sentence says. Costs are tokens for the same content.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const { sizes, parities, languages, tokens, contents } = data;
const built = { t: sizes.indexOf(data.built.size), p: parities.indexOf(data.built.parity) };
const view = { ...built };
const number = new Intl.NumberFormat("en");

// Costs of the languages, by their mean.
function costs(values) {
  const each = values.map((value, l) => value / contents[l]);
  const mean = each.reduce((sum, value) => sum + value, 0) / each.length;
  return each.map((value) => value / mean);
}

function scores(values) {
  const ascending = costs(values).sort((a, b) => a - b), n = values.length;
  const total = values.reduce((sum, value) => sum + value, 0);
  const ranks = ascending.reduce((sum, value, i) => sum + (2 * (i + 1) - n - 1) * value, 0);
  return { mean: total / n, gini: ranks / (n * n), ratio: ascending[n - 1] / ascending[0] };
}

function element(name, text, attributes = {}) {
  const made = name === "svg" || element.svg.has(name)
    ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
element.svg = new Set(["path", "circle", "text", "line"]);

function summary() {
  const now = scores(tokens[view.p][view.t]), before = scores(tokens[built.p][built.t]);
  const rows = [
    ["Tokens a sentence, mean", now.mean.toFixed(2), before.mean.toFixed(2)],
    ["Gini of the costs", now.gini.toFixed(3), before.gini.toFixed(3)],
    ["Highest cost by lowest", now.ratio.toFixed(2), before.ratio.toFixed(2)],
  ];
  $("summary").replaceChildren(...rows.map(([title, value, of]) => {
    const one = element("div"), shown = element("dd", value);
    shown.append(element("small", `build ${of}`));
    one.append(element("dt", title), shown);
    return one;
  }));
  $("size-now").textContent = number.format(sizes[view.t]);
  $("parity-now").textContent = parities[view.p];
  $("keys").textContent = `--config.vocab.method=union --config.vocab.target_size=${sizes[view.t]} --config.vocab.parity=${parities[view.p]}`;
}

function table() {
  const now = tokens[view.p][view.t], before = tokens[built.p][built.t];
  const costsNow = costs(now), costsBefore = costs(before);
  const most = Math.max(...tokens.flat().map(costs).flat());
  const order = languages.map((_, l) => l).sort((a, b) => costsNow[b] - costsNow[a]);
  $("rows").replaceChildren(...order.map((l) => {
    const row = element("tr"), bar = element("td", undefined, { class: "gauge" });
    bar.append(element("i", undefined, { style: `width: ${100 * costsNow[l] / most}%` }),
               element("b", undefined, { style: `left: ${100 * costsBefore[l] / most}%`, title: "the build" }));
    const language = element("th", languages[l]);
    language.append(element("span", data.names[l]));
    row.append(language, element("td", now[l].toFixed(1)), element("td", (now[l] / before[l]).toFixed(2)),
               element("td", costsNow[l].toFixed(2)), bar);
    return row;
  }));
}

function chart() {
  const lines = sizes.map((_, t) => parities.map((_, p) => scores(tokens[p][t])));
  const all = lines.flat(), left = 46, bottom = 262, width = 360, height = 244;
  const span = (values) => [Math.min(...values), Math.max(...values)];
  const [x0, x1] = span(all.map((one) => one.mean)), [y0, y1] = span(all.map((one) => one.gini));
  const x = (one) => left + width * (one.mean - x0) / (x1 - x0 || 1);
  const y = (one) => bottom - height * (one.gini - y0) / (y1 - y0 || 1);
  const parts = [
    element("line", undefined, { x1: left, x2: left + width, y1: bottom, y2: bottom, stroke: "var(--line)" }),
    element("line", undefined, { x1: left, x2: left, y1: bottom, y2: bottom - height, stroke: "var(--line)" }),
    element("text", x0.toFixed(1), { x: left, y: bottom + 16 }),
    element("text", "mean tokens a sentence", { x: left + width / 2, y: bottom + 32, "text-anchor": "middle" }),
    element("text", x1.toFixed(1), { x: left + width, y: bottom + 16, "text-anchor": "end" }),
    element("text", y0.toFixed(3), { x: left - 6, y: bottom, "text-anchor": "end" }),
    element("text", y1.toFixed(3), { x: left - 6, y: bottom - height + 8, "text-anchor": "end" }),
    element("text", "Gini", { x: left - 6, y: bottom - height / 2, "text-anchor": "end" }),
  ];
  lines.forEach((line, t) => {
    const d = line.map((one, p) => `${p ? "L" : "M"}${x(one).toFixed(1)},${y(one).toFixed(1)}`).join("");
    parts.push(element("text", number.format(sizes[t]), { x: x(line[0]), y: y(line[0]) - 9 }));
    parts.push(element("path", undefined, { d, fill: "none", stroke: t === view.t ? "var(--now)" : "var(--curve)" }));
    line.forEach((one, p) => {
      const isNow = t === view.t && p === view.p, isBuilt = t === built.t && p === built.p;
      const point = element("circle", undefined, {
        cx: x(one).toFixed(1), cy: y(one).toFixed(1), r: isNow || isBuilt ? 6 : 3,
        fill: isBuilt ? "var(--build)" : isNow ? "var(--now)" : "var(--curve)",
      });
      point.append(element("title", `T ${number.format(sizes[t])}, parity ${parities[p]}`));
      point.addEventListener("click", () => { view.t = t; view.p = p; show(); });
      parts.push(point);
    });
  });
  $("chart").replaceChildren(...parts);
}

function show() {
  $("size").value = view.t;
  $("parity").value = view.p;
  summary();
  table();
  chart();
  const hash = new URLSearchParams({ T: sizes[view.t], parity: parities[view.p] });
  history.replaceState(null, "", `#${hash}`);
}

function nearest(values, wanted) {
  const distance = (i) => Math.abs(values[i] - wanted);
  return values.reduce((best, _, i) => (distance(i) < distance(best) ? i : best), 0);
}

$("cost").textContent = "Cost: tokens for the same content, by the mean of the languages. Content is counted in "
  + (data.parallel ? "sentences of the parallel text." : "nats of the characters' entropy, a stand-in: no parallel text was given (vocab.parallel).");
$("about").textContent = `${languages.length} languages, tokens of ${data.parallel ? "parallel" : "held-out"} text. `
  + `The build: T ${number.format(data.built.size)}, parity ${data.built.parity}.`;
$("size").max = sizes.length - 1;
$("parity").max = parities.length - 1;
$("size").addEventListener("input", () => { view.t = +$("size").value; show(); });
$("parity").addEventListener("input", () => { view.p = +$("parity").value; show(); });
$("reset").addEventListener("click", () => { Object.assign(view, built); show(); });
const given = new URLSearchParams(location.hash.slice(1));
if (given.has("T")) view.t = nearest(sizes, +given.get("T"));
if (given.has("parity")) view.p = nearest(parities, +given.get("parity"));
show();
