"use strict";
// Draws every figure of the page in the colours of the reader's screen, on paper in dark ink; filters and recolours the
// compared groups by what varies, and sorts tables.
(() => {
  const darkScreen = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)").matches;
  const plots = [...document.querySelectorAll(".plot")];
  const inks = {
    light: { ink: "#1b1f24", grid: "#e3e7eb", line: "#9aa4ae", paper: "#ffffff" },
    dark: { ink: "#e6e9ec", grid: "#30363c", line: "#77818b", paper: "#14171a" },
  };
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const looks = document.getElementById("looks") ? read("looks") : null;
  const pressed = new Set(); // "factor value" of chips; none of a factor: all its values are shown

  const isShown = (group) =>
    !looks ||
    looks.factors.every(
      ({ values, of }, factor) =>
        pressed.has(`${factor} ${of[group]}`) || !values.some((_, value) => pressed.has(`${factor} ${value}`)),
    );

  function countShown() {
    let count = 0;
    for (let group = 0; group < looks.groups; group++) count += isShown(group) ? 1 : 0;
    return count;
  }

  function restyle(trace, group) {
    const by = looks.factors[looks.colour], dashed = looks.factors[looks.dash];
    const colour = by.colours[by.of[group]];
    if (!isShown(group)) trace.visible = false;
    if (trace.fill === "toself") {
      if (countShown() > 6) trace.visible = false; // bands of many lines hide one another
      const [red, green, blue] = rgb(colour);
      trace.fillcolor = `rgba(${red},${green},${blue},0.18)`;
    } else {
      trace.line = { ...trace.line, color: colour, dash: dashed ? dashed.dashes[dashed.of[group]] : "solid" };
    }
  }

  function rgb(colour) {
    if (colour.startsWith("#")) return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    return colour.match(/\d+/g).slice(0, 3);
  }

  const wide = (letters, size) => 0.56 * size * letters; // pixels, about

  // A text in lines of so many letters, parted after commas.
  function inLines(name, letters) {
    const lines = [];
    for (const part of name.split(/(?<=,) /)) {
      const last = lines.at(-1);
      if (last !== undefined && last.length + 1 + part.length <= letters) lines[lines.length - 1] = `${last} ${part}`;
      else lines.push(part);
    }
    return lines;
  }

  // A bar a group: those that are left move together, and long names are small or take several lines.
  function filterBars(data, layout, width) {
    const bars = data.filter((trace) => trace.meta && trace.meta.groups);
    if (!bars.length) return;
    const kept = bars[0].meta.groups.map((group, place) => [group, place]).filter(([group]) => isShown(group));
    const places = kept.map(([, place]) => place), row = 26;
    const names = places.map((place) => layout.yaxis.ticktext[place]);
    const room = 0.45 * width, longest = Math.max(0, ...names.map((name) => name.length));
    const small = wide(longest, 12) > room ? 10 : 12;
    const lines = names.map((name) => inLines(name, Math.floor(room / wide(1, small))));
    const most = Math.max(1, ...lines.map((each) => each.length));
    layout.height += places.length * Math.max(row, 4 + 1.3 * small * most) - row * bars[0].meta.groups.length;
    layout.yaxis.ticktext = lines.map((each) => each.join("<br>"));
    layout.yaxis.tickvals = places.map((_, at) => at);
    layout.yaxis.tickfont = { size: small };
    for (const trace of bars) {
      trace.x = places.map((place) => trace.x[place]);
      trace.y = places.map((_, at) => at);
      if (trace.text) trace.text = places.map((place) => trace.text[place]);
    }
  }

  // Where a screen is narrow, the scale of colours lies above the plot, and numbers below it are as many as have room.
  function fitNarrow(data, layout, width) {
    if (width > 500) return;
    for (const trace of data.filter((each) => each.type === "heatmap" && each.showscale)) {
      const title = { ...trace.colorbar.title, side: "top" };
      trace.colorbar = { ...trace.colorbar, title, orientation: "h", thickness: 10, x: 0.5, y: 1.02, yanchor: "bottom", nticks: 4 };
      layout.margin = { ...layout.margin, t: 60 };
      layout.height += 45;
    }
    const { tickvals, ticktext } = layout.xaxis;
    if (!tickvals || !ticktext.every((text) => /^\d+$/.test(text))) return;
    const letters = Math.max(...ticktext.map((text) => text.length));
    const every = Math.ceil((tickvals.length * (wide(letters, 13) + 8)) / (width - 120));
    const shown = (_, place) => place % every === 0;
    layout.xaxis = { ...layout.xaxis, tickvals: tickvals.filter(shown), ticktext: ticktext.filter(shown) };
  }

  function figureIn(ink, { data, layout }, width) {
    const axis = { gridcolor: ink.grid, linecolor: ink.line, zerolinecolor: ink.line, automargin: true };
    const template = {
      layout: {
        font: { color: ink.ink, family: "system-ui, sans-serif", size: 13 },
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", xaxis: axis, yaxis: axis,
        modebar: { bgcolor: "rgba(0,0,0,0)", color: ink.line, activecolor: ink.ink },
        hoverlabel: { bgcolor: ink.paper, font: { color: ink.ink } },
      },
    };
    for (const trace of data) {
      if (looks && trace.meta && trace.meta.group !== undefined) restyle(trace, trace.meta.group);
      if (trace.line && trace.line.color === "#000000") trace.line.color = ink.ink;
    }
    filterBars(data, layout, width);
    fitNarrow(data, layout, width);
    return { data, layout: { ...layout, template, dragmode: touch ? false : "zoom" } };
  }

  function drawOne(div, ink, width) {
    const { data, layout } = figureIn(ink, read(div.dataset.figure), width ?? div.clientWidth);
    const rows = data.some((trace) => trace.type === "heatmap" || (trace.meta && trace.meta.groups));
    if (width === paperWidth && !rows) layout.height = Math.min(layout.height, paperHeight);
    div.style.minHeight = `${layout.height}px`;
    return Plotly.react(div, data, { ...layout, width }, { responsive: true, displaylogo: false, ...(touch && { displayModeBar: false }) });
  }

  async function draw(ink) {
    for (const div of plots) {
      await drawOne(div, ink);
      await new Promise((done) => setTimeout(done)); // lets the reader scroll in between
    }
    document.documentElement.dataset.drawn = String(plots.length);
  }

  const paperWidth = 680, paperHeight = 380; // pixels: an A4 or letter page between its margins, and two plots on it
  const screenInk = () => (darkScreen.matches ? inks.dark : inks.light);

  // The chips are the legend: each has the colour or the dash of its value.
  function showChoices() {
    for (const chip of document.querySelectorAll(".chips button[data-factor]")) {
      const factor = Number(chip.dataset.factor), value = Number(chip.dataset.value);
      const { colours, dashes, values } = looks.factors[factor];
      const on = pressed.has(`${factor} ${value}`);
      const others = !on && values.some((_, other) => pressed.has(`${factor} ${other}`));
      const sample = chip.querySelector("svg");
      sample.style.display = factor === looks.colour || factor === looks.dash ? "" : "none";
      sample.style.stroke = factor === looks.colour ? colours[value] : "currentColor";
      sample.style.strokeDasharray =
        factor === looks.dash
          ? { solid: "", dash: "6 3", dot: "2 2", dashdot: "6 2 2 2", longdash: "9 3", longdashdot: "9 2 2 2" }[dashes[value]]
          : "";
      chip.setAttribute("aria-pressed", String(on));
      chip.classList.toggle("off", others);
    }
    document.getElementById("shown").textContent = `${countShown()} of ${looks.groups} shown`;
    for (const row of document.querySelectorAll("tr[data-group]")) row.hidden = !isShown(Number(row.dataset.group));
  }

  // A page that reloads itself keeps what the reader chose.
  const memory = `histfl ${location.pathname}`;
  function remember() {
    try {
      sessionStorage.setItem(memory, JSON.stringify([looks.colour, looks.dash, [...pressed]]));
    } catch {} // no storage for pages from disk: nothing to keep
  }
  function recall() {
    try {
      const [colour, dash, chips] = JSON.parse(sessionStorage.getItem(memory));
      if (looks.factors[colour]) Object.assign(looks, { colour, dash });
      for (const chip of chips) pressed.add(chip);
    } catch {}
  }

  function controls() {
    recall();
    const change = () => {
      showChoices();
      remember();
      draw(screenInk());
    };
    for (const select of document.querySelectorAll("select[data-look]")) {
      select.value = String(looks[select.dataset.look] ?? -1);
      select.addEventListener("change", () => {
        looks[select.dataset.look] = Number(select.value);
        change();
      });
    }
    for (const chip of document.querySelectorAll(".chips button[data-factor]")) {
      const name = `${chip.dataset.factor} ${chip.dataset.value}`;
      chip.addEventListener("click", () => {
        if (!pressed.delete(name)) pressed.add(name);
        change();
      });
    }
    document.getElementById("all").addEventListener("click", () => {
      pressed.clear();
      change();
    });
    showChoices();
  }

  function sortable(table) {
    const heads = [...table.querySelectorAll("thead tr:last-child th")];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const body = table.tBodies[0];
        const value = (row) => {
          const cell = row.cells[column], text = cell.dataset.value ?? (column ? null : cell.textContent);
          return text === null || text.trim() === "" || Number.isNaN(Number(text)) ? text : Number(text);
        };
        const rows = [...body.rows].map((row) => [value(row), row]);
        rows.sort(([one], [other]) => {
          if (one === null || other === null) return (one === null) - (other === null); // what is missing comes last
          const order =
            typeof one === "number" && typeof other === "number"
              ? one - other
              : String(one).localeCompare(String(other), undefined, { numeric: true });
          return up ? order : -order;
        });
        body.append(...rows.map(([, row]) => row));
      });
    });
  }

  for (const table of document.querySelectorAll("table")) if (table.tBodies[0].rows.length > 2) sortable(table);
  if (looks) controls();
  darkScreen.addEventListener("change", () => draw(screenInk()));
  addEventListener("beforeprint", () => plots.forEach((div) => drawOne(div, inks.light, paperWidth)));
  addEventListener("afterprint", async () => {
    await draw(screenInk());
    plots.forEach((div) => Plotly.Plots.resize(div)); // back to the width of the screen
  });
  draw(screenInk());
})();
