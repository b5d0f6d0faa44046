// The charts of the page. The data is JSON in #data. BokehJS draws a chart when it scrolls into view. Names are
// untrusted: they are inserted as text, never as HTML.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const decoded = new Map();
  const HUES = { light: ["#0072b2", "#d55e00", "#009e73", "#7b3294", "#a07800", "#56b4e9", "#c2447e", "#4d4d4d",
                         "#7a4a21", "#5f9200"],
                 dark: ["#56b4e9", "#e69f00", "#2dc59a", "#cc9fe0", "#f0e442", "#8fb3ff", "#ff8fbf", "#c4c4c4",
                        "#d9a066", "#b5e03a"] };
  const SVG = "http://www.w3.org/2000/svg";
  const KINDS = ["#0072b2", "#009e73", "#d55e00", "#f0e442", "#b8b8b8"];
  const DASHES = [[], [6, 4], [2, 3], [9, 3, 2, 3], [12, 4], [4, 2, 1, 2]];
  const VIRIDIS = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129],
                   [92, 200, 99], [170, 220, 50], [253, 231, 37]];
  const page = { along: "linear", runs: new Map(), charts: new Map() };  // what the reader chose

  function array(place) {
    if (!decoded.has(place)) {
      const [kind, packed] = data.arrays[place];
      const raw = atob(packed);
      const bytes = Uint8Array.from(raw, (c) => c.charCodeAt(0));
      decoded.set(place, new (kind === "f8" ? Float64Array : Float32Array)(bytes.buffer));
    }
    return decoded.get(place);
  }

  // The line of a curve as the chart draws it: its color, its dashes, a dot for points.
  function swatch(curve, place) {
    const svg = document.createElementNS(SVG, "svg");
    const shape = document.createElementNS(SVG, curve.dots ? "circle" : "line");
    const look = curve.dots ? { cx: 17, cy: 5, r: 3 }
      : { x1: 1, x2: 33, y1: 5, y2: 5, "stroke-width": 2.5, "stroke-dasharray": DASHES[curve.dash % DASHES.length] };
    for (const [name, value] of Object.entries(look)) shape.setAttribute(name, value);
    svg.setAttribute("class", "line");
    svg.setAttribute("aria-hidden", "true");
    svg.dataset.curve = place;
    svg.append(shape);
    return svg;
  }

  function element(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  // --- colors ---------------------------------------------------------------------------------------------------
  const dark = () => document.documentElement.dataset.theme === "dark";
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function between(stops, t) {
    const at = Math.min(Math.max(t, 0), 1) * (stops.length - 1), i = Math.min(Math.floor(at), stops.length - 2);
    const mixed = stops[i].map((low, k) => Math.round(low + (at - i) * (stops[i + 1][k] - low)));
    return `rgb(${mixed.join(",")})`;
  }

  // Published curves are gray where the page also has measured ones.
  const mixed = Object.values(data.charts).some((chart) => chart.curves?.some((one) => one.provenance === "measured"));

  function color(curve) {
    if (curve.provenance === "published" && mixed) {
      if (curve.shade === null) return style("--published");
      return between(dark() ? [[95, 95, 95], [235, 235, 235]] : [[190, 190, 190], [40, 40, 40]], curve.shade);
    }
    if (curve.shade !== null) return between(VIRIDIS, dark() ? 0.3 + 0.7 * curve.shade : 0.85 * (1 - curve.shade));
    const hues = HUES[dark() ? "dark" : "light"];
    return hues[curve.color % hues.length];
  }

  // Red for positive, blue for negative values. The square root keeps small values visible.
  function diverging(value, full) {
    const t = Math.sqrt(Math.min(Math.abs(value) / full, 1));
    const middle = dark() ? [60, 60, 60] : [247, 247, 247], hue = value > 0 ? [178, 24, 43] : [33, 102, 172];
    return between([middle, hue], t);
  }

  // --- one chart -------------------------------------------------------------------------------------------------
  // The indices of at most so many labels: of steps those at multiples of a round number, else evenly spaced ones.
  function places(ticks, most) {
    const all = ticks.map((_, i) => i), numbers = ticks.map((tick) => Number(tick.replaceAll(",", "")));
    if (ticks.length <= most) return all;
    const last = numbers.at(-1), growing = numbers.every((v, i) => Number.isInteger(v) && (!i || v > numbers[i - 1]));
    if (growing && last > 0) {
      const decade = 10 ** Math.floor(Math.log10(last / most));
      for (const unit of [1, 2, 5, 10, 20].map((v) => v * decade)) {
        const round = all.filter((i) => numbers[i] % unit === 0);
        if (unit >= 1 && round.length >= 3 && round.length <= most) return round;
      }
    }
    return all.filter((i) => i % Math.ceil(ticks.length / most) === 0);
  }

  class Chart {
    constructor(id, spec, figure) {
      this.id = id; this.spec = spec; this.figure = figure;
      this.plot = figure.querySelector(".plot");
      this.map = "values" in spec;
      if (this.map) this.plot.style.height = `${this.height()}px`;
      this.log = spec.y.log;
      this.shown = spec.curves.map((curve) => curve.shown);
      this.renderers = []; this.seen = false;
      this.controls();
    }

    visible(i) {
      return this.shown[i] && (page.runs.get(this.spec.curves[i].run) ?? true);
    }

    along() {
      return this.spec.x.steps ? page.along : this.spec.x.log ? "log" : "linear";
    }

    controls() {
      const bar = element("div", { className: "controls" });
      this.key();
      if (!this.map) {
        const box = element("input", { type: "checkbox", checked: this.log });
        box.addEventListener("change", () => { this.log = box.checked; this.draw(); });
        bar.append(element("label", {}, box, " logarithmic"));
      }
      if (this.spec.curves.length > 1) bar.append(this.legend());
      this.figure.append(bar);
      if (this.spec.kinds?.length) {
        const kinds = this.spec.kinds.map((kind, i) => {
          const square = element("span", { className: "swatch" });
          square.style.background = KINDS[i];
          return element("span", {}, square, ` ${kind} `);
        });
        this.figure.append(element("p", { className: "kinds" }, ...kinds));
      }
    }

    // The curves that matter most, named above the chart.
    key() {
      const named = this.spec.curves.map((curve, i) => [curve, i]).filter(([curve]) => curve.note);
      if (!named.length) return;
      this.plot.before(element("p", { className: "key" }, ...named.map(([curve, i]) =>
        element("span", {}, swatch(curve, i), " ", element("b", { textContent: curve.label }), ` ${curve.note}`))));
    }

    // A map is as high as its rows need, so that each has its label.
    height() {
      return this.map ? Math.max(380, 90 + 15 * this.spec.y.ticks.length) : 330;
    }

    legend() {
      const curves = this.spec.curves, list = element("ul");
      this.boxes = curves.map((curve, i) => {
        const box = element("input", { type: "checkbox", checked: this.shown[i] });
        box.addEventListener("change", () => this.choose([i], box.checked));
        const words = curve.provenance === "measured" ? curve.label : `${curve.label} (${curve.provenance})`;
        list.append(element("li", {}, element("label", {}, box, " ", swatch(curve, i), " ", words)));
        return box;
      });
      this.list = list;
      const details = element("details", { className: "legend", open: curves.length <= 12 },
        element("summary", {}, `${curves.length} curves`));
      if (curves.length > 4) {
        const find = element("input", { type: "search", placeholder: "find", ariaLabel: "find curves by name" });
        const matching = () => [...list.children].flatMap((li, i) => (li.hidden ? [] : [i]));
        find.addEventListener("input", () => {
          const wanted = find.value.toLowerCase();
          curves.forEach((curve, i) => { list.children[i].hidden = !curve.label.toLowerCase().includes(wanted); });
        });
        const all = element("button", { type: "button", textContent: "show all" });
        const none = element("button", { type: "button", textContent: "hide all" });
        all.addEventListener("click", () => this.choose(matching(), true));
        none.addEventListener("click", () => this.choose(matching(), false));
        details.append(find, " ", all, " ", none);
      }
      details.append(list);
      return details;
    }

    choose(places, on) {
      for (const i of places) { this.shown[i] = on; this.boxes[i].checked = on; }
      this.refresh();
    }

    // A curve gets its renderer when it is first shown, so that a thousand hidden curves cost nothing. All renderers
    // are added at once, since Bokeh computes the layout again for each change of a plot.
    refresh() {
      if (!this.model) return;
      const fresh = [];
      this.spec.curves.forEach((curve, i) => {
        const on = this.visible(i);
        if (on && !this.renderers[i]) fresh.push(...(this.renderers[i] = this.made(curve)));
        if (this.renderers[i]) this.renderers[i].forEach((one) => { if (one.visible !== on) one.visible = on; });
      });
      if (fresh.length) {
        this.model.renderers = [...this.model.renderers, ...fresh];
        this.hover.renderers = this.renderers.flat();
      }
      this.plot.dataset.visible = this.spec.curves.filter((_, i) => this.visible(i)).length;
      this.figure.querySelectorAll("svg.line").forEach((one) => {
        one.style.color = color(this.spec.curves[one.dataset.curve]);
      });
    }

    made(curve) {
      const step = array(curve.x), along = this.along();
      const x = Float64Array.from(step, (v) => (along === "root" ? Math.sqrt(v) : along === "log" && v <= 0 ? NaN : v));
      const y = Float64Array.from(array(curve.y), (v) => (this.log && v <= 0 ? NaN : v));
      const words = Array.from(step, (v) => this.spec.x.ticks[v] ?? "");
      const data_source = new Bokeh.ColumnDataSource({ data: { x, y, step: Array.from(step), said: curve.said ?? words } });
      const hue = color(curve), at = { x: { field: "x" }, y: { field: "y" } }, glyphs = [];
      if (!curve.dots) {
        glyphs.push(new Bokeh.Line({ ...at, line_color: hue, line_width: curve.shade === null ? 2 : 1.3,
                                     line_dash: DASHES[curve.dash % DASHES.length] }));
      }
      if (curve.dots || step.length <= 24) {
        const hollow = curve.provenance === "published";
        glyphs.push(new Bokeh.Scatter({ ...at, size: 5, line_color: hue, fill_color: hollow ? null : hue }));
      }
      return glyphs.map((glyph) => new Bokeh.GlyphRenderer({ data_source, glyph, name: curve.label }));
    }

    draw() {
      if (!this.seen) return;
      const { x, y } = this.spec, along = this.along();
      const options = { height: this.height(), sizing_mode: "stretch_width",
                        x_axis_type: along === "log" ? "log" : "linear", y_axis_type: this.log ? "log" : "linear",
                        tools: "pan,box_zoom,wheel_zoom,zoom_in,zoom_out,save,reset", toolbar_location: "above" };
      this.model = Bokeh.Plotting.figure(options);
      this.model.toolbar.logo = null;
      // Dragging zooms with a mouse; on a touch screen it scrolls the page.
      const zoom = this.model.toolbar.tools.find((tool) => tool.type === "BoxZoomTool");
      this.model.toolbar.active_drag = matchMedia("(pointer: coarse)").matches ? null : zoom;
      this.model.toolbar.active_scroll = null;
      this.model.x_range.only_visible = this.model.y_range.only_visible = true;
      this.dress(x, y, along);
      this.renderers = [];
      const last = along === "root" ? `${x.label}, along its root` : x.label;
      this.hover = new Bokeh.HoverTool({ renderers: [], formatters: { "@y": "printf" }, mode: "mouse",
        tooltips: this.map ? [["", "@said"]]
          : [["curve", "$name"], [x.label, x.ticks.length ? "@said" : "@step{0,0.[000]}"], [y.label, "@y{%.6g}"]] });
      this.model.add_tools(this.hover);
      this.model.below[0].axis_label = last;
      if (this.map) this.drawCells();
      for (const mark of this.spec.marks ?? []) {
        this.model.add_layout(new Bokeh.Span({ location: mark.y, dimension: "width", line_color: style("--faint"),
                                               line_dash: [2, 3] }));
        this.model.add_layout(new Bokeh.Label({ x: 6, y: mark.y, x_units: "screen", text: mark.label, y_offset: 2,
                                                text_color: style("--faint"), text_font_size: "11px" }));
      }
      this.refresh();
      this.forget();
      this.plot.replaceChildren();
      this.view = Bokeh.Plotting.show(this.model, this.plot);
      this.view.then(() => { this.plot.dataset.drawn = "yes"; }, (error) => { console.error(error); });
    }

    // Remove the earlier drawing and its document in Bokeh's list.
    forget() {
      this.view?.then((view) => {
        const place = Bokeh.documents.indexOf(view.model.document);
        view.remove();
        if (place >= 0) Bokeh.documents.splice(place, 1);
      });
    }

    dress(x, y, along) {
      const ink = style("--ink"), faint = style("--line"), paper = style("--paper"), plot = this.model;
      Object.assign(plot, { background_fill_color: paper, border_fill_color: paper, outline_line_color: null });
      const [below, left] = [plot.below[0], plot.left[0]];
      for (const [axis, spec] of [[below, x], [left, y]]) {
        Object.assign(axis, { axis_label: spec.label, axis_label_text_color: ink, major_label_text_color: ink,
          axis_line_color: ink, major_tick_line_color: ink, minor_tick_line_color: null,
          axis_label_text_font_style: "normal" });
        if (spec.ticks.length) {
          const most = axis === below ? Math.max(3, this.plot.clientWidth / 70) : spec.ticks.length;
          axis.ticker = new Bokeh.FixedTicker({ ticks: places(spec.ticks, most) });
          axis.formatter.doFormat = (ticks) => ticks.map((t) => spec.ticks[t] ?? "");
        } else if (axis === below && along !== "log") {
          const short = (v) => (Math.abs(v) >= 1e6 ? `${+(v / 1e6).toPrecision(6)}M`
            : Math.abs(v) >= 1e4 ? `${+(v / 1e3).toPrecision(6)}k` : `${+v.toPrecision(6)}`);
          axis.formatter.doFormat = (ticks) => ticks.map((t) => short(along === "root" ? t * t : t));
        }
      }
      // With its default mantissas (1 and 5) the ticker leaves less than a decade with one or two ticks.
      if (this.log) left.ticker = new Bokeh.LogTicker({ mantissas: [1, 2, 5], desired_num_ticks: 8 });
      for (const grid of [plot.xgrid, plot.ygrid]) grid.grid_line_color = faint;
    }

    drawCells() {
      const { values, texts, full, kinds } = this.spec, wide = texts.length, high = texts[0]?.length ?? 0;
      const number = array(values), x = [], y = [], hue = [], text = [];
      for (let i = 0; i < wide; i++) {
        for (let j = 0; j < high; j++) {
          const value = number[i * high + j];
          if (!texts[i][j]) continue;
          x.push(i); y.push(j); text.push(texts[i][j]);
          hue.push(Number.isNaN(value) ? style("--line") : kinds.length ? KINDS[value] : diverging(value, full));
        }
      }
      const source = new Bokeh.ColumnDataSource({ data: { x, y, hue, text } });
      const cells = this.model.rect({ field: "x" }, { field: "y" }, 0.96, 0.96,
        { source, fill_color: { field: "hue" }, line_color: null });
      this.model.add_tools(new Bokeh.HoverTool({ renderers: [cells], tooltips: [["cell", "@text"]] }));
      this.plot.dataset.cells = x.length;
    }
  }

  // --- the page --------------------------------------------------------------------------------------------------
  function redraw() { for (const chart of page.charts.values()) chart.draw(); }

  function theme() {
    const button = document.getElementById("theme"), system = matchMedia("(prefers-color-scheme: dark)");
    const set = (on) => {
      document.documentElement.dataset.theme = on ? "dark" : "light";
      button.setAttribute("aria-pressed", on);
      redraw();
    };
    button.hidden = false;
    button.addEventListener("click", () => set(!dark()));
    system.addEventListener("change", (event) => set(event.matches));
    set(system.matches);
  }

  function choices() {
    const bar = document.getElementById("choices"), specs = Object.values(data.charts);
    if (specs.some((spec) => spec.x.steps)) {
      const select = element("select", {}, ...[["linear", "linear"], ["root", "√t"], ["log", "logarithmic"]]
        .map(([value, words]) => element("option", { value, textContent: words })));
      select.addEventListener("change", () => { page.along = select.value; redraw(); });
      bar.append(element("label", {}, "steps ", select));
    }
    const runs = [...new Set(specs.flatMap((spec) => spec.curves.map((curve) => curve.run)))].filter(Boolean);
    const overlaid = runs.filter((run) => data.runs.includes(run));
    if (overlaid.length > 1) {
      for (const run of overlaid) {
        const box = element("input", { type: "checkbox", checked: true });
        box.addEventListener("change", () => {
          page.runs.set(run, box.checked);
          for (const chart of page.charts.values()) chart.refresh();
        });
        bar.append(element("label", { className: "run" }, box, " ", run));
      }
    }
    bar.hidden = !bar.children.length;
  }

  function sortable(table) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const button = element("button", { type: "button", textContent: head.textContent });
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending", sign = up ? 1 : -1;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const key = (row) => row.cells[place].dataset.value ?? row.cells[place].textContent;
        const numeric = head.dataset.numeric !== undefined;
        const rows = [...body.rows].map((row) => [key(row), row]);
        const last = (v) => v === "" || Number.isNaN(Number(v));  // cells without a number stay last in both directions
        rows.sort(([a], [b]) => numeric ? (last(a) - last(b)) || sign * (a - b)
          : sign * a.localeCompare(b, undefined, { numeric: true }));
        body.append(...rows.map(([, row]) => row));
      });
    });
  }

  globalThis.Bokeh?.set_log_level("warn");
  document.querySelectorAll("table.sortable").forEach(sortable);
  const sight = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      const chart = page.charts.get(target.id);
      if (isIntersecting && !chart.seen) { chart.seen = true; chart.draw(); }
    }
  }, { rootMargin: "300px" });
  choices();
  for (const [id, spec] of Object.entries(data.charts)) {
    const figure = document.getElementById(id);
    page.charts.set(id, new Chart(id, spec, figure));
    sight.observe(figure);
  }
  theme();
})();
