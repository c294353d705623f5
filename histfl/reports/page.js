"use strict";
// Draws every figure of the page in the colours of the reader's screen; on paper in dark ink.
(() => {
  const darkScreen = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)").matches;
  const plots = [...document.querySelectorAll(".plot")];
  const inks = {
    light: { ink: "#1b1f24", grid: "#e3e7eb", line: "#9aa4ae", paper: "#ffffff" },
    dark: { ink: "#e6e9ec", grid: "#30363c", line: "#77818b", paper: "#14171a" },
  };
  const read = (div) => JSON.parse(document.getElementById(div.dataset.figure).textContent);

  function figureIn(ink, { data, layout }) {
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
      if (trace.line && trace.line.color === "#000000") trace.line.color = ink.ink;
    }
    return { data, layout: { ...layout, template, dragmode: touch ? false : "zoom" } };
  }

  function drawOne(div, ink, width) {
    const { data, layout } = figureIn(ink, read(div));
    return Plotly.react(div, data, { ...layout, width }, { responsive: true, displaylogo: false });
  }

  async function draw(ink) {
    for (const div of plots) {
      await drawOne(div, ink);
      await new Promise((done) => setTimeout(done)); // lets the reader scroll in between
    }
    document.documentElement.dataset.drawn = String(plots.length);
  }

  const paperWidth = 680; // pixels of an A4 or letter page between its margins
  const screenInk = () => (darkScreen.matches ? inks.dark : inks.light);
  darkScreen.addEventListener("change", () => draw(screenInk()));
  addEventListener("beforeprint", () => plots.forEach((div) => drawOne(div, inks.light, paperWidth)));
  addEventListener("afterprint", async () => {
    await draw(screenInk());
    plots.forEach((div) => Plotly.Plots.resize(div)); // back to the width of the screen
  });
  draw(screenInk());
})();
