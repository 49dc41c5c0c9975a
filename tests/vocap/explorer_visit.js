// Opens views of the explorer and uses it as a person would, and writes what there is to see into the
// page. VIEWS and KEYS stand before it, and `seen` for errors from the start.
"use strict";
const all = (selector) => [...document.querySelectorAll(selector)];
const one = (selector) => document.querySelector(selector);
const rows = () => all("#rows tr").filter((row) => !row.hidden);
const order = () => rows().map((row) => row.dataset.language);
const table = () => Object.fromEntries(rows().map(
  (row) => [row.dataset.language, Number(row.querySelector(".size").dataset.size)]));
const texts = (selector) => all(selector).map((node) => node.textContent);
// At once: an address that is assigned takes time of another process, for which virtual time does
// not wait.
function go(address) {
  history.replaceState(null, "", address);
  dispatchEvent(new HashChangeEvent("hashchange"));
}
const heading = (key) => one(`#head th[data-key="${key}"]`);
function put(selector, value, event) {
  one(selector).value = value;
  one(selector).dispatchEvent(new Event(event, { bubbles: true }));
}
const chosen = () => [one("#target-number").value, one("#beta-number").selectedOptions[0].textContent];
function press(key) {
  const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true });
  document.activeElement.dispatchEvent(event);
  return [document.activeElement.textContent, one("#chart-title").textContent.slice(0, 2)];
}
async function visit() {
  seen.views = [];
  for (const [T, beta] of VIEWS) {
    go(`#T=${T}&beta=${beta}`);
    seen.views.push(table());
  }
  go("#T=nonsense&beta=0.29&sort=nonsense&language=nonsense&find=");
  seen.nonsense = [...chosen(), order()];
  go("#T=99999999&beta=0");
  seen.clamped = Number(one("#target-number").value);
  go("#");

  seen.sorted = {};
  for (const { dataset: { key } } of all("#head th")) {
    seen.sorted[key] = [];
    for (let time = 0; time < 2; time += 1) {
      heading(key).querySelector("button").click();
      seen.sorted[key].push([heading(key).getAttribute("aria-sort"), order()]);
    }
  }
  await new Promise((done) => setTimeout(done, 500));
  seen.settled = [location.hash, one("#status").textContent];
  put("#search", " Swah", "input");
  seen.found = [order(), one("#found").textContent];
  put("#search", "nowhere", "input");
  seen.missing = [order(), one("#none").hidden];
  put("#search", "", "input");

  heading("language").querySelector("button").click();
  if (order()[0] !== "de") heading("language").querySelector("button").click();
  all("#rows tr")[1].click();
  seen.keys = KEYS.map(press);
  seen.stops = rows().map((row) => row.querySelector("button").tabIndex);
  const named = (node) => node.labels?.length || node.textContent.trim() || node.ariaLabel;
  seen.nameless = all("input, select, button").filter((node) => !named(node)).map(({ id }) => id);

  put("#target", 4000, "input");
  put("#beta", 1, "input");
  seen.slid = [...chosen(), table()];
  seen.next = texts("#next tbody td");
  seen.summary = texts("#summary dd");
  // Reading a blob takes such time, too.
  const made = [];
  const Whole = Blob;
  window.Blob = class extends Whole {
    constructor(parts, options) {
      super(parts, options);
      made.push(parts.join(""));
    }
  };
  HTMLAnchorElement.prototype.click = function click() { seen.file = this.download; };
  seen.exports = [];
  for (const [T, beta] of [...VIEWS, [4000, 0.3]]) {
    go(`#T=${T}&beta=${beta}`);
    one("#export").click();
    seen.exports.push(JSON.parse(made.pop()));
  }
  seen.command = one("#command").textContent;
  one("#reset").click();
  seen.reset = [table(), one("#reset").disabled, texts("#rows .change").join("")];
  const pre = document.createElement("pre");
  pre.id = "seen";
  pre.textContent = JSON.stringify(seen);
  document.body.append(pre);
}
visit().catch((error) => { document.title = `failed: ${error.stack}`; });
