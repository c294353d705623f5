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

  async function draw(ink) {
    for (const div of plots) {
      const { data, layout } = figureIn(ink, read(div));
      await Plotly.react(div, data, layout, { responsive: true, displaylogo: false });
      await new Promise((done) => setTimeout(done)); // lets the reader scroll in between
    }
    document.documentElement.dataset.drawn = String(plots.length);
  }

  const screenInk = () => (darkScreen.matches ? inks.dark : inks.light);
  darkScreen.addEventListener("change", () => draw(screenInk()));
  addEventListener("beforeprint", () => { if (darkScreen.matches) draw(inks.light); });
  addEventListener("afterprint", () => { if (darkScreen.matches) draw(inks.dark); });
  draw(screenInk());
})();
