"""What the page of a report shows, section by section: the second half of its script, JavaScript as a browser wants it.

It stands on `angarium.pipeline.report.drawing`, and on the figures that `angarium.pipeline.report.figures` collects.
"""

from typing import Final

SECTIONS: Final = r"""
  const totals = figures.totals;
  const named = (row, key) =>
    row[key] === null || row[key] === undefined ? "(no sender id)" : visible(row[key]);

  function header() {
    const head = add(main, "header");
    const words = add(head, "div");
    add(words, "h1", visible(figures.title));
    add(words, "p", visible(figures.source), "soft");
    const times = totals.messages ? moment(totals.first) + " to " + moment(totals.last) + ", " : "";
    add(
      words,
      "p",
      times + "made " + moment(figures.made_ms) + (figures.live ? ", updated while messages come" : ""),
      "soft",
    );
    const button = add(head, "button", "Light or dark");
    button.type = "button";
    button.addEventListener("click", () => {
      const root = document.documentElement;
      const dark = root.dataset.theme
        ? root.dataset.theme === "dark"
        : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
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
    if (totals.timed) {
      tile(span(totals.latency_p50_ms), "median latency");
      tile(span(totals.latency_p99_ms), "latency, 99 of 100");
      tile(span(totals.latency_max_ms), "largest latency");
    }
    watched(totals.expired, "expired", "their time to live was over");
    watched(
      totals.redeliveries + totals.rejected,
      "dead for another reason",
      "redelivered too often, or rejected",
    );
    if (sequences.numbered) {
      watched(sequences.missing, "missing numbers");
      watched(sequences.duplicates, "duplicates");
    }
    watched(totals.late, "late");
    if (figures.behind_watermark)
      watched(figures.behind_watermark, "behind the watermark", "came when their window was closed");
    watched(totals.negative, "sent in the future", "the sender's clock is ahead of the node's");
  }

  function rates() {
    const width_s = figures.shown_window_s;
    const [box, head] = section(
      main,
      "Rate",
      "Per second, in windows of " + span(width_s * 1000) + "; the first and the last one may be cut off.",
    );
    const state = { by: "topic", key: "messages" };
    const starts = grid();
    // The last window is as wide as the others.
    const edges = starts.concat(starts.slice(-1).map((start) => start + width_s * 1000));
    const redraw = chart(box, "Rate over time", () => {
      const traces = series(state.by).map(([label, full, points, colour]) => {
        const found = new Map(
          points.map((point) => [point[0], point[state.key === "messages" ? 1 : 2] / width_s]),
        );
        return {
          type: "scatter",
          mode: "lines",
          stackgroup: "all",
          name: escaped(label),
          x: edges,
          y: edges.map((_, at) => found.get(starts[Math.min(at, starts.length - 1)]) || 0),
          line: { width: 0.8, color: colour, shape: "hv" },
          fillcolor: colour,
          text: edges.map(() => escaped(full)),
          hovertemplate:
            "%{text}<br>%{x|%Y-%m-%d %H:%M:%S}: %{y:,.4~g} " +
            (state.key === "messages" ? "messages/s" : "B/s") +
            "<extra></extra>",
        };
      });
      const most = Math.max(...traces.map((trace) => Math.max(...trace.y)));
      return [
        traces,
        {
          xaxis: { type: "date" },
          yaxis: { tickformat: most < 1 ? "~g" : "~s", ticksuffix: state.key === "messages" ? "" : "B" },
          showlegend: true,
        },
      ];
    });
    const change = (name) => (value) => {
      state[name] = value;
      redraw();
    };
    choice(
      head,
      [
        ["topic", "By topic"],
        ["client", "By client"],
      ],
      "topic",
      change("by"),
    );
    choice(
      head,
      [
        ["messages", "Messages"],
        ["bytes", "Bytes"],
      ],
      "messages",
      change("key"),
    );
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
    if (others.length) {
      const sums = new Map();
      others.forEach((one) =>
        one.points.forEach(([start, messages, size]) => {
          const sum = sums.get(start) || [start, 0, 0];
          sum[1] += messages;
          sum[2] += size;
          sums.set(start, sum);
        }),
      );
      const label = "the other " + number(figures[by + "s"].count - shown.length);
      made.push([label, label, Array.from(sums.values()), REST_COLOUR]);
    }
    return made;
  }

  function latencies() {
    const pair = add(main, "div", null, "pair");
    const [box, head] = section(
      pair,
      "Latency over time",
      "From the sender's clock to the spool of the node.",
    );
    let type = "log";
    const lines = [
      ["latency_p50_ms", "median", "#27a07a"],
      ["latency_p90_ms", "90 of 100", "#3b78e7"],
      ["latency_p99_ms", "99 of 100", "#ea8a2f"],
      ["latency_max_ms", "largest", "#dc5b5b"],
    ];
    const starts = grid();
    const found = new Map(figures.windows.map((one) => [one.start_ms, one]));
    const redraw = chart(box, "Latency over time", () => [
      lines.map(([key, name, colour]) => {
        const values = starts.map((start) => {
          const one = found.get(start);
          return one ? one[key] : null;
        });
        return {
          type: "scatter",
          mode: starts.length > 1 ? "lines" : "markers",
          name: name,
          x: starts,
          y: values.map((value) => (type === "log" && value === 0 ? 0.5 : value)),
          text: values.map((value) => span(value)),
          line: { width: 1.8, color: colour },
          marker: { color: colour, size: 9 },
          hovertemplate: name + ": %{text}<extra></extra>",
        };
      }),
      {
        hovermode: "x unified",
        xaxis: { type: "date" },
        yaxis: {
          type: type,
          ticksuffix: " ms",
          rangemode: type === "log" ? "normal" : "tozero",
          tickformat: "~s",
          dtick: type === "log" ? 1 : undefined,
        },
      },
    ]);
    choice(
      head,
      [
        ["log", "Logarithmic"],
        ["linear", "Linear"],
      ],
      "log",
      (value) => {
        type = value;
        redraw();
      },
    );
    const note =
      totals.negative || totals.untimed
        ? number(totals.negative) +
          " with a clock that is ahead (by up to " +
          span(Math.abs(Math.min(0, totals.latency_min_ms || 0))) +
          ") and " +
          number(totals.untimed) +
          " without a sender's time are left out."
        : "All messages.";
    bars(pair, "Latency", note, figures.latencies, span, COLOURS[0]);
  }
  function bars(parent, title, note, distribution, unit, colour) {
    const [box] = section(parent, title, note);
    const labels = distribution.map((bar) =>
      bar.upto === null ? "> " + unit(bar.above) : "\u2264 " + unit(bar.upto),
    );
    const ticks = labels
      .map((_, place) => place)
      .filter((place) => place % Math.ceil(labels.length / 8) === 0);
    const all = distribution.reduce((sum, bar) => sum + bar.messages, 0);
    chart(box, title, () => [
      [
        {
          type: "bar",
          x: labels.map((_, place) => place),
          y: distribution.map((bar) => bar.messages),
          marker: { color: colour },
          text: distribution.map((bar, place) =>
            bar.above === null
              ? labels[place]
              : unit(bar.above) + " to " + (bar.upto === null ? "\u221e" : unit(bar.upto)),
          ),
          customdata: distribution.map((bar) => fine.format((100 * bar.messages) / all)),
          textposition: "none",
          hovertemplate: "%{text}: %{y:,} messages, %{customdata} %<extra></extra>",
        },
      ],
      {
        bargap: 0.06,
        xaxis: {
          tickvals: ticks,
          ticktext: ticks.map((place) => labels[place]),
          tickangle: 0,
          type: "linear",
          showgrid: false,
        },
        yaxis: { tickformat: "~s" },
      },
    ]);
  }

  function causes() {
    const rows = figures.causes;
    const pair = add(main, "div", null, "pair");
    bars(
      pair,
      "Payload sizes",
      "Smallest " +
        bytes(totals.size_min_bytes) +
        ", median " +
        bytes(totals.size_p50_bytes) +
        ", largest " +
        bytes(totals.size_max_bytes) +
        ".",
      figures.sizes,
      bytes,
      COLOURS[2],
    );
    const [box] = section(
      pair,
      "Moved and dead messages",
      "By where they are, where they came from, and why. What expired where there is no dead message queue " +
        "leaves no trace in a queue.",
    );
    if (!rows.length) {
      add(box, "p", "None of these messages came from another endpoint.", "soft");
      return;
    }
    table(
      box,
      [
        {
          name: "why",
          key: "origin_reason",
          text: true,
          show: (row) => visible(row.origin_reason || "(not said)"),
        },
        {
          name: "from",
          text: true,
          value: (row) => row.origin_endpoint,
          show: (row) => visible((row.origin_kind || "") + " " + (row.origin_endpoint || "")),
        },
        { name: "found in", key: "queue", text: true, show: (row) => visible(row.queue || "") },
        {
          name: "messages",
          key: "messages",
          show: (row) => number(row.messages),
          share: (row) => row.messages / rows[0].messages,
        },
      ],
      rows,
    );
  }

  function parties(key, title, note) {
    const found = figures[key + "s"];
    const [box] = section(
      main,
      title,
      found.rest
        ? "The busiest " + number(found.rows.length) + " of " + number(found.count) + ". " + note
        : note,
    );
    const columns = [
      {
        name: key,
        key: key,
        text: true,
        show: (row) =>
          row === found.rest ? "the other " + number(found.count - found.rows.length) : named(row, key),
      },
      {
        name: "messages",
        key: "messages",
        show: (row) => number(row.messages),
        share: (row) => row.messages / totals.messages,
      },
      { name: "a second", value: (row) => row.messages, show: (row) => rate(row.messages / totals.span_s) },
      {
        name: "at most",
        key: "peak_messages_per_s",
        show: (row) => rate(row.peak_messages_per_s),
        title: () => "in the busiest window of " + span(figures.window_s * 1000),
      },
      { name: "payload", key: "bytes", show: (row) => bytes(row.bytes) },
      { name: "median size", key: "size_p50_bytes", show: (row) => bytes(row.size_p50_bytes) },
      { name: "largest", key: "size_max_bytes", show: (row) => bytes(row.size_max_bytes) },
      { name: "latency: median", key: "latency_p50_ms", show: (row) => span(row.latency_p50_ms) },
      { name: "90 of 100", key: "latency_p90_ms", show: (row) => span(row.latency_p90_ms) },
      { name: "99 of 100", key: "latency_p99_ms", show: (row) => span(row.latency_p99_ms) },
      { name: "largest", key: "latency_max_ms", show: (row) => span(row.latency_max_ms) },
      { name: "late", key: "late", bad: true, show: (row) => number(row.late) },
      { name: "expired", key: "expired", bad: true, show: (row) => number(row.expired) },
      {
        name: "dead",
        value: (row) => row.redeliveries + row.rejected,
        bad: true,
        show: (row) => number(row.redeliveries + row.rejected),
        title: (row) =>
          number(row.redeliveries) + " redelivered too often, " + number(row.rejected) + " rejected",
      },
      { name: "clock ahead", key: "negative", bad: true, show: (row) => number(row.negative) },
    ];
    table(box, columns, found.rows, found.rest);
  }

  function numbering() {
    const found = figures.sequences;
    const sums = found.totals;
    if (!sums.numbered) {
      const [box] = section(main, "Publishers' numbering");
      add(
        box,
        "p",
        "No message has both a sender id and a sequence number, so nothing can be said about gaps and duplicates.",
        "soft",
      );
      return;
    }
    const [box] = section(
      main,
      "Publishers' numbering",
      counted(sums.numbered, "number") +
        " of " +
        counted(sums.publishers, "publisher") +
        ": " +
        number(sums.missing) +
        " missing in " +
        counted(sums.gaps, "gap") +
        ", " +
        counted(sums.duplicates, "duplicate") +
        ", " +
        number(sums.out_of_order) +
        " out of order, " +
        counted(sums.restarts, "restart") +
        ". Those with most of them:",
    );
    const topic = found.rows.some((row) => row.topic !== null)
      ? [{ name: "topic", key: "topic", text: true, show: (row) => visible(row.topic || "") }]
      : [];
    const counts = [
      ["numbered", "numbers", false],
      ["missing", "missing", true],
      ["gaps", "gaps", true],
      ["duplicates", "duplicates", true],
      ["out_of_order", "out of order", false],
      ["restarts", "restarts", false],
      ["highest", "highest", false],
    ];
    table(
      box,
      [
        { name: "client", key: "client", text: true, show: (row) => named(row, "client") },
        ...topic,
        ...counts.map(([key, name, bad]) => ({
          name: name,
          key: key,
          bad: bad,
          show: (row) => number(row[key]),
        })),
      ],
      found.rows,
    );
    if (!found.gaps.length) return;
    const [gaps] = section(main, "Largest gaps", "Numbers that never came, and when the next one did.");
    table(
      gaps,
      [
        { name: "client", key: "client", text: true, show: (row) => named(row, "client") },
        ...topic,
        {
          name: "missing",
          key: "missing",
          show: (row) => number(row.missing),
          share: (row) => row.missing / found.gaps[0].missing,
        },
        { name: "from", key: "first", show: (row) => number(row.first) },
        { name: "to", key: "last", show: (row) => number(row.last) },
        { name: "noticed", key: "at", show: (row) => moment(row.at) },
      ],
      found.gaps,
    );
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
    if (totals.timed) latencies();
    causes();
    parties("topic", "Topics", "A click on the head of a column sorts.");
    parties("client", "Clients", "By the sender id that they put into their messages.");
    numbering();
  } else {
    add(add(main, "section"), "p", "There is no message yet.");
  }
  glossary();
  redraws.forEach((redraw) => redraw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    redraws.forEach((redraw) => redraw()),
  );
})();
"""
