/** Makes an element; properties that start with "aria-" or "data-", and role, become attributes. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (/^(aria-|data-|role$)/.test(key)) element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children);
  return element;
}

function shape(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** A figure that Python drew, as elements of this page. The parser makes no scripts run, and there are none in it. */
function parsed(svg) {
  return document.importNode(new DOMParser().parseFromString(svg, "image/svg+xml").documentElement, true);
}

function showFigure(place, figure) {
  const { scrollLeft } = place;
  place.replaceChildren(parsed(figure.svg));
  place.scrollLeft = scrollLeft;
}

/** The text, as far as it is written; every round is a button. Fires "choose" with the round's index. */
class RoundText extends HTMLElement {
  show(prompt, rounds) {
    this.box = make("div", { className: "text", role: "toolbar", "aria-label": "the text, a button for each round", dir: "ltr" },
      make("span", { className: "prompt" }, prompt));
    this.box.addEventListener("click", (event) => this.choose(event.target.closest(".round")));
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.replaceChildren(this.box);
    this.spans = [];
    this.count = 0;
    this.chosen = -1;
    this.add(rounds);
  }

  /** Adds the rounds that are new; they are hidden until they are revealed. */
  add(rounds) {
    const fresh = rounds.slice(this.spans.length).map((round, index) =>
      make("span", { className: "round", role: "button", tabIndex: -1, hidden: true, "data-round": this.spans.length + index,
        "aria-pressed": "false", "aria-label": `round ${round.number + 1}: ${round.pieces.map((p) => p[0]).join("")}` },
        ...round.pieces.map(([text, drafted]) =>
          make("span", { className: drafted === null ? "" : drafted ? "drafted" : "own" }, text))));
    this.spans.push(...fresh);
    this.box.append(...fresh);
  }

  /** Shows the first rounds only. */
  reveal(count) {
    for (let i = Math.min(count, this.count); i < Math.max(count, this.count); i++) this.spans[i].hidden = i >= count;
    this.count = count;
    const reachable = Math.min(Math.max(this.chosen, 0), count - 1);
    this.spans.forEach((span, i) => { span.tabIndex = i === reachable ? 0 : -1; });
  }

  mark(index) {
    if (this.spans[this.chosen]) this.spans[this.chosen].setAttribute("aria-pressed", "false");
    this.chosen = index;
    if (this.spans[index]) this.spans[index].setAttribute("aria-pressed", "true");
    this.reveal(this.count);
  }

  choose(span) {
    if (span) this.dispatchEvent(new CustomEvent("choose", { detail: Number(span.dataset.round) }));
  }

  key(event) {
    const now = this.spans.indexOf(event.target);
    const to = { ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now - 1, ArrowUp: now - 1, Home: 0, End: this.count - 1 }[event.key];
    if (now < 0) return;
    if (event.key === "Enter" || event.key === " ") this.choose(event.target);
    else if (to === undefined) return;
    else if (to >= 0 && to < this.count) {
      this.spans.forEach((span, i) => { span.tabIndex = i === to ? 0 : -1; });
      this.spans[to].focus();
    }
    event.preventDefault();
    event.stopPropagation();
  }
}

const PILL = 92, STEP = 118, ROW = 30;

/** The tree of one round, as far as it has grown. */
class RoundTree extends HTMLElement {
  show(round, depth = Infinity, verdicts = true) {
    if (this.round === round && this.depth === depth && this.verdicts === verdicts) return;
    Object.assign(this, { round, depth, verdicts });
    const rows = this.rows(round.nodes);
    const deepest = Math.max(...round.nodes.map((node) => node.depth));
    const width = (deepest + 2) * STEP, height = (Math.max(...rows) + 1) * ROW + 8;
    const place = (i) => [round.nodes[i].depth * STEP + 4, rows[i] * ROW + 8];
    const lines = [], pills = [];
    round.nodes.forEach((node, i) => {
      if (node.depth > depth) return;
      const fate = !verdicts ? "" : { accepted: "accepted", rejected: "rejected", root: "", "not tried": "untried" }[node.verdict];
      const [x, y] = place(i);
      if (node.parent !== null) lines.push(this.line(place(node.parent), [x, y], fate));
      pills.push(this.pill(x, y, node.text, fate));
    });
    if (verdicts && deepest >= 0) {
      const end = round.accepted.at(-1) ?? 0;
      const [x, y] = [(round.nodes[end].depth + 1) * STEP + 4, rows[end] * ROW + 8];
      if (!round.nodes.some((node) => node.parent === end)) {
        lines.push(this.line(place(end), [x, y], "accepted"));
        pills.push(this.pill(x, y, round.own, "own"));
      }
    }
    const words = `tree of round ${round.number + 1}: ${round.nodes.length - 1} drafted, ${round.accepted.length} accepted, then ${round.own}`;
    const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words }, ...lines, ...pills);
    this.replaceChildren(make("div", { className: "scroll tree", tabIndex: 0, role: "region", "aria-label": "tree of the round" }, svg));
  }

  /** Leaves lie one below the other; a node lies level with the middle of its children. */
  rows(nodes) {
    const rows = new Array(nodes.length).fill(0), below = nodes.map(() => []);
    nodes.forEach((node, i) => { if (node.parent !== null) below[node.parent].push(i); });
    let leaves = 0;
    const walk = (i) => {
      if (!below[i].length) rows[i] = leaves++;
      else { below[i].forEach(walk); rows[i] = (rows[below[i][0]] + rows[below[i].at(-1)]) / 2; }
    };
    walk(0);
    return rows;
  }

  line([x, y], [toX, toY], fate) {
    return shape("path", { class: fate, d: `M${x + PILL} ${y + 11} L${toX} ${toY + 11}` });
  }

  pill(x, y, words, fate) {
    const most = 11, short = [...words].length > most ? [...words].slice(0, most - 1).join("") + "…" : words;
    return shape("g", { class: fate }, shape("title", {}, words),
      shape("rect", { x, y, width: PILL, height: 22, rx: 11 }),
      shape("text", { x: x + PILL / 2, y: y + 15, "text-anchor": "middle" }, short));
  }
}

/** Accepted lengths of the rounds so far. */
class LengthHistogram extends HTMLElement {
  show(rounds) {
    const counts = [];
    for (const round of rounds) counts[round.accepted.length] = (counts[round.accepted.length] ?? 0) + 1;
    const most = Math.max(1, ...counts.filter(Boolean));
    const rows = Array.from(counts, (count = 0, length) => make("tr", {},
      make("th", { scope: "row" }, String(length)), make("td", {}, String(count)),
      make("td", { className: "bar", "aria-hidden": "true" }, Object.assign(make("div"), { style: `width: ${(100 * count) / most}%` }))));
    const head = make("tr", {}, make("th", { scope: "col" }, "accepted"), make("th", { scope: "col" }, "rounds"), make("td"));
    this.replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
  }
}

customElements.define("dw-text", RoundText);
customElements.define("dw-tree", RoundTree);
customElements.define("dw-histogram", LengthHistogram);
