// One step over time: every span with its name, drawn for what is in view; its data are in the page, packed.
"use strict";
window.opanatomy.shown = (async () => {
  const packed = document.getElementById("timeline"), figure = document.getElementById("chart-lanes");
  if (!packed || !figure) return;
  const bytes = Uint8Array.from(atob(packed.textContent.trim()), (letter) => letter.charCodeAt(0));
  const unpacked = new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate")));
  const { wall, lanes, kinds, texts, columns } = JSON.parse(await unpacked.text());
  const column = (name) => (Array.isArray(columns[name]) ? columns[name] : Array(columns.rows).fill(columns[name]));
  const [laneOf, kind, begin, length, cause, causeAt] =
    ["lane", "kind", "begin_ns", "length_ns", "cause", "cause_ns"].map(column);
  const NAMED = ["operator", "module", "phase", "signature", "grid"];
  const codes = Object.fromEntries(["name", ...NAMED].map((name) => [name, column(name)]));
  const text = (name, row) => texts[name][codes[name][row]] || "";
  const word = (row) => kinds[kind[row]][0];
  const end = (row) => begin[row] + length[row];
  const place = Object.fromEntries(lanes.map((lane, number) => [lane.name, number]));
  const numberOf = (row) => place[texts.lane[laneOf[row]]];
  lanes.forEach((lane) => {  // the latest end up to each of its rows
    let latest = 0;
    lane.reached = begin.slice(lane.first, lane.last).map((_, at) => (latest = Math.max(latest, end(lane.first + at))));
  });

  // Times as the report writes them: three digits and a unit; of two as near the even one.
  const UNITS = [[1, 1, "ns"], [1e3, 1e3, "us"], [1e6, 1e6, "ms"], [1e9, 1e9, "s"], [6e11, 6e10, "min"], [3.6e12, 3.6e12, "h"]];
  const fixed = (value, digits) => {
    const low = Math.floor(value * 10 ** digits), half = 2 ** digits * value;
    return !Number.isInteger(half) && Number.isInteger(2 * half) && low % 2 === 0 ? (low / 10 ** digits).toFixed(digits) : value.toFixed(digits);
  };
  const three = (value) => [2, 1, 0].map((digits) => fixed(value, digits)).find((one, place) => place === 2 || one.length <= 4);
  const time = (ns) => {
    const unit = UNITS.findLastIndex(([least]) => Math.abs(ns) >= least), next = UNITS[unit + 1];
    if (ns < 0 || unit < 1) return ns < 0 ? `-${time(-ns)}` : `${Math.round(ns)} ns`;
    const shown = three(ns / UNITS[unit][1]);
    return next && shown * UNITS[unit][1] >= next[0] ? `${three(next[0] / next[1])} ${next[2]}` : `${shown} ${UNITS[unit][2]}`;
  };
  const moment = (ns, apart) => {  // with the digits that tell it from one that is so far away
    const [, size, name] = UNITS[Math.max(0, Math.min(3, UNITS.findLastIndex(([least]) => ns >= least)))];
    return `${(ns / size).toFixed(Math.max(0, Math.ceil(Math.log10(size / apart) - 1e-9)))} ${name}`;
  };

  const ROW = 26, TALL = 20, TOP = 22, canvas = document.createElement("canvas"), ink = canvas.getContext("2d");
  const view = figure.querySelector(".view"), told = figure.querySelector("output"), tip = document.getElementById("span");
  Object.assign(canvas, { tabIndex: 0, role: "application", ariaLabel:
    "One step over time. Left and right go from span to span, up and down from lane to lane, Enter shows a span in full,"
    + " L goes to its cause, plus and minus zoom." });
  view.replaceChildren(canvas);
  let from = 0, to = wall, picked = -1, under = -1, found = new Set(), left = 150, wide = 800;
  const x = (ns) => left + ((ns - from) / (to - from)) * (wide - left);
  const at = (pixel) => from + ((pixel - left) / (wide - left)) * (to - from);
  const beyond = (value, low, high, wanted) => {  // the first place from `low` to `high` with a value beyond another
    while (low < high) { const middle = (low + high) >> 1; if (value(middle) > wanted) high = middle; else low = middle + 1; }
    return low;
  };
  const rowsIn = (lane, low, high) => [
    lane.first + beyond((row) => lane.reached[row], 0, lane.last - lane.first, low),
    beyond((row) => begin[row], lane.first, lane.last, high),
  ];
  const spanAt = (lane, ns, room = 0) => {  // the latest that runs then, else one less than `room` away
    const [first, last] = rowsIn(lane, ns - room, ns + room);
    for (let row = last - 1; row >= first; row -= 1) if (begin[row] <= ns && end(row) > ns) return row;
    return room && first < last ? first : -1;
  };
  const sourceOf = (row) => {  // the span that this one comes from
    const lane = cause[row] >= 0 ? lanes[place[texts.cause[cause[row]]]] : null;
    return lane && !lane.bin && causeAt[row] !== null ? spanAt(lane, causeAt[row]) : -1;
  };
  const describe = (row) => {
    const lane = lanes[numberOf(row)], name = text("name", row);
    const lines = [...new Set([name || word(row), word(row)]), `${time(length[row])}, from ${time(begin[row])}`];
    if (lane.bin) return [...lines, `a sum over an interval: this lane's ${lane.count} spans are not on this page`];
    lines.push(...NAMED.filter((each) => text(each, row)).map((each) => `${each}: ${text(each, row)}`));
    if (cause[row] < 0 || causeAt[row] === null) return lines;
    const who = texts.cause[cause[row]], since = time(causeAt[row]), source = sourceOf(row);
    const other = `${(source >= 0 && text("name", source)) || "work"} on ${who}`;
    if (word(row).startsWith("idle")) return [...lines, `until ${other}`];
    if (lane.of === "host") return [...lines, `waits for ${other}, from ${since}`];
    if (lane.of === "device") return [...lines, `for ${who}, which arrived at ${since}`];
    return [...lines, `launched by ${who} at ${since}, ${time(begin[row] - causeAt[row])} earlier`];
  };

  const drawLane = (lane, y, style) => {
    const upto = new Map(), [first, last] = rowsIn(lane, from, to), bins = lane.bin ? Math.round(wall / lane.bin) : 0;
    const stacked = (low, across, share) => {  // of several in one place each has its share of the height
      const base = upto.get(low) || 0;
      ink.fillRect(low, y + TALL * (1 - base - share), across, TALL * share);
      upto.set(low, base + share);
    };
    for (let row = first; row < last; row += 1) {
      const low = Math.max(x(begin[row]), left), high = Math.min(x(end(row)), wide), colour = kinds[kind[row]][1];
      ink.globalAlpha = found.size && !found.has(row) ? 0.18 : 1;
      ink.fillStyle = colour;
      if (bins) {
        const bin = Math.floor((begin[row] * bins) / wall + 1e-9), edge = (one) => x((one * wall) / bins);
        stacked(edge(bin), edge(bin + 1) - edge(bin), (length[row] * bins) / wall);
      } else if (high - low < 1) {
        for (let pixel = Math.floor(low); pixel < high; pixel += 1) stacked(pixel, 1, Math.min(high, pixel + 1) - Math.max(low, pixel));
      } else {
        ink.fillRect(low, y, high - low, TALL);
        if (high - low > 4) ink.strokeRect(low, y, high - low, TALL);
        if (high - low < 38) continue;
        const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
        ink.fillStyle = 0.3 * red + 0.6 * green + 0.1 * blue > 120 ? "#000" : "#fff";
        ink.fillText((text("name", row) || word(row)).slice(0, (high - low - 6) / 5.8), low + 3, y + TALL / 2);
      }
    }
    ink.globalAlpha = 1;
    ink.fillStyle = style.color;
  };
  const draw = () => {
    const style = getComputedStyle(canvas), sharp = devicePixelRatio || 1, high = TOP + ROW * lanes.length;
    wide = view.clientWidth;
    left = wide < 600 ? 84 : 150;
    Object.assign(canvas, { width: wide * sharp, height: high * sharp });
    Object.assign(canvas.style, { width: `${wide}px`, height: `${high}px` });
    ink.setTransform(sharp, 0, 0, sharp, 0, 0);
    Object.assign(ink, { font: `11px ${style.fontFamily}`, textBaseline: "middle", fillStyle: style.color, lineWidth: 0.5, strokeStyle: "#8888" });
    const about = (to - from) / (wide < 600 ? 3 : 8), power = 10 ** Math.floor(Math.log10(about));
    const tick = Math.max(1, power * [1, 2, 5, 10].find((times) => times * power >= about));
    for (let ns = Math.ceil(from / tick) * tick; ns <= to; ns += tick) {
      ink.globalAlpha = 0.15; ink.fillRect(x(ns), 0, 1, high); ink.globalAlpha = 1;
      const label = moment(ns, tick);
      if (x(ns) + 3 + ink.measureText(label).width < wide) ink.fillText(label, x(ns) + 3, 8);
    }
    lanes.forEach((lane, number) => {
      const y = TOP + ROW * number;
      for (const [low, across, act] of [[0, left - 6, () => ink.fillText(lane.name, 0, y + TALL / 2)], [left, wide - left, () => drawLane(lane, y, style)]]) {
        ink.save(); ink.beginPath(); ink.rect(low, y, across, ROW); ink.clip(); act(); ink.restore();
      }
    });
    Object.assign(ink, { strokeStyle: style.color, lineWidth: 1.5 });
    for (const row of new Set([picked, under])) {  // what is picked, and a line to what it comes from
      if (row < 0) continue;
      const y = TOP + ROW * numberOf(row), low = Math.max(x(begin[row]), left), source = sourceOf(row);
      ink.strokeRect(low, y - 1, Math.max(Math.min(x(end(row)), wide) - low, 2), TALL + 2);
      if (source < 0) continue;
      ink.beginPath();
      ink.arc(Math.max(x(begin[source]), left), TOP + ROW * numberOf(source) + TALL / 2, 3, 0, 7);
      ink.lineTo(low, y + TALL / 2);
      ink.stroke();
    }
  };
  let asked = 0;
  const redraw = () => { asked = asked || requestAnimationFrame(() => { asked = 0; draw(); }); };
  const show = (low, high) => {
    const span = Math.min(Math.max(high - low, 20), wall);
    from = Math.max(0, Math.min(low, wall - span));
    to = from + span;
    told.textContent = [from, to].map((ns) => moment(Math.round(ns), Math.max(1, span / 1000))).join(" to ");
    redraw();
  };
  const tell = (row, across, down) => {
    if (tip.hidden = row < 0) return;
    tip.replaceChildren(...describe(row).map((line) => Object.assign(document.createElement("div"), { textContent: line })));
    window.opanatomy.near(tip, across + 14, down - 8, down + 14);
  };
  const pick = (row) => {
    picked = row;
    if (row >= 0 && (begin[row] < from || end(row) > to)) {
      const middle = begin[row] + length[row] / 2, half = Math.max(to - from, 1.5 * length[row]) / 2;
      show(middle - half, middle + half);
    }
    const box = canvas.getBoundingClientRect();
    tell(row, row < 0 ? 0 : box.left + Math.max(x(begin[row]), left), row < 0 ? 0 : box.top + TOP + ROW * numberOf(row));
    redraw();
  };

  let held = null;
  canvas.addEventListener("pointermove", (event) => {
    const moved = held && ((held.at - event.offsetX) / (wide - left)) * (to - from);
    if (held) { show(held.from + moved, held.to + moved); return; }
    const lane = event.offsetX > left && lanes[Math.floor((event.offsetY - TOP) / ROW)];
    under = lane ? spanAt(lane, at(event.offsetX), (3 * (to - from)) / (wide - left)) : -1;
    tell(under, event.clientX, event.clientY);
    redraw();
  });
  canvas.addEventListener("pointerdown", (event) => {
    held = { at: event.offsetX, from, to };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (held && Math.abs(held.at - event.offsetX) < 3) pick(under === picked ? -1 : under);
    held = null;
  });
  canvas.addEventListener("pointerleave", () => { under = -1; tell(-1); redraw(); });
  canvas.addEventListener("wheel", (event) => {
    if (!event.shiftKey && !event.ctrlKey) return;
    event.preventDefault();
    const here = at(event.offsetX), times = Math.exp((event.deltaY || event.deltaX) / 400);
    show(here - (here - from) * times, here + (to - here) * times);
  }, { passive: false });
  const WAYS = { closer: [0.25, -0.25], farther: [-0.5, 0.5], earlier: [-0.25, -0.25], later: [0.25, 0.25], "whole step": [-1e9, 1e9] };
  const move = (way) => show(from + (to - from) * WAYS[way][0], to + (to - from) * WAYS[way][1]);
  figure.querySelectorAll("[data-way]").forEach((button) => button.addEventListener("click", () => move(button.dataset.way)));
  const go = (along, down) => {  // to the next span, or to the lane below
    const lane = lanes[picked < 0 ? 0 : numberOf(picked) + down];
    const row = picked < 0 || down ? rowsIn(lane || lanes[0], Math.max(from, begin[picked] || 0), wall)[0] : picked + along;
    if (lane) pick(Math.max(lane.first, Math.min(row, lane.last - 1)));
  };
  const keys = {
    ArrowRight: () => go(1, 0), ArrowLeft: () => go(-1, 0), ArrowDown: () => go(0, 1), ArrowUp: () => go(0, -1),
    Enter: () => picked >= 0 && show(begin[picked] - length[picked], end(picked) + length[picked]),
    l: () => keys.L(), L: () => picked >= 0 && sourceOf(picked) >= 0 && pick(sourceOf(picked)),
    "+": () => move("closer"), "-": () => move("farther"), Escape: () => pick(-1),
  };
  canvas.addEventListener("keydown", (event) => { if (keys[event.key]) { event.preventDefault(); keys[event.key](); } });

  const WHERE = { phases: "phases", device: "devices", stream: "streams", host: "threads" };
  const search = figure.querySelector("[data-find]"), fields = ["name", "operator", "module"];
  search.addEventListener("input", () => {
    const wanted = search.value.trim().toLowerCase();
    const fits = fields.map((name) => texts[name].map((one) => one.toLowerCase().includes(wanted)));
    const kindFits = kinds.map(([one]) => one.toLowerCase().includes(wanted));
    const fit = (row) => kindFits[kind[row]] || fields.some((name, at) => fits[at][codes[name][row]]);
    const rows = wanted ? [...begin.keys()].filter(fit) : [], sums = {};
    rows.forEach((row) => { const { of } = lanes[numberOf(row)]; sums[of] = (sums[of] || 0) + length[row]; });
    found = new Set(rows);
    const parts = Object.entries(sums).map(([of, sum]) => `${time(sum)} in ${WHERE[of]}`).join(", ");
    told.textContent = wanted && (rows.length ? `${rows.length} spans: ${parts}; Enter goes to the next` : "no span matches");
    pick(-1);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !found.size) return;
    const rows = [...found], row = rows.find((one) => one > picked) ?? rows[0], half = Math.min(to - from, 40 * length[row]) / 2;
    show(begin[row] - half, begin[row] + half);
    pick(row);
  });
  new ResizeObserver(redraw).observe(view);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  show(0, wall);
  draw();
  figure.dataset.live = "1";
  window.opanatomy.timeline = {
    lanes, show, pick, rowsIn, begin, length, word, view: () => [from, to], picked: () => picked,
    pixel: (row) => [x(begin[row] + length[row] / 2), TOP + ROW * numberOf(row) + TALL / 2],
  };
})();
