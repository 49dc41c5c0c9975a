"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { languages, courses, specials, build } = data;
  const byName = new Map(languages.map((language, i) => [language.name, i]));
  const element = (id) => document.getElementById(id);

  // ---- the allocation: Algorithm 1 was run by the build, here its course is cut at T

  for (const course of courses) {
    course.unions = [];
    course.most = course.first;
    let union = course.first;
    for (const change of course.changes) {
      union += change;
      course.unions.push(union);
      course.most = Math.max(course.most, union);
    }
  }

  /** The allocation of `budget` pieces: vertices of all languages, and how its last step ended. */
  function allocate(course, budget) {
    const vertices = new Array(languages.length).fill(0);
    let union = course.first, steps = 0, last = -1;
    while (union < budget && steps < course.order.length) {
      last = course.order[steps];
      vertices[last] += 1;
      union = course.unions[steps];
      steps += 1;
    }
    const partial = union > budget && last >= 0 ? last : -1;
    return { vertices, steps, partial, cut: last < 0 ? null : gain(last, vertices[last] - 1, course.beta) };
  }

  const sizeAt = (i, vertex) => languages[i].sizes[languages[i].vertices[vertex]];
  const alpAt = (i, vertex) => languages[i].alp[languages[i].vertices[vertex]];

  /** Weighted gain of the step from a vertex, nats a sentence per 1,000 pieces; null at the last. */
  function gain(i, vertex, beta) {
    if (vertex + 1 >= languages[i].vertices.length) return null;
    const rise = alpAt(i, vertex + 1) - alpAt(i, vertex);
    return 1000 * languages[i].q ** beta * rise / (sizeAt(i, vertex + 1) - sizeAt(i, vertex));
  }

  /** Where each of the next thousands of distinct pieces goes; shares sum to the thousand. */
  function extensions(course, budget, count, width) {
    const found = [];
    let { steps } = allocate(course, budget), held = budget;
    // The last step may have been cut short: its rest comes first.
    let rest = steps ? course.unions[steps - 1] - budget : 0;
    let language = steps ? course.order[steps - 1] : -1;
    for (let to = budget + width; found.length < count && to <= course.most; to += width) {
      const shares = new Map();
      const add = (i, pieces) => pieces && shares.set(i, (shares.get(i) || 0) + pieces);
      while (held + rest < to) {
        add(language, rest);
        held += rest;
        language = course.order[steps];
        rest = course.unions[steps] - held;
        steps += 1;
      }
      add(language, to - held);
      rest -= to - held;
      held = to;
      found.push({ to, shares: [...shares].sort((a, b) => b[1] - a[1]), cut: allocate(course, to).cut });
    }
    return found;
  }

  // ---- the view, all of which the address holds

  const initial = {
    T: build.target_size, beta: courses.findIndex((course) => course.beta === build.beta),
    sort: "amount", descending: true, query: "", language: 0,
  };
  const state = { ...initial };

  function readAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    const number = (key, otherwise) => {
      const value = Number(given.get(key));
      return given.has(key) && given.get(key) !== "" && Number.isFinite(value) ? value : otherwise;
    };
    const beta = number("beta", build.beta);
    const away = courses.map((course) => Math.abs(course.beta - beta));
    state.beta = away.indexOf(Math.min(...away));
    state.T = number("T", initial.T);
    const sort = given.get("sort") || "-amount";
    state.sort = sort.replace(/^-/, "");
    state.descending = sort.startsWith("-");
    if (!columns.some((column) => column.key === state.sort)) Object.assign(state, { sort: "amount", descending: true });
    state.query = given.get("find") || "";
    const language = byName.get(given.get("language"));
    state.language = language === undefined ? initial.language : language;
  }

  function writeAddress() {
    const parts = [
      `T=${state.T}`, `beta=${courses[state.beta].beta}`, `sort=${state.descending ? "-" : ""}${state.sort}`,
      `language=${encodeURIComponent(languages[state.language].name)}`,
    ];
    if (state.query) parts.push(`find=${encodeURIComponent(state.query)}`);
    history.replaceState(null, "", `#${parts.join("&")}`);
  }

  // ---- numbers as text

  const whole = (value) => Math.round(value).toLocaleString("en-US");
  const signed = (value) => (value > 0 ? `+${whole(value)}` : value < 0 ? `−${whole(-value)}` : "0");
  const minus = (text) => text.replace("-", "−");
  function significant(value, digits = 3) {
    if (value === null) return "–";
    if (value !== 0 && Math.abs(value) < 1e-4) return minus(value.toExponential(1));
    const text = Number(value.toPrecision(digits));
    const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(text) || 1)));
    return minus(text.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }));
  }
  function amount(value) {
    if (data.amounts !== "bytes") return significant(value);
    for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["KB", 1e3]]) {
      if (value >= size) return `${significant(value / size)} ${unit}`;
    }
    return `${whole(value)} B`;
  }
  const names = new Intl.DisplayNames(["en"], { type: "language", fallback: "none" });
  function nameOf(code) {
    try { return names.of(code.replace(/_/g, "-")) || ""; } catch { return ""; }
  }
  languages.forEach((language) => { language.title = nameOf(language.name); });

  // ---- drawing

  const SVG = "http://www.w3.org/2000/svg";
  function draw(parent, tag, attributes, text) {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  }
  function html(tag, properties = {}, ...children) {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  }
  const line = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

  /** Maps of size and ALP of a language to the pixels of a box; along sizes from `from` on. */
  function scales(language, box, from) {
    const low = Math.min(...language.alp), high = Math.max(...language.alp);
    const last = language.sizes[language.sizes.length - 1];
    return {
      low, high, last,
      x: (size) => box.left + (last > from ? (size - from) / (last - from) : 1) * box.width,
      y: (alp) => box.top + (high > low ? (high - alp) / (high - low) : 0.5) * box.height,
    };
  }
  const envelope = (language, { x, y }) =>
    line(language.vertices.map((v) => [x(language.sizes[v]), y(language.alp[v])]));

  // ---- table of languages

  const columns = [
    { key: "language", title: "language", left: true, value: (row) => row.name },
    { key: "amount", title: "text", value: (row) => row.amount, hint: "amount of text, n of Eq. 3" },
    { key: "q", title: "q", value: (row) => row.q, hint: "probability of the language (Eq. 3)" },
    { key: "size", title: "size", value: (row) => row.size, hint: "pieces of the language's vocabulary" },
    { key: "change", title: "vs build", value: (row) => row.change, hint: "size less that of the build" },
    { key: "curve", title: "curve", value: (row) => row.reached, hint: "ALP against size with the cut; sorts by the share of its rise that is reached" },
    { key: "alp", title: "ALP", value: (row) => row.alp, hint: "ALP at the size, nats a sentence" },
    { key: "next", title: "next gain", value: (row) => (row.next === null ? -Infinity : row.next), hint: "weighted gain of the step that it did not get, per 1,000 pieces" },
  ];
  const rows = languages.map(makeRow);

  function makeRow(language, i) {
    const node = html("tr");
    node.dataset.language = language.name;
    const button = html("button", { type: "button", tabIndex: -1, textContent: language.name });
    const head = html("th", { scope: "row" }, button, html("span", { textContent: language.title }));
    const cells = Object.fromEntries(columns.slice(1).map(({ key }) => [key, html("td", { className: key })]));
    node.append(head, ...Object.values(cells));
    cells.amount.textContent = amount(language.amount);
    cells.q.textContent = significant(language.q);
    const box = { left: 2, top: 3, width: 104, height: 16 };
    const scale = scales(language, box, language.sizes[0]);
    const svg = draw(cells.curve, "svg", { viewBox: "0 0 108 22", "aria-hidden": "true" });
    draw(svg, "path", { d: envelope(language, scale), class: "curve" });
    const dot = draw(svg, "circle", { r: 3.2, class: "now" });
    node.addEventListener("click", () => select(i));
    return { node, button, cells, dot, scale, i, name: language.name, amount: language.amount, q: language.q };
  }

  function makeHead() {
    for (const { key, title, left, hint } of columns) {
      const button = html("button", { type: "button", textContent: title, title: hint || "" });
      const cell = html("th", { scope: "col", className: left ? "left" : "" }, button);
      cell.dataset.key = key;
      button.addEventListener("click", () => {
        state.descending = state.sort === key ? !state.descending : key !== "language";
        state.sort = key;
        show();
      });
      element("head").append(cell);
    }
  }

  function updateRows(allocation, course) {
    const largest = Math.max(...languages.map((_, i) => sizeAt(i, allocation.vertices[i])));
    for (const row of rows) {
      const language = languages[row.i], vertex = allocation.vertices[row.i];
      const { low, high } = row.scale;
      row.size = sizeAt(row.i, vertex);
      row.alp = alpAt(row.i, vertex);
      row.next = gain(row.i, vertex, course.beta);
      row.change = row.size - language.built;
      row.reached = high > low ? (row.alp - low) / (high - low) : 1;
      row.last = vertex + 1 === language.vertices.length;
      const mark = row.i === allocation.partial ? "in part" : row.last ? "largest" : "";
      row.cells.size.replaceChildren(...(mark ? [html("span", { className: "mark", textContent: `${mark} ` })] : []), whole(row.size));
      row.cells.size.dataset.size = row.size;
      row.cells.size.style.backgroundSize = `${(100 * row.size / largest).toFixed(1)}% 70%`;
      row.cells.alp.textContent = minus(row.alp.toFixed(1));
      row.cells.next.textContent = significant(row.next);
      row.cells.change.textContent = row.change ? signed(row.change) : "";
      row.cells.change.className = `change ${row.change > 0 ? "up" : "down"}`;
      row.dot.setAttribute("cx", row.scale.x(row.size));
      row.dot.setAttribute("cy", row.scale.y(row.alp));
      row.node.classList.toggle("selected", row.i === state.language);
      row.button.setAttribute("aria-pressed", row.i === state.language);
    }
  }

  function orderRows() {
    const { value } = columns.find(({ key }) => key === state.sort);
    const sign = state.descending ? -1 : 1;
    const compare = (a, b) => (value(a) < value(b) ? -sign : value(a) > value(b) ? sign : a.name < b.name ? -1 : 1);
    const query = state.query.trim().toLowerCase();
    const ordered = [...rows].sort(compare);
    const body = element("rows");
    if (ordered.some((row, i) => body.children[i] !== row.node)) {
      const focused = document.activeElement;
      body.replaceChildren(...ordered.map((row) => row.node));
      if (focused && body.contains(focused)) focused.focus({ preventScroll: true });
    }
    for (const row of rows) {
      const text = `${row.name} ${languages[row.i].title}`.toLowerCase();
      row.node.hidden = !text.includes(query);
    }
    const shown = ordered.filter((row) => !row.node.hidden);
    // One stop of the tab key; arrow keys move on from there.
    const stop = shown.find((row) => row.i === state.language) || shown[0];
    for (const row of rows) row.button.tabIndex = row === stop ? 0 : -1;
    element("none").hidden = shown.length > 0;
    element("found").textContent = query ? `${shown.length} of ${rows.length}` : `${rows.length} languages`;
    for (const cell of element("head").children) {
      if (cell.dataset.key === state.sort) cell.setAttribute("aria-sort", state.descending ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
  }

  function select(i) {
    state.language = i;
    show();
    rows[i].button.focus();
  }

  function moveSelection(event) {
    const shown = [...element("rows").children].filter((node) => !node.hidden);
    const at = shown.findIndex((node) => node.contains(event.target));
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: shown.length - 1 }[event.key];
    if (to === undefined || !shown[to]) return;
    event.preventDefault();
    select(byName.get(shown[to].dataset.language));
  }

  // ---- the chart of one language

  function ticks(low, high, count) {
    const raw = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= raw);
    const found = [];
    for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
    return found;
  }

  function updateChart(allocation, course) {
    const i = state.language, language = languages[i], row = rows[i], chart = element("chart");
    const box = { left: 52, top: 12, width: 484, height: 246 }, floor = box.top + box.height + 10;
    const scale = scales(language, box, 0), { x, y } = scale;
    chart.replaceChildren();
    for (const alp of ticks(scale.low, scale.high, 7)) {
      draw(chart, "line", { class: "grid", x1: box.left, x2: box.left + box.width, y1: y(alp), y2: y(alp) });
      draw(chart, "text", { x: box.left - 8, y: y(alp) + 4, "text-anchor": "end" }, minus(String(alp)));
    }
    for (const size of ticks(0, scale.last, 5)) {
      draw(chart, "text", { x: x(size), y: floor + 16, "text-anchor": "middle" }, whole(size));
    }
    draw(chart, "line", { class: "grid", x1: box.left, x2: box.left + box.width, y1: floor, y2: floor });
    draw(chart, "text", { x: box.left - 8, y: floor + 16, "text-anchor": "end" }, "pieces");
    draw(chart, "text", { x: box.left + 6, y: box.top + 4 }, "ALP");
    draw(chart, "path", { d: envelope(language, scale), class: "curve" });
    draw(chart, "line", { class: "cut", x1: x(row.size), x2: x(row.size), y1: y(row.alp), y2: floor });
    const kept = new Set(language.vertices);
    language.sizes.forEach((size, s) => {
      draw(chart, "circle", { class: kept.has(s) ? "vertex" : "skipped", cx: x(size), cy: y(language.alp[s]), r: 2.4 });
    });
    const built = language.alp[language.sizes.indexOf(language.built)];
    draw(chart, "circle", { class: "now", cx: x(row.size), cy: y(row.alp), r: 4.5 });
    draw(chart, "circle", { class: "was", cx: x(language.built), cy: y(built), r: 7.5 });

    element("chart-title").textContent = `${language.name}${language.title ? `, ${language.title}` : ""}: ALP against size`;
    const vertex = allocation.vertices[i];
    const from = vertex ? `The step to ${whole(row.size)} gained ${significant(gain(i, vertex - 1, course.beta))}` : `It took no step from ${whole(row.size)}, its smallest size`;
    const on = row.last ? "it is at its largest trained size" : `the next, to ${whole(sizeAt(i, vertex + 1))}, would gain ${significant(row.next)}`;
    const compared = row.change ? ` In the build it has ${whole(language.built)}.` : "";
    element("chart-text").textContent = `${from}; ${on}.${compared}`;
  }

  // ---- the panels

  function updateSummary(allocation, course) {
    const budget = state.T - specials;
    const total = rows.reduce((sum, row) => sum + row.size, 0);
    const largest = rows.filter((row) => row.last).length;
    const moved = rows.filter((row) => row.change).length;
    const partial = allocation.partial < 0 ? "its last step whole" : `last step, of ${languages[allocation.partial].name}, in part`;
    const entries = [
      ["distinct pieces", whole(budget), `and ${specials} special`],
      ["sizes together", whole(total), `${significant(total / budget)} languages a piece`],
      ["gain at the cut", significant(allocation.cut), partial],
      ["at their largest size", whole(largest), `of ${languages.length} languages`],
      ["unlike the build", whole(moved), moved ? "languages" : "the build itself"],
    ];
    element("summary").replaceChildren(...entries.map(([title, value, note]) =>
      html("div", {}, html("dt", { textContent: title }), html("dd", {}, value, html("small", { textContent: note })))));
  }

  function updateNext(course) {
    const found = extensions(course, state.T - specials, 10, 1000);
    const body = element("next").tBodies[0];
    body.replaceChildren(...found.map(({ to, shares, cut }) => {
      const shown = shares.length > 6 ? shares.slice(0, 5) : shares;
      const cell = html("td", {}, ...shown.map(([i, pieces]) => html("i", {}, html("b", { textContent: languages[i].name }), ` ${minus(whole(pieces))}`)));
      if (shares.length > shown.length) {
        const others = shares.slice(shown.length);
        const rest = others.reduce((sum, [, pieces]) => sum + pieces, 0);
        const title = others.map(([i, pieces]) => `${languages[i].name} ${whole(pieces)}`).join(", ");
        cell.append(html("i", { title, textContent: `${others.length} others ${whole(rest)}` }));
      }
      return html("tr", {}, html("td", { textContent: whole(to + specials) }), html("td", { textContent: significant(cut) }), cell);
    }));
    if (found.length < 10) {
      const text = `The trained vocabularies suffice for T up to ${whole(course.most + specials)}.`;
      body.append(html("tr", {}, html("td", { colSpan: 3, className: "note left", textContent: text })));
    }
  }

  // ---- export

  /** The sizes before a last step that was cut short: the build takes that step again. */
  function exported() {
    const course = courses[state.beta];
    const { vertices, partial } = allocate(course, state.T - specials);
    const sizes = languages.map(({ name }, i) => [name, sizeAt(i, vertices[i] - (i === partial ? 1 : 0))]);
    return { target_size: state.T, beta: course.beta, sizes: Object.fromEntries(sizes) };
  }
  const fileName = () => `allocation-T${state.T}-beta${courses[state.beta].beta}.json`;

  function download() {
    const url = URL.createObjectURL(new Blob([`${JSON.stringify(exported(), null, 1)}\n`], { type: "application/json" }));
    const link = html("a", { href: url, download: fileName() });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
    element("status").textContent = `Exported ${fileName()}`;
  }

  // ---- all of it

  function show() {
    const course = courses[state.beta], least = course.first + specials, most = course.most + specials;
    state.T = Math.min(most, Math.max(least, Math.round(state.T)));
    const step = 10 ** Math.max(0, Math.floor(Math.log10(Math.max(1, most - least) / 200)));
    Object.assign(element("target"), { min: Math.floor(least / step) * step, max: Math.ceil(most / step) * step, step });
    element("target").value = state.T;
    Object.assign(element("target-number"), { min: least, max: most, value: state.T });
    element("target-range").textContent = `${whole(least)} (all smallest) to ${whole(most)}; the build has ${whole(build.target_size)}`;
    element("beta").value = state.beta;
    element("beta").setAttribute("aria-valuetext", course.beta);
    element("beta-number").value = state.beta;
    element("reset").disabled = state.T === build.target_size && course.beta === build.beta;
    const allocation = allocate(course, state.T - specials);
    updateRows(allocation, course);
    orderRows();
    updateChart(allocation, course);
    updateSummary(allocation, course);
    updateNext(course);
    if (element("search").value !== state.query) element("search").value = state.query;
    element("command").textContent = [
      `--config.vocab.allocation=${fileName()}`, `--config.vocab.target_size=${state.T}`, `--config.vocab.beta=${course.beta}`,
    ].join(" \\\n");
    // Not at every move of a slider: browsers limit changes of the address, and would read out each.
    clearTimeout(settling);
    settling = setTimeout(settle, 400);
  }

  let settling = 0;
  function settle() {
    const moved = rows.filter((row) => row.change).length;
    element("status").textContent = `T ${whole(state.T)}, beta ${courses[state.beta].beta}: ${moved} languages unlike the build`;
    writeAddress();
  }

  function change(key, read) {
    return (event) => {
      state[key] = read(event.target);
      show();
    };
  }

  function start() {
    initial.language = languages.reduce((best, one, i) => (one.amount > languages[best].amount ? i : best), 0);
    element("about").textContent = `${languages.length} ${languages.length > 1 ? "languages" : "language"}; the build has T = ${whole(build.target_size)} and β = ${build.beta}`;
    element("beta").max = courses.length - 1;
    courses.forEach((course, b) => element("beta-number").append(html("option", { value: b, textContent: course.beta })));
    makeHead();
    element("target").addEventListener("input", change("T", (input) => input.valueAsNumber));
    element("target-number").addEventListener("change", change("T", (input) => (input.value === "" ? state.T : input.valueAsNumber)));
    element("beta").addEventListener("input", change("beta", (input) => input.valueAsNumber));
    element("beta-number").addEventListener("change", change("beta", (input) => Number(input.value)));
    element("search").addEventListener("input", change("query", (input) => input.value));
    element("reset").addEventListener("click", () => {
      Object.assign(state, { T: initial.T, beta: initial.beta });
      show();
    });
    element("export").addEventListener("click", download);
    element("rows").addEventListener("keydown", moveSelection);
    window.addEventListener("hashchange", () => {
      if (/^#(report|part-)/.test(location.hash)) return; // links to the report below
      readAddress();
      show();
    });
    new ResizeObserver(([entry]) => {
      const height = entry.borderBoxSize[0].blockSize;
      document.documentElement.style.setProperty("--bar-height", `${height}px`);
    }).observe(element("controls"));
    readAddress();
    show();
  }

  start();
})();
