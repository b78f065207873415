/** A label and its field. */
function field(words, input, ...more) {
  return make("label", { className: "field" }, make("span", {}, words, ...more), input);
}

const DRAWN = [
  ["temperature", "Temperature", { min: 0, max: 100 }], ["top_p", "Top-p", { min: 0, max: 1 }], ["top_k", "Top-k", { min: 0, step: 1 }],
  ["min_p", "Min-p", { min: 0, max: 1 }], ["repetition_penalty", "Repetition penalty", { min: 0.01, max: 100 }],
];
const NEUTRAL = { temperature: 1, top_p: 1, top_k: 0, min_p: 0, repetition_penalty: 1 };
const COMPLETION_TOKENS = 128;

/** The system text, and how answers are drawn and drafted. What is not changed is left to the model's own preset. */
class SettingsPanel extends HTMLElement {
  connectedCallback() {
    const number = (properties) => make("input", { type: "number", step: "any", ...properties });
    this.system = make("textarea", { rows: 2, placeholder: "none" });
    this.systemField = field("System text", this.system);
    this.drawn = Object.fromEntries(DRAWN.map(([name, , limits]) => [name, number({ required: true, ...limits })]));
    this.length = number({ min: 1, step: 1, placeholder: "what fits" });
    this.seed = number({ min: 0, step: 1, placeholder: "a new one" });
    this.method = make("select");
    this.shownNodes = make("output");
    this.nodes = make("input", { type: "range", min: 1, step: 1, oninput: () => { this.shownNodes.value = this.nodes.value; } });
    this.nodesField = field("Nodes of a tree ", this.nodes, this.shownNodes);
    this.chat = make("input", { type: "checkbox", onchange: () => { this.systemField.hidden = !this.chat.checked; } });
    this.chatField = make("label", { hidden: true }, this.chat, " as a chat");
    this.reset = make("button", { type: "button", onclick: () => this.restore() }, "Back to the model's own");
    this.box = make("details", { className: "settings" }, make("summary", {}, "Settings"), make("div", {}, this.systemField,
      make("div", { className: "fields" }, ...DRAWN.map(([name, words]) => field(words, this.drawn[name])),
        field("Most tokens", this.length), field("Seed", this.seed), field("Method", this.method), this.nodesField, this.chatField),
      make("div", { className: "controls" }, this.reset)));
    this.append(this.box);
  }

  /** Takes what the server says of its model. */
  fit(model) {
    this.preset = { ...NEUTRAL, ...model.default_generation_settings?.params };
    this.method.replaceChildren(...model.methods.map((name) => make("option", { value: name }, name === "ar" ? "ar: without drafts" : name)));
    this.nodesField.hidden = !model.nodes;
    if (model.nodes) this.nodes.max = model.nodes;
    this.chatField.hidden = !model.chat_template;
    this.chats = model.chat_template;
    this.restore();
  }

  restore() {
    for (const [name] of DRAWN) this.drawn[name].value = this.preset[name];
    for (const input of [this.system, this.length, this.seed]) input.value = "";
    this.method.selectedIndex = 0;
    this.nodes.value = this.shownNodes.value = this.nodes.max;
    this.chat.checked = this.chats;
    this.chat.onchange();
  }

  /** The first field with a value that cannot be sent, which then says so. */
  invalid() {
    const found = [...this.querySelectorAll("input")].find((input) => !input.checkValidity());
    if (found) this.box.open = true;
    found?.reportValidity();
    return found;
  }

  /** The fields of a request. A seed is always sent, so that plain decoding can race with the same one. */
  values() {
    const changed = DRAWN.map(([name]) => [name, Number(this.drawn[name].value)]).filter(([name, value]) => value !== this.preset[name]);
    const length = Number(this.length.value) || (this.chat.checked ? null : COMPLETION_TOKENS);
    const seed = this.seed.value === "" ? Math.floor(Math.random() * 2 ** 31) : Number(this.seed.value);
    return { ...Object.fromEntries(changed), max_tokens: length, seed, speculative: this.speculative() };
  }

  speculative() {
    const method = this.method.value;
    return method === "ar" || this.nodesField.hidden ? { method } : { method, nodes: Number(this.nodes.value) };
  }
}

customElements.define("dw-settings", SettingsPanel);
