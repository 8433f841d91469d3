// Draws the page of a report from the figures in it. Names are hostile text: they reach the document as text nodes
// only, and Plotly, which reads a little HTML in its labels, only with its special characters escaped.
"use strict";
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const totals = figures.totals;
  const main = document.querySelector("main");
  const COLOURS = ["#3b78e7", "#ea8a2f", "#27a07a", "#cf4d94", "#8b6be0", "#b9962c", "#35a7cc", "#dc5b5b"];
  const REST_COLOUR = "#98a3b0";

  // Texts: a value that is not there is empty, and a column of nothing but empty texts is not shown.
  const isThere = (value) => value !== null && value !== undefined;
  const texter = (write) => (value) => (isThere(value) ? write(value) : "");
  const whole = new Intl.NumberFormat("en");
  const fine = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
  const brief = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
  const number = texter((value) => whole.format(value));
  const counted = (value, noun) => number(value) + " " + noun + (value === 1 ? "" : "s");
  const rate = texter((value) => (value >= 1000 ? whole.format(Math.round(value)) : fine.format(value)));
  const bytes = texter((value) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    for (; value >= 1024 && unit < units.length - 1; unit += 1) value /= 1024;
    return fine.format(value) + " " + units[unit];
  });
  const span = texter((ms) => {
    const units = [[864e5, "d", 1728e5], [36e5, "h", 72e5], [6e4, "min", 12e4], [1e3, "s", 1e3], [1, "ms", 0]];
    const [unit, name] = units.find(([, , least]) => Math.abs(ms) >= least);
    return (ms < 0 ? "\u2212" : "") + fine.format(Math.abs(ms) / unit) + " " + name;
  });
  const moment = texter((ms) => {
    const date = new Date(ms);
    return isNaN(date) ? "" : date.toISOString().replace("T", " ").slice(0, 19) + "Z";
  });

  // Characters that would hide, or turn the direction of, what stands beside them are written out.
  const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
  const visible = (text) => text.replace(HIDDEN, (one) => "\\u{" + one.codePointAt(0).toString(16) + "}");
  const escaped = (text) => text.replace(/[&<>"']/g, (one) => "&#" + one.charCodeAt(0) + ";");
  const cut = (text, most) => (text.length <= most ? text : text.slice(0, most - 13) + "\u2026" + text.slice(-12));
  const named = (row, key) => (isThere(row[key]) ? visible(row[key]) : "(no sender id)");

  // Parts of the page.
  function add(parent, tag, text, className) {
    const made = document.createElement(tag);
    if (isThere(text)) made.textContent = text;
    if (className) made.className = className;
    return parent.appendChild(made);
  }
  function addButton(parent, text, click) {
    const made = add(parent, "button", text);
    made.type = "button";
    made.addEventListener("click", () => click(made));
    return made;
  }
  function section(parent, title, note) {
    const made = add(parent, "section");
    const head = add(made, "div", null, "head");
    const words = add(head, "div");
    add(words, "h2", title);
    if (note) add(words, "p", note, "soft");
    return [made, head];
  }
  function choice(parent, options, change) {
    const box = add(parent, "div", null, "choice");
    const press = (pressed) =>
      Array.from(box.children).forEach((one) => one.setAttribute("aria-pressed", String(one === pressed)));
    options.forEach(([key, text]) => addButton(box, text, (button) => (press(button), change(key))));
    press(box.firstChild);
  }

  // A column shows `show` of a row and sorts by its `value`; `bad` ones are of interest where they are above 0.
  function table(parent, wanted, rows, rest) {
    const all = rest ? rows.concat(rest) : rows;
    const columns = wanted.filter((one) => all.some((row) => (one.bad ? one.value(row) > 0 : one.show(row) !== "")));
    const box = add(add(parent, "div", null, "scroll"), "table");
    const head = add(add(box, "thead"), "tr");
    const body = add(box, "tbody");
    function line(row, className) {
      const made = add(body, "tr", null, className);
      columns.forEach((column) => {
        const cell = add(made, "td", column.show(row), column.text ? "text" : "");
        if (column.title) cell.title = column.title(row);
        if (column.bad && column.value(row) > 0) cell.classList.add("bad-text");
        if (!column.whole) return;
        cell.classList.add("share");
        cell.style.backgroundSize = Math.min(100, (100 * column.value(row)) / column.whole) + "% 100%";
      });
    }
    function fill(sorted) {
      body.textContent = "";
      sorted.forEach((row) => line(row, ""));
      if (rest) line(rest, "rest");
    }
    columns.forEach((column) => {
      const cell = add(head, "th", null, column.text ? "text" : "");
      cell.scope = "col";
      const value = (row) => column.value(row) ?? (column.text ? "" : -Infinity);
      let sign = 1;
      addButton(cell, column.name, () => {
        sign = -sign;
        fill(rows.slice().sort((a, b) => sign * (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0)));
      });
    });
    fill(rows);
  }
  const column = (name, key, show, more) => ({
    name: name,
    value: (row) => row[key],
    show: (row) => show(row[key]),
    ...more,
  });
  const textColumn = (name, key, show) => ({
    name: name,
    text: true,
    value: (row) => row[key],
    show: show || ((row) => visible(row[key] || "")),
  });

  // Charts.
  const redraws = [];
  const probe = add(document.body, "i");
  function colour(name) {
    probe.style.color = "var(" + name + ")";
    return getComputedStyle(probe).color;
  }
  function layout(more) {
    const axis = { gridcolor: colour("--grid"), zerolinecolor: colour("--grid"), automargin: true };
    axis.linecolor = colour("--line");
    return {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 58, r: 12, t: 12, b: 40 },
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--ink") },
      hoverlabel: {
        bgcolor: colour("--card"),
        bordercolor: colour("--line"),
        font: { color: colour("--ink") },
        namelength: -1,
      },
      legend: { orientation: "h", y: -0.16, traceorder: "normal" },
      ...more,
      xaxis: { ...axis, ...more.xaxis },
      yaxis: { ...axis, rangemode: "tozero", ...more.yaxis },
    };
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

  function header() {
    const head = add(main, "header");
    const words = add(head, "div");
    add(words, "h1", visible(figures.title));
    add(words, "p", visible(figures.source), "soft");
    const times = totals.messages ? moment(totals.first) + " to " + moment(totals.last) + ", " : "";
    const live = figures.live ? ", updated while messages come" : "";
    add(words, "p", times + "made " + moment(figures.made_ms) + live, "soft");
    addButton(head, "Light or dark", () => {
      const root = document.documentElement;
      const usual = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
      root.dataset.theme = (root.dataset.theme || usual) === "dark" ? "light" : "dark";
      redraws.forEach((redraw) => redraw());
    });
  }

  function tiles() {
    const box = add(main, "div", null, "tiles");
    const tile = (value, label, title, state) => {
      const made = add(box, "div", null, "tile " + (state || ""));
      add(made, "b", value);
      add(made, "span", label);
      if (title) made.title = title;
    };
    const watched = (value, label, title) =>
      tile(brief.format(value), label, number(value) + (title ? ": " + title : ""), value ? "bad" : "good");
    const sequences = figures.sequences.totals;
    tile(brief.format(totals.messages), "messages", number(totals.messages));
    tile(bytes(totals.bytes), "payload", number(totals.bytes) + " bytes");
    tile(rate(totals.messages / totals.span_s), "messages a second on average");
    tile(brief.format(figures.topics.count), "topics", number(figures.topics.count));
    tile(brief.format(figures.clients.count), "clients", number(figures.clients.count));
    if (isThere(totals.latency_p50_ms)) {
      tile(span(totals.latency_p50_ms), "median latency");
      tile(span(totals.latency_p99_ms), "latency, 99 of 100");
      tile(span(totals.latency_max_ms), "largest latency");
    }
    watched(totals.expired, "expired", "their time to live was over");
    watched(totals.redeliveries + totals.rejected, "dead for another reason", "redelivered too often, or rejected");
    if (sequences.numbered) {
      watched(sequences.missing, "missing numbers");
      watched(sequences.duplicates, "duplicates");
    }
    if (figures.behind_watermark)
      watched(figures.behind_watermark, "behind the watermark", "came when their window was closed");
    if (!totals.timed) return;
    watched(totals.late, "late");
    watched(totals.negative, "sent in the future", "the sender's clock is ahead of the node's");
  }

  function rates() {
    const width_s = figures.shown_window_s;
    const note = "Per second, in windows of " + span(width_s * 1000) + "; the first and the last one may be cut off.";
    const [box, head] = section(main, "Rate", note);
    const state = { by: "topic", key: "messages" };
    const starts = grid();
    // The last window is as wide as the others.
    const edges = starts.concat(starts.slice(-1).map((start) => start + width_s * 1000));
    const redraw = chart(box, "Rate over time", () => {
      const inMessages = state.key === "messages";
      const traces = series(state.by).map(([label, full, points, own]) => {
        const found = new Map(points.map((point) => [point[0], point[inMessages ? 1 : 2] / width_s]));
        return {
          type: "scatter",
          mode: "lines",
          stackgroup: "all",
          name: escaped(label),
          x: edges,
          y: edges.map((_, at) => found.get(starts[Math.min(at, starts.length - 1)]) || 0),
          line: { width: 0.8, color: own, shape: "hv" },
          fillcolor: own,
          text: edges.map(() => escaped(full)),
          hovertemplate:
            "%{text}<br>%{x|%Y-%m-%d %H:%M:%S}: %{y:,.4~g} " + (inMessages ? "messages/s" : "B/s") + "<extra></extra>",
        };
      });
      const most = Math.max(...traces.map((trace) => Math.max(...trace.y)));
      const yaxis = { tickformat: most < 1 ? "~g" : "~s", ticksuffix: inMessages ? "" : "B" };
      return [traces, { xaxis: { type: "date" }, yaxis: yaxis, showlegend: true }];
    });
    const change = (name) => (value) => ((state[name] = value), redraw());
    choice(head, [["topic", "By topic"], ["client", "By client"]], change("by"));
    choice(head, [["messages", "Messages"], ["bytes", "Bytes"]], change("key"));
  }
  function grid() {
    const step = figures.shown_window_s * 1000;
    const starts = figures.windows.map((one) => one.start_ms);
    const many = starts.length ? (starts[starts.length - 1] - starts[0]) / step + 1 : 0;
    return many > 2000 ? starts : Array.from({ length: many }, (_, place) => starts[0] + place * step);
  }
  // The busiest have a colour each, all others are one series.
  function series(by) {
    const all = figures[by + "_windows"];
    const shown = all.filter((one) => !one.rest).slice(0, COLOURS.length);
    const others = all.filter((one) => !shown.includes(one));
    const made = shown.map((one, place) => {
      const full = named(one, by);
      return [cut(full, 42), full, one.points, COLOURS[place]];
    });
    if (!others.length) return made;
    const sums = new Map();
    others.flatMap((one) => one.points).forEach(([start, messages, size]) => {
      const sum = sums.get(start) || [start, 0, 0];
      sums.set(start, [start, sum[1] + messages, sum[2] + size]);
    });
    const label = "the other " + number(figures[by + "s"].count - shown.length);
    return made.concat([[label, label, Array.from(sums.values()), REST_COLOUR]]);
  }

  function latencies() {
    const pair = add(main, "div", null, "pair");
    const [box, head] = section(pair, "Latency over time", "From the sender's clock to the spool of the node.");
    let type = "log";
    const lines = [
      ["latency_p50_ms", "median", COLOURS[2]],
      ["latency_p90_ms", "90 of 100", COLOURS[0]],
      ["latency_p99_ms", "99 of 100", COLOURS[1]],
      ["latency_max_ms", "largest", COLOURS[7]],
    ];
    const starts = grid();
    const found = new Map(figures.windows.map((one) => [one.start_ms, one]));
    const redraw = chart(box, "Latency over time", () => [
      lines.map(([key, name, own]) => {
        const values = starts.map((start) => (found.get(start) || {})[key] ?? null);
        return {
          type: "scatter",
          mode: starts.length > 1 ? "lines" : "markers",
          name: name,
          x: starts,
          y: values.map((value) => (type === "log" && value === 0 ? ZERO_MS : value)),
          text: values.map(span),
          line: { width: 1.8, color: own },
          marker: { color: own, size: 9 },
          hovertemplate: name + ": %{text}<extra></extra>",
        };
      }),
      {
        hovermode: "x unified",
        xaxis: { type: "date" },
        yaxis: type === "log" ? logarithmic(lines.map(([key]) => key)) : { ticksuffix: " ms", tickformat: "~s" },
      },
    ]);
    choice(head, [["log", "Logarithmic"], ["linear", "Linear"]], (value) => ((type = value), redraw()));
    const ahead = " with a clock that is ahead (by up to " + span(Math.abs(Math.min(0, totals.latency_min_ms))) + ")";
    const note =
      totals.negative || totals.untimed
        ? number(totals.negative) + ahead + " and " + number(totals.untimed) + " without a sender's time are left out."
        : "All messages.";
    bars(pair, "Latency", note, figures.latencies, span, COLOURS[0]);
  }
  // 0 has no logarithm: it is drawn below 1 ms, the least that a clock of a message tells.
  const ZERO_MS = 0.5;
  const POWERS = Array.from({ length: 15 }, (_, power) => 10 ** power);
  const STEPS_MS = [ZERO_MS].concat(POWERS.flatMap((power) => [power, 2 * power, 5 * power]));
  // Labels from the step below the least value to the one above the most, so that there are always two of them.
  function logarithmic(keys) {
    const values = figures.windows.flatMap((one) => keys.map((key) => one[key])).filter(isThere);
    const [least, most] = [Math.min(...values), Math.max(...values)];
    const steps = STEPS_MS.filter(
      (_, at) => (STEPS_MS[at + 1] ?? Infinity) >= least && (STEPS_MS[at - 1] ?? 0) <= most,
    );
    const shown = steps.length > 10 ? steps.filter((step) => Number.isInteger(Math.log10(step))) : steps;
    return {
      type: "log",
      range: [Math.log10(steps[0]), Math.log10(steps[steps.length - 1])],
      tickvals: shown,
      ticktext: shown.map((ms) => (ms < 1000 ? Math.floor(ms) + " ms" : number(ms / 1000) + " s")),
    };
  }
  function bars(parent, title, note, distribution, unit, own) {
    const [box] = section(parent, title, note);
    const places = distribution.map((_, place) => place);
    const labels = distribution.map((bar) => (isThere(bar.upto) ? "\u2264 " + unit(bar.upto) : "> " + unit(bar.above)));
    const ticks = places.filter((place) => place % Math.ceil(labels.length / 8) === 0);
    const all = distribution.reduce((sum, bar) => sum + bar.messages, 0);
    const range = (bar) => unit(bar.above) + " to " + (isThere(bar.upto) ? unit(bar.upto) : "\u221e");
    const trace = {
      type: "bar",
      x: places,
      y: distribution.map((bar) => bar.messages),
      marker: { color: own },
      text: distribution.map((bar, place) => (isThere(bar.above) ? range(bar) : labels[place])),
      customdata: distribution.map((bar) => fine.format((100 * bar.messages) / all)),
      textposition: "none",
      hovertemplate: "%{text}: %{y:,} messages, %{customdata} %<extra></extra>",
    };
    const xaxis = { tickvals: ticks, ticktext: ticks.map((place) => labels[place]), tickangle: 0, showgrid: false };
    chart(box, title, () => [[trace], { bargap: 0.06, xaxis: xaxis, yaxis: { tickformat: "~s" } }]);
  }

  function sizes() {
    const pair = add(main, "div", null, "pair");
    const [least, median, most] = ["min", "p50", "max"].map((name) => bytes(totals["size_" + name + "_bytes"]));
    const note = "Smallest " + least + ", median " + median + ", largest " + most + ".";
    bars(pair, "Payload sizes", note, figures.sizes, bytes, COLOURS[2]);
    const rows = figures.causes;
    if (!rows.length) return;
    const [box] = section(
      pair,
      "Moved and dead messages",
      "By where they are, where they came from, and why. What expired where there is no dead message queue " +
        "leaves no trace in a queue.",
    );
    const from = (row) => visible((row.origin_kind || "") + " " + (row.origin_endpoint || ""));
    const columns = [
      textColumn("why", "origin_reason", (row) => visible(row.origin_reason || "(not said)")),
      textColumn("from", "origin_endpoint", from),
      textColumn("found in", "queue"),
      column("messages", "messages", number, { whole: rows[0].messages }),
    ];
    table(box, columns, rows);
  }

  function parties(key, title, note) {
    const found = figures[key + "s"];
    const busiest = "The busiest " + number(found.rows.length) + " of " + number(found.count) + ". ";
    const [box] = section(main, title, (found.rest ? busiest : "") + note);
    const others = "the other " + number(found.count - found.rows.length);
    const columns = [
      textColumn(key, key, (row) => (row === found.rest ? others : named(row, key))),
      column("messages", "messages", number, { whole: totals.messages }),
      column("a second", "messages", (value) => rate(value / totals.span_s)),
      column("at most", "peak_messages_per_s", rate, {
        title: () => "in the busiest window of " + span(figures.window_s * 1000),
      }),
      column("payload", "bytes", bytes),
      column("size, median", "size_p50_bytes", bytes),
      column("size, largest", "size_max_bytes", bytes),
      column("latency, median", "latency_p50_ms", span),
      column("latency, 90\u00a0%", "latency_p90_ms", span),
      column("latency, 99\u00a0%", "latency_p99_ms", span),
      column("latency, largest", "latency_max_ms", span),
      column("late", "late", number, { bad: true }),
      column("expired", "expired", number, { bad: true }),
      {
        name: "dead",
        bad: true,
        value: (row) => row.redeliveries + row.rejected,
        show: (row) => number(row.redeliveries + row.rejected),
        title: (row) => number(row.redeliveries) + " redelivered too often, " + number(row.rejected) + " rejected",
      },
      column("clock ahead", "negative", number, { bad: true }),
    ];
    table(box, columns, found.rows, found.rest);
  }

  function numbering() {
    const { totals: sums, rows, gaps } = figures.sequences;
    const whole = counted(sums.numbered, "number") + " of " + counted(sums.publishers, "publisher");
    const troubles = [
      number(sums.missing) + " missing in " + counted(sums.gaps, "gap"),
      counted(sums.duplicates, "duplicate"),
      number(sums.out_of_order) + " out of order",
      counted(sums.restarts, "restart"),
    ];
    const note = whole + ": " + troubles.join(", ") + ". Those with most of them:";
    const [box] = section(main, "Publishers' numbering", note);
    const names = [textColumn("client", "client", (row) => named(row, "client")), textColumn("topic", "topic")];
    const columns = [
      column("numbers", "numbered", number),
      column("missing", "missing", number, { bad: true }),
      column("gaps", "gaps", number, { bad: true }),
      column("duplicates", "duplicates", number, { bad: true }),
      column("out of order", "out_of_order", number),
      column("restarts", "restarts", number),
      column("highest", "highest", number),
    ];
    table(box, names.concat(columns), rows);
    if (!gaps.length) return;
    const [below] = section(main, "Largest gaps", "Numbers that never came, and when the next one did.");
    const more = [
      column("missing", "missing", number, { whole: gaps[0].missing }),
      column("from", "first", number),
      column("to", "last", number),
      column("noticed", "at", moment),
    ];
    table(below, names.concat(more), gaps);
  }

  function glossary() {
    const [box] = section(main, "What is counted");
    const list = add(box, "dl");
    figures.glossary.forEach(([term, meaning]) => {
      add(list, "dt", term);
      add(list, "dd", meaning);
    });
  }

  header();
  if (totals.messages) {
    tiles();
    rates();
    if (isThere(totals.latency_p50_ms)) latencies();
    sizes();
    parties("topic", "Topics", "A click on the head of a column sorts.");
    parties("client", "Clients", "By the sender id that they put into their messages.");
    if (figures.sequences.totals.numbered) numbering();
  } else {
    add(add(main, "section"), "p", "There is no message yet.");
  }
  glossary();
  redraws.forEach((redraw) => redraw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach((redraw) => redraw()));
})();
