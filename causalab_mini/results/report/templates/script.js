"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const part = (id) => document.getElementById(id);
  const panel = part("panel"), list = part("panel-rows"), filter = part("panel-filter"), order = part("panel-order");
  const SHOWN = 200;
  let set = null;

  const make = (name, className, text) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const said = (value) => {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return String(value);
    const text = Number.isInteger(value) ? String(value) : Math.abs(value) >= 0.0005 ? value.toFixed(4) : value.toExponential(2);
    return text.replace("-", "−");
  };

  const cellsOf = (row) => Object.fromEntries(set.columns.map((name, k) => [name, row[k]]));
  const promptsOf = (id) => {
    if (set.prompts === null || id === undefined) return [];
    const step = data.steps[set.prompts], row = step.labels.indexOf(String(id));
    if (row < 0) return [];
    return Object.entries(step.roles).map(([role, k]) => [role, data.prompts[k][row]]).filter(([, text]) => text !== undefined);
  };

  const draw = (cells, prompts) => {
    const item = make("li"), top = make("div", "top");
    if ("value" in cells) top.append(make("span", "value", said(cells.value)));
    top.append(make("span", "", `row ${cells.example_id ?? "?"}`));
    if (cells.eligible === false) top.append(make("span", "out", "not eligible"));
    if (cells.reason) top.append(make("span", "out", String(cells.reason).replaceAll("_", " ")));
    for (const [name, value] of Object.entries(cells)) {
      if (["value", "example_id", "eligible", "reason"].includes(name) || value === null || value === undefined) continue;
      const one = make("span", "");
      one.append(make("span", "soft", `${name} `), name === "tokens" ? `‘${value}’` : said(value));
      top.append(one);
    }
    item.append(top);
    for (const [role, text] of prompts) {
      const line = make("p");
      line.append(make("span", "soft", `${role} `), text);
      item.append(line);
    }
    return item;
  };

  const show = () => {
    const wanted = filter.value.trim().toLowerCase();
    let rows = set.rows.map((row) => { const cells = cellsOf(row); return [cells, promptsOf(cells.example_id)]; });
    if (wanted) rows = rows.filter(([cells, prompts]) => JSON.stringify([cells, prompts]).toLowerCase().includes(wanted));
    if (order.value) {
      const sign = order.value === "up" ? 1 : -1;
      const key = ([cells]) => (typeof cells.value === "number" ? sign * cells.value : Infinity);
      rows.sort((a, b) => key(a) - key(b));
    }
    list.replaceChildren(...rows.slice(0, SHOWN).map(([cells, prompts]) => draw(cells, prompts)));
    const notes = [];
    if (set.missing) notes.push(set.missing);
    else {
      notes.push(`${rows.length} of ${set.total} rows of ${set.file}`);
      if (rows.length > SHOWN) notes.push(`the first ${SHOWN} are shown: filter for others`);
      if (set.rows.length < set.total) notes.push(`this page has the first ${set.rows.length}; all are in the file`);
    }
    part("panel-note").textContent = notes.join("; ");
  };

  const open = (number) => {
    set = data.sets[number];
    part("panel-title").textContent = set.title;
    part("panel-said").textContent = [set.at, set.said, set.count].filter(Boolean).join(" · ");
    part("panel-tools").hidden = set.rows.length === 0;
    filter.value = "";
    order.value = "";
    order.disabled = !set.columns.includes("value");
    show();
    panel.showModal();
    list.scrollTop = 0;
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-rows]");
    if (button) open(Number(button.dataset.rows));
    else if (event.target === panel) panel.close();
  });
  part("panel-close").addEventListener("click", () => panel.close());
  filter.addEventListener("input", show);
  order.addEventListener("change", show);

  for (const table of document.querySelectorAll("table.cells")) {
    const cells = [...table.tBodies[0].rows].map((row) => [...row.cells].slice(1).map((cell) => cell.querySelector("button")));
    const all = cells.flat().filter(Boolean);
    table.setAttribute("role", "grid");
    const enter = (button) => {
      for (const other of all) other.tabIndex = other === button ? 0 : -1;
    };
    if (all.length) enter(all[0]);
    table.addEventListener("focusin", (event) => { if (all.includes(event.target)) enter(event.target); });
    table.addEventListener("keydown", (event) => {
      const y = cells.findIndex((row) => row.includes(event.target));
      if (y < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
      const x = cells[y].indexOf(event.target), along = (row, from, step) => {
        for (let k = from; k >= 0 && k < row.length; k += step) if (row[k]) return row[k];
      };
      const column = cells.map((row) => row[x]);
      const next = {
        ArrowRight: () => along(cells[y], x + 1, 1), ArrowLeft: () => along(cells[y], x - 1, -1),
        ArrowDown: () => along(column, y + 1, 1), ArrowUp: () => along(column, y - 1, -1),
        Home: () => along(cells[y], 0, 1), End: () => along(cells[y], cells[y].length - 1, -1),
      }[event.key];
      if (!next) return;
      event.preventDefault();
      next()?.focus();
    });
  }
})();
