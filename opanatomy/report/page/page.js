// Joins the pictures, the tables and the tree of a page: selection, filter, sort, zoom, theme, meanings, copies.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const views = {};
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const each = (selector, act, within = document) => within.querySelectorAll(selector).forEach(act);
  const set = (view, name, value) => {
    try { view.signal(name, value).runAsync(); } catch { /* this picture has no such signal */ }
  };

  // One operator, module or part is picked: in every picture, and in every table.
  let picked = "";
  const pick = (key, from) => {
    picked = key === picked ? "" : key;
    Object.values(views).forEach((view) => set(view, "picked", picked));
    each("tr.picked", (row) => row.classList.remove("picked"));
    if (!picked) return;
    each("tr[data-key]", (row) => { if (row.dataset.key === picked) row.classList.add("picked"); });
    if (from === "chart") document.querySelector("tr.picked")?.scrollIntoView({ block: "nearest", behavior: "smooth" });
  };
  // What a click does, Enter does too.
  const onClick = (element, act) => {
    element.addEventListener("click", act);
    element.addEventListener("keydown", (event) => {
      if (event.target === element && (event.key === "Enter" || event.key === " ")) { event.preventDefault(); act(event); }
    });
  };
  each("tr[data-key]", (row) => {
    row.tabIndex = 0;
    onClick(row, (event) => {
      if (!event.target.closest("summary, details, button, .term")) pick(row.dataset.key, "table");
    });
  });

  // The tree: a click makes a module as wide as the picture, a click on the top row goes back.
  const zoom = (view, low, high) => { set(view, "low", low); set(view, "high", high); };

  // A picture as wide as its place: panels side by side, on a narrow screen below each other, and lines that fit.
  const sized = (spec, room, beside) => {
    const narrow = room < 700, panels = spec.hconcat || [];
    panels.forEach((one) => { one.width = narrow ? room - 150 : (room - 260) / panels.length - 18; });
    if (!panels.length && beside) spec.width = Math.max(140, room - (narrow ? Math.min(beside, 210) : beside));
    if (!narrow) return spec;
    if (panels.length) { spec.vconcat = panels; delete spec.hconcat; }
    const list = (spec.layer || []).findIndex((one) => one.name === "list");
    if (list >= 0) spec.title.subtitle.push(...spec.layer.splice(list, 1)[0].data.values.map((row) => row.line));
    const broken = (line, most) => line.match(new RegExp(`.{1,${most}}(?:\\s|$)|.{${most}}`, "g")) || [line];
    spec.title.text = broken(spec.title.text, room / 8 | 0);
    spec.title.subtitle = spec.title.subtitle.flatMap((line) => broken(line, room / 6 | 0));
    const fit = (one) => {
      if (!one || typeof one !== "object" || Array.isArray(one.values)) return;
      if (one.columns > 2) one.columns = 2;
      if (one.labelLimit) Object.assign(one, { labelLimit: 0.4 * room, labelFontSize: 11 });
      if (one.orient === "bottom" && !one.columns) Object.assign(one, { columns: 1, labelLimit: 0.85 * room });
      if (one.labels === false) one.labels = true;
      if (one.tickCount > 4) one.tickCount = 4;
      if (one.limit > 95) one.limit = 95;
      Object.values(one).forEach(fit);
    };
    fit(spec);
    return spec;
  };
  const draw = (name) => {
    const figure = document.getElementById(`chart-${name}`), place = figure.querySelector(".view");
    const live = document.createElement("div");
    const spec = sized(structuredClone(specs[name]), figure.clientWidth, Number(figure.dataset.beside));
    return vegaEmbed(live, spec, {
      ast: true, renderer: "svg", actions: false, defaultStyle: false,
      tooltip: { disableDefaultStyle: true, offsetX: 12, offsetY: 12 },
    }).then(({ view }) => {
      views[name] = view;
      view.addEventListener("click", (_event, item) => {
        const datum = item && item.datum;
        if (figure.querySelector("[data-whole]")) {
          if (!datum || datum.depth === 0 || datum.to === undefined) zoom(view, 0, 1);
          else zoom(view, datum.from, datum.to);
        } else if (datum && datum.key) pick(datum.key, "chart");
      });
      ["role", "aria-label"].forEach((one) => place.removeAttribute(one));
      place.replaceChildren(live);
      figure.dataset.live = "1";
    });
  };
  const drawn = Promise.all(Object.keys(specs).map(draw));
  // A box beside something, below it where there is room.
  const near = (box, left, top, bottom) => {
    const below = bottom + box.offsetHeight + 8 < innerHeight;
    box.style.left = `${Math.max(4, Math.min(left, innerWidth - box.offsetWidth - 8))}px`;
    box.style.top = `${below ? bottom + 4 : Math.max(4, top - box.offsetHeight - 4)}px`;
  };
  window.opanatomy = { views, drawn, near };
  addEventListener("load", () => Promise.all([drawn, window.opanatomy.shown]).then(() => { root.dataset.ready = "1"; }));
  let wide = innerWidth, resized = 0;
  addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(() => { if (wide !== innerWidth) { wide = innerWidth; Object.keys(specs).forEach(draw); } }, 150);
  });

  // Search of the tree, and whole width again.
  each("[data-search]", (input) =>
    input.addEventListener("input", () => set(views[input.dataset.search], "wanted", input.value.trim())));
  each("[data-whole]", (button) => button.addEventListener("click", () => zoom(views[button.dataset.whole], 0, 1)));

  // Filters of a table: text, class, phase.
  each("form.filter", (form) => {
    const table = document.querySelector(`table[data-section="${form.dataset.of}"]`);
    const apply = () => {
      const { text, family, phase } = form.elements;
      const wanted = text.value.trim().toLowerCase();
      let shown = 0;
      [...table.tBodies[0].rows].forEach((row) => {
        const fits = (!wanted || row.textContent.toLowerCase().includes(wanted))
          && (!family || !family.value || row.dataset.class === family.value)
          && (!phase || !phase.value || (row.dataset.key || "").split("/")[1] === phase.value);
        row.hidden = !fits;
        if (fits) shown += 1;
      });
      form.querySelector("output").textContent = `${shown} rows`;
    };
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
  });

  // Sorting by a column: numbers by their exact values, the sums stay at the end.
  const sorted = (table, place, head) => {
    const [first, then] = head.classList.contains("n") ? ["descending", "ascending"] : ["ascending", "descending"];
    const descending = (head.getAttribute("aria-sort") === first ? then : first) === "descending";
    each("th[aria-sort]", (other) => other.removeAttribute("aria-sort"), table);
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const body = table.tBodies[0];
    const value = (row) => {
      const cell = row.cells[place];
      if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
      return head.classList.contains("n") ? -Infinity : cell.textContent.toLowerCase();
    };
    const rows = [...body.rows].filter((row) => row.dataset.key);
    const rest = [...body.rows].filter((row) => !row.dataset.key);
    const order = (a, b) => { const [x, y] = [value(a), value(b)]; return x < y ? -1 : x > y ? 1 : 0; };
    rows.sort((a, b) => (descending ? order(b, a) : order(a, b)));
    body.append(...rows, ...rest);
  };
  each("table.rows", (table) => {
    if (!table.querySelector("tbody tr[data-key]")) return;
    each("thead th .term", (word) => {
      word.setAttribute("role", "button");
      onClick(word, () => sorted(table, word.parentElement.cellIndex, word.parentElement));
    }, table);
  });

  // The meaning of a word, for the pointer and the keyboard.
  const meaning = document.getElementById("meaning");
  const tell = (event) => {
    const word = event.target.closest && event.target.closest(".term[data-means]");
    meaning.hidden = !word;
    if (!word) return;
    meaning.textContent = word.dataset.means;
    const box = word.getBoundingClientRect();
    window.opanatomy.near(meaning, box.left, box.top, box.bottom);
    word.setAttribute("aria-describedby", "meaning");
  };
  for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, tell);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") meaning.hidden = true; });

  // Copies of commands.
  each("button.copy", (button) => button.addEventListener("click", async () => {
    const code = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "selected";
    }
  }));

  // Light and dark, by the system until somebody chooses.
  const theme = document.getElementById("theme");
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "")) === "dark";
  const said = () => { theme.textContent = dark() ? "light" : "dark"; };
  theme.hidden = false;
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; said(); });
  said();
})();
