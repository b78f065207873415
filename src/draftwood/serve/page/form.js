/** A label and its field. */
function field(words, input, ...more) {
  return make("label", { className: "field" }, make("span", {}, words, ...more), input);
}

/** The form, and below it the page of the text that is written. */
class LivePage extends HTMLElement {
  async connectedCallback() {
    this.server = new Server();
    this.build();
    await this.greet();
    this.dataset.ready = "yes";
  }

  build() {
    const number = (properties) => make("input", { type: "number", required: true, ...properties });
    this.key = make("input", { type: "password", autocomplete: "off" });
    this.keyForm = make("form", { className: "controls", hidden: true, onsubmit: (event) => { event.preventDefault(); this.unlock(); } },
      field("The server's API key", this.key), make("button", { type: "submit" }, "Use it"));
    this.prompt = make("textarea", { rows: 3, value: "Once upon a time", required: true });
    this.shownTemperature = make("output", {}, "1");
    this.temperature = make("input", { type: "range", min: 0, max: 2, step: 0.1, value: 1,
      oninput: () => { this.shownTemperature.value = this.temperature.value; } });
    this.length = number({ min: 1, step: 1, value: 64 });
    this.seed = number({ min: 0, step: 1, value: 1 });
    this.method = make("select");
    this.shownNodes = make("output");
    this.nodes = make("input", { type: "range", min: 1, step: 1, oninput: () => { this.shownNodes.value = this.nodes.value; } });
    this.nodesField = field("Most nodes of a tree ", this.nodes, this.shownNodes);
    this.chat = make("input", { type: "checkbox" });
    this.chatField = make("label", { hidden: true }, this.chat, " as a chat");
    this.write = make("button", { type: "submit", className: "main", title: "Ctrl+Enter" }, "Write");
    this.stop = make("button", { type: "button", disabled: true, onclick: () => this.run.stop() }, "Stop");
    this.race = make("button", { type: "button", disabled: true, onclick: () => this.second() }, "Race plain decoding");
    this.save = make("button", { type: "button", disabled: true, onclick: () => this.download() }, "Save the trace");
    this.german = make("button", { type: "button", onclick: () => this.example() }, "A German sentence");
    this.about = make("p", { className: "quiet" });
    this.note = make("p", { className: "note", role: "status" });
    this.form = make("form", { onsubmit: (event) => { event.preventDefault(); this.first(); } },
      field("Prompt", this.prompt),
      make("div", { className: "fields" },
        field("Temperature ", this.temperature, this.shownTemperature), field("Most tokens", this.length), field("Seed", this.seed),
        field("Method", this.method), this.nodesField, this.chatField),
      make("div", { className: "controls" }, this.write, this.stop, this.race, this.save, this.german));
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.form.requestSubmit();
    });
    this.append(make("section", { "aria-label": "what to write" }, this.about, this.keyForm, this.form, this.note));
  }

  /** What the server has: a model, and perhaps a chat template. */
  async greet() {
    await this.attempt(async () => {
      const [model] = (await this.server.json("v1/models")).data;
      this.model = model.id;
      this.about.textContent = `The model ${model.id} writes. Its text appears as it is written, with the tree of every round.`;
      this.method.replaceChildren(...model.methods.map((name) => make("option", { value: name }, name === "ar" ? "ar: without drafts" : name)));
      this.nodesField.hidden = !model.nodes;
      if (model.nodes) this.nodes.max = this.nodes.value = this.shownNodes.value = model.nodes;
      this.chatField.hidden = !model.chat_template;
      this.chat.checked = model.chat_template;
      this.keyForm.hidden = true;
      this.form.inert = false;
      this.say("");
    });
  }

  async unlock() {
    this.server.key = this.key.value.trim();
    await this.greet();
  }

  /** Does something; an error becomes a note, and a missing key a question. */
  async attempt(work) {
    try {
      await work();
    } catch (error) {
      if (error.status === 401) {
        this.keyForm.hidden = false;
        this.form.inert = true;
        this.say(this.server.key ? "The server does not know this key." : "The server wants a key. It is kept in this tab only.");
        this.key.focus();
      } else this.say(error.status ? `The server says: ${error.message}.` : "The server cannot be reached.");
    }
  }

  say(words) {
    this.note.textContent = words;
  }

  body() {
    const body = { model: this.model, max_tokens: Number(this.length.value), temperature: Number(this.temperature.value), seed: Number(this.seed.value) };
    if (this.chat.checked) return ["v1/chat/completions", { ...body, messages: [{ role: "user", content: this.prompt.value }] }];
    return ["v1/completions", { ...body, prompt: this.prompt.value }];
  }

  /** The drafting of the text. */
  speculative() {
    const method = this.method.value;
    return method === "ar" || this.nodesField.hidden ? { method } : { method, nodes: Number(this.nodes.value) };
  }

  /** Writes a text, and shows its rounds as they come. */
  async first() {
    const [path, body] = this.body();
    this.run?.stop();
    const run = new Run(this.server, path, { ...body, speculative: this.speculative() });
    this.source = new LiveSource(this.server, [run]);
    await this.read(run, () => this.show(run));
    if (run === this.run && run.facts) this.race.disabled = run.facts.plain || run.stopped || !run.rounds.length;
  }

  /** The same request once more, without drafts; both are then shown on one clock. */
  async second() {
    const [drafted] = this.source.runs;
    const run = new Run(this.server, drafted.path, { ...drafted.body, speculative: false });
    this.say("Plain decoding writes the same text …");
    this.race.disabled = true;
    await this.read(run, () => this.say(`Plain decoding writes the same text: ${run.rounds.length} passes …`));
    if (run !== this.run) return;
    this.race.disabled = !run.stopped;
    if (!run.facts?.end || run.stopped) return;
    this.source = new LiveSource(this.server, [drafted, run]);
    this.replacePage();
    this.say("Both runs are below, on one clock: Play starts them.");
  }

  /** A recorded translation, which every server has. */
  async example() {
    this.run?.stop();
    const run = new Run(this.server, "", {}, "german");
    this.source = new LiveSource(this.server, [run]);
    await this.read(run, () => {});
    if (run !== this.run || !run.facts?.end) return;
    this.replacePage();
    this.say("Recorded: the bundled pair translates a German sentence, a block of drafted words at a time.");
  }

  async read(run, listener) {
    this.run = run;
    this.busy(true);
    await this.attempt(async () => {
      this.say("");
      await run.read(listener);
      if (run === this.run) this.say(this.ending(run));
    });
    if (run === this.run) this.busy(false);
  }

  ending(run) {
    if (run.stopped) return "Stopped: the server frees the row.";
    if (run.facts?.end?.dropped) return `The trace holds the first ${run.rounds.length} rounds; ${run.facts.end.dropped} more came after them.`;
    return "";
  }

  busy(busy) {
    this.stop.disabled = !busy;
    if (busy) this.race.disabled = this.save.disabled = true;
    else this.save.disabled = !this.source.runs.some((run) => run.facts?.end);
  }

  /** The page of a run begins with its first event. */
  show(run) {
    if (run !== this.source.runs[0]) return;
    if (this.shown !== this.source) this.replacePage();
    else this.source.grown(run);
  }

  replacePage() {
    const page = document.createElement("dw-page");
    page.source = this.shown = this.source;
    this.page?.remove();
    this.page = page;
    this.append(page);
  }

  /** The traces as the file that `draftwood trace --input` reads. */
  async download() {
    await this.attempt(async () => {
      const [first, ...others] = await Promise.all(this.source.runs.map((run) => this.server.json(`v1/traces/${run.id}`)));
      const whole = { ...first, traces: [...first.traces, ...others.flatMap((other) => other.traces)] };
      const address = URL.createObjectURL(new Blob([JSON.stringify(whole)], { type: "application/json" }));
      make("a", { href: address, download: `${this.source.runs[0].id}.json` }).click();
      setTimeout(() => URL.revokeObjectURL(address), 60_000);
    });
  }
}

customElements.define("dw-live", LivePage);
