const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4];

/** A clock in seconds of the recorded run. Calls its listener with the time; without motion it goes from round to round. */
class Clock {
  constructor(end, listener) {
    Object.assign(this, { end, listener, time: 0, speed: 1, playing: false });
  }

  toggle() {
    if (this.time >= this.end) this.time = 0;
    this.playing = !this.playing;
    this.last = performance.now();
    if (this.playing) requestAnimationFrame((now) => this.tick(now));
    this.listener();
  }

  tick(now) {
    if (!this.playing) return;
    this.time = Math.min(this.end, this.time + (Math.max(0, now - this.last) / 1000) * this.speed);
    this.last = now;
    if (this.time >= this.end) this.playing = false;
    this.listener();
    if (this.playing) requestAnimationFrame((next) => this.tick(next));
  }

  set(time) {
    this.time = Math.min(this.end, Math.max(0, time));
    this.listener();
  }
}

/** The whole page, for one source. */
class TracePage extends HTMLElement {
  async connectedCallback() {
    this.source = this.source ?? new RecordedSource(document);
    await this.source.open();
    this.texts = this.source.texts();
    const drafted = this.texts.flatMap((text, i) => (text.plain || text.translation ? [] : [i]));
    this.plain = this.texts.findIndex((text) => text.plain);
    this.translation = this.texts.findIndex((text) => text.translation);
    this.racing = this.plain >= 0 && drafted.length > 0;
    this.text = drafted[0] ?? (this.plain >= 0 ? this.plain : this.translation);
    this.build(drafted);
    this.open(this.text);
    this.unsubscribe = this.source.subscribe((text) => { if (text === this.text) this.grown(); });
    this.observer = new ResizeObserver(() => this.resized());
    this.observer.observe(this);
    this.dataset.ready = "yes";
  }

  disconnectedCallback() {
    this.unsubscribe?.();
    this.observer?.disconnect();
    if (this.clock) this.clock.playing = false;
  }

  build(drafted) {
    const part = (tag) => document.createElement(tag);
    this.play = make("button", { type: "button", onclick: () => this.clock.toggle() }, "Play");
    this.slider = make("input", { type: "range", min: 0, step: 1, oninput: () => this.seek(Number(this.slider.value)), "aria-label": "round" });
    this.speed = make("select", { onchange: () => { this.clock.speed = Number(this.speed.value); }, "aria-label": "speed" },
      ...SPEEDS.map((speed) => make("option", { value: speed, selected: speed === 1 }, `${speed} ×`)));
    this.chooser = make("select", { onchange: () => this.open(Number(this.chooser.value)), "aria-label": "recorded text" },
      ...drafted.map((i) => make("option", { value: i }, this.texts[i].title)));
    this.status = make("p", { className: "quiet" });
    this.words = part("dw-text");
    this.words.addEventListener("choose", (event) => this.choose(event.detail));
    this.tree = part("dw-tree");
    this.histogram = part("dw-histogram");
    this.figure = make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "figure of the round" },
      make("p", { className: "quiet" }, "Click a round of the text."));
    this.described = make("pre");
    this.figureTitle = make("h2", {}, "One round");
    const key = make("p", { className: "quiet" }, make("span", { className: "drafted" }, "drafted and accepted"), " ",
      make("span", { className: "own" }, "the target's own"), " Click a round, or go through them with the arrow keys.");
    this.controls = make("div", { className: "controls", role: "group", "aria-label": "player" }, this.play, this.slider, this.speed);
    if (drafted.length > 1) this.controls.append(this.chooser);
    const help = make("p", { className: "quiet" }, make("kbd", {}, "Space"), " play, ", make("kbd", {}, "←"), " ", make("kbd", {}, "→"), " round, ",
      make("kbd", {}, "+"), " ", make("kbd", {}, "-"), " speed");
    const player = make("section", { "aria-label": "the text" }, this.controls, help, this.status, key, this.words);
    player.addEventListener("keydown", (event) => this.key(event));
    this.growing = make("h2", {}, "The tree of the round");
    this.stop = make("p", { className: "quiet" });
    this.append(player, make("div", { className: "columns uneven" },
      make("section", {}, this.growing, this.tree,
        make("p", { className: "quiet" }, "Bold: accepted. Struck out: rejected. Faint: not tried."), this.stop),
      make("section", {}, make("h2", {}, "Accepted tokens per round"), this.histogram)));
    this.asText = make("details", {}, make("summary", {}, "The same as text"), this.described);
    this.alone = this.text === this.translation;
    if (!this.alone) this.append(make("section", {}, this.figureTitle, this.figure, this.asText));
    if (this.racing) this.buildRace();
    if (this.translation >= 0) this.buildTranslation();
  }

  buildRace() {
    this.race = make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "figure of the race" });
    this.plainWords = make("div", { className: "text", dir: "ltr" });
    this.fastWords = make("div", { className: "text", dir: "ltr" });
    this.plainCount = make("p", { className: "quiet" });
    this.fastCount = make("p", { className: "quiet" });
    this.equal = make("p", { className: "quiet" });
    this.append(make("section", {}, make("h2", {}, "The race of plain and speculative decoding"), this.equal,
      make("div", { className: "columns" },
        make("section", { "aria-label": "plain decoding" }, this.plainCount, this.plainWords),
        make("section", { "aria-label": "speculative decoding" }, this.fastCount, this.fastWords)), this.race));
  }

  buildTranslation() {
    const text = this.texts[this.translation];
    this.germanFigure = make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "figure of the translation" });
    this.germanRound = make("select", { onchange: () => this.showGerman(), "aria-label": "round of the translation" },
      ...this.source.rounds(this.translation).map((round, i) => make("option", { value: i }, `round ${round.number + 1}: ${round.pieces.map((p) => p[0]).join("")}`)));
    this.append(make("section", {}, make("h2", {}, "A German sentence"),
      make("p", { lang: "de" }, text.source), make("p", {}, text.text),
      make("div", { className: "controls" }, this.germanRound), this.germanFigure, ...(this.alone ? [this.asText] : [])));
  }

  /** Starts to show another recorded text. */
  open(text) {
    this.text = text;
    this.rounds = this.source.rounds(text);
    const ends = [this.rounds.at(-1)?.end ?? 0];
    if (this.racing) ends.push(this.source.rounds(this.plain).at(-1)?.end ?? 0);
    const before = this.clock;
    if (before) before.playing = false;
    this.clock = new Clock(Math.max(...ends), () => this.update());
    this.clock.speed = Number(this.speed.value);
    this.words.show(this.texts[text].prompt, this.rounds);
    this.slider.max = this.rounds.length;
    this.width = 0;
    this.chosen = null;
    this.clock.set(this.clock.end);
    this.chooseFirst();
    this.resized();
  }

  /** A text that still grows has no first round to open: its newest tree is shown until a round is chosen. */
  chooseFirst() {
    const { first } = this.texts[this.text];
    if (this.chosen === null && first !== null && this.rounds.length) this.choose(Math.min(first, this.rounds.length - 1));
  }

  /** The text has new rounds, or its end. */
  grown() {
    this.texts = this.source.texts();
    this.rounds = this.source.rounds(this.text);
    this.words.add(this.rounds);
    this.slider.max = this.rounds.length;
    this.clock.end = this.rounds.at(-1)?.end ?? 0;
    if (!this.clock.playing) this.clock.set(this.clock.end);
    this.chooseFirst();
  }

  /** Rounds that have ended by now. */
  done(rounds, time) {
    let low = 0, high = rounds.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rounds[middle].end <= time + 1e-9) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  update() {
    const { time, playing } = this.clock, count = this.done(this.rounds, time);
    this.play.textContent = playing ? "Pause" : "Play";
    this.words.reveal(count);
    this.slider.value = count;
    this.slider.setAttribute("aria-valuetext", `${count} of ${this.rounds.length} rounds`);
    const tokens = this.rounds.slice(0, count).reduce((sum, round) => sum + round.tokens, 0), passed = this.rounds[count - 1]?.end;
    const rates = passed ? `, ${(tokens / count).toFixed(2)} tokens per pass, ${(tokens / passed).toFixed(1)} tokens/s` : "";
    this.status.textContent = `${this.texts[this.text].title}: ${count} of ${this.rounds.length} rounds, ${tokens} tokens, ${(time * 1000).toFixed(0)} ms${rates}`;
    if (count !== this.counted) this.histogram.show(this.rounds.slice(0, count));
    this.counted = count;
    this.grow(count, time);
    if (this.racing) this.updateRace(time);
  }

  /** The tree of the round that runs now: level by level in the first part of its time, the verdicts at its end. */
  grow(count, time) {
    const playing = this.clock.playing && count < this.rounds.length;
    const index = playing ? count : this.chosen ?? count - 1, round = this.rounds[index];
    if (!round) return;
    this.growing.textContent = `The tree of round ${round.number + 1}`;
    this.stop.textContent = round.stop ? `The tree ended: ${round.stop}.` : "";
    if (!playing) return this.tree.show(round);
    const start = index ? this.rounds[index - 1].end : 0, share = (time - start) / Math.max(1e-9, round.end - start);
    const deepest = Math.max(...round.nodes.map((node) => node.depth));
    this.tree.show(round, Math.floor(Math.min(1, share / 0.6) * deepest), share > 0.8);
  }

  updateRace(time) {
    this.equal.textContent = this.texts[this.text].text && this.texts[this.text].text === this.texts[this.plain].text ? "Both texts are equal." : "";
    for (const [text, box, count] of [[this.plain, this.plainWords, this.plainCount], [this.text, this.fastWords, this.fastCount]]) {
      const rounds = this.source.rounds(text), reached = this.done(rounds, time);
      if (box.dataset.shown === `${text}:${reached}` && reached < rounds.length) continue;
      box.dataset.shown = `${text}:${reached}`;
      const done = rounds.slice(0, reached);
      const tokens = done.reduce((sum, round) => sum + round.tokens, 0), passed = Math.min(time, rounds.at(-1)?.end ?? 0);
      box.textContent = done.map((round) => round.pieces.map((piece) => piece[0]).join("")).join("");
      count.textContent = `${this.texts[text].title}: ${done.length} forwards, ${tokens} tokens` +
        (passed > 0 ? `, ${(tokens / passed).toFixed(0)} tokens/s` : "");
    }
  }

  seek(count) {
    this.clock.playing = false;
    this.clock.set(count ? this.rounds[count - 1].end : 0);
    if (count) this.choose(count - 1);
  }

  async choose(index) {
    this.chosen = index;
    const round = this.rounds[index];
    if (!round) return;
    this.words.mark(index);
    this.figureTitle.textContent = `Round ${round.number + 1}, drawn`;
    if (!this.clock.playing) this.grow(this.done(this.rounds, this.clock.time), this.clock.time);
    if (this.alone) {
      this.germanRound.value = index;
      return this.showGerman();
    }
    let figure;
    try {
      figure = await this.source.figure(this.text, index, this.clientWidth);
    } catch (error) {
      this.figure.replaceChildren(make("p", { className: "quiet" }, `The figure cannot be shown: ${error.message}.`));
      return;
    }
    if (index !== this.chosen) return;
    showFigure(this.figure, figure);
    this.described.textContent = figure.text;
    this.figure.dataset.round = index;
  }

  async showGerman() {
    const chosen = this.germanRound.value;
    const figure = await this.source.figure(this.translation, Number(chosen), this.clientWidth);
    if (chosen !== this.germanRound.value) return;
    showFigure(this.germanFigure, figure);
    if (this.alone) this.described.textContent = figure.text;
  }

  /** Figures have one layout for each kind of width. */
  async resized() {
    if (this.width === this.clientWidth) return;
    this.width = this.clientWidth;
    this.choose(this.chosen);
    if (this.translation >= 0) this.showGerman();
    const race = this.racing ? await this.source.race(this.clientWidth) : null;
    if (race) showFigure(this.race, race);
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target === this.slider || event.target.tagName === "SELECT") return;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], faster = { "+": 1, "-": -1 }[event.key];
    if (event.key === " " && event.target !== this.play) this.clock.toggle();
    else if (step) this.seek(Math.min(this.rounds.length, Math.max(0, this.done(this.rounds, this.clock.time) + step)));
    else if (faster) {
      this.speed.selectedIndex = Math.min(SPEEDS.length - 1, Math.max(0, this.speed.selectedIndex + faster));
      this.clock.speed = Number(this.speed.value);
    } else return;
    event.preventDefault();
  }
}

customElements.define("dw-page", TracePage);
