"""How the page of a report draws: names made harmless, numbers with units, charts and tables.

A browser runs JavaScript and nothing else, so this is a text of it: the first half of the page's script, whose other
half is `angarium.pipeline.report.sections`. It knows no figure of a report.
"""

from typing import Final

DRAWING: Final = r"""
"use strict";
// Draws the report from the figures in the page. Names are hostile text: they reach the document as text nodes only,
// and Plotly, which reads a little HTML in its labels, only with its special characters escaped.
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const COLOURS = ["#3b78e7", "#ea8a2f", "#27a07a", "#cf4d94", "#8b6be0", "#b9962c", "#35a7cc", "#dc5b5b"];
  const REST_COLOUR = "#98a3b0";
  const whole = new Intl.NumberFormat("en");
  const fine = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
  const brief = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

  // Characters that would hide, or turn the direction of, what stands beside them are written out.
  const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
  const visible = (text) => text.replace(HIDDEN, (one) => "\\u{" + one.codePointAt(0).toString(16) + "}");
  const escaped = (text) => text.replace(/[&<>"']/g, (one) => "&#" + one.charCodeAt(0) + ";");
  const cut = (text, most) =>
    text.length <= most ? text : text.slice(0, most - 13) + "\u2026" + text.slice(-12);

  const counted = (value, noun) => whole.format(value) + " " + noun + (value === 1 ? "" : "s");
  const number = (value) => (value === null || value === undefined ? "" : whole.format(value));
  const rate = (value) =>
    value === null || value === undefined
      ? ""
      : value >= 1000
        ? whole.format(Math.round(value))
        : fine.format(value);
  function bytes(value) {
    if (value === null || value === undefined) return "";
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    while (value >= 1024 && unit < units.length - 1) {
      value /= 1024;
      unit += 1;
    }
    return fine.format(value) + " " + units[unit];
  }
  function span(ms) {
    if (ms === null || ms === undefined) return "";
    const sign = ms < 0 ? "\u2212" : "";
    const size = Math.abs(ms);
    if (size < 1000) return sign + fine.format(size) + " ms";
    if (size < 120000) return sign + fine.format(size / 1000) + " s";
    if (size < 7200000) return sign + fine.format(size / 60000) + " min";
    if (size < 172800000) return sign + fine.format(size / 3600000) + " h";
    return sign + fine.format(size / 86400000) + " d";
  }
  function moment(ms) {
    if (ms === null || ms === undefined) return "";
    const date = new Date(ms);
    return isNaN(date) ? "" : date.toISOString().replace("T", " ").slice(0, 19) + "Z";
  }

  function add(parent, tag, text, className) {
    const made = document.createElement(tag);
    if (text !== undefined && text !== null) made.textContent = text;
    if (className) made.className = className;
    parent.appendChild(made);
    return made;
  }
  const main = document.querySelector("main");
  const redraws = [];
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function layout(more) {
    const axis = {
      gridcolor: style("--grid"),
      zerolinecolor: style("--grid"),
      linecolor: style("--line"),
      automargin: true,
    };
    const made = Object.assign(
      {
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        margin: { l: 58, r: 12, t: 12, b: 40 },
        font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: style("--ink") },
        hoverlabel: {
          bgcolor: style("--card"),
          bordercolor: style("--line"),
          font: { color: style("--ink") },
          namelength: -1,
        },
        legend: { orientation: "h", y: -0.16, traceorder: "normal" },
      },
      more,
    );
    made.xaxis = Object.assign({}, axis, more.xaxis);
    made.yaxis = Object.assign({}, axis, { rangemode: "tozero" }, more.yaxis);
    return made;
  }
  function chart(parent, label, draw) {
    const place = add(parent, "div", null, "chart");
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", label);
    const redraw = () => {
      const [traces, more] = draw();
      Plotly.react(place, traces, layout(more), { displayModeBar: false, responsive: true });
    };
    redraws.push(redraw);
    return redraw;
  }
  function section(parent, title, note) {
    const made = add(parent, "section");
    const head = add(made, "div", null, "head");
    const words = add(head, "div");
    add(words, "h2", title);
    if (note) add(words, "p", note, "soft");
    return [made, head];
  }
  function choice(parent, options, chosen, change) {
    const box = add(parent, "div", null, "choice");
    const buttons = options.map(([key, text]) => {
      const button = add(box, "button", text);
      button.type = "button";
      button.setAttribute("aria-pressed", String(key === chosen));
      button.addEventListener("click", () => {
        buttons.forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
        change(key);
      });
      return button;
    });
  }

  // The cells of a row are texts by `show`; a column that is a number sorts by its value.
  function table(parent, columns, rows, rest) {
    const box = add(add(parent, "div", null, "scroll"), "table");
    const head = add(add(box, "thead"), "tr");
    const body = add(box, "tbody");
    let order = null;
    const fill = () => {
      body.textContent = "";
      const sorted = order ? rows.slice().sort(order) : rows;
      sorted.forEach((row) => line(row, ""));
      if (rest) line(rest, "rest");
    };
    function line(row, className) {
      const made = add(body, "tr", null, className);
      columns.forEach((column) => {
        const cell = add(made, "td", column.show(row), column.text ? "text" : "");
        if (column.title) cell.title = column.title(row);
        if (column.bad && (column.key ? row[column.key] : column.value(row)) > 0)
          cell.classList.add("bad-text");
        if (column.share) {
          cell.classList.add("share");
          cell.style.backgroundSize = Math.min(100, 100 * column.share(row)) + "% 100%";
        }
      });
    }
    columns.forEach((column) => {
      const cell = add(head, "th", null, column.text ? "text" : "");
      cell.scope = "col";
      const button = add(cell, "button", column.name);
      button.type = "button";
      let falling = false;
      button.addEventListener("click", () => {
        falling = !falling;
        const value = (row) => {
          const found = column.value ? column.value(row) : row[column.key];
          return found === null || found === undefined ? (column.text ? "" : -Infinity) : found;
        };
        order = (one, two) => {
          const a = value(one),
            b = value(two);
          return (a < b ? -1 : a > b ? 1 : 0) * (falling ? -1 : 1);
        };
        fill();
      });
    });
    fill();
  }

"""
