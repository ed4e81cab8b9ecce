// Draws the page's charts with ECharts from the JSON in the page, and connects map, viewer and controls.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const touch = matchMedia("(pointer: coarse)").matches;
  const charts = [];
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const control = (entry, role) => document.querySelector(`[data-entry="${entry}"][data-role="${role}"]`);

  const number = (value, digits = 4) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    const text = Math.abs(value) >= 1000 && Math.abs(value) < 1e9 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits)));
    return text.replace("-", "−");
  };
  const percent = (share) => (share === null ? "–" : `${number(100 * share, 3)} %`);

  // Text from files only ever becomes text, never HTML.
  const element = (tag, text, className) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const tip = (...lines) => {
    const box = element("div");
    lines.filter(Boolean).forEach((line) => box.append(element("div", line)));
    return box;
  };
  const option = (select, value, text) => {
    const made = element("option", text);
    made.value = value;
    select.append(made);
  };

  const axis = (more) => ({
    type: "value", scale: true,
    axisLine: { show: false }, axisTick: { show: false },
    axisLabel: { color: color("quiet"), fontSize: 11, hideOverlap: true, formatter: (value) => number(value) },
    splitLine: { lineStyle: { color: color("line") } },
    nameTextStyle: { color: color("quiet"), fontSize: 11 },
    ...more,
  });
  // Ends that are no round numbers carry no label.
  const between = (min, max) => ({ min, max, axisLabel: { ...axis().axisLabel, showMinLabel: false, showMaxLabel: false } });
  const shares = (...series) => axis({ scale: false, min: 0, ...(Math.max(...series.flat()) > 0.8 ? { max: 1, interval: 0.25 } : {}), splitNumber: 3, axisLabel: { color: color("quiet"), fontSize: 11, formatter: percent } });
  const base = (more) => ({
    animation: false,
    textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: color("ink") },
    grid: { left: 8, right: 14, top: 14, bottom: 8, containLabel: true },
    tooltip: {
      confine: true, backgroundColor: color("paper"), borderColor: color("line"), padding: [6, 10],
      textStyle: { color: color("ink"), fontSize: 12 }, extraCssText: "max-width:20rem;white-space:normal;box-shadow:0 2px 12px #0002",
    },
    ...more,
  });
  const along = (formatter) => ({ ...base().tooltip, trigger: "axis", axisPointer: { type: "line", lineStyle: { color: color("quiet") } }, formatter });

  // A histogram as steps on an axis of numbers.
  const steps = (edges, share) => [...share.map((value, at) => [edges[at], value]), [edges[edges.length - 1], share[share.length - 1]]];
  const stepped = (name, values, tone, opacity) => ({
    name, type: "line", step: "end", data: values, symbol: "none", color: tone,
    lineStyle: { width: 1.5, color: tone }, areaStyle: { color: tone, opacity },
  });

  const histogram = (found, _, whole = false) => {
    const series = [];
    if (found.before) series.push(stepped("logged", steps(found.edges, found.before.share), color("logged"), 0.35));
    if (found.after) series.push(stepped("stitched", steps(found.edges, found.after.share), color("accent"), 0.25));
    const inBin = (items) => {
      const at = Math.min(items[0].dataIndex, found.edges.length - 2);
      const shown = items.map((item) => `${item.seriesName}: ${percent(item.value[1])} of the trajectories`);
      return tip(`${number(found.edges[at])} to ${number(found.edges[at + 1])}`, ...shown);
    };
    const ends = { ...between(found.edges[0], found.edges[found.edges.length - 1]), minInterval: whole ? 1 : 0 };
    return base({ xAxis: axis({ ...ends, splitLine: { show: false } }), yAxis: shares(found.before?.share ?? [], found.after?.share ?? []), series, tooltip: along(inBin) });
  };

  const limitLine = (at, key, label) => ({
    silent: true, symbol: "none", label: { formatter: label, color: color("quiet"), fontSize: 11, position: key === "xAxis" ? "end" : "insideEndTop" },
    lineStyle: { color: color("ink"), type: "dashed", width: 1 }, data: [{ [key]: at }],
  });

  const consistency = (found) => {
    const series = stepped("jumps", steps(found.edges, found.share), color("accent"), 0.25);
    if (found.limit !== null) series.markLine = limitLine(found.limit, "xAxis", "limit");
    const inBin = (items) => {
      const at = Math.min(items[0].dataIndex, found.share.length - 1);
      return tip(`${number(found.edges[at])} to ${number(found.edges[at + 1])}`, `${percent(found.share[at])} of the jumps`);
    };
    const ends = between(0, found.edges[found.edges.length - 1]);
    const grid = { ...base().grid, top: 24, right: 24 };
    return base({ grid, xAxis: axis({ ...ends, splitLine: { show: false } }), yAxis: shares(found.share), series: [series], tooltip: along(inBin) });
  };

  // A line with a band around it; `rows` are [x, low, middle, high].
  const banded = (rows, tone) => {
    const known = rows.filter((row) => row[1] !== null && row[3] !== null);
    const hidden = { type: "line", symbol: "none", stack: "band", stackStrategy: "all", silent: true, lineStyle: { opacity: 0 } };
    return [
      { ...hidden, data: known.map((row) => [row[0], row[1]]) },
      { ...hidden, data: known.map((row) => [row[0], row[3] - row[1]]), areaStyle: { color: tone, opacity: 0.18 } },
      { name: "middle", type: "line", data: rows.map((row) => [row[0], row[2]]), symbolSize: 5, color: tone, lineStyle: { color: tone, width: 2 } },
    ];
  };

  const calibration = (found) => {
    const shown = (items) => {
      const row = found[items[0].dataIndex];
      return tip(`tenth ${items[0].dataIndex + 1} of the possible jumps`, `true miss: ${percent(row[1])} of the length`, `half are between ${percent(row[0])} and ${percent(row[2])}`);
    };
    return base({
      xAxis: axis({ min: 1, max: Math.max(found.length, 2), interval: 1, splitLine: { show: false } }), yAxis: shares([]),
      series: banded(found.map((row, at) => [at + 1, ...row]), color("accent")), tooltip: along(shown),
    });
  };

  const doubt = (found) => {
    const shown = (items) => {
      const [apart, low, middle, high] = found[items[0].dataIndex];
      return tip(`members apart by ${number(apart, 3)}`, `true miss ${number(middle, 3)}`, `half are between ${number(low, 3)} and ${number(high, 3)}`);
    };
    return base({
      grid: { ...base().grid, bottom: 22 },
      xAxis: axis({ name: "members apart by", nameLocation: "middle", nameGap: 24, splitLine: { show: false } }), yAxis: axis({ scale: false, min: 0, splitNumber: 3 }),
      series: banded(found, color("accent")), tooltip: along(shown),
    });
  };

  const scores = (found) => {
    if (found.steps.length === 1) return compare({ unit: found.unit, runs: [{ name: "", scores: found.scores[0], seeds: found.seeds, iqm: found.iqm[0], data: found.data }] });
    const dots = found.steps.flatMap((step, at) => found.scores[at].map((score, seed) => [step, score, found.seeds[seed]]));
    const lines = banded(found.steps.map((step, at) => [step, found.iqm[at].low, found.iqm[at].value, found.iqm[at].high]), color("accent"));
    lines[2].markLine = limitLine(found.data, "yAxis", "learned from");
    lines[2].tooltip = { formatter: (item) => tip(`${number(item.value[0])} steps`, `interquartile mean ${number(item.value[1])}`) };
    const seeds = {
      name: "seeds", type: "scatter", data: dots, symbolSize: 7, itemStyle: { color: color("deep"), opacity: 0.55 },
      tooltip: { formatter: (item) => tip(`seed ${item.value[2]}`, `${number(item.value[0])} steps`, `${found.unit} ${number(item.value[1])}`) },
    };
    const low = Math.min(found.data, ...dots.map((dot) => dot[1])), high = Math.max(found.data, ...dots.map((dot) => dot[1]));
    const room = 0.05 * (high - low || 1);
    return base({
      grid: { left: 8, right: 20, top: 24, bottom: 26, containLabel: true },
      xAxis: axis({ name: "gradient steps", nameLocation: "middle", nameGap: 26, splitLine: { show: false } }),
      yAxis: axis({ name: found.unit, ...between(low - room, high + room) }), series: [...lines, seeds],
    });
  };

  const curves = (found, entry) => {
    const metric = control(entry, "metric").value;
    const shown = (items) => tip(`${number(items[0].value[0])} steps`, `${metric.replaceAll("_", " ")}: ${number(items[0].value[1])}`);
    const line = { type: "line", symbol: "none", data: found.steps.map((step, at) => [step, found.metrics[metric][at]]), color: color("accent"), lineStyle: { width: 1.5 } };
    return base({ xAxis: axis({ splitLine: { show: false } }), yAxis: axis(), series: [line], tooltip: along(shown) });
  };

  const compare = (found) => {
    const rows = found.runs.map((run) => run.name);
    const dots = found.runs.flatMap((run, row) => run.scores.map((score) => [score, row]));
    const intervals = found.runs.flatMap((run, row) => (run.iqm.low === null ? [] : [[{ coord: [run.iqm.low, row] }, { coord: [run.iqm.high, row] }]]));
    const mark = (name, values, size, tone) => ({
      name, type: "scatter", data: values, symbol: "rect", symbolSize: size, itemStyle: { color: tone },
      tooltip: { formatter: (item) => tip(rows[item.value[1]], `${name}: ${number(item.value[0])}`) },
    });
    return base({
      grid: { left: 8, right: 20, top: 8, bottom: 26, containLabel: true },
      xAxis: axis({ name: found.unit, nameLocation: "middle", nameGap: 26 }),
      yAxis: {
        type: "category", data: rows, inverse: true, axisLine: { show: false }, axisTick: { show: false },
        axisLabel: { color: color("ink"), width: 150, overflow: "truncate" },
      },
      series: [
        { type: "scatter", data: [], markLine: { silent: true, symbol: "none", label: { show: false }, lineStyle: { color: color("accent"), width: 8, opacity: 0.3, type: "solid" }, data: intervals } },
        mark("mean of what they learned from", found.runs.map((run, row) => [run.data, row]), [2, 22], color("logged")),
        mark("interquartile mean", found.runs.map((run, row) => [run.iqm.value, row]), [4, 22], color("accent")),
        {
          name: "seed", type: "scatter", data: dots, symbolSize: 8, itemStyle: { color: color("deep"), opacity: 0.6 },
          tooltip: { formatter: (item) => tip(rows[item.value[1]], `one seed: ${number(item.value[0])}`) },
        },
      ],
    });
  };

  // The map. Values become a ramp of seven colours, each with as many states.
  const RAMP = 7;
  const mixed = (from, to, share) => {
    const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    const [a, b] = [parts(from), parts(to)];
    return `rgb(${a.map((value, at) => Math.round(value + (b[at] - value) * share)).join(",")})`;
  };
  const ramp = () => Array.from({ length: RAMP }, (_, at) => mixed(color("pale"), color("deep"), at / (RAMP - 1)));
  const viewed = (entry) => data.entries[entry].viewer.trajectories[Number(control(entry, "viewed").value)];
  const filtered = (entry) => {
    const chosen = control(entry, "trajectory").value;
    return chosen === "" ? null : data.entries[entry].viewer.trajectories[Number(chosen)];
  };
  const cursorPlace = (entry) => {
    const shown = data.entries[entry].viewer.moved ? viewed(entry) : null;
    if (!shown) return [];
    const step = Number(control(entry, "step").value);
    let at = shown.point.findIndex((point) => point >= step);
    if (at < 0) at = shown.point.length - 1;
    return [[shown.x[at], shown.y[at]]];
  };
  const arrowsOf = (trajectory) =>
    trajectory.jumps.map((jump) => ({ jump, at: trajectory.point.indexOf(jump.at), to: trajectory.point.indexOf(jump.at + 1) }))
      .filter((arrow) => arrow.at >= 0 && arrow.to >= 0)
      .map((arrow) => [
        { coord: [trajectory.x[arrow.at], trajectory.y[arrow.at]], lines: jumpLines(arrow.jump) },
        { coord: [trajectory.x[arrow.to], trajectory.y[arrow.to]] },
      ]);
  // What jump tests measured, as a reader says it.
  const SCORES = {
    consistency: ["predicted miss, beyond the usual", (value) => `${percent(value)} of its length`],
    error: ["predicted miss, in standard deviations", (value) => number(value, 3)],
    precedent: ["distance of its precedent", (value) => `${percent(value)} of the limit`],
    lowest_reward: ["lowest reward any model predicts", (value) => number(value)],
  };
  const scoreOf = (name, value) => {
    const [words, written] = SCORES[name] ?? [name.replaceAll("_", " "), (one) => number(one, 3)];
    return [words, value === null ? "–" : written(value)];
  };
  const jumpLines = (jump) => [
    `jump at step ${jump.at}`, `predicted reward ${number(jump.reward)}`,
    ...Object.entries(jump.scores).map(([name, value]) => scoreOf(name, value).join(": ")),
    jump.miss === null ? "" : `true miss ${percent(jump.miss)}`,
  ];

  const around = (values) => {
    const [low, high] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
    const room = 0.04 * (high - low) || 1;
    return between(low - room, high + room);
  };

  const named = (names, episode) => names[episode] ?? String(episode);
  const map = (found, entry) => {
    const { states, jumps, names } = found;
    const order = states.value.map((_, at) => at).sort((a, b) => states.value[a] - states.value[b]);
    const tones = ramp(), trajectory = filtered(entry);
    const groups = tones.map((tone, group) => ({
      name: "states", type: "scatter", symbolSize: 4, itemStyle: { color: tone, opacity: trajectory ? 0.35 : 0.9 },
      data: order.slice(Math.floor((group * order.length) / RAMP), Math.floor(((group + 1) * order.length) / RAMP))
        .map((at) => [states.x[at], states.y[at], states.value[at], states.episode[at], states.step[at]]),
      tooltip: {
        formatter: (item) => tip(`logged in episode ${named(names.logged, item.value[3])}, step ${item.value[4]}`, `reward to come ${number(item.value[2])} (γ = ${states.discount})`),
      },
    }));
    const arrows = trajectory ? arrowsOf(trajectory) : jumps.from.map((from, at) => [
      { coord: from, lines: [`jump in trajectory ${named(names.trajectories, jumps.trajectory[at])}`, `predicted reward ${number(jumps.reward[at])}`, jumps.consistency ? scoreOf("consistency", jumps.consistency[at]).join(": ") : ""] },
      { coord: jumps.to[at] },
    ]);
    // The path is broken where it jumps, which arrows show.
    const leaves = new Set(trajectory ? trajectory.jumps.map((jump) => jump.at) : []);
    const path = trajectory ? trajectory.point.flatMap((point, at) => {
      const place = [trajectory.x[at], trajectory.y[at]];
      return leaves.has(point) ? [place, [null, null]] : [place];
    }) : [];
    const position = { type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseMove: !touch, moveOnMouseWheel: false };
    return base({
      grid: { left: 44, right: 14, top: 10, bottom: 44 },
      xAxis: axis({ name: states.axes[0], nameLocation: "middle", nameGap: 26, splitLine: { show: false }, ...around(states.x) }),
      yAxis: axis({ name: states.axes[1], nameLocation: "middle", nameGap: 30, splitLine: { show: false }, ...around(states.y) }),
      dataZoom: [{ ...position, xAxisIndex: 0 }, { ...position, yAxisIndex: 0 }],
      series: [
        ...groups,
        { name: "path", type: "line", data: path, symbol: "none", silent: true, lineStyle: { color: color("accent"), width: 1.5, opacity: 0.8 } },
        {
          name: "jumps", type: "scatter", data: [],
          markLine: {
            symbol: ["none", "arrow"], symbolSize: trajectory ? 9 : 6, label: { show: false }, data: arrows,
            lineStyle: { color: color("accent"), width: trajectory ? 2 : 1.2, type: "solid", opacity: 1 },
            emphasis: { lineStyle: { width: 3 } },
            tooltip: { formatter: (item) => tip(...item.data.lines) },
          },
        },
        { id: "cursor", name: "cursor", type: "scatter", data: cursorPlace(entry), symbolSize: 14, silent: true, z: 9, itemStyle: { color: "transparent", borderColor: color("ink"), borderWidth: 2.5 } },
      ],
    });
  };

  const scaleOf = (entry) => {
    const place = control(entry, "scale"), values = [...data.entries[entry].map.states.value].sort((a, b) => a - b);
    const box = element("span", undefined, "ramp");
    ramp().forEach((tone) => { const part = element("i"); part.style.background = tone; box.append(part); });
    const gamma = data.entries[entry].map.states.discount;
    place.replaceChildren(element("span", `Reward to come (γ = ${gamma}) ${number(values[0], 3)}`), box, element("span", number(values[values.length - 1], 3)), element("span", "→ jumps"));
    place.lastChild.style.color = color("accent");
  };

  // The viewer.
  const cursorLine = (step) => ({ silent: true, symbol: "none", label: { show: false }, lineStyle: { color: color("ink"), width: 1.5, type: "solid" }, data: [{ xAxis: step }] });
  const viewer = (found, entry) => {
    const shown = viewed(entry), step = Number(control(entry, "step").value);
    const rows = [...found.names.map((name, at) => [name, shown.columns[at]]), ["reward so far", shown.earned]];
    const bands = shown.stretches.filter((_, at) => at % 2 === 1).map(([first, last]) => [{ xAxis: first }, { xAxis: last + 1 }]);
    const height = 88 / rows.length;
    return base({
      tooltip: along((items) => tip(`step ${items[0].value[0]}`, ...items.map((item) => `${item.seriesName}: ${number(item.value[1])}`))),
      axisPointer: { link: [{ xAxisIndex: "all" }] },
      grid: rows.map((_, at) => ({ left: 56, right: 14, top: `${4.5 + at * (96 / rows.length)}%`, height: `${height - 7}%` })),
      xAxis: rows.map((_, at) => axis({ gridIndex: at, min: 0, max: shown.length, splitLine: { show: false }, axisLabel: { show: at === rows.length - 1, color: color("quiet"), fontSize: 11 } })),
      yAxis: rows.map(([name], at) => axis({ gridIndex: at, name, splitNumber: 2, nameGap: 9, nameTextStyle: { align: "left", color: color("ink"), fontSize: 12, padding: [0, 0, 0, -48] } })),
      series: rows.flatMap(([name, values], at) => [
        {
          name, type: "line", xAxisIndex: at, yAxisIndex: at, symbol: "none", data: shown.point.map((point, place) => [point, values[place]]),
          color: color(at === rows.length - 1 ? "accent" : "deep"), lineStyle: { width: 1.5 },
          markArea: { silent: true, itemStyle: { color: color("line"), opacity: 0.55 }, data: bands },
          markLine: { silent: true, symbol: "none", label: { show: false }, lineStyle: { color: color("accent"), width: 1, type: "solid", opacity: 0.8 }, data: shown.jumps.map((jump) => ({ xAxis: jump.at + 0.5 })) },
        },
        { id: `cursor-${at}`, type: "line", xAxisIndex: at, yAxisIndex: at, data: [], markLine: cursorLine(step) },
      ]),
    });
  };

  const say = (entry) => {
    const shown = viewed(entry), step = Number(control(entry, "step").value), place = control(entry, "step-text");
    const { sources } = data.entries[entry].map.names;
    const stretch = shown.stretches.find(([first, last]) => first <= step && step <= last);
    const jump = shown.jumps.find((one) => one.at === step);
    const lines = [element("div")];
    lines[0].append(element("b", `Step ${step} of ${shown.length}. `), stretch ? `State ${stretch[3] + step - stretch[0]} of logged episode ${named(sources, stretch[2])}.` : "The end.");
    if (jump) {
      const next = shown.stretches.find(([first]) => first === step + 1);
      lines.push(element("div", next ? `Jump to state ${next[3]} of episode ${named(sources, next[2])}` : "Jump to the last state", "jump"));
      const facts = element("dl");
      const fact = (name, value) => { const box = element("div"); box.append(element("dt", name), element("dd", value)); facts.append(box); };
      fact("action", jump.action.map((value) => number(value, 3)).join(", "));
      fact("predicted reward", number(jump.reward));
      if (jump.logged_reward !== null) fact("reward logged here", number(jump.logged_reward));
      Object.entries(jump.scores).forEach(([name, value]) => fact(...scoreOf(name, value)));
      if (jump.margin !== null) fact("likelihood margin", number(jump.margin));
      fact("true miss in the simulator", jump.miss === null ? "not checked" : `${percent(jump.miss)} of its length`);
      lines.push(facts);
    }
    place.replaceChildren(...lines);
  };

  const DRAW = { returns: histogram, lengths: (found, entry) => histogram(found, entry, true), map, viewer, consistency, doubt, calibration, scores, curves, compare };
  const redraw = (entry, name) => charts.filter((one) => one.entry === entry && one.name === name).forEach((one) => one.draw());

  const moveTo = (entry, step) => {
    const slider = control(entry, "step");
    slider.value = String(step);
    data.entries[entry].viewer.moved = true;
    say(entry);
    charts.filter((one) => one.entry === entry).forEach(({ name, chart }) => {
      if (name === "map") chart.setOption({ series: [{ id: "cursor", data: cursorPlace(entry) }] });
      if (name === "viewer") chart.setOption({ series: Array.from({ length: data.entries[entry].viewer.names.length + 1 }, (_, at) => ({ id: `cursor-${at}`, markLine: cursorLine(step) })) });
    });
  };

  const connect = (found, entry) => {
    if (found.curves) {
      const select = control(entry, "metric");
      Object.keys(found.curves.metrics).forEach((name) => option(select, name, name.replaceAll("_", " ")));
      select.addEventListener("change", () => redraw(entry, "curves"));
    }
    if (!found.map) return;
    const filter = control(entry, "trajectory"), chosen = control(entry, "viewed");
    found.viewer.trajectories.forEach((one, at) => {
      const name = named(found.map.names.trajectories, one.episode);
      const jumps = `${one.jumps.length} jump${one.jumps.length === 1 ? "" : "s"}`;
      const gain = found.viewer.known ? `${number(one.return - one.gain)} → ${number(one.return)}` : number(one.return);
      option(filter, String(at), `trajectory ${name}: ${gain}, ${jumps}`);
      if (chosen) option(chosen, String(at), `${name}: return ${gain}, ${jumps}`);
    });
    const zoom = (entry, share) => charts.filter((one) => one.entry === entry && one.name === "map").forEach(({ chart }) => {
      chart.getOption().dataZoom.forEach(({ start, end }, at) => {
        const middle = (start + end) / 2, half = share === null ? 50 : Math.min(50, ((end - start) / 2) * share);
        const first = Math.max(0, Math.min(100 - 2 * half, middle - half));
        chart.dispatchAction({ type: "dataZoom", dataZoomIndex: at, start: first, end: first + 2 * half });
      });
    });
    control(entry, "in").addEventListener("click", () => zoom(entry, 0.6));
    control(entry, "out").addEventListener("click", () => zoom(entry, 1 / 0.6));
    control(entry, "reset").addEventListener("click", () => zoom(entry, null));
    filter.addEventListener("change", () => {
      if (chosen && filter.value !== "" && chosen.value !== filter.value) {
        chosen.value = filter.value;
        chosen.dispatchEvent(new Event("change"));
      }
      redraw(entry, "map");
    });
    if (!chosen || !found.viewer.trajectories.length) return;
    const slider = control(entry, "step");
    const start = () => {
      const shown = viewed(entry);
      slider.max = String(shown.length);
      slider.value = String(shown.jumps.length ? shown.jumps[0].at : 0);
      say(entry);
      redraw(entry, "viewer");
    };
    chosen.addEventListener("change", () => {
      found.viewer.moved = true;
      start();
      if (filter.value !== "" && filter.value !== chosen.value) filter.value = chosen.value;
      redraw(entry, "map");
    });
    slider.addEventListener("input", () => moveTo(entry, Number(slider.value)));
    const toJump = (forward) => {
      const at = Number(slider.value), places = viewed(entry).jumps.map((jump) => jump.at);
      const next = forward ? places.find((place) => place > at) : places.filter((place) => place < at).pop();
      if (next !== undefined) moveTo(entry, next);
    };
    control(entry, "previous").addEventListener("click", () => toJump(false));
    control(entry, "next").addEventListener("click", () => toJump(true));
    start();
  };

  const drawAll = () => {
    data.entries.forEach((found, entry) => { if (found.map) scaleOf(entry); });
    charts.forEach((one) => one.draw());
  };

  data.entries.forEach(connect);
  document.querySelectorAll(".chart").forEach((place) => {
    const entry = Number(place.dataset.entry), name = place.dataset.chart;
    const found = entry < 0 ? data.compare : data.entries[entry][name];
    const chart = echarts.init(place, null, { renderer: name === "map" ? "canvas" : "svg" });
    charts.push({ entry, name, chart, place, draw: () => chart.setOption(DRAW[name](found, entry), { notMerge: true }) });
    new ResizeObserver(() => { if (!document.documentElement.classList.contains("light")) chart.resize(); }).observe(place);
  });
  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  const PRINTED = { low: 160, tall: 330, curves: 420 };  // heights, as the styles for paper have them
  // Paper is white: print with the light colours, at the width of a page.
  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("light");
    charts.forEach(({ chart, place }) => {
      const size = Object.keys(PRINTED).find((name) => place.classList.contains(name));
      chart.resize({ width: Math.min(place.clientWidth, place.closest(".pair") ? 320 : 660), height: PRINTED[size] ?? place.clientHeight });
    });
    drawAll();
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("light");
    charts.forEach(({ chart }) => chart.resize({ width: "auto", height: "auto" }));
    drawAll();
  });
  document.documentElement.dataset.drawn = String(Math.round(performance.now()));
})();
