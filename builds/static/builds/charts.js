// The charts of the start page, from the JSON that is in it.
"use strict";

(function () {
  const place = document.getElementById("charts");
  const data = document.getElementById("charts-data");
  if (!place || !data) return;
  const charts = JSON.parse(data.textContent);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const COLOURS = ["#417893", "#c4672b", "#5b8c3e", "#8a5a9e", "#b5952a", "#777777"];
  const HEIGHT = 150;

  const UNITS = {
    number: (value) => String(Math.round(value * 100) / 100),
    seconds: (value) => (value >= 120 ? `${Math.round(value / 6) / 10} min` : `${Math.round(value * 100) / 100} s`),
    share: (value) => `${Math.round(value * 100)} %`,
  };

  function clock(seconds) {
    const at = new Date(seconds * 1000);
    return [at.getHours(), at.getMinutes()].map((each) => String(each).padStart(2, "0")).join(":");
  }

  function width() {
    const columns = place.clientWidth >= 800 ? 2 : 1;
    return Math.floor((place.clientWidth - (columns - 1) * 16) / columns);
  }

  function draw(chart) {
    const unit = UNITS[chart.unit];
    const label = (value) => (value == null ? "–" : unit(value));
    const axis = { stroke: colour("--body-quiet-color"), grid: { stroke: colour("--hairline-color"), width: 1 } };
    const holder = place.appendChild(document.createElement("figure"));
    holder.id = `chart-${chart.name}`;
    holder.appendChild(document.createElement("figcaption")).textContent = chart.title;
    const lines = chart.series.map(([name], index) => ({
      label: name,
      stroke: COLOURS[index % COLOURS.length],
      width: 1.5,
      spanGaps: false,
      points: { show: chart.times.length < 12 },
      // Without a pointer in the chart the legend has the latest point.
      value: (plot, value, series, at) => label(at == null ? plot.data[series].at(-1) : value),
    }));
    const time = (_, seconds) => (seconds == null ? "–" : new Date(seconds * 1000).toLocaleString());
    return new uPlot(
      {
        width: width(),
        height: HEIGHT,
        legend: { live: true },
        cursor: { y: false },
        scales: { y: { range: (_, low, high) => [0, chart.unit === "share" ? 1 : Math.max(high || 0, 1) * 1.05] } },
        axes: [{ ...axis, space: 60, values: (_, marks) => marks.map(clock) }, { ...axis, size: 56, values: (_, marks) => marks.map(unit) }],
        series: [{ value: time }, ...lines],
      },
      [chart.times, ...chart.series.map(([, points]) => points)],
      holder,
    );
  }

  const drawn = charts.map(draw);
  place.dataset.drawn = String(drawn.length);
  window.addEventListener("resize", () => drawn.forEach((each) => each.setSize({ width: width(), height: HEIGHT })));
})();
